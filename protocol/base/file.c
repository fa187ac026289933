#include "protocol/base/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>
#include "protocol/base/utf8.h"

/* Open a regular file for reading; -1: see err. Anything else could make open or read wait for ever. */
static int file_open(const char *path, struct stat *st, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        error_errno(err, "cannot open '%s'", path);
        return -1;
    }
    if (fstat(fd, st) != 0)
        error_errno(err, "cannot look at '%s'", path);
    else if (!S_ISREG(st->st_mode))
        error_set(err, ERR_DATA, "'%s' is %s, not a file", path,
                  S_ISDIR(st->st_mode)    ? "a folder"
                  : S_ISFIFO(st->st_mode) ? "a FIFO"
                  : S_ISSOCK(st->st_mode) ? "a socket"
                                          : "a device");
    else
        return fd;
    close(fd);
    return -1;
}

bool file_read(struct buf *b, const char *path, size_t max_bytes, struct error *err)
{
    struct stat st;
    int fd = file_open(path, &st, err);
    if (fd < 0)
        return false;
    bool ok = false;
    size_t total = 0;
    for (;;) {
        char *at = buf_reserve(b, 65536);
        if (!at) {
            error_set(err, ERR_NO_MEMORY, "no memory to read '%s'", path);
            break;
        }
        ssize_t n = read(fd, at, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            error_errno(err, "cannot read '%s'", path);
            break;
        }
        if (n == 0) {
            ok = true;
            break;
        }
        total += (size_t)n;
        if (total > max_bytes) {
            error_set(err, ERR_DATA, "'%s' is larger than the %zu bytes allowed here", path, max_bytes);
            break;
        }
        b->len += (size_t)n;
    }
    if (b->data)
        b->data[b->len] = 0;
    close(fd);
    return ok;
}

bool file_read_text(struct buf *b, const char *path, size_t max_bytes, struct error *err)
{
    size_t had = b->len;
    return file_read(b, path, max_bytes, err) && utf8_check(buf_text(b) + had, b->len - had, path, err);
}

static bool fd_write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

/* The folder part of a path, "." when it has none. */
static void path_parent(char *out, size_t size, const char *path)
{
    const char *slash = strrchr(path, '/');
    int n = slash ? (slash == path ? 1 : (int)(slash - path)) : 1;
    snprintf(out, size, "%.*s", n, slash ? path : ".");
}

static bool stream_refuse(const char *path, struct error *err)
{
    return path_is_stream(path)
           && !error_set(err, ERR_USAGE, "'-' means standard output, and this is not written there; './-' is a file of that name");
}

int file_create(const char *path, int flags, unsigned mode, struct error *err)
{
    struct stat st;
    if (stream_refuse(path, err))
        return -1;
    bool fresh = flags & O_TRUNC;
    flags = (flags & ~O_TRUNC) | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (fresh ? O_EXCL : 0);
    if (fresh && unlink(path) != 0 && errno != ENOENT) {
        error_errno(err, "cannot replace '%s'", path);
        return -1;
    }
    int fd = open(path, flags, mode);
    if (fd < 0 && errno == ELOOP) {
        error_set(err, ERR_IO, "'%s' is a link, and files are not created through links", path);
    } else if (fd < 0) {
        error_errno(err, "cannot create '%s'", path);
    } else if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        error_set(err, ERR_IO, "'%s' is not a regular file", path);
        close(fd);
        fd = -1;
    }
    return fd;
}

FILE *file_create_stream(const char *path, bool append, struct error *err)
{
    int fd = file_create(path, O_WRONLY | (append ? O_APPEND : O_TRUNC), 0644, err);
    FILE *f = fd >= 0 ? fdopen(fd, append ? "a" : "w") : NULL;
    if (fd >= 0 && !f) {
        error_set(err, ERR_NO_MEMORY, "no memory to write '%s'", path);
        close(fd);
    }
    return f;
}

static bool write_as(const char *path, const void *data, size_t len, mode_t mode, struct error *err)
{
    char tmp[PATH_MAX], dir[PATH_MAX];
    if (stream_refuse(path, err))
        return false;
    if (snprintf(tmp, sizeof tmp, "%s.tmp-%d", path, (int)getpid()) >= (int)sizeof tmp)
        return error_set(err, ERR_IO, "the path '%s' is too long", path);
    int fd = file_create(tmp, O_WRONLY | O_TRUNC, mode, err);
    if (fd < 0)
        return false;
    bool ok = fd_write_all(fd, data, len) && fsync(fd) == 0;
    if (!ok)
        error_errno(err, "cannot write '%s'", path);
    if (close(fd) != 0 && ok)
        ok = error_errno(err, "cannot write '%s'", path);
    if (ok && rename(tmp, path) != 0)
        ok = error_errno(err, "cannot rename '%s' to '%s'", tmp, path);
    if (!ok) {
        unlink(tmp);
        return false;
    }
    path_parent(dir, sizeof dir, path);
    return dir_sync(dir, err);
}

bool file_write(const char *path, const void *data, size_t len, struct error *err)
{
    return write_as(path, data, len, 0644, err);
}

bool file_write_secret(const char *path, const void *data, size_t len, struct error *err)
{
    return write_as(path, data, len, 0600, err);
}

bool dir_make(const char *path, unsigned mode, struct error *err)
{
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return error_set(err, ERR_IO, "the path '%s' is too long", path);
    for (char *p = part + 1;; p++) {
        if (*p != '/' && *p != 0)
            continue;
        char was = *p;
        *p = 0;
        if (mkdir(part, mode) != 0) {
            int why = errno;
            if (!path_is_dir(part)) {
                errno = why;
                return error_errno(err, "cannot make the folder '%s'", part);
            }
        }
        *p = was;
        if (was == 0)
            return true;
    }
}

bool dir_sync(const char *dir, struct error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, "cannot open the folder '%s'", dir);
    bool ok = fsync(fd) == 0 || error_errno(err, "cannot sync the folder '%s'", dir);
    close(fd);
    return ok;
}

/* Remove what is called name in the open folder dir. path says the same in messages. */
static bool entry_remove(int dir, const char *name, const char *path, struct error *err);

/* Remove everything in the open folder fd, which becomes this function's. */
static bool dir_empty(int fd, const char *path, struct error *err)
{
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return error_set(err, ERR_NO_MEMORY, "no memory to list '%s'", path);
    }
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(d));) {
        char at[PATH_MAX];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        ok = path_join(at, sizeof at, path, e->d_name) ? entry_remove(fd, e->d_name, at, err)
                                                       : error_set(err, ERR_IO, "a path in '%s' is too long", path);
    }
    closedir(d);
    return ok;
}

static bool entry_remove(int dir, const char *name, const char *path, struct error *err)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return true;
    if (errno != EISDIR && errno != EPERM)    // of a folder: Linux, POSIX
        return error_errno(err, "cannot remove '%s'", path);
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);    // a link put there meanwhile is not followed
    if (fd < 0)
        return errno == ENOENT || error_errno(err, "cannot open the folder '%s'", path);
    if (!dir_empty(fd, path, err))
        return false;
    return unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT || error_errno(err, "cannot remove the folder '%s'", path);
}

bool dir_remove(const char *path, struct error *err)
{
    char own[PATH_MAX];
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')    // a slash at the end would follow a link
        len--;
    if (len >= sizeof own)
        return error_set(err, ERR_IO, "the path '%s' is too long", path);
    snprintf(own, sizeof own, "%.*s", (int)len, path);
    return entry_remove(AT_FDCWD, own, own, err);
}

bool path_is_stream(const char *path)
{
    return strcmp(path, "-") == 0;
}

char path_plain(char c, bool first)
{
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'), digit = c >= '0' && c <= '9';
    return letter || digit || c == '-' || c == '+' || c == '_' || (c == '.' && !first) ? c : '_';
}

bool path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool path_is_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool path_join(char *out, size_t size, const char *dir, const char *name)
{
    int n = name[0] == '/' || dir[0] == 0 ? snprintf(out, size, "%s", name) : snprintf(out, size, "%s/%s", dir, name);
    return n >= 0 && (size_t)n < size;
}

bool path_in_memory(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

/* Lock the open file against its being used for other bytes. False: somebody does, or path is another file's by now. */
static bool file_share(int fd, const struct stat *st, const char *path)
{
    struct stat now;
    if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)    // a file system without locks has no such files
        return false;
    return stat(path, &now) == 0 && now.st_dev == st->st_dev && now.st_ino == st->st_ino;
}

static bool map_open(struct file_map *map, const char *path, bool shared, struct error *err)
{
    *map = (struct file_map){ 0 };
    struct stat st;
    int fd = file_open(path, &st, err);
    if (fd < 0)
        return false;
    bool ok = !shared || file_share(fd, &st, path) || error_set(err, ERR_NOT_FOUND, "'%s' has been given up", path);
    if (ok && st.st_size > 0) {
        void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED)
            ok = error_errno(err, "cannot map '%s'", path);
        else
            *map = (struct file_map){ at, (size_t)st.st_size };
    }
    close(fd);    // the mapping keeps the lock
    return ok;
}

bool file_map_open(struct file_map *map, const char *path, struct error *err)
{
    return map_open(map, path, false, err);
}

bool file_map_shared(struct file_map *map, const char *path, struct error *err)
{
    return map_open(map, path, true, err);
}

void file_map_close(struct file_map *map)
{
    if (map->data)
        munmap((void *)map->data, map->size_bytes);
    *map = (struct file_map){ 0 };
}

bool cache_path(char *out, size_t size, const char *below)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && cache[0] == '/';
    if (!own && (!home || home[0] != '/'))
        return false;
    int n = own ? snprintf(out, size, "%s/%s", cache, below) : snprintf(out, size, "%s/.cache/%s", home, below);
    return n >= 0 && (size_t)n < size;
}

void fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
