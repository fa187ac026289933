#include "protocol/settings/wandb_files.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "protocol/base/file.h"

#define BLANK " \t\r\v\f"

struct span {
    const char *at;
    size_t len;
};
enum line_kind {
    LINE_EMPTY,
    LINE_SECTION,
    LINE_PAIR,
    LINE_STRANGE,
};
struct line {
    enum line_kind kind;
    struct span name, value;    // for a section, its name; for a pair, key and value; without blanks at their ends
};

static struct span trimmed(const char *at, size_t len)
{
    size_t lead = MIN(strspn(at, BLANK), len);
    at += lead;
    len -= lead;
    while (len > 0 && strchr(BLANK, at[len - 1]))
        len--;
    return (struct span){ at, len };
}

/* Read a line and move *p past it. */
static struct line line_next(const char **p)
{
    size_t n = strcspn(*p, "\n");
    struct span all = trimmed(*p, n);
    bool indented = n > 0 && strchr(BLANK, **p);
    struct line line = { .kind = LINE_STRANGE };
    *p += n + ((*p)[n] == '\n');
    size_t sign = MIN(strcspn(all.at, "=:"), all.len);
    if (all.len == 0 || all.at[0] == '#' || all.at[0] == ';') {
        line.kind = LINE_EMPTY;
    } else if (indented) {    // the rest of the previous value: no value needed here has two lines
    } else if (all.at[0] == '[' && all.at[all.len - 1] == ']') {
        line.kind = LINE_SECTION;
        line.name = trimmed(all.at + 1, all.len - 2);
    } else if (sign > 0 && sign < all.len) {
        line.kind = LINE_PAIR;
        line.name = trimmed(all.at, sign);
        line.value = trimmed(all.at + sign + 1, all.len - sign - 1);
    }
    return line;
}

bool wandb_settings_check(const char *text, const char *path, struct error *err)
{
    bool in_section = false;
    for (int n = 1; *text; n++) {
        const char *start = text;
        struct line line = line_next(&text);
        in_section = in_section || line.kind == LINE_SECTION;
        if (line.kind == LINE_STRANGE || (line.kind == LINE_PAIR && !in_section))
            return error_set(err, ERR_DATA, "%s:%d: '%.*s' is not a line of wandb settings: [default], then KEY = VALUE, one on a line",
                             path, n, (int)MIN(strcspn(start, "\n"), (size_t)60), start);
    }
    return true;
}

bool wandb_settings_value(const char *text, const char *key, char *out, size_t size)
{
    bool ours = false, found = false;
    while (*text) {
        struct line line = line_next(&text);
        if (line.kind == LINE_SECTION)
            ours = line.name.len == 7 && strncmp(line.name.at, "default", 7) == 0;
        if (line.kind != LINE_PAIR || !ours || line.name.len != strlen(key) || strncasecmp(line.name.at, key, line.name.len) != 0)
            continue;
        found = line.value.len > 0;
        snprintf(out, size, "%.*s", (int)line.value.len, line.value.at);
    }
    return found;
}

static bool one_read(struct buf *text, const char *path, struct error *err)
{
    if (!path_exists(path))
        return true;
    if (!file_read_text(text, path, WANDB_SETTINGS_MAX, err))
        return error_wrap(err, "wandb's settings");
    return wandb_settings_check(buf_text(text), path, err);
}

bool wandb_files_read(struct wandb_files *f, struct error *err)
{
    char path[PATH_MAX] = "";
    const char *folder = getenv("WANDB_CONFIG_DIR"), *home = getenv("HOME");
    *f = (struct wandb_files){ 0 };
    if (folder && folder[0])
        snprintf(path, sizeof path, "%s/settings", folder);
    else if (home && home[0])
        snprintf(path, sizeof path, "%s/.config/wandb/settings", home);
    if ((path[0] && !one_read(&f->user, path, err)) || !one_read(&f->project, "wandb/settings", err)) {
        wandb_files_release(f);
        return false;
    }
    return true;
}

void wandb_files_release(struct wandb_files *f)
{
    buf_release(&f->user);
    buf_release(&f->project);
}

bool wandb_files_value(const struct wandb_files *f, const char *key, char *out, size_t size)
{
    return wandb_settings_value(buf_text(&f->project), key, out, size) || wandb_settings_value(buf_text(&f->user), key, out, size);
}
