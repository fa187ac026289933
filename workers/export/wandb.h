/* wandb.h - Weights & Biases: what the online and offline exporters share
 *
 * The wire format was observed from wandb's own client (version 0.28.2): GraphQL for the run, a file stream for rows, and a .wandb
 * file for runs synced later. The journal is the source of truth: nothing is spooled, and a cursor says what the server has
 * accepted. Each of our rows increments _step (steps, evaluations and knob changes alike) and holds trainer/step, which all charts
 * use as their x-axis; so a rollback never makes _step fall. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/record/journal.h"
#include "protocol/settings/run_config.h"
#include "protocol/settings/wandb_who.h"
#include "workers/export/export.h"

/* --- who and where (wandb_setup.c) --- */
struct wandb_setup {
    const char *run_dir;         // borrowed
    struct run_config began;     // of the run, as it has begun
    struct run_config config;    // with the changes that wandb_config_refresh has found
    struct wandb_who who;        // its key is wiped by wandb_setup_release
    bool id_given;               // run_id was given, so the run may already exist
    char ca[1024];               // file of certificates, "" : the system's
    double start_s;              // wall time of the run's beginning
    double transmit_s;           // between two sends; 15 as in the real client (WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL)
    double retry_min_s;          // first wait before a repetition; 2 (WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS)
    double finish_s;             // most seconds that the end of a run may wait for the server
};
/* need_key: fail without one. A run id that WANDB_RUN_ID does not give is made once and kept in RUN/export/wandb/id. */
MUST_USE bool wandb_setup_make(struct wandb_setup *s, const char *run_dir, bool need_key, struct error *err);
void wandb_setup_release(struct wandb_setup *s);

/* --- rows (wandb_rows.c) --- */
struct wandb_cursor {
    int64_t step_seq, step;    // seq of the last step row taken
    int64_t eval_step;         // step of the last evaluation taken, -1: none yet
    int64_t event_seq;         // seq of the last event looked at
    int64_t n_row;             // rows taken so far: the next row's _step
    int64_t line_shift;        // a row's line at the server - its _step; not 0 only in a run that existed before
    int64_t n_system;          // system lines taken so far
    int64_t sample_seq;        // seq of the last sample taken
    int64_t n_console;         // console lines taken so far
    int64_t console_at;        // bytes of the controller's log taken so far
    int64_t table_item;        // the first item not yet considered for a table
    int64_t table_version;     // version of the last table's weights, -1: none yet
};
struct wandb_row {
    int64_t n;       // _step
    int64_t step;    // trainer/step
    double wall_s;
    const struct journal_metric *metric;    // borrowed during the call
    int n_metric;
    const struct journal_histogram *histogram;    // (n_histogram) borrowed during the call
    int n_histogram;
    const struct journal_event *event;    // an alert or knob change to report as well, or NULL
};
/* Called for each new row; false stops before the row is counted. */
typedef bool wandb_row_fn(void *arg, const struct wandb_row *row);
#define ALERT_TITLE_MAX 63                                      // bytes
const char *wandb_event_says(const struct journal_event *e);    // the value of run/doctor in the row of this event; NULL: it has none
MUST_USE bool wandb_rows_read(struct journal *j, struct wandb_cursor *c, wandb_row_fn *fn, void *arg, struct error *err);
void wandb_histogram_print(struct buf *out, const struct histogram *h);    // as wandb.Histogram writes itself
/* One history line as the file stream expects it: JSON extended with bare NaN and Infinity. */
void wandb_line_print(struct buf *out, const struct wandb_row *row, double start_s);

/* The last value of every series, for the summary. Bounded; kept in the exporter's memory. */
struct wandb_summary;
struct wandb_summary *wandb_summary_new(struct error *err);
void wandb_summary_free(struct wandb_summary *s);
void wandb_summary_add(struct wandb_summary *s, const struct wandb_row *row);
void wandb_summary_reach(struct wandb_summary *s, int64_t n);    // the last row's _step is n; that row held no numbers
void wandb_summary_print(const struct wandb_summary *s, struct buf *out, double start_s, double now_s);
/* Go through the summary's values; for the offline file. */
int wandb_summary_n(const struct wandb_summary *s);
int wandb_summary_names(const struct wandb_summary *s);    // with those of histograms
const char *wandb_summary_name(const struct wandb_summary *s, int i);
double wandb_summary_value(const struct wandb_summary *s, int i);
const struct journal_histogram *wandb_summary_histogram(const struct wandb_summary *s,
                                                        int i);    // the i-th, in the order they came; NULL: no more
void wandb_summary_last(const struct wandb_summary *s, int64_t *n, int64_t *step, double *wall_s);    // of the last row

/* --- rollout tables and console text, each only when the run's settings ask for it --- */
struct wandb_table {
    struct buf json;    // {"columns":[…],"data":[[…],…]}
    int64_t version;    // version of the weights that sampled it
    int n_row, n_col;
    char sha256[65];
};
/* The next table that is due after the cursor: the first rollout step, then each one whose weights are rollout_log_interval
 * optimizer steps past the last table's; only completed rollout steps (over: the last one counts as completed). Rows and text are
 * bounded. Moves c; t->n_row is 0 when none is due. The caller releases t->json. (wandb_table.c) */
MUST_USE bool wandb_table_next(struct wandb_table *t, const struct wandb_setup *s, struct journal *j, bool over, struct wandb_cursor *c,
                               struct error *err);
/* Append new lines of RUN/logs/controller.log to out, as members of a JSON list of strings; moves c and adds to *n. Only whole
 * lines, at most 256 KiB per call; an unreadable log has none. structured: as objects, for servers that have
 * STRUCTURED_CONSOLE_LOGS. (wandb_console.c) */
void wandb_console_take(struct buf *out, int *n, const struct wandb_setup *s, bool structured, struct wandb_cursor *c);
/* As wandb_console_take, for callers that write lines in another form: each is passed to fn, cleaned, with the time at which it was
 * taken. Returns how many. */
typedef bool wandb_console_fn(void *arg, const char *text, size_t len, bool is_error, double wall_s);
int wandb_console_each(const struct wandb_setup *s, struct wandb_cursor *c, wandb_console_fn *fn, void *arg);

/* --- samples of hosts and GPUs, only when the run's settings ask for them (wandb_system.c) --- */
#define WANDB_NODE_MAX 128
/* Write the node on which the run began into head, unless head is already set; "" while there is no sample. */
MUST_USE bool wandb_head_find(char head[WANDB_NODE_MAX], struct journal *j, struct error *err);
/* Each figure of a sample under wandb's name for it, without the prefix "system.". */
typedef void wandb_system_fn(void *arg, const char *key, double v);
void wandb_system_each(const struct journal_sample *s, const char *head, wandb_system_fn *fn, void *arg);
/* One line of wandb-events.jsonl. */
void wandb_system_print(struct buf *out, const struct journal_sample *s, const char *head, double start_s);

/* The config string: {"lr":{"value":…},…,"_wandb":{"value":…}} with the metric definitions of all names seen so far. */
/* Put the knob changes in the journal into s->config; changed: it has another value than before. */
MUST_USE bool wandb_config_refresh(struct wandb_setup *s, struct journal *j, bool *changed, struct error *err);
MUST_USE bool wandb_config_print(struct buf *out, const struct wandb_setup *s, const struct wandb_summary *names, struct error *err);
/* Set s->start_s to the earliest time in the journal. */
MUST_USE bool wandb_start_find(struct wandb_setup *s, struct journal *j, struct error *err);
/* --- the .wandb file (wandb_file.c) --- */
struct wandb_file;
struct wandb_file *wandb_file_new(const char *path, struct error *err);    // fails when it exists
/* Append one Record (serialized protobuf without num, which is added) and flush whole chunks. */
MUST_USE bool wandb_file_add(struct wandb_file *f, int field, const struct buf *message, const struct buf *extra, struct error *err);
MUST_USE bool wandb_file_sync(struct wandb_file *f, struct error *err);
void wandb_file_close(struct wandb_file *f);
/* protobuf pieces */
void pb_varint(struct buf *b, uint64_t v);
void pb_int(struct buf *b, int field, int64_t v);
void pb_bytes(struct buf *b, int field, const void *data, size_t len);
void pb_text(struct buf *b, int field, const char *text);

/* --- HTTP (wandb_http.c) --- */
struct http;
struct http_reply {
    long status;                       // 0: no reply
    struct buf body;                   // at most 4 MiB
    double retry_after_s;              // NAN: not given
    double rate_left, rate_reset_s;    // from the server's headers; NAN: not given
    double rate_wait_s;                // until the next request is allowed, by the RateLimit headers; NAN: at once
    bool stopped;                      // we were asked to end while waiting
};
/* One connection, one request in flight; redirects are never followed; TLS is verified (ca "" : the system's certificates).
 * key is sent as Basic auth with the requests that need it. borrowed: setup. */
struct http *http_new(const struct wandb_setup *setup, struct error *err);
void http_free(struct http *h);
/* Send; method POST with a JSON body, or PUT of bytes without a Content-Type of ours; header: more headers (lines "Name: value",
 * NULL at the end; NULL: none). Waits up to limit_s. False: no reply came, err says why (ERR_UNSUPPORTED when repeating cannot
 * help, as with certificates). The reply must be released with buf_release(&reply->body). */
MUST_USE bool http_do(struct http *h, const char *method, const char *url, bool with_key, const char *const *header, const void *body,
                      size_t len, double limit_s, struct http_reply *reply, struct error *err);
/* Statuses for which repeating is no use: 400 401 403 404 409 410 413 422 501, and redirects, which are not followed. */
bool http_is_final(long status);
/* Seconds before try number n + 1 (n from 1), with jitter; a delay requested by the server takes precedence. */
double http_backoff_s(const struct wandb_setup *s, int n, double retry_after_s);
/* Were we asked to end (SIGTERM, SIGINT)? The first signal ends waits; data are still sent within finish_s. */
bool http_stop_wanted(const struct http *h);

/* --- the server (wandb_client.c) --- */
struct wandb_client {
    struct wandb_setup *setup;    // borrowed
    struct journal *journal;      // borrowed
    struct http *http;
    bool follow;    // the run's end sets the deadline
    char storage_id[256], stream_url[2048], graphql_url[1200];
    bool gzip, structured_console;    // features that the server has
    int64_t deadline_ms;              // for everything still to be sent; 0: none
    int64_t rate_until_ms;            // the server asked for no request before this
    struct buf packed;
};
MUST_USE bool wandb_client_init(struct wandb_client *c, struct wandb_setup *setup, struct journal *j, bool follow, struct error *err);
void wandb_client_release(struct wandb_client *c);
/* Set the deadline when the run has ended or we were asked to. */
void wandb_client_look(struct wandb_client *c);
/* One sentence into RUN/export/wandb/status: "ok: ...", "waiting: ...", "failed: ...". */
void wandb_status_write(const struct wandb_setup *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Ask for the server's features; without an answer, none is assumed. */
void wandb_features_ask(struct wandb_client *c);
/* Is there a run with this id, and where does it end? Fails (ERR_REFUSED) when WANDB_RESUME forbids continuing. */
struct wandb_resume {
    bool exists;
    int64_t n_history, n_system, n_console;    // lines the server has
    int64_t last_step;                         // _step of its last row, -1: none
};
MUST_USE bool wandb_resume_ask(struct wandb_client *c, struct wandb_resume *r, struct error *err);
/* Make the run (first) or update its config. From now on the reply's entity, project and run names are used. */
MUST_USE bool wandb_upsert(struct wandb_client *c, const char *config, bool first, struct error *err);
MUST_USE bool wandb_alert_send(struct wandb_client *c, const char *text, struct error *err);
/* PUT a file to the address that the server gives, without our key. A failure affects only this file. */
MUST_USE bool wandb_file_upload(struct wandb_client *c, const char *name, const struct buf *bytes, struct error *err);
/* Send one file_stream body until it is accepted; stopped: Stop was pressed on the run's page. */
MUST_USE bool wandb_stream_send(struct wandb_client *c, const struct buf *body, bool *stopped, struct error *err);
/* Print where the run can be viewed, on standard output. */
void wandb_address_print(const struct wandb_setup *s);
