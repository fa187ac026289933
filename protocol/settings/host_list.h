/* host_list.h - the setting `hosts`: machines that a run starts nodes on over ssh, "a,b:8,user@c". Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/node_name.h"

#define HOSTS_MAX 64
#define HOSTS_LISTEN "0.0.0.0:29506"    // 'listen' of a run with hosts that does not say where

struct host {
    char target[280];                // what ssh is given: HOST or USER@HOST
    char node[NODE_NAME_MAX + 1];    // the node's name: the host's, up to its first dot
    int64_t n_device;                // producers there; 1 unless the list says
};
struct run_config;
/* Split the list; ERR_USAGE names the word that is wrong, or two hosts that would be nodes of one name. */
MUST_USE bool host_list_read(const char *list, struct host host[HOSTS_MAX], int *n, struct error *err);
/* The command for the shell of a host, which reads the token from its standard input. rollcall: this program's path, which it must have
 * there, too. */
void host_command(const struct host *h, const struct run_config *c, const char *rollcall, const char *run, struct buf *out);
