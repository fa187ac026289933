#include "workers/engine/data/row_level.h"
#include <inttypes.h>

bool row_level(const json_t *row, const struct run_config *c, uint8_t *level, struct row_levels *all, struct error *err)
{
    const json_t *own = json_object_get(row, c->curriculum_column);
    json_int_t n = json_integer_value(own);
    if (!own || json_is_null(own)) {
        *level = LEVEL_EVERY;
        all->n_every++;
        return true;
    }
    if (!json_is_integer(own) || n < 0 || n >= c->curriculum_levels)
        return error_set(err, ERR_DATA,
                         "'%s' is no level: it must be a whole number from 0 to %" PRId64
                         ", the last of 'curriculum_levels'; or name another "
                         "column in 'curriculum_column'",
                         c->curriculum_column, c->curriculum_levels - 1);
    *level = (uint8_t)n;
    all->n[n]++;
    return true;
}

bool row_levels_any(const struct row_levels *all)
{
    for (int i = 0; i < CURRICULUM_LEVELS_MAX; i++)
        if (all->n[i] > 0)
            return true;
    return false;
}

bool row_levels_check(const struct row_levels *all, const struct run_config *c, struct error *err)
{
    if (!row_levels_any(all) && !c->environment[0])
        return error_set(err, ERR_DATA,
                         "'curriculum_levels' is %" PRId64
                         ", but no row of '%s' has a column '%s', and there is no 'environment' that could "
                         "be told the level; give the rows their levels, or set 'curriculum_levels' to 1",
                         c->curriculum_levels, c->dataset, c->curriculum_column);
    for (int64_t i = 0; row_levels_any(all) && all->n_every == 0 && i < c->curriculum_levels; i++)
        if (all->n[i] == 0)
            return error_set(err, ERR_DATA,
                             "no row of '%s' that is short enough has level %" PRId64 " in '%s', and 'curriculum_levels' is %" PRId64,
                             c->dataset, i, c->curriculum_column, c->curriculum_levels);
    return true;
}
