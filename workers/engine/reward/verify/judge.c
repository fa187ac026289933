#include "workers/engine/reward/verify/judge.h"
#include <ctype.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "protocol/base/cli.h"
#include "protocol/base/client.h"
#include "protocol/base/json_text.h"

#define ATTEMPTS 3

struct judge {
    struct client client;
    char *url, *model;
    int64_t max_tokens;
    double timeout_s;
    _Atomic int64_t *left;    // requests that may still be made; borrowed, NULL: no bound
};

struct judge *judge_new(const struct verify_options *o, struct error *err)
{
    static const char path[] = "/chat/completions";
    if (!o->llm_judge_url) {
        error_set(err, ERR_USAGE, "a judge is needed: 'llm_judge_url' is not set");
        return NULL;
    }
    struct judge *j = calloc(1, sizeof *j);
    size_t len = strlen(o->llm_judge_url);
    while (len > 0 && o->llm_judge_url[len - 1] == '/')
        len--;
    bool whole = len >= sizeof path - 1 && memcmp(o->llm_judge_url + len - (sizeof path - 1), path, sizeof path - 1) == 0;
    if (!j || asprintf(&j->url, "%.*s%s", (int)len, o->llm_judge_url, whole ? "" : path) < 0
        || !(j->model = strdup(o->llm_judge_model ? o->llm_judge_model : ""))) {
        error_set(err, ERR_NO_MEMORY, "no memory for the judge's client");
        goto out;
    }
    j->max_tokens = o->llm_judge_max_tokens;
    j->timeout_s = o->llm_judge_timeout;
    j->left = o->llm_judge_left;
    if (client_init(&j->client, "the judge", o->llm_judge_key_file, err))
        return j;
out:
    judge_free(j);
    return NULL;
}

void judge_free(struct judge *j)
{
    if (!j)
        return;
    client_release(&j->client);
    free(j->url);
    free(j->model);
    free(j);
}

/* One request less in the budget. */
static bool budget_take(struct judge *j)
{
    if (!j->left)
        return true;
    int64_t left = atomic_load(j->left);
    while (left > 0 && !atomic_compare_exchange_weak(j->left, &left, left - 1)) {
    }
    return left > 0;
}

/* The first choice's text without <think>...</think>. */
static bool text_take(const struct buf *body_text, struct buf *answer, struct error *err)
{
    json_t *body = json_text_read(buf_text(body_text), body_text->len, JSON_ALLOW_NUL, NULL);
    const json_t *message = json_object_get(json_array_get(json_object_get(body, "choices"), 0), "message");
    const json_t *content = json_object_get(message, "content");
    bool ok = json_is_string(content);
    if (ok) {
        const char *at = json_string_value(content), *end = at + json_string_length(content), *open, *close;
        buf_clear(answer);
        while ((open = memmem(at, (size_t)(end - at), "<think>", 7)) && (close = memmem(open, (size_t)(end - open), "</think>", 8))) {
            buf_add(answer, at, (size_t)(open - at));
            at = close + 8;
        }
        buf_add(answer, at, (size_t)(end - at));
    }
    json_decref(body);
    return ok || error_set(err, ERR_DATA, "the judge's answer has no text: %.200s", buf_text(body_text));
}

bool judge_ask(struct judge *j, const char *system, const char *user, size_t user_len, double temperature, struct buf *answer,
               struct error *err)
{
    json_t *messages = json_array();
    if (system)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", json_stringn(user, user_len)));
    json_t *body = json_pack("{s:s, s:o, s:f, s:I}", "model", j->model, "messages", messages, "temperature", temperature, "max_tokens",
                             (json_int_t)j->max_tokens);
    char *text = body ? json_text_dump(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text)
        return error_set(err, ERR_NO_MEMORY, "no memory for a request to the judge, or a text that is not UTF-8");
    bool ok = false;
    for (int attempt = 0; attempt < ATTEMPTS && !ok; attempt++) {
        if (attempt > 0)
            sleep(1u << (attempt - 1));
        if (!budget_take(j)) {
            error_set(err, ERR_FULL, "the judge's budget, 'llm_judge_budget', is used up");
            break;
        }
        long status;
        if (client_post(&j->client, "the judge", j->url, text, j->timeout_s, &status, err)) {
            ok = text_take(&j->client.answer, answer, err);
            break;
        }
        if (status > 0 && status < 500 && status != 429)
            break;    // asking again would give the same answer
    }
    free(text);
    return ok;
}

/* ---- scores ---- */

/* The number at *at, which moves past it. */
static bool number_take(const char **at, const char *end, double *out)
{
    char digits[32] = "";
    size_t n = 0;
    while (n < (size_t)(end - *at) && ((*at)[n] && strchr("+-.0123456789eE", (*at)[n])))
        n++;
    if (n == 0 || n >= sizeof digits)
        return false;
    memcpy(digits, *at, n);
    *at += n;
    return parse_f64(digits, out);
}

/* Pass blanks and then word, if it is there. */
static bool word_take(const char **at, const char *end, const char *word)
{
    const char *p = *at;
    while (p < end && isspace((unsigned char)*p))
        p++;
    size_t n = strlen(word);
    if ((size_t)(end - p) < n || strncasecmp(p, word, n) != 0)
        return false;
    *at = p + n;
    return true;
}

/* A score as judges write it at *at: a number on the scale that ends at full, or one that names its own scale, "2/10", "2 out of 10",
 * "20%". *score is from 0 to 1; a number outside its scale is none. *at moves past what was read. */
static bool score_take(const char **at, const char *end, double full, double *score)
{
    double v;
    word_take(at, end, "");
    if (!number_take(at, end, &v))
        return false;
    if (word_take(at, end, "%"))
        full = 100;
    else if (word_take(at, end, "/") || word_take(at, end, "out of") || word_take(at, end, "of")) {
        word_take(at, end, "");
        if (!number_take(at, end, &full))
            return false;
    }
    *score = v / full;
    return full > 0 && v >= 0 && v <= full && isfinite(*score);
}

static bool value_score(const json_t *v, double full, double *score)
{
    double number;
    if (json_double_get(v, &number)) {
        *score = number / full;
        return number >= 0 && number <= full;    // not of a NaN
    }
    const char *at = json_string_value(v), *end = at ? at + json_string_length(v) : NULL;
    return at && score_take(&at, end, full, score) && (word_take(&at, end, ""), at == end);
}

json_t *judge_json_object(const char *text, size_t len)
{
    const char *end = memrchr(text, '}', len);
    json_t *found = NULL;
    for (const char *at = text; end && !found && (at = memchr(at, '{', (size_t)(end + 1 - at))); at++) {
        size_t n = (size_t)(end + 1 - at);
        found = json_text_read(at, n, JSON_ALLOW_NUL, NULL);
        if (!found && n >= 4 && at[1] == '{' && end[-1] == '}')
            found = json_text_read(at + 1, n - 2, JSON_ALLOW_NUL, NULL);
    }
    return found;
}

/* Does what stands at `at` end a value? Not a further digit: "0,5" is no 0. */
static bool value_ends(const char *at, const char *end)
{
    return at == end || strchr("\"}`*\n", *at) || (*at == ',' && (at + 1 == end || !isdigit((unsigned char)at[1])));
}

/* The score after key and a colon in a text that is not JSON. Two that differ are none: it cannot be told which one is meant. */
static bool text_score(const char *text, size_t len, const char *key, double full, double *score)
{
    const char *end = text + len;
    bool found = false;
    for (const char *at = text; (at = memmem(at, (size_t)(end - at), key, strlen(key)));) {
        double v;
        at += strlen(key);
        const char *value = at + strspn(at, "\"'*");
        if (!word_take(&value, end, ":"))
            continue;
        value += strspn(value, " \t\r\n\"'*");
        if (!score_take(&value, end, full, &v))
            return false;
        while (value < end && (*value == ' ' || *value == '\r' || *value == '.'))
            value++;
        if (!value_ends(value, end) || (found && v != *score))
            return false;
        *score = v;
        found = true;
    }
    return found;
}

bool judge_score(const char *text, size_t len, const char *key, double full, double *score)
{
    json_t *object = judge_json_object(text, len);
    const json_t *value = json_object_get(object, key);
    bool ok = value ? value_score(value, full, score) : text_score(text, len, key, full, score);
    json_decref(object);
    return ok;
}
