#include "workers/engine/plan/holdings.h"
#include <stdio.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "workers/engine/model/extent.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/publish/publication.h"
#include "workers/engine/trainer/trainer.h"

bool run_fills_gap(const struct run_config *c)
{
    return strcmp(c->fill_gap, "on") == 0 && run_config_gap_possible(c);
}

int run_versions_kept(const struct run_config *c)
{
    return (int)MAX(c->n_behind + run_fills_gap(c), (int64_t)(c->free_running ? 2 : 0));
}

int run_lanes(const struct run_config *c, const struct run_part *part)
{
    bool serves = c->serve[0] && part->producer == 0;    // requests would stay in one of the generators
    return run_fills_gap(c) && part->producer >= 0 && part->rank < 0 && !serves ? 2 : 1;
}

bool run_samples(const struct run_config *c, const struct run_part *part)
{
    return part->producer >= 0
           || (part->rank == 0 && (run_config_first_evaluates(c) || run_config_posted(c) || (c->serve[0] && run_config_external(c))));
}

int run_sampler_devices(const struct run_config *c, const struct run_part *part)
{
    return part->producer >= 0 ? (int)c->producer_tensor_parallel_size : 1;
}

struct holder holder_of(const struct run_config *c, const struct run_part *part, bool apart, int zero_stage)
{
    enum weights_way way;
    bool trains = part->rank >= 0, produces = part->producer >= 0;
    bool memory = run_config_travels(c) && !c->node_only && weights_way_parse(c->weights, &way) && way != WAY_FILES;
    struct holder h = { .trains = trains,
                        .produces = produces,
                        .samples = run_samples(c, part),
                        .first = part->rank == 0,
                        .adapter = c->lora_rank > 0 || c->lora_adapter[0],
                        .reference = trains && (c->beta > 0 || c->teacher[0]),
                        .teacher = c->teacher[0] != 0,
                        .ahead = trains && produces && c->n_behind > 0,
                        .posted = run_config_posted(c),
                        .travels = run_config_travels(c) || c->listen[0],
                        .apart = apart,
                        .n_rank = (int)c->num_trainers,
                        .zero_stage = zero_stage,
                        .n_stage = (int)c->pipeline_parallel_size,
                        .n_slice = (int)c->tensor_parallel_size,
                        .n_sampler = run_sampler_devices(c, part),
                        .n_lane = run_lanes(c, part),
                        .by_memory = memory };
    if (memory && h.first)    // copies of the weights, whatever their size
        h.n_kept = (int)publication_room(1, way, true, run_versions_kept(c), 1);
    else if (memory && produces)
        h.n_staged = (int)publication_room(1, way, false, run_versions_kept(c), h.n_sampler);
    return h;
}

struct holder holder_with(const struct holder *h, const struct trainer_settings *s)
{
    struct holder with = *h;
    with.n_rank = MAX(s->n_rank, 1);
    with.zero_stage = s->zero_stage;
    with.n_stage = MAX(s->n_stage, 1);
    with.n_slice = MAX(s->n_team, 1);
    return with;
}

/* Does each trainer keep only its shard of what is trained? An adapter is small: each has all of it. */
static bool trains_shards(const struct holder *h)
{
    return h->trains && !h->adapter && h->n_rank > 1 && h->zero_stage == ZERO_MAX;
}

/* Do the trainers reach each other's shards, and are these in no more parts of memory than a version may be in? */
static bool shards_are_reached(const struct holder *h)
{
    return !h->apart && h->n_rank * h->n_stage * h->n_slice <= EXTENT_PART_MAX;
}

/* Does somebody read whole weights here that are not what is trained? The sampler does when it works on one device with the weights of the
 * last step, and so do environments and lent weights. Everything else is made out of parts: a sampler's own copy, files, versions for others,
 * what they read in place. But shards that this trainer does not reach come only when all trainers bring them, after a step. */
static bool needs_whole(const struct holder *h)
{
    bool shards = trains_shards(h);
    bool gives = h->first && (h->posted || (h->travels && shards && !shards_are_reached(h)));
    return gives || (h->ahead ? shards && h->apart : h->samples && h->n_sampler == 1);
}

static struct holding *row_add(struct holdings *out, enum holding_use use, enum holding_from from)
{
    struct holding *row = &out->row[out->n++];
    *row = (struct holding){ .use = use, .from = from, .n_stage = 1, .n_slice = 1, .n_version = 1 };
    return row;
}

/* Lay a row over devices. */
static void row_put(struct holding *row, int n_stage, int n_slice)
{
    row->n_stage = n_stage;
    row->n_slice = n_slice;
    row->form = n_stage > 1 ? HELD_STAGES : n_slice > 1 ? HELD_SLICES : HELD_WHOLE;
}

/* Over the devices of the trainer. */
static void trained_put(struct holding *row, const struct holder *h)
{
    row_put(row, h->n_stage, h->n_slice);
}

/* Over the devices of the sampler. */
static void sampled_put(struct holding *row, const struct holder *h)
{
    row_put(row, 1, h->n_sampler);
}

static void trainer_rows(struct holdings *out, const struct holder *h)
{
    struct holding *trained = row_add(out, HOLDS_TRAINED, FROM_FILES);
    trained_put(trained, h);
    trained->shards = trains_shards(h);
    if (h->reference) {
        struct holding *reference = row_add(out, HOLDS_REFERENCE, h->teacher ? FROM_TEACHER : FROM_FILES);
        trained_put(reference, h);
        reference->form = h->adapter && !h->teacher ? HELD_VIEW : reference->form;
    }
    if (needs_whole(h) && (trained->shards || trained->form != HELD_WHOLE))
        row_add(out, HOLDS_CURRENT, FROM_TRAINED);
    if (h->ahead || h->n_sampler > 1)
        sampled_put(row_add(out, h->ahead ? HOLDS_SAMPLED : HOLDS_CURRENT, FROM_TRAINED), h);
}

void holdings_of(struct holdings *out, const struct holder *h)
{
    *out = (struct holdings){ 0 };
    if (h->trains)
        trainer_rows(out, h);
    else
        sampled_put(row_add(out, HOLDS_SAMPLED, h->adapter ? FROM_FILES : FROM_TRAINER), h);    // a frozen base is in the files
    if (h->n_lane > 1)
        sampled_put(row_add(out, HOLDS_NEXT, FROM_TRAINER), h);
    if (h->n_kept > 0)
        row_add(out, HOLDS_KEPT, FROM_TRAINED)->n_version = h->n_kept;
    if (h->n_staged > 0)
        row_add(out, HOLDS_COMING, FROM_TRAINER)->n_version = h->n_staged;
}

const struct holding *holdings_find(const struct holdings *h, enum holding_use use, enum holding_form form)
{
    for (int i = 0; i < h->n; i++)
        if (h->row[i].use == use && h->row[i].form == form)
            return &h->row[i];
    return NULL;
}

bool holdings_has(const struct holdings *h, enum holding_use use)
{
    for (int i = 0; i < h->n; i++)
        if (h->row[i].use == use)
            return true;
    return false;
}

const struct holding *holdings_given(const struct holdings *h)
{
    const struct holding *copy = holdings_find(h, HOLDS_CURRENT, HELD_WHOLE);
    return copy ? copy : &h->row[0];
}

/* What stage q of m takes of each of its n_slice devices, none of it in shards. */
static size_t part_bytes(const struct model *m, int n_stage, int q, int n_slice)
{
    struct error ignored;
    struct model *stage = n_stage > 1 ? model_stage_shape(m, n_stage, q, n_slice, &ignored) : NULL;
    const struct model *of = n_stage > 1 ? stage : m;
    size_t size = !of ? 0 : n_slice > 1 ? model_slice_bytes(of, n_slice) : model_weight_bytes(of);
    model_free(stage);
    return size;
}

static size_t device_bytes(const struct holding *row, int q, const struct model *m, const struct trainer_settings *s)
{
    struct trainer_memory t;
    switch (row->use) {
    case HOLDS_TRAINED: trainer_memory_of_device(m, s, q, &t); return t.weight;
    case HOLDS_SAMPLED:
        if (row->from == FROM_FILES)    // an adapter with its base
            return model_held_bytes(m);
        break;
    case HOLDS_REFERENCE: m = s && s->teacher ? s->teacher : m; break;
    case HOLDS_CURRENT:
    case HOLDS_NEXT:
    case HOLDS_KEPT:
    case HOLDS_COMING: break;
    }
    return row->form == HELD_VIEW ? 0 : (size_t)row->n_version * part_bytes(m, row->n_stage, q / row->n_slice, row->n_slice);
}

void holdings_measure(struct holdings *h, const struct model *m, const struct trainer_settings *s)
{
    for (int i = 0; i < h->n; i++)
        for (int q = 0; q < h->row[i].n_stage * h->row[i].n_slice; q++)
            h->row[i].bytes[q] = device_bytes(&h->row[i], q, m, s);
}

size_t holdings_bytes(const struct holdings *h, int device)
{
    size_t sum = 0;
    for (int i = 0; i < h->n; i++)
        sum += h->row[i].bytes[device];
    return sum;
}

const char *holding_use_name(enum holding_use use)
{
    static const char *const name[] = {
        [HOLDS_TRAINED] = "trained", [HOLDS_REFERENCE] = "reference", [HOLDS_CURRENT] = "copy",    [HOLDS_SAMPLED] = "sampled",
        [HOLDS_NEXT] = "next",       [HOLDS_KEPT] = "kept",           [HOLDS_COMING] = "arriving",
    };
    return name[use];
}

const char *holding_from_name(enum holding_from from)
{
    static const char *const name[] = {
        [FROM_FILES] = "the model's files",
        [FROM_TRAINED] = "what is trained",
        [FROM_TEACHER] = "the teacher's files",
        [FROM_TRAINER] = "the first trainer",
    };
    return name[from];
}

/* "4 slices"; one of them needs no words. */
static void several_text(char *out, size_t size, int n, const char *what)
{
    out[0] = '\0';
    if (n > 1)
        snprintf(out, size, "%d %s", n, what);
}

const char *holding_form_text(const struct holding *h, char *out, size_t size)
{
    static const char *const undivided[] = {
        [HELD_WHOLE] = "whole", [HELD_SLICES] = "", [HELD_STAGES] = "", [HELD_VIEW] = "the frozen base"
    };
    char versions[32], stages[32], slices[32];
    const char *whole = undivided[h->form];
    several_text(versions, sizeof versions, h->n_version, "times ");
    several_text(stages, sizeof stages, h->n_stage, "stages");
    several_text(slices, sizeof slices, h->n_slice, "slices");
    const char *of = stages[0] && slices[0] ? " of " : "";
    if (h->shards)
        snprintf(out, size, "%sshards%s%s%s%s", versions, whole[0] ? "" : " of ", stages, of, slices);
    else
        snprintf(out, size, "%s%s%s%s%s", versions, whole, stages, of, slices);
    return out;
}

void holdings_print(const struct holdings *h, int margin, struct buf *out)
{
    char form[96];
    for (int i = 0; i < h->n; i++) {
        const struct holding *row = &h->row[i];
        int n = row->n_stage * row->n_slice;
        buf_fmt(out, "%*s%-9s  %-29s  from %-18s ", margin, "", holding_use_name(row->use), holding_form_text(row, form, sizeof form),
                holding_from_name(row->from));
        for (int q = 0; q < n; q++)
            buf_fmt(out, "%s%.1f", q ? " + " : "", (double)row->bytes[q] * 1e-6);
        buf_str(out, " MB\n");
    }
}
