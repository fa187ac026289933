/* theme.h - how each role looks: a theme file, and its fallback on simpler terminals
 *
 * A theme file (themes/NAME.theme) has one line per role: role = #RRGGBB [on #RRGGBB] [bold] [dim] [underline] [reverse]
 * "default" means the terminal's own colour; a line that starts with '#' is a comment; "kind = dark" or "kind = light" says for
 * which terminals the theme is. Other roles keep their built-in look. With true colour the values are sent as they are, with 256
 * colours the nearest of the fixed palette is used, with 8 the role table's colour, and without colours only attributes. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/tui/role.h"
#include "protocol/base/error.h"

struct style {
    int32_t fg, bg;    // 0xRRGGBB or COLOR_DEFAULT
    unsigned attr;
    bool set;    // set by the file
};
struct theme {
    char name[64];
    bool light;    // made for a light background
    struct style style[N_ROLE];
};
enum color_depth {
    DEPTH_NONE,
    DEPTH_8,
    DEPTH_256,
    DEPTH_TRUE,
};
struct look {          // a style as one terminal can show it
    int32_t fg, bg;    // DEPTH_TRUE: 0xRRGGBB (0..7: the palette's own); else a palette index; COLOR_DEFAULT
    unsigned attr;
};
/* The built-in looks only. */
void theme_init(struct theme *t);
/* Read a theme's text; path is for messages (file, line). On failure t is not to be used. */
MUST_USE bool theme_parse(struct theme *t, const char *text, const char *path, struct error *err);
/* Find and read a theme: a path when the name holds '/', else NAME.theme in $XDG_CONFIG_HOME/rollcall/themes (or
 * ~/.config/...) and in the program's data folders. ERR_NOT_FOUND lists the places searched. */
MUST_USE bool theme_load(struct theme *t, const char *name, struct error *err);
struct look theme_look(const struct theme *t, enum role role, bool selected, enum color_depth depth);
/* The index in the xterm palette of 256 (16..255, the fixed part) nearest to 0xRRGGBB. */
int color_256(int32_t rgb);
