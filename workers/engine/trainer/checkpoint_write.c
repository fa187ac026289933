/* checkpoint_write.c - writing a training state
 *
 * Invariants:
 * 1. dir/step-NNNNNN exists only as the result of a rename of a finished, synced directory.
 * 2. state/manifest.json is the last file written; it names every other file with size and hash.
 * 3. Where a checkpoint of the same step exists already, the two change places in one rename, so that there is always one.
 *    What a killed writer has left (hidden, named after its process) is removed by the next one.
 * 4. The snapshot belongs to the writer's thread from checkpoint_start until the state is DONE; only then is it reused.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "protocol/base/child.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/hold.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/base/machine.h"
#include "protocol/base/parallel.h"
#include "protocol/base/thread.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/checkpoint_parts.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/reference.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/update.h"

/* Host copies of everything that training changes. */
struct snapshot {
    void *weights;    // (weight_bytes)
    size_t weight_bytes;
    void *reference;    // (weight_bytes) when has_reference: it has moved
    bool has_reference;
    float *state[STATE_N];    // (n_state); the masters are NULL when they are the weights (fp32)
    int64_t n_state[STATE_N];
    int64_t n_flat, step, adam_step;
    const struct model *m;    // its table of tensors; borrowed
    char dir[CHECKPOINT_PATH], tokenizer_dir[CHECKPOINT_PATH], run[64];
    bool has_tokenizer;
    char *settings;    // or NULL
};
enum writer_state {
    WRITER_IDLE,
    WRITER_WANTED,
    WRITER_DONE,
    WRITER_QUIT,
};
struct checkpoint_writer {
    pthread_t thread;
    pthread_mutex_t lock;    // guards: state, ok, path, err
    pthread_cond_t changed;
    enum writer_state state;
    bool ok;
    char path[CHECKPOINT_PATH];
    struct error err;
    struct snapshot snap;
    void (*done)(void *ctx);    // NULL: nobody is told
    void *done_ctx;
};

/* ---- the files ---- */

static bool json_write(json_t *j, const char *path, struct error *err)    // takes j
{
    char *text = j ? json_text_dump(j, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(j);
    bool ok = text ? file_write(path, text, strlen(text), err) : error_set(err, ERR_NO_MEMORY, "no memory for '%s'", path);
    free(text);
    return ok;
}

static bool state_write(const struct snapshot *s, const char *dir, struct error *err)
{
    char path[CHECKPOINT_PATH];
    struct st_out out[STATE_N];
    int64_t n = 0;
    for (int k = 0; k < STATE_N; k++)
        if (s->state[k])
            out[n++] = (struct st_out){
                .name = checkpoint_state_names[k], .dtype = ST_F32, .n_dim = 1, .dim = { s->n_state[k] }, .data = s->state[k]
            };
    if (!checkpoint_join(path, dir, "trainer.safetensors", err) || !st_write(path, out, n, err))
        return false;
    json_error_t je;
    json_t *settings = s->settings ? json_str_read(s->settings, JSON_DECODE_ANY, &je) : json_null();
    if (!settings)
        return error_set(err, je.text[0] ? ERR_DATA : ERR_NO_MEMORY, "the settings for '%s' cannot be kept: %s", dir,
                         je.text[0] ? je.text : "no memory");
    json_t *j = json_pack("{s:I, s:I, s:o}", "step", (json_int_t)s->step, "adam_step", (json_int_t)s->adam_step, "settings", settings);
    return checkpoint_join(path, dir, "state.json", err) && json_write(j, path, err);
}

/* The reference's weights in the flat order, if it has moved. */
static bool reference_write(const struct snapshot *s, const char *dir, struct error *err)
{
    char path[CHECKPOINT_PATH];
    enum st_dtype type = model_dtype(s->m) == DT_F32 ? ST_F32 : ST_BF16;
    struct st_out out = { .name = CHECKPOINT_REFERENCE,
                          .dtype = type,
                          .n_dim = 1,
                          .dim = { (int64_t)(s->weight_bytes / st_dtype_size(type)) },
                          .data = s->reference };
    return !s->has_reference || (checkpoint_join(path, dir, "reference.safetensors", err) && st_write(path, &out, 1, err));
}

/* Add every file of dir (and of its state/) to the manifest. */
static bool manifest_collect(json_t *files, const char *dir, const char *prefix, struct error *err)
{
    bool ok = false;
    char path[CHECKPOINT_PATH], name[512];
    DIR *d = opendir(dir);
    if (!d)
        return error_errno(err, "cannot list '%s'", dir);
    for (struct dirent *e; (e = readdir(d));) {
        size_t size;
        uint64_t hash;
        if (e->d_name[0] == '.')
            continue;
        TRY(checkpoint_join(path, dir, e->d_name, err));
        snprintf(name, sizeof name, "%s%s", prefix, e->d_name);
        if (path_is_dir(path))
            continue;
        TRY(checkpoint_file_hash(path, &size, &hash, err));
        char hex[17];
        snprintf(hex, sizeof hex, "%016" PRIx64, hash);
        if (json_object_set_new(files, name, json_pack("{s:I, s:s}", "bytes", (json_int_t)size, "hash", hex)) != 0) {
            error_set(err, ERR_NO_MEMORY, "no memory for the manifest of '%s'", dir);
            goto out;
        }
    }
    ok = true;
out:
    closedir(d);
    return ok;
}

/* The name of a folder beside a checkpoint that one writer uses: ".step-000120.RUN.part-PID", with "none" for a run that has no id. */
#define BESIDE_RUN(s) ((s)->run[0] ? (s)->run : "none")
static bool beside_path(const struct snapshot *s, const char *what, char path[CHECKPOINT_PATH], struct error *err)
{
    char name[128];
    snprintf(name, sizeof name, ".step-%06" PRId64 ".%s.%s-%d", s->step, BESIDE_RUN(s), what, (int)getpid());
    return checkpoint_join(path, s->dir, name, err);
}

/* Is this such a folder of the same run, by a writer that lives no more or by this one? */
static bool is_leftover(const struct snapshot *s, const char *name)
{
    int64_t step;
    char run[64], what[5];
    int pid, end = 0;
    if (sscanf(name, ".step-%" SCNd64 ".%63[^.].%4[a-z]-%d%n", &step, run, what, &pid, &end) != 4 || name[end] || pid <= 0)
        return false;
    if (strcmp(run, BESIDE_RUN(s)) != 0 || (strcmp(what, "part") != 0 && strcmp(what, "old") != 0))
        return false;
    return pid == getpid() || (kill(pid, 0) != 0 && errno == ESRCH);
}

/* Remove what writers of this run that live no more have left half-written in its folder, and an earlier failure of our own. */
static bool leftovers_remove(const struct snapshot *s, struct error *err)
{
    DIR *d = opendir(s->dir);
    bool ok = d || error_errno(err, "cannot list '%s'", s->dir);
    for (struct dirent *e; ok && (e = readdir(d));) {
        char path[CHECKPOINT_PATH];
        ok = !is_leftover(s, e->d_name) || (checkpoint_join(path, s->dir, e->d_name, err) && dir_remove(path, err));
    }
    if (d)
        closedir(d);
    return ok;
}

/* Give the finished directory tmp its name. An earlier one of that name is then in tmp or in old. */
static bool checkpoint_place(const char *tmp, const char *path, const char *old, struct error *err)
{
    if (!path_exists(path))
        return rename(tmp, path) == 0 || error_errno(err, "cannot rename '%s' to '%s'", tmp, path);
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return true;
    if (errno != EINVAL && errno != ENOSYS)    // those: not on this file system
        return error_errno(err, "cannot exchange '%s' and '%s'", tmp, path);
    if (rename(path, old) != 0)
        return error_errno(err, "cannot move the earlier '%s' away", path);
    if (rename(tmp, path) == 0)
        return true;
    error_errno(err, "cannot rename '%s' to '%s'", tmp, path);
    if (rename(old, path) != 0)
        log_warn("the earlier '%s' stays in '%s'", path, old);
    return false;
}

/* What stands at path, if anything, may be replaced: it is no checkpoint of another run. */
static bool place_is_ours(const struct snapshot *s, const char *path, struct error *err)
{
    char manifest[CHECKPOINT_PATH], run[64];
    if (!s->run[0] || !checkpoint_join(manifest, path, "state/manifest.json", err) || !path_exists(manifest))
        return true;
    struct error broken;
    if (!checkpoint_owner(path, run, &broken) || !run[0] || strcmp(run, s->run) == 0)
        return true;
    return error_set(err, ERR_EXISTS,
                     "'%s' belongs to another run (%s; this one is %s) and is not replaced; give each run a save_dir of its own", path, run,
                     s->run);
}

static bool snapshot_write(const struct snapshot *s, char path[CHECKPOINT_PATH], struct error *err)
{
    bool ok = false;
    char name[64], tmp[CHECKPOINT_PATH] = "", old[CHECKPOINT_PATH], state[CHECKPOINT_PATH], manifest[CHECKPOINT_PATH];
    json_t *files = json_object();
    snprintf(name, sizeof name, "step-%06" PRId64, s->step);
    TRY(checkpoint_join(path, s->dir, name, err));
    TRY(beside_path(s, "old", old, err) && beside_path(s, "part", tmp, err));
    TRY(checkpoint_join(state, tmp, "state", err) && checkpoint_join(manifest, state, "manifest.json", err));
    TRY(dir_make(s->dir, 0755, err) && leftovers_remove(s, err) && dir_make(state, 0755, err));
    TRY(model_save_copy(s->m, s->weights, tmp, err));
    if (s->has_tokenizer)
        TRY(model_dir_copy_tokenizer(s->tokenizer_dir, tmp, err));
    TRY(state_write(s, state, err) && reference_write(s, state, err));
    TRY(manifest_collect(files, tmp, "", err) && manifest_collect(files, state, "state/", err));
    TRY(json_write(
        json_pack("{s:i, s:I, s:s, s:O}", "version", CHECKPOINT_VERSION, "step", (json_int_t)s->step, "run", s->run, "files", files),
        manifest, err));
    TRY(dir_sync(state, err) && dir_sync(tmp, err));
    hold_point("renaming");
    TRY(place_is_ours(s, path, err));
    TRY(!checkpoint_is_pinned(path) || checkpoint_pin(tmp, true, err));
    TRY(checkpoint_place(tmp, path, old, err));
    TRY(dir_sync(s->dir, err) && dir_remove(tmp, err) && dir_remove(old, err));
    ok = true;
out:
    if (!ok && tmp[0]) {
        struct error ignored;    // what went wrong first is what counts
        if (!dir_remove(tmp, &ignored))
            log_warn("%s", ignored.text);
    }
    json_decref(files);
    return ok;
}

static void *writer_main(void *arg)
{
    struct checkpoint_writer *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->state != WRITER_WANTED && w->state != WRITER_QUIT)
            pthread_cond_wait(&w->changed, &w->lock);
        if (w->state == WRITER_QUIT)
            break;
        pthread_mutex_unlock(&w->lock);
        char path[CHECKPOINT_PATH];
        struct error err = { 0 };
        bool ok = snapshot_write(&w->snap, path, &err);
        pthread_mutex_lock(&w->lock);
        w->ok = ok;
        w->err = err;
        snprintf(w->path, sizeof w->path, "%s", path);
        w->state = WRITER_DONE;
        pthread_cond_broadcast(&w->changed);
        if (w->done) {    // without the lock: it may take one of its own
            pthread_mutex_unlock(&w->lock);
            w->done(w->done_ctx);
            pthread_mutex_lock(&w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct checkpoint_writer *checkpoint_writer_new(struct error *err)
{
    struct checkpoint_writer *w = calloc(1, sizeof *w);
    if (!w) {
        error_set(err, ERR_NO_MEMORY, "no memory for a checkpoint writer");
        return NULL;
    }
    w->ok = true;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    int rc = thread_start(&w->thread, writer_main, w);
    if (rc != 0) {
        child_unspawned(rc, "the checkpoint thread", err);
        free(w);
        return NULL;
    }
    return w;
}

void checkpoint_writer_notify(struct checkpoint_writer *w, void (*done)(void *ctx), void *ctx)
{
    w->done = done;
    w->done_ctx = ctx;
}

static void writer_settle(struct checkpoint_writer *w)    // until nothing is being written; leaves the lock held
{
    pthread_mutex_lock(&w->lock);
    while (w->state == WRITER_WANTED)
        pthread_cond_wait(&w->changed, &w->lock);
}

void checkpoint_writer_free(struct checkpoint_writer *w)
{
    if (!w)
        return;
    writer_settle(w);
    w->state = WRITER_QUIT;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w->snap.weights);
    free(w->snap.reference);
    for (int k = 0; k < STATE_N; k++)
        free(w->snap.state[k]);
    free(w->snap.settings);
    free(w);
}

/* Is this kept beside the weights? */
static bool has_state(const struct trainer *t, enum trainer_state_kind kind)
{
    return trainer_state_n(t, kind) > 0 && (kind != STATE_MASTER || model_dtype(trainer_model(t)) != DT_F32);
}

#define ROOM_PAGE ((size_t)2 << 20)
#define ROOM_PART (32 * ROOM_PAGE)
#define ROOM_THREADS 8
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23    // Linux 5.14; headers before it lack the name
#endif

struct room {
    char *mem;
    size_t size_bytes;
};
static void room_touch(void *ctx, int64_t part)
{
    const struct room *r = ctx;
    size_t first = (size_t)part * ROOM_PART, size = MIN(ROOM_PART, r->size_bytes - first);
    (void)madvise(r->mem + first, size, MADV_POPULATE_WRITE);    // where the kernel cannot, pages come as they are used
}

/* Host memory for a snapshot, for free(), which is there already: its first touch by one thread, page by page, would take longer than the copy.
 * NULL: there is none. */
static void *room_new(size_t size)
{
    struct room r = { .size_bytes = (size + ROOM_PAGE - 1) / ROOM_PAGE * ROOM_PAGE };
    if (size < ROOM_PART)
        return malloc(MAX(size, (size_t)1));
    if (!(r.mem = aligned_alloc(ROOM_PAGE, r.size_bytes)))
        return NULL;
    madvise(r.mem, r.size_bytes, MADV_HUGEPAGE);
    parallel_run((int64_t)((r.size_bytes + ROOM_PART - 1) / ROOM_PART), ROOM_THREADS, room_touch, &r);
    return r.mem;
}

size_t checkpoint_copy_bytes(int64_t n_param, size_t weight_bytes, bool half)
{
    return weight_bytes + (size_t)n_param * 4 * (half ? 3 : 2);
}

static bool snapshot_alloc(struct snapshot *s, const struct trainer *t, struct error *err)
{
    const struct model *m = trainer_model(t);
    size_t bytes = model_weight_bytes(m);
    int64_t n = trainer_grad_n(t);
    if (s->weights && s->weight_bytes == bytes && s->n_flat == n)
        return true;
    size_t wanted = checkpoint_copy_bytes(n, bytes, model_dtype(m) != DT_F32) + (trainer_reference_moved(t) ? bytes : 0),
           have = machine_memory().available;
    if (wanted > have)
        return error_set(err, ERR_NO_MEMORY, "a snapshot of %" PRId64 " parameters takes %.1f GB of host memory, and %.1f GB are left", n,
                         (double)wanted * 1e-9, (double)have * 1e-9);
    int64_t before = clock_ns();
    free(s->weights);
    free(s->reference);
    s->reference = NULL;
    s->weights = room_new(bytes);
    s->weight_bytes = bytes;
    s->n_flat = n;
    bool ok = s->weights != NULL;
    for (int k = 0; k < STATE_N; k++) {
        free(s->state[k]);
        s->state[k] = NULL;
        s->n_state[k] = trainer_state_n(t, (enum trainer_state_kind)k);
        if (!has_state(t, (enum trainer_state_kind)k))
            continue;
        s->state[k] = room_new((size_t)s->n_state[k] * 4);
        ok = ok && s->state[k];
    }
    if (ok) {
        log_info("room for checkpoints gb=%.3f ms=%.1f", (double)wanted * 1e-9, (double)(clock_ns() - before) / 1e6);
        return true;
    }
    s->n_flat = 0;
    return error_set(err, ERR_NO_MEMORY, "no host memory for a snapshot of %" PRId64 " parameters", n);
}

/* A copy of the reference, once it has moved. */
static bool snapshot_reference(struct snapshot *s, const struct trainer *t, struct error *err)
{
    s->has_reference = trainer_reference_moved(t);
    if (!s->has_reference)
        return true;
    if (!s->reference && !(s->reference = room_new(s->weight_bytes)))
        return error_set(err, ERR_NO_MEMORY, "no host memory for a snapshot of the reference, %zu bytes", s->weight_bytes);
    return trainer_reference_get(t, s->reference, err);
}

static bool snapshot_take(struct snapshot *s, struct trainer *t, const char *dir, const struct checkpoint_info *info, struct error *err)
{
    struct model *m = trainer_model(t);
    if (!snapshot_alloc(s, t, err))
        return false;
    s->m = m;
    s->step = info->step;
    s->adam_step = trainer_adam_step(t);
    s->has_tokenizer = info->tokenizer_dir != NULL;
    snprintf(s->run, sizeof s->run, "%s", info->run ? info->run : "");
    if (snprintf(s->dir, sizeof s->dir, "%s", dir) >= CHECKPOINT_PATH
        || snprintf(s->tokenizer_dir, sizeof s->tokenizer_dir, "%s", info->tokenizer_dir ? info->tokenizer_dir : "") >= CHECKPOINT_PATH)
        return error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    free(s->settings);
    s->settings = info->settings ? strdup(info->settings) : NULL;
    if (info->settings && !s->settings)
        return error_set(err, ERR_NO_MEMORY, "no memory for the settings in '%s'", dir);
    if (!trainer_weights_get(t, s->weights, err) || !snapshot_reference(s, t, err))
        return false;
    for (int k = 0; k < STATE_N; k++)
        if (s->state[k] && !trainer_state_get(t, (enum trainer_state_kind)k, s->state[k], err))
            return false;
    return true;
}

/* As snapshot_take asks for them. */
bool checkpoint_give(const struct trainer *t, struct error *err)
{
    if (!trainer_gives_first(t))
        return true;
    if (!trainer_weights_get(t, NULL, err))
        return false;
    for (int k = 0; k < STATE_N; k++)
        if (has_state(t, (enum trainer_state_kind)k) && !trainer_state_get(t, (enum trainer_state_kind)k, NULL, err))
            return false;
    return true;
}

bool checkpoint_start(struct checkpoint_writer *w, struct trainer *t, const char *dir, const struct checkpoint_info *info,
                      struct error *err)
{
    writer_settle(w);
    bool ok = w->state != WRITER_DONE || w->ok || error_set(err, w->err.code, "%s", w->err.text);
    w->state = WRITER_IDLE;
    w->ok = true;
    w->path[0] = 0;
    pthread_mutex_unlock(&w->lock);
    if (!ok)    // the earlier one failed and nobody asked: say so now
        return false;
    if (!snapshot_take(&w->snap, t, dir, info, err) || !dir_make(dir, 0755, err))    // first what other ranks may wait for
        return false;
    pthread_mutex_lock(&w->lock);
    w->state = WRITER_WANTED;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return true;
}

/* Hand out the result once; lock held. */
static bool result_take(struct checkpoint_writer *w, char *path, struct error *err)
{
    bool ok = w->ok;
    if (path)
        snprintf(path, CHECKPOINT_PATH, "%s", w->path);
    if (!ok)
        error_set(err, w->err.code, "%s", w->err.text);
    w->state = WRITER_IDLE;
    w->ok = true;
    w->path[0] = 0;
    return ok;
}

bool checkpoint_poll(struct checkpoint_writer *w, bool *ok, char path[4096], struct error *err)
{
    pthread_mutex_lock(&w->lock);
    bool done = w->state != WRITER_WANTED;
    if (done)
        *ok = result_take(w, path, err);
    pthread_mutex_unlock(&w->lock);
    return done;
}

bool checkpoint_wait(struct checkpoint_writer *w, struct error *err)
{
    writer_settle(w);
    bool ok = result_take(w, NULL, err);
    pthread_mutex_unlock(&w->lock);
    return ok;
}
