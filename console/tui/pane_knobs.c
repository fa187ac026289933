/* pane_knobs.c - settings: values, bounds, when a change takes effect, and changing them */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "protocol/base/buf.h"

struct knob_pane {
    struct pane pane;
    bool all;    // also show those that cannot change now
};

static bool knob_shown(const struct knob_pane *kp, const struct app *a, int i)
{
    char row[320];
    snprintf(row, sizeof(row), "%s %s %s %s", knobs[i].name, knobs[i].group, a->model->knob[i].text, knobs[i].help);
    return (kp->all || knob_is_live(&knobs[i])) && filter_matches(kp->pane.filter, row);
}

static int knob_row(const struct knob_pane *kp, const struct app *a, int64_t row)
{
    for (int i = 0; i < n_knobs; i++)
        if (knob_shown(kp, a, i) && row-- == 0)
            return i;
    return -1;
}

static int64_t knobs_rows(const struct pane *p, const struct app *a)
{
    const struct knob_pane *kp = (const struct knob_pane *)p;
    int64_t n = 0;
    for (int i = 0; i < n_knobs; i++)
        n += knob_shown(kp, a, i);
    return n;
}

static int knobs_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - 3 - (body.h >= 12 ? 3 : 0), 1);
}

static const char *applies_text(enum knob_applies a)
{
    static const char *const words[] = {
        [APPLY_START] = "fixed",
        [APPLY_NEXT_ROLLOUT] = "next rollout",
        [APPLY_NEXT_STEP] = "next step",
        [APPLY_NOW] = "at once",
    };
    return words[a];
}

static void detail_draw(const struct app *a, struct cells *c, struct rect r, int i)
{
    const struct knob *k = &knobs[i];
    const struct knob_value *v = &a->model->knob[i];
    char text[256];
    int n = snprintf(text, sizeof(text), "%s%s%s", k->name, k->unit[0] ? ", " : "", k->unit);
    struct buf bounds = BUF_INIT;
    snprintf(text + n, sizeof(text) - (size_t)n, ": %s", knob_bounds_text(k, &bounds));
    buf_release(&bounds);
    cells_text(c, r.x, r.y, r.w, text, ROLE_TITLE);
    cells_text(c, r.x, r.y + 1, r.w, k->help, ROLE_TEXT);
    if (!knob_is_live(k))
        cells_text(c, r.x, r.y + 2, r.w, "fixed since the run began", ROLE_DIM);
    else if (v->before[0])
        cells_fmt(c, r.x, r.y + 2, r.w, ROLE_CHANGED, "was %s before the last change; u reverts it", v->before);
    else
        cells_fmt(c, r.x, r.y + 2, r.w, ROLE_DIM, "Enter changes it: %s", applies_text(k->applies));
}

static void knobs_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    const struct knob_pane *kp = (const struct knob_pane *)p;
    struct rect in = cells_box(c, r, kp->all ? "all settings" : "knobs: settings that can change now", ROLE_FOCUS, ROLE_TITLE);
    if (in.h < 1)
        return;
    int name_w = MIN(28, in.w / 2), value_w = in.w >= 76 ? 16 : in.w - name_w - 3, page = knobs_page(a, r);
    int when_at = in.x + 2 + name_w + value_w + 1, group_at = when_at + 14, help_at = in.w >= 110 ? group_at + 14 : 0;
    cells_text(c, in.x + 1, in.y, name_w, "name", ROLE_TITLE);
    cells_text(c, in.x + 2 + name_w, in.y, value_w, "value", ROLE_TITLE);
    if (in.w >= 76) {
        cells_text(c, when_at, in.y, 13, "applies", ROLE_TITLE);
        cells_text(c, group_at, in.y, in.x + in.w - group_at, "group", ROLE_TITLE);
    }
    if (help_at)
        cells_text(c, help_at, in.y, in.x + in.w - help_at, "meaning", ROLE_TITLE);
    for (int i = 0; i < page && i + 1 < in.h; i++) {
        int64_t row = p->top + i;
        int k = knob_row(kp, a, row), y = in.y + 1 + i;
        if (k < 0)
            break;
        const struct knob_value *v = &a->model->knob[k];
        bool live = knob_is_live(&knobs[k]);
        cells_text(c, in.x + 1, y, name_w, knobs[k].name, live ? ROLE_TEXT : ROLE_DIM);
        cells_text(c, in.x + 2 + name_w, y, value_w, v->text[0] ? v->text : "\u00b7",
                   v->changed_ns ? ROLE_CHANGED
                   : live        ? ROLE_TEXT
                                 : ROLE_DIM);
        if (in.w >= 76) {
            cells_text(c, when_at, y, 13, applies_text(knobs[k].applies), ROLE_DIM);
            cells_text(c, group_at, y, (help_at ? help_at : in.x + in.w) - group_at - 1, knobs[k].group, ROLE_DIM);
        }
        if (help_at)
            cells_text(c, help_at, y, in.x + in.w - help_at - 1, knobs[k].help, ROLE_DIM);
        if (row == p->sel) {
            cells_select(c, (struct rect){ in.x, y, in.w, 1 });
            c->cursor_x = in.x + 1;
            c->cursor_y = y;
            if (r.h >= 12)
                detail_draw(a, c, (struct rect){ in.x + 1, in.y + in.h - 3, in.w - 2, 3 }, k);
        }
    }
    if (knobs_rows(p, a) == 0 && in.h > 1)
        cells_text(c, in.x + 1, in.y + 1, in.w - 2, "none contains the filter's text", ROLE_DIM);
}

/* All of a setting; what is long stands cut in its row. */
static void knob_whole(struct app *a, int i)
{
    const struct knob *k = &knobs[i];
    const struct knob_value *v = &a->model->knob[i];
    static const char *const when[] = { [APPLY_START] = "",
                                        [APPLY_NEXT_ROLLOUT] = "; a change takes effect with the next rollouts",
                                        [APPLY_NEXT_STEP] = "; a change takes effect with the next optimizer step",
                                        [APPLY_NOW] = "; a change takes effect at once" };
    char text[4096];
    struct buf bounds = BUF_INIT;
    snprintf(text, sizeof(text), "%s = %s\n\n%s\n\n%s%s%s%s; default: %s\ngroup: %s\n%s%s%s%s", k->name, v->text[0] ? v->text : "(not set)",
             k->help, k->unit, k->unit[0] ? ", " : "", knob_bounds_text(k, &bounds), knob_is_live(k) ? when[k->applies] : "",
             k->def && k->def[0] ? k->def : "none", k->group, v->before[0] ? "before the last change: " : "", v->before,
             v->before[0] ? "\n" : "",
             knob_is_live(k) ? "Enter changes it." : "It is fixed since the run began, and can change at a resume.");
    buf_release(&bounds);
    whole_open(a, "a setting", text);
}

static bool knobs_act(struct pane *p, struct app *a, enum request req, UNUSED int64_t now_ns)
{
    struct knob_pane *kp = (struct knob_pane *)p;
    int k = knob_row(kp, a, p->sel);
    if (req == REQ_ALL_KNOBS) {
        kp->all = !kp->all;
        return true;
    }
    if (req != REQ_EDIT && req != REQ_INFO)
        return false;
    if (k < 0)
        return true;
    if (req == REQ_INFO || !knob_is_live(&knobs[k])) {
        knob_whole(a, k);
        return true;
    }
    prompt_open(a, PROMPT_KNOB, a->model->knob[k].text);
    a->prompt.knob = k;
    return true;
}

const struct pane_type pane_knobs = {
    .name = "Knobs",
    .size = sizeof(struct knob_pane),
    .draw = knobs_draw,
    .act = knobs_act,
    .rows = knobs_rows,
    .page = knobs_page,
};
