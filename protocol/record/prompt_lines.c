#include "protocol/record/prompt_lines.h"
#include <stddef.h>

/* The last pair whose number k (0 prompt, 1 line) is at most x; NULL: none. */
static const int64_t *pair_find(const struct buf *pairs, int k, int64_t x)
{
    const int64_t *pair = (const int64_t *)(const void *)pairs->data;
    size_t low = 0, high = pairs->len / (2 * sizeof *pair);
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (pair[2 * mid + (size_t)k] <= x)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 ? pair + 2 * (low - 1) : NULL;
}

int64_t prompt_line(const struct buf *pairs, int64_t row)
{
    const int64_t *p = pair_find(pairs, 0, row);
    return p ? p[1] + (row - p[0]) : -1;
}

int64_t prompt_on_line(const struct buf *pairs, int64_t n_row, int64_t line)
{
    const int64_t *p = pair_find(pairs, 1, line), *end = (const int64_t *)(const void *)(pairs->data + pairs->len);
    int64_t row = p ? p[0] + (line - p[1]) : -1;
    return p && row < (p + 2 < end ? p[2] : n_row) ? row : -1;
}
