/* An online run. One loop: read new rows from the journal; put them, the whole summary and new system lines into one
 * file_stream request; send it until the server takes it (the same body at the same offsets, so that a lost answer repeats
 * nothing); only then move the cursor and save it. After a kill -9 at any moment it continues at the right row. A final answer
 * (401, 404, ...) ends sending, is reported prominently and kept in RUN/export/wandb/status; training continues, and 'rollcall
 * export wandb RUN_DIR' sends the rest later. */
#include <inttypes.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/child.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/utf8.h"
#include "workers/export/rows.h"
#include "workers/export/wandb.h"

#define LINE_MAX_BYTES ((size_t)10383360)      // the server's own limit of one line
#define REQUEST_MAX_BYTES ((size_t)8 << 20)    // most rows in one request
#define HEARTBEAT_S 30
#define BAR_WIDTH 30

struct online {
    struct wandb_setup setup;
    const struct export_request *request;
    struct wandb_client client;
    struct journal *journal;
    struct wandb_summary *summary;
    struct wandb_cursor cursor;    // the server's position
    struct wandb_cursor ahead;     // its position after the request being built
    struct buf lines;              // history lines of the request being built, as members of a JSON list
    struct buf body, line, config;
    struct buf system;     // lines of samples in that request
    struct buf console;    // lines of the log in that request
    struct buf table;      // the last table's reference in a row, "" before the first
    char uploaded[160];    // its file's name while the request announces it
    int n_line, n_system, n_config_names;
    char head[WANDB_NODE_MAX];    // the node on which the run began; "" before its first sample
    bool known;                   // the cursor's file existed: the server knows the run
    pid_t stopper;                // the process that asks the run to stop; 0: none
    int64_t last_send_ms;
    int64_t total, began_row, began_ms;    // at the end: total rows; 0: not the end. Rows sent when the end began
    char alert[8][512];                    // texts to be sent, oldest first
    int n_alert;
};

/* ---- status and cursor files ---- */

static bool place_read(struct online *o, struct error *err)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    o->cursor = (struct wandb_cursor){ .eval_step = -1, .table_version = -1 };
    snprintf(path, sizeof path, "%s/export/wandb/cursor", o->setup.run_dir);
    if (!path_exists(path))
        return true;
    bool ok = file_read_text(&text, path, 4096, err);
    json_t *root = ok ? json_str_read(buf_text(&text), 0, NULL) : NULL;
    json_int_t v[12] = { [9] = -1 };
    if (ok
        && json_unpack(root, "{s:I,s:I,s:I,s:I,s:I,s:I,s:F,s?I,s?I,s?I,s?I,s?I,s?I}", "step_seq", &v[0], "step", &v[1], "eval_step", &v[2],
                       "event_seq", &v[3], "rows", &v[4], "system", &v[5], "start_s", &o->setup.start_s, "console", &v[6], "console_at",
                       &v[7], "table_item", &v[8], "table_version", &v[9], "sample_seq", &v[10], "line_shift", &v[11])
               != 0)
        ok = error_set(err, ERR_DATA, "'%s' is not a cursor; remove the folder to send the run again under another id", path);
    if (ok)
        o->cursor = (struct wandb_cursor){ .step_seq = v[0],
                                           .step = v[1],
                                           .eval_step = v[2],
                                           .event_seq = v[3],
                                           .n_row = v[4],
                                           .n_system = v[5],
                                           .n_console = v[6],
                                           .console_at = v[7],
                                           .table_item = v[8],
                                           .table_version = v[9],
                                           .sample_seq = v[10],
                                           .line_shift = v[11] };
    o->known = ok;
    json_decref(root);
    buf_release(&text);
    return ok;
}

static bool place_write(struct online *o, struct error *err)
{
    char path[PATH_MAX], text[512];
    const struct wandb_cursor *c = &o->cursor;
    snprintf(path, sizeof path, "%s/export/wandb/cursor", o->setup.run_dir);
    int n = snprintf(text, sizeof text,
                     "{\"step_seq\":%" PRId64 ",\"step\":%" PRId64 ",\"eval_step\":%" PRId64 ",\"event_seq\":%" PRId64 ",\"rows\":%" PRId64
                     ",\"system\":%" PRId64 ","
                     "\"console\":%" PRId64 ",\"console_at\":%" PRId64 ",\"table_item\":%" PRId64 ",\"table_version\":%" PRId64
                     ",\"sample_seq\":%" PRId64 ",\"line_shift\":%" PRId64 ",\"start_s\":%.6f}\n",
                     c->step_seq, c->step, c->eval_step, c->event_seq, c->n_row, c->n_system, c->n_console, c->console_at, c->table_item,
                     c->table_version, c->sample_seq, c->line_shift, o->setup.start_s);
    return file_write(path, text, (size_t)n, err);
}

/* ---- the stream ---- */

static bool row_take(void *arg, const struct wandb_row *row)
{
    struct online *o = arg;
    if (o->lines.len > REQUEST_MAX_BYTES)
        return false;    // for the next request
    buf_clear(&o->line);
    wandb_line_print(&o->line, row, o->setup.start_s);
    if (o->line.len <= LINE_MAX_BYTES) {
        if (o->n_line++)
            buf_char(&o->lines, ',');
        json_text_print(&o->lines, buf_text(&o->line), o->line.len, JSON_TEXT_UTF8);
    }
    wandb_summary_add(o->summary, row);
    if (row->event && event_alerts(row->event) && o->n_alert < (int)ARRAY_SIZE(o->alert))
        utf8_copy(o->alert[o->n_alert++], sizeof o->alert[0], row->event->text, strlen(row->event->text));
    return true;
}

static bool sample_take(void *arg, const struct journal_sample *sample)
{
    struct online *o = arg;
    if (o->system.len > REQUEST_MAX_BYTES)
        return false;    // for the next request
    buf_clear(&o->line);
    wandb_system_print(&o->line, sample, o->head, o->setup.start_s);
    if (o->n_system++)
        buf_char(&o->system, ',');
    json_text_print(&o->system, buf_text(&o->line), o->line.len, JSON_TEXT_UTF8);
    o->ahead.n_system++;
    o->ahead.sample_seq = sample->seq;
    return true;
}

/* A table of rollouts when one is due: upload its file, then write a separate row that names it. */
static bool table_add(struct online *o, bool over, struct error *err)
{
    struct wandb_table t = { .json = BUF_INIT };
    struct error why = { 0 };
    int64_t n, step;
    double wall_s;
    bool ok = wandb_table_next(&t, &o->setup, o->journal, over, &o->ahead, err);
    if (ok && t.n_row > 0) {
        snprintf(o->uploaded, sizeof o->uploaded, "media/table/rollouts_%" PRId64 "_%.20s.table.json", o->ahead.n_row, t.sha256);
        if (!wandb_file_upload(&o->client, o->uploaded, &t.json, &why)) {
            log_warn("a table of rollouts is left out: %s", why.text);
            o->uploaded[0] = 0;
            o->cursor.table_item = o->ahead.table_item;    // do not try again and again
            o->cursor.table_version = o->ahead.table_version;
        } else {
            wandb_summary_last(o->summary, &n, &step, &wall_s);
            wall_s = wall_s > 0 ? wall_s : clock_wall_s();
            buf_clear(&o->table);
            buf_fmt(&o->table,
                    "\"rollouts\":{\"_type\":\"table-file\",\"sha256\":\"%s\",\"size\":%zu,\"path\":\"%s\",\"ncols\":%d,"
                    "\"nrows\":%d,\"log_mode\":\"IMMUTABLE\"}",
                    t.sha256, t.json.len, o->uploaded, t.n_col, t.n_row);
            buf_clear(&o->line);
            buf_fmt(&o->line, "{\"_step\":%" PRId64 ",\"_runtime\":%.3f,\"_timestamp\":%.6f,\"trainer/step\":%" PRId64 ",%s}",
                    o->ahead.n_row, fmax(0, wall_s - o->setup.start_s), wall_s, t.version, buf_text(&o->table));
            if (o->n_line++)
                buf_char(&o->lines, ',');
            json_text_print(&o->lines, buf_text(&o->line), o->line.len, JSON_TEXT_UTF8);
            wandb_summary_reach(o->summary, o->ahead.n_row++);
        }
    }
    buf_release(&t.json);
    return ok;
}

/* Build the next request from the journal in o->body; false in any_new: nothing to send. */
static bool request_build(struct online *o, bool complete, int exit_code, bool *any_new, struct error *err)
{
    buf_clear(&o->lines);
    o->n_line = 0;
    o->ahead = o->cursor;
    if (!wandb_rows_read(o->journal, &o->ahead, row_take, o, err))
        return false;
    int n_console = 0;
    o->uploaded[0] = 0;
    buf_clear(&o->console);
    if (o->setup.config.wandb_completions && o->lines.len <= REQUEST_MAX_BYTES
        && !table_add(o, !run_goes_on(o->journal, o->setup.run_dir), err))
        return false;
    if (o->setup.config.wandb_console)
        wandb_console_take(&o->console, &n_console, &o->setup, o->client.structured_console, &o->ahead);
    o->n_system = 0;
    buf_clear(&o->system);
    if (o->setup.config.wandb_host
        && (!wandb_head_find(o->head, o->journal, err) || !journal_samples_read(o->journal, o->ahead.sample_seq, sample_take, o, err)))
        return false;
    *any_new = o->n_line > 0 || n_console > 0 || o->n_system > 0 || complete;
    struct buf *b = &o->body;
    buf_clear(b);
    buf_char(b, '{');
    if (*any_new) {
        buf_str(b, "\"files\":{");
        if (o->n_line)
            buf_fmt(b, "\"wandb-history.jsonl\":{\"offset\":%" PRId64 ",\"content\":[%s]},", (o->cursor.n_row + o->cursor.line_shift),
                    buf_text(&o->lines));
        if (n_console)
            buf_fmt(b, "\"output.log\":{\"offset\":%" PRId64 ",\"content\":[%s]},", o->cursor.n_console, buf_text(&o->console));
        if (o->n_system)
            buf_fmt(b, "\"wandb-events.jsonl\":{\"offset\":%" PRId64 ",\"content\":[%s]},", o->cursor.n_system, buf_text(&o->system));
        buf_clear(&o->line);
        wandb_summary_print(o->summary, &o->line, o->setup.start_s, clock_wall_s());
        if (o->table.len) {    // the table is in the same row as the numbers: {"rollouts":{…},"train/loss":…
            buf_clear(&o->config);
            buf_fmt(&o->config, "{%s,%s", buf_text(&o->table), buf_text(&o->line) + 1);
        }
        const struct buf *summary = o->table.len ? &o->config : &o->line;
        buf_str(b, "\"wandb-summary.json\":{\"offset\":0,\"content\":[");
        json_text_print(b, buf_text(summary), summary->len, JSON_TEXT_UTF8);
        buf_str(b, "]}}");
        if (o->uploaded[0])
            buf_fmt(b, ",\"uploaded\":[\"%s\"]", o->uploaded);
        if (complete)
            buf_fmt(b, ",\"complete\":true,\"exitcode\":%d", exit_code);
    }
    buf_char(b, '}');
    return !b->failed || error_set(err, ERR_NO_MEMORY, "no memory for a wandb request");
}

/* Stop was pressed on the run's page: it acts like an operator's stop. The exporter does not wait for it, so heartbeats continue. */
static void stop_pass_on(struct online *o)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (o->stopper > 0 || n < 0 || !run_goes_on(o->journal, o->setup.run_dir))
        return;
    self[n] = 0;
    char *argv[] = { self, "ctl", "--run", (char *)o->setup.run_dir, "stop", NULL };
    log_warn("wandb: Stop was pressed on the run's page; stopping the run");
    if (child_spawn(&o->stopper, self, NULL, CHILD_OURS, argv, NULL) != 0)
        o->stopper = 0;
}

/* A stop that failed is requested again while the server asks for it. */
static void stopper_reap(struct online *o)
{
    int status;
    if (o->stopper > 0 && waitpid(o->stopper, &status, WNOHANG) == o->stopper && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        o->stopper = 0;
}

static bool request_send(struct online *o, struct error *err)
{
    bool stopped;
    if (!wandb_stream_send(&o->client, &o->body, &stopped, err))
        return false;
    o->cursor = o->ahead;
    o->last_send_ms = clock_ms();
    if (!place_write(o, err))
        return false;
    if (o->total > 0)
        wandb_status_write(&o->setup, "sending: %" PRId64 " of %" PRId64 " rows sent", o->cursor.n_row, o->total);
    else
        wandb_status_write(&o->setup, "ok: %" PRId64 " rows sent", o->cursor.n_row);
    if (stopped)
        stop_pass_on(o);
    return true;
}

/* The summary must hold what was sent before this process began. */
static bool row_remember(void *arg, const struct wandb_row *row)
{
    wandb_summary_add(arg, row);
    return true;
}

/* ---- progress ---- */

static bool row_count(void *arg, UNUSED const struct wandb_row *row)
{
    ++*(int64_t *)arg;
    return true;
}

/* What is left to send, for people who watch. */
static bool total_find(struct online *o, struct error *err)
{
    struct wandb_cursor look = o->cursor;
    int64_t n = 0;
    if (!wandb_rows_read(o->journal, &look, row_count, &n, err))
        return false;
    o->total = o->cursor.n_row + n;
    o->began_row = o->cursor.n_row;
    o->began_ms = clock_ms();
    return true;
}

static void progress_draw(const struct online *o)
{
    char bar[BAR_WIDTH + 1];
    if (o->request->follow || !isatty(STDERR_FILENO))
        return;
    int64_t done = o->cursor.n_row - o->began_row, all = MAX(o->total - o->began_row, done);
    double share = all > 0 ? (double)done / (double)all : 1, passed_s = (double)(clock_ms() - o->began_ms) / 1000;
    int full = (int)(share * BAR_WIDTH + 0.5);
    memset(bar, '#', (size_t)full);
    memset(bar + full, '.', (size_t)(BAR_WIDTH - full));
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r[%s] %3.0f %%  %" PRId64 " of %" PRId64 " rows", bar, 100 * share, o->cursor.n_row, MAX(o->total, o->cursor.n_row));
    if (done > 0 && done < all)
        fprintf(stderr, ", %.0f s left  ", passed_s * (double)(all - done) / (double)done);
    fputs("\033[K", stderr);    // erase the rest of the line
}

/* ---- the run ---- */

static bool config_send(struct online *o, bool first, struct error *err)
{
    bool changed;
    if (!wandb_config_refresh(&o->setup, o->journal, &changed, err))
        return false;
    if (!first && !changed && o->n_config_names == wandb_summary_names(o->summary))
        return true;
    buf_clear(&o->config);
    if (!wandb_config_print(&o->config, &o->setup, o->summary, err) || !wandb_upsert(&o->client, buf_text(&o->config), first, err))
        return false;
    o->n_config_names = wandb_summary_names(o->summary);
    return true;
}

static bool alerts_send(struct online *o, struct error *err)
{
    for (; o->n_alert > 0; o->n_alert--, memmove(o->alert[0], o->alert[1], sizeof o->alert - sizeof o->alert[0]))
        if (!wandb_alert_send(&o->client, o->alert[0], err))
            return false;
    return true;
}

/* Send everything in the journal, then completion, within the deadline. */
static bool finish(struct online *o, struct error *err)
{
    bool any;
    int code = run_exit_code(o->journal);
    if (!total_find(o, err))
        return false;
    for (;;) {
        progress_draw(o);
        if (!request_build(o, false, 0, &any, err))
            return false;
        if (!any)
            break;
        if (!request_send(o, err))
            return false;
    }
    if (!o->request->follow && isatty(STDERR_FILENO))
        fputc('\n', stderr);
    if (!config_send(o, false, err) || !alerts_send(o, err))
        return false;
    o->total = 0;
    /* when only this process was asked to end, the run may continue: then it is not complete */
    if (run_goes_on(o->journal, o->setup.run_dir))
        return true;
    return request_build(o, true, code < 0 ? 1 : code, &any, err) && request_send(o, err);
}

static bool follow(struct online *o, struct error *err)
{
    bool any;
    while (run_goes_on(o->journal, o->setup.run_dir) && !http_stop_wanted(o->client.http)) {
        double since_s = (double)(clock_ms() - o->last_send_ms) / 1000;
        stopper_reap(o);
        if (o->last_send_ms && since_s < o->setup.transmit_s) {
            rows_wait(o->setup.run_dir, (int64_t)fmin(1000, (o->setup.transmit_s - since_s) * 1000 + 1));
            continue;
        }
        if (!request_build(o, false, 0, &any, err))
            return false;
        if (any || since_s >= HEARTBEAT_S) {
            if (!request_send(o, err))
                return false;
        } else {
            rows_wait(o->setup.run_dir, 1000);
        }
        if (!config_send(o, false, err) || !alerts_send(o, err))
            return false;
    }
    return true;
}

/* On the first start: an existing run with this id is continued after its last row, if WANDB_RESUME allows it. */
static bool begin(struct online *o, struct error *err)
{
    struct wandb_resume r;
    if (o->known || !o->setup.id_given)
        return config_send(o, true, err);
    if (!wandb_resume_ask(&o->client, &r, err))
        return false;
    if (r.exists) {
        o->cursor.n_row = MAX(r.last_step + 1, r.n_history);
        o->cursor.line_shift = r.n_history - o->cursor.n_row;
        o->cursor.n_system = r.n_system;
        o->cursor.n_console = r.n_console;
    }
    return config_send(o, true, err) && place_write(o, err);
}

bool export_wandb_online(const struct export_request *r, struct error *err)
{
    struct online o = { .request = r };
    struct wandb_cursor from_start = { .eval_step = -1, .table_version = -1 };
    bool ok = false;
    if (!wandb_setup_make(&o.setup, r->run_dir, true, err))
        return false;
    TRY(o.journal = rows_open(r->run_dir, err));
    TRY(wandb_start_find(&o.setup, o.journal, err));
    TRY(place_read(&o, err));
    TRY(o.summary = wandb_summary_new(err));
    TRY(wandb_client_init(&o.client, &o.setup, o.journal, r->follow, err));
    if (o.known) {
        TRY(wandb_rows_read(o.journal, &from_start, row_remember, o.summary, err));
        wandb_summary_reach(o.summary, o.cursor.n_row - 1);
    }
    wandb_features_ask(&o.client);
    TRY(begin(&o, err));
    if (r->follow)
        TRY(follow(&o, err));
    wandb_client_look(&o.client);
    ok = finish(&o, err);
    if (ok && !r->follow)
        wandb_address_print(&o.setup);
out:
    if (!ok) {
        wandb_status_write(&o.setup, "%s: %s; send the rest with: rollcall export wandb %s", err->code == ERR_REFUSED ? "failed" : "behind",
                           err->text, r->run_dir);
        char why[sizeof err->text];
        memcpy(why, err->text, sizeof why);
        error_set(err, err->code, "%.600s; the run itself is not affected, and 'rollcall export wandb %s' sends the rest later", why,
                  r->run_dir);
        log_error("%s", err->text);
    }
    wandb_client_release(&o.client);
    wandb_summary_free(o.summary);
    journal_close(o.journal);
    buf_release(&o.lines);
    buf_release(&o.body);
    buf_release(&o.line);
    buf_release(&o.config);
    buf_release(&o.system);
    buf_release(&o.console);
    buf_release(&o.table);
    wandb_setup_release(&o.setup);
    return ok;
}

bool export_wandb(const struct export_request *r, struct error *err)
{
    return r->offline ? export_wandb_offline(r, err) : export_wandb_online(r, err);
}
