#include "workers/schedule/checkpoints.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/settings/metrics.h"
#include "protocol/wire/message.h"

#define CHECKPOINT_MAX 256    // remembered

bool checkpoints_init(struct checkpoints *k, struct error *err)
{
    *k = (struct checkpoints){ .wanted = -1, .saving = -1, .row = calloc(CHECKPOINT_MAX, sizeof *k->row) };
    return k->row || error_set(err, ERR_NO_MEMORY, "no memory for the controller");
}

void checkpoints_release(struct checkpoints *k)
{
    free(k->row);
    k->row = NULL;
    k->n = 0;
}

/* A new row at the end; the oldest makes room. */
static struct checkpoint_row *row_add(struct checkpoints *k, int64_t step)
{
    if (k->n == CHECKPOINT_MAX) {
        memmove(k->row, k->row + 1, (CHECKPOINT_MAX - 1) * sizeof *k->row);
        k->n--;
    }
    k->row[k->n] = (struct checkpoint_row){ .step = step };
    return &k->row[k->n++];
}

static bool row_load(void *arg, const struct journal_checkpoint *told)
{
    if (strcmp(told->state, "removed") == 0)
        return true;
    struct checkpoint_row *row = row_add(arg, told->step);
    row->complete = strcmp(told->state, "complete") == 0;
    row->undone = strcmp(told->state, "undone") == 0;
    row->wall_s = told->wall_s;
    snprintf(row->path, sizeof row->path, "%s", told->path);
    return true;
}

bool checkpoints_load(struct checkpoints *k, struct journal *j, struct error *err)
{
    bool ok = journal_checkpoints_read(j, row_load, k, err);
    for (int i = 0; ok && i < k->n; i++) {
        ok = journal_why_get(j, k->row[i].step, k->row[i].why, err);
        k->to_move = k->to_move || k->row[i].undone;
    }
    return ok;
}

void checkpoints_want(struct checkpoints *k, int64_t step, const char *why)
{
    if (k->wanted < 0)
        snprintf(k->why, sizeof k->why, "%s", why);
    k->wanted = step;
}

bool checkpoints_due(const struct checkpoints *k)
{
    return k->wanted >= 0 && k->saving < 0;
}

void checkpoints_begin(struct checkpoints *k, int64_t step)
{
    k->saving = step;
    k->wanted = -1;
    snprintf(k->saving_why, sizeof k->saving_why, "%s", k->why);
}

/* The row of a step, at the end: one that is written again becomes the newest. */
static struct checkpoint_row *row_of(struct checkpoints *k, int64_t step)
{
    for (int i = 0; i < k->n; i++)
        if (k->row[i].step == step) {
            struct checkpoint_row row = k->row[i];
            memmove(&k->row[i], &k->row[i + 1], (size_t)(k->n - 1 - i) * sizeof row);
            k->row[k->n - 1] = row;
            return &k->row[k->n - 1];
        }
    return row_add(k, step);
}

bool checkpoints_end(struct checkpoints *k, struct journal *j, int64_t step, bool ok, const struct mval *told, struct error *err)
{
    struct checkpoint_row *row = row_of(k, step);
    if (k->saving == step)
        k->saving = -1;
    if (k->wanted == step && ok)    // it was begun before the controller started again
        k->wanted = -1;
    row->complete = ok;
    row->undone = false;
    row->wall_s = clock_wall_s();
    snprintf(row->why, sizeof row->why, "%s", k->saving_why);
    k->stall_s = mval_f64(mval_get(told, metrics[M_CHECKPOINT_STALL_S].name), NAN);
    k->write_s = mval_f64(mval_get(told, metrics[M_CHECKPOINT_WRITE_S].name), NAN);
    snprintf(row->path, sizeof row->path, "%.4000s/step-%06" PRId64, k->dir, step);
    return journal_checkpoint_put(j, step, row->path, ok ? "complete" : "broken", k->stall_s, k->write_s, err)
           && journal_why_put(j, step, row->why, err);
}

bool checkpoints_undo(struct checkpoints *k, struct journal *j, int64_t step, int64_t tag, int *n, struct error *err)
{
    *n = 0;
    for (int i = 0; i < k->n; i++) {
        struct checkpoint_row *row = &k->row[i];
        if (row->step <= step || row->undone)
            continue;
        *n += row->complete;
        row->complete = false;
        row->undone = k->to_move = true;
        snprintf(row->path, sizeof row->path, "%.4000s/step-%06" PRId64 ".undone-%" PRId64, k->dir, row->step, tag);
        if (!journal_checkpoint_put(j, row->step, row->path, "undone", NAN, NAN, err))
            return false;
    }
    return true;
}

void checkpoints_move(struct checkpoints *k)
{
    char from[4096];
    for (int i = 0; k->to_move && i < k->n; i++) {
        const struct checkpoint_row *row = &k->row[i];
        snprintf(from, sizeof from, "%.4000s/step-%06" PRId64, k->dir, row->step);
        if (row->undone && !path_exists(row->path) && path_exists(from) && rename(from, row->path) != 0)
            log_error("cannot move '%s' to '%s': %s", from, row->path, strerror(errno));
    }
    k->to_move = false;
}

void checkpoints_interrupted(struct checkpoints *k)
{
    if (k->wanted < 0)
        memcpy(k->why, k->saving_why, sizeof k->why);
    k->wanted = MAX(k->wanted, k->saving);
    k->saving = -1;
}

void checkpoints_undone(struct checkpoints *k)
{
    k->saving = -1;
}

void checkpoints_forgo(struct checkpoints *k)
{
    k->wanted = -1;
}

bool checkpoints_idle(const struct checkpoints *k)
{
    return k->wanted < 0 && k->saving < 0;
}

bool checkpoints_reach(const struct checkpoints *k, int64_t step)
{
    for (int i = 0; i < k->n; i++)
        if (k->row[i].step >= step && k->row[i].complete)
            return true;
    return false;
}

bool checkpoints_tried(const struct checkpoints *k, int64_t step)
{
    for (int i = 0; i < k->n; i++)
        if (k->row[i].step == step)
            return true;
    return false;
}

bool checkpoints_have(const struct checkpoints *k, int64_t step)
{
    for (const struct checkpoint_row *row = checkpoints_next(k, NULL); row; row = checkpoints_next(k, row))
        if (row->step == step)
            return true;
    return false;
}

int64_t checkpoints_last(const struct checkpoints *k)
{
    return k->n > 0 ? k->row[k->n - 1].step : 0;
}

int64_t checkpoints_newest(const struct checkpoints *k)
{
    for (int i = k->n - 1; i >= 0; i--)
        if (k->row[i].complete)
            return k->row[i].step;
    return -1;
}

const char *checkpoints_path(const struct checkpoints *k, int64_t step)
{
    for (int i = k->n - 1; i >= 0; i--)
        if (k->row[i].step == step)
            return k->row[i].path;
    return "";
}

int64_t checkpoints_before(const struct checkpoints *k, int64_t step)
{
    for (int i = k->n - 2; i >= 0; i--)
        if (k->row[i].complete && k->row[i].step < step)
            return k->row[i].step;
    return -1;
}

const struct checkpoint_row *checkpoints_next(const struct checkpoints *k, const struct checkpoint_row *row)
{
    for (int i = (row ? (int)(row - k->row) : k->n) - 1; i >= 0; i--)
        if (k->row[i].complete && path_is_dir(k->row[i].path))
            return &k->row[i];
    return NULL;
}

bool checkpoints_break(struct checkpoints *k, struct journal *j, int64_t step, bool *had, struct error *err)
{
    *had = false;
    for (int i = 0; i < k->n; i++)
        if (k->row[i].step == step && k->row[i].complete) {
            k->row[i].complete = false;
            *had = true;
            return journal_checkpoint_put(j, step, k->row[i].path, "broken", NAN, NAN, err);
        }
    return true;
}
