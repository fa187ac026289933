/* model_save.c - all weights of a model into the files of a directory */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/model/wrapper.h"

#define SHARD_BYTES (5ull << 30)    // as transformers' save_pretrained

static uint64_t out_bytes(const struct st_out *t)
{
    uint64_t n = st_dtype_size(t->dtype);
    for (int d = 0; d < t->n_dim; d++)
        n *= (uint64_t)t->dim[d];
    return n;
}

static bool index_write(const struct st_out *out, int64_t n, const int64_t *shard, const char *dir, struct error *err)
{
    char path[4096];
    struct buf b = BUF_INIT;
    uint64_t total = 0;
    for (int64_t i = 0; i < n; i++)
        total += out_bytes(&out[i]);
    buf_fmt(&b, "{\"metadata\": {\"total_size\": %" PRIu64 "}, \"weight_map\": {\n", total);
    for (int64_t i = 0; i < n; i++)
        buf_fmt(&b, "  \"%s\": \"model-%05" PRId64 "-of-%05" PRId64 ".safetensors\"%s\n", out[i].name, shard[i] + 1, shard[n - 1] + 1,
                i + 1 < n ? "," : "");
    buf_str(&b, "}}\n");
    bool ok = b.failed ? error_set(err, ERR_NO_MEMORY, "no memory for the index of %" PRId64 " tensors", n)
              : !path_join(path, sizeof path, dir, "model.safetensors.index.json")
                  ? error_set(err, ERR_USAGE, "the path '%s' is too long", dir)
                  : file_write(path, b.data, b.len, err);
    buf_release(&b);
    return ok;
}

/* Say in which file each tensor goes; returns how many files there are. */
static int64_t outs_share(const struct st_out *out, int64_t n, int64_t *shard)
{
    int64_t n_shard = 1;
    uint64_t in_shard = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t size = out_bytes(&out[i]);
        if (in_shard > 0 && in_shard + size > SHARD_BYTES) {
            n_shard++;
            in_shard = 0;
        }
        in_shard += size;
        shard[i] = n_shard - 1;
    }
    return n_shard;
}

/* Write the n tensors into dir, in one file or several with an index. */
static bool outs_write(const struct st_out *out, int64_t n, int64_t *shard, const char *dir, struct error *err)
{
    bool ok = false;
    char path[4096];
    int64_t n_shard = outs_share(out, n, shard);
    for (int64_t k = 0, i = 0; k < n_shard; k++) {
        int64_t first = i;
        while (i < n && shard[i] == k)
            i++;
        char name[64];
        snprintf(name, sizeof name, n_shard == 1 ? "model.safetensors" : "model-%05" PRId64 "-of-%05" PRId64 ".safetensors", k + 1,
                 n_shard);
        if (!path_join(path, sizeof path, dir, name)) {
            error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
            goto out;
        }
        TRY(st_write(path, out + first, i - first, err));
    }
    // with both layouts a reader takes the single file, so an older one must not stay next to shards
    if (n_shard > 1) {
        TRY(index_write(out, n, shard, dir, err));
        if (path_join(path, sizeof path, dir, "model.safetensors") && unlink(path) != 0 && errno != ENOENT) {
            error_errno(err, "cannot remove '%s'", path);
            goto out;
        }
    }
    ok = true;
out:
    return ok;
}

bool whole_save(const struct model *m, const void *weights, const char *dir, struct error *err)
{
    bool ok = false;
    size_t e = dtype_size(m->dtype);
    const char *dtype = m->dtype == DT_F32 ? "float32" : "bfloat16";
    int64_t n = m->flat.n_tensor + wrapper_kept(m, NULL);
    struct st_out *out = calloc((size_t)n, sizeof *out);
    int64_t *shard = calloc((size_t)n, sizeof *shard);
    if (!out || !shard) {
        error_set(err, ERR_NO_MEMORY, "no memory to list %" PRId64 " tensors", n);
        goto out;
    }
    for (int64_t i = 0; i < m->flat.n_tensor; i++) {
        const struct tensor *t = &m->flat.tensor[i];
        out[i] = (struct st_out){ .name = wrapper_name(m, t->name),
                                  .dtype = m->dtype == DT_F32 ? ST_F32 : ST_BF16,
                                  .n_dim = t->n_dim,
                                  .dim = { t->dim[0], t->dim[1], t->dim[2] },
                                  .data = (const char *)weights + (size_t)t->offset * e };
    }
    wrapper_kept(m, out + m->flat.n_tensor);
    TRY(outs_write(out, n, shard, dir, err));
    ok = m->wrapper && m->c.wrapped ? wrapper_config_save(m, dir, dtype, err) : config_save(&m->c, dir, dtype, err);
out:
    free(out);
    free(shard);
    return ok;
}
