/* role.h - what a piece of the screen means; a theme says how it looks
 *
 * One table: theme files, their checks and the built-in looks for 8 colours and for none are made from it. Every role is also
 * recognisable without colour: states have a word or a sign next to them. */
#pragma once
#include <stdint.h>

enum role {
    ROLE_TEXT,
    ROLE_DIM,
    ROLE_TITLE,
    ROLE_BAR,
    ROLE_BAR_GAUGE,
    ROLE_BORDER,
    ROLE_FOCUS,
    ROLE_SELECT,
    ROLE_KEY,
    ROLE_INPUT,
    ROLE_MATCH,
    ROLE_OK,
    ROLE_WARN,
    ROLE_CRIT,
    ROLE_STALE,
    ROLE_PAUSED,
    ROLE_DANGER,
    ROLE_CHANGED,
    ROLE_CHART,
    ROLE_BAND,
    ROLE_AXIS,
    ROLE_MARK,
    ROLE_GAUGE,
    ROLE_GAUGE_REST,
    ROLE_SERIES1,
    ROLE_SERIES2,
    ROLE_SERIES3,
    ROLE_SERIES4,
    ROLE_SERIES5,
    ROLE_SERIES6,
    ROLE_SERIES7,
    ROLE_SERIES8,
    N_ROLE,
};
enum attr {
    ATTR_BOLD = 1,
    ATTR_DIM = 2,
    ATTR_UNDERLINE = 4,
    ATTR_REVERSE = 8,
};
#define COLOR_DEFAULT (-1)    // the terminal's own foreground or background

struct role_row {
    const char *name;    // in theme files
    int fg8, bg8;        // with 8 colours: 0..7 as in ECMA-48, or COLOR_DEFAULT
    unsigned attr8;      // with 8 colours
    unsigned attr0;      // without colours (NO_COLOR, vt100)
    const char *help;
};
extern const struct role_row role_table[N_ROLE];
