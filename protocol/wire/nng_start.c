#include "protocol/wire/nng_start.h"
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/thread.h"

/* nng 1.5.2: two threads a processor that carry out tasks, 16 at most, and 9 more; and a few of ours that follow. */
#define TASK_THREADS_MAX 16
#define OTHER_THREADS 9
#define OWN_THREADS 4
#define THREADS_MAX (TASK_THREADS_MAX + OTHER_THREADS + OWN_THREADS)
#define FILES 10
#define START_MS 10000
#define ARENAS_BYTES (8LL << 30)    // address space that the arenas of glibc 2.36 take at most: 64 MiB each, eight a processor, on 16

static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;    // guards: started, broken
static bool started, broken;                                // as nng itself: once a process

struct trial {
    pthread_mutex_t lock;    // guards: over
    pthread_cond_t end;
    bool over;
};

static void *trial_wait(void *arg)
{
    struct trial *t = arg;
    pthread_mutex_lock(&t->lock);
    while (!t->over)
        pthread_cond_wait(&t->end, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* Can this many threads be there at once? */
static bool threads_try(int n, struct error *err)
{
    struct trial t = { .lock = PTHREAD_MUTEX_INITIALIZER, .end = PTHREAD_COND_INITIALIZER };
    pthread_t thread[THREADS_MAX];
    int k = 0, rv = 0;
    while (k < n && (rv = thread_start(&thread[k], trial_wait, &t)) == 0)
        k++;
    pthread_mutex_lock(&t.lock);
    t.over = true;
    pthread_cond_broadcast(&t.end);
    pthread_mutex_unlock(&t.lock);
    for (int i = 0; i < k; i++)
        pthread_join(thread[i], NULL);
    return rv == 0
           || error_set(err, ERR_NO_MEMORY,
                        "this process needs %d threads to talk to others and can start %d: %s; raise the limit of processes ('ulimit -u', "
                        "pids.max) or of memory ('ulimit -v')",
                        n, k, strerror(rv));
}

/* nng's own descriptors at its start, and the first sockets' */
static bool files_try(struct error *err)
{
    int fd[FILES], n = 0;
    while (n < FILES && (fd[n] = eventfd(0, EFD_CLOEXEC)) >= 0)
        n++;
    int why = errno;
    for (int i = 0; i < n; i++)
        close(fd[i]);
    return n == FILES
           || error_set(err, ERR_NO_MEMORY,
                        "this process needs %d open files to talk to others and can have %d: %s; raise the limit ('ulimit -n')", FILES, n,
                        strerror(why));
}

struct start {
    pthread_mutex_t lock;    // guards: done, rv
    pthread_cond_t end;
    bool done;
    int rv;
};

static void *socket_make(void *arg)
{
    struct start *s = arg;
    nng_socket socket;
    int rv = nng_req0_open(&socket);
    if (rv == 0)
        nng_close(socket);
    pthread_mutex_lock(&s->lock);
    s->rv = rv;
    s->done = true;
    pthread_cond_signal(&s->end);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Make a first socket. What a thread that never comes back uses is never freed. */
static bool first_socket(struct error *err)
{
    static struct start s = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct timespec end = clock_after(START_MS);
    pthread_t thread;
    clock_cond_init(&s.end);
    int rv = thread_start(&thread, socket_make, &s);
    if (rv != 0)
        return error_set(err, ERR_NO_MEMORY, "no thread can be started: %s", strerror(rv));
    pthread_detach(thread);
    pthread_mutex_lock(&s.lock);
    while (!s.done && pthread_cond_timedwait(&s.end, &s.lock, &end) == 0)
        ;
    bool done = s.done;
    rv = s.rv;
    pthread_mutex_unlock(&s.lock);
    if (done && rv == 0)
        return true;
    return error_set(err, ERR_NO_MEMORY,
                     "nng could not start its threads: %s; raise the limit of processes ('ulimit -u', pids.max) or of "
                     "memory ('ulimit -v')",
                     done ? nng_strerror(rv) : "it has not come back in 10 s");
}

/* Where address space is short, each thread that allocates would take 64 MiB of it, and stacks that the trial has found room for would
 * have none. Then all threads share one arena. */
static void address_space_spare(void)
{
    struct rlimit space;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < ARENAS_BYTES)
        mallopt(M_ARENA_MAX, 1);
}

bool nng_start(struct error *err)
{
    long n_cpu = sysconf(_SC_NPROCESSORS_ONLN);
    int n = (int)MIN(2 * MAX(n_cpu, 1L), (long)TASK_THREADS_MAX) + OTHER_THREADS + OWN_THREADS;
    pthread_mutex_lock(&once);
    if (!started)
        address_space_spare();
    if (broken)
        error_set(err, ERR_NO_MEMORY, "nng could not start its threads");
    else if (!started && files_try(err) && threads_try(n, err) && !(started = first_socket(err)))
        broken = true;
    bool ok = started;
    pthread_mutex_unlock(&once);
    return ok;
}
