/* levels.h - the level of difficulty that a run's prompts have (curriculum_levels), and what it follows from
 *
 * The rule is workers/schedule/curriculum.h. It is applied when a rollout step is cut, a moment of logical time, and holds for the rollout
 * step that this cut lets open, so the levels repeat to the byte. The journal holds what each cut left; an operator's rollback takes
 * back that of the steps which are cut again. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "workers/schedule/curriculum.h"

struct controller;
struct ledger_item;
struct msg_out;
struct mval;
struct levels {
    struct curriculum *after;    // (n) after the cut of rollout step first + k; owned
    int64_t first, n, cap;
    struct buf rows;    // a byte for each usable prompt (row_level.h); empty: they have no levels
    bool told;          // a worker has said so, in this run or before a resume
};
#define LEVELS_STEPS 64    // rollout steps of a value in the journal
void levels_release(struct levels *l);
bool levels_on(const struct controller *c);
bool levels_known(const struct controller *c);               // false: no item may be opened yet, as the rows' levels are to be told
const uint8_t *levels_rows(const struct controller *c);      // (n_row); NULL: they have none
struct curriculum levels_now(const struct controller *c);    // after the last cut
int64_t levels_at(const struct controller *c, int64_t rollout_step);           // the level that a rollout step is opened with
int64_t levels_of(const struct controller *c, const struct ledger_item *i);    // of an item's prompt
/* A worker has loaded the data and reports the rows' levels; NULL: its report has no such field. */
MUST_USE bool levels_take(struct controller *c, const struct mval *rows, struct error *err);
MUST_USE bool levels_rows_check(const struct controller *c, struct error *err);    // are they of as many prompts as there are?
/* A rollout step has been cut, and with its groups the curriculum is now: decide, and keep it. at: the settings of that cut. */
MUST_USE bool levels_cut(struct controller *c, int64_t rollout_step, struct curriculum *now, const struct run_config *at,
                         struct error *err);
/* Take what the rollout steps before n_cut have led to from the journal, and the rows' levels. */
MUST_USE bool levels_load(struct controller *c, int64_t n_cut, struct error *err);
void levels_write(const struct controller *c, struct msg_out *m);    // the map level of status
