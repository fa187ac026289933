/* screen.h - shared by all full-screen loops of the console: terminal, theme and glyphs, and signals as a descriptor
 *
 * Owned by the loop thread. */
#pragma once
#include <signal.h>
#include "console/tui/console.h"
#include "console/tui/theme.h"
#include "console/tui/widget.h"

struct screen {
    struct terminal *term;
    struct cells cells;    // cells of the next frame
    struct theme theme;
    enum chart_glyphs glyphs;
    bool ascii;
    int signal_fd;    // SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGCONT
    sigset_t before;
    char theme_note[256];    // why the default theme could not be loaded; "": it was loaded
};
enum screen_news {    // bits
    SCREEN_QUIT = 1,
    SCREEN_RESIZED = 2,
};
/* Block the signals that a screen's loop takes: set gets them, before (NULL is fine) what was blocked until then. Call it before any
 * other thread is started: threads inherit the mask, and a signal must reach only the loop's signalfd, and no thread that it would kill. */
void screen_signals_block(sigset_t *set, sigset_t *before);
/* Take over the terminal. On failure s holds nothing and the terminal is as it was. */
MUST_USE bool screen_open(struct screen *s, const struct console_options *options, struct error *err);
/* Give the terminal back; safe if it could not be opened. */
void screen_close(struct screen *s);
/* Draw s->cells on the terminal, in ASCII if it can show nothing else. */
void screen_draw(struct screen *s);
/* Which signals have arrived; SIGCONT redraws the screen from scratch. */
unsigned screen_signals(struct screen *s);
