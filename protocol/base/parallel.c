#include "protocol/base/parallel.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include "protocol/base/macros.h"
#include "protocol/base/thread.h"

#define THREADS_MAX 64

struct loop {
    int64_t n;
    _Atomic int64_t next;
    void (*body)(void *ctx, int64_t i);
    void *ctx;
};

static void *loop_run(void *arg)
{
    struct loop *l = arg;
    for (int64_t i; (i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < l->n;)
        l->body(l->ctx, i);
    return NULL;
}

void parallel_run(int64_t n, int n_thread, void (*body)(void *ctx, int64_t i), void *ctx)
{
    pthread_t thread[THREADS_MAX];
    int started = 0;
    struct loop l = { .n = n, .body = body, .ctx = ctx };
    int64_t n_cpu = MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L), most = MIN(MIN(n_thread > 0 ? n_thread : n_cpu, n_cpu), (int64_t)THREADS_MAX);
    while (started + 1 < MIN(n, most) && thread_start(&thread[started], loop_run, &l) == 0)
        started++;
    loop_run(&l);
    while (started > 0)
        pthread_join(thread[--started], NULL);
}
