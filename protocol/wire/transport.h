/* transport.h - requests, answers and telemetry between processes, over nng on Unix sockets in the run directory
 *
 * One transport per process, owned by its loop thread; only that thread calls these functions. nng's callbacks run on nng's threads:
 * they only push an event to the transport's queue and write its eventfd. The loop polls transport_fd and takes events with
 * transport_next. Every request has a time limit; it is sent once (no resending by nng: the outcome of a lost request is
 * unknown, and repeating it is the caller's decision, under the same id). Only this module uses nng.
 *
 * Socket names are plain words ("agent"); they live in the folder given to transport_new and are reached through
 * /proc/self/fd, so that a long path does not hit the 107 bytes of a Unix socket's address. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/wire/message.h"

struct transport;
struct server;     // answers requests on one name
struct peer;       // sends requests to one name, or to one address
struct request;    // a request that waits for our answer
struct publisher;
struct subscriber;
struct join_identity;    // join_token.h

enum net_event_kind {
    NET_REQUEST,    // a request came: answer with request_answer or request_drop, now or later
    NET_ANSWER,     // the answer to one of our requests; failed is set when none came
    NET_HEARD,      // a publication
};
struct net_event {
    enum net_event_kind kind;
    struct request *request;    // NET_REQUEST
    struct peer *peer;          // NET_ANSWER
    uint64_t tag;               // NET_ANSWER: what peer_ask was given
    bool failed;                // NET_ANSWER: err says why (ERR_TIMEOUT, ERR_CLOSED); the outcome is unknown
    struct error err;
    const void *data;    // the message's bytes, borrowed until net_event_release
    size_t len;
    void *msg;    // the transport's own
};
/* sock_dir: created with mode 0700 when missing and make is set; a folder that others may enter is refused. */
struct transport *transport_new(const char *sock_dir, bool make, struct error *err);
/* For the readers of a view folder (run_door.h), which may belong to another user; a folder that everybody may write to is refused. */
struct transport *transport_new_view(const char *view_dir, struct error *err);
/* From now on sockets whose names begin with "view" are made in view_dir; with group its group may connect to them. */
MUST_USE bool transport_view(struct transport *t, const char *view_dir, bool group, struct error *err);
/* Close everything. Takes at most about two seconds; servers' socket files that are still ours are removed. */
void transport_free(struct transport *t);
int transport_fd(const struct transport *t);    // readable when an event is waiting
/* Take the next event; false: none is waiting. */
bool transport_next(struct transport *t, struct net_event *ev);
/* When transport_next must be called even if the descriptor is not readable, for time limits and the like; on the monotonic clock. */
int64_t transport_due(const struct transport *t);
/* Wait for one up to timeout_ms; for tools that do one thing at a time. */
bool transport_wait(struct transport *t, struct net_event *ev, int64_t timeout_ms);
void net_event_release(struct net_event *ev);
/* Make transport_fd readable from another thread; transport_woken says whether that has happened since the last call. */
void transport_wake(struct transport *t);
bool transport_woken(struct transport *t);

/* Answer on name; up to n_wait requests may be held open at once. Memory is taken for as many as are. */
struct server *server_new(struct transport *t, const char *name, int n_wait, struct error *err);
/* Answer at address, HOST:PORT, over TLS, only to peers that prove that they have the same token. */
struct server *server_new_tls(struct transport *t, const char *address, const struct join_identity *id, int n_wait, struct error *err);
/* For a server of server_new_tls: hand connections for large data that arrive at its address to take (front_bulk in front.h). */
void server_bulk(struct server *s, bool (*take)(void *ctx, int fd, const uint8_t *hello), void *ctx);
/* For a server of server_new_tls: judge new connections by id from now on. Present ones stay until server_cut. On failure nothing has
 * changed. */
MUST_USE bool server_identity(struct server *s, const struct join_identity *id, struct error *err);
/* End the connections that were made before the last server_identity. */
void server_cut(struct server *s);
void server_free(struct server *s);
/* Is the socket file under our name still the one we made? False: another process has taken our place, or the file was removed. */
bool server_is_ours(const struct server *s);
/* Answer; takes the request, copies m. An answer to a peer that is gone is dropped. */
void request_answer(struct request *r, const struct msg_out *m);
void request_refuse(struct request *r, const struct error *why);
void request_drop(struct request *r);                            // no answer: the asker times out
const struct server *request_server(const struct request *r);    // the server it came to
uint64_t request_connection(const struct request *r);            // the number of the connection that it came by, not 0; no other one of
                                                                 // this process has it
/* When bytes last came by this connection (clock_ms), whether or not they have made a whole message yet. 0: it is gone, or it is not one to a
 * server of server_new_tls. */
int64_t connection_heard_ms(const struct transport *t, uint64_t connection);

/* A peer at the socket name; it need not exist yet, and may come and go. At most 4096 requests may be open. */
struct peer *peer_new(struct transport *t, const char *name, struct error *err);
/* One at address, HOST:PORT, over TLS. */
struct peer *peer_new_tls(struct transport *t, const char *address, const struct join_identity *id, struct error *err);
bool peer_is_connected(const struct peer *p);
/* Dial another address from now on, for a peer of peer_new_tls; what was sent and not answered fails. When that cannot be begun it is logged,
 * and the peer stays where it is. */
void peer_move(struct peer *p, const char *address);
/* Dial with another identity from now on, for a peer of peer_new_tls. What was asked before is still answered on the connection that there
 * is, for at most five seconds; then it fails. On failure nothing has changed. */
MUST_USE bool peer_identity(struct peer *p, const struct join_identity *id, struct error *err);
/* Not connected, since the other side and this one do not trust each other's certificates: one of them has another token. */
bool peer_is_strange(const struct peer *p);
void peer_free(struct peer *p);    // open requests end without an event
const char *peer_name(const struct peer *p);
int peer_n_open(const struct peer *p);
/* Send m; the answer comes as NET_ANSWER with tag within timeout_ms. False: it could not even be queued. */
MUST_USE bool peer_ask(struct peer *p, const struct msg_out *m, int64_t timeout_ms, uint64_t tag, struct error *err);
/* For tools: ask and wait. On success answer is filled (release it, then ev). On failure ev holds nothing; ev->failed says that no
 * answer came, so the outcome is unknown; otherwise the request was refused. Other events that arrive meanwhile are dropped. */
MUST_USE bool peer_call(struct peer *p, enum msg_type type, const struct msg_out *m, int64_t timeout_ms, struct msg_in *answer,
                        struct net_event *ev, struct error *err);

/* Telemetry: lossy, to any number of listeners, never waits. A topic is a word; it precedes the message's bytes. */
struct publisher *publisher_new(struct transport *t, const char *name, struct error *err);
void publisher_send(struct publisher *p, const char *topic, const void *data, size_t len);
/* How many are listening now. Our own probe (listen.h) may count for the moment in which it closes. */
int publisher_n_listener(const struct publisher *p);
void publisher_free(struct publisher *p);
struct subscriber *subscriber_new(struct transport *t, const char *name, struct error *err);    // all topics
void subscriber_free(struct subscriber *s);
/* Split a received publication into topic and message; topic of at most size - 1 bytes. */
MUST_USE bool heard_split(const struct net_event *ev, char *topic, size_t size, const void **data, size_t *len);
