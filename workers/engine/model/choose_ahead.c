#include "workers/engine/model/choose_ahead.h"
#include <pthread.h>
#include <stdlib.h>
#include "kernels/ops.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/products.h"

struct choose_ahead {
    const struct model *m;
    struct model_product product[MODEL_PRODUCTS];    // (n) those to choose
    int n;
    struct device *dev;    // the thread's own
    pthread_t thread;
};

static void *choose_main(void *arg)
{
    struct choose_ahead *a = arg;
    struct error err = { 0 };
    const struct choice *ignored;
    bool ok = (a->dev = device_new(a->m->dev->name, 0, &err)) != NULL;
    for (int i = 0; ok && i < a->n; i++)
        ok = product_choose(a->dev, a->product[i].name, &a->product[i].kind, &ignored, &err);
    if (!ok)    // then they are chosen when the handles are made, and it is said there what cannot be
        log_debug("choosing algorithms ahead: %s", err.text);
    return NULL;
}

/* Is there an entry for this kind, perhaps without the bias, where that is added later? */
static bool is_known(struct choices *c, struct product_kind kind)
{
    if (choices_find(c, &kind))
        return true;
    kind.bias = false;
    return choices_find(c, &kind) != NULL;
}

struct choose_ahead *choose_ahead_begin(const struct model *m)
{
    struct model_product all[MODEL_PRODUCTS];
    if (m->dtype != DT_BF16 || !m->dev->choices)
        return NULL;
    struct choose_ahead *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->m = m;
    for (int i = 0, n = model_products(m, all); i < n; i++)
        if (!is_known(m->dev->choices, all[i].kind))
            a->product[a->n++] = all[i];
    if (a->n > 0 && thread_start(&a->thread, choose_main, a) == 0)
        return a;
    free(a);
    return NULL;
}

void choose_ahead_end(struct choose_ahead *a)
{
    if (!a)
        return;
    pthread_join(a->thread, NULL);
    if (a->dev)
        choices_join(a->m->dev->choices, a->dev->choices);
    device_free(a->dev);
    free(a);
}
