#include "protocol/wire/message.h"
#include <inttypes.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing: map and list headers are written in their 32-bit form; their counts are filled in when they end ---- */

static int buf_sink(void *ctx, const char *data, size_t len)
{
    return buf_add(ctx, data, len) ? 0 : -1;
}

static msgpack_packer packer(struct msg_out *m)
{
    msgpack_packer pk;
    msgpack_packer_init(&pk, &m->buf, buf_sink);
    return pk;
}

#define LEVEL_BYTES 5    // of a container, before its values: what it is and how many there are

/* Count a value in the innermost container and write its key. */
static void key_put(struct msg_out *m, const char *key)
{
    BUG_IF(m->depth < 1, "a field '%s' outside a message", key ? key : "");
    BUG_IF(m->level[m->depth - 1].is_map != (key != NULL), "a key in a list, or none in a map: '%s'", key ? key : "");
    m->level[m->depth - 1].n++;
    if (key) {
        msgpack_packer pk = packer(m);
        size_t len = strlen(key);
        msgpack_pack_str(&pk, len);
        msgpack_pack_str_body(&pk, key, len);
    }
}

static void level_open(struct msg_out *m, bool is_map)
{
    BUG_IF(m->depth >= MSG_DEPTH_MAX, "a message %d levels deep", m->depth);
    m->level[m->depth].at = m->buf.len;
    m->level[m->depth].n = 0;
    m->level[m->depth].is_map = is_map;
    m->depth++;
    buf_add(&m->buf, is_map ? "\xdf\0\0\0\0" : "\xdd\0\0\0\0", LEVEL_BYTES);
}

void msg_begin(struct msg_out *m, enum msg_type type)
{
    buf_clear(&m->buf);
    m->depth = 0;
    level_open(m, true);
    msg_i64(m, "v", PROTOCOL_VERSION);
    msg_str(m, "t", msg_specs[type].name);
}

void msg_i64(struct msg_out *m, const char *key, int64_t v)
{
    key_put(m, key);
    msgpack_packer pk = packer(m);
    msgpack_pack_int64(&pk, v);
}

void msg_f64(struct msg_out *m, const char *key, double v)
{
    key_put(m, key);
    msgpack_packer pk = packer(m);
    msgpack_pack_double(&pk, v);
}

void msg_bool(struct msg_out *m, const char *key, bool v)
{
    key_put(m, key);
    msgpack_packer pk = packer(m);
    if (v)
        msgpack_pack_true(&pk);
    else
        msgpack_pack_false(&pk);
}

void msg_strn(struct msg_out *m, const char *key, const char *v, size_t len)
{
    key_put(m, key);
    if (len > MSG_BYTES_MAX) {    // the 32-bit length would be wrong
        m->buf.failed = true;
        return;
    }
    msgpack_packer pk = packer(m);
    msgpack_pack_str(&pk, len);
    msgpack_pack_str_body(&pk, v, len);
}

void msg_str(struct msg_out *m, const char *key, const char *v)
{
    msg_strn(m, key, v ? v : "", v ? strlen(v) : 0);
}

void msg_bin(struct msg_out *m, const char *key, const void *v, size_t len)
{
    key_put(m, key);
    if (len > MSG_BYTES_MAX) {
        m->buf.failed = true;
        return;
    }
    msgpack_packer pk = packer(m);
    msgpack_pack_bin(&pk, len);
    if (len)
        msgpack_pack_bin_body(&pk, v, len);
}

void msg_map(struct msg_out *m, const char *key)
{
    key_put(m, key);
    level_open(m, true);
}

void msg_list(struct msg_out *m, const char *key)
{
    key_put(m, key);
    level_open(m, false);
}

void msg_end(struct msg_out *m)
{
    BUG_IF(m->depth < 1, "msg_end without a map or list");
    m->depth--;
    size_t at = m->level[m->depth].at;
    if (m->buf.failed)
        return;
    uint32_t n = m->level[m->depth].n;
    for (int i = 0; i < 4; i++)
        m->buf.data[at + 1 + (size_t)i] = (char)(n >> (24 - 8 * i));
}

void msg_copy(struct msg_out *m, const char *key, const struct mval *v)
{
    key_put(m, key);
    msgpack_packer pk = packer(m);
    if (v)
        msgpack_pack_object(&pk, *(const msgpack_object *)(const void *)v);
    else
        msgpack_pack_nil(&pk);
}

void msg_values_begin(struct msg_out *m)
{
    buf_clear(&m->buf);
    m->depth = 0;
    level_open(m, false);
}

void msg_values_add(struct msg_out *m, const struct msg_out *values)
{
    BUG_IF(m->depth < 1 || m->level[m->depth - 1].is_map, "values outside a list");
    BUG_IF(values->depth != 1, "values that are not closed");
    if (values->buf.failed) {    // perhaps before its first byte
        m->buf.failed = true;
        return;
    }
    m->level[m->depth - 1].n += values->level[0].n;
    buf_add(&m->buf, values->buf.data + LEVEL_BYTES, values->buf.len - LEVEL_BYTES);
}

static void fields_copy(struct msg_out *m, const struct mval *map, const char *names, bool named)
{
    for (int64_t i = 0; i < mval_n(map); i++) {
        size_t len;
        char key[64];
        const char *k = mval_key(map, i, &len);
        if (!k || len + 2 >= sizeof key)
            continue;
        snprintf(key, sizeof key, " %.*s ", (int)len, k);
        if ((strstr(names, key) != NULL) != named)
            continue;
        key[len + 1] = 0;
        msg_copy(m, key + 1, mval_at(map, i));
    }
}

void msg_copy_only(struct msg_out *m, const struct mval *map, const char *names)
{
    fields_copy(m, map, names, true);
}

void msg_copy_but(struct msg_out *m, const struct mval *map, const char *names)
{
    fields_copy(m, map, names, false);
}

bool msg_finish(struct msg_out *m, struct error *err)
{
    BUG_IF(m->depth != 1, "a message finished %d levels deep", m->depth);
    msg_end(m);
    if (m->buf.failed)
        return error_set(err, ERR_FULL, "a message has grown beyond %zu MiB", MSG_BYTES_MAX >> 20);
    return true;
}

void msg_release(struct msg_out *m)
{
    buf_release(&m->buf);
    m->depth = 0;
}

void msg_refuse(struct msg_out *m, const struct error *why)
{
    struct error err;
    msg_begin(m, MSG_REFUSED);
    msg_str(m, "code", error_code_name(why->code));
    msg_str(m, "reason", why->text);
    BUG_IF(!msg_finish(m, &err), "a refusal does not fit: %s", err.text);
}

/* ---- reading ---- */

static uint64_t be_read(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

/* The walk keeps, for each open container, how many values are still to come; formats are those of the msgpack
 * specification (github.com/msgpack/msgpack/blob/master/spec.md). Extension types are refused: we send none. */
bool msg_check(const void *data, size_t len, struct error *err)
{
    const uint8_t *p = data;
    uint64_t left[MSG_DEPTH_MAX + 1] = { 1 };
    int depth = 0;
    size_t at = 0;
    int64_t n_values = 0;
    if (len > MSG_BYTES_MAX)
        return error_set(err, ERR_DATA, "message of %zu bytes; at most %zu are taken", len, MSG_BYTES_MAX);
    while (depth >= 0) {
        if (left[depth] == 0) {
            depth--;
            continue;
        }
        left[depth]--;
        if (at >= len)
            return error_set(err, ERR_DATA, "message ends after %zu bytes in the middle of a value", len);
        if (++n_values > MSG_VALUES_MAX)
            return error_set(err, ERR_DATA, "message of more than %d values", MSG_VALUES_MAX);
        uint8_t b = p[at++];
        uint64_t skip = 0, children = 0;
        bool container = false;
        int size = 0;    // bytes of a length field
        if (b <= 0x7f || b >= 0xe0 || b == 0xc0 || b == 0xc2 || b == 0xc3) {
            skip = 0;
        } else if (b <= 0x8f) {
            children = (b & 0x0f) * 2u, container = true;
        } else if (b <= 0x9f) {
            children = b & 0x0f, container = true;
        } else if (b <= 0xbf) {
            skip = b & 0x1f;
        } else if (b >= 0xca && b <= 0xd3) {
            static const uint8_t width[] = { 4, 8, 1, 2, 4, 8, 1, 2, 4, 8 };    // float 32, 64, uint 8-64, int 8-64
            skip = width[b - 0xca];
        } else if ((b >= 0xc4 && b <= 0xc6) || (b >= 0xd9 && b <= 0xdb)) {
            size = 1 << (b >= 0xd9 ? b - 0xd9 : b - 0xc4);
        } else if (b >= 0xdc && b <= 0xdf) {
            size = b & 1 ? 4 : 2, container = true;
        } else {
            return error_set(err, ERR_DATA, "message holds the unknown format byte 0x%02x at %zu", b, at - 1);
        }
        if (size) {
            if (len - at < (size_t)size)
                return error_set(err, ERR_DATA, "message ends after %zu bytes in the middle of a length", len);
            uint64_t n = be_read(p + at, size);
            at += (size_t)size;
            if (container)
                children = b >= 0xde ? 2 * n : n;
            else
                skip = n;
        }
        if (skip > len - at || children > len - at)
            return error_set(err, ERR_DATA, "message of %zu bytes claims %" PRIu64 " more at %zu", len, MAX(skip, children), at);
        at += skip;
        if (container) {
            if (depth + 1 > MSG_DEPTH_MAX)
                return error_set(err, ERR_DATA, "message is nested deeper than %d", MSG_DEPTH_MAX);
            left[++depth] = children;
        }
    }
    if (at != len)
        return error_set(err, ERR_DATA, "message has %zu bytes after its end", len - at);
    return true;
}

static const msgpack_object *object(const struct mval *v)
{
    return (const void *)v;
}

static const char *const kind_names[] = { "an integer", "a number", "text", "a boolean", "bytes", "a map", "a list" };

static bool fields_check(const struct msg_field *f, const struct mval *root, const char *name, struct error *err)
{
    for (; f->name; f++) {
        const struct mval *v = mval_get(root, f->name);
        if (!v && f->optional)
            continue;
        if (!v)
            return error_set(err, ERR_DATA, "message '%s' lacks '%s'", name, f->name);
        if (!mval_is(v, f->kind))
            return error_set(err, ERR_DATA, "'%s' of message '%s' is not %s", f->name, name, kind_names[f->kind]);
    }
    return true;
}

static bool msg_open(struct msg_in *in, const void *data, size_t len, struct error *err)
{
    *in = (struct msg_in){ .data = data, .len = len };
    if (!msg_check(data, len, err))
        return false;
    msgpack_unpacked *u = calloc(1, sizeof *u);
    if (!u)
        return error_set(err, ERR_NO_MEMORY, "no memory for a message of %zu bytes", len);
    msgpack_unpacked_init(u);
    in->zone = u;
    size_t off = 0;
    if (msgpack_unpack_next(u, data, len, &off) != MSGPACK_UNPACK_SUCCESS || u->data.type != MSGPACK_OBJECT_MAP) {
        msg_in_release(in);
        return error_set(err, ERR_DATA, "message of %zu bytes is not a msgpack map", len);
    }
    in->root = (const void *)&u->data;
    char name[32];
    mval_text(in->root, "t", name, sizeof name);
    int64_t version = mval_i64(mval_get(in->root, "v"), -1);
    int type = 0;
    while (type < MSG_TYPE_COUNT && strcmp(msg_specs[type].name, name) != 0)
        type++;
    if (version != PROTOCOL_VERSION)
        error_set(err, ERR_UNSUPPORTED, "message '%s' has protocol version %" PRId64 "; this is version %d", name, version,
                  PROTOCOL_VERSION);
    else if (type == MSG_TYPE_COUNT)
        error_set(err, ERR_UNSUPPORTED, "unknown message '%s'", name);
    else
        in->type = (enum msg_type)type;
    if (version != PROTOCOL_VERSION || type == MSG_TYPE_COUNT) {
        msg_in_release(in);
        return false;
    }
    return true;
}

bool msg_read_request(struct msg_in *in, const void *data, size_t len, struct error *err)
{
    if (!msg_open(in, data, len, err))
        return false;
    bool ok = in->type == MSG_OK || in->type == MSG_REFUSED
                  ? error_set(err, ERR_DATA, "'%s' is an answer, not a request", msg_specs[in->type].name)
                  : fields_check(msg_specs[in->type].request, in->root, msg_specs[in->type].name, err);
    if (!ok)
        msg_in_release(in);
    return ok;
}

static enum error_code code_of(const char *name)
{
    for (int c = ERR_USAGE; c <= ERR_INTERNAL; c++)
        if (strcmp(error_code_name((enum error_code)c), name) == 0)
            return (enum error_code)c;
    return ERR_REFUSED;
}

bool msg_read_answer(struct msg_in *in, enum msg_type asked, const void *data, size_t len, struct error *err)
{
    if (!msg_open(in, data, len, err))
        return false;
    bool ok = false;
    if (in->type == MSG_REFUSED) {
        char code[32], reason[sizeof err->text];
        error_set(err, code_of(mval_text(in->root, "code", code, sizeof code)), "%s", mval_text(in->root, "reason", reason, sizeof reason));
    } else if (in->type != MSG_OK) {
        error_set(err, ERR_DATA, "'%s' is not an answer", msg_specs[in->type].name);
    } else {
        ok = fields_check(msg_specs[asked].answer, in->root, msg_specs[asked].name, err);
    }
    if (!ok)
        msg_in_release(in);
    return ok;
}

void msg_in_release(struct msg_in *in)
{
    if (in->zone) {
        msgpack_unpacked_destroy(in->zone);
        free(in->zone);
    }
    *in = (struct msg_in){ 0 };
}

const struct mval *mval_get(const struct mval *map, const char *key)
{
    const msgpack_object *o = object(map);
    if (!o || o->type != MSGPACK_OBJECT_MAP)
        return NULL;
    size_t len = strlen(key);
    for (uint32_t i = 0; i < o->via.map.size; i++) {
        const msgpack_object_kv *kv = &o->via.map.ptr[i];
        if (kv->key.type == MSGPACK_OBJECT_STR && kv->key.via.str.size == len && memcmp(kv->key.via.str.ptr, key, len) == 0)
            return kv->val.type == MSGPACK_OBJECT_NIL ? NULL : (const void *)&kv->val;
    }
    return NULL;
}

int64_t mval_n(const struct mval *v)
{
    const msgpack_object *o = object(v);
    if (o && o->type == MSGPACK_OBJECT_MAP)
        return o->via.map.size;
    return o && o->type == MSGPACK_OBJECT_ARRAY ? o->via.array.size : 0;
}

const struct mval *mval_at(const struct mval *list, int64_t i)
{
    const msgpack_object *o = object(list);
    if (i < 0 || i >= mval_n(list))
        return NULL;
    return (const void *)(o->type == MSGPACK_OBJECT_MAP ? &o->via.map.ptr[i].val : &o->via.array.ptr[i]);
}

const char *mval_key(const struct mval *map, int64_t i, size_t *len)
{
    const msgpack_object *o = object(map);
    if (!o || o->type != MSGPACK_OBJECT_MAP || i < 0 || i >= mval_n(map) || o->via.map.ptr[i].key.type != MSGPACK_OBJECT_STR)
        return NULL;
    *len = o->via.map.ptr[i].key.via.str.size;
    return o->via.map.ptr[i].key.via.str.ptr;
}

bool mval_is(const struct mval *v, enum msg_kind kind)
{
    const msgpack_object *o = object(v);
    if (!o)
        return false;
    bool is_int = o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER || (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= INT64_MAX);
    switch (kind) {
    case KIND_I64: return is_int;
    case KIND_F64: return is_int || o->type == MSGPACK_OBJECT_FLOAT32 || o->type == MSGPACK_OBJECT_FLOAT64;
    case KIND_STR: return o->type == MSGPACK_OBJECT_STR;
    case KIND_BOOL: return o->type == MSGPACK_OBJECT_BOOLEAN;
    case KIND_BIN: return o->type == MSGPACK_OBJECT_BIN;
    case KIND_MAP: return o->type == MSGPACK_OBJECT_MAP;
    case KIND_LIST: return o->type == MSGPACK_OBJECT_ARRAY;
    }
    return false;
}

int64_t mval_i64(const struct mval *v, int64_t otherwise)
{
    return mval_is(v, KIND_I64) ? object(v)->via.i64 : otherwise;
}

double mval_f64(const struct mval *v, double otherwise)
{
    if (mval_is(v, KIND_I64))
        return (double)object(v)->via.i64;
    return mval_is(v, KIND_F64) ? object(v)->via.f64 : otherwise;
}

bool mval_bool(const struct mval *v, bool otherwise)
{
    return mval_is(v, KIND_BOOL) ? object(v)->via.boolean : otherwise;
}

const char *mval_str(const struct mval *v, size_t *len)
{
    if (!mval_is(v, KIND_STR))
        return NULL;
    *len = object(v)->via.str.size;
    return object(v)->via.str.ptr;
}

const void *mval_bin(const struct mval *v, size_t *len)
{
    if (!mval_is(v, KIND_BIN))
        return NULL;
    *len = object(v)->via.bin.size;
    return object(v)->via.bin.ptr;
}

char *mval_text(const struct mval *map, const char *key, char *out, size_t size)
{
    size_t len = 0;
    const char *s = mval_str(mval_get(map, key), &len);
    len = s ? MIN(len, size - 1) : 0;
    if (len)
        memcpy(out, s, len);
    out[len] = 0;
    return out;
}
