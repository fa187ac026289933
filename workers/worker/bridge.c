#include "workers/worker/bridge.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/sampler/external.h"
#include "workers/engine/text/tokenizer.h"

#define PATIENCE_S 20.0    // for one server, while the trainer waits

struct bridge {
    struct external **server;    // (n_server) owned
    int n_server;
    char dir[4200];    // of the last version; "": none
};

static void woken(void *ctx)
{
    (void)ctx;    // nobody waits for samples
}

static void dir_of(const struct engine *e, char *out, size_t size)
{
    snprintf(out, size, "%s/engine/bridge", e->run_dir);
}

/* Have every server read the present weights. */
static void push(struct engine *e)
{
    struct bridge *b = e->bridge;
    char dir[4200];
    struct error err;
    int n_has = 0;
    int64_t before = clock_ms();
    bool adapter = e->config.lora_rank > 0 || e->config.lora_adapter[0];
    dir_of(e, dir, sizeof dir - 48);
    size_t at = strlen(dir);
    snprintf(dir + at, sizeof dir - at, "/%" PRId64 "-%" PRId64, e->made, e->step);
    if (!dir_make(dir, 0755, &err) || (!adapter && !model_dir_copy_tokenizer(e->config.model, dir, &err))
        || !model_save(e->model, dir, &err)) {
        log_warn("the weights of step %" PRId64 " are not given to other servers: %s", e->step, err.text);
        return;
    }
    engine_waits_for(e, "inference servers to read weights");
    for (int i = 0; i < b->n_server; i++) {
        if (external_weights_set(b->server[i], dir, adapter, e->step, &err))
            n_has++;
        else
            log_warn("a server has not got the weights of step %" PRId64 ": %s", e->step, err.text);
    }
    engine_waits_for(e, "");
    log_info("%d of %d servers have the weights of step %" PRId64 " took_s=%.2f", n_has, b->n_server, e->step,
             (double)(clock_ms() - before) / 1000);
    if (b->dir[0] && strcmp(b->dir, dir) != 0 && !dir_remove(b->dir, &err))
        log_warn("%s", err.text);
    snprintf(b->dir, sizeof b->dir, "%s", dir);
}

static bool servers_open(struct engine *e, struct bridge *b, struct error *err)
{
    const struct run_config *c = &e->config;
    int64_t n = run_config_n_engine(c);
    if (!(b->server = calloc((size_t)n, sizeof(struct external *))))
        return error_set(err, ERR_NO_MEMORY, "no memory for the servers' clients");
    for (int64_t i = 0; i < n; i++) {
        char url[280], name[32];
        struct external_config config = { .kind = EXTERNAL_VLLM,
                                          .url = url,
                                          .token_file = c->engine_token_file[0] ? c->engine_token_file : NULL,
                                          .request_s = c->engine_timeout_s,
                                          .patience_s = PATIENCE_S,
                                          .n_request = 1,
                                          .n_id = tokenizer_n_id(e->prompts.tokenizer),
                                          .wake = woken };
        snprintf(name, sizeof name, "engine:%" PRId64, i);
        if (!run_config_engine(c, name, url, sizeof url))
            return error_set(err, ERR_USAGE, "'engine_url' has no address %" PRId64, i);
        if (!(b->server[i] = external_new(&config, err)))
            return false;
        b->n_server++;
    }
    return true;
}

bool bridge_open(struct engine *e, struct error *err)
{
    char dir[4200];
    if (e->rank != 0 || !run_config_posted(&e->config) || !e->config.engine_url[0])
        return true;
    if (!e->bridge) {
        dir_of(e, dir, sizeof dir);
        if (path_exists(dir) && !dir_remove(dir, err))    // an earlier life's
            return false;
        if (!(e->bridge = calloc(1, sizeof *e->bridge)))
            return error_set(err, ERR_NO_MEMORY, "no memory for the weight bridge");
        if (!servers_open(e, e->bridge, err)) {
            bridge_free(e);
            return false;
        }
    }
    push(e);
    return true;
}

void bridge_step(struct engine *e, int64_t max_steps)
{
    if (e->bridge && (e->step % e->config.bridge_interval == 0 || e->step >= max_steps))
        push(e);
}

void bridge_free(struct engine *e)
{
    if (!e->bridge)
        return;
    for (int i = 0; i < e->bridge->n_server; i++)
        external_free(e->bridge->server[i]);
    free(e->bridge->server);
    free(e->bridge);
    e->bridge = NULL;
}
