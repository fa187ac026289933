#include "console/tui/picker.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/screen.h"
#include "console/tui/text.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"

#define LOOK_AGAIN_NS ((int64_t)2 * 1000000000)

/* The second column of a row. */
static const struct state_row *row_state(const struct run_row *r)
{
    static const struct state_row unread = { '?', "UNREADABLE", ROLE_CRIT };
    if (r->live)
        return run_state_row(run_state_is_over(r->state) || r->state == RUN_UNKNOWN ? RUN_STARTING : r->state);
    return r->step < 0 ? &unread : run_state_row(r->state);
}

static bool row_shown(const struct picker *p, const struct run_row *r)
{
    char text[320];
    snprintf(text, sizeof(text), "%s %s %s", r->name, row_state(r)->word, r->reason);
    return filter_matches(p->filter, text);
}

static const struct run_row *row_at(const struct picker *p, int i)
{
    for (int k = 0; k < p->list.n; k++)
        if (row_shown(p, &p->list.row[k]) && i-- == 0)
            return &p->list.row[k];
    return NULL;
}

static int rows(const struct picker *p)
{
    int n = 0;
    for (int k = 0; k < p->list.n; k++)
        n += row_shown(p, &p->list.row[k]);
    return n;
}

const struct run_row *picker_selected(const struct picker *p)
{
    return row_at(p, p->sel);
}

int picker_page(int screen_h)
{
    return MAX(screen_h - 4, 1);    // less title, heading, the selected run's reason, keys
}

static void fix(struct picker *p, int page)
{
    int n = rows(p);
    p->sel = MAX(MIN(p->sel, n - 1), 0);
    p->top = (int)list_top(p->top, p->sel, n, page);
}

static void filter_type(struct picker *p, uint32_t key)
{
    size_t n = strlen(p->filter);
    if (key == KEY_RETURN || key == '\n' || key == KEY_ESCAPE || key == KEY_CTRL('c')) {
        p->typing = false;
        if (key == KEY_ESCAPE || key == KEY_CTRL('c'))
            p->filter[0] = 0;
    } else if (key == KEY_ERASE || key == 0x7f || key == KEY_CTRL('h')) {
        while (n > 0 && ((unsigned char)p->filter[--n] & 0xc0) == 0x80)
            ;
        p->filter[n] = 0;
    } else if (key == KEY_CTRL('u')) {
        p->filter[0] = 0;
    } else if (key >= 0x20 && key < KEY_NONE_ && n + 5 < sizeof(p->filter)) {
        n += text_encode(key, p->filter + n);
        p->filter[n] = 0;
    }
}

enum picked picker_key(struct picker *p, uint32_t key, int page)
{
    enum picked picked = PICK_NOTHING;
    if (p->typing) {
        filter_type(p, key);
        fix(p, page);
        return PICK_NOTHING;
    }
    switch (key) {
    case KEY_ARROW_UP:
    case 'k': p->sel--; break;
    case KEY_ARROW_DOWN:
    case 'j': p->sel++; break;
    case KEY_PAGE_UP: p->sel -= page; break;
    case KEY_PAGE_DOWN: p->sel += page; break;
    case KEY_TO_HOME:
    case 'g': p->sel = 0; break;
    case KEY_TO_END:
    case 'G': p->sel = p->list.n; break;
    case '/': p->typing = true; break;
    case KEY_RETURN:
    case '\n': picked = picker_selected(p) ? PICK_OPEN : PICK_NOTHING; break;
    case KEY_ESCAPE:
        if (p->filter[0])
            p->filter[0] = 0;
        else
            picked = PICK_QUIT;
        break;
    case 'q':
    case KEY_CTRL('c'): picked = PICK_QUIT; break;
    default: break;
    }
    fix(p, page);
    return picked;
}

static void row_draw(struct cells *c, int y, const struct run_row *r, int name_w, double wall_s)
{
    char age[16], step[24] = "-";
    const struct state_row *state = row_state(r);
    int name_x = 15, step_x = name_x + name_w + 1, age_x = step_x + 11, reason_x = age_x + 13;
    cells_put(c, 1, y, state->sign, state->role);
    cells_text(c, 3, y, 11, state->word, state->role);
    cells_text(c, name_x, y, name_w, r->name, ROLE_TEXT);
    if (r->step >= 0)
        snprintf(step, sizeof(step), "%" PRId64, r->step);
    cells_text_right(c, step_x, y, 9, step, ROLE_TEXT);
    cells_fmt(c, age_x, y, 12, ROLE_DIM, "%s ago", duration_format(age, MAX(wall_s - (double)r->changed_ns * 1e-9, 0)));
    cells_text(c, reason_x, y, c->w - reason_x - 1, r->reason, ROLE_DIM);
}

void picker_draw(const struct picker *p, struct cells *c, double wall_s)
{
    static const struct {
        const char *key, *does;
    } keys[] = { { "Enter", "open" }, { "/", "filter" }, { "q", "quit" } };
    int n = rows(p), n_live = 0, page = picker_page(c->h), longest = 8, x = 1;
    for (int i = 0; i < p->list.n; i++) {
        n_live += p->list.row[i].live;
        longest = MAX(longest, text_columns(p->list.row[i].name, strlen(p->list.row[i].name)));
    }
    int name_w = MAX(MIN(longest, c->w - 40), 8);
    cells_clear(c);
    cells_fill(c, (struct rect){ 0, 0, c->w, 1 }, ' ', ROLE_BAR);
    cells_fmt(c, 1, 0, c->w - 2, ROLE_BAR, "runs under %s: %d, %d live", p->list.dir, p->list.n + p->list.n_cut, n_live);
    cells_text(c, 3, 1, 11, "state", ROLE_DIM);
    cells_text(c, 15, 1, name_w, "run", ROLE_DIM);
    cells_text_right(c, 16 + name_w, 1, 9, "step", ROLE_DIM);
    cells_text(c, 27 + name_w, 1, 12, "changed", ROLE_DIM);
    for (int i = 0; i < page && p->top + i < n; i++) {
        row_draw(c, 2 + i, row_at(p, p->top + i), name_w, wall_s);
        if (p->top + i == p->sel) {
            cells_select(c, (struct rect){ 0, 2 + i, c->w, 1 });
            c->cursor_x = 1;
            c->cursor_y = 2 + i;
        }
    }
    if (n == 0)
        cells_text(c, 3, 2, c->w - 4, p->list.n ? "none contains the filter's text" : "there are no runs yet; rollcall train starts one",
                   ROLE_DIM);
    const struct run_row *selected = picker_selected(p);
    if (p->typing || p->filter[0])
        cells_fmt(c, 1, c->h - 2, c->w - 2, ROLE_INPUT, "/%s%s", p->filter, p->typing ? "_" : "");
    else if (selected && selected->reason[0])
        cells_text(c, 1, c->h - 2, c->w - 2, selected->reason, ROLE_DIM);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        x += cells_text(c, x, c->h - 1, c->w - x, keys[i].key, ROLE_KEY) + 1;
        x += cells_text(c, x, c->h - 1, c->w - x, keys[i].does, ROLE_TEXT) + 2;
    }
}

/* Keep the same run selected after the list has changed. */
static bool look_again(struct picker *p, const char *runs_dir, int page, struct error *err)
{
    const struct run_row *selected = picker_selected(p);
    char name[sizeof(selected->name)] = "";
    if (selected)
        memcpy(name, selected->name, sizeof(name));
    if (!run_list_read(&p->list, runs_dir, err))
        return false;
    const struct run_row *row;
    for (int i = 0; name[0] && (row = row_at(p, i)) != NULL; i++)
        if (strcmp(row->name, name) == 0)
            p->sel = i;
    fix(p, page);
    return true;
}

static bool picker_loop(struct picker *p, struct screen *s, const char *runs_dir, enum picked *picked, struct error *err)
{
    int w, h;
    int64_t looked_ns = clock_ns();
    terminal_size(&w, &h);
    while (*picked == PICK_NOTHING) {
        if (!cells_resize(&s->cells, w, h, err))
            return false;
        picker_draw(p, &s->cells, clock_wall_s());
        screen_draw(s);
        struct pollfd fds[2] = { { .fd = terminal_fd(s->term), .events = POLLIN }, { .fd = s->signal_fd, .events = POLLIN } };
        int64_t left_ns = MAX(looked_ns + LOOK_AGAIN_NS - clock_ns(), 0);
        if (poll(fds, 2, (int)(left_ns / 1000000) + 1) < 0 && errno != EINTR)
            return error_errno(err, "cannot wait for keys");
        unsigned news = screen_signals(s);
        if (news & SCREEN_RESIZED)
            terminal_size(&w, &h);
        if (news & SCREEN_QUIT)
            *picked = PICK_QUIT;
        struct key_event k;
        while (*picked == PICK_NOTHING && terminal_key(s->term, &k)) {
            if (k.key == KEY_CTRL('l'))
                terminal_redraw(s->term);
            else if (k.key == KEY_CTRL('z'))
                terminal_suspend(s->term);
            else
                *picked = picker_key(p, k.key, picker_page(h));
        }
        if (terminal_gone(s->term))
            return error_set(err, ERR_CLOSED, "the terminal is gone");
        if (clock_ns() - looked_ns >= LOOK_AGAIN_NS) {
            if (!look_again(p, runs_dir, picker_page(h), err))
                return false;
            looked_ns = clock_ns();
        }
    }
    return true;
}

bool picker_run(const char *runs_dir, const struct console_options *options, char *out, size_t size, struct error *err)
{
    struct picker p = { .sel = 0 };
    struct screen s;
    enum picked picked = PICK_NOTHING;
    out[0] = 0;
    if (!run_list_read(&p.list, runs_dir, err))
        return false;
    bool ok = screen_open(&s, options, err);
    if (ok) {
        ok = picker_loop(&p, &s, runs_dir, &picked, err);
        screen_close(&s);
    }
    const struct run_row *row = picker_selected(&p);
    if (ok && picked == PICK_OPEN && row && !path_join(out, size, runs_dir, row->name))
        ok = error_set(err, ERR_USAGE, "the path of run '%.90s' is too long", row->name);
    run_list_release(&p.list);
    return ok;
}
