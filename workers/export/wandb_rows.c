#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/cli.h"
#include "protocol/base/json_text.h"
#include "protocol/record/settings_kept.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/metrics.h"
#include "workers/export/wandb.h"

#define SUMMARY_MAX 4096
#define EVAL_VALUES 64

void wandb_line_print(struct buf *out, const struct wandb_row *row, double start_s)
{
    buf_fmt(out, "{\"_step\":%" PRId64 ",\"_runtime\":", row->n);
    json_number_print(out, MAX(0.0, row->wall_s - start_s));
    buf_fmt(out, ",\"_timestamp\":%.6f,\"trainer/step\":%" PRId64, row->wall_s, row->step);
    for (int i = 0; i < row->n_metric; i++) {
        buf_char(out, ',');
        json_text_print(out, row->metric[i].name, strlen(row->metric[i].name), JSON_TEXT_UTF8);
        buf_char(out, ':');
        json_number_print(out, row->metric[i].value);
    }
    for (int i = 0; i < row->n_histogram; i++) {
        buf_char(out, ',');
        json_text_print(out, row->histogram[i].name, strlen(row->histogram[i].name), JSON_TEXT_UTF8);
        buf_char(out, ':');
        wandb_histogram_print(out, &row->histogram[i].h);
    }
    const char *says = wandb_event_says(row->event);
    if (says) {
        buf_str(out, ",\"run/doctor\":");
        json_text_print(out, says, strlen(says), JSON_TEXT_UTF8);
    }
    buf_char(out, '}');
}

void wandb_histogram_print(struct buf *out, const struct histogram *h)
{
    buf_str(out, "{\"_type\":\"histogram\",\"values\":[");
    for (int k = 0; k < HISTOGRAM_BINS; k++)
        buf_fmt(out, "%s%" PRIu32, k ? "," : "", h->count[k]);
    buf_str(out, "],\"bins\":[");
    for (int k = 0; k <= HISTOGRAM_BINS; k++) {
        buf_str(out, k ? "," : "");
        json_number_print(out, histogram_edge(h, k));
    }
    buf_str(out, "]}");
}

const char *wandb_event_says(const struct journal_event *e)
{
    return e && strcmp(e->kind, "doctor") == 0 ? e->text : NULL;
}

/* ---- rows: steps first, then evaluations, then the operators' actions ---- */

struct reading {
    struct wandb_cursor *cursor;
    wandb_row_fn *fn;
    void *arg;
    struct journal *journal;
    struct error *err;
    bool stopped, failed;
    /* the evaluation being collected: all sets of one step are one row */
    int64_t eval_step;
    int n_eval;
    char eval_name[EVAL_VALUES][96];
    struct journal_metric eval[EVAL_VALUES];
    double wall_s;
};

static bool row_hand(struct reading *r, const struct wandb_row *what)
{
    struct wandb_row row = *what;
    row.n = r->cursor->n_row;
    if (!r->fn(r->arg, &row)) {
        r->stopped = true;
        return false;
    }
    r->cursor->n_row++;
    return true;
}

static bool step_take(void *arg, const struct journal_step *row)
{
    struct reading *r = arg;
    if (row->step > r->cursor->step) {
        struct journal_histogram h[HISTOGRAM_N];
        int n_histogram = journal_histograms_read(r->journal, row->seq, h, r->err);
        r->failed = n_histogram < 0;
        struct wandb_row one = {
            .step = row->step, .wall_s = row->wall_s, .metric = row->metric, .n_metric = row->n, .histogram = h, .n_histogram = n_histogram
        };
        if (r->failed || !row_hand(r, &one))
            return false;
        r->cursor->step = row->step;
    }
    r->cursor->step_seq = row->seq;
    r->wall_s = row->wall_s;
    return true;
}

static bool eval_flush(struct reading *r)
{
    if (r->n_eval == 0)
        return true;
    struct wandb_row one = { .step = r->eval_step, .wall_s = r->wall_s, .metric = r->eval, .n_metric = r->n_eval };
    if (!row_hand(r, &one))
        return false;
    r->cursor->eval_step = r->eval_step;
    r->n_eval = 0;
    return true;
}

static bool eval_take(void *arg, const struct journal_eval *e)
{
    struct reading *r = arg;
    if (e->step <= r->cursor->eval_step && !(r->n_eval && e->step == r->eval_step))
        return true;
    if (r->n_eval && e->step != r->eval_step && !eval_flush(r))
        return false;
    if (r->n_eval == EVAL_VALUES)
        return true;
    r->eval_step = e->step;
    snprintf(r->eval_name[r->n_eval], sizeof r->eval_name[0], "eval/%s", e->set);
    r->eval[r->n_eval] = (struct journal_metric){ r->eval_name[r->n_eval], e->mean };
    r->n_eval++;
    return true;
}

static bool event_take(void *arg, const struct journal_event *e)
{
    struct reading *r = arg;
    json_t *facts = json_str_read(e->detail, 0, NULL);
    const char *state = json_string_value(json_object_get(facts, "state"));
    bool alert = strcmp(e->kind, "alert") == 0, alarm = strcmp(e->kind, "alarm") == 0 && state && strcmp(state, "firing") == 0;
    bool doctor = strcmp(e->kind, "doctor") == 0;    // its text is its value
    bool tell = alert || alarm || doctor || strcmp(e->kind, "command") == 0;
    bool change = json_is_array(json_object_get(facts, "changes"));
    json_decref(facts);
    struct journal_metric marker = { alert ? "run/alert" : alarm ? "run/alarm" : change ? "run/changed" : "run/command", 1 };
    struct wandb_row one = { .step = e->step, .wall_s = e->wall_s, .metric = &marker, .n_metric = !doctor, .event = e };
    if (tell && !row_hand(r, &one))
        return false;
    r->cursor->event_seq = e->seq;
    return true;
}

bool wandb_rows_read(struct journal *j, struct wandb_cursor *c, wandb_row_fn *fn, void *arg, struct error *err)
{
    struct reading r = { .cursor = c, .fn = fn, .arg = arg, .journal = j, .err = err };
    if (!journal_steps_read(j, c->step_seq, step_take, &r, err) || r.failed)
        return false;
    if (!r.stopped && (!journal_evals_read(j, eval_take, &r, err) || (!r.stopped && !eval_flush(&r) && !r.stopped)))
        return false;
    return r.stopped || journal_events_read(j, c->event_seq, NULL, event_take, &r, err);
}

/* ---- summary ---- */

struct wandb_summary {
    struct {
        char name[100];
        double value;
    } row[SUMMARY_MAX];
    int n;
    struct journal_histogram histogram[HISTOGRAM_N];    // (n_histogram)
    int n_histogram;
    int64_t n_row, step;
    double wall_s;
};

struct wandb_summary *wandb_summary_new(struct error *err)
{
    struct wandb_summary *s = calloc(1, sizeof *s);
    if (!s)
        error_set(err, ERR_NO_MEMORY, "no memory for the wandb summary");
    return s;
}

void wandb_summary_free(struct wandb_summary *s)
{
    free(s);
}

static void summary_put(struct wandb_summary *s, int *guess, const char *name, double value)
{
    for (int i = 0; i < s->n; i++) {
        int at = (*guess + i) % s->n;
        if (strcmp(s->row[at].name, name) == 0) {
            s->row[at].value = value;
            *guess = at + 1;
            return;
        }
    }
    if (s->n < SUMMARY_MAX) {
        snprintf(s->row[s->n].name, sizeof s->row[0].name, "%s", name);
        s->row[s->n++].value = value;
    }
}

void wandb_summary_add(struct wandb_summary *s, const struct wandb_row *row)
{
    int guess = 0;
    for (int i = 0; i < row->n_metric; i++)
        summary_put(s, &guess, row->metric[i].name, row->metric[i].value);
    for (int i = 0; i < row->n_histogram; i++) {
        int at = 0;
        while (at < s->n_histogram && strcmp(s->histogram[at].name, row->histogram[i].name) != 0)
            at++;
        s->n_histogram = MAX(s->n_histogram, at + 1);
        s->histogram[at] = row->histogram[i];
    }
    s->n_row = row->n;
    s->step = row->step;
    s->wall_s = row->wall_s;
}

void wandb_summary_reach(struct wandb_summary *s, int64_t n)
{
    s->n_row = MAX(s->n_row, n);
}

void wandb_summary_print(const struct wandb_summary *s, struct buf *out, double start_s, double now_s)
{
    buf_char(out, '{');
    for (int i = 0; i < s->n; i++) {
        json_text_print(out, s->row[i].name, strlen(s->row[i].name), JSON_TEXT_UTF8);
        buf_char(out, ':');
        json_number_print(out, s->row[i].value);
        buf_char(out, ',');
    }
    for (int i = 0; i < s->n_histogram; i++) {
        json_text_print(out, s->histogram[i].name, strlen(s->histogram[i].name), JSON_TEXT_UTF8);
        buf_char(out, ':');
        wandb_histogram_print(out, &s->histogram[i].h);
        buf_char(out, ',');
    }
    buf_fmt(out,
            "\"trainer/step\":%" PRId64 ",\"_step\":%" PRId64 ",\"_timestamp\":%.6f,\"_runtime\":%" PRId64
            ",\"_wandb\":{\"runtime\":%" PRId64 "}}",
            s->step, s->n_row, s->wall_s, (int64_t)(now_s - start_s), (int64_t)(now_s - start_s));
}

int wandb_summary_n(const struct wandb_summary *s)
{
    return s->n;
}

int wandb_summary_names(const struct wandb_summary *s)
{
    return s->n + s->n_histogram;
}

const char *wandb_summary_name(const struct wandb_summary *s, int i)
{
    return s->row[i].name;
}

double wandb_summary_value(const struct wandb_summary *s, int i)
{
    return s->row[i].value;
}

const struct journal_histogram *wandb_summary_histogram(const struct wandb_summary *s, int i)
{
    return i < s->n_histogram ? &s->histogram[i] : NULL;
}

void wandb_summary_last(const struct wandb_summary *s, int64_t *n, int64_t *step, double *wall_s)
{
    *n = s->n_row;
    *step = s->step;
    *wall_s = s->wall_s;
}

/* ---- config ---- */

static void config_setting(struct buf *out, const struct knob *k, const struct run_config *c)
{
    buf_fmt(out, "\"%s\":{\"value\":", k->name);
    knob_json(k, c, out);
    buf_str(out, "},");
}

bool wandb_config_refresh(struct wandb_setup *s, struct journal *j, bool *changed, struct error *err)
{
    struct buf before = BUF_INIT, after = BUF_INIT;
    struct run_config *now = malloc(sizeof *now);
    bool ok = now ? settings_now(now, &s->began, j, s->run_dir, err) : error_set(err, ERR_NO_MEMORY, "no memory for the settings");
    *changed = false;
    for (int i = 0; ok && i < n_knobs && !*changed; i++)
        *changed = strcmp(knob_text(&knobs[i], &s->config, &before), knob_text(&knobs[i], now, &after)) != 0;
    if (ok)
        s->config = *now;
    free(now);
    buf_release(&before);
    buf_release(&after);
    return ok;
}

bool wandb_config_print(struct buf *out, const struct wandb_setup *s, const struct wandb_summary *names, struct error *err)
{
    struct buf text = BUF_INIT;
    buf_char(out, '{');
    for (int i = 0; i < n_knobs; i++)
        config_setting(out, &knobs[i], &s->config);
    /* t marks a run as really started (the resume query asks for it); m: trainer/step is the x-axis of all charts */
    buf_str(out,
            "\"_wandb\":{\"value\":{\"t\":{\"5\":\"rollcall\",\"13\":\"linux-x86_64\"},\"m\":[{\"1\":\"trainer/step\",\"6\":[3],\"7\":[]}");
    for (int i = 0; i < names->n + names->n_histogram; i++) {
        const char *name = i < names->n ? names->row[i].name : names->histogram[i - names->n].name;
        buf_str(out, ",{\"1\":");
        json_text_print(out, name, strlen(name), JSON_TEXT_UTF8);
        buf_str(out, ",\"5\":1,\"6\":[1,3],\"7\":[]}");
    }
    buf_str(out, "]}}}");
    buf_release(&text);
    return !out->failed || error_set(err, ERR_NO_MEMORY, "no memory for the wandb config");
}

static bool first_event(void *arg, const struct journal_event *e)
{
    double *start_s = arg;
    *start_s = MIN(*start_s, e->wall_s);
    return false;
}

static bool first_step(void *arg, const struct journal_step *row)
{
    double *start_s = arg;
    *start_s = MIN(*start_s, row->wall_s);
    return false;
}

bool wandb_start_find(struct wandb_setup *s, struct journal *j, struct error *err)
{
    return journal_events_read(j, 0, NULL, first_event, &s->start_s, err) && journal_steps_read(j, 0, first_step, &s->start_s, err);
}
