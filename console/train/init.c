#include "console/train/init.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/train/train_parts.h"
#include "kernels/ops.h"
#include "protocol/base/file.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/hub/hub_data.h"
#include "workers/engine/load/model_find.h"
#include "workers/engine/model/model.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

#define PROMPTS_GPU 64            // of a step, shared by the devices: 512 samples, as most published recipes have it
#define PROMPTS_CPU 8             // where a model is not tiny
#define TINY_PARAMS 50000000      // models that learn from random weights in minutes, at other rates than the rest
#define PROMPTS_MEASURED 20000    // rows whose prompts are tokenised
#define DEVICES_MAX 64

bool init_model(struct init *i, const char *name, struct error *err)
{
    char full[PATH_MAX];
    if (!model_find(i->model_dir, sizeof i->model_dir, name, err) || !model_files_check(i->model_dir, &i->shape, err))
        return false;
    if (path_exists(name) && !realpath(name, full))
        return error_errno(err, "cannot find the model '%s'", name);
    const char *shown = path_exists(name) ? full : name;
    if (strlen(shown) >= sizeof i->model)
        return error_set(err, ERR_USAGE, "the model's path '%s' is too long", shown);
    snprintf(i->model, sizeof i->model, "%s", shown);
    return true;
}

/* ---- data ---- */

static int i64_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The length that 99.5 % of the prompts have at most, rounded up to a multiple of 64. */
static bool prompts_measure(struct init *i, const struct dataset *d, struct error *err)
{
    double sum = 0;
    int64_t n = MIN(dataset_n_row(d), PROMPTS_MEASURED), *length = calloc((size_t)n, sizeof *length);
    struct tokenizer *tokenizer = tokenizer_load(i->model_dir, err);
    struct encoder *encoder = tokenizer ? encoder_new(tokenizer, true, err) : NULL;
    struct template *chat = NULL;
    struct token_list ids = { 0 };
    bool ok = false;
    if (!length || !encoder) {
        if (!length)
            error_set(err, ERR_NO_MEMORY, "no memory for the lengths of %" PRId64 " prompts", n);
        goto out;
    }
    TRY(template_find(i->model_dir, &chat, err));
    struct prompt_maker maker = { .encoder = encoder,
                                  .template = chat,
                                  .system_prompt = prompt_system(i->no_system ? "none" : "", i->reward),
                                  .long_prompt = LONG_REFUSE };
    for (int64_t r = 0; r < n; r++) {
        bool dropped;
        json_t *row = dataset_row(d, r, err);
        bool made = row && prompt_make(&maker, row, &ids, &dropped, err);
        json_decref(row);
        TRY(made);
        length[r] = ids.n;
        sum += (double)ids.n;
    }
    qsort(length, (size_t)n, sizeof *length, i64_compare);
    i->prompt_mean = sum / (double)n;
    i->n_prompt_tok = (length[(int64_t)ceil(0.995 * (double)n) - 1] + 63) / 64 * 64;
    ok = true;
out:
    token_list_release(&ids);
    template_free(chat);
    encoder_free(encoder);
    tokenizer_free(tokenizer);
    free(length);
    return ok;
}

/* The split 'test' of the same data set of the hub, if it is in the cache too. */
static void eval_find(struct init *i, const char *name)
{
    struct hub_data h;
    struct error none;
    i->eval[0] = 0;
    if (path_exists(name) || !hub_data_parse(&h, name) || strcmp(h.split, "test") == 0)
        return;
    snprintf(h.split, sizeof h.split, "test");
    struct dataset *d = hub_data_print(i->eval, sizeof i->eval, &h) ? dataset_open(i->eval, NULL, &none) : NULL;
    if (!d)
        i->eval[0] = 0;
    dataset_free(d);
}

bool init_data(struct init *i, const char *name, struct error *err)
{
    char full[PATH_MAX];
    struct dataset *d = dataset_open(name, NULL, err);
    json_t *row = d ? dataset_row(d, 0, err) : NULL;
    bool ok = false;
    if (!row)
        goto out;
    i->n_row = dataset_n_row(d);
    i->reward = json_object_get(row, "test_cases") ? "code" : json_object_get(row, "gt_answer") ? "boxed" : NULL;
    if (!i->reward) {
        error_set(err, ERR_DATA,
                  "'%s' has prompts, but neither answers nor tests that a reward could use; name the answer's column with "
                  "'answer_column' in a run file of your own, or give a reward program",
                  name);
        goto out;
    }
    TRY(prompts_measure(i, d, err));
    const char *shown = path_exists(name) && realpath(name, full) ? full : name;
    if (strlen(shown) >= sizeof i->dataset) {
        error_set(err, ERR_USAGE, "the path '%s' is too long", shown);
        goto out;
    }
    snprintf(i->dataset, sizeof i->dataset, "%s", shown);
    eval_find(i, name);
    ok = true;
out:
    json_decref(row);
    dataset_free(d);
    return ok;
}

bool init_prompts_again(struct init *i, struct error *err)
{
    struct dataset *d = dataset_open(i->dataset, NULL, err);
    bool ok = d && prompts_measure(i, d, err);
    dataset_free(d);
    return ok && init_settle(i, err);
}

/* ---- devices ---- */

bool init_devices(struct init *i, const char *list, struct error *err)
{
    char words[sizeof i->devices], *rest = words, *name;
    struct error none;
    size_t at = 0, total;
    bool all = strcmp(list, "auto") == 0;
    i->n_device = 0;
    i->devices[0] = 0;
    for (int k = 0; all && k < DEVICES_MAX && path_exists("/dev/nvidiactl") && at + 16 < sizeof i->devices; k++) {
        snprintf(words, sizeof words, "cuda:%d", k);
        struct device *dev = device_new(words, 1, &none);
        if (!dev)
            break;
        device_free(dev);
        at += (size_t)snprintf(i->devices + at, sizeof i->devices - at, "%s%s", k ? "," : "", words);
    }
    if (strlen(list) >= sizeof i->devices)
        return error_set(err, ERR_USAGE, "a list of devices has at most %zu characters", sizeof i->devices - 1);
    if (!all || at == 0)
        snprintf(i->devices, sizeof i->devices, "%s", all ? "cpu:0" : list);
    memcpy(words, i->devices, sizeof words);
    while ((name = strsep(&rest, ","))) {
        struct device *dev = device_new(name, 1, err);
        size_t free_bytes = 0;
        if (!dev || !mem_info(dev, &free_bytes, &total, err)) {
            device_free(dev);
            return error_wrap(err, "devices '%s'", i->devices);
        }
        i->cuda = dev->kind == DEVICE_CUDA;
        i->mem = i->n_device++ == 0 ? free_bytes : MIN(i->mem, free_bytes);
        device_free(dev);
    }
    return true;
}

/* ---- choices ---- */

bool init_is_tiny(const struct init *i)
{
    return config_n_param(&i->shape) < TINY_PARAMS;
}

bool init_settle(struct init *i, struct error *err)
{
    double n = (double)config_n_param(&i->shape);
    bool tiny = init_is_tiny(i);
    int64_t room = config_longest(&i->shape) - i->n_prompt_tok, wanted = i->max_new_tok > 0 ? i->max_new_tok : tiny ? 64 : 512;
    if (room < 1 || (i->max_new_tok > room))
        return error_set(err, ERR_USAGE,
                         "prompts of %" PRId64 " tokens and responses of %" PRId64 " do not fit into the model's %" PRId64
                         " positions; give a smaller --max-new-tokens",
                         i->n_prompt_tok, wanted, config_longest(&i->shape));
    i->max_new_tok = MIN(wanted, room);
    i->prompts = MAX(((i->cuda || tiny ? PROMPTS_GPU : PROMPTS_CPU) + i->n_device - 1) / i->n_device, 1);
    i->prompts = MIN(i->prompts, MAX(i->n_row / i->n_device, 1));
    i->token_budget = MAX(!i->cuda || n > 10e9 ? 4096 : n > 3e9 ? 8192 : 16384, i->n_prompt_tok + i->max_new_tok);
    i->learning_rate = tiny ? 4e-4 : 1e-6;
    return true;
}

bool init_measure(struct init *i, const char *path, bool *again, struct error *err)
{
    struct train *t = calloc(1, sizeof *t);
    struct step_estimate e;
    struct run_room room;
    bool ok = false, planned;
    *again = false;
    if (!t)
        return error_set(err, ERR_NO_MEMORY, "no memory for the settings");
    run_config_init(&t->config);
    TRY(run_config_read(&t->config, path, err));
    TRY(run_config_finish(&t->config, NULL, err));
    TRY(train_check(t, err));
    if (!train_room(t, &room, &planned, err)) {
        *again = err->code == ERR_NO_MEMORY && i->cuda && !i->offload;
        i->offload = i->offload || *again;
        goto out;
    }
    const struct init_trial *seen = i->no_system ? &i->none : &i->own;
    const struct step_lengths lengths = { .prompt = i->prompt_mean, .response = seen->tok, .longest = seen->longest };
    TRY(train_estimate(t, seen->n > 0 ? &lengths : NULL, &e, err));
    i->step_s = e.step_s;
    i->n_step = MAX((int64_t)(i->hours * 3600 / i->step_s), 1);
    ok = true;
out:
    json_decref(t->identity);
    buf_release(&t->about);
    buf_release(&t->shown);
    free(t);
    return ok;
}
