#include "workers/controller/resumed.h"
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/record/settings_kept.h"
#include "protocol/run/resume_flags.h"
#include "workers/controller/controller.h"

struct resumed {
    struct run_config was, wanted;    // run.yaml before, and with them
    bool given[KNOB_MAX];             // of those that may change during the run
};

void resumed_free(struct resumed *r)
{
    free(r);
}

/* Where several words are on one knob, the first start's run.yaml and the last value count. */
static bool flag_take(void *arg, const char *name, const char *before, const char *value, struct error *err)
{
    struct controller *c = arg;
    const struct knob *k = knob_find(name, err);
    if (!k)
        return false;
    if (!c->resumed) {
        if (!(c->resumed = calloc(1, sizeof *c->resumed)))
            return error_set(err, ERR_NO_MEMORY, "no memory for settings");
        c->resumed->was = c->resumed->wanted = c->config;
    }
    if (!knob_is_live(k))    // run.yaml has it, and start_tell says so
        return true;
    bool known = c->resumed->given[k - knobs];
    c->resumed->given[k - knobs] = true;
    return (known || run_config_set(&c->resumed->was, name, before, FROM_FILE, NULL, err))
           && run_config_set(&c->resumed->wanted, name, value, FROM_COMMAND, NULL, err);
}

bool resumed_read(struct controller *c, struct error *err)
{
    if (!resume_flags_read(c->process.run_dir, flag_take, c, err))
        return false;
    if (!c->resumed)
        return true;
    struct run_config *with = malloc(sizeof *with);
    if (!with)
        return error_set(err, ERR_NO_MEMORY, "no memory for settings");
    *with = c->config;
    c->config = c->resumed->was;
    config_at(c, INT64_MAX, INT64_MAX, &c->now);
    c->config = *with;
    free(with);
    return true;
}

/* Those that differ from what holds now: names, and values in text; returns how many. */
static int differing(const struct controller *c, const char *name[KNOB_MAX], struct buf text[KNOB_MAX], const char *value[KNOB_MAX])
{
    struct buf now = BUF_INIT;
    int n = 0;
    for (int i = 0; i < n_knobs; i++) {
        if (!c->resumed->given[i])
            continue;
        name[n] = knobs[i].name;
        value[n] = knob_text(&knobs[i], &c->resumed->wanted, &text[n]);
        n += strcmp(value[n], knob_text(&knobs[i], &c->now, &now)) != 0;
    }
    buf_release(&now);
    return n;
}

/* What holds from a start on, and is another than the journal keeps: told, and kept. Without a word of `train --resume` nobody has meant
 * it. */
static bool start_tell(struct controller *c, struct error *err)
{
    struct buf text = BUF_INIT;
    json_t *was = NULL, *is = settings_kept_make(&c->config);
    char *kept = is ? json_text_dump(is, JSON_COMPACT) : NULL;
    bool ok = kept ? settings_kept_read(c->journal, &was, err) : error_set(err, ERR_NO_MEMORY, "no memory for settings");
    for (int i = 0; ok && was && i < n_knobs; i++)
        if (!(c->resumed && c->resumed->given[i]) && setting_differs(was, &knobs[i], &c->config))
            setting_tell(&text, was, &knobs[i], &c->config);
    if (ok && text.len && !c->resumed)
        run_fail(
            c, "run.yaml has been changed while the run goes on: %.400s; put it back, or stop the run and give the settings with --resume",
            buf_text(&text));
    else if (ok && text.len)
        event_add(c, "command", "train --resume", buf_text(&text), "");
    if (ok && (!was || text.len || c->resumed) && !run_is_over(c))
        ok = transaction(c, err) && journal_value_put(c->journal, SETTINGS_KEPT, kept, strlen(kept), err);
    buf_release(&text);
    free(kept);
    json_decref(was);
    json_decref(is);
    return ok;
}

bool resumed_apply(struct controller *c, struct error *err)
{
    const char *name[KNOB_MAX], *value[KNOB_MAX];
    struct buf text[KNOB_MAX] = { 0 };
    struct effect effect = { 0 };
    char path[4096];
    bool ok = start_tell(c, err);
    if (!ok || !c->resumed) {
        if (ok && c->in_transaction) {
            c->in_transaction = false;
            ok = journal_commit(c->journal, err);
        }
        return ok;
    }
    int64_t from = return_target(c, path);
    int n = differing(c, name, text, value);
    if (n > 0 && !changes_make(c, name, value, n, from >= 0 ? from : c->step, &effect, err))
        run_fail(c, "the settings given at resume cannot be taken: %s", err->text);
    else if (n > 0)
        event_add(c, "command", "train --resume", buf_text(&effect.text), effect.detail ? effect.detail : "");
    if (c->in_transaction) {
        c->in_transaction = false;
        ok = journal_commit(c->journal, err);
    }
    if (ok)
        resume_flags_remove(c->process.run_dir);    // killed before: what holds already is not set again
    resumed_free(c->resumed);
    c->resumed = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(text); i++)
        buf_release(&text[i]);
    effect_release(&effect);
    return ok;
}
