#include "workers/serve/adapter.h"
#include <inttypes.h>
#include <stdio.h>
#include "kernels/ops.h"
#include "workers/engine/model/lora.h"

bool adapter_open(struct adapter *a, const struct model *base, const char *dir, const char *name, int64_t rank_max, struct error *err)
{
    struct adapter made = { .look = { .n_load = a->look.n_load + 1, .id = a->look.n_load + 1 } };
    struct adapter_look *l = &made.look;
    if (!lora_config_load(&l->config, dir, err))
        return false;
    if (l->config.rank > rank_max)
        return error_set(err, ERR_UNSUPPORTED,
                         "the adapter '%.200s' has rank %" PRId64 ", and this server has room for rank %" PRId64 " (--max-lora-rank)", dir,
                         l->config.rank, rank_max);
    if (!(made.model = model_view(base, err)) || !model_lora_load(made.model, dir, false, err)) {
        model_free(made.model);
        return false;
    }
    snprintf(l->dir, sizeof l->dir, "%s", dir);
    if (name[0])
        snprintf(l->name, sizeof l->name, "%s", name);
    else
        snprintf(l->name, sizeof l->name, "adapter_%" PRId64, l->id);
    *a = made;
    return true;
}

void adapter_close(struct adapter *a)
{
    model_free(a->model);
    *a = (struct adapter){ .look.n_load = a->look.n_load };
}
