/* knobs.h - the table of settings: name, type, bounds, when a change takes effect
 *
 * One row per setting; adding one takes one row here and one field in struct run_config. Settings that may change during the run
 * are knobs. Read-only data: any thread. */
#pragma once
#include "protocol/settings/knob_type.h"
#include "protocol/settings/run_config.h"

struct mval;
#define KNOB_UNBOUNDED 9007199254740992.0    // no upper bound: 2^53, up to which every whole number is exact in a double
enum knob_applies {
    APPLY_START,           // fixed once the run has begun
    APPLY_NEXT_ROLLOUT,    // from an item number on; travels in the item
    APPLY_NEXT_STEP,       // from an optimizer step on
    APPLY_NOW,             // watching and saving: at once
};
struct knob {
    const char *name;     // long flag with underscores, key of the run file, name for ctl set
    const char *alias;    // other key that means the same (ColossalChat's grpo_config), or NULL
    const char *flag;     // short flag without the dash, or NULL
    const char *group;    // heading in help and docs
    enum knob_type type;
    const char *unit;       // "" when it has none
    double min, max;        // bounds of numbers, inclusive
    bool above_min;         // min itself is excluded
    double least;           // the least above 0 of a number that may be 0, where that means something else; 0: any
    const char *choices;    // "a|b|c" for texts that must be one of these, or NULL
    enum knob_applies applies;
    size_t offset;            // in struct run_config
    size_t size;              // bytes of the field
    const char *def;          // the default as text
    const char *help;         // one line
    const char *no_effect;    // accepted for other systems' command lines but never read: why, and what to use; else NULL
};
extern const struct knob knobs[];
extern const int n_knobs;

/* Find by name or alias, also with hyphens; ERR_USAGE names the nearest. */
const struct knob *knob_find(const char *name, struct error *err);
/* The value as text, as the run file would hold it; borrowed from buf. */
const char *knob_text(const struct knob *k, const struct run_config *c, struct buf *buf);
/* The value as JSON, appended to out: a bare number or boolean, else a string. */
void knob_json(const struct knob *k, const struct run_config *c, struct buf *out);
/* Which of the choices of setting `name` (from 0) is the text; -1: none, or it has no choices. */
int knob_choice(const char *name, const char *text);
/* Would run_config_set take this text? ERR_USAGE says why not. Rules between settings are not checked here; only the run knows all
 * values. */
MUST_USE bool knob_check(const struct knob *k, const char *text, struct error *err);
/* May it be changed during the run? ERR_REFUSED says why not. */
MUST_USE bool knob_may_change(const struct knob *k, struct error *err);
/* "0 to 1", "one of a, b" ... into buf; for help and messages. */
const char *knob_bounds_text(const struct knob *k, struct buf *buf);
/* May it be changed during the run? */
static inline bool knob_is_live(const struct knob *k)
{
    return k->applies != APPLY_START;
}
/* Check several changes, all or none: names and values as text. They are checked one by one, then by the size rules on a copy, then
 * against the memory that the run's processes took when they started with `start`. On success next holds the new settings; on
 * failure err names the first impossible one. start and c stay as they are. */
MUST_USE bool knobs_propose(const struct run_config *start, const struct run_config *c, const char *const *name, const char *const *value,
                            int n, struct run_config *next, struct error *err);
/* The settings by which agents tell slow from stuck, as fields of an open map, from whoever knows how they stand to an agent or on the
 * way to one: a change holds at once on every node. */
void knobs_watch_write(const struct run_config *c, struct msg_out *m);
/* Take those that such a map holds (NULL: it has not come); the others stay as they are. */
void knobs_watch_take(struct run_config *c, const struct mval *map);
/* Why k's value in c has no effect, and what to use instead; NULL: it has one, or it is the default. A table has one row for each
 * setting that depends on others: a bound of free_running without free_running, a name for wandb without wandb. */
const char *knob_idle(const struct knob *k, const struct run_config *c);
/* A line "note: ..." for each setting given by `from` or later that has no effect; devices must be known. */
void knobs_note_idle(const struct run_config *c, enum knob_source from, struct buf *notes);
/* All settings as a table in Markdown, for the docs. */
void knobs_print_docs(struct buf *out);
