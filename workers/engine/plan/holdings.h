/* holdings.h - which weights a part of a run holds: what for, in which form, from where, and how many bytes of which device
 *
 * A part (trainer, producer or both) may hold several copies: what it trains, a reference, what it samples with, versions for others. The
 * rules for that are here and nowhere else. The memory plan adds these rows, the worker opens them, and `train --dry-run` prints them.
 * holdings_of is a pure function of a struct holder. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "kernels/ops.h"
#include "protocol/settings/run_config.h"

struct buf;
struct device;
struct error;
struct model;
struct trainer_settings;

/* What weights are held for. */
enum holding_use {
    HOLDS_TRAINED,      // the trainer changes them
    HOLDS_REFERENCE,    // the loss compares with them
    HOLDS_CURRENT,      // a copy that gets what is trained after each step: others are given it, or the sampler works with it
    HOLDS_SAMPLED,      // the sampler works with them, at a version of its own
    HOLDS_NEXT,         // a second generator works with them, at another version ('fill_gap')
    HOLDS_KEPT,         // versions that the first trainer keeps for other samplers
    HOLDS_COMING,       // a version that comes while the one before it is sampled with
};
enum holding_form {
    HELD_WHOLE,
    HELD_SLICES,    // of each product, over the devices of a team (team.h)
    HELD_STAGES,    // by layers, over the devices of a pipeline (stages.h); each may be in slices
    HELD_VIEW,      // none of their own: those of an adapter's frozen base
};
enum holding_from {
    FROM_FILES,      // the model's directory
    FROM_TRAINED,    // what is trained here
    FROM_TEACHER,    // the teacher's directory
    FROM_TRAINER,    // the first trainer, which publishes them
};
struct holding {
    enum holding_use use;
    enum holding_form form;
    enum holding_from from;
    bool shards;                    // and each device has only this trainer's shard of its part
    int n_stage, n_slice;           // devices: n_stage times n_slice, stage after stage
    int n_version;                  // copies
    size_t bytes[SUM_PARTS_MAX];    // of each of the devices; 0 before holdings_measure
};
#define HOLDINGS_MAX 8
struct holdings {
    /* No use has two rows, except HOLDS_CURRENT: whole, then in slices. A trainer's first row is what it trains. */
    struct holding row[HOLDINGS_MAX];
    int n;
};

/* All that decides what a part holds. */
struct holder {
    bool trains, produces, samples;    // samples: it also may only evaluate or serve
    bool first;                        // it is the first trainer
    bool adapter;                      // an adapter is trained: the rest is frozen
    bool reference, teacher;           // the reference is a teacher
    bool ahead;                        // a trainer whose sampler has a version of its own (n_behind)
    bool posted;                       // environments post what is trained on, and are given the weights
    bool travels;                      // others get the weights from the first trainer
    bool apart;                        // the trainers do not reach each other's memory
    int n_rank, zero_stage;            // of the trainers
    int n_stage, n_slice;              // devices of each trainer
    int n_sampler;                     // devices of its sampler
    int n_lane;                        // generators
    bool by_memory;                    // weights that travel go through memory, not by file
    int n_kept, n_staged;              // versions in memory: for others, at the first trainer; and for it, at those who sample
};
/* Versions of the weights that the first trainer keeps for other samplers beside its own; 0: they have what they need before it goes on.
 * Where the gap at the end of a rollout step is filled, it keeps one more, as samplers want two. In these four 'fill_gap' auto counts as off;
 * run_room_plan settles it. */
int run_versions_kept(const struct run_config *c);
bool run_fills_gap(const struct run_config *c);
/* Generators of the part's sampler, each with weights of its own: 2 where it fills the gap, so that it can have two versions in work. */
int run_lanes(const struct run_config *c, const struct run_part *part);
bool run_samples(const struct run_config *c, const struct run_part *part);    // the first trainer may, too: it evaluates, or serves
/* The devices that the part's sampler has slices on. 1: it has whole weights, or samples nothing. */
int run_sampler_devices(const struct run_config *c, const struct run_part *part);

struct holder holder_of(const struct run_config *c, const struct run_part *part, bool apart, int zero_stage);
/* h with the trainers that s describes. */
struct holder holder_with(const struct holder *h, const struct trainer_settings *s);
void holdings_of(struct holdings *out, const struct holder *h);
/* The row for this use and form. NULL: there is none. */
const struct holding *holdings_find(const struct holdings *h, enum holding_use use, enum holding_form form);
/* Has it a row for this use, in any form? */
bool holdings_has(const struct holdings *h, enum holding_use use);
/* A trainer's row that new weights are taken from, for others and for its own sampler: a whole copy, or what is trained. */
const struct holding *holdings_given(const struct holdings *h);
/* Fill in the bytes for m's shape, and for the teacher's that s names; s: of the trainer, NULL: nothing is trained. */
void holdings_measure(struct holdings *h, const struct model *m, const struct trainer_settings *s);
size_t holdings_bytes(const struct holdings *h, int device);    // of all rows

/* Make the model that a row says, on the first of dev that it needs. It takes the weights of `of` later (model_weights_take), as
 * model_source_pass; a view has those of `of`. Returns it for model_free; NULL: see err. */
struct model *holding_open(const struct holding *row, struct model *of, struct device *const *dev, struct error *err);
/* Make a model of of's shape for a sampler's row, to be filled later: with its weights 0, or a shape for model_team. Returns it for
 * model_free; NULL: see err. */
struct model *holding_empty(const struct holding *row, const struct model *of, struct error *err);

/* Words for users: "trained"; "shards of 2 stages of 2 slices"; "the model's files". */
const char *holding_use_name(enum holding_use use);
const char *holding_form_text(const struct holding *h, char *out, size_t size);
const char *holding_from_name(enum holding_from from);
/* A line of text for each row, with the megabytes of each of its devices, after `margin` columns. */
void holdings_print(const struct holdings *h, int margin, struct buf *out);
