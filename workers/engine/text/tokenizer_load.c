#include <inttypes.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/engine/text/json_scan.h"
#include "workers/engine/text/tokenizer_parts.h"

#define FILE_BYTES_MAX ((size_t)512 << 20)    // the largest published tokenizer.json has 33 MB
#define CONFIG_BYTES_MAX ((size_t)64 << 20)

/* ---- the byte alphabet ---- */

/* Printable bytes stand for themselves; the other 68 are U+0100.. in order. */
static bool byte_is_plain(int b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

static int byte_of(uint32_t cp)
{
    if (cp < 0x100)
        return byte_is_plain((int)cp) ? (int)cp : -1;
    if (cp >= 0x144)
        return -1;
    int nth = (int)cp - 0x100;    // 0..67: U+0000-0020, U+007F-00A0, U+00AD
    return nth < 33 ? nth : nth < 67 ? 0x7F + nth - 33 : 0xAD;
}

bool spelling_to_bytes(const char *text, size_t len, struct buf *out, bool *raw)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + len;
    size_t was = out->len;
    uint8_t *at = (uint8_t *)buf_reserve(out, len);
    *raw = false;
    if (!at)
        return false;
    while (p < end) {
        int n, b = byte_of(utf8_at(p, &n));
        if (b < 0) {
            *raw = true;
            out->len = was;
            return buf_add(out, text, len);
        }
        *at++ = (uint8_t)b;
        out->len++;
        p += n;
    }
    return true;
}

/* ---- the model ---- */

struct load {
    struct tokenizer *t;
    const char *name;
    struct json_scan vocab, merges;    // where they begin; text NULL: absent
    int64_t n_vocab, n_merges, max_id;
    json_t *added, *normalizer, *pre_tokenizer, *post_processor, *decoder;    // owned
    bool ignore_merges, unk, byte_fallback, fuse_unk, unigram;
    json_int_t unk_id;    // of Unigram; -1: none
    struct buf unk_token;
    struct buf a, b, key;    // scratch
};

/* A Unigram vocabulary: ids are places in the list. */
static bool pieces_count(struct load *l, struct json_scan *s, struct error *err)
{
    bool first = true, ok;
    l->unigram = true;
    while (json_scan_item(s, &first, &ok, err)) {
        if (!json_scan_skip(s, err))
            return false;
        if (++l->n_vocab > BPE_IDS_MAX)
            return json_scan_fail(s, err, "more than %d tokens", BPE_IDS_MAX);
    }
    l->max_id = MAX(l->max_id, l->n_vocab - 1);
    return ok;
}

static bool vocab_count(struct load *l, struct json_scan *s, struct error *err)
{
    bool first = true, ok;
    struct json_scan ahead = *s;
    if (json_scan_next(&ahead, '['))
        return pieces_count(l, s, err);
    while (json_scan_member(s, &first, &l->key, &ok, err)) {
        int64_t id;
        if (!json_scan_int(s, &id, err))
            return false;
        if (id < 0 || id >= BPE_IDS_MAX)
            return json_scan_fail(s, err, "the id %" PRId64 " of '%.80s' is outside 0..%d", id, buf_text(&l->key), BPE_IDS_MAX - 1);
        l->max_id = MAX(l->max_id, id);
        l->n_vocab++;
    }
    return ok;
}

static bool merges_count(struct load *l, struct json_scan *s, struct error *err)
{
    bool first = true, ok;
    while (json_scan_item(s, &first, &ok, err)) {
        if (!json_scan_skip(s, err))
            return false;
        if (++l->n_merges > 4 * BPE_IDS_MAX)
            return json_scan_fail(s, err, "more than %d merges", 4 * BPE_IDS_MAX);
    }
    return ok;
}

/* Settings of the model. Those that are refused change what is encoded, and no published tokenizer of a language model has them. */
static bool model_setting(struct load *l, struct json_scan *s, const char *key, struct error *err)
{
    json_t *v = json_scan_value(s, err);
    if (!v)
        return false;
    bool on = json_is_true(v) || (json_is_string(v) && json_string_length(v) > 0) || (json_is_number(v) && json_number_value(v) != 0),
         ok = true;
    const char *text = json_is_string(v) ? json_string_value(v) : "not named";
    if (strcmp(key, "type") == 0 && strcmp(text, "BPE") != 0 && strcmp(text, "Unigram") != 0)
        ok = error_set(err, ERR_UNSUPPORTED, "%s: the model is '%s'; BPE and Unigram are supported", l->name, text);
    else if (strcmp(key, "ignore_merges") == 0)
        l->ignore_merges = on;
    else if (strcmp(key, "byte_fallback") == 0)
        l->byte_fallback = on;
    else if (strcmp(key, "fuse_unk") == 0)
        l->fuse_unk = on;
    else if (strcmp(key, "unk_id") == 0)
        l->unk_id = json_is_integer(v) ? json_integer_value(v) : -1;
    else if (strcmp(key, "unk_token") == 0 && on && !json_is_string(v))
        ok = error_set(err, ERR_DATA, "%s: the model's 'unk_token' is not a string", l->name);
    else if (strcmp(key, "unk_token") == 0)
        ok = !(l->unk = on) || buf_str(&l->unk_token, json_string_value(v)) || error_set(err, ERR_NO_MEMORY, "no memory for a token");
    else if (on && (strcmp(key, "dropout") == 0 || strcmp(key, "continuing_subword_prefix") == 0 || strcmp(key, "end_of_word_suffix") == 0))
        ok = error_set(err, ERR_UNSUPPORTED, "%s: the model's '%s' is not supported", l->name, key);
    json_decref(v);
    return ok;
}

static bool model_scan(struct load *l, struct json_scan *s, struct error *err)
{
    bool first = true, ok;
    struct buf key = { .max = 1 << 20 };
    while (json_scan_member(s, &first, &key, &ok, err)) {
        const char *k = buf_text(&key);
        if (strcmp(k, "vocab") == 0 || strcmp(k, "merges") == 0) {
            bool vocab = k[0] == 'v';
            struct json_scan *keep = vocab ? &l->vocab : &l->merges;
            if (keep->text)
                ok = json_scan_fail(s, err, "'%s' is there twice", k);
            *keep = *s;
            ok = ok && (vocab ? vocab_count(l, s, err) : merges_count(l, s, err));
        } else {
            ok = model_setting(l, s, k, err);
        }
        if (!ok)
            break;
    }
    buf_release(&key);
    return ok;
}

/* Pass a section that changes nothing here, and say so when it asks for something. */
static bool ignored_say(const struct load *l, struct json_scan *s, const char *key, struct error *err)
{
    json_t *v = json_scan_value(s, err);
    if (!v)
        return false;
    if (!json_is_null(v))
        log_info("%s: '%s' is ignored; a prompt is never cut or filled up", l->name, key);
    json_decref(v);
    return true;
}

static bool file_scan(struct load *l, const char *text, size_t len, struct error *err)
{
    struct json_scan s = { .name = l->name, .text = text, .at = text, .end = text + len };
    bool first = true, ok, model = false;
    struct buf key = { .max = 1 << 20 };
    while (json_scan_member(&s, &first, &key, &ok, err)) {
        const struct {
            const char *key;
            json_t **to;
        } parts[] = {
            { "added_tokens", &l->added },
            { "normalizer", &l->normalizer },
            { "pre_tokenizer", &l->pre_tokenizer },
            { "post_processor", &l->post_processor },
            { "decoder", &l->decoder },
        };
        const char *k = buf_text(&key);
        json_t **to = NULL;
        for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
            if (strcmp(k, parts[i].key) == 0)
                to = parts[i].to;
        if ((to && *to) || (model && strcmp(k, "model") == 0))
            ok = json_scan_fail(&s, err, "'%s' is there twice", k);
        else if (to)
            ok = (*to = json_scan_value(&s, err)) != NULL;
        else if (strcmp(k, "model") == 0)
            model = true, ok = model_scan(l, &s, err);
        else if (strcmp(k, "truncation") == 0 || strcmp(k, "padding") == 0)
            ok = ignored_say(l, &s, k, err);
        else
            ok = json_scan_skip(&s, err);
        if (!ok)
            break;
    }
    buf_release(&key);
    ok = ok && json_scan_end(&s, err);
    if (ok && (!model || !l->vocab.text || (!l->merges.text && !l->unigram)))
        ok = error_set(err, ERR_DATA, "%s: no 'model' with 'vocab' and 'merges'; is this a tokenizer.json?", l->name);
    return ok;
}

/* A token's bytes from its spelling in the file: itself where tokens are text. */
static bool spell(const struct load *l, const char *text, size_t len, struct buf *out, bool *raw)
{
    *raw = false;
    return l->t->bpe.text ? buf_add(out, text, len) : spelling_to_bytes(text, len, out, raw);
}

/* The pieces of Unigram and their scores. */
static bool pieces_read(struct load *l, struct error *err)
{
    struct json_scan *s = &l->vocab;
    struct unigram *u = &l->t->unigram;
    bool first = true, ok;
    double least = INFINITY;
    if (!(u->score = calloc((size_t)l->t->n_id + 1, sizeof *u->score)))
        return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " scores", l->n_vocab);
    for (int32_t id = 0; json_scan_item(s, &first, &ok, err); id++) {
        struct error why;
        if (!json_scan_expect(s, '[', err) || !json_scan_string(s, &l->key, err) || !json_scan_expect(s, ',', err))
            return false;
        json_t *score = json_scan_value(s, err);
        bool number = json_is_number(score);
        if (number)
            u->score[id] = json_number_value(score);
        json_decref(score);
        if (!number || !json_scan_expect(s, ']', err))
            return number ? false : json_scan_fail(s, err, "the score of '%.80s' is not a number", buf_text(&l->key));
        least = fmin(least, u->score[id]);
        if (l->key.len == 0)
            continue;    // a piece that no text has
        if (!bpe_token_add(&l->t->bpe, id, buf_text(&l->key), l->key.len, false, &why))
            return json_scan_fail(s, err, "in the vocabulary, '%.80s': %s", buf_text(&l->key), why.text);
        u->longest = MAX(u->longest, l->key.len);
    }
    u->unknown = least - 10;
    return ok;
}

static bool vocab_read(struct load *l, struct error *err)
{
    struct json_scan *s = &l->vocab;
    bool first = true, ok;
    if (l->unigram)
        return pieces_read(l, err);
    while (json_scan_member(s, &first, &l->key, &ok, err)) {
        int64_t id;
        struct error why;
        bool raw;
        if (!json_scan_int(s, &id, err))
            return false;
        buf_clear(&l->a);
        if (!spell(l, buf_text(&l->key), l->key.len, &l->a, &raw))
            return json_scan_fail(s, err, "a token is too long");
        if (!bpe_token_add(&l->t->bpe, (int32_t)id, buf_text(&l->a), l->a.len, raw, &why))
            return json_scan_fail(s, err, "in the vocabulary, '%.80s': %s", buf_text(&l->key), why.text);
    }
    return ok;
}

/* The two parts of a merge as bytes, one after the other in l->a; *split is the length of the first. */
static bool merge_parts(struct load *l, struct json_scan *s, size_t *split, bool raw[2], struct error *err)
{
    buf_clear(&l->a);
    if (json_scan_next(s, '[')) {
        for (int i = 0; i < 2; i++) {
            if ((i == 1 && !json_scan_expect(s, ',', err)) || !json_scan_string(s, &l->key, err))
                return false;
            if (!spell(l, buf_text(&l->key), l->key.len, &l->a, &raw[i]))
                return json_scan_fail(s, err, "a merge is too long");
            if (i == 0)
                *split = l->a.len;
        }
        return json_scan_expect(s, ']', err);
    }
    if (!json_scan_string(s, &l->key, err))
        return false;
    const char *text = buf_text(&l->key), *space = memchr(text, ' ', l->key.len);
    size_t at = space ? (size_t)(space - text) : 0;
    if (!space || memchr(space + 1, ' ', l->key.len - at - 1))
        return json_scan_fail(s, err, "the merge '%.80s' is not two parts with a space between", text);
    if (!spell(l, text, at, &l->a, &raw[0]))
        return json_scan_fail(s, err, "a merge is too long");
    *split = l->a.len;
    return spell(l, space + 1, l->key.len - at - 1, &l->a, &raw[1]) || json_scan_fail(s, err, "a merge is too long");
}

static bool merges_read(struct load *l, struct error *err)
{
    struct json_scan *s = &l->merges;
    struct bpe *b = &l->t->bpe;
    bool first = true, ok;
    uint32_t rank = 0;
    if (l->unigram)
        return true;
    while (json_scan_item(s, &first, &ok, err)) {
        size_t split = 0;
        bool raw[2];
        if (rank == 0 && s->end - s->at > 10 && strncmp(s->at, "\"#version", 9) == 0) {
            if (!json_scan_skip(s, err))
                return false;
            continue;
        }
        if (!merge_parts(l, s, &split, raw, err))
            return false;
        const char *bytes = buf_text(&l->a);
        int32_t left = bpe_find(b, bytes, split, raw[0]), right = bpe_find(b, bytes + split, l->a.len - split, raw[1]);
        int32_t both = -1;
        if (!raw[0] && !raw[1]) {
            both = bpe_find(b, bytes, l->a.len, false);
        } else if (left >= 0 && right >= 0) {
            rank++;    // its parts never come out of text: a merge that cannot fire
            continue;
        }
        if (left < 0 || right < 0 || both < 0)
            return json_scan_fail(s, err, "merge %u: %s is not in the vocabulary", rank,
                                  left < 0    ? "its first part"
                                  : right < 0 ? "its second part"
                                              : "what it makes");
        if (!bpe_merge_add(b, left, right, rank++, both, err))
            return false;
    }
    return ok;
}

/* ---- the parts around the model ---- */

static bool added_read(struct load *l, struct error *err)
{
    struct tokenizer *t = l->t;
    size_t n = json_array_size(l->added), i;
    json_t *spec;
    if (l->added && !json_is_array(l->added) && !json_is_null(l->added))
        return error_set(err, ERR_DATA, "%s: 'added_tokens' is not a list", l->name);
    if (n > ADDED_MAX)
        return error_set(err, ERR_DATA, "%s: %zu added tokens are more than the %d allowed", l->name, n, ADDED_MAX);
    t->added = calloc(n + 1, sizeof t->added[0]);
    if (!t->added)
        return error_set(err, ERR_NO_MEMORY, "no memory for %zu added tokens", n);
    json_array_foreach(l->added, i, spec)
    {
        const json_t *content = json_object_get(spec, "content"), *id = json_object_get(spec, "id");
        size_t len = json_string_length(content);
        if (!json_is_string(content) || !json_is_integer(id) || strlen(json_string_value(content)) != len)
            return error_set(err, ERR_DATA, "%s: added_tokens[%zu] needs a 'content' and an 'id'", l->name, i);
        if (len == 0)
            continue;
        int64_t at = json_integer_value(id);
        if (at < 0 || at >= BPE_IDS_MAX || len > ADDED_LEN_MAX)
            return error_set(err, ERR_DATA, "%s: added_tokens[%zu] has the id %" PRId64 " or %zu bytes, beyond %d or %d", l->name, i, at,
                             len, BPE_IDS_MAX - 1, ADDED_LEN_MAX);
        struct added_token *a = &t->added[t->n_added++];
        *a = (struct added_token){
            .content = strdup(json_string_value(content)),
            .len = len,
            .id = (int32_t)at,
            .special = json_is_true(json_object_get(spec, "special")),
            .lstrip = json_is_true(json_object_get(spec, "lstrip")),
            .rstrip = json_is_true(json_object_get(spec, "rstrip")),
            .single_word = json_is_true(json_object_get(spec, "single_word")),
            .normalized = json_is_true(json_object_get(spec, "normalized")),
        };
        if (!a->content)
            return error_set(err, ERR_NO_MEMORY, "no memory for %zu added tokens", n);
        l->max_id = MAX(l->max_id, (int64_t)at);
    }
    return true;
}

/* Set the text each added token is matched by and what it decodes to, and check its id against the vocabulary. */
static bool added_place(struct load *l, struct error *err)
{
    struct tokenizer *t = l->t;
    size_t *at = calloc((size_t)t->n_added + 1, sizeof *at);
    bool ok = false;
    if (!at) {
        error_set(err, ERR_NO_MEMORY, "no memory for added tokens");
        goto out;
    }
    for (int i = 0; i < t->n_added; i++) {
        struct added_token *a = &t->added[i];
        struct buf pattern = BUF_INIT, work[2] = { BUF_INIT, BUF_INIT };
        const uint8_t *text = (const uint8_t *)a->content;
        size_t len = a->len;
        bool made = !a->normalized || normalizer_apply(&t->normalizer, &t->unicode, &text, &len, work, err);
        made = made && (buf_add(&pattern, text, len) || error_set(err, ERR_NO_MEMORY, "no memory for added tokens"));
        buf_release(&work[0]);
        buf_release(&work[1]);
        a->pattern = pattern.data;
        a->pattern_len = pattern.len;
        if (!made)
            goto out;
        bool raw;
        buf_clear(&l->a);
        at[i] = t->added_bytes.len;    // decoding gives the normalised form, as in the library
        if (!spell(l, a->pattern, a->pattern_len, &t->added_bytes, &raw) || !spell(l, a->content, a->len, &l->a, &raw)) {
            error_set(err, ERR_NO_MEMORY, "no memory for added tokens");
            goto out;
        }
        int32_t in_vocab = bpe_find(&t->bpe, buf_text(&l->a), l->a.len, raw);
        if (in_vocab >= 0 ? in_vocab != a->id : t->bpe.token[a->id].len != 0) {
            error_set(err, ERR_DATA, "%s: the added token '%.80s' has id %d, the vocabulary says otherwise", l->name, a->content, a->id);
            goto out;
        }
    }
    for (int i = 0; i < t->n_added; i++) {    // from here on added_bytes no longer moves
        struct added_token *a = &t->added[i];
        struct spelling *sp = &t->spelling[a->id];
        size_t end = i + 1 < t->n_added ? at[i + 1] : t->added_bytes.len;
        if (sp->bytes && t->bpe.token[a->id].len == 0) {
            error_set(err, ERR_DATA, "%s: the added token '%.80s' has id %d, as another one", l->name, a->content, a->id);
            goto out;
        }
        *sp = (struct spelling){ .bytes = (const uint8_t *)t->added_bytes.data + at[i],
                                 .len = (uint32_t)(end - at[i]),
                                 .special = a->special };
    }
    ok = true;
out:
    free(at);
    return ok;
}

static bool id_of(struct load *l, const char *text, struct token_list *to, struct error *err)
{
    int32_t id;
    if (!text || !tokenizer_find(l->t, text, &id))
        return error_set(err, ERR_DATA, "%s: post_processor names the token '%s', which is not there", l->name, text ? text : "");
    return token_list_add(to, &id, 1) || error_set(err, ERR_NO_MEMORY, "no memory for a post-processor");
}

/* TemplateProcessing of a single text: special tokens before and after the sequence A. */
static bool single_read(struct load *l, const json_t *single, struct error *err)
{
    bool behind = false;
    size_t i;
    json_t *part;
    json_array_foreach(single, i, part)
    {
        const json_t *special = json_object_get(part, "SpecialToken");
        if (special && !id_of(l, json_string_value(json_object_get(special, "id")), behind ? &l->t->after : &l->t->before, err))
            return false;
        if (!special && (behind || !json_object_get(part, "Sequence")))
            return error_set(err, ERR_UNSUPPORTED, "%s: post_processor's template is not one sequence", l->name);
        behind |= !special;
    }
    return behind || error_set(err, ERR_DATA, "%s: post_processor's template has no sequence", l->name);
}

static bool post_processor_read(struct load *l, const json_t *spec, int depth, struct error *err)
{
    if (!spec || json_is_null(spec))
        return true;
    const char *type = json_string_value(json_object_get(spec, "type"));
    const json_t *list = json_object_get(spec, "processors"), *one;
    size_t i;
    if (type && strcmp(type, "ByteLevel") == 0)
        return true;
    if (type && strcmp(type, "Sequence") == 0 && depth < 4) {
        json_array_foreach(list, i, one) if (!post_processor_read(l, one, depth + 1, err)) return false;
        return true;
    }
    if (type && strcmp(type, "TemplateProcessing") == 0)
        return single_read(l, json_object_get(spec, "single"), err);
    if (type && (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0))
        return id_of(l, json_string_value(json_array_get(json_object_get(spec, "cls"), 0)), &l->t->before, err)
               && id_of(l, json_string_value(json_array_get(json_object_get(spec, "sep"), 0)), &l->t->after, err);
    return error_set(err, ERR_UNSUPPORTED, "%s: the post_processor '%s' is not supported", l->name, type ? type : "without a type");
}

static bool decoder_check(struct load *l, struct error *err)
{
    if (l->t->bpe.text)
        return decode_rules_read(&l->t->rules, l->decoder, l->name, err);
    // without one the library prints the alphabet that stands for the bytes, with blanks between tokens: nobody's text, so the bytes are taken
    if (!l->decoder || json_is_null(l->decoder))
        return true;
    const char *type = json_string_value(json_object_get(l->decoder, "type"));
    if (type && strcmp(type, "ByteLevel") == 0)
        return true;
    return error_set(err, ERR_UNSUPPORTED, "%s: the decoder '%s' is not supported; byte-level BPE has ByteLevel", l->name,
                     type ? type : "without a type");
}

/* The tokens of bytes and of the unknown, where tokens are text. */
static bool fallback_find(struct load *l, struct error *err)
{
    struct bpe *b = &l->t->bpe;
    char spelt[8];
    b->byte_fallback = l->byte_fallback;
    b->fuse_unk = l->fuse_unk;
    for (int i = 0; i < 256 && l->byte_fallback; i++) {
        snprintf(spelt, sizeof spelt, "<0x%02X>", i);
        b->fallback[i] = bpe_find(b, spelt, strlen(spelt), false);
        if (b->fallback[i] < 0)
            return error_set(err, ERR_UNSUPPORTED, "%s: 'byte_fallback' is on, and the vocabulary lacks the byte %s", l->name, spelt);
    }
    if (l->unigram)
        b->unk = l->unk_id >= 0 && l->unk_id < l->n_vocab ? (int32_t)l->unk_id : -1;
    else if (l->unk)
        b->unk = bpe_find(b, buf_text(&l->unk_token), l->unk_token.len, false);
    return b->unk >= 0 || !(l->unigram ? l->unk_id >= 0 : l->unk)
           || error_set(err, ERR_DATA, "%s: the unknown token is not in the vocabulary", l->name);
}

/* What each token decodes to, where tokens are text. */
static bool texts_make(struct load *l, struct error *err)
{
    struct tokenizer *t = l->t;
    size_t *at = calloc((size_t)t->n_id + 1, sizeof *at);
    bool ok = at != NULL;
    for (int32_t i = 0; ok && i < t->n_id; i++) {
        struct spelling *s = &t->spelling[i];
        int byte = s->bytes && t->rules.bytes ? byte_spelt((const char *)s->bytes, s->len, true) : -1;
        at[i] = t->text.len;
        s->own = s->bytes;
        s->own_len = s->len;
        s->byte = byte >= 0;
        ok = byte >= 0                           ? buf_char(&t->text, (char)byte)
             : s->bytes && t->rules.from.len > 0 ? normal_replace(&t->text, s->bytes, s->len, &t->rules.from, &t->rules.to)
                                                 : buf_add(&t->text, s->bytes ? s->bytes : (const uint8_t *)"", s->bytes ? s->len : 0);
    }
    for (int32_t i = 0; ok && i < t->n_id; i++)
        if (t->spelling[i].bytes) {
            t->spelling[i].bytes = (const uint8_t *)buf_text(&t->text) + at[i];
            t->spelling[i].len = (uint32_t)((i + 1 < t->n_id ? at[i + 1] : t->text.len) - at[i]);
        }
    free(at);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for a vocabulary of %d ids", t->n_id);
}

static bool bytes_check(struct load *l, struct error *err)
{
    if (l->t->bpe.text)
        return fallback_find(l, err);
    for (int i = 0; l->unk && i < 256; i++)
        if (l->t->bpe.byte_id[i] < 0)
            return error_set(err, ERR_UNSUPPORTED, "%s: the vocabulary lacks the byte 0x%02x and has an unk_token instead", l->name, i);
    return true;
}

struct tokenizer *tokenizer_parse(const char *json, size_t len, const char *name, struct error *err)
{
    struct load l = { .name = name, .max_id = -1, .unk_id = -1, .a.max = 1 << 20, .b.max = 1 << 20, .key.max = 1 << 20 };
    struct tokenizer *t = l.t = calloc(1, sizeof *t);
    bool ok = false;
    if (!t) {
        error_set(err, ERR_NO_MEMORY, "no memory for a tokenizer");
        return NULL;
    }
    TRY(file_scan(&l, json, len, err));
    TRY(unicode_init(&t->unicode, err));
    TRY(normalizer_read(&t->normalizer, l.normalizer, name, err));
    TRY(pretok_init(&t->pretok, l.pre_tokenizer, &t->unicode, false, err) || error_wrap(err, "%s", name));
    t->next = pretok_fast(&t->pretok);
    t->bpe.text = !t->pretok.byte_level;
    if (l.unigram && !t->bpe.text) {
        error_set(err, ERR_UNSUPPORTED, "%s: Unigram with a ByteLevel pre_tokenizer is not supported", name);
        goto out;
    }
    TRY(decoder_check(&l, err));
    TRY(added_read(&l, err));
    t->n_id = (int32_t)l.max_id + 1;
    t->bpe.seed = (uint64_t)clock_ns() * 0x9E3779B97F4A7C15u ^ (uintptr_t)t;
    t->bpe.ignore_merges = l.ignore_merges;
    t->is_unigram = l.unigram;
    TRY(bpe_init(&t->bpe, t->n_id, (int32_t)MIN(l.n_vocab, (int64_t)BPE_IDS_MAX), (uint32_t)l.n_merges, err));
    TRY(vocab_read(&l, err));
    TRY(merges_read(&l, err));
    TRY(bytes_check(&l, err));
    t->spelling = calloc((size_t)t->n_id + 1, sizeof t->spelling[0]);
    if (!t->spelling) {
        error_set(err, ERR_NO_MEMORY, "no memory for a vocabulary of %d ids", t->n_id);
        goto out;
    }
    for (int32_t i = 0; i < t->n_id; i++)
        if (t->bpe.token[i].len)
            t->spelling[i] = (struct spelling){ .bytes = (const uint8_t *)t->bpe.bytes + t->bpe.token[i].at, .len = t->bpe.token[i].len };
    TRY(added_place(&l, err));
    TRY(!t->bpe.text || texts_make(&l, err));
    TRY(added_set_init(&t->added_raw, t->added, t->n_added, false, err));
    TRY(added_set_init(&t->added_normal, t->added, t->n_added, true, err));
    TRY(post_processor_read(&l, l.post_processor, 0, err));
    ok = true;
out:
    json_decref(l.added);
    json_decref(l.normalizer);
    json_decref(l.pre_tokenizer);
    json_decref(l.post_processor);
    json_decref(l.decoder);
    buf_release(&l.a);
    buf_release(&l.b);
    buf_release(&l.key);
    buf_release(&l.unk_token);
    if (ok)
        return t;
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_added; i++) {
        free(t->added[i].content);
        free(t->added[i].pattern);
    }
    free(t->added);
    added_set_release(&t->added_raw);
    added_set_release(&t->added_normal);
    buf_release(&t->added_bytes);
    free(t->spelling);
    free(t->unigram.score);
    buf_release(&t->text);
    buf_release(&t->rules.from);
    buf_release(&t->rules.to);
    normalizer_release(&t->normalizer);
    token_list_release(&t->before);
    token_list_release(&t->after);
    token_list_release(&t->eos);
    bpe_release(&t->bpe);
    pretok_release(&t->pretok);
    unicode_release(&t->unicode);
    free(t);
}

/* ---- the files next to it ---- */

/* DIR/name as JSON; *out NULL when there is no such file. */
static bool config_read(const char *dir, const char *name, json_t **out, struct error *err)
{
    char path[PATH_MAX];
    struct buf text = { .max = CONFIG_BYTES_MAX };
    *out = NULL;
    if (!path_join(path, sizeof path, dir, name))
        return error_set(err, ERR_IO, "the path of '%s' is too long", name);
    if (!path_exists(path))
        return true;
    bool ok = file_read_text(&text, path, CONFIG_BYTES_MAX, err)
              && (*out = json_text_parse(buf_text(&text), text.len, JSON_REJECT_DUPLICATES, path, err));
    buf_release(&text);
    return ok;
}

static bool eos_add(struct tokenizer *t, json_int_t id, struct error *err)
{
    int32_t one = (int32_t)id;
    if (id < 0 || id >= BPE_IDS_MAX || tokenizer_is_eos(t, one))
        return true;
    return token_list_add(&t->eos, &one, 1) || error_set(err, ERR_NO_MEMORY, "no memory for the end tokens");
}

/* eos_token_id: a number or a list of numbers. */
static bool eos_read(struct tokenizer *t, const json_t *v, struct error *err)
{
    size_t i;
    json_t *one;
    if (json_is_integer(v))
        return eos_add(t, json_integer_value(v), err);
    json_array_foreach(v, i, one) if (json_is_integer(one) && !eos_add(t, json_integer_value(one), err)) return false;
    return true;
}

/* A token named in tokenizer_config.json, as its text or as an object with a content. */
static bool named_token(const struct tokenizer *t, const json_t *config, const char *key, int32_t *id)
{
    const json_t *v = json_object_get(config, key);
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    return text && tokenizer_find(t, text, id);
}

static bool beside_read(struct tokenizer *t, const char *dir, struct error *err)
{
    json_t *tok = NULL, *gen = NULL, *config = NULL;
    bool ok = false;
    int32_t id;
    TRY(config_read(dir, "tokenizer_config.json", &tok, err));
    TRY(config_read(dir, "generation_config.json", &gen, err));
    TRY(config_read(dir, "config.json", &config, err));
    TRY(eos_read(t, json_object_get(json_object_get(gen, "eos_token_id") ? gen : config, "eos_token_id"), err));
    if (named_token(t, tok, "eos_token", &id))
        TRY(eos_add(t, id, err));
    ok = true;
out:
    json_decref(tok);
    json_decref(gen);
    json_decref(config);
    return ok;
}

struct tokenizer *tokenizer_load(const char *path, struct error *err)
{
    char file[PATH_MAX];
    struct file_map map;
    bool dir = path_is_dir(path);
    if (!path_join(file, sizeof file, dir ? path : "", dir ? "tokenizer.json" : path)) {
        error_set(err, ERR_IO, "the path '%s' is too long", path);
        return NULL;
    }
    if (!file_map_open(&map, file, err))
        return NULL;
    struct tokenizer *t = NULL;
    if (map.size_bytes > FILE_BYTES_MAX)
        error_set(err, ERR_DATA, "'%s' has %zu bytes, more than any tokenizer", file, map.size_bytes);
    else
        t = tokenizer_parse((const char *)map.data, map.size_bytes, file, err);
    file_map_close(&map);
    if (t && dir && !beside_read(t, path, err)) {
        tokenizer_free(t);
        return NULL;
    }
    return t;
}
