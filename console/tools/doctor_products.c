#include "console/tools/doctor_products.h"
#include <limits.h>
#include <stdio.h>
#include "kernels/choices_file.h"
#include "kernels/ops.h"
#include "protocol/base/file.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/products.h"

static bool config_find(const char *shape, struct model_config *out, struct error *err)
{
    if (path_is_dir(shape))
        return config_load(out, shape, err);
    const struct model_config *c = config_shape(shape, err);
    if (!c)
        return error_wrap(err, "no model directory '%s' here", shape);
    *out = *c;
    return true;
}

/* One GPU's lines. */
static bool device_print(struct device *dev, const struct model_config *c, struct error *err)
{
    bool ok = false;
    char text[1024];
    struct model_product p[MODEL_PRODUCTS];
    struct model *m = model_new_shape(c, dev, DT_BF16, err);
    if (!m)
        return false;
    printf("%s: %s; %s\n", dev->name, dev->what, dev->software);
    int n = model_products(m, p), n_disk = 0;
    for (int i = 0; i < n; i++) {
        const struct choice *x;
        TRY(product_choose(dev, p[i].name, &p[i].kind, &x, err));
        if (!x)
            continue;    // more kinds than the table has room for: not of one model
        choice_text(x, text, sizeof text);
        printf("%s: %s\n", dev->name, text);
        n_disk += x->from_disk;
    }
    choices_save(dev->choices);
    printf("%s: %d kinds of products in %.2f s, %d of them from disk%s%s\n", dev->name, n, dev->choices->seconds, n_disk,
           choices_path(dev->choices->what, text, sizeof text) ? ": " : "; none are kept",
           choices_path(dev->choices->what, text, sizeof text) ? text : "");
    ok = true;
out:
    model_free(m);
    return ok;
}

bool doctor_gpu_open(int i, struct device **dev, struct error *why)
{
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", i);
    *dev = i < DOCTOR_GPUS_MAX ? device_new(name, 0, why) : NULL;
    return *dev || (i < DOCTOR_GPUS_MAX && why->code != ERR_UNSUPPORTED);
}

bool doctor_products(const char *shape, struct error *err)
{
    struct model_config c;
    struct device *dev;
    struct error why;
    int n = 0, n_bad = 0;
    if (!config_find(shape, &c, err))
        return false;
    for (; doctor_gpu_open(n, &dev, &why); n++) {
        bool ok = dev && device_print(dev, &c, &why);
        if (!ok)
            printf("cuda:%d: %s: %s\n", n, dev ? "cannot choose" : "cannot be opened", why.text);
        n_bad += !ok;
        device_free(dev);
    }
    if (n == 0)
        return error_set(err, ERR_NOT_FOUND, "there is no GPU to choose algorithms on: %s", why.text);
    return n_bad == 0 || error_set(err, ERR_INTERNAL, "no algorithms are chosen on %d of %d GPUs; their lines say why", n_bad, n);
}
