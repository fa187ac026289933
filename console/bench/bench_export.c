/* bench export: the cost of exporting an hour of a fast run to Weights & Biases: 200 series per step, 20 steps per second, 72,000
 * steps, played faster while the exporter follows, and the server refuses every other request. Targets: 2 % of a core (CPU seconds
 * of the exporter / seconds that the steps represent), 30 bytes on disk per value. check: every step arrived exactly once, in
 * order, with all its series. The server is a thread of this process on a free loopback port; the exporter is a separate process,
 * as in a run. */
#include <inttypes.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "console/bench/bench.h"
#include "protocol/base/buf.h"
#include "protocol/base/child.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/thread.h"
#include "protocol/record/journal.h"
#include "protocol/run/run_lock.h"
#include "protocol/settings/metrics.h"

#define N_SERIES 200
#define STEPS_A_SECOND 20
#define BODY_MAX ((size_t)64 << 20)

struct sink {
    int listen_fd, wake_fd[2];    // the pipe's other end closed: stop
    struct buf body;
    int64_t n_request, n_refused, n_row, next_step, bytes, wrong;
    bool complete;
};

/* ---- the server: as much of HTTP/1.1 as libcurl needs ---- */

/* Fill buf until it holds want bytes (or a blank line when want is 0). False: the peer is gone, or we have to stop. */
static bool sink_read(struct sink *s, int fd, struct buf *in, size_t want)
{
    while (want ? in->len < want : !memmem(buf_text(in), in->len, "\r\n\r\n", 4)) {
        struct pollfd p[2] = { { .fd = fd, .events = POLLIN }, { .fd = s->wake_fd[0], .events = POLLIN } };
        char *at = buf_reserve(in, 1 << 16);
        if (!at || poll(p, 2, -1) < 0 || p[1].revents)
            return false;
        ssize_t n = read(fd, at, 1 << 16);
        if (n <= 0)
            return false;
        in->len += (size_t)n;
        in->data[in->len] = 0;
    }
    return true;
}

/* The rows of a request, found by the start of a line; the numbers must continue where the last request ended. */
static void rows_count(struct sink *s, const char *body)
{
    static const char history[] = "\"wandb-history.jsonl\":{\"offset\":", begin[] = "\"{\\\"_step\\\":", axis[] = "\\\"trainer/step\\\":";
    const char *at = strstr(body, history);
    if (!at)
        return;
    if (atoll(at + sizeof history - 1) != s->n_row)
        s->wrong++;
    while ((at = strstr(at, begin))) {
        const char *end = strstr(at, "}\""), *step = strstr(at, axis);
        int64_t n_colon = 0;
        if (atoll(at + sizeof begin - 1) != s->n_row || !step || !end)
            s->wrong++;
        s->n_row++;
        if (!end || !step)
            return;
        for (const char *p = at; p < end; p++)
            n_colon += *p == ':';
        if (n_colon == N_SERIES + 4 && atoll(step + sizeof axis - 1) == s->next_step)
            s->next_step++;
        else if (n_colon > 10)    // the row that reports the end is short
            s->wrong++;
        at = end;
    }
}

static void sink_answer(int fd, const char *status, const char *more, const char *body)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "HTTP/1.1 %s\r\n%sContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", status, more,
                     strlen(body), body);
    if (write(fd, text, (size_t)n) != n)
        shutdown(fd, SHUT_RDWR);
}

/* One request in s->body, headers first. */
static void request_take(struct sink *s, int fd, const char *body)
{
    bool stream = strstr(buf_text(&s->body), "/file_stream ") != NULL;
    s->n_request++;
    if (s->n_request % 2 == 0) {
        s->n_refused++;
        sink_answer(fd, "503 Service Unavailable", "Retry-After: 0.01\r\n", "{\"error\":\"busy\"}");
        return;
    }
    if (!stream) {
        sink_answer(fd, "200 OK", "",
                    "{\"data\":{\"upsertBucket\":{\"bucket\":{\"id\":\"s\",\"name\":\"bench\",\"displayName\":\"bench\",\"project\":{"
                    "\"id\":\"p\",\"name\":\"p\",\"entity\":{\"id\":\"e\",\"name\":\"e\"}},\"historyLineCount\":0}}}}");
        return;
    }
    s->bytes += (int64_t)strlen(body);
    rows_count(s, body);
    s->complete |= strstr(body, "\"complete\":true") != NULL;
    sink_answer(fd, "200 OK", "", "{}");
}

static void connection_serve(struct sink *s, int fd)
{
    for (;;) {
        buf_clear(&s->body);
        if (!sink_read(s, fd, &s->body, 0))
            return;
        const char *end = strstr(buf_text(&s->body), "\r\n\r\n");
        const char *length = strcasestr(buf_text(&s->body), "\r\ncontent-length:");
        if (!end || !length || length > end)
            return;
        size_t head = (size_t)(end - buf_text(&s->body)) + 4, n = strtoull(length + 17, NULL, 10);
        if (n > BODY_MAX || (n && !sink_read(s, fd, &s->body, head + n)))
            return;
        request_take(s, fd, buf_text(&s->body) + head);
    }
}

static void *sink_run(void *arg)
{
    struct sink *s = arg;
    for (;;) {
        struct pollfd p[2] = { { .fd = s->listen_fd, .events = POLLIN }, { .fd = s->wake_fd[0], .events = POLLIN } };
        if (poll(p, 2, -1) < 0 || p[1].revents)
            return NULL;
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            connection_serve(s, fd);
            close(fd);
        }
    }
}

static bool sink_open(struct sink *s, int *port, struct error *err)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->listen_fd < 0 || bind(s->listen_fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(s->listen_fd, 8) != 0
        || getsockname(s->listen_fd, (struct sockaddr *)&a, &len) != 0 || pipe2(s->wake_fd, O_CLOEXEC) != 0)
        return error_errno(err, "cannot serve on the loopback");
    *port = ntohs(a.sin_port);
    return true;
}

/* ---- the run ---- */

/* A third are counts, a third single-precision results, a third doubles. */
static double value_make(int64_t step, int i)
{
    double v = sin((double)(step * N_SERIES + i)) * exp2(i % 40 - 20);
    return i % 3 == 0 ? (double)(step * (i + 1)) : i % 3 == 1 ? (double)(float)v : v;
}

static bool steps_write(const char *dir, int64_t n_step, struct error *err)
{
    char name[N_SERIES][32];
    struct journal_metric m[N_SERIES];
    struct journal *j = journal_open(dir, err);
    double start_s = clock_wall_s();
    bool ok = j != NULL;
    for (int i = 0; i < N_SERIES; i++) {
        snprintf(name[i], sizeof name[i], "reward/part_%03d", i);
        m[i].name = i < METRIC_N ? metrics[i].name : name[i];
    }
    for (int64_t step = 1; ok && step <= n_step; step++) {
        for (int i = 0; i < N_SERIES; i++)
            m[i].value = value_make(step, i);
        ok = journal_begin(j, err) && journal_step_add(j, 1, step, start_s + (double)step / STEPS_A_SECOND, m, N_SERIES, err)
             && journal_commit(j, err);
        if (ok)
            journal_rest(j);
    }
    ok = ok && journal_event_add(j, 1, n_step, "state", "bench", "finished", "", err);
    journal_close(j);
    return ok;
}

static pid_t exporter_start(const char *dir, int port, struct error *err)
{
    char url[64];
    char *argv[] = { "rollcall", "export", "wandb", (char *)dir, "--follow", NULL };
    pid_t pid;
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    setenv("WANDB_BASE_URL", url, 1);
    setenv("WANDB_API_KEY", "not-a-real-key-only-for-this-measurement-0000", 1);
    setenv("WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL", "0.05", 1);
    setenv("WANDB_FINISH_TIMEOUT", "3600", 1);
    setenv("no_proxy", "*", 1);
    int rv = child_spawn(&pid, "/proc/self/exe", NULL, CHILD_OURS, argv, NULL);
    if (rv == 0)
        return pid;
    error_set(err, ERR_IO, "cannot start the exporter: %s", strerror(rv));
    return -1;
}

static int64_t file_bytes(const char *dir, const char *name)
{
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

bool bench_export(int argc, char **argv, struct error *err)
{
    int64_t n_step = 72000;
    struct cli_option options[] = { { "steps", NULL, CLI_I64, &n_step, "N", "steps of 200 series (72000: an hour)" } };
    struct cli cli = { "rollcall bench export", "Sends a fast run to its own wandb server, which refuses half of the requests.", NULL,
                       options, ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (n_step < 100 || n_step > 1000000)
        return error_set(err, ERR_USAGE, "'--steps' is %" PRId64 "; it must be 100 to 1000000", n_step);
    char dir[] = "/tmp/rollcall-bench-XXXXXX", path[128];
    struct sink sink = { .listen_fd = -1, .wake_fd = { -1, -1 }, .next_step = 1, .body = { .max = BODY_MAX + (1 << 17) } };
    struct error ignored;
    struct journal *made = NULL;
    struct rusage used = { 0 };
    pthread_t thread;
    bool ok = false, threaded = false;
    int port = 0, lock = -1, status = -1;
    pid_t pid = -1;
    int64_t t = clock_ns();
    if (!mkdtemp(dir))
        return error_errno(err, "cannot start the measurement");
    snprintf(path, sizeof path, "%s/run.yaml", dir);
    TRY(file_write(path, "project: bench\n", 15, err));
    TRY(made = journal_open(dir, err));    // there must be a run to follow
    TRY((lock = run_lock_take(dir, err)) >= 0);
    TRY(sink_open(&sink, &port, err));
    TRY((threaded = thread_start(&thread, sink_run, &sink) == 0) || error_set(err, ERR_NO_MEMORY, "cannot make a thread"));
    TRY((pid = exporter_start(dir, port, err)) > 0);
    journal_close(made);
    made = NULL;
    TRY(steps_write(dir, n_step, err));
    close(lock);
    lock = -1;
    if (wait4(pid, &status, 0, &used) != pid) {
        error_errno(err, "cannot wait for the exporter");
        goto out;
    }
    pid = -1;
    ok = true;
out:
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    if (sink.wake_fd[1] >= 0)
        close(sink.wake_fd[1]);
    if (threaded)
        pthread_join(thread, NULL);
    journal_close(made);
    if (ok) {
        double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
                       + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
        bool whole = WIFEXITED(status) && WEXITSTATUS(status) == 0 && sink.wrong == 0 && sink.next_step == n_step + 1 && sink.complete;
        int64_t disk = file_bytes(dir, "journal.db") + file_bytes(dir, "journal.db-wal");
        printf("{\"bench\":\"export wandb\",\"steps\":%" PRId64 ",\"series\":%d,\"requests\":%" PRId64 ",\"refused\":%" PRId64
               ",\"sent_mb\":%.1f,"
               "\"cpu_s\":%.2f,\"core_share\":%.5f,\"bar_core_share\":0.02,\"peak_rss_mb\":%.1f,\"disk_bytes_a_value\":%.2f,"
               "\"bar_disk_bytes_a_value\":30,\"wall_s\":%.1f,\"check\":%s}\n",
               n_step, N_SERIES, sink.n_request, sink.n_refused, (double)sink.bytes / 1e6, cpu_s, cpu_s / ((double)n_step / STEPS_A_SECOND),
               (double)used.ru_maxrss / 1024, (double)disk / ((double)n_step * N_SERIES), (double)(clock_ns() - t) / 1e9,
               whole ? "true" : "false");
    }
    for (size_t i = 0; i < 3; i++) {
        int fd = (int[]){ lock, sink.listen_fd, sink.wake_fd[0] }[i];
        if (fd >= 0)
            close(fd);
    }
    buf_release(&sink.body);
    return dir_remove(dir, ok ? err : &ignored) && ok;
}
