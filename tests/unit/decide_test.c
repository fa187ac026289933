/* What a worker that asks for work gets: each rule with the facts that trigger it, and which of two rules comes first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "protocol/base/macros.h"
#include "workers/schedule/decide.h"

/* A run in the middle, with nothing due; items wait that are to be sampled with version v, -1: none. */
#define WAITING(v) .running = true, .data_known = true, .step = 5, .next = (v)
#define RUN WAITING(-1)
/* A first trainer that also samples; one that only samples; another trainer. */
#define FIRST .consumes = true, .produces = true, .first = true, .in_step = true, .has_weights = true
#define SAMPLES .produces = true, .in_step = true, .has_weights = true
#define TRAINER RUN, FIRST, .present = true
#define SAMPLER RUN, SAMPLES
#define SECOND RUN, .consumes = true, .produces = true, .in_step = true, .has_weights = true, .present = true, .trainers_several = true

static const struct {
    struct facts f;
    const char *rule;
    enum give give;
} cases[] = {
    { { TRAINER, .over = true, .busy = true, .step_due = true }, "a run that is over needs nobody", GIVE_STOP },

    { { TRAINER, .busy = true, .stopping = true, .room = 3 }, "what nobody wants any more is not sampled on", GIVE_CANCEL },
    { { SAMPLER, .busy = true, .undone = true, .room = 3 }, "what nobody wants any more is not sampled on", GIVE_CANCEL },
    { { RUN, .consumes = true, .busy = true }, "what nobody wants any more is not sampled on", GIVE_CANCEL },

    { { SAMPLER, .busy = true, .free_running = true, .present_shared = true, .room = 3 },
      "free-running, a sampler takes newer weights in mid-work",
      GIVE_PRESENT },
    { { SAMPLER, .busy = true, .free_running = true, .room = 3 }, "a producer with room samples what waits", GIVE_ITEMS },
    { { SAMPLER, .present = true, .free_running = true, .present_shared = true, .room = 3 },
      "a producer with room samples what waits",
      GIVE_ITEMS },

    { { RUN, .produces = true }, "a sampler begins with the model", GIVE_MODEL },
    { { .produces = true, .next = -1 }, "a sampler begins with the model", GIVE_MODEL },    // before the data are known

    { { RUN, .consumes = true, .ahead = true }, "a trainer that is ahead waits until the first one has reported", GIVE_NOTHING },
    { { RUN, .consumes = true, .first = true, .save_due = true },
      "a trainer that is out of step returns to where all begin again",
      GIVE_RETURN },
    { { .consumes = true, .first = true, .in_step = true, .save_due = true, .next = -1 },
      "nothing can be scheduled before the data are known",
      GIVE_NOTHING },

    { { WAITING(5), SAMPLES, .next_coming = true }, "a sampler without items takes the weights that waiting items want", GIVE_NEXT },
    { { WAITING(4), SAMPLES, .next_is_own = true, .has_items = true, .undone = true, .next_coming = true, .room = 2 },
      "a sampler without items takes the weights that waiting items want",
      GIVE_NEXT },
    { { WAITING(5), SAMPLES }, "there is nothing to do", GIVE_NOTHING },    // they are not shared yet
    { { WAITING(4), SAMPLES, .has_items = true, .next_coming = true, .room = 2 }, "a producer with room samples what waits", GIVE_ITEMS },

#define TAKES_BESIDE "a sampler whose batch runs out takes the next weights beside it"
#define RUNS_OUT WAITING(5), SAMPLES, .busy = true, .gap = true, .next_shared = true, .next_coming = true
    { { RUNS_OUT }, TAKES_BESIDE, GIVE_NEXT },
    { { RUNS_OUT, .has_items = true, .room = 3 }, "a producer with room samples what waits", GIVE_ITEMS },
    { { RUNS_OUT, .undone = true }, "what nobody wants any more is not sampled on", GIVE_CANCEL },
    { { RUNS_OUT, .pausing = true }, "there is nothing to do", GIVE_NOTHING },
    { { RUNS_OUT, .eval_waits = true }, "there is nothing to do", GIVE_NOTHING },
    { { WAITING(5), SAMPLES, .busy = true, .next_shared = true }, "there is nothing to do", GIVE_NOTHING },    // more than half runs
    { { WAITING(5), SAMPLES, .busy = true, .gap = true, .next_coming = true }, "there is nothing to do", GIVE_NOTHING },    // it would wait
    { { WAITING(5), SAMPLES, .busy = true, .gap = true, .next_is_own = true }, "there is nothing to do", GIVE_NOTHING },

    { { TRAINER, .present_wanted = true, .present_fits = true, .save_due = true, .step_due = true },
      "the first trainer shares weights before it goes on",
      GIVE_SHARE },
    { { TRAINER, .present_wanted = true, .present_fits = true, .present_shared = true, .save_due = true },
      "the first trainer saves when that is due",
      GIVE_SAVE },
    { { TRAINER, .present_wanted = true, .step_due = true },    // no place for them: the step makes one
      "a step is made when it is due, by all trainers once one has begun",
      GIVE_TRAIN },
    { { TRAINER, .present_wanted = true, .present_fits = true, .stopping = true, .save_due = true },
      "the first trainer saves when that is due",
      GIVE_SAVE },

#define TAKES_A_PART "who has the version that is evaluated and no items for it takes a part"
#define TAKES_THE_VERSION "who has no items takes the version that is evaluated"
    { { TRAINER, .save_due = true, .eval_mine = true }, "the first trainer saves when that is due", GIVE_SAVE },
    { { TRAINER, .eval_mine = true }, TAKES_A_PART, GIVE_EVAL },
    { { SECOND, .save_due = true, .eval_mine = true }, TAKES_A_PART, GIVE_EVAL },
    { { SECOND, .save_due = true }, "there is nothing to do", GIVE_NOTHING },
    { { SECOND, .save_begun = true, .stopping = true, .eval_mine = true, .step_begun = true, .room = 3 },
      "a trainer brings its shards for a checkpoint that has begun",
      GIVE_SAVE },
    { { SECOND, .busy = true, .save_begun = true, .room = 3 }, "a trainer that others wait for takes no items", GIVE_NOTHING },
    { { TRAINER, .eval_mine = true, .pausing = true, .room = 3 }, TAKES_A_PART, GIVE_EVAL },
    { { TRAINER, .eval_mine = true, .room = 3 }, "a producer with room samples what waits", GIVE_ITEMS },
    { { TRAINER, .eval_mine = true, .free_running = true, .room = 3 }, TAKES_A_PART, GIVE_EVAL },
    // producers evaluate with weights of their own meanwhile
    { { TRAINER, .eval_mine = true, .step_due = true }, "a step is made when it is due, by all trainers once one has begun", GIVE_TRAIN },
    { { SECOND, .eval_mine = true, .step_begun = true }, "a step is made when it is due, by all trainers once one has begun", GIVE_TRAIN },
    { { WAITING(6), SAMPLES, .eval_mine = true, .next_coming = true }, TAKES_A_PART, GIVE_EVAL },
    { { WAITING(6), SAMPLES, .eval_coming = true, .next_coming = true }, TAKES_THE_VERSION, GIVE_EVALUATED },
    { { WAITING(6), SAMPLES, .eval_coming = true, .room = 3 }, "a producer with room samples what waits", GIVE_ITEMS },
    { { RUN, SAMPLES, .eval_mine = true, .busy = true }, "there is nothing to do", GIVE_NOTHING },
    { { TRAINER, .present_wanted = true, .present_fits = true, .stopping = true, .eval_waits = true, .eval_mine = true },
      "the first trainer shares weights before it goes on",
      GIVE_SHARE },

    { { WAITING(5), FIRST, .step_due = true }, "a trainer samples with its own newest weights when items want them", GIVE_PRESENT },
    { { WAITING(4), FIRST, .overlaps = true, .next_shared = true, .step_due = true },
      "a trainer without items of its version takes the one they want",
      GIVE_NEXT },
    { { WAITING(4), FIRST, .overlaps = true, .next_shared = true, .has_items = true, .room = 1 },
      "a producer with room samples what waits",
      GIVE_ITEMS },

    { { TRAINER, .step_due = true, .room = 3 }, "a step is made when it is due, by all trainers once one has begun", GIVE_TRAIN },
    { { SECOND, .step_begun = true, .pausing = true, .room = 3 },
      "a step is made when it is due, by all trainers once one has begun",
      GIVE_TRAIN },
    { { SECOND, .step_due = true, .room = 3 }, "a trainer that others wait for takes no items", GIVE_NOTHING },
    { { SECOND, .busy = true, .step_begun = true, .room = 3 }, "a trainer that others wait for takes no items", GIVE_NOTHING },
    { { TRAINER, .busy = true, .step_due = true, .room = 3 }, "a producer with room samples what waits", GIVE_ITEMS },

    { { TRAINER, .room = 3 }, "a producer with room samples what waits", GIVE_ITEMS },
    { { SAMPLER, .room = 3, .pausing = true }, "there is nothing to do", GIVE_NOTHING },
    { { .data_known = true, .step = 5, .next = -1, SAMPLES, .room = 3 }, "there is nothing to do", GIVE_NOTHING },
    { { SAMPLER, .room = 3, .undone = true }, "there is nothing to do", GIVE_NOTHING },
    { { RUN, .produces = true, .in_step = true, .room = 3 }, "there is nothing to do", GIVE_NOTHING },
    { { RUN, .consumes = true, .first = true, .in_step = true, .has_weights = true, .present = true, .room = 3 },
      "there is nothing to do",
      GIVE_NOTHING },
    { { SAMPLER, .busy = true }, "there is nothing to do", GIVE_NOTHING },
};

static void the_first_rule_that_applies_decides(UNUSED void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct decision d = decide(&cases[i].f);
        if (strcmp(d.rule, cases[i].rule) != 0 || d.give != cases[i].give)
            fail_msg("case %zu is decided by '%s' and not by '%s'", i, d.rule, cases[i].rule);
    }
}

static void every_rule_decides_something(UNUSED void **state)
{
    const char *name;
    for (int r = 0; (name = decide_rule(r)); r++) {
        size_t i = 0;
        while (i < ARRAY_SIZE(cases) && strcmp(cases[i].rule, name) != 0)
            i++;
        if (i == ARRAY_SIZE(cases))
            fail_msg("no case here is decided by '%s'", name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_rule_that_applies_decides),
        cmocka_unit_test(every_rule_decides_something),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
