/* terminal.h - the one place that knows ncurses: cells out, keys in, from a thread of its own
 *
 * A terminal that is not read (Ctrl-S, a dead ssh) blocks whoever writes to it, and no poll tells before. So a second thread
 * owns ncurses and standard input; the console's loop hands it whole frames through a mailbox of one (a newer frame replaces
 * one not drawn yet) and takes keys from a bounded queue. The loop never waits for the terminal. All functions here are the
 * loop thread's. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/tui/cells.h"
#include "console/tui/keys.h"
#include "console/tui/theme.h"
#include "protocol/base/error.h"

struct terminal_options {
    int color;    // -1: what the terminal has and NO_COLOR allows; else enum color_depth
    bool mouse;
    int escape_ms;    // how long an Esc waits for the rest of a key's sequence
};
struct terminal;
/* Take over standard input and output. ERR_UNSUPPORTED: no terminal, or a TERM that nobody knows or that cannot move its
 * cursor; the terminal is as it was. Signals must be blocked before (the thread inherits the mask). */
struct terminal *terminal_new(const struct terminal_options *options, const struct theme *theme, struct error *err);
/* Put the terminal back as it was. Waits up to 2 s for a stalled one, then leaves it its screen but restores its modes. */
void terminal_free(struct terminal *t);
enum color_depth terminal_depth(const struct terminal *t);
int terminal_fd(const struct terminal *t);                     // readable: keys wait, or the terminal has gone
bool terminal_key(struct terminal *t, struct key_event *k);    // false: no key waits
/* The text of the newest KEY_PASTE, cut after size - 1 bytes; line ends are '\n'. */
void terminal_paste(struct terminal *t, char *text, size_t size);
bool terminal_gone(const struct terminal *t);
void terminal_size(int *w, int *h);    // as the kernel has it now
/* Hand over a frame; its cells are exchanged with those of an older frame (any size, to be resized by the caller). */
void terminal_frame(struct terminal *t, struct cells *frame);
void terminal_redraw(struct terminal *t);     // at the next frame, from scratch
void terminal_suspend(struct terminal *t);    // give the terminal back, stop this process group, come back
void terminal_mouse(struct terminal *t, bool on);
void terminal_theme(struct terminal *t, const struct theme *theme);
