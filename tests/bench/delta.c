/* delta.c - how small an optimizer step is as differences of bf16 weights, and how fast one core writes and reads them
 *
 * The step is AdamW's own operation on weights and gradients of a normal distribution, with masters in fp32; the steps before it bring
 * the moments to where they are in a run. The least of several passes counts, beside a plain copy of as many bytes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/bench/bench_step.h"
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "tests/bench/bench.h"
#include "workers/node/bulk/delta.h"

#define PASSES 3
struct delta_work {
    size_t n_byte, n_block, e;        // e: bytes of an element
    uint8_t *before, *after, *out;    // (n_byte) owned
    uint8_t *packed;                  // (n_byte) owned; block i begins at i DELTA_BLOCK
    struct delta_piece {
        enum delta_kind kind;
        size_t len;
        uint64_t hash;
    } * piece;    // (n_block) owned
};

static bool work_new(struct delta_work *w, int64_t mib, size_t e, struct error *err)
{
    w->e = e;
    w->n_byte = (size_t)mib << 20;
    w->n_block = (w->n_byte + DELTA_BLOCK - 1) / DELTA_BLOCK;
    uint8_t **const bytes[] = { &w->before, &w->after, &w->out, &w->packed };
    bool ok = (w->piece = calloc(w->n_block, sizeof *w->piece)) != NULL;
    for (size_t i = 0; i < ARRAY_SIZE(bytes); i++)
        ok = (*bytes[i] = calloc(w->n_byte, 1)) && ok;
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " MiB of weights", mib);
}

static void work_free(struct delta_work *w)
{
    void *const all[] = { w->before, w->after, w->out, w->packed, w->piece };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        free(all[i]);
}

static double changed_share(const struct delta_work *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_byte; i += w->e)
        n += memcmp(w->before + i, w->after + i, w->e) != 0;
    return (double)n / (double)(w->n_byte / w->e);
}

static size_t block_bytes(const struct delta_work *w, size_t i)
{
    return MIN(DELTA_BLOCK, w->n_byte - i * DELTA_BLOCK);
}

/* Write all blocks, with the hash of each. */
static bool pass_encode(struct delta_work *w, struct delta_coder *c, UNUSED struct error *err)
{
    for (size_t i = 0; i < w->n_block; i++) {
        size_t at = i * DELTA_BLOCK, n = block_bytes(w, i);
        struct delta_piece *p = &w->piece[i];
        p->len = delta_encode(c, w->before + at, w->after + at, n, w->packed + at, &p->kind);
        p->hash = delta_hash(w->after + at, n);
        if (p->kind == DELTA_RAW)
            memcpy(w->packed + at, w->after + at, p->len = n);
    }
    return true;
}

/* Read them, and compare the hashes. */
static bool pass_decode(struct delta_work *w, struct delta_coder *c, struct error *err)
{
    for (size_t i = 0; i < w->n_block; i++) {
        size_t at = i * DELTA_BLOCK, n = block_bytes(w, i);
        const struct delta_piece *p = &w->piece[i];
        if (!delta_decode(c, p->kind, w->packed + at, p->len, w->before + at, w->out + at, n, err))
            return false;
        if (delta_hash(w->out + at, n) != p->hash)
            return error_set(err, ERR_DATA, "block %zu has another hash than when it was written", i);
    }
    return true;
}

static bool pass_copy(struct delta_work *w, UNUSED struct delta_coder *c, UNUSED struct error *err)
{
    memcpy(w->out, w->after, w->n_byte);
    return true;
}

/* Into *gb_per_s: bytes of weights per nanosecond of the fastest pass. */
static bool passes_time(struct delta_work *w, struct delta_coder *c,
                        bool (*pass)(struct delta_work *, struct delta_coder *, struct error *), double *gb_per_s, struct error *err)
{
    int64_t best = INT64_MAX;
    for (int k = 0; k < PASSES; k++) {
        int64_t t = clock_ns();
        if (!pass(w, c, err))
            return false;
        best = MIN(best, clock_ns() - t);
    }
    *gb_per_s = (double)w->n_byte / (double)MAX(best, (int64_t)1);
    return true;
}

bool bench_delta(int argc, char **argv, struct error *err)
{
    int64_t mib = 128, n_step = 10;
    double lr = 1e-6, copy, encode, decode;
    const char *dtype = "bfloat16";
    struct cli_option options[] = {
        { "mib", NULL, CLI_I64, &mib, "MIB", "weights (128)" },
        { "steps", NULL, CLI_I64, &n_step, "N", "optimizer steps; the last is written (10)" },
        { "lr", NULL, CLI_F64, &lr, "LR", "learning rate (1e-6)" },
        { "dtype", NULL, CLI_STR, &dtype, "TYPE", "bfloat16 or float32 (bfloat16)" },
    };
    struct cli cli = { "bench delta", "Writes an AdamW step as differences of weights and reads it again, on one core.", NULL, options,
                       ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    bool bf16 = strcmp(dtype, "bfloat16") == 0;
    if (mib < 1 || mib > 65536 || n_step < 1 || n_step > 10000)
        return error_set(err, ERR_USAGE, "--mib must be 1 to 65536, --steps 1 to 10000");
    if (!bf16 && strcmp(dtype, "float32") != 0)
        return error_set(err, ERR_USAGE, "--dtype is '%s'; it may be bfloat16 or float32", dtype);
    struct delta_work w = { 0 };
    struct delta_coder *c = NULL;
    bool ok = false;
    TRY(work_new(&w, mib, bf16 ? 2 : 4, err) && adam_steps_take(w.before, w.after, w.n_byte, bf16 ? DT_BF16 : DT_F32, n_step, lr, err)
        && (c = delta_coder_new(err)));
    TRY(passes_time(&w, c, pass_copy, &copy, err) && passes_time(&w, c, pass_encode, &encode, err));
    memset(w.out, 0, w.n_byte);
    TRY(passes_time(&w, c, pass_decode, &decode, err));
    size_t sent = 0;
    for (size_t i = 0; i < w.n_block; i++)
        sent += w.piece[i].len;
    printf("{\"bench\":\"delta\",\"dtype\":\"%s\",\"bytes\":%zu,\"lr\":%g,\"steps\":%" PRId64 ",\"changed\":%.4f,\"delta_bytes\":%zu,"
           "\"ratio\":%.1f,\"encode_gb_per_s\":%.2f,\"decode_gb_per_s\":%.2f,\"memcpy_gb_per_s\":%.2f,\"encode_per_memcpy\":%.3f,"
           "\"decode_per_memcpy\":%.3f,\"check\":%s}\n",
           dtype, w.n_byte, lr, n_step, changed_share(&w), sent, (double)w.n_byte / (double)MAX(sent, (size_t)1), encode, decode, copy,
           encode / copy, decode / copy, memcmp(w.out, w.after, w.n_byte) == 0 ? "true" : "false");
    ok = true;
out:
    delta_coder_free(c);
    work_free(&w);
    return ok;
}
