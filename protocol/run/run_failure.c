#include "protocol/run/run_failure.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/base/macros.h"

static bool paths_make(const char *run_dir, char path[PATH_MAX], char spare[PATH_MAX])
{
    return path_join(path, PATH_MAX, run_dir, "sock/failure") && path_join(spare, PATH_MAX, run_dir, "sock/failure.spare");
}

bool run_failure_prepare(const char *run_dir, struct error *err)
{
    char path[PATH_MAX], spare[PATH_MAX], room[RUN_FAILURE_MAX];
    if (!paths_make(run_dir, path, spare))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    unlink(path);
    memset(room, ' ', sizeof room);    // zeros could be stored as a hole
    return file_write(spare, room, sizeof room, err);
}

bool run_failure_write(const char *run_dir, const char *text, struct error *err)
{
    char path[PATH_MAX], spare[PATH_MAX];
    struct error why;
    size_t len = MIN(strlen(text), (size_t)RUN_FAILURE_MAX);
    if (!paths_make(run_dir, path, spare))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    if (path_exists(path) || file_write(path, text, len, &why))
        return true;
    int fd = open(spare, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && pwrite(fd, text, len, 0) == (ssize_t)len && ftruncate(fd, (off_t)len) == 0;
    if (fd >= 0)
        close(fd);
    ok = ok && rename(spare, path) == 0;
    return ok || error_set(err, why.code, "%s", why.text);
}

bool run_failure_read(const char *run_dir, char *out, size_t size)
{
    char path[PATH_MAX];
    struct error err;
    struct buf text = BUF_INIT;
    bool ok = path_join(path, sizeof path, run_dir, "sock/failure") && path_exists(path) && file_read(&text, path, RUN_FAILURE_MAX, &err);
    if (ok)
        snprintf(out, size, "%s", buf_text(&text));
    buf_release(&text);
    return ok;
}
