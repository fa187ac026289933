/* Each read, write, sync, open and allocation under the journal and the rollout file fails in turn, and the process dies at
 * each: a transaction is there completely or not at all, what was committed stays, the message says what and where, and the
 * same handle, or the next one, can try again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "faults.h"
#include "protocol/base/file.h"
#include "protocol/record/journal.h"
#include "protocol/record/rollout_file.h"

#define CALLS_MAX 3000    // in one transaction: more would mean that counting is broken
static const int kinds[] = { FAULT_FILE, FAULT_MEMORY };

static int dir_setup(void **state)
{
    bool memory = access("/dev/shm", W_OK) == 0;    // the test is about the order of calls, not the speed of a disk
    char *dir = strdup(memory ? "/dev/shm/journal_faults_XXXXXX" : "/tmp/journal_faults_XXXXXX");
    *state = mkdtemp(dir);
    return *state ? 0 : -1;
}

static int dir_teardown(void **state)
{
    struct error err;
    bool ok = dir_remove(*state, &err);
    free(*state);
    return ok ? 0 : -1;
}

/* Everything that belongs to step s, in one transaction. */
static bool step_put(struct journal *j, int64_t s, struct error *err)
{
    char name[32];
    snprintf(name, sizeof name, "new/%" PRId64, s);    // a series of its own
    struct journal_metric m[] = { { "train/loss", (double)s }, { name, 1 } };
    struct journal_item it = { .item = s, .prompt_row = s, .fate = ITEM_TRAINED, .step = s, .reward_mean = NAN };
    bool ok = journal_begin(j, err) && journal_step_add(j, 1, s, 0, m, 2, err) && journal_item_put(j, &it, err)
              && journal_event_add(j, 1, s, "state", "test", "a step", "", err) && journal_command_put(j, name, "done", err)
              && journal_value_put(j, "cursor", &s, sizeof s, err);
    if (!ok) {
        journal_rollback(j);
        return false;
    }
    return journal_commit(j, err);
}

static bool step_count(void *arg, const struct journal_step *row)
{
    if (row->n == 2 && strcmp(row->metric[0].name, "train/loss") == 0 && row->metric[0].value == (double)row->step)
        *(int64_t *)arg += 1;
    return true;
}

static bool item_count(void *arg, UNUSED const struct journal_item *it)
{
    *(int64_t *)arg += 1;
    return true;
}

static bool event_count(void *arg, UNUSED const struct journal_event *e)
{
    *(int64_t *)arg += 1;
    return true;
}

/* How many steps are there, whole: every table must say the same. */
static int64_t steps_there(struct journal *j)
{
    struct error err = { 0 };
    struct buf cursor = BUF_INIT, answer = BUF_INIT;
    int64_t n_step = 0, n_item = 0, n_event = 0, last = 0;
    char name[32];
    bool found = false, known;
    if (!journal_steps_read(j, 0, step_count, &n_step, &err) || !journal_items_read(j, 0, item_count, &n_item, &err)
        || !journal_events_read(j, 0, NULL, event_count, &n_event, &err) || !journal_value_get(j, "cursor", &cursor, &found, &err))
        fail_msg("%s", err.text);
    if (found)
        memcpy(&last, cursor.data, sizeof last);
    snprintf(name, sizeof name, "new/%" PRId64, last);
    if (!journal_command_get(j, name, &answer, &known, &err))
        fail_msg("%s", err.text);
    if (n_item != n_step || n_event != n_step || last != n_step || known != (n_step > 0))
        fail_msg("%" PRId64 " steps, %" PRId64 " items, %" PRId64 " events, cursor %" PRId64, n_step, n_item, n_event, last);
    buf_release(&cursor);
    buf_release(&answer);
    return n_step;
}

static struct journal *opened(const char *dir)
{
    struct error err = { 0 };
    struct journal *j = journal_open(dir, &err);
    if (!j)
        fail_msg("%s", err.text);
    return j;
}

/* Restore the journal from data, with no other files. */
static void journal_put_back(const char *dir, const struct buf *data)
{
    static const char *const beside[] = { "journal.db-wal", "journal.db-shm" };
    char path[200];
    for (size_t i = 0; i < ARRAY_SIZE(beside); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, beside[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/journal.db", dir);
    FILE *f = fopen(path, "w");
    assert_true(f && fwrite(data->data, 1, data->len, f) == data->len && fclose(f) == 0);
}

/* A journal of one step, as bytes. */
static void journal_make(const char *dir, struct buf *data)
{
    struct error err = { 0 };
    char path[200];
    struct journal *j = opened(dir);
    if (!step_put(j, 1, &err))
        fail_msg("%s", err.text);
    journal_close(j);
    snprintf(path, sizeof path, "%s/journal.db", dir);
    assert_true(file_read(data, path, 1 << 22, &err));
}

/* Put the next step with the n-th call failing. A handle that cannot be opened is opened again. */
static void next_step(const char *dir, const struct buf *base, int kind, enum fault_mode mode, int n, bool anew, bool *fired)
{
    struct error err = { 0 };
    const char *what;
    journal_put_back(dir, base);
    struct journal *j = anew ? NULL : opened(dir);
    const int64_t before = 1;
    faults_begin(kind, mode, n);
    if (anew)
        j = journal_open(dir, &err);
    bool ok = j && step_put(j, before + 1, &err);
    *fired = faults_end(&what);
    if (!ok && !*fired)
        fail_msg("call %d: %s", n, err.text);
    if (!ok && !(err.code == ERR_NO_MEMORY ? err.text[0] != 0 : strstr(err.text, dir) != NULL))
        fail_msg("call %d, %s: the message does not say where: '%s'", n, what, err.text);
    if (!j)
        j = opened(dir);
    int64_t now = steps_there(j);
    if (now != before + ok)
        fail_msg("call %d, %s: %" PRId64 " steps, %d expected (%s)", n, what, now, (int)(before + ok), ok ? "" : err.text);
    if (!step_put(j, now + 1, &err))    // the same handle still works
        fail_msg("call %d, %s: trying again fails: %s", n, what, err.text);
    journal_close(j);
    j = opened(dir);
    if (steps_there(j) != now + 1)
        fail_msg("call %d, %s: what was committed is not there in the next life", n, what);
    journal_close(j);
}

static void a_failing_call_loses_nothing_that_was_committed(void **state)
{
    static const struct {
        int kind;
        enum fault_mode mode;
    } cases[] = {
        { FAULT_FILE, FAULT_ONCE }, { FAULT_FILE, FAULT_FROM_THEN }, { FAULT_MEMORY, FAULT_ONCE }, { FAULT_MEMORY, FAULT_FROM_THEN }
    };
    struct buf base = BUF_INIT;
    journal_make(*state, &base);
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++)
        for (int anew = 0; anew < 2; anew++) {
            bool fired = true;
            for (int n = 1; fired; n++) {
                assert_true(n < CALLS_MAX);
                next_step(*state, &base, cases[k].kind, cases[k].mode, n, anew, &fired);
            }
        }
    buf_release(&base);
}

static void death_at_any_call_loses_nothing_that_was_committed(void **state)
{
    int status = 0;
    struct buf base = BUF_INIT;
    journal_make(*state, &base);
    for (int n = 1; n == 1 || WEXITSTATUS(status) == FAULT_EXIT; n++) {
        struct error err = { 0 };
        assert_true(n < CALLS_MAX);
        struct journal *j = NULL;
        const int64_t before = 1;
        journal_put_back(*state, &base);
        int committed[2];
        assert_int_equal(pipe(committed), 0);
        pid_t child = fork();
        if (child == 0) {
            faults_begin(FAULT_FILE, FAULT_DEATH, n);
            bool ok = (j = journal_open(*state, &err)) && step_put(j, before + 1, &err);
            const char *what;
            faults_end(&what);
            if (ok && write(committed[1], "x", 1) != 1)
                _exit(1);
            faults_begin(FAULT_FILE, FAULT_DEATH, n);
            journal_close(j);
            _exit(ok ? 0 : 1);
        }
        assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 1);
        close(committed[1]);
        char c;
        bool told = read(committed[0], &c, 1) == 1;
        close(committed[0]);
        j = opened(*state);
        int64_t now = steps_there(j);
        if (now < before + told || now > before + 1)
            fail_msg("death at call %d: %" PRId64 " steps after %" PRId64 "%s", n, now, before, told ? " and a commit" : "");
        if (!step_put(j, now + 1, &err))
            fail_msg("death at call %d: %s", n, err.text);
        journal_close(j);
    }
    buf_release(&base);
}

/* ---- the rollout file ---- */

static void record_make(char out[4000], int64_t i)
{
    for (int k = 0; k < 4000; k++)
        out[k] = (char)(i * 7 + k * k % 251);
}

static void records_check(const char *path, const int64_t *offset, const int64_t *size, int64_t n)
{
    struct error err = { 0 };
    struct buf b = BUF_INIT;
    char want[4000];
    for (int64_t i = 0; i < n; i++) {
        buf_clear(&b);
        record_make(want, i);
        if (!rollout_file_read(path, offset[i], size[i], &b, &err))
            fail_msg("%s", err.text);
        assert_true(b.len == sizeof want && memcmp(b.data, want, sizeof want) == 0);
    }
    buf_release(&b);
}

static void a_rollout_that_cannot_be_appended_harms_no_other(void **state)
{
    char path[200];
    snprintf(path, sizeof path, "%s/groups.zst", (char *)*state);
    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
        int64_t offset[200], size[200], n = 0;
        bool fired = true;
        for (int call = 1; fired; call++) {
            struct error err = { 0 };
            const char *what;
            char record[4000];
            assert_true(n < 200);
            record_make(record, n);
            faults_begin(kinds[k], FAULT_ONCE, call);
            struct rollout_file *f = rollout_file_open(path, n ? offset[n - 1] + size[n - 1] : 0, NULL, &err);
            bool ok = f && rollout_file_append(f, record, sizeof record, &offset[n], &size[n], &err);
            fired = faults_end(&what);
            if (!ok && !strstr(err.text, err.code == ERR_NO_MEMORY ? "no memory" : path))
                fail_msg("call %d, %s: the message does not say where: '%s'", call, what, err.text);
            if (!f && !(f = rollout_file_open(path, n ? offset[n - 1] + size[n - 1] : 0, NULL, &err)))
                fail_msg("call %d, %s: %s", call, what, err.text);
            if (!ok && !rollout_file_append(f, record, sizeof record, &offset[n], &size[n], &err))
                fail_msg("call %d, %s: trying again fails: %s", call, what, err.text);
            n++;
            rollout_file_close(f);
            records_check(path, offset, size, n);
        }
        assert_true(unlink(path) == 0);
    }
}

/* ---- a small file ---- */

static void a_file_that_cannot_be_written_stays_as_it_was(void **state)
{
    char path[200], text[16];
    snprintf(path, sizeof path, "%s/cursor", (char *)*state);
    bool fired = true;
    for (int n = 1; fired; n++) {
        struct error err = { 0 };
        struct buf b = BUF_INIT;
        const char *what;
        assert_true(file_write(path, "old", 3, &err));
        faults_begin(FAULT_FILE, FAULT_ONCE, n);
        bool ok = file_write(path, "newer", 5, &err);
        fired = faults_end(&what);
        if (!ok && !strstr(err.text, *state))
            fail_msg("call %d, %s: the message does not say where: '%s'", n, what, err.text);
        assert_true(file_read(&b, path, 100, &err));
        snprintf(text, sizeof text, "%s", buf_text(&b));
        buf_release(&b);
        if (strcmp(text, "newer") != 0 && (ok || strcmp(text, "old") != 0))
            fail_msg("call %d, %s: the file holds '%s'", n, what, text);
    }
}

int main(void)
{
    faults_install();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_failing_call_loses_nothing_that_was_committed, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(death_at_any_call_loses_nothing_that_was_committed, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(a_rollout_that_cannot_be_appended_harms_no_other, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(a_file_that_cannot_be_written_stays_as_it_was, dir_setup, dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
