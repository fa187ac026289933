/* schedule.h - the ledger and the journal move together: what changes in one is in the other with the next commit */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"

struct controller;
struct ledger_item;
MUST_USE bool ledger_prepare(struct controller *c, int64_t n_row, struct error *err);    // once n_row is known
/* Hold all items again that the run has had, from the journal, so that it can go back further than it kept in reach. */
MUST_USE bool ledger_reload(struct controller *c, struct error *err);
MUST_USE bool state_save(struct controller *c, struct error *err);    // the ledger's cursors
/* How far the run goes, from max_steps or num_episodes as they are now. */
MUST_USE bool length_set(struct controller *c, struct error *err);
/* Items that are opened at once: a rollout step's; free-running: as many as a batch takes. */
int64_t open_n(const struct controller *c, const struct run_config *at);
MUST_USE bool ledger_advance(struct controller *c, struct error *err);    // cut and open what can be
MUST_USE bool item_write(struct controller *c, const struct ledger_item *i, struct error *err);
MUST_USE bool ledger_step_done(struct controller *c, int64_t batch, struct error *err);
MUST_USE bool ledger_back(struct controller *c, int64_t step, struct error *err);    // what was trained on after step is to be again
/* Go back on an operator's word (ledger_rewind); ledger_advance is to follow once the settings are those of that step. */
MUST_USE bool ledger_undo(struct controller *c, int64_t step, struct error *err);
/* n groups' records turn out to be damaged or missing, and are marked lost in the ledger: what is still needed of them is sampled again.
 * why: for the alert. */
MUST_USE bool groups_lost(struct controller *c, int64_t n, const struct error *why, struct error *err);
