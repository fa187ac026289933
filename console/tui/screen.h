/* screen.h - what every full-screen loop of the console needs: the terminal, its theme and glyphs, signals as a descriptor
 *
 * Owned by the loop thread. */
#pragma once
#include <signal.h>
#include "console/tui/console.h"
#include "console/tui/theme.h"
#include "console/tui/widget.h"

struct screen {
    struct terminal *term;
    struct cells cells;    // of the frame to be drawn next
    struct theme theme;
    enum chart_glyphs glyphs;
    bool ascii;
    int signal_fd;    // SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGCONT
    sigset_t before;
    char theme_note[256];    // why the theme that nobody asked for by name could not be had; "": it could
};
enum screen_news {    // bits
    SCREEN_QUIT = 1,
    SCREEN_RESIZED = 2,
};
/* Take over the terminal. On failure s holds nothing and the terminal is as it was. */
MUST_USE bool screen_open(struct screen *s, const struct console_options *options, struct error *err);
/* Give the terminal back; safe on one that could not be opened. */
void screen_close(struct screen *s);
/* Hand s->cells to the terminal, in ASCII where that is all it shows. */
void screen_draw(struct screen *s);
/* What signals have come; SIGCONT has the screen drawn from scratch. */
unsigned screen_signals(struct screen *s);
