#include "workers/engine/publish/publication.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/mix64.h"
#include "workers/engine/model/model.h"
#include "workers/engine/publish/inlet.h"

#define LIMIT_MS 60000    // then the controller decides again

struct publication {
    struct bundle bundle;
    bool in_place;            // it gives the model's own memory
    struct outlet *outlet;    // the side that gives; else NULL
    struct inlet *inlet;      // the side that takes; else NULL
    size_t room;
    int64_t limit_ms;
    double took_ms;
};

size_t publication_room(size_t size_bytes, enum weights_way way, bool gives, int n_slot, int n_device)
{
    return gives ? size_bytes * (size_t)n_slot : way == WAY_NCCL && n_device == 1 && n_slot > 0 ? size_bytes : 0;
}

struct publication *publication_new(const struct publication_config *config, struct error *err)
{
    char dir[4200];
    struct publication *p = calloc(1, sizeof *p);
    if (!p || !bundle_of_model(&p->bundle, config->model, err)) {
        if (!p)
            error_set(err, ERR_NO_MEMORY, "no memory for the publication of weights");
        free(p);
        return NULL;
    }
    struct device *dev[PLACE_MAX] = { model_device(config->model) };
    int n = model_is_sliced(config->model) ? model_n_device(config->model) : 1;
    for (int q = 0; n > 1 && q < n; q++)
        dev[q] = model_device(team_slice(config->model, q));
    p->took_ms = NAN;
    p->limit_ms = config->limit_ms > 0 ? config->limit_ms : LIMIT_MS;
    p->in_place = config->n_slot == 0;
    p->room = publication_room(p->bundle.size_bytes, config->way, config->gives, config->n_slot, n);
    snprintf(dir, sizeof dir, "%s/sock", config->run_dir);
    struct outlet_config out = {
        .dev = dev[0], .dir = dir, .way = config->way, .bundle = &p->bundle, .n_slot = config->n_slot, .limit_ms = p->limit_ms
    };
    struct inlet_config in = { .dev = dev,
                               .n_device = n,
                               .dir = dir,
                               .name = config->name,
                               .way = config->way,
                               .staged = config->n_slot > 0,
                               .bundle = &p->bundle,
                               .limit_ms = p->limit_ms };
    if (config->gives ? (p->outlet = outlet_new(&out, err)) != NULL : (p->inlet = inlet_new(&in, err)) != NULL) {
        log_info("weights %s by %s", config->gives ? "go to other workers" : "come from the first trainer",
                 weights_way_name(n > 1 ? WAY_COPY : config->way));
        return p;
    }
    publication_free(p);
    return NULL;
}

void publication_free(struct publication *p)
{
    if (!p)
        return;
    outlet_free(p->outlet);
    inlet_free(p->inlet);
    bundle_release(&p->bundle);
    free(p);
}

size_t publication_bytes(const struct publication *p)
{
    return p->room;
}

void weights_file_path(const char *run_dir, int64_t made, int64_t version, char *out, size_t size)
{
    snprintf(out, size, "%s/sock/weights-%" PRId64 "-%" PRId64, run_dir, made, version);
}

/* A file is the version's bytes, then a hash per tensor, then this. */
struct file_end {
    uint64_t n_tensor, size_bytes, magic;
};
#define FILE_MAGIC 0x3173746867696577u    // "weights1"

bool weights_file_end(FILE *f, const uint64_t *hash, int64_t n, size_t size)
{
    struct file_end end = { (uint64_t)n, size, FILE_MAGIC };
    return fwrite(hash, sizeof *hash, (size_t)n, f) == (size_t)n && fwrite(&end, sizeof end, 1, f) == 1;
}

bool weights_file_key(const void *data, size_t size, uint64_t *key)
{
    struct file_end end;
    if (size < sizeof end)
        return false;
    memcpy(&end, (const char *)data + size - sizeof end, sizeof end);
    size_t hashed = size - sizeof end;
    if (end.magic != FILE_MAGIC || end.n_tensor > hashed / sizeof *key || end.size_bytes != hashed - end.n_tensor * sizeof *key)
        return false;
    uint64_t sum = mix64(end.size_bytes);
    for (uint64_t i = 0, hash; i < end.n_tensor; i++) {
        memcpy(&hash, (const char *)data + end.size_bytes + i * sizeof hash, sizeof hash);
        sum = mix64(sum ^ hash);
    }
    *key = sum;
    return true;
}

/* In the flat order. What lies in several places comes together in `gathered` (device), a stage at a time; NULL: it is in one. */
static bool bytes_write(FILE *f, const struct bundle *b, struct device *dev, const struct extents *from, void *stage, void *gathered,
                        struct error *err)
{
    for (size_t at = 0, n; at < b->size_bytes; at += n) {
        n = MIN(BUNDLE_STAGE, b->size_bytes - at);
        const void *x = gathered ? gathered : extent_mem(from, 0) + at;
        if ((gathered && !extents_gather(b, from, dev, at, n, gathered, err)) || !mem_copy(dev, stage, x, n, COPY_D2H, err)
            || !device_sync(dev, err))
            return false;
        if (fwrite(stage, 1, n, f) != n)
            return error_errno(err, "write");
    }
    return true;
}

bool weights_file_write(const struct model *m, const struct extents *from, const char *path, struct error *err)
{
    bool ok = false;
    char temp[4200];
    FILE *f = NULL;
    struct bundle b = { 0 };
    struct device *dev = model_device(m);
    struct hasher *h = NULL;
    uint64_t *hash = NULL;
    struct extent at;
    struct extent_part part;
    size_t size = model_weight_bytes(m);
    const struct extents own = extents_whole(&at, &part, from ? NULL : model_weights(m, &size), size);
    from = from ? from : &own;
    void *stage = malloc(MIN(BUNDLE_STAGE, size)), *gathered = NULL;
    snprintf(temp, sizeof temp, "%s.new", path);
    TRY(bundle_of_model(&b, m, err));
    TRY(h = hasher_new(&b, &dev, 1, err));
    if (!stage || !(hash = calloc((size_t)b.n, sizeof *hash))) {
        error_set(err, ERR_NO_MEMORY, "no memory to write weights");
        goto out;
    }
    TRY(from->n == 1 || (gathered = mem_new(dev, MIN(BUNDLE_STAGE, size), "a part of weights that are written", err)));
    TRY(bundle_hash_extents(h, from, hash, err));
    TRY(f = file_create_stream(temp, false, err));
    ok = bytes_write(f, &b, dev, from, stage, gathered, err) && weights_file_end(f, hash, b.n, size);
    ok = fclose(f) == 0 && ok && rename(temp, path) == 0;
    if (!ok)
        error_errno(err, "cannot write '%s'", path);
out:
    mem_free(dev, gathered);
    free(hash);
    free(stage);
    hasher_free(h);
    bundle_release(&b);
    return ok;
}

/* The devices that p is on. */
static struct hasher *places_hasher(const struct bundle *b, const struct places *p, struct error *err)
{
    struct device *dev[PLACE_MAX];
    for (int q = 0; q < p->n; q++)
        dev[q] = p->at[q].dev;
    return hasher_new(b, dev, p->n, err);
}

bool weights_file_read(struct model *m, const char *path, int64_t version, struct error *err)
{
    bool ok = false;
    struct file_map map;
    struct file_end end = { 0 };
    struct bundle b = { 0 };
    struct places places = { 0 };
    struct hasher *h = NULL;
    uint64_t *hash = NULL;
    if (!file_map_shared(&map, path, err))
        return path_exists(path) && err->code != ERR_NOT_FOUND ? false : error_set(err, ERR_NOT_FOUND, "'%s' is shared no longer", path);
    TRY(bundle_of_model(&b, m, err) && places_of_model(&places, m, err) && (h = places_hasher(&b, &places, err)));
    size_t hash_bytes = (size_t)b.n * sizeof *hash, want = b.size_bytes + hash_bytes + sizeof end;
    if (map.size_bytes >= sizeof end)
        memcpy(&end, (const char *)map.data + map.size_bytes - sizeof end, sizeof end);
    if (map.size_bytes != want || end.magic != FILE_MAGIC || end.n_tensor != (uint64_t)b.n || end.size_bytes != b.size_bytes) {
        error_set(err, ERR_DATA, "'%s' has %zu bytes and is not %zu of weights with the hashes of %" PRId64 " tensors", path,
                  map.size_bytes, b.size_bytes, b.n);
        goto out;
    }
    if (!(hash = malloc(hash_bytes))) {
        error_set(err, ERR_NO_MEMORY, "no memory for hashes");
        goto out;
    }
    memcpy(hash, (const char *)map.data + b.size_bytes, hash_bytes);
    TRY(places_sync(&places, err) && places_fill_from_host(&b, &places, map.data, err));
    if (!bundle_check(h, &places, hash, version, err)) {
        error_wrap(err, "'%s'", path);
        goto out;
    }
    ok = model_weights_changed(m, err);
out:
    free(hash);
    hasher_free(h);
    places_release(&places);
    bundle_release(&b);
    file_map_close(&map);
    return ok;
}

bool publication_model(struct publication *p, struct model *m, struct error *err)
{
    return !p->outlet || !p->in_place || model_is_elsewhere(m) || model_share(m, err);
}

bool publication_share(struct publication *p, struct model *m, const struct extents *from, int64_t made, int64_t version, struct error *err)
{
    size_t size;
    if (from)
        return outlet_share_extents(p->outlet, from, version_key(made, version), err);
    const struct mem_handle *h = p->in_place ? model_share(m, err) : NULL;
    return (!p->in_place || h) && outlet_share(p->outlet, model_weights(m, &size), h, version_key(made, version), err);
}

bool publication_in_place(const struct publication *p)
{
    return p && p->outlet && p->in_place;
}

bool publication_withdraw(struct publication *p, struct error *err)
{
    return !p || !p->outlet || outlet_withdraw(p->outlet, err);
}

bool publication_take(struct publication *p, struct model *m, int64_t made, int64_t version, struct error *err)
{
    int64_t key = version_key(made, version), before = clock_ns();
    uint64_t hash = 0;
    struct places places;
    if (!places_of_model(&places, m, err))
        return false;
    bool ok = p->outlet ? outlet_copy(p->outlet, &places, key, err) : inlet_take(p->inlet, &places, key, p->limit_ms, &hash, err);
    places_release(&places);
    if (!ok || !model_weights_changed(m, err))
        return false;
    p->took_ms = (double)(clock_ns() - before) / 1e6;
    if (p->inlet)
        log_info("weights of version %" PRId64 " are here, equal on both sides hash=%016" PRIx64 " ms=%.3f gb_per_s=%.1f", version, hash,
                 p->took_ms, (double)p->bundle.size_bytes / p->took_ms * 1e-6);
    return true;
}

void publication_forget(struct publication *p)
{
    if (p && p->outlet)
        outlet_forget(p->outlet);
}

int publication_versions(struct publication *p, int64_t version[OUTLET_SLOT_MAX])
{
    int n = p && p->outlet ? outlet_versions(p->outlet, version) : 0;
    for (int i = 0; i < n; i++)
        version[i] = version_step(version[i]);
    return n;
}

double publication_ms(struct publication *p)
{
    struct outlet_look look;
    if (!p || !p->outlet)
        return p ? p->took_ms : NAN;
    outlet_look(p->outlet, &look);
    return look.version >= 0 ? look.ms : NAN;
}
