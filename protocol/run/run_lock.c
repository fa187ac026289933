#include "protocol/run/run_lock.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/wire/run_head.h"

int run_lock_take(const char *run_dir, struct error *err)
{
    char path[PATH_MAX];
    if (!path_join(path, sizeof path, run_dir, "lock")) {
        error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
        return -1;
    }
    int fd = file_create(path, O_RDWR, 0600, err);
    if (fd < 0)
        return -1;
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return fd;
    if (errno == EAGAIN || errno == EACCES)
        error_set(err, ERR_EXISTS, "the run '%s' is already running in another process", run_dir);
    else
        error_errno(err, "cannot lock '%s'", path);
    close(fd);
    return -1;
}

bool run_is_live(const char *run_dir)
{
    char path[PATH_MAX];
    int fd = path_join(path, sizeof path, run_dir, "lock") ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0 && errno != EACCES)
        return run_head_is_elsewhere(run_dir);
    if (fd < 0)    // another user's run: those who may look at it see the socket
        return path_join(path, sizeof path, run_dir, "view/view") && path_exists(path);
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    bool live = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    close(fd);
    return live || run_head_is_elsewhere(run_dir);    // not every shared file system shares its locks
}
