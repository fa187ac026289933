#include "workers/engine/reward/sandbox/cgroup.h"
#include <inttypes.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOUNT "/sys/fs/cgroup"
#define NAME "rollcall-sandboxes-"    // then six letters
#define N_GROUP_MAX 16                // one runs, two wait for a program, the others are not yet empty
#define MOVE_MS 60000                 // how long a process waits to be moved in a trial
#define FREE_MS 2000                  // for killed processes to leave their groups at the end

struct group {
    bool taken;
    int64_t n_killed;    // the count in memory.events when it was taken
};
struct cgroup_set {
    char dir[PATH_MAX];    // holds the groups 0, 1, ...
    int lock;              // dir, held with flock: a process that gets the lock may remove what a killed process has left
    int64_t mem_bytes;
    struct group group[N_GROUP_MAX];
    int n;    // groups made
};

/* dir/file, or dir/group/file, into path. False: too long. */
static bool path_of(char path[PATH_MAX], const char *dir, int group, const char *file)
{
    int n = group < 0 ? snprintf(path, PATH_MAX, "%s/%s", dir, file) : snprintf(path, PATH_MAX, "%s/%d/%s", dir, group, file);
    return n < PATH_MAX;
}

/* Read a file of at most size - 1 bytes; "" when it cannot be read. */
static void file_get(const char *dir, int group, const char *file, char *text, size_t size)
{
    char path[PATH_MAX];
    int fd = path_of(path, dir, group, file) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : 0;
    text[n > 0 ? n : 0] = 0;
    if (fd >= 0)
        close(fd);
}

/* Write text to a file that the kernel has made. False: see errno. */
static bool file_put(const char *dir, int group, const char *file, const char *text)
{
    char path[PATH_MAX];
    errno = ENAMETOOLONG;
    int fd = path_of(path, dir, group, file) ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    ssize_t n = write(fd, text, strlen(text));
    int code = errno;
    close(fd);
    errno = code;
    return n == (ssize_t)strlen(text);
}

/* Is word one of those in a list between spaces? */
static bool word_in(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += len)
        if ((at == list || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\n' || at[len] == 0))
            return true;
    return false;
}

/* The number after a key in a file of lines "key number"; 0: absent. */
static int64_t count_get(const char *dir, int group, const char *file, const char *key)
{
    char text[1024];
    size_t len = strlen(key);
    file_get(dir, group, file, text, sizeof text);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, key, len) == 0 && line[len] == ' ')
            return strtoll(line + len, NULL, 10);
    return 0;
}

/* Make group number set->n with its limits. */
static bool group_make(struct cgroup_set *set, struct error *err)
{
    char path[PATH_MAX], number[32];
    int group = set->n;
    snprintf(number, sizeof number, "%" PRId64, set->mem_bytes);
    if (!path_of(path, set->dir, group, "") || (mkdir(path, 0755) != 0 && errno != EEXIST)
        || !file_put(set->dir, group, "memory.max", number)
        || !file_put(set->dir, group, "memory.oom.group", "1"))    // all processes are killed together: Linux 4.19
        return error_errno(err, "cannot make a cgroup with a memory limit in '%s'", set->dir);
    file_put(set->dir, group, "memory.swap.max", "0");    // absent from a kernel that does not count swap
    set->n++;
    return true;
}

/* Remove a set's folder; false while a process is in one of its groups. */
static bool folder_remove(const char *dir, int n_group)
{
    char path[PATH_MAX];
    for (int i = 0; i < n_group; i++)
        if (path_of(path, dir, i, ""))
            rmdir(path);
    return rmdir(dir) == 0 || errno == ENOENT;
}

/* Remove the sets in dir whose processes were killed before they could do it. */
static void leftovers_remove(const char *dir)
{
    char path[PATH_MAX];
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, NAME, sizeof NAME - 1) != 0 || !path_of(path, dir, -1, e->d_name))
            continue;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            folder_remove(path, N_GROUP_MAX);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

/* Can groups with a memory limit be made in dir? With enable the memory controller may be enabled for its children. */
static bool place_try(struct cgroup_set *set, const char *dir, bool enable, struct error *err)
{
    char text[1024];
    file_get(dir, -1, "cgroup.controllers", text, sizeof text);
    if (!word_in(text, "memory"))
        return error_set(err, ERR_UNSUPPORTED, "'%s' has no memory controller", dir);
    file_get(dir, -1, "cgroup.subtree_control", text, sizeof text);
    if (!word_in(text, "memory") && (!enable || !file_put(dir, -1, "cgroup.subtree_control", "+memory")))
        return error_set(err, ERR_UNSUPPORTED, "'%s' gives its memory controller to no group below it", dir);
    leftovers_remove(dir);
    if (!path_of(set->dir, dir, -1, NAME "XXXXXX") || !mkdtemp(set->dir)) {
        set->dir[0] = 0;
        return error_errno(err, "cannot make a cgroup in '%s'", dir);
    }
    set->lock = open(set->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (set->lock >= 0 && flock(set->lock, LOCK_EX | LOCK_NB) == 0 && file_put(set->dir, -1, "cgroup.subtree_control", "+memory"))
        return group_make(set, err);
    return error_errno(err, "cannot have groups with a memory limit in '%s'", set->dir);
}

/* An empty group's number; -1: none, and no more can be made. */
static int group_find(struct cgroup_set *set, struct error *err)
{
    for (int i = 0; i < set->n; i++)
        if (!set->group[i].taken && count_get(set->dir, i, "cgroup.events", "populated") == 0)
            return i;
    if (set->n == N_GROUP_MAX) {
        error_set(err, ERR_FULL, "%d sandboxes have been killed and have not ended", N_GROUP_MAX);
        return -1;
    }
    return group_make(set, err) ? set->n - 1 : -1;
}

int cgroup_take(struct cgroup_set *set, pid_t pid, struct error *err)
{
    char number[32];
    int group = group_find(set, err);
    if (group < 0)
        return -1;
    snprintf(number, sizeof number, "%d", (int)pid);
    if (!file_put(set->dir, group, "cgroup.procs", number)) {
        error_errno(err, "cannot put a sandbox into the cgroup '%s/%d'", set->dir, group);
        return -1;
    }
    set->group[group] = (struct group){ true, count_get(set->dir, group, "memory.events", "oom_kill") };
    return group;
}

bool cgroup_is_over(const struct cgroup_set *set, int group)
{
    return count_get(set->dir, group, "memory.events", "oom_kill") > set->group[group].n_killed;
}

void cgroup_give(struct cgroup_set *set, int group)
{
    set->group[group].taken = false;
}

/* Can processes be moved into the groups? That depends on all groups between the two. */
static bool move_try(struct cgroup_set *set, struct error *err)
{
    pid_t pid = fork();
    if (pid < 0)
        return error_errno(err, "cannot start a process");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        poll(NULL, 0, MOVE_MS);
        _exit(0);
    }
    int group = cgroup_take(set, pid, err);
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    if (group >= 0)
        cgroup_give(set, group);
    return group >= 0;
}

struct cgroup_set *cgroup_set_new(const char *mount, const char *own, int64_t mem_bytes, struct error *err)
{
    char dir[PATH_MAX];
    struct error why = { 0 };
    if (strstr(own, "..") || snprintf(dir, sizeof dir, "%s%s", mount, strcmp(own, "/") == 0 ? "" : own) >= PATH_MAX) {
        error_set(err, ERR_UNSUPPORTED, "this process's cgroup '%s' is not below '%s'", own, mount);
        return NULL;
    }
    struct cgroup_set *set = calloc(1, sizeof *set);
    if (!set) {
        error_set(err, ERR_NO_MEMORY, "no memory for a set of cgroups");
        return NULL;
    }
    set->mem_bytes = mem_bytes;
    for (int up = 0;; up++) {
        /* A group that holds processes cannot enable controllers for its children, so with systemd's DelegateSubgroup=
         * the group above ours must. Further up the controller is used only where it is enabled already. */
        struct error not_here = { 0 };
        set->lock = -1;
        set->n = 0;
        if (access(dir, W_OK) != 0)
            error_errno(&not_here, "cannot make a cgroup in '%s'", dir);
        else if (place_try(set, dir, up <= 1, &not_here) && move_try(set, &not_here))
            return set;
        else if (set->dir[0])
            folder_remove(set->dir, N_GROUP_MAX);
        if (set->lock >= 0)
            close(set->lock);
        set->dir[0] = 0;
        if (why.code == ERR_NONE)
            why = not_here;    // the nearest to us, so the one to fix
        char *slash = strrchr(dir, '/');
        if (access(dir, W_OK) != 0 || strlen(dir) <= strlen(mount) || !slash)
            break;    // processes can only be moved within groups we may write
        *slash = 0;
    }
    free(set);
    error_set(err, ERR_UNSUPPORTED, "%s", why.text);
    return NULL;
}

struct cgroup_set *cgroup_set_here(int64_t mem_bytes, struct error *err)
{
    char text[PATH_MAX + 256], *own = NULL;
    file_get("/proc/self", -1, "cgroup", text, sizeof text);
    for (char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, "0::", 3) == 0)
            own = line + 3;
    if (!own) {
        error_set(err, ERR_UNSUPPORTED, "this process is in no cgroup of version 2");
        return NULL;
    }
    own[strcspn(own, "\n")] = 0;
    return cgroup_set_new(MOUNT, own, mem_bytes, err);
}

void cgroup_set_free(struct cgroup_set *set)
{
    if (!set)
        return;
    for (int i = 0; i < FREE_MS / 10 && !folder_remove(set->dir, set->n); i++)    // the kernel has no other way to report it
        usleep(10000);
    close(set->lock);
    free(set);
}
