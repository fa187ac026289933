/* The threads of a CPU device: every piece of a job runs once, work that is too little stays where it is, and nobody waits for a thread
 * that does not come.
 * tags: tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "kernels/cpu/pool.h"
#include "protocol/base/macros.h"
#define PLENTY INT64_C(1000000000)    // ns of work: every thread is worth waking
#define PIECES 1000

struct seen {
    atomic_int run[PIECES], by[8];
    int n_thread;
};
static void piece_count(void *arg, int64_t piece, int thread)
{
    struct seen *s = arg;
    if (thread < 0 || thread >= s->n_thread)
        abort();    // cmocka's checks end the thread they are on
    atomic_fetch_add(&s->run[piece], 1);
    atomic_fetch_add(&s->by[thread], 1);
}

static void every_piece_runs_once_for_any_number_of_threads_and_pieces(UNUSED void **state)
{
    static const int threads[] = { 1, 2, 3, 8 };
    static const int64_t pieces[] = { 0, 1, 2, 3, 7, PIECES }, work[] = { 0, 6000, 50000, PLENTY };
    for (size_t k = 0; k < ARRAY_SIZE(threads); k++) {
        struct error err;
        struct pool *p = pool_new(threads[k], &err);
        assert_non_null(p);
        for (size_t i = 0; i < ARRAY_SIZE(pieces) * ARRAY_SIZE(work); i++) {
            int64_t n = pieces[i / ARRAY_SIZE(work)], n_run = 0;
            struct seen s = { .n_thread = threads[k] };
            pool_run(p, piece_count, &s, n, work[i % ARRAY_SIZE(work)]);
            for (int64_t j = 0; j < PIECES; j++) {
                assert_int_equal(s.run[j], j < n);
                n_run += s.run[j];
            }
            assert_int_equal(n_run, n);
        }
        pool_free(p);
    }
}

/* Two pieces that wait for each other: two threads must have come. */
struct meeting {
    atomic_int n_here;
    pthread_t thread[2];    // of the caller, and the other
};
static void piece_meet(void *arg, UNUSED int64_t piece, int thread)
{
    struct meeting *m = arg;
    sigset_t hold;
    sigemptyset(&hold);
    sigaddset(&hold, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &hold, NULL);    // with which a test holds this thread; it takes no others
    m->thread[thread] = pthread_self();
    atomic_fetch_add(&m->n_here, 1);
    while (atomic_load(&m->n_here) < 2)
        sched_yield();
}

static void little_work_stays_on_the_callers_thread_and_more_is_shared(UNUSED void **state)
{
    struct error err;
    struct pool *p = pool_new(2, &err);
    struct meeting m = { 0 };
    assert_non_null(p);
    pool_run(p, piece_meet, &m, 2, PLENTY);    // the other thread is there, and spins
    assert_false(pthread_equal(m.thread[0], m.thread[1]));
    struct seen s = { .n_thread = 2 };
    pool_run(p, piece_count, &s, PIECES, 1000);
    assert_int_equal(s.by[0], PIECES);
    usleep(20000);    // so long nobody spins; it is woken
    m.n_here = 0;
    pool_run(p, piece_meet, &m, 2, PLENTY);
    pool_free(p);
}

/* Pipes on which a thread that is held says that it is, and waits to be let go. */
static int held[2], release[2];
static void thread_hold(UNUSED int sig)
{
    char c = 0;
    if (write(held[1], &c, 1) != 1 || read(release[0], &c, 1) != 1)
        abort();
}

static void a_thread_that_does_not_come_is_not_waited_for(UNUSED void **state)
{
    struct error err;
    struct pool *p = pool_new(2, &err);
    struct meeting m = { 0 };
    struct sigaction hold = { .sa_handler = thread_hold }, before;
    char c = 0;
    assert_non_null(p);
    assert_true(pipe(held) == 0 && pipe(release) == 0 && sigaction(SIGUSR1, &hold, &before) == 0);
    pool_run(p, piece_meet, &m, 2, PLENTY);
    assert_int_equal(pthread_kill(m.thread[1], SIGUSR1), 0);
    assert_int_equal(read(held[0], &c, 1), 1);    // between jobs, as if another process had its core
    alarm(20);                                    // instead of forever
    struct seen s = { .n_thread = 2 };
    for (int i = 0; i < 3; i++)
        pool_run(p, piece_count, &s, PIECES, PLENTY);
    alarm(0);
    assert_int_equal(s.by[0], 3 * PIECES);
    assert_int_equal(write(release[1], &c, 1), 1);
    m.n_here = 0;
    pool_run(p, piece_meet, &m, 2, PLENTY);    // and it is there again
    pool_free(p);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
    for (int i = 0; i < 2; i++) {
        close(held[i]);
        close(release[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_runs_once_for_any_number_of_threads_and_pieces),
        cmocka_unit_test(little_work_stays_on_the_callers_thread_and_more_is_shared),
        cmocka_unit_test(a_thread_that_does_not_come_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
