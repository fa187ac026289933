#include "workers/atropos/atropos_pack.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/macros.h"

/* Groups of one size and one environment that do not fill a pack yet, as a list through packing.next. */
struct bucket {
    int64_t size, env_id;
    int64_t n, first, last;
    bool used;
};
struct packing {
    const struct pack_item *item;
    int64_t n;
    int64_t largest;    // size in the queue
    int64_t *next;      // (n) in its bucket
    int64_t *packed;    // (n_packed) indices of groups in whole packs, in the order in which packs were filled
    int64_t n_packed;
    bool *taken;              // (n)
    struct bucket *bucket;    // (n_bucket) a hash table
    int64_t n_bucket;
};

static void packing_release(struct packing *p)
{
    free(p->next);
    free(p->packed);
    free(p->taken);
    free(p->bucket);
}

static struct bucket *bucket_find(struct packing *p, int64_t size, int64_t env_id)
{
    uint64_t h = ((uint64_t)size * 1000003u + (uint64_t)env_id) * 0x9E3779B97F4A7C15u;
    int64_t at = (int64_t)(h >> 32) & (p->n_bucket - 1);
    while (p->bucket[at].used && (p->bucket[at].size != size || p->bucket[at].env_id != env_id))
        at = (at + 1) & (p->n_bucket - 1);
    struct bucket *b = &p->bucket[at];
    if (!b->used)
        *b = (struct bucket){ .size = size, .env_id = env_id, .used = true };
    return b;
}

/* Fill packs, per environment or over all of them. */
static bool packing_init(struct packing *p, const struct pack_item *item, int64_t n, bool per_env)
{
    *p = (struct packing){ .item = item, .n = n, .n_bucket = 16 };
    while (p->n_bucket < 2 * n)
        p->n_bucket *= 2;
    p->next = calloc((size_t)n, sizeof *p->next);
    p->packed = calloc((size_t)n, sizeof *p->packed);
    p->taken = calloc((size_t)n, sizeof *p->taken);
    p->bucket = calloc((size_t)p->n_bucket, sizeof *p->bucket);
    if (!p->next || !p->packed || !p->taken || !p->bucket)
        return false;
    for (int64_t i = 0; i < n; i++)
        p->largest = MAX(p->largest, item[i].size);
    for (int64_t i = 0; i < n; i++) {
        if (per_env && item[i].env_id < 0)
            continue;    // belongs to no share
        struct bucket *b = bucket_find(p, item[i].size, per_env ? item[i].env_id : 0);
        if (b->n++ == 0)
            b->first = i;
        else
            p->next[b->last] = i;
        b->last = i;
        if (b->n * b->size != p->largest)
            continue;
        for (int64_t k = b->first; b->n > 0; b->n--, k = p->next[k])
            p->packed[p->n_packed++] = k;
    }
    return true;
}

static int64_t exact_take(const struct packing *p, int64_t want, int64_t *out)
{
    int64_t sum = 0, n = 0;
    while (n < p->n_packed && sum < want) {
        out[n] = p->packed[n];
        sum += p->item[out[n++]].size;
    }
    return sum == want ? n : 0;
}

/* The smallest group of an environment in whole packs; 0: it has none. */
static int64_t smallest_packed(const struct packing *p, int64_t env_id)
{
    int64_t least = 0;
    for (int64_t i = 0; i < p->n_packed; i++) {
        const struct pack_item *g = &p->item[p->packed[i]];
        if (g->env_id == env_id && (least == 0 || g->size < least))
            least = g->size;
    }
    return least;
}

/* What the share demands, in sequences, before scaling. */
static int64_t share_seqs(const struct pack_share *s, int64_t want)
{
    return (int64_t)((double)want * s->share);
}

static int64_t shares_take(struct packing *p, int64_t want, const struct pack_share *share, int64_t n_share, int64_t *out)
{
    int64_t demanded = 0, sum = 0, n = 0;
    for (int64_t i = 0; i < n_share; i++) {
        int64_t least = share_seqs(&share[i], want);
        if (least > 0 && smallest_packed(p, share[i].env_id) == 0)
            return 0;
        demanded += MAX(least, 0);
    }
    double scale = demanded > want ? (double)want / (double)demanded : 1;
    for (int64_t i = 0; i < n_share; i++) {
        int64_t least = share_seqs(&share[i], want), own = 0;
        if (least <= 0)
            continue;
        if (demanded > want)
            least = MAX(smallest_packed(p, share[i].env_id), (int64_t)((double)least * scale));
        for (int64_t k = 0; k < p->n_packed && own < least; k++) {
            int64_t at = p->packed[k], size = p->item[at].size;
            if (p->item[at].env_id != share[i].env_id || sum + size > want)
                continue;
            p->taken[at] = true;
            out[n++] = at;
            own += size;
            sum += size;
        }
    }
    bool *fits = calloc((size_t)p->n, sizeof *fits);
    if (!fits)
        return -1;
    for (int64_t k = 0; k < p->n_packed; k++)
        fits[p->packed[k]] = !p->taken[p->packed[k]];
    for (int64_t i = 0; i < p->n && sum < want; i++) {
        if (!fits[i] || sum + p->item[i].size > want)
            continue;
        out[n++] = i;
        sum += p->item[i].size;
    }
    free(fits);
    return sum == want ? n : 0;
}

int64_t pack_batch(const struct pack_item *item, int64_t n, int64_t want, const struct pack_share *share, int64_t n_share, int64_t *out)
{
    struct packing p;
    int64_t got = -1, total = 0;
    for (int64_t i = 0; i < n; i++)
        total += item[i].size;
    if (want <= 0 || total < want)
        return 0;
    if (packing_init(&p, item, n, n_share > 0))
        got = n_share > 0 ? shares_take(&p, want, share, n_share, out) : exact_take(&p, want, out);
    packing_release(&p);
    return got;
}

int64_t pack_sum(const int64_t *size, int64_t n, int64_t target, int64_t *out)
{
    int64_t sum = 0, n_out = 0, width = target + 1;
    for (int64_t i = 0; i < n; i++) {
        if (sum + size[i] > target)
            continue;
        out[n_out++] = i;
        sum += size[i];
        if (sum == target)
            return n_out;
    }
    if (n == 0 || target <= 0)
        return 0;
    bool *can = calloc((size_t)((n + 1) * width), sizeof *can);    // can[i * width + s]: some of the first i add up to s
    if (!can)
        return -1;
    can[0] = true;
    for (int64_t i = 1; i <= n; i++)
        for (int64_t s = 0; s < width; s++)
            can[i * width + s] = can[(i - 1) * width + s] || (s >= size[i - 1] && can[(i - 1) * width + s - size[i - 1]]);
    n_out = 0;
    for (int64_t i = n, left = target; can[n * width + target] && i > 0; i--) {
        if (left < size[i - 1] || !can[(i - 1) * width + left - size[i - 1]])
            continue;
        left -= size[i - 1];
        out[n_out++] = i - 1;
    }
    free(can);
    for (int64_t i = 0; i < n_out / 2; i++) {    // ascending
        int64_t last = out[n_out - 1 - i];
        out[n_out - 1 - i] = out[i];
        out[i] = last;
    }
    return n_out;
}
