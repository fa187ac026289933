#include "protocol/wire/listen.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"

#define PROBE_MS 500           // time without a new connection before we dial ourselves
#define PROBE_LIMIT_MS 1500    // time in which our own connection must arrive
#define LATE_MS 500            // later than asked for: this process was stopped or starved, and nng's threads did not run either

bool net_error(struct error *err, int rv, const char *what, const char *name)
{
    enum error_code code = rv == NNG_ETIMEDOUT                                                ? ERR_TIMEOUT
                           : rv == NNG_ENOMEM                                                 ? ERR_NO_MEMORY
                           : rv == NNG_EADDRINUSE                                             ? ERR_EXISTS
                           : rv == NNG_ECLOSED || rv == NNG_ECONNRESET || rv == NNG_ECANCELED ? ERR_CLOSED
                                                                                              : ERR_IO;
    return error_set(err, code, "%s '%s': %s", what, name,
                     rv == NNG_EADDRINUSE ? "another process listens there already" : nng_strerror(rv));
}

static void added_cb(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
    (void)pipe;
    (void)ev;
    atomic_fetch_add(&((struct listen *)arg)->n_added, 1);
}

/* nng reports the end of each connection whose beginning it has reported, but not always that it was accepted in between. */
static void open_cb(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
    (void)pipe;
    atomic_fetch_add(&((struct listen *)arg)->n_open, ev == NNG_PIPE_EV_ADD_PRE ? 1 : -1);
}

static bool listen_begin(struct listen *l, struct error *err)
{
    struct stat st;
    mode_t mask = umask(077);
    int rv = nng_listen(l->socket, l->url, &l->listener, 0);
    umask(mask);
    if (rv != 0)
        return net_error(err, rv, "cannot listen on", l->name);
    l->is_open = true;
    if (l->group && fchmodat(l->dir_fd, l->name, 0660, 0) != 0)
        return error_errno(err, "cannot open the socket '%s' to its group", l->name);
    l->probed_ms = clock_ms();
    if (fstatat(l->dir_fd, l->name, &st, 0) == 0) {
        l->dev = st.st_dev;
        l->ino = st.st_ino;
    }
    return true;
}

bool listen_open(struct listen *l, nng_socket socket, uint16_t peer_protocol, int dir_fd, const char *name, const char *url, bool group,
                 struct error *err)
{
    *l = (struct listen){ .socket = socket, .peer_protocol = peer_protocol, .dir_fd = dir_fd, .probe_fd = -1, .group = group };
    snprintf(l->name, sizeof l->name, "%s", name);
    snprintf(l->url, sizeof l->url, "%s", url);
    nng_pipe_notify(socket, NNG_PIPE_EV_ADD_POST, added_cb, l);
    nng_pipe_notify(socket, NNG_PIPE_EV_ADD_PRE, open_cb, l);
    nng_pipe_notify(socket, NNG_PIPE_EV_REM_POST, open_cb, l);
    return listen_begin(l, err);
}

bool listen_is_ours(const struct listen *l)
{
    struct stat st;
    return fstatat(l->dir_fd, l->name, &st, 0) == 0 && st.st_dev == l->dev && st.st_ino == l->ino;
}

int listen_n_open(const struct listen *l)
{
    bool probe = l->probe_fd >= 0 && atomic_load(&l->n_added) != l->n_seen;    // one has come since the probe was sent: it
    return MAX(atomic_load(&l->n_open) - probe, 0);
}

void listen_close(struct listen *l)
{
    char greeting[64];
    if (l->probe_fd < 0)
        return;
    ssize_t n = recv(l->probe_fd, greeting, sizeof greeting, MSG_DONTWAIT);    // closing with unread bytes sends a reset
    (void)n;
    close(l->probe_fd);
    l->probe_fd = -1;
}

/* Connect and send the greeting of an nng peer: RFC of SP over stream transports, 0 'S' 'P' 0, protocol, 0 0. */
static void probe_begin(struct listen *l)
{
    const uint8_t greeting[8] = { 0, 'S', 'P', 0, (uint8_t)(l->peer_protocol >> 8), (uint8_t)l->peer_protocol, 0, 0 };
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    snprintf(to.sun_path, sizeof to.sun_path, "/proc/self/fd/%d/%s", l->dir_fd, l->name);
    l->probe_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->probe_fd < 0)
        return;    // no descriptor is free: try again a moment later
    if (connect(l->probe_fd, (const struct sockaddr *)&to, sizeof to) != 0
        || send(l->probe_fd, greeting, sizeof greeting, MSG_NOSIGNAL) != (ssize_t)sizeof greeting)
        listen_close(l);
}

int64_t listen_due(const struct listen *l)
{
    return l->probed_ms + (l->is_open && l->probe_fd < 0 ? PROBE_MS : PROBE_LIMIT_MS);
}

void listen_tick(struct listen *l)
{
    struct error err;
    int64_t now = clock_ms();
    if (now > listen_due(l) + LATE_MS)
        l->probed_ms = now;
    int n = atomic_load(&l->n_added);
    if (l->is_open && n != l->n_seen) {    // our probe or any other connection
        l->n_seen = n;
        l->probed_ms = now;
        listen_close(l);
        return;
    }
    if (l->is_open && l->probe_fd < 0) {
        if (now >= l->probed_ms + PROBE_MS) {
            l->probed_ms = now;
            if (listen_is_ours(l))
                probe_begin(l);
        }
        return;
    }
    if (now < l->probed_ms + PROBE_LIMIT_MS)
        return;
    listen_close(l);
    if (!listen_is_ours(l)) {    // somebody else has the name now
        l->probed_ms = now;
        return;
    }
    log_warn("'%s' no longer accepts new connections; it listens again", l->name);
    if (l->is_open)
        nng_listener_close(l->listener);
    l->is_open = false;
    if (!listen_begin(l, &err)) {
        log_error("%s", err.text);
        l->probed_ms = now;
    }
}
