/* device.c - the table of the reference back end */
#include <stdlib.h>
#include <string.h>
#include "kernels/ref/ref.h"

static void ref_device_free(struct device *dev)
{
    free(dev);
}

static bool ref_weight_init(UNUSED struct device *dev, UNUSED struct weight *w, UNUSED struct error *err)
{
    return true;
}

static void ref_weight_release(UNUSED struct device *dev, UNUSED struct weight *w)
{
}

bool rows_gather_ref(struct device *dev, const struct rows_gather *a, struct error *err)
{
    return host_rows_gather(dev, a, err);
}

bool rows_copy_ref(struct device *dev, const struct rows_copy *a, struct error *err)
{
    return host_rows_copy(dev, a, err);
}

bool rows_scatter_ref(struct device *dev, const struct rows_scatter *a, struct error *err)
{
    return host_rows_scatter(dev, a, err);
}

bool kv_copy_ref(struct device *dev, const struct kv_copy *a, struct error *err)
{
    return host_kv_copy(dev, a, err);
}

bool mem_fill_ref(struct device *dev, const struct mem_fill *a, struct error *err)
{
    return host_mem_fill(dev, a, err);
}

bool mem_hash_ref(struct device *dev, const struct mem_hash *a, struct error *err)
{
    return host_mem_hash(dev, a, err);
}

#define REF_ENTRY(name) .name = name##_ref,
static const struct ops ref_ops = { .device_free = ref_device_free,
                                    HOST_OPS,
                                    .weight_init = ref_weight_init,
                                    .weight_release = ref_weight_release,
                                    .weight_refresh = ref_weight_init,
                                    OPS_TABLE(REF_ENTRY) };

struct device *device_new_ref(struct error *err)
{
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev) {
        error_set(err, ERR_NO_MEMORY, "no memory for a device");
        return NULL;
    }
    *dev = (struct device){ .op = &ref_ops,
                            .kind = DEVICE_REF,
                            .n_thread = 1,
                            .name = "ref",
                            .what = "reference, double accumulators",
                            .kv_page_tok = HOST_PAGE_TOK,
                            .head_rows = 1 << 20,
                            .host_memory = true };
    return dev;
}
