/* safetensors.h - weight files: mapped reading of one file or of shards with an index, and writing
 *
 * The reader trusts nothing: header length, JSON, offsets, shapes and overlaps are checked before any data is returned. Reading
 * maps files; a struct shards belongs to one thread. Format: github huggingface/safetensors, README "Format". */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

enum st_dtype {
    ST_F32,
    ST_F16,
    ST_BF16,
    ST_OTHER,
};                      // ST_OTHER: well-formed but of a type we do not convert
#define ST_DIM_MAX 6    // a vision tower's first convolution has 5
struct st_tensor {
    const char *name;    // borrowed from the shards
    enum st_dtype dtype;
    int n_dim;
    int64_t dim[ST_DIM_MAX];
    int64_t n_elem;
    const uint8_t *data;    // little endian, maybe unaligned; borrowed from the mapping
    size_t size_bytes;
    const char *file;    // the file it is in, for messages
};
struct shards;
/* Open dir/model.safetensors, or the files named by dir/model.safetensors.index.json. NULL: err names file and fault.
 */
struct shards *shards_open(const char *dir, struct error *err);
/* Open one file. */
struct shards *shards_open_file(const char *path, struct error *err);
void shards_close(struct shards *s);    // NULL is fine
int64_t shards_n(const struct shards *s);
const struct st_tensor *shards_at(const struct shards *s, int64_t i);
/* By name; NULL when it is not there. */
const struct st_tensor *shards_find(const struct shards *s, const char *name);

/* Values of t as fp32 or bf16 (round to nearest even); out holds t->n_elem. ST_OTHER is a bug of the caller. */
void st_to_f32(float *out, const struct st_tensor *t);
void st_to_bf16(uint16_t *out, const struct st_tensor *t);
/* As above, for the n elements from first on. */
void st_part_to_f32(float *out, const struct st_tensor *t, int64_t first, int64_t n);
void st_part_to_bf16(uint16_t *out, const struct st_tensor *t, int64_t first, int64_t n);
/* IEEE 754 half to single, exact. */
float st_half(uint16_t h);
/* Which of n values, fp32 or bf16 as a conversion gave them, is the first that is not finite; -1: none. */
int64_t st_values_broken(const void *values, bool bf16, int64_t n);
/* ERR_DATA, for such a value of t. Returns false. */
bool st_broken(const struct st_tensor *t, int64_t i, struct error *err);

/* A tensor to be written: its values, or what makes them piece by piece, so that a file may be larger than the memory. */
struct st_out {
    const char *name;
    enum st_dtype dtype;
    int n_dim;
    int64_t dim[ST_DIM_MAX];
    const void *data;    // (n_elem) of dtype, borrowed until the call returns; NULL:
    /* Put n slices of the first dimension, from `first` on, into out. */
    bool (*fill)(const void *source, void *out, int64_t first, int64_t n, struct error *err);
    const void *source;    // borrowed until the call returns
};
/* Write one file (temporary name, fsync, rename) whose only metadata is {"format":"pt"}. */
MUST_USE bool st_write(const char *path, const struct st_out *tensor, int64_t n, struct error *err);
static inline size_t st_dtype_size(enum st_dtype d)
{
    return d == ST_F32 ? 4 : 2;
}
