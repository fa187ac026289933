/* A model in the stages of a pipeline: where its layers are cut, what is refused, and that scoring and supervised steps have the bits of one
 * device, after a failure too. team_test has steps of reinforcement learning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "tests/unit/small_model.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/loss.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/supervised.h"
#include "workers/engine/trainer/update.h"
#include "workers/engine/pass/pass.h"

enum {
    STAGES = 3,
    LAYERS = 7,
    VOCAB = 96,
    SEQS = 11,
};

static struct model_config small(void)
{
    struct model_config c = small_model(VOCAB);
    c.n_layer = LAYERS;
    c.n_head = 2;
    c.n_kv_head = 1;
    return c;
}
static struct device *devices[STAGES];

static void devices_open(void)
{
    struct error err;
    for (int q = 0; q < STAGES; q++) {
        char name[16];
        snprintf(name, sizeof name, "cpu:%d", q);
        if (!(devices[q] = device_new(name, 1, &err)))
            fail_msg("%s", err.text);
    }
}

static void devices_close(void)
{
    for (int q = 0; q < STAGES; q++)
        device_free(devices[q]);
}

/* A head of as many weights as a layer's matrices counts as a layer: the last stage has fewer. Worked by hand. */
static void layers_are_cut_as_evenly_as_the_head_allows(UNUSED void **state)
{
    // clang-format off
    static const struct {
        int64_t n_layer, vocab;
        int n;
        int64_t ends[5];
    } all[] = {    // with d_model 32 a layer's matrices have 32 (2 32 + 2 16 + 3 64) = 32 288 weights
        { 8, 0, 4, { 2, 4, 6, 8 } },
        { 8, 288, 3, { 3, 6, 8 } },        // 9 units
        { 24, 9 * 288, 2, { 17, 24 } },    // 33 units: 16.5, rounded up
        { 4, 100 * 288, 4, { 1, 2, 3, 4 } },
        { 5, 100 * 288, 2, { 4, 5 } },     // the last stage has a layer, too
        { 3, 0, 1, { 3 } },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        struct model_config c = small();
        c.n_layer = all[i].n_layer;
        c.vocab = all[i].vocab;
        for (int q = 0; q < all[i].n; q++) {
            int64_t first, end;
            stage_layers(&c, all[i].n, q, &first, &end);
            assert_int_equal(first, q ? all[i].ends[q - 1] : 0);
            assert_int_equal(end, all[i].ends[q]);
        }
    }
}

static void stages_that_cannot_be_are_refused_with_the_nearest(UNUSED void **state)
{
    struct model_config c = small();
    struct error err = { 0 };
    assert_true(stages_check(&c, LAYERS, &err));
    assert_false(stages_check(&c, LAYERS + 1, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_string_equal(err.text, "7 layers cannot be cut into 8 stages of at least one layer; at most 7 are possible");
    c.n_layer = 40;
    assert_false(stages_check(&c, 9, &err));
    assert_string_equal(err.text, "40 layers cannot be cut into 9 stages; at most 8 are possible");
}

/* Two supervised steps, and log-probs of the last sequence. */
struct outcome {
    float *master;
    double loss[2];
    float logp[64], entropy[64];
    int64_t n;
};
static void outcome_make(struct outcome *o, int n_stage, bool untied)
{
    struct error err = { 0 };
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    struct trainer_hyper h;
    struct model_config c = small();
    struct sft_seq seq[SEQS];
    int32_t token[SEQS][24];
    float weight[SEQS][24];
    c.tied = !untied;
    trainer_hyper_init(&h);
    h.lr = 1e-2;
    set.token_budget_max = 40;    // 2 or 3 sequences
    set.n_stage = n_stage;
    for (int s = 0; s < SEQS; s++) {
        seq[s] = (struct sft_seq){ token[s], weight[s], 10 + s };
        for (int i = 0; i < seq[s].n_tok; i++) {
            token[s][i] = (i * 7 + s * 13) % VOCAB;
            weight[s][i] = i > 3 && i % 5 ? 1 : 0;
        }
    }
    struct model *m = model_new_random(&c, 5, devices[0], DT_F32, &err), *cut = m;
    assert_non_null(m);
    if (n_stage > 1 && !(cut = model_staged_new(m, devices, n_stage, 1, &err)))
        fail_msg("%s", err.text);
    struct trainer *t = trainer_new(cut, NULL, &set, &err);
    if (!t)
        fail_msg("%s", err.text);
    for (int k = 0; k < 2; k++) {
        double n_tok, norm, again;
        if (!trainer_sft_step(t, seq, SEQS, &h, true, &o->loss[k], &n_tok, &norm, &err)
            || !trainer_sft_step(t, seq, SEQS, &h, false, &again, &n_tok, &norm, &err))
            fail_msg("%d stages: %s", n_stage, err.text);
        assert_true(again < o->loss[k]);
    }
    int64_t len = seq[SEQS - 1].n_tok;
    float one = 1;
    assert_true(trainer_logprobs(t, token[SEQS - 1], &len, &one, 1, o->logp, o->entropy, &err));
    o->n = trainer_grad_n(t);
    assert_non_null(o->master = malloc((size_t)o->n * 4));
    assert_true(trainer_state_get(t, STATE_MASTER, o->master, &err));
    trainer_free(t);
    if (cut != m)
        model_free(cut);
    model_free(m);
}

static void supervised_steps_leave_the_bytes_of_one_device(UNUSED void **state)
{
    devices_open();
    for (int untied = 0; untied < 2; untied++) {
        struct outcome one = { 0 };
        outcome_make(&one, 1, untied);
        for (int n = 2; n <= STAGES; n++) {
            struct outcome o = { 0 };
            outcome_make(&o, n, untied);
            assert_int_equal(o.n, one.n);
            assert_memory_equal(o.master, one.master, (size_t)one.n * 4);
            assert_memory_equal(o.loss, one.loss, sizeof one.loss);
            assert_memory_equal(o.logp, one.logp, sizeof one.logp);
            assert_memory_equal(o.entropy, one.entropy, sizeof one.entropy);
            free(o.master);
        }
        free(one.master);
    }
    devices_close();
}

/* Micro-batches of one sequence; one stage's call for one of them fails. */
struct failing {
    int stage;
    int64_t micro, n_done;
    int32_t token[STAGES][8], cu[2];
    float temperature[8], coef[8], logp[8];
};
static bool batch_or_fail(void *ctx, int stage, int64_t k, struct model_batch *b, struct error *err)
{
    struct failing *f = ctx;
    if (stage == f->stage && k == f->micro)
        return error_set(err, ERR_NO_MEMORY, "stage %d is out of memory", stage);
    *b = (struct model_batch){ .n_seq = 1, .n_tok = 8, .token = f->token[stage], .cu_tok = f->cu };
    return true;
}
static bool finish(void *ctx, UNUSED int64_t k, struct model_run *last, const struct model_grad *grad, struct error *err)
{
    struct failing *f = ctx;
    struct token_loss loss = { .target = f->token[0], .temperature = f->temperature, .coef = f->coef, .logp = f->logp };
    f->n_done++;
    return model_backward(last, &loss, grad, err);
}

static void a_stage_that_fails_makes_the_others_return_with_its_error(UNUSED void **state)
{
    struct error err = { 0 };
    struct run_limits lim = { .max_tok = 8, .max_seq = 8, .max_seq_tok = 8, .train = true };
    struct model_grad grad[STAGES] = { 0 };
    devices_open();
    const struct model_config c = small();
    struct model *m = model_new_random(&c, 5, devices[0], DT_F32, &err), *cut = model_staged_new(m, devices, STAGES, 1, &err);
    struct model_run *r = model_run_new(cut, &lim, &err);
    assert_non_null(r);
    for (int q = 0; q < STAGES; q++)
        assert_non_null(grad[q].flat = calloc((size_t)model_n_flat(team_slice(cut, q)), sizeof(float)));
    for (int stage = -1; stage < STAGES; stage++)
        for (int64_t micro = 0; micro < 9; micro += 4) {
            struct failing f = { .stage = stage, .micro = micro, .cu = { 0, 8 } };
            struct model_grad g = { .slice = grad };
            struct model_work w = { .n_micro = 9, .grad = &g, .ctx = &f, .batch = batch_or_fail, .finish = finish };
            char want[64];
            for (int i = 0; i < 8; i++)
                f.temperature[i] = 1;
            snprintf(want, sizeof want, "stage %d is out of memory", stage);
            assert_int_equal(model_work_run(r, &w, &err), stage < 0);
            if (stage < 0)
                assert_int_equal(f.n_done, 9);
            else
                assert_string_equal(err.text, want);
        }
    for (int q = 0; q < STAGES; q++)
        free(grad[q].flat);
    model_run_free(r);
    model_free(cut);
    model_free(m);
    devices_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_cut_as_evenly_as_the_head_allows),
        cmocka_unit_test(stages_that_cannot_be_are_refused_with_the_nearest),
        cmocka_unit_test(supervised_steps_leave_the_bytes_of_one_device),
        cmocka_unit_test(a_stage_that_fails_makes_the_others_return_with_its_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
