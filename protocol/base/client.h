/* client.h - JSON texts sent to an HTTP server, and its answers: what all clients of other people's servers share
 *
 * The code verifier's, the judge's, a foreign Atropos API's, an external engine's and a webhook's. Redirects are not followed. One thread per
 * struct client. */
#pragma once
#include <curl/curl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct client {
    CURL *curl;                    // owned
    struct curl_slist *headers;    // owned
    struct buf answer;             // body of the last answer; its max bounds what is taken (4 MiB unless the owner changes it)
    bool ignores_body;             // of answers, whose status is all that counts: set by the owner after client_init
};
/* Set c up. what names it in messages ("the judge"); key_file: its first line is sent as a bearer token; NULL: none. Does not connect
 * yet. On failure c holds nothing. */
MUST_USE bool client_init(struct client *c, const char *what, const char *key_file, struct error *err);
void client_release(struct client *c);
/* POST text to url, within limit_s. True: the status was 200, and c->answer is the answer. *status: 0 when no whole answer came. what names
 * the server in messages. */
MUST_USE bool client_post(struct client *c, const char *what, const char *url, const char *text, double limit_s, long *status,
                          struct error *err);
/* GET url; else as client_post. */
MUST_USE bool client_get(struct client *c, const char *what, const char *url, double limit_s, long *status, struct error *err);
/* Give up a transfer soon after *stop has become true (borrowed as long as c lives), or when no byte has come for stall_s seconds. */
void client_stop_by(struct client *c, const atomic_bool *stop, long stall_s);
