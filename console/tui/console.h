/* console.h - the console's loop: a feed on one side, a terminal on the other, the application between
 *
 * Runs on the calling thread until the operator quits, a signal ends it or the terminal goes away. */
#pragma once
#include "console/fleet/feed.h"
#include "console/tui/terminal.h"
struct console_options {
    const char *run_dir;    // the run's folder, to look back in; NULL: it has none
    const char *theme;      // name or file; NULL: dark or light by $COLORFGBG
    int glyphs;             // -1: whatever locale and terminal can show; else enum chart_glyphs
    struct terminal_options terminal;
    struct feed *with_feed;    // of another run, shown in the charts of this one; NULL: none. Both stay the caller's
    struct run_view *with_model;
};
/* The words of --color and --glyphs, and --ascii. */
MUST_USE bool console_look_parse(struct console_options *o, const char *color, const char *glyphs, bool ascii, struct error *err);
/* Show m as feed fills it. True: the operator or a signal closed the console. ERR_CLOSED: the terminal is gone. */
MUST_USE bool console_run(struct feed *feed, struct run_view *m, const struct console_options *options, struct error *err);
