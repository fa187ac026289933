/* How the transport (transport*.c) works, and what must stay true:
 * 1. Only the loop thread calls this module; nng's threads run the callbacks (functions named ..._cb), which touch only their own
 *    slot's nng handles and the queue.
 * 2. A slot (call, request) is in the queue at most once and belongs to nng from the moment an operation is started on its
 *    aio until its callback has pushed it; then to the loop.
 * 3. nng never decides a time limit: cancelling a receive while its send is under way crashes 1.5.2 (its issue 1702). When a call's
 *    limit passes, the owner gets its answer, and the call is left to end by itself or with its socket.
 * 4. A dialer that has not been connected for REDIAL_MS while calls wait is replaced with its socket: in rare cases 1.5.2 never
 *    dials again after its peer was killed. Calls that were never sent move to the new socket.
 * 5. Closing a socket may hang for ever in 1.5.2 (its issue 1543): a message that is half sent or half received when its connection
 *    is closed never ends, and nng's one thread that takes connections apart waits for it from then on. So sockets are closed on
 *    threads of their own. The loop does not wait for them unless memory is to be freed, and then at most CLOSE_MS; a socket that does
 *    not close is left as it is, with everything that nng may still touch.
 * 6. A listener that no longer accepts, because of nng, listens again (listen.h). Other hosts are not accepted by nng (front.h).
 * 7. Other hosts are not dialed by nng either (dialer.h). A connection to one may be dead without any sign: the host is gone. When nothing
 *    has been answered on it for SILENT_MS since a request passed its limit, it is dialed again, unless the other host still acknowledges packets, there or on another connection: what was asked may be long, and the way slow, or the
 *    other side busy. So that there is always something to acknowledge the kernel asks after 2 s of silence (TCP keepalive). After ALIVE_MS
 *    it is dialed again all the same.
 * 8. With another identity a peer makes a new connection at once, and keeps the old one until what was asked there is answered. */
#include "protocol/wire/transport_parts.h"
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/wire/nng_start.h"

#define TICK_MS 20    // between two checks of what is due, however many messages come

/* An O_PATH descriptor of a folder that is ours alone; shared: of one that not everybody can write to. */
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
    struct transport *t;
    if (!nng_start(err))
        return NULL;
    if (!(t = calloc(1, sizeof *t))) {
        error_set(err, ERR_NO_MEMORY, "no memory for the transport");
        return NULL;
    }
    t->dir_fd = t->view_fd = -1;
    if (make && !dir_make(sock_dir, 0700, err))
        goto fail;
    if ((t->dir_fd = folder_open(sock_dir, shared, err)) < 0)
        goto fail;
    if (!entry_queue_init(&t->queue, err))
        goto fail;
    return t;
fail:
    if (t->dir_fd >= 0)
        close(t->dir_fd);
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
    return t->queue.event_fd;
}

void transport_wake(struct transport *t)
{
    atomic_store(&t->woken, true);
    entry_wake(&t->queue);
}

bool transport_woken(struct transport *t)
{
    return atomic_exchange(&t->woken, false);
}

bool transport_url(const struct transport *t, const char *name, char *out, size_t size, struct error *err)
{
    int n = snprintf(out, size, "ipc:///proc/self/fd/%d/%s", folder_of(t, name), name);
    if (n < 0 || (size_t)n >= size || n >= 100 || strchr(name, '/'))
        return error_set(err, ERR_USAGE, "'%.40s' is not a valid socket name", name);
    return true;
}

bool transport_listen(struct transport *t, struct listen *l, nng_socket socket, uint16_t peer_protocol, const char *name, struct error *err)
{
    char url[URL_SIZE];
    return transport_url(t, name, url, sizeof url, err)
           && listen_open(l, socket, peer_protocol, folder_of(t, name), name, url, is_view(t, name) && t->view_group, err);
}

nng_msg *nng_msg_of(const void *data, size_t len)
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

static bool transport_tick(struct transport *t, struct net_event *ev)
{
    int64_t now = clock_ms();
    if (now < t->ticked_ms + TICK_MS)
        return false;
    if (peers_tick(t, now, ev))
        return true;
    servers_tick(t);
    publishers_tick(t);
    t->ticked_ms = now;
    return false;
}

bool transport_next(struct transport *t, struct net_event *ev)
{
    struct queue_entry *e;
    *ev = (struct net_event){ 0 };
    while ((e = entry_pop(&t->queue))) {
        bool tell = true;
        switch (e->kind) {
        case ENTRY_CALL: tell = call_event((void *)e, ev); break;
        case ENTRY_REQUEST: request_event((void *)e, ev); break;
        case ENTRY_HEARD: heard_event((void *)e, ev); break;
        case ENTRY_PIPE:
            pipe_event(t, (void *)e);
            tell = false;
            break;
        }
        if (tell)
            return true;
    }
    return transport_tick(t, ev);
}

int64_t transport_due(const struct transport *t)
{
    int64_t due = MIN(peers_due(t), MIN(servers_due(t), publishers_due(t)));
    return MAX(due, t->ticked_ms + TICK_MS);
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
        struct pollfd fd = { .fd = t->queue.event_fd, .events = POLLIN };
        poll(&fd, 1, (int)MAX(MIN(left, transport_due(t) - clock_ms()), (int64_t)0));
    }
}

void net_event_release(struct net_event *ev)
{
    if (ev->msg)
        nng_msg_free(ev->msg);
    *ev = (struct net_event){ 0 };
}

static void entry_free(struct queue_entry *e)
{
    if (e->kind == ENTRY_HEARD)
        heard_free(e);
    else if (e->kind == ENTRY_PIPE)
        free(e);
}

static bool entry_any(UNUSED const struct queue_entry *e, UNUSED const void *owner)
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
    entry_remove(&t->queue, entry_any, NULL, entry_free);
    close(t->dir_fd);
    if (t->view_fd >= 0)
        close(t->view_fd);
    entry_queue_release(&t->queue);
    free(t);
}
