/* device.cu - opening a CUDA device, its memory, its graphs; the library's one exported symbol is rc_ops_cuda */
#include "kernels/cuda/meet.cuh"
#include <stdio.h>
#include <stdlib.h>
#define WORKSPACE_BYTES ((size_t)64 << 20)
#define TURN_BYTES 256
#ifdef RC_CUDA_HOPPER    // machine code for sm_90a is built
#define HOPPER_BUILT true
#else
#define HOPPER_BUILT false
#endif

struct graph {
    cudaGraphExec_t exec;
};
struct mark {
    cudaEvent_t event;
};

void *cuda_scratch(struct cuda_device *cu, size_t size_bytes, const char *op, struct error *err)
{
    if (size_bytes <= cu->scratch_bytes)
        return cu->scratch;
    if (cu->base.recording) {
        error_set(err, ERR_FULL, "%s: needs %zu bytes of scratch while a graph is recorded; run it once before", op, size_bytes);
        return NULL;
    }
    /* recorded graphs hold the old piece's address, so it stays; through doubling, all old pieces together take no more than the
     * last one */
    size_t wanted = size_bytes > 2 * cu->scratch_bytes ? size_bytes : 2 * cu->scratch_bytes,
           rounded = (wanted + 0xfffff) & ~(size_t)0xfffff;
    void *next = NULL;
    if (cu->n_old == ARRAY_SIZE(cu->old) || !cuda_ok(cudaMalloc(&next, rounded), op, err)) {
        if (cu->n_old == ARRAY_SIZE(cu->old))
            error_set(err, ERR_FULL, "%s: scratch has already grown %d times", op, cu->n_old);
        return NULL;
    }
    if (cu->scratch)
        cu->old[cu->n_old++] = cu->scratch;
    cu->scratch = next;
    cu->scratch_bytes = rounded;
    return cu->scratch;
}

/* The node that the next one recorded depends on, if that is only one, else NULL. */
static cudaGraphNode_t stream_tail(struct cuda_device *cu)
{
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *node = NULL;
    const cudaGraphEdgeData *edge = NULL;
    size_t n = 0;
#if CUDART_VERSION >= 13000
    bool known = cudaStreamGetCaptureInfo(cu->stream, &status, NULL, NULL, &node, &edge, &n) == cudaSuccess;
#else
    bool known = cudaStreamGetCaptureInfo_v3(cu->stream, &status, NULL, NULL, &node, &edge, &n) == cudaSuccess;
#endif
    return known && status == cudaStreamCaptureStatusActive && n == 1 ? node[0] : NULL;
}
bool cuda_early(struct cuda_device *cu)
{
    return cu->base.recording && cu->early && stream_tail(cu) == cu->early;
}
void cuda_early_note(struct cuda_device *cu)
{
    cu->early = cu->base.recording && cu->may_early ? stream_tail(cu) : NULL;
}

static void cuda_device_free(struct device *dev)
{
    struct cuda_device *cu = cuda_of(dev);
    if (cu->stream)
        cudaStreamSynchronize(cu->stream);
    cuda_plans_free(cu);
    cuda_pipes_close(cu);
    cuda_lanes_close(cu);
    if (cu->lt)
        cublasLtDestroy(cu->lt);
    cudaFree(cu->workspace);
    cudaFree(cu->turn);
    cudaFreeHost(cu->late);
    cudaFree(cu->scratch);
    for (int i = 0; i < cu->n_old; i++)
        cudaFree(cu->old[i]);
    if (cu->stream)
        cudaStreamDestroy(cu->stream);
    free(cu);
}

bool cuda_wait_ok(struct device *dev, cudaError_t status, const char *op, struct error *err)
{
    uint32_t late = *(volatile uint32_t *)cuda_of(dev)->late;
    if (status == cudaSuccess || late == 0)
        return cuda_ok(status, op, err);
    return error_set(err, ERR_INTERNAL, "%s: a step on %s waited %d s for device %u of its team, which did not come: CUDA says %s", op,
                     dev->name, MEET_LIMIT_S, late - 1, cudaGetErrorString(status));
}

static bool cuda_enter(struct device *dev, struct error *err)
{
    return cuda_ok(cudaSetDevice(dev->index), "choosing the device", err);
}

static bool cuda_reach(struct device *dev, struct device *other, bool *reach, struct error *err)
{
    int can = 0;
    *reach = dev->index == other->index;    // one card under two names, see card_of
    if (*reach)
        return true;
    if (!cuda_ok(cudaDeviceCanAccessPeer(&can, dev->index, other->index), "looking for a peer", err) || !cuda_enter(dev, err))
        return false;
    *reach = can != 0;
    cudaError_t status = can ? cudaDeviceEnablePeerAccess(other->index, 0) : cudaSuccess;
    if (status != cudaErrorPeerAccessAlreadyEnabled)
        return cuda_ok(status, "reaching a peer", err);
    (void)cudaGetLastError();
    return true;
}

static bool cuda_sync(struct device *dev, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    return cuda_wait_ok(dev, cudaStreamSynchronize(cu->stream), "waiting for the device", err)
           && (!cu->out || cuda_ok(cudaStreamSynchronize(cu->out), "waiting for the optimizer's state", err));
}

static struct mark *mark_make(struct device *dev, unsigned flags, struct error *err)
{
    struct mark *m = (struct mark *)calloc(1, sizeof *m);
    cudaSetDevice(dev->index);
    if (!m) {
        error_set(err, ERR_NO_MEMORY, "no memory for a mark");
    } else if (!cuda_ok(cudaEventCreateWithFlags(&m->event, flags), "mark_new", err)) {
        free(m);
        m = NULL;
    }
    return m;
}

static struct mark *cuda_mark_new(struct device *dev, struct error *err)
{
    return mark_make(dev, cudaEventDisableTiming, err);
}

static struct mark *cuda_mark_new_timed(struct device *dev, struct error *err)
{
    return mark_make(dev, cudaEventDefault, err);
}

static bool cuda_marks_apart(struct device *, struct mark *from, struct mark *to, double *s, struct error *err)
{
    float ms = 0;
    if (!cuda_ok(cudaEventElapsedTime(&ms, from->event, to->event), "looking at the device", err))
        return false;
    *s = (double)ms * 1e-3;
    return true;
}

static void cuda_mark_free(struct device *, struct mark *m)
{
    cudaEventDestroy(m->event);
    free(m);
}

static bool cuda_mark_set(struct device *dev, struct mark *m, struct error *err)
{
    return cuda_ok(cudaEventRecord(m->event, cuda_of(dev)->stream), "mark_set", err);
}

static bool cuda_mark_wait(struct device *dev, struct mark *m, struct error *err)
{
    return cuda_wait_ok(dev, cudaEventSynchronize(m->event), "waiting for the device", err);
}

static bool cuda_mark_done(struct device *dev, struct mark *m, bool *done, struct error *err)
{
    cudaError_t status = cudaEventQuery(m->event);
    *done = status == cudaSuccess;
    if (status == cudaErrorNotReady)
        (void)cudaGetLastError();
    return status == cudaErrorNotReady || cuda_wait_ok(dev, status, "looking at the device", err);
}

static bool cuda_lane_mark(struct device *dev, int lane, struct mark *m, struct error *err)
{
    cudaStream_t s = cuda_lane(cuda_of(dev), lane, err);
    return s && cuda_ok(cudaEventRecord(m->event, s), "lane_mark", err);
}

static bool cuda_lane_after(struct device *dev, int lane, struct mark *m, struct error *err)
{
    cudaStream_t s = cuda_lane(cuda_of(dev), lane, err);
    return s && cuda_ok(cudaStreamWaitEvent(s, m->event, 0), "lane_after", err);
}

static bool cuda_device_after(struct device *dev, struct mark *m, struct error *err)
{
    return cuda_ok(cudaStreamWaitEvent(cuda_of(dev)->stream, m->event, 0), "device_after", err);
}

static void *cuda_mem_new(struct device *dev, size_t size_bytes, const char *what, struct error *err)
{
    void *p = NULL;
    cudaSetDevice(dev->index);
    cudaError_t status = cudaMalloc(&p, size_bytes ? size_bytes : 1);
    if (status == cudaSuccess)
        return p;
    (void)cudaGetLastError();    // clear the error: the caller may ask for less
    error_set(err, ERR_NO_MEMORY, "%s: no device memory for %s: %zu bytes: %s", dev->name, what, size_bytes, cudaGetErrorString(status));
    return NULL;
}

static void cuda_mem_free(struct device *dev, void *p)
{
    cudaStreamSynchronize(cuda_of(dev)->stream);
    cudaFree(p);
}

static void *cuda_host_new(struct device *dev, size_t size_bytes, const char *what, struct error *err)
{
    void *p = NULL;
    cudaSetDevice(dev->index);
    if (cudaMallocHost(&p, size_bytes ? size_bytes : 1) == cudaSuccess)
        return p;
    (void)cudaGetLastError();
    error_set(err, ERR_NO_MEMORY, "no pinned memory for %s: %zu bytes", what, size_bytes);
    return NULL;
}

static void cuda_host_free(struct device *dev, void *p)
{
    cudaStreamSynchronize(cuda_of(dev)->stream);
    cudaFreeHost(p);
}

static bool cuda_host_pin(struct device *dev, void *p, size_t size_bytes, const char *what, struct error *err)
{
    cudaSetDevice(dev->index);
    if (size_bytes == 0 || cudaHostRegister(p, size_bytes, cudaHostRegisterDefault) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return error_set(err, ERR_NO_MEMORY, "no pinned memory for %s: %zu bytes", what, size_bytes);
}

static void cuda_host_unpin(struct device *dev, void *p)
{
    cudaStreamSynchronize(cuda_of(dev)->stream);
    if (cudaHostUnregister(p) != cudaSuccess)
        (void)cudaGetLastError();
}

static bool cuda_mem_info(struct device *dev, size_t *free_bytes, size_t *total_bytes, struct error *err)
{
    cudaSetDevice(dev->index);
    return cuda_ok(cudaMemGetInfo(free_bytes, total_bytes), "asking for free memory", err);
}

static bool cuda_mem_copy(struct device *dev, void *dst, const void *src, size_t size_bytes, enum copy_dir dir, struct error *err)
{
    static const cudaMemcpyKind kind[] = { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
    return cuda_ok(cudaMemcpyAsync(dst, src, size_bytes, kind[dir], cuda_of(dev)->stream), "copy", err);
}

static void *cuda_share_new(struct device *dev, size_t size_bytes, const char *what, struct mem_handle *h, struct error *err)
{
    cudaIpcMemHandle_t handle;
    static_assert(sizeof handle <= sizeof h->bytes, "a handle fits");
    size_t rounded = (size_bytes + ((size_t)2 << 20) - 1) & ~(((size_t)2 << 20) - 1);    // a handle covers whole pieces of 2 MiB
    void *p = cuda_mem_new(dev, rounded, what, err);
    if (p && !cuda_ok(cudaIpcGetMemHandle(&handle, p), "sharing memory with other processes", err)) {
        cudaFree(p);
        return NULL;
    }
    memset(h, 0, sizeof *h);
    memcpy(h->bytes, &handle, sizeof handle);
    return p;
}

static void cuda_share_free(struct device *dev, void *p, size_t, const struct mem_handle *)
{
    cuda_mem_free(dev, p);
}

static void *cuda_share_open(struct device *dev, const struct mem_handle *h, size_t, struct error *err)
{
    cudaIpcMemHandle_t handle;
    void *p = NULL;
    cudaSetDevice(dev->index);
    memcpy(&handle, h->bytes, sizeof handle);
    cudaError_t status = cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess);
    (void)cudaGetLastError();
    if (status == cudaErrorPeerAccessUnsupported || status == cudaErrorTooManyPeers) {
        error_set(err, ERR_UNSUPPORTED, "%s cannot reach the memory of another process's GPU: %s", dev->name, cudaGetErrorString(status));
        return NULL;
    }
    return cuda_ok(status, "opening another process's memory", err) ? p : NULL;
}

static void cuda_share_close(struct device *dev, const void *p, size_t)
{
    cudaStreamSynchronize(cuda_of(dev)->stream);
    cudaIpcCloseMemHandle((void *)p);
}

static bool cuda_graph_begin(struct device *dev, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    if (!cuda_ok(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal), "graph_begin", err))
        return false;
    cu->base.recording = true;
    cu->early = NULL;
    return true;
}

static struct graph *cuda_graph_end(struct device *dev, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    cudaGraph_t recorded = NULL;
    struct graph *g = NULL;
    cu->base.recording = false;
    if (!cuda_ok(cudaStreamEndCapture(cu->stream, &recorded), "graph_end", err))
        return NULL;
    g = (struct graph *)calloc(1, sizeof *g);
    if (!g) {
        error_set(err, ERR_NO_MEMORY, "no memory for a graph");
    } else if (!cuda_ok(cudaGraphInstantiate(&g->exec, recorded, 0), "graph_end", err)) {
        free(g);
        g = NULL;
    }
    cudaGraphDestroy(recorded);
    return g;
}

static bool cuda_graph_launch(struct device *dev, struct graph *g, struct error *err)
{
    return cuda_ok(cudaGraphLaunch(g->exec, cuda_of(dev)->stream), "graph_launch", err);
}

static void cuda_graph_free(struct device *dev, struct graph *g)
{
    cudaStreamSynchronize(cuda_of(dev)->stream);
    cudaGraphExecDestroy(g->exec);
    free(g);
}

static struct ops ops_table(void)
{
    struct ops t = {};
    t.device_free = cuda_device_free;
    t.device_enter = cuda_enter;
    t.device_reach = cuda_reach;
    t.device_sync = cuda_sync;
    t.mem_new = cuda_mem_new;
    t.mem_free = cuda_mem_free;
    t.host_new = cuda_host_new;
    t.host_free = cuda_host_free;
    t.host_pin = cuda_host_pin;
    t.host_unpin = cuda_host_unpin;
    t.mem_info = cuda_mem_info;
    t.mem_copy = cuda_mem_copy;
    t.mark_new = cuda_mark_new;
    t.mark_free = cuda_mark_free;
    t.mark_set = cuda_mark_set;
    t.mark_wait = cuda_mark_wait;
    t.mark_done = cuda_mark_done;
    t.mark_new_timed = cuda_mark_new_timed;
    t.marks_apart = cuda_marks_apart;
    t.lane_copy = cuda_lane_copy;
    t.lane_sum = cuda_lane_sum;
    t.lane_mark = cuda_lane_mark;
    t.lanes_sync = cuda_lanes_sync;
    t.lane_after = cuda_lane_after;
    t.device_after = cuda_device_after;
    t.mem_share_new = cuda_share_new;
    t.mem_share_free = cuda_share_free;
    t.mem_share_open = cuda_share_open;
    t.mem_share_close = cuda_share_close;
    t.comm = &nccl_comm_ops;
    t.weight_init = cuda_weight_init;
    t.weight_release = cuda_weight_release;
    t.weight_refresh = cuda_weight_refresh;
    t.product_choose = cuda_product_choose;
    t.linear_cost = cuda_linear_cost;
    t.graph_begin = cuda_graph_begin;
    t.graph_end = cuda_graph_end;
    t.graph_launch = cuda_graph_launch;
    t.graph_free = cuda_graph_free;
#define CUDA_ENTRY(name) t.name = name##_cuda;
    OPS_DENSE(CUDA_ENTRY)
    OPS_EXPERTS(CUDA_ENTRY)
    OPS_DELTA(CUDA_ENTRY)
    return t;
}

/* Obey RC_CUDA_PATH. hopper: in, whether card and build have Hopper's instructions; out, whether to use them. */
static bool path_choose(bool *hopper, int index, const char *card, struct error *err)
{
    const char *want = getenv("RC_CUDA_PATH");
    if (!want || !*want)
        return true;
    if (strcmp(want, "ampere") != 0 && strcmp(want, "hopper") != 0)
        return error_set(err, ERR_USAGE, "RC_CUDA_PATH is '%s'; it may be hopper or ampere", want);
    if (strcmp(want, "hopper") == 0 && !*hopper)
        return error_set(err, ERR_UNSUPPORTED, "RC_CUDA_PATH is 'hopper', for which %s (cuda:%d is a %s)",
                         HOPPER_BUILT ? "a GPU of compute capability 9 is needed" : "this build has no code", index, card);
    *hopper = strcmp(want, "hopper") == 0;
    return true;
}

/* Which card 'cuda:given' is. RC_CUDA_CARDS=N: as on a machine with N cards; names beyond the real ones go round them again, so that all that
 * several cards do can be tried on one. -1: there is none. */
static int card_of(int given, struct error *err)
{
    const char *want = getenv("RC_CUDA_CARDS");
    int n = 0, as_if = want ? atoi(want) : 0;
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status == cudaSuccess && given < MAX(n, as_if))
        return given % n;
    error_set(err, ERR_UNSUPPORTED, "cuda:%d: %s", given, status != cudaSuccess ? cudaGetErrorString(status) : "there is no such GPU");
    return -1;
}

extern "C" __attribute__((visibility("default"))) struct device *rc_ops_cuda(int given, struct error *err)
{
    static const struct ops table = ops_table();
    cudaDeviceProp prop;
    int index = card_of(given, err), driver = 0;
    if (index < 0)
        return NULL;
    if (!cuda_ok(cudaSetDevice(index), "opening the device", err)
        || !cuda_ok(cudaGetDeviceProperties(&prop, index), "opening the device", err))
        return NULL;
    bool hopper = HOPPER_BUILT && prop.major == 9;
    if (!path_choose(&hopper, index, prop.name, err))
        return NULL;
    struct cuda_device *cu = (struct cuda_device *)calloc(1, sizeof *cu);
    if (!cu) {
        error_set(err, ERR_NO_MEMORY, "no memory for a device");
        return NULL;
    }
    cu->base.op = &table;
    cu->base.kind = DEVICE_CUDA;
    cu->base.index = index;
    cu->base.n_thread = 1;
    cu->base.kv_page_tok = CUDA_PAGE_TOK;
    cu->base.head_rows = (int64_t)400 << 20;    // 2,760 rows of 151,936 logits: 1.6 GiB in fp32
    cu->base.can_capture = cu->base.can_meet = true;
    cu->n_sm = prop.multiProcessorCount;
    cu->shared_bytes = (int)prop.sharedMemPerBlockOptin;
    cu->hopper = hopper;
    cu->may_early = hopper;
    snprintf(cu->base.name, sizeof cu->base.name, "cuda:%d", given);
    snprintf(cu->base.what, sizeof cu->base.what, "%.50s, %d multiprocessors, %zu GiB", prop.name, prop.multiProcessorCount,
             (size_t)(prop.totalGlobalMem >> 30));
    cudaDriverGetVersion(&driver);
    size_t lt = cublasLtGetVersion();
    snprintf(cu->base.software, sizeof cu->base.software, "CUDA driver %d.%d, cuBLASLt %zu.%zu.%zu%s", driver / 1000, driver % 1000 / 10,
             lt / 10000, lt / 100 % 100, lt % 100, hopper ? ", Hopper's instructions" : "");
    cu->workspace_bytes = WORKSPACE_BYTES;
    if (!cuda_ok(cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking), "opening the device", err)
        || !cuda_ok(cudaMalloc(&cu->workspace, cu->workspace_bytes), "opening the device", err)
        || !cuda_ok(cudaMalloc((void **)&cu->turn, TURN_BYTES), "opening the device", err)
        || !cuda_ok(cudaMemset(cu->turn, 0, TURN_BYTES), "opening the device", err)
        || !cuda_ok(cudaMallocHost((void **)&cu->late, sizeof *cu->late), "opening the device", err)
        || (cublasLtCreate(&cu->lt) != CUBLAS_STATUS_SUCCESS && !error_set(err, ERR_INTERNAL, "cuda:%d: cannot start cuBLASLt", index))) {
        cuda_device_free(&cu->base);
        return NULL;
    }
    *cu->late = 0;
    return &cu->base;
}
