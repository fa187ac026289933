#include "workers/node/bulk/fill.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/macros.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22    // Linux 5.14
#endif

/* Take the file that nobody needs any more; -1: it is not to be had. */
static int spare_take(const char *spare, const char *path)
{
    struct stat st;
    if (!spare || rename(spare, path) != 0)
        return -1;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    bool ok = fd >= 0 && path_in_memory(path) && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1
              && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (ok)
        return fd;
    if (fd >= 0)
        close(fd);
    unlink(path);    // a reader has it still
    return -1;
}

bool fill_open(struct fill *f, const char *path, const char *spare, size_t size, struct error *err)
{
    *f = (struct fill){ .size = size };
    snprintf(f->path, sizeof f->path, "%s", path);
    f->fd = spare_take(spare, path);
    if (f->fd < 0)
        f->fd = file_create(path, O_RDWR | O_TRUNC, 0600, err);
    if (f->fd < 0 || (ftruncate(f->fd, (off_t)size) != 0 && !error_errno(err, "cannot write '%s'", path))) {
        fill_close(f);
        return false;
    }
    void *at = path_in_memory(path) ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0) : MAP_FAILED;
    f->map = at != MAP_FAILED ? at : NULL;
    return true;
}

uint8_t *fill_place(struct fill *f, size_t at, size_t n)
{
    /* For reading: neighbours are then mapped with a page that is there, and on tmpfs for writing, too. A hole gets its page. */
    return f->map && madvise(f->map + at, n, MADV_POPULATE_READ) == 0 ? f->map + at : NULL;
}

bool fill_write(struct fill *f, const uint8_t *data, size_t at, size_t n, struct error *err)
{
    if (f->map && data == f->map + at)
        return true;
    uint8_t *place = fill_place(f, at, n);
    if (place) {
        memcpy(place, data, n);
        return true;
    }
    for (size_t done = 0; done < n;) {
        ssize_t got = pwrite(f->fd, data + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_errno(err, "cannot write '%s'", f->path);
        done += (size_t)got;
    }
    return true;
}

void fill_leave(struct fill *f, size_t at, size_t n)
{
    if (f->map)
        madvise(f->map + at, MIN(n, f->size - at), MADV_DONTNEED);    // of a shared mapping: the file keeps its bytes
}

bool fill_finish(struct fill *f, const char *path, struct error *err)
{
    flock(f->fd, LOCK_UN);    // the mapping would hold it
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) == 0 && rename(f->path, path) == 0)
        return true;
    error_errno(err, "cannot write '%s'", path);
    unlink(f->path);
    return false;
}

void fill_close(struct fill *f)
{
    if (f->map)
        munmap(f->map, f->size);
    if (f->fd >= 0) {
        close(f->fd);
        unlink(f->path);
    }
    f->map = NULL;
    f->fd = -1;
}
