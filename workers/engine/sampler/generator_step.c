/* generator_step.c - one round of the generator: decode and sample, and what follows for the samples */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "workers/engine/sampler/generator_parts.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/pass/pass.h"

/* ---- rows ---- */
/* Row i has moved here (now: i) or leaves (now: -1): update the flights. */
static void row_moved(struct generator *g, int64_t i, int32_t now)
{
    for (int f = 0; f < 2; f++)
        if (g->row[i].place[f] >= 0)
            g->flight[f].now[g->row[i].place[f]] = now;
}

/* Take row i out and free its pages; the last row moves to its place. */
void row_remove(struct generator *g, int64_t i)
{
    pagedkv_drop(&g->pages, row_table(g, i), g->row[i].n_page);
    state_drop(g, g->row[i].state);
    int64_t last = --g->n_run;
    row_moved(g, i, -1);
    if (i == last)
        return;
    struct row gone = g->row[i];
    g->row[i] = g->row[last];
    g->row[last] = gone;    // its buffers are kept
    row_moved(g, i, (int32_t)i);
    memcpy(row_table(g, i), row_table(g, last), (size_t)g->row[i].n_page * sizeof(int32_t));
    g->table_changed = true;
}

/* Has the newest token completed the stop string? Only text that ends in the newest token can: its bytes, and as many before them as the
 * string has but one. An earlier occurrence has ended the sample, or may not end it (min_new_tok). */
static bool stop_string_found(const struct generator *g, const struct row *r, const char *stop)
{
    size_t stop_len = strlen(stop), len;
    const uint8_t *newest = tokenizer_bytes(g->config.tokenizer, r->token[r->n_tok - 1], &len);
    if (!newest || !memchr(newest, stop[stop_len - 1], len))
        return false;
    char text[1024];    // the end of the text, newest token first, filled from the back
    size_t have = 0, most = MIN(stop_len - 1 + len, sizeof text);
    for (int64_t i = r->n_tok - 1; i >= 0 && have < most; i--) {
        size_t n;
        const uint8_t *bytes = tokenizer_bytes(g->config.tokenizer, r->token[i], &n);
        if (!bytes)
            continue;
        size_t take = MIN(n, most - have);
        memcpy(text + sizeof text - have - take, bytes + n - take, take);
        have += take;
    }
    return memmem(text + sizeof text - have, have, stop, stop_len) != NULL;
}

/* Append what was sampled for row i; true when that ends the sample; finish then says how. */
static bool row_token(struct generator *g, int64_t i, int32_t id, float logp, float entropy, int64_t version, const float *logits,
                      enum finish_reason *finish)
{
    struct row *r = &g->row[i];
    const struct sampling *s = &r->entry->spec.sampling;
    r->token[r->n_tok] = id;
    r->newer[r->n_tok] = (int32_t)(version - r->entry->version);
    r->entropy[r->n_tok] = entropy;
    r->logp[r->n_tok++] = logp;
    lengths_note(g, 1, false);
    drafts_learn_token(g, r);
    bool is_stop = s->stop_string[0] && r->n_tok > s->min_new_tok && stop_string_found(g, r, s->stop_string);
    for (int32_t k = 0; !s->ignore_eos && !is_stop && k < s->n_stop_token; k++)
        is_stop = id == s->stop_token[k];
    struct drawn drawn = { .prompt_row = r->entry->spec.prompt_row,
                           .sample = r->sample,
                           .id = id,
                           .logp = logp,
                           .entropy = entropy,
                           .version = version,
                           .is_last = is_stop || r->n_tok == s->max_new_tok,
                           .is_stop = is_stop,
                           .n_cached = r->entry->n_cached,
                           .logits = logits };
    if (g->config.watch && g->config.watch(g->config.watch_ctx, &drawn) && !drawn.is_last)
        is_stop = drawn.is_last = true;
    *finish = is_stop ? FINISH_STOP : FINISH_LENGTH;
    return drawn.is_last;
}

static bool row_end(struct generator *g, int64_t i, enum finish_reason finish, struct error *err)
{
    struct row *r = &g->row[i];
    struct entry *e = r->entry;
    struct ended *d = &e->ended[r->sample];
    if (!row_keep(r, d, err))
        return false;
    d->finish = finish;
    lengths_note(g, 0, true);
    row_remember(g, i);
    row_remove(g, i);
    return ++e->n_ended < e->spec.n_sample || entry_finish(g, e, err);
}

void sample_fill(struct generator *g, int64_t at, const struct row *r, int64_t ahead)
{
    const struct generator_item *spec = &r->entry->spec;
    int64_t n_before = r->n_tok + r->n_ahead + ahead;    // tokens of the sample before this one
    int32_t n_ban = n_before < spec->sampling.min_new_tok ? spec->sampling.n_stop_token : 0;
    g->sample[at] = (struct sample_row){
        .seed = spec->seed[r->sample],
        .item = spec->item,
        .sample = spec->first_sample + r->sample,
        .pos = (int32_t)(spec->n_prompt + n_before),
        .temperature = spec->sampling.temperature,
        .top_p = spec->sampling.top_p,
        .min_p = spec->sampling.min_p,
        .top_k = spec->sampling.top_k,
        .n_ban = n_ban,
    };
    if (n_ban > 0) {
        memcpy((int32_t *)g->ban.host + at * SAMPLE_BAN_MAX, spec->sampling.stop_token, (size_t)n_ban * sizeof(int32_t));
        g->any_ban = true;
    }
}

bool sample_run(struct generator *g, const float *logits, int64_t n, struct error *err)
{
    int32_t *id = g->result.dev;
    float *logp = (float *)id + g->max_row, *entropy = g->config.entropy ? logp + g->max_row : NULL;
    return OP(g->dev, err, sample_fwd, .id = id, .logp = logp, .entropy = entropy, .logits = logits, .row = mirror_dev(&g->step, g->sample),
              .ban = g->ban.dev, .n = n, .vocab = g->vocab, .n_live = model_n_live(g->config.model));
}

bool flight_start(struct generator *g, int64_t row0, int64_t n_place, int64_t version, struct error *err)
{
    int next = 1 - g->last_flight;
    struct flight *f = &g->flight[next];
    BUG_IF(f->n > 0, "a third flight of %" PRId64 " rows", f->n);
    if (!mirror_down(g->dev, &g->result, err) || !mark_set(g->dev, f->landed, err))
        return false;
    for (int64_t p = 0; p < n_place; p++) {
        struct row *r = &g->row[row0 + p];
        bool draws = r->n_tok + r->n_ahead < r->entry->spec.sampling.max_new_tok;
        f->now[p] = draws ? (int32_t)(row0 + p) : -1;
        r->place[next] = draws ? (int32_t)p : -1;
        r->n_ahead += draws;
    }
    f->n = n_place;
    f->version = version;
    f->result = g->result.host;
    mirror_flip(&g->result);
    g->last_flight = next;
    return true;
}

/* The logits at a place of the flight that has just landed, on the host. Nothing has been launched since (rows_decode). */
static bool logits_fetch(struct generator *g, int64_t place, const float **out, struct error *err)
{
    size_t n_bytes = (size_t)g->vocab * sizeof(float);
    const float *row = g->logits + place * g->vocab;
    *out = row;
    if (g->dev->host_memory)
        return true;
    *out = g->logits_host;
    return mem_copy(g->dev, g->logits_host, row, n_bytes, COPY_D2H, err) && device_sync(g->dev, err);
}

struct landed landed_of(const struct generator *g, const void *result, int64_t version)
{
    const int32_t *id = result;
    const float *logp = (const float *)id + g->max_row;
    return (struct landed){ .id = id, .logp = logp, .entropy = g->config.entropy ? logp + g->max_row : NULL, .version = version };
}

bool row_token_take(struct generator *g, int64_t i, int64_t place, const struct landed *l, bool *ended, struct error *err)
{
    enum finish_reason finish;
    const struct generator_item *spec = &g->row[i].entry->spec;
    float logp = l->logp[place];
    const float *logits = NULL;
    g->stats.n_decode_tok++;
    if (!isfinite(logp))
        return error_set(err, ERR_DATA,
                         "item %" PRId64 ": the log-prob of a sampled token is %g; the weights hold numbers that are not finite",
                         spec->item, (double)logp);
    if (spec->keep_logits && g->config.watch && !logits_fetch(g, place, &logits, err))
        return false;
    *ended = row_token(g, i, l->id[place], logp, l->entropy ? l->entropy[place] : 0, l->version, logits, &finish);
    return !*ended || row_end(g, i, finish, err);
}

/* Wait for a flight, append its tokens to their rows, and end the samples that are complete. */
static bool flight_collect(struct generator *g, int index, struct error *err)
{
    struct flight *f = &g->flight[index];
    int64_t n = f->n;
    if (n == 0)
        return true;
    f->n = 0;
    if (!mark_wait(g->dev, f->landed, err))
        return false;
    struct landed l = landed_of(g, f->result, f->version);
    for (int64_t p = n - 1; p >= 0; p--) {
        bool ended;
        int64_t i = f->now[p];
        if (i < 0)
            continue;
        g->row[i].place[index] = -1;
        g->row[i].n_ahead--;
        if (!row_token_take(g, i, p, &l, &ended, err))
            return false;
    }
    return true;
}

bool flights_collect(struct generator *g, struct error *err)
{
    return flight_collect(g, 1 - g->last_flight, err) && flight_collect(g, g->last_flight, err);
}

bool step_send(struct generator *g, struct error *err)
{
    if (!mirror_up(g->dev, &g->step, err))
        return false;
    mirror_flip(&g->step);
    generator_step_pieces(g);
    if (g->any_ban && !mirror_up(g->dev, &g->ban, err))
        return false;
    if (g->any_ban)
        mirror_flip(&g->ban);
    g->any_ban = false;
    if (!g->table_changed)
        return true;
    memcpy(g->table.host, g->page_of, (size_t)(g->n_run * g->max_page) * sizeof *g->page_of);
    if (!mirror_up(g->dev, &g->table, err))
        return false;
    mirror_flip(&g->table);
    g->table_changed = false;
    return true;
}

/* ---- a step ---- */
int64_t graph_rows(int64_t n)
{
    int64_t rows = 1;
    if (n > 8) {
        int64_t step = n <= 64 ? 8 : n <= 256 ? 32 : n <= 1024 ? 128 : 1024;
        return (n + step - 1) / step * step;
    }
    while (rows < n)
        rows *= 2;
    return rows;
}

bool step_launch(struct generator *g, const struct decode_batch *batch, struct error *err)
{
    struct decode_graph *d = NULL;
    bool may_record = g->dev->can_capture && !g->dev->trace;
    for (int i = 0; may_record && !d && i < g->n_graph; i++)
        if (g->graph[i].n_row == batch->n && g->graph[i].in_runs == batch->in_runs)
            d = &g->graph[i];
    g->launch_was_new = may_record && !(d && d->graph);
    if (d && d->graph)
        return graph_launch(g->dev, d->graph, err);
    if (!d && may_record && g->n_graph < DECODE_GRAPH_MAX)
        g->graph[g->n_graph++] = (struct decode_graph){ .n_row = batch->n, .in_runs = batch->in_runs };
    if (d && !graph_begin(g->dev, err))
        return false;
    bool ok = model_decode(g->run, batch, g->kv, g->logits, err) && sample_run(g, g->logits, batch->n, err);
    if (!d)
        return ok;
    struct error ignored;    // a failed recording is ended too; err says why
    d->graph = graph_end(g->dev, ok ? err : &ignored);
    return ok && d->graph && graph_launch(g->dev, d->graph, err);
}

void rows_blank(struct generator *g, int64_t n, int64_t n_row)
{
    for (int64_t i = n; i < n_row; i++) {
        g->token[i] = g->pos[i] = g->kv_len[i] = g->from[i] = 0;
        g->slot[i] = g->state[i] = -1;
        g->sample[i] = (struct sample_row){ 0 };
    }
}

void step_count(struct generator *g, int64_t n_tok, int64_t n_kv)
{
    g->stats.n_decode++;
    g->stats.n_kv_tok += n_kv;
    g->stats.n_run_tok += n_tok;
    g->stats.n_seen_tok += n_kv;
}

struct decode_batch step_batch(const struct generator *g, int64_t n_row, int64_t max_kv)
{
    return (struct decode_batch){
        .n = n_row,
        .token = mirror_dev(&g->step, g->token),
        .pos = mirror_dev(&g->step, g->pos),
        .slot = mirror_dev(&g->step, g->slot),
        .kv_len = mirror_dev(&g->step, g->kv_len),
        .page = g->table.dev,
        .state = g->states.n_page > 0 ? mirror_dev(&g->step, g->state) : NULL,
        .max_page = g->max_page,
        .max_kv = g->dev->can_capture ? 0 : max_kv,
    };
}

/* Row i's part of a decode step's inputs; false: it needs no further token, so it is not in the step. */
static bool row_fill(struct generator *g, int64_t i)
{
    const struct row *r = &g->row[i];
    int64_t page_tok = g->pages.page_tok;
    if (r->n_tok + r->n_ahead >= r->entry->spec.sampling.max_new_tok) {
        rows_blank(g, i, i + 1);
        return false;
    }
    int64_t pos = r->entry->spec.n_prompt + r->n_tok + r->n_ahead - 1;
    g->token[i] = r->token[r->n_tok - 1];
    g->from[i] = r->place[g->last_flight];
    g->pos[i] = (int32_t)pos;
    g->slot[i] = (int32_t)(row_table(g, i)[pos / page_tok] * page_tok + pos % page_tok);
    g->kv_len[i] = (int32_t)pos + 1;
    g->state[i] = r->state;
    sample_fill(g, i, r, 0);
    return true;
}

/* One more token for every row: launch the step, then examine the tokens of the previous step, or of this one when the host is
 * not behind. */
static bool rows_decode(struct generator *g, struct error *err)
{
    int32_t longest = 0;
    int64_t n_drawn = 0, n_ahead = 0, n_kv = 0;
    bool behind = g->behind;
    if (!rows_grow(g, err))
        return false;
    if (drafts_due(g)) {
        bool in_flight = g->flight[0].n + g->flight[1].n > 0;
        if (!flights_collect(g, err))
            return false;
        if (in_flight)    // the time of a step with guesses begins when the one before it has ended
            g->draft.last_ns = clock_ns();
        if (g->n_run == 0 || drafts_make(g))
            return g->n_run == 0 || drafts_decode(g, err);
    }
    for (int64_t i = 0; i < g->n_run; i++) {
        behind = behind && !g->row[i].entry->spec.keep_logits;    // the next step would write over the logits
        if (!row_fill(g, i))
            continue;
        n_drawn++;
        n_kv += g->kv_len[i];
        n_ahead += g->row[i].n_ahead;
        longest = MAX(longest, g->kv_len[i]);
    }
    if (n_drawn == 0)
        return flights_collect(g, err);
    step_count(g, n_drawn, n_kv);
    BUG_IF(n_ahead != 0 && n_ahead != n_drawn, "%" PRId64 " of %" PRId64 " rows are in flight", n_ahead, n_drawn);
    int64_t n_row = g->dev->can_capture ? MIN(graph_rows(g->n_run), g->config.max_seq) : g->n_run;
    rows_blank(g, g->n_run, n_row);
    if (!step_send(g, err))
        return false;
    struct decode_batch batch = step_batch(g, n_row, longest);
    // 4 bytes are 4 bytes: ids are picked as floats would be
    if (n_ahead > 0
        && !OP(g->dev, err, rows_gather, .y = mirror_dev(&g->step, g->token), .table = g->result.dev, .row = mirror_dev(&g->step, g->from),
               .n = n_row, .n_row = g->max_row, .d = 1, .dtype = DT_F32))
        return false;
    if (!step_launch(g, &batch, err) || !flight_start(g, 0, g->n_run, g->version, err)
        || !(behind ? flight_collect(g, 1 - g->last_flight, err) : flights_collect(g, err)))
        return false;
    drafts_time_note(g, n_row, (n_ahead > 0 || !behind) && !g->launch_was_new);
    return true;
}

static bool step_run(struct generator *g, struct error *err)
{
    if (!samples_start(g, err))
        return false;
    if (g->n_run == 0)
        return true;
    int64_t start = clock_ns();
    bool ok = rows_decode(g, err);
    g->stats.decode_s += (double)(clock_ns() - start) * 1e-9;
    return ok;
}

bool generator_step(struct generator *g, struct error *err)
{
    if (generator_idle(g))
        return true;
    g->stats.n_step++;
    if (step_run(g, err))
        return true;
    generator_clear(g);
    return false;
}
