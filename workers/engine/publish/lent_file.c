#include "workers/engine/publish/lent_file.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/engine/model/model.h"

#define LENT_FORM 1                    // of "rollcall"
#define LENT_BYTES_MAX (64 << 20)      // a file of 20000 tensors has 15 MB
#define IPC_BYTES 64                   // a cudaIpcMemHandle_t
#define EVENT_BYTES 64                 // a cudaIpcEventHandle_t
#define NO_COUNTER "/rollcall-none"    // torch would count down there, and goes on where there is no such memory

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* out: 4 ((n + 2) / 3) + 1 bytes. RFC 4648. */
static void base64_print(char *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i += 3) {
        uint32_t x = (uint32_t)in[i] << 16 | (i + 1 < n ? (uint32_t)in[i + 1] << 8 : 0) | (i + 2 < n ? in[i + 2] : 0);
        *out++ = digits[x >> 18];
        *out++ = digits[x >> 12 & 63];
        *out++ = i + 1 < n ? digits[x >> 6 & 63] : '=';
        *out++ = i + 2 < n ? digits[x & 63] : '=';
    }
    *out = 0;
}

/* Exactly n bytes. */
static bool base64_read(uint8_t *out, size_t n, const char *text)
{
    uint32_t x = 0;
    size_t at = 0;
    int bits = 0;
    for (; text && *text && *text != '='; text++) {
        const char *d = strchr(digits, *text);
        if (!d)
            return false;
        x = x << 6 | (uint32_t)(d - digits);
        if ((bits += 6) < 8)
            continue;
        bits -= 8;
        if (at == n)
            return false;
        out[at++] = (uint8_t)(x >> bits);
    }
    return text && at == n;
}

/* ---- writing */
/* What readers open: torch's sign of its own form of a handle and the kind (cudaMalloc's), and the handle; on a CPU the path. */
static void handle_print(char out[256], const struct device *dev, const struct mem_handle *h)
{
    uint8_t bytes[2 + IPC_BYTES] = { 2, 'c' };
    int64_t pid;
    int32_t fd;
    char path[64];
    if (dev->kind == DEVICE_CUDA) {
        memcpy(bytes + 2, h->bytes, IPC_BYTES);
        base64_print(out, bytes, sizeof bytes);
        return;
    }
    memcpy(&pid, h->bytes, sizeof pid);    // struct host_handle of kernels/collective/host.c
    memcpy(&fd, h->bytes + sizeof pid, sizeof fd);
    snprintf(path, sizeof path, "/proc/%" PRId64 "/fd/%d", pid, (int)fd);
    base64_print(out, (const uint8_t *)path, strlen(path));
}

static const char *torch_dtype(enum dtype t)
{
    return t == DT_BF16 ? "torch.bfloat16" : "torch.float32";
}

static void torch_device(char *out, size_t size, const struct device *dev)
{
    snprintf(out, size, dev->kind == DEVICE_CUDA ? "cuda:%d" : "cpu", dev->index);
}

static json_t *shape_json(const struct tensor *t)
{
    json_t *shape = json_array();
    for (int d = 0; d < t->n_dim; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->dim[d]));
    return shape;
}

static json_t *tensor_json(const struct model *m, const struct tensor *t, const char *handle)
{
    static const uint8_t none[EVENT_BYTES] = { 0 };
    char event[128], counter[64];
    base64_print(event, none, sizeof none);
    base64_print(counter, (const uint8_t *)NO_COUNTER, strlen(NO_COUNTER));
    json_t *stride = json_array();
    for (int64_t d = t->n_dim - 1, step = 1; d >= 0; step *= t->dim[d--])
        json_array_insert_new(stride, 0, json_integer((json_int_t)step));
    return json_pack("{s:i, s:s, s:I, s:i, s:s, s:i, s:s, s:b, s:I, s:o, s:o, s:s}", "device_index", model_device(m)->index,
                     "ipc_handle_b64", handle, "storage_size", (json_int_t)model_weight_bytes(m), "storage_offset_orig", 0,
                     "ref_counter_handle_b64", counter, "ref_counter_offset", 0, "event_handle_b64", event, "event_sync_required", 0,
                     "tensor_storage_offset", (json_int_t)t->offset, "shape", shape_json(t), "stride", stride, "dtype",
                     torch_dtype(model_dtype(m)));
}

static int names_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static json_t *names_json(const struct model *m)
{
    int64_t n = model_n_tensor(m);
    const char **name = calloc((size_t)MAX(n, (int64_t)1), sizeof *name);
    json_t *out = name ? json_array() : NULL;
    bool ok = out;
    for (int64_t i = 0; i < n && ok; i++)
        name[i] = model_tensor(m, i)->name;
    if (ok)
        qsort(name, (size_t)n, sizeof *name, names_compare);
    for (int64_t i = 0; i < n && ok; i++)
        ok = json_array_append_new(out, json_string(name[i])) == 0;
    free(name);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

static json_t *own_json(const struct lent_file *f)
{
    char handle[256];
    base64_print(handle, f->handle.bytes, sizeof f->handle.bytes);
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:i, s:I}", "form", LENT_FORM, "device", f->device, "tokenizer", f->tokenizer, "board",
                     f->board, "handle_b64", handle, "sum_parts", f->sum_parts, "max_seq_tok", (json_int_t)f->max_seq_tok);
}

bool lent_file_write(const struct lent_file *f, const struct model *m, const char *path, struct error *err)
{
    char handle[256], device[32];
    int64_t n = model_n_tensor(m);
    json_t *mappings = json_object(), *handles = json_object();
    handle_print(handle, model_device(m), &f->handle);
    torch_device(device, sizeof device, model_device(m));
    bool ok = mappings && handles;
    for (int64_t i = 0; i < n && ok; i++) {
        const struct tensor *t = model_tensor(m, i);
        ok = json_object_set_new(mappings, t->name,
                                 json_pack("{s:s, s:o, s:s, s:s}", "vllm_name", t->name, "shape", shape_json(t), "dtype",
                                           torch_dtype(model_dtype(m)), "device", device))
                 == 0
             && json_object_set_new(handles, t->name, tensor_json(m, t, handle)) == 0;
    }
    json_t *root = json_pack("{s:s, s:i, s:i, s:o, s:o, s:o, s:b, s:i, s:b, s:s, s:o}", "model", f->model, "tp_degree", 1,
                             "dp_shard_degree", 1, "param_mappings", mappings, "param_names", names_json(m), "ipc_handles", handles,
                             "shared_weights_enabled", 1, "num_params", (int)n, "single_copy_enabled", 1, "dtype",
                             torch_dtype(model_dtype(m)), "rollcall", own_json(f));
    char *text = ok && root ? json_text_dump(root, JSON_INDENT(1)) : NULL;
    ok = text ? file_write(path, text, strlen(text), err) : error_set(err, ERR_NO_MEMORY, "no memory for '%s'", path);
    free(text);
    json_decref(root);
    return ok;
}

/* ---- reading */
static bool text_read(char *out, size_t size, const json_t *v, const char *path, const char *field, struct error *err)
{
    return (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v) && json_string_length(v) < size
            && snprintf(out, size, "%s", json_string_value(v)) >= 0)
           || error_set(err, ERR_DATA, "'%s': '%s' is not a text of fewer than %zu bytes", path, field, size);
}

bool lent_file_read(struct lent_file *f, const char *path, struct error *err)
{
    struct buf text = BUF_INIT;
    json_error_t why;
    bool ok = false;
    *f = (struct lent_file){ .root = NULL };
    if (!path_exists(path))
        return error_set(err, ERR_NOT_FOUND, "'%s' does not exist; a run with 'weight_bridge_file' writes it", path);
    TRY(file_read_text(&text, path, LENT_BYTES_MAX, err));
    if (!(f->root = json_text_read(buf_text(&text), text.len, 0, &why))) {
        error_set(err, ERR_DATA, "'%s' is not JSON: %s", path, why.text);
        goto out;
    }
    const json_t *own = json_object_get(f->root, "rollcall"), *dtype = json_object_get(f->root, "dtype");
    if (json_integer_value(json_object_get(own, "form")) != LENT_FORM) {
        error_set(err, ERR_DATA, "'%s' was not written by this version of rollcall", path);
        goto out;
    }
    json_int_t parts = json_integer_value(json_object_get(own, "sum_parts"));
    f->max_seq_tok = json_integer_value(json_object_get(own, "max_seq_tok"));
    f->dtype = json_is_string(dtype) && strcmp(json_string_value(dtype), "torch.bfloat16") == 0 ? DT_BF16 : DT_F32;
    TRY(text_read(f->model, sizeof f->model, json_object_get(f->root, "model"), path, "model", err)
        && text_read(f->tokenizer, sizeof f->tokenizer, json_object_get(own, "tokenizer"), path, "tokenizer", err)
        && text_read(f->board, sizeof f->board, json_object_get(own, "board"), path, "board", err)
        && text_read(f->device, sizeof f->device, json_object_get(own, "device"), path, "device", err));
    if (parts < 0 || parts > SUM_PARTS_MAX || f->max_seq_tok < 0
        || !base64_read(f->handle.bytes, sizeof f->handle.bytes, json_string_value(json_object_get(own, "handle_b64")))) {
        error_set(err, ERR_DATA, "'%s': 'rollcall' is damaged", path);
        goto out;
    }
    f->sum_parts = (int)parts;
    ok = true;
out:
    buf_release(&text);
    if (!ok)
        lent_file_release(f);
    return ok;
}

void lent_file_release(struct lent_file *f)
{
    json_decref(f->root);
    f->root = NULL;
}

bool lent_file_fits(const struct lent_file *f, const struct model *m, const char *path, struct error *err)
{
    const json_t *handles = json_object_get(f->root, "ipc_handles");
    if (json_object_size(handles) != (size_t)model_n_tensor(m))
        return error_set(err, ERR_DATA, "'%s' has %zu tensors; the model in '%s' has %" PRId64, path, json_object_size(handles), f->model,
                         model_n_tensor(m));
    for (int64_t i = 0; i < model_n_tensor(m); i++) {
        const struct tensor *t = model_tensor(m, i);
        const json_t *h = json_object_get(handles, t->name);
        json_t *shape = shape_json(t);
        bool same = json_equal(json_object_get(h, "shape"), shape)
                    && json_integer_value(json_object_get(h, "tensor_storage_offset")) == t->offset
                    && json_integer_value(json_object_get(h, "storage_size")) == (json_int_t)model_weight_bytes(m);
        json_decref(shape);
        if (!same)
            return error_set(err, ERR_DATA, "'%s': tensor '%s' is not where the model in '%s' has it", path, t->name, f->model);
    }
    return true;
}
