#include "workers/http/http_job.h"
#include <stddef.h>
#include "protocol/base/error.h"

void http_job_init(struct http_job *j, void (*release)(struct http_job *j))
{
    j->id[0] = 0;
    j->done = false;
    j->wake = NULL;
    j->wake_arg = NULL;
    j->release = release;
    pthread_mutex_init(&j->lock, NULL);
    atomic_init(&j->n_ref, 1);
    atomic_init(&j->gone, false);
}

void http_job_hold(struct http_job *j)
{
    atomic_fetch_add(&j->n_ref, 1);
}

void http_job_drop(struct http_job *j)
{
    if (!j)
        return;
    int n_ref = atomic_fetch_sub(&j->n_ref, 1);
    BUG_IF(n_ref < 1, "a job is dropped once more than it was held");
    if (n_ref > 1)
        return;
    pthread_mutex_destroy(&j->lock);
    j->release(j);
}

void http_job_tell(struct http_job *j)
{
    if (j->wake)
        j->wake(j->wake_arg);
}
