/* wandb_files_test.c - settings files of wandb's own client and the names of a run: what is read of them, and what is refused
 * tags: valgrind */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/settings/wandb_files.h"
#include "protocol/settings/wandb_who.h"

static void a_value_is_what_python_s_configparser_reads(UNUSED void **state)
{
    static const struct {
        const char *text, *want, *why;
    } cases[] = {
        { "[default]\nentity = team\n", "team", "as wandb init writes it" },
        { "[default]\nentity=team", "team", "no blanks, no newline at the end" },
        { "[default]\r\nentity : team \t\r\n", "team", "a colon, carriage returns" },
        { "# x\n; y\n\n[default]\n\n  # indented\nENTITY = Team\n", "Team", "comments, empty lines; keys have no case" },
        { "[default]\nentity = a = b:c # d\n", "a = b:c # d", "only the first sign parts; a comment is a line of its own" },
        { "[default]\nentity = first\n[other]\nentity = no\n[default]\nentity = last\n", "last", "the section may come twice" },
        { "[other]\nentity = no\n", NULL, "another section" },
        { "[Default]\nentity = no\n", NULL, "sections have case" },
        { "[default]\nentity =\n", NULL, "empty: as if it were not there" },
        { "[default]\nentity_of = no\nentit = no\n", NULL, "longer and shorter keys" },
        { "", NULL, "an empty file" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        char value[64] = "";
        if (!wandb_settings_check(cases[i].text, "f", &err))
            fail_msg("%s: %s", cases[i].why, err.text);
        bool found = wandb_settings_value(cases[i].text, "entity", value, sizeof value);
        if (found != (cases[i].want != NULL) || (found && strcmp(value, cases[i].want) != 0))
            fail_msg("%s: '%s'", cases[i].why, value);
    }
}

static void what_is_not_a_settings_file_is_refused_by_line(UNUSED void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "entity = team\n", "f:1: 'entity = team'" },    // no section yet
        { "[default]\nentity\n", "f:2: 'entity'" },
        { "[default]\n= team\n", "f:2: '= team'" },
        { "[default\nentity = team\n", "f:1: '[default'" },
        { "[default]\nnotes = a\n and more\n", "f:3: ' and more'" },    // a value of two lines
        { "[", "f:1: '['" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        assert_false(wandb_settings_check(cases[i].text, "f", &err));
        assert_int_equal(err.code, ERR_DATA);
        if (strncmp(err.text, cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("%s", err.text);
    }
}

static void every_cut_of_a_file_is_read_or_refused(UNUSED void **state)
{
    static const char text[] = "# c\r\n[default]\n entity\n[a]x\nbase_url: http://h \n]=[\n:\n\t\n[]\nentity=\xff\xfe";
    for (size_t from = 0; from < sizeof text; from++)
        for (size_t n = 0; from + n < sizeof text; n++) {
            struct error err = { 0 };
            char *cut = malloc(n + 1), value[4];    // of its very size: a step too far is seen by valgrind
            memcpy(cut, text + from, n);
            cut[n] = 0;
            if (!wandb_settings_check(cut, "f", &err))
                assert_non_null(strstr(err.text, "is not a line"));
            if (wandb_settings_value(cut, "base_url", value, sizeof value))
                assert_true(strlen(value) > 0);
            free(cut);
        }
}

#define TIMES_8(x) x x x x x x x x
#define LONG_64 TIMES_8("12345678")

/* wandb.init of wandb 0.28 raises UsageError for these; a name that is cut or replaced would be another run's. */
static void names_that_wandb_refuses_are_refused_at_the_start(UNUSED void **state)
{
    static const struct {
        const char *project, *variable, *value, *says;    // says NULL: taken
    } cases[] = {
        { "gsm8k/qwen", NULL, NULL, "'gsm8k/qwen' (project) holds '/'" },
        { "a\\b", NULL, NULL, "holds '\\'" },
        { "a#b", NULL, NULL, "holds '#'" },
        { "a?", NULL, NULL, "holds '?'" },
        { "50%", NULL, NULL, "holds '%'" },
        { "qwen:0.5b", NULL, NULL, "holds ':'" },
        { LONG_64 LONG_64 "x", NULL, NULL, "longer than the 128 characters" },
        { LONG_64 LONG_64, NULL, NULL, NULL },
        { LONG_64 LONG_64 "\xcc\x88", NULL, NULL, "longer than the 128 characters" },
        { TIMES_8(TIMES_8("\xc3\xbc\xc3\xbc")), NULL, NULL, NULL },    // 128 characters, 256 bytes
        { "a project of mine", NULL, NULL, NULL },
        { "GRPO", "WANDB_PROJECT", "team/project", "'team/project' (WANDB_PROJECT) holds '/'" },
        { "mine", "WANDB_PROJECT", "team/project", NULL },    // not used
        { "GRPO", "WANDB_RUN_ID", LONG_64, NULL },
        { "GRPO", "WANDB_RUN_ID", LONG_64 "9", "'WANDB_RUN_ID' is longer than 64 bytes" },
        { "GRPO", "WANDB_RUN_ID", "a/b", "WANDB_RUN_ID is 'a/b'" },
        { "GRPO", "WANDB_RUN_ID", " a", "WANDB_RUN_ID is ' a'" },
        { "GRPO", "WANDB_RUN_ID", "a ", "WANDB_RUN_ID is 'a '" },
        { "GRPO", "WANDB_RESUME", "maybe", "WANDB_RESUME is 'maybe'" },
        { "GRPO", "WANDB_RESUME", "must", NULL },
        { "GRPO", "WANDB_TAGS", LONG_64 LONG_64 LONG_64 LONG_64, "'WANDB_TAGS' is longer than 255 bytes" },
        { "GRPO", "WANDB_NAME", LONG_64 LONG_64 "x", "'WANDB_NAME' is longer than 128 bytes" },
        { "GRPO", "WANDB_BASE_URL", "wandb.mine", "must begin with http" },
        { "GRPO", "WANDB_BASE_URL", "http://wandb.mine//", NULL },
    };
    static const char *const variables[] = {
        "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_TAGS", "WANDB_NAME", "WANDB_BASE_URL"
    };
    setenv("WANDB_CONFIG_DIR", "/nowhere", 1);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        static struct run_config c;
        struct error err = { 0 };
        for (size_t v = 0; v < ARRAY_SIZE(variables); v++)
            unsetenv(variables[v]);
        if (cases[i].variable)
            setenv(cases[i].variable, cases[i].value, 1);
        run_config_init(&c);
        assert_true(run_config_set(&c, "project", cases[i].project, FROM_FILE, NULL, &err));
        assert_true(wandb_who_check(&c, true, &err));    // wandb is off
        assert_true(run_config_set(&c, "wandb", "offline", FROM_FILE, NULL, &err));
        bool ok = wandb_who_check(&c, true, &err);
        if (ok != !cases[i].says || (!ok && (err.code != ERR_USAGE || !strstr(err.text, cases[i].says))))
            fail_msg("case %zu: %s", i, ok ? "taken" : err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_what_python_s_configparser_reads),
        cmocka_unit_test(what_is_not_a_settings_file_is_refused_by_line),
        cmocka_unit_test(every_cut_of_a_file_is_read_or_refused),
        cmocka_unit_test(names_that_wandb_refuses_are_refused_at_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
