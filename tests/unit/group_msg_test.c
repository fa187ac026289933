/* tags: valgrind
 * A rollout group travels as a message and comes back as the same bytes; one whose sizes disagree does not come in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
#include "protocol/record/group_claims.h"
#include "protocol/record/group_msg.h"

static struct group *group_make(void)
{
    struct error err;
    struct group *g = group_new(3, 2, 5, &err);
    assert_non_null(g);
    g->item = 17, g->prompt_row = 4, g->rollout_step = 2, g->weight_version = 9;
    g->temperature = 0.7f, g->top_p = 0.9f, g->top_k = 40, g->max_new_tok = 12;
    for (int i = 0; i < 3; i++)
        g->prompt[i] = 100 + i;
    for (int i = 0; i < 5; i++) {
        g->token[i] = 200 + i;
        g->logp[i] = -0.1f * (float)(i + 1);
        g->newer[i] = i > 2;
        g->mask[i] = i != 3;
        g->adv[i] = 0.5f * (float)i;
    }
    g->has_adv = g->no_logp = true;
    g->sample[0] = (struct sample){ .first_tok = 0,
                                    .n_tok = 2,
                                    .seed = UINT64_MAX,
                                    .finish = FINISH_STOP,
                                    .score = SCORE_OK,
                                    .reward = 0.1,
                                    .format_acc = 1,
                                    .ans_acc = 1,
                                    .reason = "boxed: equal" };
    g->sample[1] = (struct sample){
        .first_tok = 2, .n_tok = 3, .finish = FINISH_LENGTH, .score = SCORE_TIMEOUT, .temperature = 0.25f, .adv_zero = true, .again = true
    };
    g->score_s = 0.75, g->verify_s = 1.5;
    return g;
}

static void group_write_whole(struct msg_out *m, const struct group *g)
{
    struct error err;
    static const char *const text[] = { "a", "b" };
    msg_begin(m, MSG_GROUP);
    msg_i64(m, "incarnation", 1);
    group_write(m, g, &(struct group_texts){ .prompt = "prompt", .sample = text });
    assert_true(msg_finish(m, &err));
}

static void what_was_sent_is_what_comes(UNUSED void **state)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct group *g = group_make();
    group_write_whole(&m, g);
    assert_true(msg_read_request(&in, m.buf.data, m.buf.len, &err));
    struct group *back = group_read(in.root, &err);
    assert_non_null(back);
    assert_int_equal(back->item, 17);
    assert_int_equal(back->weight_version, 9);
    assert_memory_equal(back->prompt, g->prompt, 3 * sizeof *g->prompt);
    assert_memory_equal(back->token, g->token, 5 * sizeof *g->token);
    assert_memory_equal(back->logp, g->logp, 5 * sizeof *g->logp);
    assert_memory_equal(back->newer, g->newer, 5 * sizeof *g->newer);
    assert_memory_equal(back->mask, g->mask, 5);
    assert_true(back->has_adv && back->no_logp);
    assert_memory_equal(back->adv, g->adv, 5 * sizeof *g->adv);
    assert_true(back->sample[0].temperature == 0 && back->sample[1].temperature == 0.25f);
    assert_true(!back->sample[0].adv_zero && back->sample[1].adv_zero);
    assert_true(!back->sample[0].again && back->sample[1].again);
    assert_int_equal(sample_n_own(back, 0), 2);
    assert_int_equal(sample_n_own(back, 1), 2);
    assert_memory_equal(&back->temperature, &g->temperature, sizeof g->temperature);
    assert_int_equal(back->sample[1].first_tok, 2);
    assert_int_equal(back->sample[0].seed == UINT64_MAX, true);
    assert_string_equal(back->sample[0].reason, "boxed: equal");
    struct group_summary s;
    assert_true(group_summary_read(in.root, &s, &err));
    assert_int_equal(s.n_sample, 2);
    assert_int_equal(s.n_scored, 1);
    assert_int_equal(s.n_left_out, 1);
    assert_int_equal(s.n_timeout, 1);
    assert_int_equal(s.n_error, 0);
    assert_true(s.score_s == 0.75 && s.verify_s == 1.5);
    assert_int_equal(back->sample[1].score, SCORE_TIMEOUT);
    assert_int_equal(s.n_truncated, 1);
    assert_int_equal(s.n_tok_max, 3);
    assert_true(fabs(s.reward_sum - 0.1) < 1e-15);
    group_free(back);
    group_free(g);
    msg_in_release(&in);
    msg_release(&m);
}

static void a_group_whose_sizes_disagree_is_refused(UNUSED void **state)
{
    static const struct {
        int64_t tok0, finish, score;
        const char *why;
    } cases[] = {
        { 3, 0, 1, "more tokens in the samples than in the group" },
        { 1, 0, 1, "fewer" },
        { -1, 0, 1, "a negative count" },
        { INT64_MAX, 0, 1, "a count that overflows a sum" },
        { 2, 2, 1, "an unknown finish reason" },
        { 2, 0, 5, "an unknown score" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct msg_out m = MSG_OUT_INIT;
        struct msg_in in;
        struct group *g = group_make();
        g->sample[0].n_tok = cases[i].tok0;
        g->sample[0].finish = (enum finish_reason)cases[i].finish;
        g->sample[0].score = (enum score_state)cases[i].score;
        group_write_whole(&m, g);
        assert_true(msg_read_request(&in, m.buf.data, m.buf.len, &err));
        if (group_read(in.root, &err))
            fail_msg("accepted: %s", cases[i].why);
        assert_int_equal(err.code, ERR_DATA);
        group_free(g);
        msg_in_release(&in);
        msg_release(&m);
    }
}

/* A group that may be what it claims; case n makes one thing of it wrong. */
static struct group *claiming(int n)
{
    struct group *g = group_make();
    g->has_adv = n == 0;
    g->no_logp = n == 30;
    g->sample[1].temperature = n == 1 ? 0.5f : 0;
    g->sample[1].adv_zero = n == 2;
    g->sample[1].again = n == 31;
    g->logp[3] = n == 3 ? -0.1f : 0;    // an environment gave it
    switch (n) {
    case 4: g->logp[0] = NAN; break;
    case 5: g->logp[0] = -INFINITY; break;
    case 6: g->logp[0] = 1; break;
    case 7: g->logp[0] = -41; break;
    case 8: g->token[1] = 300; break;
    case 9: g->token[1] = -1; break;
    case 10: g->prompt[2] = 300; break;
    case 11: g->newer[4] = 2; break;
    case 12: g->newer[4] = -1; break;
    case 13: g->weight_version = 6; break;
    case 14: g->weight_version = 11; break;
    case 15: g->prompt_row = 5; break;
    case 16: g->rollout_step = 3; break;
    case 17: g->temperature = 0.71f; break;
    case 18: g->top_p = 1; break;
    case 19: g->top_k = 0; break;
    case 20: g->sample[0].reward = INFINITY; break;
    case 21: g->sample[0].reward = NAN; break;
    case 22: g->sample[0].ans_acc = 2; break;
    case 23: g->sample[0].format_acc = -1; break;
    case 24: g->gen_s = INFINITY; break;
    case 25: g->score_s = NAN; break;
    case 26:
        g->has_entropy = true;
        g->entropy[0] = NAN;
        break;
    case 28: g->sample[0].reward = 1e30; break;
    case 29: g->logp[0] = 0.6f; break;
    }
    return g;
}

static void a_group_of_a_lent_machine_claims_no_more_than_it_may(UNUSED void **state)
{
    struct error err;
    const struct group_claims may = { .row = 4,
                                      .rollout_step = 2,
                                      .version_low = 7,
                                      .version_high = 10,
                                      .n_sample = 2,
                                      .n_prompt_max = 3,
                                      .n_tok_max = 3,
                                      .n_id = 300,
                                      .temperature = 0.7,
                                      .top_p = 0.9,
                                      .top_k = 40 };
    struct group_claims less[] = { may, may, may, may };
    less[0].n_sample = 3;
    less[1].n_prompt_max = 2;
    less[2].n_tok_max = 2;
    less[3].n_id = 0;
    for (int n = 0; n <= 31; n++) {
        struct msg_out m = MSG_OUT_INIT;
        struct msg_in in;
        struct group *g = claiming(n);
        group_write_whole(&m, g);
        assert_true(msg_read_request(&in, m.buf.data, m.buf.len, &err));
        err.text[0] = 0;
        if (group_claims_check(in.root, &may, &err) != (n == 27))
            fail_msg("case %d: %s", n, err.text);
        for (size_t k = 0; n == 27 && k < ARRAY_SIZE(less); k++)
            assert_false(group_claims_check(in.root, &less[k], &err));
        msg_in_release(&in);
        msg_release(&m);
        group_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_of_a_lent_machine_claims_no_more_than_it_may),
        cmocka_unit_test(what_was_sent_is_what_comes),
        cmocka_unit_test(a_group_whose_sizes_disagree_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
