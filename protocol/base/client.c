#include "protocol/base/client.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/bearer.h"

#define ANSWER_MAX (4u << 20)    // bytes of an answer
#define CONNECT_S 10

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;    // before libcurl 7.84 two threads must not do this at once
static void curl_start(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

CURL *client_handle(void)
{
    pthread_once(&curl_once, curl_start);
    return curl_easy_init();
}

/* libcurl refuses this only when it was built without HTTPS, and then it refuses the transfer as well. */
static void http_only(CURL *c, bool plain)
{
#if LIBCURL_VERSION_NUM >= 0x075500    // before 7.85 there are only bit masks, deprecated since
    const char *allowed = plain ? "http,https" : "https";
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, allowed);
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, allowed);
#else
    long allowed = CURLPROTO_HTTPS | (plain ? CURLPROTO_HTTP : 0);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, allowed);
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS, allowed);
#endif
}

void client_handle_reset(CURL *c, bool plain, long connect_s)
{
    curl_easy_reset(c);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, connect_s);
    http_only(c, plain);
}

static size_t on_data(char *data, size_t size, size_t n, void *ctx)
{
    struct client *c = ctx;
    return c->ignores_body || buf_add(&c->answer, data, size * n) ? size * n : 0;
}

static bool header_add(struct client *c, const char *line)
{
    struct curl_slist *more = curl_slist_append(c->headers, line);
    c->headers = more ? more : c->headers;
    return more != NULL;
}

bool client_init(struct client *c, const char *what, const char *key_file, struct error *err)
{
    char token[BEARER_MAX], header[BEARER_MAX + 32];
    *c = (struct client){ .curl = client_handle(), .answer = { .max = ANSWER_MAX } };
    bool ok = c->curl && header_add(c, "Content-Type: application/json");
    if (ok && key_file) {
        if (!bearer_read(token, key_file, err)) {
            client_release(c);
            return false;
        }
        snprintf(header, sizeof header, "Authorization: Bearer %s", token);
        ok = header_add(c, header);
        explicit_bzero(token, sizeof token);
        explicit_bzero(header, sizeof header);
    }
    if (!ok) {
        client_release(c);
        return error_set(err, ERR_NO_MEMORY, "no memory for the client of %s", what);
    }
    client_handle_reset(c->curl, true, CONNECT_S);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    return true;
}

void client_release(struct client *c)
{
    curl_easy_cleanup(c->curl);
    curl_slist_free_all(c->headers);
    buf_release(&c->answer);
    *c = (struct client){ 0 };
}

static int on_progress(void *ctx, UNUSED curl_off_t a, UNUSED curl_off_t b, UNUSED curl_off_t c, UNUSED curl_off_t d)
{
    return atomic_load((const atomic_bool *)ctx);
}

void client_stop_by(struct client *c, const atomic_bool *stop, long stall_s)
{
    curl_easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFODATA, (void *)(uintptr_t)stop);    // only read
    curl_easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, stall_s);
}

/* Do the request that c's handle has been set to. */
static bool perform(struct client *c, const char *what, const char *url, double limit_s, long *status, struct error *err)
{
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)(limit_s * 1000));
    buf_clear(&c->answer);
    *status = 0;
    CURLcode rc = curl_easy_setopt(c->curl, CURLOPT_URL, url);
    rc = rc == CURLE_OK ? curl_easy_perform(c->curl) : rc;
    if (rc == CURLE_WRITE_ERROR && c->answer.failed)
        return error_set(err, ERR_DATA, "%s: the answer is longer than %zu bytes, or there is no memory for it", what, c->answer.max);
    if (rc != CURLE_OK)
        return error_set(err, rc == CURLE_OPERATION_TIMEDOUT ? ERR_TIMEOUT : ERR_IO, "%s: %s", what, curl_easy_strerror(rc));
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, status);
    return *status == 200 || error_set(err, ERR_IO, "%s answered with status %ld: %.200s", what, *status, buf_text(&c->answer));
}

bool client_post(struct client *c, const char *what, const char *url, const char *text, double limit_s, long *status, struct error *err)
{
    curl_easy_setopt(c->curl, CURLOPT_POST, 1L);
    curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, text);
    curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
    return perform(c, what, url, limit_s, status, err);
}

bool client_get(struct client *c, const char *what, const char *url, double limit_s, long *status, struct error *err)
{
    curl_easy_setopt(c->curl, CURLOPT_HTTPGET, 1L);
    return perform(c, what, url, limit_s, status, err);
}
