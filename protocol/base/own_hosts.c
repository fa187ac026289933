#include "protocol/base/own_hosts.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "protocol/base/tcp.h"

#define LOOKUP_MS 1000

static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";

static void name_add(struct own_hosts *o, const char *name, size_t len)
{
    if (len > 0 && len < sizeof o->name[0] && o->n < OWN_HOSTS_MAX)
        snprintf(o->name[o->n++], sizeof o->name[0], "%.*s", (int)len, name);
}

/* The next name of a list, without the blanks around it; false: there is none. */
static bool name_next(const char **list, const char **name, size_t *len)
{
    const char *at = *list + strspn(*list, ", \t");
    *name = at;
    *len = strcspn(at, ", \t");
    *list = at + *len;
    return *len > 0;
}

bool own_hosts_check(const char *more, const char *what, struct error *err)
{
    const char *name;
    size_t len;
    for (int n = 1; more && name_next(&more, &name, &len); n++) {
        size_t star = name[0] != '*' ? 0 : len == 1 ? 1 : 2;
        if (n > OWN_HOSTS_MAX / 2)
            return error_set(err, ERR_USAGE, "%s has more than %d names", what, OWN_HOSTS_MAX / 2);
        if (len >= 256 || (star == 2 && (len < 3 || name[1] != '.')) || strspn(name + star, name_chars) < len - star)
            return error_set(err, ERR_USAGE,
                             "%s: '%.*s' is no name of a host; give names without ports, e.g. llm.example.org or *.example.org", what,
                             (int)MIN(len, (size_t)100), name);
    }
    return true;
}

/* This host's names: its own, and beyond this host the full one that others may use. */
static void names_of_machine_add(struct own_hosts *o, bool full)
{
    char name[256];
    struct error none;
    if (gethostname(name, sizeof name) != 0)
        return;
    name[sizeof name - 1] = 0;
    name_add(o, name, strlen(name));
    struct addrinfo *list = full ? tcp_lookup(name, "0", "this host", LOOKUP_MS, &none) : NULL;
    if (!list)
        return;
    if (list->ai_canonname)
        name_add(o, list->ai_canonname, strlen(list->ai_canonname));
    freeaddrinfo(list);
}

void own_hosts_set(struct own_hosts *o, const char *address, const char *more)
{
    char host[280];
    const char *name;
    size_t len;
    *o = (struct own_hosts){ .any = false };
    name_add(o, ".localhost", strlen(".localhost"));    // RFC 6761, 6.3: no name server is asked for it
    if (tcp_host(address, host, sizeof host))
        name_add(o, host, strlen(host));
    names_of_machine_add(o, !tcp_is_loopback(address));
    while (more && name_next(&more, &name, &len)) {
        if (len == 1 && name[0] == '*')
            o->any = true;
        else
            name_add(o, name + (name[0] == '*'), len - (name[0] == '*'));
    }
}

/* The name in a Host header (RFC 9110, 7.2), without brackets, port and the dot at its end. False: it is none. */
static bool host_name(const char *host, char *name, size_t size)
{
    bool brackets = host[0] == '[';
    size_t len = brackets ? strcspn(host, "]") : strcspn(host, ":");
    const char *port = host + len + brackets;
    host += brackets;
    len -= brackets;
    if ((brackets && port[-1] != ']') || len == 0 || len >= size)
        return false;
    if (port[0] && (port[0] != ':' || port[1 + strspn(port + 1, "0123456789")]))
        return false;
    snprintf(name, size, "%.*s", (int)len, host);
    if (len > 1 && name[len - 1] == '.')
        name[len - 1] = 0;
    return true;
}

bool own_hosts_have(const struct own_hosts *o, const char *host)
{
    char name[256];
    unsigned char number[sizeof(struct in6_addr)];
    if (!host || o->any)
        return true;
    if (!host_name(host, name, sizeof name))
        return false;
    if (host[0] == '[' || inet_pton(AF_INET, name, number) == 1)
        return host[0] != '[' || inet_pton(AF_INET6, name, number) == 1;
    if (!strchr(name, '.') && strspn(name, name_chars) == strlen(name))
        return true;
    for (int i = 0; i < o->n; i++) {
        const char *own = o->name[i];
        size_t len = strlen(name), tail = strlen(own);
        bool ends = own[0] == '.' && len > tail;
        if (strcasecmp(ends ? name + len - tail : name, own) == 0)
            return true;
    }
    return false;
}
