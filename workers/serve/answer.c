#include "workers/serve/answer.h"
#include <ctype.h>
#include <string.h>
#include "protocol/base/macros.h"

static const char open_tag[] = "<think>", close_tag[] = "</think>";

static size_t blanks_before(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && isspace((unsigned char)text[n]))
        n++;
    return n;
}

static size_t without_blanks_after(const char *text, size_t len)
{
    while (len > 0 && isspace((unsigned char)text[len - 1]))
        len--;
    return len;
}

bool answer_opens_thinking(const char *text, size_t len)
{
    len = without_blanks_after(text, len);
    return len >= sizeof open_tag - 1 && memcmp(text + len - (sizeof open_tag - 1), open_tag, sizeof open_tag - 1) == 0;
}

/* Bytes at the end of text that may be the beginning of tag. */
static size_t tag_begins(const char *text, size_t len, const char *tag)
{
    for (size_t n = MIN(strlen(tag) - 1, len); n > 0; n--)
        if (memcmp(text + len - n, tag, n) == 0)
            return n;
    return 0;
}

/* Where the content begins in the text's first n bytes; a has the thinking. n: it has not begun, as far as is known. */
static size_t thinking_read(struct answer_parts *a, const struct answer_config *c, const char *text, size_t n, bool ended)
{
    size_t at = blanks_before(text, n), left = n - at;
    if (!c->opens_thinking) {
        if (!ended && left < sizeof open_tag - 1 && memcmp(text + at, open_tag, left) == 0)
            return n;    // it may become the tag
        a->thought = left < sizeof open_tag - 1 || memcmp(text + at, open_tag, sizeof open_tag - 1) != 0;
        if (a->thought)
            return 0;
        at += sizeof open_tag - 1;
        at += blanks_before(text + at, n - at);
    }
    const char *close = memmem(text + at, n - at, close_tag, sizeof close_tag - 1);
    size_t end = close ? (size_t)(close - text) : n;
    if (!close && !ended)
        end -= tag_begins(text + at, n - at, close_tag);
    a->thinking = text + at;
    a->n_thinking = without_blanks_after(text + at, end - at);
    a->thought = close || ended;
    if (!close)
        return n;
    at = end + sizeof close_tag - 1;
    return at + blanks_before(text + at, n - at);
}

bool answer_read(struct answer_parts *a, const struct answer_config *c, const char *text, size_t len, size_t n_safe, bool ended)
{
    *a = (struct answer_parts){ .thinking = text, .content = text };
    size_t n = ended ? len : MIN(n_safe, len), at = thinking_read(a, c, text, n, ended);
    a->content = text + at;
    a->n_content = n - at;
    if (!a->thought || !c->finds_calls)
        return true;
    if (!ended) {    // calls are looked for in all that there is, and blanks before a call are not shown
        a->n_content = MIN(a->n_content, tool_calls_safe(a->content, len - at));
        a->n_content = without_blanks_after(a->content, a->n_content);
        return true;
    }
    if (!tool_calls_find(&a->calls, a->content, a->n_content, c->tools))
        return false;
    if (!c->parallel_calls)
        tool_calls_cut(&a->calls, 1);
    if (a->calls.n > 0) {
        a->content = buf_text(&a->calls.content);
        a->n_content = a->calls.content.len;
    }
    return true;
}

void answer_release(struct answer_parts *a)
{
    tool_calls_release(&a->calls);
}
