#include "kernels/stopwatch.h"
#include <stdint.h>
#include <stdlib.h>
#include "kernels/ops.h"

struct stopwatch {
    struct device *dev;
    int lane;
    struct mark *from[STOPWATCH_N], *to[STOPWATCH_N];    // of parts in turn
    int64_t begun, read;                                 // parts
    double s;                                            // of those that were read
};

struct stopwatch *stopwatch_new(struct device *dev, int lane, struct error *err)
{
    struct stopwatch *w = calloc(1, sizeof *w);
    if (!w) {
        error_set(err, ERR_NO_MEMORY, "no memory for a stopwatch");
        return NULL;
    }
    w->dev = dev;
    w->lane = lane;
    for (int i = 0; i < STOPWATCH_N; i++)
        if (!(w->from[i] = mark_new_timed(dev, err)) || !(w->to[i] = mark_new_timed(dev, err))) {
            stopwatch_free(w);
            return NULL;
        }
    return w;
}

void stopwatch_free(struct stopwatch *w)
{
    if (!w)
        return;
    for (int i = 0; i < STOPWATCH_N; i++) {
        mark_free(w->dev, w->from[i]);
        mark_free(w->dev, w->to[i]);
    }
    free(w);
}

static bool put(struct stopwatch *w, struct mark *m, struct error *err)
{
    return w->lane == STOPWATCH_DEVICE ? mark_set(w->dev, m, err) : lane_mark(w->dev, w->lane, m, err);
}

/* The oldest part that was not read. */
static bool part_read(struct stopwatch *w, struct error *err)
{
    double s = 0;
    int64_t i = w->read % STOPWATCH_N;
    if (!mark_wait(w->dev, w->to[i], err) || !marks_apart(w->dev, w->from[i], w->to[i], &s, err))
        return false;
    w->s += s;
    w->read++;
    return true;
}

bool stopwatch_begin(struct stopwatch *w, struct error *err)
{
    return (w->begun - w->read < STOPWATCH_N || part_read(w, err)) && put(w, w->from[w->begun % STOPWATCH_N], err);
}

bool stopwatch_end(struct stopwatch *w, struct error *err)
{
    return put(w, w->to[w->begun++ % STOPWATCH_N], err);
}

bool stopwatch_take(struct stopwatch *w, double *s, struct error *err)
{
    while (w->read < w->begun)
        if (!part_read(w, err))
            return false;
    *s = w->s;
    w->s = 0;
    return true;
}
