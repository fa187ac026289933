/* An online run. One loop: read new rows from the journal; put them, the whole summary and new system lines into one
 * file_stream request; send it until the server takes it (the same body at the same offsets, so that a lost answer repeats
 * nothing); only then move the cursor and write it down. A kill -9 at any moment continues at the right row.
 * A final answer (401, 404, ...) ends sending, is said loudly and kept in RUN/export/wandb/status; training goes on, and
 * 'rollcall export wandb RUN_DIR' sends the rest later. */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/export/rows.h"
#include "workers/export/wandb.h"

#define LINE_MAX_BYTES ((size_t)10383360)         // the server's own limit of one line
#define REQUEST_MAX_BYTES ((size_t)8 << 20)       // rows of one request
#define GRAPHQL_TRIES 20
#define UPLOAD_TRIES 5
#define UPLOAD_HEADERS 16
#define HEARTBEAT_S 30

static const char upsert_query[] =
    "mutation UpsertBucket($id: String, $name: String, $project: String, $entity: String, $groupName: String,"
    " $displayName: String, $notes: String, $config: JSONString, $jobType: String, $tags: [String!]) {"
    " upsertBucket(input: {id: $id, name: $name, modelName: $project, entityName: $entity, groupName: $groupName,"
    " displayName: $displayName, notes: $notes, config: $config, jobType: $jobType, tags: $tags}) {"
    " bucket { id name displayName config project { id name entity { id name } } historyLineCount } inserted } }";
static const char files_query[] =
    "mutation CreateRunFiles($entity: String!, $project: String!, $run: String!, $files: [String!]!) {"
    " createRunFiles(input: {entityName: $entity, projectName: $project, runName: $run, files: $files}) {"
    " runID uploadHeaders files { name uploadUrl } } }";
static const char alert_query[] =
    "mutation NotifyScriptableRunAlert($entityName: String!, $projectName: String!, $runName: String!, $title: String!,"
    " $text: String!, $severity: AlertSeverity = INFO, $waitDuration: Duration) {"
    " notifyScriptableRunAlert(input: {entityName: $entityName, projectName: $projectName, runName: $runName, title: $title,"
    " text: $text, severity: $severity, waitDuration: $waitDuration}) { success } }";

struct online {
    struct wandb_setup setup;
    const struct export_request *request;
    struct http *http;
    struct journal *journal;
    struct wandb_summary *summary;
    struct wandb_cursor cursor;      // what the server has
    struct wandb_cursor ahead;       // what the request being built would make it
    char storage_id[256], stream_url[2048], graphql_url[1200];
    struct buf lines;                // history lines of the request being built, as a JSON list's members
    struct buf body, line, config;
    struct buf system;               // lines of samples in that request
    struct buf console;              // lines of the log in that request
    struct buf table;                // what the last table's place in a row is, "" before the first
    char uploaded[160];              // its file's name while the request tells of it
    int n_line, n_system, n_config_names;
    char head[WANDB_NODE_MAX];       // the node the run began on; "" before its first sample
    bool config_dirty, stop_asked;
    int64_t last_send_ms, deadline_ms;    // deadline 0: none
    char alert[8][512];              // texts to be told, oldest first
    int n_alert;
};

/* ---- status and cursor files ---- */

static void status_write(struct online *o, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void status_write(struct online *o, const char *fmt, ...)
{
    char path[PATH_MAX], text[1024];
    struct error ignored;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text - 1, fmt, ap);
    va_end(ap);
    n = MIN(n, (int)sizeof text - 2);
    text[n++] = '\n';
    snprintf(path, sizeof path, "%s/export/wandb/status", o->setup.run_dir);
    if (!file_write(path, text, (size_t)n, &ignored))
        log_warn("the wandb status cannot be kept: %s", ignored.text);
}

static bool place_read(struct online *o, struct error *err)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    o->cursor = (struct wandb_cursor){ .eval_step = -1, .table_version = -1 };
    snprintf(path, sizeof path, "%s/export/wandb/cursor", o->setup.run_dir);
    if (!path_exists(path))
        return true;
    bool ok = file_read(&text, path, 4096, err);
    json_t *root = ok ? json_loads(buf_text(&text), 0, NULL) : NULL;
    json_int_t v[11] = { [9] = -1 };
    if (ok && json_unpack(root, "{s:I,s:I,s:I,s:I,s:I,s:I,s:F,s?I,s?I,s?I,s?I,s?I}", "step_seq", &v[0], "step", &v[1], "eval_step", &v[2], "event_seq",
                          &v[3], "rows", &v[4], "system", &v[5], "start_s", &o->setup.start_s, "console", &v[6], "console_at", &v[7],
                          "table_item", &v[8], "table_version", &v[9], "sample_seq", &v[10]) != 0)
        ok = error_set(err, ERR_DATA, "'%s' is not a cursor; remove the folder to send the run anew under another id", path);
    if (ok)
        o->cursor = (struct wandb_cursor){ .step_seq = v[0], .step = v[1], .eval_step = v[2], .event_seq = v[3], .n_row = v[4], .n_system = v[5],
                                          .n_console = v[6], .console_at = v[7], .table_item = v[8], .table_version = v[9],
                                          .sample_seq = v[10] };
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
                     "{\"step_seq\":%lld,\"step\":%lld,\"eval_step\":%lld,\"event_seq\":%lld,\"rows\":%lld,\"system\":%lld,"
                     "\"console\":%lld,\"console_at\":%lld,\"table_item\":%lld,\"table_version\":%lld,\"sample_seq\":%lld,\"start_s\":%.6f}\n",
                     (long long)c->step_seq, (long long)c->step, (long long)c->eval_step, (long long)c->event_seq,
                     (long long)c->n_row, (long long)c->n_system, (long long)c->n_console, (long long)c->console_at,
                     (long long)c->table_item, (long long)c->table_version, (long long)c->sample_seq, o->setup.start_s);
    return file_write(path, text, (size_t)n, err);
}

/* ---- requests that are repeated until they are answered ---- */

static bool past_deadline(const struct online *o)
{
    return o->deadline_ms && clock_ms() >= o->deadline_ms;
}

/* The run has ended, or we were asked to: from now on only so much longer. */
static void deadline_look(struct online *o)
{
    if (!o->deadline_ms && (http_stop_wanted(o->http) || (o->request->follow && !run_goes_on(o->journal, o->setup.run_dir))))
        o->deadline_ms = clock_ms() + (int64_t)(o->setup.finish_s * 1000);
}

/* Wait before a repetition, in pieces, so that the run's end is seen; not beyond the deadline. */
static void wait_out(struct online *o, double seconds)
{
    int64_t until = clock_ms() + (int64_t)(seconds * 1000);
    for (int64_t now; (now = clock_ms()) < until && !past_deadline(o); deadline_look(o)) {
        int64_t piece = MIN(until - now, (int64_t)500);
        poll(NULL, 0, (int)(o->deadline_ms ? MIN(piece, MAX((int64_t)1, o->deadline_ms - now)) : piece));
    }
}

/* What a refusal says, without the request. */
static bool refusal(const struct http_reply *reply, const char *what, struct error *err)
{
    json_t *root = json_loads(buf_text(&reply->body), 0, NULL);
    const char *text = json_string_value(json_object_get(root, "error"));
    const char *first = json_string_value(json_object_get(json_array_get(json_object_get(root, "errors"), 0), "message"));
    error_set(err, ERR_REFUSED, "wandb refuses the %s: HTTP %ld%s%.200s", what, reply->status, text || first ? ", " : "",
              text ? text : first ? first : "");
    json_decref(root);
    return false;
}

/* POST body until an answer of 2xx (reply is the caller's to release), a final refusal (ERR_REFUSED), the deadline or the most
 * tries (ERR_TIMEOUT). */
static bool post(struct online *o, const char *url, const char *what, const char *body, size_t len, double limit_s, int tries,
                 bool conflict_passes, struct http_reply *reply, struct error *err)
{
    for (int n = 1;; n++) {
        struct error why = { 0 };
        deadline_look(o);
        if (o->deadline_ms)
            limit_s = fmin(limit_s, fmax(0.1, (double)(o->deadline_ms - clock_ms()) / 1000));
        bool came = http_do(o->http, "POST", url, true, NULL, body, len, limit_s, reply, &why);
        if (came && reply->status >= 200 && reply->status < 300)
            return true;
        if (came && http_is_final(reply->status) && !(conflict_passes && reply->status == 409)) {
            refusal(reply, what, err);
            buf_release(&reply->body);
            return false;
        }
        if (!came && why.code == ERR_UNSUPPORTED) {
            buf_release(&reply->body);
            return error_set(err, ERR_REFUSED, "%s", why.text);
        }
        double wait = http_backoff_s(&o->setup, n, reply->retry_after_s);
        if (came)
            error_set(&why, ERR_IO, "HTTP %ld", reply->status);
        buf_release(&reply->body);
        if (past_deadline(o) || n == tries)
            return error_set(err, ERR_TIMEOUT, "wandb did not take the %s: %s", what, why.text);
        status_write(o, "waiting: the %s is repeated in %.1f s (%s)", what, wait, why.text);
        log_debug("wandb: the %s is repeated in %.1f s (%s)", what, wait, why.text);
        wait_out(o, wait);
    }
}

/* A GraphQL call; data (new reference) on success. */
static bool graphql(struct online *o, const char *operation, const char *query, json_t *variables, json_t **data, struct error *err)
{
    struct http_reply reply;
    json_t *request = json_pack("{s:s,s:s,s:o}", "operationName", operation, "query", query, "variables", variables);
    char *body = request ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (!body)
        return error_set(err, ERR_NO_MEMORY, "no memory for a wandb request");
    bool ok = post(o, o->graphql_url, operation, body, strlen(body), 30, GRAPHQL_TRIES,
                   strcmp(operation, "UpsertBucket") == 0, &reply, err);
    free(body);
    if (!ok)
        return false;
    json_t *root = json_loads(buf_text(&reply.body), 0, NULL);
    json_t *d = json_object_get(root, "data");
    if (!json_is_object(d)) {    // a 200 with errors and no data is a failure
        refusal(&reply, operation, err);
        ok = false;
    } else {
        *data = json_incref(d);
    }
    json_decref(root);
    buf_release(&reply.body);
    return ok;
}

static void path_encode(struct buf *out, const char *s)
{
    for (; *s; s++) {
        bool plain = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || strchr("-_.~", *s);
        buf_fmt(out, plain ? "%c" : "%%%02X", (unsigned char)*s);
    }
}

static json_t *text_or_null(const char *s)
{
    return s[0] ? json_string(s) : json_null();
}

/* Make the run or update its config. The reply's entity, project and run id are used from now on. */
static bool upsert(struct online *o, bool first, struct error *err)
{
    buf_clear(&o->config);
    if (!wandb_config_print(&o->config, &o->setup, o->summary, err))
        return false;
    const struct wandb_setup *s = &o->setup;
    json_t *tags = NULL, *data = NULL;
    if (first && s->tags[0]) {
        tags = json_array();
        for (const char *p = s->tags; *p; p += strspn(p, ",")) {
            size_t n = strcspn(p, ",");
            if (n)
                json_array_append_new(tags, json_stringn(p, n));
            p += n;
        }
    }
    json_t *v = json_pack("{s:o,s:s,s:s,s:o,s:o,s:o,s:o,s:s,s:o,s:o}", "id", text_or_null(o->storage_id), "name", s->run_id, "project",
                          s->project, "entity", text_or_null(s->entity), "groupName", first ? text_or_null(s->group) : json_null(),
                          "displayName", first ? text_or_null(s->display_name) : json_null(), "notes",
                          first ? text_or_null(s->notes) : json_null(), "config", buf_text(&o->config), "jobType",
                          first ? text_or_null(s->job_type) : json_null(), "tags", tags ? tags : json_null());
    if (!graphql(o, "UpsertBucket", upsert_query, v, &data, err))
        return false;
    const char *id = NULL, *name = NULL, *project = NULL, *entity = NULL;
    json_error_t je;
    bool ok = json_unpack_ex(data, &je, 0, "{s:{s:{s:s,s:s,s:{s:s,s:{s:s}}}}}", "upsertBucket", "bucket", "id", &id, "name", &name,
                             "project", "name", &project, "entity", "name", &entity) == 0
           || error_set(err, ERR_DATA, "wandb's answer to UpsertBucket lacks a field: %s", je.text);
    if (ok) {
        struct buf url = BUF_INIT;
        snprintf(o->storage_id, sizeof o->storage_id, "%s", id);
        snprintf(o->setup.run_id, sizeof o->setup.run_id, "%s", name);
        snprintf(o->setup.project, sizeof o->setup.project, "%s", project);
        snprintf(o->setup.entity, sizeof o->setup.entity, "%s", entity);
        buf_fmt(&url, "%s/files/", s->base_url);
        path_encode(&url, entity);
        buf_char(&url, '/');
        path_encode(&url, project);
        buf_char(&url, '/');
        path_encode(&url, name);
        buf_str(&url, "/file_stream");
        snprintf(o->stream_url, sizeof o->stream_url, "%s", buf_text(&url));
        buf_release(&url);
        o->n_config_names = wandb_summary_n(o->summary);
        o->config_dirty = false;
    }
    json_decref(data);
    return ok;
}

static bool alerts_send(struct online *o, struct error *err)
{
    for (; o->n_alert > 0; o->n_alert--, memmove(o->alert[0], o->alert[1], sizeof o->alert - sizeof o->alert[0])) {
        char title[64];
        json_t *data = NULL;
        snprintf(title, sizeof title, "%s", o->alert[0]);
        json_t *v = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:i}", "entityName", o->setup.entity, "projectName", o->setup.project, "runName",
                              o->setup.run_id, "title", title, "text", o->alert[0], "severity", "WARN", "waitDuration", 60000);
        if (!v || !graphql(o, "NotifyScriptableRunAlert", alert_query, v, &data, err))
            return false;
        json_decref(data);
    }
    return true;
}

/* ---- the stream ---- */

static bool row_take(void *arg, const struct wandb_row *row)
{
    struct online *o = arg;
    if (o->lines.len > REQUEST_MAX_BYTES)
        return false;    // the next request's
    buf_clear(&o->line);
    wandb_line_print(&o->line, row, o->setup.start_s);
    if (o->line.len <= LINE_MAX_BYTES) {
        if (o->n_line++)
            buf_char(&o->lines, ',');
        json_text_print(&o->lines, buf_text(&o->line), o->line.len);
    }
    wandb_summary_add(o->summary, row);
    if (row->event && strcmp(row->event->kind, "alert") == 0 && o->n_alert < (int)ARRAY_SIZE(o->alert))
        snprintf(o->alert[o->n_alert++], sizeof o->alert[0], "%s", row->event->text);
    if (row->event && strcmp(row->event->kind, "knob") == 0)
        o->config_dirty = true;
    return true;
}

static bool sample_take(void *arg, const struct journal_sample *sample)
{
    struct online *o = arg;
    if (o->system.len > REQUEST_MAX_BYTES)
        return false;    // the next request's
    buf_clear(&o->line);
    wandb_system_print(&o->line, sample, o->head, o->setup.start_s);
    if (o->n_system++)
        buf_char(&o->system, ',');
    json_text_print(&o->system, buf_text(&o->line), o->line.len);
    o->ahead.n_system++;
    o->ahead.sample_seq = sample->seq;
    return true;
}

/* PUT a file to where the server says, without our key. Whatever refuses it, training's rows go on: err says why. */
static bool file_upload(struct online *o, const char *name, const struct buf *data, struct error *err)
{
    const char *header[UPLOAD_HEADERS + 1] = { NULL }, *url = NULL;
    json_t *reply = NULL, *v = json_pack("{s:s,s:s,s:s,s:[s]}", "entity", o->setup.entity, "project", o->setup.project, "run",
                                         o->setup.run_id, "files", name);
    if (!graphql(o, "CreateRunFiles", files_query, v, &reply, err))
        return false;
    json_t *made = json_object_get(reply, "createRunFiles"), *extra = json_object_get(made, "uploadHeaders");
    json_t *file = json_array_get(json_object_get(made, "files"), 0);
    const char *for_name = json_string_value(json_object_get(file, "name"));
    if (for_name && strcmp(for_name, name) == 0)
        url = json_string_value(json_object_get(file, "uploadUrl"));
    for (size_t i = 0, n = 0; i < json_array_size(extra) && n < UPLOAD_HEADERS; i++)
        if (json_is_string(json_array_get(extra, i)))
            header[n++] = json_string_value(json_array_get(extra, i));
    bool ok = url || error_set(err, ERR_DATA, "wandb names no address for the file '%s'", name), done = false;
    for (int n = 1; ok && !done; n++) {
        struct http_reply answer;
        struct error why = { 0 };
        bool came = http_do(o->http, "PUT", url, false, header, buf_text(data), data->len, 60, &answer, &why);
        done = came && answer.status >= 200 && answer.status < 300;
        if (came && !done)
            error_set(&why, ERR_IO, "HTTP %ld", answer.status);
        deadline_look(o);
        if (!done && (n == UPLOAD_TRIES || (came && http_is_final(answer.status)) || past_deadline(o)))
            ok = error_set(err, ERR_IO, "wandb does not take the file '%s': %s", name, why.text);
        else if (!done)
            wait_out(o, http_backoff_s(&o->setup, n, answer.retry_after_s));
        buf_release(&answer.body);
    }
    json_decref(reply);
    return ok;
}

/* A table of rollouts when one is due: upload its file, then a row of its own that names it. */
static bool table_add(struct online *o, bool over, struct error *err)
{
    struct wandb_table t = { .json = BUF_INIT };
    struct error why = { 0 };
    int64_t n, step;
    double wall_s;
    bool ok = wandb_table_next(&t, &o->setup, o->journal, over, &o->ahead, err);
    if (ok && t.n_row > 0) {
        snprintf(o->uploaded, sizeof o->uploaded, "media/table/rollouts_%lld_%.20s.table.json", (long long)o->ahead.n_row, t.sha256);
        if (!file_upload(o, o->uploaded, &t.json, &why)) {
            log_warn("a table of rollouts is left out: %s", why.text);
            o->uploaded[0] = 0;
            o->cursor.table_item = o->ahead.table_item;    // not tried again and again
            o->cursor.table_version = o->ahead.table_version;
        } else {
            wandb_summary_last(o->summary, &n, &step, &wall_s);
            wall_s = wall_s > 0 ? wall_s : clock_wall_s();
            buf_clear(&o->table);
            buf_fmt(&o->table, "\"rollouts\":{\"_type\":\"table-file\",\"sha256\":\"%s\",\"size\":%zu,\"path\":\"%s\",\"ncols\":%d,"
                               "\"nrows\":%d,\"log_mode\":\"IMMUTABLE\"}",
                    t.sha256, t.json.len, o->uploaded, t.n_col, t.n_row);
            buf_clear(&o->line);
            buf_fmt(&o->line, "{\"_step\":%lld,\"_runtime\":%.3f,\"_timestamp\":%.6f,\"trainer/step\":%lld,%s}", (long long)o->ahead.n_row,
                    fmax(0, wall_s - o->setup.start_s), wall_s, (long long)t.version, buf_text(&o->table));
            if (o->n_line++)
                buf_char(&o->lines, ',');
            json_text_print(&o->lines, buf_text(&o->line), o->line.len);
            o->ahead.n_row++;
        }
    }
    buf_release(&t.json);
    return ok;
}

/* Build the next request from the journal into o->body; false in any_new: nothing to say. */
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
        wandb_console_take(&o->console, &n_console, &o->setup, &o->ahead);
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
            buf_fmt(b, "\"wandb-history.jsonl\":{\"offset\":%lld,\"content\":[%s]},", (long long)o->cursor.n_row, buf_text(&o->lines));
        if (n_console)
            buf_fmt(b, "\"output.log\":{\"offset\":%lld,\"content\":[%s]},", (long long)o->cursor.n_console, buf_text(&o->console));
        if (o->n_system)
            buf_fmt(b, "\"wandb-events.jsonl\":{\"offset\":%lld,\"content\":[%s]},", (long long)o->cursor.n_system, buf_text(&o->system));
        buf_clear(&o->line);
        wandb_summary_print(o->summary, &o->line, o->setup.start_s, clock_wall_s());
        if (o->table.len) {    // the table stands beside the numbers: {"rollouts":{…},"train/loss":…
            buf_clear(&o->config);
            buf_fmt(&o->config, "{%s,%s", buf_text(&o->table), buf_text(&o->line) + 1);
        }
        const struct buf *summary = o->table.len ? &o->config : &o->line;
        buf_str(b, "\"wandb-summary.json\":{\"offset\":0,\"content\":[");
        json_text_print(b, buf_text(summary), summary->len);
        buf_str(b, "]}}");
        if (o->uploaded[0])
            buf_fmt(b, ",\"uploaded\":[\"%s\"]", o->uploaded);
        if (complete)
            buf_fmt(b, ",\"complete\":true,\"exitcode\":%d", exit_code);
    }
    buf_char(b, '}');
    return !b->failed || error_set(err, ERR_NO_MEMORY, "no memory for a wandb request");
}

/* Somebody pressed Stop on the run's page: the same as an operator's stop here. */
static void stop_pass_on(struct online *o)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (o->stop_asked || n < 0 || !run_goes_on(o->journal, o->setup.run_dir))
        return;
    o->stop_asked = true;
    self[n] = 0;
    char *argv[] = { self, "ctl", "--run", (char *)o->setup.run_dir, "stop", NULL };
    pid_t pid;
    log_warn("wandb: Stop was pressed on the run's page; stopping the run");
    if (posix_spawn(&pid, self, NULL, NULL, argv, environ) == 0)
        waitpid(pid, NULL, 0);
}

static bool request_send(struct online *o, struct error *err)
{
    struct http_reply reply;
    if (!post(o, o->stream_url, "rows", buf_text(&o->body), o->body.len, 180, 0, false, &reply, err))
        return false;
    json_t *root = json_loads(buf_text(&reply.body), 0, NULL);
    bool stopped = json_is_true(json_object_get(root, "stopped"));
    json_decref(root);
    buf_release(&reply.body);
    o->cursor = o->ahead;
    o->last_send_ms = clock_ms();
    if (!place_write(o, err))
        return false;
    status_write(o, "ok: %lld rows sent", (long long)o->cursor.n_row);
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

static bool progress_shown(struct online *o)
{
    return !o->request->follow && isatty(STDERR_FILENO);
}

/* All that the journal holds, then completion; within the deadline. */
static bool finish(struct online *o, struct error *err)
{
    bool any;
    int code = run_exit_code(o->journal);
    for (;;) {
        if (!request_build(o, false, 0, &any, err))
            return false;
        if (!any)
            break;
        if (!request_send(o, err))
            return false;
        if (progress_shown(o))
            fprintf(stderr, "\r%lld rows sent", (long long)o->cursor.n_row);
    }
    if (progress_shown(o))
        fputc('\n', stderr);
    if (o->config_dirty || o->n_config_names != wandb_summary_n(o->summary))
        if (!upsert(o, false, err))
            return false;
    if (!alerts_send(o, err))
        return false;
    /* a run that was asked to end only here may go on elsewhere: then it is not complete */
    bool over = !run_goes_on(o->journal, o->setup.run_dir);
    if (!over)
        return true;
    return request_build(o, true, code < 0 ? 1 : code, &any, err) && request_send(o, err);
}

static bool follow(struct online *o, struct error *err)
{
    bool any;
    while (run_goes_on(o->journal, o->setup.run_dir) && !http_stop_wanted(o->http)) {
        double since_s = (double)(clock_ms() - o->last_send_ms) / 1000;
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
        if ((o->config_dirty || o->n_config_names != wandb_summary_n(o->summary)) && !upsert(o, false, err))
            return false;
        if (!alerts_send(o, err))
            return false;
    }
    return true;
}

bool export_wandb_online(const struct export_request *r, struct error *err)
{
    struct online o = { .request = r };
    struct wandb_cursor from_start = { .eval_step = -1, .table_version = -1 };
    bool ok = false;
    if (!wandb_setup_make(&o.setup, r->run_dir, true, err))
        return false;
    TRY(o.journal = journal_open_reader(r->run_dir, err));
    TRY(wandb_start_find(&o.setup, o.journal, err));
    TRY(place_read(&o, err));
    TRY(o.summary = wandb_summary_new(err));
    TRY(o.http = http_new(&o.setup, err));
    if (o.cursor.n_row > 0)
        TRY(wandb_rows_read(o.journal, &from_start, row_remember, o.summary, err));
    snprintf(o.graphql_url, sizeof o.graphql_url, "%s/graphql", o.setup.base_url);
    TRY(upsert(&o, true, err));
    if (r->follow)
        TRY(follow(&o, err));
    deadline_look(&o);
    ok = finish(&o, err);
out:
    if (!ok) {
        status_write(&o, "%s: %s; send the rest with: rollcall export wandb %s", err->code == ERR_REFUSED ? "failed" : "behind",
                     err->text, r->run_dir);
        error_wrap(err, "wandb (the run itself is not touched; 'rollcall export wandb %s' sends the rest later)", r->run_dir);
        log_error("%s", err->text);
    }
    http_free(o.http);
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
