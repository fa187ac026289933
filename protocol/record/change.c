#include "protocol/record/change.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHANGE_FAR 10000    // steps in which a change of rollout steps is looked for

/* From when on the changes act, by the words in their facts: "optimizer step 77", "rollout step 12", "now". Several: the first. */
static void changes_place(struct change *c, const json_t *changes)
{
    size_t i;
    json_t *one;
    json_array_foreach(changes, i, one)
    {
        const char *from = json_string_value(json_object_get(one, "from"));
        int64_t n;
        if (from && sscanf(from, "rollout step %" SCNd64, &n) == 1) {
            c->from_rollout = c->from_rollout > 0 ? MIN(c->from_rollout, n) : n;
            continue;
        }
        if (!from || sscanf(from, "optimizer step %" SCNd64, &n) != 1)
            n = c->step + 1;
        c->from_step = c->from_step > 0 ? MIN(c->from_step, n) : n;
    }
}

struct change change_read(const char *kind, int64_t step, const json_t *facts)
{
    struct change c = { .step = step };
    const json_t *changes = json_object_get(facts, "changes"), *back = json_object_get(facts, "step");
    c.kind = json_is_array(changes)                           ? CHANGE_SETTINGS
             : strcmp(kind, "return") == 0                    ? CHANGE_RETURN
             : json_is_string(json_object_get(facts, "note")) ? CHANGE_NOTE
                                                              : CHANGE_NONE;
    changes_place(&c, changes);
    if (strcmp(kind, "return") == 0 && json_is_integer(back))
        c.from_step = json_integer_value(back) + 1;
    return c;
}

int64_t change_shown(const struct change *c, const struct series *rollout, int64_t n_step)
{
    if (c->kind == CHANGE_NONE)
        return -1;
    if (c->kind == CHANGE_NOTE)
        return MAX(c->step, (int64_t)1);
    if (c->from_step > 0 || c->from_rollout <= 0)
        return c->from_step > 0 ? c->from_step : c->step + 1;
    for (int64_t s = c->step + 1; s < MIN(n_step, c->step + CHANGE_FAR); s++)
        if (series_at(rollout, s) >= (double)(c->from_rollout - 1))    // the metric counts from 0
            return s;
    return -1;
}
