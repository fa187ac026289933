/* After a run's end its exporters may still be sending: which are waited for, and for how long. */
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
#include "console/train/train_parts.h"
#include "protocol/base/buf.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/run/spawn.h"

#define WAIT_MAX_S 90    // past the exporters' own limit (WANDB_FINISH_TIMEOUT, 60 s) they are left alone

/* Print the wandb exporter's own status as a line; nothing when everything was sent. */
static void wandb_status_tell(const char *run_dir)
{
    char path[4200];
    struct buf text = BUF_INIT;
    struct error ignored;
    if (path_join(path, sizeof path, run_dir, "export/wandb/status") && path_exists(path) && file_read(&text, path, 4096, &ignored)
        && strncmp(buf_text(&text), "ok", 2) != 0)
        fprintf(stderr, "wandb: %s", buf_text(&text));
    buf_release(&text);
}

/* name: "export KIND". */
static void exporter_wait(const char *run_dir, const char *name, int64_t until)
{
    bool told = false;
    for (pid_t pid; (pid = process_find(run_dir, name)) > 0 && clock_ms() < until; told = true) {
        int fd = (int)syscall(SYS_pidfd_open, pid, 0);
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (told) {
            fprintf(stderr, "waiting for '%s' to end\n", name);
            if (strcmp(name, "export wandb") == 0)
                wandb_status_tell(run_dir);
        }
        poll(&p, fd >= 0 ? 1 : 0, fd >= 0 ? 2000 : 100);
        if (fd >= 0)
            close(fd);
    }
    if (process_find(run_dir, name) > 0)
        fprintf(stderr, "no longer waiting for '%s', which continues by itself\n", name);
}

void exporters_wait(const char *run_dir)
{
    int64_t until = clock_ms() + WAIT_MAX_S * 1000;
    char sock[4200];
    DIR *dir = path_join(sock, sizeof sock, run_dir, "sock") ? opendir(sock) : NULL;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        char kind[64], name[80];
        if (sscanf(d->d_name, "export-%63[a-z].pid", kind) == 1) {
            snprintf(name, sizeof name, "export %s", kind);
            exporter_wait(run_dir, name, until);
        }
    }
    if (dir)
        closedir(dir);
    wandb_status_tell(run_dir);
}
