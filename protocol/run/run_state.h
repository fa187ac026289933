/* run_state.h - the states of a run, and the kinds of tasks a worker is given: one table each, for all who name them
 *
 * On the wire, in the journal and on the screen a state or a kind is its word. Pure; any thread. */
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
/* By its word; what follows a colon ("failed: why") does not matter. RUN_UNKNOWN when there is no such state. */
enum run_state run_state_find(const char *text);
/* Finished, failed or stopped: nothing comes after it. */
bool run_state_is_over(enum run_state s);
/* What `rollcall train --batch` ends with: 0 finished, 1 failed, 3 stopped by an operator; -1: the run is not over. */
int run_state_exit_code(enum run_state s);
/* The facts of an event of kind "state": {"state", "reason"}. In a reason that is not UTF-8 every byte beyond ASCII becomes
 * '?': a name from outside must not cost the reason. Returns it for json_decref; NULL: no memory. */
json_t *run_state_facts(enum run_state s, const char *reason);
/* The other way: detail is an event's JSON. reason becomes "" when there is none. RUN_UNKNOWN: it holds no state. */
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
    TASK_CANCEL,    // drop what is being sampled
    TASK_STOP,      // end yourself
    N_TASK_KIND,
};
const char *task_kind_name(enum task_kind k);
/* False: there is no such kind, and k is untouched. */
bool task_kind_find(const char *name, enum task_kind *k);
