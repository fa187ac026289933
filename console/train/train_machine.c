/* What the machine must provide for a run: its devices, a free name, free ports, disk space, and a model that takes long enough
 * sequences. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "console/train/train_parts.h"
#include "console/train/launch.h"
#include "console/train/program.h"
#include "kernels/ops.h"
#include "protocol/base/file.h"
#include "protocol/base/tcp.h"
#include "protocol/run/node.h"
#include "protocol/run/spawn.h"
#include "workers/engine/model/config.h"

#define SSH_MS 10000    // for ssh to say its version

/* ---- devices ---- */

/* Open a device and close it again. */
static bool device_try(const char *name, struct error *err)
{
    if (strncmp(name, "cuda:", 5) == 0 && !path_exists("/dev/nvidiactl"))
        return error_set(err, ERR_NOT_FOUND,
                         "device '%s' does not exist: this machine has no NVIDIA GPU, or its driver is not loaded; "
                         "'devices' cpu:0 trains on the processor",
                         name);
    struct device *dev = device_new(name, 1, err);
    if (!dev)
        return error_wrap(err, "'devices': '%s'", name);
    device_free(dev);
    return true;
}

static bool devices_check(const struct run_config *c, struct error *err)
{
    char list[sizeof c->devices], *rest = list, *name;
    int64_t n_cpu = 0, n_core = MAX(sysconf(_SC_NPROCESSORS_ONLN), 1);
    memcpy(list, c->devices, sizeof list);
    while ((name = strsep(&rest, ","))) {
        for (char *same = rest; same && *same; same = strchr(same, ',') ? strchr(same, ',') + 1 : NULL)
            if (strncmp(same, name, strlen(name)) == 0 && strchr(",", same[strlen(name)]))
                return error_set(err, ERR_USAGE, "'devices' names '%s' twice; a device has one worker", name);
        if (strncmp(name, "engine:", 7) != 0 && !device_try(name, err))
            return false;
        n_cpu += strncmp(name, "cpu:", 4) == 0;
    }
    if (n_cpu > n_core)
        fprintf(stderr, "note: %" PRId64 " CPU devices share %" PRId64 " cores\n", n_cpu, n_core);
    if (c->trainers_per_node > 0 && c->num_trainers > c->trainers_per_node)
        fprintf(stderr, "note: trainers on several machines exchange gradients and weights unencrypted (NCCL, or TCP between CPUs); use a "
                        "network that you trust\n");
    return true;
}

/* ---- the model ---- */

static bool length_check(const struct run_config *c, const struct model_config *shape, struct error *err)
{
    int64_t longest = c->max_prompt_tokens + c->max_new_tokens;
    return longest <= config_longest(shape)
           || error_set(err, ERR_USAGE,
                        "max_prompt_tokens (%" PRId64 ") and max_new_tokens (%" PRId64 ") make sequences of %" PRId64 " tokens, and "
                        "the model takes %" PRId64 ", by its config.json; lower one of them",
                        c->max_prompt_tokens, c->max_new_tokens, longest, config_longest(shape));
}

/* ---- the name ---- */

/* It is not a path, and its folder does not exist yet; the start may still find that another run was faster. */
bool name_check(const struct train *t, struct error *err)
{
    char path[PATH_MAX];
    const char *name = t->config.name;
    if (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return error_set(err, ERR_USAGE, "'name' cannot be '%s'; it must be usable as a folder's name", name);
    if (!name[0])
        return true;
    if (!path_join(path, sizeof path, t->runs_dir ? t->runs_dir : "runs", name))
        return error_set(err, ERR_USAGE, "the path of run '%s' is too long", name);
    char full[PATH_MAX];
    return !path_exists(path) || start_was_cut(path) || (realpath(path, full) && launch_awaits(full))
           || error_set(err, ERR_EXISTS, "'%s' exists; choose another --name, or continue it: --resume %s", path, path);
}

/* ---- ports ---- */

/* Is HOST:PORT free to listen at? Listens there for a moment. */
static bool port_check(const char *setting, const char *text, struct error *err)
{
    const char *at = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text;
    struct error why;
    int fd = tcp_listen(at, &why);
    if (fd < 0 && why.code == ERR_EXISTS)
        return error_set(err, ERR_EXISTS, "'%s' %.100s is in use by another process; choose another port", setting, text);
    if (fd < 0)
        return error_set(err, why.code, "'%s': %s", setting, why.text);
    close(fd);
    return true;
}

static bool ports_check(const struct train *t, struct error *err)
{
    const struct run_config *c = &t->config;
    char address[280];
    struct environments e;
    if (c->listen[0] && !node_address(c->listen, "listen", address, err))
        return false;
    if (c->listen_lent[0] && !node_address(c->listen_lent, "listen_lent", address, err))
        return false;
    if (t->resume && process_find(t->run_dir, "agent") > 0)    // it is alive, and the ports in use are its own
        return true;
    return (!c->listen[0] || port_check("listen", c->listen, err)) && (!c->listen_lent[0] || port_check("listen_lent", c->listen_lent, err))
           && (!c->metrics_listen[0] || port_check("metrics_listen", c->metrics_listen, err))
           && (!c->serve[0] || port_check("serve", c->serve, err))
           && (!run_config_posted(c)
               || (run_config_environments(c, &e, err) && (!e.listen[0] || port_check("environments", e.listen, err))));
}

/* Nodes on other hosts are started over ssh. */
static bool ssh_check(const struct run_config *c, struct error *err)
{
    char *argv[] = { "ssh", "-V", NULL };
    struct buf none = BUF_INIT;
    int status;
    if (!c->hosts[0])
        return true;
    bool ok = program_run(argv, SSH_MS, &none, &none, &status, err);
    buf_release(&none);
    return ok
           || error_wrap(err,
                         "'hosts': nodes are started over ssh; install OpenSSH's client, or start 'rollcall agent --join' there yourself");
}

bool machine_check(const struct train *t, struct error *err)
{
    struct model_config shape;
    return config_load(&shape, t->config.model, err) && devices_check(&t->config, err) && length_check(&t->config, &shape, err)
           && (t->resume || name_check(t, err)) && ports_check(t, err) && ssh_check(&t->config, err) && room_check(t, err);
}
