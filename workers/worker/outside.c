#include "workers/worker/outside.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/publish/publication.h"
#include "workers/engine/sampler/external.h"
#include "workers/engine/text/tokenizer.h"

#define REQUESTS_MAX 64    // at once; more items wait

static void wake(void *ctx)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    e->visited = true;
    pthread_cond_signal(&e->some);
    pthread_mutex_unlock(&e->lock);
}

/* The directory of a version, or (version -1) the one that has them all. */
static void dir_of(const struct engine *e, int64_t made, int64_t version, char *out, size_t size)
{
    int n = snprintf(out, size, "%s/engine/%s", e->run_dir, strchr(e->device_name, ':') + 1);
    if (version >= 0)
        snprintf(out + n, size - (size_t)n, "/%" PRId64 "-%" PRId64, made, version);
}

bool outside_open(struct engine *e, struct error *err)
{
    const struct run_config *c = &e->config;
    char url[280], dir[4200];
    struct external_config config = { .url = url,
                                      .token_file = c->engine_token_file[0] ? c->engine_token_file : NULL,
                                      .helper = c->engine_helper[0] ? c->engine_helper : NULL,
                                      .request_s = c->engine_timeout_s,
                                      .patience_s = c->engine_patience_s,
                                      .n_request = (int)MIN(c->inference_microbatch_size, (int64_t)REQUESTS_MAX),
                                      .spare = run_config_n_engine(c) > 1,
                                      .n_id = tokenizer_n_id(e->prompts.tokenizer),
                                      .n_vocab = model_config(e->model)->vocab,
                                      .wake = wake,
                                      .ctx = e };
    if (!external_kind_parse(c->backend, &config.kind) || !run_config_engine(c, e->device_name, url, sizeof url))
        return error_set(err, ERR_USAGE, "'engine_url' has no address for '%s'", e->device_name);
    if (e->external)
        return true;
    dir_of(e, 0, -1, dir, sizeof dir);
    if (path_exists(dir) && !dir_remove(dir, err))    // an earlier life's
        return false;
    return (e->external = external_new(&config, err)) != NULL;
}

bool outside_gives_up(struct engine *e)
{
    bool up = e->external && run_config_n_engine(&e->config) > 1 && external_is_away(e->external);
    if (up)
        log_warn("the engine is away: its items are drawn by others");
    return up;
}

bool outside_publish(struct engine *e, const struct task *t, struct error *err)
{
    char dir[4200], old[4200] = "";
    struct error none;
    bool adapter = e->config.lora_rank > 0 || e->config.lora_adapter[0];
    dir_of(e, t->made, t->version, dir, sizeof dir);
    if (e->version >= 0)
        dir_of(e, e->made, e->version, old, sizeof old);
    engine_waits_for(e, "the trainer's weights");
    bool ok = weights_file_read(e->model, t->path, t->version, err) && dir_make(dir, 0755, err)
              && (adapter || model_dir_copy_tokenizer(run_config_tokenizer(&e->config), dir, err)) && model_save(e->model, dir, err);
    engine_waits_for(e, "the external engine to read weights");
    ok = ok && external_weights_set(e->external, dir, adapter, t->version, err);
    engine_waits_for(e, "");
    if (ok && old[0] && strcmp(old, dir) != 0 && !dir_remove(old, &none))    // nothing reads it any more
        log_warn("%s", none.text);
    return ok;
}
