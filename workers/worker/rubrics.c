#include "workers/worker/rubrics.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include "protocol/base/json_text.h"
#include "workers/engine/reward/reward.h"
#include "workers/worker/engine_state.h"

struct row_rubrics {
    struct row_rubrics *next;
    int64_t item;
    char *text;    // owned
};

static void one_free(struct row_rubrics *one)
{
    if (one)
        free(one->text);
    free(one);
}

/* Take an item's out of the list; NULL: it has none. */
static struct row_rubrics *one_take(struct engine *e, int64_t item)
{
    struct row_rubrics **at = &e->rubrics, *one;
    while (*at && (*at)->item != item)
        at = &(*at)->next;
    if ((one = *at))
        *at = one->next;
    return one;
}

bool rubrics_note(struct engine *e, struct task_item *item, struct error *err)
{
    struct row_rubrics *one = item->rubrics ? calloc(1, sizeof *one) : NULL;
    if (!item->rubrics)
        return true;
    if (!one)
        return error_set(err, ERR_NO_MEMORY, "no memory for the rubrics of item %" PRId64, item->item);
    *one = (struct row_rubrics){ .next = e->rubrics, .item = item->item, .text = item->rubrics };
    item->rubrics = NULL;
    e->rubrics = one;
    return true;
}

bool rubrics_give(struct engine *e, struct report *r, struct error *err)
{
    struct row_rubrics *one = one_take(e, r->group->item);
    json_t *told = one ? json_str_read(one->text, 0, NULL) : NULL, *active = json_object_get(told, "active");
    json_t *row = active ? json_str_read(r->row, JSON_ALLOW_NUL, NULL) : NULL;
    char *text = NULL;
    if (row && json_object_set(row, EVOLVING_KEY, active) == 0)
        text = json_text_dump(row, JSON_COMPACT);
    bool ok = !active || text || error_set(err, ERR_NO_MEMORY, "no memory for the rubrics of item %" PRId64, r->group->item);
    if (text) {
        free(r->row);
        r->row = text;
    }
    json_decref(row);
    json_decref(told);
    one_free(one);
    return ok;
}

void rubrics_drop(struct engine *e, int64_t item)
{
    one_free(one_take(e, item));
}

void rubrics_clear(struct engine *e)
{
    for (struct row_rubrics *one; (one = e->rubrics);) {
        e->rubrics = one->next;
        one_free(one);
    }
}
