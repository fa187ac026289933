/* rollout_file_fuzz.c - any bytes as a rollout file: reading and opening come back, and what opening leaves can be read and
 * appended to */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "protocol/record/rollout_file.h"

static int64_t records_read(const char *path)
{
    struct error err = { 0 };
    struct buf record = { .max = ROLLOUT_RECORD_MAX + 1 };
    struct rollout_reader *r = rollout_reader_new(path, &err);
    bool more = r != NULL;
    int64_t n = 0;
    while (more) {
        bool ok = rollout_reader_next(r, &record, &more, &err);
        n += ok && more;
        more = more || (!ok && err.code == ERR_DATA);    // damage: it goes on after it
    }
    rollout_reader_free(r);
    buf_release(&record);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[32];
    struct error err = { 0 };
    int fd = memfd_create("rollouts", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    records_read(path);
    struct rollout_opened opened;
    struct rollout_file *f = rollout_file_open(path, 0, &opened, &err);
    int64_t offset, size_bytes;
    if (f && (!rollout_file_append(f, "x", 1, &offset, &size_bytes, &err) || records_read(path) != opened.n_record + 1))
        abort();
    rollout_file_close(f);
    close(fd);
    return 0;
}
