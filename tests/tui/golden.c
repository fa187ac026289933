/* golden.c - the console's screens as a terminal shows them, compared with what they were: five sizes, three depths of colour
 *
 *   tui_golden FOLDER       compare with FOLDER/COLSxROWS.txt; UPDATE_GOLDEN=1 writes them anew (look at the difference before a commit)
 * The screens are drawn by this program itself on a terminal of libvterm's, of a simulated run whose clock stands still. A file holds
 * each pane's text as 256 colours show it, and for each depth a digest of all cells with their colours and attributes. */
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "console/fleet/simulate.h"
#include "console/tui/app.h"
#include "console/tui/screen.h"
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "tests/tui/pty.h"

#define NOW_NS ((int64_t)100 * 1000000000)
#define WALL_S 1700000000.0
#define LIMIT_S 60

static const struct {
    int cols, rows;
} sizes[] = { { 40, 10 }, { 60, 15 }, { 80, 24 }, { 120, 36 }, { 200, 60 } };
static const char *const depth_names[] = { "never", "8", "256" };
static const enum color_depth depths[] = { DEPTH_NONE, DEPTH_8, DEPTH_256 };
/* All but the settings and the log, which change often, and what is read from the folder of a run: a simulated one has none. */
static const enum pane_id panes[] = { PANE_OVERVIEW, PANE_WORKERS, PANE_ROLLOUTS, PANE_EVENTS,
                                      PANE_SAVED,    PANE_ALARMS,  PANE_METRICS,  PANE_ENVIRONMENTS };

/* ---- the program on the terminal: draws a pane, and the next one when a byte comes ---- */

/* Two environments that post, and one that has gone; the door that takes their groups. The simulated run has none. */
static void environments_add(struct model *m)
{
    static const struct {
        const char *name, *kind, *phase;
        double phase_s, figure[6];
    } rows[] = {
        { "environments", "environments", "waiting", 2, { 1234, 37, 12, 1.5, 3, 8 } },
        { "gsm8k_0", "environment", "posting", 0.8, { 1100, 36, 12, 1.5, 0, 8 } },
        { "tool_use_with_a_long_name_0", "environment", "silent", 65, { 130, 1, 0, NAN, 3, 0 } },
        { "gsm8k_1", "environment", "gone", 4000, { 4, 0, 0, NAN, 0, 0 } },
    };
    static const char *const names[] = { "groups", "per minute", "waiting", "steps old", "refused", "had no room" };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct proc *p = model_proc(m, rows[i].name);
        snprintf(p->kind, sizeof(p->kind), "%s", rows[i].kind);
        snprintf(p->phase, sizeof(p->phase), "%s", rows[i].phase);
        p->phase_s = rows[i].phase_s;
        p->heard_ns = NOW_NS;
        p->verdict = strcmp(p->phase, "silent") == 0 ? PROC_SLOW : PROC_OK;
        for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
            struct gauge *g = &p->gauge[p->n_gauge++];
            snprintf(g->name, sizeof(g->name), "%s", names[k]);
            g->value = rows[i].figure[k];
        }
    }
    struct proc *door = model_proc(m, "environments");
    door->gauge[door->n_gauge++] = (struct gauge){ "environments", 2 };
    snprintf(door->waits_for, sizeof(door->waits_for), "environments to post groups");
    for (int64_t step = 0; step < m->n_step; step++) {
        model_metric(m, step, "env/groups_per_min", 30 + (double)(step % 20));
        model_metric(m, step, "env/waiting", (double)(step % 7));
        model_metric(m, step, "env/age", 1.5);
        model_metric(m, step, "env/refused", (double)(step / 50));
    }
}

static int screens_show(enum color_depth depth)
{
    struct simulate_options run = { .steps = 400, .done = 150, .step_s = 1, .workers = 3, .seed = 1 };
    struct console_options o = { .theme = "dark", .glyphs = -1, .terminal = { .color = (int)depth, .escape_ms = 25 } };
    struct error err;
    struct screen s;
    struct app a;
    int w, h;
    struct model *m = model_new(&err);
    struct feed *feed = m ? simulate_new(&run, m, NOW_NS, &err) : NULL;
    if (!feed || !screen_open(&s, &o, &err))
        return 1;
    for (int64_t i = 0; i < MIN(m->n_event, (int64_t)MODEL_EVENTS); i++)
        m->event[i].time_s = WALL_S - 10 * (double)(m->n_event - i);
    for (int i = 0; i < m->n_saved; i++)
        m->saved[i].time_s = WALL_S;
    terminal_size(&w, &h);
    if (!app_init(&a, m, feed, w, h, &err))
        return 1;
    a.glyphs = s.glyphs;
    a.color = depth != DEPTH_NONE;
    for (size_t i = 0; i < ARRAY_SIZE(panes); i++) {
        struct key_event k;
        if (panes[i] == PANE_ENVIRONMENTS)
            environments_add(m);
        app_show(&a, panes[i]);
        app_flash(&a, ROLE_OK, NOW_NS, "screen %zu", i);
        if (!cells_resize(&s.cells, w, h, &err))
            return 1;
        app_draw(&a, &s.cells, NOW_NS, WALL_S);
        screen_draw(&s);
        struct pollfd fd = { .fd = terminal_fd(s.term), .events = POLLIN };
        while (!terminal_key(s.term, &k) && !terminal_gone(s.term))
            poll(&fd, 1, 100);
    }
    screen_close(&s);
    return 0;
}

/* ---- the test ---- */

static void digest_add(uint64_t *h, const void *data, size_t n)
{
    const unsigned char *b = data;
    for (size_t i = 0; i < n; i++)
        *h = (*h ^ b[i]) * 0x100000001b3u;    // FNV-1a
}

static uint64_t screen_digest(struct pty *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int y = 0; y < p->rows; y++)
        for (int x = 0; x < p->cols; x++) {
            VTermScreenCell cell;
            vterm_screen_get_cell(p->screen, (VTermPos){ .row = y, .col = x }, &cell);
            uint32_t ch = cell.chars[0] ? cell.chars[0] : ' ';
            vterm_screen_convert_color_to_rgb(p->screen, &cell.fg);
            vterm_screen_convert_color_to_rgb(p->screen, &cell.bg);
            unsigned char look[9] = { cell.fg.rgb.red,      cell.fg.rgb.green,         cell.fg.rgb.blue,
                                      cell.bg.rgb.red,      cell.bg.rgb.green,         cell.bg.rgb.blue,
                                      cell.attrs.bold != 0, cell.attrs.underline != 0, cell.attrs.reverse != 0 };
            digest_add(&h, &ch, sizeof(ch));
            digest_add(&h, look, sizeof(look));
        }
    return h;
}

struct shot {
    struct buf text;
    uint64_t digest[ARRAY_SIZE(depths)];
};

/* The digest that a file's text has for a pane and a depth; 0: none. */
static uint64_t wanted(const char *text, size_t pane, size_t depth)
{
    char head[64], word[16];
    snprintf(head, sizeof(head), "== %s:", pane_name(panes[pane]));
    snprintf(word, sizeof(word), " %s ", depth_names[depth]);
    const char *line = strstr(text, head), *at = line ? strstr(line, word) : NULL;
    return at ? strtoull(at + strlen(word), NULL, 16) : 0;
}

/* The screen once it is the wanted one. Another one is taken when nothing has been drawn for a while: a frame comes in pieces. */
static bool shot_take(struct pty *p, size_t i, struct shot *s, size_t depth, const char *want)
{
    char mark[32];
    uint64_t digest = wanted(want, i, depth);
    snprintf(mark, sizeof(mark), "screen %zu", i);
    if (!pty_wait(p, mark, LIMIT_S))
        return false;
    for (int quiet = 0; screen_digest(p) != digest && quiet < (digest ? 20 : 2);) {
        int64_t drawn = p->bytes_out;
        pty_read(p, 100, 0);
        quiet = p->bytes_out == drawn ? quiet + 1 : 0;
    }
    s->digest[depth] = screen_digest(p);
    if (depths[depth] != DEPTH_256)
        return true;
    for (int y = 0; y < p->rows; y++) {
        buf_str(&s->text, pty_row(p, y));
        buf_char(&s->text, '\n');
    }
    return true;
}

static bool shots_take(const char *self, int cols, int rows, const char *want, struct shot shot[ARRAY_SIZE(panes)])
{
    const char *env[] = { "TZ=UTC", NULL };
    for (size_t d = 0; d < ARRAY_SIZE(depths); d++) {
        struct pty p;
        char number[8];
        snprintf(number, sizeof(number), "%d", (int)depths[d]);
        char *argv[] = { (char *)self, "--show", number, NULL };
        if (!pty_start(&p, cols, rows, env, argv))
            return false;
        for (size_t i = 0; i < ARRAY_SIZE(panes); i++) {
            if (!shot_take(&p, i, &shot[i], d, want)) {
                pty_print(&p);
                pty_finish(&p, 5, true);
                return false;
            }
            pty_type(&p, "n");
        }
        pty_finish(&p, 20, false);
    }
    return true;
}

static void shots_write(struct buf *out, const struct shot shot[ARRAY_SIZE(panes)])
{
    for (size_t i = 0; i < ARRAY_SIZE(panes); i++) {
        buf_fmt(out, "== %s:", pane_name(panes[i]));
        for (size_t d = 0; d < ARRAY_SIZE(depths); d++)
            buf_fmt(out, " %s %016" PRIx64, depth_names[d], shot[i].digest[d]);
        buf_fmt(out, "\n%s", buf_text(&shot[i].text));
    }
}

/* The first line in which they differ, on stderr. */
static void difference_print(const char *path, const char *want, const char *got)
{
    int line = 1;
    while (*want || *got) {
        size_t a = strcspn(want, "\n"), b = strcspn(got, "\n");
        if (a != b || memcmp(want, got, a) != 0) {
            fprintf(stderr, "golden: %s:%d\n  was  %.*s\n  is   %.*s\n  UPDATE_GOLDEN=1 accepts the screens as they are\n", path, line,
                    (int)a, want, (int)b, got);
            return;
        }
        want += a + (want[a] == '\n');
        got += b + (got[b] == '\n');
        line++;
    }
}

int main(int argc, char **argv)
{
    bool update = getenv("UPDATE_GOLDEN") != NULL;
    int wrong = 0;
    if (argc == 3 && strcmp(argv[1], "--show") == 0)
        return screens_show((enum color_depth)atoi(argv[2]));
    if (argc != 2) {
        fprintf(stderr, "usage: tui_golden FOLDER\n");
        return 2;
    }
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct shot shot[ARRAY_SIZE(panes)] = { 0 };
        struct buf got = BUF_INIT, want = BUF_INIT;
        struct error err = { 0 };
        char path[4096];
        for (size_t k = 0; k < ARRAY_SIZE(panes); k++)
            shot[k].text = (struct buf)BUF_INIT;
        snprintf(path, sizeof(path), "%s/%dx%d.txt", argv[1], sizes[i].cols, sizes[i].rows);
        bool ok = (update || file_read_text(&want, path, (size_t)4 << 20, &err))
                  && shots_take(argv[0], sizes[i].cols, sizes[i].rows, update ? "" : buf_text(&want), shot);
        if (!ok && !err.text[0])
            fprintf(stderr, "golden: the screens of %dx%d did not come\n", sizes[i].cols, sizes[i].rows);
        shots_write(&got, shot);
        if (ok && update)
            ok = file_write(path, buf_text(&got), got.len, &err);
        if (err.text[0])
            fprintf(stderr, "golden: %s\n", err.text);
        if (ok && !update && strcmp(buf_text(&want), buf_text(&got)) != 0) {
            difference_print(path, buf_text(&want), buf_text(&got));
            ok = false;
        }
        wrong += !ok;
        for (size_t k = 0; k < ARRAY_SIZE(panes); k++)
            buf_release(&shot[k].text);
        buf_release(&got);
        buf_release(&want);
    }
    return wrong != 0;
}
