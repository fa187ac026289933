/* console_cmd.c - rollcall console */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "console/batch/watch.h"
#include "console/fleet/link.h"
#include "console/fleet/record.h"
#include "console/tui/console.h"
#include "console/tui/picker.h"
#include "console/tui/screen.h"
#include "console/tui/widget.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/subcommand.h"
#include "protocol/run/run_far.h"
#include "protocol/run/run_find.h"
#include "protocol/run/run_lock.h"

#define PLAIN_INTERVAL_S 30    // between two steps that are read out

/* how: the arguments that open the run again. What remains on the terminal after the screen has closed: the run's state and its results. */
static void farewell_print(const struct run_view *m, const char *how)
{
    char took[16];
    bool over = run_state_is_over(m->state);
    printf("%s: %s at step %" PRId64, m->name, run_state_name(m->state), m->step);
    if (m->max_steps > 0)
        printf(" of %" PRId64, m->max_steps);
    if (m->elapsed_s == m->elapsed_s)
        printf(" after %s", duration_format(took, m->elapsed_s));
    printf("%s%s\n", over && m->reason[0] ? ": " : "", over ? m->reason : "");
    for (int i = 0; i < m->n_eval; i++)
        printf("  %-12s %5.1f %% -> %5.1f %% of %" PRId64 " problems\n", m->eval[i].set, 100 * m->eval[i].first_mean, 100 * m->eval[i].mean,
               m->eval[i].n);
    if (!over && m->me[0] && strcmp(m->lock.holder, m->me) == 0)
        printf("  you still have the control of it, so others are refused; give it back with: rollcall ctl %s%s unlock\n",
               strncmp(how, "--", 2) == 0 ? "" : "--run ", how);
    if (!over)
        printf("  it continues; come back with: rollcall console %s\n", how);
}

/* A live run through its agent, another from its folder. */
static struct feed *feed_open(const char *run_dir, bool read_only, struct run_view *m, struct error *err)
{
    return run_is_live(run_dir) ? link_new(run_dir, read_only, m, clock_ns(), err) : record_new(run_dir, m, clock_ns(), err);
}

/* Open a run on the screen or print it line by line; the console's own end is never the run's. how: the arguments that open it again. */
static bool run_watch(const char *run_dir, const char *how, const char *with_dir, bool read_only, const struct console_options *o,
                      const struct batch_config *batch, const struct watch_options *watch, struct error *err)
{
    sigset_t set;
    screen_signals_block(&set, NULL);    // before the transport has threads
    struct run_view *m = view_new(err);
    if (!m)
        return false;
    struct console_options look = *o;
    bool ok = true;
    look.run_dir = run_dir;
    if (with_dir) {
        look.with_model = view_new(err);
        ok = look.with_model && (look.with_feed = feed_open(with_dir, false, look.with_model, err)) != NULL;
    }
    struct feed *feed = ok ? feed_open(run_dir, read_only, m, err) : NULL;
    ok = feed && (batch ? batch_watch(feed, m, batch, watch, err) : console_run(feed, m, &look, err));
    if (ok && !batch)
        farewell_print(m, how);
    if (feed)
        feed->free(feed);
    if (look.with_feed)
        look.with_feed->free(look.with_feed);
    fleet_model_free(look.with_model);
    fleet_model_free(m);
    return ok;
}

/* What the command line says, beside what belongs to screen, batch and watch. */
struct console_ask {
    const char *color, *glyphs, *format, *run, *runs_dir, *with, *far_address, *token_file;
    const char *again;    // the run once more, as an operand; NULL: it is not
    double interval_s;
    int64_t escape_ms;
    bool ascii, no_mouse, is_batch, read_only, pick;
};

/* Check what can be seen without a run, and settle screen and batch. */
static bool ask_settle(struct console_ask *a, struct console_options *o, struct batch_config *batch, const struct watch_options *watch,
                       struct error *err)
{
    if (!console_look_parse(o, a->color, a->glyphs, a->ascii, err) || !batch_format_parse(a->format, &batch->format, err))
        return false;
    if ((batch->fields && !batch_fields_check(batch->fields, err)) || (watch->until && !watch_until_check(watch->until, err)))
        return false;
    if (watch->plain && batch->format != BATCH_TEXT)
        return error_set(err, ERR_USAGE, "--plain prints sentences; it cannot be combined with --format jsonl");
    a->is_batch = a->is_batch || watch->plain;
    if (a->escape_ms < 1 || a->escape_ms > 5000)
        return error_set(err, ERR_USAGE, "--escape-ms must be 1 to 5000");
    if (a->run && a->again)
        return error_set(err, ERR_USAGE, "the run is given twice: '%.200s' and '%.200s'", a->run, a->again);
    if (a->again)
        a->run = a->again;
    if (a->far_address && (a->run || a->with || a->pick))
        return error_set(err, ERR_USAGE, "--connect names the run; it cannot be combined with a run's directory, --with or --pick");
    o->terminal.mouse = !a->no_mouse;
    o->terminal.escape_ms = (int)a->escape_ms;
    batch->interval_s = a->interval_s >= 0 ? a->interval_s : watch->plain ? PLAIN_INTERVAL_S : batch->format == BATCH_TEXT ? 1 : 0;
    return true;
}

/* Find the run's folder: the one that is given or the only live one, by the list, or of the run on another machine, which far opens. False
 * without an error: the list was left without a choice. */
static bool run_choose(const struct console_ask *a, struct console_options *o, struct run_far *far, char *run_dir, size_t size,
                       struct error *err)
{
    char picked[4096];
    struct error none = { 0 };
    bool screen = !a->is_batch && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    const char *given = a->run;
    if (a->far_address) {
        if (!run_far_open(far, a->far_address, a->token_file, err))
            return false;
        snprintf(run_dir, size, "%s", far->dir);
        return true;
    }
    if (a->pick || (!given && screen && !run_find(NULL, a->runs_dir, run_dir, size, &none))) {
        if (given || a->is_batch)
            return error_set(err, ERR_USAGE, "--pick cannot be combined with a run or --batch");
        if (!picker_run(a->runs_dir ? a->runs_dir : "runs", o, picked, sizeof(picked), err) || !picked[0])
            return false;
        given = picked;
    }
    return run_find(given, a->runs_dir, run_dir, size, err);
}

static bool console_cmd(int argc, char **argv, struct error *err)
{
    struct console_options o = { .terminal = { .mouse = true, .escape_ms = 25 } };
    struct batch_config batch = { .out = stdout };
    struct console_ask a = { .color = "auto", .glyphs = "auto", .format = "text", .interval_s = -1, .escape_ms = 25 };
    struct watch_options watch = { .from = -1 };
    const char *operand[1];
    struct cli_option options[] = {
        { NULL, NULL, CLI_HEADING, NULL, NULL, "which run" },
        { "run", NULL, CLI_STR, &a.run, "DIR", "the run's directory; default: the only live run, or a list to choose from" },
        { "pick", NULL, CLI_FLAG, &a.pick, NULL, "choose from the list even when one run is live" },
        { "runs-dir", NULL, CLI_STR, &a.runs_dir, "DIR", "folder in which to look for runs (runs)" },
        { "connect", NULL, CLI_STR, &a.far_address, "HOST:PORT", "a run on another machine, by the address at which nodes join it" },
        { "token-file", NULL, CLI_STR, &a.token_file, "FILE",
          "--connect: the run's token, a copy of its sock/join; default: the variable ROLLCALL_JOIN_TOKEN" },
        { "read-only", NULL, CLI_FLAG, &a.read_only, NULL,
          "only look; always on for users other than the run's owner (see the setting view_group)" },
        { "with", NULL, CLI_STR, &a.with, "RUN", "another run in the same charts, by its steps or by time (w changes it)" },
        { NULL, NULL, CLI_HEADING, NULL, NULL, "the screen" },
        { "theme", NULL, CLI_STR, &o.theme, "NAME|FILE", "colours: dark, light or a theme file" },
        { "color", NULL, CLI_STR, &a.color, "WHEN", "auto, never, 8, 256 or true; NO_COLOR=1 in the environment means never" },
        { "glyphs", NULL, CLI_STR, &a.glyphs, "KIND", "characters for charts: braille, block or ascii; auto" },
        { "ascii", NULL, CLI_FLAG, &a.ascii, NULL, "draw with ASCII only" },
        { "no-mouse", NULL, CLI_FLAG, &a.no_mouse, NULL, "leave the mouse to the terminal (m changes it)" },
        { "escape-ms", NULL, CLI_I64, &a.escape_ms, "MS", "how long to wait for the rest of a key after Esc (25; slow links 100)" },
        { NULL, NULL, CLI_HEADING, NULL, NULL, "without a screen" },
        { "plain", NULL, CLI_FLAG, &watch.plain, NULL,
          "for screen readers: news as lines, and what you type (status, workers, alarms, any command; help) is answered by lines" },
        { "batch", NULL, CLI_FLAG, &a.is_batch, NULL, "lines instead of a screen, until the run ends" },
        { "format", NULL, CLI_STR, &a.format, "FORMAT", "text or jsonl" },
        { "interval", NULL, CLI_F64, &a.interval_s, "SECONDS", "least time between two step lines (text 1, jsonl 0: every step)" },
        { "from", NULL, CLI_I64, &watch.from, "STEP", "first step to print (the newest; for a run that is over, the first)" },
        { "fields", NULL, CLI_STR, &batch.fields, "NAME,...", "only these metrics ('rollcall metrics'), such as metrics/reward,train/kl" },
        { "once", NULL, CLI_FLAG, &watch.once, NULL, "tell how the run stands now, and end" },
        { "until", NULL, CLI_STR, &watch.until, "EVENT",
          "end with exit 0 when it comes: step=N, alarm, alert, checkpoint, command, eval, knob, return, state" },
    };
    struct cli cli = {
        .command = "rollcall console",
        .about =
            "Shows a live run and lets you steer it, or shows what a finished run left on disk. Training never depends on a console; any\n"
            "number may be open.",
        .operands = "[RUN_DIR]",
        .options = options,
        .n_options = ARRAY_SIZE(options),
        .operand = operand,
        .max_operands = 1
    };
    char run_dir[4096], with_dir[4096];
    struct run_far far = { .top = "" };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    a.again = cli.n_operands > 0 ? operand[0] : NULL;
    if (!ask_settle(&a, &o, &batch, &watch, err))
        return false;
    if (!run_choose(&a, &o, &far, run_dir, sizeof(run_dir), err))
        return err->code == ERR_NONE;
    if (a.with && a.is_batch)
        return error_set(err, ERR_USAGE, "--with is for the screen; --batch shows one run");
    if (a.with && !run_find(a.with, a.runs_dir, with_dir, sizeof(with_dir), err))
        return false;
    const char *base = strrchr(run_dir, '/');
    batch.run = base ? base + 1 : run_dir;
    char how[4608];    // what opens the run again: its folder, or its address and token
    snprintf(how, sizeof how,
             a.far_address && a.token_file ? "--connect %.300s --token-file %.4000s"
             : a.far_address               ? "--connect %.300s"
                                           : "%s",
             a.far_address ? a.far_address : run_dir, a.token_file);
    bool ok = run_watch(run_dir, how, a.with ? with_dir : NULL, a.read_only, &o, a.is_batch ? &batch : NULL, &watch, err);
    run_far_close(&far);
    return ok;
}

const struct subcommand console_subcommand = { "console", console_cmd, "show a live run and steer it" };
