/* A run's requests to a wandb server, and how long they are repeated: GraphQL for the run itself, the file stream for its rows,
 * PUTs of files. A request is repeated with the same bytes until it is answered, finally refused, or finish_s after the run's end.
 * */
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/utf8.h"
#include "workers/export/rows.h"
#include "workers/export/wandb.h"

#define GRAPHQL_TRIES 20    // when a finished run is sent by hand; for a live run the only limit is its end
#define UPLOAD_TRIES 5
#define UPLOAD_HEADERS 16
#define RATE_WAIT_MAX_S 300    // the longest pause that a server's rate limit may ask for between two sends

static const char
    upsert_query[] = "mutation UpsertBucket($id: String, $name: String, $project: String, $entity: String, $groupName: String,"
                     " $displayName: String, $notes: String, $config: JSONString, $jobType: String, $tags: [String!]) {"
                     " upsertBucket(input: {id: $id, name: $name, modelName: $project, entityName: $entity, groupName: $groupName,"
                     " displayName: $displayName, notes: $notes, config: $config, jobType: $jobType, tags: $tags}) {"
                     " bucket { id name displayName config project { id name entity { id name } } historyLineCount } inserted } }";
static const char features_query[] = "query ServerFeaturesQuery { serverInfo { features { name isEnabled } } }";
static const char
    resume_query[] = "query RunResumeStatus($project: String, $entity: String, $name: String!) {"
                     " model(name: $project, entityName: $entity) { id name entity { id name } bucket(name: $name, missingOk: true) {"
                     " id name historyLineCount eventsLineCount logLineCount historyTail wandbConfig(keys: [\"t\"]) } } }";
static const char files_query[] = "mutation CreateRunFiles($entity: String!, $project: String!, $run: String!, $files: [String!]!) {"
                                  " createRunFiles(input: {entityName: $entity, projectName: $project, runName: $run, files: $files}) {"
                                  " runID uploadHeaders files { name uploadUrl } } }";
static const char alert_query[] =
    "mutation NotifyScriptableRunAlert($entityName: String!, $projectName: String!, $runName: String!, $title: String!,"
    " $text: String!, $severity: AlertSeverity = INFO, $waitDuration: Duration) {"
    " notifyScriptableRunAlert(input: {entityName: $entityName, projectName: $projectName, runName: $runName, title: $title,"
    " text: $text, severity: $severity, waitDuration: $waitDuration}) { success } }";

bool wandb_client_init(struct wandb_client *c, struct wandb_setup *setup, struct journal *j, bool follow, struct error *err)
{
    *c = (struct wandb_client){ .setup = setup, .journal = j, .follow = follow };
    snprintf(c->graphql_url, sizeof c->graphql_url, "%s/graphql", setup->who.base_url);
    return (c->http = http_new(setup, err)) != NULL;
}

void wandb_client_release(struct wandb_client *c)
{
    http_free(c->http);
    buf_release(&c->packed);
    *c = (struct wandb_client){ 0 };
}

void wandb_status_write(const struct wandb_setup *s, const char *fmt, ...)
{
    char path[PATH_MAX], text[1024];
    struct error ignored;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text - 1, fmt, ap);
    va_end(ap);
    n = MIN(n, (int)sizeof text - 2);
    text[n++] = '\n';
    snprintf(path, sizeof path, "%s/export/wandb/status", s->run_dir);
    if (!file_write(path, text, (size_t)n, &ignored))
        log_warn("the wandb status cannot be written: %s", ignored.text);
}

/* ---- repeating ---- */

static bool past_deadline(const struct wandb_client *c)
{
    return c->deadline_ms && clock_ms() >= c->deadline_ms;
}

void wandb_client_look(struct wandb_client *c)
{
    if (!c->deadline_ms && (http_stop_wanted(c->http) || (c->follow && !run_goes_on(c->journal, c->setup->run_dir))))
        c->deadline_ms = clock_ms() + (int64_t)(c->setup->finish_s * 1000);
}

/* Wait before a repetition, in pieces, so that the run's end is noticed; not past the deadline. */
static void wait_out(struct wandb_client *c, double seconds)
{
    int64_t until = clock_ms() + (int64_t)(seconds * 1000);
    for (int64_t now; (now = clock_ms()) < until && !past_deadline(c); wandb_client_look(c)) {
        int64_t piece = MIN(until - now, (int64_t)500);
        poll(NULL, 0, (int)(c->deadline_ms ? MIN(piece, MAX((int64_t)1, c->deadline_ms - now)) : piece));
    }
}

/* The message of a refusal, without the request. */
static bool refusal(const struct http_reply *reply, const char *what, struct error *err)
{
    if (reply->status >= 300 && reply->status < 400)
        return error_set(err, ERR_REFUSED,
                         "the wandb server redirects the %s (HTTP %ld); redirects are not followed with a key: "
                         "name the right server in wandb_base_url",
                         what, reply->status);
    json_t *root = json_str_read(buf_text(&reply->body), 0, NULL);
    const char *text = json_string_value(json_object_get(root, "error"));
    const char *first = json_string_value(json_object_get(json_array_get(json_object_get(root, "errors"), 0), "message"));
    error_set(err, ERR_REFUSED, "wandb refuses the %s: HTTP %ld%s%.200s", what, reply->status, text || first ? ", " : "",
              text    ? text
              : first ? first
                      : "");
    json_decref(root);
    return false;
}

/* POST body until a 2xx answer (the caller releases reply), a final refusal (ERR_REFUSED), the deadline or the maximum number of
 * tries (ERR_TIMEOUT). */
static bool post(struct wandb_client *c, const char *url, const char *what, const char *const *header, const char *body, size_t len,
                 double limit_s, int tries, bool conflict_passes, struct http_reply *reply, struct error *err)
{
    for (int n = 1;; n++) {
        struct error why = { 0 };
        wandb_client_look(c);
        if (c->deadline_ms)
            limit_s = fmin(limit_s, fmax(0.1, (double)(c->deadline_ms - clock_ms()) / 1000));
        bool came = http_do(c->http, "POST", url, true, header, body, len, limit_s, reply, &why);
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
        double wait = http_backoff_s(c->setup, n, reply->retry_after_s);
        if (came)
            error_set(&why, ERR_IO, "HTTP %ld", reply->status);
        buf_release(&reply->body);
        if (past_deadline(c) || n == tries)
            return error_set(err, ERR_TIMEOUT, "wandb did not accept the %s: %s", what, why.text);
        wandb_status_write(c->setup, "waiting: the %s is repeated in %.1f s (%s)", what, wait, why.text);
        log_debug("wandb: the %s is repeated in %.1f s (%s)", what, wait, why.text);
        wait_out(c, wait);
    }
}

/* A GraphQL call; data (new reference) on success. Takes variables. */
static bool graphql(struct wandb_client *c, const char *operation, const char *query, json_t *variables, json_t **data, struct error *err)
{
    struct http_reply reply;
    json_t *request = json_pack("{s:s,s:s,s:o}", "operationName", operation, "query", query, "variables", variables);
    char *body = request ? json_text_dump(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (!body)
        return error_set(err, ERR_NO_MEMORY, "no memory for a wandb request");
    bool ok = post(c, c->graphql_url, operation, NULL, body, strlen(body), 30, c->follow ? 0 : GRAPHQL_TRIES,
                   strcmp(operation, "UpsertBucket") == 0, &reply, err);
    free(body);
    if (!ok)
        return false;
    json_t *root = json_str_read(buf_text(&reply.body), 0, NULL);
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

/* ---- the run ---- */

void wandb_features_ask(struct wandb_client *c)
{
    json_t *data = NULL, *feature;
    struct error why;
    size_t i;
    if (!graphql(c, "ServerFeaturesQuery", features_query, json_object(), &data, &why)) {
        log_debug("wandb: the server's features are not known: %s", why.text);
        return;
    }
    json_array_foreach(json_object_get(json_object_get(data, "serverInfo"), "features"), i, feature)
    {
        const char *name = json_string_value(json_object_get(feature, "name"));
        bool on = json_is_true(json_object_get(feature, "isEnabled"));
        c->gzip |= on && name && strcmp(name, "FILESTREAM_GZIP") == 0;
        c->structured_console |= on && name && strcmp(name, "STRUCTURED_CONSOLE_LOGS") == 0;
    }
    json_decref(data);
}

/* _step of the last line of a tail: JSON text of a list of strings. */
static int64_t tail_step(const char *tail)
{
    json_t *list = tail ? json_str_read(tail, 0, NULL) : NULL;
    size_t n = json_array_size(list);
    const char *line = n ? json_string_value(json_array_get(list, n - 1)) : NULL;
    json_t *row = line ? json_str_read(line, 0, NULL) : NULL;
    json_t *step = json_object_get(row, "_step");
    int64_t v = json_is_integer(step) ? (int64_t)json_integer_value(step) : -1;
    json_decref(row);
    json_decref(list);
    return v;
}

bool wandb_resume_ask(struct wandb_client *c, struct wandb_resume *r, struct error *err)
{
    const struct wandb_setup *s = c->setup;
    json_t *data = NULL, *v = json_pack("{s:s,s:o,s:s}", "project", s->who.project, "entity",
                                        s->who.entity[0] ? json_string(s->who.entity) : json_null(), "name", s->who.run_id);
    *r = (struct wandb_resume){ .last_step = -1 };
    if (!graphql(c, "RunResumeStatus", resume_query, v, &data, err))
        return false;
    json_t *bucket = json_object_get(json_object_get(data, "model"), "bucket");
    const char *config = json_string_value(json_object_get(bucket, "wandbConfig"));
    json_t *started = config ? json_str_read(config, 0, NULL) : NULL;
    if (json_object_get(started, "t")) {    // a run without it has never really started
        const char *id = json_string_value(json_object_get(bucket, "id"));
        r->exists = true;
        r->n_history = json_integer_value(json_object_get(bucket, "historyLineCount"));
        r->n_system = json_integer_value(json_object_get(bucket, "eventsLineCount"));
        r->n_console = json_integer_value(json_object_get(bucket, "logLineCount"));
        r->last_step = tail_step(json_string_value(json_object_get(bucket, "historyTail")));
        snprintf(c->storage_id, sizeof c->storage_id, "%s", id ? id : "");
    }
    json_decref(started);
    json_decref(data);
    if (r->exists && strcmp(s->who.resume, "never") == 0)
        return error_set(err, ERR_REFUSED, "wandb has a run '%s' already, and WANDB_RESUME is never", s->who.run_id);
    if (!r->exists && strcmp(s->who.resume, "must") == 0)
        return error_set(err, ERR_REFUSED, "wandb has no run '%s' to continue, and WANDB_RESUME is must", s->who.run_id);
    return true;
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

static json_t *tags_list(const char *tags)
{
    json_t *list = json_array();
    for (const char *p = tags; *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        if (n)
            json_array_append_new(list, json_stringn(p, n));
        p += n;
    }
    return list;
}

bool wandb_upsert(struct wandb_client *c, const char *config, bool first, struct error *err)
{
    struct wandb_setup *s = c->setup;
    json_t *data = NULL;
    json_t *v = json_pack(
        "{s:o,s:s,s:s,s:o,s:o,s:o,s:o,s:s,s:o,s:o}", "id", text_or_null(c->storage_id), "name", s->who.run_id, "project", s->who.project,
        "entity", text_or_null(s->who.entity), "groupName", first ? text_or_null(s->who.group) : json_null(), "displayName",
        first ? text_or_null(s->who.display_name) : json_null(), "notes", first ? text_or_null(s->who.notes) : json_null(), "config",
        config, "jobType", first ? text_or_null(s->who.job_type) : json_null(), "tags",
        first && s->who.tags[0] ? tags_list(s->who.tags) : json_null());
    if (!graphql(c, "UpsertBucket", upsert_query, v, &data, err))
        return false;
    const char *id = NULL, *name = NULL, *project = NULL, *entity = NULL;
    json_error_t je;
    bool ok = json_unpack_ex(data, &je, 0, "{s:{s:{s:s,s:s,s:{s:s,s:{s:s}}}}}", "upsertBucket", "bucket", "id", &id, "name", &name,
                             "project", "name", &project, "entity", "name", &entity)
                  == 0
              || error_set(err, ERR_DATA, "wandb's answer to UpsertBucket lacks a field: %s", je.text);
    if (ok) {
        struct buf url = BUF_INIT;
        snprintf(c->storage_id, sizeof c->storage_id, "%s", id);
        snprintf(s->who.run_id, sizeof s->who.run_id, "%s", name);
        snprintf(s->who.project, sizeof s->who.project, "%s", project);
        snprintf(s->who.entity, sizeof s->who.entity, "%s", entity);
        buf_fmt(&url, "%s/files/", s->who.base_url);
        path_encode(&url, entity);
        buf_char(&url, '/');
        path_encode(&url, project);
        buf_char(&url, '/');
        path_encode(&url, name);
        buf_str(&url, "/file_stream");
        snprintf(c->stream_url, sizeof c->stream_url, "%s", buf_text(&url));
        buf_release(&url);
    }
    json_decref(data);
    return ok;
}

bool wandb_alert_send(struct wandb_client *c, const char *text, struct error *err)
{
    char title[ALERT_TITLE_MAX + 1];
    json_t *data = NULL;
    utf8_copy(title, sizeof title, text, strlen(text));
    json_t *v = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:i}", "entityName", c->setup->who.entity, "projectName", c->setup->who.project,
                          "runName", c->setup->who.run_id, "title", title, "text", text, "severity", "WARN", "waitDuration", 60000);
    bool ok = v ? graphql(c, "NotifyScriptableRunAlert", alert_query, v, &data, err)
                : error_set(err, ERR_DATA, "an alert is not valid text");
    json_decref(data);
    return ok;
}

bool wandb_file_upload(struct wandb_client *c, const char *name, const struct buf *bytes, struct error *err)
{
    const char *header[UPLOAD_HEADERS + 1] = { NULL }, *url = NULL;
    json_t *reply = NULL, *v = json_pack("{s:s,s:s,s:s,s:[s]}", "entity", c->setup->who.entity, "project", c->setup->who.project, "run",
                                         c->setup->who.run_id, "files", name);
    if (!graphql(c, "CreateRunFiles", files_query, v, &reply, err))
        return false;
    json_t *made = json_object_get(reply, "createRunFiles"), *extra = json_object_get(made, "uploadHeaders");
    json_t *file = json_array_get(json_object_get(made, "files"), 0);
    const char *for_name = json_string_value(json_object_get(file, "name"));
    if (for_name && strcmp(for_name, name) == 0)
        url = json_string_value(json_object_get(file, "uploadUrl"));
    for (size_t i = 0, n = 0; i < json_array_size(extra) && n < UPLOAD_HEADERS; i++)
        if (json_is_string(json_array_get(extra, i)))
            header[n++] = json_string_value(json_array_get(extra, i));
    bool ok = url || error_set(err, ERR_DATA, "wandb gave no address for the file '%s'", name), done = false;
    for (int n = 1; ok && !done; n++) {
        struct http_reply answer;
        struct error why = { 0 };
        bool came = http_do(c->http, "PUT", url, false, header, buf_text(bytes), bytes->len, 60, &answer, &why);
        done = came && answer.status >= 200 && answer.status < 300;
        if (came && !done)
            error_set(&why, ERR_IO, "HTTP %ld", answer.status);
        wandb_client_look(c);
        bool final = came ? http_is_final(answer.status) : why.code == ERR_UNSUPPORTED;
        if (!done && (n == UPLOAD_TRIES || final || past_deadline(c)))
            ok = error_set(err, ERR_IO, "wandb does not accept the file '%s': %s", name, why.text);
        else if (!done)
            wait_out(c, http_backoff_s(c->setup, n, answer.retry_after_s));
        buf_release(&answer.body);
    }
    json_decref(reply);
    return ok;
}

/* ---- the stream ---- */

static bool gzip_pack(struct buf *out, const struct buf *in, struct error *err)
{
    z_stream z = { .next_in = (Bytef *)buf_text(in), .avail_in = (uInt)in->len };
    buf_clear(out);
    if (deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)    // 16: with gzip's header
        return error_set(err, ERR_NO_MEMORY, "no memory to pack a wandb request");
    size_t bound = deflateBound(&z, in->len);
    char *at = buf_reserve(out, bound);
    z.next_out = (Bytef *)at;
    z.avail_out = at ? (uInt)bound : 0;
    bool ok = at && deflate(&z, Z_FINISH) == Z_STREAM_END;
    out->len = ok ? z.total_out : 0;
    deflateEnd(&z);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory to pack a wandb request");
}

bool wandb_stream_send(struct wandb_client *c, const struct buf *body, bool *stopped, struct error *err)
{
    static const char *const packed_header[] = { "Content-Encoding: gzip", NULL };
    struct http_reply reply;
    const struct buf *bytes = body;
    if (c->gzip && body->len > 256) {    // a heartbeat would only grow
        if (!gzip_pack(&c->packed, body, err))
            return false;
        bytes = &c->packed;
    }
    if (c->rate_until_ms > clock_ms())
        wait_out(c, (double)(c->rate_until_ms - clock_ms()) / 1000);
    if (!post(c, c->stream_url, "rows", bytes == body ? NULL : packed_header, buf_text(bytes), bytes->len, 180, 0, false, &reply, err))
        return false;
    c->rate_until_ms = isnan(reply.rate_wait_s) ? 0 : clock_ms() + (int64_t)(1000 * fmin(reply.rate_wait_s, RATE_WAIT_MAX_S));
    json_t *root = json_str_read(buf_text(&reply.body), 0, NULL);
    *stopped = json_is_true(json_object_get(root, "stopped"));
    json_decref(root);
    buf_release(&reply.body);
    return true;
}
