/* tls_door.h - the server's end of TLS 1.2 and 1.3 for clients of any kind, with a certificate of the operator's: HTTPS
 *
 * A door may be used for many connections, which may outlive it; a connection belongs to one thread at a time. Nothing waits: the
 * sockets do not block. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include "protocol/base/error.h"

struct tls_door;
struct tls_visit;
/* cert, key: texts in PEM, the certificate's chain after it. NULL: see err. */
struct tls_door *tls_door_new(const char *cert, const char *key, struct error *err);
void tls_door_free(struct tls_door *d);    // NULL is fine
/* A connection that has come through the socket fd, which stays the caller's. NULL: no memory. */
struct tls_visit *tls_visit_new(const struct tls_door *d, int fd);
void tls_visit_free(struct tls_visit *v);    // NULL is fine
/* As recv and send: the bytes moved, 0 at the client's end, -1 with errno, EAGAIN when it must wait, for room to write if *wants_out.
 * The handshake is done on the way. What did not go is to be sent again. */
ssize_t tls_visit_recv(struct tls_visit *v, void *data, size_t len, bool *wants_out);
ssize_t tls_visit_send(struct tls_visit *v, const void *data, size_t len, bool *wants_out);
void tls_visit_end(struct tls_visit *v);    // say that nothing more will be sent
