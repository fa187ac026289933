/* prompt_order.h - which prompt each item is: a shuffle for each episode, keyed by the seed, and the rows that are left out of it
 *
 * Pure; owned by the ledger. Item i is place i % n_row of episode i / n_row. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct prompt_order;
/* n_row: usable prompts, at least 1. NULL: no memory. */
struct prompt_order *prompt_order_new(int64_t seed, int64_t n_row, bool shuffle);
void prompt_order_free(struct prompt_order *o);    // NULL is fine
/* The row of an item's place. */
int64_t prompt_order_row(const struct prompt_order *o, int64_t item);
/* The row that an item gets when it is opened: that of its place, or, when that is forbidden or not of the level, of a place of its episode
 * that seed and item choose, so that the others are repeated evenly. A level of which every row is forbidden is looked at no more. */
int64_t prompt_order_open(const struct prompt_order *o, int64_t item);
/* Items that are opened from now on get rows of this level: of[row] is the level of a row, or LEVEL_EVERY. of: (n_row), borrowed as long as
 * o is there; NULL: rows have no levels. */
void prompt_order_level(struct prompt_order *o, const uint8_t *of, int64_t level);
/* Give row to no item that is opened from now on. False: there is no such row, it is forbidden already, or it is the last one left. */
bool prompt_order_forbid(struct prompt_order *o, int64_t row);
void prompt_order_allow_all(struct prompt_order *o);
