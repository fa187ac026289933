/* uplink_trainers.c - what trainers on a node need of the head: the meeting with the others, and checkpoints
 *
 * The trainers' meetings, one of each of their devices, are files in sock/ (collective_call) that rank 0 fills. Here are copies of them,
 * with the address that this node has of the head. Each goes when the head's goes: all have met, or it was called off.
 *
 * A checkpoint is read where it is when the node sees the same one at the same path (shared storage). Else its files are fetched into the
 * node's checkpoints/, large ones as weights are, the manifest last, and the last one is kept. The trainer reads and hashes all of it before it uses it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "kernels/collective/collective.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/run/run_state.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/node/fetch.h"
#include "workers/node/uplink_parts.h"
#include "workers/node/weights_fetch.h"

#define MEETING_MS 100    // between two looks at the head's file
#define MEETING_LIMIT_MS 5000
#define MANIFEST_MAX ((size_t)1 << 26)
#define FILE_MAX ((int64_t)1 << 44)
#define LARGE_BYTES ((int64_t)64 << 10)    // a file of this many comes over connections of its own; a smaller one takes TLS a millisecond

/* ---- the meeting ---- */

static void meeting_dir(const struct uplink *u, char out[4200])
{
    snprintf(out, 4200, "%s/sock", u->process.run_dir);
}

static void meeting_end(struct uplink *u, int q)
{
    char dir[4200], name[64];
    meeting_dir(u, dir);
    ranks_name(u->meeting[q].round, q, name, sizeof name);
    collective_call_off(dir, name);
    u->meeting[q].round = 0;
}

static void meeting_begin(struct uplink *u, int q, int64_t round)
{
    char dir[4200], name[64], path[4300];
    struct error err;
    struct meeting *m = &u->meeting[q];
    if (round == m->round)
        return;
    if (m->round)
        meeting_end(u, q);
    meeting_dir(u, dir);
    ranks_name(round, q, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    m->round = round;
    m->told = false;
    m->again_ms = 0;
    if (!path_exists(path) && !collective_call(dir, name, &err))
        node_end(u, run_state_name(RUN_FAILED), err.text);
}

void meeting_follow(struct uplink *u, int64_t round)
{
    for (int q = 0; q < run_config_trainer_devices(&u->config) && round; q++)
        meeting_begin(u, q, round);
}

void meeting_find(struct uplink *u)
{
    char dir[4200];
    uint64_t round;
    meeting_dir(u, dir);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (sscanf(e->d_name, "trainers-%16" SCNx64, &round) == 1)
            meeting_follow(u, (int64_t)round);
    if (d)
        closedir(d);
}

static void meeting_ask(struct uplink *u, int q)
{
    char name[64], file[80];
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    ranks_name(u->meeting[q].round, q, name, sizeof name);
    snprintf(file, sizeof file, NODE_MEETING "%s", name);
    msg_begin(&m, MSG_FILE);
    msg_str(&m, "name", file);
    msg_i64(&m, "offset", 0);
    msg_i64(&m, "n_bytes", COLLECTIVE_FILE_MAX);
    if (msg_finish(&m, &err) && peer_ask(u->head, &m, MEETING_LIMIT_MS, TAG_MEETING + (uint64_t)q, &err))
        u->meeting[q].asked = u->meeting[q].round;
    msg_release(&m);
}

/* Give the trainers here the head's file. */
static bool meeting_write(struct uplink *u, int q, const char *text, size_t n, struct error *err)
{
    char dir[4200], name[64], path[4300], host[280], out[COLLECTIVE_FILE_MAX];
    struct meeting *m = &u->meeting[q];
    node_head_host(&u->node, host, sizeof host);
    size_t len = collective_file_for(text, n, host, out);
    if (len == 0)
        return true;
    meeting_dir(u, dir);
    ranks_name(m->round, q, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);    // as it is: those that wait have it open
    bool ok = fd >= 0 && pwrite(fd, out, len, 0) == (ssize_t)len;
    if (!ok && errno == ENOENT)
        m->round = 0;    // called off here
    else if (!ok)
        error_errno(err, "cannot write '%s'", path);
    if (fd >= 0)
        close(fd);
    m->told = ok;
    return ok || m->round == 0;
}

bool meeting_came(struct uplink *u, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    size_t len = 0;
    if (ev->tag < TAG_MEETING || ev->tag >= TAG_MEETING + SUM_PARTS_MAX)
        return false;
    int q = (int)(ev->tag - TAG_MEETING);
    struct meeting *m = &u->meeting[q];
    int64_t asked = m->asked;
    m->asked = 0;
    if (asked != m->round)    // of a round before
        return true;
    m->again_ms = clock_ms() + MEETING_MS;
    if (ev->failed)
        return true;
    if (!msg_read_answer(&in, MSG_FILE, ev->data, ev->len, &err)) {
        if (err.code == ERR_NOT_FOUND)
            meeting_end(u, q);
        return true;
    }
    const char *text = mval_bin(mval_get(in.root, "data"), &len);
    if (text && len > 0 && !m->told && !meeting_write(u, q, text, len, &err))
        node_end(u, run_state_name(RUN_FAILED), err.text);
    msg_in_release(&in);
    return true;
}

/* When this one's file must be looked at again; INT64_MAX: not before something comes. */
static int64_t meeting_due(const struct meeting *m)
{
    return m->round && !m->asked ? m->again_ms : INT64_MAX;
}

/* ---- a checkpoint ---- */

struct copy {
    enum {
        COPY_MANIFEST,
        COPY_FILES,
        COPY_HERE,
        COPY_LOST,    // the head had it no longer
    } state;
    int64_t round;
    char from[4096], step[80];        // on the head; the last part of it
    char at[4200];                    // where trainers read it
    json_t *manifest;                 // owned; NULL: not read yet
    void *file;                       // of the manifest's files, the one that is fetched
    struct fetch *fetch;              // of a small file; NULL: none is fetched
    struct weights_fetch *large;      // of a large one; NULL: none is fetched
    int64_t began_ms, large_bytes;    // bytes: over connections for large data, on the wire
};

bool checkpoint_here(const struct uplink *u, int64_t round, char path[4200])
{
    if (!u->copy || u->copy->state != COPY_HERE || u->copy->round != round)
        return false;
    snprintf(path, 4200, "%s", u->copy->at);
    return true;
}

bool checkpoint_lost(struct uplink *u, int64_t *round)
{
    if (!u->copy || u->copy->state != COPY_LOST)
        return false;
    *round = u->copy->round;
    u->copy->round = 0;
    u->copy->state = COPY_HERE;    // of no round: nobody gets it
    return true;
}

static void folder_path(const struct uplink *u, const char *name, char out[4200])
{
    snprintf(out, 4200, "%s/checkpoints/%s", u->process.run_dir, name);
}

/* A file of this many bytes; -1: as many as it has, which are few. */
static bool file_fetch(struct uplink *u, const char *name, const char *path, int64_t n_bytes, struct error *err)
{
    char full[160];
    if (snprintf(full, sizeof full, NODE_CHECKPOINT "%s/%s", u->copy->step, name) >= (int)sizeof full)
        return error_set(err, ERR_DATA, "the checkpoint's file name '%.80s' is too long", name);
    u->fetch_tag += FETCH_TAG_STEP;
    if (n_bytes < LARGE_BYTES)
        return (u->copy->fetch = fetch_new(full, 0, -1, path, FILE_MAX, u->stream, N_STREAM, u->fetch_tag, err)) != NULL;
    struct weights_fetch_config c = { .head = u->head,
                                      .stream = u->stream,
                                      .n_stream = N_STREAM,
                                      .address = u->node.head,
                                      .path = path,
                                      .name = full,
                                      .version = -1,
                                      .tag = u->fetch_tag,
                                      .wake = uplink_wake,
                                      .ctx = &u->process };
    return (u->copy->large = weights_fetch_new(&c, err)) != NULL;
}

bool checkpoint_bring(struct uplink *u, int64_t round, const char *path)
{
    char dir[4200];
    struct error err;
    const char *slash = strrchr(path, '/');
    if (u->copy && (u->copy->state == COPY_MANIFEST || u->copy->state == COPY_FILES || u->copy->round == round))
        return true;
    trainers_release(u);
    folder_path(u, "", dir);
    if (!(u->copy = calloc(1, sizeof *u->copy))) {
        node_end(u, run_state_name(RUN_FAILED), "no memory to fetch a checkpoint");
        return false;
    }
    *u->copy = (struct copy){ .round = round, .began_ms = clock_ms() };
    snprintf(u->copy->from, sizeof u->copy->from, "%s", path);
    snprintf(u->copy->step, sizeof u->copy->step, "%.79s", slash ? slash + 1 : path);
    bool ok = dir_make(dir, 0755, &err);
    folder_path(u, "manifest.json", dir);
    ok = ok && file_fetch(u, "state/manifest.json", dir, -1, &err);
    if (!ok)
        node_end(u, run_state_name(RUN_FAILED), err.text);
    return ok;
}

static bool files_same(const char *a, const char *b)
{
    struct error none;
    struct buf x = { .max = MANIFEST_MAX }, y = { .max = MANIFEST_MAX };
    bool same = path_exists(a) && path_exists(b) && file_read(&x, a, MANIFEST_MAX, &none) && file_read(&y, b, MANIFEST_MAX, &none)
                && x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
    buf_release(&x);
    buf_release(&y);
    return same;
}

/* Is the one that the manifest describes to be seen in this folder? */
static bool copy_is_at(struct uplink *u, const char *folder, const char *manifest)
{
    char there[4300];
    snprintf(there, sizeof there, "%s/state/manifest.json", folder);
    if (!files_same(there, manifest))
        return false;
    snprintf(u->copy->at, sizeof u->copy->at, "%s", folder);
    u->copy->state = COPY_HERE;
    return true;
}

/* Remove what earlier copies have left. */
static bool copies_remove(const struct uplink *u, struct error *err)
{
    char path[4200];
    bool ok = true;
    folder_path(u, "", path);
    DIR *d = opendir(path);
    if (!d)
        return error_errno(err, "cannot list '%s'", path);
    for (struct dirent *e; ok && (e = readdir(d));)
        if (strncmp(e->d_name, "step-", 5) == 0) {
            folder_path(u, e->d_name, path);
            ok = dir_remove(path, err);
        }
    closedir(d);
    return ok;
}

/* The manifest has come. */
static bool manifest_take(struct uplink *u, struct error *err)
{
    char path[4200], folder[4200], state[4300];
    struct copy *c = u->copy;
    folder_path(u, "manifest.json", path);
    folder_path(u, c->step, folder);
    if (copy_is_at(u, c->from, path) || copy_is_at(u, folder, path))
        return true;
    struct buf text = BUF_INIT;
    if (strncmp(c->step, "step-", 5) == 0 && file_read(&text, path, MANIFEST_MAX, err))
        c->manifest = json_text_read(buf_text(&text), text.len, 0, NULL);
    buf_release(&text);
    if (!c->manifest)
        return error_set(err, ERR_DATA, "the manifest of the head's checkpoint '%s' cannot be read", c->from);
    c->file = json_object_iter(json_object_get(c->manifest, "files"));
    c->state = COPY_FILES;
    snprintf(state, sizeof state, "%s/state", folder);
    return copies_remove(u, err) && dir_make(folder, 0755, err) && dir_make(state, 0755, err);
}

/* Fetch the next file; after the last one the checkpoint is here. */
static bool file_next(struct uplink *u, struct error *err)
{
    struct copy *c = u->copy;
    char path[4200], folder[4200], to[4300];
    folder_path(u, c->step, folder);
    if (c->file) {
        int64_t n_bytes = (int64_t)json_integer_value(json_object_get(json_object_iter_value(c->file), "bytes"));
        const char *name = json_object_iter_key(c->file), *below = strncmp(name, "state/", 6) == 0 ? name + 6 : name;
        snprintf(to, sizeof to, "%s/%s", folder, name);
        c->file = json_object_iter_next(json_object_get(c->manifest, "files"), c->file);
        if (strchr(below, '/') || below[0] == '.')
            return error_set(err, ERR_DATA, "the head's checkpoint '%s' has a file '%s', which is not accepted", c->from, name);
        return file_fetch(u, name, to, n_bytes, err);
    }
    folder_path(u, "manifest.json", path);
    snprintf(to, sizeof to, "%s/state/manifest.json", folder);
    if (rename(path, to) != 0)
        return error_errno(err, "cannot rename '%s'", path);
    snprintf(c->at, sizeof c->at, "%s", folder);
    c->state = COPY_HERE;
    log_info("checkpoint '%s' was copied in %.1f s, %.1f MiB of it over connections for large data", c->from,
             (double)(clock_ms() - c->began_ms) / 1000, (double)c->large_bytes / (1 << 20));
    return true;
}

/* Go on with the file that is fetched; when it does no more, it is let go of. */
static enum fetch_state file_tick(struct copy *c, struct error *err)
{
    enum fetch_state state;
    struct weights_fetch_look look;
    if (c->large) {
        weights_fetch_tick(c->large);
        state = weights_fetch_state(c->large, err);
    } else {
        fetch_tick(c->fetch);
        state = fetch_state(c->fetch, err);
    }
    if (state == FETCH_GOES)
        return state;
    if (c->large) {
        weights_fetch_look(c->large, &look);
        c->large_bytes += look.wire_bytes;
    }
    weights_fetch_free(c->large);
    fetch_free(c->fetch);
    c->large = NULL;
    c->fetch = NULL;
    return state;
}

static bool copy_goes(const struct copy *c)
{
    return c && (c->fetch || c->large);
}

static bool copy_tick(struct uplink *u, struct error *err)
{
    struct copy *c = u->copy;
    while (copy_goes(c)) {
        enum fetch_state state = file_tick(c, err);
        if (state == FETCH_GOES)
            return true;
        if (state == FETCH_FAILED && (err->code == ERR_NOT_FOUND || err->code == ERR_CLOSED)) {
            log_warn("checkpoint '%s' has not come: %s", c->from, err->text);
            c->state = COPY_LOST;
            return true;
        }
        if (state == FETCH_FAILED || (c->state == COPY_MANIFEST && !manifest_take(u, err))
            || (c->state == COPY_FILES && !file_next(u, err)))
            return false;
    }
    return true;
}

void trainers_answered(struct uplink *u, const struct net_event *ev)
{
    if (u->copy && u->copy->fetch)
        fetch_answered(u->copy->fetch, ev);
    if (u->copy && u->copy->large)
        weights_fetch_answered(u->copy->large, ev);
}

void trainers_tick(struct uplink *u)
{
    struct error err;
    if (copy_goes(u->copy) && !u->ends && !copy_tick(u, &err))
        node_end(u, run_state_name(RUN_FAILED), err.text);
    for (int q = 0; q < SUM_PARTS_MAX; q++)
        if (clock_ms() >= meeting_due(&u->meeting[q]))
            meeting_ask(u, q);
}

int64_t trainers_due(const struct uplink *u)
{
    int64_t due = !copy_goes(u->copy) ? INT64_MAX : u->copy->large ? weights_fetch_due(u->copy->large) : fetch_due(u->copy->fetch);
    for (int q = 0; q < SUM_PARTS_MAX; q++)
        due = MIN(due, meeting_due(&u->meeting[q]));
    return due;
}

void trainers_release(struct uplink *u)
{
    if (!u->copy)
        return;
    fetch_free(u->copy->fetch);
    weights_fetch_free(u->copy->large);
    json_decref(u->copy->manifest);
    free(u->copy);
    u->copy = NULL;
}
