#include "workers/serve/stop_text.h"
#include <string.h>

void stop_text_init(struct stop_text *t, const struct tokenizer *tokenizer, bool skip_special, const char *const *stop, int n_stop,
                    bool include_stop)
{
    *t = (struct stop_text){ .decoder = { .tokenizer = tokenizer, .skip_special = skip_special },
                             .stop = stop,
                             .n_stop = n_stop,
                             .include_stop = include_stop,
                             .stopped_by = -1 };
}

void stop_text_release(struct stop_text *t)
{
    buf_release(&t->text);
    decoder_release(&t->decoder);
}

/* Bytes at the end of the text that are the beginning of a stop string. */
static size_t tail_len(const struct stop_text *t)
{
    size_t longest = 0;
    for (int i = 0; i < t->n_stop; i++)
        for (size_t n = MIN(strlen(t->stop[i]) - 1, t->text.len); n > longest; n--)
            if (memcmp(t->text.data + t->text.len - n, t->stop[i], n) == 0)
                longest = n;
    return longest;
}

/* Find the stop string that begins first among those with a byte at or after `from`, and cut the text there. */
static bool stop_find(struct stop_text *t, size_t from)
{
    size_t first = SIZE_MAX;
    for (int i = 0; i < t->n_stop; i++) {
        size_t n = strlen(t->stop[i]), begin = from >= n ? from - n + 1 : 0;
        const char *at = begin < t->text.len ? memmem(t->text.data + begin, t->text.len - begin, t->stop[i], n) : NULL;
        if (at && (size_t)(at - t->text.data) < first) {
            first = (size_t)(at - t->text.data);
            t->stopped_by = i;
        }
    }
    if (first == SIZE_MAX)
        return false;
    t->text.len = first + (t->include_stop ? strlen(t->stop[t->stopped_by]) : 0);
    t->text.data[t->text.len] = 0;
    return true;
}

bool stop_text_push(struct stop_text *t, int32_t id, bool may_stop, bool *stopped)
{
    size_t from = t->text.len;
    if (!decoder_push(&t->decoder, id, &t->text))
        return false;
    *stopped = may_stop && t->text.len > from && stop_find(t, from);
    t->safe = *stopped ? t->text.len : t->text.len - tail_len(t);
    return true;
}

bool stop_text_end(struct stop_text *t)
{
    if (!decoder_end(&t->decoder, &t->text))
        return false;
    t->safe = t->text.len;
    return true;
}
