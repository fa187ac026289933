#include "workers/worker/network.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/log.h"
#include "protocol/base/tcp.h"
#include "protocol/run/node.h"
#include "protocol/settings/run_config.h"

#define LOOKUP_MS 20000    // for a name server to answer

bool network_address(const struct run_config *c, const char *run_dir, char *out, size_t size, struct error *err)
{
    struct node n = { 0 };
    out[0] = 0;
    if (run_config_n_host(c) == 1)
        return true;
    if (c->node_only)
        return node_read(&n, run_dir, err) && tcp_own_address(n.head, "the head", LOOKUP_MS, out, size, err);
    if (!node_address(c->listen, "listen", n.head, err))
        return false;
    node_head_host(&n, out, size);
    return true;
}

bool network_choose(const struct run_config *c, const char *run_dir, struct error *err)
{
    char host[280], name[64], only[80];
    if (strcmp(run_config_collective(c), "nccl") != 0 || getenv("NCCL_SOCKET_IFNAME"))
        return true;
    if (!network_address(c, run_dir, host, sizeof host, err))
        return false;
    if (!host[0] || strcmp(host, "*") == 0 || !tcp_interface(host, LOOKUP_MS, name, sizeof name))
        return true;    // NCCL finds one itself
    snprintf(only, sizeof only, "=%s", name);
    log_info("NCCL uses the interface %s, which has %s", name, host);
    return setenv("NCCL_SOCKET_IFNAME", only, 1) == 0 || error_errno(err, "cannot set NCCL_SOCKET_IFNAME");
}
