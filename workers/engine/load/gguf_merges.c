#include "workers/engine/load/gguf_merges.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/macros.h"

#define TOKENS_MAX (1 << 24)    // as many as fp32 can number
#define TOKEN_BYTES_MAX 1024    // longer ones are not cut; SentencePiece makes none of more than 16 characters by itself

/* A token in the order of texts. */
struct entry {
    struct gguf_text text;
    int32_t id;
};

static int entry_compare(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = gguf_text_compare(x->text, y->text);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

/* The id of a text; -1: it is no token. */
static int32_t entry_find(const struct entry *e, int64_t n, const char *at, size_t len)
{
    for (int64_t low = 0, high = n; low < high;) {
        int64_t mid = low + (high - low) / 2;
        int c = gguf_text_compare(e[mid].text, (struct gguf_text){ at, len });
        if (c == 0)
            return e[mid].id;
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

static int merge_compare(const void *a, const void *b)
{
    const struct gguf_merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->n_left != y->n_left)
        return x->n_left > y->n_left ? -1 : 1;
    if (x->n_right != y->n_right)
        return x->n_right > y->n_right ? -1 : 1;
    if (x->both != y->both)
        return x->both < y->both ? -1 : 1;
    return x->left != y->left ? (x->left < y->left ? -1 : 1) : (x->right > y->right) - (x->right < y->right);
}

static bool begins_character(char c)
{
    return ((uint8_t)c & 0xC0) != 0x80;
}

static bool merge_add(struct gguf_merges *m, struct gguf_merge one)
{
    if (m->n == m->cap) {
        int64_t cap = m->cap ? 2 * m->cap : 1024;
        struct gguf_merge *more = realloc(m->merge, (size_t)cap * sizeof *more);
        if (!more)
            return false;
        m->merge = more;
        m->cap = cap;
    }
    m->merge[m->n++] = one;
    return true;
}

/* Every way to cut token id in two that are tokens. */
static bool token_cut(struct gguf_merges *m, const struct entry *e, int64_t n, struct gguf_text t, int32_t id, float score)
{
    int32_t all = 0, n_left = 0;
    if (t.len > TOKEN_BYTES_MAX)
        return true;
    for (size_t i = 0; i < t.len; i++)
        all += begins_character(t.at[i]);
    for (size_t i = 1; i < t.len; i++) {
        if (!begins_character(t.at[i]))
            continue;
        n_left++;
        int32_t left = entry_find(e, n, t.at, i), right = left < 0 ? -1 : entry_find(e, n, t.at + i, t.len - i);
        if (right >= 0 && !merge_add(m, (struct gguf_merge){ left, right, id, n_left, all - n_left, score }))
            return false;
    }
    return true;
}

bool gguf_merges_make(struct gguf_merges *m, const struct gguf_text *token, const float *score, int64_t n, struct error *err)
{
    if (n > TOKENS_MAX)
        return error_set(err, ERR_DATA, "%" PRId64 " tokens are more than the %d allowed", n, TOKENS_MAX);
    struct entry *e = calloc((size_t)n + 1, sizeof *e);
    bool ok = e != NULL;
    for (int64_t i = 0; ok && i < n; i++)
        e[i] = (struct entry){ token[i], (int32_t)i };
    if (ok && n > 0)
        qsort(e, (size_t)n, sizeof *e, entry_compare);
    for (int64_t i = 0; ok && i < n; i++)
        ok = token_cut(m, e, n, token[i], (int32_t)i, !score ? -(float)i : isnan(score[i]) ? -INFINITY : score[i]);
    free(e);
    if (ok && m->n > 0)
        qsort(m->merge, (size_t)m->n, sizeof *m->merge, merge_compare);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for the merges of %" PRId64 " tokens", n);
}

void gguf_merges_release(struct gguf_merges *m)
{
    free(m->merge);
    *m = (struct gguf_merges){ 0 };
}
