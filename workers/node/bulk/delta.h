/* delta.h - a version of the weights as its differences from an earlier one, block by block, without loss
 *
 * An optimizer step at the learning rates of RL moves most bf16 weights by less than half of their last place: 1 to 3 % of the values
 * change, nearly all of them by one place. So a block is written as the distances between changed values and the differences of their
 * bits as whole numbers, each kind in a plane of its own (bytes of one distribution compress together), compressed by zstd. Differences
 * and not XOR: a step by one place that carries (0x3fff to 0x4000) stays 1. Where most values change (fp32 weights) the planes are the
 * bytes of all differences by significance.
 *
 * A file of weights is cut into blocks of DELTA_BLOCK bytes; each block stands alone, so several threads write and read them in any
 * order. delta_hash of the result travels with each block: a base that is not what the writer had is found before anything is used.
 * All numbers are little-endian, as on the machines that this runs on. One thread per coder. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define DELTA_BLOCK ((size_t)256 << 10)    // bytes of a version; two of them and what is written fit into a core's cache

enum delta_kind {
    DELTA_RAW,       // the block's own bytes
    DELTA_SAME,      // the base's block, unchanged: no bytes
    DELTA_SPARSE,    // some words of 16 bits differ
    DELTA_DENSE2,    // differences of all words of 2 bytes,
    DELTA_DENSE4,    // or of 4
    DELTA_KIND_COUNT,
};
struct delta_coder;
struct delta_coder *delta_coder_new(struct error *err);
void delta_coder_free(struct delta_coder *c);    // NULL is fine
/* Write the n bytes (at most DELTA_BLOCK) of new as differences from those of base (NULL: there is none) into out, of room for n bytes.
 * Returns how many were written, always fewer than n; with DELTA_RAW and DELTA_SAME none: what is to be sent is new itself, or nothing. */
size_t delta_encode(struct delta_coder *c, const void *base, const void *new, size_t n, void *out, enum delta_kind *kind);
/* The opposite: fill out, n bytes (at most DELTA_BLOCK), from base (n bytes; may be NULL with DELTA_RAW, or out itself) and the len bytes of data, which
 * may hold anything. ERR_DATA: data is not a block of that kind and size, or needs a base; out then means nothing. */
MUST_USE bool delta_decode(struct delta_coder *c, enum delta_kind kind, const void *data, size_t len, const void *base, void *out, size_t n,
                           struct error *err);
/* A hash of a block's bytes. It finds what memory and disks do to them; it is not for secrets. */
uint64_t delta_hash(const void *data, size_t n);
