/* How it works, and what must stay true:
 * 1. Only the loop thread calls this module; nng's threads run the callbacks at the bottom of each section, which touch
 *    nothing but their own slot's nng handles and the queue.
 * 2. A slot (call, request) is in the queue at most once and belongs to nng from the moment an operation is started on its
 *    aio until its callback has pushed it; then to the loop.
 * 3. nng never decides a time limit: cancelling a receive while its send is under way crashes 1.5.2 (its issue 1702). A call
 *    whose limit has passed is answered to the owner and left to end by itself, or with its socket.
 * 4. A dialer that has not been connected for REDIAL_MS while calls wait is replaced with its socket: in rare cases 1.5.2
 *    stops dialing for ever after its peer was killed. Calls that were never sent move to the new socket.
 * 5. Closing a socket may hang for ever in 1.5.2 (its issue 1543). It is done on a thread of its own and waited for CLOSE_MS; what does
 *    not end is left as it is, with all that nng may still touch.
 * 6. A listener that nng has let go deaf listens anew (listen.h). */
#include "protocol/transport.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <nng/nng.h>
#include <nng/protocol/pubsub0/pub.h>
#include <nng/protocol/pubsub0/sub.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/listen.h"
#include "protocol/tls.h"

#define REDIAL_MS 3000
#define CLOSE_MS 3000
#define CALLS_MAX 256           // open at one peer
#define HEARD_MAX 8192          // publications in the queue; later ones are dropped
#define TOPIC_MAX 32
/* SP's numbers of the protocols that dial ours (not all of nng's headers tell). */
#define SP_REQ 0x30
#define SP_SUB 0x21

enum entry_kind { ENTRY_CALL, ENTRY_REQUEST, ENTRY_HEARD, ENTRY_PIPE };
struct entry {
    struct entry *next;
    enum entry_kind kind;
};
struct transport {
    int event_fd;
    int dir_fd;                 // O_PATH of the socket folder
    int view_fd;                // of the folder for sockets called "view..."; -1: the same
    bool view_group;            // its group may connect
    pthread_mutex_t lock;       // guards: first, last, n_heard
    struct entry *first, **last;
    int n_heard;
    struct peer *peers;         // the rest is the loop's
    struct server *servers;
    struct publisher *publishers;
    int64_t ticked_ms;
    atomic_bool woken;          // set by any thread
    bool left_open;             // a socket of ours could not be closed: nng may still call back
};

struct closing {
    nng_socket socket;
    int done_fd;
};

static void *closing_run(void *arg)
{
    uint64_t one = 1;
    struct closing c = *(struct closing *)arg;
    nng_close(c.socket);
    ssize_t n = write(c.done_fd, &one, sizeof one);
    (void)n;
    return NULL;
}

/* False: nng hangs in it, and may go on using what it was given. */
static bool socket_close(struct transport *t, nng_socket socket)
{
    pthread_t thread;
    sigset_t all, before;
    struct closing *c = malloc(sizeof *c);
    struct pollfd fd = { .fd = eventfd(0, EFD_CLOEXEC), .events = POLLIN };
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);    // signals are for the loop's thread
    if (c)
        *c = (struct closing){ socket, fd.fd };
    bool began = c && fd.fd >= 0 && pthread_create(&thread, NULL, closing_run, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    int64_t end = clock_ms() + CLOSE_MS;
    bool closed = !began;
    if (!began)
        nng_close(socket);
    for (int64_t left = CLOSE_MS; !closed && left > 0; left = end - clock_ms())
        closed = poll(&fd, 1, (int)left) > 0;
    if (began && closed)
        pthread_join(thread, NULL);
    else if (began)
        pthread_detach(thread);
    if (closed) {
        if (fd.fd >= 0)
            close(fd.fd);
        free(c);
        return true;
    }
    log_warn("a connection could not be closed in %d ms; it is left as it is", CLOSE_MS);
    t->left_open = true;
    return false;
}

static void queue_push(struct transport *t, struct entry *e)
{
    uint64_t one = 1;
    e->next = NULL;
    pthread_mutex_lock(&t->lock);
    *t->last = e;
    t->last = &e->next;
    if (e->kind == ENTRY_HEARD)
        t->n_heard++;
    pthread_mutex_unlock(&t->lock);
    ssize_t n = write(t->event_fd, &one, sizeof one);    // can only fail when the counter is full: then it is readable anyway
    (void)n;
}

static struct entry *queue_pop(struct transport *t)
{
    pthread_mutex_lock(&t->lock);
    struct entry *e = t->first;
    if (e) {
        t->first = e->next;
        if (!t->first)
            t->last = &t->first;
        if (e->kind == ENTRY_HEARD)
            t->n_heard--;
    }
    pthread_mutex_unlock(&t->lock);
    return e;
}

/* O_PATH of a folder that is ours alone; shared: one that is not everybody's. */
static int folder_open(const char *dir, bool shared, struct error *err)
{
    struct stat st;
    int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        error_errno(err, "cannot open the socket folder '%s'", dir);
    } else if (shared ? (st.st_mode & 022) != 0 : st.st_uid != geteuid() || (st.st_mode & 077)) {
        error_set(err, ERR_REFUSED, "socket folder '%s' may be %s by others (mode %03o)%s", dir, shared ? "written" : "entered",
                  (unsigned)(st.st_mode & 0777), shared ? "" : "; it must be yours, with mode 700");
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static struct transport *transport_open(const char *sock_dir, bool make, bool shared, struct error *err)
{
    struct transport *t = calloc(1, sizeof *t);
    if (!t) {
        error_set(err, ERR_NO_MEMORY, "no memory for the transport");
        return NULL;
    }
    t->last = &t->first;
    t->event_fd = t->dir_fd = t->view_fd = -1;
    pthread_mutex_init(&t->lock, NULL);
    if (make && !dir_make(sock_dir, 0700, err))
        goto fail;
    if ((t->dir_fd = folder_open(sock_dir, shared, err)) < 0)
        goto fail;
    t->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->event_fd < 0) {
        error_errno(err, "cannot make an eventfd");
        goto fail;
    }
    return t;
fail:
    if (t->dir_fd >= 0)
        close(t->dir_fd);
    pthread_mutex_destroy(&t->lock);
    free(t);
    return NULL;
}

struct transport *transport_new(const char *sock_dir, bool make, struct error *err)
{
    return transport_open(sock_dir, make, false, err);
}

struct transport *transport_new_view(const char *view_dir, struct error *err)
{
    return transport_open(view_dir, false, true, err);
}

bool transport_view(struct transport *t, const char *view_dir, bool group, struct error *err)
{
    t->view_fd = folder_open(view_dir, group, err);
    t->view_group = group;
    return t->view_fd >= 0;
}

static bool is_view(const struct transport *t, const char *name)
{
    return t->view_fd >= 0 && strncmp(name, "view", 4) == 0;
}

static int folder_of(const struct transport *t, const char *name)
{
    return is_view(t, name) ? t->view_fd : t->dir_fd;
}

int transport_fd(const struct transport *t)
{
    return t->event_fd;
}

void transport_wake(struct transport *t)
{
    uint64_t one = 1;
    atomic_store(&t->woken, true);
    ssize_t n = write(t->event_fd, &one, sizeof one);
    (void)n;
}

bool transport_woken(struct transport *t)
{
    return atomic_exchange(&t->woken, false);
}

static bool url_make(const struct transport *t, const char *name, char *out, size_t size, struct error *err)
{
    int n = snprintf(out, size, "ipc:///proc/self/fd/%d/%s", folder_of(t, name), name);
    if (n < 0 || (size_t)n >= size || n >= 100 || strchr(name, '/'))
        return error_set(err, ERR_USAGE, "'%.40s' is no name for a socket", name);
    return true;
}

/* ---- servers ---- */

struct request {
    struct entry entry;
    struct server *server;
    nng_ctx ctx;
    nng_aio *aio;
    nng_msg *msg;       // what was asked; the loop's while it holds the request
    bool sending;       // the aio is sending our answer
};
struct server {
    struct server *next;
    struct transport *transport;
    nng_socket socket;
    struct listen listen;       // of a Unix socket
    nng_tls_config *tls;        // not NULL: a listener of TLS, without a file
    int n_request;
    struct request *request;
};

static void request_cb(void *arg)
{
    struct request *r = arg;
    int rv = nng_aio_result(r->aio);
    if (rv == NNG_ECLOSED)
        return;
    if (r->sending || rv != 0) {
        if (r->sending && rv != 0)
            nng_msg_free(nng_aio_get_msg(r->aio));
        r->sending = false;
        nng_ctx_recv(r->ctx, r->aio);
        return;
    }
    r->msg = nng_aio_get_msg(r->aio);
    queue_push(r->server->transport, &r->entry);
}

/* tls: NULL, or taken. */
static struct server *server_make(struct transport *t, const char *name, nng_tls_config *tls, int n_wait, struct error *err)
{
    char url[320];
    int rv;
    struct server *s = calloc(1, sizeof *s);
    struct request *requests = calloc((size_t)n_wait, sizeof *requests);
    if (!s || !requests) {
        error_set(err, ERR_NO_MEMORY, "no memory for a server");
        goto fail;
    }
    s->transport = t;
    s->request = requests;
    s->tls = tls;
    if (tls)
        snprintf(url, sizeof url, "tls+tcp://%s", name);
    else if (!url_make(t, name, url, sizeof url, err))
        goto fail;
    if ((rv = nng_rep0_open(&s->socket)) != 0) {
        net_error(err, rv, "cannot open a socket for", name);
        goto fail;
    }
    nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, MSG_BYTES_MAX);
    nng_listener listener;
    if (tls && (rv = tls_listen(s->socket, url, tls, &listener)) != 0)
        net_error(err, rv, "cannot listen on", name);
    if (tls ? rv != 0 : !listen_open(&s->listen, s->socket, SP_REQ, folder_of(t, name), name, url,
                                           is_view(t, name) && t->view_group, err)) {
        nng_close(s->socket);
        goto fail;
    }
    for (; s->n_request < n_wait; s->n_request++) {
        struct request *r = &s->request[s->n_request];
        r->entry.kind = ENTRY_REQUEST;
        r->server = s;
        if ((rv = nng_ctx_open(&r->ctx, s->socket)) != 0)
            break;
        if ((rv = nng_aio_alloc(&r->aio, request_cb, r)) != 0) {
            nng_ctx_close(r->ctx);
            break;
        }
        nng_aio_set_timeout(r->aio, NNG_DURATION_INFINITE);
    }
    s->next = t->servers;
    t->servers = s;
    if (s->n_request < n_wait) {
        net_error(err, rv, "cannot open a context for", name);
        server_free(s);
        return NULL;
    }
    for (int i = 0; i < n_wait; i++)
        nng_ctx_recv(s->request[i].ctx, s->request[i].aio);
    return s;
fail:
    if (tls)
        nng_tls_config_free(tls);
    free(requests);
    free(s);
    return NULL;
}

struct server *server_new(struct transport *t, const char *name, int n_wait, struct error *err)
{
    return server_make(t, name, NULL, n_wait, err);
}

struct server *server_new_tls(struct transport *t, const char *address, const struct join_identity *id, int n_wait, struct error *err)
{
    nng_tls_config *tls = tls_config_new(id, NNG_TLS_MODE_SERVER, err);
    return tls ? server_make(t, address, tls, n_wait, err) : NULL;
}

bool server_is_ours(const struct server *s)
{
    return s->tls || listen_is_ours(&s->listen);
}

/* Take the entries of one owner out of the queue. */
static void queue_remove(struct transport *t, bool (*owned)(const struct entry *e, const void *owner), const void *owner,
                         void (*release)(struct entry *e))
{
    struct entry *removed = NULL;
    pthread_mutex_lock(&t->lock);
    for (struct entry **at = &t->first; *at;) {
        struct entry *e = *at;
        if (!owned(e, owner)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        if (e->kind == ENTRY_HEARD)
            t->n_heard--;
        e->next = removed;
        removed = e;
    }
    t->last = &t->first;
    while (*t->last)
        t->last = &(*t->last)->next;
    pthread_mutex_unlock(&t->lock);
    while (removed) {
        struct entry *e = removed;
        removed = e->next;
        release(e);
    }
}

static bool entry_of_server(const struct entry *e, const void *owner)
{
    return e->kind == ENTRY_REQUEST && ((const struct request *)(const void *)e)->server == owner;
}

static void entry_keep(UNUSED struct entry *e)
{
}

void server_free(struct server *s)
{
    if (!s)
        return;
    struct transport *t = s->transport;
    for (struct server **at = &t->servers; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    if (!s->tls)
        listen_close(&s->listen);
    if (!server_is_ours(s)) {
        /* Closing would remove the socket file of the one who took our place. The socket stays open until the process ends. */
        log_warn("socket '%s' belongs to another process now; left alone", s->listen.name);
        return;
    }
    if (!socket_close(t, s->socket))
        return;
    for (int i = 0; i < s->n_request; i++) {
        nng_aio_stop(s->request[i].aio);
        nng_aio_free(s->request[i].aio);
    }
    queue_remove(t, entry_of_server, s, entry_keep);
    for (int i = 0; i < s->n_request; i++)
        if (s->request[i].msg)
            nng_msg_free(s->request[i].msg);
    if (s->tls)
        nng_tls_config_free(s->tls);
    free(s->request);
    free(s);
}

static nng_msg *msg_make(const void *data, size_t len)
{
    nng_msg *m = NULL;
    if (nng_msg_alloc(&m, 0) != 0)
        return NULL;
    if (nng_msg_append(m, data, len) != 0) {
        nng_msg_free(m);
        return NULL;
    }
    return m;
}

void request_answer(struct request *r, const struct msg_out *m)
{
    nng_msg *msg = msg_make(m->buf.data, m->buf.len);
    if (!msg) {
        request_drop(r);
        return;
    }
    if (r->msg)
        nng_msg_free(r->msg);
    r->msg = NULL;
    r->sending = true;
    nng_aio_set_msg(r->aio, msg);
    nng_ctx_send(r->ctx, r->aio);
}

void request_refuse(struct request *r, const struct error *why)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_refuse(&m, why);
    request_answer(r, &m);
    msg_release(&m);
}

void request_drop(struct request *r)
{
    if (r->msg)
        nng_msg_free(r->msg);
    r->msg = NULL;
    nng_ctx_recv(r->ctx, r->aio);    // receiving anew forgets who asked
}

const struct server *request_server(const struct request *r)
{
    return r->server;
}

/* ---- peers ---- */

struct call {
    struct entry entry;
    struct call *next;      // in the peer's list
    struct peer *peer;
    nng_ctx ctx;
    nng_aio *aio;
    nng_msg *msg;           // the answer
    int rv;
    bool receiving;         // the request is out
    uint64_t tag;           // the loop's from here
    int64_t limit_ms;       // on the monotonic clock
    bool answered;          // the owner has been told that the limit has passed
};
struct peer {
    struct peer *next;
    struct transport *transport;
    nng_socket socket;
    bool is_open;
    char name[280];
    nng_tls_config *tls;        // NULL: a Unix socket of this host
    int n_pipe;                 // connections
    int64_t unconnected_ms;     // since when there is none, on the monotonic clock
    struct call *calls;
    int n_open;
};
struct pipe_entry {    // a connection of a peer's socket came or went
    struct entry entry;
    int socket_id;
    int change;
};

static void call_cb(void *arg)
{
    struct call *c = arg;
    int rv = nng_aio_result(c->aio);
    if (rv == 0 && !c->receiving) {
        c->receiving = true;
        nng_ctx_recv(c->ctx, c->aio);
        return;
    }
    c->rv = rv;
    c->msg = rv == 0 ? nng_aio_get_msg(c->aio) : NULL;
    queue_push(c->peer->transport, &c->entry);
}

static void pipe_cb(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
    struct pipe_entry *e = calloc(1, sizeof *e);
    if (!e)
        return;
    e->entry.kind = ENTRY_PIPE;
    e->socket_id = nng_socket_id(nng_pipe_socket(pipe));
    e->change = ev == NNG_PIPE_EV_ADD_POST ? 1 : -1;
    queue_push(arg, &e->entry);
}

static bool peer_open(struct peer *p, struct error *err)
{
    char url[320];
    if (p->tls)
        snprintf(url, sizeof url, "tls+tcp://%s", p->name);
    else if (!url_make(p->transport, p->name, url, sizeof url, err))
        return false;
    int rv = nng_req0_open(&p->socket);
    if (rv != 0)
        return net_error(err, rv, "cannot open a socket for", p->name);
    nng_socket_set_size(p->socket, NNG_OPT_RECVMAXSZ, MSG_BYTES_MAX);
    nng_socket_set_ms(p->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    nng_socket_set_ms(p->socket, NNG_OPT_RECONNMINT, 20);
    nng_socket_set_ms(p->socket, NNG_OPT_RECONNMAXT, 250);
    nng_pipe_notify(p->socket, NNG_PIPE_EV_ADD_POST, pipe_cb, p->transport);
    nng_pipe_notify(p->socket, NNG_PIPE_EV_REM_POST, pipe_cb, p->transport);
    rv = tls_dial(p->socket, url, p->tls);
    if (rv != 0) {
        nng_close(p->socket);
        return net_error(err, rv, "cannot dial", p->name);
    }
    p->is_open = true;
    p->n_pipe = 0;
    p->unconnected_ms = clock_ms();
    return true;
}

/* tls: NULL, or taken. */
static struct peer *peer_make(struct transport *t, const char *name, nng_tls_config *tls, struct error *err)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p) {
        error_set(err, ERR_NO_MEMORY, "no memory for a peer");
        goto fail;
    }
    p->transport = t;
    p->tls = tls;
    snprintf(p->name, sizeof p->name, "%s", name);
    if (!peer_open(p, err))
        goto fail;
    p->next = t->peers;
    t->peers = p;
    return p;
fail:
    if (tls)
        nng_tls_config_free(tls);
    free(p);
    return NULL;
}

struct peer *peer_new(struct transport *t, const char *name, struct error *err)
{
    return peer_make(t, name, NULL, err);
}

struct peer *peer_new_tls(struct transport *t, const char *address, const struct join_identity *id, struct error *err)
{
    nng_tls_config *tls = tls_config_new(id, NNG_TLS_MODE_CLIENT, err);
    return tls ? peer_make(t, address, tls, err) : NULL;
}

bool peer_is_connected(const struct peer *p)
{
    return p->n_pipe > 0;
}

const char *peer_name(const struct peer *p)
{
    return p->name;
}

int peer_n_open(const struct peer *p)
{
    return p->n_open;
}

/* Give a call its context on the peer's socket of now, and send msg (taken). */
static bool call_start(struct call *c, nng_msg *msg, struct error *err)
{
    int rv = nng_ctx_open(&c->ctx, c->peer->socket);
    if (rv != 0) {
        nng_msg_free(msg);
        return net_error(err, rv, "cannot ask", c->peer->name);
    }
    c->receiving = false;
    nng_aio_set_timeout(c->aio, NNG_DURATION_INFINITE);
    nng_aio_set_msg(c->aio, msg);
    nng_ctx_send(c->ctx, c->aio);
    return true;
}

static void call_free(struct call *c)
{
    for (struct call **at = &c->peer->calls; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    nng_aio_stop(c->aio);
    nng_aio_free(c->aio);
    nng_ctx_close(c->ctx);
    if (c->msg)
        nng_msg_free(c->msg);
    c->peer->n_open--;
    free(c);
}

bool peer_ask(struct peer *p, const struct msg_out *m, int64_t timeout_ms, uint64_t tag, struct error *err)
{
    if (p->n_open >= CALLS_MAX)
        return error_set(err, ERR_FULL, "%d requests to '%s' are open already", p->n_open, p->name);
    struct call *c = calloc(1, sizeof *c);
    nng_msg *msg = msg_make(m->buf.data, m->buf.len);
    if (!c || !msg || nng_aio_alloc(&c->aio, call_cb, c) != 0) {
        free(c);
        if (msg)
            nng_msg_free(msg);
        return error_set(err, ERR_NO_MEMORY, "no memory for a request to '%s'", p->name);
    }
    c->entry.kind = ENTRY_CALL;
    c->peer = p;
    c->tag = tag;
    c->limit_ms = clock_ms() + timeout_ms;
    if (!call_start(c, msg, err)) {
        nng_aio_free(c->aio);
        free(c);
        return false;
    }
    c->next = p->calls;
    p->calls = c;
    p->n_open++;
    return true;
}

static bool entry_of_peer(const struct entry *e, const void *owner)
{
    return e->kind == ENTRY_CALL && ((const struct call *)(const void *)e)->peer == owner;
}

void peer_free(struct peer *p)
{
    if (!p)
        return;
    struct transport *t = p->transport;
    for (struct peer **at = &t->peers; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    if (p->is_open && !socket_close(t, p->socket))
        return;
    for (struct call *c = p->calls; c; c = c->next)
        nng_aio_stop(c->aio);    // its callback has run to its end: the call is in the queue, or was never going to be
    queue_remove(t, entry_of_peer, p, entry_keep);
    while (p->calls) {
        struct call *c = p->calls;
        if (!c->receiving && c->rv != 0)    // an unsent request is still the aio's
            nng_msg_free(nng_aio_get_msg(c->aio));
        call_free(c);
    }
    if (p->tls)
        nng_tls_config_free(p->tls);
    free(p);
}

/* Replace a socket that does not connect. What was never sent comes back through the queue and is sent again. */
static void peer_reopen(struct peer *p)
{
    struct error err;
    log_debug("dialing '%s' anew", p->name);
    if (p->is_open)
        socket_close(p->transport, p->socket);
    p->is_open = false;
    if (!peer_open(p, &err)) {
        log_warn("%s", err.text);
        p->unconnected_ms = clock_ms();
    }
}

struct publisher {
    struct publisher *next;
    struct transport *transport;
    nng_socket socket;
    struct listen listen;
};

/* Time limits of calls, silent dialers and deaf listeners; a few times a second. */
static bool transport_tick(struct transport *t, struct net_event *ev)
{
    int64_t now = clock_ms();
    if (now < t->ticked_ms + 20)
        return false;
    for (struct peer *p = t->peers; p; p = p->next) {
        bool waits = false;
        for (struct call *c = p->calls; c; c = c->next) {
            if (!c->answered && now >= c->limit_ms) {
                c->answered = true;
                *ev = (struct net_event){ .kind = NET_ANSWER, .peer = p, .tag = c->tag, .failed = true };
                error_set(&ev->err, ERR_TIMEOUT, "'%s' has not answered in time%s", p->name,
                          p->n_pipe > 0 ? "" : "; it is not there");
                return true;
            }
            waits = waits || !c->answered;
        }
        if ((waits || !p->is_open) && p->n_pipe <= 0 && now >= p->unconnected_ms + REDIAL_MS)
            peer_reopen(p);
    }
    for (struct server *s = t->servers; s; s = s->next)
        if (!s->tls)
            listen_tick(&s->listen);
    for (struct publisher *p = t->publishers; p; p = p->next)
        listen_tick(&p->listen);
    t->ticked_ms = now;
    return false;
}

/* ---- publications ---- */

struct subscriber {
    struct transport *transport;
    nng_socket socket;
    nng_aio *aio;
};
struct heard {
    struct entry entry;
    const struct subscriber *subscriber;
    nng_msg *msg;
};

struct publisher *publisher_new(struct transport *t, const char *name, struct error *err)
{
    char url[128];
    int rv;
    struct publisher *p = calloc(1, sizeof *p);
    if (!p) {
        error_set(err, ERR_NO_MEMORY, "no memory for a publisher");
        return NULL;
    }
    if (!url_make(t, name, url, sizeof url, err))
        goto fail;
    if ((rv = nng_pub0_open(&p->socket)) != 0) {
        net_error(err, rv, "cannot open a socket for", name);
        goto fail;
    }
    nng_socket_set_int(p->socket, NNG_OPT_SENDBUF, 1024);
    if (!listen_open(&p->listen, p->socket, SP_SUB, folder_of(t, name), name, url, is_view(t, name) && t->view_group, err)) {
        nng_close(p->socket);
        goto fail;
    }
    p->transport = t;
    p->next = t->publishers;
    t->publishers = p;
    return p;
fail:
    free(p);
    return NULL;
}

void publisher_free(struct publisher *p)
{
    if (!p)
        return;
    for (struct publisher **at = &p->transport->publishers; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    listen_close(&p->listen);
    if (socket_close(p->transport, p->socket))
        free(p);
}

void publisher_send_bytes(struct publisher *p, const char *topic, const void *data, size_t len)
{
    nng_msg *m = msg_make(topic, strlen(topic) + 1);    // with its NUL
    if (!m)
        return;
    if (nng_msg_append(m, data, len) != 0 || nng_sendmsg(p->socket, m, NNG_FLAG_NONBLOCK) != 0)
        nng_msg_free(m);
}

void publisher_send(struct publisher *p, const char *topic, const struct msg_out *m)
{
    publisher_send_bytes(p, topic, m->buf.data, m->buf.len);
}

static void heard_cb(void *arg)
{
    struct subscriber *s = arg;
    struct transport *t = s->transport;
    int rv = nng_aio_result(s->aio);
    if (rv == NNG_ECLOSED)
        return;
    if (rv == 0) {
        nng_msg *m = nng_aio_get_msg(s->aio);
        struct heard *h = NULL;
        pthread_mutex_lock(&t->lock);
        bool room = t->n_heard < HEARD_MAX;
        pthread_mutex_unlock(&t->lock);
        if (room && (h = calloc(1, sizeof *h))) {
            h->entry.kind = ENTRY_HEARD;
            h->subscriber = s;
            h->msg = m;
            queue_push(t, &h->entry);
        } else {
            nng_msg_free(m);
        }
    }
    nng_recv_aio(s->socket, s->aio);
}

struct subscriber *subscriber_new(struct transport *t, const char *name, struct error *err)
{
    char url[128];
    int rv;
    struct subscriber *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for a subscriber");
        return NULL;
    }
    s->transport = t;
    if (!url_make(t, name, url, sizeof url, err))
        goto fail;
    if ((rv = nng_sub0_open(&s->socket)) != 0) {
        net_error(err, rv, "cannot open a socket for", name);
        goto fail;
    }
    nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, MSG_BYTES_MAX);
    nng_socket_set_int(s->socket, NNG_OPT_RECVBUF, 8192);
    nng_socket_set_ms(s->socket, NNG_OPT_RECONNMINT, 20);
    nng_socket_set_ms(s->socket, NNG_OPT_RECONNMAXT, 250);
    nng_socket_set(s->socket, NNG_OPT_SUB_SUBSCRIBE, "", 0);
    if ((rv = nng_aio_alloc(&s->aio, heard_cb, s)) != 0 || (rv = nng_dial(s->socket, url, NULL, NNG_FLAG_NONBLOCK)) != 0) {
        net_error(err, rv, "cannot listen to", name);
        nng_close(s->socket);
        nng_aio_free(s->aio);
        goto fail;
    }
    nng_aio_set_timeout(s->aio, NNG_DURATION_INFINITE);
    nng_recv_aio(s->socket, s->aio);
    return s;
fail:
    free(s);
    return NULL;
}

static bool entry_of_subscriber(const struct entry *e, const void *owner)
{
    return e->kind == ENTRY_HEARD && ((const struct heard *)(const void *)e)->subscriber == owner;
}

static void heard_free(struct entry *e)
{
    struct heard *h = (void *)e;
    nng_msg_free(h->msg);
    free(h);
}

void subscriber_free(struct subscriber *s)
{
    if (!s)
        return;
    if (!socket_close(s->transport, s->socket))
        return;
    nng_aio_stop(s->aio);
    nng_aio_free(s->aio);
    queue_remove(s->transport, entry_of_subscriber, s, heard_free);
    free(s);
}

bool heard_split(const struct net_event *ev, char *topic, size_t size, const void **data, size_t *len)
{
    const char *nul = memchr(ev->data, 0, MIN(ev->len, (size_t)TOPIC_MAX));
    if (!nul || (size_t)(nul - (const char *)ev->data) >= size)
        return false;
    size_t n = (size_t)(nul - (const char *)ev->data);
    memcpy(topic, ev->data, n + 1);
    *data = nul + 1;
    *len = ev->len - n - 1;
    return true;
}

/* ---- the queue's other end ---- */

/* A call has come back from nng: its answer, its failure, or nothing that anybody still waits for. */
static bool call_finish(struct call *c, struct net_event *ev)
{
    struct peer *p = c->peer;
    if (c->rv != 0 && !c->receiving) {    // never sent: it may go to the socket of now
        nng_msg *msg = nng_aio_get_msg(c->aio);
        if (!c->answered && p->is_open) {
            nng_ctx_close(c->ctx);
            if (call_start(c, msg, &ev->err))
                return false;
        } else {
            nng_msg_free(msg);
        }
    }
    bool tell = !c->answered;
    if (tell) {
        *ev = (struct net_event){ .kind = NET_ANSWER, .peer = p, .tag = c->tag, .failed = c->rv != 0 };
        if (c->rv != 0) {
            net_error(&ev->err, c->rv, "no answer from", p->name);
        } else {
            ev->msg = c->msg;
            ev->data = nng_msg_body(c->msg);
            ev->len = nng_msg_len(c->msg);
            c->msg = NULL;
        }
    }
    call_free(c);
    return tell;
}

static void pipe_finish(struct transport *t, struct pipe_entry *e)
{
    for (struct peer *p = t->peers; p; p = p->next)
        if (p->is_open && nng_socket_id(p->socket) == e->socket_id) {
            p->n_pipe += e->change;
            p->unconnected_ms = clock_ms();
        }
    free(e);
}

bool transport_next(struct transport *t, struct net_event *ev)
{
    uint64_t n;
    struct entry *e;
    *ev = (struct net_event){ 0 };
    ssize_t got = read(t->event_fd, &n, sizeof n);    // before the queue is looked at, so that a later push wakes us again
    (void)got;
    while ((e = queue_pop(t))) {
        bool tell = true;
        switch (e->kind) {
        case ENTRY_CALL:
            tell = call_finish((void *)e, ev);
            break;
        case ENTRY_REQUEST: {
            struct request *r = (void *)e;
            *ev = (struct net_event){ .kind = NET_REQUEST, .request = r, .data = nng_msg_body(r->msg), .len = nng_msg_len(r->msg) };
            break;
        }
        case ENTRY_HEARD: {
            struct heard *h = (void *)e;
            *ev = (struct net_event){ .kind = NET_HEARD, .data = nng_msg_body(h->msg), .len = nng_msg_len(h->msg), .msg = h->msg };
            free(h);
            break;
        }
        case ENTRY_PIPE:
            pipe_finish(t, (void *)e);
            tell = false;
            break;
        }
        if (tell) {
            uint64_t one = 1;
            got = write(t->event_fd, &one, sizeof one);    // there may be more: stay readable
            return true;
        }
    }
    return transport_tick(t, ev);
}

bool transport_wait(struct transport *t, struct net_event *ev, int64_t timeout_ms)
{
    int64_t end = clock_ms() + timeout_ms;
    for (;;) {
        if (transport_next(t, ev))
            return true;
        int64_t left = end - clock_ms();
        if (left <= 0)
            return false;
        struct pollfd fd = { .fd = t->event_fd, .events = POLLIN };
        poll(&fd, 1, (int)MIN(left, 50));    // time limits of calls are looked at in transport_next
    }
}

void net_event_release(struct net_event *ev)
{
    if (ev->msg)
        nng_msg_free(ev->msg);
    *ev = (struct net_event){ 0 };
}

bool peer_call(struct peer *p, enum msg_type type, const struct msg_out *m, int64_t timeout_ms, struct msg_in *answer,
               struct net_event *ev, struct error *err)
{
    const uint64_t tag = UINT64_MAX;
    if (!peer_ask(p, m, timeout_ms, tag, err))
        return false;
    while (transport_wait(p->transport, ev, timeout_ms + 1000)) {
        if (ev->kind == NET_ANSWER && ev->peer == p && ev->tag == tag) {
            if (ev->failed) {
                *err = ev->err;
                return false;
            }
            if (msg_read_answer(answer, type, ev->data, ev->len, err))
                return true;
            net_event_release(ev);
            return false;
        }
        if (ev->kind == NET_REQUEST)
            request_drop(ev->request);
        net_event_release(ev);
    }
    return error_set(err, ERR_TIMEOUT, "'%s' has not answered in time", p->name);
}

static void entry_free(struct entry *e)
{
    if (e->kind == ENTRY_HEARD)
        heard_free(e);
    else if (e->kind == ENTRY_PIPE)
        free(e);
}

static bool entry_any(UNUSED const struct entry *e, UNUSED const void *owner)
{
    return true;
}

void transport_free(struct transport *t)
{
    if (!t)
        return;
    while (t->peers)
        peer_free(t->peers);
    while (t->servers)
        server_free(t->servers);
    if (t->left_open)
        return;
    queue_remove(t, entry_any, NULL, entry_free);
    close(t->event_fd);
    close(t->dir_fd);
    if (t->view_fd >= 0)
        close(t->view_fd);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
