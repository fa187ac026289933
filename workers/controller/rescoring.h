/* rescoring.h - an operator has a group scored again, by the reward as it is now
 *
 * The answers of the group, as its record has them, go to the head's scorer with their row of the data, as a worker sends them. While the
 * group waits for training the new rewards take the place of the old ones (amending.h); one that has gone into training keeps its own, and
 * they are only shown. One group at a time. A thread reads the row, since that means reading the data. Owned by the controller's loop
 * thread. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "protocol/wire/transport.h"

struct controller;
enum rescore_stage {
    RESCORE_NONE,
    RESCORE_READS,     // the thread looks for the row
    RESCORE_SCORES,    // the scorer has been asked
    RESCORE_KEEPS,     // the new record is on the way to the disk
    RESCORE_OVER,      // text says how
};
struct rescoring {
    enum rescore_stage stage;
    int64_t item, line;     // line: of the data, where its prompt stands
    struct buf record;      // the group's message
    int64_t offset;         // of it in the rollout file
    struct peer *scorer;    // NULL: never asked
    uint64_t tag;           // of the question
    char text[480];         // the outcome
    char shown[400];        // the rewards, old and new
    pthread_t thread;       // while the stage is RESCORE_READS
    struct process *process;
    const struct run_config *config;    // the thread reads which data it is
    char *row;                          // found: as JSON, owned; NULL: see why
    struct error why;
    atomic_bool found;    // the thread has finished
};
/* Begin. ERR_REFUSED: there is no such group, another one is being scored, or its rewards are not the scorer's to give. */
MUST_USE bool rescore_begin(struct controller *c, int64_t item, struct error *err);
void rescore_tick(struct controller *c);                                    // each turn of the loop
void rescore_answered(struct controller *c, const struct net_event *ev);    // the scorer has
/* Says whether that of item is over, and how: in text. */
bool rescore_over(struct controller *c, int64_t item, char *text, size_t size);
void rescore_release(struct rescoring *r);    // waits for the thread
