/* engine_state.h - the state of the engine, and how its tasks report
 *
 * For engine.c, engine_queues.c and the files that do its tasks: loading.c, items.c, training.c, publishing.c, saving.c, evaluation.c.
 * The tasks run on the engine's thread. A function NAME_run does a task of that kind: it returns false with err when the task fails,
 * and fills in the rest of the report r. The loop's thread sees only the fields under "shared" here, through engine.h. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "protocol/run/run_owner.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/model/extent.h"
#include "workers/engine/plan/memory_plan.h"
#include "workers/engine/sampler/generator.h"
#include "workers/worker/engine.h"
#include "workers/worker/prompts.h"
#include "workers/worker/task.h"

struct bridge;
struct checkpoint_writer;
struct collective;
struct episodes;
struct external;
struct generator;
struct lending;
struct model;
struct publication;
struct row_rubrics;
struct ranks;
struct trainer;
struct guests;

/* A checkpoint that is written while the engine goes on (saving.c). */
struct saving {
    struct checkpoint_writer *writer;    // owned; NULL before the first load
    struct task *task;                   // the task whose checkpoint is being written; NULL: none
    double stall_s;                      // how long the copy has held the engine up
    int64_t began_ms;
};
/* What the sampler has done since the last train step, for that step's metrics. */
struct sampler_work {
    double generate_s, idle_s;
    int64_t n_tok, n_put_back;
    double tail_s, gap_s;    // of generate_s: fewer than half of a batch ran; two versions did
    int64_t n_decode, n_kv_tok, n_run_tok, n_seen_tok, n_draft, n_accepted;    // as in struct generator_stats
};
/* The other one of a sampler's two generators, with its weights (gap.h). */
struct lane {
    struct model *model;            // owned; NULL: there is none
    struct generator *generator;    // owned
    int64_t version, made;          // of the samples inside; -1: there are none. made: the incarnation that made version
    int64_t n_running;              // samples, when it was last looked at
    int64_t most_running;           // at once, since it was last idle
};
/* Where the sampler's rate was last measured. */
struct sampler_mark {
    int64_t ms, n_tok;
};

struct engine {
    /* set by engine_new and then only read, but for 'fill_gap' auto, which the first load settles */
    struct run_config config;
    char run_dir[4096], device_name[32], run_id[RUN_ID_BYTES];
    int n_thread;
    bool trains, produces;
    int64_t rank;        // among the trainers; -1: it does not train
    int64_t producer;    // among the producers; -1: it does not sample
    void (*wake)(void *ctx);
    void *wake_ctx;
    pthread_t thread;
    struct task *quit;    // made at the start, so that ending needs no memory; in the queue once engine_free has begun

    /* shared with the loop */
    pthread_mutex_t lock;    // guards: tasks, reports, turned, tail, dropped, written, visited, look; against the loop, changes of the
                             // pointers bridge and lending. Taken before a bridge's lock
    pthread_cond_t some;     // signals a task, an answered turn, written, or visited
    struct task *task_first, **task_last;
    struct report *report_first, **report_last;
    struct report *turned_first, **turned_last;    // turns that have been answered
    bool written;                                  // the checkpoint writer has finished one; saving_look gets the result
    struct tail tail[TAIL_MAX];                    // (n_tail) where items are to be stopped
    int n_tail;
    int64_t dropped[DROPPED_TOLD_MAX];    // (n_dropped) items that are sampled no further
    int n_dropped;
    int64_t n_backlog;    // groups of an evaluation that wait for their scores
    bool visited;         // guests.c or an external engine has something new
    struct engine_look look;

    /* used only by the engine's thread */
    struct device *dev;                      // these six are kept from the first load on
    struct device *helper[SUM_PARTS_MAX];    // what the sampler and the trainer work on besides dev, each the first ones
    struct prompts prompts;
    struct publication *publication;    // NULL: weights stay here, or travel by file
    struct extent_table slices;         // where the slices lie that others get the weights from (publishing.c); empty before the first time
    struct saving saving;
    size_t free_at_start, memory_peak;    // bytes of the device: free before anything was loaded; most seen in use
    struct model *held[HOLDINGS_MAX];     // (n_held) from here on, made by each load; owned (held.h); the pointers down to copy borrow
    size_t n_held;
    const struct model *bare;     // the one of them that is a shape only; NULL: none is
    struct model *model, *ref;    // ref NULL: there is no reference
    struct model *sampler;        // what samples: model, or a copy with a version of its own
    struct model *trained;        // what the trainer changes: model; or another one that is in slices or stages, or of which it keeps its
                                  // shards. Then model is a shape only, or copy
    struct model *copy;           // what gets the new weights after each step, whole or in the sampler's slices; NULL: nothing does
    struct holdings holdings;     // which of these there are, and in which form
    struct generator *generator;
    struct lane ending;           // beside the generator: the last samples of another version ('fill_gap')
    bool turned;                  // model and generator are those that gap_prepare and gap_open have made,
    struct device *twin;          // on this: dev by another stream; owned. NULL: on dev itself
    struct external *external;    // in place of the generator: this worker's samples are drawn by somebody else's engine; else NULL
    struct bridge *bridge;        // to inference servers of others (bridge.h); NULL: none
    struct lending *lending;      // of the model's memory to servers on this host (lending.h); NULL: none
    struct episodes *episodes;    // with the generator, of a run with an environment; else NULL
    struct guests *guests;        // kept from the first load on; NULL: this worker does not serve
    struct trainer *trainer;
    struct memory_plan plan;
    void *region;    // (plan.region) used in turn by trainer and sampler; NULL: each has its own
    struct collective
        *meeting[SUM_PARTS_MAX];    // of the trainers, one of each of their devices; NULL: this is the only one, or they have parted
    struct ranks *ranks;            // the step that they share; NULL likewise
    int64_t step, version, made;    // of the weights; made: the incarnation that made version
    int64_t round;
    bool apart;                     // the trainers do not reach each other's memory
    int64_t saves;                  // the last checkpoint that they have brought their shards together for (task.save)
    struct task *items_task;        // the last one, for its report
    struct row_rubrics *rubrics;    // of items inside the sampler (rubrics.h)
    struct sampler_work work;
    struct sampler_mark mark;
    int64_t drawn_ns;               // clock_ns, up to which the time of an external engine's drawing has been counted
    int64_t most_running;           // samples of the generator at once, since it was last idle
    struct generator_stats seen;    // of the generator, when it was last looked at
    int64_t idle_ms;                // when the last task ended
};

/* The engine enters a phase: shown to the operator, and a point where a test can hold it (hold.h). */
void engine_phase(struct engine *e, const char *phase);
void engine_waits_for(struct engine *e, const char *what);    // such as "trainer 2"; "": nothing
void engine_progress(struct engine *e, double n);             // n more pieces of work are done
void engine_report(struct engine *e, struct report *r);       // to the loop; takes r
/* Report that t has ended: failed when why is not NULL. Takes r, which was made for t (report_new). */
void engine_done(struct engine *e, const struct task *t, struct report *r, const struct error *why);
