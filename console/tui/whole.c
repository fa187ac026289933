/* whole.c - a text that a row could only show the beginning of, in full: Enter opens it, the arrows scroll, Esc closes */
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/text.h"

void whole_open(struct app *a, const char *title, const char *text)
{
    snprintf(a->whole.title, sizeof(a->whole.title), "%s", title);
    snprintf(a->whole.text, sizeof(a->whole.text), "%s", text);
    a->whole.top = 0;
}

static struct rect whole_rect(const struct app *a)
{
    struct rect body = app_body(a);
    return (struct rect){ body.x + 1, body.y + 1, body.w - 4, body.h - 2 };
}

static int rows_count(const char *text, int w)
{
    int n = 0;
    for (size_t len = strlen(text), next; len > 0; text += next, len -= next, n++)
        text_wrap(text, len, MAX(w, 1), &next);
    return n;
}

bool whole_key(struct app *a, enum request req)
{
    struct whole *o = &a->whole;
    struct rect r = whole_rect(a);
    int page = MAX(r.h, 1), last = MAX(rows_count(o->text, r.w) - page, 0);
    if (!o->text[0])
        return false;
    switch (req) {
    case REQ_UP: o->top--; break;
    case REQ_DOWN: o->top++; break;
    case REQ_PAGE_UP: o->top -= page; break;
    case REQ_PAGE_DOWN: o->top += page; break;
    case REQ_TOP: o->top = 0; break;
    case REQ_BOTTOM: o->top = last; break;
    case REQ_ENTER:
    case REQ_EDIT:
    case REQ_INFO:
    case REQ_BACK:
    case REQ_QUIT:
    case REQ_INTERRUPT: o->text[0] = 0; break;
    default: return req != REQ_REDRAW && req != REQ_SUSPEND;
    }
    o->top = MAX(MIN(o->top, last), 0);
    return true;
}

void whole_draw(const struct app *a, struct cells *c)
{
    const struct whole *o = &a->whole;
    struct rect body = app_body(a), r = whole_rect(a);
    const char *text = o->text;
    char title[128];
    int rows = rows_count(text, r.w), row = 0;
    if (!text[0] || r.w < 1 || r.h < 1)
        return;
    snprintf(title, sizeof(title), rows > r.h ? "%s (Up Down scroll, Esc closes)" : "%s (Esc closes)", o->title);
    cells_fill(c, body, ' ', ROLE_TEXT);
    cells_box(c, body, title, ROLE_FOCUS, ROLE_TITLE);
    for (size_t len = strlen(text), next; len > 0 && row < o->top + r.h; text += next, len -= next, row++) {
        size_t n = text_wrap(text, len, r.w, &next);
        if (row >= o->top)
            cells_textn(c, r.x + 1, r.y + row - o->top, r.w, text, n, ROLE_TEXT);
    }
    c->cursor_x = r.x + 1;
    c->cursor_y = r.y;
}
