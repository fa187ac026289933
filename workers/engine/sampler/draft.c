#include "workers/engine/sampler/draft.h"
#include <stdlib.h>
#include <string.h>
#include "protocol/base/macros.h"
#include "protocol/base/mix64.h"

#define SLOTS_MIN (1u << 12)
#define SLOTS_MAX (1u << 20)    // 8 MB

static const int context_tok[DRAFT_ORDERS] = { DRAFT_CONTEXT, 2 };

bool draft_table_init(struct draft_table *t, int64_t n_tok, struct error *err)
{
    *t = (struct draft_table){ .n_slot = SLOTS_MIN };
    while (t->n_slot < SLOTS_MAX && t->n_slot < (uint64_t)n_tok * DRAFT_ORDERS)
        t->n_slot *= 2;
    if (!(t->slot = malloc(t->n_slot * sizeof *t->slot)))
        return error_set(err, ERR_NO_MEMORY, "no memory for drafts");
    memset(t->slot, 0xff, t->n_slot * sizeof *t->slot);    // next: -1
    return true;
}

void draft_table_release(struct draft_table *t)
{
    free(t->slot);
    *t = (struct draft_table){ 0 };
}

/* Where a context of this order is kept, and in *check what it is recognised by; NULL: there are too few tokens. */
static struct draft_slot *slot_of(const struct draft_table *t, uint64_t scope, const int32_t *before, int64_t n_before, int order,
                                  uint32_t *check)
{
    int n = context_tok[order];
    if (n_before < n)
        return NULL;
    uint64_t hash = mix64(scope * DRAFT_ORDERS + (uint64_t)order);
    for (int k = 1; k <= n; k++)
        hash = mix64(hash + (uint64_t)(uint32_t)before[n_before - k] + MIX64_STEP);
    *check = (uint32_t)(hash >> 32);
    return &t->slot[hash & (t->n_slot - 1)];
}

void draft_learn(struct draft_table *t, uint64_t scope, const int32_t *before, int64_t n_before, int32_t next)
{
    for (int order = 0; order < DRAFT_ORDERS; order++) {
        uint32_t check;
        struct draft_slot *s = slot_of(t, scope, before, n_before, order, &check);
        if (s)
            *s = (struct draft_slot){ check, next };
    }
}

/* The token after the longest context that is known; false: none is. */
static bool next_find(const struct draft_table *t, uint64_t scope, const int32_t *before, int64_t n_before, struct draft_token *out)
{
    for (int order = 0; order < DRAFT_ORDERS; order++) {
        uint32_t check;
        const struct draft_slot *s = slot_of(t, scope, before, n_before, order, &check);
        if (s && s->next >= 0 && s->check == check) {
            *out = (struct draft_token){ s->next, order };
            return true;
        }
    }
    return false;
}

int64_t draft_guess(const struct draft_table *t, uint64_t scope, const int32_t *before, int64_t n_before, struct draft_token *out,
                    int64_t max)
{
    int32_t last[DRAFT_CONTEXT];    // the guesses go on from here, oldest first
    int64_t n_last = MIN(n_before, DRAFT_CONTEXT), n = 0;
    memcpy(last, before + n_before - n_last, (size_t)n_last * sizeof *last);
    while (n < max && next_find(t, scope, last, n_last, &out[n])) {
        if (n_last == DRAFT_CONTEXT)
            memmove(last, last + 1, --n_last * sizeof *last);
        last[n_last++] = out[n++].id;
    }
    return n;
}
