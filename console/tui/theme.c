/* theme.c - see theme.h */
#include "console/tui/theme.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/buf.h"
#include "protocol/base/data.h"
#include "protocol/base/file.h"

enum {
    BLACK,
    RED,
    GREEN,
    YELLOW,
    BLUE,
    MAGENTA,
    CYAN,
    WHITE,
};
#define D COLOR_DEFAULT
// clang-format off
const struct role_row role_table[N_ROLE] = {
    [ROLE_TEXT]       = { "text",       D,       D,      0,                          0,                "plain text" },
    [ROLE_DIM]        = { "dim",        D,       D,      ATTR_DIM,                   ATTR_DIM,         "less important" },
    [ROLE_TITLE]      = { "title",      CYAN,    D,      ATTR_BOLD,                  ATTR_BOLD,        "titles, headings" },
    [ROLE_BAR]        = { "bar",        D,       D,      ATTR_REVERSE,               ATTR_REVERSE,     "the bar on top" },
    [ROLE_BAR_GAUGE]  = { "bar_gauge",  D,       D,      ATTR_REVERSE,               ATTR_REVERSE,     "progress in the bar on top" },
    [ROLE_BORDER]     = { "border",     BLUE,    D,      0,                          0,                "lines around panes" },
    [ROLE_FOCUS]      = { "focus",      CYAN,    D,      ATTR_BOLD,                  ATTR_BOLD,        "lines around the part that gets the keys" },
    [ROLE_SELECT]     = { "select",     D,       D,      ATTR_REVERSE,               ATTR_REVERSE,     "the selected row" },
    [ROLE_KEY]        = { "key",        CYAN,    D,      ATTR_BOLD,                  ATTR_BOLD,        "keys in the footer" },
    [ROLE_INPUT]      = { "input",      D,       D,      ATTR_BOLD,                  ATTR_BOLD,        "what is being typed" },
    [ROLE_MATCH]      = { "match",      D,       D,      ATTR_REVERSE,               ATTR_UNDERLINE,   "what a filter matched" },
    [ROLE_OK]         = { "ok",         GREEN,   D,      0,                          0,                "as it should be" },
    [ROLE_WARN]       = { "warn",       YELLOW,  D,      ATTR_BOLD,                  ATTR_BOLD,        "slow, unusual" },
    [ROLE_CRIT]       = { "crit",       RED,     D,      ATTR_BOLD,                  ATTR_BOLD | ATTR_UNDERLINE, "stuck, failed" },
    [ROLE_STALE]      = { "stale",      MAGENTA, D,      0,                          ATTR_DIM,         "no recent news" },
    [ROLE_PAUSED]     = { "paused",     D,       YELLOW, ATTR_BOLD,                  ATTR_BOLD | ATTR_REVERSE, "the banner of a paused run" },
    [ROLE_DANGER]     = { "danger",     WHITE,   RED,    ATTR_BOLD,                  ATTR_BOLD | ATTR_REVERSE, "what cannot be undone" },
    [ROLE_CHANGED]    = { "changed",    YELLOW,  D,      0,                          ATTR_UNDERLINE,   "changed since the start" },
    [ROLE_CHART]      = { "chart",      GREEN,   D,      ATTR_BOLD,                  ATTR_BOLD,        "a chart's line" },
    [ROLE_BAND]       = { "band",       D,       D,      ATTR_DIM,                   ATTR_DIM,         "a chart's single values" },
    [ROLE_AXIS]       = { "axis",       D,       D,      ATTR_DIM,                   ATTR_DIM,         "a chart's axis" },
    [ROLE_MARK]       = { "mark",       YELLOW,  D,      0,                          ATTR_BOLD,        "a change marked on a chart" },
    [ROLE_GAUGE]      = { "gauge",      GREEN,   D,      ATTR_BOLD,                  0,                "the filled part of a bar" },
    [ROLE_GAUGE_REST] = { "gauge_rest", D,       D,      ATTR_DIM,                   ATTR_DIM,         "the rest of a bar" },
    [ROLE_SERIES1]    = { "series1",    GREEN,   D,      ATTR_BOLD,                  0,                "generate" },
    [ROLE_SERIES2]    = { "series2",    YELLOW,  D,      0,                          0,                "score" },
    [ROLE_SERIES3]    = { "series3",    CYAN,    D,      0,                          0,                "train" },
    [ROLE_SERIES4]    = { "series4",    MAGENTA, D,      0,                          0,                "publish" },
    [ROLE_SERIES5]    = { "series5",    BLUE,    D,      0,                          0,                "save" },
    [ROLE_SERIES6]    = { "series6",    WHITE,   D,      0,                          0,                "evaluate" },
    [ROLE_SERIES7]    = { "series7",    RED,     D,      0,                          0,                "load" },
    [ROLE_SERIES8]    = { "series8",    D,       D,      ATTR_DIM,                   ATTR_DIM,         "idle" },
};
// clang-format on
#undef D

void theme_init(struct theme *t)
{
    *t = (struct theme){ .name = "built-in" };
    for (int i = 0; i < N_ROLE; i++)
        t->style[i] = (struct style){ .fg = COLOR_DEFAULT, .bg = COLOR_DEFAULT };
}

static bool color_parse(const char *word, int32_t *rgb)
{
    if (strcmp(word, "default") == 0) {
        *rgb = COLOR_DEFAULT;
        return true;
    }
    if (word[0] != '#' || strlen(word) != 7 || strspn(word + 1, "0123456789abcdefABCDEF") != 6)
        return false;
    *rgb = (int32_t)strtol(word + 1, NULL, 16);
    return true;
}

static bool style_parse(struct style *s, char *words, const char *where, struct error *err)
{
    static const struct {
        const char *name;
        unsigned attr;
    } attrs[] = {
        { "bold", ATTR_BOLD },
        { "dim", ATTR_DIM },
        { "underline", ATTR_UNDERLINE },
        { "reverse", ATTR_REVERSE },
    };
    *s = (struct style){ .fg = COLOR_DEFAULT, .bg = COLOR_DEFAULT, .set = true };
    char *save = NULL;
    bool first = true;
    for (char *word = strtok_r(words, " \t", &save); word; word = strtok_r(NULL, " \t", &save), first = false) {
        if (strcmp(word, "on") == 0) {
            word = strtok_r(NULL, " \t", &save);
            if (!word || !color_parse(word, &s->bg))
                return error_set(err, ERR_DATA, "%s: 'on' needs a colour (#RRGGBB or default), not '%s'", where, word ? word : "");
            continue;
        }
        unsigned attr = 0;
        for (size_t i = 0; i < ARRAY_SIZE(attrs); i++)
            if (strcmp(word, attrs[i].name) == 0)
                attr = attrs[i].attr;
        s->attr |= attr;
        if (!attr && !(first && color_parse(word, &s->fg)))
            return error_set(err, ERR_DATA,
                             "%s: '%s' is neither a colour (#RRGGBB or default) nor bold, dim, "
                             "underline or reverse",
                             where, word);
    }
    if (first)
        return error_set(err, ERR_DATA, "%s: there is nothing after '='", where);
    return true;
}

/* Cut blanks off both ends; returns where the text starts. */
static char *line_trim(char *line)
{
    line += strspn(line, " \t");
    size_t n = strlen(line);
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r'))
        line[--n] = 0;
    return line;
}

static bool line_parse(struct theme *t, char *line, const char *where, struct error *err)
{
    char *eq = strchr(line, '=');
    if (!eq)
        return error_set(err, ERR_DATA, "%s: '%.40s' is not of the form: role = colour", where, line);
    *eq = 0;
    char *key = line_trim(line), *value = line_trim(eq + 1);
    if (strcmp(key, "kind") == 0) {
        if (strcmp(value, "light") != 0 && strcmp(value, "dark") != 0)
            return error_set(err, ERR_DATA, "%s: kind must be light or dark, not '%.40s'", where, value);
        t->light = strcmp(value, "light") == 0;
        return true;
    }
    for (int i = 0; i < N_ROLE; i++)
        if (strcmp(key, role_table[i].name) == 0)
            return style_parse(&t->style[i], value, where, err);
    return error_set(err, ERR_DATA, "%s: there is no role '%.40s'", where, key);
}

bool theme_parse(struct theme *t, const char *text, const char *path, struct error *err)
{
    theme_init(t);
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    snprintf(t->name, sizeof(t->name), "%.*s", (int)strcspn(base, "."), base);
    for (int line_no = 1; *text; line_no++) {
        size_t n = strcspn(text, "\n");
        char line[256], where[512];
        snprintf(where, sizeof(where), "%.400s:%d", path, line_no);
        if (n >= sizeof(line))
            return error_set(err, ERR_DATA, "%s: the line is longer than %zu bytes", where, sizeof(line) - 1);
        memcpy(line, text, n);
        line[n] = 0;
        char *trimmed = line_trim(line);
        if (trimmed[0] && trimmed[0] != '#' && !line_parse(t, trimmed, where, err))
            return false;
        text += n + (text[n] == '\n');
    }
    return true;
}

static bool theme_read(struct theme *t, const char *path, struct error *err)
{
    struct buf text = BUF_INIT;
    bool ok = file_read_text(&text, path, 64 << 10, err) && theme_parse(t, buf_text(&text), path, err);
    buf_release(&text);
    return ok;
}

bool theme_load(struct theme *t, const char *name, struct error *err)
{
    if (strchr(name, '/'))
        return theme_read(t, name, err);
    if (name[0] == 0 || name[0] == '.' || strlen(name) > 60)
        return error_set(err, ERR_USAGE, "'%.60s' is not a valid theme name", name);
    char path[1024], rel[128];
    const char *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME");
    if (config && config[0])
        snprintf(path, sizeof(path), "%s/rollcall/themes/%s.theme", config, name);
    else
        snprintf(path, sizeof(path), "%s/.config/rollcall/themes/%s.theme", home ? home : "", name);
    if (path_exists(path))
        return theme_read(t, path, err);
    snprintf(rel, sizeof(rel), "themes/%s.theme", name);
    char own[1024];
    if (data_path(own, sizeof(own), rel))
        return theme_read(t, own, err);
    return error_set(err, ERR_NOT_FOUND, "there is no theme '%s': neither '%s' nor '%s' exists", name, path, rel);
}

int color_256(int32_t rgb)
{
    static const int level[6] = { 0, 95, 135, 175, 215, 255 };    // xterm's colour cube, 16..231
    int best = 16, best_d = 1 << 30, want[3] = { rgb >> 16 & 255, rgb >> 8 & 255, rgb & 255 };
    for (int i = 16; i < 256; i++) {
        int have[3];
        for (int k = 0; k < 3; k++)
            have[k] = i >= 232 ? 8 + 10 * (i - 232) : level[(i - 16) / (k == 0 ? 36 : k == 1 ? 6 : 1) % 6];
        int d = 0;
        for (int k = 0; k < 3; k++)
            d += (have[k] - want[k]) * (have[k] - want[k]) * (k == 1 ? 4 : k == 0 ? 3 : 2);    // the eye sees green best
        if (d < best_d) {
            best = i;
            best_d = d;
        }
    }
    return best;
}

struct look theme_look(const struct theme *t, enum role role, bool selected, enum color_depth depth)
{
    const struct role_row *row = &role_table[role], *select = &role_table[ROLE_SELECT];
    const struct style *s = &t->style[role], *ss = &t->style[ROLE_SELECT];
    switch (depth) {
    case DEPTH_NONE: return (struct look){ COLOR_DEFAULT, COLOR_DEFAULT, row->attr0 | (selected ? select->attr0 : 0) };
    case DEPTH_8: return (struct look){ row->fg8, row->bg8, selected ? (row->attr8 & ~(unsigned)ATTR_DIM) | select->attr8 : row->attr8 };
    case DEPTH_256:
    case DEPTH_TRUE: break;
    }
    struct look look = { s->fg, s->bg, s->attr };
    if (!s->set)
        look = (struct look){ row->fg8, row->bg8, row->attr8 };
    else if (depth == DEPTH_256)
        look = (struct look){ s->fg < 0 ? s->fg : color_256(s->fg), s->bg < 0 ? s->bg : color_256(s->bg), s->attr };
    else if (depth == DEPTH_TRUE)
        look.attr = s->attr;
    if (selected && ss->set && ss->bg >= 0)
        look.bg = depth == DEPTH_256 ? color_256(ss->bg) : ss->bg;
    else if (selected)
        look.attr |= ATTR_REVERSE;
    return look;
}
