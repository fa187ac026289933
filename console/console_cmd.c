/* console_cmd.c - rollcall console and rollcall simulate */
#include <stdio.h>
#include <string.h>
#include "console/commands.h"
#include "console/fleet/simulate.h"
#include "console/tui/console.h"
#include "console/tui/widget.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"

/* Words for the options that choose one of a few. */
static bool word_find(const char *option, const char *word, const char *const *words, int n, int *out, struct error *err)
{
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], word) == 0) {
            *out = i;
            return true;
        }
    return error_set(err, ERR_USAGE, "--%s does not know '%.40s'", option, word);
}

static bool screen_options(struct console_options *o, const char *color, const char *glyphs, bool ascii, struct error *err)
{
    static const char *const depths[] = { [DEPTH_NONE] = "never", [DEPTH_8] = "8", [DEPTH_256] = "256", [DEPTH_TRUE] = "true" };
    static const char *const kinds[] = { [GLYPHS_BRAILLE] = "braille", [GLYPHS_BLOCK] = "block", [GLYPHS_ASCII] = "ascii" };
    o->terminal.color = -1;
    o->glyphs = ascii ? (int)GLYPHS_ASCII : -1;
    return (strcmp(color, "auto") == 0 || word_find("color", color, depths, 4, &o->terminal.color, err))
           && (strcmp(glyphs, "auto") == 0 || word_find("glyphs", glyphs, kinds, 3, &o->glyphs, err));
}

bool simulate_cmd(int argc, char **argv, struct error *err)
{
    struct simulate_options s = { .steps = 400, .done = 150, .step_s = 1, .workers = 2, .seed = 1 };
    struct console_options o = { .terminal = { .mouse = true, .escape_ms = 25 } };
    const char *color = "auto", *glyphs = "auto";
    bool ascii = false, no_mouse = false;
    int64_t seed = 1;
    struct cli_option options[] = {
        { "steps", NULL, CLI_I64, &s.steps, "N", "optimizer steps of the made-up run" },
        { "done", NULL, CLI_I64, &s.done, "N", "of them done at the start" },
        { "step-seconds", NULL, CLI_F64, &s.step_s, "S", "seconds a step takes" },
        { "workers", NULL, CLI_I64, &s.workers, "N", "devices" },
        { "stall-after", NULL, CLI_I64, &s.stall_after_s, "S", "the last worker hangs after S seconds" },
        { "seed", NULL, CLI_I64, &seed, "N", "another story" },
        { "theme", NULL, CLI_STR, &o.theme, "NAME|FILE", "colours: dark, light or a theme file" },
        { "color", NULL, CLI_STR, &color, "WHEN", "auto, never, 8, 256 or true" },
        { "glyphs", NULL, CLI_STR, &glyphs, "KIND", "charts of braille, block or ascii; auto" },
        { "ascii", NULL, CLI_FLAG, &ascii, NULL, "draw with ASCII only" },
        { "no-mouse", NULL, CLI_FLAG, &no_mouse, NULL, "leave the mouse to the terminal" },
    };
    struct cli cli = { .command = "rollcall simulate", .about = "Shows the console on a made-up run: every number is invented.",
                       .options = options, .n_options = ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (!screen_options(&o, color, glyphs, ascii, err))
        return false;
    if (s.steps < 1 || s.steps > 1000000 || s.done < 0 || s.done > s.steps || !(s.step_s >= 0.01 && s.step_s <= 3600) || s.workers < 1
        || s.workers > 200 || s.stall_after_s < 0)
        return error_set(err, ERR_USAGE, "steps (1 to 1000000), done (up to steps), step-seconds (0.01 to 3600) or workers (1 to 200) "
                         "is out of bounds");
    s.seed = (uint64_t)seed;
    o.terminal.mouse = !no_mouse;
    struct model *m = model_new(err);
    if (!m)
        return false;
    struct feed *feed = simulate_new(&s, m, clock_ns(), err);
    bool ok = feed && console_run(feed, m, &o, err);
    if (feed)
        feed->free(feed);
    fleet_model_free(m);
    return ok;
}
