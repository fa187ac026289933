/* frame.c - everything around the panes: bar, tabs, message line, footer, help page, dialogs */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "console/tui/app.h"
#include "console/fleet/doctor.h"
#include "console/tui/text.h"
#include "protocol/wire/message.h"

#define NOTE_LEAST 12    // columns of a note beside the tabs that is cut
#define FLASH_NS ((int64_t)8 * 1000000000)

static const struct state_row state_rows[] = {
    [RUN_UNKNOWN] = { 0x25cb, "CONNECTING", ROLE_STALE }, [RUN_STARTING] = { 0x25d0, "STARTING", ROLE_WARN },
    [RUN_RUNNING] = { 0x25cf, "RUNNING", ROLE_OK },       [RUN_PAUSED] = { 0x2016, "PAUSED", ROLE_WARN },
    [RUN_STOPPING] = { 0x25bc, "STOPPING", ROLE_WARN },   [RUN_FINISHED] = { 0x2713, "FINISHED", ROLE_OK },
    [RUN_FAILED] = { 0x2717, "FAILED", ROLE_CRIT },       [RUN_STOPPED] = { 0x25a0, "STOPPED", ROLE_WARN },
};

const struct state_row *run_state_row(enum run_state state)
{
    return &state_rows[state];
}

static bool run_over(const struct run_view *m)
{
    return run_state_is_over(m->state);
}

/* "PAUSED", "LOST 12s", ... */
static const struct state_row *state_word(const struct app *a, int64_t now_ns, char out[64])
{
    static const struct state_row lost = { 0x25cb, "LOST", ROLE_CRIT };
    const struct run_view *m = a->model;
    const struct state_row *row = &state_rows[m->state];
    char age[16];
    if (m->link != LINK_LIVE && m->told_ns != 0 && !run_over(m)) {
        row = &lost;
        snprintf(out, 64, "NO AGENT %s", duration_format(age, (double)(now_ns - m->link_ns) * 1e-9));
    } else if (m->state == RUN_PAUSED && m->pause_depth[0]) {
        snprintf(out, 64, "PAUSED (%.16s)", m->pause_depth);
    } else {
        snprintf(out, 64, "%s", row->word);
    }
    return row;
}

/* What this console may do, and who else has the control: columns used. */
static int badges_draw(const struct app *a, struct cells *c, int x, int y, int room, enum role role, double wall_s)
{
    const struct control_lock *l = &a->model->lock;
    int used = 0;
    char text[96], age[16];
    if (a->compare.model && room >= 60)
        used = cells_fmt(c, x, y, room / 3, role, "with %s  ", a->compare.model->name);
    if (a->replay) {
        int n = cells_text(c, x + used, y, room - used, a->playing ? " REPLAY \u25b6 " : " REPLAY ", role);
        cells_attr(c, (struct rect){ x + used, y, n, 1 }, ATTR_REVERSE | ATTR_BOLD);
        used += n + 1;
    }
    if (app_looks_only(a)) {
        int n = cells_text(c, x + used, y, room - used, " READ-ONLY ", role);
        cells_attr(c, (struct rect){ x + used, y, n, 1 }, ATTR_REVERSE | ATTR_BOLD);
        used += n + 1;
    }
    if (!l->holder[0])
        return used;
    const char *who = strcmp(l->holder, a->model->me) == 0 ? "you" : l->holder;
    int short_w = (int)MIN(strcspn(who, "@"), (size_t)12);
    snprintf(text, sizeof(text), " LOCK %.*s %s ", room >= 90 ? 60 : short_w, who, duration_format(age, wall_s - l->since_s));
    int n = cells_text(c, x + used, y, room - used, text, role);
    cells_attr(c, (struct rect){ x + used, y, n, 1 }, ATTR_REVERSE);
    return used + n + 1;
}

static void bar_draw(const struct app *a, struct cells *c, struct rect r, int64_t now_ns, double wall_s)
{
    const struct run_view *m = a->model;
    bool paused = m->state == RUN_PAUSED && m->link == LINK_LIVE;
    enum role role = paused ? ROLE_PAUSED : ROLE_BAR;
    char word[64], clock[16], left[48] = "", dur[16], step[64];
    time_t t = (time_t)wall_s;
    struct tm tm;
    localtime_r(&t, &tm);
    strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
    cells_fill(c, r, ' ', role);
    const struct state_row *row = state_word(a, now_ns, word);
    int x = r.x + 1, end = r.x + r.w - 1;
    if (r.w >= 60) {
        end -= 8;
        cells_text(c, end, r.y, 8, clock, role);
        end -= 2;
    }
    int name_at = x, state_at;
    x += cells_text(c, x, r.y, MIN(22, r.w / 4), m->name[0] ? m->name : "rollcall", role) + 2;
    state_at = x;
    x += cells_fmt(c, x, r.y, end - x, role, "%s%s", "  ", word);
    cells_put(c, state_at, r.y, row->sign, role);
    cells_attr(c, (struct rect){ name_at, r.y, x - name_at, 1 }, ATTR_BOLD);
    x += 2;
    x += badges_draw(a, c, x, r.y, end - x, role, wall_s);
    if (m->told_ns == 0) {
        cells_text(c, x, r.y, end - x, m->link_text, role);
        return;
    }
    if (m->max_steps > 0)
        snprintf(step, sizeof(step), "step %" PRId64 "/%" PRId64, m->step, m->max_steps);
    else
        snprintf(step, sizeof(step), "step %" PRId64, m->step);
    x += cells_text(c, x, r.y, end - x, step, role) + 1;
    if (paused)
        snprintf(left, sizeof(left), "training waits: r resumes");
    else if (m->max_steps > 0 && !run_over(m) && !isnan(m->left_s))
        snprintf(left, sizeof(left), "%s left", duration_format(dur, m->left_s));
    else if (run_over(m) && !isnan(m->elapsed_s))
        snprintf(left, sizeof(left), "took %s", duration_format(dur, m->elapsed_s));
    int left_w = (int)strlen(left), bar_w = end - x - left_w - 2;
    if (bar_w >= 12 && m->max_steps > 0) {
        double share = (double)m->step / (double)m->max_steps;
        int w = MIN(bar_w - 6, 40);
        gauge_draw(c, (struct rect){ x, r.y, w, 1 }, share, a->glyphs);
        for (int i = 0; i < w; i++) {    // the bar's own ground, the gauge's shape
            struct cell *cell = &c->cell[r.y * c->w + x + i];
            cell->role = (uint8_t)(paused ? role : ROLE_BAR_GAUGE);
        }
        x += w;
        x += cells_fmt(c, x, r.y, end - x, role, " %.0f%%", 100 * fmin(share, 1)) + 1;
    }
    if (end - left_w > x - 1)
        cells_text(c, end - left_w, r.y, left_w, left, role);
}

/* Panes that are not shown have only their number. */
static bool tab_is_short(const struct app *a, int i)
{
    bool noted = a->frozen || !a->mouse || a->pane[a->shown]->filter[0] || layout_make(a->w, a->h).says.h == 0;    // a note beside the tabs
    return a->shown != (enum pane_id)i && a->w < (noted ? 195 : 150);
}

/* On a narrow screen what is wrong takes the place of the numbers of panes that are not shown. */
static bool only_shown_tab(const struct app *a, int64_t now_ns)
{
    struct diagnosis d = doctor_say(a->model, now_ns);
    return a->w < 60 && !a->frozen && (d.kind == DIAGNOSIS_WARN || d.kind == DIAGNOSIS_CRIT);
}

int tab_width(const struct app *a, int i, int64_t now_ns)
{
    int gap = a->w >= 90;
    if (a->shown != (enum pane_id)i && only_shown_tab(a, now_ns))
        return 0;
    return gap + (tab_is_short(a, i) ? (a->w >= 60 ? 3 : 2) : (a->w >= 90 ? 4 : 3) + (int)strlen(pane_name((enum pane_id)i)));
}

static enum role diagnosis_role(enum diagnosis_kind kind)
{
    switch (kind) {
    case DIAGNOSIS_CRIT: return ROLE_CRIT;
    case DIAGNOSIS_WARN: return ROLE_WARN;
    case DIAGNOSIS_NONE:
    case DIAGNOSIS_BOUND: break;
    }
    return ROLE_DIM;
}

static void says_draw(const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    struct diagnosis d = doctor_say(a->model, now_ns);
    if (r.h == 0 || d.kind == DIAGNOSIS_NONE)
        return;
    cells_put(c, r.x + 1, r.y, d.kind == DIAGNOSIS_BOUND ? 0x203a : '!', diagnosis_role(d.kind));
    int x = r.x + 3 + cells_text(c, r.x + 3, r.y, r.w - 4, d.text, diagnosis_role(d.kind));
    if (d.remedy[0] && r.x + r.w - x > 12)
        cells_fmt(c, x, r.y, r.x + r.w - x - 1, ROLE_DIM, ": %s", d.remedy);
}

static void tabs_draw(const struct app *a, struct cells *c, struct rect r, bool room_below, int64_t now_ns)
{
    int x = r.x + 1;
    for (int i = 0; i < N_PANE; i++) {
        bool here = a->shown == (enum pane_id)i;
        int w = tab_width(a, i, now_ns);
        if (w == 0)
            continue;
        int n = cells_fmt(c, x, r.y, r.x + r.w - x, here ? ROLE_TITLE : ROLE_DIM,
                          tab_is_short(a, i) ? (a->w >= 60 ? " %c " : "%c ")
                          : a->w >= 90       ? " %c %s "
                                             : "%c %s ",
                          pane_key((enum pane_id)i), pane_name((enum pane_id)i));
        if (here)
            cells_attr(c, (struct rect){ x, r.y, n, 1 }, ATTR_REVERSE);
        x += w;
    }
    char note[96] = "";
    enum role role = ROLE_DIM;
    if (a->frozen) {
        snprintf(note, sizeof(note), " FROZEN: Space continues ");
        role = ROLE_PAUSED;
    } else if (!room_below) {
        struct diagnosis d = doctor_say(a->model, now_ns);
        snprintf(note, sizeof(note), " %.90s ", d.text);
        role = diagnosis_role(d.kind);
    } else if (app_pane(a)->filter[0]) {
        snprintf(note, sizeof(note), " filter: %.60s ", app_pane(a)->filter);
        role = ROLE_MATCH;
    } else if (!a->mouse) {
        snprintf(note, sizeof(note), " mouse off ");
    }
    int room = r.x + r.w - x;
    if (room > NOTE_LEAST || room >= text_columns(note, strlen(note)))    // a few letters of a sentence say nothing
        cells_text_right(c, x, r.y, room, note, role);
}

static void prompt_draw(const struct app *a, struct cells *c, struct rect r)
{
    const struct prompt *p = &a->prompt;
    char label[80];
    if (p->kind == PROMPT_KNOB)
        snprintf(label, sizeof(label), "%s = ", knobs[p->knob].name);
    else
        snprintf(label, sizeof(label), p->kind == PROMPT_FILTER ? "/" : ":");
    int x = r.x + cells_text(c, r.x, r.y, r.w, label, ROLE_KEY);
    int room = MAX(r.x + r.w - x - 1, 1), first = 0;
    while (text_columns(p->text + first, (size_t)(p->at - first)) >= room)    // scroll so that the cursor is visible
        first += p->text[first] ? 1 : 0;
    while (first < p->len && ((unsigned char)p->text[first] & 0xc0) == 0x80)
        first++;
    cells_text(c, x, r.y, room, p->text + first, ROLE_INPUT);
    c->cursor_x = x + text_columns(p->text + first, (size_t)(p->at - first));
    c->cursor_y = r.y;
}

enum role message_line(const struct app *a, int64_t now_ns, char *out, size_t size)
{
    const struct run_view *m = a->model;
    const struct event_view *e = view_event_at(m, 0);
    if (a->flash[0] && now_ns - a->flash_ns < FLASH_NS) {
        snprintf(out, size, "%s", a->flash);
        return a->flash_role;
    }
    if (m->link != LINK_LIVE && m->link_text[0] && !run_over(m)) {
        snprintf(out, size, "%s", m->link_text);
        return ROLE_CRIT;
    }
    if (run_over(m) && m->state != RUN_FAILED) {
        snprintf(out, size, "%s%sthe run is over: q closes this console", m->reason, m->reason[0] ? "; " : "");
        return ROLE_TEXT;
    }
    if (m->state == RUN_PAUSED || m->state == RUN_STOPPING || run_over(m)) {
        snprintf(out, size, "%s", m->reason);
        return m->state == RUN_FAILED ? ROLE_CRIT : ROLE_TEXT;
    }
    bool by_operator = e && e->who[0] && strcmp(e->who, "controller") != 0;
    snprintf(out, size, "%s%s%s", e ? e->text : "", by_operator ? " \u00b7 " : "", by_operator ? e->who : "");
    return ROLE_DIM;
}

static void line_draw(const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    char text[MESSAGE_MAX];
    if (a->prompt.kind != PROMPT_NONE
        && !(a->prompt.kind == PROMPT_KNOB && a->flash_role == ROLE_CRIT && now_ns - a->flash_ns < FLASH_NS / 4)) {
        prompt_draw(a, c, r);
        return;
    }
    enum role role = message_line(a, now_ns, text, sizeof(text));
    int w = r.w - 2, n = text_columns(text, strlen(text));
    const char *more = " i: in full";
    bool cut = n > w && w > 40;
    cells_text(c, r.x + 1, r.y, cut ? w - (int)strlen(more) : w, text, role);
    if (cut)
        cells_text_right(c, r.x + 1, r.y, w, more, ROLE_KEY);
}

static void footer_draw(const struct app *a, struct cells *c, struct rect r)
{
    /* the rows, best first; drawn in rank order while there is room, help always */
    const struct key_row *row[32];
    int n = 0;
    if (a->help || a->whole.text[0]) {
        cells_text(c, r.x + 1, r.y, r.w - 2, "Esc close  Up Down scroll  PgUp PgDn a page", ROLE_TEXT);
        return;
    }
    bool paused = a->model->state == RUN_PAUSED;
    for (int i = 0; i < n_key_rows && n < 32; i++) {
        const struct key_row *k = &key_table[i];
        if (!k->label || !(k->panes & ON(a->shown)) || (k->request == REQ_PAUSE && paused) || (k->request == REQ_RESUME && !paused)
            || (request_acts(k->request) && (app_shows_the_past(a) || app_looks_only(a))))
            continue;
        int at = n++;
        for (; at > 0 && row[at - 1]->rank > k->rank; at--)
            row[at] = row[at - 1];
        row[at] = k;
    }
    int reserve = 8;    // "? help "
    int x = r.x + 1;
    for (int i = 0; i < n; i++) {
        char keys[16];
        snprintf(keys, sizeof(keys), "%.*s", (int)strcspn(row[i]->keys + 1, " ") + 1, row[i]->keys);
        if (row[i]->request == REQ_ZOOM_IN)
            snprintf(keys, sizeof(keys), "+/-");
        int need = (int)strlen(keys) + 1 + (int)strlen(row[i]->label) + 2;
        if (x + need > r.x + r.w - (row[i]->request == REQ_HELP ? 0 : reserve))
            continue;
        x += cells_text(c, x, r.y, need, keys, ROLE_KEY) + 1;
        x += cells_text(c, x, r.y, need, row[i]->label, ROLE_TEXT) + 2;
    }
}

/* One line, cut at the screen's edge, without an ellipsis that would take up the little room. */
static void tiny_draw(const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    const struct run_view *m = a->model;
    char word[64], number[16], line[200];
    const struct state_row *row = state_word(a, now_ns, word);
    enum proc_verdict verdict;
    const struct proc *worst = view_worst(m, now_ns, &verdict);
    int n = snprintf(line, sizeof(line), "%s %" PRId64, word, m->step);
    if (m->max_steps > 0)
        n += snprintf(line + n, sizeof(line) - (size_t)n, "/%" PRId64, m->max_steps);
    if (worst)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " %s %s", worst->name, proc_verdict_name(verdict));
    n += snprintf(line + n, sizeof(line) - (size_t)n, " reward %s %s", value_format(number, m->metric[M_REWARD].last), m->name);
    cells_text(c, r.x, r.y, r.w + (int)sizeof(line), line, worst ? verdict_role(verdict) : row->role);
    if (a->prompt.kind != PROMPT_NONE) {
        cells_fill(c, r, ' ', ROLE_TEXT);
        prompt_draw(a, c, r);
    }
}

void frame_draw(const struct app *a, struct cells *c, const struct layout *l, int64_t now_ns, double wall_s)
{
    if (l->tiny) {
        tiny_draw(a, c, l->bar, now_ns);
        return;
    }
    bar_draw(a, c, l->bar, now_ns, wall_s);
    tabs_draw(a, c, l->tabs, l->says.h > 0, now_ns);
    says_draw(a, c, l->says, now_ns);
    line_draw(a, c, l->line, now_ns);
    footer_draw(a, c, l->footer);
}

void dialog_draw(const struct app *a, struct cells *c)
{
    const struct dialog *d = &a->dialog;
    int want_w = (int)strlen(d->title) + 8, lines = 0;
    for (int i = 0; i < (int)ARRAY_SIZE(d->line); i++)
        if (d->line[i][0]) {
            want_w = MAX(want_w, text_columns(d->line[i], strlen(d->line[i])) + 6);
            lines = i + 1;
        }
    bool stacked = d->n_choice > 2;
    for (int i = 0; i < d->n_choice; i++)
        want_w = MAX(want_w, (int)strlen(d->choice[i].label) + 14);
    int w = MIN(want_w, c->w - 2), h = MIN(lines + 4 + (stacked ? d->n_choice : 1), c->h);
    if (w < 12 || h < 4) {    // no room for a box: the question in one line
        cells_fill(c, (struct rect){ 0, 0, c->w, 1 }, ' ', ROLE_DANGER);
        cells_text(c, 0, 0, c->w, d->title, ROLE_DANGER);
        return;
    }
    struct rect r = { (c->w - w) / 2, (c->h - h) / 2, w, h };
    cells_fill(c, r, ' ', ROLE_TEXT);
    struct rect in = cells_box(c, r, d->title, d->danger ? ROLE_CRIT : ROLE_FOCUS, d->danger ? ROLE_CRIT : ROLE_TITLE);
    int y = in.y + (in.h > lines + d->n_choice ? 1 : 0);
    for (int i = 0; i < lines; i++)
        cells_text(c, in.x + 2, y++, in.w - 4, d->line[i], ROLE_TEXT);
    y = MIN(y + 1, in.y + in.h - (stacked ? d->n_choice : 1));
    int x = in.x + 2;
    for (int i = 0; i < d->n_choice; i++) {
        char key[8] = { (char)d->choice[i].key };
        if (i == 0) {
            c->cursor_x = x;
            c->cursor_y = y;
        }
        int start = x;
        x += cells_text(c, x, y, 2, key, d->danger && i == 0 ? ROLE_DANGER : ROLE_KEY) + 1;
        x += cells_text(c, x, y, in.x + in.w - x - 1, d->choice[i].label, ROLE_TEXT) + 4;
        if (stacked) {
            y++;
            x = start;
        }
    }
    if (!stacked)
        cells_text(c, x, y, in.x + in.w - x - 1, "Esc", ROLE_DIM);
}
