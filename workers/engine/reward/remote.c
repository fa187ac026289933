#include "workers/engine/reward/remote.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/client.h"
#include "protocol/base/json_text.h"

#define ATTEMPTS 3
#define WHOLE_MAX_S 600.0    // longest wait for one program, the upstream service's own limit

#define HOSTS_MAX 16
struct remote {
    char *urls, *url[HOSTS_MAX];    // owned, cut at the commas; url points into urls
    int n_url, next;                // next: the one that is asked next
    double test_timeout_s;
    struct client client;
};

/* Cut the list of addresses at its commas. */
static bool urls_read(struct remote *r, const char *list, struct error *err)
{
    r->urls = strdup(list);
    if (!r->urls)
        return error_set(err, ERR_NO_MEMORY, "no memory for the code verifier's client");
    char *rest = r->urls;
    for (char *one; (one = strsep(&rest, ","));) {
        one += strspn(one, " ");
        one[strcspn(one, " ")] = 0;
        if (!*one)
            continue;
        if (r->n_url == HOSTS_MAX)
            return error_set(err, ERR_USAGE, "'code_verifier_api_url' has more than %d addresses", HOSTS_MAX);
        r->url[r->n_url++] = one;
    }
    if (r->n_url > 0)    // threads begin at different ones
        r->next = (int)((uintptr_t)r / 64 % (uintptr_t)r->n_url);
    return r->n_url > 0 || error_set(err, ERR_USAGE, "'code_verifier_api_url' has no address");
}

struct remote *remote_new(const char *url, const char *key_file, double test_timeout_s, struct error *err)
{
    struct remote *r = calloc(1, sizeof *r);
    if (!r) {
        error_set(err, ERR_NO_MEMORY, "no memory for the code verifier's client");
        return NULL;
    }
    r->test_timeout_s = test_timeout_s > 0 ? test_timeout_s : 10;
    if (urls_read(r, url, err) && client_init(&r->client, "the code verifier", key_file, err))
        return r;
    remote_free(r);
    return NULL;
}

void remote_free(struct remote *r)
{
    if (!r)
        return;
    client_release(&r->client);
    free(r->urls);
    free(r);
}

/* The request's body; the test cases are sent as an object even where the data holds them as a string. NULL: no memory,
 * or the response is not UTF-8. */
static char *request_text(const struct remote *r, const struct reward_input *in)
{
    json_t *cases = json_object_get(in->row, "test_cases"), *parsed = NULL;
    if (json_is_string(cases))
        parsed = json_text_read(json_string_value(cases), json_string_length(cases), 0, NULL);
    else
        parsed = json_deep_copy(cases);    // a reference would change the count in a row that other threads use too
    json_t *body = json_object();
    json_object_set_new(body, "in_outs", parsed ? parsed : json_null());
    bool ok = json_object_set_new(body, "generation", json_stringn(in->response, in->response_len)) == 0;
    json_object_set_new(body, "timeout", json_integer((json_int_t)ceil(r->test_timeout_s)));
    json_object_set_new(body, "debug", json_false());
    char *text = ok ? json_text_dump(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

static bool answer_read(const struct remote *r, int64_t n_test, int64_t *n_pass, int64_t *first, struct test_results *tests,
                        struct error *err)
{
    json_error_t je;
    size_t i;
    json_t *one, *answer = json_text_read(buf_text(&r->client.answer), r->client.answer.len, 0, &je),
                 *result = json_object_get(answer, "result");
    int64_t n = (int64_t)json_array_size(result);
    bool ok = json_is_array(result) && n > 0 && n <= n_test;
    *n_pass = 0;
    *first = -1;
    tests->n = 0;
    json_array_foreach(result, i, one)
    {
        bool pass = json_is_true(one) || (json_is_number(one) && json_number_value(one) == 1);
        *n_pass += pass;
        bool error = json_is_number(one) && json_number_value(one) < 0;
        test_results_add(tests, pass ? TEST_PASSED : !error ? TEST_WRONG : json_number_value(one) < -1 ? TEST_NO_PROGRAM : TEST_FAILED);
        if (!pass && *first < 0)
            *first = (int64_t)i;
    }
    if (ok && *first < 0 && n < n_test)
        ok = false;    // it stopped early though nothing had failed
    json_decref(answer);
    return ok
           || error_set(err, ERR_DATA, "the code verifier's answer has no 'result' for %" PRId64 " tests: %.200s", n_test,
                        buf_text(&r->client.answer));
}

/* Where a request to host goes: its path, or route when it has none; NULL: host as it is. */
static void url_make(char *url, size_t size, const char *host, const char *route)
{
    const char *path = strstr(host, "://");
    path = path ? strchr(path + 3, '/') : NULL;
    if (!route || (path && path[1]))
        route = "";
    else if (path)
        route++;    // the address ends with a slash
    snprintf(url, size, "%s%s", host, route);
}

/* POST text to each host in turn, ATTEMPTS times in all or once to each, until one answers with status 200. A host that cannot be
 * reached or fails is passed over; 4xx other than 429 are the request's own fault. route: see url_make. */
static bool ask(struct remote *r, const char *route, const char *text, double wait_s, struct error *err)
{
    char url[2048], what[2048];
    for (int attempt = 0; attempt < MAX(ATTEMPTS, r->n_url); attempt++) {
        const char *host = r->url[r->next];
        long status;
        r->next = (r->next + 1) % r->n_url;
        if (attempt > 0)
            usleep(200000u << MIN(attempt, 4));
        url_make(url, sizeof url, host, route);
        snprintf(what, sizeof what, "the code verifier '%s'", host);
        if (client_post(&r->client, what, url, text, wait_s, &status, err))
            return true;
        if (status >= 400 && status < 500 && status != 429)
            return false;
    }
    return false;
}

bool remote_run(struct remote *r, const struct reward_input *in, int64_t n_test, int64_t *n_pass, int64_t *first,
                struct test_results *tests, struct error *err)
{
    char *text = request_text(r, in);
    if (!text)
        return error_set(err, ERR_NO_MEMORY, "no memory for a request to the code verifier, or a response that is not UTF-8");
    bool ok = ask(r, NULL, text, MIN(WHOLE_MAX_S, r->test_timeout_s * (double)n_test + 30), err)
              && answer_read(r, n_test, n_pass, first, tests, err);
    free(text);
    return ok;
}

bool remote_tests(struct remote *r, bool stdio, const char *code, size_t len, const json_t *tests, int64_t n_test, double *runtime_s,
                  struct error *err)
{
    double limit_s = r->test_timeout_s;
    json_t *body = json_pack("{s:o, s:o, s:f}", "program", json_stringn(code, len), "tests", json_deep_copy(tests), "max_execution_time",
                             limit_s);
    char *text = body ? json_text_dump(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text)
        return error_set(err, ERR_NO_MEMORY, "no memory for a request to the code verifier, or a program that is not UTF-8");
    double whole_s = MAX(30, MIN(300, limit_s * 10));    // open-instruct's time limit of a request
    bool ok = ask(r, stdio ? "/test_program_stdio" : "/test_program", text, whole_s, err);
    free(text);
    if (!ok)
        return false;
    json_t *answer = json_text_read(buf_text(&r->client.answer), r->client.answer.len, 0, NULL);
    json_t *results = json_object_get(answer, "results");
    const json_t *times = json_object_get(answer, "runtimes");
    ok = (int64_t)json_array_size(results) == n_test && json_array_size(times) == json_array_size(results);
    for (int64_t i = 0; ok && i < n_test; i++) {
        bool pass = json_number_value(json_array_get(results, (size_t)i)) == 1 || json_is_true(json_array_get(results, (size_t)i));
        double s = json_number_value(json_array_get(times, (size_t)i));
        runtime_s[i] = pass ? MAX(s, 0) : -1;
    }
    json_decref(answer);
    return ok
           || error_set(err, ERR_DATA, "the code verifier's answer has no 'results' and 'runtimes' for %" PRId64 " tests: %.200s", n_test,
                        buf_text(&r->client.answer));
}
