/* nng_close may hang for ever (transport.c, 5): it runs on a separate thread, which is abandoned when it hangs. */
#include "protocol/wire/transport_parts.h"
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"

#define CLOSE_MS 3000

struct closing {
    struct closing *next;
    nng_socket socket;
    pthread_t thread;
    int done_fd;    // readable when the socket is closed
};

static void *closing_run(void *arg)
{
    uint64_t one = 1;
    const struct closing *c = arg;
    nng_close(c->socket);
    ssize_t n = write(c->done_fd, &one, sizeof one);
    (void)n;
    return NULL;
}

static bool closing_wait(const struct closing *c, int64_t until_ms)
{
    struct pollfd fd = { .fd = c->done_fd, .events = POLLIN };
    int n;
    do
        n = poll(&fd, 1, (int)MAX(until_ms - clock_ms(), (int64_t)0));
    while (n <= 0 && clock_ms() < until_ms);
    return n > 0;
}

static void closing_free(struct closing *c)
{
    pthread_join(c->thread, NULL);
    close(c->done_fd);
    free(c);
}

/* Free what has ended. */
static void closings_sweep(struct transport *t)
{
    for (struct closing **at = &t->closings; *at;) {
        struct closing *c = *at;
        if (!closing_wait(c, 0)) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        closing_free(c);
    }
}

void transport_close_begin(struct transport *t, nng_socket socket)
{
    closings_sweep(t);
    struct closing *c = calloc(1, sizeof *c);
    if (c)
        *c = (struct closing){ .next = t->closings, .socket = socket, .done_fd = eventfd(0, EFD_CLOEXEC) };
    bool began = c && c->done_fd >= 0 && thread_start(&c->thread, closing_run, c) == 0;
    if (began) {
        t->closings = c;
        return;
    }
    if (c && c->done_fd >= 0)
        close(c->done_fd);
    free(c);
    nng_close(socket);
}

bool transport_close_end(struct transport *t)
{
    bool all = true;
    int64_t until = clock_ms() + (t->left_open ? 0 : CLOSE_MS);    // what one hangs in keeps the others, too
    for (struct closing *c; (c = t->closings);) {
        t->closings = c->next;
        if (closing_wait(c, until)) {
            closing_free(c);
            continue;
        }
        log_debug("a connection could not be closed in %d ms; it is left as it is", CLOSE_MS);    // nothing that an operator can mend
        pthread_detach(c->thread);                                                                // which keeps c
        t->left_open = true;
        all = false;
    }
    return all;
}

bool transport_close(struct transport *t, nng_socket socket)
{
    transport_close_begin(t, socket);
    return transport_close_end(t);
}
