/* own_hosts.h - the hosts that an HTTP server answers for
 *
 * A page of another site can make its own name resolve to this host's address (DNS rebinding). The browser then takes this server for
 * that site: Origin and Host agree, and the page reads the answers. Only the name in Host gives it away. So a server that asks for no
 * token answers only for numeric addresses, for names without a dot (of this network: no public site has one), for this host's full
 * name, for the name that it listens at and for the names that the operator adds, such as that of a proxy. A page cannot know a token;
 * a server that asks for one needs no such list.
 *
 * Owned by the server; constant once it is set. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"

#define OWN_HOSTS_MAX 64
struct own_hosts {
    bool any;    // '*' was given
    int n;
    char name[OWN_HOSTS_MAX][256];    // "NAME", or ".DOMAIN" for each name that ends so
};
/* Is `more` a list of names between commas, each NAME, *.DOMAIN or *? what: the setting, for err. NULL and "" are lists of none. */
MUST_USE bool own_hosts_check(const char *more, const char *what, struct error *err);
/* The hosts of a server that listens at address, HOST:PORT, and `more`, a list that own_hosts_check has taken. Beyond this host a
 * name server is asked for this host's full name, for a second at most. */
void own_hosts_set(struct own_hosts *o, const char *address, const char *more);
/* Does a request with this Host, NAME or NAME:PORT, mean this server? NULL, no Host, does: each browser sends one. */
bool own_hosts_have(const struct own_hosts *o, const char *host);
