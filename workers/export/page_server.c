/* A connection's stages, and the functions that change them:
 *   STAGE_REQUEST  visitor_accept   its request has not come whole
 *   STAGE_ANSWER   visitor_answer   the answer is being sent
 *   STAGE_LEAVES   visitor_send     all is sent; it may still talk, and is heard until it closes: closing before would reset the
 *                                   connection, and the reader could lose the answer (RFC 9112, 9.6) */
#include "workers/export/page_server.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/http_head.h"
#include "protocol/base/log.h"
#include "protocol/base/tcp.h"

#define VISITORS_MAX 32
#define ACCEPTS_MAX 8    // in one turn: those who came before have theirs first
#define REQUEST_MAX 8192
#define LOG_MS 10000
#define TICK_MS 250    // while a limit runs

enum stage {
    STAGE_REQUEST,
    STAGE_ANSWER,
    STAGE_LEAVES,
};
enum why {
    WHY_SILENT,
    WHY_SLOW,
    WHY_MANY,
    WHY_COUNT,
};
struct visitor {
    int fd;    // -1: a free place
    enum stage stage;
    int64_t n;           // accepted before it; a millisecond may have many
    int64_t since_ms;    // in this stage
    struct sockaddr_storage from;
    char request[REQUEST_MAX + 1];    // with room for a NUL
    size_t n_request, n_seen;         // bytes that have come, and that http_head_find has looked at
    struct buf answer;                // head and body
    size_t n_sent;                    // of answer
};
struct page_server {
    char address[280];
    const struct own_hosts *hosts;    // NULL: any
    const char *const *path;
    int64_t limit_ms;
    page_make *make;
    void *arg;
    int listen_fd;
    bool out_of_files;    // accept failed; not asked again before the next tick
    struct visitor visitor[VISITORS_MAX];
    int visitors_max;    // of VISITORS_MAX
    int64_t n_accepted, logged_ms;
    int64_t n_away[WHY_COUNT];    // since logged_ms
    char last_away[80];
};

/* ---- what is sent away ---- */

static int64_t away_sum(const struct page_server *s)
{
    int64_t n = 0;
    for (int i = 0; i < WHY_COUNT; i++)
        n += s->n_away[i];
    return n;
}

static void away_tell(struct page_server *s, int64_t now)
{
    int64_t n = away_sum(s);
    if (n == 0 || now < s->logged_ms + LOG_MS)
        return;
    log_warn("%" PRId64 " connection%s to '%s' %s sent away, the last from %s: %" PRId64 " had sent no whole request in %.3g s, %" PRId64
             " took the answer too slowly, %" PRId64 " were too many at once",
             n, n == 1 ? "" : "s", s->address, n == 1 ? "was" : "were", s->last_away, s->n_away[WHY_SILENT], (double)s->limit_ms / 1000,
             s->n_away[WHY_SLOW], s->n_away[WHY_MANY]);
    memset(s->n_away, 0, sizeof s->n_away);
    s->logged_ms = now;
}

static void visitor_close(struct visitor *v)
{
    close(v->fd);
    v->fd = -1;
    buf_release(&v->answer);
}

static void visitor_drop(struct page_server *s, struct visitor *v, enum why why)
{
    if (v->stage != STAGE_LEAVES) {    // that one has its answer
        s->n_away[why]++;
        tcp_print(s->last_away, sizeof s->last_away, &v->from);
    }
    visitor_close(v);
}

/* ---- the answer ---- */

static const char *path_find(const struct page_server *s, const char *path)
{
    for (const char *const *at = s->path; *at; at++)
        if (strcmp(*at, path) == 0)
            return *at;
    return NULL;
}

/* Look into the request, whose head is the first len bytes, and fill a. head: only the head of the answer is wanted. *why: of a refusal. */
static void request_serve(struct page_server *s, struct visitor *v, size_t len, struct page_answer *a, bool *head, const char **why)
{
    struct http_head h;
    const char *path = NULL;
    v->request[len] = 0;
    int status = http_head_read(&h, v->request, why);
    if (status != 0) {
        a->status = status;
        return;
    }
    *head = strcmp(h.method, "HEAD") == 0;
    *why = NULL;
    if (http_is_foreign(&h)) {
        a->status = 403;
        *why = HTTP_FOREIGN_WHY;
    } else if (s->hosts && !own_hosts_have(s->hosts, h.host)) {
        a->status = 403;
        *why = "the name in Host is none of this server's; ask it by its address, or see the setting 'allowed_hosts'";
    } else if (!(path = path_find(s, h.path))) {
        a->status = 404;
    } else if (!*head && strcmp(h.method, "GET") != 0) {
        a->status = 405;
        a->header = "Allow: GET, HEAD\r\n";
    } else {
        struct page_request request = { .path = path, .authorization = http_header(&h, "Authorization") };
        s->make(s->arg, &request, a);
    }
}

static void visitor_send(struct visitor *v)
{
    ssize_t n = send(v->fd, v->answer.data + v->n_sent, v->answer.len - v->n_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        visitor_close(v);
        return;
    }
    v->n_sent += n > 0 ? (size_t)n : 0;
    if (v->n_sent == v->answer.len) {
        shutdown(v->fd, SHUT_WR);
        v->stage = STAGE_LEAVES;
        v->since_ms = clock_ms();
    }
}

/* Answer the request, whose head has len bytes, or say with status what is wrong with it (0: nothing). */
static void visitor_answer(struct page_server *s, struct visitor *v, size_t len, int status)
{
    const char *why = NULL;
    struct page_answer a = { .status = status ? status : 200, .type = "text/plain; charset=utf-8" };
    bool head = false;
    if (status == 0)
        request_serve(s, v, len, &a, &head, &why);
    if (a.status != 200) {
        buf_clear(&a.body);
        buf_fmt(&a.body, "%d %s%s%s\n", a.status, http_status_words(a.status), why ? ": " : "", why ? why : "");
    }
    buf_fmt(&v->answer, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n", a.status,
            http_status_words(a.status), a.type, a.body.len, a.header ? a.header : "");
    if (!head)
        buf_add(&v->answer, a.body.data, a.body.len);
    bool whole = !a.body.failed && !v->answer.failed;
    buf_release(&a.body);
    if (!whole) {
        log_warn("no memory to answer a request at '%s'", s->address);
        visitor_close(v);
        return;
    }
    v->stage = STAGE_ANSWER;
    v->since_ms = clock_ms();
    visitor_send(v);
}

/* ---- one connection ---- */

static void visitor_hear(struct page_server *s, struct visitor *v)
{
    size_t len;
    ssize_t n = recv(v->fd, v->request + v->n_request, REQUEST_MAX - v->n_request, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        visitor_close(v);
        return;
    }
    v->n_request += (size_t)n;
    switch (http_head_find(v->request, v->n_request, &v->n_seen, &len)) {
    case HTTP_BAD: visitor_answer(s, v, 0, 400); break;
    case HTTP_WHOLE: visitor_answer(s, v, len, 0); break;
    case HTTP_MORE:
        if (v->n_request == REQUEST_MAX)
            visitor_answer(s, v, 0, 431);
    }
}

/* It has its answer: read on until it closes. */
static void visitor_see_off(struct visitor *v)
{
    char ignored[4096];
    ssize_t n = recv(v->fd, ignored, sizeof ignored, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        visitor_close(v);
}

static void visitor_move(struct page_server *s, struct visitor *v)
{
    switch (v->stage) {
    case STAGE_REQUEST: visitor_hear(s, v); break;
    case STAGE_ANSWER: visitor_send(v); break;
    case STAGE_LEAVES: visitor_see_off(v); break;
    }
}

/* ---- all of them ---- */

/* A free place; when there is none, of the address with most connections the one that came first leaves. */
static struct visitor *place_make(struct page_server *s)
{
    struct visitor *victim = NULL;
    int n_victim = 0;
    for (int i = 0; i < s->visitors_max; i++)
        if (s->visitor[i].fd < 0)
            return &s->visitor[i];
    for (int i = 0; i < s->visitors_max; i++) {
        int n = 0;
        for (int k = 0; k < s->visitors_max; k++)
            n += tcp_same_host(&s->visitor[k].from, &s->visitor[i].from);
        if (n > n_victim || (n == n_victim && s->visitor[i].n < victim->n)) {
            victim = &s->visitor[i];
            n_victim = n;
        }
    }
    visitor_drop(s, victim, WHY_MANY);
    return victim;
}

static bool visitor_accept(struct page_server *s)
{
    struct sockaddr_storage from = { 0 };
    socklen_t len = sizeof from;
    int fd = accept4(s->listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        s->out_of_files = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return false;
    }
    struct visitor *v = place_make(s);
    *v = (struct visitor){ .fd = fd, .n = s->n_accepted++, .since_ms = clock_ms(), .from = from, .answer = BUF_INIT };
    visitor_hear(s, v);    // most requests are there already
    return true;
}

/* Apply the limits. */
static void visitors_tick(struct page_server *s)
{
    int64_t now = clock_ms();
    for (int i = 0; i < s->visitors_max; i++) {
        struct visitor *v = &s->visitor[i];
        if (v->fd >= 0 && now >= v->since_ms + s->limit_ms)
            visitor_drop(s, v, v->stage == STAGE_REQUEST ? WHY_SILENT : WHY_SLOW);
    }
    s->out_of_files = false;
    away_tell(s, now);
}

void page_server_turn(struct page_server *s, int wake_fd, int64_t wait_ms)
{
    struct pollfd p[VISITORS_MAX + 2];
    bool runs = s->out_of_files || away_sum(s) > 0;
    for (int i = 0; i < VISITORS_MAX; i++) {    // poll leaves out what is below 0
        p[i] = (struct pollfd){ .fd = s->visitor[i].fd, .events = s->visitor[i].stage == STAGE_ANSWER ? POLLOUT : POLLIN };
        runs = runs || p[i].fd >= 0;
    }
    p[VISITORS_MAX] = (struct pollfd){ .fd = s->out_of_files ? -1 : s->listen_fd, .events = POLLIN };
    p[VISITORS_MAX + 1] = (struct pollfd){ .fd = wake_fd, .events = POLLIN };
    poll(p, VISITORS_MAX + 2, (int)(runs ? MIN(wait_ms, (int64_t)TICK_MS) : wait_ms));
    for (int i = 0; i < VISITORS_MAX; i++)
        if (p[i].fd >= 0 && p[i].revents)
            visitor_move(s, &s->visitor[i]);
    int n = p[VISITORS_MAX].revents ? 0 : ACCEPTS_MAX;
    while (n < ACCEPTS_MAX && visitor_accept(s))
        n++;
    visitors_tick(s);
}

struct page_server *page_server_new(const char *address, const struct own_hosts *hosts, const char *const *path, int64_t limit_ms,
                                    page_make *make, void *arg, struct error *err)
{
    struct rlimit fds;
    struct page_server *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory to listen on '%s'", address);
        return NULL;
    }
    snprintf(s->address, sizeof s->address, "%s", address);
    s->hosts = hosts;
    s->path = path;
    s->limit_ms = limit_ms;
    s->make = make;
    s->arg = arg;
    s->logged_ms = clock_ms() - LOG_MS;
    for (int i = 0; i < VISITORS_MAX; i++)
        s->visitor[i].fd = -1;
    s->visitors_max = VISITORS_MAX;
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0 && fds.rlim_cur < 2 * VISITORS_MAX)
        s->visitors_max = MAX((int)fds.rlim_cur / 2, 1);
    if ((s->listen_fd = tcp_listen(address, err)) < 0) {
        free(s);
        return NULL;
    }
    return s;
}

uint16_t page_server_port(const struct page_server *s)
{
    return tcp_port(s->listen_fd);
}

void page_server_free(struct page_server *s)
{
    if (!s)
        return;
    for (int i = 0; i < VISITORS_MAX; i++)
        if (s->visitor[i].fd >= 0)
            visitor_close(&s->visitor[i]);
    close(s->listen_fd);
    free(s);
}
