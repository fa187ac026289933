/* exchange.h - gradients of several ranks, added up piece by piece while the ranks compute on
 *
 * A gradient is cut into pieces, and a piece into shards, one for each rank (collective_shard). A
 * shard's owner keeps the sum of that shard. Pieces without elements are left out.
 *
 * A give is one piece of one rank's gradient. One give, with three ranks, on its way to the owners:
 *
 *   rank 0, slot    [ shard 0 | shard 1 | shard 2 ]    the device computes the gradient here
 *                       |         |         |
 *                       |         |         +-> rank 2, stage    copies by the lanes: "pushed"
 *                       |         +-----------> rank 1, stage
 *                       v
 *   rank 0, sum     sum = ((sum + x_0) + x_1) + x_2    added in rank order: "taken"
 *                                  ^      ^
 *   rank 0, stage         [ from rank 1 | from rank 2 ]
 *
 *   exchange_slot -> computing -> exchange_give -> ready -> pushed -> taken -> the slot is free
 *                                 (given)
 *
 * Every rank gives the pieces in the same order, round after round. A round goes from the last
 * piece to the first. On a stage of a pipeline the first piece may be given some rounds later
 * (exchange_config.late). The copies and the sums run beside what the devices compute.
 *
 * No device waits for another process. The host looks at marks and counters (exchange_poll) and
 * asks for the next step when the one before it is done. So a dead rank never leaves a kernel
 * waiting.
 *
 * How far ranks may be apart in time: a slot is free again when its copies have left and this rank
 * has made its own sum of that give. A place of the stage is free again when its owner has added
 * it. With n_slot 0 every piece has a slot of its own, and a rank may be one round ahead. With
 * n_slot slots in turn it may be n_slot pieces ahead. A piece longer than slot_n takes all slots,
 * and waits until all are free.
 *
 * Ranks that cannot reach each other's memory (collective_offer) are "apart". They send the same
 * bytes from all to all (exchange_apart.c), and also what other ranks copy from each other.
 *
 * One thread calls all of this. Every call may fail with what collective_wait may fail with. */
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
#define EXCHANGE_FREE_LANE 4    // a lane that the exchange leaves to its caller
/* What an exchange works with. All pointers are borrowed until exchange_free. */
struct exchange_config {
    struct collective *c;
    struct device *dev;
    int n_piece;
    const int64_t *piece_n;    // (n_piece) elements of each piece
    float *sum;                // (device) this rank's shards of the sum, one after the other
    const int64_t *sum_at;     // (n_piece) where this rank's shard of a piece begins in sum
    float *slot;               // (device, exchange_slots_n elements) this rank's gradient
    int n_slot;                // slots that are used in turn; 0: each piece has its own
    int64_t slot_n;            // elements of one of n_slot slots
    const int64_t *slot_at;    // (n_piece) where a piece's own slot begins; read with n_slot 0
    float *stage;              // (device, exchange_stage_n elements) offered; others write here
    // Read where ranks are apart: this rank gives in every round, even without a micro-batch, since
    // it fetches weights in between. What it gives without a micro-batch is not sent.
    bool every;
    // Piece 0 of a round is given this many rounds late, after the other pieces of that later
    // round. What is left of it at the end comes after the last round.
    int late;
    int n_rank_host;    // ranks with equal rank / n_rank_host share a host (statistics); 0: all do
};
/* Elements of the stage. No piece has more than piece_max elements. A piece of more than slot_n
 * takes all places; with slot_n equal to piece_max none does. */
int64_t exchange_stage_n(int64_t piece_max, int64_t slot_n, int n_rank);
/* Elements of n_slot slots in turn, for pieces as above. */
int64_t exchange_slots_n(int64_t piece_max, int64_t slot_n, int n_slot);
/* Returns an exchange for exchange_free; NULL: see err. */
struct exchange *exchange_new(const struct exchange_config *config, struct error *err);
void exchange_free(struct exchange *x);    // NULL is fine

bool exchange_reaches(const struct exchange *x);    // false: the ranks are apart
/* Begin a step with n_grad gradients in all. The ranks make them in turn, each from one micro-batch
 * or from several. The caller has cleared sum. */
MUST_USE bool exchange_begin(struct exchange *x, int64_t n_grad, struct error *err);
/* Wait for the slot of this rank's next gradient of a piece. With n_slot, piece must be the one
 * that is given next. Returns the slot (device), the exchange's; NULL: see err. */
float *exchange_slot(struct exchange *x, int piece, struct error *err);
/* Which piece this rank gives next; -1: it gives none any more in this step. */
MUST_USE bool exchange_turn(struct exchange *x, int *piece, struct error *err);
/* Give a piece: the device has been asked for all of its gradient. */
MUST_USE bool exchange_give(struct exchange *x, int piece, struct error *err);
/* Carry on whatever can go on, without waiting. Call it now and then while there is other work. */
MUST_USE bool exchange_poll(struct exchange *x, struct error *err);
/* End the step: wait until this rank's shards of the sum are whole. */
MUST_USE bool exchange_end(struct exchange *x, struct error *err);
/* After a failure: from now on nothing of ours touches the others' memory. */
void exchange_stop(struct exchange *x);

/* Memory that is laid out alike on all ranks, and of which each rank has one part. */
struct exchange_parts {
    char *base;                              // (device) where it begins on this rank
    size_t at[EXCHANGE_RANK_MAX];            // (n_rank) where a rank's part begins
    size_t size_bytes[EXCHANGE_RANK_MAX];    // (n_rank) size of a rank's part
};
/* Send this rank's part to the others. Its device must be done with the part, which a mark says.
 * All ranks call it in the same order, after exchange_begin and before exchange_stop. Ranks that
 * reach each other's memory have offered it, and it is copied beside what the devices do. Ranks
 * that are apart wait for each other in the call. */
MUST_USE bool exchange_share(struct exchange *x, const struct exchange_parts *p, struct error *err);
/* Wait until what every rank has shared is there on every rank. */
MUST_USE bool exchange_sent(struct exchange *x, struct error *err);

/* The next four are for ranks that are apart. All ranks make the same calls in the same order.
 *
 * Ask for a whole piece of the weights, to be written to `to` (device). This rank's shard of it is
 * at own (device). Pieces come in the order in which they are asked for, and each one when the
 * devices of all ranks have done what they were given before. */
MUST_USE bool exchange_fetch(struct exchange *x, int piece, const void *own, void *to, size_t elem_bytes, struct error *err);
/* Wait for the last fetch of a piece. The rank's own shard of it comes in the device's order. */
MUST_USE bool exchange_await(struct exchange *x, int piece, struct error *err);
/* Send size_bytes[q] bytes from mine (device) on every rank q above 0 to the first rank. There they
 * go to stage + (q - 1) * each (device). size_bytes is (n_rank). */
MUST_USE bool exchange_to_first(struct exchange *x, const void *mine, const size_t *size_bytes, void *stage, size_t each,
                                struct error *err);
/* Put the shards of a piece's sum together, from all ranks, in to (device, the whole piece). at is
 * the rank that gets it; with -1 all do. */
MUST_USE bool exchange_collect(struct exchange *x, int piece, int at, float *to, struct error *err);

/* Measure a caller's own copies of others' memory to this rank, on EXCHANGE_FREE_LANE. What the
 * lane is asked for between these two counts as gathered; n_bytes of it come from other ranks. */
MUST_USE bool exchange_fetch_begin(struct exchange *x, struct error *err);
MUST_USE bool exchange_fetch_end(struct exchange *x, int64_t n_bytes, struct error *err);
/* Measure how long the device waits for such a copy: call it before and after the wait is asked
 * for. */
MUST_USE bool exchange_stall(struct exchange *x, bool begins, struct error *err);
/* Wait for all ranks, as collective_gather does: each gives mine (size_bytes) and gets all (n_rank
 * times size_bytes). The time counts as lost to the rank that comes last. */
MUST_USE bool exchange_meet(struct exchange *x, const void *mine, size_t size_bytes, void *all, struct error *err);

/* What the exchange has cost this rank. Times of copies and of sums are the device's own, each as
 * if nothing else went on. */
struct exchange_stats {
    double reduce_s;                     // gradients to their owners, and the owner's sums of them
    double gather_s;                     // sums and weights from owners to the other ranks
    int64_t reduce_bytes;                // sent to other ranks, for reduce_s
    int64_t gather_bytes;                // sent to other ranks or fetched from them, for gather_s
    int64_t reduce_host_bytes;           // the part of reduce_bytes that went to other hosts
    int64_t gather_host_bytes;           // the part of gather_bytes that went to other hosts
    double exposed_s;                    // the device stood still for a copy or a sum
    double late_s[EXCHANGE_RANK_MAX];    // it stood still since this rank had not computed its part
    double late_sum_s;                   // the sum of late_s
};
/* Costs since the last such call. Waits until all that is measured is done. */
MUST_USE bool exchange_stats_take(struct exchange *x, struct exchange_stats *stats, struct error *err);
