#include "protocol/run/run_state.h"
#include <stdio.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/macros.h"

static const struct {
    const char *name;
    int exit_code;    // -1: not over
} states[N_RUN_STATE] = {
    [RUN_UNKNOWN] = { "unknown", -1 }, [RUN_STARTING] = { "starting", -1 }, [RUN_RUNNING] = { "running", -1 },
    [RUN_PAUSED] = { "paused", -1 },   [RUN_STOPPING] = { "stopping", -1 }, [RUN_FINISHED] = { "finished", 0 },
    [RUN_FAILED] = { "failed", 1 },    [RUN_STOPPED] = { "stopped", 3 },
};
static const char *const kinds[N_TASK_KIND] = {
    [TASK_NONE] = "none",       [TASK_LOAD] = "load", [TASK_ITEMS] = "items", [TASK_TRAIN] = "train",   [TASK_SHARE] = "share",
    [TASK_PUBLISH] = "publish", [TASK_SAVE] = "save", [TASK_EVAL] = "eval",   [TASK_CANCEL] = "cancel", [TASK_STOP] = "stop",
};

const char *run_state_name(enum run_state s)
{
    return states[s].name;
}

enum run_state run_state_find(const char *text)
{
    size_t len = strcspn(text, ":");
    for (size_t i = 0; i < ARRAY_SIZE(states); i++)
        if (strlen(states[i].name) == len && strncmp(states[i].name, text, len) == 0)
            return (enum run_state)i;
    return RUN_UNKNOWN;
}

json_t *run_state_facts(enum run_state s, const char *reason)
{
    json_t *facts = json_pack("{s:s}", "state", run_state_name(s)), *text = json_text_new(reason);
    if (facts && text && reason[0])
        json_object_set(facts, "reason", text);
    json_decref(text);
    return facts;
}

enum run_state run_state_read(const char *detail, size_t len, char *reason, size_t size)
{
    json_t *facts = json_text_read(detail, len, 0, NULL);
    const char *state = json_string_value(json_object_get(facts, "state")), *why = json_string_value(json_object_get(facts, "reason"));
    enum run_state s = state ? run_state_find(state) : RUN_UNKNOWN;
    snprintf(reason, size, "%s", why ? why : "");
    json_decref(facts);
    return s;
}

bool run_state_is_over(enum run_state s)
{
    return states[s].exit_code >= 0;
}

int run_state_exit_code(enum run_state s)
{
    return states[s].exit_code;
}

const char *task_kind_name(enum task_kind k)
{
    return kinds[k];
}

bool task_kind_find(const char *name, enum task_kind *k)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (strcmp(kinds[i], name) == 0) {
            *k = (enum task_kind)i;
            return true;
        }
    return false;
}
