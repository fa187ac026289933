#include "workers/worker/session.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/digest.h"
#include "protocol/base/json_text.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/http/openai_error.h"
#include "workers/serve/serve_job.h"

#define SAID_MAX 1024    // replies whose messages are known again; the oldest are forgotten

/* The end of a turn of the model in a path. */
struct place {
    int64_t n_tok;
    size_t n_text;    // without the end token
    int32_t end;      // the end token, its last one; -1: it ended without
};
struct path {
    struct session_path tokens;    // first: session_path gives it
    int64_t cap;
    struct buf text;       // what was read and drawn, as a request would say it; empty with by_ids
    bool by_ids;           // its requests came as ids: later ones are compared by those
    struct place *turn;    // (n_turn) owned
    int64_t n_turn;
};
/* A reply as its client has it, and the text that was drawn. */
struct said {
    json_t *message;
    char *raw;
    size_t n_raw;
};
struct session {
    struct path *path;    // (n_path) owned
    int n_path, cap_path;
    struct said *said;    // (n_said) owned
    int64_t n_said;
    /* the reply that is drawn */
    int at;                      // its path
    int64_t from;                // its first token there
    struct serve_job *job;       // owned; NULL: none is drawn
    char ask[65];                // its request's hash
    struct sampling sampling;    // with the tokens that end it
};

struct session *session_new(void)
{
    return calloc(1, sizeof(struct session));
}

static void path_release(struct path *p)
{
    free(p->tokens.token);
    free(p->tokens.logp);
    free(p->tokens.entropy);
    free(p->tokens.newer);
    free(p->tokens.mask);
    free(p->turn);
    buf_release(&p->text);
}

static void said_release(struct said *x)
{
    json_decref(x->message);
    free(x->raw);
}

void session_clear(struct session *s)
{
    for (int i = 0; i < s->n_path; i++)
        path_release(&s->path[i]);
    for (int64_t i = 0; i < s->n_said; i++)
        said_release(&s->said[i]);
    serve_job_drop(s->job);
    s->job = NULL;
    s->n_path = 0;
    s->n_said = 0;
}

void session_free(struct session *s)
{
    if (!s)
        return;
    session_clear(s);
    free(s->path);
    free(s->said);
    free(s);
}

/* ---- paths ---- */

static bool grow(void *array, int64_t cap, size_t size)
{
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = realloc(old, (size_t)cap * size);
    if (grown)
        memcpy(array, &grown, sizeof grown);
    return grown != NULL;
}

static bool path_room(struct path *p, int64_t n)
{
    struct session_path *t = &p->tokens;
    if (t->n + n <= p->cap)
        return true;
    int64_t cap = MAX(2 * p->cap, t->n + n);
    if (!grow(&t->token, cap, sizeof *t->token) || !grow(&t->logp, cap, sizeof *t->logp) || !grow(&t->entropy, cap, sizeof *t->entropy)
        || !grow(&t->newer, cap, sizeof *t->newer) || !grow(&t->mask, cap, sizeof *t->mask))
        return false;
    p->cap = cap;
    return true;
}

/* Add tokens that are only read. */
static bool path_read(struct path *p, const int32_t *id, int64_t n)
{
    struct session_path *t = &p->tokens;
    if (!path_room(p, n))
        return false;
    bool first = t->n == t->n_first;    // nothing was drawn in it yet
    for (int64_t i = 0; i < n; i++, t->n++) {
        t->token[t->n] = id[i];
        t->logp[t->n] = t->entropy[t->n] = 0;
        t->newer[t->n] = 0;
        t->mask[t->n] = 0;
    }
    if (first)
        t->n_first = t->n;
    return true;
}

static bool turn_add(struct path *p, int32_t end)
{
    struct place *more = realloc(p->turn, (size_t)(p->n_turn + 1) * sizeof *more);
    if (!more)
        return false;
    p->turn = more;
    p->turn[p->n_turn++] = (struct place){ .n_tok = p->tokens.n, .n_text = p->text.len, .end = end };
    return !p->text.failed;
}

/* Does text begin with an id's? *len: its bytes. */
static bool begins_with(const struct tokenizer *t, const char *text, size_t n, int32_t id, size_t *len)
{
    const void *bytes = tokenizer_bytes(t, id, len);
    return bytes && *len > 0 && *len <= n && memcmp(text, bytes, *len) == 0;
}

/* Does the text, of which the turn's own has been found at the beginning, go on after the turn? Where an end token was drawn the text has
 * that or, where the template writes another one, that one: else it is a longer turn that only begins alike. *skip: bytes that were drawn. */
static bool turn_is_over(const struct tokenizer *t, const struct sampling *base, const struct place *at, const struct buf *text,
                         size_t *skip)
{
    const char *rest = buf_text(text) + at->n_text;
    size_t n = text->len - at->n_text, len;
    *skip = 0;
    if (at->end < 0)
        return true;
    if (begins_with(t, rest, n, at->end, skip))
        return true;
    *skip = 0;
    for (int i = 0; i < base->n_stop_token; i++)
        if (begins_with(t, rest, n, base->stop_token[i], &len))
            return true;
    return false;
}

/* What a request goes on from: the first n_turn turns of path i; i -1: from nothing. */
struct start {
    int path;
    int64_t n_turn;
    size_t skip;    // bytes of the text after the last turn's that were drawn: an end token's
};

/* The longest beginning of this text, or with ids of these, that was read and drawn here. */
static struct start start_find(const struct session *s, const struct session_config *c, const struct sampling *base, const struct buf *text,
                               const struct token_list *ids)
{
    struct start best = { .path = -1 };
    size_t most = 0;
    for (int i = 0; i < s->n_path; i++) {
        const struct path *p = &s->path[i];
        if (p->by_ids != (ids != NULL))
            continue;
        for (int64_t k = p->n_turn; k > 0; k--) {
            const struct place *at = &p->turn[k - 1];
            size_t len = ids ? (size_t)at->n_tok : at->n_text, skip = 0;
            bool same = ids ? at->n_tok <= ids->n && memcmp(p->tokens.token, ids->id, len * sizeof *ids->id) == 0
                            : len <= text->len && memcmp(buf_text(&p->text), buf_text(text), len) == 0
                                  && turn_is_over(c->text.tokenizer, base, at, text, &skip);
            if (!same)
                continue;
            bool whole = k == p->n_turn;
            if (len > most || (len == most && whole && best.path >= 0 && best.n_turn < s->path[best.path].n_turn)) {
                best = (struct start){ .path = i, .n_turn = k, .skip = skip };
                most = len;
            }
            break;
        }
    }
    return best;
}

/* The path that goes on from there: that path itself where it has got no further, else a new one. -1: no memory. */
static int path_begin(struct session *s, const struct start *from)
{
    struct path p = { .by_ids = false };
    if (from->path >= 0 && from->n_turn == s->path[from->path].n_turn)
        return from->path;
    if (s->n_path == s->cap_path) {
        int cap = MAX(2 * s->cap_path, 2);
        if (!grow(&s->path, cap, sizeof *s->path))
            return -1;
        s->cap_path = cap;
    }
    if (from->path >= 0) {
        const struct path *old = &s->path[from->path];
        p.by_ids = old->by_ids;
        int64_t n = old->turn[from->n_turn - 1].n_tok;
        bool ok = path_read(&p, old->tokens.token, n) && (p.turn = calloc((size_t)from->n_turn, sizeof *p.turn))
                  && buf_add(&p.text, buf_text(&old->text), old->turn[from->n_turn - 1].n_text);
        if (!ok) {
            path_release(&p);
            return -1;
        }
        memcpy(p.turn, old->turn, (size_t)from->n_turn * sizeof *p.turn);
        p.n_turn = from->n_turn;
    }
    s->path[s->n_path] = p;
    return s->n_path++;
}

/* ---- replies ---- */

/* {"ask", "drawn", "status", "stream", "body"}. NULL: no memory. */
static char *reply_make(const struct session *s, int status, bool stream, const struct buf *body)
{
    struct digest d;
    char drawn[65] = "";
    digest_init(&d, true);
    if (s->n_path > 0)
        digest_add(&d, s->path[s->at].tokens.token, (size_t)s->path[s->at].tokens.n * sizeof(int32_t));
    digest_hex(&d, drawn);
    json_t *o = body->failed ? NULL
                             : json_pack("{s:s, s:s, s:i, s:b, s:o}", "ask", s->ask, "drawn", drawn, "status", status, "stream",
                                         (int)stream, "body", json_stringn(buf_text(body), body->len));
    char *text = o ? json_text_dump(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

/* The reply that refuses a request. */
static bool refusal_make(const struct session *s, const struct error *why, char **text, struct error *err)
{
    char words[ERROR_TEXT_BYTES];
    struct buf body = BUF_INIT;
    int status = why->code == ERR_NO_MEMORY ? 500 : 400;
    error_tell(why, words);
    openai_error_print(&body, status, why->code == ERR_CONTEXT ? "context_length_exceeded" : NULL, words);
    *text = reply_make(s, status, false, &body);
    buf_release(&body);
    return *text || error_set(err, ERR_NO_MEMORY, "no memory for a reply");
}

/* ---- requests ---- */

static const char *text_of(const json_t *message, const char *key)
{
    const char *text = json_string_value(json_object_get(message, key));
    return text ? text : "";
}

/* Are these the same arguments? Anthropic's clients send them as an object, which is written in another way than it was drawn. */
static bool arguments_same(const json_t *a, const json_t *b)
{
    if (json_equal(a, b))
        return true;
    json_t *x = json_is_string(a) ? json_str_read(json_string_value(a), 0, NULL) : NULL;
    json_t *y = json_is_string(b) ? json_str_read(json_string_value(b), 0, NULL) : NULL;
    bool same = x && y && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

/* Does the message say what this reply said: the content, the thinking, and the calls by name, arguments and id? */
static bool message_is(const json_t *message, const json_t *reply)
{
    const json_t *a = json_object_get(message, "tool_calls"), *b = json_object_get(reply, "tool_calls");
    if (strcmp(text_of(message, "content"), text_of(reply, "content")) != 0
        || strcmp(text_of(message, "reasoning_content"), text_of(reply, "reasoning_content")) != 0
        || json_array_size(a) != json_array_size(b))
        return false;
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        const json_t *f = json_object_get(x, "function"), *g = json_object_get(y, "function");
        if (!json_equal(json_object_get(f, "name"), json_object_get(g, "name"))
            || !arguments_same(json_object_get(f, "arguments"), json_object_get(g, "arguments"))
            || !json_equal(json_object_get(x, "id"), json_object_get(y, "id")))
            return false;
    }
    return true;
}

/* Put the text that was drawn in place of each message that is a reply of this session. */
static bool drawn_put(const struct session *s, struct ask *a, struct error *err)
{
    bool ok = true;
    json_t *copy = json_copy(a->messages);
    for (size_t i = 0; copy && ok && i < json_array_size(copy); i++) {
        const json_t *m = json_array_get(copy, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        for (int64_t k = s->n_said - 1; role && strcmp(role, "assistant") == 0 && k >= 0; k--) {
            if (!message_is(m, s->said[k].message))
                continue;
            json_t *own = json_pack("{s:s, s:o}", "role", "assistant", "content", json_stringn(s->said[k].raw, s->said[k].n_raw));
            ok = own && json_array_set_new(copy, i, own) == 0;
            break;
        }
    }
    if (!copy || !ok) {
        json_decref(copy);
        return error_set(err, ERR_NO_MEMORY, "no memory for 'messages'");
    }
    json_decref(a->messages);
    a->messages = copy;
    return true;
}

static bool form_find(const char *path, enum ask_form *form)
{
    static const struct {
        const char *path;
        enum ask_form form;
    } forms[] = { { "/v1/chat/completions", ASK_CHAT },
                  { "/v1/completions", ASK_COMPLETION },
                  { "/v1/responses", ASK_RESPONSES },
                  { "/v1/messages", ASK_MESSAGES },
                  { "/inference/v1/generate", ASK_TOKENS } };
    for (size_t i = 0; path && i < ARRAY_SIZE(forms); i++)
        if (strcmp(forms[i].path, path) == 0) {
            *form = forms[i].form;
            return true;
        }
    return false;
}

#define COUNT_PATH "/v1/messages/count_tokens"

/* The reply that says how many tokens a request of Anthropic's has. The messages that are replies count as they were drawn. */
static bool count_make(const struct session *s, const struct session_config *c, const json_t *request, char **text, struct error *err)
{
    struct ask a = { .n = 0 };
    struct ask_text as = c->text;
    struct buf body = BUF_INIT;
    json_t *o = json_str_read(json_string_value(json_object_get(request, "body")), JSON_REJECT_DUPLICATES, NULL);
    bool ok = json_is_object(o) || error_set(err, ERR_DATA, "the body must be a JSON object");
    as.max_seq_tok = INT32_MAX;    // who counts wants to know by how much it is too long
    if (ok && ask_parse(&a, ASK_MESSAGES, o, err) && drawn_put(s, &a, err) && ask_encode(&a, &as, err)) {
        buf_fmt(&body, "{\"input_tokens\":%" PRId64 "}", a.prompt[0].token.n);
        *text = reply_make(s, 200, false, &body);
        ok = *text || error_set(err, ERR_NO_MEMORY, "no memory for a reply");
    } else {
        ok = false;
    }
    json_decref(o);
    ask_release(&a);
    buf_release(&body);
    return ok;
}

/* What a session does not answer. */
static bool ask_check(const struct ask *a, struct error *err)
{
    if (a->n != 1 || a->n_prompt > 1)
        return error_set(err, ERR_UNSUPPORTED, "a session's request has one prompt and one reply ('n' 1)");
    if (a->n_top > 0 || a->n_read >= 0 || a->echo || a->max_tok == 0)
        return error_set(err, ERR_UNSUPPORTED,
                         "a session's replies have the log-probs of what was drawn only: no likeliest tokens, none of the prompt");
    return true;
}

/* Read a request: its ask, encoded, and the text that it says, or *by_ids. */
static bool request_read(const struct session *s, const struct session_config *c, const json_t *request, struct ask *a, struct buf *text,
                         bool *by_ids, struct error *err)
{
    enum ask_form form;
    const json_t *body = json_object_get(request, "body");
    json_error_t why;
    bool ok = false;
    if (!form_find(json_string_value(json_object_get(request, "path")), &form))
        return error_set(err, ERR_UNSUPPORTED, "there is no such route in a session");
    json_t *o = json_text_read(json_string_value(body), json_string_length(body), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!json_is_object(o)) {
        json_decref(o);
        return error_set(err, ERR_DATA, "the body must be a JSON object");
    }
    TRY(ask_parse(a, form, o, err));
    TRY(ask_check(a, err));
    TRY(!ask_is_chat(form) || drawn_put(s, a, err));
    TRY(ask_encode(a, &c->text, err));
    *by_ids = !ask_is_chat(form) && !a->prompt[0].text;
    if (ask_is_chat(form))
        TRY(ask_render(a, &c->text, text, err));
    else if (!*by_ids)
        TRY(buf_add(text, a->prompt[0].text, a->prompt[0].len) || error_set(err, ERR_NO_MEMORY, "no memory for a prompt"));
    ok = true;
out:
    json_decref(o);
    return ok;
}

/* The ids that follow what the request goes on from. */
static bool rest_make(const struct session *s, const struct session_config *c, const struct start *from, const struct ask *a,
                      const struct buf *text, bool by_ids, struct token_list *rest, struct error *err)
{
    const struct token_list *all = &a->prompt[0].token;
    const struct place *at = from->path < 0 ? NULL : &s->path[from->path].turn[from->n_turn - 1];
    int64_t n_old = at ? at->n_tok : 0;
    bool ok;
    if (!at || by_ids)
        ok = token_list_add(rest, all->id + n_old, all->n - n_old) || error_set(err, ERR_NO_MEMORY, "no memory for a prompt");
    else
        ok = encoder_encode(c->text.encoder, buf_text(text) + at->n_text + from->skip, text->len - at->n_text - from->skip, 0, rest, err);
    if (ok && n_old + rest->n >= c->text.max_seq_tok)
        ok = error_set(err, ERR_CONTEXT,
                       "this model's maximum context length is %" PRId64 " tokens; the session has %" PRId64
                       ", and a new one must fit, too",
                       c->text.max_seq_tok, n_old + rest->n);
    return ok;
}

/* The reply's sampling: the run's, for as many tokens as there is room for and the request wants. */
static void sampling_of(const struct session_config *c, const struct ask *a, const struct sampling *base, int64_t n_tok,
                        struct sampling *out)
{
    *out = *base;
    out->max_new_tok = c->text.max_seq_tok - n_tok;
    if (c->max_turn_tok > 0)
        out->max_new_tok = MIN(out->max_new_tok, c->max_turn_tok);
    if (a->max_tok > 0)
        out->max_new_tok = MIN(out->max_new_tok, a->max_tok);
    out->min_new_tok = MIN(base->min_new_tok, out->max_new_tok);
    for (int i = 0; i < a->n_stop_token; i++)
        sampling_add_stop(out, a->stop_token[i]);
}

bool session_ask(struct session *s, const struct session_config *c, const json_t *request, const struct sampling *base, const char *id,
                 struct sampling *sampling, char **text, struct error *err)
{
    struct ask a = { .n = 0 };
    struct buf said = BUF_INIT;
    struct token_list rest = { 0 };
    struct error why = { 0 };
    struct start from;
    const char *ask = json_string_value(json_object_get(request, "ask"));
    bool by_ids = false, ok = false;
    *text = NULL;
    snprintf(s->ask, sizeof s->ask, "%s", ask ? ask : "");
    serve_job_drop(s->job);
    s->job = NULL;
    const char *route = json_string_value(json_object_get(request, "path"));
    if (route && strcmp(route, COUNT_PATH) == 0) {
        TRY(count_make(s, c, request, text, &why));
        return true;
    }
    TRY(request_read(s, c, request, &a, &said, &by_ids, &why));
    from = start_find(s, c, base, &said, by_ids ? &a.prompt[0].token : NULL);
    TRY(rest_make(s, c, &from, &a, &said, by_ids, &rest, &why));
    if (s->n_path == SESSION_PATHS_MAX && (from.path < 0 || from.n_turn < s->path[from.path].n_turn)) {
        error_set(&why, ERR_UNSUPPORTED, "this session has %d conversations that do not go on from each other, the most there can be",
                  SESSION_PATHS_MAX);
        goto out;
    }
    int at = path_begin(s, &from);
    struct path *p = at >= 0 ? &s->path[at] : NULL;
    TRY((p && path_read(p, rest.id, rest.n)) || error_set(&why, ERR_NO_MEMORY, "no memory for a session"));
    p->by_ids = by_ids;
    buf_clear(&p->text);
    TRY(by_ids || buf_add(&p->text, buf_text(&said), said.len) || error_set(&why, ERR_NO_MEMORY, "no memory for a session"));
    s->at = at;
    s->from = p->tokens.n;
    a.prompt[0].token.n = 0;
    TRY(token_list_add(&a.prompt[0].token, p->tokens.token, p->tokens.n) || error_set(&why, ERR_NO_MEMORY, "no memory for a session"));
    sampling_of(c, &a, base, p->tokens.n, sampling);
    s->sampling = *sampling;
    TRY(path_room(p, sampling->max_new_tok) || error_set(&why, ERR_NO_MEMORY, "no memory for %" PRId64 " tokens", sampling->max_new_tok));
    TRY(s->job = serve_job_new(JOB_GENERATE, &why));
    TRY(serve_job_ask(s->job, &a, c->text.tokenizer, &why));
    snprintf(s->job->http.id, sizeof s->job->http.id, "%s", id);
    ok = true;
out:
    ask_release(&a);
    buf_release(&said);
    token_list_release(&rest);
    return ok || refusal_make(s, &why, text, err);
}

const int32_t *session_prompt(const struct session *s, int64_t *n)
{
    *n = s->path[s->at].tokens.n;
    return s->path[s->at].tokens.token;
}

int session_branch(const struct session *s)
{
    return s->at;
}

bool session_token(struct session *s, const struct drawn *d, int64_t first)
{
    struct session_path *t = &s->path[s->at].tokens;
    struct job_choice *choice = &s->job->choice[0];
    bool stopped = false;
    t->token[t->n] = d->id;
    t->logp[t->n] = d->logp;
    t->entropy[t->n] = d->entropy;
    t->newer[t->n] = (int32_t)(d->version - first);
    t->mask[t->n++] = 1;
    if (choice->n_tok == 0)
        choice->n_cached = d->n_cached;
    choice->stop_token = d->is_stop ? d->id : -1;
    if (!choice_add(s->job, choice, d->id, d->logp, d->version, &stopped))
        s->job->failed = true;    // session_reply says so
    if (d->is_last || stopped)
        choice->end = stopped || d->is_stop ? CHOICE_STOP : CHOICE_LENGTH;
    return d->is_last || stopped;
}

/* Append the text that was drawn, as a request would say it: without an end token, which *end gets (-1: none). */
static bool drawn_text(struct session *s, const struct session_config *c, int32_t *end)
{
    struct path *p = &s->path[s->at];
    const int32_t *id = p->tokens.token + s->from;
    int64_t n = p->tokens.n - s->from;
    bool ends = false;
    for (int i = 0; n > 0 && s->job->choice[0].stop_token >= 0 && i < s->sampling.n_stop_token; i++)
        ends = ends || s->sampling.stop_token[i] == id[n - 1];
    *end = ends ? id[n - 1] : -1;
    return p->by_ids || tokenizer_decode(c->text.tokenizer, id, ends ? n - 1 : n, false, &p->text);
}

/* The message of a reply in blocks, as its client sends it back and dialect.h reads it. NULL: no memory. */
static json_t *blocks_message(const struct serve_job *j)
{
    struct answer_parts a;
    json_t *calls = json_array(), *m = NULL;
    if (!calls || !reply_answer(&a, j, &j->choice[0])) {
        json_decref(calls);
        return NULL;
    }
    bool ok = true;
    for (int i = 0; ok && i < a.calls.n; i++) {
        struct buf id = BUF_INIT;
        reply_call_id(&id, j, 0, i);
        json_t *call = json_pack("{s:s, s:{s:s, s:s}}", "id", buf_text(&id), "function", "name", a.calls.call[i].name, "arguments",
                                 a.calls.call[i].arguments);
        ok = call && json_array_append_new(calls, call) == 0;
        buf_release(&id);
    }
    if (ok)
        m = json_pack("{s:o, s:o, s:O}", "content", json_stringn(a.content, a.n_content), "reasoning_content",
                      json_stringn(a.thinking, a.n_thinking), "tool_calls", calls);
    answer_release(&a);
    json_decref(calls);
    return m;
}

/* Keep what the client gets to see of the reply, a message, beside its text. */
static void said_add(struct session *s, const struct serve_job *j, const struct buf *body, const char *raw, size_t n_raw)
{
    json_t *o = j->ask.form == ASK_CHAT ? json_text_read(buf_text(body), body->len, JSON_ALLOW_NUL, NULL) : NULL;
    json_t *message = o ? json_incref(json_object_get(json_array_get(json_object_get(o, "choices"), 0), "message")) : blocks_message(j);
    struct said x = { .message = message, .raw = malloc(n_raw + 1), .n_raw = n_raw };
    json_decref(o);
    if (x.raw && n_raw > 0)
        memcpy(x.raw, raw, n_raw);
    if (s->n_said == SAID_MAX) {
        said_release(&s->said[0]);
        memmove(s->said, s->said + 1, (size_t)--s->n_said * sizeof *s->said);
    }
    if (!x.message || !x.raw || !grow(&s->said, s->n_said + 1, sizeof *s->said)) {
        said_release(&x);    // the message is then taken as it is
        return;
    }
    s->said[s->n_said++] = x;
}

char *session_reply(struct session *s, const struct session_config *c, int64_t version)
{
    struct serve_job *j = s->job;
    struct path *p = &s->path[s->at];
    struct buf body = BUF_INIT, events = BUF_INIT;
    size_t before = p->text.len;
    int32_t end = -1;
    bool ok = !j->failed && drawn_text(s, c, &end) && turn_add(p, end)
              && (j->choice[0].text.stopped_by >= 0 || stop_text_end(&j->choice[0].text));
    j->done_version = version;
    j->http.done = true;
    if (ok)
        reply_print(&body, &c->reply, j);
    if (ok && ask_is_chat(j->ask.form) && j->choice[0].text.stopped_by < 0)    // else its client has less of it than was drawn
        said_add(s, j, &body, buf_text(&p->text) + before, p->text.len - before);
    if (ok && j->ask.stream)
        reply_stream(&events, &c->reply, j);
    char *text = ok ? reply_make(s, 200, j->ask.stream, j->ask.stream ? &events : &body) : NULL;
    buf_release(&body);
    buf_release(&events);
    serve_job_drop(j);
    s->job = NULL;
    return text;
}

int session_n_path(const struct session *s)
{
    return s->n_path;
}

const struct session_path *session_path(const struct session *s, int i)
{
    return &s->path[i].tokens;
}
