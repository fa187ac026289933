/* door.h - where the programs of sessions ask: HTTP on this host's loopback, at a port of its own
 *
 * A thread reads requests and keeps them in a queue for the harness, which finds the session by the key that a request shows, and answers.
 * Everything that a program may send is bounded (web.h), and so is the queue. What is asked is not looked at here: the worker that samples
 * for the session reads it, as `serve` reads its requests. Keys come in a header only, and no log or answer has one. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/http/http_job.h"
#include "protocol/base/buf.h"

#define DOOR_KEY_MAX 64    // bytes of a key, with its NUL

enum door_request_kind {
    REQUEST_DRAW,      // the model is to go on
    REQUEST_REWARD,    // the session's reward
};
struct door_request {
    struct http_job http;         // first
    struct door_request *next;    // of whoever has it
    enum door_request_kind kind;
    char key[DOOR_KEY_MAX];    // that it shows; "": none
    char *path;                // owned, as the next
    char *body;                // (len) NUL-terminated
    size_t len;
    char ask[65];    // SHA-256 of path and body, by which a repeated request is known
    // its answer
    int status;
    bool stream;    // the body is server-sent events
    struct buf answer;
};
struct door;
/* Begin to listen, for the programs of n_session sessions at once. wake(ctx) is called, by another thread, when door_take has something.
 * model: its name for clients, borrowed as long as the door lives. NULL: see err. */
struct door *door_new(int64_t n_session, const char *model, void (*wake)(void *ctx), void *ctx, struct error *err);
const char *door_url(const struct door *d);    // "http://127.0.0.1:PORT/v1"
/* The next request, with a reference that door_answer and door_refuse drop; NULL: none. */
struct door_request *door_take(struct door *d);
bool request_gone(struct door_request *q);    // has its client gone?
/* Answer with this body, (len) bytes of JSON or of events. */
void door_answer(struct door_request *q, int status, bool stream, const char *body, size_t len);
/* Answer with an error in OpenAI's shape. code: a word by which clients know it, NULL: the status. */
void door_refuse(struct door_request *q, int status, const char *code, const char *message);
void door_free(struct door *d);    // all requests that were taken must have been answered; NULL is fine
