/* listen.h - a socket that listens on a name, and that notices when nng has stopped listening
 *
 * nng 1.5.2 stops accepting for ever when a peer leaves while its connection is being negotiated: the failure reaches the listener
 * as NNG_ECLOSED, which it takes for its own closing. A killed process or a tool that ends at once is enough. So a listener that has
 * had no new connection for half a second is dialed by its own process (a bare connection and nng's greeting, since an nng socket may
 * hang when it is closed), and listens again when that connection has not arrived in time; its peers then lose their connections
 * and dial again.
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
    uint16_t peer_protocol;    // of the sockets that dial it, as the greeting has it
    int dir_fd;                // of the folder that holds the socket file
    char url[128], name[64];
    bool group;    // the file's group may connect
    nng_listener listener;
    bool is_open;
    dev_t dev;    // of the socket file we made
    ino_t ino;
    atomic_int n_added;    // connections that have been accepted; nng's threads count
    int n_seen;            // n_added when last looked at
    atomic_int n_open;     // connections there are now; nng's threads count
    int probe_fd;          // -1: none
    int64_t probed_ms;     // when the probe was opened, or the listener last known to hear
};
/* Listen on url, which is name in the folder dir_fd, with a socket that sockets of peer_protocol dial. group: those of
 * the file's group may connect, too. On failure l can be closed. */
MUST_USE bool listen_open(struct listen *l, nng_socket socket, uint16_t peer_protocol, int dir_fd, const char *name, const char *url,
                          bool group, struct error *err);
/* Look whether it still hears, and listen again when it does not; when listen_due says so, or before. */
void listen_tick(struct listen *l);
/* When to look again, on the monotonic clock. */
int64_t listen_due(const struct listen *l);
/* Is the socket file under our name still the one we made? */
bool listen_is_ours(const struct listen *l);
/* End the probe; the listener ends with its socket. */
void listen_close(struct listen *l);
/* A failure of nng in our words. Returns false. */
bool net_error(struct error *err, int rv, const char *what, const char *name);
