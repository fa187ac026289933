/* join_cmd.c - rollcall agent --join: make this host a node of a run on another host; see node.h
 *
 * In the foreground: joins, fetches what the node needs into its folder, starts the node's keeper and watches until the node's
 * processes have ended; if the head's settings or files have changed by then, it joins again. A first signal makes the node leave,
 * a second ends it at once. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/tcp.h"
#include "protocol/run/node.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/spawn.h"
#include "protocol/settings/export_kinds.h"
#include "protocol/settings/run_config.h"
#include "protocol/wire/join_rotation.h"
#include "protocol/wire/transport.h"
#include "workers/node/fetch.h"

#define JOIN_ASK_MS 3000
#define CONNECT_MS 3000
#define STRANGE_MS 30000    // the head can be reached but does not accept this token; a head with 50 processes per core took 8 s
#define FILE_BYTES_MAX ((int64_t)1 << 40)
#define TOKEN_LOOK_MS 1000
#define LEAVE_LIMIT_MS 30000
#define ENDING_LIMIT_MS 10000    // for a node that was killed
#define LOCK_LOOK_MS 50
#define N_STREAM 2
#define HEAD_FILE "head.yaml"
#define LEFT_BYTES_MAX 4096    // of a reason that the uplink leaves

struct join {
    const char *head, *name, *dir, *devices, *token_file;
    int64_t n_device, threads, n_trainer;
    double wait_s;
    bool led;                    // by a starter at the other end of the standard input
    char model[RUN_TEXT_MAX];    // on the head
    char run_dir[PATH_MAX], run[128], token[JOIN_TOKEN_LEN + 1], device_list[256];
    struct node node;
    struct node_file file[NODE_FILES_MAX];
    int n_file;
    struct buf settings;
    struct transport *transport;
    struct peer *peer[N_STREAM];
    int64_t token_ms;    // when the token's file was last looked at
    uint64_t tag;
};
static volatile sig_atomic_t n_signal;

static void on_signal(UNUSED int sig)
{
    n_signal = n_signal + 1;
}

/* ---- options ---- */

static bool options_read(struct join *j, int argc, char **argv, bool *help, struct error *err)
{
    struct cli_option options[] = {
        { "join", NULL, CLI_STR, &j->head, "tcp://HOST:PORT",
          "the run's head: the address in its setting 'listen', as seen from here; several with commas between them are tried in turn, for a "
          "head that may go on elsewhere" },
        { "inferencers", NULL, CLI_I64, &j->n_device, "N",
          "devices here (1): a producer each, but for those that a trainer has besides its first" },
        { "devices", NULL, CLI_STR, &j->devices, "LIST", "cuda:0,cuda:1 or cpu:0,cpu:1; default: the first N" },
        { "threads", NULL, CLI_I64, &j->threads, "N", "threads of a CPU device; 0: its share of the cores" },
        { "name", NULL, CLI_STR, &j->name, "NODE", "the node's name in the console (the host's name)" },
        { "dir", NULL, CLI_STR, &j->dir, "DIR", "the node's folder: settings, tokenizer, data, logs (nodes/NODE)" },
        { "token-file", NULL, CLI_STR, &j->token_file, "FILE",
          "the join token, a copy of the run's sock/join; -: standard input, at whose end the node leaves; default: the variable ROLLCALL_JOIN_TOKEN" },
        { "wait", NULL, CLI_F64, &j->wait_s, "SECONDS", "how long to wait for an absent head before giving up (600)" },
    };
    struct cli cli = {
        .command = "rollcall agent",
        .options = options,
        .n_options = ARRAY_SIZE(options),
        .about = "Makes this host a node of a run on another host: it samples and scores for that run, and may come and go. With\n"
                 "the run's trainers_per_node, and devices for as many trainers here, it also trains.\n"
                 "The head must have been started with 'listen: HOST:PORT'. All traffic is TLS; head and node prove to each other\n"
                 "that they hold the run's join token, RUN/sock/join, which has to be copied here securely (scp). When the head replaces\n"
                 "it ('rollcall ctl rotate-token'), a node that is connected gets the new one and keeps it in its folder."
    };
    bool ok = cli_parse(&cli, argc, argv, err);
    *help = ok && cli.help_wanted;
    return ok;
}

/* The first n devices: GPUs when the machine has them. */
static bool devices_find(struct join *j, struct error *err)
{
    size_t at = 0;
    if (j->devices) {
        int64_t n = 1;
        for (const char *p = j->devices; (p = strchr(p, ',')); p++)
            n++;
        if (j->n_device > 0 && j->n_device != n)
            return error_set(err, ERR_USAGE, "--devices '%s' are %" PRId64 ", but --inferencers is %" PRId64 ": it counts the devices",
                             j->devices, n, j->n_device);
        if (strlen(j->devices) >= sizeof j->device_list)
            return error_set(err, ERR_USAGE, "--devices is too long");
        j->n_device = n;
        snprintf(j->device_list, sizeof j->device_list, "%s", j->devices);
    } else {
        struct error none;
        struct device *gpu = path_exists("/dev/nvidiactl") ? device_new("cuda:0", 0, &none) : NULL;
        j->n_device = j->n_device ? j->n_device : 1;
        for (int64_t i = 0; i < j->n_device && at + 16 < sizeof j->device_list; i++)
            at += (size_t)snprintf(j->device_list + at, sizeof j->device_list - at, "%s%s:%" PRId64, i ? "," : "", gpu ? "cuda" : "cpu", i);
        device_free(gpu);
    }
    return (j->n_device >= 1 && j->n_device <= 60)
           || error_set(err, ERR_USAGE, "--inferencers %" PRId64 " is not within 1 to 60", j->n_device);
}

/* The token from the standard input, a line; the node leaves when the input ends (input_look). */
static bool token_from_input(struct join *j, struct error *err)
{
    char text[JOIN_TOKEN_LEN + 64];
    size_t len = 0;
    while (len + 1 < sizeof text && read(STDIN_FILENO, text + len, 1) == 1 && text[len] != '\n')
        len++;
    text[len] = 0;
    if (!join_token_check(text, err))
        return error_wrap(err, "standard input");
    memcpy(j->token, text, sizeof j->token);
    j->led = true;
    return true;
}

/* A token that was brought here after the start. The uplink looks for it when the head does not accept its own. Only what the head itself
 * replaces is noted as replaced: a wrong token that was brought by mistake must not make the right one an old one. */
static void token_take(struct join *j, const char *token)
{
    struct error err;
    char kept[PATH_MAX], now[JOIN_TOKEN_LEN + 1];
    if (!path_join(kept, sizeof kept, j->run_dir, NODE_TOKEN_FILE) || !join_token_read(now, kept, &err) || strcmp(now, token) == 0
        || join_token_was_replaced(kept, token))
        return;
    if (join_token_write(kept, token, &err))
        memcpy(j->token, token, sizeof j->token);
    else
        fprintf(stderr, "the new join token cannot be kept: %s\n", err.text);
}

/* Was another token written into the file that was given? */
static void token_look(struct join *j)
{
    struct error none;
    char token[JOIN_TOKEN_LEN + 1];
    if (!j->token_file || strcmp(j->token_file, "-") == 0 || clock_ms() < j->token_ms + TOKEN_LOOK_MS)
        return;
    j->token_ms = clock_ms();
    if (join_token_read(token, j->token_file, &none))    // it may have been removed, or be half written
        token_take(j, token);
}

/* A node that was started over ssh leaves when its starter or the connection has gone. The starter sends a line with each new token. */
static void input_look(struct join *j)
{
    char piece[256];
    struct error none;
    struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
    if (!j->led || poll(&p, 1, 0) <= 0)
        return;
    ssize_t n = read(STDIN_FILENO, piece, sizeof piece - 1);
    if (n > 0) {
        while (n > 0 && piece[n - 1] == '\n')
            n--;
        piece[n] = 0;
        char *line = strrchr(piece, '\n');    // several have come while the node was busy: the last counts
        line = line ? line + 1 : piece;
        if (join_token_check(line, &none))
            token_take(j, line);
        return;
    }
    j->led = false;
    n_signal = n_signal + 1;
}

/* The token that was given is a copy of one that the head has replaced since: the one that it has sent to this folder is newer. */
static bool token_renew(struct join *j, struct error *err)
{
    char kept[PATH_MAX];
    return !path_join(kept, sizeof kept, j->run_dir, NODE_TOKEN_FILE) || !path_exists(kept) || !join_token_was_replaced(kept, j->token)
           || join_token_read(j->token, kept, err);
}

static bool token_find(struct join *j, struct error *err)
{
    char *env = getenv("ROLLCALL_JOIN_TOKEN"), text[JOIN_TOKEN_LEN + 64], kept[PATH_MAX];
    if (j->token_file && strcmp(j->token_file, "-") == 0)
        return token_from_input(j, err);
    if (j->token_file)
        return join_token_read(j->token, j->token_file, err);
    if (env && env[0]) {
        snprintf(text, sizeof text, "%s", env);
        if (!join_token_check(text, err))
            return error_wrap(err, "ROLLCALL_JOIN_TOKEN");
        memcpy(j->token, text, sizeof j->token);
        return true;
    }
    if (path_join(kept, sizeof kept, j->dir, NODE_TOKEN_FILE) && path_exists(kept))    // from an earlier time
        return join_token_read(j->token, kept, err);
    return error_set(err, ERR_USAGE, "the join token is needed: --token-file FILE (a copy of the run's sock/join), or ROLLCALL_JOIN_TOKEN");
}

/* The node's folder and identity: a folder that is anything else is left alone. */
static bool dir_take(struct join *j, struct error *err)
{
    char path[PATH_MAX], head[PATH_MAX];
    static const char *const folders[] = { "logs", "model", NODE_CHAT_TEMPLATES, "data" };
    if (!dir_make(j->dir, 0755, err))
        return false;
    if (!realpath(j->dir, j->run_dir) || strlen(j->run_dir) > PATH_MAX - 300)
        return error_errno(err, "cannot find '%s'", j->dir);
    if (!path_join(path, sizeof path, j->run_dir, "run.yaml") || !path_join(head, sizeof head, j->run_dir, HEAD_FILE))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", j->run_dir);
    if (path_exists(path) && !node_here(j->run_dir) && !path_exists(head))    // with it: of a node that was killed while it joined
        return error_set(err, ERR_EXISTS, "'%s' is a run's directory, not a node's; choose another --dir", j->run_dir);
    for (size_t i = 0; i < ARRAY_SIZE(folders); i++)
        if (!path_join(path, sizeof path, j->run_dir, folders[i]) || !dir_make(path, 0755, err))
            return false;
    return path_join(path, sizeof path, j->run_dir, "sock") && dir_make(path, 0700, err);
}

static bool identity_make(struct join *j, struct error *err)
{
    unsigned char bytes[16];
    struct node old;
    struct error none;
    if (node_here(j->run_dir) && node_read(&old, j->run_dir, &none)) {
        memcpy(j->node.id, old.id, sizeof j->node.id);
    } else {
        if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
            return error_errno(err, "cannot get a random number");
        for (size_t i = 0; i < sizeof bytes; i++)
            snprintf(j->node.id + 2 * i, 3, "%02x", bytes[i]);
    }
    return true;
}

/* ---- joining ---- */

/* Can the head be reached at all? For a more precise message than "no answer". */
static bool head_reached(const char *address, struct error *err)
{
    int fd = tcp_connect(address, "the head", CONNECT_MS, err);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool join_read(struct join *j, const struct msg_in *in, struct error *err)
{
    size_t len;
    const char *text = mval_str(mval_get(in->root, "settings"), &len);
    const struct mval *files = mval_get(in->root, "files");
    mval_text(in->root, "name", j->run, sizeof j->run);
    mval_text(in->root, "hash", j->node.hash, sizeof j->node.hash);
    j->node.first_trainer = mval_i64(mval_get(in->root, "first_trainer"), -1);
    buf_clear(&j->settings);
    j->n_file = 0;
    if (mval_n(files) > NODE_FILES_MAX || strlen(j->node.hash) != 64)
        return error_set(err, ERR_DATA, "the head's answer is not an answer to 'join'");
    for (int64_t i = 0; i < mval_n(files); i++) {
        struct node_file *f = &j->file[j->n_file++];
        *f = (struct node_file){ .size_bytes = mval_i64(mval_get(mval_at(files, i), "size_bytes"), -1) };
        mval_text(mval_at(files, i), "name", f->name, sizeof f->name);
        mval_text(mval_at(files, i), "hash", f->hash, sizeof f->hash);
        if (!node_file_name_ok(f->name) || f->size_bytes < 0 || f->size_bytes > FILE_BYTES_MAX || strlen(f->hash) != 64)
            return error_set(err, ERR_DATA, "the head names a file '%s' of %" PRId64 " bytes, which is not accepted", f->name,
                             f->size_bytes);
    }
    return buf_add(&j->settings, text, len) || error_set(err, ERR_NO_MEMORY, "no memory for the run's settings");
}

/* Ask to join until the head has answered or wait_s have passed. */
static bool join_ask(struct join *j, struct error *err)
{
    struct msg_out m = MSG_OUT_INIT;
    struct msg_in in;
    struct net_event ev;
    int64_t began = clock_ms(), strange_ms = 0;
    bool told = false;
    msg_begin(&m, MSG_JOIN);
    msg_str(&m, "node", j->node.name);
    msg_str(&m, "id", j->node.id);
    msg_str(&m, "host", j->node.host);
    char device[16];
    snprintf(device, sizeof device, "%.*s", (int)MIN(strcspn(j->device_list, ":"), sizeof device - 1), j->device_list);
    msg_str(&m, "device", device);
    msg_i64(&m, "producers", j->n_device);
    bool ok = msg_finish(&m, err);
    while (ok) {
        if (peer_call(j->peer[0], MSG_JOIN, &m, JOIN_ASK_MS, &in, &ev, err)) {
            ok = join_read(j, &in, err);
            msg_in_release(&in);
            net_event_release(&ev);
            break;
        }
        ok = err->code == ERR_TIMEOUT || err->code == ERR_CLOSED;
        if (!ok)
            error_wrap(err, "the head refuses the node");
        struct error why;
        int64_t now = clock_ms();
        if (ok && !peer_is_connected(j->peer[0])) {
            bool reached = head_reached(j->node.head, &why);
            strange_ms = !reached ? 0 : strange_ms ? strange_ms : now;
            if (!reached)
                *err = why;
            else if (now - strange_ms > STRANGE_MS || (peer_is_strange(j->peer[0]) && !strchr(j->node.heads, ',')))
                ok = error_set(err, ERR_REFUSED, "'%s' " NODE_STRANGE, j->node.head);
        }
        if (ok && (double)(now - began) / 1000 > j->wait_s)
            ok = false;
        if (ok && n_signal)
            ok = error_set(err, ERR_STOPPED, "stopped by a signal");
        if (ok && !told)
            fprintf(stderr, "waiting for the head: %s\n", err->text);
        told = true;
        if (ok && node_head_next(&j->node)) {
            strange_ms = 0;
            for (int i = 0; i < N_STREAM; i++)
                peer_move(j->peer[i], j->node.head);
        }
        poll(NULL, 0, ok ? 500 : 0);
    }
    msg_release(&m);
    return ok;
}

/* ---- fetching what is needed ---- */

/* Weights that this host sees where the head has them, on shared storage, are used there. */
static bool file_seen(const struct join *j, const struct node_file *f, const char *path)
{
    char there[PATH_MAX], hex[65];
    int64_t size;
    struct error none;
    struct stat st;
    size_t len = strlen(f->name), end = strlen(".safetensors");
    if (strncmp(f->name, "model/", 6) != 0 || len < end || strcmp(f->name + len - end, ".safetensors") != 0
        || !path_join(there, sizeof there, j->model, f->name + 6) || stat(there, &st) != 0 || st.st_size != f->size_bytes
        || !node_file_hash(there, hex, &size, NULL, NULL, &none) || strcmp(hex, f->hash) != 0)
        return false;
    unlink(path);
    return symlink(there, path) == 0;
}

static bool file_bring(struct join *j, const struct node_file *f, struct error *err)
{
    char path[PATH_MAX], hex[65];
    int64_t size;
    struct error none;
    struct net_event ev;
    if (!path_join(path, sizeof path, j->run_dir, f->name))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", j->run_dir);
    if (path_exists(path) && node_file_hash(path, hex, &size, NULL, NULL, &none) && strcmp(hex, f->hash) == 0)
        return true;    // from an earlier time
    if (file_seen(j, f, path))
        return true;
    fprintf(stderr, "fetching %s, %.1f MiB\n", f->name, (double)f->size_bytes / (1 << 20));
    j->tag += FETCH_TAGS;
    struct fetch *fetch = fetch_new(f->name, 0, -1, path, f->size_bytes, j->peer, N_STREAM, j->tag, err);
    if (!fetch)
        return false;
    int64_t moved_ms = clock_ms(), moved = 0;
    enum fetch_state state;
    while ((state = fetch_state(fetch, err)) == FETCH_GOES) {
        fetch_tick(fetch);
        if (transport_wait(j->transport, &ev, 100)) {
            fetch_answered(fetch, &ev);
            net_event_release(&ev);
        }
        int64_t got = fetch_bytes(fetch, &size);
        if (got != moved) {
            moved = got;
            moved_ms = clock_ms();
        }
        if (n_signal) {
            error_set(err, ERR_STOPPED, "stopped by a signal");
            break;
        }
        if ((double)(clock_ms() - moved_ms) / 1000 > j->wait_s) {
            error_set(err, ERR_TIMEOUT, "no data of '%s' has arrived from the head for %.0f s", f->name, j->wait_s);
            break;
        }
    }
    fetch_free(fetch);
    if (state != FETCH_DONE)
        return false;
    return node_file_hash(path, hex, &size, NULL, NULL, err)
           && (strcmp(hex, f->hash) == 0 || error_set(err, ERR_DATA, "'%s' has changed on the head since the run was started", f->name));
}

/* What 'dataset' is here: the one file, or the pattern of several, data/HASH-* (gate_files.c). */
static bool data_name(const struct join *j, char *out, size_t size, struct error *err)
{
    const char *data = NULL;
    int n = 0;
    for (int i = 0; i < j->n_file; i++)
        if (strncmp(j->file[i].name, "data/", 5) == 0) {
            data = j->file[i].name;
            n++;
        }
    if (!data)
        return error_set(err, ERR_DATA, "the head has listed no data");
    struct buf path = { .max = size - 1 };
    for (const char *p = j->run_dir; *p; p++) {    // the folder's name is no pattern
        if (n > 1 && strchr("*?[\\", *p))
            buf_char(&path, '\\');
        buf_char(&path, *p);
    }
    if (n > 1)
        buf_fmt(&path, "/%.*s-*", (int)strcspn(data, "-"), data);
    else
        buf_fmt(&path, "/%s", data);
    bool ok = !path.failed;
    snprintf(out, size, "%s", buf_text(&path));
    buf_release(&path);
    return ok || error_set(err, ERR_USAGE, "the path '%s' is too long", j->run_dir);
}

/* The first n of the node's devices. */
static bool devices_cut(const struct join *j, struct run_config *c, int64_t n, struct error *err)
{
    char list[sizeof j->device_list], *end = list;
    memcpy(list, j->device_list, sizeof list);
    for (int64_t i = 0; i < n; i++)
        end += strcspn(end, ",") + (i + 1 < n);
    *end = 0;
    fprintf(stderr, "note: of the devices %s only %s are used: a producer of this run has %" PRId64 "\n", j->device_list, list,
            c->producer_tensor_parallel_size);
    return run_config_set(c, "devices", list, FROM_FLAG, NULL, err);
}

/* Lay out the run's trainers that are to be here, if any, and as many producers as the devices are left for. A producer beside trainers
 * has several devices where the head's have and there are enough; the bits are the same (sum_parts). A node that only samples has
 * producers of one device. */
static bool layout_make(struct join *j, struct run_config *c, struct error *err)
{
    static const char *const alone[][2] = {
        { "num_trainers", "1" }, { "trainers_per_node", "0" }, { "tensor_parallel_size", "1" }, { "pipeline_parallel_size", "1" }
    };
    char number[32];
    bool trains = j->node.first_trainer >= 0;
    for (size_t i = 0; i < ARRAY_SIZE(alone) && !trains; i++)
        if (!run_config_set(c, alone[i][0], alone[i][1], FROM_FLAG, NULL, err))
            return false;
    c->node_only = true;
    c->first_trainer = j->node.first_trainer;
    j->n_trainer = run_config_trainers_here(c);
    c->num_inferencer = MAX(j->n_trainer, (int64_t)1);
    if ((!trains || run_config_n_device(c) > j->n_device) && !run_config_set(c, "producer_tensor_parallel_size", "1", FROM_FLAG, NULL, err))
        return false;
    if (run_config_n_device(c) > j->n_device)
        return error_set(err, ERR_DATA,
                         "the head puts trainers %" PRId64 " to %" PRId64 " on this node, which need %" PRId64 " devices; it has %" PRId64,
                         c->first_trainer, c->first_trainer + j->n_trainer - 1, run_config_n_device(c), j->n_device);
    while (c->num_inferencer <= j->n_device && run_config_n_device(c) <= j->n_device)
        c->num_inferencer++;
    snprintf(number, sizeof number, "%" PRId64, c->num_inferencer - 1);
    if (!run_config_set(c, "num_inferencer", number, FROM_FLAG, NULL, err))
        return false;
    int64_t n = run_config_n_device(c);
    return n == 0 || n == j->n_device || devices_cut(j, c, n, err);
}

/* The run's settings, with this host's own values. */
static bool settings_write(struct join *j, struct error *err)
{
    char path[PATH_MAX];
    bool ok = false;
    struct buf yaml = BUF_INIT;
    struct run_config *c = malloc(sizeof *c);
    if (!c)
        return error_set(err, ERR_NO_MEMORY, "no memory for the settings");
    run_config_init(c);
    TRY(path_join(path, sizeof path, j->run_dir, HEAD_FILE) && run_config_read(c, path, err));
    // clang-format off
    const struct { const char *name, *value; } own[] = {
        { "listen", "" },
        { "hosts", "" },
        { "listen_lent", "" },
        { "view_group", "" },
        { "serve", "" },
        { "eval_dataset", "" },
        { "checkpoint_path", "" },
        { "save_dir", "" },
        { "journal_dir", "" },
        { "eval_save_dir", "" },
        { "rollout_save_dir", "" },
        { "devices", j->device_list },
        { "placement", "shared" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        TRY(run_config_set(c, own[i].name, own[i].value, FROM_FLAG, NULL, err));
    TRY(exports_leave_off(c, err));
    char number[32], where[PATH_MAX];
    TRY(layout_make(j, c, err));
    snprintf(number, sizeof number, "%" PRId64, j->threads);
    TRY(run_config_set(c, "threads", number, FROM_FLAG, NULL, err));
    TRY(data_name(j, where, sizeof where, err) && run_config_set(c, "dataset", where, FROM_FLAG, NULL, err));
    TRY(path_join(where, sizeof where, j->run_dir, "model") && run_config_set(c, "model", where, FROM_FLAG, NULL, err));
    TRY(run_config_print(c, &yaml, err));
    TRY(path_join(path, sizeof path, j->run_dir, "run.yaml") && file_write(path, yaml.data, yaml.len, err));
    ok = true;
out:
    buf_release(&yaml);
    free(c);
    return ok;
}

/* Keep the run's settings as the head has them, and find where its model is. */
static bool settings_keep(struct join *j, struct error *err)
{
    char path[PATH_MAX];
    struct run_config *c = malloc(sizeof *c);
    if (!c)
        return error_set(err, ERR_NO_MEMORY, "no memory for the settings");
    run_config_init(c);
    bool ok = path_join(path, sizeof path, j->run_dir, HEAD_FILE) && file_write(path, j->settings.data, j->settings.len, err)
              && run_config_read(c, path, err);
    if (ok)
        snprintf(j->model, sizeof j->model, "%s", c->model);
    free(c);
    return ok;
}

static bool head_connect(struct join *j, struct error *err)
{
    char path[PATH_MAX];
    struct join_identity id;
    if (!path_join(path, sizeof path, j->run_dir, "sock") || !join_identity_make(&id, j->token, NULL, err)
        || !(j->transport = transport_new(path, true, err)))
        return false;
    for (int i = 0; i < N_STREAM; i++)
        if (!(j->peer[i] = peer_new_tls(j->transport, j->node.head, &id, err)))
            return false;
    return true;
}

/* Everything until the folder is ready for starting processes. */
static bool node_prepare(struct join *j, struct error *err)
{
    static const char *const old[] = { "sock/ending", "sock/ended", "sock/orders", NODE_REJOIN_FILE, NODE_END_FILE };
    char path[PATH_MAX];
    bool ok = false;
    struct node last;
    struct error none;
    if (node_here(j->run_dir) && node_read(&last, j->run_dir, &none) && strcmp(last.heads, j->node.heads) == 0)
        snprintf(j->node.head, sizeof j->node.head, "%s", last.head);    // where the head was last
    TRY(head_connect(j, err));
    TRY(join_ask(j, err) && settings_keep(j, err));
    for (int i = 0; i < j->n_file; i++)
        TRY(file_bring(j, &j->file[i], err));
    TRY(settings_write(j, err));
    for (size_t i = 0; i < ARRAY_SIZE(old); i++)
        if (path_join(path, sizeof path, j->run_dir, old[i]))
            unlink(path);
    TRY(path_join(path, sizeof path, j->run_dir, NODE_TOKEN_FILE) && join_token_write(path, j->token, err));
    TRY(run_failure_prepare(j->run_dir, err) && node_write(&j->node, j->run_dir, err));
    ok = true;
out:
    transport_free(j->transport);
    j->transport = NULL;
    return ok;
}

/* ---- watching ---- */

/* Watch until the node's processes have ended. */
static bool node_watch(struct join *j, struct error *err)
{
    char path[PATH_MAX];
    int told = 0;
    int64_t asked_ms = 0;
    while (run_is_live(j->run_dir)) {
        input_look(j);
        token_look(j);
        if (n_signal > told || (told == 1 && clock_ms() - asked_ms > LEAVE_LIMIT_MS)) {
            told++;
            asked_ms = clock_ms();
            pid_t keeper = process_find(j->run_dir, "keeper");
            if (told > 1) {
                run_kill(j->run_dir);
            } else if (keeper > 0) {
                fprintf(stderr, "leaving; a second signal ends everything at once\n");
                kill(keeper, SIGTERM);
            }
        }
        poll(NULL, 0, 100);
    }
    if (told)
        return true;
    if (path_join(path, sizeof path, j->run_dir, NODE_REJOIN_FILE) && path_exists(path))
        return true;
    char failure[RUN_FAILURE_MAX];
    if (run_failure_read(j->run_dir, failure, sizeof failure))
        return error_set(err, ERR_CLOSED, "the node has failed: %s", failure);
    if (!path_join(path, sizeof path, j->run_dir, "sock/ended") || !path_exists(path))
        return error_set(err, ERR_CLOSED, "the node's processes have been killed; see '%s/logs'", j->run_dir);
    return true;
}

static bool node_start(struct join *j, int lock_fd, struct error *err)
{
    return process_spawn("agent", j->run_dir, "keeper", lock_fd, true, err) > 0;
}

/* What the uplink has left in a file of the node's folder, cut to size. False: there is no such file. */
static bool left_read(const struct join *j, const char *file, char *out, size_t size)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    struct error none;
    bool ok = path_join(path, sizeof path, j->run_dir, file) && file_read_text(&text, path, LEFT_BYTES_MAX, &none);
    snprintf(out, size, "%s", ok ? buf_text(&text) : "");
    buf_release(&text);
    return ok;
}

/* Take the folder's lock. When a node was killed, the last of its processes hold the lock until the kernel has taken them apart. */
static int lock_take(const struct join *j, struct error *err)
{
    int fd;
    bool told = false;
    int64_t until = clock_ms() + ENDING_LIMIT_MS;
    while ((fd = run_lock_take(j->run_dir, err)) < 0 && err->code == ERR_EXISTS && clock_ms() < until && n_signal == 0) {
        if (!told)
            fprintf(stderr, "waiting for the node in this folder to end, at most %d s\n", ENDING_LIMIT_MS / 1000);
        told = true;
        poll(NULL, 0, LOCK_LOOK_MS);
    }
    return fd;
}

static bool join_loop(struct join *j, struct error *err)
{
    char why[300];
    for (;;) {
        int fd = lock_take(j, err);
        if (fd < 0)
            return error_wrap(err, "a node is already running in this folder ('rollcall ctl dismiss %s' on the head ends it)",
                              j->node.name);
        bool ok = token_renew(j, err) && node_prepare(j, err) && node_start(j, fd, err);
        close(fd);    // the keeper holds it now
        if (!ok)
            return false;
        char trainers[80] = "";
        if (j->n_trainer > 0)
            snprintf(trainers, sizeof trainers, "trains (%" PRId64 " of the trainers, from number %" PRId64 ") and ", j->n_trainer,
                     j->node.first_trainer);
        fprintf(stderr, "node '%s' %ssamples for run '%s' of %s on %s; Ctrl-C leaves, logs are in %s/logs\n", j->node.name, trainers,
                j->run, j->node.head, j->device_list, j->run_dir);
        if (!node_watch(j, err))
            return false;
        if (n_signal) {
            fprintf(stderr, "node '%s' has left\n", j->node.name);
            return true;
        }
        if (!left_read(j, NODE_REJOIN_FILE, why, sizeof why)) {
            left_read(j, NODE_END_FILE, why, sizeof why);
            fprintf(stderr, "node '%s' has ended%s%s\n", j->node.name, why[0] ? ": " : "", why);
            return true;
        }
        fprintf(stderr, "joining again: %s\n", why);
    }
}

static bool join_cmd(int argc, char **argv, struct error *err)
{
    bool help = false, ok = false;
    char host[256] = "", dir[64];
    struct join *j = calloc(1, sizeof *j);
    if (!j)
        return error_set(err, ERR_NO_MEMORY, "no memory to join a run");
    j->wait_s = 600;
    j->tag = (uint64_t)1 << 40;
    TRY(options_read(j, argc, argv, &help, err));
    if (help) {
        ok = true;
        goto out;
    }
    if (!j->head) {
        error_set(err, ERR_USAGE, "--join tcp://HOST:PORT is needed; see 'rollcall agent --help'");
        goto out;
    }
    gethostname(host, sizeof host - 1);
    snprintf(j->node.host, sizeof j->node.host, "%.64s", host);
    host[strcspn(host, ".")] = 0;
    snprintf(j->node.name, sizeof j->node.name, "%s", j->name ? j->name : host);
    TRY(node_name_check(j->name ? j->name : j->node.name, err));
    TRY(node_heads_read(&j->node, j->head, "--join", err));
    if (!(j->wait_s > 0 && j->wait_s < 1e7) || j->threads < 0 || j->threads > 1024) {
        error_set(err, ERR_USAGE, "--wait must be above 0, --threads 0 to 1024");
        goto out;
    }
    snprintf(dir, sizeof dir, "nodes/%s", j->node.name);
    j->dir = j->dir ? j->dir : dir;
    j->node.wait_s = j->wait_s;
    TRY(devices_find(j, err));
    j->node.n_device = j->n_device;
    TRY(token_find(j, err) && dir_take(j, err) && identity_make(j, err));
    struct sigaction sa = { .sa_handler = on_signal };
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
    ok = join_loop(j, err);
out:
    buf_release(&j->settings);
    free(j);
    return ok;
}

const struct subcommand join_subcommand = { "agent", join_cmd, NULL };    // agent --join
