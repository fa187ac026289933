/* ops_linear.c - matrix products of the CPU back end: packed weights, and how the work is cut
 *
 * A weight is kept as fp32 panels of PANEL output columns, (panel)(n_in, PANEL), made once per update; with for_bwd a second time
 * as panels of input columns, (panel)(n_out, PANEL). How a product is cut into blocks for threads and caches changes no bit, since
 * every element is one chain in order of k (gemm_body.h), or weight.parts of them and a tree. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/tree_steps.h"
#define BLOCK_ROWS 96              // rows per block: 8 tiles
#define BLOCK_BYTES (384 << 10)    // of the packed side per block: stays in the second-level cache (1 MiB on Zen 5)
#define PARTS_PANELS 2             // panels per block of a product in parts, which are added in the second-level cache
#define WGRAD_K 512                // tokens per block of linear_bwd_w: 64 KiB per panel, 24 KiB per tile of dy
#define WGRAD_X_ROWS 64            // tokens of x packed by one piece
#define WGRAD_TILES 29             // per piece, approximately

struct weight_pack {
    float *fwd;    // (n_group)(panels of n_out)(n_in, PANEL)
    float *bwd;    // (n_group)(panels of n_in)(n_out, PANEL), or NULL
};

static int64_t panels(int64_t n)
{
    return (n + PANEL - 1) / PANEL;
}

/* Floats of one matrix's panels. */
static int64_t fwd_floats(const struct weight *w)
{
    return panels(w->n_out) * PANEL * w->n_in;
}
static int64_t bwd_floats(const struct weight *w)
{
    return panels(w->n_in) * PANEL * w->n_out;
}

bool cpu_weight_init(struct device *dev, struct weight *w, struct error *err)
{
    struct weight_pack *pack = calloc(1, sizeof *pack);
    if (!pack)
        return error_set(err, ERR_NO_MEMORY, "no memory for a weight handle");
    w->pack = pack;
    size_t n = (size_t)MAX(w->n_group, 1) * sizeof(float);
    pack->fwd = host_mem_new(dev, (size_t)fwd_floats(w) * n, "a packed weight", err);
    if (pack->fwd && w->for_bwd)
        pack->bwd = host_mem_new(dev, (size_t)bwd_floats(w) * n, "a packed weight", err);
    return pack->fwd && (pack->bwd || !w->for_bwd);
}

void cpu_weight_release(UNUSED struct device *dev, struct weight *w)
{
    struct weight_pack *pack = w->pack;
    if (!pack)
        return;
    free(pack->fwd);
    free(pack->bwd);
    free(pack);
}

/* Pack one panel of PANEL outputs: rows become columns. */
static void panel_fwd_pack(float *to, const struct weight *w, int64_t panel)
{
    int64_t o0 = panel * PANEL, width = MIN(PANEL, w->n_out - o0);
    if (width < PANEL)
        memset(to, 0, (size_t)(w->n_in * PANEL) * sizeof *to);
    for (int64_t k0 = 0; k0 < w->n_in; k0 += 16)
        for (int64_t j = 0; j < width; j++)
            for (int64_t k = k0; k < MIN(w->n_in, k0 + 16); k++)
                to[k * PANEL + j] = w->dtype == DT_F32 ? ((const float *)w->data)[(o0 + j) * w->n_in + k]
                                                       : bf16_to_f32(((const uint16_t *)w->data)[(o0 + j) * w->n_in + k]);
}

struct pack_job {
    const struct cpu_path *path;
    struct weight *w;
    int64_t n_each;    // panels of a matrix
};
static void pack_piece(void *arg, int64_t piece, UNUSED int thread)
{
    const struct pack_job *job = arg;
    struct weight w = *job->w;    // the piece's matrix
    struct weight_pack *pack = w.pack;
    int64_t group = piece / job->n_each;
    piece %= job->n_each;
    w.data = (const char *)w.data + (size_t)(group * w.n_out * w.n_in) * dtype_size(w.dtype);
    if (piece < panels(w.n_out)) {
        panel_fwd_pack(pack->fwd + group * fwd_floats(&w) + piece * PANEL * w.n_in, &w, piece);
        return;
    }
    piece -= panels(w.n_out);
    int64_t width = MIN(PANEL, w.n_in - piece * PANEL);
    float *to = pack->bwd + group * bwd_floats(&w) + piece * PANEL * w.n_out;
    job->path->tiles_load(to, PANEL, 0, (const char *)w.data + (size_t)(piece * PANEL) * dtype_size(w.dtype), w.dtype, w.n_in, w.n_out,
                          width);
}
bool cpu_weight_refresh(struct device *dev, struct weight *w, UNUSED struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct pack_job job = { cpu->path, w, panels(w->n_out) + (w->for_bwd ? panels(w->n_in) : 0) };
    int64_t n_group = MAX(w->n_group, (int64_t)1);
    pool_run(cpu->pool, pack_piece, &job, n_group * job.n_each, work_bytes(n_group * w->n_out * w->n_in * (w->for_bwd ? 16 : 8)));
    return true;
}

/* A product cut into blocks of rows and panels. */
struct gemm_job {
    const struct cpu_path *path;
    struct gemm g;
    int64_t rows, n_rows;    // of a block; blocks
    int64_t cols, n_cols;
    const void *a16;    // bf16 left side, converted to fp32 one block at a time
    float *a32;         // (n_thread)(rows, k)
    int parts;          // of the sum over k; 0 and 1: all of it in one chain
    float *part;        // (n_thread)(parts)(rows, cols)
};
/* One block as a sum of parts. */
static void parts_mul(const struct gemm_job *job, const struct gemm *g, int thread)
{
    struct gemm part = *g;
    int64_t each = job->rows * job->cols;
    float *to = job->part + thread * job->parts * each;
    struct tree_sum sum = {
        .y = g->c, .bias = g->bias, .n_x = job->parts, .n = g->m, .d = g->n, .ldx = job->cols, .ldy = g->ldc, .y_dtype = g->c_dtype
    };
    part.k = g->k / job->parts;
    part.n = (g->n + 15) / 16 * 16;
    part.bias = NULL;
    part.ldc = job->cols;
    part.c_dtype = DT_F32;
    for (int p = 0; p < job->parts; p++) {
        part.a = g->a + p * part.k;
        part.b = g->b + p * part.k * g->ldb;
        part.c = to + p * each;
        job->path->gemm(&part);
        sum.x[p] = part.c;
    }
    job->path->tree_sum(&sum, 0, g->m);
}
static void gemm_piece(void *arg, int64_t piece, int thread)
{
    const struct gemm_job *job = arg;
    struct gemm g = job->g;
    int64_t i0 = piece / job->n_cols * job->rows, j0 = piece % job->n_cols * job->cols;
    g.m = MIN(job->rows, job->g.m - i0);
    g.n = MIN(job->cols, job->g.n - j0);
    if (job->a16) {
        float *a32 = job->a32 + thread * (int64_t)(scratch_floats(job->rows * g.k) / sizeof(float));
        job->path->rows_load(a32, (const uint16_t *)job->a16 + i0 * g.lda, DT_BF16, g.lda, g.m, g.k);
        g.a = a32;
        g.lda = g.k;
    } else {
        g.a += i0 * g.lda;
    }
    g.b += j0 / PANEL * g.panel_step;
    g.bias = g.bias ? g.bias + j0 : NULL;
    g.c = (char *)g.c + (size_t)(i0 * g.ldc + j0) * dtype_size(g.c_dtype);
    if (job->parts > 1)
        parts_mul(job, &g, thread);
    else
        job->path->gemm(&g);
}
/* Cut columns, of n_rows blocks of `rows` rows; and take scratch for the left side and for parts. */
static bool gemm_cut(struct cpu_device *cpu, struct gemm_job *job, const void *a, enum dtype a_dtype, const char *op, struct error *err)
{
    const struct gemm *g = &job->g;
    int64_t most = MAX(1, BLOCK_BYTES / (PANEL * 4 * MAX(1, g->k)));
    /* few rows: split columns more finely so that every thread has work, but not below about 0.1 ms of it */
    if (cpu->base.n_thread > 1 && job->n_rows < 4 * cpu->base.n_thread) {
        int64_t want = (4 * cpu->base.n_thread + job->n_rows - 1) / job->n_rows, least = 2000000 / MAX(1, job->rows * g->k * PANEL) + 1;
        most = MIN(most, MAX(least, (panels(g->n) + want - 1) / want));
    }
    most = job->parts > 1 ? MIN(most, PARTS_PANELS) : most;
    job->cols = most * PANEL;
    job->n_cols = (g->n + job->cols - 1) / job->cols;
    size_t n_thread = (size_t)cpu->base.n_thread, a_bytes = a_dtype == DT_BF16 ? scratch_floats(job->rows * g->k) * n_thread : 0;
    size_t part_bytes = job->parts > 1 ? scratch_floats(job->parts * job->rows * job->cols) * n_thread : 0;
    char *scratch = a_bytes + part_bytes ? cpu_scratch(cpu, a_bytes + part_bytes, op, err) : NULL;
    if (a_bytes + part_bytes && !scratch)
        return false;
    job->part = (float *)(scratch + a_bytes);
    if (a_dtype == DT_BF16) {
        job->a16 = a;
        job->a32 = (float *)scratch;
    } else {
        job->g.a = a;
    }
    return true;
}
static bool gemm_run(struct cpu_device *cpu, const struct gemm *g, int parts, const void *a, enum dtype a_dtype, const char *op,
                     struct error *err)
{
    struct gemm_job job = { .path = cpu->path, .g = *g, .parts = parts };
    if (g->m == 0)
        return true;
    job.rows = MIN(BLOCK_ROWS, g->m);
    job.n_rows = (g->m + job.rows - 1) / job.rows;
    if (!gemm_cut(cpu, &job, a, a_dtype, op, err))
        return false;
    pool_run(cpu->pool, gemm_piece, &job, job.n_rows * job.n_cols, work_mul(g->m * g->n * g->k));
    return true;
}

/* A product of rows that each have one of n_group matrices: blocks of rows belong to one matrix. */
struct group_job {
    struct gemm_job job;      // of all rows, with the first matrix
    const int32_t *first;     // (n_group + 1) rows
    int64_t n_group, step;    // step: floats from one matrix's panels to the next
};
/* Blocks of a matrix's rows. */
static int64_t group_blocks(const struct group_job *job, int64_t g)
{
    return (job->first[g + 1] - job->first[g] + job->job.rows - 1) / job->job.rows;
}
static void group_piece(void *arg, int64_t piece, int thread)
{
    const struct group_job *job = arg;
    struct gemm_job one = job->job;
    int64_t group = 0;
    for (int64_t n; piece >= (n = group_blocks(job, group) * one.n_cols); group++)
        piece -= n;
    int64_t i0 = job->first[group];
    one.g.m = job->first[group + 1] - i0;
    one.g.b += group * job->step;
    one.g.c = (char *)one.g.c + (size_t)(i0 * one.g.ldc) * dtype_size(one.g.c_dtype);
    if (one.a16)
        one.a16 = (const uint16_t *)one.a16 + i0 * one.g.lda;
    else
        one.g.a += i0 * one.g.lda;
    gemm_piece(&one, piece, thread);
}
static bool group_run(struct cpu_device *cpu, const struct gemm *g, const struct weight *w, int64_t step, const int32_t *first,
                      const void *a, const char *op, struct error *err)
{
    struct group_job job = { { .path = cpu->path, .g = *g }, first, w->n_group, step };
    if (!group_first_check(op, first, w->n_group, g->m, err))
        return false;
    if (g->m == 0)
        return true;
    for (int64_t e = 0; e < w->n_group; e++)
        job.job.rows = MAX(job.job.rows, MIN((int64_t)BLOCK_ROWS, (int64_t)(first[e + 1] - first[e])));
    for (int64_t e = 0; e < w->n_group; e++)
        job.job.n_rows += group_blocks(&job, e);
    if (!gemm_cut(cpu, &job.job, a, w->dtype, op, err))
        return false;
    pool_run(cpu->pool, group_piece, &job, job.job.n_rows * job.job.n_cols, work_mul(g->m * g->n * g->k));
    return true;
}

bool group_fwd_cpu(struct device *dev, const struct group_fwd *a, struct error *err)
{
    const struct weight *w = a->w;
    const struct weight_pack *pack = w->pack;
    struct gemm g = { .m = a->n,
                      .n = w->n_out,
                      .k = w->n_in,
                      .lda = w->n_in,
                      .b = pack->fwd,
                      .ldb = PANEL,
                      .panel_step = PANEL * w->n_in,
                      .c = a->y,
                      .ldc = w->n_out,
                      .c_dtype = w->dtype };
    return group_run(cpu_of(dev), &g, w, fwd_floats(w), a->first, a->x, "group_fwd", err);
}

bool group_bwd_x_cpu(struct device *dev, const struct group_bwd_x *a, struct error *err)
{
    const struct weight *w = a->w;
    const struct weight_pack *pack = w->pack;
    if (!w->for_bwd)
        return error_set(err, ERR_SHAPE, "group_bwd_x: the weight was not made for it");
    struct gemm g = { .m = a->n,
                      .n = w->n_in,
                      .k = w->n_out,
                      .lda = w->n_out,
                      .b = pack->bwd,
                      .ldb = PANEL,
                      .panel_step = PANEL * w->n_out,
                      .c = a->dx,
                      .ldc = w->n_in,
                      .c_dtype = w->dtype };
    return group_run(cpu_of(dev), &g, w, bwd_floats(w), a->first, a->dy, "group_bwd_x", err);
}

bool linear_fwd_cpu(struct device *dev, const struct linear_fwd *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct weight *w = a->w;
    const struct weight_pack *pack = w->pack;
    float small[1024], *bias = NULL;
    struct gemm g = { .m = a->n,
                      .n = w->n_out,
                      .k = w->n_in,
                      .lda = a->ldx ? a->ldx : w->n_in,
                      .b = pack->fwd,
                      .ldb = PANEL,
                      .panel_step = PANEL * w->n_in,
                      .bias = a->bias,
                      .c = a->y,
                      .ldc = a->ldy ? a->ldy : w->n_out,
                      .c_dtype = a->y_dtype };
    if (a->bias && w->dtype == DT_BF16) {
        bias = w->n_out <= (int64_t)ARRAY_SIZE(small) ? small : malloc((size_t)w->n_out * sizeof *bias);
        if (!bias)
            return error_set(err, ERR_NO_MEMORY, "linear_fwd: no memory for a bias of %" PRId64, w->n_out);
        cpu->path->rows_load(bias, a->bias, DT_BF16, w->n_out, 1, w->n_out);
        g.bias = bias;
    }
    bool ok = gemm_run(cpu, &g, w->parts, a->x, w->dtype, "linear_fwd", err);
    if (bias != small)
        free(bias);
    return ok;
}

bool linear_bwd_x_cpu(struct device *dev, const struct linear_bwd_x *a, struct error *err)
{
    const struct weight *w = a->w;
    const struct weight_pack *pack = w->pack;
    if (!w->for_bwd)
        return error_set(err, ERR_SHAPE, "linear_bwd_x: the weight was not made for it");
    int64_t n_k = a->n_k ? a->n_k : w->n_out;
    struct gemm g = { .m = a->n,
                      .n = w->n_in,
                      .k = n_k,
                      .lda = a->lddy ? a->lddy : n_k,
                      .b = pack->bwd + a->first * PANEL,
                      .ldb = PANEL,
                      .panel_step = PANEL * w->n_out,
                      .add = a->accumulate,
                      .c = a->dx,
                      .ldc = a->ldx ? a->ldx : w->n_in,
                      .c_dtype = a->f32 ? DT_F32 : w->dtype };
    return gemm_run(cpu_of(dev), &g, 1, a->dy, w->dtype, "linear_bwd_x", err);
}

bool linear_bwd_tree_cpu(struct device *dev, const struct linear_bwd_tree *a, struct error *err)
{
    static const struct tree_ways ways = { linear_bwd_x_cpu, tree_sum_cpu, mem_fill_cpu };
    return linear_bwd_tree_steps(dev, a, &ways, err);
}

/* dw, in two jobs. The first packs all of x into panels, one block of WGRAD_K tokens after the other. In the second each piece owns
 * some rows of dw: one block of tokens at a time, it packs its columns of dy into tiles and adds their products with every panel.
 * So x and dy are read once, row by row, and the inner loop reads from the second-level cache. The chain over the blocks stays in
 * scratch until the last one, which is added to dw. */
struct wgrad_job {
    const struct cpu_path *path;
    const struct linear_bwd_w *a;
    int64_t lddy, ldx;
    int64_t rows;    // rows of dw per piece: whole tiles
    float *x;        // (blocks of WGRAD_K tokens)(panels of n_in)(WGRAD_K, PANEL), panels panel_step apart
    int64_t panel_step;
    float *dy;    // (n_thread)(rows / GRAD_TILE)(WGRAD_K, GRAD_TILE), tiles tile_step apart
    int64_t tile_step;
    size_t dy_bytes;     // of one thread's
    float *sum;          // (n_thread)(rows, panels of n_in * PANEL), with more than one block of tokens
    size_t sum_bytes;    // of one thread's
};
static void wgrad_x_piece(void *arg, int64_t piece, UNUSED int thread)
{
    const struct wgrad_job *job = arg;
    const struct linear_bwd_w *a = job->a;
    int64_t k0 = piece * WGRAD_X_ROWS, n_k = MIN(WGRAD_X_ROWS, a->n - k0);
    float *to = job->x + k0 / WGRAD_K * panels(a->n_in) * job->panel_step + k0 % WGRAD_K * PANEL;
    job->path->tiles_load(to, PANEL, job->panel_step, (const char *)a->x + (size_t)(k0 * job->ldx) * dtype_size(a->dtype), a->dtype,
                          job->ldx, n_k, a->n_in);
}
static void wgrad_piece(void *arg, int64_t piece, int thread)
{
    const struct wgrad_job *job = arg;
    const struct linear_bwd_w *a = job->a;
    int64_t o0 = piece * job->rows, rows = MIN(job->rows, a->n_out - o0), n_panel = panels(a->n_in);
    int64_t ld_sum = n_panel * PANEL;
    float *dy = (float *)((char *)job->dy + (size_t)thread * job->dy_bytes);
    float *sum = (float *)((char *)job->sum + (size_t)thread * job->sum_bytes);
    const char *from = (const char *)a->dy + (size_t)o0 * dtype_size(a->dtype);
    const float *x = job->x;
    for (int64_t k0 = 0; k0 < a->n; k0 += WGRAD_K) {
        int64_t n_k = MIN(WGRAD_K, a->n - k0);
        job->path->tiles_load(dy, GRAD_TILE, job->tile_step, from + (size_t)(k0 * job->lddy) * dtype_size(a->dtype), a->dtype, job->lddy,
                              n_k, rows);
        bool last = k0 + n_k == a->n;
        for (int64_t panel = 0; panel < n_panel; panel++, x += job->panel_step) {
            int64_t n = MIN(PANEL, a->n_in - panel * PANEL);
            for (int64_t i = 0; i < rows; i += GRAD_TILE) {
                float *chain = sum + i * ld_sum + panel * PANEL;
                struct gemm g = { .m = MIN(GRAD_TILE, rows - i),
                                  .n = last ? n : (n + 15) / 16 * 16,
                                  .k = n_k,
                                  .a = dy + i / GRAD_TILE * job->tile_step,
                                  .lda = GRAD_TILE,
                                  .a_cols = true,
                                  .b = x,
                                  .ldb = PANEL,
                                  .from = k0 > 0 ? chain : NULL,
                                  .ld_from = ld_sum,
                                  .add = last,
                                  .c = last ? a->dw + (o0 + i) * a->n_in + panel * PANEL : chain,
                                  .ldc = last ? a->n_in : ld_sum };
                job->path->gemm(&g);
            }
        }
    }
    if (a->dbias)
        job->path->rows_sum(a->dbias + o0, from, a->dtype, job->lddy, rows, 0, a->n, true);
}
bool linear_bwd_w_cpu(struct device *dev, const struct linear_bwd_w *a, struct error *err)
{
    struct cpu_device *cpu = cpu_of(dev);
    if (a->set)
        memset(a->dw, 0, (size_t)(a->n_out * a->n_in) * sizeof *a->dw);
    if (a->n == 0)
        return true;
    struct wgrad_job job = { .path = cpu->path, .a = a, .lddy = a->lddy ? a->lddy : a->n_out, .ldx = a->ldx ? a->ldx : a->n_in };
    /* as many pieces for each thread as keep WGRAD_TILES tiles, at least one, and the same for all */
    int64_t n_tile = (a->n_out + GRAD_TILE - 1) / GRAD_TILE, n_thread = cpu->base.n_thread;
    int64_t each = (n_tile + n_thread * WGRAD_TILES - 1) / (n_thread * WGRAD_TILES);
    job.rows = (n_tile + n_thread * each - 1) / (n_thread * each) * GRAD_TILE;
    job.panel_step = PANEL * WGRAD_K + 16;    // steps that are not multiples of a page: stores spread over a cache's sets
    job.tile_step = GRAD_TILE * WGRAD_K + 16;
    job.dy_bytes = scratch_floats(job.rows / GRAD_TILE * job.tile_step);
    size_t x_bytes = scratch_floats((a->n + WGRAD_K - 1) / WGRAD_K * panels(a->n_in) * job.panel_step);
    job.sum_bytes = a->n > WGRAD_K ? scratch_floats(job.rows * panels(a->n_in) * PANEL) : 0;
    char *scratch = cpu_scratch(cpu, x_bytes + (job.dy_bytes + job.sum_bytes) * (size_t)n_thread, "linear_bwd_w", err);
    if (!scratch)
        return false;
    job.x = (float *)scratch;
    job.dy = (float *)(scratch + x_bytes);
    job.sum = (float *)(scratch + x_bytes + job.dy_bytes * (size_t)n_thread);
    pool_run(cpu->pool, wgrad_x_piece, &job, (a->n + WGRAD_X_ROWS - 1) / WGRAD_X_ROWS, work_bytes(a->n * a->n_in * 8));
    pool_run(cpu->pool, wgrad_piece, &job, (a->n_out + job.rows - 1) / job.rows, work_mul(a->n * a->n_out * a->n_in));
    return true;
}

bool group_bwd_w_cpu(struct device *dev, const struct group_bwd_w *a, struct error *err)
{
    if (!group_first_check("group_bwd_w", a->first, a->n_group, a->n, err))
        return false;
    size_t e = dtype_size(a->dtype);
    for (int64_t g = 0; g < a->n_group; g++) {
        struct linear_bwd_w one = { .dw = a->dw + g * a->n_out * a->n_in,
                                    .dy = (const char *)a->dy + (size_t)(a->first[g] * a->n_out) * e,
                                    .x = (const char *)a->x + (size_t)(a->first[g] * a->n_in) * e,
                                    .n = a->first[g + 1] - a->first[g],
                                    .n_out = a->n_out,
                                    .n_in = a->n_in,
                                    .dtype = a->dtype,
                                    .set = a->set };
        if (!linear_bwd_w_cpu(dev, &one, err))
            return false;
    }
    return true;
}
