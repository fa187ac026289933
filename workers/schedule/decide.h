/* decide.h - what a worker that asks for work is given: the rules, in order, as a table
 *
 * Pure: the facts about a worker and the run are gathered first (facts.c), then the first rule that applies to them decides. The table
 * in decide.c is the specification; a worker that no rule gives anything waits and asks again. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct facts {
    /* the run */
    bool over;          // finished, stopped or failed
    bool stopping;      // it makes no further step
    bool running;       // it is neither paused, nor starting, nor stopping
    bool pausing;       // a pause is wanted, of whatever depth
    bool data_known;    // there is a ledger: somebody has loaded the data
    bool free_running;
    bool overlaps;    // n_behind > 0: samplers have weights of their own
    bool trainers_several;
    bool step_begun;    // one of several trainers has begun the next step, so all of them must make it
    bool step_due;      // its batch is there, and nobody needs the weights that it changes
    bool save_due;      // a checkpoint is wanted, and none is under way
    bool save_begun;    // the first trainer waits for this one's shards, for a checkpoint
    bool eval_waits;    // parts of an evaluation wait
    /* the worker */
    bool produces, consumes;    // it samples; it trains
    bool first;                 // trainer of rank 0
    bool busy;                  // it samples, and asks whether there is more
    bool in_step;               // its weights are the run's: this incarnation, this step, this meeting; one that only samples has loaded
    bool ahead;                 // a trainer that has made the step which the first one is still to report
    bool undone;                // it samples with weights of a step that has been undone
    bool has_weights;           // it has weights to sample with
    bool present;               // ... which are those of the present step
    bool has_items;             // items wait that are to be sampled with them
    bool gap;                   // busy with fewer than half of its batch, it can take other weights beside those
    bool eval_mine;             // it samples with the version that parts of an evaluation wait for
    bool eval_coming;           // it may take that version now, or it is being shared; no items of older ones are to be sampled first
    int64_t room;               // how many more items it may hold
    /* weights */
    int64_t step;           // the present version
    int64_t next;           // the oldest version that waiting items are to be sampled with; -1: none waits
    bool next_is_own;       // next is the version that it samples with
    bool next_shared;       // it can take them now
    bool next_coming;       // it can take them now, or they are being shared
    bool present_shared;    // every sampler can take the present ones
    bool present_wanted;    // somebody else will sample with the present ones
    bool present_fits;      // there is room to share them
};
enum give {
    GIVE_NOTHING,
    GIVE_STOP,
    GIVE_CANCEL,    // give up what it samples
    GIVE_MODEL,     // load the model the run began with
    GIVE_RETURN,    // load the checkpoint that all trainers go back to
    GIVE_SHARE,     // make the present weights available to others
    GIVE_SAVE,
    GIVE_EVAL,
    GIVE_EVALUATED,    // sample with the version that is evaluated from now on
    GIVE_PRESENT,      // sample with the present weights from now on
    GIVE_NEXT,         // sample with version facts.next from now on; what is in work is finished with its own
    GIVE_TRAIN,
    GIVE_ITEMS,
};
struct decision {
    const char *rule;    // its name: why
    enum give give;
};
/* The first rule that applies; the last one always does. */
struct decision decide(const struct facts *f);
/* The name of rule n, from 0; NULL: there are no more. */
const char *decide_rule(int n);
