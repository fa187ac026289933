#include "protocol/run/journal_wal.h"
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/run/spawn.h"

/* "process 7534 (rollcall ctl events)" */
static void process_say(int pid, char *out, size_t size)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    snprintf(out, size, "process %d", pid);
    FILE *c = fopen(path, "re");
    size_t n = c ? fread(line, 1, sizeof line - 1, c) : 0;
    if (c)
        fclose(c);
    while (n > 0 && !line[n - 1])
        n--;
    line[n] = 0;
    for (size_t i = 0; i < n; i++)
        line[i] = line[i] ? line[i] : ' ';
    if (n > 0)
        snprintf(out, size, "process %d (%.180s)", pid, line);
}

/* Which process holds a lock of a reader on the log, as the kernel lists them: "1: POSIX  ADVISORY  READ 7534 fe:00:10953417 123 123". The
 * process found last time is preferred when it is still there. writer: skipped, since it does not block itself. */
static void reader_find(const struct stat *shm, int writer, int last_pid, struct journal_wal *out)
{
    enum {
        READ_LOCK_FIRST = 120 + 3,
        READ_LOCK_LAST = READ_LOCK_FIRST + 4,
    };    // SQLite's wal.c, WAL_READ_LOCK
    char line[256];
    FILE *f = fopen("/proc/locks", "re");
    while (f && fgets(line, sizeof line, f)) {
        unsigned dev_major, dev_minor;
        uint64_t inode, first, last;
        int pid;
        if (sscanf(line, "%*d: POSIX %*s READ %d %x:%x:%" PRIu64 " %" PRIu64 " %" PRIu64, &pid, &dev_major, &dev_minor, &inode, &first,
                   &last)
                != 6
            || inode != shm->st_ino || dev_major != major(shm->st_dev) || dev_minor != minor(shm->st_dev) || first > READ_LOCK_LAST
            || last < READ_LOCK_FIRST || pid <= 0 || pid == getpid() || pid == writer)
            continue;
        if (!out->reader_pid || pid == last_pid)
            out->reader_pid = pid;
    }
    if (f)
        fclose(f);
    if (out->reader_pid)
        process_say(out->reader_pid, out->reader, sizeof out->reader);
}

void journal_wal_look(const char *run_dir, int last_pid, struct journal_wal *out)
{
    char path[PATH_MAX], db[PATH_MAX];
    struct stat st;
    *out = (struct journal_wal){ 0 };
    if (!path_join(path, sizeof path, run_dir, "journal.db") || !realpath(path, db))    // it may be on another disk
        return;
    if (stat(db, &st) == 0)
        out->db_bytes = st.st_size;
    if (snprintf(path, sizeof path, "%s-wal", db) < (int)sizeof path && stat(path, &st) == 0)
        out->wal_bytes = st.st_size;
    if (snprintf(path, sizeof path, "%s-shm", db) < (int)sizeof path && stat(path, &st) == 0)
        reader_find(&st, process_find(run_dir, "controller"), last_pid, out);
}
