#include "workers/serve/lent.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "protocol/base/log.h"
#include "workers/engine/model/model.h"
#include "workers/engine/publish/board.h"

struct lent {
    char path[4096];
    struct lent_file file;
    struct board *board;    // NULL: the trainer has gone
    bool attached;          // the model has this trainer's memory
    struct stat seen;       // of the file, when it was last read
    bool again;             // its board is to be tried again
    int64_t version;        // of what the model's handles were made from
    char why[400];          // it cannot be found again; "": not said yet
};

static bool seen_already(const struct lent *l, const struct stat *now)
{
    return now->st_ino == l->seen.st_ino && now->st_mtim.tv_sec == l->seen.st_mtim.tv_sec
           && now->st_mtim.tv_nsec == l->seen.st_mtim.tv_nsec;
}

/* Join the trainer that has written the file, unless it has gone: one that is started again writes another file. A board that had no room is
 * tried again. */
static bool join(struct lent *l, struct error *err)
{
    struct lent_file f;
    struct stat now = { 0 };
    bool same = stat(l->path, &now) == 0 && seen_already(l, &now);
    if (same && !l->again)
        return error_set(err, ERR_NOT_FOUND, "the trainer that wrote '%s' has gone", l->path);
    if (!same) {
        if (!lent_file_read(&f, l->path, err))
            return false;
        l->seen = now;
        lent_file_release(&l->file);
        l->file = f;
        l->attached = false;
    }
    l->board = board_join(l->file.board, err);
    l->again = !l->board && err->code != ERR_NOT_FOUND && err->code != ERR_DATA;
    return l->board || error_wrap(err, "the weights of '%s'", l->path);
}

struct lent *lent_open(const char *path, struct error *err)
{
    struct lent *l = calloc(1, sizeof *l);
    if (!l) {
        error_set(err, ERR_NO_MEMORY, "no memory for '%s'", path);
        return NULL;
    }
    l->version = -1;
    if (snprintf(l->path, sizeof l->path, "%s", path) >= (int)sizeof l->path)
        error_set(err, ERR_USAGE, "the path '%.100s...' is too long", path);
    else if (join(l, err))
        return l;
    lent_free(l);
    return NULL;
}

void lent_free(struct lent *l)
{
    if (!l)
        return;
    board_free(l->board);
    lent_file_release(&l->file);
    free(l);
}

const struct lent_file *lent_about(const struct lent *l)
{
    return &l->file;
}

struct model *lent_model(const struct lent *l, struct device *dev, struct error *err)
{
    struct model_config shape;
    if (!config_load(&shape, l->file.model, err))
        return NULL;
    struct model *m = model_new_shape(&shape, dev, l->file.dtype, err);
    if (!m)
        return NULL;
    if (!lent_file_fits(&l->file, m, l->path, err) || !model_parts_set(m, l->file.sum_parts, err)
        || !model_attach(m, &l->file.handle, err)) {
        model_free(m);
        return NULL;
    }
    return m;
}

/* Take this trainer's memory into the model, while it is held. */
static bool attach(struct lent *l, struct model *m, struct error *err)
{
    if (l->file.dtype != model_dtype(m))
        return error_set(err, ERR_DATA, "'%s' lends weights of another type than before; start the server again", l->path);
    return lent_file_fits(&l->file, m, l->path, err) && model_attach(m, &l->file.handle, err);
}

static void gone_say(const struct lent *l, struct error *err)
{
    error_set(err, ERR_CLOSED, "the trainer that lends the weights of '%s' has gone; requests are answered again when it is back", l->path);
}

/* The trainer has gone: touch its memory no more. */
static void lose(struct lent *l, struct model *m, struct error *err)
{
    board_free(l->board);
    l->board = NULL;
    l->attached = false;
    model_detach(m);
    gone_say(l, err);
    log_warn("%s", err->text);
    l->why[0] = 0;
}

enum lent_state lent_hold(struct lent *l, struct model *m, int64_t wait_ms, bool *moved, bool *changed, struct error *err)
{
    *moved = *changed = false;
    if (!l->board && !join(l, err)) {
        if (strcmp(l->why, err->text) != 0)
            log_info("%s", err->text);
        snprintf(l->why, sizeof l->why, "%s", err->text);
        if (err->code == ERR_FULL)
            error_set(err, ERR_CLOSED, "%s; requests are answered again when one of them ends", l->why);
        else
            gone_say(l, err);
        return LENT_GONE;
    }
    switch (board_hold(l->board, wait_ms)) {
    case BOARD_HELD: break;
    case BOARD_LATER: return LENT_LATER;
    case BOARD_GONE: lose(l, m, err); return LENT_GONE;
    }
    int64_t version = board_version(l->board);
    if (!l->attached) {
        *moved = *changed = true;
        if (!attach(l, m, err)) {
            log_warn("%s", err->text);
            board_free(l->board);    // tried again: its file may be written again
            l->board = NULL;
            return LENT_GONE;
        }
        l->attached = true;
    } else if (version != l->version) {
        *changed = true;
        if (!model_weights_changed(m, err)) {
            lose(l, m, err);
            return LENT_GONE;
        }
    }
    l->version = version;
    return LENT_HELD;
}

void lent_release(struct lent *l)
{
    if (l->board)
        board_release(l->board);
}

bool lent_is_held(const struct lent *l)
{
    return l->board && board_is_held(l->board);
}

bool lent_wanted(const struct lent *l)
{
    return l->board && board_wanted(l->board);
}

bool lent_clean(const struct lent *l)
{
    return l->board && board_clean(l->board);
}

int64_t lent_version(const struct lent *l)
{
    return l->version;
}
