/* page_server.h - a few pages over HTTP/1.1 for a bounded number of readers
 *
 * Requests are read as strictly as by the servers of models and groups (protocol/base/http_head.h), and those that a browser sends for another
 * site's page are refused, too.
 * A connection is for one request: GET or HEAD of a page, answered with 'Connection: close'. Whoever connects may be silent, slow or
 * many, and costs little: a request has at most 8 KiB, each stage of a connection takes at most the server's limit of time, and at most
 * 32 connections, and no more than half of the files that the process may open, are there at once. When there is one more, the oldest one
 * of the address that has most of them is closed: a stranger pushes out its own, and a scrape under way, which takes milliseconds, only
 * if it is very fast. What is sent away is counted and logged, at most once in ten seconds.
 *
 * Owned by the thread that calls page_server_turn; it has no other. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/base/own_hosts.h"

#define PAGE_LIMIT_MS 10000
struct page_server;
struct page_request {
    const char *path;             // one of the server's
    const char *authorization;    // the header's value, NULL: none; borrowed for the call
};
struct page_answer {
    int status;            // 200 unless set
    const char *type;      // of the body
    const char *header;    // more lines of the head, each ended by "\r\n"; NULL: none; not freed
    struct buf body;       // the server's
};
/* Called for each request, on the thread of page_server_turn. */
typedef void page_make(void *arg, const struct page_request *request, struct page_answer *answer);

/* Serve what make writes at each path (NULL after the last; borrowed until page_server_free) of address, HOST:PORT, to requests for
 * one of hosts (NULL: for any; borrowed, too). limit_ms: for the request to come, and again for the answer to be taken. NULL: see err
 * (tcp_listen). arg is borrowed until page_server_free. */
struct page_server *page_server_new(const char *address, const struct own_hosts *hosts, const char *const *path, int64_t limit_ms,
                                    page_make *make, void *arg, struct error *err);
/* The port it listens on. */
uint16_t page_server_port(const struct page_server *s);
/* Wait until something comes or is due, at most for wait_ms, and handle it. Returns early when wake_fd (-1: none) is readable. */
void page_server_turn(struct page_server *s, int wake_fd, int64_t wait_ms);
/* NULL is fine. */
void page_server_free(struct page_server *s);
