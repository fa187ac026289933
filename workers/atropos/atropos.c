/* atropos.c - what becomes of the trainer's registration and of posted groups: the queue, batches, a run's items
 *
 * Every change goes through three steps: make sure that it cannot fail any more (room is reserved), write it to the log
 * (change_note), apply it (a function that ends in _apply). Reading the log at a start applies the same changes, by the same
 * functions: atropos_state.c. Environments are in atropos_env.c. */
#include "workers/atropos/atropos_parts.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/atropos/atropos_log.h"
#include "workers/atropos/atropos_pack.h"

#define SUM_STEPS 1000000    // most groups x group size for which every combination is tried

int64_t atropos_now(const struct atropos *a)
{
    return a->config.now_ms ? a->config.now_ms() : clock_ms();
}

/* ---- lists */
bool groups_reserve(struct groups *l, int64_t more, struct error *err)
{
    if (l->n + more <= l->cap)
        return true;
    int64_t cap = MAX(2 * l->cap, l->n + more);
    struct scored **grown = realloc(l->at, (size_t)cap * sizeof *grown);
    if (!grown)
        return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " groups", cap);
    l->at = grown;
    l->cap = cap;
    return true;
}

void groups_push(struct groups *l, struct scored *g)
{
    l->at[l->n++] = g;
}

/* Remove the groups with these indices. */
static void groups_remove(struct groups *l, const int64_t *index, int64_t n)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        l->at[index[i]] = NULL;
    for (int64_t i = 0; i < l->n; i++)
        if (l->at[i])
            l->at[kept++] = l->at[i];
    l->n = kept;
}

/* A group leaves for good. */
static void group_leave(struct atropos *a, struct scored *g)
{
    a->bytes -= scored_bytes(g);
    a->n_group--;
    if (a->log)
        atropos_log_left(a->log, g);
    scored_drop(g);
}

static void groups_leave(struct atropos *a, struct groups *l)
{
    for (int64_t i = 0; i < l->n; i++)
        group_leave(a, l->at[i]);
    free(l->at);
    *l = (struct groups){ 0 };
}

static void batch_unlink(struct atropos *a, struct batch *b)
{
    struct batch **at = &a->first, *before = NULL;
    while (*at != b) {
        before = *at;
        at = &(*at)->next;
    }
    *at = b->next;
    if (a->last == b)
        a->last = before;
}

void batch_push(struct atropos *a, struct batch *b)
{
    b->next = NULL;
    *(a->last ? &a->last->next : &a->first) = b;
    a->last = b;
}

struct batch *batch_find(const struct atropos *a, int64_t number)
{
    struct batch *b = a->first;
    while (b && b->number != number)
        b = b->next;
    return b;
}

/* ---- registration */
void register_apply(struct atropos *a, const struct atropos_trainer *t)
{
    a->trainer = *t;
    a->step = MAX(a->registered ? a->step : 0, t->starting_step);
    a->registered = true;
}

bool atropos_register(struct atropos *a, const struct atropos_trainer *t, bool take_over, struct error *err)
{
    if (a->registered && !take_over)
        return true;
    if (!change_note(a, json_pack("{s:s, s:o}", "change", "register", "trainer", trainer_json(t)), true, err))
        return false;
    register_apply(a, t);
    return true;
}

/* The trainer asks for its first batch: environments may register from now on. */
static bool trainer_start(struct atropos *a, struct error *err)
{
    if (!a->started && !change_note(a, json_pack("{s:s}", "change", "start"), true, err))
        return false;
    a->started = true;
    return true;
}

const struct atropos_trainer *atropos_trainer(const struct atropos *a)
{
    return a->registered ? &a->trainer : NULL;
}

bool atropos_is_started(const struct atropos *a)
{
    return a->started;
}

int64_t atropos_step(const struct atropos *a)
{
    return a->step;
}

/* ---- posting */
static void queue_push(struct atropos *a, struct scored *g)
{
    groups_push(&a->queue, g);
    scored_drop(a->latest);
    a->latest = g;
    scored_hold(g);
}

/* Move groups that add up to the environment's group size from its buffer to the queue. */
static void buffer_release(struct atropos *a, struct env *x)
{
    int64_t size[ATROPOS_BUFFER_MAX], index[ATROPOS_BUFFER_MAX], n = MIN(x->buffer.n, ATROPOS_BUFFER_MAX);
    for (int64_t i = 0; i < n; i++)
        size[i] = x->buffer.at[i]->n_seq;
    if (x->e.group_size > SUM_STEPS / n)
        return;    // no environment has groups of that size
    int64_t n_found = pack_sum(size, n, x->e.group_size, index);
    for (int64_t i = 0; i < n_found; i++)
        queue_push(a, x->buffer.at[index[i]]);
    groups_remove(&x->buffer, index, MAX(n_found, 0));    // without memory they wait for the next one
}

/* Put groups, whose room is reserved, where they belong. */
void post_apply(struct atropos *a, struct scored **g, int64_t n, struct atropos_posted *p)
{
    for (int64_t i = 0; i < n; i++) {
        struct env *x = env_find(a, g[i]->env_id);
        a->bytes += scored_bytes(g[i]);
        a->n_group++;
        if (x)
            x->e.seen_ms = atropos_now(a);
        if (!x || x->e.group_size == g[i]->n_seq) {
            queue_push(a, g[i]);
            continue;
        }
        groups_push(&x->buffer, g[i]);
        buffer_release(a, x);
        p->n_buffered++;
        p->buffer_seqs = 0;
        for (int64_t k = 0; k < x->buffer.n; k++)
            p->buffer_seqs += x->buffer.at[k]->n_seq;
    }
}

/* Room for n groups: queue and buffers have memory for all of them wherever they go. */
bool post_reserve(struct atropos *a, struct scored **g, int64_t n, struct error *err)
{
    int64_t buffered = 0;
    for (int64_t i = 0; i < n; i++) {
        struct env *x = env_find(a, g[i]->env_id);
        if (x && !groups_reserve(&x->buffer, n, err))
            return false;
    }
    for (int64_t i = 0; i < a->n_env; i++)
        buffered += a->env[i]->buffer.n;
    return groups_reserve(&a->queue, n + buffered, err);
}

static bool post_fits(const struct atropos *a, struct scored **g, int64_t n, struct error *err)
{
    size_t bytes = a->bytes;
    for (int64_t i = 0; i < n; i++) {
        const struct env *x = env_find(a, g[i]->env_id);
        bytes += scored_bytes(g[i]);
        if (x && x->buffer.n >= ATROPOS_BUFFER_MAX && g[i]->n_seq != x->e.group_size)
            return error_set(err, ERR_FULL,
                             "environment %" PRId64 " has %" PRId64 " groups here whose sizes do not add up to its group size %" PRId64,
                             g[i]->env_id, x->buffer.n, x->e.group_size);
    }
    if (bytes > a->config.max_bytes || a->n_group + n > ATROPOS_GROUPS_MAX)
        return error_set(err, ERR_FULL, "%" PRId64 " groups of %zu MiB wait for the trainer, and no more are taken until it fetches some",
                         a->n_group, a->bytes >> 20);
    return true;
}

bool atropos_post(struct atropos *a, struct scored **g, int64_t n, struct atropos_posted *p, struct error *err)
{
    *p = (struct atropos_posted){ 0 };
    bool ok = n == 0 || (post_fits(a, g, n, err) && post_reserve(a, g, n, err));
    for (int64_t i = 0; ok && i < n; i++)
        g[i]->id = a->next_id + i;
    if (ok && n > 0 && a->log)
        ok = state_keep_short(a, err)
             && (atropos_log_post(a->log, g, n, err)
                 || (atropos_log_would_shrink(a->log) && state_turn(a, err) && atropos_log_post(a->log, g, n, err)));
    for (int64_t i = 0; i < n && (ok || err->code == ERR_FULL); i++)
        group_counted(a, g[i]->env_id, !ok);
    if (!ok) {
        for (int64_t i = 0; i < n; i++)
            scored_drop(g[i]);
        return false;
    }
    a->next_id += n;
    post_apply(a, g, n, p);
    return true;
}

/* ---- batches */
/* The shares of environments that take part. Returns how many; -1: no memory. */
static int64_t shares_collect(const struct atropos *a, struct pack_share **out)
{
    int64_t n = 0;
    *out = calloc((size_t)MAX(a->n_env, 1), sizeof **out);
    for (int64_t i = 0; *out && i < a->n_env; i++)
        if (a->env[i]->e.has_share && env_counts(a, &a->env[i]->e))
            (*out)[n++] = (struct pack_share){ i, a->env[i]->e.share };
    return *out ? n : -1;
}

/* Take these groups of the queue as a batch, whose room is made. */
void batch_apply(struct atropos *a, struct batch *b, const int64_t *index, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        groups_push(&b->group, a->queue.at[index[i]]);
    groups_remove(&a->queue, index, n);
    b->number = a->next_batch++;
    batch_push(a, b);
    a->step++;
}

/* Form one batch if there is one. *formed says whether. */
static bool batch_form(struct atropos *a, bool *formed, struct error *err)
{
    struct pack_share *share = NULL;
    struct pack_item *item = calloc((size_t)MAX(a->queue.n, 1), sizeof *item);
    int64_t *index = calloc((size_t)MAX(a->queue.n, 1), sizeof *index), n = -1;
    struct batch *b = calloc(1, sizeof *b);
    int64_t n_share = shares_collect(a, &share);
    bool ok = false;
    *formed = false;
    if (item && index && b && n_share >= 0) {
        for (int64_t i = 0; i < a->queue.n; i++)
            item[i] = (struct pack_item){ a->queue.at[i]->n_seq, a->queue.at[i]->env_id };
        n = pack_batch(item, a->queue.n, a->trainer.batch_size, share, n_share, index);
    }
    if (n < 0) {
        error_set(err, ERR_NO_MEMORY, "no memory to form a batch");
        goto out;
    }
    ok = n == 0
         || (groups_reserve(&b->group, n, err)
             && change_note(a, json_pack("{s:s, s:o}", "change", "batch", "groups", ids_json(a->queue.at, index, n)), true, err));
    if (ok && n > 0) {
        batch_apply(a, b, index, n);
        b = NULL;
        *formed = true;
    }
out:
    if (b)
        free(b->group.at);
    free(b);
    free(item);
    free(index);
    free(share);
    return ok;
}

/* The next batch to hand out; NULL: none is formed. */
static struct batch *batch_next(const struct atropos *a)
{
    struct batch *next = NULL;
    for (struct batch *b = a->first; b; b = b->next)
        if (!b->out && (!next || a->config.lifo))
            next = b;
    return next;
}

bool atropos_batch(struct atropos *a, struct atropos_batch *out, struct error *err)
{
    bool formed = a->registered && a->n_out < ATROPOS_OUT_MAX && !batch_next(a);
    *out = (struct atropos_batch){ 0 };
    if (a->registered && !trainer_start(a, err))
        return false;
    while (formed)
        if (!batch_form(a, &formed, err))
            return false;
        else if (!a->config.lifo)
            break;
    struct batch *b = a->n_out < ATROPOS_OUT_MAX ? batch_next(a) : NULL;
    if (!b)
        return true;
    b->out = true;
    a->n_out++;
    *out = (struct atropos_batch){ b->number, b->group.at, b->group.n };
    return true;
}

/* ---- a run's items */
bool atropos_begin(struct atropos *a, const struct atropos_trainer *t, struct error *err)
{
    return atropos_register(a, t, true, err) && trainer_start(a, err);
}

void atropos_step_set(struct atropos *a, int64_t step)
{
    a->step = step;
}

/* The group at this place of the queue belongs to the item, whose batch has room for it. */
void take_apply(struct atropos *a, struct batch *b, int64_t index, int64_t item)
{
    groups_push(&b->group, a->queue.at[index]);
    groups_remove(&a->queue, &index, 1);
    b->number = item;
    batch_push(a, b);
}

bool atropos_take(struct atropos *a, int64_t item, const struct scored **g, struct error *err)
{
    struct batch *b = batch_find(a, item);
    *g = NULL;
    if (!b && a->queue.n == 0)
        return true;
    if (!b) {
        b = calloc(1, sizeof *b);
        if (!b || !groups_reserve(&b->group, 1, err)
            || !change_note(
                a, json_pack("{s:s, s:I, s:I}", "change", "take", "number", (json_int_t)item, "group", (json_int_t)a->queue.at[0]->id),
                true, err)) {
            if (!b)
                error_set(err, ERR_NO_MEMORY, "no memory for item %" PRId64, item);
            else
                free(b->group.at);
            free(b);
            return false;
        }
        take_apply(a, b, 0, item);
    }
    a->n_out += !b->out;
    b->out = true;
    *g = b->group.n ? b->group.at[0] : NULL;
    return true;
}

void give_back_apply(struct atropos *a, struct batch *b)
{
    memmove(a->queue.at + b->group.n, a->queue.at, (size_t)a->queue.n * sizeof *a->queue.at);
    memcpy(a->queue.at, b->group.at, (size_t)b->group.n * sizeof *a->queue.at);
    a->queue.n += b->group.n;
    a->n_out -= b->out;
    batch_unlink(a, b);
    free(b->group.at);
    free(b);
}

bool atropos_give_back(struct atropos *a, int64_t item, struct error *err)
{
    struct batch *b = batch_find(a, item);
    if (!b)
        return true;
    if (!groups_reserve(&a->queue, b->group.n, err)
        || !change_note(a, json_pack("{s:s, s:I}", "change", "give_back", "number", (json_int_t)item), true, err))
        return false;
    give_back_apply(a, b);
    return true;
}

int64_t atropos_taken(const struct atropos *a, int64_t *out, int64_t max)
{
    int64_t n = 0;
    for (const struct batch *b = a->first; b && n < max; b = b->next)
        out[n++] = b->number;
    return n;
}

void sent_apply(struct atropos *a, struct batch *b)
{
    batch_unlink(a, b);
    groups_leave(a, &b->group);
    free(b);
}

void atropos_sent(struct atropos *a, int64_t number, bool arrived)
{
    struct error err;
    struct batch *b = batch_find(a, number);
    if (!b || !b->out)
        return;
    a->n_out--;
    b->out = false;
    if (!arrived) {
        log_warn("the client went away while batch %" PRId64 " was sent; it is handed out again", number);
        return;
    }
    // not synced: after a power cut the batch would come a second time, which is better than waiting here
    if (!change_note(a, json_pack("{s:s, s:I}", "change", "sent", "number", (json_int_t)number), false, &err))
        log_warn("batch %" PRId64 " was sent, and would be sent again after a restart: %s", number, err.text);
    sent_apply(a, b);
}

/* ---- looking */
int64_t atropos_queued(const struct atropos *a)
{
    return a->queue.n;
}

const struct scored *atropos_latest(const struct atropos *a)
{
    return a->latest;
}

int64_t atropos_peek(const struct atropos *a, struct scored *const **group, int64_t max)
{
    *group = a->queue.at;
    return MIN(a->queue.n, max);
}

/* ---- forgetting */
void reset_apply(struct atropos *a)
{
    groups_leave(a, &a->queue);
    for (int64_t i = 0; i < a->n_env; i++) {
        groups_leave(a, &a->env[i]->buffer);
        free(a->env[i]);
    }
    a->n_env = a->n_out = 0;
    while (a->first)
        sent_apply(a, a->first);
    a->registered = a->started = false;
    a->step = 0;
    a->trainer.group[0] = a->trainer.project[0] = 0;
    a->trainer.batch_size = a->trainer.num_steps = -1;
}

bool atropos_reset(struct atropos *a, struct error *err)
{
    if (!change_note(a, json_pack("{s:s}", "change", "reset"), true, err))
        return false;
    reset_apply(a);
    return true;
}

/* ---- beginning and end */
struct atropos *atropos_new(const struct atropos_config *config, struct error *err)
{
    struct atropos *a = calloc(1, sizeof *a);
    if (!a) {
        error_set(err, ERR_NO_MEMORY, "no memory for a queue of groups");
        return NULL;
    }
    a->config = *config;
    a->next_id = a->next_batch = 1;
    a->trainer.batch_size = a->trainer.max_token_len = -1;
    if (config->dir && !state_open(a, err)) {
        atropos_free(a);
        return NULL;
    }
    return a;
}

static void groups_free(struct groups *l)
{
    for (int64_t i = 0; i < l->n; i++)
        scored_drop(l->at[i]);
    free(l->at);
}

void atropos_free(struct atropos *a)
{
    if (!a)
        return;
    groups_free(&a->queue);
    for (int64_t i = 0; i < a->n_env; i++) {
        groups_free(&a->env[i]->buffer);
        free(a->env[i]);
    }
    while (a->first) {
        struct batch *b = a->first;
        batch_unlink(a, b);
        groups_free(&b->group);
        free(b);
    }
    state_release(a);
    free(a->env);
    scored_drop(a->latest);
    atropos_log_close(a->log);
    free(a);
}
