#include <curl/curl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>
#include "protocol/base/client.h"
#include "protocol/base/clock.h"
#include "protocol/base/thread.h"
#include "workers/export/wandb.h"

#define REPLY_MAX ((size_t)4 << 20)

struct http {
    const struct wandb_setup *setup;
    CURLM *multi;
    CURL *easy;
    char user_password[520];
    int signal_fd;
    bool stop;
};

struct http *http_new(const struct wandb_setup *setup, struct error *err)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h) {
        error_set(err, ERR_NO_MEMORY, "no memory for HTTP");
        return NULL;
    }
    h->setup = setup;
    if ((h->signal_fd = stop_fd_open(true, err)) < 0) {
        http_free(h);
        return NULL;
    }
    h->easy = client_handle();
    h->multi = curl_multi_init();
    if (!h->multi || !h->easy) {
        error_set(err, ERR_NO_MEMORY, "libcurl cannot be set up");
        http_free(h);
        return NULL;
    }
    snprintf(h->user_password, sizeof h->user_password, "api:%s", setup->who.key);
    return h;
}

void http_free(struct http *h)
{
    if (!h)
        return;
    if (h->easy)
        curl_easy_cleanup(h->easy);
    if (h->multi)
        curl_multi_cleanup(h->multi);
    if (h->signal_fd >= 0)
        close(h->signal_fd);
    explicit_bzero(h->user_password, sizeof h->user_password);
    free(h);
}

static void stop_look(struct http *h)
{
    if (stop_fd_take(h->signal_fd))
        h->stop = true;
}

bool http_stop_wanted(const struct http *h)
{
    stop_look((struct http *)h);
    return h->stop;
}

static size_t body_take(char *data, size_t size, size_t n, void *arg)
{
    struct http_reply *r = arg;
    return buf_add(&r->body, data, size * n) ? size * n : 0;
}

/* Retry-After in seconds, fractions allowed, or an HTTP date; what is left of the server's rate limit, and until when. */
static size_t header_take(char *data, size_t size, size_t n, void *arg)
{
    struct http_reply *r = arg;
    char line[256];
    snprintf(line, sizeof line, "%.*s", (int)MIN(size * n, sizeof line - 1), data);
    if (strncasecmp(line, "retry-after:", 12) == 0) {
        char *end;
        const char *value = line + 12 + strspn(line + 12, " \t");
        double v = strtod(value, &end);
        if (end != value && v >= 0) {
            r->retry_after_s = v;
        } else {
            time_t when = curl_getdate(value, NULL);
            if (when != (time_t)-1)
                r->retry_after_s = fmax(0, (double)when - clock_wall_s());
        }
    }
    if (strncasecmp(line, "ratelimit-remaining:", 20) == 0)
        r->rate_left = strtod(line + 20, NULL);
    if (strncasecmp(line, "ratelimit-reset:", 16) == 0)
        r->rate_reset_s = strtod(line + 16, NULL);
    return size * n;
}

/* Drive the one transfer until it is done or limit_s is over. */
static CURLcode transfer(struct http *h, double limit_s)
{
    int running = 1;
    int64_t until = clock_ms() + (int64_t)(limit_s * 1000);
    curl_multi_add_handle(h->multi, h->easy);
    while (curl_multi_perform(h->multi, &running) == CURLM_OK && running) {
        if (clock_ms() >= until)
            break;
        curl_multi_poll(h->multi, NULL, 0, 200, NULL);
        stop_look(h);
    }
    CURLcode code = running ? CURLE_OPERATION_TIMEDOUT : CURLE_OK;
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left));)
        if (m->msg == CURLMSG_DONE)
            code = m->data.result;
    curl_multi_remove_handle(h->multi, h->easy);
    return code;
}

bool http_do(struct http *h, const char *method, const char *url, bool with_key, const char *const *header, const void *body, size_t len,
             double limit_s, struct http_reply *reply, struct error *err)
{
    CURL *c = h->easy;
    struct curl_slist *headers = NULL;
    *reply = (struct http_reply){
        .retry_after_s = NAN, .rate_left = NAN, .rate_reset_s = NAN, .rate_wait_s = NAN, .body = { .max = REPLY_MAX }
    };
    client_handle_reset(c, true, 20);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);    // a redirect must not carry the key elsewhere
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(limit_s * 1000));
    curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, "gzip");
    curl_easy_setopt(c, CURLOPT_USERAGENT, "rollcall");
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, body_take);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, reply);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, header_take);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, reply);
    if (h->setup->ca[0])
        curl_easy_setopt(c, CURLOPT_CAINFO, h->setup->ca);
    if (with_key) {
        curl_easy_setopt(c, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
        curl_easy_setopt(c, CURLOPT_USERPWD, h->user_password);
    }
    headers = curl_slist_append(headers, "Expect:");    // no wait of one second before large bodies
    headers = curl_slist_append(headers, strcmp(method, "POST") == 0 ? "Content-Type: application/json" : "Content-Type:");
    for (; header && *header; header++)
        headers = curl_slist_append(headers, *header);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, len ? (const char *)body : "");
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method);
    CURLcode code = transfer(h, limit_s);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &reply->status);
    curl_slist_free_all(headers);
    reply->stopped = h->stop;
    if (reply->rate_left <= 0 && reply->rate_reset_s > 0)
        reply->rate_wait_s = reply->rate_reset_s;
    if (code == CURLE_OK)
        return true;
    bool final = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_URL_MALFORMAT || code == CURLE_SSL_CACERT_BADFILE
                 || code == CURLE_UNSUPPORTED_PROTOCOL;
    reply->status = 0;
    return error_set(err, final ? ERR_UNSUPPORTED : ERR_IO, "no answer from the wandb server: %s", curl_easy_strerror(code));
}

bool http_is_final(long status)
{
    static const int final[] = { 400, 401, 403, 404, 409, 410, 413, 422, 501 };
    for (size_t i = 0; i < ARRAY_SIZE(final); i++)
        if (status == final[i])
            return true;
    return status >= 300 && status < 400;
}

double http_backoff_s(const struct wandb_setup *s, int n, double retry_after_s)
{
    unsigned char noise = 0;
    if (!isnan(retry_after_s))
        return retry_after_s;
    if (getrandom(&noise, 1, 0) != 1)
        noise = 128;
    return fmin(60, s->retry_min_s * pow(2, MIN(n - 1, 10)) * (1 + 0.25 * noise / 255));
}
