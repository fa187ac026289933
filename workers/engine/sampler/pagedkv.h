/* pagedkv.h - which sequences hold which page of the key-value pool
 *
 * The pool itself (keys and values) belongs to the model; this module handles page numbers only. A page holds page_tok
 * consecutive tokens of one sequence, in all layers, and may belong to several sequences as long as none of them writes to it:
 * the full pages of a prompt are shared by the samples of its group. Owned by the generator, one thread. */
#pragma once
#include <stdint.h>
#include "protocol/base/error.h"

struct pagedkv {
    int64_t n_page;
    int64_t page_tok;    // tokens per page
    int64_t n_free;
    int32_t *free_page;    // (n_page) the first n_free are free, the last one is taken next; owned
    int32_t *ref;          // (n_page) number of holders of the page; 0: free; owned
};
/* All pages free. On failure p holds nothing. */
MUST_USE bool pagedkv_init(struct pagedkv *p, int64_t n_page, int64_t page_tok, struct error *err);
void pagedkv_release(struct pagedkv *p);
/* How many pages n_tok tokens need. */
int64_t pagedkv_pages(const struct pagedkv *p, int64_t n_tok);
/* Take n pages, with one holder each, into page[0..n-1]; false, and none taken, when fewer are free. */
MUST_USE bool pagedkv_take(struct pagedkv *p, int32_t *page, int64_t n);
/* One more holder for each of n pages, which must have one already. */
void pagedkv_share(struct pagedkv *p, const int32_t *page, int64_t n);
/* One holder fewer; a page without holders is free again. */
void pagedkv_drop(struct pagedkv *p, const int32_t *page, int64_t n);
/* Every page is either free (once in the list, no holder) or held; for tests. False: err says which page is wrong. */
MUST_USE bool pagedkv_check(const struct pagedkv *p, struct error *err);
