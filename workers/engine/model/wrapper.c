#include "workers/engine/model/wrapper.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/engine/model/file_tensors.h"
#include "workers/engine/model/model_impl.h"

#define CONFIG_BYTES_MAX (4u << 20)

struct wrapper {
    struct shards *files;    // owned
    json_t *config;          // owned
};

static bool is_beside(const struct model *m, int64_t i)
{
    return file_tensor_is_beside(&m->c, shards_at(m->wrapper->files, i)->name);
}

bool wrapper_open(struct model *m, const char *dir, struct error *err)
{
    bool ok = false;
    char path[4096];
    struct buf text = BUF_INIT;
    if (!m->c.keeps_wrapper)
        return true;
    struct wrapper *w = m->wrapper = calloc(1, sizeof *w);
    if (!w)
        return error_set(err, ERR_NO_MEMORY, "no memory for what '%s' holds beside the text part", dir);
    if (!path_join(path, sizeof path, dir, "config.json"))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    TRY(w->files = shards_open(dir, err));
    TRY(file_read_text(&text, path, CONFIG_BYTES_MAX, err));
    TRY(w->config = json_text_parse(buf_text(&text), text.len, JSON_REJECT_DUPLICATES, path, err));
    int64_t n = wrapper_kept(m, NULL), n_lost = 0;
    for (int64_t i = 0; i < shards_n(w->files); i++)
        n_lost += is_beside(m, i) && shards_at(w->files, i)->dtype == ST_OTHER;
    if (n_lost > 0)
        log_warn("'%s': %" PRId64 " tensors beside the text part are neither F32, F16 nor BF16, and are not saved with the model", dir,
                 n_lost);
    if (n > 0)
        log_info("'%s': %" PRId64
                 " tensors beside the text part (vision, prediction of further tokens) are neither run nor trained, and are "
                 "saved as they are",
                 dir, n);
    ok = true;
out:
    buf_release(&text);
    return ok;
}

void wrapper_free(struct model *m)
{
    if (!m->wrapper)
        return;
    shards_close(m->wrapper->files);
    json_decref(m->wrapper->config);
    free(m->wrapper);
    m->wrapper = NULL;
}

const char *wrapper_name(const struct model *m, const char *name)
{
    const struct st_tensor *t = m->wrapper ? file_tensor(&m->c, m->wrapper->files, name) : NULL;
    return t ? t->name : name;
}

int64_t wrapper_kept(const struct model *m, struct st_out *out)
{
    int64_t n = 0;
    for (int64_t i = 0; m->wrapper && i < shards_n(m->wrapper->files); i++) {
        const struct st_tensor *t = shards_at(m->wrapper->files, i);
        if (t->dtype == ST_OTHER || !is_beside(m, i))
            continue;
        if (out) {
            out[n] = (struct st_out){ .name = t->name, .dtype = t->dtype, .n_dim = t->n_dim, .data = t->data };
            memcpy(out[n].dim, t->dim, sizeof out[n].dim);
        }
        n++;
    }
    return n;
}

/* Set what may have changed, where the object has it. */
static bool config_set(json_t *o, const char *dtype, bool tied)
{
    static const char *const keys[] = { "dtype", "torch_dtype" };
    bool ok = true;
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        ok = ok && (!json_object_get(o, keys[i]) || json_object_set_new(o, keys[i], json_string(dtype)) == 0);
    return ok && (!json_object_get(o, "tie_word_embeddings") || json_object_set_new(o, "tie_word_embeddings", json_boolean(tied)) == 0);
}

bool wrapper_config_save(const struct model *m, const char *dir, const char *dtype, struct error *err)
{
    char path[4096];
    json_t *copy = json_deep_copy(m->wrapper->config), *text_part = json_object_get(copy, "text_config");
    bool set = copy && config_set(copy, dtype, m->c.tied) && (!text_part || config_set(text_part, dtype, m->c.tied));
    char *text = set ? json_text_dump(copy, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    bool ok = !text                                               ? error_set(err, ERR_NO_MEMORY, "no memory for config.json")
              : !path_join(path, sizeof path, dir, "config.json") ? error_set(err, ERR_USAGE, "the path '%s' is too long", dir)
                                                                  : file_write(path, text, strlen(text), err);
    free(text);
    json_decref(copy);
    return ok;
}
