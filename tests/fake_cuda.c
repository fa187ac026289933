/* A library in the place of librollcall_cuda.so whose GPUs are the words of FAKE_CUDA: "ok" can be opened, "busy" cannot. They compute
 * nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"

static void fake_free(struct device *dev)
{
    free(dev);
}

static bool fake_mem_info(UNUSED struct device *dev, size_t *free_bytes, size_t *total_bytes, UNUSED struct error *err)
{
    *free_bytes = *total_bytes = (size_t)1 << 30;
    return true;
}

/* As if the table had no more room. */
static bool fake_choose(UNUSED struct device *dev, UNUSED const struct product_kind *kind, struct choice **out, UNUSED struct error *err)
{
    *out = NULL;
    return true;
}

static const struct ops fake_ops = { .device_free = fake_free, .mem_info = fake_mem_info, .product_choose = fake_choose };

struct device *rc_ops_cuda(int index, struct error *err);
struct device *rc_ops_cuda(int index, struct error *err)
{
    const char *word = getenv("FAKE_CUDA");
    for (int i = 0; word && *word && i < index; i++, word += *word == ' ')
        word += strcspn(word, " ");
    if (!word || !*word) {
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
    snprintf(dev->name, sizeof dev->name, "cuda:%d", index);
    snprintf(dev->what, sizeof dev->what, "a made-up GPU");
    snprintf(dev->software, sizeof dev->software, "no driver");
    return dev;
}
