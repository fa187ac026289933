#include "workers/export/rows.h"
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/run_state.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/run_config.h"

struct journal *rows_open(const char *run_dir, struct error *err)
{
    struct journal *j = journal_open_reader(run_dir, err);
    struct run_config *c = j ? malloc(sizeof *c) : NULL;
    struct error none;    // a folder without a run file that can be read has the names that the journal has
    char path[PATH_MAX];
    if (c) {
        run_config_init(c);
        if (path_join(path, sizeof path, run_dir, "run.yaml") && path_exists(path) && run_config_read(c, path, &none))
            journal_names_set(j, MAX(knob_choice("metric_names", c->metric_names), 0));
    }
    free(c);
    return j;
}

static bool cursor_path(char *path, const char *run_dir, const char *name, const char *file, struct error *err)
{
    return snprintf(path, PATH_MAX, "%s/export/%s%s%s", run_dir, name, file[0] ? "/" : "", file) < PATH_MAX
           || error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
}

bool cursor_read(struct cursor *c, const char *run_dir, const char *name, struct error *err)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    *c = CURSOR_START;
    if (!cursor_path(path, run_dir, name, "", err) || !dir_make(path, 0755, err) || !cursor_path(path, run_dir, name, "cursor", err))
        return false;
    if (!path_exists(path))
        return true;
    bool ok = file_read(&text, path, 4096, err);
    int64_t seq, step, extra, eval_step = -1;    // older versions did not send evaluations
    if (ok
        && sscanf(buf_text(&text), "seq %" PRId64 " step %" PRId64 " extra %" PRId64 " eval %" PRId64, &seq, &step, &extra, &eval_step) < 3)
        ok = error_set(err, ERR_DATA, "'%s' is not a cursor; remove it to send the run from its beginning", path);
    if (ok)
        *c = (struct cursor){ .seq = seq, .step = step, .extra = extra, .eval_step = eval_step };
    buf_release(&text);
    return ok;
}

bool cursor_write(const struct cursor *c, const char *run_dir, const char *name, struct error *err)
{
    char path[PATH_MAX], text[128];
    if (!cursor_path(path, run_dir, name, "cursor", err))
        return false;
    int n = snprintf(text, sizeof text, "seq %" PRId64 " step %" PRId64 " extra %" PRId64 " eval %" PRId64 "\n", c->seq, c->step, c->extra,
                     c->eval_step);
    return file_write(path, text, (size_t)n, err);
}

struct once {
    struct cursor *cursor;
    journal_step_fn *fn;
    void *arg;
    bool stopped;
    struct journal *journal;
    double wall_s;    // time of the newest step handed out in this call
    /* the evaluation being collected: all sets of one step are one row */
    int64_t eval_step;
    int n_eval;
    char name[EVAL_ROW_MAX][96];
    struct journal_metric eval[EVAL_ROW_MAX];
};

static bool step_once(void *arg, const struct journal_step *row)
{
    struct once *o = arg;
    if (row->step > o->cursor->step) {
        if (!o->fn(o->arg, row)) {
            o->stopped = true;
            return false;
        }
        o->cursor->step = row->step;
    }
    o->cursor->seq = row->seq;
    o->wall_s = row->wall_s;
    return true;
}

struct eval_time {
    int64_t step;
    double wall_s;
};

static bool eval_time_see(void *arg, const struct journal_event *e)
{
    struct eval_time *t = arg;
    if (e->step == t->step)
        t->wall_s = e->wall_s;
    return true;
}

static bool eval_flush(struct once *o)
{
    if (o->n_eval == 0 || o->stopped)
        return !o->stopped;
    /* the table of evaluations has no time, but each has an event with its time */
    struct eval_time t = { o->eval_step, o->wall_s > 0 ? o->wall_s : clock_wall_s() };
    struct error ignored;
    if (!journal_events_read(o->journal, 0, "eval", eval_time_see, &t, &ignored))
        log_debug("no time for an evaluation: %s", ignored.text);
    struct journal_step row = { .seq = 0, .step = o->eval_step, .wall_s = t.wall_s, .metric = o->eval, .n = o->n_eval };
    o->n_eval = 0;
    o->stopped = !o->fn(o->arg, &row);
    if (!o->stopped)
        o->cursor->eval_step = o->eval_step;
    return !o->stopped;
}

/* They come in the order of their steps. */
static bool eval_once(void *arg, const struct journal_eval *e)
{
    struct once *o = arg;
    if (e->step <= o->cursor->eval_step)
        return true;
    if (o->n_eval > 0 && e->step != o->eval_step && !eval_flush(o))
        return false;
    if (o->n_eval == EVAL_ROW_MAX)
        return true;
    o->eval_step = e->step;
    snprintf(o->name[o->n_eval], sizeof o->name[0], "eval/%s", e->set);
    o->eval[o->n_eval] = (struct journal_metric){ o->name[o->n_eval], e->mean };
    o->n_eval++;
    return true;
}

bool rows_read(struct journal *j, struct cursor *c, journal_step_fn *fn, void *arg, struct error *err)
{
    struct once once = { .cursor = c, .fn = fn, .arg = arg, .journal = j };
    if (!journal_steps_read(j, c->seq, step_once, &once, err))
        return false;
    if (!once.stopped && !journal_evals_read(j, eval_once, &once, err))
        return false;
    eval_flush(&once);
    return true;
}

static bool state_see(void *arg, const struct journal_event *e)
{
    char reason[8];
    enum run_state s = run_state_read(e->detail, strlen(e->detail), reason, sizeof reason);
    if (!e->detail[0])
        s = run_state_find(e->text);    // written before events had facts
    *(int *)arg = run_state_exit_code(s);
    return true;
}

bool event_alerts(const struct journal_event *e)
{
    if (strcmp(e->kind, "alert") == 0)
        return true;
    json_t *facts = strcmp(e->kind, "alarm") == 0 ? json_str_read(e->detail, 0, NULL) : NULL;
    const char *state = json_string_value(json_object_get(facts, "state")),
               *severity = json_string_value(json_object_get(facts, "severity"));
    bool alerts = state && severity && strcmp(state, "firing") == 0 && strcmp(severity, "critical") == 0;
    json_decref(facts);
    return alerts;
}

int run_exit_code(struct journal *j)
{
    int code = -1;
    struct error err;
    return journal_events_read(j, 0, "state", state_see, &code, &err) ? code : -1;
}

bool run_goes_on(struct journal *j, const char *run_dir)
{
    return run_is_live(run_dir) && run_exit_code(j) < 0;
}

void rows_wait(const char *run_dir, int64_t limit_ms)
{
    char path[PATH_MAX], real[PATH_MAX], *slash;
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    if (fd >= 0)
        inotify_add_watch(fd, run_dir, IN_MODIFY | IN_CREATE | IN_MOVED_TO);
    if (fd >= 0 && path_join(path, sizeof path, run_dir, "journal.db") && realpath(path, real) && (slash = strrchr(real, '/'))) {
        *slash = 0;    // the journal may be on another disk
        inotify_add_watch(fd, real, IN_MODIFY | IN_CREATE | IN_MOVED_TO);
    }
    poll(&p, fd >= 0 ? 1 : 0, (int)limit_ms);
    if (fd >= 0)
        close(fd);
}
