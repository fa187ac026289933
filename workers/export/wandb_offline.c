/* An offline run: a directory that the real 'wandb sync' uploads. sync adds nothing itself, so we write _step, _runtime and
 * _timestamp into every history record, and the summary and one metric definition per name. The run record carries a mailbox slot,
 * without which released clients hang. */
#include <inttypes.h>
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
#include "protocol/base/json_text.h"
#include "protocol/base/utf8.h"
#include "protocol/settings/knobs.h"
#include "workers/export/rows.h"
#include "workers/export/wandb.h"

enum {
    REC_HISTORY = 2,
    REC_SUMMARY = 3,
    REC_CONFIG = 5,
    REC_FILES = 6,
    REC_STATS = 7,
    REC_ALERT = 10,
    REC_METRIC = 12,
    REC_OUTPUT = 13,
    REC_RUN = 17,
    REC_EXIT = 18,
    REC_HEADER = 21,
};

struct offline {
    struct wandb_file *file;
    struct wandb_setup *setup;
    struct wandb_summary *summary;
    int n_defined;              // names in the summary that have a metric record
    int n_defined_histogram;    // ... and of its histograms
    struct buf message, item, value;
    struct journal *journal;
    char dir[PATH_MAX];
    char head[WANDB_NODE_MAX];    // the node on which the run began
    int64_t sample_seq;           // seq of the last sample written
    struct buf table;             // the last table's reference in a row, as items; empty before the first
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

/* item { 2 nested_key, 16 value_json } as field 1 of b: a value inside an object in the row. */
static void nested_add(struct offline *o, struct buf *b, const char *key, const char *inner, const char *json)
{
    buf_clear(&o->item);
    pb_text(&o->item, 2, key);
    pb_text(&o->item, 2, inner);
    pb_text(&o->item, 16, json);
    pb_bytes(b, 1, buf_text(&o->item), o->item.len);
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

/* All settings as items, field 1 of out. */
static void settings_add(struct offline *o, struct buf *out)
{
    const struct wandb_setup *s = o->setup;
    for (int i = 0; i < n_knobs; i++) {
        const struct knob *k = &knobs[i];
        buf_clear(&o->value);
        knob_json(k, &s->config, &o->value);
        buf_clear(&o->item);
        pb_text(&o->item, 1, k->name);
        pb_text(&o->item, 16, buf_text(&o->value));
        pb_bytes(out, 1, buf_text(&o->item), o->item.len);
    }
}

static bool run_write(struct offline *o, struct error *err)
{
    const struct wandb_setup *s = o->setup;
    struct buf config = BUF_INIT, telemetry = BUF_INIT, extra = BUF_INIT;
    settings_add(o, &config);
    pb_text(&telemetry, 5, "rollcall");
    pb_text(&telemetry, 13, "linux-x86_64");
    buf_clear(&o->message);
    pb_text(&o->message, 1, s->who.run_id);
    if (s->who.entity[0])
        pb_text(&o->message, 2, s->who.entity);
    pb_text(&o->message, 3, s->who.project);
    pb_bytes(&o->message, 4, buf_text(&config), config.len);
    static const int fields[] = { 6, 7, 8, 9 };
    const char *const texts[] = { s->who.group, s->who.job_type, s->who.display_name, s->who.notes };
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (texts[i][0])
            pb_text(&o->message, fields[i], texts[i]);
    for (const char *p = s->who.tags; *p; p += strspn(p, ",")) {
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

static void row_begin(struct offline *o, int64_t n, int64_t step, double wall_s)
{
    buf_clear(&o->message);
    number_item_add(o, "_step", (double)n);
    number_item_add(o, "_runtime", MAX(0.0, wall_s - o->setup->start_s));
    number_item_add(o, "_timestamp", wall_s);
    number_item_add(o, "trainer/step", (double)step);
}

static bool row_end(struct offline *o, int64_t n, struct error *err)
{
    struct buf step = BUF_INIT;
    pb_int(&step, 1, n);
    pb_bytes(&o->message, 2, buf_text(&step), step.len);
    buf_release(&step);
    return wandb_file_add(o->file, REC_HISTORY, &o->message, NULL, err);
}

static bool row_write(struct offline *o, const struct wandb_row *row, struct error *err)
{
    wandb_summary_add(o->summary, row);
    for (; o->n_defined < wandb_summary_n(o->summary); o->n_defined++)
        if (!metric_write(o, wandb_summary_name(o->summary, o->n_defined), false, err))
            return false;
    const struct journal_histogram *h;
    for (; (h = wandb_summary_histogram(o->summary, o->n_defined_histogram)); o->n_defined_histogram++)
        if (!metric_write(o, h->name, false, err))
            return false;
    row_begin(o, row->n, row->step, row->wall_s);
    for (int i = 0; i < row->n_metric; i++)
        number_item_add(o, row->metric[i].name, row->metric[i].value);
    for (int i = 0; i < row->n_histogram; i++) {
        buf_clear(&o->value);
        wandb_histogram_print(&o->value, &row->histogram[i].h);
        item_add(o, 1, row->histogram[i].name, buf_text(&o->value));
    }
    const char *says = wandb_event_says(row->event);
    if (says) {
        buf_clear(&o->value);
        json_text_print(&o->value, says, strlen(says), JSON_TEXT_UTF8);
        item_add(o, 1, "run/doctor", buf_text(&o->value));
    }
    if (!row_end(o, row->n, err))
        return false;
    if (row->event && event_alerts(row->event)) {
        buf_clear(&o->message);
        pb_bytes(&o->message, 1, row->event->text, utf8_cut(row->event->text, strlen(row->event->text), ALERT_TITLE_MAX));
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

/* Changes of knobs as a config record. */
static bool config_write(struct offline *o, struct error *err)
{
    bool changed;
    if (!wandb_config_refresh(o->setup, o->journal, &changed, err))
        return false;
    if (!changed)
        return true;
    buf_clear(&o->message);
    settings_add(o, &o->message);
    return wandb_file_add(o->file, REC_CONFIG, &o->message, NULL, err);
}

/* A table of rollouts: its file, the record that names it for upload, and its own row. */
static bool table_write(struct offline *o, const struct wandb_table *t, struct wandb_cursor *c, struct error *err)
{
    char name[160], path[PATH_MAX], folder[PATH_MAX], json[256];
    int64_t n, step;
    double wall_s;
    snprintf(name, sizeof name, "media/table/rollouts_%" PRId64 "_%.20s.table.json", c->n_row, t->sha256);
    snprintf(folder, sizeof folder, "%.3900s/files/media/table", o->dir);
    snprintf(path, sizeof path, "%.3900s/files/%s", o->dir, name);
    if (!dir_make(folder, 0755, err) || !file_write(path, buf_text(&t->json), t->json.len, err))
        return false;
    buf_clear(&o->item);
    pb_text(&o->item, 1, name);
    pb_int(&o->item, 2, 0);    // policy: now
    pb_int(&o->item, 3, 2);    // type: media
    buf_clear(&o->message);
    pb_bytes(&o->message, 1, buf_text(&o->item), o->item.len);
    if (!wandb_file_add(o->file, REC_FILES, &o->message, NULL, err))
        return false;
    buf_clear(&o->table);
    nested_add(o, &o->table, "rollouts", "_type", "\"table-file\"");
    nested_add(o, &o->table, "rollouts", "log_mode", "\"IMMUTABLE\"");
    snprintf(json, sizeof json, "\"%s\"", t->sha256);
    nested_add(o, &o->table, "rollouts", "sha256", json);
    snprintf(json, sizeof json, "\"%s\"", name);
    nested_add(o, &o->table, "rollouts", "path", json);
    const struct {
        const char *key;
        int64_t v;
    } counts[] = { { "size", (int64_t)t->json.len }, { "ncols", t->n_col }, { "nrows", t->n_row } };
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        snprintf(json, sizeof json, "%" PRId64, counts[i].v);
        nested_add(o, &o->table, "rollouts", counts[i].key, json);
    }
    wandb_summary_last(o->summary, &n, &step, &wall_s);
    row_begin(o, c->n_row, t->version, wall_s > 0 ? wall_s : clock_wall_s());
    buf_add(&o->message, buf_text(&o->table), o->table.len);
    wandb_summary_reach(o->summary, c->n_row);
    return row_end(o, c->n_row++, err);
}

static bool tables_write(struct offline *o, struct wandb_cursor *c, bool over, struct error *err)
{
    for (;;) {
        struct wandb_table t = { .json = BUF_INIT };
        bool ok = wandb_table_next(&t, o->setup, o->journal, over, c, err);
        bool due = ok && t.n_row > 0;
        ok = ok && (!due || table_write(o, &t, c, err));
        buf_release(&t.json);
        if (!ok || !due)
            return ok;
    }
}

static void stat_add(void *arg, const char *key, double v)
{
    struct offline *o = arg;
    buf_clear(&o->value);
    json_number_print(&o->value, v);
    item_add(o, 3, key, buf_text(&o->value));
}

static bool sample_take(void *arg, const struct journal_sample *s)
{
    struct offline *o = arg;
    buf_clear(&o->message);
    timestamp_add(&o->message, 2, s->wall_s);
    wandb_system_each(s, o->head, stat_add, o);
    o->failed = !wandb_file_add(o->file, REC_STATS, &o->message, NULL, o->err);
    if (!o->failed)
        o->sample_seq = s->seq;
    return !o->failed;
}

static bool console_line(void *arg, const char *text, size_t len, bool is_error, double wall_s)
{
    struct offline *o = arg;
    struct buf line = BUF_INIT;
    buf_add(&line, text, len);
    buf_char(&line, '\n');
    buf_clear(&o->message);
    pb_int(&o->message, 1, !is_error);    // 0: standard error
    timestamp_add(&o->message, 2, wall_s);
    pb_bytes(&o->message, 3, buf_text(&line), line.len);
    o->failed = line.failed || !wandb_file_add(o->file, REC_OUTPUT, &o->message, NULL, o->err);
    buf_release(&line);
    return !o->failed;
}

/* Write what is new in the journal and, if the settings ask for it, in the log. */
static bool news_write(struct offline *o, struct wandb_cursor *c, bool over, struct error *err)
{
    const struct run_config *s = &o->setup->config;
    if (!wandb_rows_read(o->journal, c, row_take, o, err) || o->failed || !config_write(o, err))
        return false;
    if (s->wandb_completions && !tables_write(o, c, over, err))
        return false;
    if (s->wandb_host
        && (!wandb_head_find(o->head, o->journal, err) || !journal_samples_read(o->journal, o->sample_seq, sample_take, o, err)
            || o->failed))
        return false;
    while (s->wandb_console && wandb_console_each(o->setup, c, console_line, o) > 0 && !o->failed)
        ;
    return !o->failed;
}

static bool end_write(struct offline *o, int exit_code, struct error *err)
{
    double now = clock_wall_s();
    struct buf extra = BUF_INIT;
    buf_clear(&o->message);
    for (int i = 0; i < wandb_summary_n(o->summary); i++)
        number_item_add(o, wandb_summary_name(o->summary, i), wandb_summary_value(o->summary, i));
    const struct journal_histogram *h;
    for (int i = 0; (h = wandb_summary_histogram(o->summary, i)); i++) {
        buf_clear(&o->value);
        wandb_histogram_print(&o->value, &h->h);
        item_add(o, 1, h->name, buf_text(&o->value));
    }
    int64_t n, step;
    double wall_s;
    char runtime[64];
    wandb_summary_last(o->summary, &n, &step, &wall_s);
    number_item_add(o, "_step", (double)n);
    number_item_add(o, "trainer/step", (double)step);
    number_item_add(o, "_timestamp", wall_s);
    number_item_add(o, "_runtime", floor(now - o->setup->start_s));
    snprintf(runtime, sizeof runtime, "{\"runtime\":%" PRId64 "}", (int64_t)(now - o->setup->start_s));
    item_add(o, 1, "_wandb", runtime);
    buf_add(&o->message, buf_text(&o->table), o->table.len);    // the table is in the same row as the numbers
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

/* RUN/export/wandb/offline-run-<date>_<time>-<id>/; sync accepts it by this name. Each time the exporter starts, it rewrites the
 * file from the journal, next to the old one, and replaces that when it has caught up: so a kill leaves no half-known state to
 * continue from. */
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
    if (snprintf(dir, PATH_MAX, "%s/export/wandb/offline-run-%s-%s", s->run_dir, when, s->who.run_id) >= PATH_MAX - 128)
        return error_set(err, ERR_IO, "the path '%s' is too long", s->run_dir);
    snprintf(path, PATH_MAX, "%s/run-%s.wandb", dir, s->who.run_id);
    char files[PATH_MAX];
    return path_join(files, sizeof files, dir, "files") && dir_make(files, 0755, err);
}

bool export_wandb_offline(const struct export_request *r, struct error *err)
{
    struct wandb_setup setup;
    struct offline o = { .setup = &setup, .err = err };
    struct wandb_cursor cursor = { .eval_step = -1, .table_version = -1 };
    char path[PATH_MAX], fresh[PATH_MAX + 8];
    struct journal *j = NULL;
    bool ok = false, placed = false;
    if (!wandb_setup_make(&setup, r->run_dir, false, err))
        return false;
    TRY(j = rows_open(r->run_dir, err));
    TRY(wandb_start_find(&setup, j, err));
    o.journal = j;
    TRY(paths_make(&setup, o.dir, path, err));
    snprintf(fresh, sizeof fresh, "%s.new", path);
    unlink(fresh);
    TRY(o.summary = wandb_summary_new(err));
    TRY(o.file = wandb_file_new(fresh, err));
    TRY(header_write(&o, err) && run_write(&o, err) && metric_write(&o, "trainer/step", true, err));
    for (;;) {
        bool last = !r->follow || !run_goes_on(j, r->run_dir);
        TRY(news_write(&o, &cursor, last, err));
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
        printf("%s\n", o.dir);
    ok = true;
out:
    wandb_file_close(o.file);
    wandb_summary_free(o.summary);
    buf_release(&o.message);
    buf_release(&o.item);
    buf_release(&o.value);
    buf_release(&o.table);
    journal_close(j);
    wandb_setup_release(&setup);
    return ok;
}
