#include "workers/engine/reward/answer.h"
#include <jansson.h>
#include <stdint.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/macros.h"

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

struct span span_trim(struct span s)
{
    while (s.len > 0 && is_space(s.s[0]))
        s.s++, s.len--;
    while (s.len > 0 && is_space(s.s[s.len - 1]))
        s.len--;
    return s;
}

/* The bytes from after an opening brace to the one that closes it; escaped: \{ and \} are characters, not braces. */
static bool brace_content(const char *from, const char *end, bool escaped, struct span *out)
{
    int64_t depth = 1;
    for (const char *p = from; p < end; p++) {
        if (escaped && *p == '\\' && p + 1 < end) {
            p++;
            continue;
        }
        depth += (*p == '{') - (*p == '}');
        if (depth == 0) {
            *out = (struct span){ from, (size_t)(p - from) };
            return true;
        }
    }
    return false;
}

const char *box_mark_end(const char *p, const char *end)
{
    static const struct {
        const char *name;
        bool options;
    } marks[] = { { "\\boxed", false }, { "\\fbox", false }, { "\\framebox", true } };
    for (size_t k = 0; k < ARRAY_SIZE(marks); k++) {
        size_t n = strlen(marks[k].name);
        if ((size_t)(end - p) < n || memcmp(p, marks[k].name, n) != 0)
            continue;
        for (p += n; marks[k].options;) {    // \framebox[3cm][c]
            const char *q = p;
            while (q < end && *q == ' ')
                q++;
            q = q < end && *q == '[' ? memchr(q, ']', (size_t)(end - q)) : NULL;
            if (!q)
                break;
            p = q + 1;
        }
        while (p < end && *p == ' ')
            p++;
        return p;
    }
    return NULL;
}

bool answer_boxed(const char *text, size_t len, struct span *out)
{
    const char *end = text + len;
    for (const char *p = end; p-- > text;) {
        const char *q = *p == '\\' ? box_mark_end(p, end) : NULL;
        if (!q || q == end || *q != '{')
            continue;    // a mention of \boxed without an answer
        /* ColossalChat counts every brace; a set's \{ \} balances both ways, a \left\{ ... \right. only when skipped */
        return brace_content(q + 1, end, true, out) || brace_content(q + 1, end, false, out);
    }
    return false;
}

static const char *find(const char *text, const char *end, const char *what)
{
    return text < end ? memmem(text, (size_t)(end - text), what, strlen(what)) : NULL;
}

const struct answer_tags answer_tags_default = { { "<think>", "</think>", "<answer>", "</answer>" }, { 1, 1, 1, 1 } };

bool answer_tags_read(struct answer_tags *t, const char *json, struct error *err)
{
    static const char *const names[ANSWER_TAGS] = { "think_start", "think_end", "answer_start", "answer_end" };
    json_t *root = json_str_read(json, JSON_REJECT_DUPLICATES, NULL), *tag;
    const char *name;
    bool ok = json_is_object(root) || error_set(err, ERR_USAGE, "'response_format_tags' must be an object of tags");
    *t = answer_tags_default;
    json_object_foreach(root, name, tag)
    {
        size_t i = 0;
        while (i < ANSWER_TAGS && strcmp(names[i], name) != 0)
            i++;
        const json_t *text = json_object_get(tag, "text"), *n = json_object_get(tag, "num_occur");
        size_t len = json_string_length(text);
        if (ok && i == ANSWER_TAGS)
            ok = error_set(err, ERR_USAGE,
                           "'response_format_tags' has '%.40s'; there are think_start, think_end, answer_start and answer_end", name);
        else if (ok && (len == 0 || len >= sizeof t->text[0] || strlen(json_string_value(text)) != len))
            ok = error_set(err, ERR_USAGE, "'text' of '%s' in 'response_format_tags' must be a text of 1 to %zu bytes", name,
                           sizeof t->text[0] - 1);
        else if (ok && n && (!json_is_integer(n) || json_integer_value(n) < 1))
            ok = error_set(err, ERR_USAGE, "'num_occur' of '%s' in 'response_format_tags' must be a number from 1", name);
        if (!ok)
            break;
        strcpy(t->text[i], json_string_value(text));
        t->n[i] = n ? json_integer_value(n) : 1;
    }
    json_decref(root);
    return ok;
}

bool answer_tagged(const char *text, size_t len, const struct answer_tags *tags, struct span *out)
{
    const char *p = text, *end = text + len, *open = tags->text[2], *close = tags->text[3];
    bool found = false;
    for (;;) {    // as the regular expression <answer>(.*?)</answer> finds them: left to right, not overlapping
        const char *from = find(p, end, open);
        const char *to = from ? find(from + strlen(open), end, close) : NULL;
        if (!to)
            return found;
        from += strlen(open);
        *out = span_trim((struct span){ from, (size_t)(to - from) });
        found = true;
        p = to + strlen(close);
    }
}

bool answer_tags_valid(const char *text, size_t len, const struct answer_tags *tags)
{
    const char *end = text + len, *last = text;
    for (size_t i = 0; i < ANSWER_TAGS; i++) {
        const char *first = find(text, end, tags->text[i]), *at = first;
        int64_t n = 0;
        for (; at && n <= tags->n[i]; n++)
            at = find(at + strlen(tags->text[i]), end, tags->text[i]);
        if (!first || n != tags->n[i] || first < last)
            return false;
        last = first;
    }
    return last + strlen(tags->text[ANSWER_TAGS - 1]) == end;
}
