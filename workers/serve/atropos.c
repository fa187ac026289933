/* atropos.c - the state of the server of scored groups
 *
 * Every change goes through three steps: make sure that it cannot fail any more (room is reserved), write it to the log, apply
 * it. Reading the log at a start applies the same changes, by the same functions. */
#include "workers/serve/atropos.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/serve/atropos_log.h"
#include "workers/serve/atropos_pack.h"

#define SUM_STEPS 1000000    // most groups x group size for which every combination is tried

struct list {
    struct scored **at;    // (n) one reference each
    int64_t n, cap;
};
struct env {
    struct atropos_env e;
    struct list buffer;    // groups that are smaller than its group size
};
struct batch {
    struct batch *next;
    int64_t number;
    bool out;    // its answer is being sent
    struct list group;
};
struct named {
    int64_t id;
    struct scored *group;    // NULL: not read yet
};
struct atropos {
    struct atropos_config config;
    struct atropos_log *log;    // NULL: none, or it is being read
    bool registered, started;
    struct atropos_trainer trainer;
    int64_t step, next_id, next_batch;
    struct env **env;    // (n_env)
    int64_t n_env, cap_env;
    struct list queue;
    struct batch *first, *last;    // formed and not sent yet, in order
    int64_t n_out;                 // of them being sent
    struct scored *latest;         // one reference
    size_t bytes;                  // of all groups inside
    int64_t n_group;
    // while the log is read
    json_t *state;
    struct named *named;    // (n_named) by id: the groups that the state names
    int64_t n_named, n_lost;
};

static int64_t now_of(const struct atropos *a)
{
    return a->config.now_ms ? a->config.now_ms() : clock_ms();
}

/* ---- lists */
static bool list_reserve(struct list *l, int64_t more, struct error *err)
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

static void list_push(struct list *l, struct scored *g)
{
    l->at[l->n++] = g;
}

/* Remove the groups with these indices. */
static void list_remove(struct list *l, const int64_t *index, int64_t n)
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

static void list_leave(struct atropos *a, struct list *l)
{
    for (int64_t i = 0; i < l->n; i++)
        group_leave(a, l->at[i]);
    free(l->at);
    *l = (struct list){ 0 };
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

static void batch_push(struct atropos *a, struct batch *b)
{
    b->next = NULL;
    *(a->last ? &a->last->next : &a->first) = b;
    a->last = b;
}

static struct batch *batch_find(const struct atropos *a, int64_t number)
{
    struct batch *b = a->first;
    while (b && b->number != number)
        b = b->next;
    return b;
}

/* ---- the log */
static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int64_t int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* The ids of groups; index: only of these (n). NULL: no memory, which json_pack passes on. */
static json_t *ids_json(struct scored *const *group, const int64_t *index, int64_t n)
{
    json_t *ids = json_array();
    for (int64_t i = 0; ids && i < n; i++)
        if (json_array_append_new(ids, json_integer(group[index ? index[i] : i]->id)) != 0) {
            json_decref(ids);
            ids = NULL;
        }
    return ids;
}

static json_t *trainer_json(const struct atropos_trainer *t)
{
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "group", t->group, "project", t->project, "checkpoint_dir",
                     t->checkpoint_dir, "batch_size", (json_int_t)t->batch_size, "max_token_len", (json_int_t)t->max_token_len,
                     "save_interval", (json_int_t)t->save_interval, "starting_step", (json_int_t)t->starting_step, "num_steps",
                     (json_int_t)t->num_steps);
}

static void trainer_load(struct atropos_trainer *t, const json_t *o)
{
    snprintf(t->group, sizeof t->group, "%s", text_of(o, "group"));
    snprintf(t->project, sizeof t->project, "%s", text_of(o, "project"));
    snprintf(t->checkpoint_dir, sizeof t->checkpoint_dir, "%s", text_of(o, "checkpoint_dir"));
    t->batch_size = int_of(o, "batch_size");
    t->max_token_len = int_of(o, "max_token_len");
    t->save_interval = int_of(o, "save_interval");
    t->starting_step = int_of(o, "starting_step");
    t->num_steps = int_of(o, "num_steps");
}

static json_t *env_json(const struct atropos_env *e)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:f, s:o, s:b}", "desired_name", e->desired_name, "name", e->name, "max_token_len",
                     (json_int_t)e->max_token_len, "group_size", (json_int_t)e->group_size, "weight", e->weight, "share",
                     e->has_share ? json_real(e->share) : json_null(), "connected", e->connected);
}

static void env_load(struct atropos_env *e, const json_t *o, int64_t now_ms)
{
    const json_t *share = json_object_get(o, "share");
    *e = (struct atropos_env){ .max_token_len = int_of(o, "max_token_len"),
                               .group_size = int_of(o, "group_size"),
                               .weight = json_number_value(json_object_get(o, "weight")),
                               .has_share = json_is_number(share),
                               .share = json_number_value(share),
                               .connected = json_is_true(json_object_get(o, "connected")),
                               .seen_ms = now_ms };
    snprintf(e->desired_name, sizeof e->desired_name, "%s", text_of(o, "desired_name"));
    snprintf(e->name, sizeof e->name, "%s", text_of(o, "name"));
}

/* Print and free a JSON value. */
static bool json_text_take(struct buf *out, json_t *v, struct error *err)
{
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    bool ok = (text && buf_str(out, text)) || error_set(err, ERR_NO_MEMORY, "no memory to write down a change");
    free(text);
    json_decref(v);
    return ok;
}

/* The whole small state. */
static bool state_text(const struct atropos *a, struct buf *out, struct error *err)
{
    json_t *envs = json_array(), *buffers = json_array(), *batches = json_array();
    int failed = 0;    // appends; each takes its value in any case
    for (int64_t i = 0; i < a->n_env; i++) {
        failed |= json_array_append_new(envs, env_json(&a->env[i]->e));
        failed |= json_array_append_new(buffers, ids_json(a->env[i]->buffer.at, NULL, a->env[i]->buffer.n));
    }
    for (const struct batch *b = a->first; b; b = b->next)
        failed |= json_array_append_new(
            batches, json_pack("{s:I, s:o}", "number", (json_int_t)b->number, "groups", ids_json(b->group.at, NULL, b->group.n)));
    if (failed) {
        json_decref(envs);
        json_decref(buffers);
        json_decref(batches);
        return error_set(err, ERR_NO_MEMORY, "no memory to write down the state");
    }
    return json_text_take(out,
                          json_pack("{s:i, s:b, s:b, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "version", 1, "registered", a->registered,
                                    "started", a->started, "trainer", trainer_json(&a->trainer), "step", (json_int_t)a->step, "next_id",
                                    (json_int_t)a->next_id, "next_batch", (json_int_t)a->next_batch, "envs", envs, "buffers", buffers,
                                    "batches", batches, "queue", ids_json(a->queue.at, NULL, a->queue.n)),
                          err);
}

/* All groups inside into out (a->n_group). */
static void live_collect(const struct atropos *a, struct scored **out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->queue.n; i++)
        out[n++] = a->queue.at[i];
    for (int64_t k = 0; k < a->n_env; k++)
        for (int64_t i = 0; i < a->env[k]->buffer.n; i++)
            out[n++] = a->env[k]->buffer.at[i];
    for (const struct batch *b = a->first; b; b = b->next)
        for (int64_t i = 0; i < b->group.n; i++)
            out[n++] = b->group.at[i];
    BUG_IF(n != a->n_group, "%" PRId64 " groups in lists, %" PRId64 " counted", n, a->n_group);
}

static bool log_turn(struct atropos *a, struct error *err)
{
    struct buf state = BUF_INIT;
    struct scored **live = calloc((size_t)MAX(a->n_group, 1), sizeof *live);
    bool ok = live || error_set(err, ERR_NO_MEMORY, "no memory for a new segment of the log");
    if (ok)
        live_collect(a, live);
    ok = ok && state_text(a, &state, err) && atropos_log_turn(a->log, &state, live, a->n_group, err);
    buf_release(&state);
    free(live);
    return ok;
}

/* Write a change down before it is applied; takes note. */
static bool change_note(struct atropos *a, json_t *note, bool sync, struct error *err)
{
    struct buf text = BUF_INIT;
    if (!a->log) {
        json_decref(note);
        return true;
    }
    bool ok = (!atropos_log_is_long(a->log) || log_turn(a, err)) && json_text_take(&text, note, err)
              && atropos_log_note(a->log, &text, sync, err);
    buf_release(&text);
    return ok;
}

/* ---- registration */
static void trainer_apply(struct atropos *a, const struct atropos_trainer *t)
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
    trainer_apply(a, t);
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

/* ---- environments */
static bool env_reserve(struct atropos *a, struct error *err)
{
    if (a->n_env == a->cap_env) {
        int64_t cap = MAX(2 * a->cap_env, 16);
        struct env **grown = realloc(a->env, (size_t)cap * sizeof(struct env *));
        if (!grown)
            return error_set(err, ERR_NO_MEMORY, "no memory for another environment");
        a->env = grown;
        a->cap_env = cap;
    }
    return true;
}

bool atropos_env_add(struct atropos *a, const struct atropos_env *e, int64_t *id, struct error *err)
{
    int64_t n_same = 0;
    if (a->n_env == ATROPOS_ENVS_MAX)
        return error_set(err, ERR_FULL, "%d environments are registered, and no more are taken", ATROPOS_ENVS_MAX);
    struct env *x = calloc(1, sizeof *x);
    if (!x)
        return error_set(err, ERR_NO_MEMORY, "no memory for another environment");
    for (int64_t i = 0; i < a->n_env; i++)
        n_same += strcmp(a->env[i]->e.desired_name, e->desired_name) == 0;
    x->e = *e;
    snprintf(x->e.name, sizeof x->e.name, "%s_%" PRId64, e->desired_name, n_same);
    x->e.connected = true;
    x->e.seen_ms = now_of(a);
    if (!env_reserve(a, err) || !change_note(a, json_pack("{s:s, s:o}", "change", "env", "env", env_json(&x->e)), true, err)) {
        free(x);
        return false;
    }
    *id = a->n_env;
    a->env[a->n_env++] = x;
    return true;
}

static struct env *env_find(const struct atropos *a, int64_t id)
{
    return id >= 0 && id < a->n_env ? a->env[id] : NULL;
}

const struct atropos_env *atropos_env(const struct atropos *a, int64_t id)
{
    const struct env *x = env_find(a, id);
    return x ? &x->e : NULL;
}

bool atropos_env_leave(struct atropos *a, int64_t id, struct error *err)
{
    struct env *x = env_find(a, id);
    if (!x)
        return error_set(err, ERR_NOT_FOUND, "there is no environment %" PRId64, id);
    if (!change_note(a, json_pack("{s:s, s:I}", "change", "env_leaves", "env_id", (json_int_t)id), true, err))
        return false;
    x->e.connected = false;
    return true;
}

/* Does it take part? An environment that was killed says no goodbye. */
static bool env_counts(const struct atropos *a, const struct atropos_env *e)
{
    return e->connected && (a->config.env_expire_ms <= 0 || now_of(a) - e->seen_ms < a->config.env_expire_ms);
}

/* Weights of atroposlib: max_context_len * weight, as a part of all; at least 0.01. Without any positive weight, one that asked to
 * be left out of it (negative) goes at full speed. */
static double env_weight(const struct atropos *a, const struct atropos_env *e)
{
    double all = 0;
    for (int64_t i = 0; i < a->n_env; i++)
        if (env_counts(a, &a->env[i]->e))
            all += (double)a->env[i]->e.max_token_len * fmax(0, a->env[i]->e.weight);
    if (!(all > 0))
        return e->weight < 0 ? 1 : 0.01;
    return fmax(0.01, (double)e->max_token_len * e->weight / all);
}

/* Sequences in the queue that the environment may count on from others: theirs in whole packs, less what their shares need. */
static int64_t others_available(const struct atropos *a, int64_t id, int64_t largest, int64_t *seqs)
{
    int64_t available = 0;
    memset(seqs, 0, (size_t)(a->n_env + 2) * sizeof *seqs);
    for (int64_t i = 0; i < a->queue.n; i++) {
        int64_t from = a->queue.at[i]->env_id;    // the last two places: none, and unknown ones
        seqs[from < 0 ? a->n_env : from < a->n_env ? from : a->n_env + 1] += a->queue.at[i]->n_seq;
    }
    for (int64_t i = 0; i < a->n_env + 2 && largest > 1; i++) {
        if (i == id || seqs[i] == 0)
            continue;
        const struct atropos_env *e = i < a->n_env ? &a->env[i]->e : NULL;
        int64_t packed = (seqs[i] + largest - 1) / largest * largest;
        if (e && e->has_share && env_counts(a, e))
            packed -= (int64_t)((double)a->trainer.batch_size * e->share);
        available += MAX(0, packed);
    }
    return available;
}

bool atropos_env_status(struct atropos *a, int64_t id, struct atropos_env_status *s, struct error *err)
{
    struct env *x = env_find(a, id);
    int64_t largest = 1, own = 0, group_size;
    double shares = 0;
    if (!x)
        return error_set(err, ERR_NOT_FOUND, "there is no environment %" PRId64, id);
    int64_t *seqs = calloc((size_t)a->n_env + 2, sizeof *seqs);
    if (!seqs)
        return error_set(err, ERR_NO_MEMORY, "no memory to count the queue");
    x->e.seen_ms = now_of(a);
    group_size = MAX(1, x->e.group_size);
    for (int64_t i = 0; i < a->n_env; i++)
        if (a->env[i]->e.has_share && env_counts(a, &a->env[i]->e))
            shares += a->env[i]->e.share;
    for (int64_t i = 0; i < a->queue.n; i++) {
        const struct scored *g = a->queue.at[i];
        largest = MAX(largest, g->n_seq);
        if (g->env_id == id) {
            own += g->n_seq;
            group_size = MAX(group_size, g->n_seq);
        }
    }
    int64_t others = others_available(a, id, largest, seqs);
    free(seqs);
    if (group_size != x->e.group_size
        && !change_note(a, json_pack("{s:s, s:I, s:I}", "change", "group_size", "env_id", (json_int_t)id, "size", (json_int_t)group_size),
                        true, err))
        return false;
    x->e.group_size = group_size;
    *s = (struct atropos_env_status){ .current_step = a->step,
                                      .queue_size = (own + others) / group_size,
                                      .self_queue_size = own / group_size,
                                      .max_group_size = largest,
                                      .unallocated_fraction = 1 - fmin(shares, 1),
                                      .env_weight = env_weight(a, &x->e) };
    return true;
}

/* ---- posting */
static void queue_push(struct atropos *a, struct scored *g)
{
    list_push(&a->queue, g);
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
    list_remove(&x->buffer, index, MAX(n_found, 0));    // without memory they wait for the next one
}

/* Put groups, whose room is reserved, where they belong. */
static void post_apply(struct atropos *a, struct scored **g, int64_t n, struct atropos_posted *p)
{
    for (int64_t i = 0; i < n; i++) {
        struct env *x = env_find(a, g[i]->env_id);
        a->bytes += scored_bytes(g[i]);
        a->n_group++;
        if (x)
            x->e.seen_ms = now_of(a);
        if (!x || x->e.group_size == g[i]->n_seq) {
            queue_push(a, g[i]);
            continue;
        }
        list_push(&x->buffer, g[i]);
        buffer_release(a, x);
        p->n_buffered++;
        p->buffer_seqs = 0;
        for (int64_t k = 0; k < x->buffer.n; k++)
            p->buffer_seqs += x->buffer.at[k]->n_seq;
    }
}

/* Room for n groups: queue and buffers have memory for all of them wherever they go. */
static bool post_reserve(struct atropos *a, struct scored **g, int64_t n, struct error *err)
{
    int64_t buffered = 0;
    for (int64_t i = 0; i < n; i++) {
        struct env *x = env_find(a, g[i]->env_id);
        if (x && !list_reserve(&x->buffer, n, err))
            return false;
    }
    for (int64_t i = 0; i < a->n_env; i++)
        buffered += a->env[i]->buffer.n;
    return list_reserve(&a->queue, n + buffered, err);
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
        ok = (!atropos_log_is_long(a->log) || log_turn(a, err)) && atropos_log_post(a->log, g, n, err);
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
static void batch_apply(struct atropos *a, struct batch *b, const int64_t *index, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        list_push(&b->group, a->queue.at[index[i]]);
    list_remove(&a->queue, index, n);
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
         || (list_reserve(&b->group, n, err)
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
    if (a->registered && !a->started) {
        if (!change_note(a, json_pack("{s:s}", "change", "start"), true, err))
            return false;
        a->started = true;
    }
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
    if (!atropos_register(a, t, true, err))
        return false;
    if (!a->started && !change_note(a, json_pack("{s:s}", "change", "start"), true, err))
        return false;
    a->started = true;
    return true;
}

void atropos_step_set(struct atropos *a, int64_t step)
{
    a->step = step;
}

/* The group at this place of the queue belongs to the item, whose batch has room for it. */
static void take_apply(struct atropos *a, struct batch *b, int64_t index, int64_t item)
{
    list_push(&b->group, a->queue.at[index]);
    list_remove(&a->queue, &index, 1);
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
        if (!b || !list_reserve(&b->group, 1, err)
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

static void give_back_apply(struct atropos *a, struct batch *b)
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
    if (!list_reserve(&a->queue, b->group.n, err)
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

int64_t atropos_n_env(const struct atropos *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n_env; i++)
        n += env_counts(a, &a->env[i]->e);
    return n;
}

static void sent_apply(struct atropos *a, struct batch *b)
{
    batch_unlink(a, b);
    list_leave(a, &b->group);
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
static void reset_apply(struct atropos *a)
{
    list_leave(a, &a->queue);
    for (int64_t i = 0; i < a->n_env; i++) {
        list_leave(a, &a->env[i]->buffer);
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

/* ---- reading the log */
static int named_compare(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static struct named *named_find(const struct atropos *a, int64_t id)
{
    return a->n_named ? bsearch(&(struct named){ .id = id }, a->named, (size_t)a->n_named, sizeof *a->named, named_compare) : NULL;
}

static void named_add(struct atropos *a, const json_t *ids)
{
    for (size_t i = 0; i < json_array_size(ids); i++)
        a->named[a->n_named++].id = json_integer_value(json_array_get(ids, i));
}

static bool state_read(void *ctx, const char *json, size_t len, struct error *err)
{
    struct atropos *a = ctx;
    json_t *s = json_text_parse(json, len, 0, a->config.dir, err);
    size_t i, n = 0;
    json_t *v;
    if (!s)
        return false;
    a->state = s;
    if (int_of(s, "version") != 1)
        return error_set(err, ERR_DATA, "'%s' was written by a newer version of rollcall", a->config.dir);
    a->registered = json_is_true(json_object_get(s, "registered"));
    a->started = json_is_true(json_object_get(s, "started"));
    trainer_load(&a->trainer, json_object_get(s, "trainer"));
    a->step = int_of(s, "step");
    a->next_id = int_of(s, "next_id");
    a->next_batch = int_of(s, "next_batch");
    json_array_foreach(json_object_get(s, "envs"), i, v)
    {
        struct env *x = calloc(1, sizeof *x);
        if (!x || !env_reserve(a, err)) {
            free(x);
            return error_set(err, ERR_NO_MEMORY, "no memory for the environments of '%s'", a->config.dir);
        }
        env_load(&x->e, v, now_of(a));
        a->env[a->n_env++] = x;
    }
    n = json_array_size(json_object_get(s, "queue"));
    json_array_foreach(json_object_get(s, "buffers"), i, v) n += json_array_size(v);
    json_array_foreach(json_object_get(s, "batches"), i, v) n += json_array_size(json_object_get(v, "groups"));
    a->named = calloc(n + 1, sizeof *a->named);
    if (!a->named)
        return error_set(err, ERR_NO_MEMORY, "no memory for the groups of '%s'", a->config.dir);
    named_add(a, json_object_get(s, "queue"));
    json_array_foreach(json_object_get(s, "buffers"), i, v) named_add(a, v);
    json_array_foreach(json_object_get(s, "batches"), i, v) named_add(a, json_object_get(v, "groups"));
    qsort(a->named, (size_t)a->n_named, sizeof *a->named, named_compare);
    return true;
}

static bool state_wants(void *ctx, int64_t id)
{
    const struct named *n = named_find(ctx, id);
    return n && !n->group;
}

static bool state_group(void *ctx, struct scored *g, UNUSED struct error *err)
{
    struct named *n = named_find(ctx, g->id);
    if (n && !n->group)
        n->group = g;
    else
        scored_drop(g);
    return true;
}

/* The groups with these ids into a list; those that the disk lost are counted. */
static bool named_take(struct atropos *a, const json_t *ids, struct list *l, struct error *err)
{
    if (!list_reserve(l, (int64_t)json_array_size(ids), err))
        return false;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        struct named *n = named_find(a, json_integer_value(json_array_get(ids, i)));
        if (!n || !n->group) {
            a->n_lost++;
            continue;
        }
        a->bytes += scored_bytes(n->group);
        a->n_group++;
        list_push(l, n->group);
        n->group = NULL;
    }
    return true;
}

static bool state_ready(void *ctx, struct error *err)
{
    struct atropos *a = ctx;
    size_t i;
    json_t *v;
    if (!named_take(a, json_object_get(a->state, "queue"), &a->queue, err))
        return false;
    json_array_foreach(json_object_get(a->state, "buffers"), i,
                       v) if (i < (size_t)a->n_env && !named_take(a, v, &a->env[i]->buffer, err)) return false;
    json_array_foreach(json_object_get(a->state, "batches"), i, v)
    {
        struct batch *b = calloc(1, sizeof *b);
        if (!b)
            return error_set(err, ERR_NO_MEMORY, "no memory for the batches of '%s'", a->config.dir);
        b->number = int_of(v, "number");
        batch_push(a, b);
        if (!named_take(a, json_object_get(v, "groups"), &b->group, err))
            return false;
    }
    if (a->n_lost > 0)
        log_warn("%" PRId64 " posted groups are missing in '%s'; was something deleted there?", a->n_lost, a->config.dir);
    return true;
}

static bool post_read(void *ctx, struct scored **g, int64_t n, struct error *err)
{
    struct atropos *a = ctx;
    struct atropos_posted unused;
    if (!post_reserve(a, g, n, err)) {
        for (int64_t i = 0; i < n; i++)
            scored_drop(g[i]);
        return false;
    }
    for (int64_t i = 0; i < n; i++)
        a->next_id = MAX(a->next_id, g[i]->id + 1);
    post_apply(a, g, n, &unused);
    return true;
}

static bool batch_read(struct atropos *a, const json_t *ids, struct error *err)
{
    int64_t n = (int64_t)json_array_size(ids), n_found = 0;
    int64_t *index = calloc((size_t)n + 1, sizeof *index);
    struct batch *b = calloc(1, sizeof *b);
    bool ok = index && b && list_reserve(&b->group, n, err);
    for (int64_t k = 0; ok && k < n; k++)
        for (int64_t i = 0; i < a->queue.n; i++)
            if (a->queue.at[i]->id == json_integer_value(json_array_get(ids, (size_t)k)))
                index[n_found++] = i;
    if (ok)
        batch_apply(a, b, index, n_found);
    else
        free(b);
    free(index);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for the batches of '%s'", a->config.dir);
}

static bool take_read(struct atropos *a, int64_t item, int64_t id, struct error *err)
{
    struct batch *b = calloc(1, sizeof *b);
    int64_t at = 0;
    while (at < a->queue.n && a->queue.at[at]->id != id)
        at++;
    if (!b || !list_reserve(&b->group, 1, err)) {
        free(b);
        return error_set(err, ERR_NO_MEMORY, "no memory for the items of '%s'", a->config.dir);
    }
    if (at < a->queue.n) {
        take_apply(a, b, at, item);
    } else {    // the disk lost it
        free(b->group.at);
        free(b);
    }
    return true;
}

static bool env_read(struct atropos *a, const json_t *o, struct error *err)
{
    struct env *x = calloc(1, sizeof *x);
    if (!x || !env_reserve(a, err)) {
        free(x);
        return error_set(err, ERR_NO_MEMORY, "no memory for the environments of '%s'", a->config.dir);
    }
    env_load(&x->e, o, now_of(a));
    a->env[a->n_env++] = x;
    return true;
}

static bool note_read(void *ctx, const char *json, size_t len, struct error *err)
{
    struct atropos *a = ctx;
    struct atropos_trainer t = { .batch_size = 0 };
    json_t *o = json_text_parse(json, len, 0, a->config.dir, err);
    bool ok = o;
    if (!o)
        return false;
    const char *change = text_of(o, "change");
    struct env *x = env_find(a, int_of(o, "env_id"));
    struct batch *b = batch_find(a, json_is_integer(json_object_get(o, "number")) ? int_of(o, "number") : -1);
    if (strcmp(change, "register") == 0) {
        trainer_load(&t, json_object_get(o, "trainer"));
        trainer_apply(a, &t);
    } else if (strcmp(change, "start") == 0) {
        a->started = true;
    } else if (strcmp(change, "env") == 0) {
        ok = env_read(a, json_object_get(o, "env"), err);
    } else if (strcmp(change, "env_leaves") == 0 && x) {
        x->e.connected = false;
    } else if (strcmp(change, "group_size") == 0 && x) {
        x->e.group_size = int_of(o, "size");
    } else if (strcmp(change, "batch") == 0) {
        ok = batch_read(a, json_object_get(o, "groups"), err);
    } else if (strcmp(change, "take") == 0) {
        ok = take_read(a, int_of(o, "number"), int_of(o, "group"), err);
    } else if (strcmp(change, "give_back") == 0 && b) {
        ok = list_reserve(&a->queue, b->group.n, err);
        if (ok)
            give_back_apply(a, b);
    } else if (strcmp(change, "sent") == 0 && b) {
        sent_apply(a, b);
    } else if (strcmp(change, "reset") == 0) {
        reset_apply(a);
    }
    json_decref(o);
    return ok;
}

static void named_release(struct atropos *a)
{
    for (int64_t i = 0; i < a->n_named; i++)
        scored_drop(a->named[i].group);
    free(a->named);
    json_decref(a->state);
    a->named = NULL;
    a->state = NULL;
    a->n_named = 0;
}

static bool log_open(struct atropos *a, struct error *err)
{
    static const struct atropos_reader reader = { state_read, state_wants, state_group, state_ready, post_read, note_read };
    a->log = atropos_log_open(a->config.dir, &reader, a, err);
    if (!a->log || !log_turn(a, err))
        return false;
    named_release(a);
    return true;
}

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
    if (config->dir && !log_open(a, err)) {
        atropos_free(a);
        return NULL;
    }
    return a;
}

static void list_free(struct list *l)
{
    for (int64_t i = 0; i < l->n; i++)
        scored_drop(l->at[i]);
    free(l->at);
}

void atropos_free(struct atropos *a)
{
    if (!a)
        return;
    list_free(&a->queue);
    for (int64_t i = 0; i < a->n_env; i++) {
        list_free(&a->env[i]->buffer);
        free(a->env[i]);
    }
    while (a->first) {
        struct batch *b = a->first;
        batch_unlink(a, b);
        list_free(&b->group);
        free(b);
    }
    named_release(a);
    free(a->env);
    scored_drop(a->latest);
    atropos_log_close(a->log);
    free(a);
}
