/* scale.c - what a live run of a large fleet, and a long history, cost the console inside: times of drawing and of taking news
 *
 *   tui_scale fleet RUN_DIR SECONDS     draw every pane of a live run (rollcall simulate --agents), as fast as news come
 *   tui_scale history STEPS             fill a model with STEPS steps of a simulated run and draw it
 *   tui_scale load RUN_DIR              open a live run, and take all its steps over the socket
 * Figures only. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/fleet/link.h"
#include "console/simulate/simulate.h"
#include "console/tui/app.h"
#include "protocol/base/clock.h"

#define COLS 200
#define ROWS 60
#define SAMPLES_MAX 100000

struct times {
    double ms[SAMPLES_MAX];
    int n;
};

static void time_add(struct times *t, int64_t begin_ns)
{
    if (t->n < SAMPLES_MAX)
        t->ms[t->n++] = (double)(clock_ns() - begin_ns) * 1e-6;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void times_print(const char *what, struct times *t)
{
    qsort(t->ms, (size_t)t->n, sizeof(t->ms[0]), ascending);
    if (t->n > 0)
        printf("%s: %.2f ms (median), %.2f ms (99 of 100), %.2f ms (worst of %d)\n", what, t->ms[t->n / 2], t->ms[(int64_t)t->n * 99 / 100],
               t->ms[t->n - 1], t->n);
}

static void draw(struct app *a, struct cells *c, struct times *t)
{
    int64_t begin = clock_ns();
    app_draw(a, c, begin, clock_wall_s());
    time_add(t, begin);
}

static bool pump(struct feed *feed, struct run_view *m, int wait_ms, struct times *t)
{
    struct pollfd fd = { .fd = feed->fd, .events = POLLIN };
    if (feed->fd >= 0)
        poll(&fd, 1, wait_ms);
    int64_t now = clock_ns();
    if (!fd.revents && now < feed->due_ns(feed))
        return false;
    feed->pump(feed, m, now);
    time_add(t, now);
    return true;
}

static bool fleet_measure(const char *run_dir, double seconds, struct error *err)
{
    static struct times draws[N_PANE], news;
    struct run_view *m = view_new(err);
    struct feed *feed = m ? link_new(run_dir, false, m, clock_ns(), err) : NULL;
    struct app a;
    struct cells c = { 0 };
    if (!feed || !app_init(&a, m, feed, COLS, ROWS, err) || !cells_resize(&c, COLS, ROWS, err))
        return false;
    int64_t begin = clock_ns();
    while ((m->n_node == 0 || m->n_host < m->n_node) && clock_ns() - begin < (int64_t)30e9)
        pump(feed, m, 100, &news);
    printf("whole fleet known after %.0f ms: %d nodes, %d GPUs, %d processes, %" PRId64 " left out\n", (double)(clock_ns() - begin) * 1e-6,
           m->n_host, m->n_device, m->n_proc, m->n_left_out);
    begin = clock_ns();
    for (int pane = 0; (double)(clock_ns() - begin) < seconds * 1e9; pane = (pane + 1) % N_PANE) {
        pump(feed, m, 20, &news);
        app_show(&a, (enum pane_id)pane);
        app_news(&a, clock_ns());
        draw(&a, &c, &draws[pane]);
    }
    for (int i = 0; i < N_PANE; i++) {
        char what[64];
        snprintf(what, sizeof(what), "draw %dx%d %s", COLS, ROWS, pane_name((enum pane_id)i));
        times_print(what, &draws[i]);
    }
    times_print("take news", &news);
    return true;
}

static bool history_measure(int64_t steps, struct error *err)
{
    static struct times t;
    struct simulate_options o = { .steps = steps, .done = steps, .step_s = 1, .workers = 2, .seed = 1 };
    struct app a;
    struct cells c = { 0 };
    struct run_view *m = view_new(err);
    int64_t begin = clock_ns();
    struct feed *feed = m ? simulate_new(&o, m, begin, err) : NULL;
    if (!feed || !app_init(&a, m, feed, COLS, ROWS, err) || !cells_resize(&c, COLS, ROWS, err))
        return false;
    double filled_s = (double)(clock_ns() - begin) * 1e-9;
    draw(&a, &c, &t);
    printf("%" PRId64 " steps: made and kept in %.2f s, first paint after %.2f s\n", m->n_step - 1, filled_s,
           (double)(clock_ns() - begin) * 1e-9);
    for (int i = 0; i < 50; i++)
        draw(&a, &c, &t);
    times_print("draw Overview with all of them", &t);
    return true;
}

static bool load_measure(const char *run_dir, struct error *err)
{
    static struct times news, t;
    struct run_view *m = view_new(err);
    int64_t begin = clock_ns();
    struct feed *feed = m ? link_new(run_dir, false, m, begin, err) : NULL;
    struct app a;
    struct cells c = { 0 };
    double first_s = 0;
    if (!feed || !app_init(&a, m, feed, COLS, ROWS, err) || !cells_resize(&c, COLS, ROWS, err))
        return false;
    while ((m->told_ns == 0 || !view_steps_whole(m)) && clock_ns() - begin < (int64_t)60e9) {
        pump(feed, m, 20, &news);
        if (first_s == 0 && m->n_step > 1) {
            draw(&a, &c, &t);
            first_s = (double)(clock_ns() - begin) * 1e-9;
        }
    }
    draw(&a, &c, &t);
    printf("%" PRId64 " steps over the socket: first chart after %.2f s, all of them after %.2f s\n", m->n_step - 1, first_s,
           (double)(clock_ns() - begin) * 1e-9);
    return true;
}

int main(int argc, char **argv)
{
    struct error err = { 0 };
    bool ok = false;
    if (argc == 4 && strcmp(argv[1], "fleet") == 0)
        ok = fleet_measure(argv[2], strtod(argv[3], NULL), &err);
    else if (argc == 3 && strcmp(argv[1], "history") == 0)
        ok = history_measure(strtoll(argv[2], NULL, 10), &err);
    else if (argc == 3 && strcmp(argv[1], "load") == 0)
        ok = load_measure(argv[2], &err);
    else
        error_set(&err, ERR_USAGE, "usage: tui_scale fleet RUN_DIR SECONDS | history STEPS | load RUN_DIR");
    if (!ok)
        fprintf(stderr, "scale: %s\n", err.text);
    return ok ? 0 : 1;
}
