#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/run/run_state.h"
#include "workers/engine/publish/publication.h"
#include "workers/node/uplink_parts.h"
#include "workers/node/weights_fetch.h"

static bool weights_here(const struct uplink *u, int64_t version, int64_t made)
{
    for (int i = 0; i < WEIGHTS_KEPT; i++)
        if (u->here[i].version == version && u->here[i].made == made && !u->here[i].left)
            return true;
    return false;
}

static bool is_newer(const struct weights *a, const struct weights *b)
{
    return version_key(a->made, a->version) > version_key(b->made, b->version);
}

static void file_drop(const struct uplink *u, const struct weights *w)
{
    char path[4200];
    if (w->version < 0)
        return;
    weights_file_path(u->process.run_dir, w->made, w->version, path, sizeof path);
    unlink(path);
}

/* A version that has been dropped last, on tmpfs: the next one takes its place there. */
static void spare_path(const struct uplink *u, char *out, size_t size)
{
    snprintf(out, size, "%s/sock/weights-spare", u->process.run_dir);
}

static void spare_drop(const struct uplink *u)
{
    char path[4200];
    spare_path(u, path, sizeof path);
    unlink(path);
}

/* Drop w's file, but keep its memory for the next fetch, which would have to find and clear as much. */
static void file_spare(const struct uplink *u, const struct weights *w)
{
    char path[4200], spare[4200];
    if (w->version < 0)
        return;
    weights_file_path(u->process.run_dir, w->made, w->version, path, sizeof path);
    spare_path(u, spare, sizeof spare);
    if (!path_in_memory(path) || rename(path, spare) != 0)
        unlink(path);
}

void weights_find(struct uplink *u)
{
    char path[4200];
    for (int i = 0; i < WEIGHTS_KEPT; i++)
        u->here[i] = (struct weights){ .version = -1 };
    spare_drop(u);
    snprintf(path, sizeof path, "%s/sock", u->process.run_dir);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        struct weights w = { .left = true };
        int end = 0;
        if (sscanf(e->d_name, "weights-%" SCNd64 "-%" SCNd64 "%n", &w.made, &w.version, &end) != 2 || w.made < 0 || w.version < 0)
            continue;
        if (e->d_name[end]) {    // unfinished
            unlinkat(dirfd(d), e->d_name, 0);
            continue;
        }
        for (int i = 0; i < WEIGHTS_KEPT; i++)
            if (u->here[i].version < 0 || is_newer(&w, &u->here[i])) {
                struct weights other = u->here[i];
                u->here[i] = w;
                w = other;
            }
        file_drop(u, &w);
    }
    if (d)
        closedir(d);
}

/* The version that was fetched is the newest one here; the oldest goes, unless an earlier process had left this very one. */
static void weights_note(struct uplink *u)
{
    int last = 0;
    while (last < WEIGHTS_KEPT - 1 && !(u->here[last].version == u->fetch_version && u->here[last].made == u->fetch_made))
        last++;
    if (!(u->here[last].version == u->fetch_version && u->here[last].made == u->fetch_made))
        file_spare(u, &u->here[last]);
    memmove(&u->here[1], &u->here[0], (size_t)last * sizeof u->here[0]);
    u->here[0] = (struct weights){ .version = u->fetch_version, .made = u->fetch_made };
}

static void weights_came(struct uplink *u)
{
    struct weights_fetch_look look;
    double s = (double)(clock_ms() - u->fetch_ms) / 1000;
    weights_note(u);
    weights_fetch_look(u->fetch, &look);
    double mib = (double)look.size_bytes / (1 << 20);
    u->fetch_s = s;
    u->mib_per_s = mib / MAX(s, 0.001);
    u->delta_ratio = (double)look.size_bytes / (double)MAX(look.wire_bytes, (int64_t)1);
    u->wire_bytes += look.wire_bytes;
    u->fetched.version = u->fetch_version;
    u->fetched.file_bytes = look.size_bytes;
    u->fetched.wire_bytes = look.wire_bytes;
    u->fetched.s = s;
    log_info("weights of version %" PRId64 " are here mib=%.3f wire_mib=%.3f s=%.3f", u->fetch_version, mib,
             (double)look.wire_bytes / (1 << 20), s);
}

void weights_fetched_write(struct uplink *u, int64_t version, struct msg_out *m)
{
    if (version < 0 || version != u->fetched.version)
        return;
    msg_map(m, "fetched");
    msg_i64(m, "file_bytes", u->fetched.file_bytes);
    msg_i64(m, "wire_bytes", u->fetched.wire_bytes);
    msg_f64(m, "s", u->fetched.s);
    msg_end(m);
    u->fetched.version = -1;
}

/* The trainer's order to load, with the path that the checkpoint has here. */
static void load_write(struct msg_out *m, const struct msg_in *in, const char *path)
{
    static const char *const same[] = { "task", "step", "made", "round" };
    for (size_t i = 0; i < ARRAY_SIZE(same); i++)
        msg_copy(m, same[i], mval_get(in->root, same[i]));
    msg_str(m, "path", path);
}

/* Hand the worker its order, with the path the weights or the checkpoint have here; or nothing to do, when they are not to be had. */
static void order_end(struct uplink *u, struct held_order *o, bool have)
{
    struct error err;
    struct msg_in in;
    struct msg_out m = MSG_OUT_INIT;
    char path[4200];
    bool ok = msg_read_answer(&in, MSG_WORK, o->answer.data, o->answer.len, &err);
    BUG_IF(!ok, "an order that was read before cannot be read: %s", err.text);
    msg_begin(&m, MSG_OK);
    msg_str(&m, "kind", !have ? "none" : o->round ? "load" : "publish");
    msg_copy(&m, "incarnation", mval_get(in.root, "incarnation"));
    if (have && o->round) {
        BUG_IF(!checkpoint_here(u, o->round, path), "a checkpoint that was here is gone");
        load_write(&m, &in, path);
    } else if (have) {
        weights_file_path(u->process.run_dir, o->made, o->version, path, sizeof path);
        msg_copy(&m, "task", mval_get(in.root, "task"));
        msg_copy(&m, "step", mval_get(in.root, "step"));
        msg_i64(&m, "version", o->version);
        msg_i64(&m, "made", o->made);
        msg_str(&m, "path", path);
    } else {
        msg_i64(&m, "task", 0);
    }
    msg_in_release(&in);
    if (msg_finish(&m, &err))
        request_answer(o->request, &m);
    else
        request_refuse(o->request, &err);
    msg_release(&m);
    buf_release(&o->answer);
    *o = (struct held_order){ 0 };
}

static bool order_has(const struct uplink *u, const struct held_order *o)
{
    char path[4200];
    return o->round ? checkpoint_here(u, o->round, path) : weights_here(u, o->version, o->made);
}

/* Answer the orders whose weights are here, and those whose weights a fetch that has failed was to bring. */
static void orders_answer(struct uplink *u, enum fetch_state state)
{
    int64_t round = 0;
    bool gone = checkpoint_lost(u, &round);
    for (int i = 0; i < WORKERS_MAX; i++) {
        struct held_order *o = &u->order[i];
        if (!o->worker[0])
            continue;
        bool have = order_has(u, o);
        bool lost = o->round ? gone && o->round == round
                             : state == FETCH_FAILED && o->version == u->fetch_version && o->made == u->fetch_made;
        if ((have || lost) && o->request)
            order_end(u, o, have);
        else if (lost)
            o->worker[0] = 0;    // nobody waits: the worker asks again, and the controller decides again
    }
}

/* Begin to bring the checkpoint that an order waits for, one at a time. */
static void checkpoints_want(struct uplink *u)
{
    struct msg_in in;
    struct error err;
    char path[4096];
    for (int i = 0; i < WORKERS_MAX && !u->ends; i++) {
        const struct held_order *o = &u->order[i];
        if (!o->worker[0] || !o->round || order_has(u, o) || !msg_read_answer(&in, MSG_WORK, o->answer.data, o->answer.len, &err))
            continue;
        mval_text(in.root, "path", path, sizeof path);
        msg_in_release(&in);
        if (!checkpoint_bring(u, o->round, path))
            return;
    }
}

void uplink_wake(void *ctx)
{
    process_wake(ctx);
}

/* Fetch the weights that o needs, as differences from the newest that are here when there are any. */
static struct weights_fetch *fetch_make(struct uplink *u, const struct held_order *o, struct error *err)
{
    char path[4200], base[4200], spare[4200];
    spare_path(u, spare, sizeof spare);
    weights_file_path(u->process.run_dir, o->made, o->version, path, sizeof path);
    weights_file_path(u->process.run_dir, u->here[0].made, u->here[0].version, base, sizeof base);
    return weights_fetch_new(&(struct weights_fetch_config){ .head = u->head,
                                                             .stream = u->stream,
                                                             .n_stream = N_STREAM,
                                                             .address = u->node.head,
                                                             .path = path,
                                                             .version = o->version,
                                                             .made = o->made,
                                                             .base_path = u->here[0].version >= 0 ? base : NULL,
                                                             .base_version = u->here[0].version,
                                                             .base_made = u->here[0].made,
                                                             .spare_path = spare,
                                                             .tag = u->fetch_tag,
                                                             .wake = uplink_wake,
                                                             .ctx = &u->process },
                             err);
}

/* Begin to bring what the first order without weights needs. */
static void fetch_begin(struct uplink *u)
{
    struct error err = { 0 };
    for (int i = 0; i < WORKERS_MAX && !u->fetch && !u->ends; i++) {
        const struct held_order *o = &u->order[i];
        if (!o->worker[0] || o->round || weights_here(u, o->version, o->made))
            continue;
        u->fetch_version = o->version;
        u->fetch_made = o->made;
        u->fetch_ms = clock_ms();
        u->fetch_tag += FETCH_TAG_STEP;    // late answers to an earlier fetch are not taken for this one's
        u->fetch = fetch_make(u, o, &err);
        if (!u->fetch)
            node_end(u, run_state_name(RUN_FAILED), err.text);
        else
            weights_fetch_tick(u->fetch);
    }
}

void weights_tick(struct uplink *u)
{
    struct error err = { 0 };
    enum fetch_state state = FETCH_GOES;
    if (u->fetch) {
        weights_fetch_tick(u->fetch);
        state = weights_fetch_state(u->fetch, &err);
        if (state == FETCH_DONE)
            weights_came(u);
        if (state == FETCH_FAILED)
            log_warn("weights of version %" PRId64 " have not come: %s", u->fetch_version, err.text);
    }
    orders_answer(u, state);
    if (state != FETCH_GOES) {
        weights_fetch_free(u->fetch);
        u->fetch = NULL;
        if (state == FETCH_FAILED && err.code != ERR_NOT_FOUND && err.code != ERR_CLOSED)
            node_end(u, run_state_name(RUN_FAILED), err.text);
    }
    fetch_begin(u);
    checkpoints_want(u);
}

int64_t weights_due(const struct uplink *u)
{
    return u->fetch ? weights_fetch_due(u->fetch) : INT64_MAX;    // an order waits for weights, or for its worker to ask again
}

bool weights_order_asked(struct uplink *u, struct net_event *ev, const struct msg_in *in)
{
    char name[64];
    mval_text(in->root, "name", name, sizeof name);
    for (int i = 0; i < WORKERS_MAX; i++) {
        struct held_order *o = &u->order[i];
        if (!o->worker[0] || strcmp(o->worker, name) != 0)
            continue;
        if (o->request)
            request_drop(o->request);
        o->request = NULL;
        if (o->start == mval_i64(mval_get(in->root, "start"), 0)) {
            o->request = ev->request;
            ev->request = NULL;
            return true;
        }
        o->worker[0] = 0;    // of an earlier process of that name
    }
    return false;
}

bool weights_order_keep(struct uplink *u, struct relay *x, const struct net_event *ev, const struct msg_in *in)
{
    struct error err;
    struct msg_in asked;
    char name[120];
    struct held_order *o = NULL;
    for (int i = 0; !o && i < WORKERS_MAX; i++)
        if (!u->order[i].worker[0])
            o = &u->order[i];
    if (!o || !msg_read_request(&asked, x->msg.buf.data, x->msg.buf.len, &err))
        return false;
    buf_release(&o->answer);
    *o = (struct held_order){ .start = mval_i64(mval_get(asked.root, "start"), 0),
                              .version = mval_i64(mval_get(in->root, "version"), -1),
                              .made = mval_i64(mval_get(in->root, "made"), 0),
                              .round = mval_i64(mval_get(in->root, "round"), 0) };
    mval_text(asked.root, "name", name, sizeof name);
    snprintf(o->worker, sizeof o->worker, "%s", name + strlen(u->node.name) + 1);    // the head knows it as NODE/NAME
    msg_in_release(&asked);
    if (buf_add(&o->answer, ev->data, ev->len))
        o->request = relay_take(x);
    else
        o->worker[0] = 0;
    return true;
}

void weights_release(struct uplink *u)
{
    for (int i = 0; i < WORKERS_MAX; i++)
        buf_release(&u->order[i].answer);
    weights_fetch_free(u->fetch);
    spare_drop(u);
}
