/* terminal.h - the only place that uses ncurses: cells out, keys in, on a separate thread
 *
 * A terminal that is not read (Ctrl-S, a dead ssh) blocks every writer, and poll gives no warning. So a second thread owns ncurses
 * and standard input; the console's loop passes it whole frames through a mailbox of one (a newer frame replaces one not drawn yet)
 * and takes keys from a bounded queue. The loop never waits for the terminal. The loop thread calls all functions here. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/tui/cells.h"
#include "console/tui/keys.h"
#include "console/tui/theme.h"
#include "protocol/base/error.h"

struct terminal_options {
    int color;    // -1: what the terminal supports and NO_COLOR allows; else enum color_depth
    bool mouse;
    int escape_ms;    // how long an Esc waits for the rest of a key's sequence
};
struct terminal;
/* Take over standard input and output. ERR_UNSUPPORTED: not a terminal, or its TERM is unknown or cannot move the cursor; the
 * terminal is unchanged. Signals must be blocked before (the thread inherits the mask). */
struct terminal *terminal_new(const struct terminal_options *options, const struct theme *theme, struct error *err);
/* Restore the terminal. Waits up to 2 s for a stalled one, then leaves its screen but restores its modes. */
void terminal_free(struct terminal *t);
enum color_depth terminal_depth(const struct terminal *t);
int terminal_fd(const struct terminal *t);                     // readable: keys are waiting, or the terminal is gone
bool terminal_key(struct terminal *t, struct key_event *k);    // false: no key is waiting
/* The text of the newest KEY_PASTE, cut after size - 1 bytes; line ends are '\n'. */
void terminal_paste(struct terminal *t, char *text, size_t size);
bool terminal_gone(const struct terminal *t);
void terminal_size(int *w, int *h);    // the kernel's current size
/* Pass a frame; its cells are swapped with those of an older frame (of any size; the caller resizes it). */
void terminal_frame(struct terminal *t, struct cells *frame);
void terminal_redraw(struct terminal *t);     // redraw from scratch at the next frame
void terminal_suspend(struct terminal *t);    // give the terminal back, stop this process group, come back
void terminal_bell(struct terminal *t);       // ring or flash, as the terminal does
void terminal_mouse(struct terminal *t, bool on);
void terminal_theme(struct terminal *t, const struct theme *theme);
