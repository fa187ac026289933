/* tags: asan valgrind
 * A sandbox's cgroups, on a folder that behaves like cgroup v2: a new folder has the kernel's files, and is removed with them.
 * What only a kernel does, killing processes, is tested by cgroup_test.py on machines that delegate a cgroup. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>
#include "protocol/base/file.h"
#include "workers/engine/reward/sandbox/cgroup.h"

#define MEM_BYTES 1048576
#define GROUPS_MAX 16

static char mount[64];    // the folder in cgroup2's place
static const char *const kernels[] = { "cgroup.controllers", "cgroup.events", "cgroup.procs",     "cgroup.subtree_control",
                                       "memory.events",      "memory.max",    "memory.oom.group", "memory.swap.max" };

static void put(const char *dir, const char *file, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static const char *get(const char *dir, const char *file)
{
    static char text[256];
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    assert_true(n >= 0);
    text[n] = 0;
    close(fd);
    return text;
}

/* ---- replacements of libc's functions, for the whole program ---- */

int mkdir(const char *path, mode_t mode)
{
    if (syscall(SYS_mkdirat, AT_FDCWD, path, mode) != 0)
        return -1;
    if (mount[0] && strncmp(path, mount, strlen(mount)) == 0)
        for (size_t i = 0; i < ARRAY_SIZE(kernels); i++)
            put(path, kernels[i], strcmp(kernels[i], "cgroup.events") == 0 ? "populated 0\nfrozen 0\n" : "");
    return 0;
}

char *mkdtemp(char *template)
{
    static int n_made;
    char number[16];
    snprintf(number, sizeof number, "%06d", n_made++);
    memcpy(template + strlen(template) - 6, number, 6);
    return mkdir(template, 0700) == 0 ? template : NULL;
}

/* Fails like the kernel's while there is a group below, or a process inside. */
int rmdir(const char *path)
{
    char file[PATH_MAX];
    struct stat st;
    if (mount[0] && strncmp(path, mount, strlen(mount)) == 0 && stat(path, &st) == 0) {
        if (st.st_nlink > 2 || strncmp(get(path, "cgroup.events"), "populated 0", 11) != 0) {
            errno = EBUSY;
            return -1;
        }
        for (size_t i = 0; i < ARRAY_SIZE(kernels); i++)
            if (snprintf(file, sizeof file, "%s/%s", path, kernels[i]) < (int)sizeof file)
                unlink(file);
    }
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

/* ---- a hierarchy: MOUNT/slice/unit/own ---- */

static int setup(void **state)
{
    (void)state;
    char path[PATH_MAX], template[] = "/tmp/cgroup_test_XXXXXX";
    mount[0] = 0;
    snprintf(template + sizeof template - 7, 7, "%06d", (int)getpid() % 1000000);
    assert_int_equal(syscall(SYS_mkdirat, AT_FDCWD, template, 0700), 0);
    snprintf(mount, sizeof mount, "%s", template);
    static const char *const groups[] = { "slice", "slice/unit", "slice/unit/own" };
    for (size_t i = 0; i < ARRAY_SIZE(groups); i++) {
        snprintf(path, sizeof path, "%s/%s", mount, groups[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct error err;
    char dir[64];
    snprintf(dir, sizeof dir, "%s", mount);
    mount[0] = 0;
    assert_true(dir_remove(dir, &err));
    return 0;
}

static void group_has(const char *group, const char *controllers, const char *subtree)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s/%s", mount, group);
    put(dir, "cgroup.controllers", controllers);
    put(dir, "cgroup.subtree_control", subtree);
}

/* The folder of the one set in a group; "" where there is none. */
static const char *set_in(const char *group)
{
    static char found[PATH_MAX];
    char dir[PATH_MAX];
    int n = 0;
    found[0] = 0;
    snprintf(dir, sizeof dir, "%s/%s", mount, group);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, "rollcall-sandboxes-", 19) == 0) {
            snprintf(found, sizeof found, "%.2000s/%.255s", dir, e->d_name);
            n++;
        }
    closedir(d);
    assert_true(n <= 1);
    return found;
}

static struct cgroup_set *set_make(void)
{
    struct error err = { 0 };
    struct cgroup_set *set = cgroup_set_new(mount, "/slice/unit/own", MEM_BYTES, &err);
    if (!set)
        fail_msg("%s", err.text);
    return set;
}

/* Group i of the set in own. */
static const char *group_of(int i)
{
    static char dir[PATH_MAX + 16];
    snprintf(dir, sizeof dir, "%s/%d", set_in("slice/unit/own"), i);
    return dir;
}

static void a_group_has_its_limits_before_a_process_comes_in(void **state)
{
    (void)state;
    struct error err = { 0 };
    group_has("slice/unit/own", "cpu memory pids\n", "memory\n");
    struct cgroup_set *set = set_make();
    int group = cgroup_take(set, 7654321, &err);
    assert_int_equal(group, 0);
    assert_string_equal(get(group_of(0), "memory.max"), "1048576");
    assert_string_equal(get(group_of(0), "memory.oom.group"), "1");
    assert_string_equal(get(group_of(0), "memory.swap.max"), "0");
    assert_string_equal(get(group_of(0), "cgroup.procs"), "7654321");
    assert_string_equal(get(set_in("slice/unit/own"), "cgroup.subtree_control"), "+memory");
    cgroup_set_free(set);
    assert_string_equal(set_in("slice/unit/own"), "");
}

static void a_group_is_used_again_when_the_last_process_has_left_it(void **state)
{
    (void)state;
    struct error err = { 0 };
    group_has("slice/unit/own", "memory", "memory");
    struct cgroup_set *set = set_make();
    assert_int_equal(cgroup_take(set, 1, &err), 0);
    assert_int_equal(cgroup_take(set, 2, &err), 1);
    put(group_of(0), "cgroup.events", "populated 1\nfrozen 0\n");
    cgroup_give(set, 0);    // killed, but not yet gone
    assert_int_equal(cgroup_take(set, 3, &err), 2);
    put(group_of(0), "cgroup.events", "populated 0\nfrozen 0\n");
    assert_int_equal(cgroup_take(set, 4, &err), 0);
    cgroup_set_free(set);
}

static void no_more_groups_are_made_than_the_limit(void **state)
{
    (void)state;
    struct error err = { 0 };
    group_has("slice/unit/own", "memory", "memory");
    struct cgroup_set *set = set_make();
    for (int i = 0; i < GROUPS_MAX; i++)
        assert_int_equal(cgroup_take(set, i + 1, &err), i);
    assert_int_equal(cgroup_take(set, 99, &err), -1);
    assert_int_equal(err.code, ERR_FULL);
    cgroup_set_free(set);
}

static void only_kills_since_it_was_taken_count(void **state)
{
    (void)state;
    struct error err = { 0 };
    group_has("slice/unit/own", "memory", "memory");
    struct cgroup_set *set = set_make();
    put(group_of(0), "memory.events", "low 0\nhigh 7\nmax 9\noom 3\noom_kill 3\noom_group_kill 9\n");    // of its last use
    assert_int_equal(cgroup_take(set, 1, &err), 0);
    assert_false(cgroup_is_over(set, 0));
    put(group_of(0), "memory.events", "low 0\nhigh 8\nmax 19\noom 4\noom_kill 3\noom_group_kill 10\n");
    assert_false(cgroup_is_over(set, 0));
    put(group_of(0), "memory.events", "low 0\nhigh 8\nmax 19\noom 4\noom_kill 4\noom_group_kill 10\n");
    assert_true(cgroup_is_over(set, 0));
    cgroup_set_free(set);
}

static void the_nearest_group_that_can_limit_memory_is_used(void **state)
{
    (void)state;
    static const struct {
        const char *own[2], *unit[2], *slice[2], *place, *why;
    } cases[] = {
        { { "memory", "" },
          { "memory", "memory" },
          { "memory", "memory" },
          "slice/unit/own",
          "it can be enabled for children: nobody else is inside" },
        { { "", "" }, { "memory", "cpu" }, { "memory", "memory" }, "slice/unit", "DelegateSubgroup=: the one above may give it on" },
        { { "", "" }, { "", "" }, { "memory", "cpu memory" }, "slice", "two above, where it is enabled already" },
        { { "", "" }, { "", "" }, { "memory", "cpu" }, NULL, "two above others are asked for nothing" },
        { { "memory2", "" }, { "xmemory", "" }, { "", "memory" }, NULL, "other controllers" },
    };
    static const char *const places[] = { "slice/unit/own", "slice/unit", "slice" };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        group_has("slice/unit/own", cases[i].own[0], cases[i].own[1]);
        group_has("slice/unit", cases[i].unit[0], cases[i].unit[1]);
        group_has("slice", cases[i].slice[0], cases[i].slice[1]);
        put(mount, "cgroup.controllers", "");
        struct cgroup_set *set = cgroup_set_new(mount, "/slice/unit/own", MEM_BYTES, &err);
        for (size_t k = 0; k < ARRAY_SIZE(places); k++)
            if ((set_in(places[k])[0] != 0) != (cases[i].place && strcmp(places[k], cases[i].place) == 0))
                fail_msg("%s: '%s' is in %s", cases[i].why, set_in(places[k]), places[k]);
        if (!cases[i].place) {
            assert_null(set);
            assert_int_equal(err.code, ERR_UNSUPPORTED);
            assert_non_null(strstr(err.text, "/slice/unit/own' has no memory controller"));    // the nearest is the one to fix
        }
        cgroup_set_free(set);
    }
}

static void what_a_killed_process_has_left_is_removed_and_what_one_uses_is_not(void **state)
{
    (void)state;
    char left[PATH_MAX], used[PATH_MAX], path[PATH_MAX + 16];
    struct stat st;
    group_has("slice/unit/own", "memory", "memory");
    snprintf(left, sizeof left, "%s/slice/unit/own/rollcall-sandboxes-aaaaaa", mount);
    snprintf(used, sizeof used, "%s/slice/unit/own/rollcall-sandboxes-bbbbbb", mount);
    const char *const both[] = { left, used };
    for (size_t i = 0; i < ARRAY_SIZE(both); i++) {
        assert_int_equal(mkdir(both[i], 0700), 0);
        snprintf(path, sizeof path, "%s/0", both[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    int lock = open(used, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    struct cgroup_set *set = set_make();
    assert_int_equal(stat(left, &st), -1);
    assert_int_equal(stat(path, &st), 0);
    cgroup_set_free(set);
    close(lock);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_group_has_its_limits_before_a_process_comes_in, setup, teardown),
        cmocka_unit_test_setup_teardown(a_group_is_used_again_when_the_last_process_has_left_it, setup, teardown),
        cmocka_unit_test_setup_teardown(no_more_groups_are_made_than_the_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(only_kills_since_it_was_taken_count, setup, teardown),
        cmocka_unit_test_setup_teardown(the_nearest_group_that_can_limit_memory_is_used, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_killed_process_has_left_is_removed_and_what_one_uses_is_not, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
