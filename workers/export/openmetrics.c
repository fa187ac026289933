/* OpenMetrics 1.0 text over HTTP: GET /api/status returns what status_page.h says, GET /metrics returns the newest value of every series
 * and the newest sample of each node, labelled with node and gpu. Off by default; turned on by
 * 'rollcall export openmetrics RUN_DIR --listen 127.0.0.1:9464', or by metrics_listen in the run file. With a token file, a request must have 'Authorization: Bearer TOKEN', compared in constant time.
 *
 * The server's thread makes the pages, and the caller's looks whether the run goes on: both by way of the journal, with the lock held. */
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "protocol/base/bearer.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/http_head.h"
#include "protocol/base/log.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "protocol/run/telemetry.h"
#include "protocol/settings/metrics.h"
#include "workers/export/export.h"
#include "workers/export/rows.h"
#include "workers/export/status_page.h"
#include "workers/http/web.h"

#define SERIES_MAX 4096
#define NODES_MAX 1024
#define LOOK_MS 1000      // between two looks whether the run goes on
#define LIMIT_MS 10000    // for a request to come, for an answer to be taken, and between two requests of a connection
#define CONNECTIONS 32
#define BODY_BYTES 65536
#define PAGE_BYTES ((size_t)64 << 20)
#define STALE_S 60    // a sample older than this, and than three times the interval between the last two, is not served

struct newest {
    char name[128];    // as in the journal
    double value;
};
struct node_newest {
    char name[128];
    double wall_s, gap_s;                                      // time of the last sample; interval between it and the one before
    double host[HOST_FIELD_N], gpu[NODE_GPUS][GPU_FIELD_N];    // NAN: not known
};
struct endpoint {
    pthread_mutex_t lock;    // guards: the rest, while there is a server
    struct journal *journal;
    struct cursor cursor;
    struct newest *series;    // (n_series)
    int n_series;
    struct node_newest *node;    // (n_node), of NODES_MAX
    int n_node;
    int64_t step, sample_seq;
    char token[BEARER_MAX];    // "": none asked for
    char run_dir[PATH_MAX];
    struct run_config config;
    struct status_page status;
    struct buf *text;    // the answer's, while a page is printed
};

static const struct {
    const char *unit, *suffix, *tail;
} units[] = {
    // tail: the unit's form in the journal's name, which is cut off
    { "s", "seconds", "_s" },       { "ms", "milliseconds", "_ms" },
    { "tok", "tokens", "" },        { "tok/s", "tokens_per_second", "_tok_per_s" },
    { "nat", "nats", "" },          { "step", "steps", "" },
    { "GiB", "gibibytes", "_gib" }, { "group", "groups", "" },
};

static bool newest_see(void *arg, const struct journal_step *row)
{
    struct endpoint *e = arg;
    status_page_see(&e->status, row);
    e->step = MAX(e->step, row->step);    // an evaluation's row belongs to an earlier step
    for (int i = 0; i < row->n; i++) {
        int at = 0;
        while (at < e->n_series && strcmp(e->series[at].name, row->metric[i].name) != 0)
            at++;
        if (at == SERIES_MAX)
            continue;
        if (at == e->n_series)
            snprintf(e->series[e->n_series++].name, sizeof e->series[at].name, "%s", row->metric[i].name);
        e->series[at].value = row->metric[i].value;
    }
    return true;
}

/* rollcall_train_loss, rollcall_time_step_seconds: letters, digits and '_', with the unit at the end. */
static void name_print(char *out, size_t size, const char *name, const char *suffix, const char *tail)
{
    int n = snprintf(out, size, "rollcall_%s", name);
    n = MIN(n, (int)size - 1);
    for (int i = 0; i < n; i++)
        if (!isalnum((unsigned char)out[i]))
            out[i] = '_';
    int n_tail = (int)strlen(tail);
    if (suffix && n > n_tail && strcmp(out + n - n_tail, tail) == 0)
        n -= n_tail;
    if (suffix)
        snprintf(out + n, size - (size_t)n, "_%s", suffix);
}

static void value_print(struct buf *b, const char *name, const char *unit, const char *help, double v)
{
    if (unit)
        buf_fmt(b, "# TYPE %s gauge\n# UNIT %s %s\n# HELP %s %s\n", name, name, unit, name, help);
    else
        buf_fmt(b, "# TYPE %s gauge\n# HELP %s %s\n", name, name, help);
    buf_fmt(b, "%s %.17g\n", name, v);
}

static bool sample_see(void *arg, const struct journal_sample *s)
{
    struct endpoint *e = arg;
    int at = 0, gpu;
    e->sample_seq = s->seq;
    while (at < e->n_node && strcmp(e->node[at].name, s->node) != 0)
        at++;
    if (at == NODES_MAX)
        return true;
    struct node_newest *n = &e->node[at];
    if (at == e->n_node) {
        *n = (struct node_newest){ .wall_s = s->wall_s };
        snprintf(n->name, sizeof n->name, "%s", s->node);
        e->n_node++;
    }
    n->gap_s = fmax(0, s->wall_s - n->wall_s);
    n->wall_s = s->wall_s;
    for (int i = 0; i < HOST_FIELD_N; i++)
        n->host[i] = NAN;
    for (int g = 0; g < NODE_GPUS; g++)
        for (int i = 0; i < GPU_FIELD_N; i++)
            n->gpu[g][i] = NAN;
    for (int i = 0; i < s->n; i++) {
        const struct telemetry_field *f = telemetry_find(s->figure[i].name, &gpu);
        if (f)
            *(gpu < 0 ? &n->host[f - host_fields] : &n->gpu[gpu][f - gpu_fields]) = s->figure[i].value;
    }
    return true;
}

/* A label's value, escaped as OpenMetrics requires. */
static void label_print(struct buf *b, const char *name, const char *value)
{
    buf_fmt(b, "%s=\"", name);
    for (const char *c = value; *c; c++)
        if (*c == '\n')
            buf_str(b, "\\n");
        else
            buf_fmt(b, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    buf_char(b, '"');
}

/* One family of a node's figures; gpu_field -1: the host's. Nothing is written when no node has the figure. */
static void family_print(struct endpoint *e, const struct telemetry_field *f, const char *kind, int host_field, int gpu_field, double now_s)
{
    struct buf *b = e->text;
    bool begun = false;
    for (int k = 0; k < e->n_node; k++) {
        const struct node_newest *n = &e->node[k];
        if (now_s - n->wall_s > STALE_S + 3 * n->gap_s)
            continue;
        for (int g = 0; g < (gpu_field < 0 ? 1 : NODE_GPUS); g++) {
            double v = gpu_field < 0 ? n->host[host_field] : n->gpu[g][gpu_field];
            if (!isfinite(v))
                continue;
            if (!begun) {
                buf_fmt(b, "# TYPE rollcall_%s_%s gauge\n", kind, f->name);
                if (f->unit[0])
                    buf_fmt(b, "# UNIT rollcall_%s_%s %s\n", kind, f->name, f->unit);
                buf_fmt(b, "# HELP rollcall_%s_%s %s\n", kind, f->name, f->help);
                begun = true;
            }
            buf_fmt(b, "rollcall_%s_%s{", kind, f->name);
            label_print(b, "node", n->name);
            if (gpu_field >= 0)
                buf_fmt(b, ",gpu=\"%d\"", g);
            buf_fmt(b, "} %.17g\n", v);
        }
    }
}

static void page_print(struct endpoint *e)
{
    double now_s = clock_wall_s();
    struct buf *b = e->text;
    value_print(b, "rollcall_up", NULL, "1 while the run's processes are running", run_goes_on(e->journal, e->run_dir));
    value_print(b, "rollcall_optimizer_steps", "steps", "optimizer steps done", (double)e->step);
    for (int i = 0; i < e->n_series; i++) {
        int id = metric_find(e->series[i].name);
        const char *suffix = NULL, *tail = "", *help = "a part of the reward or an evaluation";
        char name[192];
        if (!isfinite(e->series[i].value))
            continue;
        for (size_t u = 0; id >= 0 && u < ARRAY_SIZE(units); u++)
            if (strcmp(units[u].unit, metrics[id].unit) == 0) {
                suffix = units[u].suffix;
                tail = units[u].tail;
            }
        if (id >= 0)
            help = metrics[id].help;
        name_print(name, sizeof name, e->series[i].name, suffix, tail);
        value_print(b, name, suffix, help, e->series[i].value);
    }
    for (int i = 0; i < HOST_FIELD_N; i++)
        family_print(e, &host_fields[i], "host", i, -1, now_s);
    for (int i = 0; i < GPU_FIELD_N; i++)
        family_print(e, &gpu_fields[i], "gpu", -1, i, now_s);
    buf_str(b, "# EOF\n");
}

static void page_fail(struct web_answer *a, int status, const char *why)
{
    a->status = status;
    a->type = "text/plain; charset=utf-8";
    buf_fmt(&a->body, "%d %s: %s\n", status, http_status_words(status), why);
}

/* Read what the journal has gained. False: the answer says that it could not be. */
static bool journal_see(struct endpoint *e, struct web_answer *a)
{
    struct error err = { 0 };
    if (rows_read(e->journal, &e->cursor, newest_see, e, &err) && journal_samples_read(e->journal, e->sample_seq, sample_see, e, &err))
        return true;
    log_warn("the journal could not be read for a scrape: %s", err.text);
    page_fail(a, 500, "the journal could not be read; the log of the exporter says why");
    return false;
}

static void metrics_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct endpoint *e = ctx;
    if (!journal_see(e, a))
        return;
    e->text = &a->body;
    page_print(e);
    a->type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
}

static void status_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct endpoint *e = ctx;
    if (journal_see(e, a))
        status_page_print(&e->status, &e->config, run_goes_on(e->journal, e->run_dir), clock_wall_s(), &a->body);
}

static const struct web_route routes[] = {
    { "GET", "/metrics", metrics_get },
    { "GET", "/api/status", status_get },
};

/* At most this many connections, and no more than half of the files that the process may open: a server has twice as many for a moment. */
static int64_t connections_max(void)
{
    struct rlimit fds;
    return getrlimit(RLIMIT_NOFILE, &fds) != 0 ? CONNECTIONS : MAX(1, (int64_t)MIN(fds.rlim_cur / 4, (rlim_t)CONNECTIONS));
}

/* Serve the pages at r->listen. *port: where that is. NULL: see err. */
static struct web *server_open(struct endpoint *e, const struct export_request *r, uint16_t *port, struct error *err)
{
    struct web_config config = { .address = r->listen,
                                 .allowed_hosts = r->allowed_hosts ? r->allowed_hosts : e->config.allowed_hosts,
                                 .route = routes,
                                 .n_route = ARRAY_SIZE(routes),
                                 .lock = &e->lock,
                                 .ctx = e,
                                 .token = r->token_file ? e->token : NULL,
                                 .max_connections = connections_max(),
                                 .brief = true,
                                 .max_body_bytes = BODY_BYTES,
                                 .max_bodies_bytes = PAGE_BYTES,
                                 .head_ms = LIMIT_MS,
                                 .body_ms = LIMIT_MS,
                                 .idle_ms = LIMIT_MS,
                                 .fail = page_fail };
    if ((config.listen_fd = tcp_listen(r->listen, err)) < 0)
        return NULL;
    *port = tcp_port(config.listen_fd);
    return web_new(&config, err);
}

/* Wait until the process is to stop, or with r->follow until the run is over. */
static void run_wait(struct endpoint *e, const struct export_request *r, int stop_fd)
{
    struct pollfd p = { .fd = stop_fd, .events = POLLIN };
    bool over = false;
    while (!over && !stop_fd_take(stop_fd)) {
        if (poll(&p, 1, LOOK_MS) != 0 || !r->follow)
            continue;
        pthread_mutex_lock(&e->lock);
        over = !run_goes_on(e->journal, e->run_dir);
        pthread_mutex_unlock(&e->lock);
    }
}

bool export_openmetrics(const struct export_request *r, struct error *err)
{
    struct endpoint e = { .cursor = CURSOR_START, .lock = PTHREAD_MUTEX_INITIALIZER };
    struct web *server = NULL;
    uint16_t port;
    char path[PATH_MAX];
    bool ok = false;
    int stop_fd = -1;
    snprintf(e.run_dir, sizeof e.run_dir, "%s", r->run_dir);
    const char *colon = r->listen ? strrchr(r->listen, ':') : NULL;
    if (!colon || colon == r->listen)
        return error_set(err, ERR_USAGE, "'--listen' needs HOST:PORT, e.g. 127.0.0.1:9464 (port 0: a free one)");
    if (r->token_file)
        TRY(bearer_read(e.token, r->token_file, err));
    TRY(e.journal = rows_open(r->run_dir, err));
    run_config_init(&e.config);
    status_page_init(&e.status);
    TRY(path_join(path, sizeof path, r->run_dir, "run.yaml") && (!path_exists(path) || run_config_read(&e.config, path, err)));
    e.sample_seq = MAX(journal_last_sample(e.journal) - 4 * NODES_MAX, (int64_t)0);    // older samples are of no use here
    if (!(e.series = calloc(SERIES_MAX, sizeof *e.series)) || !(e.node = calloc(NODES_MAX, sizeof *e.node))) {
        error_set(err, ERR_NO_MEMORY, "no memory for the metrics page");
        goto out;
    }
    TRY((stop_fd = stop_fd_open(true, err)) >= 0);
    TRY(server = server_open(&e, r, &port, err));
    fprintf(stderr, "serving http://%.*s:%u/metrics\n", (int)(colon - r->listen), r->listen, port);
    run_wait(&e, r, stop_fd);
    ok = true;
out:
    web_free(server);
    if (stop_fd >= 0)
        close(stop_fd);
    journal_close(e.journal);
    free(e.series);
    free(e.node);
    return ok;
}
