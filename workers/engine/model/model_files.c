/* model_files.c - a model's weights in the files of a directory: checked and loaded */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/engine/model/file_tensors.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/model/weights_load.h"
#include "workers/engine/model/wrapper.h"

/* Where the text part of a model of images and text begins in the files, and what follows it. transformers 5 puts the prefix after
 * "model.", older versions before it. */
static const char *text_name(const struct model *m, const char *name, char *out, size_t size)
{
    static const char before[] = "language_model.", after[] = "model.language_model.";
    if (m->c.wrapped && strncmp(name, before, sizeof before - 1) == 0)
        return name + sizeof before - 1;
    if (!m->c.wrapped || strncmp(name, after, sizeof after - 1) != 0)
        return name;
    snprintf(out, size, "model.%s", name + sizeof after - 1);
    return out;
}

static bool name_is_extra(const struct model *m, const char *name)
{
    if (file_tensor_is_beside(&m->c, name))
        return true;
    // old files hold RoPE's frequencies; files of tied models may hold a second copy of the head
    const char *tail = strrchr(name, '.');
    return (tail && strcmp(tail, ".inv_freq") == 0) || (m->c.tied && strcmp(name, "lm_head.weight") == 0);
}

static const char *dims_print(char *out, size_t size, const int64_t *dim, int n)
{
    out[0] = 0;
    for (int d = 0, len = 0; d < n && len < (int)size; d++)
        len += snprintf(out + len, size - (size_t)len, "%s%" PRId64, d ? ", " : "", dim[d]);
    return out;
}

/* Do the files have every tensor with its shape, and none that the model does not have? Only headers are read. */
static bool tensors_check(const struct model *m, const struct shards *s, const char *dir, struct error *err)
{
    for (int64_t i = 0; i < m->flat.n_tensor; i++) {
        const struct tensor *t = &m->flat.tensor[i];
        const struct st_tensor *f = file_tensor(&m->c, s, t->name);
        if (!f)
            return error_set(err, ERR_DATA, "'%s': tensor '%s' is missing", dir, t->name);
        bool same = f->dtype != ST_OTHER && f->n_dim == t->n_dim;
        for (int d = 0; same && d < t->n_dim; d++)
            same = f->dim[d] == t->dim[d];
        char want[80], got[80];
        if (!same)
            return error_set(err, ERR_DATA, "'%s': tensor '%s' must be float of (%s), it is %s of (%s)", f->file, t->name,
                             dims_print(want, sizeof want, t->dim, t->n_dim), f->dtype == ST_OTHER ? "another type" : "float",
                             dims_print(got, sizeof got, f->dim, f->n_dim));
    }
    for (int64_t i = 0; i < shards_n(s); i++) {
        char text[160];
        const char *name = text_name(m, shards_at(s, i)->name, text, sizeof text);
        bool known = name_is_extra(m, name);
        for (int64_t k = 0; !known && k < m->flat.n_tensor; k++)
            known = strcmp(m->flat.tensor[k].name, name) == 0;
        if (!known)
            return error_set(err, ERR_DATA, "'%s': tensor '%s' does not belong to a model of this config.json", shards_at(s, i)->file,
                             name);
    }
    return true;
}

static void head_tell(const struct model_config *c, const char *dir)
{
    if (c->head_differs)
        log_warn("'%s': config.json says that head and embedding are tied, but the files hold another 'lm_head.weight': that one is used, "
                 "as transformers does",
                 dir);
}

bool model_files_check(const char *dir, struct model_config *c, struct error *err)
{
    struct model *m = NULL;
    struct shards *s = NULL;
    bool ok = false;
    TRY(config_load(c, dir, err));
    TRY(s = shards_open(dir, err));
    TRY(m = model_shape_new(c, err));
    TRY(tensors_check(m, s, dir, err));
    head_tell(c, dir);
    ok = true;
out:
    model_free(m);
    shards_close(s);
    return ok;
}

/* A model's weights in files that are open. */
struct weight_files {
    struct shards *s;
    const struct st_tensor **file;    // (n_tensor) of each of the model's; the tensors are the shards'
    struct weights_loader *loader;
};
static void files_close(void *ctx)
{
    struct weight_files *f = ctx;
    if (!f)
        return;
    weights_loader_free(f->loader);
    free(f->file);
    shards_close(f->s);
    free(f);
}

static bool files_bring(void *ctx, const struct model *m, int p, int end, char *to, struct error *err)
{
    const struct weight_files *f = ctx;
    int64_t first, last;
    piece_tensors(m, p, end, &first, &last);
    return weights_load(f->loader, m, f->file, first, last, to, err);
}

struct model *model_files_open(const char *dir, struct device *dev, enum dtype dtype, struct error *err)
{
    struct model *m = NULL;
    struct weight_files *f = calloc(1, sizeof *f);
    struct model_config c;
    bool ok = false;
    if (!f) {
        error_set(err, ERR_NO_MEMORY, "no memory for a list of files");
        return NULL;
    }
    TRY(config_load(&c, dir, err));
    TRY(f->s = shards_open(dir, err));
    TRY(m = model_shape_checked(&c, dev, dtype, err));
    TRY(tensors_check(m, f->s, dir, err));
    head_tell(&c, dir);
    if (!(f->file = calloc((size_t)m->flat.n_tensor, sizeof *f->file))) {
        error_set(err, ERR_NO_MEMORY, "no memory to list %" PRId64 " tensors", m->flat.n_tensor);
        goto out;
    }
    for (int64_t i = 0; i < m->flat.n_tensor; i++)
        f->file[i] = file_tensor(&m->c, f->s, m->flat.tensor[i].name);
    TRY(wrapper_open(m, dir, err));
    TRY(f->loader = weights_loader_new(m, err));
    ok = source_set(m, &(struct source){ .bring = files_bring, .close = files_close, .ctx = f }, err);
    f = NULL;
out:
    files_close(f);
    if (!ok) {
        model_free(m);
        m = NULL;
    }
    return m;
}

struct model *model_load(const char *dir, struct device *dev, enum dtype dtype, struct error *err)
{
    return model_taken(model_files_open(dir, dev, dtype, err), err);
}
