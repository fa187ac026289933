#include "workers/export/rows.h"
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/run_state.h"

static bool cursor_path(char *path, const char *run_dir, const char *name, const char *file, struct error *err)
{
    return snprintf(path, PATH_MAX, "%s/export/%s%s%s", run_dir, name, file[0] ? "/" : "", file) < PATH_MAX
        || error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
}

bool cursor_read(struct cursor *c, const char *run_dir, const char *name, struct error *err)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    *c = (struct cursor){ 0 };
    if (!cursor_path(path, run_dir, name, "", err) || !dir_make(path, 0755, err)
        || !cursor_path(path, run_dir, name, "cursor", err))
        return false;
    if (!path_exists(path))
        return true;
    bool ok = file_read(&text, path, 4096, err);
    long long seq, step, extra;
    if (ok && sscanf(buf_text(&text), "seq %lld step %lld extra %lld", &seq, &step, &extra) != 3)
        ok = error_set(err, ERR_DATA, "'%s' is not a cursor; remove it to send the run from its beginning", path);
    if (ok)
        *c = (struct cursor){ seq, step, extra };
    buf_release(&text);
    return ok;
}

bool cursor_write(const struct cursor *c, const char *run_dir, const char *name, struct error *err)
{
    char path[PATH_MAX], text[128];
    if (!cursor_path(path, run_dir, name, "cursor", err))
        return false;
    int n = snprintf(text, sizeof text, "seq %lld step %lld extra %lld\n", (long long)c->seq, (long long)c->step,
                     (long long)c->extra);
    return file_write(path, text, (size_t)n, err);
}

struct once {
    struct cursor *cursor;
    journal_step_fn *fn;
    void *arg;
};

static bool step_once(void *arg, const struct journal_step *row)
{
    struct once *o = arg;
    if (row->step > o->cursor->step) {
        if (!o->fn(o->arg, row))
            return false;
        o->cursor->step = row->step;
    }
    o->cursor->seq = row->seq;
    return true;
}

bool rows_read(struct journal *j, struct cursor *c, journal_step_fn *fn, void *arg, struct error *err)
{
    struct once once = { c, fn, arg };
    return journal_steps_read(j, c->seq, step_once, &once, err);
}

static bool state_see(void *arg, const struct journal_event *e)
{
    *(int *)arg = run_state_exit_code(run_state_find(e->text));
    return true;
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
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    if (fd >= 0)
        inotify_add_watch(fd, run_dir, IN_MODIFY | IN_CREATE | IN_MOVED_TO);
    poll(&p, fd >= 0 ? 1 : 0, (int)limit_ms);
    if (fd >= 0)
        close(fd);
}
