/* changes.h - knobs that have been changed while the run goes: what, and from which step on it holds
 *
 * A change holds from an optimizer step, from a rollout step, or at once, as its knob says; a step that is under way and items that are
 * open keep what they were made with. Changes are in the journal, so a resumed run has them. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/run_config.h"

#define CHANGES_AT_ONCE 64    // of one command

struct controller;
struct msg_out;
struct knob_change {
    int64_t step, rollout_step;    // from when on it holds
    const struct knob *knob;
    char value[RUN_TEXT_MAX];
    char before[RUN_TEXT_MAX];
    int64_t group;     // changes of one command
    int64_t made;      // steps the run had made when it was asked
    int64_t undoes;    // the group that it takes back; 0: it was asked for itself
    bool undone;       // a later group takes it back
    bool voided;       // the run went back to before it: it holds for no step
};
struct changes {
    struct knob_change *change;    // (n) owned; the last at the end
    int64_t n, cap, group;
};
/* What a command has done, as a person reads it and as its event has it. */
struct effect {
    struct buf text;
    char *detail;    // JSON; of changes {"changes":[{"name","before","value","from"}]}; owned; NULL: there is none
};
void effect_release(struct effect *effect);
void changes_release(struct changes *k);
MUST_USE bool changes_load(struct controller *c, struct error *err);

/* The settings as they hold for optimizer step `step` and rollout step `rollout_step` (INT64_MAX: all changes). */
void config_at(const struct controller *c, int64_t step, int64_t rollout_step, struct run_config *out);
/* Those of them that differ from run.yaml, as the map knobs of a task. */
void settings_write(const struct run_config *then, struct msg_out *m);
void knobs_write(const struct controller *c, int64_t step, int64_t rollout_step, struct msg_out *m);

/* Change n knobs together, or none: training knobs from optimizer step next_step on. c->now has them afterwards, and the run's length
 * and schedule follow. What is not possible is refused as knobs_propose says. effect: the caller releases it, also on failure. */
MUST_USE bool changes_make(struct controller *c, const char *const *name, const char *const *value, int n, int64_t next_step,
                           struct effect *effect, struct error *err);
/* Take back the last command's changes that have not been taken back: undoing is a stack, so each call goes one command further.
 * ERR_REFUSED when none is left. effect as above. */
MUST_USE bool changes_undo(struct controller *c, int64_t next_step, struct effect *effect, struct error *err);
void changes_undo_say(const struct changes *k, struct buf *out);    // what that would do: "learning_rate 1 -> 0.001"; "": nothing
/* The run goes back to optimizer step `step`: changes made since then hold no more. effect has them; the caller releases it, also on
 * failure. */
MUST_USE bool changes_void(struct controller *c, int64_t step, struct effect *effect, struct error *err);
/* Those changes in words, "learning_rate 0.001 -> 1 (step 100)" and so on; "": there are none. */
void changes_since(const struct changes *k, int64_t step, struct buf *out);
void changes_last_say(const struct changes *k, struct buf *out);    // the last command's that holds, in the same words
int64_t changes_made_last(const struct changes *k);    // steps the run had made when the last one that holds was asked for; -1: none
