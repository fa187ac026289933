/* Which weights a part of a run holds. The rules are those of examples/RUNNING.md ("Several workers"), worked out by hand for each layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/ops.h"
#include "protocol/base/buf.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/plan/holdings.h"
#include "workers/engine/plan/run_room.h"
#include "workers/engine/trainer/trainer.h"

/* Settings as NAME=VALUE, one space between two. */
static struct run_config *config_of(const char *settings)
{
    struct error err;
    struct run_config *c = malloc(sizeof *c);
    run_config_init(c);
    c->beta = 0;
    for (const char *at = settings; *at; at += strcspn(at, " "), at += *at == ' ') {
        char name[64], value[128];
        size_t n_name = strcspn(at, "=");
        snprintf(name, sizeof name, "%.*s", (int)n_name, at);
        snprintf(value, sizeof value, "%.*s", (int)strcspn(at + n_name + 1, " "), at + n_name + 1);
        if (!run_config_set(c, name, value, FROM_FLAG, NULL, &err))
            fail_msg("%s", err.text);
    }
    return c;
}

static void rows_text(const struct holdings *h, struct buf *out)
{
    char form[96];
    for (int i = 0; i < h->n; i++)
        buf_fmt(out, "%s%s: %s from %s", i ? "; " : "", holding_use_name(h->row[i].use), holding_form_text(&h->row[i], form, sizeof form),
                holding_from_name(h->row[i].from));
}

#define TRAINED "trained: whole from the model's files"
#define SHARDS "trained: shards from the model's files"
#define COPY "copy: whole from what is trained"

static void each_part_holds_what_somebody_reads_there(UNUSED void **state)
{
    static const struct {
        const char *settings;
        int rank, producer;
        const char *want, *why;
    } cases[] = {
        /* one device each */
        { "", 0, 0, TRAINED, "the sampler works with what is trained" },
        { "n_behind=1", 0, 0, TRAINED "; sampled: whole from what is trained", "the sampler is a version late" },
        { "kl_coeff=0.1", 0, 0, TRAINED "; reference: whole from the model's files", "the loss compares with the start" },
        { "num_trainers=2 zero_stage=2", 1, -1, TRAINED, "up to zero_stage 2 the weights are whole" },
        { "num_trainers=2 zero_stage=0", 1, -1, TRAINED, "" },
        { "num_trainers=2 zero_stage=1", 1, -1, TRAINED, "" },
        { "num_trainers=2 zero_stage=3", 1, -1, SHARDS, "shards are all that a trainer needs" },
        { "num_trainers=2 zero_stage=3", 1, 1, SHARDS "; " COPY, "the sampler reads whole weights" },
        { "num_trainers=2 zero_stage=3 n_behind=1", 1, 1, SHARDS "; sampled: whole from what is trained",
          "its own copy is made of shards" },
        { "num_trainers=2 zero_stage=3 kl_coeff=0.1", 1, -1, SHARDS "; reference: whole from the model's files",
          "each has all of the reference" },
        { "num_trainers=1 zero_stage=3", 0, -1, TRAINED, "one trainer has all shards" },
        /* trainers that do not reach each other */
        { "num_trainers=2 zero_stage=3 placement=apart collective=tcp", 0, -1, SHARDS "; " COPY, "what it gives it cannot read elsewhere" },
        { "num_trainers=2 zero_stage=3 placement=apart collective=tcp", 1, -1, SHARDS, "only the first one gives" },
        { "num_trainers=2 zero_stage=3 placement=apart", 0, -1, SHARDS, "it gives out of all shards" },
        { "num_trainers=2 zero_stage=3 n_behind=1 collective=tcp num_inferencer=2", 1, 1,
          SHARDS "; " COPY "; sampled: whole from what is trained", "shards come after a step only, when all trainers bring them" },
        { "num_trainers=64 zero_stage=3 placement=apart tensor_parallel_size=2", 0, -1,
          "trained: shards of 2 slices from the model's files; " COPY, "in more parts than a version may have" },
        /* slices and stages */
        { "tensor_parallel_size=4 placement=apart", 0, -1, "trained: 4 slices from the model's files", "files are made of slices" },
        { "tensor_parallel_size=4", 0, 0, "trained: 4 slices from the model's files; " COPY, "the sampler works on one device" },
        { "tensor_parallel_size=4 producer_tensor_parallel_size=4", 0, 0,
          "trained: 4 slices from the model's files; copy: 4 slices from what is trained", "the sampler has slices of its own" },
        { "tensor_parallel_size=4 producer_tensor_parallel_size=2 n_behind=1", 0, 0,
          "trained: 4 slices from the model's files; sampled: 2 slices from what is trained", "" },
        { "producer_tensor_parallel_size=2", 0, 0, TRAINED "; copy: 2 slices from what is trained", "" },
        { "pipeline_parallel_size=4 placement=apart", 0, -1, "trained: 4 stages from the model's files", "" },
        { "pipeline_parallel_size=2 tensor_parallel_size=2 kl_coeff=0.1", 0, 0,
          "trained: 2 stages of 2 slices from the model's files; reference: 2 stages of 2 slices from the model's files; " COPY, "" },
        { "num_trainers=2 pipeline_parallel_size=2 zero_stage=3", 1, -1, "trained: shards of 2 stages from the model's files", "" },
        { "num_trainers=2 tensor_parallel_size=2 zero_stage=3 kl_coeff=0.1", 1, -1,
          "trained: shards of 2 slices from the model's files; reference: 2 slices from the model's files",
          "the reference is in slices, and not in shards" },
        { "num_trainers=2 zero_stage=3 producer_tensor_parallel_size=2 collective=tcp num_inferencer=3", 0, 0,
          SHARDS "; " COPY "; copy: 2 slices from what is trained", "it gives whole weights and samples with slices" },
        /* parts that only sample */
        { "placement=apart", -1, 0, "sampled: whole from the first trainer", "" },
        { "placement=apart producer_tensor_parallel_size=4", -1, 0, "sampled: 4 slices from the first trainer", "" },
        { "placement=apart n_behind=2 fill_gap=on", -1, 0, "sampled: whole from the first trainer; next: whole from the first trainer",
          "two versions are in work at the end of a rollout step" },
        { "placement=apart n_behind=2 fill_gap=auto", -1, 0, "sampled: whole from the first trainer", "auto is settled by the device" },
        { "placement=apart n_behind=2 fill_gap=on serve=127.0.0.1:1", -1, 0, "sampled: whole from the first trainer",
          "requests would stay in one of two generators" },
        { "num_inferencer=2", 0, 0, TRAINED, "weights go by file" },
        { "num_inferencer=2", -1, 1, "sampled: whole from the first trainer", "" },
        { "backend=vllm engine_url=http://h:1", -1, 0, "sampled: whole from the first trainer", "a worker of an engine keeps the weights" },
        /* versions in memory */
        { "placement=apart weights=copy", 0, -1, TRAINED, "others read what is trained" },
        { "placement=apart weights=copy n_behind=1", 0, -1, TRAINED "; kept: whole from what is trained", "" },
        { "placement=apart weights=copy n_behind=3 fill_gap=on", 0, -1, TRAINED "; kept: 4 times whole from what is trained",
          "one more where samplers want two" },
        { "placement=apart weights=nccl n_behind=2", 0, -1, TRAINED "; kept: 2 times whole from what is trained", "" },
        { "placement=apart weights=nccl n_behind=2", -1, 0, "sampled: whole from the first trainer; arriving: whole from the first trainer",
          "a broadcast comes while it samples" },
        { "placement=apart weights=copy n_behind=2", -1, 0, "sampled: whole from the first trainer", "a copy is made when it is wanted" },
        { "placement=apart weights=nccl n_behind=2 producer_tensor_parallel_size=2", -1, 0, "sampled: 2 slices from the first trainer",
          "slices are read, not broadcast" },
        { "placement=apart weights=nccl", -1, 0, "sampled: whole from the first trainer", "it comes straight into the weights" },
        { "placement=apart weights=copy free_running=true", 0, -1, TRAINED "; kept: 2 times whole from what is trained",
          "a version may be taken at any moment" },
        { "placement=apart weights=files n_behind=2", 0, -1, TRAINED, "files take no memory of the device" },
        { "num_trainers=2 num_inferencer=2 weights=nccl n_behind=1", 1, 1,
          TRAINED "; sampled: whole from what is trained; arriving: whole from the first trainer", "" },
        { "num_trainers=2 num_inferencer=2 weights=nccl n_behind=1", 0, 0,
          TRAINED "; sampled: whole from what is trained; kept: whole from what is trained", "" },
        /* evaluations, environments, adapters */
        { "tensor_parallel_size=2 placement=apart free_running=true eval_dataset={\"a\":\"x\"}", 0, -1,
          "trained: 2 slices from the model's files; " COPY, "the first trainer evaluates" },
        { "tensor_parallel_size=2 placement=apart eval_dataset={\"a\":\"x\"}", 0, -1, "trained: 2 slices from the model's files",
          "others evaluate" },
        { "tensor_parallel_size=2 environments={\"listen\":\"127.0.0.1:1\"}", 0, -1, "trained: 2 slices from the model's files; " COPY,
          "environments are given whole weights" },
        { "num_trainers=2 zero_stage=3 environments={\"listen\":\"127.0.0.1:1\"}", 1, -1, SHARDS, "by the first trainer" },
        { "lora_rank=8", 0, 0, TRAINED, "" },
        { "lora_rank=8 num_trainers=2 zero_stage=3", 1, 1, TRAINED, "an adapter is small: each has all of it" },
        { "lora_rank=8 kl_coeff=0.1 n_behind=1", 0, 0,
          TRAINED "; reference: the frozen base from the model's files; sampled: whole from what is trained", "" },
        { "lora_rank=8 placement=apart n_behind=2 fill_gap=on", -1, 0,
          "sampled: whole from the model's files; next: whole from the first trainer", "the frozen base is in the files" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config *c = config_of(cases[i].settings);
        struct run_part part = { .rank = cases[i].rank, .producer = cases[i].producer, .helps = -1, .helps_trainer = -1 };
        struct holder h = holder_of(c, &part, run_config_apart(c), MAX(run_config_zero(c), 0));
        struct holdings rows;
        struct buf text = BUF_INIT;
        holdings_of(&rows, &h);
        rows_text(&rows, &text);
        if (strcmp(buf_text(&text), cases[i].want) != 0)
            fail_msg("%s, trainer %d, producer %d (%s):\n%s\ninstead of\n%s", cases[i].settings, cases[i].rank, cases[i].producer,
                     cases[i].why, buf_text(&text), cases[i].want);
        buf_release(&text);
        free(c);
    }
}

/* Slices and stages together are the whole, but for norms and some biases, of which each slice has all: less than 0.2 %. */
static void rows_have_their_bytes_on_each_device(UNUSED void **state)
{
    struct error err = { 0 };
    struct device *dev = device_new("cpu:0", 1, &err);
    const struct model_config *shape = config_shape("Qwen2.5-7B", &err);    // 4 heads of keys and values
    struct model *m = dev && shape ? model_new_shape(shape, dev, DT_BF16, &err) : NULL;
    struct model_config twice = shape ? *shape : (struct model_config){ 0 };
    twice.n_layer *= 2;
    struct model *larger = m ? model_new_shape(&twice, dev, DT_BF16, &err) : NULL;
    if (!larger)
        fail_msg("%s", err.text);
    static const struct {
        const char *settings;
        int rank, producer;
        enum holding_use use;
        enum holding_form form;
        int n_device;
        double sum;    // of all devices, in whole weights
    } cases[] = {
        { "", 0, 0, HOLDS_TRAINED, HELD_WHOLE, 1, 1 },
        { "tensor_parallel_size=4", 0, 0, HOLDS_TRAINED, HELD_SLICES, 4, 1 },
        { "tensor_parallel_size=4", 0, 0, HOLDS_CURRENT, HELD_WHOLE, 1, 1 },
        { "tensor_parallel_size=2 kl_coeff=0.1", 0, 0, HOLDS_REFERENCE, HELD_SLICES, 2, 1 },
        { "teacher=/t kl_coeff=0", 0, 0, HOLDS_REFERENCE, HELD_WHOLE, 1, 2 },    // of two models' size
        { "teacher=/t kl_coeff=0 lora_rank=8", 0, 0, HOLDS_REFERENCE, HELD_WHOLE, 1, 2 },
        { "pipeline_parallel_size=4", 0, -1, HOLDS_TRAINED, HELD_STAGES, 4, 1 },
        { "pipeline_parallel_size=2 tensor_parallel_size=2 kl_coeff=0.1", 0, -1, HOLDS_REFERENCE, HELD_STAGES, 4, 1 },
        { "producer_tensor_parallel_size=2 n_behind=1", 0, 0, HOLDS_SAMPLED, HELD_SLICES, 2, 1 },
        { "placement=apart weights=copy n_behind=3", 0, -1, HOLDS_KEPT, HELD_WHOLE, 1, 3 },
        { "placement=apart weights=nccl n_behind=3", -1, 0, HOLDS_COMING, HELD_WHOLE, 1, 1 },
        { "num_trainers=2 zero_stage=3", 1, 1, HOLDS_CURRENT, HELD_WHOLE, 1, 1 },
    };
    double whole = (double)model_weight_bytes(m);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config *c = config_of(cases[i].settings);
        struct run_part part = { .rank = cases[i].rank, .producer = cases[i].producer, .helps = -1, .helps_trainer = -1 };
        struct holder h = holder_of(c, &part, run_config_apart(c), MAX(run_config_zero(c), 0));
        struct trainer_settings s = run_trainer_settings(c, part.rank, dev);
        struct holdings rows;
        s.zero_stage = h.zero_stage;
        s.teacher = c->teacher[0] ? larger : NULL;
        holdings_of(&rows, &h);
        holdings_measure(&rows, m, part.rank >= 0 ? &s : NULL);
        const struct holding *row = holdings_find(&rows, cases[i].use, cases[i].form);
        assert_non_null(row);
        double sum = 0;
        for (int q = 0; q < SUM_PARTS_MAX; q++) {
            assert_true((row->bytes[q] > 0) == (q < cases[i].n_device));
            sum += (double)row->bytes[q];
        }
        double of = row->from == FROM_TEACHER ? (double)model_weight_bytes(larger) / 2 : whole;
        assert_float_equal(sum / of, cases[i].sum, 0.002);
        size_t first = 0;
        for (int k = 0; k < rows.n; k++)
            first += rows.row[k].bytes[0];
        assert_int_equal(holdings_bytes(&rows, 0), first);
        free(c);
    }
    model_free(larger);
    model_free(m);
    device_free(dev);
}

/* A 7B's frozen base is there once, in bf16; copies are of the adapter alone. */
static void an_adapters_base_is_held_once(UNUSED void **state)
{
    struct error err = { 0 };
    struct device *dev = device_new("cpu:0", 1, &err);
    struct lora_config lora = { .rank = 8, .alpha = 16 };
    const struct model_config *shape = config_shape("Qwen2.5-7B", &err);
    struct model *m = dev && shape ? model_new_shape(shape, dev, DT_BF16, &err) : NULL;
    if (!m)
        fail_msg("%s", err.text);
    double base = (double)model_weight_bytes(m);
    assert_true(lora_targets_parse(&lora, "all-linear", &err) && model_lora_shape(m, &lora, &err));
    double adapter = 2 * (double)lora_n_param(&lora, shape, &err);
    struct run_config *c = config_of("lora_rank=8 placement=apart n_behind=2 fill_gap=on weights=nccl");
    struct holder h = holder_of(c, &(struct run_part){ .rank = -1, .producer = 0, .helps = -1, .helps_trainer = -1 }, false, 0);
    struct holdings rows;
    holdings_of(&rows, &h);
    holdings_measure(&rows, m, NULL);
    assert_int_equal(rows.n, 3);    // sampled, the next version, and one that arrives
    assert_float_equal((double)holdings_bytes(&rows, 0), base + 3 * adapter, 0.001 * adapter);
    free(c);
    model_free(m);
    device_free(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_holds_what_somebody_reads_there),
        cmocka_unit_test(rows_have_their_bytes_on_each_device),
        cmocka_unit_test(an_adapters_base_is_held_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
