/* atropos_options.h - the options of Atropos' example trainer, under their names
 *
 * A command line or run file made for 'atropos-grpo' (example_trainer/cli.py of atroposlib 0.4) can be used as it is: each option is
 * another name of a setting, or sets several, or is computed with others once all are known. Nothing of them is in a run's run.yaml,
 * which has the settings that follow from them. Read-only data: any thread. */
#pragma once
#include "protocol/settings/run_config.h"

#define ATROPOS_OPTIONS_MAX 48

struct atropos_option {
    const char *name;       // with underscores; hyphens mean the same
    const char *sets[2];    // settings that get the value; NULL: none, or see the fields that follow
    const char *words;      // values that another system's word stands for: "cuda=auto cpu=cpu:0"; NULL: none
    size_t number;          // where in struct run_config its whole number is kept until all are known; 0: nowhere
    bool is_switch;         // the flag may stand without a value, for true
    const char *only;       // values that are possible, between blanks; NULL: any
    const char *why;        // of `only`, why no other; without it, why the option has no effect
    const char *help;       // one line
};
extern const struct atropos_option atropos_options[];
extern const int n_atropos_options;

/* Note the environment variables that set up the example trainer, its servers or Ray, and are not read here. */
void environment_note(struct buf *notes);
/* By name, also with hyphens. NULL: it is none of them. */
const struct atropos_option *atropos_option_find(const char *name);
/* As run_config_set does for a setting. */
MUST_USE bool atropos_option_set(struct run_config *c, const struct atropos_option *o, const char *text, enum knob_source source,
                                 const char *base_dir, struct error *err);
/* What follows from several options: the sizes of batches and sequences. A setting that was given itself stays. Options without effect
 * are noted. Call before the rules between settings. */
MUST_USE bool atropos_options_finish(struct run_config *c, struct buf *notes, struct error *err);
