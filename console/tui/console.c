/* console.c - see console.h
 *
 * The loop thread owns model, application and feed. It wakes for news, keys, signals and once a second; it draws at most four
 * frames a second for news, at once after a key, and none when nothing has changed. */
#include "console/tui/console.h"
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "console/tui/app.h"
#include "console/tui/theme.h"
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"

#define FRAME_NS ((int64_t)250 * 1000000)    // between frames drawn for news only
#define TICK_NS ((int64_t)1000 * 1000000)    // ages and the clock go on

struct loop {
    struct feed *feed;
    struct model *model;
    struct app app;
    struct terminal *term;
    struct cells cells;
    struct theme theme;
    bool ascii;
    int signal_fd;
    uint64_t drawn_version;
    int64_t drawn_ns, tick_ns;
    bool dirty, quit;
};

/* "15;0" (rxvt, konsole and others): foreground, background as palette numbers. */
static const char *theme_default(void)
{
    const char *fgbg = getenv("COLORFGBG");
    const char *last = fgbg ? strrchr(fgbg, ';') : NULL;
    return last && (strcmp(last, ";7") == 0 || strcmp(last, ";15") == 0) ? "light" : "dark";
}

static enum chart_glyphs glyphs_default(void)
{
    const char *term = getenv("TERM");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        return GLYPHS_ASCII;
    return term && strcmp(term, "linux") == 0 ? GLYPHS_BLOCK : GLYPHS_BRAILLE;    // the kernel's font has no braille
}

static void theme_apply(struct loop *l, const char *name, int64_t now_ns)
{
    struct theme t;
    struct error err = { 0 };
    if (!theme_load(&t, name, &err)) {
        app_flash(&l->app, ROLE_CRIT, now_ns, "%s", err.text);
        return;
    }
    l->theme = t;
    terminal_theme(l->term, &t);
    app_flash(&l->app, ROLE_DIM, now_ns, "theme: %s", t.name);
}

static void screen_save(struct loop *l, int64_t now_ns)
{
    struct buf text = BUF_INIT;
    struct error err = { 0 };
    struct cells c = { 0 };
    char row[4 * CELLS_MAX_SIDE + 16];
    bool ok = cells_resize(&c, l->app.w, l->app.h, &err);
    if (ok) {
        app_draw(&l->app, &c, now_ns, clock_wall_s());
        if (l->ascii)
            cells_ascii(&c);
        for (int y = 0; y < c.h; y++) {
            cells_row(&c, y, row, sizeof(row));
            buf_str(&text, row);
            buf_char(&text, '\n');
        }
        ok = !path_exists(l->app.path) || error_set(&err, ERR_EXISTS, "'%.200s' exists already", l->app.path);
    }
    if (ok && file_write(l->app.path, buf_text(&text), text.len, &err))
        app_flash(&l->app, ROLE_OK, now_ns, "screen written to %s", l->app.path);
    else
        app_flash(&l->app, ROLE_CRIT, now_ns, "%s", err.text);
    cells_release(&c);
    buf_release(&text);
}

static void wishes_do(struct loop *l, int64_t now_ns)
{
    struct app *a = &l->app;
    unsigned wish = a->wish;
    a->wish = 0;
    if (wish & WISH_QUIT)
        l->quit = true;
    if (wish & WISH_THEME)
        theme_apply(l, a->theme[0] ? a->theme : l->theme.light ? "dark" : "light", now_ns);
    if (wish & WISH_MOUSE) {
        terminal_mouse(l->term, a->mouse);
        app_flash(a, ROLE_DIM, now_ns, a->mouse ? "mouse on" : "mouse off: the terminal selects text again");
    }
    if (wish & WISH_SAVE_SCREEN)
        screen_save(l, now_ns);
    if (wish & WISH_REDRAW)
        terminal_redraw(l->term);
    if (wish & WISH_SUSPEND)
        terminal_suspend(l->term);
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
    struct signalfd_siginfo info;
    while (read(l->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGWINCH || info.ssi_signo == SIGCONT) {
            size_take(l);
            if (info.ssi_signo == SIGCONT)
                terminal_redraw(l->term);
        } else {
            l->quit = true;
        }
    }
}

static void frame_draw_now(struct loop *l, int64_t now_ns)
{
    struct error err = { 0 };
    if (!cells_resize(&l->cells, l->app.w, l->app.h, &err))
        return;    // no memory for this size: the last frame stays
    app_draw(&l->app, &l->cells, now_ns, clock_wall_s());
    if (l->ascii)
        cells_ascii(&l->cells);
    terminal_frame(l->term, &l->cells);
    l->drawn_version = l->model->version;
    l->drawn_ns = now_ns;
    l->dirty = false;
}

/* Milliseconds until something is due. */
static int wait_ms(const struct loop *l, int64_t now_ns)
{
    int64_t due = MIN(l->tick_ns + TICK_NS, l->feed->due_ns(l->feed));
    if (l->dirty)
        due = now_ns;
    else if (l->model->version != l->drawn_version && !l->app.frozen)
        due = MIN(due, l->drawn_ns + FRAME_NS);
    int64_t ms = (due - now_ns + 999999) / 1000000;
    return (int)MIN(MAX(ms, 0), 1000);
}

static void tick(struct loop *l, int64_t now_ns)
{
    for (int i = 0; i < l->model->n_proc; i++)
        model_lane(l->model, &l->model->proc[i], now_ns);
    l->tick_ns = now_ns;
    if (!l->app.frozen)
        l->dirty = true;
}

static void paste_give(struct loop *l, int size_bytes, int64_t now_ns)
{
    char text[INPUT_MAX];
    terminal_paste(l->term, text, sizeof(text));
    app_paste(&l->app, text, size_bytes, now_ns);
}

static bool loop_run(struct loop *l, struct error *err)
{
    size_take(l);
    while (!l->quit) {
        int64_t now = clock_ns();
        struct pollfd fds[3] = {
            { .fd = terminal_fd(l->term), .events = POLLIN },
            { .fd = l->signal_fd, .events = POLLIN },
            { .fd = l->feed->fd, .events = POLLIN },
        };
        if (poll(fds, 3, wait_ms(l, now)) < 0 && errno != EINTR)
            return error_errno(err, "cannot wait for keys and news");
        now = clock_ns();
        if (fds[1].revents)
            signals_take(l);
        if (fds[2].revents || now >= l->feed->due_ns(l->feed)) {
            l->feed->pump(l->feed, l->model, now);
            app_news(&l->app, now);
        }
        struct key_event k;
        while (terminal_key(l->term, &k)) {
            if (k.key == KEY_PASTE)
                paste_give(l, k.x, now);
            else
                app_key(&l->app, &k, now);
            l->dirty = true;
        }
        if (terminal_gone(l->term))
            return error_set(err, ERR_CLOSED, "the terminal has gone; the run goes on");
        wishes_do(l, now);
        if (now - l->tick_ns >= TICK_NS)
            tick(l, now);
        bool news = l->model->version != l->drawn_version && now - l->drawn_ns >= FRAME_NS && !l->app.frozen;
        if (l->dirty || news)
            frame_draw_now(l, now);
    }
    return true;
}

bool console_run(struct feed *feed, struct model *m, const struct console_options *options, struct error *err)
{
    struct loop l = { .feed = feed, .model = m, .signal_fd = -1 };
    bool ok = false;
    sigset_t set, before;
    setlocale(LC_CTYPE, "");
    sigemptyset(&set);
    const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGCONT };
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        sigaddset(&set, signals[i]);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    TRY(app_init(&l.app, m, feed, 80, 24, err));
    l.app.glyphs = options->glyphs >= 0 ? (enum chart_glyphs)options->glyphs : glyphs_default();
    l.ascii = l.app.glyphs == GLYPHS_ASCII;
    l.app.mouse = options->terminal.mouse;
    struct error theme_err = { 0 };
    if (!theme_load(&l.theme, options->theme ? options->theme : theme_default(), &theme_err)) {
        if (options->theme) {
            *err = theme_err;
            goto out;
        }
        theme_init(&l.theme);    // nobody asked for it by name: the built-in looks do
        app_flash(&l.app, ROLE_WARN, clock_ns(), "%s", theme_err.text);
    }
    l.signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (l.signal_fd < 0) {
        error_errno(err, "cannot receive signals");
        goto out;
    }
    l.term = terminal_new(&options->terminal, &l.theme, err);
    if (!l.term)
        goto out;
    l.app.color = terminal_depth(l.term) != DEPTH_NONE;
    ok = loop_run(&l, err);
out:
    terminal_free(l.term);
    app_release(&l.app);
    cells_release(&l.cells);
    if (l.signal_fd >= 0)
        close(l.signal_fd);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}
