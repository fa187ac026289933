/* exchange.h - gradients of several ranks, added up piece by piece while the ranks compute on
 *
 * A gradient is cut into pieces, which every rank gives in the same order, from the last piece to the first, round after round; of
 * a stage of a pipeline the first piece may be given some rounds late (exchange_config.late). Pieces without elements are left out. A
 * piece is cut into shards (collective_shard); the shard's owner keeps its sum. A give goes two steps of its way beside what the
 * devices compute: each rank copies the others' shards into the owners' stage (lanes; copy engines on a GPU), and each owner adds
 * what has come, in rank order: sum = ((sum + x_0) + x_1) + ... Nothing waits on a device for another process: the host looks at
 * marks and counters (exchange_poll) and asks for the next step when the one before it is done, so a dead rank never leaves a
 * kernel waiting.
 *
 * How far ranks may be apart: a rank's place for a gradient is free again when its copies have left and its own sum has been made;
 * a place of the stage when its owner has added it. With n_slot 0 every piece has a place of its own, and a rank may be a round
 * ahead; with n_slot places in turn, so many pieces. A piece longer than slot_n takes all of the places, and waits for all of them.
 *
 * Where the ranks cannot reach each other's memory (collective_offer), they are apart: the same goes as bytes from all to all
 * (exchange_apart.c), and so does what they otherwise copy from each other. One thread; every call may fail with what collective_wait
 * may. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct collective;
struct device;
struct exchange;
#define EXCHANGE_RANK_MAX 64
#define EXCHANGE_STAGES 2       // places of the stage, taken in turn
#define EXCHANGE_FREE_LANE 4    // a lane that it does not use
struct exchange_config {
    struct collective *c;    // all of these are borrowed until exchange_free
    struct device *dev;
    int n_piece;
    const int64_t *piece_n;    // (n_piece) elements
    float *sum;                // (device) this rank's shards of the sum, one after the other
    const int64_t *sum_at;     // (n_piece) where a piece's begins
    float *slot;               // (device) places of this rank's gradient
    int n_slot;                // so many places in turn, slot_n elements apart; 0: a place for each piece,
    int64_t slot_n;            // (exchange_slots_n elements in all)
    const int64_t *slot_at;    // (n_piece) there
    float *stage;              // (exchange_stage_n) in memory that was offered; what arrives from others
    bool every;         // apart: this rank gives in every round, also without a micro-batch, since it fetches in between; what it then
                        // gives goes nowhere
    int late;           // piece 0 is given so many rounds after its own, behind the other pieces of that round or of the last one
    int n_rank_host;    // ranks r with the same r / n_rank_host are on one host, for exchange_stats; 0: all of them
};
/* Elements of the stage, and of n_slot places in turn, for pieces of at most piece_max elements of which those above slot_n take all places
 * (slot_n piece_max: none does). */
int64_t exchange_stage_n(int64_t piece_max, int64_t slot_n, int n_rank);
int64_t exchange_slots_n(int64_t piece_max, int64_t slot_n, int n_slot);
struct exchange *exchange_new(const struct exchange_config *config, struct error *err);
void exchange_free(struct exchange *x);    // NULL is fine

bool exchange_reaches(const struct exchange *x);    // the others' memory; else the ranks are apart
/* A step with n_grad gradients in all, of a micro-batch or of several each, which the ranks make in turn; the caller has cleared sum. */
MUST_USE bool exchange_begin(struct exchange *x, int64_t n_grad, struct error *err);
/* The place for this rank's next gradient of a piece, once it is free; with n_slot, of the piece that is given next. NULL: see err. */
float *exchange_slot(struct exchange *x, int piece, struct error *err);
/* Which piece this rank gives next; -1: none any more in this step. */
MUST_USE bool exchange_turn(struct exchange *x, int *piece, struct error *err);
/* All of its gradient has been asked of the device. */
MUST_USE bool exchange_give(struct exchange *x, int piece, struct error *err);
/* Carry on whatever can be; to be called now and then while there is something else to do. */
MUST_USE bool exchange_poll(struct exchange *x, struct error *err);
/* Until this rank's shards of the sum are whole. */
MUST_USE bool exchange_end(struct exchange *x, struct error *err);
/* After a failure: nothing of ours touches the others' memory any more. */
void exchange_stop(struct exchange *x);

/* Every rank's part of memory that is laid out alike on all of them, to the others: what this one has must be done (a mark). All ranks
 * call it in the same order, after exchange_begin and before exchange_stop. Where ranks reach each other's memory it was offered, and is
 * copied beside what the devices do; apart all ranks wait for it. */
struct exchange_parts {
    char *base;                                                     // (device) on this rank
    size_t at[EXCHANGE_RANK_MAX], size_bytes[EXCHANGE_RANK_MAX];    // (n_rank) whose part is where
};
MUST_USE bool exchange_share(struct exchange *x, const struct exchange_parts *p, struct error *err);
/* Until what every rank has shared is there on every rank. */
MUST_USE bool exchange_sent(struct exchange *x, struct error *err);

/* The next four are for ranks that are apart, all of which make the same calls in the same order.
 * Ask for a whole piece of the weights, whose shard this rank has at own (device), to `to` (device): its bytes go when the device has done
 * what it was given before on all ranks, in the order of what they are asked for. And wait for the last one asked for of a piece; a
 * rank's own shard comes in the device's order. */
MUST_USE bool exchange_fetch(struct exchange *x, int piece, const void *own, void *to, size_t elem_bytes, struct error *err);
MUST_USE bool exchange_await(struct exchange *x, int piece, struct error *err);
/* To the first rank, at stage + (q - 1) * each (device), what every other rank q has at mine: size_bytes[q] (n_rank). */
MUST_USE bool exchange_to_first(struct exchange *x, const void *mine, const size_t *size_bytes, void *stage, size_t each,
                                struct error *err);
/* to (device, the whole piece) = the shards of its sum, of all ranks; on rank `at` alone, or with -1 on all. */
MUST_USE bool exchange_collect(struct exchange *x, int piece, int at, float *to, struct error *err);
/* Copies of others' memory to this rank on EXCHANGE_FREE_LANE, for which its owner has no part to play: what is asked for between
 * these two counts as gathered. n_bytes: of others. */
MUST_USE bool exchange_fetch_begin(struct exchange *x, struct error *err);
MUST_USE bool exchange_fetch_end(struct exchange *x, int64_t n_bytes, struct error *err);
/* Around what makes the device wait for such a copy. */
MUST_USE bool exchange_stall(struct exchange *x, bool begins, struct error *err);
/* Wait for all ranks, which give mine and get all as of collective_gather; the time counts as lost to the one that comes last. */
MUST_USE bool exchange_meet(struct exchange *x, const void *mine, size_t size_bytes, void *all, struct error *err);

/* What the exchange has cost this rank. Times of copies and sums are the device's own, each as if nothing else went on. */
struct exchange_stats {
    double reduce_s;                                 // gradients to their owners, and the owner's sums of them
    double gather_s;                                 // what owners send to all, or all fetch from them: sums, weights
    int64_t reduce_bytes, gather_bytes;              // sent to other ranks, or fetched from them
    int64_t reduce_host_bytes, gather_host_bytes;    // of these, those sent to ranks of other hosts
    double exposed_s;                                // the device stood still for such a copy or sum
    double late_s[EXCHANGE_RANK_MAX], late_sum_s;    // it stood still since this rank had not computed its part yet; the sum
};
/* Since the last such call; waits until all that is measured is done. */
MUST_USE bool exchange_stats_take(struct exchange *x, struct exchange_stats *stats, struct error *err);
