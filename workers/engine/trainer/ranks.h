/* ranks.h - one optimizer step shared by several trainers: data parallel
 *
 * Every rank holds all the weights and the whole batch's groups, and calls ranks_step with the same arguments on its device thread.
 * Each takes its share of the groups, gradients are added in rank order, all make the same update, and the new weights are compared
 * by hash: the same number of ranks gives the same bytes; another number gives another order of fp32 sums and no other difference. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/trainer/loss.h"
#include "protocol/run/group.h"

struct collective;    // kernels/collective/collective.h
struct trainer;

/* The name of a meeting of the trainers (collective_call, collective_join): of a round that the controller has numbered. */
void ranks_name(int64_t round, char *out, size_t size);
/* Cut a batch for n_rank ranks: rank r has groups [first[r], first[r + 1]). In the order of the groups, balanced by the tokens that
 * have to be computed, as near as whole groups allow; a pure function of its arguments. first: (n_rank + 1). */
void ranks_cut(const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, int n_rank, int64_t *first);
/* As trainer_step. ERR_CLOSED, ERR_TIMEOUT: another rank has gone, or does not come. After any failure the caller leaves the
 * collective, which lets the others go, and its weights are not to be used. Other weights than another rank's are ERR_INTERNAL. */
MUST_USE bool ranks_step(struct trainer *t, struct collective *c, const struct group *const *groups, int64_t n_group,
                         const struct trainer_hyper *h, double *metric, struct error *err);
