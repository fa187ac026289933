/* tags: valgrind tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/record/journal.h"
#include "protocol/record/journal_home.h"
#include "protocol/run/journal_wal.h"

static int dir_setup(void **state)
{
    char *dir = strdup("/tmp/rc_journal_XXXXXX");
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

struct seen {
    int64_t n, step[64], incarnation[64];
    double value[64];
};

static bool step_see(void *arg, const struct journal_step *row)
{
    struct seen *s = arg;
    s->step[s->n] = row->step;
    s->incarnation[s->n] = row->incarnation;
    s->value[s->n++] = row->n ? row->metric[0].value : NAN;
    return s->n < 64;
}

static void step_put(struct journal *j, int64_t incarnation, int64_t step, double v)
{
    struct error err = { 0 };
    struct journal_metric m[] = { { "train/loss", v }, { "metrics/reward", NAN } };
    assert_true(journal_begin(j, &err));
    assert_true(journal_step_add(j, incarnation, step, 1.5, m, 2, &err));
    assert_true(journal_commit(j, &err));
}

static bool seq_see(void *arg, const struct journal_event *e)
{
    *(int64_t *)arg = e->seq;
    return true;
}

static void after_a_rollback_the_newer_incarnation_wins(void **state)
{
    struct error err = { 0 };
    struct journal *j = journal_open(*state, &err);
    assert_non_null(j);
    assert_true(journal_begin(j, &err));
    int64_t one = journal_incarnation_begin(j, 0, &err);
    assert_true(journal_commit(j, &err));
    for (int s = 1; s <= 5; s++)
        step_put(j, one, s, s);
    assert_true(journal_begin(j, &err));
    int64_t two = journal_incarnation_begin(j, 3, &err);
    assert_true(journal_commit(j, &err));
    step_put(j, two, 4, 40);
    struct journal *r = journal_open_reader(*state, &err);
    assert_non_null(r);
    struct seen seen = { 0 };
    assert_true(journal_steps_read(r, 0, step_see, &seen, &err));
    static const double want[] = { 1, 2, 3, 40 };
    assert_int_equal(seen.n, 4);
    for (int i = 0; i < 4; i++)
        assert_true(seen.step[i] == i + 1 && seen.value[i] == want[i]);
    assert_int_equal(seen.incarnation[3], two);
    int64_t last;
    assert_true(journal_last_step(r, &last, &err) && last == 4);
    assert_true(journal_furthest_step(r, &last, &err) && last == 5);    // the one that was rolled back
    step_put(j, two, 5, 50);                                            // a reader that is open sees what comes later
    seen.n = 0;
    assert_true(journal_steps_read(r, 0, step_see, &seen, &err));
    assert_int_equal(seen.n, 5);
    journal_close(r);
    journal_close(j);
}

/* The journal of a run that continues from a checkpoint: it knows where, before any step is made, and its numbers continue
 * above the lost one's. */
static void a_journal_that_begins_late_numbers_its_rows_on(void **state)
{
    struct error err = { 0 };
    struct journal *j = journal_open(*state, &err);
    struct seen seen = { 0 };
    int64_t last;
    assert_non_null(j);
    assert_true(journal_begin(j, &err) && journal_seq_begin(j, 1000, &err));
    int64_t one = journal_incarnation_begin(j, 8, &err);
    assert_true(journal_event_add(j, one, 8, "alert", "test", "begins late", "", &err) && journal_commit(j, &err));
    assert_true(journal_last_step(j, &last, &err) && last == 8);
    assert_true(journal_furthest_step(j, &last, &err) && last == 8);
    assert_true(journal_steps_read(j, 0, step_see, &seen, &err) && seen.n == 0);
    step_put(j, one, 9, 90);
    assert_true(journal_last_step(j, &last, &err) && last == 9);
    assert_true(journal_steps_read(j, 999, step_see, &seen, &err) && seen.n == 1);
    int64_t seq = 0;
    assert_true(journal_events_read(j, 0, NULL, seq_see, &seq, &err));
    assert_int_equal(seq, 1000);
    journal_close(j);
}

static void what_was_committed_survives_kill_9_and_the_rest_leaves_no_trace(void **state)
{
    struct error err = { 0 };
    int pipe_fd[2];
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t child = fork();
    if (child == 0) {
        struct journal *j = journal_open(*state, &err);
        struct journal_metric m = { "a", 7 };
        if (!j || !journal_begin(j, &err) || !journal_step_add(j, 1, 1, 0, &m, 1, &err) || !journal_commit(j, &err))
            _exit(1);
        m.name = "never committed";
        if (!journal_begin(j, &err) || !journal_step_add(j, 1, 2, 0, &m, 1, &err) || write(pipe_fd[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    char c;
    assert_int_equal(read(pipe_fd[0], &c, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    struct journal *j = journal_open(*state, &err);
    struct seen seen = { 0 };
    assert_true(journal_steps_read(j, 0, step_see, &seen, &err));
    assert_true(seen.n == 1 && seen.step[0] == 1 && seen.value[0] == 7);
    step_put(j, 1, 2, 9);
    seen.n = 0;
    assert_true(journal_steps_read(j, 0, step_see, &seen, &err));
    assert_true(seen.n == 2 && seen.value[1] == 9);
    journal_close(j);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

static void a_series_named_in_a_lost_transaction_does_not_shift_the_others(void **state)
{
    struct error err = { 0 };
    struct journal *j = journal_open(*state, &err);
    struct journal_metric lost = { "lost", 1 }, kept = { "kept", 2 };
    assert_true(journal_begin(j, &err));
    assert_true(journal_step_add(j, 1, 1, 0, &lost, 1, &err));
    journal_rollback(j);
    assert_true(journal_begin(j, &err));
    assert_true(journal_step_add(j, 1, 1, 0, &kept, 1, &err));
    assert_true(journal_commit(j, &err));
    struct journal *r = journal_open_reader(*state, &err);
    struct seen seen = { 0 };
    assert_true(journal_steps_read(r, 0, step_see, &seen, &err));
    assert_true(seen.n == 1 && seen.value[0] == 2);
    journal_close(r);
    journal_close(j);
}

static bool item_count(void *arg, const struct journal_item *it)
{
    int64_t *sum = arg;
    *sum += it->item * 10 + it->fate;
    return true;
}

static void items_commands_and_values_are_kept_by_key(void **state)
{
    struct error err = { 0 };
    struct journal *j = journal_open(*state, &err);
    struct journal_item it = { .item = 1, .fate = ITEM_ISSUED, .reward_mean = NAN };
    assert_true(journal_item_put(j, &it, &err));
    it.fate = ITEM_TRAINED;
    assert_true(journal_item_put(j, &it, &err));
    it.item = 2;
    assert_true(journal_item_put(j, &it, &err));
    int64_t sum = 0;
    assert_true(journal_items_read(j, 0, item_count, &sum, &err));
    assert_int_equal(sum, 30 + 2 * ITEM_TRAINED);    // each item once, with its last fate
    struct buf b = BUF_INIT;
    bool found;
    assert_true(journal_command_get(j, "id", &b, &found, &err) && !found);
    assert_true(journal_command_put(j, "id", "done", &err));
    assert_true(journal_command_get(j, "id", &b, &found, &err) && found);
    assert_string_equal(buf_text(&b), "done");
    buf_clear(&b);
    assert_true(journal_value_put(j, "cursor", "a\0b", 3, &err));
    assert_true(journal_value_get(j, "cursor", &b, &found, &err) && found && b.len == 3);
    buf_release(&b);
    journal_close(j);
}

/* seq and number of the last step that is read, in one number. */
static bool last_note(void *arg, const struct journal_step *row)
{
    *(int64_t *)arg = row->seq * 1000 + row->step;
    return true;
}

static void a_journal_on_another_disk_is_copied_and_taken_over_without_it(void **state)
{
    struct error err = { 0 };
    char run[200], a[200], b[200], lost[220], copy[240], place[260];
    int64_t seen = -1, step = -1;
    bool taken = true;
    snprintf(run, sizeof run, "%s/run", (char *)*state);
    snprintf(a, sizeof a, "%s/0123456789abcdef", (char *)*state);    // the run's id in the path is not its number
    snprintf(b, sizeof b, "%s/b", (char *)*state);
    snprintf(lost, sizeof lost, "%s-lost", a);
    snprintf(copy, sizeof copy, "%s/" JOURNAL_SNAPSHOT, run);
    assert_true(dir_make(run, 0755, &err));
    assert_true(journal_home_make(run, a, "0123456789abcdef", &err));
    struct journal *j = journal_open(run, &err);
    assert_non_null(j);
    assert_true(journal_begin(j, &err));
    assert_int_equal(journal_incarnation_begin(j, 0, &err), 1);
    assert_true(journal_commit(j, &err));
    step_put(j, 1, 1, 1);
    assert_true(journal_begin(j, &err));
    assert_true(journal_event_add(j, 1, 1, "alert", "a", "b", "", &err));
    assert_true(journal_commit(j, &err));
    journal_ship(j);
    for (int64_t end = clock_ms() + 60000; !path_exists(copy) && clock_ms() < end;)
        usleep(1000);
    assert_true(path_exists(copy));
    assert_true(journal_ships(j, &err));
    assert_true(journal_home_take(run, b, "0123456789abcdef", &taken, &step, &err));
    assert_false(taken);    // it is here
    journal_close(j);
    assert_int_equal(rename(a, lost), 0);
    assert_true(journal_is_elsewhere(run));
    assert_non_null(j = journal_open_reader(run, &err));    // the copy
    assert_true(journal_steps_read(j, 0, last_note, &seen, &err));
    assert_int_equal(seen, 1001);
    journal_close(j);
    assert_false(journal_home_take(run, "", "0123456789abcdef", &taken, &step, &err));
    assert_int_equal(err.code, ERR_USAGE);
    assert_true(journal_home_take(run, b, "0123456789abcdef", &taken, &step, &err));
    assert_true(taken && step == 1 && !journal_is_elsewhere(run));
    snprintf(place, sizeof place, "%s/0123456789abcdef.2/journal.db", b);
    assert_true(path_exists(place));
    assert_non_null(j = journal_open(run, &err));
    step_put(j, 2, 2, 2);
    assert_true(journal_steps_read(j, 1000, last_note, &seen, &err));    // far above what the lost one may have numbered
    assert_true(seen > (int64_t)1000000000 * 1000 && seen % 1000 == 2);
    snprintf(lost, sizeof lost, "%s/journal.db", run);
    assert_int_equal(unlink(lost), 0);
    assert_int_equal(symlink("/nowhere/journal.db", lost), 0);    // a third machine
    assert_int_equal(unlink(copy), 0);
    journal_close(j);
    assert_false(path_exists(copy));
}

static void what_is_not_a_journal_is_named(void **state)
{
    struct error err = { 0 };
    assert_null(journal_open_reader(*state, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    char path[128];
    snprintf(path, sizeof path, "%s/journal.db", (char *)*state);
    assert_true(file_write(path, "this is no database, however long it may be ................", 60, &err));
    assert_null(journal_open(*state, &err));
    assert_non_null(strstr(err.text, path));
}

static void nothing_in_a_journal_from_elsewhere_is_run(void **state)
{
    static const char *const planted[] = {
        "DROP TABLE event; CREATE VIEW event AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT i AS seq FROM n",
        "CREATE TRIGGER t AFTER INSERT ON event BEGIN DELETE FROM event; END",
        "ALTER TABLE event ADD COLUMN more TEXT AS (hex(zeroblob(400000000)))",
        "DROP TABLE value; CREATE TABLE value(name TEXT PRIMARY KEY, value BLOB, CHECK/* PRIMARY KEY( */(length(randomblob(400000000)) > 1))",
        "DROP TABLE value; CREATE TABLE value(name TEXT PRIMARY KEY, value BLOB DEFAULT (zeroblob(400000000)))",
        "CREATE INDEX t ON event(hex(zeroblob(400000000)))",
        "CREATE INDEX t ON event(text) WHERE text GLOB '*a*a*a*a*a*a*a*a*a*a*b'",
        "DROP TABLE eval; CREATE VIRTUAL TABLE eval USING fts5(step, set_name)",
    };
    static const char *const named[] = { "the view 'event', which rollcall does not make",
                                         "the trigger 't'",
                                         "the table 'event'",
                                         "the table 'value'",
                                         "the table 'value'",
                                         "the index 't'",
                                         "the index 't'",
                                         "the table 'eval" };
    struct error err = { 0 };
    for (size_t i = 0; i < ARRAY_SIZE(planted); i++) {
        char path[128];
        sqlite3 *db;
        struct journal *j = journal_open(*state, &err);
        assert_non_null(j);
        journal_close(j);
        snprintf(path, sizeof path, "%s/journal.db", (char *)*state);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, planted[i], NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        assert_null(journal_open_reader(*state, &err));
        assert_non_null(strstr(err.text, named[i]));
        assert_null(journal_open(*state, &err));
        assert_int_equal(unlink(path), 0);
    }
}

struct samples {
    int n;
    int64_t seq;
    char node[3][16];
    double value[3], wall_s[3];
};

static bool sample_see(void *arg, const struct journal_sample *row)
{
    struct samples *s = arg;
    assert_int_equal(row->n, 1);
    assert_string_equal(row->figure[0].name, "gpu/0/temp_celsius");
    snprintf(s->node[s->n], sizeof s->node[0], "%s", row->node);
    s->value[s->n] = row->figure[0].value;
    s->wall_s[s->n++] = row->wall_s;
    s->seq = row->seq;
    return true;
}

static void samples_are_read_once_in_order_and_an_older_journal_has_none(void **state)
{
    struct error err = { 0 };
    struct samples seen = { 0 };
    struct journal_metric figure = { "gpu/0/temp_celsius", 61 };
    char path[256];
    struct journal *j = journal_open(*state, &err);
    assert_true(journal_begin(j, &err) && journal_sample_add(j, "a", 10.5, &figure, 1, &err));
    figure.value = 62;
    assert_true(journal_sample_add(j, "b", 11.5, &figure, 1, &err) && journal_commit(j, &err));
    struct journal *r = journal_open_reader(*state, &err);
    assert_true(journal_samples_read(r, 0, sample_see, &seen, &err));
    assert_int_equal(seen.n, 2);
    assert_string_equal(seen.node[1], "b");
    assert_true(seen.value[0] == 61 && seen.value[1] == 62 && seen.wall_s[0] == 10.5);
    assert_int_equal(journal_last_sample(r), seen.seq);
    assert_true(journal_samples_read(r, seen.seq, sample_see, &seen, &err));
    assert_int_equal(seen.n, 2);
    journal_close(r);
    journal_close(j);
    snprintf(path, sizeof path, "%s/journal.db", (char *)*state);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DROP TABLE sample", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_non_null(r = journal_open_reader(*state, &err));
    assert_true(journal_samples_read(r, 0, sample_see, &seen, &err));
    assert_int_equal(seen.n, 2);
    assert_int_equal(journal_last_sample(r), 0);
    journal_close(r);
}

enum {
    BULK_BYTES = 24 << 10,
    N_BULK = 5000,
    CUT_BOUND = 17 << 20,    // it is cut from 16 MiB on
    LOG_BOUND = 48 << 20,
};    // 5000 rows are 120 MiB of log: without folding, far beyond

static void bulk_put(struct journal *j, int i)
{
    static char bulk[BULK_BYTES];
    struct error err = { 0 };
    memset(bulk, i & 0xff, sizeof bulk);
    assert_true(journal_begin(j, &err));
    assert_true(journal_value_put(j, i % 2 ? "odd" : "even", bulk, sizeof bulk, &err));
    assert_true(journal_event_add(j, 1, i, "alert", "test", "a row more", "", &err));
    if (!journal_commit(j, &err))
        fail_msg("%s", err.text);
}

/* As the controller puts a bulk: slow work comes after the commit. */
static void bulk_put_and_rest(struct journal *j, int i)
{
    bulk_put(j, i);
    journal_rest(j);
}

static bool event_seen(void *arg, const struct journal_event *e)
{
    *(int64_t *)arg = e->seq;
    return true;
}

static void the_log_is_folded_and_stays_bounded_while_a_run_writes_and_others_read(void **state)
{
    struct error err = { 0 };
    struct journal_wal wal;
    struct journal *j = journal_open(*state, &err), *r = journal_open_reader(*state, &err);
    int64_t seq = 0, longest = 0;
    assert_true(j && r);
    for (int i = 0; i < N_BULK; i++) {
        bulk_put_and_rest(j, i);
        if (i % 50 == 0) {
            assert_true(journal_events_read(r, seq, NULL, event_seen, &seq, &err));
            journal_wal_look(*state, 0, &wal);
            longest = wal.wal_bytes > longest ? wal.wal_bytes : longest;
        }
    }
    assert_true(journal_folds(j, &err));
    assert_true(longest > 0 && longest < LOG_BOUND);
    for (int i = 0; i < 400; i++) {    // and the file itself has got what was written
        journal_wal_look(*state, 0, &wal);
        if (wal.db_bytes > 200000)
            break;
        bulk_put_and_rest(j, i);
        usleep(10000);
    }
    assert_true(wal.db_bytes > 200000);
    journal_close(r);
    journal_close(j);
}

static void the_log_is_cut_where_its_writer_rests_and_nowhere_else(void **state)
{
    struct error err = { 0 };
    struct journal_wal wal = { 0 };
    struct journal *j = journal_open(*state, &err);
    int i = 0;
    assert_non_null(j);
    for (; wal.wal_bytes <= CUT_BOUND; i++) {
        bulk_put(j, i);
        journal_wal_look(*state, 0, &wal);
    }
    int64_t longest = wal.wal_bytes;
    for (int k = 0; k < 3000 && wal.db_bytes < i * (int64_t)64; k++) {    // until it is in the file, which needs no append
        usleep(1000);
        journal_wal_look(*state, 0, &wal);
    }
    bulk_put(j, i);
    journal_wal_look(*state, 0, &wal);
    assert_true(wal.wal_bytes >= longest);
    for (int k = 0; k < 3000 && wal.wal_bytes > 0; k++) {    // the folding thread looks again once a second
        journal_rest(j);
        usleep(1000);
        journal_wal_look(*state, 0, &wal);
    }
    assert_int_equal(wal.wal_bytes, 0);
    journal_close(j);
}

static void a_closed_journal_is_whole_without_its_log_also_while_a_reader_has_it_open(void **state)
{
    struct error err = { 0 };
    struct journal_wal wal;
    int64_t seq = 0;
    struct journal *j = journal_open(*state, &err), *r = journal_open_reader(*state, &err);
    assert_true(j && r);
    bulk_put(j, 0);
    assert_true(journal_events_read(r, 0, NULL, event_seen, &seq, &err));
    journal_close(j);
    journal_wal_look(*state, 0, &wal);
    assert_true(wal.wal_bytes == 0 && wal.db_bytes > BULK_BYTES);
    journal_close(r);
}

/* A child that reads the journal and stays in the middle of it until its pipe is closed. */
static pid_t child_begin(const char *dir, int mine[2], void (*hold)(const char *dir, int ready, int end))
{
    int ready[2], end[2];
    assert_true(pipe(ready) == 0 && pipe(end) == 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(ready[0]);
        close(end[1]);
        hold(dir, ready[1], end[0]);
        _exit(0);
    }
    close(ready[1]);
    close(end[0]);
    mine[0] = ready[0];
    mine[1] = end[1];
    char c;
    assert_int_equal(read(mine[0], &c, 1), 1);
    return pid;
}

static void child_end(pid_t pid, const int mine[2])
{
    close(mine[0]);
    close(mine[1]);
    waitpid(pid, NULL, 0);
}

static void snapshot_hold(const char *dir, int ready, int end)
{
    char path[200], c;
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/journal.db", dir);
    if (sqlite3_open(path, &db) == SQLITE_OK && sqlite3_exec(db, "BEGIN; SELECT count(*) FROM event", NULL, NULL, NULL) == SQLITE_OK
        && write(ready, "x", 1) == 1 && read(end, &c, 1) == 0)
        sqlite3_close(db);
}

struct hold {
    int ready, end;
};

static bool event_hold(void *arg, UNUSED const struct journal_event *e)
{
    const struct hold *h = arg;
    char c;
    return write(h->ready, "x", 1) == 1 && read(h->end, &c, 1) == 0 && false;
}

static void callback_hold(const char *dir, int ready, int end)
{
    struct error err;
    struct hold h = { ready, end };
    struct journal *r = journal_open_reader(dir, &err);
    if (!r || !journal_events_read(r, 0, NULL, event_hold, &h, &err))
        _exit(1);
}

static void a_reader_that_holds_a_snapshot_is_named_and_the_log_is_cut_when_it_lets_go(void **state)
{
    struct error err = { 0 };
    struct journal_wal wal;
    int mine[2];
    char name[64];
    struct journal *j = journal_open(*state, &err);
    assert_non_null(j);
    bulk_put(j, 0);
    journal_close(j);    // a child may not have SQLite's locks of its parent
    pid_t pid = child_begin(*state, mine, snapshot_hold);
    assert_non_null(j = journal_open(*state, &err));
    for (int i = 1; i < N_BULK / 2; i++)
        bulk_put_and_rest(j, i);
    journal_wal_look(*state, 0, &wal);
    snprintf(name, sizeof name, "process %d (", (int)pid);
    assert_true(wal.wal_bytes > LOG_BOUND);
    assert_int_equal(wal.reader_pid, pid);
    assert_memory_equal(wal.reader, name, strlen(name));
    assert_true(journal_folds(j, &err));    // waiting is no failure
    child_end(pid, mine);
    for (int i = 0; i < 1000 && wal.wal_bytes > LOG_BOUND; i++) {
        usleep(10000);
        journal_rest(j);
        journal_wal_look(*state, 0, &wal);
    }
    assert_true(wal.wal_bytes <= LOG_BOUND);
    assert_int_equal(wal.reader_pid, 0);
    journal_close(j);
}

static void a_reader_whose_callback_waits_forever_holds_no_snapshot(void **state)
{
    struct error err = { 0 };
    struct journal_wal wal;
    int mine[2];
    int64_t longest = 0;
    struct journal *j = journal_open(*state, &err);
    assert_non_null(j);
    bulk_put(j, 0);
    journal_close(j);    // a child may not have SQLite's locks of its parent
    pid_t pid = child_begin(*state, mine, callback_hold);
    assert_non_null(j = journal_open(*state, &err));
    for (int i = 1; i < N_BULK; i++) {
        bulk_put_and_rest(j, i);
        journal_wal_look(*state, 0, &wal);
        longest = wal.wal_bytes > longest ? wal.wal_bytes : longest;
    }
    assert_int_equal(wal.reader_pid, 0);
    assert_true(longest < LOG_BOUND);
    child_end(pid, mine);
    journal_close(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(after_a_rollback_the_newer_incarnation_wins, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(a_journal_that_begins_late_numbers_its_rows_on, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(what_was_committed_survives_kill_9_and_the_rest_leaves_no_trace, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(a_series_named_in_a_lost_transaction_does_not_shift_the_others, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(items_commands_and_values_are_kept_by_key, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(what_is_not_a_journal_is_named, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(nothing_in_a_journal_from_elsewhere_is_run, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(a_journal_on_another_disk_is_copied_and_taken_over_without_it, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(samples_are_read_once_in_order_and_an_older_journal_has_none, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(the_log_is_folded_and_stays_bounded_while_a_run_writes_and_others_read, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(a_closed_journal_is_whole_without_its_log_also_while_a_reader_has_it_open, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(the_log_is_cut_where_its_writer_rests_and_nowhere_else, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(a_reader_that_holds_a_snapshot_is_named_and_the_log_is_cut_when_it_lets_go, dir_setup,
                                        dir_teardown),
        cmocka_unit_test_setup_teardown(a_reader_whose_callback_waits_forever_holds_no_snapshot, dir_setup, dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
