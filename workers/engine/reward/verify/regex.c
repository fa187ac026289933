#define PCRE2_CODE_UNIT_WIDTH 8
#include "workers/engine/reward/verify/regex.h"
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"

#define KEPT 128               // compiled patterns of a thread
#define MATCH_LIMIT 2000000    // calls of PCRE2's matcher for one search; ordinary answers need a few thousand
#define HEAP_KIB 65536

struct kept {
    char *pattern;    // owned; NULL: empty
    int flags;
    pcre2_code *code;
};
struct regexes {
    struct kept kept[KEPT];
    int next;    // the one that is replaced next
    pcre2_compile_context *compile;
    pcre2_match_context *match;
    pcre2_match_data *data;
    bool failed;
    struct error why;
};

struct regexes *regexes_new(struct error *err)
{
    struct regexes *r = calloc(1, sizeof *r);
    if (r) {
        r->compile = pcre2_compile_context_create(NULL);
        r->match = pcre2_match_context_create(NULL);
        r->data = pcre2_match_data_create(RE_GROUPS, NULL);
    }
    if (!r || !r->compile || !r->match || !r->data) {
        error_set(err, ERR_NO_MEMORY, "no memory for regular expressions");
        regexes_free(r);
        return NULL;
    }
    pcre2_set_newline(r->compile, PCRE2_NEWLINE_LF);
    pcre2_set_match_limit(r->match, MATCH_LIMIT);
    pcre2_set_heap_limit(r->match, HEAP_KIB);
    return r;
}

void regexes_free(struct regexes *r)
{
    if (!r)
        return;
    for (int i = 0; i < KEPT; i++) {
        free(r->kept[i].pattern);
        pcre2_code_free(r->kept[i].code);
    }
    pcre2_match_data_free(r->data);
    pcre2_match_context_free(r->match);
    pcre2_compile_context_free(r->compile);
    free(r);
}

bool regexes_failed(struct regexes *r, struct error *why)
{
    bool failed = r->failed;
    if (failed)
        *why = r->why;
    r->failed = false;
    return failed;
}

static pcre2_code *compile(struct regexes *r, const char *pattern, int flags, struct error *err)
{
    for (int i = 0; i < KEPT; i++)
        if (r->kept[i].pattern && r->kept[i].flags == flags && strcmp(r->kept[i].pattern, pattern) == 0)
            return r->kept[i].code;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | (flags & RE_NOCASE ? PCRE2_CASELESS : 0)
                       | (flags & RE_LINES ? PCRE2_MULTILINE : 0) | (flags & RE_DOT_ALL ? PCRE2_DOTALL : 0);
    int why;
    PCRE2_SIZE at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &why, &at, r->compile);
    if (!code) {
        char text[160];
        pcre2_get_error_message(why, (PCRE2_UCHAR *)text, sizeof text);
        error_set(err, ERR_DATA, "'%.80s' is not a regular expression: %s at byte %zu", pattern, text, (size_t)at);
        return NULL;
    }
    struct kept *k = &r->kept[r->next];
    char *copy = strdup(pattern);
    if (!copy) {
        pcre2_code_free(code);
        error_set(err, ERR_NO_MEMORY, "no memory for a regular expression");
        return NULL;
    }
    free(k->pattern);
    pcre2_code_free(k->code);
    *k = (struct kept){ copy, flags, code };
    r->next = (r->next + 1) % KEPT;
    return code;
}

bool regex_check(struct regexes *r, const char *pattern, int flags, struct error *err)
{
    return compile(r, pattern, flags, err) != NULL;
}

/* from is at a character; options: PCRE2's, such as PCRE2_NOTEMPTY_ATSTART and PCRE2_ANCHORED for the search after an empty match */
static bool find(struct regexes *r, const char *pattern, int flags, uint32_t options, struct span s, size_t from, struct span *g)
{
    struct error err = { 0 };
    pcre2_code *code = from <= s.len ? compile(r, pattern, flags, &err) : NULL;
    if (!code) {
        r->failed = r->failed || err.code != ERR_NONE;
        if (err.code != ERR_NONE)
            r->why = err;
        return false;
    }
    int n = pcre2_match(code, (PCRE2_SPTR)s.s, s.len, from, options, r->data, r->match);
    if (n < 0 && n != PCRE2_ERROR_NOMATCH) {
        char text[160];
        pcre2_get_error_message(n, (PCRE2_UCHAR *)text, sizeof text);
        r->failed = true;
        error_set(&r->why, ERR_DATA, "searching for '%.80s': %s", pattern, text);
    }
    if (n < 0)
        return false;
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(r->data);
    n = n == 0 ? RE_GROUPS : n;    // 0: the pattern has more groups than there is room for
    for (int i = 0; g && i < RE_GROUPS; i++)
        g[i] = i < n && o[2 * i] != PCRE2_UNSET ? span_of(s.s + o[2 * i], o[2 * i + 1] - o[2 * i]) : span_of(NULL, 0);
    return true;
}

bool regex_find(struct regexes *r, const char *pattern, int flags, struct span s, size_t from, struct span *g)
{
    return find(r, pattern, flags, 0, s, from, g);
}

/* The search from byte 0 has looked at all of the text, so those that go on from it need not: a check of the rest for each match would take
 * quadratic time. */
static uint32_t seen(size_t at)
{
    return at > 0 ? PCRE2_NO_UTF_CHECK : 0;
}

/* *at is the end of the last match times two, plus one when that match was empty */
bool regex_each(struct regexes *r, const char *pattern, int flags, struct span s, size_t *at, struct span *g)
{
    struct span own[RE_GROUPS], *m = g ? g : own;
    size_t from = *at / 2;
    bool found = false;
    if (*at % 2) {    // Python and PCRE2 agree: after an empty match, one that is not empty may begin at the same place
        found = find(r, pattern, flags, PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED | seen(*at), s, from, m);
        if (!found && text_next(s, &from) < 0)
            return false;
    }
    if (!found && !find(r, pattern, flags, seen(*at), s, from, m))
        return false;
    *at = (size_t)(m[0].s + m[0].len - s.s) * 2 + (m[0].len == 0);
    return true;
}

int64_t regex_count(struct regexes *r, const char *pattern, int flags, struct span s)
{
    int64_t n = 0;
    for (size_t at = 0; regex_each(r, pattern, flags, s, &at, NULL);)
        n++;
    return n;
}

bool regex_part(struct regexes *r, const char *pattern, struct span s, size_t *at, struct span *part)
{
    struct span g[RE_GROUPS];
    if (*at > s.len)
        return false;
    if (find(r, pattern, 0, PCRE2_NOTEMPTY | seen(*at), s, *at, g)) {
        *part = span_of(s.s + *at, (size_t)(g[0].s - s.s) - *at);
        *at = (size_t)(g[0].s + g[0].len - s.s);
    } else {
        *part = span_of(s.s + *at, s.len - *at);
        *at = s.len + 1;
    }
    return true;
}

struct span regex_replace(struct regexes *r, struct pool *p, const char *pattern, const char *with, struct span s)
{
    struct span g[RE_GROUPS];
    struct buf out = { .max = POOL_MAX / 4 };
    size_t done = 0;
    for (size_t at = 0; regex_each(r, pattern, 0, s, &at, g);) {
        buf_add(&out, s.s + done, (size_t)(g[0].s - s.s) - done);
        for (const char *w = with; *w; w++)
            if (w[0] == '\\' && w[1] >= '1' && w[1] < '0' + RE_GROUPS) {
                struct span group = g[*++w - '0'];
                buf_add(&out, group.s ? group.s : "", group.len);
            } else {
                buf_char(&out, *w);
            }
        done = (size_t)(g[0].s + g[0].len - s.s);
    }
    if (done == 0 && out.len == 0)
        return s;    // nothing was found
    buf_add(&out, s.s + done, s.len - done);
    char *copy = out.failed ? NULL : pool_take(p, out.len);
    struct span made = span_of(copy ? copy : "", copy ? out.len : 0);
    if (copy)
        memcpy(copy, buf_text(&out), out.len);
    p->failed = p->failed || out.failed;
    buf_release(&out);
    return made;
}
