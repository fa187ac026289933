/* generator_parts.h - internals of the generator; only for generator*.c. generator.c says how it works. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/draft.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/sampler/mirror.h"
#include "workers/engine/sampler/pagedkv.h"
#include "workers/engine/sampler/prefix_cache.h"
#include "workers/engine/pass/pass.h"

#define DRAFT_ROWS 64         // most rows of a step with guesses
#define DRAFT_SEQ_MAX 32      // most samples that it is tried with
#define PREFILLS_MAX 4        // prefills of a round: a decode step of few rows takes nearly as long as one of all that wait
#define PREFILL_SEQ_MAX 64    // prompts of one prefill; bounds the rows of logits it needs

/* A sample that has ended, waiting for the rest of its group, or that was put back and goes on later (generator_pages.c). */
struct ended {
    int64_t n_tok;
    int32_t *token;    // (n_tok) owned, with the next three after it in the same block
    float *logp;       // (n_tok)
    float *entropy;    // (n_tok)
    int32_t *newer;    // (n_tok)
    enum finish_reason finish;
    bool is_back;
};
/* One item inside the generator; one block of memory with its prompt, seeds and ended samples. */
struct entry {
    struct entry *next;
    struct generator_item spec;    // prompt and seed point into the block
    int64_t version;               // version its prompt was run with
    int64_t start_ns;              // when its prompt was run
    int64_t order;                 // of its start among all entries
    int32_t n_admitted, n_ended;
    int32_t n_back;            // samples that were put back and wait
    struct ended *ended;       // (n_sample)
    int32_t *page;             // (n_page) of the prompt while held is true
    int64_t n_page, n_full;    // pages of the prompt; the full ones of them
    int64_t n_cached;          // tokens of the prompt that were in the cache
    int64_t epoch;             // the generator's epoch when its prompt was run
    int32_t state;             // slot of the state at the prompt's end, while held is true and the model has states
    bool held;
};
struct row {
    struct entry *entry;
    int32_t sample;      // index in its item
    int64_t n_tok;       // sampled so far
    int32_t *token;      // (max_seq_tok) owned by the generator
    float *logp;         // (max_seq_tok)
    float *entropy;      // (max_seq_tok) 0 unless the generator keeps it
    int32_t *newer;      // (max_seq_tok) as in struct group
    int32_t state;       // slot of its state, where the model has states
    int64_t n_page;      // in its row of the table; it takes the next when it gets there
    int32_t n_ahead;     // tokens drawn for it in flights: 0 or 1
    int32_t place[2];    // its place in each flight; -1: none
    int64_t n_guess;     // guesses at its next tokens in this step (generator_draft.c)
};
struct flight {
    int64_t n;             // rows it was launched with; 0: no flight
    int64_t version;       // of the weights that draw its tokens
    int32_t *now;          // (max_seq) which row stands at each place; -1: gone
    const void *result;    // where its tokens arrive on the host
    struct mark *landed;
};
/* What a step has drawn. */
struct landed {
    const int32_t *id;       // (max_row) host
    const float *logp;       // (max_row) host
    const float *entropy;    // (max_row) host; NULL: not kept
    int64_t version;         // of the weights that drew it
};
/* How long steps of a size take. */
struct step_time {
    double s;         // 0: not known
    int64_t round;    // the last one of this size
};
/* Guesses at next tokens, and what is known about whether they are worth while (generator_draft.c). */
struct drafts {
    struct draft_table table;                          // slot NULL: there are no guesses
    struct draft_token *guess;                         // (min(max_seq, DRAFT_SEQ_MAX), DRAFT_MAX) of each row
    uint8_t *level;                                    // of the same shape: how likely each is reached and true
    double tried[DRAFT_ORDERS], kept[DRAFT_ORDERS];    // guesses that were reached, and that came true, the latest of them
    struct step_time time[DRAFT_ROWS + 1];             // by rows
    int64_t last_ns;                                   // when the last decode step ended; 0: something else came in between
    int64_t wait, pause;                               // rounds until guessing is tried again; what wait began from
};
struct entry_list {
    struct entry *first, *last;
    int64_t n;
};
/* A decode step of a fixed number of rows, recorded where the device can do that: unused rows are marked as not a
 * sequence. The first step of a size runs unrecorded, so that the operations can do their one-time set-up; the second
 * is recorded. */
#define DECODE_GRAPH_MAX 64
struct decode_graph {
    int64_t n_row;
    bool in_runs;           // as in struct decode_batch
    struct graph *graph;    // NULL: not recorded yet
};
struct generator {
    struct generator_config config;
    struct device *dev;    // the model's
    struct model_run *run;
    struct kv_pool *kv;
    struct pagedkv pages;
    struct pagedkv states;            // slots of states, a page each; n_page 0: the model has none
    struct prefix_cache cache;        // entry NULL: no cache
    int64_t epoch;                    // how often the weights have changed
    int32_t *cache_token;             // (max_seq_tok) host: a sequence on its way into the cache
    int32_t *prefill_start;           // (PREFILL_SEQ_MAX) host: where each sequence of a prefill continues
    int32_t *prefill_past;            // (PREFILL_SEQ_MAX (max_page + 1)) device: for model_prefill_after
    int64_t next_order;               // of the next entry to start
    int64_t n_back;                   // samples that were put back and wait
    int64_t n_promised;               // while rows are added: pages that those there are expected to take
    double n_tok_seen, n_end_seen;    // tokens drawn and samples ended, the latest of them
    int64_t vocab, max_page;          // max_page: pages of the longest sequence
    struct entry_list waiting;
    struct entry_list running;    // started, in order of start
    int64_t n_guest;              // of these two lists
    struct entry *partial;        // the started entry with samples to admit, or NULL; unless held its prompt must be run again
    struct group **finished;      // ring of finished_cap
    int64_t finished_first, finished_n, finished_cap;
    struct row *row;    // (max_seq)
    int64_t n_run;
    int64_t max_row;    // rows of a decode step, at most: max_seq, or more where guesses are run along
    struct drafts draft;
    bool launch_was_new;    // the last step was run unrecorded or recorded, so its time says nothing
    bool behind;            // the host looks at a step's tokens after it has launched the next
    struct flight flight[2];
    int last_flight;                         // the one launched last
    struct mirror step;                      // a step's inputs for the device; the pieces below point into its host side
    int32_t *token, *pos, *slot, *kv_len;    // (max_row) as in struct decode_batch, and
    int32_t *state;                          // likewise
    int32_t *from;                           // (max_row) the row of prefill_logits a new sample starts from, or the place in the
                                             // last flight a row's token comes from
    int32_t *copy_dst, *copy_src;            // (max_row) pages to copy before the step
    struct sample_row *sample;               // (max_row)
    struct mirror ban;                       // (max_row, SAMPLE_BAN_MAX) ids that a row must not draw
    bool any_ban;                            // a row of this step has some, so it is to be sent
    int64_t n_copy;
    int32_t *state_dst, *state_src;    // (max_seq) host: states to copy before the step
    int64_t n_state_copy;
    int32_t *prefill_state;    // (PREFILL_SEQ_MAX) host: the slot of each sequence of a prefill
    int32_t *page_of;          // (max_seq, max_page) each row's pages in order
    struct mirror table;       // (max_row, max_page) the same, as sent
    bool table_changed;        // since it was sent
    struct mirror result;      // (2 or 3, max_row): sampled ids, their log-probs, and where they are kept the entropies
    int32_t *prefill_token;    // (max_tok) host: the packed prompts of one prefill
    int32_t *prefill_cu;       // (PREFILL_SEQ_MAX + 1) host
    int32_t *prefill_table;    // (PREFILL_SEQ_MAX, max_page) host
    struct entry *batch[PREFILL_SEQ_MAX];
    int64_t max_tok;          // tokens of one prefill
    float *logits;            // (max_row, vocab) device
    float *prefill_logits;    // (PREFILL_SEQ_MAX, vocab) device
    float *saved;             // (vocab) device: first logits of partial, while it holds its pages
    int64_t saved_version;    // of the weights they come from
    float *logits_host;       // (vocab) host copy of the logits for watch; NULL: no watcher, or the host reads the device's memory
    int32_t *read_target;     // (max_tok) host, with the two below: of a prefill with prompts that are watched; NULL: no read_watch
    float *read_logp, *read_temperature;
    struct generator_stats stats;
    int64_t version;
    struct decode_graph graph[DECODE_GRAPH_MAX];
    int n_graph;
};

/* (max_page) row i's pages in order. */
static inline int32_t *row_table(const struct generator *g, int64_t i)
{
    return g->page_of + i * g->max_page;
}

/* ---- generator.c: items in and out ---- */
void entries_push(struct entry_list *l, struct entry *e);
void entries_remove(struct entry_list *l, struct entry *e);
/* All samples of e have ended: put its group into the ring of finished ones, unless it is a guest, and free e. */
bool entry_finish(struct generator *g, struct entry *e, struct error *err);
void entry_pages_drop(struct generator *g, struct entry *e);    // the prompt's, when e holds them
/* Point the pieces of a step's message into its host side of now; one block, so that one copy carries it. Returns its size. */
size_t generator_step_pieces(struct generator *g);

/* ---- generator_pages.c: pages as samples use them, and slots of states ---- */
/* Take a slot, of which there is one for each sample and one for a prompt that waits for further samples; 0 where there are none. */
int32_t state_take(struct generator *g);
void state_drop(struct generator *g, int32_t state);
/* Are n pages free, perhaps after the cache has given some up? */
bool room_make(struct generator *g, int64_t n);
/* Keep the full pages of row i's sequence for later prompts. The newest token's keys are not there: it was drawn, not run. */
void row_remember(struct generator *g, int64_t i);
/* Tokens were drawn, or a sample has ended: what sample_promise judges by. */
void lengths_note(struct generator *g, int64_t n_tok, bool has_ended);
/* Pages that a sample of this item is expected to take while it runs, beyond the n_held it has. */
int64_t sample_promise(const struct generator *g, const struct generator_item *spec, int64_t n_held);
int64_t rows_promised(const struct generator *g);    // of all rows
/* Is there room for a sample that takes n_take pages now, and has n_held then? The first row always has room for the start. Reads
 * n_promised. */
bool sample_fits(struct generator *g, const struct generator_item *spec, int64_t n_take, int64_t n_held);
/* The sample that returns first of those that were put back: its number, and its entry, or NULL. */
struct entry *back_oldest(const struct generator *g, int32_t *sample);
/* Copy the row's tokens into d. */
MUST_USE bool row_keep(const struct row *r, struct ended *d, struct error *err);
/* See that every row has the page for its next token. The youngest samples are put back where pages run out; then no flight is under
 * way. */
MUST_USE bool rows_grow(struct generator *g, struct error *err);

/* For how many of row i's next n_tok tokens it has pages, after it has taken what it lacks if there are plenty. No flight is under way. */
int64_t row_room(struct generator *g, int64_t i, int64_t n_tok);

/* ---- generator_draft.c: guesses at next tokens ---- */
MUST_USE bool drafts_init(struct generator *g, struct error *err);
void drafts_release(struct generator *g);
void drafts_learn_prompt(struct generator *g, const struct entry *e);
void drafts_learn_token(struct generator *g, const struct row *r);    // its newest
/* A decode step of n_row rows has ended; counts: it went like most of its kind. */
void drafts_time_note(struct generator *g, int64_t n_row, bool counts);
/* Is it time to guess? Then no flight may be under way when the following are called. */
bool drafts_due(struct generator *g);
bool drafts_make(struct generator *g);    // false: no guess is worth while
/* A step with the guesses that were made. */
MUST_USE bool drafts_decode(struct generator *g, struct error *err);

/* ---- generator_start.c: samples become rows ---- */
/* Start what has room: samples that were put back, further ones of the started item, new items; and draw their next tokens. */
MUST_USE bool samples_start(struct generator *g, struct error *err);

/* ---- generator_step.c: a round; generator_step itself ---- */
/* Row `at` of a step's inputs: how the token of r is drawn that comes `ahead` tokens after the next one. */
void sample_fill(struct generator *g, int64_t at, const struct row *r, int64_t ahead);
/* Draw n tokens from logits (n, vocab) with the first n rows of sample. */
MUST_USE bool sample_run(struct generator *g, const float *logits, int64_t n, struct error *err);
/* Record a flight: what was just launched draws a token for each of rows row0 .. n_run - 1, if there are any. */
MUST_USE bool flight_start(struct generator *g, int64_t row0, int64_t n_place, int64_t version, struct error *err);
/* Wait for both flights, append their tokens, and end the samples that are complete; the older one first. */
MUST_USE bool flights_collect(struct generator *g, struct error *err);
/* Send the step's inputs, with the banned ids if there are any, and the page tables if they have changed. */
MUST_USE bool step_send(struct generator *g, struct error *err);
/* Rows of the recorded step that serves n: few sizes, little waste. */
int64_t graph_rows(int64_t n);
/* Mark rows n .. n_row - 1 of a step's inputs as not a sequence. */
void rows_blank(struct generator *g, int64_t n, int64_t n_row);
/* Count a decode step of n_tok rows that read n_kv tokens' keys and values. */
void step_count(struct generator *g, int64_t n_tok, int64_t n_kv);
/* A step of n_row rows with the inputs that were sent, the longest sequence of which has max_kv tokens. */
struct decode_batch step_batch(const struct generator *g, int64_t n_row, int64_t max_kv);
/* Decode and draw for batch->n rows, by the recorded step of that size where there is one. */
MUST_USE bool step_launch(struct generator *g, const struct decode_batch *batch, struct error *err);
struct landed landed_of(const struct generator *g, const void *result, int64_t version);    // result: a host's side of g->result
/* Append the token at place of l to row i. Ended: that was its last, and the row is gone. */
MUST_USE bool row_token_take(struct generator *g, int64_t i, int64_t place, const struct landed *l, bool *ended, struct error *err);
/* Take row i out and give its pages back; the last row takes its place. */
void row_remove(struct generator *g, int64_t i);
