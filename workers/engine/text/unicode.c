#include "workers/engine/text/unicode.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static bool is_white_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028
           || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Characters that gained a combining class or a decomposition after Unicode 9. Hugging Face tokenizers normalises with
 * tables of that version, and models were trained on its output, so these characters keep their order. Found by
 * comparing with tokenizers 0.23.3 and Unicode 14 (tests/golden/make_tokenizers.py normal). First and last of each
 * range. U+11A7
 * is here for another reason: utf8proc 2.8 takes it for the tail of a Hangul syllable and drops it (UAX 15 says it composes
 * with nothing). */
// clang-format off
static const uint32_t after_unicode_9[][2] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},
    {0x10781, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};
// clang-format on

static bool is_after_unicode_9(uint32_t cp)
{
    if (cp < after_unicode_9[0][0])
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(after_unicode_9); i++)
        if (cp <= after_unicode_9[i][1])
            return cp >= after_unicode_9[i][0];
    return false;
}

/* Characters that are punctuation (P*) in Unicode 14 and not for Hugging Face tokenizers, whose table is of Unicode 8, or the other
 * way round (U+166D, U+111C9). Found by asking Punctuation of tokenizers 0.23.3 for every assigned character. */
// clang-format off
static const uint32_t other_punctuation[][2] = {
    {0x61D, 0x61D}, {0x9FD, 0x9FD}, {0xA76, 0xA76}, {0xC77, 0xC77}, {0xC84, 0xC84},
    {0x166D, 0x166D}, {0x1B7D, 0x1B7E}, {0x2E43, 0x2E4F}, {0x2E52, 0x2E5D}, {0x10EAD, 0x10EAD},
    {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x111C9, 0x111C9}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B},
    {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946},
    {0x119E2, 0x119E2}, {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11C41, 0x11C45},
    {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A},
    {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F},
};
// clang-format on

static bool is_other_punctuation(uint32_t cp)
{
    for (size_t i = 0; i < ARRAY_SIZE(other_punctuation) && cp >= other_punctuation[i][0]; i++)
        if (cp <= other_punctuation[i][1])
            return true;
    return false;
}

/* Stable under NFC: not a mark, not a jamo that joins the syllable before it, and its own NFC. */
static bool is_nfc_stable(uint32_t cp, const utf8proc_property_t *prop)
{
    if (cp < 0x300 || (cp >= 0xAC00 && cp <= 0xD7A3 && (cp - 0xAC00) % 28 != 0))
        return true;    // a syllable with its tail takes nothing more
    if (prop->combining_class != 0 || prop->category == UTF8PROC_CATEGORY_MN || prop->category == UTF8PROC_CATEGORY_MC
        || prop->category == UTF8PROC_CATEGORY_ME || (cp >= 0x1160 && cp <= 0x11FF) || (cp >= 0xD7B0 && cp <= 0xD7FF))
        return false;
    if (prop->decomp_seqindex == UINT16_MAX || prop->decomp_type != 0)
        return true;    // no canonical decomposition
    if (cp >= 0xAC00 && cp <= 0xD7A3)
        return true;
    utf8proc_int32_t part[8];
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, part, 8, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
    if (n < 1 || n > 8)
        return false;
    n = utf8proc_normalize_utf32(part, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return n == 1 && part[0] == (utf8proc_int32_t)cp;
}

static uint8_t class_of(uint32_t cp)
{
    const utf8proc_property_t *prop = utf8proc_get_property((utf8proc_int32_t)cp);
    unsigned c = 0;
    switch ((int)prop->category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: c = CHAR_LETTER | CHAR_WORD; break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: c = CHAR_NUMBER | CHAR_WORD; break;
    case UTF8PROC_CATEGORY_NO: c = CHAR_NUMBER; break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: c = CHAR_WORD; break;
    case UTF8PROC_CATEGORY_PC: c = CHAR_WORD | CHAR_PUNCTUATION; break;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: c = CHAR_PUNCTUATION; break;
    }
    if (cp < 0x80 && ispunct((int)cp))
        c |= CHAR_PUNCTUATION;
    if (is_other_punctuation(cp))
        c ^= CHAR_PUNCTUATION;
    if (cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149)
        || (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189))
        c |= CHAR_WORD;    // joiners, and circled letters, which are Alphabetic though their category is So
    if (is_white_space(cp))
        c |= CHAR_SPACE;
    if (cp == '\r' || cp == '\n')
        c |= CHAR_NEWLINE;
    if (is_after_unicode_9(cp))
        c |= CHAR_NFC_STABLE | CHAR_UNKNOWN;
    else if (is_nfc_stable(cp, prop))
        c |= CHAR_NFC_STABLE;
    return (uint8_t)c;
}

bool unicode_init(struct unicode *u, struct error *err)
{
    *u = (struct unicode){ 0 };
    uint8_t *all = malloc(0x1100 * 256);
    if (!all)
        return error_set(err, ERR_NO_MEMORY, "no memory for the table of character classes");
    for (int i = 0; i < 0x1100; i++) {
        if (i > 0x320 && i != 0xE00 && i != 0xE01) {    // nothing is assigned there but tags (U+E0000..E01FF) and private use
            u->block_of[i] = u->block_of[0x320];
            continue;
        }
        uint8_t *at = all + (size_t)u->n_block * 256;
        for (int j = 0; j < 256; j++)
            at[j] = class_of((uint32_t)(i * 256 + j));
        int same = u->n_block - 1;    // most repeats are of a recent block: planes of ideographs and empty planes
        while (same >= 0 && memcmp(all + (size_t)same * 256, at, 256) != 0)
            same--;
        u->block_of[i] = (uint16_t)(same >= 0 ? same : u->n_block++);
    }
    uint8_t *less = realloc(all, (size_t)u->n_block * 256);
    u->block = less ? less : all;
    for (uint32_t cp = 0; cp < 0x80; cp++)
        u->ascii[cp] = (uint8_t)unicode_class(u, cp);
    return true;
}

void unicode_release(struct unicode *u)
{
    free(u->block);
    *u = (struct unicode){ 0 };
}

int utf8_put(uint8_t *out, uint32_t cp)
{
    if (cp < 0x80)
        return out[0] = (uint8_t)cp, 1;
    if (cp < 0x800)
        return out[0] = (uint8_t)(0xC0 | cp >> 6), out[1] = (uint8_t)(0x80 | (cp & 63)), 2;
    if (cp < 0x10000)
        return out[0] = (uint8_t)(0xE0 | cp >> 12), out[1] = (uint8_t)(0x80 | (cp >> 6 & 63)), out[2] = (uint8_t)(0x80 | (cp & 63)), 3;
    return out[0] = (uint8_t)(0xF0 | cp >> 18), out[1] = (uint8_t)(0x80 | (cp >> 12 & 63)), out[2] = (uint8_t)(0x80 | (cp >> 6 & 63)),
           out[3] = (uint8_t)(0x80 | (cp & 63)), 4;
}

struct mark {
    utf8proc_int32_t cp;
    int32_t order;    // combining class * 2^24 would overflow with long runs, so class and place are compared in turn
    int32_t place;
};
static int mark_compare(const void *a, const void *b)
{
    const struct mark *x = a, *y = b;
    return x->order != y->order ? (x->order > y->order) - (x->order < y->order) : (x->place > y->place) - (x->place < y->place);
}

/* Canonical ordering (UAX 15, D109): each run of marks sorted by class, order kept within a class. utf8proc's own sort
 * is quadratic in the length of a run, so it must find the runs sorted. */
static bool marks_sort(utf8proc_int32_t *cp, size_t n, struct buf *scratch)
{
    for (size_t i = 0; i < n;) {
        if (utf8proc_get_property(cp[i])->combining_class == 0) {
            i++;
            continue;
        }
        size_t end = i;
        bool sorted = true;
        int last = 0;
        for (; end < n; end++) {
            int c = utf8proc_get_property(cp[end])->combining_class;
            if (c == 0)
                break;
            sorted &= c >= last;
            last = c;
        }
        if (!sorted) {
            scratch->len = 0;
            struct mark *m = (struct mark *)(void *)buf_reserve(scratch, (end - i) * sizeof *m);
            if (!m)
                return false;
            for (size_t j = i; j < end; j++)
                m[j - i] = (struct mark){ cp[j], utf8proc_get_property(cp[j])->combining_class, (int32_t)(j - i) };
            qsort(m, end - i, sizeof *m, mark_compare);
            for (size_t j = i; j < end; j++)
                cp[j] = m[j - i].cp;
        }
        i = end;
    }
    return true;
}

/* Normalise [p, end) as a whole and append it. */
static bool run_normalize(enum normal_form form, const uint8_t *p, const uint8_t *end, struct buf *cps, struct buf *scratch,
                          struct buf *out)
{
    int flags = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (form == FORM_NFKC || form == FORM_NFKD)
        flags |= UTF8PROC_COMPAT;
    cps->len = 0;
    while (p < end) {
        int len, boundary = 0;
        uint32_t cp = utf8_at(p, &len);
        utf8proc_int32_t part[32];    // the longest decomposition, of U+FDFA, has 18
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, part, 32, (utf8proc_option_t)flags, &boundary);
        if (n < 0 || n > 32 || !buf_add(cps, part, (size_t)n * sizeof part[0]))
            return false;
        p += len;
    }
    size_t n = cps->len / sizeof(utf8proc_int32_t);
    utf8proc_int32_t *cp = (utf8proc_int32_t *)(void *)cps->data;
    if (!marks_sort(cp, n, scratch))
        return false;
    if (n > 0 && (form == FORM_NFC || form == FORM_NFKC)) {
        utf8proc_ssize_t m = utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (m < 0)
            return false;
        n = (size_t)m;
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t *at = (uint8_t *)buf_reserve(out, 4);
        if (!at)
            return false;
        out->len += (size_t)utf8_put(at, (uint32_t)cp[i]);
        out->data[out->len] = 0;
    }
    return true;
}

bool unicode_normalize(const struct unicode *u, enum normal_form form, const uint8_t *p, size_t len, struct buf *out, struct error *err)
{
    const uint8_t *end = p + len, *done = p, *at = p;
    struct buf cps = BUF_INIT, scratch = BUF_INIT;
    bool ok = true;
    if (form == FORM_NONE) {
        ok = buf_add(out, p, len);
    } else if (form != FORM_NFC) {
        while (ok && at < end) {    // normalise the runs between unknown characters, and copy those
            int n = 1;
            const uint8_t *from = at;
            while (at < end && (at[0] < 0x80 || !(unicode_class(u, utf8_at(at, &n)) & CHAR_UNKNOWN)))
                at += at[0] < 0x80 ? 1 : n;
            ok = run_normalize(form, from, at, &cps, &scratch, out);
            for (from = at; at < end && at[0] >= 0x80 && (unicode_class(u, utf8_at(at, &n)) & CHAR_UNKNOWN);)
                at += n;
            ok = ok && buf_add(out, from, (size_t)(at - from));
        }
    } else {
        // Copy what is stable; around each character that is not, normalise from the last stable one to the next.
        const uint8_t *stable = p;
        while (ok && at < end) {
            int n = at[0] < 0x80 ? 1 : 2;
            unsigned c = at[0] < 0xCC ? CHAR_NFC_STABLE : unicode_class(u, utf8_at(at, &n));
            if (c & CHAR_NFC_STABLE) {
                stable = c & CHAR_UNKNOWN ? at + n : at;
                at += n;
                continue;
            }
            ok = buf_add(out, done, (size_t)(stable - done));
            while (at < end && at[0] >= 0xCC && !(unicode_class(u, utf8_at(at, &n)) & CHAR_NFC_STABLE))
                at += n;
            ok = ok && run_normalize(form, stable, at, &cps, &scratch, out);
            done = stable = at;
        }
        ok = ok && buf_add(out, done, (size_t)(end - done));
    }
    buf_release(&cps);
    buf_release(&scratch);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory to normalise a text of %zu bytes", len);
}

bool utf8_stream_push(struct utf8_stream *s, const uint8_t *p, size_t len, struct buf *out)
{
    while (s->n_held > 0 && len > 0) {    // finish what is held back, byte by byte
        s->held[s->n_held++] = *p;
        int n = utf8_look(s->held, (size_t)s->n_held);
        if (n == 0) {
            p++;
            len--;
        } else if (n > 0) {
            buf_add(out, s->held, (size_t)n);
            s->n_held = 0;
            p++;
            len--;
        } else {    // the held part is invalid with this byte, which is then examined on its own
            buf_add(out, "\xEF\xBF\xBD", 3);
            s->n_held = 0;
        }
    }
    while (len > 0) {
        size_t good = utf8_valid_len(p, len, NULL, NULL);
        buf_add(out, p, good);
        p += good;
        len -= good;
        if (len == 0)
            break;
        int n = utf8_look(p, len);
        if (n == 0) {
            memcpy(s->held, p, len);
            s->n_held = (int)len;
            break;
        }
        buf_add(out, "\xEF\xBF\xBD", 3);
        p += -n;
        len -= (size_t)-n;
    }
    return !out->failed;
}

bool utf8_stream_end(struct utf8_stream *s, struct buf *out)
{
    if (s->n_held > 0)
        buf_add(out, "\xEF\xBF\xBD", 3);
    s->n_held = 0;
    return !out->failed;
}
