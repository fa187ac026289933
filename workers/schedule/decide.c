#include "workers/schedule/decide.h"
#include "protocol/base/macros.h"

static bool run_is_over(const struct facts *f)
{
    return f->over;
}

static bool work_is_useless(const struct facts *f)
{
    return f->busy && (f->stopping || !f->in_step || f->undone);
}

static bool newer_weights_are_there(const struct facts *f)
{
    return f->free_running && !f->consumes && f->in_step && !f->stopping && f->data_known && (!f->present || f->undone)
           && f->present_shared;
}

static bool sampler_has_no_model(const struct facts *f)
{
    return !f->busy && !f->consumes && !f->in_step;
}

static bool trainer_waits_for_first(const struct facts *f)
{
    return !f->busy && !f->in_step && f->ahead;
}

static bool trainer_is_out_of_step(const struct facts *f)
{
    return !f->busy && !f->in_step;
}

static bool data_are_unknown(const struct facts *f)
{
    return !f->busy && !f->data_known;
}

static bool sampler_needs_next_weights(const struct facts *f)
{
    return !f->busy && !f->consumes && !f->free_running && f->running && !f->stopping && f->next >= 0 && (f->undone || !f->has_items)
           && f->next_coming;
}

/* An evaluation waits for a sampler that has nothing else to do, and a pause for what is in work. */
static bool sampler_runs_out(const struct facts *f)
{
    return f->busy && f->gap && !f->consumes && f->running && !f->stopping && !f->pausing && !f->eval_waits && f->next >= 0
           && !f->next_is_own && !f->has_items && f->next_shared;
}

static bool others_need_present_weights(const struct facts *f)
{
    return !f->busy && f->consumes && f->first && (!f->stopping || f->eval_waits) && f->present_wanted && !f->present_shared
           && f->present_fits;
}

static bool checkpoint_is_due(const struct facts *f)
{
    return !f->busy && f->first && f->save_due;
}

static bool checkpoint_waits_for_it(const struct facts *f)
{
    return !f->busy && f->consumes && f->save_begun;
}

static bool items_wait(const struct facts *f)
{
    return f->produces && f->data_known && f->running && !f->stopping && !f->pausing && f->has_weights && !f->undone && f->room > 0;
}

static bool step_waits_for_it(const struct facts *f)
{
    return f->consumes && (f->step_begun || f->step_due);
}

/* Samples come first: the trainers may wait for them. Free-running, there are always more. */
static bool evaluation_has_a_part(const struct facts *f)
{
    return !f->busy && f->eval_mine && !step_waits_for_it(f) && (f->free_running || !items_wait(f));
}

static bool evaluation_needs_weights(const struct facts *f)
{
    return !f->busy && f->eval_coming && !step_waits_for_it(f) && (f->free_running || !items_wait(f));
}

static bool trainer_samples_with_older_weights(const struct facts *f)
{
    return !f->busy && f->consumes && f->produces && f->running && !f->present && f->next == f->step;
}

static bool trainer_samples_behind_others(const struct facts *f)
{
    return !f->busy && f->consumes && f->produces && f->overlaps && f->running && !f->stopping && f->next >= 0 && !f->next_is_own
           && !f->has_items && f->next_shared;
}

static bool step_is_to_be_made(const struct facts *f)
{
    return !f->busy && f->consumes && (f->step_begun || (f->first && f->step_due));
}

/* Several trainers meet in each step, and in some checkpoints, so the others would wait for one that samples on. */
static bool trainer_is_awaited(const struct facts *f)
{
    return f->consumes && f->trainers_several && f->data_known && (f->step_begun || f->step_due || f->save_begun);
}

static bool always(UNUSED const struct facts *f)
{
    return true;
}

// clang-format off
static const struct rule {
    const char *name;
    bool (*applies)(const struct facts *f);
    enum give give;
} rules[] = {
    { "a run that is over needs nobody",                                  run_is_over,                        GIVE_STOP },
    { "what nobody wants any more is not sampled on",                     work_is_useless,                    GIVE_CANCEL },
    { "free-running, a sampler takes newer weights in mid-work",          newer_weights_are_there,            GIVE_PRESENT },
    { "a sampler begins with the model",                                  sampler_has_no_model,               GIVE_MODEL },
    { "a trainer that is ahead waits until the first one has reported",   trainer_waits_for_first,            GIVE_NOTHING },
    { "a trainer that is out of step returns to where all begin again",   trainer_is_out_of_step,             GIVE_RETURN },
    { "nothing can be scheduled before the data are known",               data_are_unknown,                   GIVE_NOTHING },
    { "the first trainer shares weights before it goes on",               others_need_present_weights,        GIVE_SHARE },
    { "the first trainer saves when that is due",                         checkpoint_is_due,                  GIVE_SAVE },
    { "a trainer brings its shards for a checkpoint that has begun",      checkpoint_waits_for_it,            GIVE_SAVE },
    { "who has the version that is evaluated and no items for it takes a part", evaluation_has_a_part,        GIVE_EVAL },
    { "who has no items takes the version that is evaluated",             evaluation_needs_weights,           GIVE_EVALUATED },
    { "a sampler without items takes the weights that waiting items want",   sampler_needs_next_weights,         GIVE_NEXT },
    { "a sampler whose batch runs out takes the next weights beside it",  sampler_runs_out,                   GIVE_NEXT },
    { "a trainer samples with its own newest weights when items want them", trainer_samples_with_older_weights, GIVE_PRESENT },
    { "a trainer without items of its version takes the one they want",   trainer_samples_behind_others,      GIVE_NEXT },
    { "a step is made when it is due, by all trainers once one has begun", step_is_to_be_made,                GIVE_TRAIN },
    { "a trainer that others wait for takes no items",                    trainer_is_awaited,                 GIVE_NOTHING },
    { "a producer with room samples what waits",                          items_wait,                         GIVE_ITEMS },
    { "there is nothing to do",                                           always,                             GIVE_NOTHING },
};
// clang-format on

struct decision decide(const struct facts *f)
{
    const struct rule *r = rules;
    while (!r->applies(f))
        r++;
    return (struct decision){ r->name, r->give };
}

const char *decide_rule(int n)
{
    return n >= 0 && n < (int)ARRAY_SIZE(rules) ? rules[n].name : NULL;
}
