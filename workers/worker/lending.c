#include "workers/worker/lending.h"
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/engine/model/model.h"
#include "workers/engine/publish/board.h"
#include "workers/engine/publish/lent_file.h"
#include "workers/engine/trainer/trainer.h"

#define LEAVE_MS 5000    // that servers have to let go of memory that is about to be freed

struct lending {
    struct board *board;
    struct engine *engine;
    int64_t asked_ms;    // clock_ms when the weights were asked for; 0: they are lent
    int64_t used_ms;     // under engine.lock: clock_ms when a server last had them
};

static bool lends(const struct engine *e)
{
    return e->rank == 0 && e->config.weight_bridge_file[0];
}

bool lending_prepare(struct engine *e, struct error *err)
{
    return !lends(e) || model_share(e->model, err);
}

/* trainer_changes: the gradient is there. */
static void weights_ask(void *ctx)
{
    struct lending *l = ctx;
    struct engine *e = l->engine;
    if (l->asked_ms)    // a later update of the same step
        return;
    l->asked_ms = clock_ms();
    engine_waits_for(e, "servers to let go of the weights");
    int n = board_change(l->board, (int64_t)(e->config.engine_timeout_s * 1000));
    engine_waits_for(e, "");
    if (n > 0)
        log_warn("%d servers had requests under way after %g s; they lose them, because the weights change now", n,
                 e->config.engine_timeout_s);
}

void lending_changed(struct engine *e)
{
    struct lending *l = e->lending;
    if (!l || !l->asked_ms)
        return;
    board_changed(l->board, e->step);
    log_info("lent weights have changed version=%" PRId64 " away_s=%.3f", e->step, (double)(clock_ms() - l->asked_ms) / 1000);
    l->asked_ms = 0;
}

/* out of size bytes: the directory or file by its whole path. */
static bool path_whole(char *out, size_t size, const char *path, struct error *err)
{
    char whole[PATH_MAX];
    if (!realpath(path, whole))
        return error_errno(err, "cannot find '%s'", path);
    return snprintf(out, size, "%s", whole) < (int)size || error_set(err, ERR_USAGE, "the path '%.200s...' is too long", whole);
}

bool lending_open(struct engine *e, struct error *err)
{
    const struct run_config *c = &e->config;
    char folder[4096], board[4200];
    struct lent_file f = { .dtype = model_dtype(e->model),
                           .sum_parts = run_config_sum_parts(c),
                           .max_seq_tok = c->max_prompt_tokens + c->max_new_tokens };
    bool ok = false;
    if (!lends(e))
        return true;
    const struct mem_handle *h = model_share(e->model, err);    // as it is since lending_prepare
    if (!h)
        return false;
    f.handle = *h;
    snprintf(f.device, sizeof f.device, "%s", e->device_name);
    struct lending *l = calloc(1, sizeof *l);
    if (!l)
        return error_set(err, ERR_NO_MEMORY, "no memory to lend weights");
    l->engine = e;
    l->used_ms = clock_ms();
    const char *slash = strrchr(c->weight_bridge_file, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - c->weight_bridge_file) + 1 : 2, slash ? c->weight_bridge_file : "./");
    TRY(path_whole(f.model, sizeof f.model, c->model, err) && path_whole(f.tokenizer, sizeof f.tokenizer, run_config_tokenizer(c), err)
        && path_whole(folder, sizeof folder, folder, err));
    snprintf(board, sizeof board, "%s/%s.board", folder, slash ? slash + 1 : c->weight_bridge_file);
    snprintf(f.board, sizeof f.board, "%s", board);
    TRY(device_sync(e->dev, err));
    TRY((l->board = board_new(board, e->step, err)) != NULL);
    TRY(lent_file_write(&f, e->model, c->weight_bridge_file, err));
    trainer_changes_set(e->trainer, weights_ask, l);
    pthread_mutex_lock(&e->lock);
    e->lending = l;
    pthread_mutex_unlock(&e->lock);
    log_info("weights are lent by '%s' version=%" PRId64 " dtype=%s", c->weight_bridge_file, e->step,
             f.dtype == DT_BF16 ? "bfloat16" : "float32");
    ok = true;
out:
    if (!ok) {
        board_free(l->board);
        free(l);
    }
    return ok;
}

int lending_unused(struct engine *e, struct engine_server *out)
{
    struct lending *l = e->lending;
    int64_t now = clock_ms();
    if (board_has_readers(l->board))
        l->used_ms = now;
    snprintf(out->name, sizeof out->name, "the server of '%.290s'", e->config.weight_bridge_file);
    snprintf(out->trouble, sizeof out->trouble, "no process computes with the weights that this file lends");
    out->behind_s = (double)(now - l->used_ms) / 1000;
    return now > l->used_ms;
}

void lending_free(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct lending *l = e->lending;
    e->lending = NULL;
    pthread_mutex_unlock(&e->lock);
    if (!l)
        return;
    if (e->trainer)
        trainer_changes_set(e->trainer, NULL, NULL);
    if (l->board && board_change(l->board, LEAVE_MS) > 0)
        log_warn("servers compute with weights that are freed now; they notice and stop");
    board_free(l->board);
    free(l);
}
