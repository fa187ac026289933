/* batch.c - see batch.h */
#include "console/batch/batch.h"
#include <inttypes.h>
#include <errno.h>
#include <math.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/settings/metrics.h"
#include "protocol/settings/run_config.h"

#define SETS_MAX EVAL_ROW_MAX
#define HEADING_EVERY 24    // text lines between two headings: one heading per screen of 25 rows

struct eval_row {
    char set[48];
    int64_t n_last;
    double mean_first, mean_last;
};
struct batch {
    struct batch_config config;
    char run[128];
    int64_t start_ns;           // monotonic, when the batch was made
    int64_t printed_ns;         // when the last step line was printed; 0: none yet
    int64_t n_line;             // step lines printed
    int64_t step, max_steps;    // step of the last batch_step
    double limit_s;             // batch_ends_in
    double step_s;              // seconds a step, recent ones count most; 0: not known
    json_t *held;               // (jsonl) or
    char *held_text;            // (text) a step not printed yet because of the interval; owned
    struct eval_row eval[SETS_MAX];
    int n_eval;
    int write_errno;    // 0: everything written so far
    char bound[280];    // what has bound the run; "": not known
};

/* The columns of the text form, in order; a metric that a run does not have is shown as '-'. */
// clang-format off
static const struct column {
    const char *metric;
    const char *heading;
    int width, digits;
    double scale;
} columns[] = {
    { "metrics/reward",          "reward",  8, 3, 1 },
    { "metrics/ans_acc",         "correct %", 9, 1, 100 },
    { "metrics/response_length", "length",  8, 1, 1 },
    { "train/kl",                "KL",      9, 4, 1 },
    { "train/entropy",           "entropy", 8, 3, 1 },
    { "train/grad_norm",         "grad",    8, 3, 1 },
    { "perf/rollout_tok_per_s",  "tok/s",   9, 0, 1 },
    { "time/step_s",             "step s",  8, 2, 1 },
};
// clang-format on

bool batch_format_parse(const char *text, enum batch_format *format, struct error *err)
{
    if (strcmp(text, "text") == 0)
        *format = BATCH_TEXT;
    else if (strcmp(text, "jsonl") == 0)
        *format = BATCH_JSONL;
    else
        return error_set(err, ERR_USAGE, "unknown format '%s'; use text or jsonl", text);
    return true;
}

#define FIELDS_MAX 64

/* The next of names between commas, into out; false: there is none. */
static bool field_next(const char **at, char out[64])
{
    while (**at == ',' || **at == ' ')
        (*at)++;
    size_t n = strcspn(*at, ", ");
    snprintf(out, 64, "%.*s", (int)MIN(n, (size_t)63), *at);
    *at += n;
    return n > 0;
}

bool batch_fields_check(const char *fields, struct error *err)
{
    char name[64];
    int n = 0;
    for (const char *at = fields; field_next(&at, name); n++)
        if (metric_find(name) < 0 && strncmp(name, "reward/", 7) != 0 && strncmp(name, "eval/", 5) != 0)
            return error_set(err, ERR_USAGE, "--fields: there is no metric '%s'; 'rollcall metrics' lists them", name);
    return (n > 0 && n <= FIELDS_MAX) || error_set(err, ERR_USAGE, "--fields takes 1 to %d names", FIELDS_MAX);
}

static bool field_wanted(const struct batch *b, const char *metric)
{
    char name[64];
    for (const char *at = b->config.fields; at && field_next(&at, name);)
        if (strcmp(name, metric) == 0)
            return true;
    return b->config.fields == NULL;
}

struct batch *batch_new(const struct batch_config *config, struct error *err)
{
    struct batch *b = calloc(1, sizeof(*b));
    if (!b) {
        error_set(err, ERR_NO_MEMORY, "no memory for the batch output");
        return NULL;
    }
    b->config = *config;
    b->limit_s = NAN;
    snprintf(b->run, sizeof(b->run), "%s", config->run ? config->run : "");
    b->config.run = b->run;
    b->start_ns = clock_ns();
    return b;
}

void batch_free(struct batch *b)
{
    if (!b)
        return;
    json_decref(b->held);
    free(b->held_text);
    free(b);
}

bool batch_broken(const struct batch *b)
{
    return b->write_errno != 0;
}

static void line_write(struct batch *b, const char *line)
{
    if (b->write_errno)
        return;
    errno = 0;
    if (fputs(line, b->config.out) < 0 || fputc('\n', b->config.out) == EOF || fflush(b->config.out) != 0)
        b->write_errno = errno ? errno : EIO;
}

/* A text in it must not begin a line of its own. */
static void line_clean(char *line)
{
    for (char *c = strchr(line, '\n'); c; c = strchr(c, '\n'))
        *c = ' ';
}

static void json_write(struct batch *b, const json_t *json)
{
    char *line = json ? json_text_dump(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (line)
        line_write(b, line);
    else if (!b->write_errno)
        b->write_errno = ENOMEM;
    free(line);
}

/* "1:05" or "2:03:04": minutes are easier to read than seconds. */
static void minutes_format(char *out, size_t size, double s)
{
    if (!(s >= 0) || s > 1e8) {
        snprintf(out, size, "-");
        return;
    }
    long t = (long)(s + 0.5);
    if (t >= 3600)
        snprintf(out, size, "%ld:%02ld:%02ld", t / 3600, t / 60 % 60, t % 60);
    else
        snprintf(out, size, "%ld:%02ld", t / 60, t % 60);
}

/* The text's columns: the usual ones, or those of the fields asked for, each as wide as its name. */
static int columns_make(const struct batch *b, struct column *out, char names[FIELDS_MAX][64])
{
    int n = 0;
    if (!b->config.fields) {
        memcpy(out, columns, sizeof(columns));
        return ARRAY_SIZE(columns);
    }
    for (const char *at = b->config.fields; n < FIELDS_MAX && field_next(&at, names[n]); n++)
        out[n] = (struct column){ names[n], names[n], MAX((int)strlen(names[n]), 9), -1, 1 };
    return n;
}

static void heading_write(struct batch *b)
{
    struct column column[FIELDS_MAX];
    char names[FIELDS_MAX][64];
    struct buf line = BUF_INIT;
    int n = columns_make(b, column, names);
    buf_fmt(&line, "%11s", "step");
    for (int i = 0; i < n; i++)
        buf_fmt(&line, " %*s", column[i].width, column[i].heading);
    buf_fmt(&line, " %8s", "left");
    line_write(b, buf_text(&line));
    buf_release(&line);
}

static void value_add(struct buf *line, const struct column *c, double v)
{
    char text[32];
    if (!isfinite(v) || fabs(v) >= 1e9)
        snprintf(text, sizeof(text), "%s", isnan(v) ? "-" : "huge");
    else if (c->digits < 0)
        snprintf(text, sizeof(text), "%.6g", v);
    else
        snprintf(text, sizeof(text), "%.*f", c->digits, v);
    buf_fmt(line, " %*s", c->width, text);
}

static char *step_text(const struct batch *b, const struct batch_metric *metric, int n_metric)
{
    struct column column[FIELDS_MAX];
    char names[FIELDS_MAX][64], count[48], left[24];
    struct buf line = BUF_INIT;
    int n = columns_make(b, column, names);
    if (b->max_steps > 0)
        snprintf(count, sizeof(count), "%" PRId64 "/%" PRId64, b->step, b->max_steps);
    else
        snprintf(count, sizeof(count), "%" PRId64, b->step);
    buf_fmt(&line, "%11s", count);
    for (int i = 0; i < n; i++) {
        double v = NAN;
        for (int j = 0; j < n_metric; j++)
            if (strcmp(metric[j].name, column[i].metric) == 0)
                v = metric[j].value * column[i].scale;
        value_add(&line, &column[i], v);
    }
    double left_s = b->max_steps > b->step && b->step_s > 0 ? b->step_s * (double)(b->max_steps - b->step) : NAN;
    minutes_format(left, sizeof(left), b->max_steps == b->step ? 0 : fmin(left_s, b->limit_s));    // what is NAN does not count
    buf_fmt(&line, " %8s", left);
    char *text = strdup(buf_text(&line));
    buf_release(&line);
    return text;
}

static json_t *step_json(const struct batch *b, const struct batch_metric *metric, int n_metric)
{
    json_t *values = json_object();
    for (int i = 0; i < n_metric; i++)
        if (isfinite(metric[i].value) && field_wanted(b, metric[i].name))
            json_object_set_new(values, metric[i].name, json_real(metric[i].value));
    return json_pack("{s:s, s:I, s:o}", "event", "step", "step", (json_int_t)b->step, "metrics", values);
}

/* Print the step held back because of the interval, if any. */
static void held_flush(struct batch *b)
{
    if (b->held)
        json_write(b, b->held);
    if (b->held_text) {
        if (b->n_line % HEADING_EVERY == 0)
            heading_write(b);
        line_write(b, b->held_text);
    }
    if (b->held || b->held_text) {
        b->n_line++;
        b->printed_ns = clock_ns();
    }
    json_decref(b->held);
    free(b->held_text);
    b->held = NULL;
    b->held_text = NULL;
}

void batch_joins(struct batch *b, double elapsed_s, double step_s)
{
    if (elapsed_s > 0)
        b->start_ns -= (int64_t)(elapsed_s * 1e9);
    b->step_s = step_s > 0 ? step_s : 0;
}

void batch_ends_in(struct batch *b, double limit_s)
{
    b->limit_s = limit_s;
}

void batch_step(struct batch *b, int64_t step, int64_t max_steps, const struct batch_metric *metric, int n_metric)
{
    int64_t now = clock_ns();
    for (int i = 0; i < n_metric; i++)
        if (strcmp(metric[i].name, metrics[M_STEP_S].name) == 0)
            b->step_s = step_s_mean(b->step_s, metric[i].value);
    b->step = step;
    b->max_steps = max_steps;
    json_decref(b->held);
    free(b->held_text);
    b->held = NULL;
    b->held_text = NULL;
    if (b->config.format == BATCH_JSONL)
        b->held = step_json(b, metric, n_metric);
    else
        b->held_text = step_text(b, metric, n_metric);
    if (!b->held && !b->held_text && !b->write_errno)
        b->write_errno = ENOMEM;
    if (b->printed_ns == 0 || (double)(now - b->printed_ns) * 1e-9 >= b->config.interval_s)
        held_flush(b);
}

static struct eval_row *eval_find(struct batch *b, const char *set)
{
    for (int i = 0; i < b->n_eval; i++)
        if (strncmp(b->eval[i].set, set, sizeof(b->eval[i].set) - 1) == 0)
            return &b->eval[i];
    return NULL;
}

void batch_eval_began(struct batch *b, const char *set, double mean)
{
    struct eval_row *row = eval_find(b, set);
    if (row)
        row->mean_first = mean;
}

void batch_eval_known(struct batch *b, const char *set, int64_t n, double mean)
{
    struct eval_row *row = eval_find(b, set);
    if (!row && b->n_eval < SETS_MAX) {
        row = &b->eval[b->n_eval++];
        snprintf(row->set, sizeof(row->set), "%s", set);
        row->mean_first = mean;
    }
    if (row) {
        row->n_last = n;
        row->mean_last = mean;
    }
}

/* One line of JSON that is not a step; takes json. A step held back is printed before it. */
static void event_write(struct batch *b, json_t *json)
{
    held_flush(b);
    json_write(b, json);
    json_decref(json);
}

void batch_eval(struct batch *b, int64_t step, const char *set, int64_t n, double mean)
{
    batch_eval_known(b, set, n, mean);
    if (b->config.format == BATCH_JSONL) {
        json_t *json = json_pack("{s:s, s:I, s:s, s:I}", "event", "eval", "step", (json_int_t)step, "set", set, "n", (json_int_t)n);
        if (isfinite(mean))
            json_object_set_new(json, "mean", json_real(mean));
        event_write(b, json);
        return;
    }
    char line[160];
    snprintf(line, sizeof(line), "%11s evaluated '%.48s' after step %" PRId64 ": %.1f %% of %" PRId64, "", set, step, 100 * mean, n);
    held_flush(b);
    line_write(b, line);
}

/* The event's line in jsonl; NULL: this kind is printed elsewhere or not at all. */
static json_t *event_json(const struct batch_event *e)
{
    json_t *detail = e->detail[0] ? json_str_read(e->detail, 0, NULL) : NULL, *json = NULL;
    bool knob = strcmp(e->kind, "command") == 0 && json_is_array(json_object_get(detail, "changes"));
    if (knob || strcmp(e->kind, "command") == 0 || strcmp(e->kind, "alert") == 0 || strcmp(e->kind, "alarm") == 0
        || strcmp(e->kind, "process") == 0 || strcmp(e->kind, "return") == 0 || strcmp(e->kind, "node") == 0)
        json = json_pack("{s:s, s:I, s:o, s:o}", "event", knob ? "knob" : e->kind, "step", (json_int_t)e->step, "who",
                         json_text_new(e->who), "text", json_text_new(e->text));
    else if (strcmp(e->kind, "checkpoint") == 0)
        json = json_pack("{s:s, s:I, s:o}", "event", e->kind, "step", (json_int_t)e->step, "text", json_text_new(e->text));
    else if (strcmp(e->kind, "state") == 0) {
        char reason[1100];
        enum run_state state = run_state_read(e->detail, strlen(e->detail), reason, sizeof reason);
        if (state != RUN_UNKNOWN && !run_state_is_over(state))
            json = json_pack("{s:s, s:I, s:s, s:s}", "event", "state", "step", (json_int_t)e->step, "state", run_state_name(state),
                             "reason", reason);
    }
    if (json && json_is_object(detail))
        json_object_update(json, detail);    // the facts as fields: changes, path, ...; a checkpoint has its own step
    json_decref(detail);
    return json;
}

void batch_event(struct batch *b, const struct batch_event *e)
{
    if (strcmp(e->kind, "doctor") == 0)
        batch_bound(b, e->text);
    json_t *json = event_json(e);
    if (!json)
        return;
    if (b->config.format == BATCH_JSONL) {
        event_write(b, json);
        return;
    }
    char line[600];
    bool alert = strcmp(e->kind, "alert") == 0, checkpoint = strcmp(e->kind, "checkpoint") == 0;
    bool own = !e->who[0] || strcmp(e->who, "controller") == 0 || strcmp(e->who, "agent") == 0;
    snprintf(line, sizeof(line), "%11s %s%.480s%s%.60s", "",
             alert                           ? "ALERT: "
             : strcmp(e->kind, "alarm") == 0 ? "alarm: "
             : checkpoint                    ? "checkpoint: "
             : strcmp(e->kind, "state") == 0 ? "state: "
                                             : "",
             e->text, own ? "" : ", by ", own ? "" : e->who);
    json_decref(json);
    held_flush(b);
    line_clean(line);
    line_write(b, line);
}

void batch_note(struct batch *b, const char *text)
{
    if (b->config.format != BATCH_TEXT)
        return;
    char line[512];
    snprintf(line, sizeof(line), "%11s %s", "", text);
    held_flush(b);
    line_clean(line);
    line_write(b, line);
}

void batch_bound(struct batch *b, const char *text)
{
    snprintf(b->bound, sizeof(b->bound), "%s", text);
}

void batch_doctor(struct batch *b, int64_t step, const char *kind, const char *text, const char *remedy)
{
    if (b->config.format == BATCH_TEXT) {
        struct buf line = BUF_INIT;
        buf_fmt(&line, "%s%s%s", text, remedy[0] ? ": " : "", remedy);
        batch_note(b, buf_text(&line));
        buf_release(&line);
        return;
    }
    json_t *json = json_pack("{s:s, s:I, s:s, s:s, s:s}", "event", "doctor", "step", (json_int_t)step, "kind", kind, "text", text, "remedy",
                             remedy);
    held_flush(b);
    json_write(b, json);
    json_decref(json);
}

static void closing_table_write(struct batch *b, const char *outcome, const char *reason)
{
    char line[512], took[24];
    minutes_format(took, sizeof(took), (double)(clock_ns() - b->start_ns) * 1e-9);
    line_write(b, "");
    snprintf(line, sizeof(line), "%s%s%s after step %" PRId64 " in %s%s%.300s", b->run, b->run[0] ? " " : "", outcome, b->step, took,
             reason && reason[0] ? ": " : "", reason ? reason : "");
    line_write(b, line);
    if (b->bound[0])
        line_write(b, b->bound);
    if (b->n_eval == 0)
        return;
    snprintf(line, sizeof(line), "\n%-20s %9s %9s %9s %8s %9s", "evaluation", "start %", "end %", "change", "problems", "seconds");
    line_write(b, line);
    for (int i = 0; i < b->n_eval; i++) {
        const struct eval_row *e = &b->eval[i];
        snprintf(line, sizeof(line), "%-20s %9.1f %9.1f %+9.1f %8" PRId64 " %9.1f", e->set, 100 * e->mean_first, 100 * e->mean_last,
                 100 * (e->mean_last - e->mean_first), e->n_last, (double)(clock_ns() - b->start_ns) * 1e-9);
        line_write(b, line);
    }
}

static void closing_json_write(struct batch *b, const char *outcome, const char *reason)
{
    json_t *evals = json_object();
    for (int i = 0; i < b->n_eval; i++) {
        json_t *row = json_pack("{s:I}", "n", (json_int_t)b->eval[i].n_last);
        if (isfinite(b->eval[i].mean_last))
            json_object_set_new(row, "mean", json_real(b->eval[i].mean_last));
        json_object_set_new(evals, b->eval[i].set, row);
    }
    json_t *json = json_pack("{s:s, s:I, s:o, s:s}", "event", outcome, "step", (json_int_t)b->step, "eval", evals, "reason",
                             reason ? reason : "");
    if (b->bound[0])
        json_object_set_new(json, "doctor", json_text_new(b->bound));
    json_write(b, json);
    json_decref(json);
}

bool batch_end(struct batch *b, enum run_state state, int64_t step, const char *reason, struct error *err)
{
    const char *word = run_state_is_over(state) ? run_state_name(state) : "left";
    held_flush(b);
    b->step = step;
    if (b->config.format == BATCH_JSONL)
        closing_json_write(b, word, reason);
    else
        closing_table_write(b, word, reason);
    char unwritten[160];
    const char *why = reason && reason[0] ? reason : "no reason was given";
    if (b->write_errno && state == RUN_STOPPED) {    // the command has stopped it for that reason
        snprintf(unwritten, sizeof unwritten, "its progress could not be written: %s", strerror(b->write_errno));
        why = unwritten;
    }
    if (state == RUN_STOPPED)
        return error_set(err, ERR_STOPPED, "the run was stopped after step %" PRId64 ": %s", step, why);
    if (state == RUN_FAILED)
        return error_set(err, ERR_INTERNAL, "the run failed after step %" PRId64 ": %s", step, why);
    if (!run_state_is_over(state) && b->write_errno == EPIPE) {
        __fpurge(b->config.out);    // do not try to write it again at exit
        return true;
    }
    if (b->write_errno) {
        errno = b->write_errno;
        return error_errno(err, "cannot write the run's progress");
    }
    return true;
}
