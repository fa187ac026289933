/* routes.h - the routes of a model's server: one table of method, path and function
 *
 * The functions run on the thread that reads requests; long work becomes a job for the policy. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/serve/ask.h"
#include "workers/http/web.h"
#include "workers/serve/reply.h"

struct policy;
struct serve {
    struct policy *policy;
    struct ask_text text;          // used by the thread that reads requests
    struct reply_context reply;    // with the model's name
    const char *dir;               // of the model
    const int32_t *eos;            // (n_eos)
    int n_eos;
    double started_s;
    uint64_t n_request;    // so far; numbers the ids
    uint64_t run;          // random; in the ids
};
/* Let the server answer for s: its routes, and what they need. */
void serve_routes_set(struct web_config *c, struct serve *s);
