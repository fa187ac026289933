#include "kernels/collective/late.h"

#define BEAT_MS 20

int late_look(struct late *l, struct collective *c, int64_t now_ms)
{
    int late = -1;
    int64_t of_late = now_ms - LATE_TELL_MS;    // the latest time that is too long ago
    l->began_ms = l->began_ms ? l->began_ms : now_ms;
    if (now_ms - l->beat_ms >= BEAT_MS) {
        l->beat_ms = now_ms;
        collective_count_set(c, COLLECTIVE_COUNT_BEATS, ++l->beat);
    }
    for (int q = 0; q < c->n_rank; q++) {
        uint32_t beat = collective_count(c, q, COLLECTIVE_COUNT_BEATS);
        if (beat != l->seen[q]) {
            l->seen[q] = beat;
            l->seen_ms[q] = now_ms;
        }
        int64_t last = MAX(l->seen_ms[q], l->began_ms);
        bool has_done = (int32_t)(collective_count(c, q, COLLECTIVE_COUNT_DONE) - l->done) > 0;
        if (q != c->rank && !has_done && last <= of_late) {
            late = q;
            of_late = last - 1;
        }
    }
    return late;
}

void late_done(struct late *l, struct collective *c)
{
    l->began_ms = 0;
    collective_count_set(c, COLLECTIVE_COUNT_DONE, ++l->done);
}
