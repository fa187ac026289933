/* rollout_log.h - log.jsonl beside the rollouts: what the model says, for a person to read while the run goes on
 *
 * One line for the first rollout step and for each whose weights are an interval of optimizer steps past the last line's,
 * {"train_step":n,"rollout":[text...]} with sample 0 of each prompt, as `rollcall rollouts --log` prints it. Owned by the
 * controller's loop thread, which takes one group a turn, so that no step waits for a line. The file is its own memory:
 * a later controller continues after the last whole line. Nothing depends on it, so what cannot be written is logged once and
 * left out. */
#pragma once
#include "workers/schedule/ledger.h"
struct rollout_log;
/* Open dir/log.jsonl for appending, made when missing; a half-written last line is cut off. */
struct rollout_log *rollout_log_open(const char *dir, struct error *err);
void rollout_log_close(struct rollout_log *l);    // NULL is fine
/* Go on with the next group, or step past what is not due. groups_path: the rollout file that the ledger's offsets are of.
 * interval: optimizer steps, 0 for no lines. False: there is nothing to do before more groups have come. */
bool rollout_log_turn(struct rollout_log *l, const struct ledger *ledger, const char *groups_path, int64_t interval);
