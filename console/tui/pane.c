#include "console/tui/pane.h"
#include <stdlib.h>
#include <string.h>
#include "console/tui/app.h"

struct pane *pane_new(const struct pane_type *type)
{
    struct pane *p = calloc(1, type->size);
    if (!p)
        return NULL;
    p->type = type;
    if (type->init)
        type->init(p);
    return p;
}

void pane_free(struct pane *p)
{
    free(p);
}

bool pane_act(struct pane *p, struct app *a, enum request req, int64_t now_ns)
{
    return p->type->act && p->type->act(p, a, req, now_ns);
}

bool pane_close(struct pane *p)
{
    return p->type->close && p->type->close(p);
}

void pane_fix(struct pane *p, const struct app *a)
{
    if (!p->type->rows)
        return;
    int64_t n = p->type->rows(p, a);
    p->sel = MAX(MIN(p->sel, n - 1), 0);
    p->top = p->type->top ? p->type->top(p, a) : list_top(p->top, p->sel, n, p->type->page(a, app_body(a)));
}

bool filter_matches(const char *filter, const char *text)
{
    if (filter[0] == '!' && filter[1])
        return strcasestr(text, filter + 1) == NULL;
    if (filter[0] == '^' && filter[1])
        return strncasecmp(text, filter + 1, strlen(filter + 1)) == 0;
    return filter[0] == 0 || strcasestr(text, filter) != NULL;
}

int64_t list_top(int64_t top, int64_t sel, int64_t n, int page)
{
    page = MAX(page, 1);
    if (sel < top)
        top = sel;
    if (sel >= top + page)
        top = sel - page + 1;
    return MAX(MIN(top, n - page), 0);
}
