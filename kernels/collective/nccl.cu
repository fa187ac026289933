/* nccl.cu - comm.h between GPUs, by NCCL
 *
 * libnccl.so.2 is opened at run time, so that without it everything else still builds and runs; the few types of its interface that
 * are used are declared below (version 2.14 and later, the first with non-blocking communicators). NCCL_NVLS_ENABLE=0 is set before
 * it is opened: no NVLink multicast object is ever made.
 *
 * A broadcast of n buckets runs on two streams, so that NVLink never waits: copy (rank 0: src -> buf, bucket by bucket) and net (each
 * bucket is sent when it is copied; the first at once). With a non-blocking communicator a call may still be under way when it returns;
 * the next call, and the event after it, follow when ncclCommGetAsyncError says that it is done. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/collective/comm.h"
#include "protocol/base/clock.h"
#include "protocol/base/library.h"
#include "protocol/base/thread.h"
}

struct nccl_config {    // ncclConfig_t as of 2.14: later versions use their defaults for missing members
    size_t size;
    unsigned magic, version;
    int blocking, cga;
};
enum {
    NCCL_SUCCESS = 0,
    NCCL_IN_PROGRESS = 7,
    NCCL_UINT8 = 1,
    NCCL_MAGIC = (int)0xcafebeef,
    NCCL_CONFIG_VERSION = 21400,
};
typedef struct ncclComm *nccl_handle;
struct nccl_api {
    int (*get_unique_id)(struct comm_id *);
    int (*init_rank_config)(nccl_handle *, int n_rank, struct comm_id, int rank, struct nccl_config *);
    int (*abort)(nccl_handle);
    int (*async_error)(nccl_handle, int *state);
    int (*broadcast)(const void *src, void *dst, size_t n, int type, int root, nccl_handle, cudaStream_t);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *src, size_t n, int type, int to, nccl_handle, cudaStream_t);
    int (*recv)(void *dst, size_t n, int type, int from, nccl_handle, cudaStream_t);
    const char *(*error_string)(int);
    const char *(*last_error)(nccl_handle);
};
#define ABORT_LIMIT_MS                                                                                                                     \
    30000    // for an abort and the kernels that it ends; milliseconds where NCCL works (issues 549, 992 of it: it may hang)
#define ABORT_POLL_NS 1000000
enum phase {
    PHASE_JOINING,
    PHASE_IDLE,
    PHASE_SENDING,
    PHASE_EXCHANGING,
};
struct nccl_comm {
    struct comm base;    // first
    const struct nccl_api *api;
    nccl_handle handle;
    enum phase phase;
    cudaStream_t copy, net;
    cudaEvent_t copied, first, arrived;    // bucket 0 has arrived first
    struct comm_broadcast job;
    int n_bucket, at;    // buckets in the job; the current bucket
    bool issued;         // its call is under way
    bool closed;         // all calls are, and the event at the end is recorded
};

/* The library, or NULL with the reason. */
static const struct nccl_api *nccl_open(struct error *err)
{
    static struct nccl_api api;
    static const struct {
        const char *name;
        size_t at;
    } entry[] = {
        { "ncclGetUniqueId", offsetof(struct nccl_api, get_unique_id) },
        { "ncclCommInitRankConfig", offsetof(struct nccl_api, init_rank_config) },
        { "ncclCommAbort", offsetof(struct nccl_api, abort) },
        { "ncclCommGetAsyncError", offsetof(struct nccl_api, async_error) },
        { "ncclBroadcast", offsetof(struct nccl_api, broadcast) },
        { "ncclGroupStart", offsetof(struct nccl_api, group_start) },
        { "ncclGroupEnd", offsetof(struct nccl_api, group_end) },
        { "ncclSend", offsetof(struct nccl_api, send) },
        { "ncclRecv", offsetof(struct nccl_api, recv) },
        { "ncclGetErrorString", offsetof(struct nccl_api, error_string) },
        { "ncclGetLastError", offsetof(struct nccl_api, last_error) },
    };
    char host[32];
    snprintf(host, sizeof host, "%d", (int)getpid());
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    if (getenv("RC_CUDA_CARDS"))    // NCCL refuses a card that two ranks of a host name, and takes them where each is a host of its own
        setenv("NCCL_HOSTID", host, 0);
    struct error why;
    void *lib = library_open_nccl(&why);
    if (!lib) {
        error_set(err, ERR_UNSUPPORTED, "NCCL cannot be opened: %s; RC_NCCL may name libnccl.so.2", why.text);
        return NULL;
    }
    for (size_t i = 0; i < ARRAY_SIZE(entry); i++) {
        void *at = dlsym(lib, entry[i].name);
        if (!at) {
            error_set(err, ERR_UNSUPPORTED, "libnccl.so.2 has no %s: it is older than 2.14", entry[i].name);
            return NULL;
        }
        memcpy((char *)&api + entry[i].at, &at, sizeof at);    // every writer writes the same values
    }
    return &api;
}

static struct nccl_comm *nccl_of(struct comm *c)
{
    return (struct nccl_comm *)c;
}

static bool nccl_ok(const struct nccl_comm *c, int status, const char *what, struct error *err)
{
    if (status == NCCL_SUCCESS || status == NCCL_IN_PROGRESS)
        return true;
    return error_set(err, ERR_CLOSED, "NCCL: %s: %s (%.300s)", what, c->api->error_string(status), c->api->last_error(c->handle));
}

static bool nccl_available(struct device *, struct error *err)
{
    return nccl_open(err) != NULL;
}

static bool nccl_id_make(struct device *dev, struct comm_id *id, struct error *err)
{
    const struct nccl_api *api = nccl_open(err);
    if (!api || !cuda_ok(cudaSetDevice(dev->index), "NCCL", err))
        return false;
    int status = api->get_unique_id(id);
    return status == NCCL_SUCCESS || error_set(err, ERR_INTERNAL, "NCCL: naming a group: %s", api->error_string(status));
}

static void *abort_run(void *arg)
{
    struct nccl_comm *c = (struct nccl_comm *)arg;
    cudaSetDevice(c->base.dev->index);
    c->api->abort(c->handle);    // ends its kernels, including those that wait for a dead member
    return NULL;
}

/* The abort on a thread of its own, which may hang. False: it has not ended in time. */
static bool abort_wait(struct nccl_comm *c, int64_t end_ms)
{
    pthread_t thread;
    struct timespec end;
    end.tv_sec = end_ms / 1000;
    end.tv_nsec = end_ms % 1000 * 1000000;
    if (!c->handle)
        return true;
    if (thread_start(&thread, abort_run, c) != 0) {
        abort_run(c);
        return true;
    }
    return pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &end) == 0;
}

/* Until a stream is empty. False: not in time. */
static bool stream_wait(cudaStream_t stream, int64_t end_ms)
{
    struct timespec moment = { 0, ABORT_POLL_NS };
    while (stream && cudaStreamQuery(stream) == cudaErrorNotReady) {
        if (clock_ms() >= end_ms)
            return false;
        nanosleep(&moment, NULL);
    }
    return true;
}

/* What does not end uses memory that the caller is about to free, so this process ends instead; its agent starts it again, to the same
 * bytes. */
static void nccl_free(struct comm *base)
{
    struct nccl_comm *c = nccl_of(base);
    int64_t end_ms = clock_ms() + ABORT_LIMIT_MS;
    cudaSetDevice(base->dev->index);
    BUG_IF(!abort_wait(c, end_ms), "NCCL: its abort on %s has not ended in %d s", base->dev->name, ABORT_LIMIT_MS / 1000);
    cudaStream_t streams[] = { c->copy, c->net };
    for (size_t i = 0; i < ARRAY_SIZE(streams); i++) {
        BUG_IF(!stream_wait(streams[i], end_ms), "NCCL: its kernels on %s have not ended %d s after an abort", base->dev->name,
               ABORT_LIMIT_MS / 1000);
        if (streams[i])
            cudaStreamDestroy(streams[i]);
    }
    cudaEvent_t events[] = { c->copied, c->first, c->arrived };
    for (size_t i = 0; i < ARRAY_SIZE(events); i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    (void)cudaGetLastError();
    free(c);
}

static struct comm *nccl_new(struct device *dev, const struct comm_id *id, int n_rank, int rank, struct error *err)
{
    struct nccl_config config = { sizeof config, (unsigned)NCCL_MAGIC, NCCL_CONFIG_VERSION, 0, INT_MIN };
    const struct nccl_api *api = nccl_open(err);
    struct nccl_comm *c = api ? (struct nccl_comm *)calloc(1, sizeof *c) : NULL;
    if (!c) {
        if (api)
            error_set(err, ERR_NO_MEMORY, "no memory for a communicator");
        return NULL;
    }
    c->base.op = &nccl_comm_ops;
    c->base.dev = dev;
    c->base.n_rank = n_rank;
    c->base.rank = rank;
    c->api = api;
    cudaSetDevice(dev->index);
    int high;    // highest priority: decoding on the same device would starve the sending
    bool ok = cuda_ok(cudaDeviceGetStreamPriorityRange(NULL, &high), "NCCL", err)
              && cuda_ok(cudaStreamCreateWithPriority(&c->copy, cudaStreamNonBlocking, high), "NCCL", err)
              && cuda_ok(cudaStreamCreateWithPriority(&c->net, cudaStreamNonBlocking, high), "NCCL", err)
              && cuda_ok(cudaEventCreateWithFlags(&c->copied, cudaEventDisableTiming), "NCCL", err)
              && cuda_ok(cudaEventCreateWithFlags(&c->first, cudaEventDisableTiming), "NCCL", err)
              && cuda_ok(cudaEventCreateWithFlags(&c->arrived, cudaEventDisableTiming), "NCCL", err)
              && nccl_ok(c, api->init_rank_config(&c->handle, n_rank, *id, rank, &config), "joining a group", err);
    if (!ok) {
        nccl_free(&c->base);
        return NULL;
    }
    return &c->base;
}

static bool nccl_broadcast(struct comm *base, const struct comm_broadcast *b, struct error *err)
{
    struct nccl_comm *c = nccl_of(base);
    if (c->phase != PHASE_IDLE)
        return error_set(err, ERR_INTERNAL, "NCCL: a broadcast was begun while something else is under way");
    cudaSetDevice(base->dev->index);
    int n = (int)((b->size_bytes + b->bucket_bytes - 1) / b->bucket_bytes);
    c->job = *b;
    c->n_bucket = n;
    c->at = 0;
    c->issued = c->closed = false;
    c->phase = PHASE_SENDING;
    return true;
}

static size_t bucket_bytes(const struct nccl_comm *c, int k)
{
    size_t from = (size_t)k * c->job.bucket_bytes;
    return MIN(c->job.bucket_bytes, c->job.size_bytes - from);
}

/* Send or receive bucket `at` with NCCL, after its copy. The first one is sent directly from src, and NCCL copies it. */
static int bucket_begin(struct nccl_comm *c, struct error *err)
{
    size_t from = (size_t)c->at * c->job.bucket_bytes;
    char *buf = (char *)c->job.buf + from;
    if (c->job.src && c->at > 0
        && (!cuda_ok(cudaMemcpyAsync(buf, (const char *)c->job.src + from, bucket_bytes(c, c->at), cudaMemcpyDeviceToDevice, c->copy),
                     "NCCL", err)
            || !cuda_ok(cudaEventRecord(c->copied, c->copy), "NCCL", err)
            || !cuda_ok(cudaStreamWaitEvent(c->net, c->copied, 0), "NCCL", err)))
        return -1;
    int status = c->api->broadcast(c->job.src && c->at == 0 ? c->job.src : buf, buf, bucket_bytes(c, c->at), NCCL_UINT8, 0, c->handle,
                                   c->net);
    return nccl_ok(c, status, "broadcast", err) ? status : -1;
}

/* The call is done, so the transfer is in the stream. */
static bool bucket_end(struct nccl_comm *c, struct error *err)
{
    c->issued = false;
    return c->at++ > 0 || cuda_ok(cudaEventRecord(c->first, c->net), "NCCL", err);
}

/* All calls are done: has what they asked for come? */
static enum comm_state end_look(struct nccl_comm *c, struct error *err)
{
    if (!c->closed && !cuda_ok(cudaEventRecord(c->arrived, c->net), "NCCL", err))
        return COMM_FAILED;
    c->closed = true;
    cudaError_t status = cudaEventQuery(c->arrived);
    if (status == cudaErrorNotReady)
        return COMM_BUSY;
    if (!cuda_ok(status, "NCCL", err))
        return COMM_FAILED;
    c->phase = PHASE_IDLE;
    return COMM_READY;
}

static enum comm_state send_go_on(struct nccl_comm *c, struct error *err)
{
    if (c->issued && !bucket_end(c, err))
        return COMM_FAILED;
    while (c->at < c->n_bucket) {
        int status = bucket_begin(c, err);
        if (status < 0)
            return COMM_FAILED;
        c->issued = true;
        if (status == NCCL_IN_PROGRESS)
            return COMM_BUSY;
        if (!bucket_end(c, err))
            return COMM_FAILED;
    }
    return end_look(c, err);
}

/* One group of sends and receives: NCCL makes one kernel of them. */
static bool nccl_exchange(struct comm *base, const struct comm_exchange *x, struct error *err)
{
    struct nccl_comm *c = nccl_of(base);
    if (c->phase != PHASE_IDLE)
        return error_set(err, ERR_INTERNAL, "NCCL: an exchange was begun while something else is under way");
    cudaSetDevice(base->dev->index);
    int status = c->api->group_start();
    for (int q = 0; q < base->n_rank && status == NCCL_SUCCESS; q++) {
        if (q == base->rank)
            continue;
        if (x->send_bytes[q] > 0)
            status = c->api->send(x->send[q], x->send_bytes[q], NCCL_UINT8, q, c->handle, c->net);
        if (x->recv_bytes[q] > 0 && (status == NCCL_SUCCESS || status == NCCL_IN_PROGRESS))
            status = c->api->recv(x->recv[q], x->recv_bytes[q], NCCL_UINT8, q, c->handle, c->net);
        status = status == NCCL_IN_PROGRESS ? NCCL_SUCCESS : status;
    }
    int end = c->api->group_end();    // also after a failure
    c->phase = PHASE_EXCHANGING;
    c->closed = false;
    return nccl_ok(c, status, "bytes from all to all", err) && nccl_ok(c, end, "bytes from all to all", err);
}

static enum comm_state nccl_poll(struct comm *base, struct error *err)
{
    struct nccl_comm *c = nccl_of(base);
    int state = NCCL_SUCCESS;
    cudaSetDevice(base->dev->index);
    if (!nccl_ok(c, c->api->async_error(c->handle, &state), "asking for the progress", err)
        || !nccl_ok(c, state,
                    c->phase == PHASE_JOINING   ? "joining a group"
                    : c->phase == PHASE_SENDING ? "broadcast"
                                                : "bytes from all to all",
                    err))
        return COMM_FAILED;
    if (state == NCCL_IN_PROGRESS)
        return COMM_BUSY;
    if (c->phase == PHASE_SENDING)
        return send_go_on(c, err);
    if (c->phase == PHASE_EXCHANGING)
        return end_look(c, err);
    c->phase = PHASE_IDLE;
    return COMM_READY;
}

static bool nccl_copied(struct comm *base)
{
    struct nccl_comm *c = nccl_of(base);
    cudaSetDevice(base->dev->index);
    return c->phase != PHASE_SENDING || !c->job.src
           || (c->at == c->n_bucket && cudaEventQuery(c->copied) == cudaSuccess && cudaEventQuery(c->first) == cudaSuccess);
}

extern const struct comm_ops nccl_comm_ops = {
    nccl_available, nccl_id_make, nccl_new, nccl_free, nccl_poll, nccl_broadcast, nccl_copied, nccl_exchange,
};
