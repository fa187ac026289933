#include "workers/export/status_page.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include "protocol/base/json_text.h"
#include "protocol/settings/metrics.h"

void status_page_init(struct status_page *p)
{
    *p = (struct status_page){
        .buffer_depth = NAN, .waiting = NAN, .env_count = NAN, .env_per_min = NAN, .env_age = NAN, .env_refused = NAN, .env_full = NAN
    };
}

static double value_of(const struct journal_step *row, enum metric_id id)
{
    for (int i = 0; i < row->n; i++)
        if (strcmp(row->metric[i].name, metrics[id].name) == 0)
            return row->metric[i].value;
    return NAN;
}

void status_page_see(struct status_page *p, const struct journal_step *row)
{
    double step_s = value_of(row, M_STEP_S);
    if (isnan(step_s))    // an evaluation
        return;
    int64_t at = p->n_step++ % STATUS_STEPS;
    p->step[at].wall_s = row->wall_s;
    p->step[at].step_s = step_s;
    p->step[at].generate_s = value_of(row, M_GENERATE_S);
    p->step[at].tokens = value_of(row, M_TOKENS_TOTAL);
    p->last_step = row->step;
    p->buffer_depth = value_of(row, M_BUFFER_DEPTH);
    p->waiting = value_of(row, M_ENV_WAITING);
    p->env_count = value_of(row, M_ENV_COUNT);
    p->env_per_min = value_of(row, M_ENV_PER_MIN);
    p->env_age = value_of(row, M_ENV_AGE);
    p->env_refused = value_of(row, M_ENV_REFUSED);
    p->env_full = value_of(row, M_ENV_FULL);
}

static void number(struct buf *out, const char *name, double v)
{
    buf_fmt(out, isfinite(v) ? "\"%s\":%.10g" : "\"%s\":null", name, v);
}

static void queue(struct buf *out, const char *name, double current, double most)
{
    buf_fmt(out, "\"%s\":{", name);
    number(out, "current", current);
    buf_char(out, ',');
    number(out, "maxsize", most);
    buf_char(out, '}');
}

/* Sums over the steps kept. */
struct window {
    double step_s, generate_s, tokens, since_s;
    int64_t n, n_generate;
};

static struct window window_of(const struct status_page *p)
{
    struct window w = { .n = MIN(p->n_step, (int64_t)STATUS_STEPS), .tokens = NAN, .since_s = NAN };
    for (int64_t i = 0; i < w.n; i++) {
        int64_t at = (p->n_step - 1 - i) % STATUS_STEPS;
        w.step_s += p->step[at].step_s;
        if (!isnan(p->step[at].generate_s)) {
            w.generate_s += p->step[at].generate_s;
            w.n_generate++;
        }
        w.tokens = p->step[(p->n_step - 1) % STATUS_STEPS].tokens - p->step[at].tokens;    // at is the oldest in the end
        w.since_s = p->step[at].wall_s;
    }
    return w;
}

void status_page_print(const struct status_page *p, const struct run_config *c, bool goes_on, double now_s, struct buf *out)
{
    char when[40];
    struct tm tm;
    time_t now = (time_t)now_s;
    struct window w = window_of(p);
    double engines = run_config_posted(c) ? 0 : (double)c->num_inferencer,
           lanes = (double)(c->inference_microbatch_size * c->num_generations);
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    buf_fmt(out, "{\"should_stop\":%s,\"last_updated\":\"%s\",\"queues\":{", goes_on ? "false" : "true", when);
    queue(out, "Inference Results Queue", p->buffer_depth,
          engines > 0 ? (double)(c->inference_batch_size * c->num_inferencer * (c->n_behind + 1)) : NAN);
    buf_char(out, ',');
    queue(out, "Prompt Queue", p->waiting, NAN);
    buf_char(out, ',');
    queue(out, "Evaluation Queue", NAN, NAN);
    buf_str(out, "},\"token_stats\":{\"total_prefill_tokens\":null,");
    number(out, "total_decode_tokens", p->n_step > 0 ? p->step[(p->n_step - 1) % STATUS_STEPS].tokens : 0);
    buf_str(out, ",\"prefill_tokens_per_sec\":null,");
    number(out, "decode_tokens_per_sec", w.n > 1 && now_s > w.since_s ? w.tokens / (now_s - w.since_s) : 0);
    buf_fmt(out, ",\"sample_count\":%" PRId64 "},\"timing_stats\":{", w.n);
    number(out, "avg_training_step_time", w.n > 0 ? w.step_s / (double)w.n : 0);
    buf_char(out, ',');
    number(out, "avg_batch_generation_time", w.n_generate > 0 ? w.generate_s / (double)w.n_generate : 0);
    buf_fmt(out, ",\"training_step_count\":%" PRId64 ",\"batch_generation_count\":%" PRId64 "},", w.n, w.n_generate);
    number(out, "concurrency_per_engine", engines > 0 ? lanes : NAN);
    buf_char(out, ',');
    number(out, "total_concurrency", engines > 0 ? lanes * engines : NAN);
    buf_char(out, ',');
    number(out, "batch_size", (double)(c->train_batch_size * c->num_trainers * c->num_generations));
    buf_fmt(out, ",\"run\":");
    json_text_print(out, c->name, strlen(c->name), JSON_TEXT_UTF8);
    buf_fmt(out, ",\"step\":%" PRId64, p->last_step);
    if (!isnan(p->env_count)) {
        const struct {
            const char *name;
            double v;
        } env[] = { { "count", p->env_count }, { "groups_per_min", p->env_per_min }, { "waiting", p->waiting },
                    { "age", p->env_age },     { "refused", p->env_refused },        { "full", p->env_full } };
        buf_str(out, ",\"environments\":{");
        for (size_t i = 0; i < ARRAY_SIZE(env); i++) {
            buf_str(out, i ? "," : "");
            number(out, env[i].name, env[i].v);
        }
        buf_char(out, '}');
    }
    buf_str(out, "}\n");
}
