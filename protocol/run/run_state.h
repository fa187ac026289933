/* run_state.h - the states of a run, and the kinds of tasks a worker is given: one table each, for all code that names them
 *
 * On the wire, in the journal and on the screen a state or a kind appears as its word. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>

enum run_state {
    RUN_UNKNOWN,
    RUN_STARTING,
    RUN_RUNNING,
    RUN_PAUSED,
    RUN_STOPPING,
    RUN_FINISHED,
    RUN_FAILED,
    RUN_STOPPED,
    N_RUN_STATE,
};
const char *run_state_name(enum run_state s);
/* Find a state by its word; anything after a colon ("failed: why") is ignored. RUN_UNKNOWN when there is no such state. */
enum run_state run_state_find(const char *text);
/* Finished, failed or stopped: nothing comes after it. */
bool run_state_is_over(enum run_state s);
/* The exit status of `rollcall train --batch`: 0 finished, 1 failed, 3 stopped by an operator; -1: the run is not over. */
int run_state_exit_code(enum run_state s);
/* The facts of an event of kind "state": {"state", "reason"}. In a reason that is not UTF-8 every non-ASCII byte becomes '?', so
 * that a bad name from outside does not lose the reason. Returns it for json_decref; NULL: no memory. */
json_t *run_state_facts(enum run_state s, const char *reason);
/* The reverse: detail is an event's JSON. reason becomes "" when there is none. RUN_UNKNOWN: it holds no state. */
enum run_state run_state_read(const char *detail, size_t len, char *reason, size_t size);

enum task_kind {
    TASK_NONE,       // nothing to do now: ask again
    TASK_LOAD,       // a checkpoint or the first weights
    TASK_ITEMS,      // sample these
    TASK_TRAIN,      // make an optimizer step
    TASK_SHARE,      // keep the weights for other samplers
    TASK_PUBLISH,    // sample with this version from now on
    TASK_SAVE,
    TASK_EVAL,
    TASK_CANCEL,    // stop sampling and drop the partial samples
    TASK_STOP,      // end yourself
    N_TASK_KIND,
};
const char *task_kind_name(enum task_kind k);
/* False: there is no such kind, and k is untouched. */
bool task_kind_find(const char *name, enum task_kind *k);
