/* generator.c - the scheduler around the model's prefill and decode
 *
 * Invariants:
 *  1. Items start in the order of submission. At most one started item (`partial`) has samples that are not admitted
 *     yet, and no later item starts before they are; its first row of logits waits in `saved`.
 *  2. Rows 0 .. n_run - 1 are the admitted, unfinished samples, packed; row i's pages are in table row i. The last row takes a
 *     finished row's place. A sample that was put back has no row; its tokens are in its entry.
 *  3. An entry holds its prompt's pages from prefill until its last sample is admitted; each row holds all pages of its table.
 *     The prompt's full pages are shared and never written again; the unfinished last one is copied for every sample but the
 *     last, which takes it over. `partial` loses its pages when they run out; its prompt is run again then.
 *  4. Before each decode step a row has pages for all tokens up to the one that is run (rows_grow); generator_pages.c says what happens
 *     when there are none.
 *  5. A flight is a decode step that was launched and whose tokens have not been examined. Its rows may move and leave
 *     meanwhile: flight.now gives the current row of each of its places, and row.place the reverse. With the host one
 *     step behind there is one flight between rounds, and two within a round; otherwise none and one. Rows are admitted
 *     only when there is none. A flight may still write to a page that was freed, but only before any work that is
 *     launched later.
 * An entry's life: waiting (generator_submit), started (entry_start), perhaps partial, running, finished
 * (entry_finish). */
#include "workers/engine/sampler/generator.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/engine/sampler/generator_parts.h"
#include "workers/engine/pass/pass.h"

/* ---- lists of entries ---- */
void entries_push(struct entry_list *l, struct entry *e)
{
    e->next = NULL;
    if (l->last)
        l->last->next = e;
    else
        l->first = e;
    l->last = e;
    l->n++;
}

void entries_remove(struct entry_list *l, struct entry *e)
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

/* Point the pieces of a step's message into the host's side of now; one block, so that one copy carries it. Returns its
 * size. */
size_t generator_step_pieces(struct generator *g)
{
    int32_t **piece[] = { &g->token, &g->pos, &g->slot, &g->kv_len, &g->state, &g->from, &g->copy_dst, &g->copy_src };
    size_t n = ((size_t)g->max_row + 15) / 16 * 16;    // pieces start at cache lines
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
    size_t n = (size_t)g->max_row;
    bool two = g->behind;
    if (!mirror_init(g->dev, &g->step, generator_step_pieces(g), two, "a decode step's inputs", err)
        || !mirror_init(g->dev, &g->ban, n * SAMPLE_BAN_MAX * sizeof(int32_t), two, "ids that are not drawn", err)
        || !mirror_init(g->dev, &g->table, n * (size_t)g->max_page * sizeof(int32_t), two, "page tables", err)
        || !mirror_init(g->dev, &g->result, (g->config.entropy ? 3 : 2) * n * sizeof(int32_t), two, "sampled tokens", err))
        return false;
    generator_step_pieces(g);
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
    g->prefill_start = calloc(PREFILL_SEQ_MAX, sizeof *g->prefill_start);
    g->prefill_state = calloc(PREFILL_SEQ_MAX, sizeof *g->prefill_state);
    g->state_dst = calloc(2 * n, sizeof *g->state_dst);
    g->state_src = g->state_dst ? g->state_dst + n : NULL;
    g->finished_cap = g->config.max_item;
    g->finished = calloc((size_t)g->finished_cap, sizeof(struct group *));
    g->page_of = calloc(n * (size_t)g->max_page, sizeof *g->page_of);
    g->flight[0].now = calloc(n, sizeof *g->flight[0].now);
    g->flight[1].now = calloc(n, sizeof *g->flight[1].now);
    bool ok = g->row && g->prefill_token && g->prefill_cu && g->prefill_table && g->prefill_start && g->prefill_state && g->state_dst
              && g->finished && g->page_of && g->flight[0].now && g->flight[1].now;
    for (size_t i = 0; ok && i < n; i++) {
        g->row[i].token = malloc(len * sizeof(int32_t));
        g->row[i].logp = malloc(len * sizeof(float));
        g->row[i].entropy = malloc(len * sizeof(float));
        g->row[i].newer = malloc(len * sizeof(int32_t));
        ok = g->row[i].token && g->row[i].logp && g->row[i].entropy && g->row[i].newer;
        g->row[i].place[0] = g->row[i].place[1] = -1;
    }
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for %zu samples of %zu tokens", n, len);
}

/* Samples decoded at once. On a CPU the keys and values of more than about 32 per thread overflow its caches (0.6 M
 * parameters on an EPYC core: 47k tokens/s at 32, 31k at 256), so the others wait; the bits are the same. */
static int64_t max_seq_of(const struct device *dev, int64_t wanted)
{
    return dev->kind == DEVICE_CPU ? MIN(wanted, 32 * (int64_t)dev->n_thread) : wanted;
}

/* Rows of a decode step: one per sample, or more where guesses are run along. */
static int64_t max_row_of(const struct generator_config *c)
{
    int64_t n_seq = max_seq_of(model_device(c->model), c->max_seq);
    return c->speculate == SPECULATE_NEVER || config_has_states(model_config(c->model)) ? n_seq : MAX(n_seq, DRAFT_ROWS);
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
    int64_t prefill = c->prefill_tok > 0 ? c->prefill_tok : prefill_tok_default(dev), n_seq = max_row_of(c);
    return (struct run_limits){ .max_tok = MAX(MAX(prefill, c->max_seq_tok), n_seq),
                                .max_seq = MAX(n_seq, PREFILL_SEQ_MAX),
                                .max_seq_tok = c->max_seq_tok,
                                .lora_rank = c->lora_rank };
}

/* Slots of states, where the model has some: one for each sample, and one for a prompt that waits for further samples. */
static int64_t states_of(const struct generator_config *c)
{
    return kv_pool_state_bytes(c->model) > 0 ? max_seq_of(model_device(c->model), c->max_seq) + 1 : 0;
}

size_t generator_state_bytes(const struct generator_config *config)
{
    return (size_t)states_of(config) * kv_pool_state_bytes(config->model);
}

size_t generator_bytes(const struct generator_config *config)
{
    struct run_limits limits = run_limits_of(config);
    int64_t n_seq = max_row_of(config);
    size_t line = (size_t)model_config(config->model)->vocab * sizeof(float);
    return model_run_bytes(config->model, &limits) + (size_t)(n_seq + PREFILL_SEQ_MAX + 1) * line + generator_state_bytes(config);
}

size_t generator_kv_bytes(const struct model *m, int64_t max_seq, int64_t max_seq_tok)
{
    const struct device *dev = model_device(m);
    int64_t max_page = (max_seq_tok + dev->kv_page_tok - 1) / dev->kv_page_tok;
    // one more, for the partly filled page that a prompt keeps for its next sample
    return (size_t)(max_seq_of(dev, max_seq) * max_page + 1) * kv_pool_page_bytes(m);
}

/* Slots of states. Guesses at next tokens and pages of earlier prompts are not used then: a state cannot be taken back by a token, and
 * a page does not say what the state after it was. */
static bool states_init(struct generator *g, struct error *err)
{
    int64_t n = states_of(&g->config);
    if (n == 0)
        return true;
    if (g->config.speculate == SPECULATE_ALWAYS)
        log_warn("'speculate' has no effect on this model: the state of its linear attention cannot be taken back when a guess is wrong");
    if (g->config.prefix_cache)
        log_info("prompts are run from their beginning: pages of earlier ones do not hold the states of this model's linear attention");
    g->config.speculate = SPECULATE_NEVER;
    g->config.prefix_cache = false;
    return pagedkv_init(&g->states, n, 1, err) && kv_pool_states(g->kv, n, err);
}

static bool cache_init(struct generator *g, struct error *err)
{
    if (!prefix_cache_init(&g->cache, &g->pages, err))
        return false;
    g->cache_token = calloc((size_t)g->config.max_seq_tok, sizeof *g->cache_token);
    return g->cache_token || error_set(err, ERR_NO_MEMORY, "no memory for a prefix cache");
}

/* Can a generator have this many samples, items and tokens, and the model sequences as long? */
static bool config_check(const struct generator_config *c, struct error *err)
{
    const struct model_config *m = model_config(c->model);
    if (c->max_seq < 1 || c->max_item < 1 || c->max_seq_tok < 2 || c->max_seq_tok > INT32_MAX)
        return error_set(err, ERR_SHAPE,
                         "a generator for %" PRId64 " samples at once, %" PRId64 " items and %" PRId64 " tokens a sequence is not possible",
                         c->max_seq, c->max_item, c->max_seq_tok);
    if (c->max_seq_tok > rope_longest(&m->rope, m->max_pos))
        return error_set(err, ERR_SHAPE,
                         "sequences of %" PRId64 " tokens are longer than the %" PRId64 " that the model's frequencies hold for",
                         c->max_seq_tok, rope_longest(&m->rope, m->max_pos));
    return c->max_seq_tok <= config_longest(m)
           || error_set(err, ERR_SHAPE, "sequences of %" PRId64 " tokens are longer than the %" PRId64 " that the model takes",
                        c->max_seq_tok, config_longest(m));
}

/* Memory for the log-probs of prompts, at temperature 1. */
static bool reads_init(struct generator *g, struct error *err)
{
    g->read_target = calloc((size_t)g->max_tok, sizeof *g->read_target);
    g->read_logp = calloc((size_t)g->max_tok, sizeof *g->read_logp);
    g->read_temperature = calloc((size_t)g->max_tok, sizeof *g->read_temperature);
    if (!g->read_target || !g->read_logp || !g->read_temperature)
        return error_set(err, ERR_NO_MEMORY, "no memory for the log-probs of a prompt of %" PRId64 " tokens", g->max_tok);
    for (int64_t i = 0; i < g->max_tok; i++)
        g->read_temperature[i] = 1;
    return true;
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
    TRY(config_check(config, err));
    g->config.max_seq = max_seq_of(g->dev, config->max_seq);
    g->max_row = max_row_of(config);
    g->behind = config->behind == BEHIND_ALWAYS || (config->behind == BEHIND_AUTO && !g->dev->host_memory);
    g->vocab = model_config(config->model)->vocab;
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
    TRY(states_init(g, err));
    TRY(!g->config.prefix_cache || cache_init(g, err));
    struct run_limits limits = run_limits_of(config);
    TRY((g->run = model_run_new(config->model, &limits, err)) != NULL);
    TRY(rows_new(g, err));
    size_t n = (size_t)g->max_row, line = (size_t)g->vocab * sizeof(float), past = (size_t)(PREFILL_SEQ_MAX * (g->max_page + 1));
    TRY((g->prefill_past = mem_new(g->dev, past * sizeof(int32_t), "pages of sequences that go on", err)) != NULL);
    TRY((g->logits = mem_new(g->dev, n * line, "logits of a decode step", err)) != NULL);
    TRY((g->prefill_logits = mem_new(g->dev, PREFILL_SEQ_MAX * line, "logits of a prefill", err)) != NULL);
    TRY((g->saved = mem_new(g->dev, line, "first logits of a group", err)) != NULL);
    TRY(!config->read_watch || reads_init(g, err));
    if (config->watch && !g->dev->host_memory)
        TRY((g->logits_host = host_new(g->dev, line, "logits to look at", err)) != NULL);
    TRY(step_init(g, err) && drafts_init(g, err));
    ok = true;
out:
    if (!ok) {
        generator_free(g);
        g = NULL;
    }
    return g;
}

/* Forget the recorded steps. */
static void graphs_drop(struct generator *g)
{
    for (int i = 0; i < g->n_graph; i++)
        graph_free(g->dev, g->graph[i].graph);
    g->n_graph = 0;
}

void generator_free(struct generator *g)
{
    if (!g)
        return;
    generator_clear(g);
    graphs_drop(g);
    for (int f = 0; f < 2; f++) {
        mark_free(g->dev, g->flight[f].landed);
        free(g->flight[f].now);
    }
    mirror_release(g->dev, &g->step);
    mirror_release(g->dev, &g->ban);
    mirror_release(g->dev, &g->table);
    mirror_release(g->dev, &g->result);
    float *held[] = { g->logits, g->prefill_logits, g->saved };
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        if (held[i])
            mem_free(g->dev, held[i]);
    if (g->prefill_past)
        mem_free(g->dev, g->prefill_past);
    free(g->cache_token);
    free(g->prefill_start);
    free(g->prefill_state);
    free(g->state_dst);
    free(g->read_target);
    free(g->read_logp);
    free(g->read_temperature);
    if (g->logits_host)
        host_free(g->dev, g->logits_host);
    for (int64_t i = 0; g->row && i < g->config.max_seq; i++) {
        free(g->row[i].token);
        free(g->row[i].logp);
        free(g->row[i].entropy);
        free(g->row[i].newer);
    }
    free(g->row);
    free(g->prefill_token);
    free(g->prefill_cu);
    free(g->prefill_table);
    free(g->finished);
    free(g->page_of);
    drafts_release(g);
    model_run_free(g->run);
    kv_pool_free(g->kv);
    prefix_cache_release(&g->cache);
    pagedkv_release(&g->pages);
    pagedkv_release(&g->states);
    free(g);
}

/* ---- items in and out ---- */
/* Pages that a sample of full length needs for itself when the prompt's full pages are shared. */
static int64_t item_sample_pages(const struct generator *g, const struct generator_item *spec)
{
    return pagedkv_pages(&g->pages, spec->n_prompt + spec->sampling.max_new_tok - 1) - spec->n_prompt / g->pages.page_tok;
}

/* Pages that an item must be able to get: the prompt's, and those of one sample of full length (a lone sample takes the prompt's last
 * page over). */
static int64_t item_start_pages(const struct generator *g, const struct generator_item *spec)
{
    bool has_tail = spec->n_prompt % g->pages.page_tok != 0;
    return pagedkv_pages(&g->pages, spec->n_prompt) + item_sample_pages(g, spec) - (has_tail && spec->n_sample == 1);
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
    if (item_start_pages(g, item) > g->pages.n_page)
        return error_set(err, ERR_SHAPE, "item %" PRId64 " needs %" PRId64 " pages of keys and values, the pool has %" PRId64, item->item,
                         item_start_pages(g, item), g->pages.n_page);
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
    entries_push(&g->waiting, e);
    g->n_guest += item->guest;
    return true;
}

/* Free the prompt's pages when no further sample starts from them. */
void entry_pages_drop(struct generator *g, struct entry *e)
{
    if (e->held) {
        pagedkv_drop(&g->pages, e->page, e->n_page);
        state_drop(g, e->state);
    }
    e->held = false;
}

/* The group of an entry whose samples have all ended. NULL: see err. */
static struct group *entry_group(const struct generator *g, const struct entry *e, struct error *err)
{
    int64_t n_tok = 0;
    for (int32_t i = 0; i < e->spec.n_sample; i++)
        n_tok += e->ended[i].n_tok;
    struct group *out = group_new(e->spec.n_prompt, e->spec.n_sample, n_tok, err);
    if (!out)
        return NULL;
    const struct generator_item *spec = &e->spec;
    out->item = spec->item;
    out->prompt_row = spec->prompt_row;
    out->rollout_step = spec->rollout_step;
    out->weight_version = e->version;
    out->temperature = spec->sampling.temperature;
    out->top_p = spec->sampling.top_p;
    out->top_k = spec->sampling.top_k;
    out->max_new_tok = spec->sampling.max_new_tok;
    out->has_entropy = g->config.entropy;
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
        memcpy(out->entropy + at, d->entropy, (size_t)d->n_tok * sizeof *out->entropy);
        memcpy(out->newer + at, d->newer, (size_t)d->n_tok * sizeof *out->newer);
        at += d->n_tok;
    }
    return out;
}

bool entry_finish(struct generator *g, struct entry *e, struct error *err)
{
    struct group *out = e->spec.guest ? NULL : entry_group(g, e, err);
    if (!out && !e->spec.guest)
        return false;
    if (out)    // max_item bounds waiting + running + finished, so there is room
        g->finished[(g->finished_first + g->finished_n++) % g->finished_cap] = out;
    g->stats.n_group += out != NULL;
    g->n_guest -= e->spec.guest;
    entries_remove(&g->running, e);
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

bool generator_idle(const struct generator *g)
{
    return g->waiting.n == 0 && g->running.n == 0;
}

bool generator_own_idle(const struct generator *g)
{
    return g->waiting.n + g->running.n == g->n_guest;
}

/* ---- leaving early ---- */
static void entry_drop(struct generator *g, struct entry_list *l, struct entry *e)
{
    for (int64_t i = g->n_run - 1; i >= 0; i--)
        if (g->row[i].entry == e)
            row_remove(g, i);
    entry_pages_drop(g, e);
    g->n_back -= e->n_back;
    if (g->partial == e)
        g->partial = NULL;
    g->n_guest -= e->spec.guest;
    entries_remove(l, e);
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
    prefix_cache_clear(&g->cache);
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

/* What an entry's samples have drawn so far. */
static struct stopped_item entry_drawn(const struct generator *g, const struct entry *e)
{
    struct stopped_item d = { .item = e->spec.item, .version = e->version };
    for (int32_t i = 0; i < e->spec.n_sample; i++) {
        d.n_tok = MAX(d.n_tok, e->ended[i].n_tok);
        d.n_drawn += e->ended[i].n_tok;
    }
    for (int64_t i = 0; i < g->n_run; i++)
        if (g->row[i].entry == e) {
            d.n_tok = MAX(d.n_tok, g->row[i].n_tok);
            d.n_drawn += g->row[i].n_tok;
        }
    return d;
}

bool generator_stop(struct generator *g, int64_t rollout_step, int64_t n_tok, struct stopped_item *out)
{
    for (struct entry *e = g->running.first; e; e = e->next) {
        if (e->spec.guest || e->spec.rollout_step != rollout_step)
            continue;
        *out = entry_drawn(g, e);
        if (out->n_tok > n_tok) {
            entry_drop(g, &g->running, e);
            return true;
        }
    }
    return false;
}

bool generator_drop_item(struct generator *g, int64_t item, struct stopped_item *out)
{
    struct entry_list *lists[] = { &g->waiting, &g->running };
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        for (struct entry *e = lists[i]->first; e; e = e->next)
            if (e->spec.item == item && !e->spec.guest) {
                *out = entry_drawn(g, e);
                entry_drop(g, lists[i], e);
                return true;
            }
    return false;
}

void generator_cache_clear(struct generator *g)
{
    prefix_cache_clear(&g->cache);
}

void generator_version_update(struct generator *g, int64_t version)
{
    g->version = version;
    g->epoch++;
    prefix_cache_clear(&g->cache);    // no page of the old weights may be found
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

bool generator_model_set(struct generator *g, struct model *m, int64_t version, struct error *err)
{
    if (!device_sync(g->dev, err))    // a recorded step may still run, with the former model's memory
        return false;
    graphs_drop(g);
    model_run_bind(g->run, m);
    g->config.model = m;
    generator_version_update(g, version);
    return true;
}

/* ---- inspection ---- */
void generator_stats(const struct generator *g, struct generator_stats *out)
{
    *out = g->stats;
    out->n_running_seq = g->n_run;
    out->n_waiting_seq = g->n_back + (g->partial ? g->partial->spec.n_sample - g->partial->n_admitted : 0);
    for (const struct entry *e = g->waiting.first; e; e = e->next)
        out->n_waiting_seq += e->spec.n_sample;
    out->n_page = g->pages.n_page;
    out->n_free_page = g->pages.n_free;
    out->page_tok = g->pages.page_tok;
}

void generator_stats_add(struct generator_stats *to, const struct generator_stats *other)
{
    to->n_step += other->n_step;
    to->n_decode += other->n_decode;
    to->n_kv_tok += other->n_kv_tok;
    to->n_run_tok += other->n_run_tok;
    to->n_seen_tok += other->n_seen_tok;
    to->n_decode_tok += other->n_decode_tok;
    to->n_group += other->n_group;
    to->n_cached_tok += other->n_cached_tok;
    to->n_running_seq += other->n_running_seq;
    to->n_waiting_seq += other->n_waiting_seq;
    to->n_put_back += other->n_put_back;
    to->n_again_tok += other->n_again_tok;
    to->n_draft += other->n_draft;
    to->n_accepted += other->n_accepted;
    to->n_page += other->n_page;
    to->n_free_page += other->n_free_page;
    to->prefill_s += other->prefill_s;
    to->decode_s += other->decode_s;
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
