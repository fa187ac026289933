/* nng_close may hang for ever (transport.c, 5): it runs on a separate thread, which is abandoned when it hangs. */
#include "protocol/wire/transport_parts.h"
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"

#define CLOSE_MS 3000

struct closing {
    nng_socket socket;
    int done_fd;
};

static void *closing_run(void *arg)
{
    uint64_t one = 1;
    struct closing c = *(struct closing *)arg;
    nng_close(c.socket);
    ssize_t n = write(c.done_fd, &one, sizeof one);
    (void)n;
    return NULL;
}

bool transport_close(struct transport *t, nng_socket socket)
{
    pthread_t thread;
    sigset_t all, before;
    struct closing *c = malloc(sizeof *c);
    struct pollfd fd = { .fd = eventfd(0, EFD_CLOEXEC), .events = POLLIN };
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);    // signals are for the loop's thread
    if (c)
        *c = (struct closing){ socket, fd.fd };
    bool began = c && fd.fd >= 0 && pthread_create(&thread, NULL, closing_run, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    int64_t end = clock_ms() + CLOSE_MS;
    bool closed = !began;
    if (!began)
        nng_close(socket);
    for (int64_t left = CLOSE_MS; !closed && left > 0; left = end - clock_ms())
        closed = poll(&fd, 1, (int)left) > 0;
    if (began && closed)
        pthread_join(thread, NULL);
    else if (began)
        pthread_detach(thread);
    if (closed) {
        if (fd.fd >= 0)
            close(fd.fd);
        free(c);
        return true;
    }
    log_debug("a connection could not be closed in %d ms; it is left as it is", CLOSE_MS);    // nothing that an operator can mend
    t->left_open = true;
    return false;
}
