/* atropos_group.h - a posted group as a rollout group that the run can train on
 *
 * tokens and masks become a prompt that all sequences share (the longest common beginning that is masked) and what follows, where a
 * masked token is one that is only read. The log-probs are those when sampled, or none (group.no_logp), the scores rewards. An advantage
 * per token, and set_advantage_to_zero, take the place of what rewards would give. Temperatures: of the sequence in overrides, else of
 * generation_params, else of group_overrides, else 1, as in Atropos' example trainer. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "workers/atropos/atropos_data.h"

struct posted_rules {
    int64_t max_seq_tok;       // longest sequence the trainer has memory for
    int64_t n_id;              // the tokenizer's ids are below; a model's table may have more rows
    const char *needs_logp;    // what is made of the log-probs recorded when sampling (loss_needs_sampled); NULL: nothing
};
/* The group of this item; weight_version is that of posted. Returns it for group_free. NULL: it cannot be trained on, and err says why. */
struct group *posted_group(const struct scored *posted, const struct posted_rules *rules, int64_t item, struct error *err);
/* A group in place of one that was accepted and cannot be trained on after all: one sample of one token, left out. */
struct group *posted_none(int64_t item, int64_t version, struct error *err);
/* The version that generation_params or group_overrides give as weight_version, at most now; -1: neither does. */
int64_t posted_version(const struct scored *posted, int64_t now);
