/* What a system prompt does to the model's answers: 'rollcall eval' on a few prompts, with the reward type's own and without one. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/train/init.h"
#include "console/train/program.h"
#include "protocol/base/json_text.h"
#include "workers/engine/reward/reward.h"

#define TRIAL_MS 300000    // for one of the two; a large model on a CPU may not get there
#define SAME 0.05          // shares this close are taken for equal: what a few hundred samples can tell apart

/* Every number that is missing is NAN; false: it is not what eval prints. */
static bool trial_read(struct init_trial *t, const struct buf *text, int64_t n_each)
{
    json_t *o = json_text_read(buf_text(text), text->len, 0, NULL);
    double samples = json_number_value(json_object_get(o, "n_sample"));
    *t = (struct init_trial){ .n = json_integer_value(json_object_get(o, "n")),
                              .n_each = n_each,
                              .right = json_number_value(json_object_get(o, "mean")),
                              .cut = json_number_value(json_object_get(o, "n_truncated")) / samples,
                              .spread = json_number_value(json_object_get(o, "spread")),
                              .tok = json_number_value(json_object_get(o, "tokens")) / samples,
                              .longest = json_number_value(json_object_get(o, "longest")) };
    json_decref(o);
    return t->n > 0 && samples > 0;
}

/* The last line of what a program wrote, for a sentence. */
static const char *last_line(struct buf *text)
{
    while (text->len > 0 && strchr("\r\n ", text->data[text->len - 1]))
        text->data[--text->len] = 0;
    const char *at = text->len > 0 ? strrchr(text->data, '\n') : NULL;
    return at ? at + 1 : buf_text(text);
}

static bool trial_run(const struct init *i, const char *system, struct init_trial *t, struct error *err)
{
    bool quick = i->cuda || init_is_tiny(i);
    char device[64], limit[16], each[16], length[24];
    struct buf out = BUF_INIT, errors = BUF_INIT;
    int64_t n_each = quick ? 8 : 4;
    int status = 1;
    snprintf(device, sizeof device, "%.*s", (int)MIN(strcspn(i->devices, ","), sizeof device - 1), i->devices);
    snprintf(limit, sizeof limit, "%d", quick ? 32 : 4);
    snprintf(each, sizeof each, "%" PRId64, n_each);
    snprintf(length, sizeof length, "%" PRId64, i->max_new_tok);
    char *argv[] = { "/proc/self/exe",
                     "eval",
                     "--model",
                     (char *)i->model_dir,
                     "--dataset",
                     (char *)i->dataset,
                     "--reward-type",
                     (char *)i->reward,
                     "--device",
                     device,
                     "--temperature",
                     "1",
                     "--limit",
                     limit,
                     "--n",
                     each,
                     "--max-new-tokens",
                     length,
                     "--long-prompt",
                     "drop",
                     system ? "--system-prompt" : "--default-system-prompt",
                     (char *)system,
                     NULL };
    bool ok = program_run(argv, TRIAL_MS, &out, &errors, &status, err);
    if (ok && (status != 0 || !trial_read(t, &out, n_each)))
        ok = error_set(err, ERR_DATA, "%.300s", last_line(&errors));
    buf_release(&out);
    buf_release(&errors);
    return ok;
}

bool init_none_is_better(const struct init_trial *own, const struct init_trial *none)
{
    if (fabs(none->right - own->right) > SAME)
        return none->right > own->right;
    if (fabs(none->spread - own->spread) > SAME)
        return none->spread > own->spread;
    return none->cut < own->cut - SAME;
}

bool init_system(struct init *i, char *why, size_t size, struct error *err)
{
    struct error none;
    why[0] = 0;
    if (!reward_system_prompt(i->reward))
        return true;
    if (!trial_run(i, NULL, &i->own, &none) || !trial_run(i, "none", &i->none, &none)) {
        i->own.n = i->none.n = 0;
        snprintf(why, size, "%s", none.text);
        return true;
    }
    i->no_system = init_none_is_better(&i->own, &i->none);
    return !i->no_system || init_prompts_again(i, err);
}
