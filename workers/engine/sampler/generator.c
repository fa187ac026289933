/* generator.c - the scheduler around the model's prefill and decode
 *
 * Invariants:
 *  1. Items start in the order of submission. At most one started item (`partial`) has samples that are not admitted
 *     yet, and no later item starts before they are; its first row of logits waits in `saved`.
 *  2. Rows 0 .. n_run - 1 are the admitted, unfinished samples, packed; row i's pages stand in table row i. A finished
 *     row's place is taken by the last one.
 *  3. An entry holds its prompt's pages from prefill until its last sample is admitted, each row holds all pages of its
 *     table. The prompt's full pages are shared and never written again; the unfinished last one is copied for every
 *     sample but the last, which takes it over.
 *  4. A row has pages for prompt + max_new_tok - 1 tokens (the last token's keys are never needed), so a step cannot
 *     run out.
 *  5. A flight is a decode step that was launched and whose tokens were not looked at. Its rows may move and go meanwhile:
 *     flight.now says where the row at each place of it stands, row.place the way back. With the host one step behind
 *     there is one flight between rounds, and two within one; else none and one. Rows are only admitted when there is none.
 *     A page that is free again may still be written by a flight, but only before anything that is asked for later.
 * An entry's life: waiting (generator_submit), started (prompts_start), perhaps partial, running, finished
 * (entry_finish). */
#include "workers/engine/sampler/generator.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/mirror.h"
#include "workers/engine/sampler/pagedkv.h"
#include "workers/engine/text/tokenizer.h"

#define PREFILL_SEQ_MAX 64    // prompts of one prefill; bounds the rows of logits it needs

/* A sample that has ended, waiting for the rest of its group. */
struct ended {
    int64_t n_tok;
    int32_t *token;    // (n_tok) owned, with the next two behind it in the same block
    float *logp;       // (n_tok)
    int32_t *newer;    // (n_tok)
    enum finish_reason finish;
};
/* One item that is inside; one block of memory with its prompt, seeds and ended samples. */
struct entry {
    struct entry *next;
    struct generator_item spec;    // prompt and seed point into the block
    int64_t version;               // that its prompt was run with
    int64_t start_ns;              // when its prompt was run
    int32_t n_admitted, n_ended;
    struct ended *ended;       // (n_sample)
    int32_t *page;             // (n_page) of the prompt while held is true
    int64_t n_page, n_full;    // pages of the prompt; the full ones of them
    bool held;
};
struct row {
    struct entry *entry;
    int32_t sample;      // index in its item
    int64_t n_tok;       // sampled so far
    int32_t *token;      // (max_seq_tok) owned by the generator
    float *logp;         // (max_seq_tok)
    int32_t *newer;      // (max_seq_tok) as in struct group
    int64_t n_page;      // in its row of the table
    int32_t n_ahead;     // tokens drawn for it in flights: 0 or 1
    int32_t place[2];    // its place in each flight; -1: none
};
struct flight {
    int64_t n;             // rows it was launched with; 0: no flight
    int64_t version;       // of the weights that draw
    int32_t *now;          // (max_seq) which row stands at each place; -1: gone
    const void *result;    // where its tokens arrive on the host
    struct mark *landed;
};
struct entry_list {
    struct entry *first, *last;
    int64_t n;
};
/* A decode step of a fixed number of rows, recorded where the device can: unused rows are marked as no sequence. The first step
 * of a size runs as it is, so that whatever the operations set up once is there; the second is recorded. */
#define DECODE_GRAPH_MAX 48
struct decode_graph {
    int64_t n_row;
    struct graph *graph;    // NULL: not recorded yet
};
struct generator {
    struct generator_config config;
    struct device *dev;    // the model's
    struct model_run *run;
    struct kv_pool *kv;
    struct pagedkv pages;
    int64_t vocab, max_page;    // max_page: pages of the longest sequence
    struct entry_list waiting;
    struct entry_list running;    // started, in order of start
    struct entry *partial;        // the started entry with samples to admit, or NULL
    struct group **finished;      // ring of finished_cap
    int64_t finished_first, finished_n, finished_cap;
    struct row *row;    // (max_seq)
    int64_t n_run;
    bool behind;    // the host looks at a step's tokens after it has launched the next
    struct flight flight[2];
    int last_flight;                         // the one launched last
    struct mirror step;                      // what a step tells the device; the pieces below lie in it, at these places of its host side
    int32_t *token, *pos, *slot, *kv_len;    // (max_seq) as in struct decode_batch
    int32_t *from;                           // (max_seq) which row of prefill_logits a new sample starts from, or which place of the
                                             // last flight a row has its token from
    int32_t *copy_dst, *copy_src;            // (max_seq) pages to copy before the step
    struct sample_row *sample;               // (max_seq)
    int64_t n_copy;
    int32_t *page_of;          // (max_seq, max_page) each row's pages in order
    struct mirror table;       // the same, as sent
    bool table_changed;        // since it was sent
    struct mirror result;      // (2, max_seq): sampled ids, then their log-probs
    int32_t *prefill_token;    // (max_tok) host: the packed prompts of one prefill
    int32_t *prefill_cu;       // (PREFILL_SEQ_MAX + 1) host
    int32_t *prefill_table;    // (PREFILL_SEQ_MAX, max_page) host
    struct entry *batch[PREFILL_SEQ_MAX];
    int64_t max_tok;          // tokens of one prefill
    float *logits;            // (max_seq, vocab) device
    float *prefill_logits;    // (PREFILL_SEQ_MAX, vocab) device
    float *saved;             // (vocab) device: first logits of partial
    float *logits_host;       // (vocab) where watch looks at a device's logits; NULL: nobody watches, or the device's are the host's
    struct generator_stats stats;
    int64_t version;
    struct decode_graph graph[DECODE_GRAPH_MAX];
    int n_graph;
};

/* ---- lists of entries */
static void list_push(struct entry_list *l, struct entry *e)
{
    e->next = NULL;
    if (l->last)
        l->last->next = e;
    else
        l->first = e;
    l->last = e;
    l->n++;
}

static void list_remove(struct entry_list *l, struct entry *e)
{
    struct entry *before = NULL;
    for (struct entry *x = l->first; x != e; x = x->next)
        before = x;
    if (before)
        before->next = e->next;
    else
        l->first = e->next;
    if (l->last == e)
        l->last = before;
    l->n--;
}

static void entry_free(struct entry *e)
{
    for (int32_t i = 0; i < e->spec.n_sample; i++)
        free(e->ended[i].token);
    free(e);
}

/* ---- making and ending */
static int32_t *row_table(const struct generator *g, int64_t i)
{
    return g->page_of + i * g->max_page;
}

/* Point the pieces of a step's message into the host's side of now; one block, so that one copy carries it. Returns its
 * size. */
static size_t step_pieces(struct generator *g)
{
    int32_t **piece[] = { &g->token, &g->pos, &g->slot, &g->kv_len, &g->from, &g->copy_dst, &g->copy_src };
    size_t n = ((size_t)g->config.max_seq + 15) / 16 * 16;    // pieces start at cache lines
    size_t ints = n * sizeof(int32_t);
    char *at = g->step.host;
    for (size_t i = 0; at && i < ARRAY_SIZE(piece); i++)
        *piece[i] = (int32_t *)(at + i * ints);
    if (at)
        g->sample = (struct sample_row *)(at + ARRAY_SIZE(piece) * ints);
    return ARRAY_SIZE(piece) * ints + n * sizeof(struct sample_row);
}

static bool step_init(struct generator *g, struct error *err)
{
    size_t n = (size_t)g->config.max_seq;
    bool two = g->behind;
    if (!mirror_init(g->dev, &g->step, step_pieces(g), two, "a decode step's inputs", err)
        || !mirror_init(g->dev, &g->table, n * (size_t)g->max_page * sizeof(int32_t), two, "page tables", err)
        || !mirror_init(g->dev, &g->result, 2 * n * sizeof(int32_t), two, "sampled tokens", err))
        return false;
    step_pieces(g);
    for (int f = 0; f < 2; f++)
        if (!(g->flight[f].landed = mark_new(g->dev, err)))
            return false;
    return true;
}

static bool rows_new(struct generator *g, struct error *err)
{
    size_t n = (size_t)g->config.max_seq, len = (size_t)g->config.max_seq_tok;
    g->row = calloc(n, sizeof *g->row);
    g->prefill_token = calloc((size_t)g->max_tok, sizeof *g->prefill_token);
    g->prefill_cu = calloc(PREFILL_SEQ_MAX + 1, sizeof *g->prefill_cu);
    g->prefill_table = calloc((size_t)PREFILL_SEQ_MAX * (size_t)g->max_page, sizeof *g->prefill_table);
    g->finished_cap = g->config.max_item;
    g->finished = calloc((size_t)g->finished_cap, sizeof(struct group *));
    g->page_of = calloc(n * (size_t)g->max_page, sizeof *g->page_of);
    g->flight[0].now = calloc(n, sizeof *g->flight[0].now);
    g->flight[1].now = calloc(n, sizeof *g->flight[1].now);
    bool ok = g->row && g->prefill_token && g->prefill_cu && g->prefill_table && g->finished && g->page_of && g->flight[0].now
              && g->flight[1].now;
    for (size_t i = 0; ok && i < n; i++) {
        g->row[i].token = malloc(len * sizeof(int32_t));
        g->row[i].logp = malloc(len * sizeof(float));
        g->row[i].newer = malloc(len * sizeof(int32_t));
        ok = g->row[i].token && g->row[i].logp && g->row[i].newer;
        g->row[i].place[0] = g->row[i].place[1] = -1;
    }
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for %zu samples of %zu tokens", n, len);
}

/* Samples decoded at once. On a CPU the keys and values of more than about 32 a thread spill its caches (0.6 M
 * parameters on an EPYC core: 47k tokens/s at 32, 31k at 256), so the others wait; the bits are the same. */
static int64_t max_seq_of(const struct device *dev, int64_t wanted)
{
    return dev->kind == DEVICE_CPU ? MIN(wanted, 32 * (int64_t)dev->n_thread) : wanted;
}

/* Prompt tokens of one prefill. A CPU's caches hold the activations of a few hundred (0.6 M parameters on an EPYC
 * core with 1 MB of L2: 80k tokens/s at 128, 55k at 2048); a GPU needs thousands to be busy. */
static int64_t prefill_tok_default(const struct device *dev)
{
    return dev->kind == DEVICE_CUDA ? 8192 : 256;
}

/* Pages of the pool: what was asked for, or enough for max_seq of the longest samples in at most half the free
 * memory. */
static bool pool_size(const struct generator *g, int64_t *n_page, struct error *err)
{
    size_t page_bytes = kv_pool_page_bytes(g->config.model), n_free, n_total;
    if (g->config.kv_bytes) {
        *n_page = (int64_t)(g->config.kv_bytes / page_bytes);
        return true;
    }
    if (!mem_info(g->dev, &n_free, &n_total, err))
        return false;
    size_t wanted = generator_kv_bytes(g->config.model, g->config.max_seq, g->config.max_seq_tok);
    *n_page = (int64_t)(MIN(wanted, n_free / 2) / page_bytes);
    return true;
}

/* What the model's scratch must do for this generator, whose max_seq is max_seq_of's. */
static struct run_limits run_limits_of(const struct generator_config *c)
{
    const struct device *dev = model_device(c->model);
    int64_t prefill = c->prefill_tok > 0 ? c->prefill_tok : prefill_tok_default(dev), n_seq = max_seq_of(dev, c->max_seq);
    return (struct run_limits){ .max_tok = MAX(MAX(prefill, c->max_seq_tok), n_seq),
                                .max_seq = MAX(n_seq, PREFILL_SEQ_MAX),
                                .max_seq_tok = c->max_seq_tok };
}

size_t generator_bytes(const struct generator_config *config)
{
    struct run_limits limits = run_limits_of(config);
    int64_t n_seq = max_seq_of(model_device(config->model), config->max_seq);
    size_t line = (size_t)model_config(config->model)->vocab * sizeof(float);
    return model_run_bytes(config->model, &limits) + (size_t)(n_seq + PREFILL_SEQ_MAX + 1) * line;
}

size_t generator_kv_bytes(const struct model *m, int64_t max_seq, int64_t max_seq_tok)
{
    const struct device *dev = model_device(m);
    int64_t max_page = (max_seq_tok + dev->kv_page_tok - 1) / dev->kv_page_tok;
    // one page more for the unfinished one that a prompt keeps for its next sample
    return (size_t)(max_seq_of(dev, max_seq) * max_page + 1) * kv_pool_page_bytes(m);
}

struct generator *generator_new(const struct generator_config *config, struct error *err)
{
    bool ok = false;
    struct generator *g = calloc(1, sizeof *g);
    if (!g) {
        error_set(err, ERR_NO_MEMORY, "no memory for a generator");
        return NULL;
    }
    g->config = *config;
    g->version = config->version;
    g->dev = model_device(config->model);
    const struct model_config *mc = model_config(config->model);
    if (config->max_seq < 1 || config->max_item < 1 || config->max_seq_tok < 2 || config->max_seq_tok > INT32_MAX) {
        error_set(err, ERR_SHAPE,
                  "a generator for %" PRId64 " samples at once, %" PRId64 " items and %" PRId64 " tokens a sequence is not possible",
                  config->max_seq, config->max_item, config->max_seq_tok);
        goto out;
    }
    g->config.max_seq = max_seq_of(g->dev, config->max_seq);
    g->behind = config->behind == BEHIND_ALWAYS || (config->behind == BEHIND_AUTO && !g->dev->host_memory);
    if (config->max_seq_tok > mc->max_pos) {
        error_set(err, ERR_SHAPE, "sequences of %" PRId64 " tokens are longer than the model's max_position_embeddings of %" PRId64,
                  config->max_seq_tok, mc->max_pos);
        goto out;
    }
    g->vocab = mc->vocab;
    if (config->prefill_tok <= 0)
        g->config.prefill_tok = prefill_tok_default(g->dev);
    g->max_tok = MAX(g->config.prefill_tok, config->max_seq_tok);
    int64_t page_tok = g->dev->kv_page_tok;
    g->max_page = (config->max_seq_tok + page_tok - 1) / page_tok;
    int64_t n_page = 0;
    TRY(pool_size(g, &n_page, err));
    if (n_page < 1) {
        error_set(err, ERR_SHAPE, "a key-value pool of %zu bytes holds no page of %zu bytes", config->kv_bytes,
                  kv_pool_page_bytes(config->model));
        goto out;
    }
    TRY(pagedkv_init(&g->pages, n_page, page_tok, err));
    TRY((g->kv = kv_pool_new(config->model, n_page, config->kv_mem, err)) != NULL);
    struct run_limits limits = run_limits_of(config);
    TRY((g->run = model_run_new(config->model, &limits, err)) != NULL);
    TRY(rows_new(g, err));
    size_t n = (size_t)g->config.max_seq, line = (size_t)g->vocab * sizeof(float);
    TRY((g->logits = mem_new(g->dev, n * line, "logits of a decode step", err)) != NULL);
    TRY((g->prefill_logits = mem_new(g->dev, PREFILL_SEQ_MAX * line, "logits of a prefill", err)) != NULL);
    TRY((g->saved = mem_new(g->dev, line, "first logits of a group", err)) != NULL);
    if (config->watch && !g->dev->host_memory)
        TRY((g->logits_host = host_new(g->dev, line, "logits to look at", err)) != NULL);
    TRY(step_init(g, err));
    ok = true;
out:
    if (!ok) {
        generator_free(g);
        g = NULL;
    }
    return g;
}

void generator_free(struct generator *g)
{
    if (!g)
        return;
    generator_clear(g);
    for (int i = 0; i < g->n_graph; i++)
        graph_free(g->dev, g->graph[i].graph);
    for (int f = 0; f < 2; f++) {
        mark_free(g->dev, g->flight[f].landed);
        free(g->flight[f].now);
    }
    mirror_release(g->dev, &g->step);
    mirror_release(g->dev, &g->table);
    mirror_release(g->dev, &g->result);
    float *held[] = { g->logits, g->prefill_logits, g->saved };
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        if (held[i])
            mem_free(g->dev, held[i]);
    if (g->logits_host)
        host_free(g->dev, g->logits_host);
    for (int64_t i = 0; g->row && i < g->config.max_seq; i++) {
        free(g->row[i].token);
        free(g->row[i].logp);
        free(g->row[i].newer);
    }
    free(g->row);
    free(g->prefill_token);
    free(g->prefill_cu);
    free(g->prefill_table);
    free(g->finished);
    free(g->page_of);
    model_run_free(g->run);
    kv_pool_free(g->kv);
    pagedkv_release(&g->pages);
    free(g);
}

/* ---- items in and out */
/* Pages that a sample of e needs for itself when the prompt's full pages are shared. */
static int64_t sample_pages(const struct generator *g, const struct generator_item *spec)
{
    return pagedkv_pages(&g->pages, spec->n_prompt + spec->sampling.max_new_tok - 1) - spec->n_prompt / g->pages.page_tok;
}

/* Pages to start an item with one sample: the prompt's, and the sample's (a lone sample takes the prompt's last page
 * over). */
static int64_t start_pages(const struct generator *g, const struct generator_item *spec)
{
    bool has_tail = spec->n_prompt % g->pages.page_tok != 0;
    return pagedkv_pages(&g->pages, spec->n_prompt) + sample_pages(g, spec) - (has_tail && spec->n_sample == 1);
}

static bool item_check(const struct generator *g, const struct generator_item *item, struct error *err)
{
    if (!sampling_check(&item->sampling, err))
        return false;
    if (item->n_prompt < 1 || item->n_sample < 1)
        return error_set(err, ERR_SHAPE, "item %" PRId64 " has %" PRId64 " prompt tokens and %d samples; both must be at least 1",
                         item->item, item->n_prompt, item->n_sample);
    int64_t n_new = item->sampling.max_new_tok;
    if (item->n_prompt >= g->config.max_seq_tok || n_new > g->config.max_seq_tok - item->n_prompt)
        return error_set(err, ERR_SHAPE,
                         "item %" PRId64 ": %" PRId64 " prompt tokens and %" PRId64 " new ones are more than the %" PRId64 " of a sequence",
                         item->item, item->n_prompt, n_new, g->config.max_seq_tok);
    if (start_pages(g, item) > g->pages.n_page)
        return error_set(err, ERR_SHAPE, "item %" PRId64 " needs %" PRId64 " pages of keys and values, the pool has %" PRId64, item->item,
                         start_pages(g, item), g->pages.n_page);
    for (int64_t i = 0; i < item->n_prompt; i++)
        if (item->prompt[i] < 0 || item->prompt[i] >= g->vocab)
            return error_set(err, ERR_DATA, "item %" PRId64 ": prompt token %" PRId64 " is %d; the model knows 0 to %" PRId64, item->item,
                             i, item->prompt[i], g->vocab - 1);
    if (item->sampling.stop_string[0] && !g->config.tokenizer)
        return error_set(err, ERR_USAGE, "item %" PRId64 " has a stop string, but there is no tokenizer to find it with", item->item);
    return true;
}

bool generator_submit(struct generator *g, const struct generator_item *item, struct error *err)
{
    if (!item_check(g, item, err))
        return false;
    if (g->waiting.n + g->running.n + g->finished_n >= g->config.max_item)
        return error_set(err, ERR_FULL, "the generator holds %" PRId64 " items, its most", g->config.max_item);
    size_t n_sample = (size_t)item->n_sample, n_prompt = (size_t)item->n_prompt;
    size_t n_page = (size_t)pagedkv_pages(&g->pages, item->n_prompt);
    struct entry *e = calloc(1, sizeof *e + n_sample * (sizeof(struct ended) + sizeof(uint64_t)) + (n_prompt + n_page) * sizeof(int32_t));
    if (!e)
        return error_set(err, ERR_NO_MEMORY, "no memory for item %" PRId64, item->item);
    e->spec = *item;
    e->ended = (struct ended *)(e + 1);
    uint64_t *seed = (uint64_t *)(e->ended + n_sample);
    int32_t *prompt = (int32_t *)(seed + n_sample);
    e->page = prompt + n_prompt;
    memcpy(seed, item->seed, n_sample * sizeof *seed);
    memcpy(prompt, item->prompt, n_prompt * sizeof *prompt);
    e->spec.seed = seed;
    e->spec.prompt = prompt;
    e->version = g->version;
    list_push(&g->waiting, e);
    return true;
}

/* Give the prompt's pages back when no further sample starts from them. */
static void entry_drop_pages(struct generator *g, struct entry *e)
{
    if (e->held)
        pagedkv_drop(&g->pages, e->page, e->n_page);
    e->held = false;
}

static bool entry_finish(struct generator *g, struct entry *e, struct error *err)
{
    int64_t n_tok = 0;
    for (int32_t i = 0; i < e->spec.n_sample; i++)
        n_tok += e->ended[i].n_tok;
    struct group *out = group_new(e->spec.n_prompt, e->spec.n_sample, n_tok, err);
    if (!out)
        return false;
    const struct generator_item *spec = &e->spec;
    out->item = spec->item;
    out->prompt_row = spec->prompt_row;
    out->rollout_step = spec->rollout_step;
    out->weight_version = e->version;
    out->temperature = spec->sampling.temperature;
    out->top_p = spec->sampling.top_p;
    out->top_k = spec->sampling.top_k;
    out->max_new_tok = spec->sampling.max_new_tok;
    out->gen_s = (double)(clock_ns() - e->start_ns) * 1e-9;
    memcpy(out->prompt, spec->prompt, (size_t)spec->n_prompt * sizeof *out->prompt);
    int64_t at = 0;
    for (int32_t i = 0; i < spec->n_sample; i++) {
        const struct ended *d = &e->ended[i];
        out->sample[i] = (struct sample){ .first_tok = at, .n_tok = d->n_tok, .seed = spec->seed[i], .finish = d->finish };
        for (size_t k = 0; k < GROUP_PARTS_MAX; k++)
            out->sample[i].part[k] = NAN;
        memcpy(out->token + at, d->token, (size_t)d->n_tok * sizeof *out->token);
        memcpy(out->logp + at, d->logp, (size_t)d->n_tok * sizeof *out->logp);
        memcpy(out->newer + at, d->newer, (size_t)d->n_tok * sizeof *out->newer);
        at += d->n_tok;
    }
    // max_item bounds waiting + running + finished, so there is room
    g->finished[(g->finished_first + g->finished_n++) % g->finished_cap] = out;
    g->stats.n_group++;
    list_remove(&g->running, e);
    entry_free(e);
    return true;
}

struct group *generator_poll(struct generator *g)
{
    if (g->finished_n == 0)
        return NULL;
    struct group *out = g->finished[g->finished_first];
    g->finished_first = (g->finished_first + 1) % g->finished_cap;
    g->finished_n--;
    return out;
}

/* ---- rows */
/* Admit e's next sample as the last row, with its pages; false when there is no room. A page that it must copy from
 * the prompt is noted for copies_run. */
static bool row_admit(struct generator *g, struct entry *e)
{
    const struct generator_item *spec = &e->spec;
    int64_t n_own = sample_pages(g, spec);
    bool has_tail = e->n_page > e->n_full, last = e->n_admitted == spec->n_sample - 1;
    if (g->n_run == g->config.max_seq)
        return false;
    int32_t *table = row_table(g, g->n_run);
    int64_t n_taken_over = has_tail && last ? 1 : 0;
    if (!pagedkv_take(&g->pages, table + e->n_full + n_taken_over, n_own - n_taken_over))
        return false;
    memcpy(table, e->page, (size_t)e->n_full * sizeof *table);
    pagedkv_share(&g->pages, e->page, e->n_full);
    if (n_taken_over) {
        table[e->n_full] = e->page[e->n_full];
        pagedkv_share(&g->pages, &e->page[e->n_full], 1);
    } else if (has_tail) {
        g->copy_dst[g->n_copy] = table[e->n_full];
        g->copy_src[g->n_copy++] = e->page[e->n_full];
    }
    struct row *r = &g->row[g->n_run++];
    r->entry = e;
    r->sample = e->n_admitted++;
    r->n_tok = 0;
    r->n_ahead = 0;
    r->place[0] = r->place[1] = -1;
    r->n_page = e->n_full + n_own;
    g->table_changed = true;
    if (last)
        entry_drop_pages(g, e);
    return true;
}

/* Row i has moved there from elsewhere (now: i), or goes (now: -1): tell the flights. */
static void row_moved(struct generator *g, int64_t i, int32_t now)
{
    for (int f = 0; f < 2; f++)
        if (g->row[i].place[f] >= 0)
            g->flight[f].now[g->row[i].place[f]] = now;
}

/* Take row i out, its pages free; the last row moves to its place. */
static void row_remove(struct generator *g, int64_t i)
{
    pagedkv_drop(&g->pages, row_table(g, i), g->row[i].n_page);
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

/* Has the newest token completed the stop string? Only text with the newest token in it can, so as many tokens as
 * the string has bytes are looked at; an earlier occurrence would have ended the sample. */
static bool stop_string_found(const struct generator *g, const struct row *r, const char *stop)
{
    size_t stop_len = strlen(stop), len;
    const uint8_t *newest = tokenizer_bytes(g->config.tokenizer, r->token[r->n_tok - 1], &len);
    if (!newest || !memchr(newest, stop[stop_len - 1], len))
        return false;
    char text[1024];    // the end of the text, newest token first, filled from the back
    size_t have = 0;
    for (int64_t i = r->n_tok - 1; i >= 0 && have < stop_len - 1 + len && have < sizeof text; i--) {
        size_t n;
        const uint8_t *bytes = tokenizer_bytes(g->config.tokenizer, r->token[i], &n);
        if (!bytes)
            continue;
        size_t take = MIN(n, sizeof text - have);
        memcpy(text + sizeof text - have - take, bytes + n - take, take);
        have += take;
    }
    return memmem(text + sizeof text - have, have, stop, stop_len) != NULL;
}

/* Append what was sampled for row i; true when that ends the sample, then finish says how. */
static bool row_token(struct generator *g, int64_t i, int32_t id, float logp, int64_t version, const float *logits,
                      enum finish_reason *finish)
{
    struct row *r = &g->row[i];
    const struct sampling *s = &r->entry->spec.sampling;
    r->token[r->n_tok] = id;
    r->newer[r->n_tok] = (int32_t)(version - r->entry->version);
    r->logp[r->n_tok++] = logp;
    bool is_stop = s->stop_string[0] && stop_string_found(g, r, s->stop_string);
    for (int32_t k = 0; !s->ignore_eos && !is_stop && k < s->n_stop_token; k++)
        is_stop = id == s->stop_token[k];
    struct drawn drawn = { .prompt_row = r->entry->spec.prompt_row,
                           .sample = r->sample,
                           .id = id,
                           .logp = logp,
                           .version = version,
                           .is_last = is_stop || r->n_tok == s->max_new_tok,
                           .is_stop = is_stop,
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
    size_t n = (size_t)r->n_tok;
    d->token = malloc(n * (2 * sizeof(int32_t) + sizeof(float)));
    if (!d->token)
        return error_set(err, ERR_NO_MEMORY, "no memory for a sample of %zu tokens", n);
    d->logp = (float *)(d->token + n);
    d->newer = (int32_t *)(d->logp + n);
    d->n_tok = r->n_tok;
    d->finish = finish;
    memcpy(d->token, r->token, n * sizeof(int32_t));
    memcpy(d->logp, r->logp, n * sizeof(float));
    memcpy(d->newer, r->newer, n * sizeof(int32_t));
    row_remove(g, i);
    return ++e->n_ended < e->spec.n_sample || entry_finish(g, e, err);
}

/* How the next token of a row is sampled. */
static struct sample_row sample_of(const struct row *r)
{
    const struct generator_item *spec = &r->entry->spec;
    return (struct sample_row){
        .seed = spec->seed[r->sample],
        .item = spec->item,
        .sample = spec->first_sample + r->sample,
        .pos = (int32_t)(spec->n_prompt + r->n_tok + r->n_ahead),
        .temperature = spec->sampling.temperature,
        .top_p = spec->sampling.top_p,
        .min_p = spec->sampling.min_p,
        .top_k = spec->sampling.top_k,
    };
}

/* Draw n tokens from logits (n, vocab) with the first n rows of sample. */
static bool sample_run(struct generator *g, const float *logits, int64_t n, struct error *err)
{
    int32_t *id = g->result.dev;
    return OP(g->dev, err, sample_fwd, .id = id, .logp = (float *)id + g->config.max_seq, .logits = logits,
              .row = mirror_dev(&g->step, g->sample), .n = n, .vocab = g->vocab, .n_live = model_n_live(g->config.model));
}

/* What was just launched draws a token for rows row0 .. n_run - 1, and for nobody where there is none. */
static bool flight_start(struct generator *g, int64_t row0, int64_t n_place, int64_t version, struct error *err)
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
    const int32_t *id = f->result;
    const float *logp = (const float *)id + g->config.max_seq;
    for (int64_t p = n - 1; p >= 0; p--) {
        enum finish_reason finish;
        int64_t i = f->now[p];
        if (i < 0)
            continue;
        g->row[i].place[index] = -1;
        g->row[i].n_ahead--;
        g->stats.n_decode_tok++;
        if (!isfinite(logp[p]))
            return error_set(err, ERR_DATA,
                             "item %" PRId64 ": the log-prob of a sampled token is %g; the weights hold numbers that "
                             "are not finite",
                             g->row[i].entry->spec.item, (double)logp[p]);
        const float *logits = NULL;
        if (g->row[i].entry->spec.keep_logits && !logits_fetch(g, p, &logits, err))
            return false;
        if (row_token(g, i, id[p], logp[p], f->version, logits, &finish) && !row_end(g, i, finish, err))
            return false;
    }
    return true;
}

/* Both, the older one first. */
static bool flights_collect(struct generator *g, struct error *err)
{
    return flight_collect(g, 1 - g->last_flight, err) && flight_collect(g, g->last_flight, err);
}

/* Send the step's message, with the page tables if they have changed. */
static bool step_send(struct generator *g, struct error *err)
{
    if (!mirror_up(g->dev, &g->step, err))
        return false;
    mirror_flip(&g->step);
    step_pieces(g);
    if (!g->table_changed)
        return true;
    memcpy(g->table.host, g->page_of, (size_t)(g->n_run * g->max_page) * sizeof *g->page_of);
    if (!mirror_up(g->dev, &g->table, err))
        return false;
    mirror_flip(&g->table);
    g->table_changed = false;
    return true;
}

/* Draw the first tokens of the new rows row0 .. n_run - 1; from[] says which row of table, of weights of this version, each
 * starts from. Copies the prompt pages they need. */
static bool rows_start(struct generator *g, int64_t row0, const float *table, int64_t n_table, int64_t version, struct error *err)
{
    int64_t n = g->n_run - row0, n_copy = g->n_copy;
    g->n_copy = 0;
    if (n == 0)
        return true;
    for (int64_t i = 0; i < n; i++)
        g->sample[i] = sample_of(&g->row[row0 + i]);
    if (!step_send(g, err))
        return false;
    if (n_copy && !kv_pool_copy(g->kv, mirror_dev(&g->step, g->copy_dst), mirror_dev(&g->step, g->copy_src), n_copy, err))
        return false;
    return OP(g->dev, err, rows_gather, .y = g->logits, .table = table, .row = mirror_dev(&g->step, g->from), .n = n, .n_row = n_table,
              .d = g->vocab, .dtype = DT_F32)
           && sample_run(g, g->logits, n, err) && flight_start(g, row0, n, version, err) && flights_collect(g, err);
}

/* ---- a step */
/* Admit samples of the started item that had no room before. */
static bool partial_admit(struct generator *g, struct error *err)
{
    int64_t row0 = g->n_run;
    struct entry *e = g->partial;
    while (e->n_admitted < e->spec.n_sample && row_admit(g, e))
        g->from[g->n_run - 1 - row0] = 0;
    if (e->n_admitted == e->spec.n_sample)
        g->partial = NULL;
    return rows_start(g, row0, g->saved, 1, e->version, err);
}

/* Take as many waiting items as have room, with the pages of their prompts; returns how many are in batch. */
static int64_t batch_collect(struct generator *g, int64_t *n_tok)
{
    int64_t n = 0, n_row = g->n_run;
    int64_t promised = 0;    // pages that the samples of the items before will take
    *n_tok = 0;
    for (struct entry *e; (e = g->waiting.first) && n < PREFILL_SEQ_MAX && n_row < g->config.max_seq; n++) {
        if (n > 0 && *n_tok + e->spec.n_prompt > g->config.prefill_tok)
            break;
        if (start_pages(g, &e->spec) + promised > g->pages.n_free)
            break;
        e->n_page = pagedkv_pages(&g->pages, e->spec.n_prompt);
        e->n_full = e->spec.n_prompt / g->pages.page_tok;
        e->held = pagedkv_take(&g->pages, e->page, e->n_page);
        int64_t n_sample = MIN((int64_t)e->spec.n_sample, g->config.max_seq - n_row);
        n_row += n_sample;
        promised += n_sample * sample_pages(g, &e->spec);    // at most
        *n_tok += e->spec.n_prompt;
        g->batch[n] = e;
        list_remove(&g->waiting, e);
        list_push(&g->running, e);
    }
    return n;
}

/* Run the prompts of waiting items that have room, admit their samples and draw their first tokens. */
static bool prompts_start(struct generator *g, struct error *err)
{
    int64_t n_tok, n = batch_collect(g, &n_tok), row0 = g->n_run, now = clock_ns();
    if (n == 0)
        return true;
    int32_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        struct entry *e = g->batch[i];
        e->start_ns = now;
        g->prefill_cu[i] = at;
        memcpy(g->prefill_token + at, e->spec.prompt, (size_t)e->spec.n_prompt * sizeof *g->prefill_token);
        memcpy(g->prefill_table + i * g->max_page, e->page, (size_t)e->n_page * sizeof *g->prefill_table);
        at += (int32_t)e->spec.n_prompt;
    }
    g->prefill_cu[n] = at;
    struct model_batch batch = { .n_seq = n, .n_tok = n_tok, .token = g->prefill_token, .cu_tok = g->prefill_cu };
    if (!model_prefill(g->run, &batch, g->kv, g->prefill_table, g->max_page, g->prefill_logits, err))
        return false;
    for (int64_t i = 0; i < n; i++) {
        struct entry *e = g->batch[i];
        while (e->n_admitted < e->spec.n_sample && row_admit(g, e))
            g->from[g->n_run - 1 - row0] = (int32_t)i;
        if (e->n_admitted == e->spec.n_sample)
            continue;
        BUG_IF(i != n - 1, "item %" PRId64 " of a prefill has samples left but is not the last", e->spec.item);
        g->partial = e;
        if (!mem_copy(g->dev, g->saved, g->prefill_logits + i * g->vocab, (size_t)g->vocab * sizeof(float), COPY_D2D, err))
            return false;
    }
    bool ok = rows_start(g, row0, g->prefill_logits, n, g->version, err);
    g->stats.prefill_s += (double)(clock_ns() - now) * 1e-9;
    return ok;
}

/* Rows of the recorded step that serves n: few sizes, little waste. */
static int64_t graph_rows(int64_t n)
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

/* Decode and draw for batch->n rows, by the recorded step of that size where there is one. */
static bool step_launch(struct generator *g, const struct decode_batch *batch, struct error *err)
{
    struct decode_graph *d = NULL;
    bool may_record = g->dev->can_capture && !g->dev->trace;
    for (int i = 0; may_record && !d && i < g->n_graph; i++)
        if (g->graph[i].n_row == batch->n)
            d = &g->graph[i];
    if (d && d->graph)
        return graph_launch(g->dev, d->graph, err);
    if (!d && may_record && g->n_graph < DECODE_GRAPH_MAX)
        g->graph[g->n_graph++] = (struct decode_graph){ .n_row = batch->n };
    if (d && !graph_begin(g->dev, err))
        return false;
    bool ok = model_decode(g->run, batch, g->kv, g->logits, err) && sample_run(g, g->logits, batch->n, err);
    if (!d)
        return ok;
    struct error ignored;    // a recording that went wrong is ended all the same; err says why
    d->graph = graph_end(g->dev, ok ? err : &ignored);
    return ok && d->graph && graph_launch(g->dev, d->graph, err);
}

/* Row i's part of a decode step's message; false: it needs no further token, so it is not in the step. */
static bool row_fill(struct generator *g, int64_t i)
{
    const struct row *r = &g->row[i];
    int64_t page_tok = g->pages.page_tok;
    if (r->n_tok + r->n_ahead >= r->entry->spec.sampling.max_new_tok) {
        g->token[i] = g->pos[i] = g->kv_len[i] = g->from[i] = 0;
        g->slot[i] = -1;
        g->sample[i] = (struct sample_row){ 0 };
        return false;
    }
    int64_t pos = r->entry->spec.n_prompt + r->n_tok + r->n_ahead - 1;
    g->token[i] = r->token[r->n_tok - 1];
    g->from[i] = r->place[g->last_flight];
    g->pos[i] = (int32_t)pos;
    g->slot[i] = (int32_t)(row_table(g, i)[pos / page_tok] * page_tok + pos % page_tok);
    g->kv_len[i] = (int32_t)pos + 1;
    g->sample[i] = sample_of(r);
    return true;
}

/* One token more for every row: launch it, then look at the tokens of the step before, or with the host not behind at
 * its own. */
static bool rows_decode(struct generator *g, struct error *err)
{
    int32_t longest = 0;
    int64_t n_drawn = 0, n_ahead = 0;
    bool behind = g->behind;
    for (int64_t i = 0; i < g->n_run; i++) {
        behind = behind && !g->row[i].entry->spec.keep_logits;    // the next step would write over the logits
        if (!row_fill(g, i))
            continue;
        n_drawn++;
        n_ahead += g->row[i].n_ahead;
        longest = MAX(longest, g->kv_len[i]);
    }
    if (n_drawn == 0)
        return flights_collect(g, err);
    BUG_IF(n_ahead != 0 && n_ahead != n_drawn, "%" PRId64 " of %" PRId64 " rows are in flight", n_ahead, n_drawn);
    int64_t n_row = g->dev->can_capture ? MIN(graph_rows(g->n_run), g->config.max_seq) : g->n_run;
    for (int64_t i = g->n_run; i < n_row; i++) {
        g->token[i] = g->pos[i] = g->kv_len[i] = g->from[i] = 0;
        g->slot[i] = -1;
        g->sample[i] = (struct sample_row){ 0 };
    }
    if (!step_send(g, err))
        return false;
    struct decode_batch batch = {
        .n = n_row,
        .token = mirror_dev(&g->step, g->token),
        .pos = mirror_dev(&g->step, g->pos),
        .slot = mirror_dev(&g->step, g->slot),
        .kv_len = mirror_dev(&g->step, g->kv_len),
        .page = g->table.dev,
        .max_page = g->max_page,
        .max_kv = g->dev->can_capture ? 0 : longest,
    };
    // 4 bytes are 4 bytes: ids are picked as floats would be
    if (n_ahead > 0
        && !OP(g->dev, err, rows_gather, .y = mirror_dev(&g->step, g->token), .table = g->result.dev, .row = mirror_dev(&g->step, g->from),
               .n = n_row, .n_row = g->config.max_seq, .d = 1, .dtype = DT_F32))
        return false;
    return step_launch(g, &batch, err) && flight_start(g, 0, g->n_run, g->version, err)
           && (behind ? flight_collect(g, 1 - g->last_flight, err) : flights_collect(g, err));
}

/* Is there room for a sample of the started item, or for the first waiting one? */
static bool admission_possible(const struct generator *g)
{
    if (g->n_run == g->config.max_seq)
        return false;
    if (g->partial)
        return sample_pages(g, &g->partial->spec) - 1 <= g->pages.n_free;    // the last sample may take one page over
    return g->waiting.n > 0 && start_pages(g, &g->waiting.first->spec) <= g->pages.n_free;
}

static bool step_run(struct generator *g, struct error *err)
{
    if (admission_possible(g)) {
        if (!flights_collect(g, err))
            return false;
        if (g->partial && !partial_admit(g, err))
            return false;
        if (!g->partial && !prompts_start(g, err))
            return false;
    }
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

bool generator_idle(const struct generator *g)
{
    return g->waiting.n == 0 && g->running.n == 0;
}

/* ---- leaving early */
static void entry_drop(struct generator *g, struct entry_list *l, struct entry *e)
{
    for (int64_t i = g->n_run - 1; i >= 0; i--)
        if (g->row[i].entry == e)
            row_remove(g, i);
    entry_drop_pages(g, e);
    if (g->partial == e)
        g->partial = NULL;
    list_remove(l, e);
    entry_free(e);
}

int64_t generator_clear(struct generator *g)
{
    struct entry_list *lists[] = { &g->waiting, &g->running };
    int64_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        for (; lists[i]->first; n++)
            entry_drop(g, lists[i], lists[i]->first);
    for (struct group *out; (out = generator_poll(g)); n++)
        group_free(out);
    return n;
}

int64_t generator_drop(struct generator *g, int64_t prompt_row)
{
    struct entry_list *lists[] = { &g->waiting, &g->running };
    int64_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        for (struct entry *e = lists[i]->first, *next; e; e = next) {
            next = e->next;
            if (e->spec.prompt_row == prompt_row) {
                entry_drop(g, lists[i], e);
                n++;
            }
        }
    return n;
}

void generator_version_update(struct generator *g, int64_t version)
{
    g->version = version;
    for (struct entry *e = g->waiting.first; e; e = e->next)
        e->version = version;
}

bool generator_version_set(struct generator *g, int64_t version, struct error *err)
{
    if (g->running.n > 0)
        return error_set(err, ERR_REFUSED,
                         "weights of version %" PRId64 " cannot replace version %" PRId64 " while %" PRId64 " items are being "
                         "generated",
                         version, g->version, g->running.n);
    generator_version_update(g, version);
    return true;
}

/* ---- looking at it */
void generator_stats(const struct generator *g, struct generator_stats *out)
{
    *out = g->stats;
    out->n_running_seq = g->n_run;
    out->n_page = g->pages.n_page;
    out->n_free_page = g->pages.n_free;
    out->page_tok = g->pages.page_tok;
}

int64_t generator_live(const struct generator *g, struct generator_live *out, int64_t max)
{
    int64_t n = 0;
    for (const struct entry *e = g->running.first; e && n < max; e = e->next)    // oldest first
        for (int64_t i = 0; i < g->n_run && n < max; i++)
            if (g->row[i].entry == e)
                out[n++] = (struct generator_live){ .item = e->spec.item,
                                                    .sample = e->spec.first_sample + g->row[i].sample,
                                                    .prompt = e->spec.prompt,
                                                    .n_prompt = e->spec.n_prompt,
                                                    .token = g->row[i].token,
                                                    .n_tok = g->row[i].n_tok };
    return n;
}
