#include "workers/serve/serve_job.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"

static void job_release(struct http_job *http)
{
    struct serve_job *j = serve_job_of(http);
    for (int64_t i = 0; i < j->n_choice; i++) {
        struct job_choice *c = &j->choice[i];
        free(c->token);
        free(c->logp);
        free(c->version);
        free(c->top);
        stop_text_release(&c->text);
    }
    free(j->choice);
    for (int64_t i = 0; j->read && i < j->ask.n_prompt; i++) {
        free(j->read[i].logp);
        free(j->read[i].rank);
        free(j->read[i].top);
    }
    free(j->read);
    free(j->adapter);
    ask_release(&j->ask);
    free(j);
}

struct serve_job *serve_job_new(enum job_kind kind, struct error *err)
{
    struct serve_job *j = calloc(1, sizeof *j);
    if (!j) {
        error_set(err, ERR_NO_MEMORY, "no memory for a request");
        return NULL;
    }
    j->kind = kind;
    j->version = -1;
    j->created_s = clock_wall_s();
    http_job_init(&j->http, job_release);
    return j;
}

bool serve_job_prompt_room(struct serve_job *j, int64_t prompt, struct error *err)
{
    struct prompt_logps *p = &j->read[prompt], room = { 0 };
    size_t n = (size_t)j->ask.prompt[prompt].token.n, k = (size_t)j->ask.n_read;
    if (p->logp)
        return true;
    room.logp = calloc(n, sizeof *room.logp);
    room.rank = calloc(n, sizeof *room.rank);
    room.top = k ? calloc(n * k, sizeof *room.top) : NULL;
    pthread_mutex_lock(&j->http.lock);
    *p = room;    // serve_job_drop frees what there is
    pthread_mutex_unlock(&j->http.lock);
    return (p->logp && p->rank && (!k || p->top)) || error_set(err, ERR_NO_MEMORY, "no memory for the log-probs of %zu tokens", n);
}

bool serve_job_ask(struct serve_job *j, struct ask *a, const struct tokenizer *tokenizer, struct error *err)
{
    int64_t n = a->n_prompt * a->n;
    j->choice = calloc((size_t)n, sizeof *j->choice);
    if (!j->choice)
        return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " samples", n);
    j->ask = *a;
    *a = (struct ask){ .n = 0 };
    j->n_choice = j->n_open = n;
    for (int64_t i = 0; i < n; i++) {
        struct job_choice *c = &j->choice[i];
        c->stop_token = -1;
        stop_text_init(&c->text, tokenizer, j->ask.skip_special, (const char *const *)j->ask.stop, j->ask.n_stop, j->ask.include_stop);
    }
    if (j->ask.n_read >= 0 && !(j->read = calloc((size_t)j->ask.n_prompt, sizeof *j->read)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the prompts' log-probs");
    return true;
}

bool serve_job_adapter(struct serve_job *j, struct error *err)
{
    j->adapter = calloc(1, sizeof *j->adapter);
    return j->adapter || error_set(err, ERR_NO_MEMORY, "no memory for a request");
}

void serve_job_hold(struct serve_job *j)
{
    http_job_hold(&j->http);
}

void serve_job_drop(struct serve_job *j)
{
    if (j)
        http_job_drop(&j->http);
}

/* Grow an array of a choice to cap elements; NULL as result leaves it as it is. */
static bool grow(void *array, int64_t cap, size_t size)
{
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = realloc(old, (size_t)cap * size);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof grown);
    return true;
}

bool choice_add(struct serve_job *j, struct job_choice *c, int32_t id, float logp, int64_t version, bool *stopped)
{
    if (c->n_tok == c->cap) {
        int64_t cap = c->cap ? c->cap * 2 : 64, n_top = j->ask.n_top;
        if (!grow(&c->token, cap, sizeof *c->token) || !grow(&c->logp, cap, sizeof *c->logp) || !grow(&c->version, cap, sizeof *c->version)
            || (n_top > 0 && !grow(&c->top, cap * n_top, sizeof *c->top)))
            return false;
        c->cap = cap;
    }
    c->token[c->n_tok] = id;
    c->logp[c->n_tok] = logp;
    c->version[c->n_tok++] = (int32_t)version;
    *stopped = false;
    return c->stop_token >= 0 && !c->text.include_stop ? true : stop_text_push(&c->text, id, c->n_tok > j->ask.min_tok, stopped);
}

const char *choice_end_name(enum choice_end end)
{
    switch (end) {
    case CHOICE_OPEN: return "";
    case CHOICE_STOP: return "stop";
    case CHOICE_LENGTH: return "length";
    case CHOICE_ABORT: return "abort";
    }
    BUG_IF(true, "choice_end is %d", (int)end);
}
