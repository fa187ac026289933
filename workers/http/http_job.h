/* http_job.h - work that a request waits for
 *
 * Made by the thread that serves HTTP, finished by another one. Each of them holds a reference, and the last one to drop it frees the job.
 * Whoever makes jobs embeds this as the first member of a struct of its own. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct http_job {
    char id[48];                // that its client is told; "": none
    atomic_bool gone;           // its client has gone
    pthread_mutex_t lock;       // guards: the next three, and what the maker says
    bool done;                  // nothing more will be added
    void (*wake)(void *arg);    // called with the lock held when there is news. NULL: nobody waits
    void *wake_arg;
    atomic_int n_ref;
    void (*release)(struct http_job *j);    // frees the struct that it is in
};
/* A job with one reference. */
void http_job_init(struct http_job *j, void (*release)(struct http_job *j));
void http_job_hold(struct http_job *j);
void http_job_drop(struct http_job *j);    // NULL is fine
/* Tell whoever waits that there is news. Lock held. */
void http_job_tell(struct http_job *j);
