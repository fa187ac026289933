#include "workers/engine/data/parquet/leaf.h"
#include <inttypes.h>
#include <string.h>
#include <zlib.h>
#include "workers/engine/data/parquet/thrift.h"

#define HEADER_BYTES_MAX ((size_t)64 << 10)

enum page_kind { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_2 };
struct page_header {
    int64_t kind, size, packed_size, crc;    // sizes in bytes, out of and in the file
    int64_t n_value, encoding;
    int64_t def_encoding, rep_encoding;    // version 1
    int64_t def_len, rep_len;              // version 2: bytes before the values
    bool has_crc, has_body, is_packed;
};

static bool leaf_error(const struct leaf *l, struct error *err, const char *what)
{
    return error_set(err, ERR_DATA, "column '%.200s', page %d: %s", l->node->path, l->n_page, what);
}

/* The header's own part: DataPageHeader (1), DictionaryPageHeader (2) or DataPageHeaderV2 (3). */
static void body_read(struct thrift *t, struct page_header *h, int version)
{
    h->has_body = true;
    for (struct thrift_field f = { 0 }; thrift_next(t, &f);) {
        if (f.id == 1)
            h->n_value = thrift_int(t, &f);
        else if (f.id == (version == 3 ? 4 : 2))
            h->encoding = thrift_int(t, &f);
        else if (version == 1 && f.id == 3)
            h->def_encoding = thrift_int(t, &f);
        else if (version == 1 && f.id == 4)
            h->rep_encoding = thrift_int(t, &f);
        else if (version == 3 && f.id == 5)
            h->def_len = thrift_int(t, &f);
        else if (version == 3 && f.id == 6)
            h->rep_len = thrift_int(t, &f);
        else if (version == 3 && f.id == 7)
            h->is_packed = f.type == THRIFT_TRUE;
        else
            thrift_skip(t, &f);
    }
}

static bool header_read(struct leaf *l, struct page_header *h, struct error *err)
{
    struct thrift t = { l->p, l->p + MIN((size_t)(l->end - l->p), HEADER_BYTES_MAX), false };
    *h = (struct page_header){ .kind = -1, .size = -1, .packed_size = -1, .encoding = -1, .is_packed = true };
    for (struct thrift_field f = { 0 }; thrift_next(&t, &f);) {
        int version = f.id == 5 ? 1 : f.id == 7 ? 2 : f.id == 8 ? 3 : 0;
        if (f.id == 1) {
            h->kind = thrift_int(&t, &f);
        } else if (f.id == 2) {
            h->size = thrift_int(&t, &f);
        } else if (f.id == 3) {
            h->packed_size = thrift_int(&t, &f);
        } else if (f.id == 4) {
            h->crc = thrift_int(&t, &f);
            h->has_crc = true;
        } else if (version && f.type == THRIFT_STRUCT) {
            body_read(&t, h, version);
        } else {
            thrift_skip(&t, &f);
        }
    }
    if (t.bad || h->size < 0 || h->packed_size < 0 || h->n_value < 0 || (!h->has_body && h->kind != PAGE_INDEX))
        return leaf_error(l, err, "its header is damaged");
    l->p = t.p;
    if (h->packed_size > l->end - l->p)
        return leaf_error(l, err, "it reaches beyond its column");
    if (h->size > (int64_t)l->page_bytes_max)
        return error_set(err, ERR_DATA, "column '%.200s', page %d: it has %" PRId64 " bytes, more than %zu", l->node->path, l->n_page,
                         h->size, l->page_bytes_max);
    if (h->has_crc && crc32(crc32(0, NULL, 0), l->p, (uInt)h->packed_size) != (uint32_t)h->crc)
        return leaf_error(l, err, "its checksum is wrong; get the file again");
    return true;
}

/* The bytes [p, p + len) of a page, decompressed to size bytes: *from until *to. */
static bool page_unpack(struct leaf *l, bool is_packed, const uint8_t *p, int64_t len, int64_t size, struct buf *into, const uint8_t **from,
                        const uint8_t **to, struct error *err)
{
    if (l->codec == CODEC_NONE || !is_packed) {
        if (len != size)
            return leaf_error(l, err, "its size is wrong");
        *from = p;
        *to = p + len;
        return true;
    }
    into->max = l->page_bytes_max + (1 << 19);
    if (size == 0)
        buf_clear(into);
    else if (!codec_unpack(l->codec, p, (size_t)len, (size_t)size, into, err))
        return error_wrap(err, "column '%.200s', page %d", l->node->path, l->n_page);
    *from = (const uint8_t *)buf_text(into);
    *to = *from + into->len;
    return true;
}

static bool dictionary_read(struct leaf *l, const struct page_header *h, struct error *err)
{
    const uint8_t *from, *to;
    struct buf *bytes = &l->dictionary.bytes;
    if (!l->is_first_page)
        return leaf_error(l, err, "a dictionary after the first page");
    if (h->encoding != ENCODING_PLAIN && h->encoding != ENCODING_PLAIN_DICTIONARY)
        return leaf_error(l, err, "its dictionary's encoding is not known here");
    if (!page_unpack(l, true, l->p, h->packed_size, h->size, bytes, &from, &to, err))
        return false;
    if (from != (const uint8_t *)buf_text(bytes)) {    // it was not compressed
        buf_clear(bytes);
        if (!buf_add(bytes, from, (size_t)(to - from)))
            return error_set(err, ERR_NO_MEMORY, "no memory for the dictionary of '%.200s'", l->node->path);
    }
    l->values.dictionary = &l->dictionary;
    return dictionary_fill(&l->dictionary, l->node->type, l->node->type_len, (uint64_t)h->n_value)
           || leaf_error(l, err, "its dictionary is damaged");
}

static int level_bits(int max)
{
    int bits = 0;
    while (max >> bits)
        bits++;
    return bits;
}

/* Levels of a version 1 page: their length, then a hybrid; nothing where there is but one level. */
static bool levels_1(struct leaf *l, struct hybrid *h, int max, int64_t encoding, const uint8_t **p, const uint8_t *end, struct error *err)
{
    hybrid_init(h, *p, *p, 0);
    if (max == 0)
        return true;
    if (encoding != ENCODING_RLE)
        return leaf_error(l, err, "its levels are written in a form from before 2014, which is not read");
    uint32_t len = 0;
    if (end - *p < 4)
        return leaf_error(l, err, "its levels are damaged");
    for (int i = 0; i < 4; i++)
        len |= (uint32_t)(*p)[i] << (8 * i);
    *p += 4;
    if (len > (size_t)(end - *p))
        return leaf_error(l, err, "its levels are damaged");
    hybrid_init(h, *p, *p + len, level_bits(max));
    *p += len;
    return true;
}

static bool page_1(struct leaf *l, const struct page_header *h, const uint8_t **from, const uint8_t **to, struct error *err)
{
    return page_unpack(l, true, l->p, h->packed_size, h->size, &l->page, from, to, err)
           && levels_1(l, &l->rep_level, l->node->max_rep, h->rep_encoding, from, *to, err)
           && levels_1(l, &l->def_level, l->node->max_def, h->def_encoding, from, *to, err);
}

static bool page_2(struct leaf *l, const struct page_header *h, const uint8_t **from, const uint8_t **to, struct error *err)
{
    int64_t levels = h->rep_len + h->def_len;
    if (h->rep_len < 0 || h->def_len < 0 || levels > h->packed_size || levels > h->size)
        return leaf_error(l, err, "its levels are damaged");
    const uint8_t *def = l->p + h->rep_len, *values = def + h->def_len;
    hybrid_init(&l->rep_level, l->p, def, level_bits(l->node->max_rep));
    hybrid_init(&l->def_level, def, values, level_bits(l->node->max_def));
    return page_unpack(l, h->is_packed, values, h->packed_size - levels, h->size - levels, &l->page, from, to, err);
}

/* Go to the next page that has entries. */
static bool page_begin(struct leaf *l, struct error *err)
{
    struct page_header h;
    const uint8_t *from, *to;
    while (l->page_left == 0) {
        l->n_page++;
        if (l->p == l->end)
            return error_set(err, ERR_DATA, "column '%.200s' ends with %" PRId64 " values missing", l->node->path, l->chunk_left);
        if (!header_read(l, &h, err))
            return false;
        if (h.kind == PAGE_DICTIONARY) {
            if (!dictionary_read(l, &h, err))
                return false;
        } else if (h.kind == PAGE_DATA || h.kind == PAGE_DATA_2) {
            if (h.n_value > l->chunk_left)
                return leaf_error(l, err, "it has more values than its column");
            if (!values_supported(l->node->type, l->node->type_len, (int)MAX(MIN(h.encoding, 100), -1)))
                return error_set(err, ERR_UNSUPPORTED, "column '%.200s', page %d: encoding %" PRId64 " of type %d is not known here",
                                 l->node->path, l->n_page, h.encoding, l->node->type);
            if (!(h.kind == PAGE_DATA ? page_1 : page_2)(l, &h, &from, &to, err))
                return false;
            if (!values_begin(&l->values, (enum parquet_encoding)h.encoding, from, to, (uint64_t)h.n_value))
                return leaf_error(l, err, "its values are damaged");
            l->page_left = h.n_value;
            l->chunk_left -= h.n_value;
        } else if (h.kind != PAGE_INDEX) {
            return leaf_error(l, err, "it is of a kind that is not known here");
        }
        l->is_first_page = false;
        l->p += h.packed_size;
    }
    return true;
}

bool leaf_advance(struct leaf *l, struct error *err)
{
    uint32_t rep, def;
    l->there = false;
    if (l->page_left == 0 && l->chunk_left == 0)
        return true;
    if (l->page_left == 0 && !page_begin(l, err))
        return false;
    l->page_left--;
    if (!hybrid_next(&l->rep_level, &rep) || !hybrid_next(&l->def_level, &def) || rep > (uint32_t)l->node->max_rep
        || def > (uint32_t)l->node->max_def)
        return leaf_error(l, err, "its levels are damaged");
    l->there = true;
    l->rep = (int)rep;
    l->def = (int)def;
    return true;
}

bool leaf_value(struct leaf *l, struct parquet_value *v, struct error *err)
{
    return values_next(&l->values, v) || leaf_error(l, err, "its values are damaged");
}

bool leaf_begin(struct leaf *l, const struct parquet_node *node, const struct parquet_chunk *chunk, const uint8_t *file,
                size_t page_bytes_max, struct error *err)
{
    l->node = node;
    l->p = chunk->size > 0 ? file + chunk->at : file;
    l->end = l->p + chunk->size;
    l->codec = chunk->codec;
    l->page_bytes_max = page_bytes_max;
    l->chunk_left = chunk->n_value;
    l->page_left = 0;
    l->is_first_page = true;
    l->n_page = 0;
    l->values.type = node->type;
    l->values.type_len = node->type_len;
    l->values.dictionary = NULL;
    return leaf_advance(l, err);
}

void leaf_release(struct leaf *l)
{
    buf_release(&l->page);
    dictionary_release(&l->dictionary);
    values_release(&l->values);
}
