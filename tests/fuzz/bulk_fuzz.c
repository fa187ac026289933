/* A hostile caller on a connection for large data: a right hello, then anything. It has no key, so nothing but failure may come of it. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/wire/bulk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    uint8_t type;
    const void *record;
    size_t len;
    struct error err = { 0 };
    const uint8_t hello[BULK_HELLO_BYTES] = BULK_MAGIC;
    const struct bulk_ticket t = { .name = "name", .key = "key" };
    if (size > 100000)    // what a socket takes without a reader
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        abort();
    struct bulk *b = bulk_accept(pair[0], hello, &t, 1000, &err);
    if (!b || send(pair[1], data, size, MSG_NOSIGNAL) != (ssize_t)size)
        abort();
    shutdown(pair[1], SHUT_WR);
    for (int i = 0; i < 2; i++)    // a second one is not tried
        if (bulk_receive(b, &type, &record, &len, &err) || err.code == ERR_NONE)
            abort();
    bulk_free(b);
    close(pair[1]);
    return 0;
}
