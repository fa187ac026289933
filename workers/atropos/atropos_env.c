/* atropos_env.c - the environments that post groups: which ones take part, and what each is told about the queue */
#include "workers/atropos/atropos_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/utf8.h"

bool env_reserve(struct atropos *a, struct error *err)
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
    x->e.seen_ms = atropos_now(a);
    if (!env_reserve(a, err) || !change_note(a, json_pack("{s:s, s:o}", "change", "env", "env", env_json(&x->e)), true, err)) {
        free(x);
        return false;
    }
    *id = a->n_env;
    a->env[a->n_env++] = x;
    return true;
}

struct env *env_find(const struct atropos *a, int64_t id)
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
bool env_counts(const struct atropos *a, const struct atropos_env *e)
{
    return e->connected && (a->config.env_expire_ms <= 0 || atropos_now(a) - e->seen_ms < a->config.env_expire_ms);
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
    x->e.seen_ms = atropos_now(a);
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

int64_t atropos_n_env(const struct atropos *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n_env; i++)
        n += env_counts(a, &a->env[i]->e);
    return n;
}

/* ---- for people */
#define MINUTE_MS 60000

static void came_count(struct came *c, int64_t now_ms, bool full)
{
    int64_t minute = now_ms / MINUTE_MS;
    if (full) {
        c->n_full++;
        return;
    }
    if (minute != c->minute) {
        c->n_before = minute == c->minute + 1 ? c->n_now : 0;
        c->n_now = 0;
        c->minute = minute;
    }
    c->n_now++;
    c->n_group++;
}

void group_counted(struct atropos *a, int64_t env_id, bool full)
{
    struct env *x = env_find(a, env_id);
    came_count(&a->came, atropos_now(a), full);
    if (x)
        came_count(&x->came, atropos_now(a), full);
}

const char *atropos_refusal(const struct atropos *a)
{
    return a->refusal;
}

void atropos_refused(struct atropos *a, int64_t env_id, const char *why)
{
    utf8_copy(a->refusal, sizeof a->refusal, why, strlen(why));
    struct env *x = env_find(a, env_id);
    a->came.n_refused++;
    if (x)
        x->came.n_refused++;
}

/* Groups of the last minute: those of this one by the clock, and of the one before as many as belong to it when they came evenly. */
static double came_per_min(const struct came *c, int64_t now_ms)
{
    int64_t minute = now_ms / MINUTE_MS, now = minute == c->minute ? c->n_now : 0;
    int64_t before = minute == c->minute ? c->n_before : minute == c->minute + 1 ? c->n_now : 0;
    return (double)now + (double)before * (1 - (double)(now_ms % MINUTE_MS) / MINUTE_MS);
}

static void came_look(const struct came *c, int64_t now_ms, struct atropos_look *out)
{
    *out = (struct atropos_look){
        .n_group = c->n_group, .n_refused = c->n_refused, .n_full = c->n_full, .per_min = came_per_min(c, now_ms), .age = NAN
    };
}

/* Groups of an environment in the queue (NULL: of all), and their mean age. */
static void queue_look(const struct atropos *a, const struct env *x, int64_t id, struct atropos_look *out)
{
    double age = 0;
    for (int64_t i = 0; i < a->queue.n; i++)
        if (!x || a->queue.at[i]->env_id == id) {
            out->n_waiting++;
            age += (double)MAX(a->step - a->queue.at[i]->version, (int64_t)0);    // a run may have gone back since
        }
    out->age = out->n_waiting > 0 ? age / (double)out->n_waiting : NAN;
}

int64_t atropos_looks(const struct atropos *a, struct atropos_look *out, int64_t max, struct atropos_look *all)
{
    int64_t n = 0, now_ms = atropos_now(a);
    came_look(&a->came, now_ms, all);
    queue_look(a, NULL, -1, all);
    for (int part = 1; part >= 0; part--)
        for (int64_t i = 0; i < a->n_env && n < max; i++) {
            const struct env *x = a->env[i];
            if (env_counts(a, &x->e) != (part == 1))
                continue;
            came_look(&x->came, now_ms, &out[n]);
            queue_look(a, x, i, &out[n]);
            out[n].name = x->e.name;
            out[n].counts = part == 1;
            out[n++].silent_s = (double)(now_ms - x->e.seen_ms) / 1000;
        }
    return n;
}
