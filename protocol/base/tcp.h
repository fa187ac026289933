/* tcp.h - addresses of TCP as people write them, HOST:PORT: listen there, connect, tell hosts apart, print who called. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include "protocol/base/error.h"

/* Listen at address: HOST may be a name, a number, [IPV6], empty or '*' (every address of this host); PORT 0 is a free one. Returns a
 * descriptor that does not block and does not outlive exec, the caller's to close. -1: see err (ERR_USAGE: it is no address; ERR_EXISTS:
 * another process listens there). */
MUST_USE int tcp_listen(const char *address, struct error *err);
/* HOST:PORT, [HOST]:PORT -> HOST without brackets; returns PORT, NULL: there is none, or HOST is too long. */
const char *tcp_host(const char *address, char *host, size_t size);
struct addrinfo;
/* The addresses of host, a name or a number, with this port, for freeaddrinfo: for a stream. NULL: see err (ERR_CLOSED); a name server gets
 * limit_ms to answer. The first one's ai_canonname is the full name, or NULL. what: "the head", for it. */
struct addrinfo *tcp_lookup(const char *host, const char *port, const char *what, int64_t limit_ms, struct error *err);
/* Connect to address, HOST:PORT, trying each of the host's addresses for limit_ms. Returns a descriptor that does not block and does not
 * outlive exec, the caller's to close. -1: see err (ERR_CLOSED: the host cannot be resolved or reached); what: "the head", for it. */
MUST_USE int tcp_connect(const char *address, const char *what, int64_t limit_ms, struct error *err);
/* Does address, HOST or HOST:PORT, name this host's own loopback: 127.a.b.c, localhost or [::1]? What listens anywhere else is reached
 * from other hosts. */
bool tcp_is_loopback(const char *address);
/* The numeric address of this host from which it reaches address, HOST:PORT; nothing is sent but to a name server, which gets limit_ms.
 * what: "the head", for err. */
MUST_USE bool tcp_own_address(const char *address, const char *what, int64_t limit_ms, char *out, size_t size, struct error *err);
/* The name of the network interface that has this address, a name or a number; false: none has, or no name server has answered in
 * limit_ms. */
bool tcp_interface(const char *host, int64_t limit_ms, char *out, size_t size);
/* Suit a connection that has just been made to the way it goes: over a long one, lost packets are not to slow it as if they meant that the way
 * is full. What the kernel does not offer is left as it is. */
void tcp_suit(int fd);
/* The port that a socket is bound to; 0: not known. */
uint16_t tcp_port(int fd);
/* Are these of the same host, whatever the ports? */
bool tcp_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
/* HOST:PORT in numbers, "?:?" when not known. */
void tcp_print(char *out, size_t size, const struct sockaddr_storage *from);
