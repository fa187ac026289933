/* tcp_meet.h - how ranks of the kind tcp find each other, and make one connection between each two
 *
 * Rank 0 writes into the meeting's file, which only its owner may read, where it listens, and a key of 32 random bytes. The others read
 * that, connect to it and say where they listen themselves; when all have come, rank 0 tells all where each is, and each connects to
 * those with lower numbers. On every connection both ends prove that they know the key (HMAC-SHA256, RFC 2104, of both ends' random
 * numbers), before anything else is believed. What travels later is not encrypted: beyond one host, ranks need a trusted network. */
#pragma once
#include "kernels/collective/collective.h"

/* fd[q] = the connection to rank q, -1 for this rank's own: not blocking, the caller's to close. Within the config's join_ms. False:
 * nothing is open. *file: the meeting's file, open; it is as long as nobody has called the meeting off (tcp_meet_called_off). */
MUST_USE bool tcp_meet(const struct collective *c, const struct collective_config *config, int *fd, int *file, struct error *err);
/* Has the file at path, open as `file`, been removed or replaced? */
bool tcp_meet_called_off(const char *path, int file);
