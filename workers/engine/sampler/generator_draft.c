/* generator_draft.c - speculative decoding: a step of a small batch runs guesses at the samples' next tokens along with it
 *
 * A sample with k guesses has k + 1 rows of the decode step: its newest token, and each guess as if it had been drawn. All are ordinary
 * rows of a decode step, with the same order of sums as if they were run one after the other: a row's keys and values are written before
 * any row's attention reads them. Each row draws its next token with the noise of its own position. The first row's token is therefore the one
 * that plain decoding draws, to the bit; as long as a guess equals the token drawn before it, the next row's is too. The first that differs
 * is kept, and what comes after it is dropped: its keys are written again before they are read. So guesses change the time and nothing
 * else (Leviathan et al., arXiv 2211.17192, with equality in place of a test: the noise is a function of seed, item, sample and position).
 *
 * Whether a guess is worth its row is judged from measurements: how often guesses came true, by how long a context they were found with, and
 * how long steps of this many rows take. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "workers/engine/sampler/generator_parts.h"
#include "workers/engine/pass/pass.h"

#define DRAFT_MAX 15         // guesses per sample and step
#define WAIT_MAX 32          // rounds until guessing is tried again after it was not worth while
#define SEEN_MAX 512         // guesses after which older ones count half
#define PRIOR_TRIED 4        // guesses that count as seen before the first, half of them true
#define STALE_ROUNDS 1024    // a step's time is forgotten when steps of its size have not run for so long
#define GAIN_MIN 1.05        // tokens per second, against those of plain decoding, that are worth a change
#define LEVELS 32            // of a guess's probability

/* ---- what is known ---- */
bool drafts_init(struct generator *g, struct error *err)
{
    struct drafts *d = &g->draft;
    if (g->config.speculate == SPECULATE_NEVER)
        return true;
    int64_t n = MIN(g->config.max_seq, DRAFT_SEQ_MAX);
    d->guess = calloc((size_t)(n * DRAFT_MAX), sizeof *d->guess);
    d->level = calloc((size_t)(n * DRAFT_MAX), sizeof *d->level);
    if (!d->guess || !d->level)
        return error_set(err, ERR_NO_MEMORY, "no memory for drafts");
    return draft_table_init(&d->table, g->config.max_seq * g->config.max_seq_tok, err);
}

void drafts_release(struct generator *g)
{
    draft_table_release(&g->draft.table);
    free(g->draft.guess);
    free(g->draft.level);
}

void drafts_learn_prompt(struct generator *g, const struct entry *e)
{
    for (int64_t i = 1; g->draft.table.slot && i < e->spec.n_prompt; i++)
        draft_learn(&g->draft.table, (uint64_t)e->order, e->spec.prompt, i, e->spec.prompt[i]);
}

/* The last tokens of a sample's sequence when it has n_tok of its own, oldest first; returns how many. */
static int64_t sequence_end(const struct row *r, int64_t n_tok, int32_t out[DRAFT_CONTEXT])
{
    const struct generator_item *spec = &r->entry->spec;
    int64_t n = MIN(spec->n_prompt + n_tok, DRAFT_CONTEXT);
    for (int64_t k = 0; k < n; k++) {
        int64_t at = spec->n_prompt + n_tok - n + k;
        out[k] = at < spec->n_prompt ? spec->prompt[at] : r->token[at - spec->n_prompt];
    }
    return n;
}

void drafts_learn_token(struct generator *g, const struct row *r)
{
    int32_t before[DRAFT_CONTEXT];
    if (!g->draft.table.slot)
        return;
    int64_t n = sequence_end(r, r->n_tok - 1, before);
    draft_learn(&g->draft.table, (uint64_t)r->entry->order, before, n, r->token[r->n_tok - 1]);
}

/* How often guesses from contexts of this order come true. */
static double acceptance(const struct drafts *d, int order)
{
    return (d->kept[order] + PRIOR_TRIED / 2) / (d->tried[order] + PRIOR_TRIED);
}

static void guess_note(struct drafts *d, int order, bool is_true)
{
    d->tried[order]++;
    d->kept[order] += is_true;
    if (d->tried[order] < SEEN_MAX)
        return;
    d->tried[order] /= 2;
    d->kept[order] /= 2;
}

/* ---- how long steps take ---- */
/* The rows that a step of n is run with. */
static int64_t step_rows(const struct generator *g, int64_t n)
{
    return g->dev->can_capture ? MIN(graph_rows(n), g->max_row) : n;
}

/* Has a step of this many rows been measured lately? */
static bool time_known(const struct generator *g, int64_t rows)
{
    const struct step_time *t = &g->draft.time[rows];
    return t->s > 0 && t->round + STALE_ROUNDS >= g->stats.n_step;
}

void drafts_time_note(struct generator *g, int64_t n_row, bool counts)
{
    struct drafts *d = &g->draft;
    int64_t now = clock_ns(), rows = step_rows(g, n_row);
    double s = (double)(now - d->last_ns) * 1e-9;
    bool known = d->last_ns > 0 && counts && d->table.slot && rows <= DRAFT_ROWS;
    d->last_ns = now;
    if (!known)
        return;
    struct step_time *t = &d->time[rows];
    if (time_known(g, rows))
        t->s += 0.2 * (MIN(s, 2 * t->s) - t->s);    // a step that something else has held up counts little
    else
        t->s = s;
    t->round = g->stats.n_step;
}

/* Seconds of a step of this many rows: measured, or between those of the next smaller and larger sizes. Without a larger one it is the smaller
 * one's, so that it is tried. NAN: not even that is known. */
static double step_time(const struct generator *g, int64_t n_row)
{
    const struct step_time *t = g->draft.time;
    int64_t rows = step_rows(g, n_row), below = rows, above = rows;
    while (below > 0 && !time_known(g, below))
        below--;
    while (above <= DRAFT_ROWS && !time_known(g, above))
        above++;
    if (below == 0)
        return NAN;
    if (above > DRAFT_ROWS || above == below)
        return t[below].s;
    return t[below].s + (t[above].s - t[below].s) * (double)(rows - below) / (double)(above - below);
}

/* ---- guessing ---- */
bool drafts_due(struct generator *g)
{
    struct drafts *d = &g->draft;
    if (!d->table.slot || g->n_run == 0 || g->n_run > DRAFT_SEQ_MAX)
        return false;
    return g->config.speculate == SPECULATE_ALWAYS || d->wait == 0 || --d->wait == 0;
}

/* Guess for row i. A guess's level is its probability of being reached and true, in LEVELS steps; count and sum add it up by level. */
static void row_guess(struct generator *g, int64_t i, int64_t count[LEVELS], double sum[LEVELS])
{
    struct drafts *d = &g->draft;
    struct row *r = &g->row[i];
    struct draft_token guess[DRAFT_MAX];
    int32_t before[DRAFT_CONTEXT];
    int64_t n_before = sequence_end(r, r->n_tok, before);
    int64_t most = MIN(DRAFT_MAX, r->entry->spec.sampling.max_new_tok - r->n_tok - 1);    // the last token is drawn, never run
    r->n_guess = draft_guess(&d->table, (uint64_t)r->entry->order, before, n_before, guess, most);
    if (r->n_guess > 0)
        r->n_guess = MIN(r->n_guess, row_room(g, i, 1 + r->n_guess) - 1);
    double p = 1;
    for (int64_t k = 0; k < r->n_guess; k++) {
        p *= acceptance(d, guess[k].order);
        int level = MIN((int)(p * LEVELS), LEVELS - 1);
        d->guess[i * DRAFT_MAX + k] = guess[k];
        d->level[i * DRAFT_MAX + k] = (uint8_t)level;
        count[level]++;
        sum[level] += p;
    }
}

/* The lowest level of guesses worth running: that of most tokens per second. LEVELS: none is. */
static int level_choose(const struct generator *g, const int64_t count[LEVELS], const double sum[LEVELS])
{
    bool always = g->config.speculate == SPECULATE_ALWAYS;
    double plain_s = step_time(g, g->n_run), n_tok = (double)g->n_run, best = always ? 0 : n_tok / plain_s * GAIN_MIN;
    int64_t n_row = g->n_run;
    int chosen = LEVELS;
    if (isnan(plain_s) && !always)    // to be measured first
        return chosen;
    for (int level = LEVELS - 1; level >= 0; level--) {
        n_row += count[level];
        n_tok += sum[level];
        if (n_row > DRAFT_ROWS)
            break;
        double rate = always ? n_tok : n_tok / step_time(g, n_row);
        if (count[level] > 0 && rate > best) {
            best = rate;
            chosen = level;
        }
    }
    return chosen;
}

bool drafts_make(struct generator *g)
{
    struct drafts *d = &g->draft;
    int64_t count[LEVELS] = { 0 }, n_guess = 0;
    double sum[LEVELS] = { 0 };
    for (int64_t i = 0; i < g->n_run; i++)
        row_guess(g, i, count, sum);
    int level = level_choose(g, count, sum);
    for (int64_t i = 0; i < g->n_run; i++) {
        int64_t k = 0;
        while (k < g->row[i].n_guess && d->level[i * DRAFT_MAX + k] >= level)    // levels fall along a sample's guesses
            k++;
        g->row[i].n_guess = k;
        n_guess += k;
    }
    if (n_guess > 0) {
        d->pause = 1;
        return true;
    }
    for (int order = 0; order < DRAFT_ORDERS; order++) {    // texts change: what was bad is tried again one day
        d->tried[order] *= 0.98;
        d->kept[order] *= 0.98;
    }
    d->pause = MIN(2 * MAX(d->pause, 1), WAIT_MAX);
    d->wait = d->pause;
    return false;
}

/* ---- a step with guesses ---- */
/* Fill in the inputs of all samples' rows; returns how many. */
static int64_t rows_fill(struct generator *g)
{
    int64_t n = 0, page_tok = g->pages.page_tok;
    for (int64_t i = 0; i < g->n_run; i++) {
        const struct row *r = &g->row[i];
        const int32_t *page = row_table(g, i);
        for (int64_t k = 0; k <= r->n_guess; k++, n++) {
            int64_t pos = r->entry->spec.n_prompt + r->n_tok - 1 + k;
            g->token[n] = k ? g->draft.guess[i * DRAFT_MAX + k - 1].id : r->token[r->n_tok - 1];
            g->pos[n] = (int32_t)pos;
            g->slot[n] = (int32_t)(page[pos / page_tok] * page_tok + pos % page_tok);
            g->kv_len[n] = (int32_t)pos + 1;
            sample_fill(g, n, r, k);
            memcpy((int32_t *)g->table.host + n * g->max_page, page, (size_t)r->n_page * sizeof *page);
        }
    }
    return n;
}

/* Take the tokens of row i, whose first row of the step was at place: those up to the first that was not guessed. */
static bool row_take(struct generator *g, int64_t i, int64_t place, const struct landed *l, struct error *err)
{
    struct row *r = &g->row[i];
    const struct draft_token *guess = g->draft.guess + i * DRAFT_MAX;
    int64_t n_guess = r->n_guess;
    bool ended = false, is_true = true;
    g->stats.n_draft += n_guess;
    for (int64_t k = 0; k <= n_guess && is_true && !ended; k++) {
        int32_t id = l->id[place + k];
        is_true = k < n_guess && guess[k].id == id;
        if (k < n_guess)
            guess_note(&g->draft, guess[k].order, is_true);
        g->stats.n_accepted += is_true;
        if (!row_token_take(g, i, place + k, l, &ended, err))
            return false;
    }
    return true;
}

bool drafts_decode(struct generator *g, struct error *err)
{
    int32_t longest = 0;
    int64_t n_kv = 0;
    int64_t place[DRAFT_SEQ_MAX], n = rows_fill(g), n_row = step_rows(g, n);
    for (int64_t i = 0, at = 0; i < g->n_run; at += 1 + g->row[i++].n_guess)
        place[i] = at;
    for (int64_t i = 0; i < n; i++) {
        longest = MAX(longest, g->kv_len[i]);
        n_kv += g->kv_len[i];
    }
    step_count(g, n, n_kv);
    rows_blank(g, n, n_row);
    if (!mirror_up(g->dev, &g->table, err))
        return false;
    mirror_flip(&g->table);
    g->table_changed = false;
    if (!step_send(g, err))
        return false;
    g->table_changed = true;    // other steps have a row of it per sample
    struct decode_batch batch = step_batch(g, n_row, longest);
    batch.in_runs = true;
    if (!step_launch(g, &batch, err) || !mirror_down(g->dev, &g->result, err) || !mark_set(g->dev, g->flight[0].landed, err)
        || !mark_wait(g->dev, g->flight[0].landed, err))
        return false;
    struct landed l = landed_of(g, g->result.host, g->version);
    for (int64_t i = g->n_run - 1; i >= 0; i--)    // one that ends makes room for the last, which is done
        if (!row_take(g, i, place[i], &l, err))
            return false;
    drafts_time_note(g, n, !g->launch_was_new);
    return true;
}
