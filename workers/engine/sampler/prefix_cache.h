/* prefix_cache.h - full pages of keys and values that later prompts may reuse
 *
 * A page is found by its tokens and by the page before it, so a hit is exact: tokens are compared, not only their hash. A page before
 * is named by a number that is never given twice, so what followed a page that has gone is never found again. `salt` is where a chain
 * begins: prompts of different salts share nothing. The cache holds each of its pages once (pagedkv_share) and gives up those that
 * nobody else holds, the longest unused first. All of it must be cleared when the weights change. Owned by the generator, one thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct pagedkv;
struct prefix_cache {
    struct pagedkv *pages;    // borrowed
    int64_t n_entry;
    uint64_t next_serial;
    struct prefix_entry *entry;    // (n_page) by page number; owned, as the next two
    int32_t *token;                // (n_page, page_tok)
    int32_t *bucket;               // (n_page) first page of each hash; -1: none
    int32_t newest, oldest;        // pages by last use; -1: none
};
/* An empty cache over pages, which outlives it. On failure c holds nothing. */
MUST_USE bool prefix_cache_init(struct prefix_cache *c, struct pagedkv *pages, struct error *err);
void prefix_cache_release(struct prefix_cache *c);    // the pages must be free or dropped by then
/* The longest known beginning of token (n_tok) in full pages: their numbers into page, each held once more for the caller. Returns how
 * many. */
int64_t prefix_cache_take(struct prefix_cache *c, uint64_t salt, const int32_t *token, int64_t n_tok, int32_t *page);
/* Add the full pages of token (n_tok), numbered in page; those that are cached already are left as they are. */
void prefix_cache_add(struct prefix_cache *c, uint64_t salt, const int32_t *token, int64_t n_tok, const int32_t *page);
/* Drop pages until n are free; false: not that many can be freed (all that can be have been). */
bool prefix_cache_make_room(struct prefix_cache *c, int64_t n);
/* Drop everything; fine for a cache that was never made (zeros). */
void prefix_cache_clear(struct prefix_cache *c);
