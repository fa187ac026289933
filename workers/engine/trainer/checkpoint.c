/* checkpoint.c - checking and reading a training state; checkpoint_write.c writes one, checkpoint_folder.c deals with all of a folder */
#include "workers/engine/trainer/checkpoint.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/mix64.h"
#include "protocol/base/parallel.h"
#include "workers/engine/model/file_tensors.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/trainer/checkpoint_parts.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/reference.h"
#include "workers/engine/trainer/state.h"
#include "workers/engine/trainer/update.h"

#define SMALL_FILE_MAX ((size_t)1 << 28)    // of JSON files

const char *const checkpoint_state_names[STATE_N] = { "master", "moment1", "moment2" };

/* ---- hashing: kernels/ops.h's mem_hash, over a file */
#define HASH_BYTES ((size_t)32 << 20)    // a round's part of a file
#define HASH_THREADS 8
struct file_hash {
    struct file_map map;
    _Atomic uint64_t sum;
};
static void part_hash(void *ctx, int64_t part)
{
    struct file_hash *h = ctx;
    uint64_t sum = 0, word;
    size_t first = (size_t)part * HASH_BYTES, end = MIN(first + HASH_BYTES, h->map.size_bytes);
    for (size_t at = first; at < end; at += 8) {
        word = 0;
        memcpy(&word, h->map.data + at, MIN((size_t)8, end - at));
        sum += mix64(word + (at / 8 + 1) * MIX64_STEP);
    }
    atomic_fetch_add(&h->sum, sum);
}

bool checkpoint_file_hash(const char *path, size_t *size, uint64_t *hash, struct error *err)
{
    struct file_hash h = { 0 };
    if (!file_map_open(&h.map, path, err))
        return false;
    parallel_run((int64_t)((h.map.size_bytes + HASH_BYTES - 1) / HASH_BYTES), HASH_THREADS, part_hash, &h);
    *size = h.map.size_bytes;
    *hash = h.sum;
    file_map_close(&h.map);
    return true;
}

bool checkpoint_join(char out[CHECKPOINT_PATH], const char *dir, const char *name, struct error *err)
{
    return path_join(out, CHECKPOINT_PATH, dir, name) || error_set(err, ERR_USAGE, "the path '%s/%s' is too long", dir, name);
}

/* ---- reading */
static json_t *json_read(const char *path, struct error *err)
{
    struct buf b = { .max = SMALL_FILE_MAX };
    json_t *j = NULL;
    if (file_read_text(&b, path, SMALL_FILE_MAX, err))
        j = json_text_parse(buf_text(&b), b.len, JSON_REJECT_DUPLICATES, path, err);
    buf_release(&b);
    return j;
}

/* The manifest at file, of the checkpoint at path, when it can be one of ours; NULL: err says what is wrong. */
static json_t *manifest_read(const char *path, const char *file, struct error *err)
{
    json_t *j = json_read(file, err);
    const json_t *files = json_object_get(j, "files"), *step = json_object_get(j, "step");
    const char *base = strrchr(path, '/');
    int64_t named;
    bool ok = false;
    if (!j)
        return NULL;
    if (!json_is_integer(step) || !json_is_object(files) || json_object_size(files) == 0)
        error_set(err, ERR_DATA, "'%s' has no 'step' or no 'files'", file);
    else if (json_integer_value(json_object_get(j, "version")) != CHECKPOINT_VERSION)
        error_set(err, ERR_DATA, "'%s' is not of version %d, which this rollcall writes", file, CHECKPOINT_VERSION);
    else if (sscanf(base ? base + 1 : path, "step-%" PRId64, &named) == 1 && named != json_integer_value(step))
        error_set(err, ERR_DATA, "'%s' is of another step than its folder's name says", file);
    else
        ok = true;
    if (ok)
        return j;
    json_decref(j);
    return NULL;
}

/* Is the file name of the checkpoint what the manifest's entry says? */
static bool entry_check(const char *path, const char *manifest, const char *name, const json_t *entry, struct error *err)
{
    char part[CHECKPOINT_PATH], hex[17];
    size_t size;
    uint64_t hash;
    if (name[0] == '/' || strstr(name, ".."))
        return error_set(err, ERR_DATA, "'%s' names the file '%s' outside of the checkpoint", manifest, name);
    if (!checkpoint_join(part, path, name, err))
        return false;
    if (!path_exists(part))
        return error_set(err, ERR_DATA, "'%s' is broken: '%s' is gone", path, name);
    if (!checkpoint_file_hash(part, &size, &hash, err))
        return false;
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    const char *want = json_string_value(json_object_get(entry, "hash"));
    if ((json_int_t)size != json_integer_value(json_object_get(entry, "bytes")) || !want || strcmp(hex, want) != 0)
        return error_set(err, ERR_DATA, "'%s' is broken: '%s' is not what was written (%zu bytes, hash %s)", path, name, size, hex);
    return true;
}

bool checkpoint_verify(const char *path, int64_t *step, struct error *err)
{
    bool ok = false;
    char file[CHECKPOINT_PATH];
    const char *name;
    json_t *j = NULL, *entry;
    TRY(checkpoint_join(file, path, "state/manifest.json", err));
    if (!path_exists(file)) {
        error_set(err, ERR_DATA, "'%s' is not a complete checkpoint: it has no state/manifest.json", path);
        goto out;
    }
    TRY(j = manifest_read(path, file, err));
    json_object_foreach(json_object_get(j, "files"), name, entry)
    {
        TRY(entry_check(path, file, name, entry, err));
    }
    *step = json_integer_value(json_object_get(j, "step"));
    ok = true;
out:
    json_decref(j);
    return ok;
}

bool checkpoint_measure(const char *path, int64_t *size_bytes, struct error *err)
{
    bool ok = false;
    char file[CHECKPOINT_PATH];
    const char *name;
    json_t *j = NULL, *entry;
    struct stat st;
    *size_bytes = 0;
    TRY(checkpoint_join(file, path, "state/manifest.json", err) && (j = manifest_read(path, file, err)));
    json_object_foreach(json_object_get(j, "files"), name, entry)
    {
        int64_t size = json_integer_value(json_object_get(entry, "bytes"));
        TRY(checkpoint_join(file, path, name, err));
        if (stat(file, &st) != 0 || st.st_size != size) {
            error_set(err, ERR_DATA, "'%s' is missing or not of %" PRId64 " bytes", file, size);
            goto out;
        }
        *size_bytes += size;
    }
    ok = true;
out:
    json_decref(j);
    return ok;
}

bool checkpoint_owner(const char *path, char run[64], struct error *err)
{
    char file[CHECKPOINT_PATH];
    json_t *j = checkpoint_join(file, path, "state/manifest.json", err) ? json_read(file, err) : NULL;
    const char *owner = json_string_value(json_object_get(j, "run"));
    snprintf(run, 64, "%s", owner ? owner : "");
    bool ok = j != NULL;
    json_decref(j);
    return ok;
}

/* Masters from a directory's weights themselves: the checkpoint of a run in fp32 keeps them only there. */
static bool masters_from_weights(struct trainer *t, const char *path, float *flat, struct error *err)
{
    const struct model *m = trainer_model(t);
    struct shards *s = model_shards(m, path, err);
    if (!s)
        return false;
    bool ok = true;
    memset(flat, 0, (size_t)trainer_grad_n(t) * 4);
    for (int64_t i = 0; ok && i < model_n_tensor(m); i++) {
        const struct tensor *x = model_tensor(m, i);
        const struct st_tensor *f = file_tensor(model_config(m), s, x->name);
        if (!f || f->dtype == ST_OTHER || f->n_elem != x->n_elem)
            ok = error_set(err, ERR_DATA, "'%s': tensor '%s' is missing or of another size", path, x->name);
        else
            st_to_f32(flat + x->offset, f);
        int64_t bad = ok ? st_values_broken(flat + x->offset, false, x->n_elem) : -1;
        ok = bad < 0 ? ok : st_broken(f, bad, err);
    }
    shards_close(s);
    return ok && trainer_state_set(t, STATE_MASTER, flat, err);
}

/* Does a tensor of m have values in dir that bf16 may round? */
static bool files_wider(const struct model *m, const char *dir, bool *wider, struct error *err)
{
    struct shards *s = model_shards(m, dir, err);
    *wider = false;
    for (int64_t i = 0; s && !*wider && i < model_n_tensor(m); i++) {
        const struct st_tensor *f = file_tensor(model_config(m), s, model_tensor(m, i)->name);
        *wider = f && (f->dtype == ST_F32 || f->dtype == ST_F16);
    }
    bool ok = s != NULL;
    shards_close(s);
    return ok;
}

bool checkpoint_masters_begin(struct trainer *t, const char *dir, struct error *err)
{
    bool wider;
    const struct model *m = trainer_model(t);
    if (model_lora(m) || model_dtype(m) == DT_F32)
        return true;    // no weight is trained, or each is its own master
    if (!files_wider(m, dir, &wider, err))
        return false;
    if (!wider)
        return true;
    float *flat = malloc((size_t)trainer_grad_n(t) * 4);
    bool ok = flat ? masters_from_weights(t, dir, flat, err)
                   : error_set(err, ERR_NO_MEMORY, "no memory for the fp32 values of %" PRId64 " parameters of '%s'", trainer_grad_n(t),
                               dir);
    free(flat);
    return ok;
}

/* The reference that has moved, if the checkpoint has one. In the weights' type of now, which may be another than when it was saved. */
static bool reference_restore(struct trainer *t, const char *path, struct error *err)
{
    bool ok = false;
    char file[CHECKPOINT_PATH];
    struct shards *s = NULL;
    void *values = NULL;
    const struct model *m = trainer_model(t);
    enum dtype dtype = model_dtype(m);
    if (!checkpoint_join(file, path, "state/reference.safetensors", err))
        return false;
    if (!path_exists(file))
        return true;
    TRY(s = shards_open_file(file, err));
    const struct st_tensor *f = shards_find(s, CHECKPOINT_REFERENCE);
    if (!f || f->dtype == ST_OTHER || f->n_elem * (int64_t)dtype_size(dtype) != (int64_t)model_weight_bytes(m)) {
        error_set(err, ERR_DATA, "'%s' does not belong to this model", file);
        goto out;
    }
    if (!(values = malloc(model_weight_bytes(m)))) {
        error_set(err, ERR_NO_MEMORY, "no memory to restore '%s'", file);
        goto out;
    }
    if (dtype == DT_F32)
        st_to_f32(values, f);
    else
        st_to_bf16(values, f);
    ok = trainer_reference_set(t, values, err);
out:
    free(values);
    shards_close(s);
    return ok;
}

bool checkpoint_restore(struct trainer *t, const char *path, struct error *err)
{
    bool ok = false;
    char file[CHECKPOINT_PATH];
    struct shards *s = NULL;
    json_t *j = NULL;
    int64_t most = trainer_grad_n(t);    // values of one kind of state
    for (int k = 0; k < STATE_N; k++)
        most = MAX(most, trainer_state_n(t, (enum trainer_state_kind)k));
    bool adapter = model_lora(trainer_model(t)) != NULL;
    if (lora_dir_is(path) != adapter)
        return error_set(err, ERR_USAGE, "'%s' is of a run that trains %s, and this one trains %s", path,
                         adapter ? "all weights" : "an adapter", adapter ? "an adapter" : "all weights");
    float *flat = malloc((size_t)most * 4);
    if (!flat) {
        error_set(err, ERR_NO_MEMORY, "no memory to restore %" PRId64 " parameters", most);
        goto out;
    }
    TRY(checkpoint_join(file, path, "state/state.json", err));
    TRY(j = json_read(file, err));
    TRY(checkpoint_join(file, path, "state/trainer.safetensors", err));
    TRY(s = shards_open_file(file, err));
    for (int k = 0; k < STATE_N; k++) {
        int64_t n = trainer_state_n(t, (enum trainer_state_kind)k);
        const struct st_tensor *f = n > 0 ? shards_find(s, checkpoint_state_names[k]) : NULL;
        if (n == 0)
            continue;
        if (!f && k == STATE_MASTER) {
            TRY(masters_from_weights(t, path, flat, err));
            continue;
        }
        if (!f || f->dtype != ST_F32 || f->n_elem != n) {
            error_set(err, ERR_DATA, "'%s': '%s' does not belong to this model and optimizer (%" PRId64 " values; %s)", file,
                      checkpoint_state_names[k], n, "'optimizer' is fixed once a run has begun");
            goto out;
        }
        st_to_f32(flat, f);
        int64_t bad = st_values_broken(flat, false, n);
        if (bad >= 0) {
            st_broken(f, bad, err);
            goto out;
        }
        TRY(trainer_state_set(t, (enum trainer_state_kind)k, flat, err));
    }
    TRY(reference_restore(t, path, err));
    trainer_version_set(t, json_integer_value(json_object_get(j, "step")));
    trainer_adam_step_set(t, json_integer_value(json_object_get(j, "adam_step")));
    ok = true;
out:
    free(flat);
    shards_close(s);
    json_decref(j);
    return ok;
}
