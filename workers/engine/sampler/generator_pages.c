/* generator_pages.c - pages of keys and values as samples use them
 *
 * A sample holds the pages of what it has, and takes the next one when it gets there. How many samples may run at once is therefore a
 * guess: each is expected to become as long as the samples before it were on average. Where the guess was too low and pages run out, the
 * youngest sample is put back: its pages are freed, its tokens kept, and when there is room again their keys and values are computed
 * once more. They have the same bits then (see generator.h), so being put back costs time and changes nothing.
 *
 * Older items go first, always: the youngest is put back, the oldest of those put back returns first, and no new sample starts before
 * all have returned. The oldest sample is never put back, and alone it has room (item_check), so every sample ends. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/sampler/generator_parts.h"

#define LENGTHS_MAX 512    // ends after which older ones count half: lengths change as training goes on

/* ---- the prefix cache ---- */
bool room_make(struct generator *g, int64_t n)
{
    return n <= g->pages.n_free || (g->cache.entry && prefix_cache_make_room(&g->cache, n));
}

void row_remember(struct generator *g, int64_t i)
{
    const struct row *r = &g->row[i];
    const struct entry *e = r->entry;
    if (!g->cache.entry || e->epoch != g->epoch)
        return;    // its keys may be of several weights
    size_t n_prompt = (size_t)e->spec.n_prompt, n_own = (size_t)r->n_tok - 1;
    memcpy(g->cache_token, e->spec.prompt, n_prompt * sizeof(int32_t));
    memcpy(g->cache_token + n_prompt, r->token, n_own * sizeof(int32_t));
    prefix_cache_add(&g->cache, e->spec.cache_salt, g->cache_token, (int64_t)(n_prompt + n_own), row_table(g, i));
}

/* ---- states ---- */
int32_t state_take(struct generator *g)
{
    int32_t state = 0;
    BUG_IF(g->states.n_page > 0 && !pagedkv_take(&g->states, &state, 1), "no slot for a state among %" PRId64, g->states.n_page);
    return state;
}

void state_drop(struct generator *g, int32_t state)
{
    if (g->states.n_page > 0)
        pagedkv_drop(&g->states, &state, 1);
}

/* ---- what is expected ---- */
void lengths_note(struct generator *g, int64_t n_tok, bool has_ended)
{
    g->n_tok_seen += (double)n_tok;
    g->n_end_seen += has_ended;
    if (g->n_end_seen < LENGTHS_MAX)
        return;
    g->n_tok_seen /= 2;
    g->n_end_seen /= 2;
}

/* Tokens that a sample is expected to get: tokens per end so far, which is the mean of lengths as long as an end is as likely after any
 * token. One sample of full length counts as seen, so that the first samples have room for all they may become. */
static int64_t expected_tok(const struct generator *g, const struct generator_item *spec)
{
    int64_t most = spec->sampling.max_new_tok;
    return MIN(most, (int64_t)ceil((g->n_tok_seen + (double)most) / (g->n_end_seen + 1)));
}

int64_t sample_promise(const struct generator *g, const struct generator_item *spec, int64_t n_held)
{
    int64_t most = pagedkv_pages(&g->pages, spec->n_prompt + spec->sampling.max_new_tok - 1);
    int64_t likely = pagedkv_pages(&g->pages, spec->n_prompt + expected_tok(g, spec) - 1);
    int64_t end = likely < n_held ? n_held + 1 : likely;    // one that is longer already gets its next page
    return MIN(most, end) - n_held;
}

int64_t rows_promised(const struct generator *g)
{
    int64_t n = 0;
    for (int64_t i = 0; i < g->n_run; i++)
        n += sample_promise(g, &g->row[i].entry->spec, g->row[i].n_page);
    return n;
}

bool sample_fits(struct generator *g, const struct generator_item *spec, int64_t n_take, int64_t n_held)
{
    return room_make(g, n_take + (g->n_run > 0 ? g->n_promised + sample_promise(g, spec, n_held) : 0));
}

/* ---- put back ---- */
struct entry *back_oldest(const struct generator *g, int32_t *sample)
{
    struct entry *e = g->n_back > 0 ? g->running.first : NULL;
    while (e && e->n_back == 0)
        e = e->next;
    for (*sample = 0; e && !e->ended[*sample].is_back;)
        ++*sample;
    return e;
}

bool row_keep(const struct row *r, struct ended *d, struct error *err)
{
    size_t n = (size_t)r->n_tok;
    d->token = malloc(MAX(n, (size_t)1) * (2 * sizeof(int32_t) + 2 * sizeof(float)));
    if (!d->token)
        return error_set(err, ERR_NO_MEMORY, "no memory for a sample of %zu tokens", n);
    d->logp = (float *)(d->token + n);
    d->entropy = d->logp + n;
    d->newer = (int32_t *)(d->entropy + n);
    d->n_tok = r->n_tok;
    memcpy(d->token, r->token, n * sizeof(int32_t));
    memcpy(d->logp, r->logp, n * sizeof(float));
    memcpy(d->entropy, r->entropy, n * sizeof(float));
    memcpy(d->newer, r->newer, n * sizeof(int32_t));
    return true;
}

static bool row_put_back(struct generator *g, int64_t i, struct error *err)
{
    struct row *r = &g->row[i];
    struct entry *e = r->entry;
    struct ended *d = &e->ended[r->sample];
    if (!row_keep(r, d, err))
        return false;
    d->is_back = true;
    e->n_back++;
    g->n_back++;
    g->stats.n_put_back++;
    row_remove(g, i);
    return true;
}

/* The sample that started last, by the order of items and then of samples. */
static int64_t row_youngest(const struct generator *g)
{
    int64_t youngest = 0;
    for (int64_t i = 1; i < g->n_run; i++) {
        const struct row *a = &g->row[i], *b = &g->row[youngest];
        if (a->entry->order > b->entry->order || (a->entry == b->entry && a->sample > b->sample))
            youngest = i;
    }
    return youngest;
}

/* Free pages by what has started last: a row, or a prompt that waits for room for its further samples. No flight is under way. */
static bool youngest_put_back(struct generator *g, struct error *err)
{
    int64_t i = row_youngest(g);
    if (g->partial && g->partial->held && g->partial->order > g->row[i].entry->order) {
        entry_pages_drop(g, g->partial);    // its prompt is run again
        return true;
    }
    BUG_IF(g->n_run < 2, "%" PRId64 " pages of keys and values are too few for one sample", g->pages.n_page);
    return row_put_back(g, i, err);
}

/* ---- growing ---- */
/* How many pages row i needs for its next n_tok tokens and does not have. */
static int64_t row_lacks(const struct generator *g, int64_t i, int64_t n_tok)
{
    const struct row *r = &g->row[i];
    int64_t have = r->n_tok + r->n_ahead, most = r->entry->spec.sampling.max_new_tok;
    if (have >= most)
        return 0;
    // the token to be run is the last of those it has; the last of all is never run
    return MAX(pagedkv_pages(&g->pages, r->entry->spec.n_prompt + MIN(have + n_tok, most) - 1) - r->n_page, 0);
}

static int64_t rows_lack(const struct generator *g, int64_t n_tok)
{
    int64_t n = 0;
    for (int64_t i = 0; i < g->n_run; i++)
        n += row_lacks(g, i, n_tok);
    return n;
}

bool rows_grow(struct generator *g, struct error *err)
{
    int64_t n, n_tok = 1;
    while ((n = rows_lack(g, n_tok)) > 0 && !room_make(g, n)) {
        if (g->flight[0].n + g->flight[1].n > 0 ? !flights_collect(g, err) : !youngest_put_back(g, err))
            return false;    // what has just landed may have ended samples
    }
    if (n == 0)
        return true;
    // A changed table is sent as a whole. So all get a page ahead now, and the next change is a page of tokens away.
    if (rows_lack(g, g->pages.page_tok) <= g->pages.n_free / 2)
        n_tok = g->pages.page_tok;
    for (int64_t i = 0; i < g->n_run; i++) {
        struct row *r = &g->row[i];
        int64_t more = row_lacks(g, i, n_tok);
        BUG_IF(!pagedkv_take(&g->pages, row_table(g, i) + r->n_page, more), "no room for %" PRId64 " pages of a row", more);
        r->n_page += more;
    }
    g->table_changed = true;
    return true;
}

int64_t row_room(struct generator *g, int64_t i, int64_t n_tok)
{
    struct row *r = &g->row[i];
    int64_t more = row_lacks(g, i, n_tok);
    if (more > 0 && more <= g->pages.n_free / 2 && pagedkv_take(&g->pages, row_table(g, i) + r->n_page, more)) {
        r->n_page += more;
        g->table_changed = true;
    }
    return MIN(n_tok, r->n_page * g->pages.page_tok - (r->entry->spec.n_prompt + r->n_tok - 1));
}
