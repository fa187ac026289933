#include "workers/engine/data/gold.h"
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/json_text.h"

/* For a text; see gold_text. */
static json_t *after_marks(const char *text)
{
    const char *from = text, *hash;
    while ((hash = strstr(from, "####")))
        from = hash + 4;
    size_t skip = strspn(from, " \t\r\n"), len = strlen(from + skip);
    while (len > 0 && strchr(" \t\r\n", from[skip + len - 1]))
        len--;
    if (from == text)
        return json_stringn(text + skip, len);
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < len; i++) {
        const char *p = from + skip + i;
        bool comma = *p == ',' && i > 0 && p[-1] >= '0' && p[-1] <= '9' && p[1] >= '0' && p[1] <= '9';
        if (!comma)
            buf_char(&b, *p);
    }
    json_t *s = b.failed ? NULL : json_stringn(buf_text(&b), b.len);
    buf_release(&b);
    return s;
}

json_t *gold_text(const json_t *column)
{
    if (json_is_string(column) && !json_odd_text(column))
        return after_marks(json_string_value(column));
    char *text = json_text_dump(column, JSON_ENCODE_ANY);
    json_t *s = text ? json_string(text) : NULL;
    free(text);
    return s;
}

json_t *gold_boxed(const char *text)
{
    static const char mark[] = "\\boxed{";
    const char *from = NULL;
    for (const char *p = text; (p = strstr(p, mark)); p += sizeof mark - 1)
        from = p + sizeof mark - 1;
    if (!from)
        return NULL;
    int depth = 1;
    const char *end = from;
    for (; *end; end++) {
        if (*end == '\\' && end[1]) {
            end++;    // an escaped brace does not count
            continue;
        }
        depth += (*end == '{') - (*end == '}');
        if (depth == 0)
            return json_stringn(from, (size_t)(end - from));
    }
    return NULL;
}
