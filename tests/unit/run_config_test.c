/* tags: valgrind */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/record/metric_names.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/metrics.h"

/* Write text into a temporary run file and read it. */
static bool yaml_try_bytes(struct run_config *c, const char *text, size_t len, struct error *err)
{
    char path[] = "/tmp/rc_config_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), (ssize_t)len);
    close(fd);
    run_config_init(c);
    bool ok = run_config_read(c, path, err);
    unlink(path);
    return ok;
}

static bool yaml_try(struct run_config *c, const char *text, struct error *err)
{
    return yaml_try_bytes(c, text, strlen(text), err);
}

static void every_setting_has_a_default_within_its_bounds_and_a_name_of_its_own(UNUSED void **state)
{
    struct run_config c;
    run_config_init(&c);    // a default out of bounds is a bug found here
    for (int i = 0; i < n_knobs; i++) {
        assert_int_equal(c.source[i], FROM_DEFAULT);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(knobs[i].name, knobs[j].name);
            if (knobs[i].flag && knobs[j].flag)
                assert_string_not_equal(knobs[i].flag, knobs[j].flag);
        }
    }
}

static void colossalchats_flags_have_their_names_and_defaults(UNUSED void **state)
{
    static const struct {
        const char *flag, *name, *def;
    } cases[] = {
        // ColossalChat's README and argument parser
        { "m", "model", NULL },
        { "d", "dataset", "data.jsonl" },
        { "ed", "eval_dataset", "" },
        { "p", "project", "GRPO" },
        { "e", "num_episodes", "1" },
        { "t", "num_trainers", NULL },
        { "i", "num_inferencer", NULL },
        { "g", "num_generations", "8" },
        { "ibs", "inference_batch_size", "64" },
        { "imbs", "inference_microbatch_size", "8" },
        { "tbs", "train_batch_size", "32" },
        { "tMbs", "train_minibatch_size", "8" },
        { "tmbs", "train_microbatch_size", "2" },
        { "tp", "tensor_parallel_size", "1" },
        { "pp", "pipeline_parallel_size", "1" },
        { NULL, "sp_size", "1" },
        { NULL, "enable_sequence_parallelism", "false" },
        { NULL, "microbatch_size", "0" },
        { "zero", "zero_stage", NULL },
        { NULL, "ray_dir", "" },
        { NULL, "master_address", "" },
        { NULL, "master_port", "29506" },
        { "b", "backend", NULL },
        { "temp", "temperature", "1.0" },
        { "topk", "top_k", "0" },
        { "topp", "top_p", "1.0" },
        { "s", "system_prompt", "" },
        { "mnt", "max_new_tokens", "3584" },
        { "mpt", "max_prompt_tokens", "512" },
        { "ptp", "producer_tensor_parallel_size", "1" },
        { "a", "algo", "GRPO" },
        { "lr", "learning_rate", "1e-6" },
        { "kl", "kl_coeff", "0.01" },
        { "rt", "reward_type", "think_answer_tags" },
        { "cv", "code_verifier_api_url", "" },
        { "ei", "eval_interval", "-1" },
        { "nb", "n_behind", "0" },
        { "si", "save_interval", "100" },
        { "sd", "save_dir", NULL },
        { "esd", "eval_save_dir", NULL },
        { "rsd", "rollout_save_dir", NULL },
        { "cp", "checkpoint_path", "" },
        { NULL, "enable_profiling", "false" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        const struct knob *k = knob_find(cases[i].name, &err);
        assert_non_null(k);
        if (cases[i].flag)
            assert_string_equal(k->flag, cases[i].flag);
        if (cases[i].def)
            assert_string_equal(k->def, cases[i].def);
    }
}

static void a_run_file_is_read_and_what_is_printed_reads_back_the_same(UNUSED void **state)
{
    struct run_config c, d;
    struct error err = { 0 };
    assert_true(yaml_try(&c,
                         "model: starter\n"
                         "learning_rate: 4e-4\n"
                         "system_prompt: \"line one\\n\\\"two\\\"\"\n"
                         "eval_dataset:\n  sampled: {path: eval.jsonl, temperature: 1.0, limit: 500}\n  greedy: eval.jsonl\n"
                         "grpo_config:\n  beta: 0\n  filter_range: [0.01, 0.99]\n"
                         "plugin_config: {tp_size: 4, pp_size: 2, sp_size: 1, enable_sequence_parallelism: false, microbatch_size: 1, "
                         "zero_stage: 1, max_norm: 0.5}\n",
                         &err));
    assert_true(c.learning_rate == 4e-4 && c.beta == 0 && c.filter_range[1] == 0.99);
    assert_true(c.tensor_parallel_size == 4 && c.pipeline_parallel_size == 2 && c.max_norm == 0.5);
    assert_string_equal(c.zero_stage, "1");
    struct eval_set sets[EVAL_SET_MAX];
    assert_int_equal(run_config_eval_sets(&c, sets, &err), 2);
    assert_string_equal(sets[0].name, "sampled");
    assert_true(sets[0].path[0] == '/' && sets[0].temperature == 1.0 && sets[0].limit == 500);
    struct buf out = BUF_INIT;
    assert_true(run_config_print(&c, &out, &err));
    assert_true(yaml_try(&d, buf_text(&out), &err));
    assert_memory_equal(&c, &d, offsetof(struct run_config, source));    // all but where the values come from
    buf_release(&out);
}

/* The arguments of ColossalChat's GRPOConsumer, by their names. */
static void a_colossalchat_constructor_is_a_run_file(UNUSED void **state)
{
    struct run_config c;
    struct error err = { 0 };
    bool ok = yaml_try(
        &c,
        "num_producers: 3\nnum_episodes: 2\nrank: 0\nworld_size: 4\nmaster_addr: localhost\nmaster_port: 29501\n"
        "train_dataset_size: 100\nmodel_config: {path: starter, trust_remote_code: true}\n"
        "tokenizer_config: {path: words, trust_remote_code: true}\n"
        "generate_config: {n: 8, top_k: 50, top_p: 0.9, temperature: 0.7, max_tokens: 4096, logprobs: 0, stop: [a]}\nbatch_size: 8\n"
        "minibatch_size: 1\nnum_generations: 8\n"
        "plugin_config: {zero_stage: 2, precision: bf16}\n"
        "grpo_config: {beta: 0.01, reward_fn_type: boxed, response_format_tags: null, max_new_tokens: 4096}\n"
        "save_interval: 100\nproject_name: p\nrun_name: r\n"
        "wandb_group_name: g\nenable_profiling: false\nn_behind: 1\n",
        &err);
    if (!ok)
        fail_msg("%s", err.text);
    struct buf notes = BUF_INIT;
    assert_true(run_config_finish(&c, &notes, &err));
    static const char *const noted[] = { "'trust_remote_code' has no effect", "'logprobs' has no effect", "'stop' has no effect",
                                         "'precision' has no effect" };
    for (size_t i = 0; i < ARRAY_SIZE(noted); i++)
        if (!strstr(buf_text(&notes), noted[i]))
            fail_msg("no note: %s", noted[i]);
    buf_release(&notes);
    assert_int_equal(c.max_new_tokens, 4096);
    assert_true(c.num_inferencer == 3 && c.num_generations == 8 && c.top_k == 50 && c.n_behind == 1);
    assert_string_equal(strrchr(c.model, '/') ? strrchr(c.model, '/') + 1 : c.model, "starter");
    assert_string_equal(strrchr(c.tokenizer_path, '/') ? strrchr(c.tokenizer_path, '/') + 1 : c.tokenizer_path, "words");
    assert_string_equal(c.name, "r");
    assert_string_equal(c.project, "p");
    assert_string_equal(c.wandb_group, "g");
    assert_string_equal(c.reward_type, "boxed");
    assert_true(c.train_batch_size == 8 && c.atropos.batch_size == 0);
    assert_true(yaml_try(&c, "model: a\nbatch_size: 4\n", &err) && c.atropos.batch_size == 4);    // the other system's, alone
    assert_false(yaml_try(&c, "model: a\nmodel_config: {path: b}\n", &err));
    assert_non_null(strstr(err.text, ":2: 'path' is there twice"));
    assert_false(yaml_try(&c, "plugin_config: {path: b}\n", &err));
    // clang-format off
    static const struct { const char *text, *want; } wrong[] = {
        { "grpo_config: {max_new_tokens: 64}\ngenerate_config: {max_tokens: 65}\n", ":2: 'max_tokens' is there twice, as 64 and 65 ('max_new_tokens')" },
        { "generate_config: {max_tokens: 65.5}\n", ":1: 'max_new_tokens' cannot be '65.5'" },
        { "generate_config: {do_sample: false}\n", ":1: 'do_sample' can only be true" },
        { "max_tokens: 64\n", ":1: unknown setting 'max_tokens'" },
        { "generate_config: {precision: bf16}\n", ":1: unknown setting 'precision'" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        assert_false(yaml_try(&c, wrong[i].text, &err));
        if (!strstr(err.text, wrong[i].want))
            fail_msg("%s: %s", wrong[i].text, err.text);
    }
    assert_true(yaml_try(&c, "model_config: {path: a, tensor_parallel_size: 2}\n", &err));    // an engine's
    assert_true(c.producer_tensor_parallel_size == 2 && c.tensor_parallel_size == 1);
}

static void bad_run_files_get_one_sentence_with_the_line(UNUSED void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "model: x\nlerning_rate: 1\n", ":2: unknown setting 'lerning_rate'; did you mean 'learning_rate'?" },
        { "lr: 0.1\nlearning_rate: 0.2\n", ":2: 'learning_rate' is there twice" },
        { "\nnum_generations: 1\n", ":2: 'num_generations' cannot be '1'; it must be 2 to 1024 samples" },
        { "algo: PPO\n", ":1: 'algo' cannot be 'PPO'; it must be one of GRPO, DAPO, RLOO, REINFORCE_PPB" },
        { "train_batch_size: 0\n", ":1: 'train_batch_size' cannot be '0'" },
        { "temperature: nan\n", ":1: 'temperature' cannot be 'nan'" },
        { "filter_range: [0.9, 0.1]\n", ":1: 'filter_range' cannot be" },
        { "- a\n- b\n", "a run file is 'setting: value' lines" },
        { "lr: [1, 2]\n", "must be a single value" },
        { "a: b: c\n", ":1:" },
        { "seed: {\n", ":" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config c;
        struct error err = { 0 };
        assert_false(yaml_try(&c, cases[i].text, &err));
        assert_int_equal(err.code, ERR_USAGE);
        if (!strstr(err.text, cases[i].want))
            fail_msg("case %zu: '%s' lacks '%s'", i, err.text, cases[i].want);
    }
}

/* Refused as a run file has it, with the line, the setting and what is possible; c keeps its value. */
static void refused(const struct knob *k, const char *text)
{
    struct run_config c, untouched;
    struct error err = { 0 };
    struct buf file = BUF_INIT, bounds = BUF_INIT, want = BUF_INIT;
    run_config_init(&untouched);
    buf_fmt(&file, "%s: a\n%s: ", strcmp(k->name, "model") == 0 ? "project" : "model", k->name);
    json_text_print(&file, text, strlen(text), JSON_TEXT_UTF8);
    buf_char(&file, '\n');
    if (yaml_try(&c, buf_text(&file), &err))
        fail_msg("'%.40s' is taken as '%.40s' for '%s'", text, knob_text(k, &c, &bounds), k->name);
    bool tiny = strstr(err.text, "the least number other than 0 is") || strstr(err.text, "the most is 9007199254740992"),
         is_text = k->type == KNOB_TEXT || k->type == KNOB_PATH;
    buf_fmt(&want, ":2: '%s' ", k->name);
    if (!strstr(err.text, buf_text(&want)))
        fail_msg("'%.40s' for '%s': '%s' does not name line and setting", text, k->name, err.text);
    if (!tiny && (!is_text || k->choices) && !strstr(err.text, knob_bounds_text(k, &bounds)))
        fail_msg("'%s' for '%s': '%s' does not say '%s'", text, k->name, err.text, buf_text(&bounds));
    assert_memory_equal((char *)&c + k->offset, (char *)&untouched + k->offset, k->size);
    buf_release(&file);
    buf_release(&bounds);
    buf_release(&want);
}

/* Taken, and exactly so. */
static void kept(const struct knob *k, double v)
{
    char text[64];
    struct run_config c;
    struct error err = { 0 };
    struct buf shown = BUF_INIT;
    run_config_init(&c);
    snprintf(text, sizeof text, "%.17g", v);
    if (k->type == KNOB_I64)
        snprintf(text, sizeof text, "%.0f", v);
    if (!run_config_set(&c, k->name, text, FROM_FILE, NULL, &err))
        fail_msg("'%s' for '%s': %s", text, k->name, err.text);
    if (strtod(knob_text(k, &c, &shown), NULL) != v)
        fail_msg("'%s' for '%s' became '%s'", text, k->name, buf_text(&shown));
    buf_release(&shown);
}

static void no_setting_takes_a_value_that_it_would_change(UNUSED void **state)
{
    static const char *const no_number[] = { "",     "nan", "inf", "-inf", " 1",  "\t1",   "1 ",   "1,5", "1x",
                                             "0x10", "1e",  "one", "1_0",  "--1", "1e400", "true", "1 2", "99999999999999999999e400" };
    static const char *const no_whole[] = { "1.5", "1.0", "1e3", "99999999999999999999", "9007199254740993", "-9007199254740993" };
    static const char *const no_range[] = { "[0.1]",
                                            "[0.1, 0.2, 0.3]",
                                            "[0.1, 0.2",
                                            "0.1 0.2",
                                            "[0.2, 0.1]",
                                            "[0.1, 0.2] x",
                                            "[0.1x, 0.2]",
                                            "0.1, 0.2]",
                                            "[nan, 0.2]",
                                            "[1e-400, 0.2]",
                                            "(0.1, 0.2)",
                                            "[0.1, 0.1]",
                                            "[-1, 0.5]",
                                            "[0.1, 1e7]",
                                            "[, 0.2]",
                                            "[0.1,, 0.2]",
                                            "[0.1, 0.20000000000000000000000000000000000000000000000000000000000000001]" };
    static const char *const no_truth[] = { "", "2", "tru", "yess", "0.0", "null " };
    char text[5000];
    for (int i = 0; i < n_knobs; i++) {
        const struct knob *k = &knobs[i];
        bool number = k->type == KNOB_I64 || k->type == KNOB_F64;
        for (size_t n = 0; number && n < ARRAY_SIZE(no_number); n++)
            refused(k, no_number[n]);
        for (size_t n = 0; k->type == KNOB_I64 && n < ARRAY_SIZE(no_whole); n++)
            refused(k, no_whole[n]);
        for (size_t n = 0; k->type == KNOB_RANGE && n < ARRAY_SIZE(no_range); n++)
            refused(k, no_range[n]);
        for (size_t n = 0; k->type == KNOB_BOOL && n < ARRAY_SIZE(no_truth); n++)
            refused(k, no_truth[n]);
        if (k->type == KNOB_TEXT || k->type == KNOB_PATH) {    // nothing is cut
            memset(text, 'x', sizeof text);
            text[k->size] = 0;
            refused(k, text);
        }
        if (!number)
            continue;
        double step = k->type == KNOB_I64 ? 1 : fabs(k->max) * 1e-6;
        snprintf(text, sizeof text, k->type == KNOB_I64 ? "%.0f" : "%.17g",
                 k->min - (strcmp(k->name, "top_k") == 0 ? 2 : step));    // -1 is "off"
        refused(k, text);
        snprintf(text, sizeof text, k->type == KNOB_I64 ? "%.0f" : "%.17g", k->max + (k->max >= KNOB_UNBOUNDED ? 2 : step));
        refused(k, text);
        kept(k, k->max);
        if (!k->above_min)
            kept(k, k->min);
        for (int tiny = 0; k->type == KNOB_F64 && tiny < 3; tiny++)    // 0 in double precision, in single, and with few digits in it
            refused(k, (const char *const[]){ "1e-400", "1e-50", "1e-39" }[tiny]);
        if (k->least > 0) {
            kept(k, k->least);
            snprintf(text, sizeof text, "%.17g", k->least * 0.99);
            refused(k, text);
        }
    }
}

/* PyYAML and ruamel write Python's None so; libfyaml takes the words for text. */
static void null_in_a_run_file_means_not_given(UNUSED void **state)
{
    static const char *const spelled[] = { "", "~", "null", "Null", "NULL" };
    static struct run_config c, untouched;
    struct error err = { 0 };
    struct buf text = BUF_INIT;
    run_config_init(&untouched);
    for (size_t i = 0; i < ARRAY_SIZE(spelled); i++) {
        buf_clear(&text);
        for (int k = 0; k < n_knobs; k++)
            buf_fmt(&text, "%s: %s\n", knobs[k].name, spelled[i]);
        if (!yaml_try(&c, buf_text(&text), &err))
            fail_msg("'%s': %s", spelled[i], err.text);
        assert_memory_equal(&c, &untouched, offsetof(struct run_config, file));
    }
    assert_true(yaml_try(&c,
                         "eval_dataset: {a: {path: /f, temperature: null, n: ~, prompt_column: }, b: null}\n"
                         "response_format_tags: {think_start: null, think_end: </t>}\nname: 'null'\nsystem_prompt: null and void\n",
                         &err));
    assert_string_equal(c.eval_dataset, "{\"a\":{\"path\":\"/f\"}}");
    assert_string_equal(c.response_format_tags, "{\"think_end\":\"</t>\"}");
    assert_string_equal(c.name, "null");
    assert_string_equal(c.system_prompt, "null and void");
    buf_release(&text);
}

/* A library that takes such a byte for the end of its input would leave the later settings at their defaults. */
static void a_run_file_is_read_to_its_end_or_refused_with_the_line(UNUSED void **state)
{
#define CASE(text, want)                                                                                                                   \
    {                                                                                                                                      \
        text, sizeof text - 1, want                                                                                                        \
    }
    static const struct {
        const char *text;
        size_t len;
        const char *want;
    } cases[] = {
        CASE("model: x\nname: a\xffz\nlearning_rate: 3e-4\n", ":2: the byte 0xff is not UTF-8"),
        CASE("# caf\xe9\nlearning_rate: 3e-4\n", ":1: the byte 0xe9 is not UTF-8"),
        CASE("model: x\n\0learning_rate: 3e-4\n", ":2: a NUL byte"),
        CASE("model: x\n# \0\nlearning_rate: 3e-4\n", ":2: a NUL byte"),
        CASE("\xff\xfem\0o\0d\0", ":1: the byte 0xff"),
        CASE("model: x\n---\nlearning_rate: 3e-4\n", ":2: a second document begins"),
        CASE("model: x\n...\nlearning_rate: 3e-4\n", ":3: a second document begins"),
        CASE("model: x\n---\nlearning_rate: {\n", ":"),
        CASE("model: x\n...\n}\n", ":3:"),
        CASE("model: \"a\\0b\"\n", ":1: a text holds a NUL"),
        CASE("eval_dataset: {a: \"x\\0y\"}\n", ":1: 'eval_dataset' cannot be read"),
    };
#undef CASE
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config c;
        struct error err = { 0 };
        if (yaml_try_bytes(&c, cases[i].text, cases[i].len, &err))
            fail_msg("case %zu is accepted", i);
        assert_int_equal(err.code, ERR_USAGE);
        if (!strstr(err.text, cases[i].want))
            fail_msg("case %zu: '%s' lacks '%s'", i, err.text, cases[i].want);
    }
    static const char *const whole[] = { "", "# nothing\n", "---\nlearning_rate: 1e-6\n", "learning_rate: 1e-6\n...\n", "---\n...\n" };
    for (size_t i = 0; i < ARRAY_SIZE(whole); i++) {
        struct run_config c;
        struct error err = { 0 };
        if (!yaml_try(&c, whole[i], &err))
            fail_msg("case %zu: %s", i, err.text);
        assert_true(c.learning_rate == 1e-6);
    }
}

static void a_runs_name_is_one_line_and_a_folders_name(UNUSED void **state)
{
    static const char *const bad[] = { "a\nb", "a\033[2Jb", "a\177", "a\xc2\x9b", "a\xff", "a/b", ".", ".." };
    struct run_config c;
    struct buf notes = BUF_INIT;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct error err = { 0 };
        run_config_init(&c);
        assert_true(run_config_set(&c, "name", bad[i], FROM_FLAG, NULL, &err));
        assert_false(run_config_finish(&c, &notes, &err));
        assert_int_equal(err.code, ERR_USAGE);
    }
    struct error err = { 0 };
    run_config_init(&c);
    assert_true(run_config_set(&c, "name", "Übung \xe2\x82\xac 1", FROM_FLAG, NULL, &err));
    assert_true(run_config_finish(&c, &notes, &err));
    buf_release(&notes);
}

static void an_environment_gives_the_reward_unless_another_is_asked_for(UNUSED void **state)
{
    static const struct {
        const char *environment, *reward, *want, *says;
    } cases[] = {
        { "program:./play", NULL, "environment", NULL },
        { "program:./play", "boxed", "boxed", NULL },
        { "program:./play", "0.5*boxed + 0.5*environment", "0.5*boxed + 0.5*environment", NULL },
        { "", NULL, "think_answer_tags", NULL },
        { "./play", NULL, NULL, "'environment' is './play'; it is 'program:' and the command that answers turns" },
        { "program: ", NULL, NULL, "it is 'program:' and the command that answers turns" },
        { "", "environment", NULL, "the run has no 'environment' that gives a reward" },
    };
    struct buf notes = BUF_INIT;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config c;
        struct error err = { 0 };
        run_config_init(&c);
        assert_true(run_config_set(&c, "environment", cases[i].environment, FROM_FILE, NULL, &err));
        assert_true(!cases[i].reward || run_config_set(&c, "reward_type", cases[i].reward, FROM_FILE, NULL, &err));
        bool ok = run_config_finish(&c, &notes, &err);
        if (ok != !cases[i].says || (!ok && !strstr(err.text, cases[i].says)))
            fail_msg("case %zu: %s", i, ok ? "taken" : err.text);
        if (ok)
            assert_string_equal(c.reward_type, cases[i].want);
    }
    buf_release(&notes);
}

static void the_dapo_preset_fills_what_nobody_set(UNUSED void **state)
{
    struct run_config c;
    struct buf notes = BUF_INIT;
    struct error err = { 0 };
    run_config_init(&c);
    assert_true(run_config_set(&c, "algo", "DAPO", FROM_FLAG, NULL, &err));
    assert_true(run_config_set(&c, "clip_eps_high", "0.3", FROM_FLAG, NULL, &err));
    assert_true(run_config_finish(&c, &notes, &err));
    assert_true(c.beta == 0 && c.clip_eps_high == 0.3 && c.soft_over_length_punishment && c.filter_truncated_response);
    assert_string_equal(c.loss_variation, "token_level");
    buf_release(&notes);
}

/* What each algorithm and preset sets, from its source; and what wins over what. */
static void presets_are_their_origins(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *set[3][2], *want[9][2]; } cases[] = {
        { { { "algo", "DR_GRPO" } }, { { "advantages", "centered" }, { "loss_variation", "constant" }, { "kl_coeff", "0" }, { "clip_eps_high", "0.2" } } },
        { { { "algo", "GSPO" } }, { { "ratio_level", "sequence" }, { "clip_eps_low", "0.0003" }, { "clip_eps_high", "0.0004" }, { "kl_coeff", "0" },
                                    { "loss_variation", "sample_level" }, { "advantages", "deviation" } } },
        { { { "algo", "CISPO" } }, { { "clip_form", "cispo" }, { "clip_eps_low", "1" }, { "clip_eps_high", "4" }, { "skip_threshold", "0" },
                                     { "loss_variation", "token_level" } } },
        { { { "algo", "SAPO" } }, { { "clip_form", "sapo" }, { "sapo_temperature_neg", "1.05" }, { "kl_coeff", "0" }, { "skip_threshold", "0" },
                                    { "loss_variation", "sample_level" } } },
        { { { "algo", "LUSPO" } }, { { "ratio_level", "sequence" }, { "clip_eps_low", "0.002" }, { "clip_eps_high", "0.0025" }, { "kl_coeff", "0" },
                                     { "loss_variation", "constant" }, { "loss_constant", "1" } } },
        { { { "algo", "GMPO" } }, { { "clip_form", "gmpo" }, { "clip_eps_low", "0.4" }, { "clip_eps_high", "0.4" }, { "kl_coeff", "0" } } },
        { { { "algo", "VESPO" } }, { { "clip_form", "vespo" }, { "loss_variation", "token_level" }, { "kl_coeff", "0" }, { "skip_threshold", "0" } } },
        { { { "algo", "DPPO_TV" } }, { { "clip_form", "dppo_tv" }, { "clip_eps_low", "0.2" }, { "clip_dual", "20" }, { "loss_variation", "token_level" } } },
        { { { "algo", "DPPO_KL" } }, { { "clip_form", "dppo_kl" }, { "clip_eps_high", "0.2" }, { "clip_dual", "20" }, { "kl_coeff", "0" } } },
        { { { "algo", "OPO" } }, { { "advantages", "length_weighted" }, { "kl_coeff", "0" } } },
        { { { "algo", "MAXRL" } }, { { "advantages", "over_mean" }, { "kl_coeff", "0" } } },
        { { { "algo", "GRPO_PASSK" } }, { { "advantages", "best" }, { "kl_coeff", "0.01" } } },
        { { { "algo", "REINFORCE_PP" } }, { { "advantages", "whitened" }, { "kl_coeff", "0.01" } } },
        { { { "algo", "RLOO" } }, { { "advantages", "leave_one_out" }, { "kl_coeff", "0.01" } } },
        { { { "preset", "open_instruct" } }, { { "algo", "GRPO" }, { "advantages", "centered" }, { "clip_eps_high", "0.272" }, { "kl_coeff", "0.05" },
                                               { "rho_clamp", "[0, 2]" }, { "old_logprobs", "current" }, { "learning_rate", "2e-05" },
                                               { "weight_decay", "0" }, { "filter_no_spread", "true" } } },
        { { { "preset", "atropos" } }, { { "clip_form", "atropos" }, { "advantages", "deviation_population" }, { "learning_rate", "1e-05" },
                                         { "lr_schedule", "constant" }, { "num_generations", "4" } } },
        { { { "preset", "dr_grpo" } }, { { "algo", "DR_GRPO" }, { "advantages", "centered" }, { "adam_beta2", "0.95" }, { "train_batch_size", "128" } } },
        { { { "preset", "gspo" } }, { { "algo", "GSPO" }, { "ratio_level", "sequence" }, { "train_batch_size", "16" } } },
        { { { "preset", "cispo" } }, { { "algo", "CISPO" }, { "adam_eps", "1e-15" }, { "clip_eps_high", "4" } } },
        { { { "preset", "trl" } }, { { "loss_variation", "token_level" }, { "kl_coeff", "0" }, { "kl_estimator", "k3_ratio" }, { "old_logprobs", "current" },
                                     { "rho_mask", "[0, 3]" }, { "lr_schedule", "linear" }, { "weight_decay", "0" }, { "max_new_tokens", "512" } } },
        { { { "preset", "verl" } }, { { "advantages", "deviation" }, { "loss_variation", "token_level" }, { "clip_dual", "3" }, { "kl_coeff", "0" },
                                      { "lr_schedule", "constant" }, { "inference_batch_size", "1024" }, { "train_batch_size", "256" } } },
        { { { "preset", "openrlhf" } }, { { "algo", "REINFORCE_PPB" }, { "advantages", "batch" }, { "loss_variation", "token_level" },
                                          { "kl_coeff", "0.01" }, { "adam_beta2", "0.95" }, { "lr_min_ratio", "0.1" }, { "train_batch_size", "16" } } },
        { { { "preset", "gspo" }, { "algo", "GRPO" } }, { { "algo", "GRPO" }, { "ratio_level", "token" }, { "train_batch_size", "16" } } },
        { { { "preset", "gspo" }, { "clip_eps_low", "0.1" } }, { { "clip_eps_low", "0.1" }, { "clip_eps_high", "0.0004" } } },
        { { { "rho_clamp", "[0, 2]" } }, { { "old_logprobs", "current" } } },
        { { { "rho_mask", "[0.5, 2]" } }, { { "old_logprobs", "sampled" } } },
        { { { "free_running", "true" }, { "placement", "apart" } }, { { "rho_clamp", "[0, 2]" }, { "old_logprobs", "current" } } },
        { { { "free_running", "true" }, { "placement", "apart" }, { "rho_clamp", "none" } }, { { "rho_clamp", "none" }, { "old_logprobs", "sampled" } } },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config c;
        struct buf notes = BUF_INIT, text = BUF_INIT;
        struct error err = { 0 };
        run_config_init(&c);
        for (int k = 0; k < 3 && cases[i].set[k][0]; k++)
            assert_true(run_config_set(&c, cases[i].set[k][0], cases[i].set[k][1], FROM_FLAG, NULL, &err));
        for (int again = 0; again < 2; again++)    // as a change while the run goes does
            if (!run_config_finish(&c, &notes, &err))
                fail_msg("case %zu: %s", i, err.text);
        for (int k = 0; k < 9 && cases[i].want[k][0]; k++) {
            const struct knob *knob = knob_find(cases[i].want[k][0], &err);
            if (strcmp(knob_text(knob, &c, &text), cases[i].want[k][1]) != 0)
                fail_msg("case %zu (%s): '%s' is %s, not %s", i, cases[i].set[0][1], knob->name, buf_text(&text), cases[i].want[k][1]);
        }
        bool said = strstr(buf_text(&notes), "truncated importance sampling") != NULL;
        assert_int_equal(said, c.free_running && !isnan(c.rho_clamp[1]));
        buf_release(&notes);
        buf_release(&text);
    }
    struct run_config c;
    struct buf notes = BUF_INIT;
    struct error err = { 0 };
    run_config_init(&c);
    assert_true(run_config_set(&c, "rho_clamp", "[0, 2]", FROM_FLAG, NULL, &err));
    assert_true(run_config_set(&c, "old_logprobs", "sampled", FROM_FLAG, NULL, &err));
    assert_false(run_config_finish(&c, &notes, &err));
    assert_non_null(strstr(err.text, "'rho_clamp' needs 'old_logprobs' current"));
    assert_false(run_config_set(&c, "filter_range", "[0, 2]", FROM_FLAG, NULL, &err));    // each range has bounds of its own
    buf_release(&notes);
}

static void the_temperature_goes_to_its_end_and_stays(UNUSED void **state)
{
    static const double want[] = { 1.2, 1.0, 0.8, 0.6, 0.4, 0.4, 0.4 };
    struct run_config c;
    run_config_init(&c);
    c.temperature = 1.2;
    assert_true(run_config_temperature(&c, 0) == 1.2 && run_config_temperature(&c, 1000) == 1.2);
    c.temperature_end = 0.4;
    c.temperature_steps = 4;
    for (int k = 0; k < (int)ARRAY_SIZE(want); k++)
        assert_true(fabs(run_config_temperature(&c, k) - want[k]) < 1e-15);
    assert_true(run_config_temperature(&c, 4) == 0.4);    // to the bit
}

static void the_longest_completion_grows_to_its_end_and_stays(UNUSED void **state)
{
    static const int64_t want[] = { 100, 150, 200, 250, 300, 300, 300 };
    struct run_config c;
    run_config_init(&c);
    c.max_new_tokens = 300;
    assert_true(run_config_length(&c, 0) == 300 && run_config_length(&c, 1000) == 300);
    c.max_new_tokens_start = 100;
    c.max_new_tokens_steps = 4;
    for (int k = 0; k < (int)ARRAY_SIZE(want); k++)
        assert_int_equal(run_config_length(&c, k), want[k]);
    c.max_new_tokens = 90;    // lowered while the run goes
    assert_true(run_config_length(&c, 0) == 90 && run_config_length(&c, 3) == 90);
}

/* The device of each part of a run, and back. */
static void devices_are_shared_out_among_workers_and_their_teams(UNUSED void **state)
{
    static const struct {
        const char *placement, *devices;
        int64_t n_trainer, n_producer, tp, ptp;
        const char *parts;    // of each device
    } cases[] = {
        { "shared", "a,b", 1, 1, 2, 1, "trainer 0, producer 0; with trainer 0" },
        { "shared", "a,b", 1, 1, 2, 2, "trainer 0, producer 0; with trainer 0, with producer 0" },
        { "shared", "a,b,c,d", 1, 1, 4, 2, "trainer 0, producer 0; with trainer 0, with producer 0; with trainer 0; with trainer 0" },
        { "shared", "a,b,c,d", 1, 1, 2, 4, "trainer 0, producer 0; with trainer 0, with producer 0; with producer 0; with producer 0" },
        { "shared", "a,b,c,d", 1, 2, 2, 2, "trainer 0, producer 0; producer 1; with trainer 0, with producer 0; with producer 1" },
        { "shared", "a,b,c,d", 2, 2, 1, 2, "trainer 0, producer 0; trainer 1, producer 1; with producer 0; with producer 1" },
        { "apart", "a,b,c", 1, 1, 2, 1, "trainer 0; producer 0; with trainer 0" },
        { "apart", "a,b,c,d", 1, 1, 2, 2, "trainer 0; producer 0; with producer 0; with trainer 0" },
        { "shared", "a,b,c,d", 2, 2, 2, 1, "trainer 0, producer 0; trainer 1, producer 1; with trainer 0; with trainer 1" },
        { "shared", "a,b,c,d", 2, 2, 2, 2,
          "trainer 0, producer 0; trainer 1, producer 1; with trainer 0, with producer 0; with trainer 1, with producer 1" },
        { "shared", "a,b,c,d", 2, 1, 2, 2, "trainer 0, producer 0; trainer 1; with trainer 0, with producer 0; with trainer 1" },
        { "shared", "a,b,c,d,e,f,g,h", 2, 2, 4, 2,
          "trainer 0, producer 0; trainer 1, producer 1; with trainer 0, with producer 0; with trainer 1, with producer 1; "
          "with trainer 0; with trainer 0; with trainer 1; with trainer 1" },
        { "apart", "a,b,c,d,e,f", 2, 1, 2, 2, "trainer 0; trainer 1; producer 0; with producer 0; with trainer 0; with trainer 1" },
    };
    for (size_t k = 0; k < 2 * ARRAY_SIZE(cases); k++) {    // in slices and in stages alike
        struct run_config c;
        struct error err = { 0 };
        char text[512] = "", role[64], name[8];
        size_t i = k / 2;
        run_config_init(&c);
        strcpy(c.placement, cases[i].placement);
        strcpy(c.devices, cases[i].devices);
        c.num_trainers = cases[i].n_trainer;
        c.num_inferencer = cases[i].n_producer;
        *(k % 2 ? &c.pipeline_parallel_size : &c.tensor_parallel_size) = cases[i].tp;
        c.producer_tensor_parallel_size = cases[i].ptp;
        int64_t n = run_config_n_device(&c);
        assert_int_equal(n, (strlen(cases[i].devices) + 1) / 2);
        for (int64_t d = 0; d < n; d++) {
            struct run_part part;
            snprintf(name, sizeof name, "%c", cases[i].devices[2 * d]);
            assert_true(run_config_part(&c, name, &part, &err));
            assert_int_equal(run_part_has_worker(&part), d < run_config_n_worker(&c));
            size_t at = strlen(text);
            snprintf(text + at, sizeof text - at, "%s%s", d ? "; " : "", run_part_text(&part, role, sizeof role));
        }
        assert_string_equal(text, cases[i].parts);
        int64_t n_own = run_config_trainer_devices(&c) - 1;
        for (int64_t h = 0; h < n_own * c.num_trainers; h++) {
            struct run_part part;
            run_config_trainer_helper(&c, h / n_own, h % n_own, name, sizeof name);
            assert_true(run_config_part(&c, name, &part, &err) && part.helps_trainer == h / n_own);
        }
    }
}

/* As 'rollcall train' applies a run file. */
static bool file_finish(struct run_config *c, const char *text, struct buf *notes, struct error *err)
{
    return yaml_try(c, text, err) && run_config_finish(c, notes, err);
}

/* The settings as a run file, one per line from the second on: the sentence begins with the file and the line of one of them. */
static void place_is_said(const char *const set[16], const char *says)
{
    struct buf text = BUF_INIT, notes = BUF_INIT;
    struct run_config c;
    struct error err = { 0 };
    int n = 0, line = 0;
    buf_str(&text, "# the first line\n");
    for (int j = 0; j < 16 && set[j]; j += 2)
        for (int k = 0; k < n_knobs; k++)
            if (strcmp(knobs[k].flag ? knobs[k].flag : knobs[k].name, set[j]) == 0 || strcmp(knobs[k].name, set[j]) == 0)
                n += (buf_fmt(&text, "%s: %s\n", knobs[k].name, set[j + 1]), 1);
    assert_false(file_finish(&c, buf_text(&text), &notes, &err));
    if (sscanf(err.text, "/tmp/rc_config_%*6[^:]:%d: ", &line) != 1 || line < 2 || line > n + 1 || !strstr(err.text, says))
        fail_msg("'%s' has no line of 2 to %d, or lacks '%s'", err.text, n + 1, says);
    buf_release(&text);
    buf_release(&notes);
}

/* The rules that the table of sizes does not have. */
static void a_rule_between_settings_names_the_line_of_one_of_them(UNUSED void **state)
{
    static const struct {
        const char *set[16], *says;
    } cases[] = {
        { { "name", "\"a/b\"" }, "usable as a folder's name" },
        { { "rho_clamp", "[0, 2]", "old_logprobs", "sampled" }, "'rho_clamp' needs 'old_logprobs' current" },
        { { "listen", "h:1", "lora_rank", "4" }, "'listen' and 'lora_rank' do not go together" },
        { { "trainers_per_node", "1", "num_trainers", "2", "listen", "h:1", "checkpoint_path", "/c" }, "make the checkpoint the 'model'" },
        { { "trainers_per_node", "1", "num_trainers", "2", "listen", "h:1", "collective", "local" }, "that is within one machine" },
        { { "environment", "./x" }, "it is 'program:' and the command that answers turns" },
        { { "environment", "\"harness:\"" }, "or 'harness:' and the command of a program that asks" },
        { { "environment", "\"harness:./x\"", "listen", "h:1", "listen_lent", "h:2" }, "'listen_lent' and a harness do not go together" },
        { { "reward_type", "environment" }, "but the run has no 'environment'" },
        { { "engine_url", "\"ftp://h\"", "backend", "vllm" }, "it is http://HOST:PORT" },
        { { "engine_url", "\"http://h:1\"" }, "is for 'backend' vllm or sglang" },
        { { "engine_url", "\"http://h:1\"", "backend", "vllm", "listen", "h:1" }, "do not go together; leave one of them out" },
        { { "engine_url", "\"http://h:1\"", "backend", "vllm", "num_inferencer", "3" }, "but 'engine_url' has 1 addresses" },
        { { "engine_url", "\"http://h:1\"", "backend", "vllm", "producer_tensor_parallel_size", "2" }, "have devices of their own" },
        { { "engine_url", "\"http://h:1\"", "backend", "vllm", "weights", "nccl" }, "read them from files" },
        { { "weight_bridge_mode", "lora_only" }, "others sample by themselves" },
        { { "environments", "{listen: '127.0.0.1:1'}" }, "'environments' needs 'max_steps'" },
        { { "environments", "{listen: '127.0.0.1:1'}", "max_steps", "1", "environment", "program:./x" }, "do not go together" },
        { { "environments", "{listen: '127.0.0.1:1'}", "max_steps", "1", "listen", "h:1" }, "'listen' and 'environments'" },
        { { "environments", "{listen: 'h:1'}", "max_steps", "1" }, "is reached from other hosts" },
        { { "environments", "{color: red}", "max_steps", "1" }, "it takes listen or url" },
        { { "environments", "{listen: '127.0.0.1:1'}", "max_steps", "1", "weight_bridge_mode", "shared_vllm", "engine_url",
            "\"http://h:1\"" },
          "'weight_bridge_mode' shared_vllm and 'engine_url'" },
        { { "environments", "{listen: '127.0.0.1:1'}", "max_steps", "1", "weight_bridge_file", "/w" }, "belongs to 'weight_bridge_mode'" },
        { { "environments", "{listen: '127.0.0.1:1'}", "max_steps", "1", "weight_bridge_mode", "shared_vllm", "weight_bridge_file", "/w",
            "lora_rank", "4" },
          "lends whole weights" },
        { { "environments", "{listen: '127.0.0.1:1'}", "max_steps", "1", "serve_samples", "4000" }, "'serve_samples' is 4000" },
        { { "serve", "h" }, "it must be HOST:PORT" },
        { { "serve", "\"127.0.0.1:1\"", "serve_tls_cert", "/c" }, "are needed both, or neither" },
        { { "serve", "\"0.0.0.0:1\"" }, "give a 'serve_token_file'" },
        { { "allowed_hosts", "\"a b/c\"" }, "'allowed_hosts'" },
        { { "pipeline_parallel_size", "2", "tensor_parallel_size", "8" }, "ask for 16 devices" },
        { { "hosts", "\"a b c\"" }, "'hosts'" },
        { { "listen_lent", "h:1" }, "'listen_lent' needs 'listen'" },
        { { "token_budget", "5" }, "'token_budget' is 5" },
        { { "reward_type", "verify", "llm_judge_max_context_length", "2048", "llm_judge_max_tokens", "2000" }, "it must be at least" },
        { { "free_running", "true" }, "'free_running' needs 'placement' apart" },
        { { "listen", "h:1", "tokenizer_path", "/t" }, "'listen' and 'tokenizer_path'" },
        { { "free_running", "true", "placement", "apart", "over_sample_rate", "0.5" }, "'over_sample_rate' and 'free_running'" },
        { { "free_running", "true", "placement", "apart", "no_resampling_pass_rate", "0.5" }, "'no_resampling_pass_rate' works" },
        { { "free_running", "true", "placement", "apart", "apply_evolving_rubric_reward", "true" }, "'apply_evolving_rubric_reward'" },
        { { "free_running", "true", "placement", "apart", "n_behind", "1" }, "'max_staleness' is its bound" },
        { { "soft_over_length_punishment", "true", "max_new_tokens", "64", "cache_length", "64" }, "must be below 'max_new_tokens' (64)" },
        { { "min_new_tokens", "64", "max_new_tokens", "32" }, "is above the longest completion" },
        { { "stuck_s", "10", "slow_s", "20" }, "must not be below 'slow_s'" },
        { { "eval_dataset", "{a: {path: x, n: 0}}" }, "the 'n' of the set 'a'" },
        { { "eval_dataset", "{\"\": x}" }, "has an empty name" },
        { { "eval_dataset", "{a/b: x, a b: y}" }, "the sets 'a/b' and 'a b' would go to one file" },
        { { "offload_optimizer", "true", "optimizer", "adafactor" }, "do not go together" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        place_is_said(cases[i].set, cases[i].says);
    /* a value of the command line stands in no file, and that of another setting may */
    struct run_config c;
    struct buf notes = BUF_INIT;
    struct error err = { 0 };
    assert_true(yaml_try(&c, "slow_s: 20\n\nseed: 3\n", &err) && run_config_set(&c, "slow_s", "30", FROM_FLAG, NULL, &err)
                && run_config_set(&c, "stuck_s", "10", FROM_FLAG, NULL, &err));
    assert_false(run_config_finish(&c, &notes, &err));
    assert_string_equal(err.text, "'stuck_s' (10) must not be below 'slow_s' (30)");
    assert_true(yaml_try(&c, "seed: 3\nslow_s: 20\n", &err) && run_config_set(&c, "stuck_s", "10", FROM_FLAG, NULL, &err));
    assert_false(run_config_finish(&c, &notes, &err));
    assert_non_null(strstr(err.text, ":2: 'stuck_s' (10) must not be below 'slow_s' (20)"));
    buf_release(&notes);
}

static void sizes_that_cannot_work_are_refused_and_colossalchats_examples_clamped(UNUSED void **state)
{
    static const struct {
        const char *set[16];
        bool ok;
        const char *says;
    } cases[] = {
        { { "ibs", "10", "imbs", "4" }, false, "must be a multiple of 'inference_microbatch_size' (4)" },
        { { "ibs", "64", "tbs", "24" }, false, "is not a multiple of the 24 of an optimizer step" },
        { { "tbs", "8", "tMbs", "3" }, false, "must be a multiple of 'train_minibatch_size' (3)" },
        { { "pp", "3" }, true, "" },
        { { "pp", "2", "tp", "2", "t", "2", "zero", "1" }, true, "" },
        { { "pp", "3", "tp", "4" },
          false,
          "'pipeline_parallel_size' 3 and 'tensor_parallel_size' 4 ask for 12 devices of a trainer; at most 8 are possible: "
          "'pipeline_parallel_size' 2 with 'tensor_parallel_size' 4" },
        { { "pp", "2", "tp", "2", "optimizer", "adamw_8bit" }, false, "adamw is possible, or 'pipeline_parallel_size' 1" },
        { { "pp", "2", "t", "2", "zero", "3" }, true, "" },
        { { "pp", "2", "lora_rank", "8" }, false, "'pipeline_parallel_size' is 2, but an adapter is trained on one device" },
        { { "pp", "2", "optimizer", "adafactor" }, false, "adamw and adamw_8bit are possible, or 'pipeline_parallel_size' 1" },
        { { "pp", "2", "optimizer", "adamw_8bit" }, true, "" },
        { { "pp", "2", "offload_optimizer", "true" }, true, "" },
        { { "pp", "2", "tp", "2", "t", "2", "zero", "3", "offload_optimizer", "true" }, true, "" },
        { { "pp", "2", "optimizer", "adamw_8bit", "offload_optimizer", "true" }, false, "its state stays on the device" },
        { { "sequence_parallel_size", "2" }, false, "'sequence_parallel_size' is 2, but a sequence is computed whole: only 1 works" },
        { { "sequence_parallel_size", "1", "enable_sequence_parallelism", "false", "microbatch_size", "1" }, true, "" },
        { { "enable_sequence_parallelism", "true" }, false, "only false works" },
        { { "tp", "2" }, true, "" },
        { { "tp", "6" }, false, "'tensor_parallel_size' is 6; 1, 2, 4 and 8 are possible" },
        { { "tp", "4", "sum_parts", "2" }, false, "'sum_parts' is 2, but 'tensor_parallel_size' 4 shares each sum" },
        { { "tp", "2", "t", "2", "zero", "3" }, true, "" },
        { { "collective", "local", "t", "2", "pp", "2", "zero", "3" }, true, "" },
        { { "tp", "2", "lora_rank", "8" }, false, "an adapter is trained on one device" },
        { { "tp", "2", "optimizer", "adafactor" }, false, "the 'optimizer' adafactor adds up over more than one device has" },
        { { "tp", "2", "optimizer", "adamw_8bit" }, false, "adamw is possible, or 'tensor_parallel_size' 1" },
        { { "tp", "2", "offload_optimizer", "true" }, true, "" },
        { { "ptp", "2" }, true, "" },
        { { "ptp", "3" }, false, "'producer_tensor_parallel_size' is 3; 1, 2, 4 and 8 are possible" },
        { { "ptp", "4", "sum_parts", "2" }, false, "'sum_parts' is 2, but 'producer_tensor_parallel_size' 4 shares each sum" },
        { { "ptp", "4", "sum_parts", "8" }, true, "" },
        { { "sum_parts", "6" }, false, "'sum_parts' is 6; 0 (chosen), 1, 2, 4 and 8 are possible" },
        { { "ptp", "2", "lora_rank", "8" }, false, "a model with an adapter is sampled from on one device" },
        { { "max_new_tokens_start", "4000" }, false, "'max_new_tokens_start' (4000) is above 'max_new_tokens' (3584)" },
        { { "max_new_tokens_start", "400", "soft_over_length_punishment", "true", "cache_length", "500" },
          false,
          "'cache_length' (500) must be below 'max_new_tokens_start' (400)" },
        { { "optimizer", "adafactor", "t", "2", "zero", "1" }, false, "'optimizer' adafactor needs 'zero_stage' 0" },
        { { "optimizer", "adafactor", "t", "2" }, true, "note: 'zero_stage' is 0" },
        { { "collective", "tcp", "t", "2" }, true, "" },
        { { "collective", "local", "t", "2", "tp", "2", "zero", "0" }, true, "" },
        { { "collective", "tcp", "t", "2", "tp", "2", "zero", "1" }, true, "" },
        { { "trainers_per_node", "2", "t", "4" }, false, "leaves 2 of 4 trainers to nodes that join, and 'listen' is not set" },
        { { "trainers_per_node", "2", "t", "2" }, true, "" },
        { { "trainers_per_node", "1", "t", "2", "listen", "h:1" }, true, "" },
        { { "trainers_per_node", "1", "t", "2", "listen", "h:1", "zero", "3" }, true, "" },
        { { "trainers_per_node", "1", "t", "2", "listen", "h:1", "tp", "2", "pp", "2", "zero", "3" }, true, "" },
        { { "trainers_per_node", "1", "t", "2", "listen", "h:1", "collective", "ipc" }, false, "that is within one machine" },
        { { "trainers_per_node", "1", "t", "2", "listen", "h:1", "placement", "apart" }, false, "train and sample by turns" },
        { { "collective", "tcp", "t", "2", "zero", "0" }, true, "" },
        { { "collective", "local", "t", "2", "zero", "3" }, true, "" },
        { { "collective", "ipc", "t", "2", "zero", "3" }, true, "" },
        { { "collective", "nccl", "t", "2", "devices", "cpu:0,cpu:1" }, false, "'collective' nccl is for GPUs; for CPUs there are" },
        { { "collective", "tcp", "t", "2", "devices", "cuda:0,cuda:1" }, false, "'collective' tcp is for CPUs; for the GPUs" },
        { { "optimizer", "adamw_8bit", "offload_optimizer", "true" }, false, "its state stays on the device" },
        { { "optimizer", "adamw_8bit", "t", "2", "zero", "3" }, true, "" },
        { { "ref_update_steps", "5", "lora_rank", "4" }, false, "an adapter's reference is its frozen base model" },
        { { "t", "2", "ibs", "8192", "tbs", "4096" }, false, "is more than the 4096 that are possible" },
        { { "t", "2", "zero", "2", "offload_optimizer", "true" }, true, "" },
        { { "t", "2", "zero", "auto", "offload_optimizer", "true" }, true, "" },
        { { "ibs", "8", "tbs", "4", "tmbs", "99" }, true, "warning: 'train_microbatch_size' is 99 and is taken as 32" },
        { { "tbs", "12", "ibs", "24" }, true, "" },    // a default without effect is no conflict
        /* the two example lines of ColossalChat's README */
        { { "t", "4", "i", "4", "ibs", "1", "tbs", "2", "tMbs", "8", "tmbs", "2", "imbs", "1", "g", "4" },
          true,
          "warning: 'train_batch_size' is 2 and is taken as 1" },
        { { "t", "16", "i", "16", "g", "2", "ibs", "1", "tbs", "2", "tMbs", "1", "tmbs", "2", "imbs", "1" },
          true,
          "warning: 'train_batch_size' is 2 and is taken as 1" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config c;
        struct buf notes = BUF_INIT;
        struct error err = { 0 };
        run_config_init(&c);
        for (int j = 0; j < 16 && cases[i].set[j]; j += 2)
            for (int k = 0; k < n_knobs; k++)
                if (strcmp(knobs[k].flag ? knobs[k].flag : knobs[k].name, cases[i].set[j]) == 0)
                    assert_true(run_config_set(&c, knobs[k].name, cases[i].set[j + 1], FROM_FLAG, NULL, &err));
        if (run_config_finish(&c, &notes, &err) != cases[i].ok)
            fail_msg("case %zu is %s%s", i, cases[i].ok ? "refused: " : "taken", err.text);
        const char *said = cases[i].ok ? buf_text(&notes) : err.text;
        if (!strstr(said, cases[i].says))
            fail_msg("case %zu: '%s' lacks '%s'", i, said, cases[i].says);
        if (!cases[i].ok)
            place_is_said(cases[i].set, cases[i].says);
        buf_release(&notes);
    }
}

static void a_plan_counts_steps_and_ages_as_documented(UNUSED void **state)
{
    struct run_config c;
    struct run_plan p;
    struct error err = { 0 };
    run_config_init(&c);
    c.inference_batch_size = 64, c.train_batch_size = 32, c.n_behind = 1, c.num_episodes = 3;
    assert_true(run_plan_make(&p, &c, 200, &err));
    assert_true(p.k == 2 && p.rollout_steps == 10 && p.total_steps == 20 && p.max_age_steps == 3
                && !p.on_policy);                                                                    // 600 prompts in tens of 64
    assert_true(run_plan_make(&p, &c, 192, &err) && p.rollout_steps == 9 && p.total_steps == 18);    // nine, exactly
    assert_true(run_plan_make(&p, &c, 200, &err));
    p.prompts_per_rollout_step = p.prompts_opened = 12;
    p.prompts_per_train_batch = 8;
    assert_int_equal(run_plan_item_after(&p, 3), 24);
    assert_int_equal(run_plan_item_after(&p, 4), 36);    // the rest of a rollout step is not continued
    assert_false(run_plan_make(&p, &c, 0, &err));
}

static void a_proposal_is_taken_whole_or_not_at_all(UNUSED void **state)
{
    struct run_config c, next;
    struct buf notes = BUF_INIT;
    struct error err = { 0 };
    run_config_init(&c);
    assert_true(run_config_finish(&c, &notes, &err));
    const char *both[] = { "inference_batch_size", "train_batch_size" }, *good[] = { "48", "24" }, *bad[] = { "48", "32" };
    assert_true(knobs_propose(&c, &c, both, good, 2, &next, &err));
    assert_false(knobs_propose(&c, &c, both, bad, 2, &next, &err));
    const char *lr[] = { "lr" }, *value[] = { "1e-5" }, *fixed[] = { "algo" }, *dapo[] = { "DAPO" };
    assert_true(knobs_propose(&c, &c, lr, value, 1, &next, &err));
    assert_true(next.learning_rate == 1e-5 && c.learning_rate == 1e-6);
    assert_false(knobs_propose(&c, &c, fixed, dapo, 1, &next, &err));
    assert_non_null(strstr(err.text, "fixed once a run has begun"));
    buf_release(&notes);
}

static void what_needs_more_memory_than_the_run_started_with_waits_for_a_resume(UNUSED void **state)
{
    static const struct {
        const char *set[4];
        const char *says;
    } cases[] = {
        // start: 8 prompts, 2 samples of 512 + 3584 tokens, beta 0
        { { "max_new_tokens", "3584" }, NULL },
        { { "max_new_tokens", "3585" }, "'max_new_tokens' cannot exceed the 3584" },
        { { "inference_microbatch_size", "4" }, NULL },
        { { "inference_microbatch_size", "16" }, "'inference_microbatch_size' cannot exceed the 8" },
        { { "token_budget", "8192" }, NULL },
        { { "token_budget", "8193" }, "'token_budget' cannot exceed the 8192" },
        { { "train_microbatch_size", "1" }, NULL },
        { { "train_microbatch_size", "3" }, "'train_microbatch_size' 3 means 12288 tokens, and the run took memory for 8192" },
        { { "train_microbatch_size", "3", "max_new_tokens", "2000" }, NULL },    // 3 x 2512
        { { "kl_coeff", "0.01" }, "'kl_coeff' was 0 when the run started" },
        { { "train_minibatch_size", "4" }, "'train_minibatch_size' has no effect: the gradient is the mean over the whole optimizer step" },
        { { "inference_batch_size", "4" },
          "'inference_microbatch_size' would be 8, and 4 is the most: it cannot exceed inference_batch_size; "
          "give 'inference_microbatch_size' a value too" },
    };
    struct run_config c, next;
    struct buf notes = BUF_INIT;
    struct error err = { 0 };
    run_config_init(&c);
    c.beta = 0;
    assert_true(run_config_finish(&c, &notes, &err));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *name[2] = { cases[i].set[0], cases[i].set[2] }, *value[2] = { cases[i].set[1], cases[i].set[3] };
        bool ok = knobs_propose(&c, &c, name, value, name[1] ? 2 : 1, &next, &err);
        if (ok != !cases[i].says || (!ok && !strstr(err.text, cases[i].says)))
            fail_msg("case %zu: '%s' lacks '%s'", i, ok ? "taken" : err.text, cases[i].says ? cases[i].says : "");
    }
    buf_release(&notes);
}

static void options_of_atropos_trainer_become_settings(UNUSED void **state)
{
    struct run_config c;
    struct error err = { 0 };
    struct buf notes = BUF_INIT;
    /* atropos-grpo --model-name m --training-steps 7 --batch-size 4 --gradient-accumulation-steps 8 ..., as a run file */
    assert_true(file_finish(
        &c,
        "preset: atropos\nmodel_name: /m\ntraining-steps: 7\nbatch_size: 4\ngradient_accumulation_steps: 8\n"
        "seq_len: 1000\nclip_eps: 0.3\ndevice: cuda\nuse_wandb: true\nwandb_project: p\nsave_path: /s\n"
        "checkpoint_interval: 5\natropos_url: http://h:8000/\ndtype: bfloat16\nvllm_port: 9007\nvllm_restart_interval: 2\nmax_model_len: 9\nvllm_gpu:\n",
        &notes, &err));
    assert_string_equal(c.model, "/m");
    assert_string_equal(c.save_dir, "/s");
    assert_string_equal(c.project, "p");
    assert_string_equal(c.wandb, "online");
    assert_string_equal(c.devices, "auto");
    assert_string_equal(c.dtype, "bf16");
    assert_int_equal(c.max_steps, 7);
    assert_int_equal(c.save_interval, 5);
    assert_int_equal(c.train_microbatch_size, 4);
    assert_int_equal(c.train_batch_size, 8);    // 32 sequences, of which the preset's 4 make a group
    assert_int_equal(c.max_prompt_tokens + c.max_new_tokens, 1000);
    assert_true(c.clip_eps_low == 0.3 && c.clip_eps_high == 0.3);
    struct environments e;
    assert_true(run_config_environments(&c, &e, &err));
    assert_string_equal(e.url, "http://h:8000");
    assert_string_equal(e.listen, "");
    assert_string_equal(c.engine_url, "http://127.0.0.1:9007");
    assert_int_equal(c.bridge_interval, 2);
    assert_non_null(strstr(buf_text(&notes), "note: 'max_model_len' has no effect"));
    assert_null(strstr(buf_text(&notes), "vllm_gpu"));
    /* what the run keeps is settings, and reading them again changes nothing */
    struct buf out = BUF_INIT;
    struct run_config again;
    assert_true(run_config_print(&c, &out, &err));
    assert_null(strstr(buf_text(&out), "seq_len"));
    assert_true(file_finish(&again, buf_text(&out), NULL, &err));
    assert_int_equal(again.train_batch_size, 8);
    assert_int_equal(again.max_new_tokens, c.max_new_tokens);
    buf_clear(&notes);
    /* a setting of its own wins over what options make of it */
    assert_true(file_finish(&c,
                            "num_generations: 4\ntrain_batch_size: 4\ninference_batch_size: 4\nbatch_size: 2\nmax_new_tokens: 90\n"
                            "seq_len: 100\n",
                            &notes, &err));
    assert_int_equal(c.train_batch_size, 4);
    assert_int_equal(c.train_microbatch_size, 2);
    assert_int_equal(c.max_new_tokens, 90);
    /* modes of the weight bridge */
    assert_true(file_finish(&c, "atropos_url: http://h:1\nmax_steps: 1\nweight_bridge_mode: lora_only\n", &notes, &err));
    assert_string_equal(c.engine_url, "http://127.0.0.1:9001");
    assert_string_equal(c.lora_target_modules, "q_proj,v_proj");
    assert_int_equal(c.lora_rank, 16);
    assert_true(file_finish(&c, "atropos_url: http://h:1\nmax_steps: 1\nweight_bridge_mode: shared_vllm\nvllm_port: 9002\n", &notes, &err));
    assert_string_equal(c.serve, "127.0.0.1:9002");
    assert_string_equal(c.engine_url, "");
    assert_true(file_finish(&c, "atropos_url: http://h:1\nmax_steps: 1\nweight_bridge_mode: none\n", &notes, &err));
    assert_string_equal(c.engine_url, "");
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "weight_bridge_mode: lora_only\n", "is for a run with 'environments'" },
        { "weight_bridge_mode: nccl\n", "'weight_bridge_mode'" },
        { "atropos_url: http://h:1\nmax_steps: 1\nengine_url: 'h:1'\n", "it is http://HOST:PORT" },
        { "atropos_url: http://h:1\nmax_steps: 1\nweight_bridge_mode: shared_vllm\nengine_url: 'http://h:1'\n", "ask the run itself" },
        { "batch_size: 0\n", "'batch_size' is '0'; it is a whole number from 1" },
        { "batch_size: [1]\n", "a single value is needed" },
        { "batch_size: 3\ngradient_accumulation_steps: 1\n", "a batch of 3 sequences" },
        { "seq_len: 1\n", "a sequence has a prompt and an answer" },
        { "adafactor_scale_parameter: false\n",
          "'adafactor_scale_parameter' is 'false'; possible is true : 'optimizer' adafactor is torch" },
        { "optimizer: adam\n", "'optimizer' cannot be 'adam'" },
        { "clip_eps: 2\n", "'clip_eps'" },
        { "atropos_url: ftp://h\n", "it is http://HOST:PORT" },
        { "atropos_url: http://h:1\n", "needs 'max_steps' (Atropos' --training-steps)" },
        { "environments: {listen: 127.0.0.1:1, url: 'http://h:1'}\nmax_steps: 1\n", "has both listen and url" },
        { "environments: {url: 'http:///x'}\nmax_steps: 1\n", "url is 'http:///x'" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_false(file_finish(&c, bad[i].text, &notes, &err));
        if (!strstr(err.text, bad[i].why))
            fail_msg("%s: %s", bad[i].text, err.text);
    }
    buf_release(&out);
    buf_release(&notes);
}

static void settings_of_verifiers_have_no_effect_on_an_environments_reward(UNUSED void **state)
{
    struct buf notes = BUF_INIT;
    struct run_config c;
    struct error err;
    run_config_init(&c);
    assert_true(run_config_set(&c, "reward_type", "environment", FROM_FILE, NULL, &err));
    assert_true(run_config_set(&c, "verification_reward", "5", FROM_FLAG, NULL, &err));
    knobs_note_idle(&c, FROM_FLAG, &notes);
    assert_non_null(strstr(buf_text(&notes), "note: 'verification_reward' has no effect: "));
    buf_release(&notes);
}

/* Each rule of knob_idle.c: a setting that has no effect, and the others that give it one. */
static void a_setting_without_effect_is_noted_with_what_to_use(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *name, *value, *with[3][2]; } cases[] = {
        { "zero_stage", "2", { { "num_trainers", "2" } } }, { "collective", "local", { { "num_trainers", "2" } } }, { "ray_dir", "/tmp" }, { "microbatch_size", "1" }, { "master_address", "h" }, { "master_port", "1" },
        { "trainers_per_node", "2", { { "num_trainers", "3" } } },
        { "engine_timeout_s", "3", { { "engine_url", "http://h:1" } } }, { "engine_patience_s", "3", { { "engine_url", "http://h:1" } } },
        { "engine_helper", "cat", { { "engine_url", "http://h:1" } } },
        { "engine_token_file", "/t", { { "engine_url", "http://h:1" } } }, { "bridge_interval", "3", { { "engine_url", "http://h:1" } } },
        { "train_minibatch_size", "4" },
        { "project", "p", { { "wandb", "online" } } },
        { "metric_names", "atropos", { { "tensorboard", "true" } } }, { "max_active_rubrics", "3", { { "apply_evolving_rubric_reward", "true" } } },
        { "ranks_timeout_s", "9", { { "num_trainers", "2" } } }, { "join_timeout_s", "9", { { "num_trainers", "2" }, { "trainers_per_node", "1" }, { "listen", "h:1" } } }, { "publish_timeout_s", "9", { { "placement", "apart" } } },
        { "num_episodes", "3", { { "max_steps", "0" } } },
        { "weights", "copy", { { "placement", "apart" } } },
        { "threads", "3", { { "devices", "cuda:0,cpu:0" } } },
        { "max_staleness", "9", { { "free_running", "true" } } },
        { "train_microbatch_size", "3", { { "token_budget", "0" } } },
        { "cache_length", "100", { { "soft_over_length_punishment", "true" } } },
        { "ppb_as_upstream", "true", { { "advantages", "batch" } } },
        { "loss_constant", "100", { { "loss_variation", "constant" } } },
        { "kl_estimator", "k2", { { "kl_coeff", "0.1" } } },
        { "teacher_coeff", "2", { { "teacher", "/t" } } },
        { "reward_coeff", "0", { { "teacher", "/t" } } },
        { "clip_dual", "3", { { "clip_form", "ppo" } } },
        { "ratio_level", "sequence", { { "clip_form", "ppo" } } },
        { "vespo_k_pos", "1", { { "clip_form", "vespo" } } },
        { "vespo_lambda_pos", "1", { { "clip_form", "vespo" } } },
        { "vespo_k_neg", "1", { { "clip_form", "vespo" } } },
        { "vespo_lambda_neg", "1", { { "clip_form", "vespo" } } },
        { "dro_beta", "1", { { "clip_form", "dro" } } },
        { "sapo_temperature_pos", "2", { { "clip_form", "sapo" } } },
        { "sapo_temperature_neg", "2", { { "clip_form", "sapo" } } },
        { "ref_update_steps", "3", { { "kl_coeff", "0.1" } } },
        { "ref_update_alpha", "0.5", { { "kl_coeff", "0.1" }, { "ref_update_steps", "3" } } },
        { "rho_clamp_level", "sequence", { { "rho_clamp", "[0, 2]" } } },
        { "rho_mask_level", "tv", { { "rho_mask", "[0, 2]" } } },
        { "max_new_tokens_steps", "7", { { "max_new_tokens_start", "5" } } },
        { "temperature_steps", "7", { { "temperature_end", "0.5" } } },
        { "weight_decay_on", "matrices", { { "weight_decay", "0.1" } } },
        { "lr_decay_share", "0.5", { { "lr_schedule", "wsd" } } },
        { "lr_min_ratio", "0.5", { { "lr_schedule", "cosine" } } },
        { "offload_optimizer", "true", { { "devices", "cuda:0" } } },
        { "code_verifier_api_url", "http://h", { { "reward_type", "0.5*boxed + 0.5 * code" } } },
        { "reward_timeout_s", "3", { { "reward_type", "program:./x" } } },
        { "verification_reward", "5", { { "reward_type", "verify" } } },
        { "remap_verifier", "a=b", { { "reward_type", "verify" } } },
        { "format_reward", "1", { { "reward_type", "verify" } } },
        { "non_stop_penalty", "true", { { "reward_type", "verify" } } },
        { "only_reward_good_outputs", "true", { { "reward_type", "verify" } } },
        { "math_symbolic", "false", { { "reward_type", "verify" } } },
        { "max_length_verifier_max_length", "9", { { "reward_type", "verify" } } },
        { "llm_judge_url", "http://h/v1", { { "reward_type", "verify" } } },
        { "llm_judge_model", "m", { { "reward_type", "verify" } } },
        { "llm_judge_key_file", "/k", { { "reward_type", "verify" } } },
        { "llm_judge_template", "{input}{output}{label}", { { "reward_type", "verify" } } },
        { "llm_judge_max_tokens", "9", { { "reward_type", "verify" } } },
        { "llm_judge_max_context_length", "4096", { { "reward_type", "verify" } } },
        { "llm_judge_temperature", "0.5", { { "reward_type", "verify" } } },
        { "llm_judge_timeout", "3", { { "reward_type", "verify" } } },
        { "llm_judge_budget", "3", { { "reward_type", "verify" } } },
        { "code_max_execution_time", "3", { { "reward_type", "verify" } } },
        { "code_pass_rate_reward_threshold", "0.5", { { "reward_type", "verify" } } },
        { "code_apply_perf_penalty", "true", { { "reward_type", "verify" } } },
        { "additive_format_reward", "true", { { "reward_type", "verify" }, { "format_reward", "1" } } },
        { "non_stop_penalty_value", "-1", { { "reward_type", "verify" }, { "non_stop_penalty", "true" } } },
        { "response_format_tags", "{\"think_start\": {\"text\": \"<t>\", \"num_occur\": 1}}", { { "reward_type", "think_answer_tags" } } },
        { "code_verifier_key_file", "/k", { { "code_verifier_api_url", "http://h" } } },
        { "lora_alpha", "8", { { "lora_rank", "4" } } }, { "lora_target_modules", "q_proj", { { "lora_rank", "4" } } },
        { "lora_dropout", "0.1", { { "lora_rank", "4" } } },
        { "alert_webhook_format", "json", { { "alert_webhook_file", "/w" } } },
        { "max_turns", "3", { { "environment", "program:./x" } } },
        { "max_turn_tokens", "3", { { "environment", "program:./x" } } },
        { "environment_processes", "3", { { "environment", "program:./x" } } },
        { "environment_timeout_s", "3", { { "environment", "program:./x" } } },
        { "session_timeout_s", "3", { { "environment", "harness:./x" } } },
        { "session_restarts", "3", { { "environment", "harness:./x" } } },
        { "environment_reward", "last", { { "environment", "program:./x" }, { "reward_type", "0.5*boxed + 0.5*environment" } } },
        { "eval_interval", "3", { { "eval_dataset", "{\"a\": \"b\"}" } } },
        { "eval_temperature", "1", { { "eval_dataset", "{\"a\": \"b\"}" } } },
        { "eval_save_dir", "/tmp", { { "eval_dataset", "{\"a\": \"b\"}" } } },
        { "wandb_entity", "x", { { "wandb", "online" } } }, { "wandb_base_url", "x", { { "wandb", "online" } } },
        { "wandb_group", "x", { { "wandb", "online" } } }, { "wandb_tags", "x", { { "wandb", "online" } } },
        { "wandb_notes", "x", { { "wandb", "online" } } }, { "wandb_ca", "/x", { { "wandb", "online" } } },
        { "wandb_completions", "true", { { "wandb", "offline" } } }, { "wandb_console", "true", { { "wandb", "offline" } } },
        { "wandb_host", "true", { { "wandb", "offline" } } },
        { "allowed_hosts", "h", { { "metrics_listen", "127.0.0.1:1" } } },
        { "metrics_token_file", "/x", { { "metrics_listen", "127.0.0.1:1" } } },
        { "learning_rate", "0.5", { { "seed", "2" } } },    // always read: no note either way
    };
    // clang-format on
    /* where each of them is idle */
    static const char *const base[][2] = { { "max_steps", "9" },       { "lr_schedule", "constant" }, { "token_budget", "999" },
                                           { "reward_type", "boxed" }, { "kl_coeff", "0" },           { "weight_decay", "0" },
                                           { "clip_form", "gpg" } };
    struct buf notes = BUF_INIT;
    struct error err = { 0 };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config c;
        char want[128];
        run_config_init(&c);
        for (size_t k = 0; k < ARRAY_SIZE(base); k++)
            assert_true(run_config_set(&c, base[k][0], base[k][1], FROM_FILE, NULL, &err));
        const char *devices = strcmp(cases[i].name, "threads") == 0 ? "cuda:0,cuda:1" : "cpu:0,cpu:1";
        assert_true(run_config_set(&c, "devices", devices, FROM_FILE, NULL, &err));
        assert_true(run_config_set(&c, cases[i].name, cases[i].value, FROM_FLAG, NULL, &err));
        snprintf(want, sizeof want, "note: '%s' has no effect: ", cases[i].name);
        bool always_read = strcmp(cases[i].name, "learning_rate") == 0;
        buf_clear(&notes);
        knobs_note_idle(&c, FROM_FLAG, &notes);
        if ((strstr(buf_text(&notes), want) == NULL) != always_read)
            fail_msg("'%s' alone: '%s'", cases[i].name, buf_text(&notes));
        if (!cases[i].with[0][0])
            continue;
        for (int k = 0; k < 3 && cases[i].with[k][0]; k++)
            assert_true(run_config_set(&c, cases[i].with[k][0], cases[i].with[k][1], FROM_FLAG, NULL, &err));
        buf_clear(&notes);
        knobs_note_idle(&c, FROM_FLAG, &notes);
        if (strstr(buf_text(&notes), want))
            fail_msg("'%s' where it is read: '%s'", cases[i].name, buf_text(&notes));
    }
    struct run_config c;
    run_config_init(&c);    // nobody has set a default
    assert_true(run_config_set(&c, "master_port", "29506", FROM_FLAG, NULL, &err));
    buf_clear(&notes);
    knobs_note_idle(&c, FROM_FLAG, &notes);
    assert_int_equal(notes.len, 0);
    buf_release(&notes);
}

static void workers_compute_nothing_that_the_controller_does(UNUSED void **state)
{
    assert_true(metric_is_controllers("metrics/reward") && metric_is_controllers("score/errors"));
    assert_false(metric_is_controllers("train/loss") || metric_is_controllers("time/train_s"));
    assert_false(metric_is_controllers("reward/own_part"));    // not in the table: a reward's own
}

static void every_metric_has_a_name_and_a_meaning(UNUSED void **state)
{
    for (int i = 0; i < METRIC_N; i++) {
        assert_non_null(metrics[i].name);
        assert_non_null(metrics[i].help);
        assert_int_equal(metric_find(metrics[i].name), i);
    }
}

static void metrics_have_the_names_and_the_sense_of_another_system(UNUSED void **state)
{
    static const struct journal_metric in[] = { { "metrics/reward", 0.25 },
                                                { "metrics/ans_acc", 0.75 },
                                                { "metrics/truncated_ratio", 0.125 },
                                                { "train/learning_rate", 1e-6 },
                                                { "train/clip_low_ratio", 0.25 },
                                                { "train/clip_high_ratio", 0.5 },
                                                { "rollout/samples_total", 640 },
                                                { "time/step_s", 3 },
                                                { "reward/of_my_own", 7 } };
    static const struct {
        enum metric_naming naming;
        struct journal_metric want[METRIC_NAMES_MORE + ARRAY_SIZE(in)];
    } cases[] = {
        { NAMES_OPEN_INSTRUCT,
          { { "scores", 0.25 },
            { "objective/verifiable_correct_rate", 0.75 },
            { "unsolved_batch_size_ratio", 0.25 },
            { "val/stop_rate", 0.875 },
            { "lr", 1e-6 },
            { "policy/clipfrac_avg", 0.75 },
            { "episode", 640 },
            { "global_step", 640 },
            { "time/total", 3 },
            { "reward/of_my_own", 7 },
            { "training_step", 12 } } },
        { NAMES_ATROPOS,
          { { "metrics/reward", 0.25 },
            { "metrics/ans_acc", 0.75 },
            { "metrics/truncated_ratio", 0.125 },
            { "train/lr", 1e-6 },
            { "grpo/clipped_fraction", 0.75 },
            { "rollout/samples_total", 640 },
            { "train/step_time", 3 },
            { "reward/of_my_own", 7 } } },
        { NAMES_ROLLCALL,
          { { "metrics/reward", 0.25 },
            { "metrics/ans_acc", 0.75 },
            { "metrics/truncated_ratio", 0.125 },
            { "train/learning_rate", 1e-6 },
            { "train/clip_low_ratio", 0.25 },
            { "train/clip_high_ratio", 0.5 },
            { "rollout/samples_total", 640 },
            { "time/step_s", 3 },
            { "reward/of_my_own", 7 } } },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct journal_metric out[ARRAY_SIZE(in) + METRIC_NAMES_MORE];
        int n = metric_names_make(cases[i].naming, 12, in, ARRAY_SIZE(in), out);
        for (int k = 0; k < n; k++)
            if (!cases[i].want[k].name || strcmp(out[k].name, cases[i].want[k].name) != 0 || out[k].value != cases[i].want[k].value)
                fail_msg("naming %zu, %d: '%s' is %g", i, k, out[k].name, out[k].value);
        assert_true(n == (int)ARRAY_SIZE(cases[i].want) || !cases[i].want[n].name);
    }
    /* whatever the journal has, there is room for it */
    struct journal_metric all[METRIC_N], out[METRIC_N + METRIC_NAMES_MORE];
    for (int i = 0; i < METRIC_N; i++)
        all[i] = (struct journal_metric){ metrics[i].name, i };
    for (int naming = NAMES_ROLLCALL; naming <= NAMES_ATROPOS; naming++) {
        int n = metric_names_make((enum metric_naming)naming, 1, all, METRIC_N, out);
        assert_true(n <= METRIC_N + METRIC_NAMES_MORE);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < i; k++)
                assert_string_not_equal(out[i].name, out[k].name);
    }
}

static void trainers_of_each_host_are_its_first_devices(UNUSED void **state)
{
    static const struct {
        int64_t first, n_producer, tp, pp, ptp, n_device;    // first -1: of a node that only samples
        const char *parts;
    } hosts[] = {
        { 0, 1, 1, 1, 1, 2, "trainer 0, producer 0; trainer 1" },
        { 2, 3, 1, 1, 1, 3, "trainer 2, producer 0; trainer 3, producer 1; producer 2" },
        { 4, 1, 1, 1, 1, 1, "trainer 4, producer 0" },    // the last one has the rest
        { -1, 1, 1, 1, 1, 1, "producer 0" },
        { 0, 1, 2, 1, 1, 4, "trainer 0, producer 0; trainer 1; with trainer 0; with trainer 1" },
        { 2, 3, 2, 1, 1, 5, "trainer 2, producer 0; trainer 3, producer 1; producer 2; with trainer 2; with trainer 3" },
        { 2, 2, 1, 2, 2, 4,
          "trainer 2, producer 0; trainer 3, producer 1; with trainer 2, with producer 0; with trainer 3, with producer 1" },
        { 4, 1, 2, 2, 2, 4, "trainer 4, producer 0; with trainer 4, with producer 0; with trainer 4; with trainer 4" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
        struct run_config c;
        struct error err;
        char text[256] = "", role[64], name[64];
        run_config_init(&c);
        strcpy(c.devices, "a,b,c,d,e");
        c.num_trainers = 5;
        c.trainers_per_node = 2;
        c.num_inferencer = hosts[i].n_producer;
        c.tensor_parallel_size = hosts[i].tp;
        c.pipeline_parallel_size = hosts[i].pp;
        c.producer_tensor_parallel_size = hosts[i].ptp;
        c.node_only = hosts[i].first != 0;
        c.first_trainer = hosts[i].first;
        assert_int_equal(run_config_n_host(&c), 3);
        assert_int_equal(run_config_n_device(&c), hosts[i].n_device);
        for (int64_t k = 0; k < hosts[i].n_device; k++) {
            struct run_part part;
            size_t at = strlen(text);
            assert_true(run_config_part(&c, (char[]){ (char)('a' + k), 0 }, &part, &err));
            assert_int_equal(run_part_has_worker(&part), k < run_config_n_worker(&c));
            snprintf(text + at, sizeof text - at, "%s%s", k ? "; " : "", run_part_text(&part, role, sizeof role));
        }
        assert_string_equal(text, hosts[i].parts);
        assert_string_equal(run_config_trainer(&c, 3, name, sizeof name),
                            hosts[i].first == 2 ? "trainer 3 (b)" : "trainer 3 (on another node)");
        for (int64_t h = 0; h < run_config_trainers_here(&c) * (run_config_trainer_devices(&c) - 1); h++) {
            struct run_part part;
            int64_t n_own = run_config_trainer_devices(&c) - 1, rank = hosts[i].first + h / n_own;
            run_config_trainer_helper(&c, rank, h % n_own, name, sizeof name);
            assert_true(run_config_part(&c, name, &part, &err) && part.helps_trainer == rank);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainers_of_each_host_are_its_first_devices),
        cmocka_unit_test(every_setting_has_a_default_within_its_bounds_and_a_name_of_its_own),
        cmocka_unit_test(colossalchats_flags_have_their_names_and_defaults),
        cmocka_unit_test(a_run_file_is_read_and_what_is_printed_reads_back_the_same),
        cmocka_unit_test(a_colossalchat_constructor_is_a_run_file),
        cmocka_unit_test(bad_run_files_get_one_sentence_with_the_line),
        cmocka_unit_test(no_setting_takes_a_value_that_it_would_change),
        cmocka_unit_test(null_in_a_run_file_means_not_given),
        cmocka_unit_test(a_run_file_is_read_to_its_end_or_refused_with_the_line),
        cmocka_unit_test(a_runs_name_is_one_line_and_a_folders_name),
        cmocka_unit_test(presets_are_their_origins),
        cmocka_unit_test(the_longest_completion_grows_to_its_end_and_stays),
        cmocka_unit_test(the_temperature_goes_to_its_end_and_stays),
        cmocka_unit_test(an_environment_gives_the_reward_unless_another_is_asked_for),
        cmocka_unit_test(the_dapo_preset_fills_what_nobody_set),
        cmocka_unit_test(a_rule_between_settings_names_the_line_of_one_of_them),
        cmocka_unit_test(sizes_that_cannot_work_are_refused_and_colossalchats_examples_clamped),
        cmocka_unit_test(devices_are_shared_out_among_workers_and_their_teams),
        cmocka_unit_test(a_plan_counts_steps_and_ages_as_documented),
        cmocka_unit_test(a_proposal_is_taken_whole_or_not_at_all),
        cmocka_unit_test(what_needs_more_memory_than_the_run_started_with_waits_for_a_resume),
        cmocka_unit_test(a_setting_without_effect_is_noted_with_what_to_use),
        cmocka_unit_test(settings_of_verifiers_have_no_effect_on_an_environments_reward),
        cmocka_unit_test(options_of_atropos_trainer_become_settings),
        cmocka_unit_test(every_metric_has_a_name_and_a_meaning),
        cmocka_unit_test(metrics_have_the_names_and_the_sense_of_another_system),
        cmocka_unit_test(workers_compute_nothing_that_the_controller_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
