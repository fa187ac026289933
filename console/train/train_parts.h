/* train_parts.h - the inside of rollcall train; only for train_*.c. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "console/train/launch.h"
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/alarm_book.h"
#include "protocol/settings/atropos_options.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/plan/run_room.h"

struct train {
    struct run_config config;
    struct alarm_book alarms;
    struct run_plan plan;
    int64_t n_row;
    const char *run_file, *resume, *runs_dir, *format, *value[KNOB_MAX];
    const char *atropos[ATROPOS_OPTIONS_MAX];    // options of Atropos' example trainer
    bool batch, dry_run;
    bool slurm;    // given; its words are in launch
    struct launch launch;
    double interval_s;
    char run_dir[PATH_MAX];
    struct buf about;            // what was recognised of the data and each evaluation set, a line each; owned
    json_t *settings;            // as the journal keeps them (settings_kept.h), of a run that is resumed; NULL: it does not; owned
    struct buf shown;            // the first prompts, and how answers end, as the dry run prints them; owned
    json_t *identity;            // hashes of data, model, tokenizer and template (identity.h); owned
    const char *accept;          // parts that may have changed since the run began; NULL: none
    bool from_checkpoint;        // with resume: rebuild a lost journal
    char kept_path[PATH_MAX];    // the checkpoint for that, once kept_checkpoint_find has found it
    int64_t kept_step;
    struct buf flags;    // live settings given with --resume (resume_flags.h)
    int lock_fd;         // the run's lock; -1: not ours
    bool attached;       // the run is already going: only watch it, and tell it what to set
};

bool knob_given(const struct train *t, const char *name);    // on the command line

/* ---- train_resume.c ---- */
/* Keep what a resumed run can keep when its number of workers changes, and say so in notes. */
void workers_change(struct train *t, const struct run_config *before, struct buf *notes);
/* A value given for a setting that may change during the run is a change, like one made with ctl: the controller makes it where the
 * run continues, so the last change counts. Collected in t->flags; before: the values of run.yaml. */
MUST_USE bool flags_note(struct train *t, const struct run_config *before, struct error *err);

/* ---- train_machine.c: the last part of train_check ---- */
/* Check that devices open, sequences fit the model, the name and ports are free, and the disk has space. */
MUST_USE bool machine_check(const struct train *t, struct error *err);
/* Is the run's name one, and free? It may still be taken before the start. */
MUST_USE bool name_check(const struct train *t, struct error *err);
/* Is there space for one checkpoint (weights, in bf16 with their fp32 masters, and two moments) and 1 MiB for the rest? In
 * train_start.c. */
MUST_USE bool room_check(const struct train *t, struct error *err);

/* ---- train_data.c: a part of train_check ---- */
/* Check every row, prompt and program; fills about, shown, identity and n_row (prompts that fit), and says on stderr what an operator
 * should know. */
MUST_USE bool data_check(struct train *t, struct error *err);

/* ---- train_check.c: before anything is created ---- */
/* Model, data, reward, devices and sizes; on success config holds what run.yaml will, and n_row and plan are known. */
MUST_USE bool train_check(struct train *t, struct error *err);
/* What can be checked for a run that starts on other machines: all but the devices, the memory and the ports. */
MUST_USE bool train_check_far(struct train *t, struct error *err);

/* ---- train_plan.c ---- */
/* Plan the memory of the run's first device, and fail as the worker there would. *planned: false where that has no part of it. */
MUST_USE bool train_room(const struct train *t, struct run_room *room, bool *planned, struct error *err);
MUST_USE bool train_plan_print(const struct train *t, struct error *err);    // on stdout

/* ---- train_estimate.c ---- */
struct step_estimate {    // seconds of an optimizer step
    double generate_s, train_s;
    double step_s;    // of both, which are by turns or at once
    double spread;    // as in struct step_cost
};
struct step_cost;
/* How long prompts and responses are, tokens. */
struct step_lengths {
    double prompt, response;    // on average
    double longest;             // of the responses that are sampled together, since a step waits for the last one
};
/* From the probe's costs. l: NULL: all as long as allowed. */
struct step_estimate step_estimate_of(const struct run_config *c, const struct run_plan *p, const struct step_cost *cost,
                                      const struct step_lengths *l);
/* Probe the first of the run's devices (step_probe.h), which nothing may use meanwhile. After train_check. */
MUST_USE bool train_estimate(const struct train *t, const struct step_lengths *l, struct step_estimate *e, struct error *err);
void train_estimate_print(const struct train *t);    // a line on stdout
static inline int64_t run_steps(const struct train *t)
{
    return t->config.max_steps > 0 ? t->config.max_steps : t->plan.total_steps;
}

/* ---- train_take.c ---- */
/* Take the lock of the run to resume. If the run is still going (a keeper has revived it, or it never ended), attach to it instead
 * and send it the given settings; before: the values of run.yaml. Waits, with a limit, for what is left of a run that has ended. */
MUST_USE bool train_take(struct train *t, const struct run_config *before, struct error *err);

/* ---- train_kept.c: a run that is resumed ---- */
/* If its journal is on another machine, which is lost: go on here from what that has left (journal_home.h). Says so on stderr. */
MUST_USE bool kept_journal_take(const struct train *t, struct error *err);
/* Check that its journal exists and knows what the run has saved; with --from-checkpoint, that it does not. */
MUST_USE bool kept_journal_check(const struct train *t, struct error *err);
/* Check that run.yaml (before) is what the run has written, by what the journal keeps of it. Settings given now, or at a resume that the
 * controller has not seen yet, are meant; any other difference is refused, unless --accept-changed names run.yaml. */
MUST_USE bool kept_settings_check(struct train *t, const struct run_config *before, struct error *err);
/* Add to t->flags what run.yaml will have otherwise than the run had it (before: as its file has it), besides what flags_note has. */
MUST_USE bool kept_settings_note(struct train *t, const struct run_config *before, struct error *err);
/* --from-checkpoint: find the newest complete checkpoint of the run, which no process writes any more. Broken ones are named on stderr. */
MUST_USE bool kept_checkpoint_find(struct train *t, struct error *err);
/* --from-checkpoint: rebuild the journal from what was found, and print one line on stderr for each thing that is lost. */
MUST_USE bool kept_rebuild(const struct train *t, struct error *err);
/* Check that data, model, tokenizer and template are what it began with (t->identity). */
MUST_USE bool kept_check(const struct train *t, struct error *err);

/* ---- train_folders.c ---- */
/* Check that none of the run's folders belongs to another run. */
MUST_USE bool folders_check(const struct train *t, struct error *err);
/* Give the run an id, if it has none, and mark its folders as its own. */
MUST_USE bool folders_take(const struct train *t, struct error *err);

/* ---- train_start.c ---- */
/* Is this what a start leaves that was killed before there was anything to resume? Then a start under its name goes on there. */
bool start_was_cut(const char *run_dir);
/* Make the run's directory, which is its name's claim; the name is chosen when none is given. */
MUST_USE bool dir_take(struct train *t, struct error *err);
/* Make the run's directory, or fill that of the resumed run, and start its keeper. On failure nothing new is left. */
MUST_USE bool train_start(struct train *t, struct error *err);

/* ---- train_watch.c: --batch ---- */
struct watch_seen {    // how much of the journal has been printed
    int64_t step_seq, event_seq, last_step;
};
/* What earlier starts of the run have printed. */
MUST_USE bool train_watch_skip(struct train *t, struct watch_seen *seen, struct error *err);
/* From now on the first signal asks the run to stop, and the second ends it at once. */
void train_watch_signals(void);
/* Print the run, from seen on, until its processes have ended. */
MUST_USE bool train_watch(struct train *t, const struct watch_seen *seen, struct error *err);
/* After a run's end: wait until its exporters have ended too, within their own limits, printing on stderr which one is waited for
 * and, for wandb, the outcome when not everything was sent. */
void exporters_wait(const char *run_dir);
