/* vec.h - sixteen fp32 lanes, on AVX-512, AVX2 or plain C, with the same bits from all three
 *
 * The folder's path_*.c files include the *_body.h files once for each instruction set. Every sum is made in lanes and folded by
 * v_sum's one tree; products added to a sum are fused (fmaf in plain C). Lane order is memory order. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "kernels/ops.h"
#define VEC_FN static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 v16;
VEC_FN v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}
VEC_FN v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC_FN v16 v_loadn(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
VEC_FN void v_store(float *p, v16 x)
{
    _mm512_storeu_ps(p, x);
}
VEC_FN void v_storen(float *p, v16 x, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
}
VEC_FN v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
VEC_FN v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
VEC_FN v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
VEC_FN v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
VEC_FN v16 v_sqrt(v16 a)
{
    return _mm512_sqrt_ps(a);
}
VEC_FN v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VEC_FN v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
VEC_FN v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
/* x where not a < t, else 0. */
VEC_FN v16 v_keep_nlt(v16 a, v16 t, v16 x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, t, _CMP_NLT_UQ), x);
}
VEC_FN int v_count_ge(v16 a, v16 t)
{
    return __builtin_popcount(_mm512_cmp_ps_mask(a, t, _CMP_GE_OQ));
}
/* The first n lanes of a, the others of b. */
VEC_FN v16 v_first(v16 a, v16 b, int n)
{
    return _mm512_mask_mov_ps(b, (__mmask16)((1u << n) - 1), a);
}
/* 2^n for t = 1.5 * 2^23 + n, n in [-126, 127]. */
VEC_FN v16 v_pow2(v16 t)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(t), 23), _mm512_set1_epi32(0x3f800000)));
}
VEC_FN v16 v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
VEC_FN void v_store_bf16(uint16_t *p, v16 x)    // as bf16_from_f32
{
    __m512i u = _mm512_castps_si512(x), hi = _mm512_srli_epi32(u, 16);
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), _mm512_and_epi32(hi, _mm512_set1_epi32(1)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(_mm512_srli_epi32(r, 16), nan, hi, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(r));
}
VEC_FN float v_sum(v16 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
VEC_FN float v_hmax(v16 x)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
#define TILE_MR 12    // rows and 16-lane columns of the register tile: 24 accumulators of 32 registers
#define TILE_NV 2

#elif defined(__AVX2__)
#include <immintrin.h>
typedef struct {
    __m256 a, b;
} v16;
#define V_EACH(x, y) ((v16){ (x), (y) })
VEC_FN v16 v_set1(float x)
{
    return V_EACH(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
VEC_FN v16 v_load(const float *p)
{
    return V_EACH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
VEC_FN void v_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
VEC_FN v16 v_loadn(const float *p, int n)
{
    float t[16] = { 0 };
    memcpy(t, p, (size_t)n * sizeof *t);
    return v_load(t);
}
VEC_FN void v_storen(float *p, v16 x, int n)
{
    float t[16];
    v_store(t, x);
    memcpy(p, t, (size_t)n * sizeof *t);
}
VEC_FN v16 v_add(v16 x, v16 y)
{
    return V_EACH(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}
VEC_FN v16 v_sub(v16 x, v16 y)
{
    return V_EACH(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}
VEC_FN v16 v_mul(v16 x, v16 y)
{
    return V_EACH(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}
VEC_FN v16 v_div(v16 x, v16 y)
{
    return V_EACH(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}
VEC_FN v16 v_sqrt(v16 x)
{
    return V_EACH(_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b));
}
VEC_FN v16 v_fma(v16 x, v16 y, v16 z)
{
    return V_EACH(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
VEC_FN v16 v_max(v16 x, v16 y)
{
    return V_EACH(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}
VEC_FN v16 v_min(v16 x, v16 y)
{
    return V_EACH(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}
VEC_FN v16 v_keep_nlt(v16 a, v16 t, v16 x)
{
    return V_EACH(_mm256_and_ps(_mm256_cmp_ps(a.a, t.a, _CMP_NLT_UQ), x.a), _mm256_and_ps(_mm256_cmp_ps(a.b, t.b, _CMP_NLT_UQ), x.b));
}
VEC_FN int v_count_ge(v16 a, v16 t)
{
    return __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.a, t.a, _CMP_GE_OQ)))
           + __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.b, t.b, _CMP_GE_OQ)));
}
VEC_FN v16 v_first(v16 x, v16 y, int n)
{
    float t[16], s[16];
    v_store(t, x);
    v_store(s, y);
    memcpy(s, t, (size_t)n * sizeof *t);
    return v_load(s);
}
VEC_FN __m256 y_pow2(__m256 t)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23), _mm256_set1_epi32(0x3f800000)));
}
VEC_FN v16 v_pow2(v16 t)
{
    return V_EACH(y_pow2(t.a), y_pow2(t.b));
}
VEC_FN __m256 y_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
VEC_FN v16 v_load_bf16(const uint16_t *p)
{
    return V_EACH(y_load_bf16(p), y_load_bf16(p + 8));
}
VEC_FN __m256i y_to_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), hi = _mm256_srli_epi32(u, 16);
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), _mm256_and_si256(hi, _mm256_set1_epi32(1)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(r, 16), _mm256_or_si256(hi, _mm256_set1_epi32(0x40)), nan);
}
VEC_FN void v_store_bf16(uint16_t *p, v16 x)
{
    __m256i r = _mm256_packus_epi32(y_to_bf16(x.a), y_to_bf16(x.b));    // interleaves 128-bit halves
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(r, 0xd8));
}
VEC_FN float v_sum(v16 x)
{
    __m256 a = _mm256_add_ps(x.a, x.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
VEC_FN float v_hmax(v16 x)
{
    __m256 a = _mm256_max_ps(x.a, x.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
#define TILE_MR 6    // 12 accumulators of 16 registers
#define TILE_NV 1

#else
typedef struct {
    float x[16];
} v16;
#define V_LANES(expr)                                                                                                                      \
    do {                                                                                                                                   \
        v16 r_;                                                                                                                            \
        for (int i = 0; i < 16; i++)                                                                                                       \
            r_.x[i] = (expr);                                                                                                              \
        return r_;                                                                                                                         \
    } while (0)
VEC_FN v16 v_set1(float x)
{
    V_LANES(x);
}
VEC_FN v16 v_load(const float *p)
{
    V_LANES(p[i]);
}
VEC_FN v16 v_loadn(const float *p, int n)
{
    V_LANES(i < n ? p[i] : 0);
}
VEC_FN void v_store(float *p, v16 x)
{
    memcpy(p, x.x, sizeof x.x);
}
VEC_FN void v_storen(float *p, v16 x, int n)
{
    memcpy(p, x.x, (size_t)n * sizeof *p);
}
VEC_FN v16 v_add(v16 a, v16 b)
{
    V_LANES(a.x[i] + b.x[i]);
}
VEC_FN v16 v_sub(v16 a, v16 b)
{
    V_LANES(a.x[i] - b.x[i]);
}
VEC_FN v16 v_mul(v16 a, v16 b)
{
    V_LANES(a.x[i] * b.x[i]);
}
VEC_FN v16 v_div(v16 a, v16 b)
{
    V_LANES(a.x[i] / b.x[i]);
}
VEC_FN v16 v_sqrt(v16 a)
{
    V_LANES(sqrtf(a.x[i]));
}
VEC_FN v16 v_fma(v16 a, v16 b, v16 c)
{
    V_LANES(fmaf(a.x[i], b.x[i], c.x[i]));
}
VEC_FN v16 v_max(v16 a, v16 b)
{
    V_LANES(a.x[i] > b.x[i] ? a.x[i] : b.x[i]);
}    // the second when unordered, as on x86
VEC_FN v16 v_min(v16 a, v16 b)
{
    V_LANES(a.x[i] < b.x[i] ? a.x[i] : b.x[i]);
}
VEC_FN v16 v_keep_nlt(v16 a, v16 t, v16 x)
{
    V_LANES(!(a.x[i] < t.x[i]) ? x.x[i] : 0);
}
VEC_FN int v_count_ge(v16 a, v16 t)
{
    int n = 0;
    for (int i = 0; i < 16; i++)
        n += a.x[i] >= t.x[i];
    return n;
}
VEC_FN v16 v_first(v16 a, v16 b, int n)
{
    V_LANES(i < n ? a.x[i] : b.x[i]);
}
VEC_FN float f_pow2(float t)
{
    union {
        float f;
        uint32_t u;
    } v = { t };
    v.u = (v.u << 23) + 0x3f800000u;
    return v.f;
}
VEC_FN v16 v_pow2(v16 t)
{
    V_LANES(f_pow2(t.x[i]));
}
VEC_FN v16 v_load_bf16(const uint16_t *p)
{
    V_LANES(bf16_to_f32(p[i]));
}
VEC_FN void v_store_bf16(uint16_t *p, v16 x)
{
    for (int i = 0; i < 16; i++)
        p[i] = bf16_from_f32(x.x[i]);
}
VEC_FN float v_sum(v16 x)
{
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            x.x[i] += x.x[i + w];
    return x.x[0];
}
VEC_FN float v_hmax(v16 x)
{
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            x.x[i] = x.x[i] > x.x[i + w] ? x.x[i] : x.x[i + w];
    return x.x[0];
}
#define TILE_MR 4
#define TILE_NV 1
#endif

/* e^x to about 1 ulp; 0 below -87.33, held at e^88 above 88; a NaN stays. Cephes' expf: range reduction by ln 2 in two parts,
 * polynomial of degree 5 on [-ln 2 / 2, ln 2 / 2]. */
VEC_FN v16 v_exp(v16 x)
{
    const v16 least = v_set1(-87.33f), magic = v_set1(12582912.0f);
    v16 c = v_max(least, v_min(v_set1(88.0f), x));
    v16 t = v_fma(c, v_set1(1.44269504088896341f), magic), n = v_sub(t, magic);
    v16 r = v_fma(n, v_set1(-0.693359375f), c);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    v16 p = v_fma(v_set1(1.9875691500e-4f), r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1));
    return v_keep_nlt(x, least, v_mul(p, v_pow2(t)));
}
/* tanh to about 2 ulp, also near 0: Cephes' tanhf, a polynomial of degree 9 within 0.625 and exponentials beyond. */
VEC_FN v16 v_tanh(v16 x)
{
    const v16 bound = v_set1(0.625f), one = v_set1(1);
    v16 near = v_max(v_set1(-0.625f), v_min(bound, x)), z = v_mul(near, near);
    v16 p = v_fma(v_set1(-5.70498872745e-3f), z, v_set1(2.06390887954e-2f));
    p = v_fma(p, z, v_set1(-5.37397155531e-2f));
    p = v_fma(p, z, v_set1(1.33314422036e-1f));
    p = v_fma(p, z, v_set1(-3.33332819422e-1f));
    p = v_fma(v_mul(p, z), near, near);
    v16 far = v_sub(one, v_div(v_set1(2), v_add(v_exp(v_add(x, x)), one)));
    v16 size = v_max(x, v_sub(v_set1(0), x));
    return v_add(v_keep_nlt(size, bound, far), v_sub(p, v_keep_nlt(size, bound, p)));    // one of the two is 0
}
/* Elements [i, i + n) of an array of either dtype, n <= 16, missing lanes 0; and back. */
VEC_FN v16 v_get(const void *p, int64_t i, int n, enum dtype t)
{
    if (t == DT_F32)
        return n == 16 ? v_load((const float *)p + i) : v_loadn((const float *)p + i, n);
    if (n == 16)
        return v_load_bf16((const uint16_t *)p + i);
    uint16_t h[16] = { 0 };
    memcpy(h, (const uint16_t *)p + i, (size_t)n * sizeof *h);
    return v_load_bf16(h);
}
VEC_FN void v_put(void *p, int64_t i, int n, enum dtype t, v16 x)
{
    if (t == DT_F32 && n == 16)
        v_store((float *)p + i, x);
    else if (t == DT_F32)
        v_storen((float *)p + i, x, n);
    else if (n == 16)
        v_store_bf16((uint16_t *)p + i, x);
    else {
        uint16_t h[16];
        v_store_bf16(h, x);
        memcpy((uint16_t *)p + i, h, (size_t)n * sizeof *h);
    }
}
/* x rounded as if stored as dtype. */
VEC_FN v16 v_round(v16 x, enum dtype t)
{
    if (t == DT_F32)
        return x;
    uint16_t h[16];
    v_store_bf16(h, x);
    return v_load_bf16(h);
}
