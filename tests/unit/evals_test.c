/* tags: tsan valgrind
 * An evaluation in parts: nobody's end loses an answer, and no answer counts twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "protocol/base/macros.h"
#include "protocol/wire/message.h"
#include "workers/schedule/evals.h"

#define N_PROMPT 3
static struct error err;

/* One that has begun at step, in two parts, of a set "s" with N_PROMPT prompts. */
static void begin(struct evals *e, int64_t step)
{
    struct run_config *c = malloc(sizeof *c);
    assert_non_null(c);
    run_config_init(c);
    snprintf(c->eval_dataset, sizeof c->eval_dataset, "{\"s\":{\"path\":\"s.jsonl\"}}");
    evals_init(e);
    evals_want(e, step);
    assert_true(evals_begin(e, c, 2, &err));
    free(c);
}

/* The answer to the prompt of a row, right or wrong. */
static bool come(struct evals *e, int64_t id, int64_t row, int64_t n, bool correct)
{
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    msg_begin(&m, MSG_EVALUATED);
    msg_i64(&m, "eval", id);
    msg_str(&m, "set", "s");
    msg_i64(&m, "row", row);
    msg_i64(&m, "n", n);
    msg_list(&m, "samples");
    msg_map(&m, NULL);
    msg_i64(&m, "score", SCORE_OK);
    msg_bool(&m, "correct", correct);
    msg_end(&m);
    msg_end(&m);
    msg_str(&m, "records", "");
    assert_true(msg_finish(&m, &err));
    assert_true(msg_read_request(&in, m.buf.data, m.buf.len, &err));
    bool ok = evals_came(e, in.root, &err);
    msg_in_release(&in);
    msg_release(&m);
    return ok;
}

/* The part given as task has been sampled; row dropped was too long, -1: none. */
static bool sampled(struct evals *e, int64_t task, int64_t dropped)
{
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    msg_begin(&m, MSG_DONE);
    msg_str(&m, "name", "worker cpu:0");
    msg_str(&m, "kind", "eval");
    msg_i64(&m, "task", task);
    msg_i64(&m, "step", 4);
    msg_i64(&m, "incarnation", 0);
    msg_bool(&m, "ok", true);
    msg_map(&m, "eval");
    msg_map(&m, "s");
    msg_i64(&m, "n", N_PROMPT);
    msg_list(&m, "dropped");
    if (dropped >= 0)
        msg_i64(&m, NULL, dropped);
    msg_end(&m);
    msg_end(&m);
    msg_end(&m);
    assert_true(msg_finish(&m, &err));
    assert_true(msg_read_request(&in, m.buf.data, m.buf.len, &err));
    bool ok = evals_sampled(e, task, mval_get(in.root, "eval"), &err);
    msg_in_release(&in);
    msg_release(&m);
    return ok;
}

static void it_ends_with_the_last_answer_and_counts_each_prompt_once(UNUSED void **state)
{
    struct evals e;
    begin(&e, 4);
    assert_int_equal(evals_part_give(&e, 1, 11), 0);
    assert_int_equal(evals_part_give(&e, 2, 12), 1);
    assert_int_equal(evals_step(&e), -1);
    assert_true(come(&e, e.id, 0, N_PROMPT, true) && come(&e, e.id, 0, N_PROMPT, true));
    assert_true(come(&e, e.id - 1, 2, N_PROMPT, true));    // of another evaluation
    assert_true(sampled(&e, 12, 1) && sampled(&e, 11, -1));
    assert_false(evals_complete(&e));
    assert_true(evals_at_risk(&e));    // all is sampled, but an answer would be lost with its worker
    assert_true(come(&e, e.id, 2, N_PROMPT, false));
    assert_true(evals_complete(&e));
    assert_false(evals_at_risk(&e));
    assert_int_equal(e.sets->set[0].tally.n_scored, 2);
    assert_int_equal(e.sets->set[0].tally.n_correct, 1);
    evals_end(&e);
    assert_true(evals_idle(&e));
}

static void a_part_waits_again_when_its_worker_ends_before_its_answers_are_here(UNUSED void **state)
{
    struct evals e;
    begin(&e, 4);
    evals_part_give(&e, 1, 11);
    evals_part_give(&e, 2, 12);
    assert_true(sampled(&e, 11, -1) && sampled(&e, 12, -1));
    assert_true(come(&e, e.id, 0, N_PROMPT, true) && come(&e, e.id, 1, N_PROMPT, true));
    evals_lost(&e, 2);    // row 1 is here
    assert_int_equal(evals_step(&e), -1);
    evals_lost(&e, 1);    // row 2 is not
    assert_int_equal(evals_step(&e), 4);
    assert_int_equal(evals_part_give(&e, 2, 13), 0);
    assert_true(sampled(&e, 11, -1));    // what was lost says nothing of the part now
    assert_true(come(&e, e.id, 2, N_PROMPT, true));
    assert_false(evals_complete(&e));
    assert_true(sampled(&e, 13, -1));
    assert_true(evals_complete(&e));
    evals_release(&e);
}

static void answers_that_do_not_fit_are_refused(UNUSED void **state)
{
    struct evals e;
    begin(&e, 4);
    evals_part_give(&e, 1, 11);
    assert_true(come(&e, e.id, 0, N_PROMPT, true));
    assert_false(come(&e, e.id, N_PROMPT, N_PROMPT, true));
    assert_false(come(&e, e.id, -1, N_PROMPT, true));
    assert_false(come(&e, e.id, 1, N_PROMPT + 1, true));
    assert_false(sampled(&e, 11, N_PROMPT));
    assert_int_equal(err.code, ERR_DATA);
    evals_release(&e);
}

static void a_return_drops_evaluations_of_later_steps(UNUSED void **state)
{
    static const struct {
        int64_t begun, wanted, step, running, left;
        const char *why;
    } cases[] = {
        { 2, 4, 4, 2, 4, "both steps are there" },
        { 2, 4, 2, 2, -1, "the wanted one's step is made again" },
        { 4, 6, 2, -1, -1, "both are made again" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct evals e;
        begin(&e, cases[i].begun);
        evals_want(&e, cases[i].wanted);
        evals_back(&e, cases[i].step);
        assert_int_equal(e.running, cases[i].running);
        assert_int_equal(e.wanted, cases[i].left);
        evals_release(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_ends_with_the_last_answer_and_counts_each_prompt_once),
        cmocka_unit_test(a_part_waits_again_when_its_worker_ends_before_its_answers_are_here),
        cmocka_unit_test(answers_that_do_not_fit_are_refused),
        cmocka_unit_test(a_return_drops_evaluations_of_later_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
