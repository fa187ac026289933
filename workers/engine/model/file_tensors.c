#include "workers/engine/model/file_tensors.h"
#include <stdio.h>
#include <string.h>

const struct st_tensor *file_tensor(const struct model_config *c, const struct shards *s, const char *name)
{
    char path[160];
    const struct st_tensor *t = shards_find(s, name);
    if (t || !c->wrapped)
        return t;
    snprintf(path, sizeof path, "language_model.%s", name);
    if ((t = shards_find(s, path)) || strncmp(name, "model.", 6) != 0)
        return t;
    snprintf(path, sizeof path, "model.language_model.%s", name + 6);
    return shards_find(s, path);
}

bool file_tensor_is_beside(const struct model_config *c, const char *name)
{
    static const char *const images[] = { "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
                                          "model.visual." };
    for (size_t i = 0; c->wrapped && i < ARRAY_SIZE(images); i++)
        if (strncmp(name, images[i], strlen(images[i])) == 0)
            return true;
    return c->keeps_wrapper && strncmp(name, "mtp.", 4) == 0;
}

static bool values_differ(const struct st_tensor *a, const struct st_tensor *b)
{
    enum { PART = 4096 };
    float of_a[PART], of_b[PART];
    if (a->n_elem != b->n_elem || a->dtype == ST_OTHER || b->dtype == ST_OTHER)
        return true;    // the shapes and types are checked when the model is loaded
    if (a->dtype == b->dtype)
        return memcmp(a->data, b->data, a->size_bytes) != 0;
    for (int64_t at = 0; at < a->n_elem; at += PART) {
        int64_t n = MIN((int64_t)PART, a->n_elem - at);
        st_part_to_f32(of_a, a, at, n);
        st_part_to_f32(of_b, b, at, n);
        if (memcmp(of_a, of_b, (size_t)n * sizeof *of_a) != 0)
            return true;
    }
    return false;
}

bool file_head_differs(const struct model_config *c, const char *dir)
{
    struct error ignored;
    struct shards *s = shards_open(dir, &ignored);
    const struct st_tensor *head = s ? file_tensor(c, s, "lm_head.weight") : NULL;
    const struct st_tensor *embed = s ? file_tensor(c, s, "model.embed_tokens.weight") : NULL;
    bool differs = head && embed && values_differ(head, embed);
    shards_close(s);
    return differs;
}
