#include "workers/worker/held.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/team.h"

struct model *held_add(struct engine *e, struct model *m)
{
    BUG_IF(e->n_held == ARRAY_SIZE(e->held), "a load has more models than holdings");
    if (m)
        e->held[e->n_held++] = m;
    return m;
}

size_t held_bytes(const struct engine *e, int q)
{
    size_t sum = 0;
    for (size_t i = 0; i < e->n_held; i++)
        if (e->held[i] != e->bare && q < model_n_device(e->held[i]))
            sum += model_held_bytes(q == 0 ? e->held[i] : team_slice(e->held[i], q));
    return sum;
}

void held_free(struct engine *e)
{
    while (e->n_held > 0)
        model_free(e->held[--e->n_held]);
    e->model = e->ref = e->sampler = e->trained = e->copy = NULL;
    e->bare = NULL;
}
