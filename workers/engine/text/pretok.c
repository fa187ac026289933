#define PCRE2_CODE_UNIT_WIDTH 8
#include "workers/engine/text/pretok.h"
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/text/normalizer.h"
#include "workers/engine/text/regex_spell.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum stage_kind {
    STAGE_NEXT,           // a handwritten matcher that covers every character
    STAGE_REGEX,          // PCRE2; behavior says what happens to matches
    STAGE_DIGITS,         // numbers apart, one by one or in runs
    STAGE_PUNCTUATION,    // each character of punctuation is a match
    STAGE_SPACES,         // each White_Space character is a match
    STAGE_METASPACE,      // spaces become a mark, which also begins a text that does not begin with it
    STAGE_WORDS,          // each run of \w, and each run of neither \w nor White_Space, is a match
};
enum behavior {
    ISOLATED,
    REMOVED,
    MERGED_WITH_PREVIOUS,
    MERGED_WITH_NEXT,
    CONTIGUOUS,
};
struct pretok_stage {
    enum stage_kind kind;
    pretok_next *next;
    pcre2_code *code;    // owned
    enum behavior behavior;
    bool invert;
    bool individual_digits;
    // of Metaspace
    struct buf mark;
    enum prepend {
        PREPEND_NEVER,
        PREPEND_FIRST,    // where the whole text begins
        PREPEND_ALWAYS,
    } prepend;
    bool split;    // each mark begins a piece
};

/* ---- handwritten matchers of the published patterns, steps a to g ---- */

#define GPT4_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define GPT4_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2_PATTERN GPT4_HEAD "\\p{N}" GPT4_TAIL
#define LLAMA3_PATTERN GPT4_HEAD "\\p{N}{1,3}" GPT4_TAIL
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static inline unsigned class_at(const struct unicode *u, const uint8_t *p, int *len)
{
    if (p[0] < 0x80)
        return *len = 1, u->ascii[p[0]];
    uint32_t cp = utf8_at(p, len);
    return unicode_class(u, cp);
}

/* The place after the letters that begin at p. */
static inline const uint8_t *letters_end(const struct unicode *u, const uint8_t *p, const uint8_t *end)
{
    for (;;) {
#ifdef __SSE2__
        while (end - p >= 16) {    // words are short: one test of 16 bytes finds most ends without a branch per letter
            __m128i c = _mm_or_si128(_mm_loadu_si128((const __m128i *)(const void *)p), _mm_set1_epi8(0x20));
            __m128i off = _mm_add_epi8(c, _mm_set1_epi8((char)(-128 - 'a')));    // 'a' becomes the smallest signed byte
            unsigned other = (unsigned)_mm_movemask_epi8(_mm_cmpgt_epi8(off, _mm_set1_epi8(-128 + 25)));
            if (other == 0) {
                p += 16;
                continue;
            }
            p += __builtin_ctz(other);
            break;
        }
#endif
        while (p < end && (u->ascii[*p] & CHAR_LETTER))
            p++;
        if (p >= end || *p < 0x80)
            return p;
        int n;
        if (!(class_at(u, p, &n) & CHAR_LETTER))
            return p;
        p += n;
    }
}

/* Length of the contraction at p ('s 't 're 've 'm 'll 'd), 0: none. With fold, any case, and U+017F for s. */
static inline size_t contraction_len(const uint8_t *p, const uint8_t *end, bool fold)
{
    if (end - p < 2)
        return 0;
    uint8_t a = p[1], b = end - p > 2 ? p[2] : 0;
    if (fold) {
        if (a == 0xC5 && b == 0xBF)
            return 3;
        a |= a >= 'A' && a <= 'Z' ? 0x20 : 0;
        b |= b >= 'A' && b <= 'Z' ? 0x20 : 0;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return 0;
}

/* The end of the run from p of what is neither white space, letter nor number. */
static inline const uint8_t *others_end(const struct unicode *u, const uint8_t *p, const uint8_t *end)
{
    int n;
    while (p < end && !(class_at(u, p, &n) & (CHAR_LETTER | CHAR_NUMBER | CHAR_SPACE)))
        p += n;
    return p;
}

/* White space at p. cut_newline: it ends after its last CR or LF if it has one. Otherwise, before something else,
 * the last character of a longer run is left to what follows. */
static inline size_t space_len(const struct unicode *u, const uint8_t *p, const uint8_t *end, bool cut_newline)
{
    const uint8_t *at = p, *last = p, *newline = NULL;
    int n;
    unsigned c;
    while (at < end && ((c = class_at(u, at, &n)) & CHAR_SPACE)) {
        last = at;
        at += n;
        if (c & CHAR_NEWLINE)
            newline = at;
    }
    if (cut_newline && newline)
        return (size_t)(newline - p);
    if (at >= end || last == p)
        return (size_t)(at - p);
    return (size_t)(last - p);
}

static inline size_t gpt4_next(const struct unicode *u, const uint8_t *p, const uint8_t *end, int max_digits)
{
    int n, m;
    if (*p == '\'') {
        size_t len = contraction_len(p, end, true);
        if (len)
            return len;
    }
    unsigned c = class_at(u, p, &n);
    if (c & CHAR_LETTER)
        return (size_t)(letters_end(u, p, end) - p);
    if (c & CHAR_NUMBER) {
        const uint8_t *at = p + n;
        for (int i = 1; i < max_digits && at < end && (class_at(u, at, &m) & CHAR_NUMBER); i++)
            at += m;
        return (size_t)(at - p);
    }
    if (!(c & CHAR_NEWLINE) && p + n < end && (class_at(u, p + n, &m) & CHAR_LETTER))
        return (size_t)(letters_end(u, p + n + m, end) - p);
    const uint8_t *from = *p == ' ' ? p + 1 : p, *at = others_end(u, from, end);
    if (at > from) {
        while (at < end && (*at == '\r' || *at == '\n'))
            at++;
        return (size_t)(at - p);
    }
    return space_len(u, p, end, true);
}

static size_t qwen2_next(const struct unicode *u, const uint8_t *p, const uint8_t *end)
{
    return gpt4_next(u, p, end, 1);
}

static size_t llama3_next(const struct unicode *u, const uint8_t *p, const uint8_t *end)
{
    return gpt4_next(u, p, end, 3);
}

static size_t gpt2_next(const struct unicode *u, const uint8_t *p, const uint8_t *end)
{
    int n;
    if (*p == '\'') {
        size_t len = contraction_len(p, end, false);
        if (len)
            return len;
    }
    const uint8_t *from = *p == ' ' && p + 1 < end ? p + 1 : p, *at;
    unsigned c = class_at(u, from, &n);
    if (c & CHAR_LETTER)
        return (size_t)(letters_end(u, from, end) - p);
    if (c & CHAR_NUMBER) {
        for (at = from + n; at < end && (class_at(u, at, &n) & CHAR_NUMBER);)
            at += n;
        return (size_t)(at - p);
    }
    if (!(c & CHAR_SPACE))
        return (size_t)(others_end(u, from, end) - p);
    return space_len(u, p, end, false);
}

static const struct {
    const char *pattern;
    pretok_next *next;
} published[] = {
    { QWEN2_PATTERN, qwen2_next },
    { LLAMA3_PATTERN, llama3_next },
    { GPT2_PATTERN, gpt2_next },
};

/* ---- any other pattern ---- */

static bool regex_compile(struct pretok_stage *st, const char *pattern, bool literal, struct error *err)
{
    struct buf spelt = { .max = 1 << 16 };
    bool ok = false;
    if (strlen(pattern) > 4096) {
        error_set(err, ERR_DATA, "a pattern of %zu bytes is longer than 4096", strlen(pattern));
        goto out;
    }
    if (literal)
        buf_str(&spelt, pattern);
    else
        TRY(pattern_translate(pattern, &spelt, err));
    int code;
    PCRE2_SIZE at;
    uint32_t flags = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
    st->code = pcre2_compile((PCRE2_SPTR)buf_text(&spelt), spelt.len, flags, &code, &at, NULL);
    if (!st->code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        error_set(err, ERR_DATA, "the pattern '%.300s' is wrong: %s", pattern, (const char *)why);
        goto out;
    }
    const char *jit = getenv("RC_JIT");    // "off" for valgrind, which cannot see into generated code
    if (!jit || strcmp(jit, "off") != 0)
        pcre2_jit_compile(st->code, PCRE2_JIT_COMPLETE);    // without JIT the interpreter gives the same matches, slower
    ok = true;
out:
    buf_release(&spelt);
    return ok;
}

/* ---- reading the description ---- */

static bool flag_get(const json_t *o, const char *key, bool fallback)
{
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

static struct pretok_stage *stage_add(struct pretok *p, struct error *err)
{
    if (p->n_stage >= PRETOK_STAGES_MAX) {
        error_set(err, ERR_UNSUPPORTED, "more than %d stages in pre_tokenizer", PRETOK_STAGES_MAX);
        return NULL;
    }
    return &p->stage[p->n_stage++];
}

static bool pattern_add(struct pretok *p, const char *pattern, bool literal, enum behavior behavior, bool invert, bool use_pcre2,
                        struct error *err)
{
    struct pretok_stage *st = stage_add(p, err);
    if (!st)
        return false;
    // "Isolated" keeps matches and gaps; these patterns leave no gap, so removing the gaps (inverted Removed) is the
    // same
    if (!literal && !use_pcre2 && ((behavior == ISOLATED) || (behavior == REMOVED && invert)))
        for (size_t i = 0; i < ARRAY_SIZE(published); i++)
            if (strcmp(pattern, published[i].pattern) == 0) {
                *st = (struct pretok_stage){ .kind = STAGE_NEXT, .next = published[i].next };
                return true;
            }
    *st = (struct pretok_stage){ .kind = STAGE_REGEX, .behavior = behavior, .invert = invert };
    return regex_compile(st, pattern, literal, err);
}

/* A member "behavior", by default fallback. */
static bool behavior_read(const json_t *spec, const char *fallback, enum behavior *out, struct error *err)
{
    static const char *const names[] = {
        [ISOLATED] = "Isolated",
        [REMOVED] = "Removed",
        [MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [MERGED_WITH_NEXT] = "MergedWithNext",
        [CONTIGUOUS] = "Contiguous",
    };
    const char *behavior = json_string_value(json_object_get(spec, "behavior"));
    behavior = behavior ? behavior : fallback;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(behavior, names[i]) == 0)
            return *out = (enum behavior)i, true;
    return error_set(err, ERR_UNSUPPORTED, "the behavior '%s' in pre_tokenizer is not known", behavior);
}

static bool split_read(struct pretok *p, const json_t *spec, bool use_pcre2, struct error *err)
{
    const json_t *pattern = json_object_get(spec, "pattern");
    enum behavior behavior;
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *text = json_string_value(json_object_get(pattern, "String"));
    if ((!regex && !text) || (text && !text[0]))
        return error_set(err, ERR_DATA, "a Split in pre_tokenizer has no pattern");
    return behavior_read(spec, "", &behavior, err)
           && pattern_add(p, regex ? regex : text, !regex, behavior, flag_get(spec, "invert", false), use_pcre2, err);
}

/* Metaspace. prepend_scheme is newer than add_prefix_space. */
static bool metaspace_read(struct pretok *p, const json_t *spec, struct error *err)
{
    static const char *const schemes[] = { [PREPEND_NEVER] = "never", [PREPEND_FIRST] = "first", [PREPEND_ALWAYS] = "always" };
    const char *mark = json_string_value(json_object_get(spec, "replacement"));
    const char *scheme = json_string_value(json_object_get(spec, "prepend_scheme"));
    bool prefix = flag_get(spec, "add_prefix_space", true), known = !scheme;
    struct pretok_stage *st = stage_add(p, err);
    if (!st)
        return false;
    *st = (struct pretok_stage){ .kind = STAGE_METASPACE, .prepend = PREPEND_ALWAYS, .split = flag_get(spec, "split", true) };
    for (size_t i = 0; scheme && i < ARRAY_SIZE(schemes); i++)
        if (strcmp(scheme, schemes[i]) == 0) {
            st->prepend = (enum prepend)i;
            known = true;
        }
    if (!mark || !mark[0] || !known || (!prefix && st->prepend != PREPEND_NEVER))
        return error_set(err, ERR_DATA, "a Metaspace in pre_tokenizer has no 'replacement', or a 'prepend_scheme' that is not known");
    return buf_str(&st->mark, mark) || error_set(err, ERR_NO_MEMORY, "no memory for a pre-tokenizer");
}

/* Read one pre_tokenizer, or the members of a Sequence. byte_level: whether a ByteLevel has been seen, which must be
 * last. */
static bool stage_read(struct pretok *p, const json_t *spec, int depth, bool *byte_level, bool use_pcre2, struct error *err)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    if (!type)
        return error_set(err, ERR_DATA, "a pre_tokenizer has no type");
    if (*byte_level)
        return error_set(err, ERR_UNSUPPORTED, "a pre_tokenizer '%s' after ByteLevel is not supported", type);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "pretokenizers"), *one;
        size_t i;
        if (!json_is_array(list) || depth > 4)
            return error_set(err, ERR_DATA, "a Sequence in pre_tokenizer has no list, or is nested too deep");
        json_array_foreach(list, i, one) if (!stage_read(p, one, depth + 1, byte_level, use_pcre2, err)) return false;
        return true;
    }
    if (strcmp(type, "Metaspace") == 0)
        return metaspace_read(p, spec, err);
    if (strcmp(type, "Split") == 0)
        return split_read(p, spec, use_pcre2, err);
    if (strcmp(type, "Punctuation") == 0 || strcmp(type, "Whitespace") == 0 || strcmp(type, "WhitespaceSplit") == 0) {
        struct pretok_stage *st = stage_add(p, err);
        if (!st)
            return false;
        *st = (struct pretok_stage){ .kind = type[0] == 'P' ? STAGE_PUNCTUATION
                                             : type[10]     ? STAGE_SPACES
                                                            : STAGE_WORDS,
                                     .behavior = REMOVED,
                                     .invert = strcmp(type, "Whitespace") == 0 };
        return type[0] != 'P' || behavior_read(spec, "Isolated", &st->behavior, err);
    }
    if (strcmp(type, "Digits") == 0) {
        struct pretok_stage *st = stage_add(p, err);
        if (!st)
            return false;
        *st = (struct pretok_stage){ .kind = STAGE_DIGITS, .individual_digits = flag_get(spec, "individual_digits", false) };
        return true;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        *byte_level = true;
        p->add_prefix_space = flag_get(spec, "add_prefix_space", true);
        p->prefix_stage = p->n_stage;
        return !flag_get(spec, "use_regex", true) || pattern_add(p, GPT2_PATTERN, false, ISOLATED, false, use_pcre2, err);
    }
    return error_set(err, ERR_UNSUPPORTED, "the pre_tokenizer '%s' is not supported", type);
}

bool pretok_init(struct pretok *p, const json_t *spec, const struct unicode *u, bool use_pcre2, struct error *err)
{
    *p = (struct pretok){ .unicode = u };
    p->stage = calloc(PRETOK_STAGES_MAX, sizeof p->stage[0]);
    if (!p->stage)
        return error_set(err, ERR_NO_MEMORY, "no memory for a pre-tokenizer");
    return !spec || json_is_null(spec) || stage_read(p, spec, 0, &p->byte_level, use_pcre2, err);
}

void pretok_release(struct pretok *p)
{
    for (int i = 0; i < p->n_stage; i++) {
        pcre2_code_free(p->stage[i].code);
        buf_release(&p->stage[i].mark);
    }
    free(p->stage);
    *p = (struct pretok){ 0 };
}

pretok_next *pretok_fast(const struct pretok *p)
{
    return p->n_stage == 1 && p->stage[0].kind == STAGE_NEXT && !p->add_prefix_space ? p->stage[0].next : NULL;
}

/* ---- walking ---- */

struct walk {
    const struct pretok *p;
    struct pretok_scratch *s;
    pretok_take *take;
    void *arg;
    struct error *err;
    const uint8_t *begin;    // of the whole text; NULL: the text walked over begins later
};
struct span {
    size_t from, to;
    bool match;
};
static bool stage_walk(const struct walk *w, int stage, const uint8_t *text, size_t len);

static bool regex_ready(struct pretok_scratch *s, struct error *err)
{
    if (s->match_data)
        return true;
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    s->match_context = context;
    s->match_data = pcre2_match_data_create(1, NULL);
    s->jit_stack = pcre2_jit_stack_create(32 << 10, 1 << 20, NULL);
    if (!context || !s->match_data || !s->jit_stack)
        return error_set(err, ERR_NO_MEMORY, "no memory for a pattern");
    pcre2_jit_stack_assign(context, NULL, s->jit_stack);
    pcre2_set_match_limit(context, 1000000);    // bounds the cost of a hostile pattern at one place of the text
    return true;
}

/* Find the next match from *at on; false at the end or on an error (*failed). */
static bool regex_next(const struct walk *w, const struct pretok_stage *st, const uint8_t *text, size_t len, size_t *at, struct span *out,
                       bool *failed)
{
    if (*at <= len) {
        int n = pcre2_match(st->code, text, len, *at, PCRE2_NO_UTF_CHECK, w->s->match_data, w->s->match_context);
        if (n == PCRE2_ERROR_NOMATCH)
            return false;
        if (n < 0) {
            PCRE2_UCHAR why[128];
            pcre2_get_error_message(n, why, sizeof why);
            *failed = true;
            return error_set(w->err, ERR_DATA, "the tokenizer's pattern cannot be matched at byte %zu: %s", *at, (const char *)why);
        }
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(w->s->match_data);
        int skip = 0;
        if (o[1] == o[0]) {    // an empty match is not a piece, but it splits; continue after the next character
            skip = 1;
            if (o[0] < len)
                utf8_at(text + o[0], &skip);
        }
        *out = (struct span){ o[0], o[1], true };
        *at = o[1] + (size_t)skip;
        return true;
    }
    return false;
}

/* As above for matches that classes of characters make. */
static bool class_next(const struct walk *w, const struct pretok_stage *st, const uint8_t *text, size_t len, size_t *at, struct span *out)
{
    const struct unicode *u = w->p->unicode;
    const unsigned wanted = st->kind == STAGE_PUNCTUATION ? CHAR_PUNCTUATION : CHAR_SPACE;
    const uint8_t *p = text + *at, *end = text + len;
    int n;
    for (; p < end; p += n) {
        unsigned c = class_at(u, p, &n);
        if (st->kind != STAGE_WORDS && c & wanted)
            break;
        if (st->kind == STAGE_WORDS && !(c & CHAR_SPACE)) {
            const uint8_t *from = p;
            unsigned word = c & CHAR_WORD;
            for (p += n; p < end && (class_at(u, p, &n) & CHAR_WORD) == word && !(class_at(u, p, &n) & CHAR_SPACE);)
                p += n;
            *out = (struct span){ (size_t)(from - text), (size_t)(p - text), true };
            *at = out->to;
            return true;
        }
    }
    if (p >= end)
        return false;
    *out = (struct span){ (size_t)(p - text), (size_t)(p - text) + (size_t)n, true };
    *at = out->to;
    return true;
}

/* Join matches to their neighbours as the behavior says; spans are in order and cover the text. Returns how many
 * remain. */
static size_t spans_join(struct span *span, size_t n, enum behavior behavior)
{
    size_t out = 0;
    bool was = false;
    if (behavior == MERGED_WITH_NEXT) {    // from the end, into the end of the array
        size_t to = n;
        for (size_t i = n; i-- > 0;) {
            bool match = span[i].match;
            if (match && !was && to < n)
                span[to].from = span[i].from;
            else
                span[--to] = span[i];
            was = match;
        }
        out = n - to;
        memmove(span, span + to, out * sizeof *span);
        return out;
    }
    for (size_t i = 0; i < n; i++) {
        bool match = span[i].match;
        bool join = out > 0 && (behavior == CONTIGUOUS ? match == was : match && !was);
        if (join)
            span[out - 1].to = span[i].to;
        else
            span[out++] = span[i];
        was = match;
    }
    return out;
}

static bool match_walk(const struct walk *w, int stage, const uint8_t *text, size_t len)
{
    const struct pretok_stage *st = &w->p->stage[stage];
    size_t at = 0, done = 0;
    struct span m;
    bool failed = false, joins = st->behavior > REMOVED;
    struct buf spans = BUF_INIT;    // local to the call: a later stage may need one too
    bool is_regex = st->kind == STAGE_REGEX, ok = !is_regex || regex_ready(w->s, w->err);
    while (ok) {
        bool found = is_regex ? regex_next(w, st, text, len, &at, &m, &failed) : class_next(w, st, text, len, &at, &m);
        if (failed) {
            ok = false;
            break;
        }
        if (!found)
            m = (struct span){ len, len, false };
        struct span two[2] = { { done, m.from, st->invert }, { m.from, m.to, !st->invert } };
        for (int i = 0; ok && i < 2; i++) {
            if (two[i].from == two[i].to)
                continue;
            if (joins)
                ok = buf_add(&spans, &two[i], sizeof two[i]) || error_set(w->err, ERR_NO_MEMORY, "no memory to cut a text");
            else if (st->behavior == ISOLATED || !two[i].match)
                ok = stage_walk(w, stage + 1, text + two[i].from, two[i].to - two[i].from);
        }
        done = m.to;
        if (!found)
            break;
    }
    if (ok && joins) {
        struct span *span = (struct span *)(void *)spans.data;
        size_t n = span ? spans_join(span, spans.len / sizeof *span, st->behavior) : 0;
        for (size_t i = 0; ok && i < n; i++)
            ok = stage_walk(w, stage + 1, text + span[i].from, span[i].to - span[i].from);
    }
    buf_release(&spans);
    return ok;
}

static bool digits_walk(const struct walk *w, int stage, const uint8_t *text, size_t len)
{
    const uint8_t *p = text, *end = text + len;
    bool each = w->p->stage[stage].individual_digits;
    while (p < end) {
        int n;
        bool number = class_at(w->p->unicode, p, &n) & CHAR_NUMBER;
        const uint8_t *at = p + n;
        while (at < end && !(each && number) && !!(class_at(w->p->unicode, at, &n) & CHAR_NUMBER) == number)
            at += n;
        if (!stage_walk(w, stage + 1, p, (size_t)(at - p)))
            return false;
        p = at;
    }
    return true;
}

static bool metaspace_walk(const struct walk *w, int stage, const uint8_t *text, size_t len)
{
    const struct pretok_stage *st = &w->p->stage[stage];
    struct buf marked = BUF_INIT, space = { .data = " ", .len = 1 };
    bool at_mark = len >= st->mark.len && memcmp(text, st->mark.data, st->mark.len) == 0;
    bool prepend = st->prepend == PREPEND_ALWAYS || (st->prepend == PREPEND_FIRST && text == w->begin);
    bool ok = (!prepend || at_mark || text[0] == ' ' || buf_add(&marked, st->mark.data, st->mark.len))
              && normal_replace(&marked, text, len, &space, &st->mark);
    ok = ok || error_set(w->err, ERR_NO_MEMORY, "no memory for a text of %zu bytes", len);
    const uint8_t *p = (const uint8_t *)marked.data, *end = p + marked.len;
    while (ok && p < end) {
        const uint8_t *next = st->split && (size_t)(end - p) > st->mark.len
                                  ? memmem(p + 1, (size_t)(end - p) - 1, st->mark.data, st->mark.len)
                                  : NULL;
        next = next ? next : end;
        ok = stage_walk(w, stage + 1, p, (size_t)(next - p));
        p = next;
    }
    buf_release(&marked);
    return ok;
}

static bool stage_walk(const struct walk *w, int stage, const uint8_t *text, size_t len)
{
    if (len == 0)
        return true;
    if (w->p->add_prefix_space && stage == w->p->prefix_stage && text[0] != ' ') {
        struct buf spaced = BUF_INIT;
        bool ok = buf_char(&spaced, ' ') && buf_add(&spaced, text, len);
        ok = ok ? stage_walk(w, stage, (const uint8_t *)spaced.data, len + 1)
                : error_set(w->err, ERR_NO_MEMORY, "no memory for a text of %zu bytes", len);
        buf_release(&spaced);
        return ok;
    }
    if (stage == w->p->n_stage)
        return w->take(w->arg, text, len);
    const struct pretok_stage *st = &w->p->stage[stage];
    if (st->kind == STAGE_METASPACE)
        return metaspace_walk(w, stage, text, len);
    if (st->kind == STAGE_DIGITS)
        return digits_walk(w, stage, text, len);
    if (st->kind != STAGE_NEXT)
        return match_walk(w, stage, text, len);
    for (const uint8_t *p = text, *end = text + len; p < end;) {
        size_t n = st->next(w->p->unicode, p, end);
        if (!stage_walk(w, stage + 1, p, n))
            return false;
        p += n;
    }
    return true;
}

bool pretok_walk(const struct pretok *p, const uint8_t *text, size_t len, bool first, struct pretok_scratch *s, pretok_take *take,
                 void *arg, struct error *err)
{
    struct walk w = { p, s, take, arg, err, first ? text : NULL };
    return stage_walk(&w, 0, text, len);
}

void pretok_scratch_release(struct pretok_scratch *s)
{
    pcre2_match_data_free(s->match_data);
    pcre2_match_context_free(s->match_context);
    pcre2_jit_stack_free(s->jit_stack);
    *s = (struct pretok_scratch){ 0 };
}
