/* status_page.h - the fields of open-instruct's queue dashboard (GET /api/status there) as JSON, from a run's journal
 *
 * Same names, so that its page and scripts that read it work. What a run here does not have or count is null: there is no queue of
 * prompts (items are leased), and prompts' tokens are not summed up. Rates are over the last STATUS_STEPS steps until now, so they sink
 * while nothing happens, as there. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/record/journal.h"
#include "protocol/settings/run_config.h"

#define STATUS_STEPS 100
struct status_page {
    struct {
        double wall_s, step_s, generate_s, tokens;    // NAN: not known; tokens: sampled so far
    } step[STATUS_STEPS];                             // of step n at n % STATUS_STEPS
    int64_t n_step;                                   // seen
    int64_t last_step;                                // its number; 0: none yet
    double buffer_depth, waiting;                     // of the last step; NAN: not known
    double env_count, env_per_min, env_age, env_refused, env_full;
};
void status_page_init(struct status_page *p);
void status_page_see(struct status_page *p, const struct journal_step *row);
/* goes_on: the run has not ended. */
void status_page_print(const struct status_page *p, const struct run_config *c, bool goes_on, double now_s, struct buf *out);
