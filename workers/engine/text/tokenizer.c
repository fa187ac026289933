/* Encoding, in the order of Hugging Face tokenizers: added tokens in the raw text; each gap normalised; added tokens
 * that ask for it in the normalised text; each gap cut into pieces; each piece merged. Loading is in tokenizer_load.c.
 */
#include "workers/engine/text/tokenizer.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/text/tokenizer_parts.h"

#define TEXT_MAX ((size_t)1 << 30)
#define PIECE_MAX ((size_t)1 << 26)    // a longer piece is refused: merging takes 60 bytes of memory per byte

/* The ids of a word seen before. Direct-mapped: a new word takes the place of an old one, so nothing grows. */
struct word {
    uint64_t lo, hi;    // up to 15 bytes, then zeros; the top byte of hi is the length, 0 for an empty entry
    int32_t id[3];
    int32_t n;
};
#define WORD_LEN_MAX 15
#define WORD_IDS_MAX 3
#define WORDS (1u << 15)    // 1 MiB: stays in the second-level cache

struct encoder {
    const struct tokenizer *t;
    struct word *word;    // (WORDS), NULL without the cache
    struct bpe_scratch bpe;
    struct pretok_scratch pretok;
    struct buf normal[2];    // the normalised gap
    // of the current call
    const uint8_t *text;
    const uint8_t *begin;    // where the text begins, normalised; NULL: the gap is a later one
    struct token_list *out;
    struct error *err;
};

void token_list_release(struct token_list *l)
{
    free(l->id);
    *l = (struct token_list){ 0 };
}

static bool list_grow(struct token_list *l, int64_t n)
{
    int64_t cap = MAX(l->cap + l->cap / 2, l->n + n);
    cap = MAX(cap, (int64_t)256);
    int32_t *id = realloc(l->id, (size_t)cap * sizeof *id);
    if (!id)
        return false;
    l->id = id;
    l->cap = cap;
    return true;
}

bool token_list_add(struct token_list *l, const int32_t *id, int64_t n)
{
    if (l->cap - l->n < n && !list_grow(l, n))
        return false;
    if (n > 0)
        memcpy(l->id + l->n, id, (size_t)n * sizeof *id);
    l->n += n;
    return true;
}

struct encoder *encoder_new(const struct tokenizer *t, bool cache, struct error *err)
{
    struct encoder *e = calloc(1, sizeof *e);
    if (e && cache)
        e->word = calloc(WORDS, sizeof e->word[0]);
    if (!e || (cache && !e->word)) {
        encoder_free(e);
        error_set(err, ERR_NO_MEMORY, "no memory for an encoder");
        return NULL;
    }
    e->t = t;
    return e;
}

void encoder_free(struct encoder *e)
{
    if (!e)
        return;
    free(e->word);
    bpe_scratch_release(&e->bpe);
    pretok_scratch_release(&e->pretok);
    buf_release(&e->normal[0]);
    buf_release(&e->normal[1]);
    free(e);
}

/* The first 16 bytes of a piece as two words, zero after its len <= 16 bytes; end is the end of the readable text. */
static inline void words_load(const uint8_t *p, size_t len, const uint8_t *end, uint64_t *lo, uint64_t *hi)
{
    uint64_t w[2] = { 0, 0 };
    if (end - p >= 16) {
        memcpy(w, p, 16);
        if (len < 8) {
            w[0] &= ((uint64_t)1 << 8 * len) - 1;
            w[1] = 0;
        } else if (len < 16) {
            w[1] &= ((uint64_t)1 << 8 * (len - 8)) - 1;
        }
    } else {
        memcpy(w, p, len);
    }
    *lo = w[0];
    *hi = w[1];
}

/* The model's ids of a piece into out, room for len. Negative: it has failed. */
static int64_t model_encode(struct encoder *e, const uint8_t *p, size_t len, uint64_t hash, int32_t *out)
{
    if (e->t->is_unigram)
        return unigram_encode(&e->t->unigram, &e->t->bpe, p, len, out, &e->bpe);
    return bpe_encode(&e->t->bpe, p, len, hash, out, &e->bpe);
}

static bool piece_fail(struct encoder *e, size_t len)
{
    return error_set(e->err, ERR_NO_MEMORY, "no memory to encode a piece of %zu bytes", len);
}

static bool encode_fail(struct encoder *e, int64_t n, size_t len)
{
    return n == -1 ? piece_fail(e, len) : error_set(e->err, ERR_DATA, "a character is not a token, and the vocabulary has no unknown one");
}

/* Encode one piece. Bytes up to end may be read. */
static inline bool piece_add(struct encoder *e, const uint8_t *p, size_t len, const uint8_t *end)
{
    struct token_list *out = e->out;
    const struct bpe *b = &e->t->bpe;
    if (__builtin_expect((size_t)(out->cap - out->n) < len, 0) && !list_grow(out, (int64_t)len))
        return piece_fail(e, len);
    if (len > WORD_LEN_MAX) {
        if (len > PIECE_MAX)
            return error_set(e->err, ERR_DATA, "a word of %zu bytes is longer than the %zu that can be encoded", len, PIECE_MAX);
        int64_t n = model_encode(e, p, len, bpe_hash(p, len, b->seed), out->id + out->n);
        if (n < 0)
            return encode_fail(e, n, len);
        out->n += n;
        return true;
    }
    uint64_t lo, hi;
    words_load(p, len, end, &lo, &hi);
    uint64_t hash = bpe_hash_words(lo, hi, len, b->seed);
    struct word *w = NULL;
    if (e->word) {
        w = &e->word[hash >> 40 & (WORDS - 1)];
        hi |= (uint64_t)len << 56;
        if (w->lo == lo && w->hi == hi && out->cap - out->n >= WORD_IDS_MAX) {
            memcpy(out->id + out->n, w->id, sizeof w->id);    // all three; those after n are overwritten next
            out->n += w->n;
            return true;
        }
    }
    int64_t n = model_encode(e, p, len, hash, out->id + out->n);
    if (n < 0)
        return encode_fail(e, n, len);
    if (w && n <= WORD_IDS_MAX) {
        *w = (struct word){ .lo = lo, .hi = hi, .n = (int32_t)n };
        memcpy(w->id, out->id + out->n, (size_t)n * sizeof w->id[0]);
    }
    out->n += n;
    return true;
}

static bool piece_take(void *arg, const uint8_t *piece, size_t len)
{
    return piece_add(arg, piece, len, piece + len);
}

static bool gap_encode(struct encoder *e, const uint8_t *p, size_t len, bool first)
{
    pretok_next *next = e->t->next;
    if (!next)
        return pretok_walk(&e->t->pretok, p, len, first, &e->pretok, piece_take, e, e->err);
    for (const uint8_t *end = p + len; p < end;) {
        size_t n = next(&e->t->unicode, p, end);
        if (!piece_add(e, p, n, end))
            return false;
        p += n;
    }
    return true;
}

/* Find the tokens of one set in text and pass the text between them to gap. */
static bool added_walk(struct encoder *e, const struct added_set *set, const uint8_t *p, size_t len, unsigned flags,
                       bool (*gap)(struct encoder *e, const uint8_t *p, size_t len, unsigned flags))
{
    struct added_match m;
    size_t at = 0, done = 0;
    while (added_next(set, &e->t->unicode, p, len, &at, done, flags & ENCODE_SPECIAL_AS_TEXT, &m)) {
        if (m.from > done && !gap(e, p + done, m.from - done, flags))
            return false;
        if (!token_list_add(e->out, &m.token->id, 1))
            return piece_fail(e, len);
        done = m.to;
    }
    return done >= len || gap(e, p + done, len - done, flags);
}

static bool normal_gap(struct encoder *e, const uint8_t *p, size_t len, UNUSED unsigned flags)
{
    return gap_encode(e, p, len, p == e->begin);
}

static bool raw_gap(struct encoder *e, const uint8_t *p, size_t len, unsigned flags)
{
    bool first = p == e->text;
    for (int i = 0; i < 2; i++) {
        buf_clear(&e->normal[i]);
        e->normal[i].max = TEXT_MAX * 4;
    }
    if (!normalizer_apply(&e->t->normalizer, &e->t->unicode, &p, &len, e->normal, e->err))
        return false;
    e->begin = first ? p : NULL;
    return added_walk(e, &e->t->added_normal, p, len, flags, normal_gap);
}

/* If what begins a text stands there twice, keep it once. */
static void begin_once(const struct tokenizer *t, struct token_list *out, int64_t at)
{
    int64_t n = t->before.n, rest = out->n - at - n;
    size_t size = sizeof *out->id;
    if (rest < n || memcmp(out->id + at + n, t->before.id, (size_t)n * size) != 0)
        return;
    memmove(out->id + at, out->id + at + n, (size_t)rest * size);
    out->n -= n;
}

bool encoder_encode(struct encoder *e, const char *text, size_t len, unsigned flags, struct token_list *out, struct error *err)
{
    const struct tokenizer *t = e->t;
    if (len > TEXT_MAX)
        return error_set(err, ERR_DATA, "a text of %zu bytes is longer than the %zu that can be encoded", len, TEXT_MAX);
    size_t valid = utf8_valid_len((const uint8_t *)text, len, NULL, NULL);
    if (valid < len)
        return error_set(err, ERR_DATA, "the text is not UTF-8 at byte %zu", valid);
    int64_t was = out->n;
    e->out = out;
    e->err = err;
    e->text = (const uint8_t *)text;
    bool begin = (flags & (ENCODE_ADD_SPECIAL | ENCODE_ADD_BEGIN)) && t->before.n > 0;
    bool ok = !begin || token_list_add(out, t->before.id, t->before.n) || piece_fail(e, len);
    ok = ok && added_walk(e, &t->added_raw, (const uint8_t *)text, len, flags, raw_gap);
    if (ok && begin && (flags & ENCODE_ADD_BEGIN))
        begin_once(t, out, was);
    ok = ok && (!(flags & ENCODE_ADD_SPECIAL) || token_list_add(out, t->after.id, t->after.n) || piece_fail(e, len));
    if (!ok)
        out->n = was;
    return ok;
}

/* ---- decoding ---- */

const uint8_t *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->n_id || !t->spelling[id].bytes)
        return NULL;
    *len = t->spelling[id].len;
    return t->spelling[id].bytes;
}

static bool hidden(const struct tokenizer *t, int32_t id)
{
    return t->spelling[id].special && !t->spelling[id].shown;
}

bool tokenizer_decode(const struct tokenizer *t, const int32_t *id, int64_t n, bool skip_special, struct buf *out)
{
    if (t->bpe.text) {
        struct decoder d = { .tokenizer = t, .skip_special = skip_special };
        bool ok = true;
        for (int64_t i = 0; ok && i < n; i++)
            ok = decoder_push(&d, id[i], out);
        ok = ok && decoder_end(&d, out);
        decoder_release(&d);
        return ok;
    }
    // First the bytes as they are; only when they are not UTF-8, once more through the stream that repairs them.
    size_t was = out->len, len = 0, total = 0;
    for (int64_t i = 0; i < n; i++)
        if (tokenizer_bytes(t, id[i], &len) && !(skip_special && hidden(t, id[i])))
            total += len;
    char *at = buf_reserve(out, total);
    if (!at)
        return false;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *bytes = tokenizer_bytes(t, id[i], &len);
        if (!bytes || (skip_special && hidden(t, id[i])))
            continue;
        memcpy(at, bytes, len);
        at += len;
    }
    out->len += total;
    if (utf8_valid_len((const uint8_t *)buf_text(out) + was, out->len - was, NULL, NULL) == out->len - was)
        return true;
    out->len = was;
    struct decoder d = { .tokenizer = t, .skip_special = skip_special };
    for (int64_t i = 0; i < n; i++)
        if (!decoder_push(&d, id[i], out))
            return false;
    return decoder_end(&d, out);
}

bool decoder_push(struct decoder *d, int32_t id, struct buf *out)
{
    size_t len;
    const uint8_t *bytes = tokenizer_bytes(d->tokenizer, id, &len);
    if (!bytes || (d->skip_special && hidden(d->tokenizer, id)))
        return true;
    return d->tokenizer->bpe.text ? text_decoder_push(d, id, out) : utf8_stream_push(&d->stream, bytes, len, out);
}

bool decoder_end(struct decoder *d, struct buf *out)
{
    return d->tokenizer->bpe.text ? text_decoder_end(d, out) : utf8_stream_end(&d->stream, out);
}

void decoder_release(struct decoder *d)
{
    buf_release(&d->run);
}

/* ---- what is known about tokens ---- */

int32_t tokenizer_n_id(const struct tokenizer *t)
{
    return t->n_id;
}

bool tokenizer_fits(const struct tokenizer *t, int64_t vocab, const char *dir, struct error *err)
{
    return t->n_id <= vocab
           || error_set(err, ERR_DATA, "'%s': the tokenizer has %d ids, the model's vocabulary only %" PRId64, dir, (int)t->n_id, vocab);
}

bool tokenizer_same(const struct tokenizer *a, const char *a_name, const struct tokenizer *b, const char *b_name, struct error *err)
{
    for (int32_t id = 0; id < MAX(a->n_id, b->n_id); id++) {
        size_t n_a = 0, n_b = 0;
        const uint8_t *x = tokenizer_bytes(a, id, &n_a), *y = tokenizer_bytes(b, id, &n_b);
        if ((x == NULL) != (y == NULL) || (x && (n_a != n_b || memcmp(x, y, n_a) != 0)))
            return error_set(err, ERR_DATA, "token %d is '%.*s' in '%s' and '%.*s' in '%s'", (int)id, (int)n_a, x ? (const char *)x : "",
                             a_name, (int)n_b, y ? (const char *)y : "", b_name);
    }
    return true;
}

bool tokenizer_has_id(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_id && t->spelling[id].bytes;
}

const int32_t *tokenizer_eos(const struct tokenizer *t, int *n_eos)
{
    *n_eos = (int)t->eos.n;
    return t->eos.id;
}

bool tokenizer_is_eos(const struct tokenizer *t, int32_t id)
{
    for (int64_t i = 0; i < t->eos.n; i++)
        if (t->eos.id[i] == id)
            return true;
    return false;
}

void tokenizer_show(struct tokenizer *t, const char *tag)
{
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].len > 0 && strstr(tag, t->added[i].content))
            t->spelling[t->added[i].id].shown = true;
}

int64_t tokenizer_n_text(const struct tokenizer *t, const int32_t *id, int64_t n)
{
    bool ended = n > 0 && tokenizer_is_eos(t, id[n - 1]);
    return n - (ended && !(tokenizer_has_id(t, id[n - 1]) && t->spelling[id[n - 1]].shown));
}

bool tokenizer_find(const struct tokenizer *t, const char *text, int32_t *id)
{
    for (int i = 0; i < t->n_added; i++)
        if (strcmp(t->added[i].content, text) == 0)
            return *id = t->added[i].id, true;
    struct buf bytes = BUF_INIT;
    bool raw = false;
    int32_t found = -1;
    if (utf8_valid_len((const uint8_t *)text, strlen(text), NULL, NULL) == strlen(text)
        && (t->bpe.text ? buf_str(&bytes, text) : spelling_to_bytes(text, strlen(text), &bytes, &raw)))
        found = bpe_find(&t->bpe, buf_text(&bytes), bytes.len, raw);
    buf_release(&bytes);
    if (found >= 0)
        *id = found;
    return found >= 0;
}
