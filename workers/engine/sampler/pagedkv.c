#include "workers/engine/sampler/pagedkv.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool pagedkv_init(struct pagedkv *p, int64_t n_page, int64_t page_tok, struct error *err)
{
    *p = (struct pagedkv){ 0 };
    if (n_page < 1 || n_page > INT32_MAX || page_tok < 1)
        return error_set(err, ERR_SHAPE, "a key-value pool of %" PRId64 " pages of %" PRId64 " tokens is not possible", n_page, page_tok);
    p->free_page = malloc((size_t)n_page * sizeof *p->free_page);
    p->ref = calloc((size_t)n_page, sizeof *p->ref);
    if (!p->free_page || !p->ref) {
        pagedkv_release(p);
        return error_set(err, ERR_NO_MEMORY, "no memory for the list of %" PRId64 " key-value pages", n_page);
    }
    p->n_page = p->n_free = n_page;
    p->page_tok = page_tok;
    for (int64_t i = 0; i < n_page; i++)
        p->free_page[i] = (int32_t)(n_page - 1 - i);    // page 0 is taken first
    return true;
}

void pagedkv_release(struct pagedkv *p)
{
    free(p->free_page);
    free(p->ref);
    *p = (struct pagedkv){ 0 };
}

int64_t pagedkv_pages(const struct pagedkv *p, int64_t n_tok)
{
    return n_tok <= 0 ? 0 : (n_tok - 1) / p->page_tok + 1;
}

bool pagedkv_take(struct pagedkv *p, int32_t *page, int64_t n)
{
    if (n > p->n_free)
        return false;
    for (int64_t i = 0; i < n; i++) {
        page[i] = p->free_page[--p->n_free];
        p->ref[page[i]] = 1;
    }
    return true;
}

void pagedkv_share(struct pagedkv *p, const int32_t *page, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        BUG_IF(page[i] < 0 || page[i] >= p->n_page || p->ref[page[i]] < 1, "page %d is shared but nobody holds it", page[i]);
        p->ref[page[i]]++;
    }
}

void pagedkv_drop(struct pagedkv *p, const int32_t *page, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        BUG_IF(page[i] < 0 || page[i] >= p->n_page || p->ref[page[i]] < 1, "page %d is dropped but nobody holds it", page[i]);
        if (--p->ref[page[i]] == 0)
            p->free_page[p->n_free++] = page[i];
    }
}

bool pagedkv_check(const struct pagedkv *p, struct error *err)
{
    int64_t n_unheld = 0;
    for (int64_t i = 0; i < p->n_page; i++) {
        if (p->ref[i] < 0)
            return error_set(err, ERR_INTERNAL, "page %" PRId64 " has %d holders", i, p->ref[i]);
        n_unheld += p->ref[i] == 0;
    }
    if (n_unheld != p->n_free)
        return error_set(err, ERR_INTERNAL, "%" PRId64 " pages have no holder, %" PRId64 " are in the free list", n_unheld, p->n_free);
    for (int64_t i = 0; i < p->n_free; i++) {
        if (p->free_page[i] < 0 || p->free_page[i] >= p->n_page || p->ref[p->free_page[i]] != 0)
            return error_set(err, ERR_INTERNAL, "page %d is in the free list and held", p->free_page[i]);
        for (int64_t j = 0; j < i; j++)
            if (p->free_page[j] == p->free_page[i])
                return error_set(err, ERR_INTERNAL, "page %d is in the free list twice", p->free_page[i]);
    }
    return true;
}
