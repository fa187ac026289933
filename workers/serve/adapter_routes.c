/* adapter_routes.c - routes that load, unload and show the adapter: those of Atropos' example server, vLLM and SGLang */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/serve/policy.h"
#include "workers/serve/routes_parts.h"
#include "workers/serve/serve_job.h"

static void text_print(struct buf *out, const char *s)
{
    json_text_print(out, s, strlen(s), JSON_TEXT_UTF8);
}

/* A text of the body under one of two names; "": it is not there. NULL: it is not a text, or longer than max - 1 bytes. */
static const char *text_of(const json_t *body, const char *name, const char *other, size_t max)
{
    const json_t *v = json_object_get(body, name) ? json_object_get(body, name) : json_object_get(body, other);
    if (!v || json_is_null(v))
        return "";
    return json_is_string(v) && json_string_length(v) < max ? json_string_value(v) : NULL;
}

struct serve_job *adapter_load_job(const char *dir, const char *name, int64_t version, struct error *err)
{
    struct serve_job *j = serve_job_new(JOB_ADAPTER_LOAD, err);
    if (!j || !serve_job_adapter(j, err)) {
        serve_job_drop(j);
        return NULL;
    }
    j->version = version;
    snprintf(j->dir, sizeof j->dir, "%s", dir);
    snprintf(j->adapter->name, sizeof j->adapter->name, "%s", name);
    return j;
}

/* unique: a name that is in use already is refused. */
static void load_with(struct serve *s, const struct web_request *q, bool unique, struct web_answer *a)
{
    struct error err = { 0 };
    struct adapter_look now;
    json_t *body = serve_body_read(q, false, a);
    struct serve_job *j = NULL;
    if (!body)
        return;
    policy_adapter(s->policy, &now);
    const char *dir = text_of(body, "lora_path", "adapter_path", sizeof j->dir);
    const char *name = text_of(body, "lora_name", "adapter_name", ADAPTER_NAME_MAX);
    bool again = unique && name && name[0] && strcmp(name, now.name) == 0 && !json_is_true(json_object_get(body, "load_inplace"));
    if (!dir || !dir[0])
        serve_refuse(a, 400, "'lora_path' (or 'adapter_path') must be the directory of an adapter");
    else if (!name || (unique && !name[0]))
        serve_refuse(a, 400, "'lora_name' (or 'adapter_name') must be the adapter's name, of at most 255 bytes");
    else if (strcmp(name, s->reply.model) == 0)
        serve_refuse(a, 400, "an adapter cannot have the model's own name");
    else if (again)
        serve_refuse(a, 400, "an adapter of that name has been loaded; 'load_inplace' replaces it");
    else if (!path_is_dir(dir) || !lora_dir_is(dir))
        serve_refuse(a, 404, "the path is no directory of this machine with an adapter_config.json");
    else if (!(j = adapter_load_job(dir, name, -1, &err)))
        serve_fail(a, &err);
    else
        serve_order(s, j, a);
    json_decref(body);
}

void adapter_load_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    load_with(ctx, q, false, a);
}

void adapter_load_named_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    load_with(ctx, q, true, a);
}

/* must: the name must be given. Which adapter there is by the time is looked at by the policy. */
static void unload_with(struct serve *s, const struct web_request *q, bool must, struct web_answer *a)
{
    struct error err = { 0 };
    json_t *body = serve_body_read(q, !must, a);
    struct serve_job *j = NULL;
    if (!body)
        return;
    const char *name = text_of(body, "lora_name", "adapter_name", ADAPTER_NAME_MAX);
    if (!name || (must && !name[0]))
        serve_refuse(a, 400, "'lora_name' must be the adapter's name");
    else if (!(j = serve_job_new(JOB_ADAPTER_UNLOAD, &err)) || !serve_job_adapter(j, &err))
        serve_fail(a, &err);
    if (j && j->adapter) {
        snprintf(j->adapter->name, sizeof j->adapter->name, "%s", name);
        serve_order(s, j, a);
    } else {
        serve_job_drop(j);
    }
    json_decref(body);
}

void adapter_unload_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    unload_with(ctx, q, false, a);
}

void adapter_unload_named_post(void *ctx, const struct web_request *q, struct web_answer *a)
{
    unload_with(ctx, q, true, a);
}

void adapter_status_get(void *ctx, UNUSED const struct web_request *q, struct web_answer *a)
{
    struct serve *s = ctx;
    struct adapter_look now;
    bool available = policy_adapter(s->policy, &now), is = now.name[0] != 0;
    buf_fmt(&a->body, "{\"lora_available\":%s,\"active_adapter_path\":", available ? "true" : "false");
    if (is)
        text_print(&a->body, now.dir);
    buf_str(&a->body, is ? ",\"active_adapter_name\":" : "null,\"active_adapter_name\":");
    if (is)
        text_print(&a->body, now.name);
    buf_fmt(&a->body, is ? ",\"active_adapter_id\":%" PRId64 : "null,\"active_adapter_id\":null", now.id);
    buf_fmt(&a->body, ",\"load_count\":%" PRId64 ",\"available_adapters\":[", now.n_load);
    if (is)
        text_print(&a->body, now.name);
    buf_str(&a->body, "]}");
}

static void config_print(struct buf *out, const struct lora_config *c)
{
    buf_fmt(out, ",\"adapter_config\":{\"r\":%" PRId64 ",\"lora_alpha\":%g,\"target_modules\":[", c->rank, c->alpha);
    for (int m = 0, n = 0; m < LORA_MODULE_N; m++)
        if (c->targets >> m & 1) {
            buf_str(out, n++ ? "," : "");
            text_print(out, strchr(lora_module_path((enum lora_module)m), '.') + 1);
        }
    buf_str(out, "],\"base_model\":");
    text_print(out, c->base);
    buf_char(out, '}');
}

void adapter_job_print(const struct serve_job *j, struct web_answer *a)
{
    const struct adapter_look *l = j->adapter;
    bool load = j->kind == JOB_ADAPTER_LOAD;
    buf_fmt(&a->body, "{\"status\":\"ok\",\"success\":true,\"message\":\"%s\",\"weight_version\":%" PRId64, load ? "loaded" : "unloaded",
            j->done_version);
    buf_str(&a->body, load ? ",\"adapter_path\":" : ",\"previous_adapter\":");
    if (l->name[0])
        text_print(&a->body, l->dir);
    else
        buf_str(&a->body, "null");
    buf_str(&a->body, load ? ",\"adapter_name\":" : ",\"previous_name\":");
    if (l->name[0])
        text_print(&a->body, l->name);
    else
        buf_str(&a->body, "null");
    if (load) {
        buf_fmt(&a->body, ",\"adapter_id\":%" PRId64 ",\"load_count\":%" PRId64, l->id, l->n_load);
        config_print(&a->body, &l->config);
    }
    buf_char(&a->body, '}');
}
