/* tails.h - the tails of rollout steps with over_sample_rate: what workers are told of them, and the items they have stopped
 *
 * ledger.h says which groups of a rollout step count. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"

struct controller;
struct ledger_item;
struct msg_in;
struct msg_out;
struct request;
/* Groups of a rollout step that can count, by the settings at; 0: all. */
int64_t tails_need(const struct controller *c, const struct run_config *at);
/* Add the list tails to a task: of each open rollout step that has enough groups its number, and the tokens that no sample may pass. */
void tails_write(const struct controller *c, struct msg_out *m);
/* Is item i certain not to count, with a sample of n_tok tokens? */
bool tails_passed(const struct controller *c, const struct ledger_item *i, int64_t n_tok);
/* Item i, which is out and certain not to count, is stopped; n_drawn tokens were drawn for it. */
MUST_USE bool tails_stop(struct controller *c, const struct ledger_item *i, int64_t n_drawn, struct error *err);
/* Message stopped: a worker has stopped an item. */
void tails_stopped(struct controller *c, struct request *r, const struct msg_in *in);
