/* help.c - the page of keys and commands, made from their tables; long lines go on below */
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/text.h"
#include "protocol/wire/message.h"

#define LEFT_W 18    // columns of a key, or a command and its arguments

struct page {           // counts rows, and draws those that are visible
    struct cells *c;    // NULL: only count
    struct rect r;
    int top, row;
};

/* The row's place on the screen; -1: it is not visible. */
static int row_next(struct page *p)
{
    int y = p->row++ - p->top;
    return p->c && y >= 0 && y < p->r.h ? p->r.y + y : -1;
}

static void heading_out(struct page *p, const char *text)
{
    int y;
    if (p->row > 0)
        row_next(p);
    if ((y = row_next(p)) >= 0)
        cells_text(p->c, p->r.x + 1, y, p->r.w - 2, text, ROLE_TITLE);
}

static void wrapped_out(struct page *p, int indent, const char *text, enum role role)
{
    for (size_t len = strlen(text), next; len > 0; text += next, len -= next) {
        size_t n = text_wrap(text, len, MAX(p->r.w - indent - 4, 8), &next);
        int y = row_next(p);
        if (y >= 0)
            cells_textn(p->c, p->r.x + 2 + indent, y, p->r.w - 3 - indent, text, n, role);
    }
}

/* A key, or a command with its arguments, and what it does. What is too long for its column has a row of its own. */
static void entry_out(struct page *p, const char *name, const char *args, const char *help)
{
    int w = text_columns(name, strlen(name)) + (args[0] ? 1 + text_columns(args, strlen(args)) : 0), x = p->r.x + 2;
    bool apart = w > p->r.w - 3;    // the arguments are below the name
    bool own = w > LEFT_W || p->r.w < 3 * LEFT_W;
    int y = row_next(p), indent = p->r.w < 3 * LEFT_W ? 2 : LEFT_W + 2;
    if (y >= 0) {
        int n = cells_text(p->c, x, y, p->r.w - 3, name, ROLE_KEY);
        if (args[0] && !apart)
            cells_text(p->c, x + n + 1, y, p->r.w - 4 - n, args, ROLE_DIM);
    }
    if (apart)
        wrapped_out(p, 2, args, ROLE_DIM);
    if (own) {
        wrapped_out(p, indent, help, ROLE_TEXT);
        return;
    }
    size_t next, n = text_wrap(help, strlen(help), MAX(p->r.w - indent - 4, 8), &next);
    if (y >= 0)
        cells_textn(p->c, x + indent, y, p->r.w - 3 - indent, help, n, ROLE_TEXT);
    wrapped_out(p, indent, help + next, ROLE_TEXT);
}

static void page_out(struct page *p)
{
    const char *group = "";
    for (int i = 0; i < n_key_rows; i++) {
        if (strcmp(key_table[i].group, group) != 0)
            heading_out(p, group = key_table[i].group);
        entry_out(p, key_table[i].keys, "", key_table[i].help);
    }
    heading_out(p, "commands, typed after :");
    for (int i = 0; i < n_command_specs; i++)
        entry_out(p, command_specs[i].name, command_specs[i].args, command_specs[i].help);
    for (int i = 0; i < n_local_commands; i++)
        entry_out(p, local_commands[i].name, local_commands[i].args, local_commands[i].help);
}

int help_rows(const struct app *a)
{
    struct page p = { .r = { 0, 0, MAX(a->w - 2, 0), 0 } };
    page_out(&p);
    return p.row;
}

void help_draw(const struct app *a, struct cells *c)
{
    struct rect r = { 0, 1, c->w, c->h - 2 };
    cells_fill(c, r, ' ', ROLE_TEXT);
    struct page p = { .c = c,
                      .r = cells_box(c, r, "Keys and commands: Esc closes, arrows scroll", ROLE_FOCUS, ROLE_TITLE),
                      .top = a->help_top };
    page_out(&p);
}
