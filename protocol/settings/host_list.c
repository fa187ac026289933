#include "protocol/settings/host_list.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/settings/run_config.h"

static bool host_read(struct host *h, const char *word, struct error *err)
{
    const char *colon = strrchr(word, ':');
    size_t len = colon ? (size_t)(colon - word) : strlen(word);
    *h = (struct host){ .n_device = 1 };
    if (len == 0 || len >= sizeof h->target || word[0] == '-' || strcspn(word, " \t'\"\\$`;&|<>()") != strlen(word))
        return error_set(err, ERR_USAGE, "'hosts': '%.100s' is not a host; give HOST, USER@HOST or HOST:DEVICES, with commas between them",
                         word);
    if (colon && (!parse_i64(colon + 1, &h->n_device) || h->n_device < 1 || h->n_device > 60))
        return error_set(err, ERR_USAGE, "'hosts': '%.100s': after the colon comes the number of devices that sample there, 1 to 60", word);
    snprintf(h->target, sizeof h->target, "%.*s", (int)len, word);
    const char *at = strchr(h->target, '@');
    snprintf(h->node, sizeof h->node, "%s", at ? at + 1 : h->target);
    bool number = strspn(h->node, "0123456789.") == strlen(h->node);    // an address is kept whole
    if (!number)
        h->node[strcspn(h->node, ".")] = 0;
    return node_name_check(h->node, err) || error_wrap(err, "hosts");
}

bool host_list_read(const char *list, struct host host[HOSTS_MAX], int *n, struct error *err)
{
    char text[4096], *rest = text, *word;
    *n = 0;
    if (strlen(list) >= sizeof text)
        return error_set(err, ERR_USAGE, "'hosts': the list is longer than %zu bytes", sizeof text - 1);
    memcpy(text, list, strlen(list) + 1);
    while (text[0] && (word = strsep(&rest, ","))) {
        if (*n == HOSTS_MAX)
            return error_set(err, ERR_USAGE,
                             "'hosts': more than %d are named; start the others with 'rollcall agent --join', or all with --slurm",
                             HOSTS_MAX);
        if (!host_read(&host[*n], word, err))
            return false;
        for (int i = 0; i < *n; i++)
            if (strcmp(host[i].node, host[*n].node) == 0)
                return error_set(err, ERR_USAGE, "'hosts': '%s' and '%s' would both be node '%s'; name each machine once", host[i].target,
                                 word, host[i].node);
        (*n)++;
    }
    return true;
}

void host_command(const struct host *h, const struct run_config *c, const char *rollcall, const char *run, struct buf *out)
{
    const char *at = strncmp(c->listen, "tcp://", 6) == 0 ? c->listen + 6 : c->listen, *colon = strrchr(at, ':');
    int len = colon ? (int)(colon - at) : 0;
    bool any = len == 0 || (len == 1 && *at == '*') || strncmp(at, "0.0.0.0:", 8) == 0 || strncmp(at, "[::]:", 5) == 0;
    struct buf inner = BUF_INIT;
    char own[400];
    if (any)    // the address that this machine has there: sshd says where the connection came from
        buf_str(&inner, "h=${SSH_CONNECTION%% *}; case $h in *:*) h=[$h];; \"\") h=127.0.0.1;; esac");
    else
        buf_fmt(&inner, "h=\"%.*s\"", len, at);
    buf_str(&inner, "; exec ");
    buf_shell(&inner, rollcall);
    buf_fmt(&inner,
            " agent --join \"tcp://$h:%s\" --token-file - --name %s --inferencers %" PRId64 " --dir \"${TMPDIR:-/tmp}/rollcall-$(id -u)/\"",
            colon ? colon + 1 : "", h->node, h->n_device);
    snprintf(own, sizeof own, "%.255s-%s", run, h->node);
    buf_shell(&inner, own);
    buf_str(out, "exec sh -c ");    // the user's own shell may be any
    buf_shell(out, buf_text(&inner));
    out->failed = out->failed || inner.failed;
    buf_release(&inner);
}
