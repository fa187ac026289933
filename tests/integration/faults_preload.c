/* faults_preload.c - a disk that is full or read-only, too little memory, and a wall clock that jumps, for a run's processes
 *
 * Preloaded by faults_test.py. While the folder RC_FAULTS holds the file "full" or "readonly", calls that need room, or change
 * anything, under RC_FAULTS_UNDER fail with ENOSPC or EROFS. While it holds "nomemory" no file of a checkpoint under it can be mapped,
 * for lack of memory. While it holds "jump" the wall clock is wrong by a day, ahead and
 * behind by turns of a tenth of a second; the monotonic clock is right, as on a real machine.
 *
 * RC_FAULTS_CUT=N kills 'rollcall train' or 'rollcall agent --join' itself, and no process that it starts, before the Nth call that makes,
 * names or removes a file there.
 *
 * The file "synced" in RC_FAULTS keeps how long groups.zst was when it was synced last: what a power cut leaves of it at least. */
#include <inttypes.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static bool wanted(const char *what)
{
    char path[PATH_MAX];
    const char *dir = getenv("RC_FAULTS");
    if (!dir || snprintf(path, sizeof path, "%s/%s", dir, what) >= (int)sizeof path)
        return false;
    int saved = errno;
    bool there = access(path, F_OK) == 0;
    errno = saved;
    return there;
}

static bool under(const char *path)
{
    const char *dir = getenv("RC_FAULTS_UNDER");
    return dir && path && strncmp(path, dir, strlen(dir)) == 0;
}

static bool fd_under(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return false;
    path[n] = 0;
    return under(path);
}

/* Logs are left alone: what is said there is what the test reads. */
static bool is_log(const char *path)
{
    return path && strstr(path, "/logs/");
}

static long calls_left = -1;    // until RC_FAULTS_CUT; below 0: it is not for this process

static void __attribute__((constructor)) cut_prepare(int argc, char **argv)
{
    const char *n = getenv("RC_FAULTS_CUT");
    if (n && argc > 2 && (strcmp(argv[1], "train") == 0 || strcmp(argv[2], "--join") == 0))
        calls_left = atol(n);
}

static bool path_fails(const char *path, bool room)
{
    if (!under(path) || is_log(path))
        return false;
    if (calls_left > 0 && --calls_left == 0)
        raise(SIGKILL);
    if (wanted("readonly")) {
        errno = EROFS;
        return true;
    }
    if (room && wanted("full")) {
        errno = ENOSPC;
        return true;
    }
    return false;
}

/* Writing up to byte end of what is open; a full disk still takes what lies inside a file. */
static bool fd_fails(int fd, off_t end)
{
    struct stat st;
    bool full = wanted("full"), readonly = wanted("readonly");
    if (fd <= STDERR_FILENO || !(full || readonly) || !fd_under(fd) || (full && fstat(fd, &st) == 0 && end <= st.st_size))
        return false;
    errno = readonly ? EROFS : ENOSPC;
    return true;
}

static off_t end_of(int fd, size_t n)    // of a write at the file's position
{
    off_t at = fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
    return at + (off_t)n;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t n)
{
    return fd_fails(fd, end_of(fd, n)) ? -1 : NEXT(write)(fd, data, n);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    return fd_fails(fd, at + (off_t)n) ? -1 : NEXT(pwrite)(fd, data, n, at);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{
    return fd_fails(fd, at + (off_t)n) ? -1 : NEXT(pwrite64)(fd, data, n, at);
}
int ftruncate64(int fd, off64_t n)
{
    return fd_fails(fd, n) ? -1 : NEXT(ftruncate64)(fd, n);
}
int fallocate64(int fd, int mode, off64_t at, off64_t n)
{
    return fd_fails(fd, at + n) ? -1 : NEXT(fallocate64)(fd, mode, at, n);
}
size_t fwrite(const void *data, size_t size, size_t n, FILE *f)
{
    return fd_fails(fileno(f), end_of(fileno(f), size * n)) ? 0 : NEXT(fwrite)(data, size, n, f);
}
static void synced_note(int fd, off_t size)
{
    char path[PATH_MAX], link[64], text[32];
    const char *dir = getenv("RC_FAULTS");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (!dir || n < 10 || memcmp(path + n - 10, "groups.zst", 10) != 0 || snprintf(path, sizeof path, "%s/synced", dir) >= (int)sizeof path)
        return;
    int out = NEXT(open)(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    int len = snprintf(text, sizeof text, "%020" PRId64, size);    // in one write over the last one: a kill leaves one or the other
    if (out >= 0 && NEXT(write)(out, text, (size_t)len) == len)
        close(out);
}
int fdatasync(int fd)
{
    struct stat st;
    bool known = fstat(fd, &st) == 0;    // what is written from here on need not be among it
    int code = NEXT(fdatasync)(fd);
    if (code == 0 && known)
        synced_note(fd, st.st_size);
    return code;
}

/* Files of checkpoints: what is asked for then is the most that a load asks for. */
static bool memory_fails(int fd)
{
    char link[64], path[PATH_MAX];
    if (fd < 0 || !wanted("nomemory"))
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    if (!under(path) || !strstr(path, "/checkpoints/"))
        return false;
    errno = ENOMEM;
    return true;
}
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return memory_fails(fd) ? MAP_FAILED : NEXT(mmap)(at, n, prot, flags, fd, offset);
}
void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t offset)
{
    return memory_fails(fd) ? MAP_FAILED : NEXT(mmap64)(at, n, prot, flags, fd, offset);
}
int mkdir(const char *path, mode_t mode)
{
    return path_fails(path, true) ? -1 : NEXT(mkdir)(path, mode);
}
int rename(const char *from, const char *to)
{
    return path_fails(to, false) ? -1 : NEXT(rename)(from, to);
}
int unlink(const char *path)
{
    return path_fails(path, false) ? -1 : NEXT(unlink)(path);
}

static bool open_fails(const char *path, int flags)
{
    bool makes = (flags & O_CREAT) && access(path, F_OK) != 0, writes = (flags & O_ACCMODE) != O_RDONLY;
    return makes ? path_fails(path, true) : writes && wanted("readonly") && path_fails(path, true);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_fails(path, flags) ? -1 : NEXT(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_fails(path, flags) ? -1 : NEXT(open64)(path, flags, mode);
}

/* ---- the clock ---- */

static time_t wrong_by(void)
{
    struct timespec t;
    if (!wanted("jump"))
        return 0;
    NEXT(clock_gettime)(CLOCK_MONOTONIC, &t);
    return t.tv_nsec / 100000000 % 2 ? 86400 : -86400;
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int code = NEXT(clock_gettime)(id, t);
    if (code == 0 && id == CLOCK_REALTIME)
        t->tv_sec += wrong_by();
    return code;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    int code = NEXT(gettimeofday)(t, zone);
    if (code == 0)
        t->tv_sec += wrong_by();
    return code;
}
time_t time(time_t *out)
{
    time_t now = NEXT(time)(NULL) + wrong_by();
    if (out)
        *out = now;
    return now;
}
