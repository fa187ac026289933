/* terminal_test.c - the console on a real terminal: sizes, colours, character sets, keys, signals, and a terminal that is lost
 *
 * Waits on conditions with generous limits; nothing here fails because a machine is slow. Needs environment ROLLCALL. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>
#include "protocol/base/macros.h"
#include "tests/tui/pty.h"

#define LIMIT 60
#define STORM_COLS 120
#define STORM_ROWS 50

static void simulate_start(struct pty *p, int cols, int rows, const char *const *env, const char *option, const char *value)
{
    char *argv[] = { getenv("ROLLCALL"), "simulate", "--seed", "3", (char *)option, (char *)value, NULL };
    assert_non_null(argv[0]);
    assert_true(pty_start(p, cols, rows, env, argv));
}

static void must_show(struct pty *p, const char *text)
{
    if (!pty_wait(p, text, LIMIT)) {
        pty_print(p);
        fail_msg("'%s' does not come on the screen", text);
    }
}

static void quit(struct pty *p)
{
    pty_type(p, "q");
    assert_int_equal(pty_finish(p, LIMIT, false), 0);
}

static void every_size_shows_a_screen_and_resizing_follows(UNUSED void **state)
{
    struct pty p;
    simulate_start(&p, 80, 24, NULL, NULL, NULL);
    must_show(&p, "RUNNING");
    must_show(&p, "? help");
    static const int sizes[][2] = { { 160, 50 }, { 40, 10 }, { 39, 9 }, { 1, 1 }, { 300, 2 }, { 2, 100 }, { 80, 24 } };
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        pty_resize(&p, sizes[i][0], sizes[i][1]);
        if (sizes[i][0] >= 40 && sizes[i][1] >= 10)
            must_show(&p, "? help");
        else if (sizes[i][0] >= 20)
            must_show(&p, "RUNNING");
        else
            must_show(&p, "R");
        if (sizes[i][0] == 39)
            assert_true(pty_wait_gone(&p, "help", LIMIT));
    }
    quit(&p);
}

static void every_pane_fits_a_terminal_of_every_size(UNUSED void **state)
{
    static const int sizes[][2] = { { 40, 10 }, { 60, 15 }, { 80, 24 }, { 120, 36 }, { 200, 60 } };
    static const struct {
        char key;
        const char *name, *shows;
    } panes[] = {
        { '2', "Workers", "worker cpu" }, { '3', "Rollouts", "samples" },  { '9', "Metrics", "entropy" },
        { 'D', "Data", "no folder" },     { 'V', "Devices", "no folder" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct pty p;
        simulate_start(&p, sizes[i][0], sizes[i][1], NULL, NULL, NULL);
        must_show(&p, "? help");
        for (size_t k = 0; k < ARRAY_SIZE(panes); k++) {
            pty_send(&p, &panes[k].key, 1);
            must_show(&p, panes[k].name);
            if (panes[k].key == '9')
                pty_send(&p, "/entropy\r", 9);
            must_show(&p, panes[k].shows);
            must_show(&p, "? help");    // the row of keys is whole
        }
        quit(&p);
    }
}

/* Which kinds of colour the screen uses; libvterm gives 256 colours as RGB, so it is asked for the bytes instead. */
static void colours_drawn(const char *const *env, const char *option, const char *value, bool *has_8, bool *has_256)
{
    struct pty p;
    char bytes[200000];
    size_t n = 0;
    simulate_start(&p, 100, 30, env, option, value);
    for (int i = 0; i < 600 && n < sizeof(bytes) - 1; i++) {    // the first frames, unparsed
        struct pollfd fd = { .fd = p.master, .events = POLLIN };
        poll(&fd, 1, 100);
        ssize_t got = read(p.master, bytes + n, sizeof(bytes) - 1 - n);
        if (got > 0) {
            n += (size_t)got;
            bytes[n] = 0;
            if (memmem(bytes, n, "help", 4))
                break;
        }
    }
    assert_non_null(memmem(bytes, n, "help", 4));
    *has_256 = memmem(bytes, n, "38;5;", 5) || memmem(bytes, n, "38:5:", 5);
    *has_8 = false;
    for (char digit = '1'; digit <= '7'; digit++) {
        char a[8], b[8];
        snprintf(a, sizeof(a), "[3%cm", digit);
        snprintf(b, sizeof(b), ";3%cm", digit);
        *has_8 |= memmem(bytes, n, a, strlen(a)) || memmem(bytes, n, b, strlen(b));
    }
    quit(&p);
}

static void colours_are_those_the_terminal_has_and_the_user_wants(UNUSED void **state)
{
    static const struct {
        const char *env[3], *option, *value;
        bool any, many;
    } cases[] = {
        { { NULL }, NULL, NULL, true, true },
        { { "TERM=xterm", NULL }, NULL, NULL, true, false },
        { { "NO_COLOR=1", NULL }, NULL, NULL, false, false },
        { { "NO_COLOR=", NULL }, NULL, NULL, true, true },           // empty means nothing, no-color.org
        { { "NO_COLOR=1", NULL }, "--color", "256", true, true },    // the option is nearer than the environment
        { { NULL }, "--color", "8", true, false },
        { { NULL }, "--color", "never", false, false },
        { { "TERM=vt100", NULL }, NULL, NULL, false, false },
        { { "COLORFGBG=0;15", NULL }, NULL, NULL, true, true },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bool has_8, has_256;
        colours_drawn(cases[i].env, cases[i].option, cases[i].value, &has_8, &has_256);
        if (has_256 != cases[i].many || (has_8 || has_256) != cases[i].any)
            fail_msg("case %zu: 8 colours %d, 256 colours %d", i, has_8, has_256);
    }
}

static void without_utf8_everything_is_ascii(UNUSED void **state)
{
    struct pty p;
    const char *env[] = { "LC_ALL=C", NULL };
    simulate_start(&p, 100, 30, env, NULL, NULL);
    must_show(&p, "? help");
    must_show(&p, "+- reward");
    for (const char *pane = "123456"; *pane; pane++) {
        pty_send(&p, pane, 1);
        pty_read(&p, 300, 0);
        for (int y = 0; y < p.rows; y++)
            for (const char *c = pty_row(&p, y); *c; c++)
                assert_true(*c >= 0x20 && *c < 0x7f);
    }
    quit(&p);
    simulate_start(&p, 100, 30, NULL, "--glyphs", "block");
    must_show(&p, "\u2588");
    quit(&p);
}

static VTermColor bar_ground(struct pty *p)
{
    VTermScreenCell cell;
    assert_true(vterm_screen_get_cell(p->screen, (VTermPos){ .row = 0, .col = 0 }, &cell));
    return cell.bg;
}

static bool wait_recoloured(struct pty *p, VTermColor before)
{
    bool same = true;
    for (int i = 0; i < LIMIT * 10 && same && !p->ended; i++) {
        pty_read(p, 100, 0);
        VTermColor now = bar_ground(p);
        same = vterm_color_is_equal(&before, &now);
    }
    return !same;
}

static void keys_reach_panes_prompts_and_dialogs(UNUSED void **state)
{
    struct pty p;
    simulate_start(&p, 200, 30, NULL, NULL, NULL);    // all tabs have their names, beside a note too
    must_show(&p, "? help");
    // clang-format off
    static const struct { const char *keys, *shows; } story[] = {
        { "2", "processes and devices" }, { "\t", "newest groups" }, { "\r", "boxed" }, { "\x1b", "newest groups" },
        { "4", "learning_rate" }, { "/temp\r", "temperature" }, { "\r\x15" "0.8\r", "Change this knob?" }, { "y", "takes effect at step" },
        { "5", "controller" }, { "6", "simulated" }, { "\x1b[Z", "log" }, { "?", "Keys and commands" }, { "\x1b", "Overview" },
        { ":pause step\r", "PAUSED (step)" }, { "r", "RUNNING" }, { "S", "Stop the run?" }, { "\x03", "Overview" },
        { "\x1b[A\x1b[B\x1b[5~\x1b[6~\x1bOP", "Keys and commands" }, { "q", "Overview" }, { "1\r", "metrics/reward" }, { "\x1b[D", "Left/Right move" },
        { "\x1bOC\x1b", "processes" }, { "m", "mouse off" }, { "T", NULL }, { "\x0c", "Overview" }, { " ", "FROZEN" }, { " ", "RUNNING" },
        { "\x1b[<0;18;2M", "Overview" }, { "\x03", "Quit this console?" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(story); i++) {
        VTermColor before = bar_ground(&p);
        pty_type(&p, story[i].keys);
        if (story[i].shows)
            must_show(&p, story[i].shows);
        else    // another theme, which stays; its name is only told until there is other news
            assert_true(wait_recoloured(&p, before));
    }
    pty_type(&p, "y");
    assert_int_equal(pty_finish(&p, LIMIT, false), 0);
}

/* Bracketed paste: what a terminal (or tmux paste-buffer -p) puts between the marks is a text, whatever keys it holds. */
static void a_paste_into_any_pane_changes_nothing(UNUSED void **state)
{
    struct pty p;
    simulate_start(&p, 100, 30, NULL, NULL, NULL);
    must_show(&p, "RUNNING");
    for (const char *pane = "123456"; *pane; pane++) {
        char keys[3000] = { *pane, 0 };
        strcat(keys, "\x1b[200~");
        while (strlen(keys) < 2000)
            strcat(keys, "Stop it, please: y\r:stop\ryq ");
        strcat(keys, "\x1b[201~");
        pty_type(&p, keys);
        must_show(&p, "was dropped");
        must_show(&p, "RUNNING");
        pty_type(&p, "/it ends here");
        must_show(&p, "/it ends here");
        pty_type(&p, "\x1b");
    }
    pty_type(&p, "\x1b[200~Stop");    // an end that never comes: keys are keys again after a while
    pty_read(&p, 2200, 0);
    pty_type(&p, "?");
    must_show(&p, "Keys and commands");
    pty_type(&p, "q");
    quit(&p);
}

static void signals_end_it_with_the_terminal_as_it_was(UNUSED void **state)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGHUP };
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
        struct pty p;
        struct termios before, after;
        simulate_start(&p, 80, 24, NULL, NULL, NULL);
        assert_int_equal(tcgetattr(p.master, &before), 0);
        must_show(&p, "RUNNING");
        kill(p.pid, signals[i]);
        pid_t pid = p.pid;
        (void)pid;
        for (int k = 0; k < LIMIT * 10 && pty_shows(&p, "RUNNING"); k++)    // the other screen is gone
            pty_read(&p, 100, 0);
        assert_false(pty_shows(&p, "RUNNING"));
        assert_int_equal(tcgetattr(p.master, &after), 0);
        assert_int_equal(after.c_lflag & (ICANON | ECHO | ISIG), before.c_lflag & (ICANON | ECHO | ISIG));
        assert_int_equal(pty_finish(&p, LIMIT, false), 0);
    }
}

static void a_crash_leaves_a_usable_terminal(UNUSED void **state)
{
    struct pty p;
    struct termios before, after;
    const char *variant = getenv("RC_VARIANT");
    if (variant && strcmp(variant, "release") != 0)
        skip();    // a sanitizer keeps its own handlers
    simulate_start(&p, 80, 24, NULL, NULL, NULL);
    assert_int_equal(tcgetattr(p.master, &before), 0);
    must_show(&p, "RUNNING");
    kill(p.pid, SIGSEGV);
    assert_true(pty_wait_gone(&p, "RUNNING", LIMIT));
    assert_int_equal(tcgetattr(p.master, &after), 0);
    assert_int_equal(after.c_lflag & (ICANON | ECHO | ISIG), before.c_lflag & (ICANON | ECHO | ISIG));
    assert_int_equal(pty_finish(&p, LIMIT, false), 128 + SIGSEGV);
}

static void a_lost_terminal_ends_the_console_even_without_a_hangup_signal(UNUSED void **state)
{
    struct pty p;
    char line[600];
    snprintf(line, sizeof(line), "trap '' HUP; exec '%s' simulate", getenv("ROLLCALL"));
    char *argv[] = { "/bin/sh", "-c", line, NULL };
    assert_true(pty_start(&p, 80, 24, NULL, argv));
    must_show(&p, "RUNNING");
    assert_true(pty_finish(&p, LIMIT, true) >= 0);    // -1: it had to be killed
}

static void what_cannot_be_a_screen_is_refused_in_one_sentence(UNUSED void **state)
{
    static const struct {
        const char *env[2], *option, *value, *want;
        int status;
    } cases[] = {
        { { "TERM=dumb", NULL }, NULL, NULL, "use --batch", 1 },
        { { "TERM=nosuchterm", NULL }, NULL, NULL, "is not known here", 1 },
        { { NULL }, "--theme", "nosuch", "there is no theme 'nosuch'", 1 },
        { { NULL }, "--color", "16", "--color does not know '16'", 2 },
        { { NULL }, "--done", "-3", "--done is -3", 2 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct pty p;
        simulate_start(&p, 120, 24, cases[i].env, cases[i].option, cases[i].value);
        must_show(&p, cases[i].want);
        assert_int_equal(pty_finish(&p, LIMIT, false), cases[i].status);
    }
}

/* Nothing reads the terminal; the console must keep working: it answers SIGTERM, which its loop thread handles. */
static void a_terminal_nobody_reads_does_not_stall_the_loop(UNUSED void **state)
{
    struct pty p;
    simulate_start(&p, 200, 60, NULL, "--step-seconds", "0.02");
    must_show(&p, "RUNNING");
    for (int i = 0; i < 40; i++) {    // fill the terminal's buffer: whole screens, unread
        if (write(p.master,
                  "2\x0c"
                  "1\x0c",
                  4)
            < 0) {
            /* full in the other direction too: enough */
        }
        poll(NULL, 0, 25);
    }
    kill(p.pid, SIGTERM);
    char line[16];
    int status = -1;
    for (int i = 0; i < LIMIT * 10 && status < 0; i++) {    // still unread
        struct pollfd none = { .fd = -1 };
        poll(&none, 1, 100);
        snprintf(line, sizeof(line), "%d", (int)p.pid);
        char path[64], stat[64] = "";
        snprintf(path, sizeof(path), "/proc/%s/stat", line);
        FILE *f = fopen(path, "re");
        char kind = 0;
        if (!f || (fscanf(f, "%*d %63s %c", stat, &kind) == 2 && kind == 'Z'))
            status = 0;
        if (f)
            fclose(f);
    }
    assert_int_equal(status, 0);
    assert_int_equal(pty_finish(&p, LIMIT, false), 0);
}

/* Afterwards the help page is, cell by cell, that of a console which saw no storm. The bar above it has a clock, and the keys
 * below it depend on how far the run has come. */
static void a_storm_of_resizes_and_keys_leaves_a_right_screen(UNUSED void **state)
{
    struct pty p, quiet;
    simulate_start(&p, STORM_COLS, STORM_ROWS, NULL, "--step-seconds", "0.05");
    must_show(&p, "RUNNING");
    p.fixed = true;    // what is drawn for other sizes falls where it may
    srand(5);
    int rounds = getenv("LONG") ? 20000 : 400;
    for (int i = 0; i < rounds && !p.ended; i++) {
        static const char *const bits[] = { "\x1b[A",
                                            "\x1b[B",
                                            "\x1b[<64;10;5M",
                                            "\x1b[200~x\x1b[201~",
                                            "\xe4\xb8",
                                            "\xf0\x9f\x98\x80",
                                            "?",
                                            ":",
                                            "/",
                                            "\t",
                                            "\r",
                                            "\x1b",
                                            "2",
                                            "3",
                                            "4",
                                            "5",
                                            "1",
                                            "\x1b\x1b\x1b[",
                                            "j",
                                            "G",
                                            "\x0c",
                                            " ",
                                            "+",
                                            "p",
                                            "n",
                                            "\x1b[M !!" };
        if (rand() % 3 == 0)
            pty_resize(&p, 1 + rand() % (rand() % 4 ? STORM_COLS : 3), 1 + rand() % (rand() % 4 ? STORM_ROWS : 3));
        else
            pty_type(&p, bits[rand() % ARRAY_SIZE(bits)]);
        pty_read(&p, 2, 0);
    }
    assert_false(p.ended);
    pty_resize(&p, STORM_COLS, STORM_ROWS);
    pty_type(&p, "\x1b\x1b\x1b\x1b\x1b\x1b\x1b\x1b"
                 "1?");    // whatever is open is closed
    simulate_start(&quiet, STORM_COLS, STORM_ROWS, NULL, NULL, NULL);
    must_show(&quiet, "RUNNING");
    pty_type(&quiet, "1?");
    must_show(&quiet, "Keys and commands");
    int row = 0;
    for (int i = 0; i < LIMIT * 10 && (row = pty_row_differs(&p, &quiet, 1, STORM_ROWS - 1)) >= 0; i++) {
        pty_read(&p, 50, 0);
        pty_read(&quiet, 50, 0);
    }
    if (row >= 0) {
        pty_print(&p);
        pty_print(&quiet);
        fail_msg("row %d is not as a console draws it that saw no storm", row);
    }
    kill(p.pid, SIGTERM);
    assert_int_equal(pty_finish(&p, LIMIT, false), 0);
    kill(quiet.pid, SIGTERM);
    assert_int_equal(pty_finish(&quiet, LIMIT, false), 0);
}

static void a_suspended_console_comes_back(UNUSED void **state)
{
    struct pty p;
    struct termios before, after;
    char line[600];
    /* a shell with job control: Ctrl-Z stops the job, the shell goes on and waits for Enter, fg brings the job back */
    snprintf(line, sizeof(line), "set -m; '%s' simulate; echo shell-is-back; read -r; fg; echo all-over", getenv("ROLLCALL"));
    char *argv[] = { "/bin/bash", "-c", line, NULL };
    assert_true(pty_start(&p, 80, 24, NULL, argv));
    assert_int_equal(tcgetattr(p.master, &before), 0);
    must_show(&p, "RUNNING");
    pty_type(&p, "\x1a");
    must_show(&p, "shell-is-back");
    assert_false(pty_shows(&p, "RUNNING"));    // the shell has its own screen again, and its modes
    assert_int_equal(tcgetattr(p.master, &after), 0);
    assert_int_equal(after.c_lflag & (ICANON | ECHO | ISIG), before.c_lflag & (ICANON | ECHO | ISIG));
    pty_type(&p, "\r");
    must_show(&p, "RUNNING");
    pty_type(&p, "2");
    must_show(&p, "processes and devices");
    pty_type(&p, "q");
    must_show(&p, "all-over");
    assert_int_equal(pty_finish(&p, LIMIT, false), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_shows_a_screen_and_resizing_follows),
        cmocka_unit_test(every_pane_fits_a_terminal_of_every_size),
        cmocka_unit_test(colours_are_those_the_terminal_has_and_the_user_wants),
        cmocka_unit_test(without_utf8_everything_is_ascii),
        cmocka_unit_test(keys_reach_panes_prompts_and_dialogs),
        cmocka_unit_test(a_paste_into_any_pane_changes_nothing),
        cmocka_unit_test(signals_end_it_with_the_terminal_as_it_was),
        cmocka_unit_test(a_crash_leaves_a_usable_terminal),
        cmocka_unit_test(a_lost_terminal_ends_the_console_even_without_a_hangup_signal),
        cmocka_unit_test(what_cannot_be_a_screen_is_refused_in_one_sentence),
        cmocka_unit_test(a_terminal_nobody_reads_does_not_stall_the_loop),
        cmocka_unit_test(a_storm_of_resizes_and_keys_leaves_a_right_screen),
        cmocka_unit_test(a_suspended_console_comes_back),
    };
    if (!getenv("ROLLCALL")) {
        fprintf(stderr, "set ROLLCALL to the program to test\n");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
