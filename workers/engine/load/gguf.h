/* gguf.h - reading llama.cpp's model files: metadata, tensors and their types
 *
 * A GGUF file is a list of named values, a list of tensors, and their data in blocks of one of ggml's types. The reader trusts nothing:
 * counts, lengths, types, shapes, offsets and overlaps are checked against the file's size before anything is given out, so whatever it
 * gives lies inside of the mapping. Texts are UTF-8 without NULs. Read-only once open: any thread.
 * Format: github ggml-org/ggml, docs/gguf.md, versions 2 and 3, little endian; types: ggml-common.h and ggml-quants.c there. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define GGUF_DIM_MAX 4
#define GGUF_NAME_MAX 127    // bytes of a tensor's name; ggml itself has 63
#define GGUF_BLOCK_MAX 256

struct gguf;
/* A text in the file, not ended by a NUL; borrowed from the file. */
struct gguf_text {
    const char *at;
    size_t len;
};
/* How values are packed: blocks of n_elem values in n_bytes bytes. */
struct gguf_type {
    uint32_t id;    // ggml_type
    const char *name;
    int n_elem, n_bytes;
    void (*unpack)(float *out, const uint8_t *block);    // one block
};
struct gguf_tensor {
    char name[GGUF_NAME_MAX + 1];
    const struct gguf_type *type;
    int n_dim;
    int64_t dim[GGUF_DIM_MAX];    // the slowest first, as in safetensors; the file has them the other way round
    int64_t n_elem;               // whole blocks, and so is a row of the last dimension
    const uint8_t *data;          // maybe unaligned; borrowed from the file
    size_t size_bytes;
};

/* Map a file and check its header. NULL: err names file, fault, and the key or the tensor. */
struct gguf *gguf_open(const char *path, struct error *err);
void gguf_close(struct gguf *g);    // NULL is fine
const char *gguf_path(const struct gguf *g);
bool gguf_is(const char *path);    // does a regular file begin as a GGUF file does?
int64_t gguf_n_tensor(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, int64_t i);             // sorted by name
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);    // NULL: none
/* The n values of t from first on, both multiples of the type's n_elem, as ggml's dequantize_row_* computes them in fp32: the bits are
 * those of gguf-py and of transformers. */
void gguf_part_to_f32(float *out, const struct gguf_tensor *t, int64_t first, int64_t n);
/* By ggml's number; NULL: one that is not read. */
const struct gguf_type *gguf_type_find(uint32_t id);

/* ---- metadata ----
 *
 * What is asked for must be there and of a fitting type; ERR_DATA names file and key. */
bool gguf_has(const struct gguf *g, const char *key);
MUST_USE bool gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, struct error *err);
/* A finite number. An fp32 one becomes the double that is nearest to its shortest decimal: 1e-05, not 9.99999974737875e-06. */
MUST_USE bool gguf_real(const struct gguf *g, const char *key, double *out, struct error *err);
MUST_USE bool gguf_bool(const struct gguf *g, const char *key, bool *out, struct error *err);
MUST_USE bool gguf_text(const struct gguf *g, const char *key, struct gguf_text *out, struct error *err);
bool gguf_text_is(struct gguf_text t, const char *text);
/* By bytes, a beginning before what goes on: below, at or above 0, for qsort. */
int gguf_text_compare(struct gguf_text a, struct gguf_text b);
/* A list of texts, *n of them; *out is the caller's to free. */
MUST_USE bool gguf_texts(const struct gguf *g, const char *key, struct gguf_text **out, int64_t *n, struct error *err);
/* A list of exactly n whole numbers, or of fp32; *out is the caller's to free. */
MUST_USE bool gguf_ints(const struct gguf *g, const char *key, int64_t n, int32_t **out, struct error *err);
MUST_USE bool gguf_floats(const struct gguf *g, const char *key, int64_t n, float **out, struct error *err);
/* The double nearest to the shortest decimal that reads back as f. */
double gguf_decimal(float f);
