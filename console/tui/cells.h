/* cells.h - the screen as a grid of cells, and the few ways to write into it
 *
 * Widgets draw here and nowhere else; a back end puts the grid on a terminal, a test compares it. All writers clip: nothing outside
 * the grid (or the given width) is written, so no size is too small. Text may come from anywhere (model output, logs): control
 * bytes, broken UTF-8 and invisible formatting characters are shown as visible signs, never passed on. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "console/tui/role.h"
#include "protocol/base/error.h"

struct cell {
    uint32_t ch;         // code point; 0: the right half of the wide one before it
    uint32_t mark;       // a combining mark on it, or 0
    uint8_t role;        // enum role
    uint8_t attr;        // enum attr, besides the role's own
    uint8_t selected;    // 1: on the selected row; the background is ROLE_SELECT's
    uint8_t pad;         // 0, so that rows can be compared as bytes
};
struct cells {
    int w, h;
    struct cell *cell;         // (h, w); owned
    size_t cap;                // cells allocated
    int cursor_x, cursor_y;    // where the terminal's cursor belongs (the selected row, the prompt); -1: nowhere
};
struct rect {
    int x, y, w, h;    // w or h <= 0: empty
};
#define CELLS_MAX_SIDE 2000    // further columns and rows are not drawn

/* Give c the size (at least 1x1, at most CELLS_MAX_SIDE each way) and blank it. c starts zeroed. */
MUST_USE bool cells_resize(struct cells *c, int w, int h, struct error *err);
void cells_release(struct cells *c);
void cells_clear(struct cells *c);
/* Write one code point of any width (a wide one needs both cells). */
void cells_put(struct cells *c, int x, int y, uint32_t ch, enum role role);
/* Write text in at most w columns of row y; longer text ends in an ellipsis. Returns the columns written. */
int cells_text(struct cells *c, int x, int y, int w, const char *text, enum role role);
int cells_textn(struct cells *c, int x, int y, int w, const char *text, size_t len, enum role role);
int cells_fmt(struct cells *c, int x, int y, int w, enum role role, const char *fmt, ...) PRINTF_LIKE(6, 7);
/* As cells_text, ending at column x + w. */
void cells_text_right(struct cells *c, int x, int y, int w, const char *text, enum role role);
void cells_fill(struct cells *c, struct rect r, uint32_t ch, enum role role);
void cells_select(struct cells *c, struct rect r);                 // mark as the selected row
void cells_attr(struct cells *c, struct rect r, unsigned attr);    // add attributes
/* Draw a border around r with a title in its upper edge (NULL: none); returns the inner rectangle. */
struct rect cells_box(struct cells *c, struct rect r, const char *title, enum role border, enum role title_role);
/* Replace every non-ASCII character by the nearest ASCII one; braille and blocks become '#' or ':'. */
void cells_ascii(struct cells *c);
/* Row y as UTF-8 without trailing blanks, into out of size bytes. For tests and screen dumps. */
void cells_row(const struct cells *c, int y, char *out, size_t size);
