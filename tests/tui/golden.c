/* golden.c - the console's screens as a terminal shows them, compared with what they were: five sizes, three depths of colour
 *
 *   tui_golden FOLDER       compare with FOLDER/COLSxROWS.txt; UPDATE_GOLDEN=1 writes them anew (look at the difference before a commit)
 * The screens are drawn by this program itself on a terminal of libvterm's, of a simulated run whose clock stands still; what panes
 * read from a run's folder is in one that it makes. A file holds each screen's text as 256 colours show it, and for each depth a digest
 * of all cells with their colours and attributes. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "console/simulate/simulate.h"
#include "console/tui/app.h"
#include "console/tui/screen.h"
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/record/group_msg.h"
#include "protocol/record/journal.h"
#include "protocol/record/rollout_file.h"
#include "tests/tui/pty.h"

#define NOW_NS ((int64_t)100 * 1000000000)
#define WALL_S 1700000000.0
#define LIMIT_S 60

static const struct {
    int cols, rows;
} sizes[] = { { 40, 10 }, { 60, 15 }, { 80, 24 }, { 120, 36 }, { 200, 60 } };
static const char *const depth_names[] = { "never", "8", "256" };
static const enum color_depth depths[] = { DEPTH_NONE, DEPTH_8, DEPTH_256 };
static const struct {
    const char *name;
    enum pane_id pane;
    const char *filter;    // of the settings, a few: others come and go
    bool help, folder;     // over the pane; with what is read from the run's folder
} screens[] = {
    { .name = "Overview", PANE_OVERVIEW },
    { .name = "Workers", PANE_WORKERS },
    { .name = "Rollouts", PANE_ROLLOUTS },
    { .name = "Events", PANE_EVENTS },
    { .name = "Checkpoints", PANE_SAVED },
    { .name = "Alarms", PANE_ALARMS },
    { .name = "Metrics", PANE_METRICS },
    { .name = "Kept rollouts", PANE_ROLLOUTS, .folder = true },
    { .name = "Data", PANE_DATA, .folder = true },
    { .name = "Devices", PANE_DEVICES, .folder = true },
    { .name = "Knobs", PANE_KNOBS, .filter = "clip" },
    { .name = "Log", PANE_LOG },
    { .name = "Environments", PANE_ENVIRONMENTS },
    { .name = "Help", PANE_OVERVIEW, .help = true },
};
#define N_SCREEN ((int)ARRAY_SIZE(screens))

/* ---- a run's folder: groups of five prompts, and how a host with two GPUs was used ---- */

#define GROUPS 40
#define SAMPLES 4

static bool group_keep(struct journal *j, struct rollout_file *file, int64_t item, struct error *err)
{
    static const char *const answers[] = { "9 + 7 is 16. \\boxed{16}", "it is \\boxed{15}", "I do not know", "\\boxed{16}" };
    struct msg_out m = MSG_OUT_INIT;
    struct group *g = group_new(2, SAMPLES, 3 * SAMPLES, err);
    const char *texts[SAMPLES];
    char prompt[64];
    int64_t row = item % 5;
    struct journal_item i = { .item = item,
                              .prompt_row = row,
                              .rollout_step = item / 4,
                              .weight_version = item / 4,
                              .fate = item % 7 == 3 ? ITEM_FILTERED : ITEM_TRAINED,
                              .step = item % 7 == 3 ? -1 : item / 4 + 1 };
    if (!g)
        return false;
    g->item = item;
    g->prompt_row = row;
    g->weight_version = item / 4;
    snprintf(g->gold, sizeof(g->gold), "16");
    snprintf(prompt, sizeof(prompt), "Prompt %" PRId64 ": what is 9 + 7?", row + 1);
    for (int s = 0; s < SAMPLES; s++) {
        bool right = row > 0 && (s == 0 || s < (int)row + (int)(item / 20) - 1);
        texts[s] = answers[right ? 0 : 1 + s % 2];
        g->sample[s] = (struct sample){ .first_tok = 3 * s, .n_tok = 3, .score = SCORE_OK, .reward = right, .ans_acc = right };
        for (int k = 0; k < GROUP_PARTS_MAX; k++)
            g->sample[s].part[k] = NAN;
        snprintf(g->sample[s].reason, sizeof(g->sample[s].reason), "boxed: %s", right ? "equal" : "different");
        i.reward_mean += (double)right / SAMPLES;
    }
    msg_begin(&m, MSG_GROUP);
    msg_i64(&m, "incarnation", 1);
    group_write(&m, g, &(struct group_texts){ .prompt = prompt, .sample = texts });
    bool ok = msg_finish(&m, err) && rollout_file_append(file, m.buf.data, m.buf.len, &i.file_offset, &i.file_bytes, err)
              && journal_item_put(j, &i, err);
    msg_release(&m);
    group_free(g);
    return ok;
}

static bool sample_keep(struct journal *j, int64_t i, struct error *err)
{
    double wave = 50 + 45 * sin((double)i / 9);
    const struct journal_metric figure[] = {
        { "host/cpu_percent", 20 + wave / 4 },
        { "host/mem_percent", 41 },
        { "gpu/0/util_percent", wave },
        { "gpu/0/power_watts", 100 + 5 * wave },
        { "gpu/0/temp_celsius", 40 + wave / 3 },
        { "gpu/1/util_percent", 100 - wave },
        { "gpu/1/mem_percent", 63 },
    };
    return journal_sample_add(j, "node-1", WALL_S - 10 * (double)(200 - i), figure, ARRAY_SIZE(figure), err);
}

static bool folder_fill(const char *dir, struct error *err)
{
    char path[PATH_MAX];
    const int64_t pair[] = { 0, 1, 1, 2, 2, 4, 3, 6, 4, 9 };
    struct rollout_file *file = NULL;
    struct journal *j = journal_open(dir, err);
    bool ok = j && path_join(path, sizeof(path), dir, "rollouts") && dir_make(path, 0700, err)
              && path_join(path, sizeof(path), dir, "rollouts/groups.zst") && (file = rollout_file_open(path, 0, NULL, err))
              && journal_begin(j, err) && journal_value_put(j, "lines", pair, sizeof(pair), err)
              && journal_value_put(j, "quarantine", "3\n", 2, err);
    for (int64_t i = 0; ok && i < GROUPS; i++)
        ok = group_keep(j, file, i, err);
    for (int64_t i = 0; ok && i < 200; i++)
        ok = sample_keep(j, i, err);
    ok = ok && journal_commit(j, err);
    rollout_file_close(file);
    journal_close(j);
    return ok;
}

/* Have the panes' readers read all of it. */
static void folder_read(struct app *a)
{
    struct archive *archive = a->archive;
    static int64_t now_ns = NOW_NS;
    for (int i = 0; i < 3; i++) {
        now_ns += (int64_t)2000000000;
        app_archive_wants(a);
        while (archive_pump(archive, a->model, ARCHIVE_GROUPS, 10000000, now_ns))
            continue;
        while (device_log_pump(a->devices, a->model, 10000000, now_ns))
            continue;
    }
}

/* ---- the program on the terminal: draws a screen, and the next one when a byte comes ---- */

/* Two environments that post, and one that has gone; the door that takes their groups. The simulated run has none. */
static void environments_add(struct run_view *m)
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
        struct proc *p = view_proc(m, rows[i].name);
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
    struct proc *door = view_proc(m, "environments");
    door->gauge[door->n_gauge++] = (struct gauge){ "environments", 2 };
    snprintf(door->waits_for, sizeof(door->waits_for), "environments to post groups");
    for (int64_t step = 0; step < m->n_step; step++) {
        view_metric(m, step, "env/groups_per_min", 30 + (double)(step % 20));
        view_metric(m, step, "env/waiting", (double)(step % 7));
        view_metric(m, step, "env/age", 1.5);
        view_metric(m, step, "env/refused", (double)(step / 50));
    }
}

static void screen_show(struct app *a, struct archive *archive, struct device_log *devices, int i)
{
    a->archive = screens[i].folder ? archive : NULL;
    a->devices = screens[i].folder ? devices : NULL;
    if (screens[i].pane == PANE_ENVIRONMENTS)
        environments_add(a->model);
    app_show(a, screens[i].pane);
    snprintf(app_pane(a)->filter, sizeof(app_pane(a)->filter), "%s", screens[i].filter ? screens[i].filter : "");
    a->help = screens[i].help;
    if (screens[i].folder)
        folder_read(a);
    app_news(a, NOW_NS);
}

static int screens_show(enum color_depth depth, const char *dir)
{
    struct simulate_options run = { .steps = 400, .done = 150, .step_s = 1, .workers = 3, .seed = 1 };
    struct console_options o = { .theme = "dark", .glyphs = -1, .terminal = { .color = (int)depth, .escape_ms = 25 } };
    struct error err;
    struct screen s;
    struct app a;
    int w, h;
    struct run_view *m = view_new(&err);
    struct feed *feed = m ? simulate_new(&run, m, NOW_NS, &err) : NULL;
    struct archive *archive = archive_new(dir);
    struct device_log *devices = device_log_new(dir);
    if (!feed || !archive || !devices || !screen_open(&s, &o, &err))
        return 1;
    view_knob(m, "rollout_save_dir", "", NOW_NS);
    view_knob(m, "telemetry_s", "10", NOW_NS);
    for (int64_t i = 0; i < MIN(m->n_event, (int64_t)MODEL_EVENTS); i++)
        m->event[i].time_s = WALL_S - 10 * (double)(m->n_event - i);
    for (int i = 0; i < m->n_saved; i++)
        m->saved[i].time_s = WALL_S;
    for (int64_t i = 0; i < MIN(m->n_log, (int64_t)MODEL_LOG); i++)
        snprintf(m->log[i].clock, sizeof(m->log[i].clock), "22:13:20");
    terminal_size(&w, &h);
    if (!app_init(&a, m, feed, w, h, &err))
        return 1;
    a.glyphs = s.glyphs;
    a.color = depth != DEPTH_NONE;
    for (int i = 0; i < N_SCREEN; i++) {
        struct key_event k;
        screen_show(&a, archive, devices, i);
        app_flash(&a, ROLE_OK, NOW_NS, "screen %d.", i);
        if (!cells_resize(&s.cells, w, h, &err))
            return 1;
        app_draw(&a, &s.cells, NOW_NS, WALL_S);
        screen_draw(&s);
        struct pollfd fd = { .fd = terminal_fd(s.term), .events = POLLIN };
        while (!terminal_key(s.term, &k) && !terminal_gone(s.term))
            poll(&fd, 1, 100);
    }
    screen_close(&s);
    archive_free(archive);
    device_log_free(devices);
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

/* The digest that a file's text has for a screen and a depth; 0: none. */
static uint64_t wanted(const char *text, int screen, size_t depth)
{
    char head[64], word[16];
    snprintf(head, sizeof(head), "== %s:", screens[screen].name);
    snprintf(word, sizeof(word), " %s ", depth_names[depth]);
    const char *line = strstr(text, head), *at = line ? strstr(line, word) : NULL;
    return at ? strtoull(at + strlen(word), NULL, 16) : 0;
}

/* The screen once it is the wanted one. Another one is taken when nothing has been drawn for a while: a frame comes in pieces. */
static bool shot_take(struct pty *p, int i, struct shot *s, size_t depth, const char *want)
{
    char mark[32];
    uint64_t digest = wanted(want, i, depth);
    snprintf(mark, sizeof(mark), screens[i].help ? "Keys and commands" : "screen %d.", i);
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

static bool shots_take(const char *self, const char *dir, int cols, int rows, const char *want, struct shot shot[N_SCREEN])
{
    const char *env[] = { "TZ=UTC", NULL };
    for (size_t d = 0; d < ARRAY_SIZE(depths); d++) {
        struct pty p;
        char number[8];
        snprintf(number, sizeof(number), "%d", (int)depths[d]);
        char *argv[] = { (char *)self, "--show", number, (char *)dir, NULL };
        if (!pty_start(&p, cols, rows, env, argv))
            return false;
        for (int i = 0; i < N_SCREEN; i++) {
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

static void shots_write(struct buf *out, const struct shot shot[N_SCREEN])
{
    for (int i = 0; i < N_SCREEN; i++) {
        buf_fmt(out, "== %s:", screens[i].name);
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

/* Compare the screens of one size, or write them. */
static bool size_check(const char *self, const char *dir, const char *folder, int cols, int rows, bool update)
{
    struct shot shot[N_SCREEN] = { 0 };
    struct buf got = BUF_INIT, want = BUF_INIT;
    struct error err = { 0 };
    char path[4096];
    for (int k = 0; k < N_SCREEN; k++)
        shot[k].text = (struct buf)BUF_INIT;
    snprintf(path, sizeof(path), "%s/%dx%d.txt", folder, cols, rows);
    bool ok = (update || file_read_text(&want, path, (size_t)4 << 20, &err))
              && shots_take(self, dir, cols, rows, update ? "" : buf_text(&want), shot);
    if (!ok && !err.text[0])
        fprintf(stderr, "golden: the screens of %dx%d did not come\n", cols, rows);
    shots_write(&got, shot);
    if (ok && update)
        ok = file_write(path, buf_text(&got), got.len, &err);
    if (err.text[0])
        fprintf(stderr, "golden: %s\n", err.text);
    if (ok && !update && strcmp(buf_text(&want), buf_text(&got)) != 0) {
        difference_print(path, buf_text(&want), buf_text(&got));
        ok = false;
    }
    for (int k = 0; k < N_SCREEN; k++)
        buf_release(&shot[k].text);
    buf_release(&got);
    buf_release(&want);
    return ok;
}

int main(int argc, char **argv)
{
    bool update = getenv("UPDATE_GOLDEN") != NULL;
    int wrong = 0;
    struct error err;
    char dir[] = "/tmp/rollcall-golden-XXXXXX";
    if (argc == 4 && strcmp(argv[1], "--show") == 0)
        return screens_show((enum color_depth)atoi(argv[2]), argv[3]);
    if (argc != 2) {
        fprintf(stderr, "usage: tui_golden FOLDER\n");
        return 2;
    }
    if (!mkdtemp(dir) || !folder_fill(dir, &err)) {
        fprintf(stderr, "golden: cannot make a run's folder '%s'\n", dir);
        return 1;
    }
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        wrong += !size_check(argv[0], dir, argv[1], sizes[i].cols, sizes[i].rows, update);
    if (!dir_remove(dir, &err))
        fprintf(stderr, "golden: %s\n", err.text);
    return wrong != 0;
}
