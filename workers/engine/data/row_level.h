/* row_level.h - how difficult the rows of a data set are: their levels, for a curriculum
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"

#define LEVEL_EVERY 255    // of a row that is of every level

/* The levels of a run's rows, as far as they have been looked at. */
struct row_levels {
    int64_t n[CURRICULUM_LEVELS_MAX];    // rows of each level
    int64_t n_every;                     // rows without one
};
/* The level of a row: the whole number in c->curriculum_column, LEVEL_EVERY when that is absent or null; it is counted in all. Fails with
 * ERR_DATA, naming the column but not the place, where it is something else. */
MUST_USE bool row_level(const json_t *row, const struct run_config *c, uint8_t *level, struct row_levels *all, struct error *err);
bool row_levels_any(const struct row_levels *all);    // has any row a level of its own?
/* Once all rows were looked at: can c's curriculum do anything with them? ERR_DATA: a level has no rows; or no row has a level, and there
 * is no environment to be told the run's. */
MUST_USE bool row_levels_check(const struct row_levels *all, const struct run_config *c, struct error *err);
