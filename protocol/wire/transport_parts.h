/* transport_parts.h - the inside of the transport; only for transport*.c. transport.c explains how it works. */
#pragma once
#include <nng/nng.h>
#include <pthread.h>
#include <stdatomic.h>
#include "protocol/wire/listen.h"
#include "protocol/wire/transport.h"

struct call;          // one of our requests under way
struct pipe_entry;    // a connection that came or went
struct heard;         // a publication
struct closing;       // a socket that is being closed

/* ---- transport_queue.c: what nng's threads hand to the loop ---- */
enum entry_kind {
    ENTRY_CALL,
    ENTRY_REQUEST,
    ENTRY_HEARD,
    ENTRY_PIPE,
};
struct queue_entry {    // the first member of a slot, which the slot's part makes, reads and frees
    struct queue_entry *next;
    enum entry_kind kind;
};
struct entry_queue {
    int event_fd;            // readable when there may be an entry: until entry_pop has found none
    pthread_mutex_t lock;    // guards: first, last, n_heard, woken
    bool woken;              // event_fd has been written since entry_pop found none
    struct queue_entry *first, **last;
    int n_heard;    // publications in the queue
};
MUST_USE bool entry_queue_init(struct entry_queue *q, struct error *err);
void entry_queue_release(struct entry_queue *q);                  // the queue must be empty
void entry_push(struct entry_queue *q, struct queue_entry *e);    // any thread
struct queue_entry *entry_pop(struct entry_queue *q);             // NULL: none
bool entry_room(struct entry_queue *q);                           // for one more publication; any thread
/* Remove the entries of one owner, and pass each to release unless that is NULL. */
void entry_remove(struct entry_queue *q, bool (*owned)(const struct queue_entry *e, const void *owner), const void *owner,
                  void (*release)(struct queue_entry *e));
void entry_wake(struct entry_queue *q);    // make event_fd readable; any thread

/* ---- transport.c ---- */
struct transport {
    struct entry_queue queue;
    int dir_fd;         // O_PATH of the socket folder
    int view_fd;        // of the folder for sockets called "view..."; -1: the same
    bool view_group;    // its group may connect
    struct peer *peers;
    struct server *servers;
    int n_server;    // that were made
    struct publisher *publishers;
    struct closing *closings;
    int64_t ticked_ms;
    atomic_bool woken;    // set by any thread
    bool left_open;       // one of our sockets could not be closed: nng may still call back
};
#define URL_SIZE 320    // of an address, or of a path in /proc/self/fd
/* The URL of a socket, of ours or of another of the run's processes, by its name. */
MUST_USE bool transport_url(const struct transport *t, const char *name, char *out, size_t size, struct error *err);
/* Listen under name in its folder; sockets of peer_protocol dial it. On failure l can be closed. */
MUST_USE bool transport_listen(struct transport *t, struct listen *l, nng_socket socket, uint16_t peer_protocol, const char *name,
                               struct error *err);
nng_msg *nng_msg_of(const void *data, size_t len);    // a copy; NULL: no memory

/* ---- transport_close.c: closing with a limit ---- */
void transport_close_begin(struct transport *t, nng_socket socket);    // without waiting; its operations end in their callbacks
/* Wait until all sockets that are being closed are. False: nng hangs in one, and may go on using what it was given. */
bool transport_close_end(struct transport *t);
bool transport_close(struct transport *t, nng_socket socket);    // both

/* ---- transport_server.c, transport_peer.c, transport_telemetry.c: the kinds of sockets ---- */
/* Turn an entry from the queue into an event; false: nothing to tell the owner. Takes the entry. */
void request_event(struct request *r, struct net_event *ev);
bool call_event(struct call *c, struct net_event *ev);
void pipe_event(struct transport *t, struct pipe_entry *e);
void heard_event(struct heard *h, struct net_event *ev);
void heard_free(struct queue_entry *e);
/* Work that is due: time limits of calls (true: one has passed) and silent dialers; listeners that no longer accept. */
bool peers_tick(struct transport *t, int64_t now, struct net_event *ev);
void servers_tick(struct transport *t);
void publishers_tick(struct transport *t);
/* When it is due, on the monotonic clock; INT64_MAX: not before something arrives. */
int64_t peers_due(const struct transport *t);
int64_t servers_due(const struct transport *t);
int64_t publishers_due(const struct transport *t);
