/* pool.c - threads that share one job at a time
 *
 * A job is open while its gate is, and pieces are taken from `next`. The state of a job:
 *   1. pool_run writes fn, arg, n_piece, next = 0, opens the gate, raises `epoch` and wakes as many sleepers as the work is worth.
 *   2. Each other thread that sees a new epoch, and the gate open, counts itself in, takes pieces until none is left, and counts itself out.
 *   3. pool_run takes pieces too, closes the gate when none is left, and waits until nobody is inside, so no thread touches a job that has
 *      ended. A thread that has not come by then is not waited for: another process may have its core. */
#include "kernels/cpu/pool.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "protocol/base/thread.h"
#define SPIN_ROUNDS 4000    // some 40 us: longer than the gap between two operations of a step
#define SHARE_NS 5000       // less work is not shared at all: handing it to a thread that spins costs a microsecond or two
#define WAKE_NS 20000       // work of each thread that is woken: that costs the caller up to 5 us, and the thread comes in 30 to 50
#define GATE_OPEN 0x80000000u

struct pool {
    int n_thread;
    pool_fn *fn;
    void *arg;
    int64_t n_piece;
    _Alignas(64) atomic_int_fast64_t next;
    _Alignas(64) atomic_uint epoch;
    atomic_int n_asleep;              // threads asleep in the kernel, waiting for epoch
    _Alignas(64) atomic_uint gate;    // GATE_OPEN, and how many other threads are inside
    atomic_int caller_asleep;
    atomic_bool stop;
    struct pool_thread {
        struct pool *pool;
        pthread_t thread;
        int index;
        bool started;
    } member[];    // (n_thread - 1)
};

static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void pieces_take(struct pool *p, int thread)
{
    for (;;) {
        int64_t piece = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (piece >= p->n_piece)
            return;
        p->fn(p->arg, piece, thread);
    }
}

/* Come into the job that is open. false: none is. */
static bool gate_enter(struct pool *p)
{
    unsigned gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    while (gate & GATE_OPEN)
        if (atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acquire, memory_order_relaxed))
            return true;
    return false;
}

static void gate_leave(struct pool *p)
{
    if (atomic_fetch_sub(&p->gate, 1) == 1 && atomic_load(&p->caller_asleep))
        futex_wake(&p->gate, 1);
}

static void *member_main(void *arg)
{
    struct pool_thread *self = arg;
    struct pool *p = self->pool;
    unsigned seen = 0;
    for (;;) {
        unsigned now = atomic_load_explicit(&p->epoch, memory_order_acquire);
        for (int i = 0; now == seen && i < SPIN_ROUNDS; i++) {
            cpu_relax();
            now = atomic_load_explicit(&p->epoch, memory_order_acquire);
        }
        while (now == seen) {
            atomic_fetch_add(&p->n_asleep, 1);
            futex_wait(&p->epoch, seen);
            atomic_fetch_sub(&p->n_asleep, 1);
            now = atomic_load_explicit(&p->epoch, memory_order_acquire);
        }
        seen = now;
        if (atomic_load(&p->stop))
            return NULL;
        if (gate_enter(p)) {
            pieces_take(p, self->index);
            gate_leave(p);
        }
    }
}

/* Let the threads that spin know, and wake others until n work together, if there are that many. */
static void epoch_raise(struct pool *p, int64_t n)
{
    atomic_fetch_add(&p->epoch, 1);
    int n_asleep = atomic_load(&p->n_asleep);
    int64_t n_wake = n - (p->n_thread - n_asleep);
    if (n_asleep > 0 && n_wake > 0)
        futex_wake(&p->epoch, (int)n_wake);
}

struct pool *pool_new(int n_thread, struct error *err)
{
    struct pool *p = NULL;
    if (n_thread < 1 || n_thread > 256) {
        error_set(err, ERR_USAGE, "%d threads for a CPU device; 1 to 256 are possible", n_thread);
        return NULL;
    }
    size_t size_bytes = (sizeof *p + (size_t)n_thread * sizeof p->member[0] + 63) / 64 * 64;
    p = aligned_alloc(64, size_bytes);
    if (!p) {
        error_set(err, ERR_NO_MEMORY, "no memory for %d threads", n_thread);
        return NULL;
    }
    *p = (struct pool){ .n_thread = n_thread };
    for (int i = 0; i < n_thread - 1; i++)
        p->member[i] = (struct pool_thread){ .pool = p, .index = i + 1 };
    for (int i = 0; i < n_thread - 1; i++) {
        if (thread_start(&p->member[i].thread, member_main, &p->member[i]) != 0) {
            error_set(err, ERR_IO, "cannot start thread %d of %d of a CPU device", i + 1, n_thread);
            pool_free(p);
            return NULL;
        }
        p->member[i].started = true;
    }
    return p;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    epoch_raise(p, p->n_thread);
    for (int i = 0; i < p->n_thread - 1; i++)
        if (p->member[i].started)
            pthread_join(p->member[i].thread, NULL);
    free(p);
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t n_piece, int64_t work_ns)
{
    if (p->n_thread == 1 || n_piece <= 1 || work_ns < SHARE_NS) {
        for (int64_t i = 0; i < n_piece; i++)
            fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_piece = n_piece;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store(&p->gate, GATE_OPEN);
    epoch_raise(p, MIN(MIN(n_piece, p->n_thread), work_ns / WAKE_NS));
    pieces_take(p, 0);
    unsigned inside = atomic_fetch_and(&p->gate, ~GATE_OPEN) & ~GATE_OPEN;
    for (int i = 0; inside && i < SPIN_ROUNDS; i++) {
        cpu_relax();
        inside = atomic_load_explicit(&p->gate, memory_order_acquire);
    }
    if (!inside)
        return;
    atomic_store(&p->caller_asleep, 1);
    while ((inside = atomic_load(&p->gate)) != 0)
        futex_wait(&p->gate, inside);
    atomic_store(&p->caller_asleep, 0);
}
