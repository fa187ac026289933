/* Each write, sync, rename, open and allocation under a checkpoint fails in turn, and the process dies at each: what is on disk
 * is complete, the message says what and where, and the next attempt succeeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdlib.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "faults.h"
#include "protocol/base/file.h"
#include "tests/unit/checkpoint_newest.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/model/model.h"

#define CALLS_MAX 5000    // in one checkpoint: more would mean that counting is broken

static char root[64];
static char model_dir[1024];
static struct device *dev;
static struct model *m;
static struct trainer *t;

static int setup(UNUSED void **state)
{
    struct error err = { 0 };
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    faults_install();
    setenv("RC_LOG", "error", 1);    // each skipped checkpoint would be logged
    set.token_budget_max = 64;
    bool memory = access("/dev/shm", W_OK) == 0;    // the test is about the order of calls, not the speed of a disk
    snprintf(root, sizeof root, "%s/checkpoint_faults.XXXXXX", memory ? "/dev/shm" : "/tmp");
    snprintf(model_dir, sizeof model_dir, "%s/golden/models/qwen3-tied", TEST_DATA_DIR);
    if (!mkdtemp(root) || !(dev = device_new("ref", 1, &err)) || !(m = model_load(model_dir, dev, DT_F32, &err))
        || !(t = trainer_new(m, NULL, &set, &err)))
        return -1;
    return 0;
}

static int teardown(UNUSED void **state)
{
    struct error err;
    trainer_free(t);
    model_free(m);
    device_free(dev);
    return dir_remove(root, &err) ? 0 : -1;
}

/* Save step into dir with a writer of its own, and read it back whole. */
static bool save(const char *dir, int64_t step, struct error *err)
{
    struct checkpoint_info info = { .step = step, .tokenizer_dir = model_dir, .settings = "{\"lr\": 0.01}" };
    char path[4096];
    int64_t found;
    struct checkpoint_writer *w = checkpoint_writer_new(err);
    bool ok = w && checkpoint_start(w, t, dir, &info, err) && checkpoint_wait(w, err);
    checkpoint_writer_free(w);
    snprintf(path, sizeof path, "%s/step-%06" PRId64, dir, step);
    return ok && checkpoint_verify(path, &found, err);
}

static int64_t newest(const char *dir)
{
    struct error err = { 0 };
    char path[4096];
    int64_t step;
    return checkpoint_newest(dir, path, &step, &err) ? step : -1;
}

static int entries(const char *dir, bool hidden)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += (e->d_name[0] == '.') == hidden && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static int n_file(const char *path)    // number of a checkpoint's files listed in its manifest
{
    char name[4200];
    snprintf(name, sizeof name, "%s/state", path);
    return entries(path, false) + entries(name, false) - 2;    // state/ and the manifest
}

static int n_listed(const char *path)
{
    char file[4200];
    struct error err;
    struct buf b = BUF_INIT;
    snprintf(file, sizeof file, "%s/state/manifest.json", path);
    assert_true(file_read(&b, file, 1 << 20, &err));
    int n = 0;
    for (const char *at = buf_text(&b); (at = strstr(at, "\"hash\"")); at++)
        n++;
    buf_release(&b);
    return n;
}

/* Fail call after call of saving step 2 beside step 1 (and, replaced, beside an earlier step 2). */
static void each_fails(int kinds, enum fault_mode mode, bool replaces)
{
    struct error err = { 0 };
    char dir[256], path[300];
    const char *what;
    bool fired = true;
    snprintf(dir, sizeof dir, "%s/fails-%d-%d-%d", root, kinds, (int)mode, replaces);
    snprintf(path, sizeof path, "%s/step-000002", dir);
    assert_true(save(dir, 1, &err));
    int n_fd = entries("/proc/self/fd", false), n_want = 0;
    for (int n = 1; fired; n++) {
        assert_true(n < CALLS_MAX);
        assert_true(!replaces || n > 1 || save(dir, 2, &err));    // later the one that the last attempt has left
        err = (struct error){ 0 };
        faults_begin(kinds, mode, n);
        bool ok = save(dir, 2, &err);
        fired = faults_end(&what);
        if (ok) {    // the failed call was not essential
            assert_true(n_want == 0 || n_listed(path) == n_want);
        } else {
            assert_true(fired);
            bool told = err.code == ERR_NO_MEMORY ? err.text[0] != 0 : strstr(err.text, dir) != NULL;
            bool why = kinds != FAULT_FILE || strstr(err.text, "No space left on device") || strstr(err.text, "Input/output error");
            if (!told || !why)
                fail_msg("call %d, %s: the message does not say where and why: %s", n, what, err.text);
        }
        int64_t step = newest(dir);
        if (step != 2 && (step != 1 || ok || replaces))
            fail_msg("call %d, %s: the newest checkpoint is %" PRId64 " (%s)", n, what, step, err.text);
        if (!save(dir, 2, &err))
            fail_msg("call %d, %s: trying again fails: %s", n, what, err.text);
        n_want = n_file(path);
        if (n_listed(path) != n_want || newest(dir) != 2 || entries(dir, true) != 0 || entries(dir, false) != 2)
            fail_msg("call %d, %s: something is left over in '%s'", n, what, dir);
        if (entries("/proc/self/fd", false) != n_fd)
            fail_msg("call %d, %s: %d descriptors, %d before", n, what, entries("/proc/self/fd", false), n_fd);
        assert_true(replaces || dir_remove(path, &err));
    }
}

static void a_failing_call_breaks_no_checkpoint_and_the_next_attempt_succeeds(UNUSED void **state)
{
    each_fails(FAULT_FILE, FAULT_ONCE, false);
    each_fails(FAULT_FILE, FAULT_ONCE, true);
}

static void an_allocation_that_fails_breaks_no_checkpoint(UNUSED void **state)
{
    each_fails(FAULT_MEMORY, FAULT_ONCE, false);
}

static void a_disk_that_fills_up_at_any_moment_breaks_no_checkpoint(UNUSED void **state)
{
    each_fails(FAULT_FILE, FAULT_FROM_THEN, true);
}

static void death_at_any_call_leaves_whole_checkpoints_and_the_next_writer_clears_up(UNUSED void **state)
{
    for (int replaces = 0; replaces < 2; replaces++) {
        struct error err = { 0 };
        char dir[256], path[300];
        int status = 0;
        snprintf(dir, sizeof dir, "%s/death-%d", root, replaces);
        snprintf(path, sizeof path, "%s/step-000002", dir);
        assert_true(save(dir, 1, &err));
        for (int n = 1; n == 1 || WEXITSTATUS(status) == FAULT_EXIT; n++) {
            assert_true(n < CALLS_MAX);
            assert_true(!replaces || n > 1 || save(dir, 2, &err));
            pid_t child = fork();
            if (child == 0) {
                faults_begin(FAULT_FILE, FAULT_DEATH, n);
                _exit(save(dir, 2, &err) ? 0 : 1);
            }
            assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
            assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == FAULT_EXIT);
            int64_t step = newest(dir);
            if (step != 2 && (step != 1 || replaces || WEXITSTATUS(status) == 0))
                fail_msg("death at call %d: the newest checkpoint is %" PRId64, n, step);
            assert_true(save(dir, 2, &err));
            if (newest(dir) != 2 || entries(dir, true) != 0 || entries(dir, false) != 2)
                fail_msg("death at call %d: something is left over in '%s'", n, dir);
            assert_true(replaces || dir_remove(path, &err));
        }
    }
}

/* What the trainer's worker does with a checkpoint it has to load. */
static bool load(const char *path, int64_t *step, struct error *err)
{
    char owner[64];
    return checkpoint_verify(path, step, err) && checkpoint_owner(path, owner, err) && checkpoint_restore(t, path, err);
}

static void a_restore_that_fails_says_why_and_can_be_repeated(UNUSED void **state)
{
    static const struct {
        int kind;
        enum fault_mode mode;
    } cases[] = { { FAULT_FILE, FAULT_ONCE }, { FAULT_MEMORY, FAULT_ONCE }, { FAULT_MEMORY, FAULT_FROM_THEN } };
    struct error err = { 0 };
    char dir[256], path[4096];
    const char *what;
    int64_t step;
    snprintf(dir, sizeof dir, "%s/restore", root);
    assert_true(save(dir, 3, &err));
    assert_true(checkpoint_newest(dir, path, &step, &err));
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        bool fired = true;
        for (int n = 1; fired; n++) {
            assert_true(n < CALLS_MAX);
            err = (struct error){ 0 };
            faults_begin(cases[k].kind, cases[k].mode, n);
            bool ok = load(path, &step, &err);
            fired = faults_end(&what);
            assert_true(ok || fired);
            bool memory = cases[k].kind == FAULT_MEMORY;
            if (!ok && (memory ? err.code != ERR_NO_MEMORY || !strcasestr(err.text, "memory") : err.code != ERR_IO))
                fail_msg("call %d, %s: '%s', code %s: the checkpoint would be taken for broken", n, what, err.text,
                         error_code_name(err.code));
            if (!load(path, &step, &err) || trainer_version(t) != 3)
                fail_msg("call %d, %s: trying again fails: %s", n, what, err.text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_call_breaks_no_checkpoint_and_the_next_attempt_succeeds),
        cmocka_unit_test(an_allocation_that_fails_breaks_no_checkpoint),
        cmocka_unit_test(a_disk_that_fills_up_at_any_moment_breaks_no_checkpoint),
        cmocka_unit_test(death_at_any_call_leaves_whole_checkpoints_and_the_next_writer_clears_up),
        cmocka_unit_test(a_restore_that_fails_says_why_and_can_be_repeated),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
