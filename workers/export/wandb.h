/* wandb.h - Weights & Biases: what the exporters of a run share
 *
 * Wire facts are wandb's own client's, observed (version 0.28.2): GraphQL for the run, a file stream for rows, and a .wandb file
 * for runs synced later. The journal is the source of truth: nothing is spooled, a cursor says what the server has accepted.
 * Every row of ours counts one _step up (steps, evaluations and knob changes alike), and holds trainer/step, which all charts
 * use as their x-axis; so a rollback never makes _step fall. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/run/run_config.h"
#include "protocol/run/journal.h"
#include "workers/export/export.h"

/* --- who and where (wandb_setup.c) --- */
struct wandb_setup {
    const char *run_dir;         // borrowed
    struct run_config config;    // of the run, with the changes that wandb_config_refresh has taken
    int64_t n_change;            // how many those are
    char base_url[1024];         // without a trailing slash
    char key[512];               // never printed, logged or put on a command line; wiped by wandb_setup_release
    char entity[128], project[129], run_id[65], display_name[129], group[129], job_type[129];
    char tags[256], notes[1024];
    char resume[16];       // WANDB_RESUME: allow, must, never; "": allow
    bool id_given;         // run_id is somebody's choice, so the run may be there already
    char ca[1024];         // file of certificates, "" : the system's
    double start_s;        // wall time of the run's beginning
    double transmit_s;     // between two sends; 15 as the real client (WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL)
    double retry_min_s;    // first wait before a repetition; 2 (WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS)
    double finish_s;       // most seconds that the end of a run may wait for the server
};
/* From the run's run.yaml where somebody set it there, else the environment (WANDB_*), else wandb's settings files (wandb_files.h); the
 * key from the environment, else netrc. need_key: fail without one. The run id is made once and kept in RUN/export/wandb/id. */
MUST_USE bool wandb_setup_make(struct wandb_setup *s, const char *run_dir, bool need_key, struct error *err);
void wandb_setup_release(struct wandb_setup *s);

/* --- rows (wandb_rows.c) --- */
struct wandb_cursor {
    int64_t step_seq, step;    // of the last step row taken
    int64_t eval_step;         // of the last evaluation taken, -1: none yet
    int64_t event_seq;         // of the last event looked at
    int64_t n_row;             // rows taken so far: the next row's _step
    int64_t line_shift;        // a row's line at the server - its _step; not 0 only in a run that was there before us
    int64_t n_system;          // system lines taken so far
    int64_t sample_seq;        // of the last sample taken
    int64_t n_console;         // console lines taken so far
    int64_t console_at;        // bytes of the controller's log taken so far
    int64_t table_item;        // the first item that no table was asked about yet
    int64_t table_version;     // of the last table's weights, -1: none yet
};
struct wandb_row {
    int64_t n;       // _step
    int64_t step;    // trainer/step
    double wall_s;
    const struct journal_metric *metric;    // borrowed during the call
    int n_metric;
    const struct journal_event *event;    // an alert or knob change to tell besides, or NULL
};
/* Called for each new row; false stops before the row is counted. */
typedef bool wandb_row_fn(void *arg, const struct wandb_row *row);
MUST_USE bool wandb_rows_read(struct journal *j, struct wandb_cursor *c, wandb_row_fn *fn, void *arg, struct error *err);
/* One history line as the file stream wants it: extended JSON, bare NaN and Infinity. */
void wandb_line_print(struct buf *out, const struct wandb_row *row, double start_s);

/* The last value of every series: what the summary holds. Bounded; lives in the exporter. */
struct wandb_summary;
struct wandb_summary *wandb_summary_new(struct error *err);
void wandb_summary_free(struct wandb_summary *s);
void wandb_summary_add(struct wandb_summary *s, const struct wandb_row *row);
void wandb_summary_reach(struct wandb_summary *s, int64_t n);    // the last row's _step is n; that row held no numbers
void wandb_summary_print(const struct wandb_summary *s, struct buf *out, double start_s, double now_s);
/* Go through what the summary holds; for the offline file. */
int wandb_summary_n(const struct wandb_summary *s);
const char *wandb_summary_name(const struct wandb_summary *s, int i);
double wandb_summary_value(const struct wandb_summary *s, int i);
void wandb_summary_last(const struct wandb_summary *s, int64_t *n, int64_t *step, double *wall_s);    // of the last row

/* --- rollout tables and console text, each only when the run's settings ask for it --- */
struct wandb_table {
    struct buf json;    // {"columns":[…],"data":[[…],…]}
    int64_t version;    // of the weights that sampled it
    int n_row, n_col;
    char sha256[65];
};
/* The next table that is due behind the cursor: the first rollout step, then each whose weights are rollout_log_interval
 * optimizer steps past the last table's; only rollout steps that are behind us (over: that one may be the last). Bounded rows
 * and text. Moves c; t->n_row is 0 when none is due. t->json is the caller's to release. (wandb_table.c) */
MUST_USE bool wandb_table_next(struct wandb_table *t, const struct wandb_setup *s, struct journal *j, bool over, struct wandb_cursor *c,
                               struct error *err);
/* Append new lines of RUN/logs/controller.log to out, as members of a JSON list of strings; moves c and adds to *n. Only whole
 * lines, at most 256 KiB a call; a log that cannot be read has none. structured: as objects, for servers that have
 * STRUCTURED_CONSOLE_LOGS. (wandb_console.c) */
void wandb_console_take(struct buf *out, int *n, const struct wandb_setup *s, bool structured, struct wandb_cursor *c);
/* The same for who wants to write lines otherwise: each goes to fn, cleaned, with the moment it was taken. Returns how many. */
typedef bool wandb_console_fn(void *arg, const char *text, size_t len, bool is_error, double wall_s);
int wandb_console_each(const struct wandb_setup *s, struct wandb_cursor *c, wandb_console_fn *fn, void *arg);

/* --- samples of hosts and GPUs, only when the run's settings ask for them (wandb_system.c) --- */
#define WANDB_NODE_MAX 128
/* The node that the run began on into head, which is left alone when it is known already; "" while there is no sample. */
MUST_USE bool wandb_head_find(char head[WANDB_NODE_MAX], struct journal *j, struct error *err);
/* Each figure of a sample under wandb's name for it, without "system." before it. */
typedef void wandb_system_fn(void *arg, const char *key, double v);
void wandb_system_each(const struct journal_sample *s, const char *head, wandb_system_fn *fn, void *arg);
/* One line of wandb-events.jsonl. */
void wandb_system_print(struct buf *out, const struct journal_sample *s, const char *head, double start_s);

/* The config string: {"lr":{"value":…},…,"_wandb":{"value":…}} with the metric definitions of all names seen. */
/* Take changes of knobs that the journal tells of into s->config; changed: there were new ones. */
MUST_USE bool wandb_config_refresh(struct wandb_setup *s, struct journal *j, bool *changed, struct error *err);
MUST_USE bool wandb_config_print(struct buf *out, const struct wandb_setup *s, const struct wandb_summary *names, struct error *err);
/* Set s->start_s to the earliest moment the journal tells of. */
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
    double retry_after_s;              // NAN: not said
    double rate_left, rate_reset_s;    // as the server's headers have them; NAN: not said
    double rate_wait_s;                // until the next request may go, by the RateLimit headers; NAN: at once
    bool stopped;                      // we were asked to end while waiting
};
/* One connection, one request in flight; redirects are never followed; TLS is verified (ca "" : the system's certificates).
 * key goes as Basic auth with the requests that ask for it. borrowed: setup. */
struct http *http_new(const struct wandb_setup *setup, struct error *err);
void http_free(struct http *h);
/* Send; method POST with a JSON body, or PUT of bytes, which takes no Content-Type of ours; header: more of them (lines "Name:
 * value", NULL at the end; NULL: none). Waits up to limit_s. False: no reply came, err says why (ERR_UNSUPPORTED
 * when no repetition can help, as with certificates). The reply must be released with buf_release(&reply->body). */
MUST_USE bool http_do(struct http *h, const char *method, const char *url, bool with_key, const char *const *header, const void *body,
                      size_t len, double limit_s, struct http_reply *reply, struct error *err);
/* Statuses that no repetition mends: 400 401 403 404 409 410 413 422 501, and redirects, which are not followed. */
bool http_is_final(long status);
/* Seconds before try number n + 1 (n from 1), with jitter; what the server asked for wins. */
double http_backoff_s(const struct wandb_setup *s, int n, double retry_after_s);
/* Asked to end (SIGTERM, SIGINT)? The first makes waits end; data still go out within finish_s. */
bool http_stop_wanted(const struct http *h);

/* --- the server (wandb_client.c) --- */
struct wandb_client {
    struct wandb_setup *setup;    // borrowed
    struct journal *journal;      // borrowed
    struct http *http;
    bool follow;    // the run's end sets the deadline
    char storage_id[256], stream_url[2048], graphql_url[1200];
    bool gzip, structured_console;    // what the server offers
    int64_t deadline_ms;              // for all that is still to be said; 0: none
    int64_t rate_until_ms;            // the server's wish: not before
    struct buf packed;
};
MUST_USE bool wandb_client_init(struct wandb_client *c, struct wandb_setup *setup, struct journal *j, bool follow, struct error *err);
void wandb_client_release(struct wandb_client *c);
/* Set the deadline when the run has ended or we were asked to. */
void wandb_client_look(struct wandb_client *c);
/* One sentence into RUN/export/wandb/status: "ok: ...", "waiting: ...", "failed: ...". */
void wandb_status_write(const struct wandb_setup *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Find out what the server offers; when it does not say, nothing is assumed. */
void wandb_features_ask(struct wandb_client *c);
/* Is there a run of this id, and where does it end? Fails (ERR_REFUSED) where WANDB_RESUME forbids to go on. */
struct wandb_resume {
    bool exists;
    int64_t n_history, n_system, n_console;    // lines the server has
    int64_t last_step;                         // _step of its last row, -1: none
};
MUST_USE bool wandb_resume_ask(struct wandb_client *c, struct wandb_resume *r, struct error *err);
/* Make the run (first) or update its config. What the reply calls entity, project and run is used from now on. */
MUST_USE bool wandb_upsert(struct wandb_client *c, const char *config, bool first, struct error *err);
MUST_USE bool wandb_alert_send(struct wandb_client *c, const char *text, struct error *err);
/* PUT a file to where the server says, without our key. A failure is the file's alone. */
MUST_USE bool wandb_file_upload(struct wandb_client *c, const char *name, const struct buf *bytes, struct error *err);
/* Send one file_stream body until it is taken; stopped: somebody pressed Stop on the run's page. */
MUST_USE bool wandb_stream_send(struct wandb_client *c, const struct buf *body, bool *stopped, struct error *err);
/* Where the run can be looked at, on standard output. */
void wandb_address_print(const struct wandb_setup *s);
