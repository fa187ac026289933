/* gguf_types.c - ggml's packed types: how a block of values becomes fp32
 *
 * Products and sums are single fp32 operations in the order of ggml's dequantize_row_* (github ggml-org/llama.cpp, ggml-quants.c); the
 * build forbids their contraction. A scale is a half; q is a value's small integer. */
#include <string.h>
#include "protocol/base/macros.h"
#include "workers/engine/load/gguf.h"
#include "workers/engine/model/safetensors.h"

#define K 256    // values in a block of the K types

static float half_at(const uint8_t *p)
{
    return st_half((uint16_t)(p[0] | p[1] << 8));
}

static void f32_unpack(float *out, const uint8_t *b)
{
    memcpy(out, b, 4);
}

static void f16_unpack(float *out, const uint8_t *b)
{
    *out = half_at(b);
}

static void bf16_unpack(float *out, const uint8_t *b)
{
    uint32_t u = (uint32_t)(b[0] | b[1] << 8) << 16;
    memcpy(out, &u, 4);
}

/* ---- 32 values: the low nibbles are the first half of them, the high nibbles the second ---- */

/* d q: scale, nibbles; q from -8 on. */
static void q4_0_unpack(float *out, const uint8_t *b)
{
    float d = half_at(b);
    for (int i = 0; i < 16; i++) {
        out[i] = (float)((b[2 + i] & 15) - 8) * d;
        out[i + 16] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

/* d q + m: scale, minimum, nibbles. */
static void q4_1_unpack(float *out, const uint8_t *b)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = (float)(b[4 + i] & 15) * d + m;
        out[i + 16] = (float)(b[4 + i] >> 4) * d + m;
    }
}

/* The value i of 32 whose fifth bits are at high and whose nibbles are at low. */
static int five_bits(const uint8_t *high, const uint8_t *low, int i)
{
    int nibble = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
    return nibble | (high[i / 8] >> (i % 8) & 1) << 4;
}

static void q5_0_unpack(float *out, const uint8_t *b)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++)
        out[i] = (float)(five_bits(b + 2, b + 6, i) - 16) * d;
}

static void q5_1_unpack(float *out, const uint8_t *b)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 32; i++)
        out[i] = (float)five_bits(b + 4, b + 8, i) * d + m;
}

static void q8_0_unpack(float *out, const uint8_t *b)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++)
        out[i] = (float)(int8_t)b[2 + i] * d;
}

/* ---- 256 values in groups that have scales of their own ---- */

/* d s q - dmin m for 16 groups of 16: a byte for s and m each, then q of two bits: in 32 bytes, each pair of bits is 32 values. */
static void q2_k_unpack(float *out, const uint8_t *b)
{
    const uint8_t *scale = b, *q = b + 16;
    float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int i = 0; i < K; i++) {
        int s = scale[i / 16], at = i / 128 * 32 + i % 32, shift = i % 128 / 32 * 2;
        out[i] = d * (float)(s & 15) * (float)(q[at] >> shift & 3) - dmin * (float)(s >> 4);
    }
}

/* The scale of group g: six bits, the low four in bytes 0 to 7, the high two in bytes 8 to 11. */
static int q3_k_scale(const uint8_t *s, int g)
{
    int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    return (low | (s[8 + g % 4] >> g / 4 * 2 & 3) << 4) - 32;
}

/* d s q for 16 groups of 16; q has two bits as above, and a third in bit i / 32 of the first bytes: where that is 0, 4 is taken off. */
static void q3_k_unpack(float *out, const uint8_t *b)
{
    const uint8_t *high = b, *q = b + 32;
    float d = half_at(b + 108);
    for (int i = 0; i < K; i++) {
        int at = i / 128 * 32 + i % 32, shift = i % 128 / 32 * 2;
        int v = (q[at] >> shift & 3) - (high[i % 32] >> i / 32 & 1 ? 0 : 4);
        out[i] = d * (float)q3_k_scale(b + 96, i / 16) * (float)v;
    }
}

/* Scale and minimum of group g of 8, six bits each, in 12 bytes: ggml's get_scale_min_k4. */
static void k4_scale(const uint8_t *s, int g, int *scale, int *min)
{
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        *min = s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
}

/* d s q - dmin m for 8 groups of 32, whose nibbles lie in turns in the low and the high half of 32 bytes; high: bit g of byte i % 32 is the
 * fifth bit, NULL: there is none. */
static void k4_unpack(float *out, const uint8_t *b, const uint8_t *high, const uint8_t *low)
{
    float d = half_at(b), dmin = half_at(b + 2);
    for (int g = 0; g < 8; g++) {
        int s, m;
        k4_scale(b + 4, g, &s, &m);
        float scale = d * (float)s, min = dmin * (float)m;
        for (int i = 0; i < 32; i++) {
            int q = (low[g / 2 * 32 + i] >> g % 2 * 4 & 15) | (high ? (high[i] >> g & 1) << 4 : 0);
            out[32 * g + i] = scale * (float)q - min;
        }
    }
}

static void q4_k_unpack(float *out, const uint8_t *b)
{
    k4_unpack(out, b, NULL, b + 16);
}

static void q5_k_unpack(float *out, const uint8_t *b)
{
    k4_unpack(out, b, b + 16, b + 48);
}

/* d s q for 16 groups of 16: in each half of the values, 64 bytes hold the low four bits, as nibbles of 64 values and then of the other 64,
 * and 32 bytes the high two bits; q from -32 on. */
static void q6_k_unpack(float *out, const uint8_t *b)
{
    const uint8_t *low = b, *high = b + 128, *scale = b + 192;
    float d = half_at(b + 208);
    for (int i = 0; i < K; i++) {
        int half = i / 128, in = i % 128;
        int l = low[half * 64 + in % 64] >> in / 64 * 4 & 15, h = high[half * 32 + in % 32] >> in / 32 * 2 & 3;
        out[i] = d * (float)(int8_t)scale[i / 16] * (float)((l | h << 4) - 32);
    }
}

static const struct gguf_type types[] = {
    { 0, "F32", 1, 4, f32_unpack },      { 1, "F16", 1, 2, f16_unpack },      { 2, "Q4_0", 32, 18, q4_0_unpack },
    { 3, "Q4_1", 32, 20, q4_1_unpack },  { 6, "Q5_0", 32, 22, q5_0_unpack },  { 7, "Q5_1", 32, 24, q5_1_unpack },
    { 8, "Q8_0", 32, 34, q8_0_unpack },  { 10, "Q2_K", K, 84, q2_k_unpack },  { 11, "Q3_K", K, 110, q3_k_unpack },
    { 12, "Q4_K", K, 144, q4_k_unpack }, { 13, "Q5_K", K, 176, q5_k_unpack }, { 14, "Q6_K", K, 210, q6_k_unpack },
    { 30, "BF16", 1, 2, bf16_unpack },
};

const struct gguf_type *gguf_type_find(uint32_t id)
{
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

void gguf_part_to_f32(float *out, const struct gguf_tensor *t, int64_t first, int64_t n)
{
    const struct gguf_type *y = t->type;
    const uint8_t *block = t->data + first / y->n_elem * y->n_bytes;
    for (int64_t i = 0; i < n; i += y->n_elem, block += y->n_bytes)
        y->unpack(out + i, block);
}
