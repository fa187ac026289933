/* routes_parts.h - what routes.c, about_routes.c and adapter_routes.c share; for nobody else */
#pragma once
#include <jansson.h>
#include "workers/serve/routes.h"

/* ---- routes.c */
/* The body as JSON; NULL: a says what is wrong. An empty body counts as an empty object where that is enough. */
json_t *serve_body_read(const struct web_request *q, bool may_be_empty, struct web_answer *a);
void serve_fail(struct web_answer *a, const struct error *err);
/* An answer that says what is wrong, in OpenAI's shape. */
void serve_refuse(struct web_answer *a, int status, const char *message);
/* Hand an order to the policy; a is its answer from here on. Takes j. */
void serve_order(struct serve *s, struct serve_job *j, struct web_answer *a);

/* Says that this model is not the one that is served; returns false. */
bool serve_model_unknown(const struct serve *s, const char *model, struct error *err);

/* ---- about_routes.c */
void health_get(void *ctx, const struct web_request *q, struct web_answer *a);
void models_get(void *ctx, const struct web_request *q, struct web_answer *a);
void model_get(void *ctx, const struct web_request *q, struct web_answer *a);
void version_get(void *ctx, const struct web_request *q, struct web_answer *a);
void metrics_get(void *ctx, const struct web_request *q, struct web_answer *a);
void model_info_get(void *ctx, const struct web_request *q, struct web_answer *a);
void server_info_get(void *ctx, const struct web_request *q, struct web_answer *a);
void is_paused_get(void *ctx, const struct web_request *q, struct web_answer *a);
void is_sleeping_get(void *ctx, const struct web_request *q, struct web_answer *a);

/* ---- adapter_routes.c: routes of Atropos' example server, and of vLLM and SGLang, which give a name */
void adapter_status_get(void *ctx, const struct web_request *q, struct web_answer *a);
void adapter_load_post(void *ctx, const struct web_request *q, struct web_answer *a);
void adapter_unload_post(void *ctx, const struct web_request *q, struct web_answer *a);
void adapter_load_named_post(void *ctx, const struct web_request *q, struct web_answer *a);
void adapter_unload_named_post(void *ctx, const struct web_request *q, struct web_answer *a);
/* A job that loads the adapter in dir under this name ("": adapter_N), as weights of this version (-1: the next). NULL: see err. */
struct serve_job *adapter_load_job(const char *dir, const char *name, int64_t version, struct error *err);
void adapter_job_print(const struct serve_job *j, struct web_answer *a);
