#include "console/fleet/record.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/fleet/logtail.h"
#include "console/fleet/news.h"
#include "console/fleet/replay.h"
#include "console/fleet/run_end.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/record/journal.h"
#include "protocol/record/rollout_file.h"
#include "protocol/run/run_last.h"
#include "protocol/wire/message.h"

struct record {
    struct feed feed;
    char run_dir[4096];
    struct replay *replay;    // NULL: not wanted yet
};

/* What is read from the journal in addition to run_end_read. */
struct extract {
    struct run_view *m;
    int64_t now_ns;
    double first_s, last_s;    // time of its events, since 1970; 0: none
    /* the newest groups in the rollout file: a ring of offsets and sizes; n: total */
    struct {
        int64_t offset, bytes, step;
    } group[MODEL_ROLLOUTS];
    int64_t n_group;
};

static bool checkpoint_take(void *arg, const struct journal_checkpoint *c)
{
    struct extract *x = arg;
    struct run_view *m = x->m;
    if (strcmp(c->state, "complete") != 0)
        return true;
    m->checkpoint = MAX(m->checkpoint, c->step);
    if (!path_is_dir(c->path))
        return true;
    m->n_saved = MIN(m->n_saved, MODEL_SAVED - 1);
    memmove(&m->saved[1], &m->saved[0], (size_t)m->n_saved++ * sizeof m->saved[0]);    // newest first
    m->saved[0] = (struct saved_view){ .step = c->step, .state = "whole", .size_bytes = -1, .time_s = c->wall_s };
    snprintf(m->saved[0].path, sizeof m->saved[0].path, "%s", c->path);
    return true;
}

static bool item_take(void *arg, const struct journal_item *i)
{
    struct extract *x = arg;
    if (i->file_offset < 0)
        return true;
    x->group[x->n_group % MODEL_ROLLOUTS].offset = i->file_offset;
    x->group[x->n_group % MODEL_ROLLOUTS].step = i->fate == ITEM_TRAINED ? i->step : -1;
    x->group[x->n_group++ % MODEL_ROLLOUTS].bytes = i->file_bytes;
    return true;
}

void record_changes(struct run_view *m, const char *facts, int64_t now_ns)
{
    size_t i;
    json_t *change, *all = facts[0] ? json_str_read(facts, 0, NULL) : NULL;
    json_array_foreach(json_object_get(all, "changes"), i, change)
    {
        const char *name = json_string_value(json_object_get(change, "name"));
        const char *value = json_string_value(json_object_get(change, "value"));
        if (name && value)
            view_knob(m, name, value, now_ns);
    }
    json_decref(all);
}

/* Settings that were changed during the run, in order; and how long the run took. */
static bool event_take(void *arg, const struct journal_event *e)
{
    struct extract *x = arg;
    x->first_s = x->first_s > 0 ? x->first_s : e->wall_s;
    x->last_s = e->wall_s;
    record_changes(x->m, e->detail, x->now_ns);
    return true;
}

bool record_settings(struct run_view *m, const char *run_dir, int64_t now_ns, struct error *err)
{
    char path[4200];
    struct buf text = BUF_INIT;
    struct run_config *c = malloc(sizeof *c);
    bool ok = false;
    if (!c) {
        error_set(err, ERR_NO_MEMORY, "no memory for the run's settings");
        goto out;
    }
    run_config_init(c);
    TRY(path_join(path, sizeof path, run_dir, "run.yaml") && run_config_read(c, path, err));
    for (int i = 0; i < n_knobs; i++) {
        buf_clear(&text);
        view_knob(m, knobs[i].name, knob_text(&knobs[i], c, &text), now_ns);
        m->knob[i].changed_ns = 0;    // these are its initial values
        m->knob[i].before[0] = 0;
    }
    m->max_steps = c->max_steps;
    ok = true;
out:
    buf_release(&text);
    free(c);
    return ok;
}

void record_group(struct run_view *m, const char *path, int64_t offset, int64_t bytes, int64_t step)
{
    struct error ignored;
    struct msg_in group;
    struct buf record = BUF_INIT;
    if (rollout_file_read(path, offset, bytes, &record, &ignored) && msg_read_request(&group, record.data, record.len, &ignored)) {
        int64_t n = m->n_rollout;
        news_rollout(m, group.root);
        if (m->n_rollout > n)
            m->rollout[n % MODEL_ROLLOUTS].step = step;
        msg_in_release(&group);
    }
    buf_release(&record);
}

/* The newest groups, oldest first. */
static void rollouts_take(struct extract *x, const char *run_dir)
{
    char path[4200];
    if (!view_groups_path(x->m, run_dir, path, sizeof path))
        return;
    for (int64_t i = MAX(x->n_group - MODEL_ROLLOUTS, 0); i < x->n_group; i++)
        record_group(x->m, path, x->group[i % MODEL_ROLLOUTS].offset, x->group[i % MODEL_ROLLOUTS].bytes,
                     x->group[i % MODEL_ROLLOUTS].step);
}

static void logs_take(struct run_view *m, const char *run_dir)
{
    struct error none;
    char logs[4200];
    struct logtail *t = path_join(logs, sizeof logs, run_dir, "logs") ? logtail_new(logs, &none) : NULL;
    if (t)
        logtail_pump(t, m);
    logtail_free(t);
}

bool record_read(struct run_view *m, const char *run_dir, int64_t now_ns, struct error *err)
{
    const char *base = strrchr(run_dir, '/');
    struct extract x = { .m = m, .now_ns = now_ns };
    struct run_last last;
    struct journal *j = NULL;
    bool ok = false;
    snprintf(m->name, sizeof m->name, "%s", base ? base + 1 : run_dir);
    snprintf(m->dir, sizeof m->dir, "%s", run_dir);
    TRY(record_settings(m, run_dir, now_ns, err));
    TRY(run_end_read(m, run_dir, err));
    TRY((j = journal_open_reader(run_dir, err)) != NULL);
    TRY(run_last_read(j, run_dir, false, &last, err));
    m->state = last.state;
    snprintf(m->reason, sizeof m->reason, "%.255s", last.reason);
    TRY(journal_checkpoints_read(j, checkpoint_take, &x, err));
    TRY(journal_events_read(j, 0, NULL, event_take, &x, err));
    TRY(journal_items_read(j, 0, item_take, &x, err));
    rollouts_take(&x, run_dir);
    logs_take(m, run_dir);
    m->elapsed_s = x.first_s > 0 ? x.last_s - x.first_s : NAN;
    m->left_s = NAN;
    m->ended = true;
    m->told_ns = now_ns;
    view_link(m, LINK_LIVE, "", now_ns);
    view_changed(m);
    ok = true;
out:
    journal_close(j);
    return ok;
}

static void record_pump(UNUSED struct feed *f, UNUSED struct run_view *m, UNUSED int64_t now_ns)
{
}

static int64_t record_due(UNUSED const struct feed *f)
{
    return INT64_MAX;
}

static bool record_command(UNUSED struct feed *f, struct run_view *m, UNUSED const struct command *c, UNUSED const char *text,
                           UNUSED int64_t now_ns, struct error *err)
{
    return error_set(err, ERR_REFUSED, "refused: the run is over; 'rollcall train --resume %s' continues it", m->dir);
}

static bool record_seek(struct feed *f, struct run_view *m, int64_t step, int64_t now_ns)
{
    struct record *r = (struct record *)f;
    struct error err;
    if (!r->replay && !(r->replay = replay_new(r->run_dir, now_ns, &err)))
        return false;    // it stays at its end
    replay_show(r->replay, m, step, now_ns);
    return step < replay_last(r->replay);
}

static void record_free(struct feed *f)
{
    struct record *r = (struct record *)f;
    replay_free(r->replay);
    free(r);
}

struct feed *record_new(const char *run_dir, struct run_view *m, int64_t now_ns, struct error *err)
{
    struct record *r = calloc(1, sizeof *r);
    if (!r) {
        error_set(err, ERR_NO_MEMORY, "no memory to read the run");
        return NULL;
    }
    r->feed = (struct feed){
        .fd = -1, .pump = record_pump, .due_ns = record_due, .command = record_command, .seek = record_seek, .free = record_free
    };
    snprintf(r->run_dir, sizeof r->run_dir, "%s", run_dir);
    if (!record_read(m, run_dir, now_ns, err)) {
        record_free(&r->feed);
        return NULL;
    }
    return &r->feed;
}
