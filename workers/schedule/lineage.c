#include "workers/schedule/lineage.h"
#include <stdlib.h>
#include "protocol/record/journal.h"

void lineage_release(struct lineage *l)
{
    free(l->part);
    *l = (struct lineage){ 0 };
}

bool lineage_turn(struct lineage *l, int64_t incarnation, int64_t from, struct error *err)
{
    if (l->n == l->cap) {
        int64_t cap = MAX(2 * l->cap, (int64_t)16);
        struct lineage_part *p = realloc(l->part, (size_t)cap * sizeof *p);
        if (!p)
            return error_set(err, ERR_NO_MEMORY, "no memory for the controller");
        l->part = p;
        l->cap = cap;
    }
    while (l->n > 0 && l->part[l->n - 1].from >= from)
        l->n--;
    l->part[l->n++] = (struct lineage_part){ incarnation, from };
    return true;
}

struct loading {
    struct lineage *lineage;
    struct error *err;
    bool ok;
};

static bool part_load(void *arg, int64_t incarnation, int64_t from)
{
    struct loading *l = arg;
    return l->ok = lineage_turn(l->lineage, incarnation, from, l->err);
}

bool lineage_load(struct lineage *l, struct journal *j, struct error *err)
{
    struct loading loading = { l, err, true };
    return journal_incarnations_read(j, part_load, &loading, err) && loading.ok;
}

int64_t lineage_made(const struct lineage *l, int64_t version)
{
    for (int64_t i = l->n - 1; i >= 0; i--)
        if (l->part[i].from < version)
            return l->part[i].incarnation;
    return 0;
}
