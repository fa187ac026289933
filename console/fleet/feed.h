/* feed.h - where the console's news of a run come from: the run's agent (link.h) or made-up events (simulate.h)
 *
 * A feed fills a model and passes commands on. Owned by the console's loop thread, which calls pump when fd is readable or
 * due_ns has come. Nothing here waits. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/model.h"
#include "protocol/base/error.h"

#define COMMAND_ARGS 12
struct command {                  // what an operator asks of the run; names as in protocol/wire/message.h's command_specs
    char name[24];
    struct {
        char key[48], value[192];
    } arg[COMMAND_ARGS];          // pause: depth; set: a knob each; restart: process; quarantine: row
    int n_arg;
};
struct feed {
    int fd;                       // readable: pump; -1: none
    void (*pump)(struct feed *f, struct model *m, int64_t now_ns);
    int64_t (*due_ns)(const struct feed *f);    // call pump then at the latest; INT64_MAX: never
    /* Send c; its fate goes into the model under a tag. text is what the operator sees of it. */
    bool (*command)(struct feed *f, struct model *m, const struct command *c, const char *text, int64_t now_ns,
                    struct error *err);
    void (*free)(struct feed *f);
};
/* Parse "pause step", "set learning_rate=1e-4 temperature=0.9", "stop", ... into c; checks names, counts and, for knobs,
 * that they are live and inside their bounds. ERR_USAGE says what is wrong. */
MUST_USE bool command_parse(struct command *c, const char *text, struct error *err);
