#include "workers/atropos/atropos_routes.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "protocol/base/cli.h"
#include "protocol/base/json_text.h"

#define GZIP_FROM 1000                 // bytes of an answer from which it is compressed for clients that like that, as in Atropos
#define GZIP_TO (4 << 20)              // ... and to which, since compressing holds up the other clients
#define VIEW_MOST 64                   // groups that a viewer sees
#define INT_MOST 9007199254740992.0    // larger numbers are not exact in JSON's readers

/* ---- answers */
static void route_fail(struct web_answer *a, int status, const char *message)
{
    a->status = status;
    buf_clear(&a->body);
    if (status == 400) {
        a->type = "text/plain; charset=utf-8";    // as Atropos answers what is not gzip
        buf_str(&a->body, message);
        return;
    }
    buf_str(&a->body, "{\"detail\":");
    json_text_print(&a->body, message, strlen(message), JSON_TEXT_UTF8);
    buf_char(&a->body, '}');
    if (status == 503)
        a->retry_after_s = 1;
}

static void fail(struct web_answer *a, const struct error *err)
{
    char text[ERROR_TEXT_BYTES];
    error_tell(err, text);
    route_fail(a, err->code == ERR_NOT_FOUND ? 404 : 503, text);
}

static void text_print(struct buf *out, const char *key, const char *value)
{
    buf_fmt(out, "\"%s\":", key);
    json_text_print(out, value, strlen(value), JSON_TEXT_UTF8);
}

/* ---- requests: fields with pydantic's coercions */
struct form {
    json_t *body;    // NULL: it is no object
    struct scored_fault fault;
    bool is_faulty;
};

static void form_fault(struct form *f, const char *field, const char *type, const char *msg)
{
    if (f->is_faulty)
        return;    // the first one is told
    f->is_faulty = true;
    f->fault.type = type;
    snprintf(f->fault.loc, sizeof f->fault.loc, field ? "[\"body\",\"%s\"]" : "[\"body\"]", field);
    snprintf(f->fault.msg, sizeof f->fault.msg, "%s", msg);
}

static struct form form_read(const struct web_request *q)
{
    struct form f = { .is_faulty = false };
    json_error_t why;
    f.body = json_text_read(q->body, q->len, JSON_ALLOW_NUL, &why);
    if (q->len == 0)
        form_fault(&f, NULL, "missing", "Field required");
    else if (!f.body)
        form_fault(&f, NULL, "json_invalid", why.text);
    else if (!json_is_object(f.body))
        form_fault(&f, NULL, "model_attributes_type", "Input should be a valid dictionary or object to extract fields from");
    return f;
}

/* End reading; false: a has the answer to a faulty request. */
static bool form_over(struct form *f, struct web_answer *a)
{
    json_decref(f->body);
    if (f->is_faulty) {
        a->status = 422;
        scored_fault_print(&a->body, &f->fault);
    }
    return !f->is_faulty;
}

static const json_t *form_get(struct form *f, const char *name)
{
    const json_t *v = json_object_get(f->body, name);
    if (!v)
        form_fault(f, name, "missing", "Field required");
    return v;
}

static double form_number(struct form *f, const char *name)
{
    const json_t *v = form_get(f, name);
    double x = NAN;
    if (json_is_number(v))
        x = json_number_value(v);
    else if (json_is_boolean(v))
        x = json_is_true(v);
    else if (json_is_string(v) && !parse_f64(json_string_value(v), &x))
        x = NAN;
    if (!(fabs(x) <= INT_MOST))
        form_fault(f, name, "float_type", "Input should be a valid number");
    return fabs(x) <= INT_MOST ? x : 0;
}

static int64_t form_int(struct form *f, const char *name)
{
    double x = form_number(f, name);
    if (x != trunc(x))
        form_fault(f, name, "int_from_float", "Input should be a valid integer, got a number with a fractional part");
    return (int64_t)x;
}

static void form_text(struct form *f, const char *name, char out[ATROPOS_TEXT_MAX])
{
    const json_t *v = form_get(f, name);
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        form_fault(f, name, "string_type", "Input should be a valid string");
    else if (snprintf(out, ATROPOS_TEXT_MAX, "%s", json_string_value(v)) >= ATROPOS_TEXT_MAX)
        form_fault(f, name, "string_too_long", "String is longer than this server takes");
}

/* ---- trainer */
static void root_get(UNUSED void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    buf_str(&a->body, "{\"message\":\"AtroposLib API\"}");
}

/* In a run, the run is the only trainer. */
static bool run_refuses(const struct atropos_door *d, struct web_answer *a)
{
    char why[300];
    if (!d->run)
        return false;
    snprintf(why, sizeof why, "the run '%.128s' trains on the groups that are posted here; GET /view shows some without taking them",
             d->run);
    route_fail(a, 403, why);
    return true;
}

static void register_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct atropos_door *d = ctx;
    if (run_refuses(d, a))
        return;
    struct atropos_trainer t = { .batch_size = 0 };
    struct form f = form_read(q);
    struct error err;
    uint64_t uuid = 1;
    form_text(&f, "wandb_group", t.group);
    form_text(&f, "wandb_project", t.project);
    t.batch_size = form_int(&f, "batch_size");
    t.max_token_len = form_int(&f, "max_token_len");
    form_text(&f, "checkpoint_dir", t.checkpoint_dir);
    t.save_interval = form_int(&f, "save_checkpoint_interval");
    t.starting_step = form_int(&f, "starting_step");
    t.num_steps = form_int(&f, "num_steps");
    bool take_over = json_is_true(json_object_get(f.body, "take_over"));
    if (t.batch_size < 1)
        form_fault(&f, "batch_size", "greater_than_equal", "Input should be greater than or equal to 1");
    if (!form_over(&f, a))
        return;
    if (!atropos_register(d->state, &t, take_over, &err)) {
        fail(a, &err);
        return;
    }
    if (getrandom(&uuid, sizeof uuid, 0) != (ssize_t)sizeof uuid)
        uuid = 1;    // clients only look whether there is one
    buf_fmt(&a->body, "{\"uuid\":%" PRIu64 "}", uuid >> 12);
}

static void wandb_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    const struct atropos_trainer *t = atropos_trainer(((struct atropos_door *)ctx)->state);
    if (!t) {
        buf_str(&a->body, "{\"group\":null,\"project\":null}");
        return;
    }
    buf_char(&a->body, '{');
    text_print(&a->body, "group", t->group);
    buf_char(&a->body, ',');
    text_print(&a->body, "project", t->project);
    buf_char(&a->body, '}');
}

static void info_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    const struct atropos_trainer *t = atropos_trainer(((struct atropos_door *)ctx)->state);
    buf_fmt(&a->body, "{\"batch_size\":%" PRId64 ",\"max_token_len\":%" PRId64 "}", t ? t->batch_size : -1, t ? t->max_token_len : -1);
}

/* The groups as a list. */
static void groups_print(struct buf *out, struct scored *const *g, int64_t n)
{
    size_t len = 64;
    for (int64_t i = 0; i < n; i++)
        len += g[i]->len + 1;
    out->max = out->len + len;
    buf_reserve(out, len);    // at once; a failure shows in the appends
    buf_char(out, '[');
    for (int64_t i = 0; i < n; i++) {
        if (i > 0)
            buf_char(out, ',');
        buf_add(out, g[i]->text, g[i]->len);
    }
    buf_char(out, ']');
}

static void batch_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct atropos_door *d = ctx;
    struct atropos_batch b;
    struct error err;
    if (run_refuses(d, a))
        return;
    if (!atropos_trainer(d->state)) {
        buf_str(&a->body, "{\"status\":\"error\",\"message\":\"Trainer not registered. Call /register first.\",\"batch\":[]}");
        return;
    }
    if (!atropos_batch(d->state, &b, &err)) {
        fail(a, &err);
        return;
    }
    if (b.n == 0) {
        buf_str(&a->body, "{\"batch\":null}");
        return;
    }
    a->receipt = b.number;
    buf_str(&a->body, "{\"batch\":");
    groups_print(&a->body, b.group, b.n);
    buf_char(&a->body, '}');
}

static void route_sent(void *ctx, int64_t receipt, bool arrived)
{
    atropos_sent(((struct atropos_door *)ctx)->state, receipt, arrived);
}

static void status_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    const struct atropos *s = ((struct atropos_door *)ctx)->state;
    buf_fmt(&a->body, "{\"current_step\":%" PRId64 ",\"queue_size\":%" PRId64 "}", atropos_step(s), atropos_queued(s));
}

static void reset_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct atropos_door *d = ctx;
    struct error err;
    if (run_refuses(d, a)) {
        return;
    } else if (d->no_reset) {
        route_fail(a, 403, "this server does not forget what it has; GET /view shows groups without taking them");
    } else if (!atropos_reset(d->state, &err)) {
        fail(a, &err);
    } else {
        a->type = "text/plain; charset=utf-8";
        buf_str(&a->body, "Reset successful");
    }
}

/* ---- environments */
static void register_env_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct atropos_door *d = ctx;
    struct atropos_env e = { .has_share = false };
    struct form f = form_read(q);
    struct error err;
    int64_t id;
    e.max_token_len = form_int(&f, "max_token_length");
    form_text(&f, "desired_name", e.desired_name);
    e.weight = form_number(&f, "weight");
    e.group_size = form_int(&f, "group_size");
    const json_t *share = json_object_get(f.body, "min_batch_allocation");
    e.has_share = share && !json_is_null(share);
    e.share = e.has_share ? form_number(&f, "min_batch_allocation") : 0;
    if (!form_over(&f, a))
        return;
    if (!atropos_is_started(d->state)) {
        buf_str(&a->body, "{\"status\":\"wait for trainer to start\"}");
        return;
    }
    if (!atropos_env_add(d->state, &e, &id, &err)) {
        fail(a, &err);
        return;
    }
    const struct atropos_trainer *t = atropos_trainer(d->state);
    buf_fmt(&a->body, "{\"status\":\"success\",\"env_id\":%" PRId64 ",", id);
    text_print(&a->body, "wandb_name", atropos_env(d->state, id)->name);
    buf_char(&a->body, ',');
    text_print(&a->body, "checkpoint_dir", t->checkpoint_dir);
    buf_fmt(&a->body, ",\"starting_step\":%" PRId64 ",\"checkpoint_interval\":%" PRId64 ",\"num_steps\":%" PRId64 "}",
            atropos_step(d->state), t->save_interval, t->num_steps);
}

static void disconnect_env_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct atropos_door *d = ctx;
    struct form f = form_read(q);
    struct error err;
    int64_t id = form_int(&f, "env_id");
    if (!form_over(&f, a))
        return;
    if (atropos_env_leave(d->state, id, &err)) {
        buf_str(&a->body, "{\"status\":\"success\"}");
    } else if (err.code == ERR_NOT_FOUND) {
        buf_str(&a->body, "{\"status\":\"failure\",");
        text_print(&a->body, "error", err.text);
        buf_char(&a->body, '}');
    } else {
        fail(a, &err);
    }
}

static void status_env_get(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct atropos_door *d = ctx;
    struct atropos_env_status s;
    struct form f = form_read(q);
    struct error err;
    int64_t id = form_int(&f, "env_id");
    if (!form_over(&f, a))
        return;
    if (!atropos_env_status(d->state, id, &s, &err)) {
        fail(a, &err);
        return;
    }
    buf_fmt(&a->body, "{\"current_step\":%" PRId64 ",\"queue_size\":%" PRId64 ",\"unallocated_fraction\":", s.current_step, s.queue_size);
    json_number_print(&a->body, s.unallocated_fraction);
    buf_fmt(&a->body, ",\"self_queue_size\":%" PRId64 ",\"max_group_size\":%" PRId64 ",\"env_weight\":", s.self_queue_size,
            s.max_group_size);
    json_number_print(&a->body, s.env_weight);
    buf_char(&a->body, '}');
}

/* ---- groups */
/* Can the run train on all of them? False: a says why not. */
static bool groups_check(struct atropos_door *d, struct scored **g, int64_t n, struct web_answer *a)
{
    struct scored_fault fault = { .type = "value_error" };
    struct error err;
    int64_t i = 0;
    while (i < n && (!d->check || d->check(d->ctx, g[i], &err)))
        i++;
    if (i == n)
        return true;
    atropos_refused(d->state, g[i]->env_id, err.text);
    snprintf(fault.loc, sizeof fault.loc, n > 1 ? "[\"body\",%" PRId64 "]" : "[\"body\"]", i);
    snprintf(fault.msg, sizeof fault.msg, "%.230s", err.text);
    a->status = 422;
    scored_fault_print(&a->body, &fault);
    return false;
}

/* Takes the references. */
static bool groups_post(struct atropos_door *d, struct scored **g, int64_t n, struct atropos_posted *p, struct web_answer *a)
{
    struct error err;
    if (!groups_check(d, g, n, a)) {
        for (int64_t i = 0; i < n; i++)
            scored_drop(g[i]);
        return false;
    }
    bool ok = atropos_post(d->state, g, n, p, &err);
    if (!ok)
        fail(a, &err);
    else if (d->posted)
        d->posted(d->ctx);
    return ok;
}

static void fault_answer(struct atropos_door *d, struct web_answer *a, const struct scored_fault *fault)
{
    if (fault->no_memory) {
        route_fail(a, 503, fault->msg);
        return;
    }
    atropos_refused(d->state, -1, fault->msg);
    a->status = 422;
    scored_fault_print(&a->body, fault);
}

static void scored_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct scored_fault fault;
    struct atropos_posted p;
    struct scored *g;
    if (!scored_read(q->body, q->len, &g, &fault)) {
        fault_answer(ctx, a, &fault);
        return;
    }
    if (!groups_post(ctx, &g, 1, &p, a))
        return;
    if (p.n_buffered > 0)
        buf_fmt(&a->body, "{\"status\":\"buffered\",\"buffer_size\":%" PRId64 "}", p.buffer_seqs);
    else
        buf_str(&a->body, "{\"status\":\"received\"}");
}

static void scored_list_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct scored **g = calloc(SCORED_LIST_MAX, sizeof(struct scored *));
    struct scored_fault fault = { .no_memory = true, .msg = "there is no memory for the groups" };
    struct atropos_posted p;
    int64_t n = 0;
    if (!g || !scored_read_list(q->body, q->len, g, SCORED_LIST_MAX, &n, &fault)) {
        fault_answer(ctx, a, &fault);
    } else if (groups_post(ctx, g, n, &p, a)) {
        buf_fmt(&a->body, "{\"status\":\"received\",\"groups_processed\":%" PRId64, n);
        if (p.n_buffered > 0)
            buf_fmt(&a->body, ",\"buffered\":%" PRId64 ",\"last_buffer_size\":%" PRId64, p.n_buffered, p.buffer_seqs);
        buf_char(&a->body, '}');
    }
    free(g);
}

static void latest_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    const struct scored *g = atropos_latest(((struct atropos_door *)ctx)->state);
    if (g)
        buf_add(&a->body, g->text, g->len);
    else
        buf_str(&a->body, "{\"tokens\":[],\"masks\":[],\"scores\":[],\"advantages\":[],\"ref_logprobs\":[],\"generation_params\":[],"
                          "\"inference_logprobs\":[],\"messages\":[],\"images\":[]}");
}

/* ?n=: how many of the oldest groups in the queue. */
static void view_get(void *ctx, const struct web_request *q, struct web_answer *a)
{
    struct scored *const *g;
    const char *asked = web_query(q, "n");
    int64_t n = 1;
    if (asked && (!parse_i64(asked, &n) || n < 0 || n > VIEW_MOST)) {
        route_fail(a, 422, "?n= is a number of groups from 0 to 64");
        return;
    }
    n = atropos_peek(((struct atropos_door *)ctx)->state, &g, n);
    buf_str(&a->body, "{\"groups\":");
    groups_print(&a->body, g, n);
    buf_char(&a->body, '}');
}

static const struct web_route routes[] = {
    { "GET", "/", root_get, .open = true },
    { "GET", "/health", root_get, .open = true },
    { "POST", "/register", register_post },
    { "POST", "/register-env", register_env_post },
    { "POST", "/disconnect-env", disconnect_env_post },
    { "GET", "/wandb_info", wandb_get },
    { "GET", "/info", info_get },
    { "GET", "/batch", batch_get },
    { "POST", "/scored_data", scored_post },
    { "POST", "/scored_data_list", scored_list_post },
    { "GET", "/status", status_get },
    { "GET", "/status-env", status_env_get },
    { "GET", "/latest_example", latest_get },
    { "GET", "/reset_data", reset_get },
    { "GET", "/view", view_get },
};

void atropos_routes_set(struct web_config *c, struct atropos_door *d)
{
    c->route = routes;
    c->n_route = ARRAY_SIZE(routes);
    c->ctx = d;
    c->sent = route_sent;
    c->fail = route_fail;
    c->bad_gzip = "Invalid gzip payload";    // the words of Atropos
    c->gzip_from = GZIP_FROM;
    c->gzip_to = GZIP_TO;
}
