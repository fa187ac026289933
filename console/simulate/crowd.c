/* crowd.c - see crowd.h */
#include "console/simulate/crowd.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "console/simulate/crowd_parts.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/run/run_lock.h"

#define TICK_MS 20
#define FDS_PER_AGENT 4    // both ends of its connection, and what nng keeps for them

/* Two ends of a connection per agent need more descriptors than most shells give. */
bool crowd_descriptors(int64_t agents, struct error *err)
{
    struct rlimit r;
    rlim_t need = (rlim_t)(FDS_PER_AGENT * agents + 256);
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return error_errno(err, "cannot read the limit of open files");
    if (r.rlim_cur >= need)
        return true;
    if (r.rlim_max < need)
        return error_set(err, ERR_FULL,
                         "%" PRId64 " agents need %" PRIu64 " open files, and the limit is %" PRIu64
                         "; raise it (ulimit -Hn) or simulate fewer",
                         agents, (uint64_t)need, (uint64_t)r.rlim_max);
    r.rlim_cur = need;
    return setrlimit(RLIMIT_NOFILE, &r) == 0 || error_errno(err, "cannot raise the limit of open files");
}

static void events_take(struct transport *t, struct crowd_head *head, struct crowd_nodes *nodes)
{
    struct net_event ev;
    for (int i = 0; i < 4096 && transport_next(t, &ev); i++) {
        if (ev.kind == NET_REQUEST)
            crowd_head_asked(head, &ev, clock_ns());
        else if (ev.kind == NET_ANSWER)
            crowd_nodes_answered(nodes, &ev, clock_ns());
        net_event_release(&ev);
    }
}

bool crowd_serve(const struct crowd_options *o, const char *run_dir, int stop_fd, int ready_fd, struct error *err)
{
    char logs[4200], sock[4200], settings[4200];
    struct transport *t = NULL;
    struct crowd_head *head = NULL;
    struct crowd_nodes *nodes = NULL;
    int lock = -1;
    bool ok = false;
    if (!crowd_descriptors(o->agents, err))
        return false;
    if (!path_join(logs, sizeof(logs), run_dir, "logs") || !path_join(sock, sizeof(sock), run_dir, "sock")
        || !path_join(settings, sizeof(settings), run_dir, "run.yaml"))
        return error_set(err, ERR_USAGE, "the run's path is too long");
    if ((mkdir(run_dir, 0700) != 0 && errno != EEXIST) || (mkdir(logs, 0700) != 0 && errno != EEXIST))
        return error_errno(err, "cannot make '%.300s'", logs);
    lock = run_lock_take(run_dir, err);
    if (lock < 0 || (!path_exists(settings) && !file_write(settings, "# a simulated run\n", 18, err))
        || !(t = transport_new(sock, true, err)) || !(head = crowd_head_new(o, run_dir, t, err))
        || !(nodes = crowd_nodes_new(o, t, clock_ns(), err)))
        goto out;
    for (bool told = false;;) {
        struct pollfd fds[2] = { { .fd = transport_fd(t), .events = POLLIN }, { .fd = stop_fd, .events = POLLIN } };
        if (poll(fds, 2, TICK_MS) < 0 && errno != EINTR) {
            error_errno(err, "cannot wait for messages");
            goto out;
        }
        if (fds[1].revents)
            break;
        events_take(t, head, nodes);
        int64_t now = clock_ns();
        crowd_head_tick(head, now);
        crowd_nodes_tick(nodes, now);
        if (!told)
            told = write(ready_fd, "r", 1) == 1 || errno != EINTR;
    }
    ok = true;
out:
    crowd_nodes_free(nodes);
    crowd_head_free(head);
    transport_free(t);
    if (lock >= 0)
        close(lock);
    return ok;
}
