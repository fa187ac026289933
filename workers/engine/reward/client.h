/* client.h - JSON texts sent to an HTTP server, and its answers: what the code verifier's and the judge's clients share
 *
 * Redirects are not followed. One thread per struct client. */
#pragma once
#include <curl/curl.h>
#include <stdbool.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct client {
    CURL *curl;                    // owned
    struct curl_slist *headers;    // owned
    struct buf answer;             // body of the last answer
};
/* Set c up. what names it in messages ("the judge"); key_file: its first line is sent as a bearer token; NULL: none. Does not connect
 * yet. On failure c holds nothing. */
MUST_USE bool client_init(struct client *c, const char *what, const char *key_file, struct error *err);
void client_release(struct client *c);
/* POST text to url, within limit_s. True: the status was 200, and c->answer is the answer. *status: 0 when no whole answer came. what names
 * the server in messages. */
MUST_USE bool client_post(struct client *c, const char *what, const char *url, const char *text, double limit_s, long *status,
                          struct error *err);
