/* listen.h - a socket that listens on a name, and that notices when nng has stopped listening
 *
 * nng 1.5.2 stops accepting for ever when a peer leaves while its connection is being negotiated: the failure reaches the listener
 * as NNG_ECLOSED, which it mistakes for its own closing. A killed process or a tool that ends at once is enough. So when a listener
 * has had no new connection for half a second, its own process dials it (a bare connection and nng's greeting, since an nng socket
 * may hang when it is closed). When that connection does not arrive in time, the socket listens again; its peers then lose their
 * connections and redial.
 *
 * Owned by the transport, on its loop thread; nng's threads only count connections. */
#pragma once
#include <nng/nng.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "protocol/base/error.h"

struct listen {
    nng_socket socket;         // borrowed: a REP or PUB socket
    uint16_t peer_protocol;    // protocol number of the sockets that dial it, as in the greeting
    int dir_fd;                // of the folder that holds the socket file
    char url[128], name[64];
    bool group;    // the file's group may connect
    nng_listener listener;
    bool is_open;
    dev_t dev;    // of the socket file we made
    ino_t ino;
    atomic_int n_added;    // connections accepted; counted by nng's threads
    int n_seen;            // n_added at the last look
    atomic_int n_open;     // connections now, the probe too; counted by nng's threads
    int probe_fd;          // -1: none
    int64_t probed_ms;     // when the probe was opened, or when the listener was last known to accept
};
/* Listen on url, which is name in the folder dir_fd; sockets of peer_protocol will dial it. group: members of the file's group may
 * connect, too. On failure l can be closed. */
MUST_USE bool listen_open(struct listen *l, nng_socket socket, uint16_t peer_protocol, int dir_fd, const char *name, const char *url,
                          bool group, struct error *err);
/* Check whether it still accepts, and listen again when it does not; call when listen_due says so, or earlier. */
void listen_tick(struct listen *l);
/* When to check again, on the monotonic clock. */
int64_t listen_due(const struct listen *l);
/* Is the socket file under our name still the one we made? */
bool listen_is_ours(const struct listen *l);
/* Connections of others now. */
int listen_n_open(const struct listen *l);
/* End the probe; the listener ends with its socket. */
void listen_close(struct listen *l);
/* Turn an nng error code into err. Returns false. */
bool net_error(struct error *err, int rv, const char *what, const char *name);
