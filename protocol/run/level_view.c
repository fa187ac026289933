#include "protocol/run/level_view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "protocol/wire/message.h"

void level_view_read(struct level_view *v, const struct mval *map)
{
    *v = (struct level_view){ .level = mval_i64(mval_get(map, "level"), 0),
                              .n_level = mval_i64(mval_get(map, "levels"), 0),
                              .n_group = mval_i64(mval_get(map, "groups"), 0),
                              .n_group_needed = mval_i64(mval_get(map, "of"), 0),
                              .share = mval_f64(mval_get(map, "share"), NAN),
                              .harder = mval_f64(mval_get(map, "harder"), NAN),
                              .easier = mval_f64(mval_get(map, "easier"), 0) };
}

const char *level_view_say(const struct level_view *v, char *out, size_t size)
{
    char right[32] = "", easier[48] = "";
    out[0] = 0;
    if (v->n_level <= 0)
        return out;
    if (!isnan(v->share))
        snprintf(right, sizeof right, ", %.0f %% right", 100 * v->share);
    if (v->easier > 0)
        snprintf(easier, sizeof easier, ", easier at %.0f %%", 100 * v->easier);
    snprintf(out, size, "level %" PRId64 " of 0 to %" PRId64 ": %" PRId64 " of %" PRId64 " groups%s; harder from %.0f %%%s", v->level,
             v->n_level - 1, v->n_group, v->n_group_needed, right, 100 * v->harder, easier);
    return out;
}
