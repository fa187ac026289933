#include "protocol/run/run_list.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "protocol/base/file.h"
#include "protocol/record/journal.h"
#include "protocol/run/run_last.h"
#include "protocol/run/run_lock.h"

#define LOOKED_AT_MAX 100000    // folders examined in one directory

/* State and step from the run's journal. */
static void row_read(struct run_row *r, const char *run_dir)
{
    struct error err = { 0 };
    struct run_last last = { .state = RUN_UNKNOWN, .step = -1 };
    struct journal *j = journal_open_reader(run_dir, &err);
    bool ok = j && run_last_read(j, run_dir, r->live, &last, &err);
    journal_close(j);
    r->state = last.state;
    r->step = ok ? last.step : -1;
    snprintf(r->reason, sizeof r->reason, "%.159s", ok ? last.reason : err.text);
}

/* When the run's journal, or else its settings file, was last written. False: this is not a run's folder. */
static bool run_changed(const char *run_dir, int64_t *ns)
{
    static const char *const files[] = { "run.yaml", "journal.db", "journal.db-wal", "journal.snapshot" };
    bool is_run = false;
    *ns = 0;
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        char path[4400];
        struct stat st;
        if (!path_join(path, sizeof path, run_dir, files[i]) || stat(path, &st) != 0)
            continue;
        is_run = is_run || i == 0;
        int64_t t = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        *ns = t > *ns ? t : *ns;
    }
    return is_run;
}

static int newest_first(const void *a, const void *b)
{
    const struct run_row *p = a, *q = b;
    return p->live != q->live ? q->live - p->live : (q->changed_ns > p->changed_ns) - (q->changed_ns < p->changed_ns);
}

static const struct run_row *row_find(const struct run_list *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->row[i].name, name) == 0)
            return &l->row[i];
    return NULL;
}

static bool row_add(struct run_list *l, int *cap, const struct run_row *r)
{
    if (l->n == *cap) {
        int grown = *cap ? *cap * 2 : 64;
        struct run_row *p = realloc(l->row, (size_t)grown * sizeof *p);
        if (!p)
            return false;
        l->row = p;
        *cap = grown;
    }
    l->row[l->n++] = *r;
    return true;
}

bool run_list_read(struct run_list *l, const char *runs_dir, struct error *err)
{
    struct run_list now = { .n = 0 };
    int cap = 0, looked_at = 0;
    bool ok = true;
    snprintf(now.dir, sizeof now.dir, "%s", runs_dir);
    DIR *d = opendir(runs_dir);
    if (!d)
        return error_set(err, ERR_NOT_FOUND, "no runs are under '%.400s': %s", runs_dir, strerror(errno));
    for (struct dirent *e; ok && looked_at < LOOKED_AT_MAX && (e = readdir(d)) != NULL;) {
        char path[4352];
        struct run_row r = { .step = -1 };
        if (e->d_name[0] == '.' || strlen(e->d_name) >= sizeof r.name || !path_join(path, sizeof path, runs_dir, e->d_name))
            continue;
        looked_at++;
        if (!run_changed(path, &r.changed_ns))
            continue;
        snprintf(r.name, sizeof r.name, "%s", e->d_name);
        r.live = run_is_live(path);
        ok = row_add(&now, &cap, &r) || error_set(err, ERR_NO_MEMORY, "no memory for the list of runs");
    }
    closedir(d);
    if (!ok) {
        run_list_release(&now);
        return false;
    }
    if (now.n > 1)
        qsort(now.row, (size_t)now.n, sizeof *now.row, newest_first);
    now.n_cut = now.n > RUN_LIST_MAX ? now.n - RUN_LIST_MAX : 0;
    now.n -= now.n_cut;
    for (int i = 0; i < now.n; i++) {
        char path[4352];
        struct run_row *r = &now.row[i];
        const struct run_row *old = row_find(l, r->name);
        if (old && old->live == r->live && old->changed_ns == r->changed_ns)
            *r = *old;
        else if (path_join(path, sizeof path, runs_dir, r->name))
            row_read(r, path);
    }
    run_list_release(l);
    *l = now;
    return true;
}

void run_list_release(struct run_list *l)
{
    free(l->row);
    *l = (struct run_list){ .n = 0 };
}
