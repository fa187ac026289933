/* feed.h - where the console gets its news of a run: the run's agent (link.h), its folder (record.h) or made-up events (simulate.h)
 *
 * A feed fills a model and passes commands on. Owned by the console's loop thread, which calls pump when fd is readable or due_ns
 * is reached. Nothing here waits. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/command.h"
#include "console/fleet/run_view.h"
#include "protocol/base/error.h"

struct feed {
    int fd;            // readable: pump; -1: none
    bool read_only;    // commands would be refused: this console may only look
    void (*pump)(struct feed *f, struct run_view *m, int64_t now_ns);
    int64_t (*due_ns)(const struct feed *f);    // call pump by then; INT64_MAX: never
    /* Send c; its outcome goes into the model under a tag. text is what the operator sees. */
    bool (*command)(struct feed *f, struct run_view *m, const struct command *c, const char *text, int64_t now_ns, struct error *err);
    /* Show the run as it was after a step, clipped to those it has made; true: that is before its end. False before it: there is
     * no memory or the folder cannot be read, and m stays as it was. NULL: it cannot (a live run). */
    bool (*seek)(struct feed *f, struct run_view *m, int64_t step, int64_t now_ns);
    void (*free)(struct feed *f);
};
