/* The types of settings: one row reads, prints, bounds and sends; and the one parser of commands built on them. tags: valgrind
 * */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/command.h"
#include "protocol/base/json_text.h"
#include "protocol/settings/knobs.h"
#include "protocol/wire/message.h"

static const char *const samples[KNOB_TYPE_N][3] = {
    // of a setting of each type: two values as they are printed, one refused
    [KNOB_BOOL] = { "true", "false", "maybe" },
    [KNOB_I64] = { "4", "1", "4.5" },
    [KNOB_F64] = { "0.25", "1e-06", "nan" },
    [KNOB_TEXT] = { "linear", "cosine", "square" },
    [KNOB_PATH] = { "/a/b", "", NULL },
    [KNOB_RANGE] = { "[0.01, 0.99]", "none", "[0.9, 0.1]" },
    [KNOB_OBJECT] = { "{\"listen\":\"127.0.0.1:8000\"}", "", "[1]" },
    [KNOB_JSON] = { "{\"a\":{\"path\":\"/x\"}}", "", "[1]" },
};
static const char *const of_type[KNOB_TYPE_N] = {
    [KNOB_BOOL] = "shuffle",  [KNOB_I64] = "num_episodes",   [KNOB_F64] = "learning_rate", [KNOB_TEXT] = "lr_schedule",
    [KNOB_PATH] = "save_dir", [KNOB_RANGE] = "filter_range", [KNOB_JSON] = "eval_dataset", [KNOB_OBJECT] = "environments",
};

static void a_value_reads_back_from_its_text_and_a_refused_one_changes_nothing(UNUSED void **state)
{
    struct run_config c;
    struct buf text = BUF_INIT;
    for (int t = 0; t < KNOB_TYPE_N; t++) {
        struct error err = { 0 };
        const struct knob *k = knob_find(of_type[t], &err);
        assert_non_null(k);
        assert_int_equal(k->type, t);
        run_config_init(&c);
        for (int i = 0; i < 2; i++) {
            assert_true(knob_check(k, samples[t][i], &err) && run_config_set(&c, k->name, samples[t][i], FROM_FLAG, NULL, &err));
            assert_string_equal(knob_text(k, &c, &text), samples[t][i]);
        }
        if (!samples[t][2])
            continue;
        assert_false(knob_check(k, samples[t][2], &err));
        assert_int_equal(err.code, ERR_USAGE);
        assert_non_null(strstr(err.text, k->name));
        assert_false(run_config_set(&c, k->name, samples[t][2], FROM_FLAG, NULL, &err));
        assert_string_equal(knob_text(k, &c, &text), samples[t][1]);
    }
    buf_release(&text);
}

/* What names a model may be in the hub's cache: such a name in a run file is not a path beside the file. */
static void names_of_the_hub_are_no_paths_beside_the_run_file(UNUSED void **state)
{
    static const struct {
        const char *name, *text, *want;
    } cases[] = {
        { "model", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B" },   { "tokenizer_path", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B" },
        { "teacher", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B" }, { "teacher", "./Qwen", "/nowhere/./Qwen" },
        { "dataset", "openai/gsm8k:main", "openai/gsm8k:main" }, { "checkpoint_path", "runs/step-000010", "/nowhere/runs/step-000010" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_config c;
        struct error err = { 0 };
        struct buf text = BUF_INIT;
        run_config_init(&c);
        assert_true(run_config_set(&c, cases[i].name, cases[i].text, FROM_FLAG, "/nowhere", &err));
        assert_string_equal(knob_text(knob_find(cases[i].name, &err), &c, &text), cases[i].want);
        buf_release(&text);
    }
}

static void every_setting_takes_the_text_of_its_default_and_goes_to_the_wire(UNUSED void **state)
{
    struct run_config c;
    struct error err = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    struct buf text = BUF_INIT;
    run_config_init(&c);
    msg_begin(&m, MSG_OK);
    msg_str(&m, "name", "a run");
    msg_str(&m, "dir", "/runs/a");
    msg_str(&m, "state", "running");
    msg_i64(&m, "step", 0);
    msg_list(&m, "processes");
    msg_end(&m);
    msg_map(&m, "knobs");
    for (int i = 0; i < n_knobs; i++) {
        if (!knob_check(&knobs[i], knob_text(&knobs[i], &c, &text), &err))
            fail_msg("%s: %s", knobs[i].name, err.text);
        assert_true(knob_bounds_text(&knobs[i], &text)[0] != 0);
        knob_types[knobs[i].type].send(&knobs[i], (const char *)&c + knobs[i].offset, &m);
    }
    msg_end(&m);
    assert_true(msg_finish(&m, &err));
    struct msg_in in;
    assert_true(msg_read_answer(&in, MSG_STATUS, m.buf.data, m.buf.len, &err));
    const struct mval *map = mval_get(in.root, "knobs");
    assert_int_equal(mval_n(map), n_knobs);
    assert_true(mval_bool(mval_get(map, "shuffle"), false));
    assert_int_equal(mval_i64(mval_get(map, "num_generations"), 0), 8);
    assert_true(mval_f64(mval_get(map, "clip_eps_low"), 0) == 0.2);
    char word[16];
    assert_string_equal(mval_text(map, "filter_range", word, sizeof word), "none");
    msg_in_release(&in);
    msg_release(&m);
    buf_release(&text);
}

static void the_words_for_true_and_false_are_the_same_everywhere(UNUSED void **state)
{
    static const char *const words[] = { "true", "yes", "on", "1", "TRUE", "false", "no", "off", "0", "False" };
    struct run_config c;
    struct command cmd;
    struct error err = { 0 };
    char line[64];
    run_config_init(&c);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        snprintf(line, sizeof line, "set eval_at_end=%s", words[i]);    // the console's prompt
        assert_true(command_parse(&cmd, line, &err));
        assert_true(run_config_set(&c, cmd.arg[0].key, cmd.arg[0].value, FROM_COMMAND, NULL, &err));    // the run
        assert_int_equal(c.eval_at_end, i < 5);
    }
    assert_false(command_parse(&cmd, "set eval_at_end=perhaps", &err));
    assert_non_null(strstr(err.text, "true or false"));
}

static void a_line_and_words_make_the_same_command(UNUSED void **state)
{
    static const struct {
        const char *line, *name, *word[3];
        int n;
        const char *key;
    } cases[] = {
        { "pause", "pause", { NULL }, 0, "depth" },
        { " pause  drain ", "pause", { "drain" }, 1, "depth" },
        { "pause depth=drain", "pause", { "drain" }, 1, "depth" },
        { "set learning_rate=1e-4 temperature=0.5", "set", { "learning_rate=1e-4", "temperature=0.5" }, 2, "learning_rate" },
        { "restart worker cpu:0", "restart", { "worker cpu:0" }, 1, "process" },
        { "dismiss far", "dismiss", { "far" }, 1, "node" },
        { "quarantine 30", "quarantine", { "line=30" }, 1, "line" },
        { "revert", "revert", { NULL }, 0, "" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct command a, b;
        struct error err = { 0 };
        if (!command_parse(&a, cases[i].line, &err) || !command_words_parse(&b, cases[i].name, cases[i].word, cases[i].n, &err))
            fail_msg("%s: %s", cases[i].line, err.text);
        assert_string_equal(a.arg[0].key, cases[i].key);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

static void words_that_are_not_a_command_are_refused_alike(UNUSED void **state)
{
    static const struct {
        const char *line, *name, *word[2];
        int n;
        const char *want;
    } cases[] = {
        { "quarantine 0", "quarantine", { "0" }, 1, "needs the number of a line" },
        { "quarantine", "quarantine", { NULL }, 0, "needs the number of a line" },
        { "quarantine 1 2", "quarantine", { "1", "2" }, 2, "takes no '2'" },
        { "restart", "restart", { NULL }, 0, "needs the name of a process" },
        { "pause deeply", "pause", { "deeply" }, 1, "it is one of step, rollouts, drain" },
        { "stop now", "stop", { "now" }, 1, "takes no 'now'" },
        { "set =1", "set", { "=1" }, 1, "NAME=VALUE" },
        { "pauze", "pauze", { NULL }, 0, "did you mean 'pause'" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct command c;
        struct error a = { 0 }, b = { 0 };
        assert_false(command_parse(&c, cases[i].line, &a));
        assert_false(command_words_parse(&c, cases[i].name, cases[i].word, cases[i].n, &b));
        assert_string_equal(a.text, b.text);
        assert_int_equal(a.code, ERR_USAGE);
        assert_non_null(strstr(a.text, cases[i].want));
    }
}

static void text_is_printed_as_json_dumps_prints_it(UNUSED void **state)
{
    static const struct {
        const char *text, *utf8, *ascii;
    } cases[] = {
        // Python 3: json.dumps(text, ensure_ascii=False), json.dumps(text)
        { "a\"b\\c", "\"a\\\"b\\\\c\"", "\"a\\\"b\\\\c\"" },
        { "\n\r\t\f\b\x01\x1f", "\"\\n\\r\\t\\f\\b\\u0001\\u001f\"", "\"\\n\\r\\t\\f\\b\\u0001\\u001f\"" },
        { "\x7f", "\"\x7f\"", "\"\\u007f\"" },
        { "\xc3\xa9\xe2\x82\xac", "\"\xc3\xa9\xe2\x82\xac\"", "\"\\u00e9\\u20ac\"" },
        { "\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\"", "\"\\ud83d\\ude00\"" },
        { "a\xff"
          "b\xc3",
          "\"a\xef\xbf\xbd"
          "b\xef\xbf\xbd\"",
          "\"a\\ufffdb\\ufffd\"" },    // not UTF-8
    };
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        buf_clear(&b);
        json_text_print(&b, cases[i].text, strlen(cases[i].text), JSON_TEXT_UTF8);
        assert_string_equal(buf_text(&b), cases[i].utf8);
        buf_clear(&b);
        json_text_print(&b, cases[i].text, strlen(cases[i].text), JSON_TEXT_ASCII);
        assert_string_equal(buf_text(&b), cases[i].ascii);
    }
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_reads_back_from_its_text_and_a_refused_one_changes_nothing),
        cmocka_unit_test(names_of_the_hub_are_no_paths_beside_the_run_file),
        cmocka_unit_test(every_setting_takes_the_text_of_its_default_and_goes_to_the_wire),
        cmocka_unit_test(the_words_for_true_and_false_are_the_same_everywhere),
        cmocka_unit_test(a_line_and_words_make_the_same_command),
        cmocka_unit_test(words_that_are_not_a_command_are_refused_alike),
        cmocka_unit_test(text_is_printed_as_json_dumps_prints_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
