#include "workers/engine/sampler/prefix_cache.h"
#include <stdlib.h>
#include <string.h>
#include "workers/engine/sampler/pagedkv.h"

struct prefix_entry {
    uint64_t serial;         // never reused; 0: the page is not in the cache
    uint64_t before;         // serial of the page before, or the chain's salt
    uint64_t hash;           // of before and tokens
    int32_t same;            // next page of the bucket; -1: none
    int32_t newer, older;    // by last use; -1: none
};

bool prefix_cache_init(struct prefix_cache *c, struct pagedkv *pages, struct error *err)
{
    size_t n = (size_t)pages->n_page;
    *c = (struct prefix_cache){ .pages = pages, .next_serial = 1, .newest = -1, .oldest = -1 };
    c->entry = calloc(n, sizeof *c->entry);
    c->token = malloc(n * (size_t)pages->page_tok * sizeof *c->token);
    c->bucket = malloc(n * sizeof *c->bucket);
    if (!c->entry || !c->token || !c->bucket) {
        prefix_cache_release(c);
        return error_set(err, ERR_NO_MEMORY, "no memory for a cache of %zu pages", n);
    }
    memset(c->bucket, 0xff, n * sizeof *c->bucket);    // -1
    return true;
}

void prefix_cache_release(struct prefix_cache *c)
{
    free(c->entry);
    free(c->token);
    free(c->bucket);
    *c = (struct prefix_cache){ .newest = -1, .oldest = -1 };
}

static const int32_t *tokens_of(const struct prefix_cache *c, int32_t page)
{
    return c->token + page * c->pages->page_tok;
}

/* FNV-1a by words, with a final mix (as in SplitMix64) since the low bits select the bucket. */
static uint64_t hash_of(uint64_t before, const int32_t *token, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u ^ before;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)token[i]) * 0x100000001b3u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    return h ^ h >> 27;
}

static int32_t *bucket_of(struct prefix_cache *c, uint64_t hash)
{
    return &c->bucket[hash % (uint64_t)c->pages->n_page];
}

/* The page that holds these tokens after `before`; -1: none. */
static int32_t page_find(struct prefix_cache *c, uint64_t before, const int32_t *token)
{
    int64_t n = c->pages->page_tok;
    uint64_t hash = hash_of(before, token, n);
    for (int32_t page = *bucket_of(c, hash); page >= 0; page = c->entry[page].same) {
        const struct prefix_entry *e = &c->entry[page];
        if (e->hash == hash && e->before == before && memcmp(tokens_of(c, page), token, (size_t)n * sizeof *token) == 0)
            return page;
    }
    return -1;
}

/* ---- by last use */
static void use_unlink(struct prefix_cache *c, int32_t page)
{
    struct prefix_entry *e = &c->entry[page];
    *(e->newer >= 0 ? &c->entry[e->newer].older : &c->newest) = e->older;
    *(e->older >= 0 ? &c->entry[e->older].newer : &c->oldest) = e->newer;
}

static void use_link(struct prefix_cache *c, int32_t page)
{
    struct prefix_entry *e = &c->entry[page];
    e->newer = -1;
    e->older = c->newest;
    *(c->newest >= 0 ? &c->entry[c->newest].newer : &c->oldest) = page;
    c->newest = page;
}

static void entry_remove(struct prefix_cache *c, int32_t page)
{
    struct prefix_entry *e = &c->entry[page];
    int32_t *at = bucket_of(c, e->hash);
    while (*at != page)
        at = &c->entry[*at].same;
    *at = e->same;
    use_unlink(c, page);
    e->serial = 0;
    c->n_entry--;
    pagedkv_drop(c->pages, &page, 1);
}

/* ---- for the generator */
/* The chain of a salt begins at a number that no serial has. */
static uint64_t chain_begin(uint64_t salt)
{
    return salt | (uint64_t)1 << 63;
}

int64_t prefix_cache_take(struct prefix_cache *c, uint64_t salt, const int32_t *token, int64_t n_tok, int32_t *page)
{
    int64_t n = 0, page_tok = c->pages->page_tok;
    uint64_t before = chain_begin(salt);
    for (; (n + 1) * page_tok <= n_tok; n++) {
        int32_t found = page_find(c, before, token + n * page_tok);
        if (found < 0)
            break;
        before = c->entry[found].serial;
        page[n] = found;
    }
    for (int64_t i = n - 1; i >= 0; i--) {    // the first page last: it is the most useful
        use_unlink(c, page[i]);
        use_link(c, page[i]);
    }
    pagedkv_share(c->pages, page, n);
    return n;
}

void prefix_cache_add(struct prefix_cache *c, uint64_t salt, const int32_t *token, int64_t n_tok, const int32_t *page)
{
    int64_t page_tok = c->pages->page_tok;
    uint64_t before = chain_begin(salt);
    for (int64_t i = 0; (i + 1) * page_tok <= n_tok; i++) {
        const int32_t *own = token + i * page_tok;
        int32_t known = page_find(c, before, own);
        if (known >= 0) {
            before = c->entry[known].serial;
            continue;
        }
        struct prefix_entry *e = &c->entry[page[i]];
        if (e->serial != 0)
            return;    // the cache has this page after a different one: two copies of the beginning, of which one is enough
        *e = (struct prefix_entry){ .serial = c->next_serial++, .before = before, .hash = hash_of(before, own, page_tok) };
        memcpy(c->token + page[i] * page_tok, own, (size_t)page_tok * sizeof *own);
        int32_t *bucket = bucket_of(c, e->hash);
        e->same = *bucket;
        *bucket = page[i];
        use_link(c, page[i]);
        c->n_entry++;
        pagedkv_share(c->pages, &page[i], 1);
        before = e->serial;
    }
}

bool prefix_cache_make_room(struct prefix_cache *c, int64_t n)
{
    for (int32_t page = c->oldest, newer; page >= 0 && c->pages->n_free < n; page = newer) {
        newer = c->entry[page].newer;
        if (c->pages->ref[page] == 1)
            entry_remove(c, page);
    }
    return c->pages->n_free >= n;
}

void prefix_cache_clear(struct prefix_cache *c)
{
    while (c->entry && c->oldest >= 0)
        entry_remove(c, c->oldest);
}
