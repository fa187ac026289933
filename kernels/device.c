/* device.c - opening devices by name, and what all back ends share */
#include "kernels/ops.h"
#include "kernels/choices.h"
#include "kernels/choices_file.h"
#include "kernels/host.h"
#include "kernels/philox.h"
#include <inttypes.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/library.h"

#define CUDA_LIB "librollcall_cuda.so"
/* Where the library may be, relative to the executable's folder, before the loader's own path: built, next to a test program, installed. */
static const char *const cuda_lib_at[] = { CUDA_LIB, "../" CUDA_LIB, "../lib/rollcall/" CUDA_LIB };

static void *cuda_lib_open(int index, struct error *err)
{
    char path[PATH_MAX + 64];
    struct error why;
    ssize_t len = readlink("/proc/self/exe", path, PATH_MAX);
    char *slash = len > 0 ? memrchr(path, '/', (size_t)len) : NULL;
    const char *found = CUDA_LIB;
    for (size_t i = 0; slash && i < ARRAY_SIZE(cuda_lib_at); i++) {
        snprintf(slash + 1, 64, "%s", cuda_lib_at[i]);
        if (access(path, F_OK) == 0) {
            found = path;
            break;
        }
    }
    void *lib = library_open(found, &why);
    if (lib)
        return lib;
    if (why.code == ERR_NOT_FOUND && strncmp(why.text, CUDA_LIB " ", strlen(CUDA_LIB " ")) == 0)
        error_set(err, ERR_UNSUPPORTED,
                  "cuda:%d: this build has no CUDA back end: " CUDA_LIB " is neither beside the program nor where the loader looks", index);
    else
        error_set(err, ERR_UNSUPPORTED, "cuda:%d: the CUDA back end does not load: %s", index, why.text);
    return NULL;
}

static struct device *cuda_open(int index, struct error *err)
{
    char path[PATH_MAX];
    void *lib = cuda_lib_open(index, err);
    if (!lib)
        return NULL;
    rc_ops_cuda_fn *open_fn;
    *(void **)&open_fn = dlsym(lib, "rc_ops_cuda");
    if (!open_fn) {
        error_set(err, ERR_UNSUPPORTED, "cuda:%d: " CUDA_LIB " has no rc_ops_cuda: %s", index, dlerror());
        return NULL;
    }
    struct device *dev = open_fn(index, err);    // the library stays open: its code is in use until the process ends
    if (!dev)
        return NULL;
    snprintf(path, sizeof path, "%s; %s", dev->what, dev->software);
    if (!(dev->choices = choices_open(path, err))) {
        dev->op->device_free(dev);
        return NULL;
    }
    return dev;
}

struct device *device_new(const char *name, int n_thread, struct error *err)
{
    int index = 0, end = 0;
    if (strcmp(name, "ref") == 0)
        return device_new_ref(err);
    if (sscanf(name, "cpu:%d%n", &index, &end) == 1 && !name[end] && index >= 0)
        return device_new_cpu(index, n_thread, err);
    if (sscanf(name, "cuda:%d%n", &index, &end) == 1 && !name[end] && index >= 0)
        return cuda_open(index, err);
    error_set(err, ERR_USAGE, "unknown device '%s'; a device is 'cpu:N', 'cuda:N' or 'ref'", name);
    return NULL;
}

void device_free(struct device *dev)
{
    if (!dev)
        return;
    struct choices *c = dev->choices;
    if (c)
        choices_save(c);
    dev->op->device_free(dev);
    free(c);
}

bool device_enter(struct device *dev, struct error *err)
{
    return !dev->op->device_enter || dev->op->device_enter(dev, err);
}

bool device_reach(struct device *dev, struct device *other, bool *reach, struct error *err)
{
    *reach = dev->kind == other->kind;
    return !*reach || !dev->op->device_reach || dev->op->device_reach(dev, other, reach, err);
}

bool device_sync(struct device *dev, struct error *err)
{
    return dev->op->device_sync(dev, err);
}

void *mem_new(struct device *dev, size_t size_bytes, const char *what, struct error *err)
{
    return dev->op->mem_new(dev, size_bytes, what, err);
}

void mem_free(struct device *dev, void *p)
{
    if (p)
        dev->op->mem_free(dev, p);
}

void *host_new(struct device *dev, size_t size_bytes, const char *what, struct error *err)
{
    return dev->op->host_new(dev, size_bytes, what, err);
}

void host_free(struct device *dev, void *p)
{
    if (p)
        dev->op->host_free(dev, p);
}

void *host_share_new(struct device *dev, size_t size_bytes, const char *what, struct mem_handle *h, struct error *err)
{
    void *p = host_mem_share_new(dev, size_bytes, what, h, err);
    if (p && dev->op->host_pin && !dev->op->host_pin(dev, p, size_bytes, what, err)) {
        host_mem_share_free(dev, p, size_bytes, h);
        return NULL;
    }
    return p;
}

void host_share_free(struct device *dev, void *p, size_t size_bytes, const struct mem_handle *h)
{
    if (!p)
        return;
    if (dev->op->host_unpin)
        dev->op->host_unpin(dev, p);
    host_mem_share_free(dev, p, size_bytes, h);
}

void *host_share_open(struct device *dev, const struct mem_handle *h, size_t size_bytes, struct error *err)
{
    return host_mem_share_open(dev, h, size_bytes, err);
}

void host_share_close(struct device *dev, const void *p, size_t size_bytes)
{
    if (p)
        host_mem_share_close(dev, p, size_bytes);
}

bool mem_info(struct device *dev, size_t *free_bytes, size_t *total_bytes, struct error *err)
{
    return dev->op->mem_info(dev, free_bytes, total_bytes, err);
}

bool mem_copy(struct device *dev, void *dst, const void *src, size_t size_bytes, enum copy_dir dir, struct error *err)
{
    return size_bytes == 0 || dev->op->mem_copy(dev, dst, src, size_bytes, dir, err);
}

struct mark *mark_new(struct device *dev, struct error *err)
{
    return dev->op->mark_new(dev, err);
}

void mark_free(struct device *dev, struct mark *m)
{
    if (m)
        dev->op->mark_free(dev, m);
}

bool mark_set(struct device *dev, struct mark *m, struct error *err)
{
    return dev->op->mark_set(dev, m, err);
}

bool mark_wait(struct device *dev, struct mark *m, struct error *err)
{
    return dev->op->mark_wait(dev, m, err);
}

bool mark_done(struct device *dev, struct mark *m, bool *done, struct error *err)
{
    return dev->op->mark_done(dev, m, done, err);
}

struct mark *mark_new_timed(struct device *dev, struct error *err)
{
    return dev->op->mark_new_timed(dev, err);
}

bool marks_apart(struct device *dev, struct mark *from, struct mark *to, double *s, struct error *err)
{
    return dev->op->marks_apart(dev, from, to, s, err);
}

bool lane_copy(struct device *dev, int lane, void *dst, const void *src, size_t size_bytes, struct error *err)
{
    return size_bytes == 0 || dev->op->lane_copy(dev, lane, dst, src, size_bytes, err);
}

bool lane_sum(struct device *dev, int lane, const struct lane_sum *s, struct error *err)
{
    BUG_IF(s->n_x < 0 || s->n_x > LANE_SUM_MAX, "a sum of %d", s->n_x);
    return s->n <= 0 || s->n_x == 0 || dev->op->lane_sum(dev, lane, s, err);
}

bool lane_mark(struct device *dev, int lane, struct mark *m, struct error *err)
{
    return dev->op->lane_mark(dev, lane, m, err);
}

bool lanes_sync(struct device *dev, struct error *err)
{
    return dev->op->lanes_sync(dev, err);
}

bool lane_after(struct device *dev, int lane, struct mark *m, struct error *err)
{
    return dev->op->lane_after(dev, lane, m, err);
}

bool device_after(struct device *dev, struct mark *m, struct error *err)
{
    return dev->op->device_after(dev, m, err);
}

void *mem_share_new(struct device *dev, size_t size_bytes, const char *what, struct mem_handle *h, struct error *err)
{
    return dev->op->mem_share_new(dev, size_bytes, what, h, err);
}

void mem_share_free(struct device *dev, void *p, size_t size_bytes, const struct mem_handle *h)
{
    if (p)
        dev->op->mem_share_free(dev, p, size_bytes, h);
}

void *mem_share_open(struct device *dev, const struct mem_handle *h, size_t size_bytes, struct error *err)
{
    return dev->op->mem_share_open(dev, h, size_bytes, err);
}

void mem_share_close(struct device *dev, const void *p, size_t size_bytes)
{
    if (p)
        dev->op->mem_share_close(dev, p, size_bytes);
}

static struct weight *weight_make(struct device *dev, const struct weight *as, struct error *err)
{
    if (as->n_out < 1 || as->n_in < 1 || as->n_out > INT32_MAX || as->n_in > INT32_MAX) {
        error_set(err, ERR_SHAPE, "a weight of %" PRId64 " x %" PRId64, as->n_out, as->n_in);
        return NULL;
    }
    struct weight *w = calloc(1, sizeof *w);
    if (!w) {
        error_set(err, ERR_NO_MEMORY, "no memory for a weight handle");
        return NULL;
    }
    *w = *as;
    if (!dev->op->weight_init(dev, w, err) || !dev->op->weight_refresh(dev, w, err)) {
        weight_free(dev, w);
        return NULL;
    }
    return w;
}

struct weight *weight_new(struct device *dev, const void *data, enum dtype dtype, int64_t n_out, int64_t n_in, int parts, bool for_bwd,
                          struct error *err)
{
    if (parts < 0 || parts > SUM_PARTS_MAX || (parts & (parts - 1)) || (parts > 0 && n_in % parts)) {
        error_set(err, ERR_SHAPE, "a sum over %" PRId64 " in %d parts; 1, 2, 4 and %d of equal length are possible", n_in, parts,
                  SUM_PARTS_MAX);
        return NULL;
    }
    return weight_make(
        dev, &(struct weight){ .data = data, .dtype = dtype, .n_out = n_out, .n_in = n_in, .parts = parts, .for_bwd = for_bwd }, err);
}

struct weight *weight_new_grouped(struct device *dev, const void *data, enum dtype dtype, int64_t n_group, int64_t n_out, int64_t n_in,
                                  bool for_bwd, struct error *err)
{
    if (n_group < 1 || n_group > ROUTE_EXPERTS_MAX) {
        error_set(err, ERR_SHAPE, "a weight of %" PRId64 " matrices; 1 to %d are possible", n_group, ROUTE_EXPERTS_MAX);
        return NULL;
    }
    return weight_make(
        dev, &(struct weight){ .data = data, .dtype = dtype, .n_out = n_out, .n_in = n_in, .n_group = n_group, .for_bwd = for_bwd }, err);
}

void weight_free(struct device *dev, struct weight *w)
{
    if (!w)
        return;
    dev->op->weight_release(dev, w);
    free(w);
}

bool weight_refresh(struct device *dev, struct weight *w, struct error *err)
{
    return dev->op->weight_refresh(dev, w, err);
}

bool product_choose(struct device *dev, const char *name, const struct product_kind *kind, const struct choice **out, struct error *err)
{
    struct choice *c = NULL;
    int64_t before = clock_ns();
    if (!dev->op->product_choose)
        return error_set(err, ERR_UNSUPPORTED, "%s has no algorithms to choose from: its products have one order", dev->name);
    if (!dev->op->product_choose(dev, kind, &c, err))
        return false;
    dev->choices->seconds += (double)(clock_ns() - before) * 1e-9;
    if (c)
        choice_name(c, name);
    *out = c;
    return true;
}

bool graph_begin(struct device *dev, struct error *err)
{
    if (!dev->can_capture)
        return error_set(err, ERR_UNSUPPORTED, "%s cannot record operations", dev->name);
    return dev->recording = dev->op->graph_begin(dev, err);
}

void graph_join(struct device *dev, bool joins)
{
    dev->recording = joins;
}

struct graph *graph_end(struct device *dev, struct error *err)
{
    dev->recording = false;
    return dev->op->graph_end(dev, err);
}

bool graph_launch(struct device *dev, struct graph *g, struct error *err)
{
    return dev->op->graph_launch(dev, g, err);
}

void graph_free(struct device *dev, struct graph *g)
{
    if (g)
        dev->op->graph_free(dev, g);
}

float sample_uniform(const struct sample_row *row)
{
    return philox_uniform(row->seed, row->item, row->sample, row->pos);
}
