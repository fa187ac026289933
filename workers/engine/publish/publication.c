#include "workers/engine/publish/publication.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/engine/model/model.h"
#include "workers/engine/publish/inlet.h"

#define TAKE_LIMIT_MS 60000    // then the controller decides again

struct publication {
    size_t bytes;             // of the device
    struct outlet *outlet;    // of the side that gives; else NULL
    struct inlet *inlet;      // who takes; else NULL
    double took_ms;
};

struct publication *publication_new(const struct publication_config *config, struct error *err)
{
    char dir[4200];
    struct publication *p = calloc(1, sizeof *p);
    if (!p) {
        error_set(err, ERR_NO_MEMORY, "no memory for the publication of weights");
        return NULL;
    }
    struct device *dev = model_device(config->model);
    size_t size = model_weight_bytes(config->model);
    p->took_ms = NAN;
    snprintf(dir, sizeof dir, "%s/sock", config->run_dir);
    struct outlet_config out = { .dev = dev, .dir = dir, .way = config->way, .size_bytes = size, .n_slot = config->n_slot };
    struct inlet_config in = { .dev = dev, .dir = dir, .name = config->name, .way = config->way, .size_bytes = size };
    bool ok;
    if (config->gives) {
        ok = (p->outlet = outlet_new(&out, err)) != NULL;
        p->bytes = size * (size_t)config->n_slot;
    } else {
        ok = (p->inlet = inlet_new(&in, err)) != NULL;
        p->bytes = config->way == WAY_NCCL ? size : 0;
    }
    if (ok) {
        log_info("weights %s by %s", config->gives ? "go to other workers" : "come from the first trainer", weights_way_name(config->way));
        return p;
    }
    free(p);
    return NULL;
}

void publication_free(struct publication *p)
{
    if (!p)
        return;
    outlet_free(p->outlet);
    inlet_free(p->inlet);
    free(p);
}

size_t publication_bytes(const struct publication *p)
{
    return p->bytes;
}

void weights_file_path(const char *run_dir, int64_t made, int64_t version, char *out, size_t size)
{
    snprintf(out, size, "%s/sock/weights-%" PRId64 "-%" PRId64, run_dir, made, version);
}

bool weights_file_write(const struct model *m, const char *path, struct error *err)
{
    size_t size;
    char temp[4200];
    struct device *dev = model_device(m);
    void *weights = model_weights(m, &size), *copy = malloc(size);
    bool ok = copy || error_set(err, ERR_NO_MEMORY, "no memory for a copy of %zu bytes of weights", size);
    snprintf(temp, sizeof temp, "%s.new", path);
    ok = ok && mem_copy(dev, copy, weights, size, COPY_D2H, err) && device_sync(dev, err);
    FILE *f = ok ? fopen(temp, "we") : NULL;
    if (ok && !f)
        ok = error_errno(err, "cannot write '%s'", temp);
    if (f) {
        ok = fwrite(copy, 1, size, f) == size;
        ok = fclose(f) == 0 && ok && rename(temp, path) == 0;
        if (!ok)
            error_errno(err, "cannot write '%s'", path);
    }
    free(copy);
    return ok;
}

bool weights_file_read(struct model *m, const char *path, struct error *err)
{
    size_t size;
    struct file_map map;
    void *weights = model_weights(m, &size);
    if (!file_map_open(&map, path, err))
        return path_exists(path) ? false : error_set(err, ERR_NOT_FOUND, "'%s' is shared no longer", path);
    bool ok = map.size_bytes == size || error_set(err, ERR_DATA, "'%s' has %zu bytes, the weights %zu", path, map.size_bytes, size);
    ok = ok && mem_copy(model_device(m), weights, map.data, size, COPY_H2D, err) && device_sync(model_device(m), err)
         && model_weights_changed(m, err);
    file_map_close(&map);
    return ok;
}

bool publication_share(struct publication *p, const struct model *m, int64_t made, int64_t version, struct error *err)
{
    size_t size;
    return outlet_share(p->outlet, model_weights(m, &size), version_key(made, version), err);
}

bool publication_take(struct publication *p, struct model *m, int64_t made, int64_t version, struct error *err)
{
    size_t size;
    int64_t key = version_key(made, version);
    uint64_t hash = 0;
    void *weights = model_weights(m, &size);
    int64_t before = clock_ns();
    if (!(p->outlet ? outlet_copy(p->outlet, weights, key, err) : inlet_take(p->inlet, weights, key, TAKE_LIMIT_MS, &hash, err))
        || !model_weights_changed(m, err))
        return false;
    p->took_ms = (double)(clock_ns() - before) / 1e6;
    if (p->inlet)
        log_info("weights of version %" PRId64 " are here, equal on both sides hash=%016" PRIx64 " ms=%.3f gb_per_s=%.1f", version, hash,
                 p->took_ms, (double)size / p->took_ms * 1e-6);
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
