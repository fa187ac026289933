#include "protocol/record/histogram.h"
#include <math.h>
#include <string.h>

#define RECORD_BYTES (1 + 8 + 4 * 8 + 4 * HISTOGRAM_BINS)

// clang-format off
const struct histogram_spec histograms[HISTOGRAM_N] = {
    [HISTOGRAM_LENGTH] = { "metrics/response_length_hist", "tok", "response lengths of the groups trained on", NULL },
    [HISTOGRAM_LENGTH_RIGHT] = { "metrics/response_length_right_hist", "tok", "of these, of the right answers", "val/sequence_lengths_solved_hist" },
    [HISTOGRAM_LENGTH_WRONG] = { "metrics/response_length_wrong_hist", "tok", "of these, of the wrong answers", "val/sequence_lengths_unsolved_hist" },
    [HISTOGRAM_REWARD] = { "metrics/reward_hist", "", "rewards of the groups trained on", NULL },
    [HISTOGRAM_SOLVE_RATE] = { "metrics/solve_rate_hist", "", "share of right answers in each of these groups", "val/solve_rate_hist" },
    [HISTOGRAM_ADVANTAGES] = { "train/advantages_hist", "", "their advantages", "val/advantages_hist" },
};
// clang-format on

/* The outer edges: numpy widens an empty range by a half to either side. */
static double range_low(const struct histogram *h)
{
    return h->min < h->max ? h->min : h->min - 0.5;
}

static double range_high(const struct histogram *h)
{
    return h->min < h->max ? h->max : h->max + 0.5;
}

double histogram_edge(const struct histogram *h, int k)
{
    double low = range_low(h), high = range_high(h);
    return k == HISTOGRAM_BINS ? high : low + k * ((high - low) / HISTOGRAM_BINS);
}

void histogram_make(struct histogram *h, const double *value, int64_t n)
{
    *h = (struct histogram){ .min = INFINITY, .max = -INFINITY };
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(value[i]))
            continue;
        h->n++;
        h->min = fmin(h->min, value[i]);
        h->max = fmax(h->max, value[i]);
        h->sum += value[i];
        h->sum2 += value[i] * value[i];
    }
    double low = range_low(h), width = range_high(h) - low;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(value[i]))
            continue;
        int k = (int)((value[i] - low) / width * HISTOGRAM_BINS);
        k = MIN(MAX(k, 0), HISTOGRAM_BINS - 1);
        if (k > 0 && value[i] < histogram_edge(h, k))    // the quotient was rounded over an edge
            k--;
        else if (k < HISTOGRAM_BINS - 1 && value[i] >= histogram_edge(h, k + 1))
            k++;
        h->count[k]++;
    }
}

void histograms_pack(struct buf *out, const struct histogram h[HISTOGRAM_N])
{
    for (int i = 0; i < HISTOGRAM_N; i++) {
        if (h[i].n == 0)
            continue;
        const double stat[] = { h[i].min, h[i].max, h[i].sum, h[i].sum2 };
        buf_char(out, (char)i);
        buf_add(out, &h[i].n, sizeof h[i].n);
        buf_add(out, stat, sizeof stat);
        buf_add(out, h[i].count, sizeof h[i].count);
    }
}

bool histograms_unpack(struct histogram h[HISTOGRAM_N], const void *data, size_t len, struct error *err)
{
    const char *at = data;
    memset(h, 0, HISTOGRAM_N * sizeof *h);
    if (len % RECORD_BYTES != 0)
        return error_set(err, ERR_DATA, "%zu bytes are no histograms of %d bytes each", len, RECORD_BYTES);
    for (; len > 0; at += RECORD_BYTES, len -= RECORD_BYTES) {
        double stat[4];
        int id = (unsigned char)at[0];
        if (id >= HISTOGRAM_N)    // of a later version
            continue;
        memcpy(&h[id].n, at + 1, 8);
        memcpy(stat, at + 9, sizeof stat);
        memcpy(h[id].count, at + 9 + sizeof stat, sizeof h[id].count);
        h[id].min = stat[0];
        h[id].max = stat[1];
        h[id].sum = stat[2];
        h[id].sum2 = stat[3];
        if (h[id].n < 0 || !isfinite(stat[0]) || !isfinite(stat[1]) || stat[0] > stat[1])
            return error_set(err, ERR_DATA, "the histogram '%s' is broken", histograms[id].name);
    }
    return true;
}

void histograms_print_docs(struct buf *out)
{
    buf_str(out, "| histogram | unit | meaning |\n|---|---|---|\n");
    for (int i = 0; i < HISTOGRAM_N; i++)
        buf_fmt(out, "| `%s` | %s | %s |\n", histograms[i].name, histograms[i].unit, histograms[i].help);
}
