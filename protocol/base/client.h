/* client.h - what all clients of other people's servers share: how libcurl is set up, and JSON texts sent to a server with its answers
 *
 * A struct client is the code verifier's, the judge's, a foreign Atropos API's, an external engine's or a webhook's. It follows no redirects.
 * One thread per struct client. Downloads from the hub and wandb's uploads, which go on where they were cut off, drive a handle of their
 * own. */
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
/* A handle of libcurl, for curl_easy_cleanup; libcurl itself is set up by the first. Any thread. NULL: no memory. */
CURL *client_handle(void);
/* Forget what c was set to, and set what every transfer here has: no signals, connect_s seconds to connect, only HTTPS (and HTTP if plain)
 * for its address and for redirects: addresses come from settings and from servers, and libcurl alone would also read file: and ftp:. */
void client_handle_reset(CURL *c, bool plain, long connect_s);

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
