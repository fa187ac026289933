/* atropos_state.c - the state on disk: written down change by change, and read again at a start
 *
 * Above the log's records (atropos_log.h): what the JSON in them says. */
#include "workers/atropos/atropos_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/atropos/atropos_log.h"

/* ---- writing */
static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int64_t int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

json_t *ids_json(struct scored *const *group, const int64_t *index, int64_t n)
{
    json_t *ids = json_array();
    for (int64_t i = 0; ids && i < n; i++)
        if (json_array_append_new(ids, json_integer(group[index ? index[i] : i]->id)) != 0) {
            json_decref(ids);
            ids = NULL;
        }
    return ids;
}

json_t *trainer_json(const struct atropos_trainer *t)
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

json_t *env_json(const struct atropos_env *e)
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
    char *text = v ? json_text_dump(v, JSON_COMPACT) : NULL;
    bool ok = (text && buf_str(out, text)) || error_set(err, ERR_NO_MEMORY, "no memory to write down a change");
    free(text);
    json_decref(v);
    return ok;
}

/* The sizes of a buffer's groups, by which it was decided what leaves it. */
static json_t *seqs_json(const struct groups *l)
{
    json_t *seqs = json_array();
    for (int64_t i = 0; seqs && i < l->n; i++)
        if (json_array_append_new(seqs, json_integer(l->at[i]->n_seq)) != 0) {
            json_decref(seqs);
            seqs = NULL;
        }
    return seqs;
}

/* The whole small state. */
static bool state_text(const struct atropos *a, struct buf *out, struct error *err)
{
    json_t *envs = json_array(), *buffers = json_array(), *seqs = json_array(), *batches = json_array();
    int failed = 0;    // appends; each takes its value in any case
    for (int64_t i = 0; i < a->n_env; i++) {
        failed |= json_array_append_new(envs, env_json(&a->env[i]->e));
        failed |= json_array_append_new(buffers, ids_json(a->env[i]->buffer.at, NULL, a->env[i]->buffer.n));
        failed |= json_array_append_new(seqs, seqs_json(&a->env[i]->buffer));
    }
    for (const struct batch *b = a->first; b; b = b->next)
        failed |= json_array_append_new(
            batches, json_pack("{s:I, s:o}", "number", (json_int_t)b->number, "groups", ids_json(b->group.at, NULL, b->group.n)));
    if (failed) {
        json_decref(envs);
        json_decref(buffers);
        json_decref(seqs);
        json_decref(batches);
        return error_set(err, ERR_NO_MEMORY, "no memory to write down the state");
    }
    return json_text_take(out,
                          json_pack("{s:i, s:b, s:b, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "version", 1, "registered",
                                    a->registered, "started", a->started, "trainer", trainer_json(&a->trainer), "step", (json_int_t)a->step,
                                    "next_id", (json_int_t)a->next_id, "next_batch", (json_int_t)a->next_batch, "envs", envs, "buffers",
                                    buffers, "buffer_seqs", seqs, "batches", batches, "queue", ids_json(a->queue.at, NULL, a->queue.n)),
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

bool state_turn(struct atropos *a, struct error *err)
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

bool state_keep_short(struct atropos *a, struct error *err)
{
    return !atropos_log_is_long(a->log) || state_turn(a, err);
}

bool change_note(struct atropos *a, json_t *note, bool sync, struct error *err)
{
    struct buf text = BUF_INIT;
    if (!a->log) {
        json_decref(note);
        return true;
    }
    struct error why;
    if (!state_keep_short(a, &why))    // the old one holds the note as well: groups must be handed out from a full disk, too
        log_warn("no new segment of the log could be begun: %s", why.text);
    bool ok = json_text_take(&text, note, err) && atropos_log_note(a->log, &text, sync, err);
    buf_release(&text);
    return ok;
}

/* ---- reading */
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

static bool env_read(struct atropos *a, const json_t *o, struct error *err)
{
    struct env *x = calloc(1, sizeof *x);
    if (!x || !env_reserve(a, err)) {
        free(x);
        return error_set(err, ERR_NO_MEMORY, "no memory for the environments of '%s'", a->config.dir);
    }
    env_load(&x->e, o, atropos_now(a));
    a->env[a->n_env++] = x;
    return true;
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
    json_array_foreach(json_object_get(s, "envs"), i, v) if (!env_read(a, v, err)) return false;
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

/* The groups with these ids into a list. One that is not in the log may have left later, and its segment with it: an empty one stands
 * for it, of its size (NULL: unknown), until all is read. */
static bool named_take(struct atropos *a, const json_t *ids, const json_t *seqs, struct groups *l, struct error *err)
{
    if (!groups_reserve(l, (int64_t)json_array_size(ids), err))
        return false;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        struct scored empty = { .id = json_integer_value(json_array_get(ids, i)), .env_id = -1 };
        struct named *n = named_find(a, empty.id);
        empty.n_seq = MAX(json_integer_value(json_array_get(seqs, i)), 1);
        struct scored *g = n && n->group ? n->group : scored_new(&empty, "", 0);
        if (!g)
            return error_set(err, ERR_NO_MEMORY, "no memory for the groups of '%s'", a->config.dir);
        a->bytes += scored_bytes(g);
        a->n_group++;
        groups_push(l, g);
        if (n)
            n->group = NULL;
    }
    return true;
}

static bool state_ready(void *ctx, struct error *err)
{
    struct atropos *a = ctx;
    size_t i;
    json_t *v;
    const json_t *seqs = json_object_get(a->state, "buffer_seqs");
    if (!named_take(a, json_object_get(a->state, "queue"), NULL, &a->queue, err))
        return false;
    json_array_foreach(json_object_get(a->state, "buffers"), i,
                       v) if (i < (size_t)a->n_env && !named_take(a, v, json_array_get(seqs, i), &a->env[i]->buffer, err)) return false;
    json_array_foreach(json_object_get(a->state, "batches"), i, v)
    {
        struct batch *b = calloc(1, sizeof *b);
        if (!b)
            return error_set(err, ERR_NO_MEMORY, "no memory for the batches of '%s'", a->config.dir);
        b->number = int_of(v, "number");
        batch_push(a, b);
        if (!named_take(a, json_object_get(v, "groups"), NULL, &b->group, err))
            return false;
    }
    return true;
}

static void lost_count(struct atropos *a, int64_t id, int64_t n)
{
    a->first_lost = a->n_lost == 0 ? id : MIN(a->first_lost, id);
    a->n_lost += n;
}

/* All segments have been read: a group of this list that is still empty was never handed out, and is lost. */
static void lost_remove(struct atropos *a, struct groups *l)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < l->n; i++) {
        struct scored *g = l->at[i];
        if (g->len > 0) {
            l->at[kept++] = g;
            continue;
        }
        lost_count(a, g->id, 1);
        a->bytes -= scored_bytes(g);
        a->n_group--;
        scored_drop(g);
    }
    l->n = kept;
}

static void lost_tell(struct atropos *a)
{
    lost_remove(a, &a->queue);
    for (int64_t i = 0; i < a->n_env; i++)
        lost_remove(a, &a->env[i]->buffer);
    for (struct batch *b = a->first; b; b = b->next)
        lost_remove(a, &b->group);
    if (a->n_lost > 0)
        log_error("%" PRId64 " acknowledged groups are lost in '%s', from number %" PRId64
                  " on: a segment there is damaged, or was deleted",
                  a->n_lost, a->config.dir, a->first_lost);
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
    if (n > 0 && g[0]->id > a->next_id)    // numbers have no gaps: those between were in a record that is damaged
        lost_count(a, a->next_id, g[0]->id - a->next_id);
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
    bool ok = index && b && groups_reserve(&b->group, n, err);
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
    if (!b || !groups_reserve(&b->group, 1, err)) {
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
        register_apply(a, &t);
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
        ok = groups_reserve(&a->queue, b->group.n, err);
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

void state_release(struct atropos *a)
{
    for (int64_t i = 0; i < a->n_named; i++)
        scored_drop(a->named[i].group);
    free(a->named);
    json_decref(a->state);
    a->named = NULL;
    a->state = NULL;
    a->n_named = 0;
}

bool state_open(struct atropos *a, struct error *err)
{
    static const struct atropos_reader reader = { state_read, state_wants, state_group, state_ready, post_read, note_read };
    a->log = atropos_log_open(a->config.dir, &reader, a, err);
    if (!a->log)
        return false;
    lost_tell(a);
    if (!state_turn(a, err))
        return false;
    state_release(a);
    return true;
}
