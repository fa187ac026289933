/* console.c - see console.h
 *
 * The loop thread owns model, application and feed. It wakes for news, keys, signals and once per second. It draws at most four
 * frames per second for news, at once after a key, and none when nothing has changed. */
#include "console/tui/console.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/save.h"
#include "console/tui/screen.h"
#include "protocol/base/clock.h"

#define FRAME_NS ((int64_t)250 * 1000000)          // between frames that are drawn only for news
#define ARCHIVE_NS ((int64_t)6 * 1000000)          // that the archive works at a time
#define ARCHIVE_REST_NS ((int64_t)10 * 1000000)    // between two such times, so that it takes less than half a core
#define TICK_NS ((int64_t)1000 * 1000000)          // ages and the clock advance
#define LOOK_NS ((int64_t)60 * 1000000000)         // between two notes of what this person has seen
#define AWAY_S 60                                  // who was away for less is told nothing

struct loop {
    struct feed *feed, *with_feed;    // with_feed NULL: no other run
    struct run_view *model, *with_model;
    struct archive *archive;       // owned; NULL: the run has no folder
    struct device_log *devices;    // the same
    bool archive_busy;             // one of them has more to do at once
    struct app app;
    struct screen screen;
    uint64_t drawn_version;
    int64_t drawn_ns, tick_ns;
    int64_t look_ns;    // when what this person has seen was kept; 0: the run has not come in whole
    bool dirty, quit;
};

static void theme_apply(struct loop *l, const char *name, int64_t now_ns)
{
    struct theme t;
    struct error err = { 0 };
    if (!theme_load(&t, name, &err)) {
        app_flash(&l->app, ROLE_CRIT, now_ns, "%s", err.text);
        return;
    }
    l->screen.theme = t;
    terminal_theme(l->screen.term, &t);
    app_flash(&l->app, ROLE_DIM, now_ns, "theme: %s", t.name);
}

static void screen_save(struct loop *l, int64_t now_ns)
{
    struct error err = { 0 };
    struct cells c = { 0 };
    bool ok = cells_resize(&c, l->app.w, l->app.h, &err);
    if (ok) {
        app_draw(&l->app, &c, now_ns, clock_wall_s());
        if (l->screen.ascii)
            cells_ascii(&c);
        ok = save_screen(&c, &l->screen.theme, l->app.path, &err);
    }
    if (ok)
        app_flash(&l->app, ROLE_OK, now_ns, "screen written to %s", l->app.path);
    else
        app_flash(&l->app, ROLE_CRIT, now_ns, "%s", err.text);
    cells_release(&c);
}

/* The metrics of the chart that is open, of the steps it shows; elsewhere all metrics and steps. */
static void series_save(struct loop *l, int64_t now_ns)
{
    struct save_column column[METRIC_N + MODEL_EXTRA];
    struct error err;
    int64_t from, to;
    int n = metrics_chosen(&l->app, column, ARRAY_SIZE(column), &from, &to);
    if (save_series(column, n, from, to, l->app.path, &err))
        app_flash(&l->app, ROLE_OK, now_ns, "%d metric%s of steps %" PRId64 " to %" PRId64 ": written to %s", n, n == 1 ? "" : "s", from,
                  to - 1, l->app.path);
    else
        app_flash(&l->app, ROLE_CRIT, now_ns, "%s", err.text);
}

static void wishes_do(struct loop *l, int64_t now_ns)
{
    struct app *a = &l->app;
    unsigned wish = a->wish;
    a->wish = 0;
    if (wish & WISH_QUIT)
        l->quit = true;
    if (wish & WISH_THEME)
        theme_apply(l, a->theme[0] ? a->theme : l->screen.theme.light ? "dark" : "light", now_ns);
    if (wish & WISH_MOUSE) {
        terminal_mouse(l->screen.term, a->mouse);
        app_flash(a, ROLE_DIM, now_ns, a->mouse ? "mouse on" : "mouse off: the terminal selects text again");
    }
    if (wish & WISH_SAVE_SCREEN)
        screen_save(l, now_ns);
    if (wish & WISH_SAVE_SERIES)
        series_save(l, now_ns);
    if (wish & WISH_SINCE && !since_show(a, clock_wall_s()))
        app_flash(a, ROLE_DIM, now_ns, a->has_look ? "nothing has happened since you last looked" : "this is your first look at this run");
    if (wish & WISH_BELL)
        terminal_bell(l->screen.term);
    if (wish & WISH_REDRAW)
        terminal_redraw(l->screen.term);
    if (wish & WISH_SUSPEND)
        terminal_suspend(l->screen.term);
}

static void size_take(struct loop *l)
{
    int w, h;
    terminal_size(&w, &h);
    app_resize(&l->app, w, h);
    l->dirty = true;
}

static void signals_take(struct loop *l)
{
    unsigned news = screen_signals(&l->screen);
    if (news & SCREEN_RESIZED)
        size_take(l);
    if (news & SCREEN_QUIT)
        l->quit = true;
}

static void frame_draw_now(struct loop *l, int64_t now_ns)
{
    struct error err = { 0 };
    if (!cells_resize(&l->screen.cells, l->app.w, l->app.h, &err))
        return;    // no memory for this size: the last frame stays
    app_draw(&l->app, &l->screen.cells, now_ns, clock_wall_s());
    screen_draw(&l->screen);
    l->drawn_version = l->model->version;
    l->drawn_ns = now_ns;
    l->dirty = false;
}

/* Milliseconds until something is due. */
static int wait_ms(const struct loop *l, int64_t now_ns)
{
    int64_t due = MIN(l->tick_ns + TICK_NS, l->feed->due_ns(l->feed));
    if (l->with_feed)
        due = MIN(due, l->with_feed->due_ns(l->with_feed));
    if (l->dirty)
        due = now_ns;
    else if (l->archive_busy)
        due = MIN(due, now_ns + ARCHIVE_REST_NS);
    else if (l->model->version != l->drawn_version && !l->app.frozen)
        due = MIN(due, l->drawn_ns + FRAME_NS);
    int64_t ms = (due - now_ns + 999999) / 1000000;
    return (int)MIN(MAX(ms, 0), 1000);
}

/* Once the run has come in: tell what has happened since this person last looked. From then on, keep what they have seen. */
static void look_take(struct loop *l, int64_t now_ns)
{
    const struct run_view *m = l->model;
    double now_s = clock_wall_s();
    if (!m->dir[0] || m->told_ns == 0 || m->n_event == 0 || !view_steps_whole(m) || l->app.replay)
        return;
    if (l->look_ns == 0) {
        l->app.has_look = last_look_read(m, &l->app.look);
        if (l->app.has_look && now_s - l->app.look.wall_s >= AWAY_S)
            since_show(&l->app, now_s);
    } else if (now_ns - l->look_ns < LOOK_NS) {
        return;
    }
    last_look_keep(m, now_s);
    l->look_ns = now_ns;
}

static void tick(struct loop *l, int64_t now_ns)
{
    look_take(l, now_ns);
    for (int i = 0; i < l->model->n_proc; i++)
        view_lane(l->model, &l->model->proc[i], now_ns);
    app_tick(&l->app, now_ns);
    l->tick_ns = now_ns;
    if (!l->app.frozen)
        l->dirty = true;
}

/* What is read from the run's folder is read only for the panes that show it. */
static void archive_work(struct loop *l, int64_t now_ns)
{
    int64_t n_count = l->app.shown == PANE_ROLLOUTS ? 500 : l->app.shown == PANE_DATA ? ARCHIVE_GROUPS : 0;
    l->archive_busy = l->devices && l->app.shown == PANE_DEVICES && device_log_pump(l->devices, l->model, ARCHIVE_NS, now_ns);
    if (!l->archive || n_count == 0)
        return;
    app_archive_wants(&l->app);
    l->archive_busy = archive_pump(l->archive, l->model, n_count, ARCHIVE_NS, now_ns);
}

static void paste_give(struct loop *l, int size_bytes, int64_t now_ns)
{
    char text[INPUT_MAX];
    terminal_paste(l->screen.term, text, sizeof(text));
    app_paste(&l->app, text, size_bytes, now_ns);
}

static bool loop_run(struct loop *l, struct error *err)
{
    size_take(l);
    while (!l->quit) {
        int64_t now = clock_ns();
        struct pollfd fds[4] = {
            { .fd = terminal_fd(l->screen.term), .events = POLLIN },
            { .fd = l->screen.signal_fd, .events = POLLIN },
            { .fd = l->feed->fd, .events = POLLIN },
            { .fd = l->with_feed ? l->with_feed->fd : -1, .events = POLLIN },
        };
        if (poll(fds, ARRAY_SIZE(fds), wait_ms(l, now)) < 0 && errno != EINTR)
            return error_errno(err, "cannot wait for keys and news");
        now = clock_ns();
        if (fds[1].revents)
            signals_take(l);
        if (fds[2].revents || now >= l->feed->due_ns(l->feed)) {
            l->feed->pump(l->feed, l->model, now);
            app_news(&l->app, now);
        }
        if (l->with_feed && (fds[3].revents || now >= l->with_feed->due_ns(l->with_feed))) {
            l->with_feed->pump(l->with_feed, l->with_model, now);
            app_news(&l->app, now);
            view_changed(l->model);    // the charts show it, too
        }
        struct key_event k;
        while (terminal_key(l->screen.term, &k)) {
            if (k.key == KEY_PASTE)
                paste_give(l, k.x, now);
            else
                app_key(&l->app, &k, now);
            l->dirty = true;
        }
        if (terminal_gone(l->screen.term))
            return error_set(err, ERR_CLOSED, "the terminal is gone; the run continues");
        wishes_do(l, now);
        archive_work(l, now);
        if (now - l->tick_ns >= TICK_NS)
            tick(l, now);
        bool news = l->model->version != l->drawn_version && now - l->drawn_ns >= FRAME_NS && !l->app.frozen;
        if (l->dirty || news)
            frame_draw_now(l, now);
    }
    return true;
}

/* Values of the options that choose one of a few words. */
static bool word_find(const char *option, const char *word, const char *const *words, int n, int *out, struct error *err)
{
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], word) == 0) {
            *out = i;
            return true;
        }
    return error_set(err, ERR_USAGE, "--%s does not know '%.40s'", option, word);
}

bool console_look_parse(struct console_options *o, const char *color, const char *glyphs, bool ascii, struct error *err)
{
    static const char *const depths[] = { [DEPTH_NONE] = "never", [DEPTH_8] = "8", [DEPTH_256] = "256", [DEPTH_TRUE] = "true" };
    static const char *const kinds[] = { [GLYPHS_BRAILLE] = "braille", [GLYPHS_BLOCK] = "block", [GLYPHS_ASCII] = "ascii" };
    o->terminal.color = -1;
    o->glyphs = ascii ? (int)GLYPHS_ASCII : -1;
    return (strcmp(color, "auto") == 0 || word_find("color", color, depths, 4, &o->terminal.color, err))
           && (strcmp(glyphs, "auto") == 0 || word_find("glyphs", glyphs, kinds, 3, &o->glyphs, err));
}

bool console_run(struct feed *feed, struct run_view *m, const struct console_options *options, struct error *err)
{
    struct loop l = { .feed = feed, .model = m, .with_feed = options->with_feed, .with_model = options->with_model };
    if (!screen_open(&l.screen, options, err))
        return false;
    bool ok = app_init(&l.app, m, feed, 80, 24, err);
    if (ok) {
        l.archive = options->run_dir ? archive_new(options->run_dir) : NULL;    // NULL: what was heard of must do
        l.devices = options->run_dir ? device_log_new(options->run_dir) : NULL;
        l.app.archive = l.archive;
        l.app.devices = l.devices;
        l.app.glyphs = l.screen.glyphs;
        l.app.mouse = options->terminal.mouse;
        l.app.compare.model = options->with_model;
        compare_update(&l.app.compare, m);
        l.app.color = terminal_depth(l.screen.term) != DEPTH_NONE;
        if (l.screen.theme_note[0])
            app_flash(&l.app, ROLE_WARN, clock_ns(), "%s", l.screen.theme_note);
        ok = loop_run(&l, err);
        if (l.look_ns > 0 && !l.app.replay)
            last_look_keep(m, clock_wall_s());
        app_release(&l.app);
        archive_free(l.archive);
        device_log_free(l.devices);
    }
    screen_close(&l.screen);
    return ok;
}
