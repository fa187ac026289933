/* A library in the place of librollcall_cuda.so whose GPUs are the words of FAKE_CUDA: "ok" can be opened and has 1 GiB, "ok80" has 80 GB,
 * "busy" cannot. They compute nothing, and give no memory. Preloaded, it also makes it look as if their driver were there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "kernels/ops.h"

int stat(const char *restrict path, struct stat *restrict out)
{
    bool driver = strcmp(path, "/dev/nvidiactl") == 0 && getenv("FAKE_CUDA");
    return fstatat(AT_FDCWD, driver ? "/dev/null" : path, out, 0);
}

static void fake_free(struct device *dev)
{
    free(dev);
}

/* The word of FAKE_CUDA that says what GPU `index` is; NULL: there is none. */
static const char *word_of(int index)
{
    const char *word = getenv("FAKE_CUDA");
    for (int i = 0; word && *word && i < index; i++, word += *word == ' ')
        word += strcspn(word, " ");
    return word && *word ? word : NULL;
}

static bool fake_mem_info(struct device *dev, size_t *free_bytes, size_t *total_bytes, UNUSED struct error *err)
{
    const char *word = word_of(dev->index);
    double gb = word ? strtod(word + strlen("ok"), NULL) : 0;
    *free_bytes = *total_bytes = gb > 0 ? (size_t)(gb * 1e9) : (size_t)1 << 30;
    return true;
}

static void *fake_mem_new(UNUSED struct device *dev, UNUSED size_t size_bytes, const char *what, struct error *err)
{
    err->code = ERR_NO_MEMORY;
    snprintf(err->text, sizeof err->text, "a made-up GPU has no memory for %s", what);
    return NULL;
}

/* As if the table had no more room. */
static bool fake_choose(UNUSED struct device *dev, UNUSED const struct product_kind *kind, struct choice **out, UNUSED struct error *err)
{
    *out = NULL;
    return true;
}

static const struct ops fake_ops = {
    .device_free = fake_free, .mem_info = fake_mem_info, .mem_new = fake_mem_new, .host_new = fake_mem_new, .product_choose = fake_choose
};

struct device *rc_ops_cuda(int index, struct error *err);
struct device *rc_ops_cuda(int index, struct error *err)
{
    const char *word = word_of(index);
    if (!word) {
        err->code = ERR_UNSUPPORTED;
        snprintf(err->text, sizeof err->text, "cuda:%d: there is no such GPU", index);
        return NULL;
    }
    struct device *dev = strncmp(word, "ok", 2) == 0 ? calloc(1, sizeof *dev) : NULL;
    if (!dev) {
        err->code = ERR_INTERNAL;
        snprintf(err->text, sizeof err->text, "opening the device: CUDA says all CUDA-capable devices are busy or unavailable");
        return NULL;
    }
    dev->op = &fake_ops;
    dev->kind = DEVICE_CUDA;
    dev->index = index;
    dev->head_rows = (int64_t)400 << 20;
    dev->kv_page_tok = 64;
    snprintf(dev->name, sizeof dev->name, "cuda:%d", index);
    snprintf(dev->what, sizeof dev->what, "a made-up GPU");
    snprintf(dev->software, sizeof dev->software, "no driver");
    return dev;
}
