/* An offline run: a directory that the real 'wandb sync' uploads. sync adds nothing of its own, so every history record holds
 * _step, _runtime and _timestamp, and the summary and one metric definition a name are written by us. The run record carries a
 * mailbox slot, without which released clients hang. */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/knobs.h"
#include "workers/export/rows.h"
#include "workers/export/wandb.h"

enum { REC_HISTORY = 2, REC_SUMMARY = 3, REC_CONFIG = 5, REC_ALERT = 10, REC_METRIC = 12, REC_RUN = 17, REC_EXIT = 18, REC_HEADER = 21 };

struct offline {
    struct wandb_file *file;
    struct wandb_setup *setup;
    struct wandb_summary *summary;
    int n_defined;              // names of the summary that have their metric record
    struct buf message, item, value;
    struct error *err;
    bool failed;
};

static void timestamp_add(struct buf *b, int field, double wall_s)
{
    struct buf t = BUF_INIT;
    pb_int(&t, 1, (int64_t)wall_s);
    pb_int(&t, 2, (int64_t)((wall_s - floor(wall_s)) * 1e9));
    pb_bytes(b, field, buf_text(&t), t.len);
    buf_release(&t);
}

/* item { 1 key, 16 value_json } as field 1 of the message. */
static void item_add(struct offline *o, int field, const char *key, const char *json)
{
    buf_clear(&o->item);
    pb_text(&o->item, 1, key);
    pb_text(&o->item, 16, json);
    pb_bytes(&o->message, field, buf_text(&o->item), o->item.len);
}

static void number_item_add(struct offline *o, const char *key, double v)
{
    buf_clear(&o->value);
    json_number_print(&o->value, v);
    item_add(o, 1, key, buf_text(&o->value));
}

static void control_add(struct buf *extra)
{
    struct buf c = BUF_INIT;
    pb_text(&c, 4, "rollcall");
    pb_bytes(extra, 16, buf_text(&c), c.len);
    buf_release(&c);
}

static bool header_write(struct offline *o, struct error *err)
{
    buf_clear(&o->message);
    buf_clear(&o->item);
    pb_text(&o->item, 1, "rollcall");
    pb_text(&o->item, 2, "0.70.0");    // min_consumer, as the real client writes
    pb_bytes(&o->message, 1, buf_text(&o->item), o->item.len);
    return wandb_file_add(o->file, REC_HEADER, &o->message, NULL, err);
}

static bool run_write(struct offline *o, struct error *err)
{
    const struct wandb_setup *s = o->setup;
    struct buf config = BUF_INIT, telemetry = BUF_INIT, extra = BUF_INIT, text = BUF_INIT;
    for (int i = 0; i < n_knobs; i++) {
        const struct knob *k = &knobs[i];
        bool bare = k->type == KNOB_BOOL || k->type == KNOB_I64 || k->type == KNOB_F64;
        knob_text(k, &s->config, &text);
        buf_clear(&o->value);
        if (bare)
            buf_str(&o->value, buf_text(&text));
        else
            json_text_print(&o->value, buf_text(&text), text.len);
        buf_clear(&o->item);
        pb_text(&o->item, 1, k->name);
        pb_text(&o->item, 16, buf_text(&o->value));
        pb_bytes(&config, 1, buf_text(&o->item), o->item.len);
    }
    pb_text(&telemetry, 5, "rollcall");
    pb_text(&telemetry, 13, "linux-x86_64");
    buf_clear(&o->message);
    pb_text(&o->message, 1, s->run_id);
    if (s->entity[0])
        pb_text(&o->message, 2, s->entity);
    pb_text(&o->message, 3, s->project);
    pb_bytes(&o->message, 4, buf_text(&config), config.len);
    static const int fields[] = { 6, 7, 8, 9 };
    const char *const texts[] = { s->group, s->job_type, s->display_name, s->notes };
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (texts[i][0])
            pb_text(&o->message, fields[i], texts[i]);
    for (const char *p = s->tags; *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        if (n)
            pb_bytes(&o->message, 10, p, n);
        p += n;
    }
    timestamp_add(&o->message, 17, s->start_s);
    pb_bytes(&o->message, 19, buf_text(&telemetry), telemetry.len);
    control_add(&extra);
    bool ok = wandb_file_add(o->file, REC_RUN, &o->message, &extra, err);
    buf_release(&config);
    buf_release(&telemetry);
    buf_release(&extra);
    buf_release(&text);
    return ok;
}

static bool metric_write(struct offline *o, const char *name, bool is_x, struct error *err)
{
    struct buf options = BUF_INIT;
    buf_clear(&o->message);
    pb_text(&o->message, 1, name);
    if (!is_x) {
        pb_text(&o->message, 4, "trainer/step");
        pb_int(&options, 1, 1);
    }
    pb_int(&options, 3, 1);
    pb_bytes(&o->message, 6, buf_text(&options), options.len);
    buf_release(&options);
    return wandb_file_add(o->file, REC_METRIC, &o->message, NULL, err);
}

static bool row_write(struct offline *o, const struct wandb_row *row, struct error *err)
{
    wandb_summary_add(o->summary, row);
    for (; o->n_defined < wandb_summary_n(o->summary); o->n_defined++)
        if (!metric_write(o, wandb_summary_name(o->summary, o->n_defined), false, err))
            return false;
    buf_clear(&o->message);
    number_item_add(o, "_step", (double)row->n);
    number_item_add(o, "_runtime", MAX(0.0, row->wall_s - o->setup->start_s));
    number_item_add(o, "_timestamp", row->wall_s);
    number_item_add(o, "trainer/step", (double)row->step);
    for (int i = 0; i < row->n_metric; i++)
        number_item_add(o, row->metric[i].name, row->metric[i].value);
    struct buf step = BUF_INIT;
    pb_int(&step, 1, row->n);
    pb_bytes(&o->message, 2, buf_text(&step), step.len);
    buf_release(&step);
    if (!wandb_file_add(o->file, REC_HISTORY, &o->message, NULL, err))
        return false;
    if (row->event && strcmp(row->event->kind, "alert") == 0) {
        buf_clear(&o->message);
        pb_bytes(&o->message, 1, row->event->text, MIN(strlen(row->event->text), (size_t)63));
        pb_text(&o->message, 2, row->event->text);
        pb_text(&o->message, 3, "WARN");
        pb_int(&o->message, 4, 60000);
        return wandb_file_add(o->file, REC_ALERT, &o->message, NULL, err);
    }
    return true;
}

static bool row_take(void *arg, const struct wandb_row *row)
{
    struct offline *o = arg;
    o->failed = !row_write(o, row, o->err);
    return !o->failed;
}

static bool end_write(struct offline *o, int exit_code, struct error *err)
{
    double now = clock_wall_s();
    struct buf extra = BUF_INIT;
    buf_clear(&o->message);
    for (int i = 0; i < wandb_summary_n(o->summary); i++)
        number_item_add(o, wandb_summary_name(o->summary, i), wandb_summary_value(o->summary, i));
    int64_t n, step;
    double wall_s;
    char runtime[64];
    wandb_summary_last(o->summary, &n, &step, &wall_s);
    number_item_add(o, "_step", (double)n);
    number_item_add(o, "trainer/step", (double)step);
    number_item_add(o, "_timestamp", wall_s);
    number_item_add(o, "_runtime", floor(now - o->setup->start_s));
    snprintf(runtime, sizeof runtime, "{\"runtime\":%lld}", (long long)(now - o->setup->start_s));
    item_add(o, 1, "_wandb", runtime);
    bool ok = wandb_file_add(o->file, REC_SUMMARY, &o->message, NULL, err);
    buf_clear(&o->message);
    if (exit_code)
        pb_int(&o->message, 1, exit_code);
    pb_int(&o->message, 2, (int64_t)(now - o->setup->start_s));
    control_add(&extra);
    ok = ok && wandb_file_add(o->file, REC_EXIT, &o->message, &extra, err) && wandb_file_sync(o->file, err);
    buf_release(&extra);
    return ok;
}

/* RUN/export/wandb/offline-run-<date>_<time>-<id>/; the name decides whether sync takes it. The file is written anew from the
 * journal each time the exporter starts, beside the old one, and takes its place when it has caught up: so a kill leaves no
 * half-known state to continue from. */
static bool paths_make(const struct wandb_setup *s, char *dir, char *path, struct error *err)
{
    char id_file[PATH_MAX], when[32];
    struct stat st;
    struct tm tm;
    snprintf(id_file, sizeof id_file, "%s/export/wandb/id", s->run_dir);
    if (stat(id_file, &st) != 0)
        return error_errno(err, "cannot look at '%s'", id_file);
    localtime_r(&st.st_mtime, &tm);    // fixed for the run, since the id is written once
    strftime(when, sizeof when, "%Y%m%d_%H%M%S", &tm);
    if (snprintf(dir, PATH_MAX, "%s/export/wandb/offline-run-%s-%s", s->run_dir, when, s->run_id) >= PATH_MAX - 128)
        return error_set(err, ERR_IO, "the path '%s' is too long", s->run_dir);
    snprintf(path, PATH_MAX, "%s/run-%s.wandb", dir, s->run_id);
    char files[PATH_MAX];
    return path_join(files, sizeof files, dir, "files") && dir_make(files, 0755, err);
}

bool export_wandb_offline(const struct export_request *r, struct error *err)
{
    struct wandb_setup setup;
    struct offline o = { .setup = &setup, .err = err };
    struct wandb_cursor cursor = { .eval_step = -1 };
    char dir[PATH_MAX], path[PATH_MAX], fresh[PATH_MAX + 8];
    struct journal *j = NULL;
    bool ok = false, placed = false;
    if (!wandb_setup_make(&setup, r->run_dir, false, err))
        return false;
    TRY(j = journal_open_reader(r->run_dir, err));
    TRY(wandb_start_find(&setup, j, err));
    TRY(paths_make(&setup, dir, path, err));
    snprintf(fresh, sizeof fresh, "%s.new", path);
    unlink(fresh);
    TRY(o.summary = wandb_summary_new(err));
    TRY(o.file = wandb_file_new(fresh, err));
    TRY(header_write(&o, err) && run_write(&o, err) && metric_write(&o, "trainer/step", true, err));
    for (;;) {
        bool last = !r->follow || !run_goes_on(j, r->run_dir);
        TRY(wandb_rows_read(j, &cursor, row_take, &o, err) && !o.failed);
        if (last)
            TRY(end_write(&o, MAX(0, run_exit_code(j)), err));
        TRY(wandb_file_sync(o.file, err));
        if (!placed && rename(fresh, path) != 0) {
            error_errno(err, "cannot rename '%s'", fresh);
            goto out;
        }
        placed = true;
        if (last)
            break;
        rows_wait(r->run_dir, 1000);
    }
    if (!r->follow)
        printf("%s\n", dir);
    ok = true;
out:
    wandb_file_close(o.file);
    wandb_summary_free(o.summary);
    buf_release(&o.message);
    buf_release(&o.item);
    buf_release(&o.value);
    journal_close(j);
    wandb_setup_release(&setup);
    return ok;
}
