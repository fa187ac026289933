/* text_decode.c - tokens that are text, with marks for spaces and tokens for single bytes, back to text
 *
 * The decoders of tokenizer.json are a chain over the list of tokens: Replace and ByteFallback work on each, Fuse joins them, Strip
 * then takes spaces off the beginning. Metaspace is Replace, but the marks of the first token vanish. A run of byte tokens that is
 * not UTF-8 as a whole becomes one U+FFFD per byte, so a run is held back until it ends. */
#include <string.h>
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/text/tokenizer_parts.h"

#define REPLACEMENT "\xEF\xBF\xBD"

int byte_spelt(const char *text, size_t len, bool lower)
{
    int value = 0;
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'            ? c - '0'
                    : c >= 'A' && c <= 'F'          ? c - 'A' + 10
                    : lower && c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                    : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* ---- reading */
static bool set_replace(struct decode_rules *r, const char *from, const char *to, const char *name, struct error *err)
{
    if (r->from.len > 0)
        return error_set(err, ERR_UNSUPPORTED, "%s: a decoder that replaces twice is not supported", name);
    return (buf_str(&r->from, from) && buf_str(&r->to, to)) || error_set(err, ERR_NO_MEMORY, "no memory for a decoder");
}

static bool one_read(struct decode_rules *r, const json_t *spec, bool *fused, const char *name, struct error *err)
{
    const char *type = json_string_value(json_object_get(spec, "type")), *to = json_string_value(json_object_get(spec, "content"));
    const char *from = json_string_value(json_object_get(json_object_get(spec, "pattern"), "String"));
    const json_t *start = json_object_get(spec, "start"), *stop = json_object_get(spec, "stop");
    type = type ? type : "without a type";
    if (strcmp(type, "Fuse") == 0) {
        *fused = true;
        return true;
    }
    if (strcmp(type, "Strip") == 0 && *fused && to && strcmp(to, " ") == 0 && json_integer_value(stop) == 0
        && json_integer_value(start) >= 0 && json_integer_value(start) < 1000) {
        r->strip += (int)json_integer_value(start);
        return true;
    }
    if (*fused)
        return error_set(err, ERR_UNSUPPORTED, "%s: the decoder '%s' after Fuse is not supported", name, type);
    if (strcmp(type, "ByteFallback") == 0)
        return r->bytes = true;
    if (strcmp(type, "Replace") == 0 && from && from[0] && to && !r->bytes)
        return set_replace(r, from, to, name, err);
    const char *mark = json_string_value(json_object_get(spec, "replacement"));
    const char *scheme = json_string_value(json_object_get(spec, "prepend_scheme"));
    if (strcmp(type, "Metaspace") == 0 && mark && mark[0] && !r->bytes) {
        r->bare_first = !scheme || strcmp(scheme, "never") != 0;
        return set_replace(r, mark, " ", name, err);
    }
    return error_set(err, ERR_UNSUPPORTED, "%s: the decoder '%s' is not supported, or not in its place", name, type);
}

bool decode_rules_read(struct decode_rules *r, const json_t *spec, const char *name, struct error *err)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    const json_t *list = json_object_get(spec, "decoders"), *one;
    bool fused = false;
    size_t i;
    if (!spec || json_is_null(spec)) {    // as the tokenizers library: the tokens, with blanks between them
        r->joined = true;
        return true;
    }
    if (!type || strcmp(type, "Sequence") != 0)
        return one_read(r, spec, &fused, name, err);
    json_array_foreach(list, i, one) if (!one_read(r, one, &fused, name, err)) return false;
    return true;
}

/* ---- decoding */
/* Append to out without the spaces that the beginning of the text loses. */
static bool text_add(struct decoder *d, const uint8_t *text, size_t len, struct buf *out)
{
    while (len > 0 && d->stripped < d->tokenizer->rules.strip && text[0] == ' ') {
        d->stripped++;
        text++;
        len--;
    }
    if (len > 0)
        d->stripped = d->tokenizer->rules.strip;
    return buf_add(out, text, len);
}

/* The run of byte tokens has ended. */
static bool run_end(struct decoder *d, struct buf *out)
{
    const uint8_t *p = (const uint8_t *)d->run.data;
    size_t len = d->run.len;
    if (len == 0)
        return true;
    bool ok = true;
    if (utf8_valid_len(p, len, NULL, NULL) == len)
        ok = text_add(d, p, len, out);
    else
        for (size_t i = 0; ok && i < len; i++)
            ok = text_add(d, (const uint8_t *)REPLACEMENT, sizeof REPLACEMENT - 1, out);
    buf_clear(&d->run);
    return ok;
}

bool text_decoder_push(struct decoder *d, int32_t id, struct buf *out)
{
    const struct tokenizer *t = d->tokenizer;
    const struct spelling *s = &t->spelling[id];
    bool first = !d->begun;
    d->begun = true;
    if (t->rules.joined && !first && !buf_char(out, ' '))
        return false;
    if (s->byte)
        return buf_add(&d->run, s->bytes, s->len);
    if (!run_end(d, out))
        return false;
    if (!first || !t->rules.bare_first)
        return text_add(d, s->bytes, s->len, out);
    struct buf bare = BUF_INIT, nothing = BUF_INIT;
    bool ok = normal_replace(&bare, s->own, s->own_len, &t->rules.from, &nothing)
              && text_add(d, (const uint8_t *)buf_text(&bare), bare.len, out);
    buf_release(&bare);
    return ok;
}

bool text_decoder_end(struct decoder *d, struct buf *out)
{
    bool ok = run_end(d, out);
    buf_release(&d->run);
    d->begun = false;
    d->stripped = 0;
    return ok;
}
