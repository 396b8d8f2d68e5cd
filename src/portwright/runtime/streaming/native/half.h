/* bf16 and fp16 to fp32 and back: rounded to nearest even, NaN stays NaN, denormals are kept. Plain loops that compilers vectorise. */
#ifndef PORTWRIGHT_HALF_H
#define PORTWRIGHT_HALF_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

/* Same index only: no iteration reads what another one writes, even where input and output are the same array. */
#if defined(__clang__)
#define ELEMENTWISE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define ELEMENTWISE _Pragma("GCC ivdep")
#else
#define ELEMENTWISE
#endif

enum { FP32 = 0, BF16 = 1, FP16 = 2, NONE = 3 };

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline int is_nan_bits(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

static inline uint16_t bf16_nearest(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(is_nan_bits(bits) ? 0x7fc0u : rounded);
}

/* Rounds away from zero with the probability that makes the mean right; `noise` has 16 random bits. */
static inline uint16_t bf16_stochastic(float x, uint32_t noise)
{
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + noise) >> 16;
    uint32_t special = is_nan_bits(bits) ? 0x7fc0u : bits >> 16;
    return (uint16_t)((bits & 0x7f800000u) == 0x7f800000u ? special : rounded);
}

static inline float float_of_bf16(uint16_t half) { return float_of((uint32_t)half << 16); }

#if !defined(__F16C__)
static inline float float_of_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    uint32_t shifted = magnitude << 13;
    float tiny = (float)(int32_t)magnitude * 0x1p-24f; /* a denormal is a count of 2^-24 */
    uint32_t normal = shifted + ((127 - 15) << 23);
    uint32_t special = shifted | 0x7f800000u;
    uint32_t bits = magnitude < 0x400u ? bits_of(tiny) : magnitude >= 0x7c00u ? special : normal;
    return float_of(sign | bits);
}

static inline uint16_t fp16_nearest(float x)
{
    uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t rebased = magnitude - ((127 - 15) << 23);
    uint32_t normal = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
    /* Below 2^-14 the adder rounds: beside 0.5 a float's last place is 2^-24. */
    uint32_t tiny = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t half = magnitude < 0x38800000u ? tiny : magnitude >= 0x477ff000u ? large : normal;
    return (uint16_t)(sign | half);
}
#endif

static void widen_block(float *out, const void *source, int dtype, int64_t n)
{
    const uint16_t *half = source;
    if (dtype == BF16) {
        ELEMENTWISE
        for (int64_t i = 0; i < n; i++)
            out[i] = float_of_bf16(half[i]);
        return;
    }
#if defined(__F16C__)
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + i))));
    for (; i < n; i++)
        out[i] = _cvtsh_ss(half[i]);
#else
    ELEMENTWISE
    for (int64_t i = 0; i < n; i++)
        out[i] = float_of_fp16(half[i]);
#endif
}

static void narrow_block(uint16_t *out, const float *source, int dtype, int64_t n)
{
    if (dtype == BF16) {
        ELEMENTWISE
        for (int64_t i = 0; i < n; i++)
            out[i] = bf16_nearest(source[i]);
        return;
    }
#if defined(__F16C__)
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(source + i), 0));
    for (; i < n; i++)
        out[i] = _cvtss_sh(source[i], 0);
#else
    ELEMENTWISE
    for (int64_t i = 0; i < n; i++)
        out[i] = fp16_nearest(source[i]);
#endif
}

#endif
