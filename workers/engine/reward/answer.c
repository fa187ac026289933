#include "workers/engine/reward/answer.h"
#include <stdint.h>
#include <string.h>
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

bool answer_boxed(const char *text, size_t len, struct span *out)
{
    static const char mark[] = "\\boxed{";
    size_t n = sizeof mark - 1;
    for (size_t i = len < n ? 0 : len - n + 1; i-- > 0;)
        if (memcmp(text + i, mark, n) == 0)
            /* ColossalChat counts every brace; a set's \{ \} balances both ways, a \left\{ ... \right. only when skipped */
            return brace_content(text + i + n, text + len, true, out) || brace_content(text + i + n, text + len, false, out);
    return false;
}

static const char *find(const char *text, const char *end, const char *what)
{
    return text < end ? memmem(text, (size_t)(end - text), what, strlen(what)) : NULL;
}

bool answer_tagged(const char *text, size_t len, struct span *out)
{
    const char *p = text, *end = text + len;
    bool found = false;
    for (;;) {    // as the regular expression <answer>(.*?)</answer> finds them: left to right, not overlapping
        const char *from = find(p, end, "<answer>");
        const char *to = from ? find(from + strlen("<answer>"), end, "</answer>") : NULL;
        if (!to)
            return found;
        from += strlen("<answer>");
        *out = span_trim((struct span){ from, (size_t)(to - from) });
        found = true;
        p = to + strlen("</answer>");
    }
}

bool answer_tags_valid(const char *text, size_t len)
{
    static const char *const tags[] = { "<think>", "</think>", "<answer>", "</answer>" };
    const char *end = text + len, *last = text;
    for (size_t i = 0; i < ARRAY_SIZE(tags); i++) {
        const char *at = find(text, end, tags[i]);
        if (!at || find(at + strlen(tags[i]), end, tags[i]) || at < last)
            return false;
        last = at;
    }
    return last + strlen("</answer>") == end;
}
