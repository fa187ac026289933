#include "workers/schedule/prompt_order.h"
#include <stdlib.h>
#include <string.h>
#include "protocol/base/mix64.h"
#include "workers/engine/data/row_level.h"

#define DRAWS_MAX 64

struct prompt_order {
    int64_t seed, n_row;
    bool shuffle;
    int64_t *row;       // (n_row) by place, of episode
    int64_t episode;    // -1: none made yet
    bool *forbidden;    // (n_row) by row
    int64_t n_forbidden;
    const uint8_t *level_of;    // (n_row) by row; NULL: they have none
    int64_t level;              // that is opened
};

struct prompt_order *prompt_order_new(int64_t seed, int64_t n_row, bool shuffle)
{
    struct prompt_order *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    *o = (struct prompt_order){ .seed = seed, .n_row = n_row, .shuffle = shuffle, .episode = -1 };
    o->row = calloc((size_t)n_row, sizeof *o->row);
    o->forbidden = calloc((size_t)n_row, sizeof *o->forbidden);
    if (!o->row || !o->forbidden) {
        prompt_order_free(o);
        return NULL;
    }
    return o;
}

void prompt_order_free(struct prompt_order *o)
{
    if (!o)
        return;
    free(o->row);
    free(o->forbidden);
    free(o);
}

/* Fisher-Yates (Knuth, TAOCP 2, 3.4.2, algorithm P), keyed by seed and episode; r % k is biased by less than n_row / 2^64. */
static void order_make(struct prompt_order *o, int64_t episode)
{
    uint64_t x = (uint64_t)o->seed ^ (uint64_t)episode * 0xd1342543de82ef95u;
    for (int64_t i = 0; i < o->n_row; i++)
        o->row[i] = i;
    for (int64_t i = o->n_row - 1; o->shuffle && i > 0; i--) {
        int64_t j = (int64_t)(mix64_next(&x) % (uint64_t)(i + 1));
        int64_t t = o->row[i];
        o->row[i] = o->row[j];
        o->row[j] = t;
    }
    o->episode = episode;
}

int64_t prompt_order_row(const struct prompt_order *o, int64_t item)
{
    int64_t episode = item / o->n_row;
    if (episode != o->episode)
        order_make((struct prompt_order *)o, episode);    // a cache: what it answers does not change
    return o->row[item % o->n_row];
}

void prompt_order_level(struct prompt_order *o, const uint8_t *of, int64_t level)
{
    o->level_of = of;
    o->level = level;
}

static bool is_of_level(const struct prompt_order *o, int64_t row)
{
    return !o->level_of || o->level_of[row] == LEVEL_EVERY || o->level_of[row] == o->level;
}

int64_t prompt_order_open(const struct prompt_order *o, int64_t item)
{
    int64_t base = item - item % o->n_row, row = prompt_order_row(o, item), place = item - base;
    uint64_t x = (uint64_t)o->seed ^ (uint64_t)item * 0x9fb21c651e98df25u;
    int64_t k_level = DRAWS_MAX + o->n_row;    // after as many tries every row has been looked at
    for (int64_t k = 0; o->forbidden[row] || (k < k_level && !is_of_level(o, row));
         k++) {    // where few are left, draws rarely find one: then the next
        place = k < DRAWS_MAX ? (int64_t)(mix64_next(&x) % (uint64_t)o->n_row) : (place + 1) % o->n_row;
        row = prompt_order_row(o, base + place);
    }
    return row;
}

void prompt_order_allow_all(struct prompt_order *o)
{
    memset(o->forbidden, 0, (size_t)o->n_row * sizeof *o->forbidden);
    o->n_forbidden = 0;
}

bool prompt_order_forbid(struct prompt_order *o, int64_t row)
{
    if (row < 0 || row >= o->n_row || o->forbidden[row] || o->n_forbidden + 1 >= o->n_row)
        return false;
    o->forbidden[row] = true;
    o->n_forbidden++;
    return true;
}
