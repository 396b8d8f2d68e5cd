/* Adam on the CPU in one pass over memory, which is what bounds it: half-precision gradient in, half-precision weight out.
 *
 * Work goes in blocks that fit the first cache: what is not fp32 is widened into a buffer there, one loop computes in fp32, and what is
 * only written goes out past the caches. The order and the rounding of the operations are those of torch's own fused CPU kernel.
 */
#define _GNU_SOURCE
#include <math.h>

#include "half.h"
#include "stream.h"
#include "threads.h"

enum { BLOCK = 512, CHUNK = 16384 }; /* elements: of the first cache; of a thread at a time */

#define AT(array, dtype, i) ((void *)((char *)(array) + (i) * ((dtype) == FP32 ? 4 : 2)))

#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__aarch64__)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c)) /* a call for each element where the processor has none */
#endif

struct adam {
    const void *grad, *weight, *exp_avg, *exp_avg_sq;
    void *weight_out, *exp_avg_out, *exp_avg_sq_out, *half_out;
    int64_t n, num_tail; /* the last elements that torch computes one by one */
    int32_t grad_dtype, moment_dtype, half_dtype;
    int32_t stream_half, stream_state; /* whether what is written goes past the caches */
    int32_t decay;
    uint32_t salt; /* of the stochastic rounding: another one each step */
    float grad_factor, decay_factor, lerp_weight, beta2, one_minus_beta2, bias_correction2_sqrt, eps, negative_step_size;
};

enum { COUPLED = 1, DECOUPLED };    /* weight decay */
enum { WHOLE, WITH_HALF };          /* weight: fp32; fp32 and a bf16 copy of the new one */

#define INLINE static inline __attribute__((always_inline))

/* Of one element, as torch's fused kernel. The flags are constants wherever speed counts. */
INLINE void update(const struct adam a, const int decay, const int is_small, const int is_tail, float g, float *weight, float *exp_avg,
                   float *exp_avg_sq)
{
    float w = *weight, m = *exp_avg, v = *exp_avg_sq;
    g = g * a.grad_factor;
    if (decay == COUPLED)
        g = FMA(w, a.decay_factor, g);
    if (decay == DECOUPLED)
        w = w * a.decay_factor;
    /* As torch's lerp: exact at both ends. */
    m = is_small ? FMA(a.lerp_weight, g - m, m) : FMA(a.lerp_weight - 1.0f, g - m, g);
    /* torch's two loops left it to the compiler which of the products is rounded. */
    v = is_tail ? FMA(v, a.beta2, a.one_minus_beta2 * g * g) : FMA(a.one_minus_beta2 * g, g, v * a.beta2);
    *weight = w + a.negative_step_size * m / (sqrtf(v) / a.bias_correction2_sqrt + a.eps);
    *exp_avg = m;
    *exp_avg_sq = v;
}

/* Random bits from what an element holds: the same whatever array, slice, thread or process it is in. */
static inline uint32_t noise_of(float weight, float grad, uint32_t salt)
{
    uint32_t x = bits_of(weight) ^ (bits_of(grad) * 0x9e3779b1u) ^ salt;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

struct block { /* where one block's arrays begin; an output may be its own input */
    const void *grad, *weight, *exp_avg, *exp_avg_sq;
    void *weight_out, *exp_avg_out, *exp_avg_sq_out, *half_out;
    int64_t n;
};

/* Conversions are in the same loop: dividing takes so long that they cost nothing beside it. */
INLINE void block_loop(const struct adam *all, const struct block *b, const int decay, const int is_small, const int is_tail,
                       const int grad_dtype, const int weight_kind, const int moment_dtype)
{
    const struct adam a = *all;
    const int64_t n = b->n;
    const void *grad = b->grad, *weight = b->weight, *exp_avg = b->exp_avg, *exp_avg_sq = b->exp_avg_sq;
    void *weight_out = b->weight_out, *exp_avg_out = b->exp_avg_out, *exp_avg_sq_out = b->exp_avg_sq_out;
    uint16_t *half_out = b->half_out;
#define GET(array, dtype) ((dtype) == FP32 ? ((const float *)(array))[i] : float_of_bf16(((const uint16_t *)(array))[i]))
    ELEMENTWISE
    for (int64_t i = 0; i < n; i++) {
        float g = GET(grad, grad_dtype), m = GET(exp_avg, moment_dtype), v = GET(exp_avg_sq, moment_dtype);
        float w = ((const float *)weight)[i];
        uint32_t noise = moment_dtype == BF16 ? noise_of(w, g, a.salt) : 0;
        update(a, decay, is_small, is_tail, g, &w, &m, &v);
        if (moment_dtype == BF16) {
            ((uint16_t *)exp_avg_out)[i] = bf16_stochastic(m, noise >> 16);
            ((uint16_t *)exp_avg_sq_out)[i] = bf16_stochastic(v, noise & 0xffffu);
        } else {
            ((float *)exp_avg_out)[i] = m;
            ((float *)exp_avg_sq_out)[i] = v;
        }
        ((float *)weight_out)[i] = w;
        if (weight_kind == WITH_HALF)
            half_out[i] = bf16_nearest(w);
    }
}

static void compute_block(const struct adam *a, const struct block *b, int is_tail, int grad_dtype, int weight_kind)
{
    const int is_small = fabsf(a->lerp_weight) < 0.5f, is_usual = is_small && !is_tail;
    /* Flags of what is rare or short are looked at in the loop; nothing decays when it is multiplied by 1. */
#define LOOP(grad_kind, kind, moments)                                                                                                    \
    case ((grad_kind)*2 + (kind)) * 2 + (moments):                                                                                         \
        if (!is_usual)                                                                                                                     \
            block_loop(a, b, a->decay, is_small, is_tail, grad_kind, kind, moments);                                                       \
        else if (a->decay == COUPLED)                                                                                                      \
            block_loop(a, b, COUPLED, 1, 0, grad_kind, kind, moments);                                                                     \
        else                                                                                                                               \
            block_loop(a, b, DECOUPLED, 1, 0, grad_kind, kind, moments);                                                                   \
        break;
#define LOOPS(grad_kind, kind) LOOP(grad_kind, kind, FP32) LOOP(grad_kind, kind, BF16)
    switch ((grad_dtype * 2 + weight_kind) * 2 + a->moment_dtype) {
        LOOPS(FP32, WHOLE)
        LOOPS(FP32, WITH_HALF)
        LOOPS(BF16, WHOLE)
        LOOPS(BF16, WITH_HALF)
    }
}

/* What stays in the caches is written where it belongs. What is to go past them is put there once a block of it is whole. */
static void step_block(const struct adam *a, int64_t start, int64_t n, int is_tail)
{
    float wide_grad[BLOCK], new_w[BLOCK], new_m[BLOCK], new_v[BLOCK];
    uint16_t half[BLOCK];
    const int weight_kind = a->half_dtype == BF16 ? WITH_HALF : WHOLE;
    const int moment_bytes = a->moment_dtype == FP32 ? 4 : 2;
    void *grad = AT(a->grad, a->grad_dtype, start), *half_place = AT(a->half_out, a->half_dtype, start);
    void *w_place = AT(a->weight_out, FP32, start);
    void *m_place = AT(a->exp_avg_out, a->moment_dtype, start), *v_place = AT(a->exp_avg_sq_out, a->moment_dtype, start);
    struct block b = {
        .grad = grad,
        .weight = AT(a->weight, FP32, start),
        .exp_avg = AT(a->exp_avg, a->moment_dtype, start),
        .exp_avg_sq = AT(a->exp_avg_sq, a->moment_dtype, start),
        .weight_out = a->stream_state ? new_w : w_place,
        .exp_avg_out = a->stream_state ? new_m : m_place,
        .exp_avg_sq_out = a->stream_state ? new_v : v_place,
        .half_out = a->stream_half ? half : half_place,
        .n = n,
    };
    if (a->grad_dtype == FP16) {
        widen_block(wide_grad, grad, FP16, n);
        b.grad = wide_grad;
    }
    compute_block(a, &b, is_tail, a->grad_dtype == BF16 ? BF16 : FP32, weight_kind);

    if (a->half_dtype == FP32)
        put(half_place, b.weight_out, 4 * n, a->stream_half);
    else if (a->half_dtype == FP16) {
        narrow_block(half, b.weight_out, FP16, n);
        put(half_place, half, 2 * n, a->stream_half);
    } else if (a->half_dtype == BF16 && a->stream_half)
        stream_out(half_place, half, 2 * n);
    if (a->stream_state) {
        stream_out(w_place, new_w, 4 * n);
        stream_out(m_place, new_m, moment_bytes * n);
        stream_out(v_place, new_v, moment_bytes * n);
    }
}

static void step_chunk(void *job, int64_t chunk)
{
    const struct adam *a = job;
    const int64_t tail = a->n - a->num_tail, last = a->n < (chunk + 1) * CHUNK ? a->n : (chunk + 1) * CHUNK;
    for (int64_t start = chunk * CHUNK; start < last; start += BLOCK) {
        int64_t count = last - start < BLOCK ? last - start : BLOCK;
        int64_t before = tail <= start ? 0 : tail - start < count ? tail - start : count;
        if (before)
            step_block(a, start, before, 0);
        if (before < count)
            step_block(a, start + before, count - before, 1);
    }
    finish_streams();
}

void portwright_adam_step(struct adam *a, int num_threads) { share_out(step_chunk, a, (a->n + CHUNK - 1) / CHUNK, num_threads); }

/* What the caller's idea of the structure is held against. */
int portwright_layout(void) { return (int)sizeof(struct adam); }
