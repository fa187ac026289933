/* Ranks as processes: the same bits for all, and no wait without an end. tags: asan tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdlib.h>
#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kernels/collective/collective.h"
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"

#define LIMIT_MS 60000    // a wait of the tests that has not ended by then never will
#define RANKS 3
#define SHARED_N ((int64_t)70001)    // elements of the sums whose memory the ranks offer each other

static char dir[256];

struct told {
    int n, last, worst;
};

static void waits_note(void *ctx, int rank)
{
    struct told *t = ctx;
    t->n++;
    t->last = rank;
    t->worst = rank > t->worst ? rank : t->worst;
}

static struct collective *join(struct device *dev, const char *name, int rank, int n_rank, int64_t wait_ms, struct told *told,
                               struct error *err)
{
    struct collective_config c = { .kind = "local",
                                   .dir = dir,
                                   .name = name,
                                   .rank = rank,
                                   .n_rank = n_rank,
                                   .dev = dev,
                                   .join_ms = LIMIT_MS,
                                   .wait_ms = wait_ms,
                                   .waits = told ? waits_note : NULL,
                                   .ctx = told };
    return collective_join(&c, err);
}

/* A rank of a test in a process of its own; exits with 0 when body returns true. */
static pid_t rank_start(const char *name, int rank, int n_rank, int64_t wait_ms,
                        bool (*body)(struct collective *c, struct device *dev, struct error *err))
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct error err = { 0 };
    struct device *dev = device_new("ref", 1, &err);
    struct collective *c = dev ? join(dev, name, rank, n_rank, wait_ms, NULL, &err) : NULL;
    bool ok = c && body(c, dev, &err);
    if (!ok)
        fprintf(stderr, "rank %d: %s\n", rank, err.text[0] ? err.text : "another result");
    collective_leave(c);
    device_free(dev);
    _exit(ok ? 0 : 1);
}

static void ranks_end(const pid_t *pid, int n)
{
    for (int i = 0; i < n; i++) {
        int status = -1;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void call(const char *name)
{
    struct error err;
    if (!collective_call(dir, name, &err))
        fail_msg("%s", err.text);
}

static void assert_no_name_is_left(void)
{
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 0);
}

/* Values whose sum depends on the order: large ones that cancel, and small ones that they swallow. */
static float value(int rank, int64_t i, int round)
{
    uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + round * 977);
    float small = (float)(int32_t)(x * 2246822519u >> 8) * 1e-6f;
    return rank == 0 ? small : rank == 1 ? 1e7f + small : rank == 2 ? -1e7f + small : small;
}

/* Rounds of sums over shards, the last one without all ranks; from memory of this rank alone, or from what they can read. */
static bool chain_is_made(struct collective *c, struct device *dev, int64_t n, int round, struct error *err)
{
    int rank = collective_rank(c), n_rank = collective_n_rank(c);
    int64_t first, m = collective_shard(n, n_rank, rank, &first);
    bool offered = round == 0 && n == SHARED_N;
    struct mem_handle hx, hs;
    float *x = mem_share_new(dev, (size_t)n * 4, "a test", &hx, err),
          *sum = x ? mem_share_new(dev, (size_t)n * 4, "a test", &hs, err) : NULL;
    bool ok = sum && (!offered || (collective_offer(c, x, (size_t)n * 4, &hx, err) && collective_offer(c, sum, (size_t)n * 4, &hs, err)));
    for (int64_t i = 0; ok && i < n; i++)
        sum[i] = i < m ? value(3, first + i, 7) : NAN;
    for (int given = n_rank; ok && given >= 0; given--) {    // one more each time that gives nothing
        for (int64_t i = 0; i < n; i++)
            x[i] = rank < given ? value(rank, i, round + given) : NAN;
        ok = collective_reduce(c, sum, x, n, given, err);
    }
    ok = ok && collective_all_gather(c, x, sum, n, err);
    for (int64_t i = 0; ok && i < n; i++) {
        float want = value(3, i, 7);
        for (int given = n_rank; given >= 0; given--)
            for (int q = 0; q < given; q++)
                want += value(q, i, round + given);
        if (memcmp(&want, &x[i], 4) != 0)
            ok = error_set(err, ERR_DATA, "element %" PRId64 " of %" PRId64 " is %.9g, in rank order %.9g", i, n, (double)x[i],
                           (double)want);
        if (i >= m && ok && !isnan(sum[i]))
            ok = error_set(err, ERR_DATA, "element %" PRId64 " behind a shard of %" PRId64 " was written", i, m);
    }
    if (!offered) {    // else the others may still look at it, until the meeting is over
        mem_share_free(dev, x, (size_t)n * 4, &hx);
        mem_share_free(dev, sum, (size_t)n * 4, &hs);
    }
    return ok;
}

static bool sums_and_more(struct collective *c, struct device *dev, struct error *err)
{
    static const int64_t sizes[] = { 1, 2, 7, 1000, SHARED_N, 8192, 8193, ((int64_t)3 << 20) + 5, 0, 3 };
    int rank = collective_rank(c), n_rank = collective_n_rank(c);
    for (int round = 0; round < 4; round++)
        for (size_t s = 0; s < ARRAY_SIZE(sizes); s++) {
            int64_t n = sizes[s];
            double mine[3] = { rank, (double)n, round }, all[RANKS][3];
            if (!chain_is_made(c, dev, n, round, err))
                return false;
            if (!collective_gather(c, mine, sizeof mine, all, err))
                return false;
            for (int q = 0; q < n_rank; q++)
                if (all[q][0] != q || all[q][1] != (double)n || all[q][2] != round)
                    return error_set(err, ERR_DATA, "what rank %d gave is not what came", q);
        }
    for (int64_t i = 0; i < 2000; i++) {    // fast ones, so that a rank that runs ahead would be seen
        int64_t mine = i * n_rank + rank, all[RANKS];
        if (!collective_gather(c, &mine, sizeof mine, all, err))
            return false;
        for (int q = 0; q < n_rank; q++)
            if (all[q] != i * n_rank + q)
                return error_set(err, ERR_DATA, "gathering %" PRId64 ": rank %d is ahead or behind", i, q);
    }
    return true;
}

static void sums_are_made_in_rank_order(UNUSED void **state)
{
    for (int n_rank = 1; n_rank <= RANKS; n_rank++) {
        pid_t pid[RANKS];
        call("sums");
        for (int r = 0; r < n_rank; r++)
            pid[r] = rank_start("sums", r, n_rank, LIMIT_MS, sums_and_more);
        ranks_end(pid, n_rank);
        assert_no_name_is_left();
    }
}

/* One of each call, from memory that the others cannot read. */
static bool turn_take(struct collective *c, struct error *err)
{
    static float x[9000], sum[9000];
    int64_t mine = 0, all[RANKS];
    return collective_gather(c, &mine, sizeof mine, all, err) && collective_reduce(c, sum, x, ARRAY_SIZE(x), RANKS, err)
           && collective_all_gather(c, x, sum, ARRAY_SIZE(x), err);
}

static bool takes_turns_until_closed(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t began = clock_ms();
    while (turn_take(c, err))
        ;
    if (err->code != ERR_CLOSED)
        return error_wrap(err, "not closed, but");
    if (clock_ms() - began > LIMIT_MS / 2)
        return error_set(err, ERR_TIMEOUT, "a limit was waited for");
    return !turn_take(c, err);    // and it stays closed
}

/* Dies somewhere in the calls of the others: its own are cut short after so many. */
static bool stands_still(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t mine = 0, all[RANKS];
    for (int i = 0; i < 10; i++)
        if (!turn_take(c, err))
            return false;
    if (collective_rank(c) > 0 && !collective_gather(c, &mine, sizeof mine, all, err))
        return false;    // the others are in the sum already
    kill(getpid(), SIGKILL);
    return false;
}

static bool leaves(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t mine = 0, all[RANKS];
    return collective_gather(c, &mine, sizeof mine, all, err);
}

static void the_others_leave_when_a_rank_dies_or_leaves(UNUSED void **state)
{
    for (int dies = 0; dies < 2; dies++)
        for (int victim = 0; victim < RANKS; victim++) {
            pid_t pid[RANKS];
            int n = 0, status;
            call("deaths");
            pid_t lost = rank_start("deaths", victim, RANKS, LIMIT_MS, dies ? stands_still : leaves);
            for (int r = 0; r < RANKS; r++)
                if (r != victim)
                    pid[n++] = rank_start("deaths", r, RANKS, LIMIT_MS, takes_turns_until_closed);
            ranks_end(pid, n);
            assert_int_equal(waitpid(lost, &status, 0), lost);
            assert_true(dies ? WIFSIGNALED(status) : WIFEXITED(status));
            assert_no_name_is_left();
        }
}

static char *page;    // that parent and ranks share

static bool reads_for_a_while(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t mine = 0, all[2];
    c->kind->reads(c, true);
    if (!collective_gather(c, &mine, sizeof mine, all, err))
        return false;
    for (int i = 0; i < 3; i++)    // the reading itself: some waits that end when the other one leaves, or by their limit
        (void)!collective_gather(c, &mine, sizeof mine, all, err);
    *page = 1;
    c->kind->reads(c, false);
    return true;
}

static bool dies_reading(struct collective *c, UNUSED struct device *dev, struct error *err)
{
    int64_t mine = 0, all[2];
    c->kind->reads(c, true);
    if (!collective_gather(c, &mine, sizeof mine, all, err))
        return false;
    kill(getpid(), SIGKILL);
    return false;
}

/* What a rank has offered may be freed when it has left; so it must not leave while another one reads. */
static void a_rank_leaves_when_nobody_reads_its_memory_any_more(UNUSED void **state)
{
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    for (int dies = 0; dies < 2; dies++) {
        struct error err = { 0 };
        struct device *dev = device_new("ref", 1, &err);
        int64_t mine = 0, all[2];
        int status;
        call("reading");
        pid_t pid = rank_start("reading", 1, 2, LIMIT_MS, dies ? dies_reading : reads_for_a_while);
        struct collective *c = join(dev, "reading", 0, 2, LIMIT_MS, NULL, &err);
        if (!c || !collective_gather(c, &mine, sizeof mine, all, &err))
            fail_msg("%s", err.text);
        if (dies) {    // ended, and not waited for by its parent: it reads no more
            siginfo_t info;
            assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
        }
        int64_t began = clock_ms();
        collective_leave(c);
        assert_true(dies ? clock_ms() - began < 2500 : *page == 1);    // a dead one is not waited for: 5 s
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(dies ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
        device_free(dev);
    }
    munmap(page, 4096);
    assert_no_name_is_left();
}

static bool is_late(UNUSED struct collective *c, UNUSED struct device *dev, UNUSED struct error *err)
{
    pause();    // until it is killed
    return false;
}

static void a_rank_that_does_not_come_is_named_and_waited_for_only_so_long(UNUSED void **state)
{
    struct error err = { 0 };
    struct told told = { .worst = -1 };
    struct device *dev = device_new("ref", 1, &err);
    int64_t mine = 0, all[2];
    int status;
    call("late");
    pid_t pid = rank_start("late", 1, 2, LIMIT_MS, is_late);
    struct collective *c = join(dev, "late", 0, 2, 400, &told, &err);
    if (!c)
        fail_msg("%s", err.text);
    told.n = 0;
    assert_false(collective_gather(c, &mine, sizeof mine, all, &err));
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 1 "));
    assert_int_equal(told.worst, 1);
    assert_int_equal(told.last, -1);    // told that it waits, and that it no longer does
    assert_int_equal(told.n, 2);
    collective_leave(c);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    device_free(dev);
    assert_no_name_is_left();
}

static void a_meeting_can_be_called_off_and_is_not_joined_uncalled(UNUSED void **state)
{
    struct error err = { 0 };
    struct device *dev = device_new("ref", 1, &err);
    assert_null(join(dev, "uncalled", 0, 2, LIMIT_MS, NULL, &err));
    assert_int_equal(err.code, ERR_CLOSED);
    call("off");
    int status, link[2];
    assert_int_equal(pipe(link), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char go;    // called off before the other joins, or while it waits: both end it the same way
        _exit(read(link[0], &go, 1) == 1 ? (collective_call_off(dir, "off"), 0) : 1);
    }
    assert_int_equal(write(link[1], "x", 1), 1);
    assert_null(join(dev, "off", 0, 2, LIMIT_MS, NULL, &err));
    assert_int_equal(err.code, ERR_CLOSED);
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    close(link[0]);
    close(link[1]);
    device_free(dev);
    assert_no_name_is_left();
}

static void a_place_is_taken_once_and_all_count_the_same(UNUSED void **state)
{
    static const struct {
        int rank, n_rank;
        enum error_code want;
    } cases[] = { { 1, 3, ERR_USAGE }, { 0, 2, ERR_EXISTS }, { 2, 2, ERR_USAGE }, { -1, 2, ERR_USAGE }, { 0, 65, ERR_USAGE } };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        int status, link[2];
        char there;
        call("places");
        assert_int_equal(pipe(link), 0);
        pid_t pid = fork();
        if (pid == 0) {
            struct device *dev = device_new("ref", 1, &err);
            struct collective_config c = {
                .kind = "local", .dir = dir, .name = "places", .rank = 0, .n_rank = 2, .dev = dev, .join_ms = LIMIT_MS, .wait_ms = LIMIT_MS
            };
            close(link[0]);
            pid_t inner = fork();
            if (inner == 0) {    // looks until rank 0 has joined: the mapped file holds what it has reached at byte 64
                char path[400];
                struct error none;
                struct file_map map = { 0 };
                snprintf(path, sizeof path, "%s/places", dir);
                while (file_map_open(&map, path, &none) && (map.size_bytes == 0 || map.data[0] == 0 || map.data[64] == 0)) {
                    file_map_close(&map);
                    usleep(1000);
                }
                file_map_close(&map);
                _exit(write(link[1], "x", 1) == 1 ? 0 : 1);
            }
            struct collective *none = collective_join(&c, &err);
            waitpid(inner, &status, 0);
            _exit(!none && err.code == ERR_CLOSED ? 0 : 1);
        }
        close(link[1]);
        assert_int_equal(read(link[0], &there, 1), 1);
        close(link[0]);
        struct device *dev = device_new("ref", 1, &err);
        assert_null(join(dev, "places", cases[i].rank, cases[i].n_rank, LIMIT_MS, NULL, &err));
        assert_int_equal(err.code, cases[i].want);
        collective_call_off(dir, "places");
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
        device_free(dev);
        assert_no_name_is_left();
    }
}

static int dir_open(UNUSED void **state)
{
    snprintf(dir, sizeof dir, "/tmp/rc-collective-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int dir_close(UNUSED void **state)
{
    struct error err;
    return dir_remove(dir, &err) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_made_in_rank_order),
        cmocka_unit_test(the_others_leave_when_a_rank_dies_or_leaves),
        cmocka_unit_test(a_rank_leaves_when_nobody_reads_its_memory_any_more),
        cmocka_unit_test(a_rank_that_does_not_come_is_named_and_waited_for_only_so_long),
        cmocka_unit_test(a_meeting_can_be_called_off_and_is_not_joined_uncalled),
        cmocka_unit_test(a_place_is_taken_once_and_all_count_the_same),
    };
    return cmocka_run_group_tests(tests, dir_open, dir_close);
}
