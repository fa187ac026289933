/* train_parts.h - the inside of rollcall train; only for train_*.c. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/run/knobs.h"
#include "protocol/run/run_config.h"

struct train {
    struct run_config config;
    struct run_plan plan;
    int64_t n_row;
    const char *run_file, *resume, *runs_dir, *format, *value[KNOB_MAX];
    bool batch, dry_run;
    double interval_s;
    char run_dir[PATH_MAX];
    struct buf about;            // what was recognised of the data and each evaluation set, a line each; owned
    json_t *identity;            // hashes of data, model, tokenizer and template (identity.h); owned
    const char *accept;          // parts that may have changed since the run began; NULL: none
    bool from_checkpoint;        // with resume: make a lost journal again
    char kept_path[PATH_MAX];    // the checkpoint to do that from, once kept_checkpoint_find has found it
    int64_t kept_step;
    struct buf flags;    // live settings given with --resume (resume_flags.h)
    int lock_fd;         // the run's lock; -1: not ours
    bool attached;       // the run goes on already: it is only looked at, and told what to set
};

bool knob_given(const struct train *t, const char *name);    // on the command line

/* ---- train_resume.c ---- */
/* Say in notes what a resumed run keeps when its number of workers changes, and see to it. */
void workers_change(struct train *t, const struct run_config *before, struct buf *notes);
/* What is given for a setting that may change while the run goes is a change of it, like one that ctl asks for: the controller makes
 * it, where the run goes on, and so the last word holds. Into t->flags; before: run.yaml's. */
MUST_USE bool flags_note(struct train *t, const struct run_config *before, struct error *err);

/* ---- train_machine.c: the last part of train_check ---- */
/* Devices that open, sequences that fit the model, a free name, ports that can be listened at, room on the disk. */
MUST_USE bool machine_check(const struct train *t, struct error *err);
/* Room for one checkpoint (weights, in bf16 with their fp32 masters, and two moments) and a MiB of the rest; train_start.c. */
MUST_USE bool room_check(const struct train *t, struct error *err);

/* ---- train_check.c: before anything is made ---- */
/* Model, data, reward, devices and sizes; on success config is as run.yaml will have it, and n_row and plan are known. */
MUST_USE bool train_check(struct train *t, struct error *err);

/* ---- train_take.c ---- */
/* Take the lock of the run that is resumed. One that goes on (a keeper has revived it, or nobody ever ended it) is attached to
 * instead, and gets the settings that were given; before: run.yaml's. What an ended life has left is waited for, with a limit. */
MUST_USE bool train_take(struct train *t, const struct run_config *before, struct error *err);

/* ---- train_kept.c: a run that is resumed ---- */
/* Its journal is there and knows what the run has saved; with --from-checkpoint, it is not, or does not. */
MUST_USE bool kept_journal_check(const struct train *t, struct error *err);
/* --from-checkpoint: find the newest whole checkpoint of the run, which nobody writes any more. Broken ones are named on stderr. */
MUST_USE bool kept_checkpoint_find(struct train *t, struct error *err);
/* --from-checkpoint: make the journal again from what was found, and say on stderr what is lost, a line each. */
MUST_USE bool kept_rebuild(const struct train *t, struct error *err);
/* Data, model, tokenizer and template are what it was begun with (t->identity). */
MUST_USE bool kept_check(const struct train *t, struct error *err);

/* ---- train_folders.c ---- */
/* No folder that the run keeps things in may belong to another run. */
MUST_USE bool folders_check(const struct train *t, struct error *err);
/* The run gets its id, if it has none, and its folders are its own from now on. */
MUST_USE bool folders_take(const struct train *t, struct error *err);

/* ---- train_start.c ---- */
/* Make the run's directory, or fill that of the run that was taken, and start its keeper. On failure nothing new is left. */
MUST_USE bool train_start(struct train *t, struct error *err);

/* ---- train_watch.c: --batch ---- */
struct watch_seen {    // how far the journal has been told
    int64_t step_seq, event_seq, last_step;
};
/* What an earlier life of the run has told. */
MUST_USE bool train_watch_skip(struct train *t, struct watch_seen *seen, struct error *err);
/* From now on a first signal asks the run to stop, and a second ends it at once. */
void train_watch_signals(void);
/* Tell the run, from seen on, until its processes have ended. */
MUST_USE bool train_watch(struct train *t, const struct watch_seen *seen, struct error *err);
/* After a run's end: wait until its exporters have ended too, within their own limits, telling on stderr which is waited for and,
 * for wandb, how it went when not all was sent. */
void exporters_wait(const char *run_dir);
