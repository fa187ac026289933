/* service.c - see service.h
 *
 * the HTTP server's thread (workers/http/web.c) reads requests and puts them into a bounded queue; threads with a sandbox_host each
 * take them out, run the program, write the answer's body and wake the connection. A request whose client has gone is dropped. */
#include "workers/scorer/service.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/bearer.h"
#include "protocol/base/cli.h"
#include "protocol/base/hold.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/own_hosts.h"
#include "protocol/base/secret.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "workers/engine/reward/verify/programs.h"
#include "workers/http/http_job.h"
#include "workers/http/web.h"

#define THREADS_MAX 256
#define TEST_MAX_S 60.0      // of one test, whatever a request asks
#define WHOLE_MAX_S 600.0    // of all tests of a request
#define DRAIN_MS 5000        // to send the last answers

enum request_kind {
    ASK_SEEDS,    // ColossalChat's
    ASK_ASSERTS,
    ASK_STDIO,
};
struct request {
    struct http_job job;     // first
    struct request *next;    // that waits
    enum request_kind kind;
    json_t *body;    // owned
    struct buf answer;
    int status;    // of the answer; 0: not run yet
};
struct service {
    const char *listen, *token_file, *allowed_hosts;
    bool no_token;
    int64_t n_thread, max_queue, body_mib, connections;
    char token[BEARER_MAX];
    struct web *web;
    pthread_t thread[THREADS_MAX];
    int n_started;
    pthread_mutex_t lock;            // guards: all below; never held while a program runs
    pthread_cond_t work;             // a job was put, or closing
    struct request *first, *last;    // waiting; a reference each
    int64_t n_waiting, n_ready;
    bool closing, failed;
    struct error why;    // of failed
};

static void request_free(struct http_job *job)
{
    struct request *q = (struct request *)job;
    json_decref(q->body);
    buf_release(&q->answer);
    free(q);
}

/* ---- answers, written by the threads ---- */

static void fail_print(struct buf *out, const char *text)
{
    buf_clear(out);
    buf_str(out, "{\"detail\":");
    json_text_print(out, text, strlen(text), JSON_TEXT_UTF8);
    buf_char(out, '}');
}

static void fail(struct request *q, int status, const char *text)
{
    fail_print(&q->answer, text);
    q->status = status;
}

static void fail_for(struct request *q, int status, const struct error *err)
{
    char text[ERROR_TEXT_BYTES];
    error_tell(err, text);
    fail(q, status, text);
}

static int status_of(const struct error *err)
{
    return err->code == ERR_DATA ? 422 : 500;
}

static double seconds_of(const json_t *v, double otherwise)
{
    double s = json_is_number(v) ? json_number_value(v) : otherwise;
    return s > 0 ? MIN(s, TEST_MAX_S) : otherwise;
}

/* {"result": [1, 0, -1 or -2 per test up to the first that failed], "metadata": [{}, ...]} */
static void seeds_run(struct sandbox_host *host, struct request *q)
{
    struct tests t;
    struct error err = { 0 };
    struct runner_result r;
    struct buf first_out = BUF_INIT;
    const json_t *text = json_object_get(q->body, "generation");
    const char *code;
    size_t len;
    if (!json_is_string(text)) {
        fail(q, 422, "'generation' must be a text");
        return;
    }
    if (!tests_read(&t, json_object_get(q->body, "in_outs"), &err)) {
        fail_for(q, status_of(&err), &err);
        return;
    }
    program_find(json_string_value(text), json_string_length(text), &code, &len);
    struct runner_options options = { .whole_s = WHOLE_MAX_S, .test_s = seconds_of(json_object_get(q->body, "timeout"), 10) };
    runner_run(host, &t, code, len, &options, &r, &first_out);
    if (r.status == CASE_SANDBOX) {
        fail_for(q, 500, &r.err);
    } else {
        buf_str(&q->answer, "{\"result\":[");
        for (int i = 0; i < r.tests.n; i++)
            buf_fmt(&q->answer, "%s%d", i ? "," : "", r.tests.code[i]);
        for (int64_t i = r.tests.n; i < t.n && r.status == CASE_OK; i++)    // more than results are kept for
            buf_str(&q->answer, ",1");
        buf_str(&q->answer, "],\"metadata\":[");
        for (int i = 0; i < r.tests.n; i++)
            buf_fmt(&q->answer, "%s{%s%s%s}", i ? "," : "", i == r.first && r.status != CASE_OK ? "\"error\":\"" : "",
                    i == r.first && r.status != CASE_OK ? case_status_name(r.status) : "", i == r.first && r.status != CASE_OK ? "\"" : "");
        buf_str(&q->answer, "]}");
        q->status = 200;
    }
    buf_release(&first_out);
    tests_release(&t);
}

/* {"results": [0 or 1 per test], "runtimes": [seconds, or -1]} */
static void tests_run(struct sandbox_host *host, struct request *q)
{
    enum program_form form = q->kind == ASK_STDIO ? PROGRAM_STDIO : PROGRAM_ASSERTS;
    struct tests t;
    struct error err = { 0 };
    struct runner_result r;
    const json_t *program = json_object_get(q->body, "program");
    if (!json_is_string(program)) {
        fail(q, 422, "'program' must be a text");
        return;
    }
    if (!program_tests_read(&t, json_object_get(q->body, "tests"), form, &err)) {
        fail_for(q, status_of(&err), &err);
        return;
    }
    double *runtime_s = calloc((size_t)t.n, sizeof *runtime_s), test_s = seconds_of(json_object_get(q->body, "max_execution_time"), 1);
    if (!runtime_s) {
        fail(q, 500, "no memory");
    } else if (!program_tests_run(host, &t, form, json_string_value(program), json_string_length(program), test_s, runtime_s, &r, &err)) {
        fail_for(q, 500, &err);
    } else {
        buf_str(&q->answer, "{\"results\":[");
        for (int64_t i = 0; i < t.n; i++)
            buf_fmt(&q->answer, "%s%d", i ? "," : "", runtime_s[i] >= 0);
        buf_str(&q->answer, "],\"runtimes\":[");
        for (int64_t i = 0; i < t.n; i++)
            buf_fmt(&q->answer, "%s%.6g", i ? "," : "", runtime_s[i]);
        buf_str(&q->answer, "]}");
        q->status = 200;
    }
    free(runtime_s);
    tests_release(&t);
}

static void *thread_main(void *arg)
{
    struct service *s = arg;
    struct sandbox_limits limits = sandbox_limits_default;
    struct error err = { 0 };
    limits.case_s = TEST_MAX_S;
    struct sandbox_host *host = sandbox_host_new(&limits, &err);
    pthread_mutex_lock(&s->lock);
    s->n_ready++;
    if (!host) {
        s->failed = true;
        s->why = err;
    }
    pthread_cond_broadcast(&s->work);
    while (host) {
        while (!s->first && !s->closing)
            pthread_cond_wait(&s->work, &s->lock);
        struct request *q = s->first;
        if (!q)
            break;
        s->first = q->next;
        s->last = s->first ? s->last : NULL;
        s->n_waiting--;
        pthread_mutex_unlock(&s->lock);
        if (atomic_load(&q->job.gone))
            fail(q, 503, "the client has gone");
        else if (q->kind == ASK_SEEDS)
            seeds_run(host, q);
        else
            tests_run(host, q);
        pthread_mutex_lock(&q->job.lock);
        q->job.done = true;
        http_job_tell(&q->job);
        pthread_mutex_unlock(&q->job.lock);
        http_job_drop(&q->job);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    sandbox_host_free(host);
    return NULL;
}

/* ---- routes, called by the HTTP server's thread ---- */

static void refuse(struct web_answer *a, int status, const char *message)
{
    a->status = status;
    fail_print(&a->body, message);
    if (status == 503)
        a->retry_after_s = 1;
}

static void ask_take(struct service *s, const struct web_request *w, struct web_answer *a, enum request_kind kind)
{
    json_error_t je;
    json_t *body = json_text_read(w->body, w->len, JSON_ALLOW_NUL, &je);
    struct request *q = json_is_object(body) ? calloc(1, sizeof *q) : NULL;
    if (!q) {
        bool is_object = json_is_object(body);
        json_decref(body);
        refuse(a, is_object ? 500 : 422, is_object ? "no memory" : "the body must be a JSON object");
        return;
    }
    q->kind = kind;
    q->body = body;
    http_job_init(&q->job, request_free);
    pthread_mutex_lock(&s->lock);
    bool full = s->n_waiting >= s->max_queue || s->closing;
    if (!full) {
        http_job_hold(&q->job);
        if (s->last)
            s->last->next = q;
        else
            s->first = q;
        s->last = q;
        s->n_waiting++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (full) {
        http_job_drop(&q->job);
        refuse(a, 503, "too many programs are waiting");
        return;
    }
    a->job = &q->job;
}

static void on_seeds(void *ctx, const struct web_request *q, struct web_answer *a)
{
    ask_take(ctx, q, a, ASK_SEEDS);
}

static void on_asserts(void *ctx, const struct web_request *q, struct web_answer *a)
{
    ask_take(ctx, q, a, ASK_ASSERTS);
}

static void on_stdio(void *ctx, const struct web_request *q, struct web_answer *a)
{
    ask_take(ctx, q, a, ASK_STDIO);
}

static void on_health(UNUSED void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    buf_str(&a->body, "{\"status\":\"healthy\"}");
}

static const struct web_route routes[] = {
    { "GET", "/health", on_health, .open = true },      { "POST", "/", on_seeds, false },
    { "POST", "/check_correctness", on_seeds, false },  { "POST", "/test_program", on_asserts, false },
    { "POST", "/test_program_stdio", on_stdio, false },
};

static void print(UNUSED void *ctx, struct http_job *j, struct web_answer *a)
{
    const struct request *q = (const struct request *)j;
    a->status = q->status ? q->status : 500;
    buf_add(&a->body, buf_text(&q->answer), q->answer.len);
}

static void leave(UNUSED void *ctx, struct http_job *j)
{
    atomic_store(&j->gone, true);
}

/* ---- the command ---- */

static bool options_check(struct service *s, struct error *err)
{
    if (!s->listen || !strchr(s->listen, ':'))
        return error_set(err, ERR_USAGE, "--listen is needed: HOST:PORT, e.g. 127.0.0.1:1234");
    if (!tcp_is_loopback(s->listen) && !s->token_file && !s->no_token)
        return error_set(err, ERR_USAGE,
                         "--listen %s is reached from other hosts: give --token-file FILE, or --no-token if all of them may use it",
                         s->listen);
    if (s->n_thread < 0 || s->n_thread > THREADS_MAX)
        return error_set(err, ERR_USAGE, "--threads is %" PRId64 "; it must be between 0 and %d", s->n_thread, THREADS_MAX);
    if (s->max_queue < 1 || s->max_queue > 1 << 20 || s->body_mib < 1 || s->body_mib > 1024 || s->connections < 1 || s->connections > 16384)
        return error_set(err, ERR_USAGE,
                         "--queue must be between 1 and 1048576, --body-mib between 1 and 1024, --connections between 1 and 16384");
    if (s->n_thread == 0)
        s->n_thread = MAX(MIN(sysconf(_SC_NPROCESSORS_ONLN), THREADS_MAX), 1);
    return own_hosts_check(s->allowed_hosts, "--allowed-hosts", err) && (!s->token_file || bearer_read(s->token, s->token_file, err));
}

static bool threads_start(struct service *s, struct error *err)
{
    for (; s->n_started < s->n_thread; s->n_started++)
        if (thread_start(&s->thread[s->n_started], thread_main, s) != 0)
            return error_set(err, ERR_NO_MEMORY, "a thread cannot be started");
    pthread_mutex_lock(&s->lock);
    while (s->n_ready < s->n_started && !s->failed)
        pthread_cond_wait(&s->work, &s->lock);
    bool failed = s->failed;
    if (failed)
        *err = s->why;
    pthread_mutex_unlock(&s->lock);
    return !failed;
}

static void threads_end(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_started; i++)
        pthread_join(s->thread[i], NULL);
    for (struct request *q; (q = s->first);) {
        s->first = q->next;
        http_job_drop(&q->job);
    }
}

static bool service_run(struct service *s, struct error *err)
{
    bool ok = false;
    int stop_fd = stop_fd_open(false, err), fd = -1;
    if (stop_fd < 0)
        return false;
    TRY(threads_start(s, err));
    fd = tcp_listen(s->listen, err);
    TRY(fd >= 0);
    uint16_t port = tcp_port(fd);
    struct web_config config = {
        .listen_fd = fd,
        .address = s->listen,
        .allowed_hosts = s->allowed_hosts,
        .route = routes,
        .n_route = ARRAY_SIZE(routes),
        .ctx = s,
        .token = s->token_file ? s->token : NULL,
        .max_connections = s->connections,
        .max_body_bytes = (size_t)s->body_mib << 20,
        .max_bodies_bytes = (size_t)s->body_mib << 23,
        .head_ms = 15000,
        .body_ms = 60000,
        .idle_ms = 75000,
        .print = print,
        .leave = leave,
        .fail = refuse,
    };
    TRY(s->web = web_new(&config, err));
    printf("judging programs at http://%.*s:%u with %" PRId64 " threads\n", (int)(strrchr(s->listen, ':') - s->listen), s->listen, port,
           s->n_thread);
    if (fflush(stdout) != 0) {
        error_errno(err, "cannot write the output");
        goto out;
    }
    stop_fd_wait(stop_fd);
    web_close(s->web);
    ok = true;
out:
    threads_end(s);    // what waits is run and answered
    if (s->web && !web_wait(s->web, DRAIN_MS))
        log_warn("some clients have not taken their answers");
    web_free(s->web);
    close(stop_fd);
    return ok;
}

bool service_cmd(int argc, char **argv, struct error *err)
{
    struct service *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, ERR_NO_MEMORY, "no memory for a service");
    s->max_queue = 1024;
    s->body_mib = 16;
    s->connections = 512;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    // clang-format off
    struct cli_option options[] = {
        { "listen", "l", CLI_STR, &s->listen, "HOST:PORT", "where to serve, e.g. 127.0.0.1:1234; port 0 is a free one" },
        { "threads", NULL, CLI_I64, &s->n_thread, "N", "programs that run at once (default 0: as many as cores)" },
        { "queue", NULL, CLI_I64, &s->max_queue, "N", "programs that wait; more are answered with 503 (default 1024)" },
        { "body-mib", NULL, CLI_I64, &s->body_mib, "N", "longest body of a request, also after gzip (default 16)" },
        { "connections", NULL, CLI_I64, &s->connections, "N", "open at once (default 512)" },
        { "allowed-hosts", NULL, CLI_STR, &s->allowed_hosts, "NAME,…", "more names that clients may ask for, such as a proxy's: llm.example.org, *.example.org, or * for any; without a token, a server answers only for addresses, this host's name and names without a dot" },
        { "token-file", NULL, CLI_STR, &s->token_file, "FILE", "clients must send the bearer token in this file" },
        { "no-token", NULL, CLI_FLAG, &s->no_token, NULL, "listen beyond this host without a token" },
    };
    // clang-format on
    struct cli cli = {
        .command = "rollcall scorer",
        .about =
            "Judges programs over HTTP, in sandboxes: ColossalChat's request (POST / or /check_correctness) and "
            "open-instruct's (POST /test_program, /test_program_stdio). Runs ask it with code_verifier_api_url. Example:\n"
            "  rollcall scorer --listen 127.0.0.1:1234\n"
            "  curl -s http://127.0.0.1:1234/test_program -d '{\"program\": \"def f(x): return x\", \"tests\": [\"assert f(1) == 1\"]}'",
        .options = options,
        .n_options = ARRAY_SIZE(options)
    };
    bool ok = cli_parse(&cli, argc, argv, err);
    if (ok && !cli.help_wanted) {
        if (s->token_file)
            secret_process();
        ok = options_check(s, err) && service_run(s, err);
    }
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return ok;
}
