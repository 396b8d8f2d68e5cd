/* Adam on the CPU in one pass over memory, which is what bounds it: half-precision gradient in, half-precision weight out.
 *
 * Work goes in blocks that fit the first cache: what is not fp32 is widened into a buffer there, one loop computes in fp32, and what is
 * only written goes out past the caches. The order and the rounding of the operations are those of torch's own fused CPU kernel.
 */
#define _GNU_SOURCE
#include <math.h>

#include "arrays.h"

#ifdef __FP_FAST_FMAF
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c)) /* a call for each element where the processor has none */
#endif

struct adam {
    const void *grad, *weight, *exp_avg, *exp_avg_sq;
    void *weight_out, *exp_avg_out, *exp_avg_sq_out, *half_out;
    const void *low; /* of a weight that is split: its high half is `weight` */
    void *low_out;
    int64_t n, num_tail; /* the last elements that torch computes one by one */
    int32_t grad_dtype, moment_dtype, half_dtype;
    int32_t stream_half, stream_state; /* whether what is written goes past the caches */
    int32_t decay, is_split, only_traffic;
    uint32_t salt; /* of the stochastic rounding: another one each step */
    float grad_factor, decay_factor, lerp_weight, beta2, one_minus_beta2, bias_correction2_sqrt, eps, negative_step_size;
};

enum { PLAIN, COUPLED, DECOUPLED }; /* weight decay */

static inline __attribute__((always_inline)) void adam_loop(const struct adam *restrict a, const int decay, const int is_small,
                                                            const int is_tail, const float *grad, const float *weight, const float *exp_avg,
                                                            const float *exp_avg_sq, float *weight_out, float *exp_avg_out,
                                                            float *exp_avg_sq_out, int64_t n)
{
    const float factor = a->grad_factor, decay_factor = a->decay_factor;
    const float lerp = is_small ? a->lerp_weight : a->lerp_weight - 1.0f;
    const float beta2 = a->beta2, rest2 = a->one_minus_beta2, correction = a->bias_correction2_sqrt, eps = a->eps;
    const float step_size = a->negative_step_size;
    ELEMENTWISE
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = grad[i] * factor, m = exp_avg[i], v = exp_avg_sq[i];
        if (decay == COUPLED)
            g = FMA(w, decay_factor, g);
        if (decay == DECOUPLED)
            w = w * decay_factor;
        m = FMA(lerp, g - m, is_small ? m : g);
        /* torch's two loops leave it to the compiler which of the products is rounded */
        v = is_tail ? FMA(v, beta2, rest2 * g * g) : FMA(rest2 * g, g, v * beta2);
        float denominator = sqrtf(v) / correction + eps;
        exp_avg_out[i] = m;
        exp_avg_sq_out[i] = v;
        weight_out[i] = w + step_size * m / denominator;
    }
}

static void adam_block(const struct adam *a, const int is_tail, const float *grad, const float *weight, const float *exp_avg,
                       const float *exp_avg_sq, float *weight_out, float *exp_avg_out, float *exp_avg_sq_out, int64_t n)
{
    const int is_small = fabsf(a->lerp_weight) < 0.5f; /* as torch's lerp: exact at both ends */
#define LOOP(decay, is_small, is_tail)                                                                                                    \
    case (decay)*4 + (is_small)*2 + (is_tail):                                                                                             \
        adam_loop(a, decay, is_small, is_tail, grad, weight, exp_avg, exp_avg_sq, weight_out, exp_avg_out, exp_avg_sq_out, n);             \
        break;
#define LOOPS(decay) LOOP(decay, 0, 0) LOOP(decay, 0, 1) LOOP(decay, 1, 0) LOOP(decay, 1, 1)
    switch (a->decay * 4 + is_small * 2 + is_tail) {
        LOOPS(PLAIN)
        LOOPS(COUPLED)
        LOOPS(DECOUPLED)
    }
}

/* The same loads and stores with next to no arithmetic: what memory alone allows. */
static void traffic_block(const float *grad, const float *weight, const float *exp_avg, const float *exp_avg_sq, float *weight_out,
                          float *exp_avg_out, float *exp_avg_sq_out, int64_t n)
{
    ELEMENTWISE
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i] + grad[i], m = exp_avg[i] + 1.0f, v = exp_avg_sq[i] + 1.0f;
        weight_out[i] = w;
        exp_avg_out[i] = m;
        exp_avg_sq_out[i] = v;
    }
}

/* Random bits from what an element holds: the same whatever array, slice, thread or process it is in. */
static inline uint32_t noise_of(float weight, float grad, uint32_t salt)
{
    uint32_t x = bits_of(weight) ^ (bits_of(grad) * 0x9e3779b1u) ^ salt;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

static void round_moments(const struct adam *a, const float *grad, const float *weight, const float *exp_avg, const float *exp_avg_sq,
                          uint16_t *exp_avg_out, uint16_t *exp_avg_sq_out, int64_t n)
{
    const uint32_t salt = a->salt;
    ELEMENTWISE
    for (int64_t i = 0; i < n; i++) {
        uint32_t noise = noise_of(weight[i], grad[i], salt);
        exp_avg_out[i] = bf16_stochastic(exp_avg[i], noise >> 16);
        exp_avg_sq_out[i] = bf16_stochastic(exp_avg_sq[i], noise & 0xffffu);
    }
}

static void step_block(const struct adam *a, int64_t start, int64_t n, int is_tail)
{
    float old_w[BLOCK], old_m[BLOCK], old_v[BLOCK], wide_grad[BLOCK], new_w[BLOCK], new_m[BLOCK], new_v[BLOCK];
    uint16_t half[BLOCK], half_low[BLOCK];
    const int is_narrow = a->moment_dtype != FP32;

    const float *grad = AT(a->grad, a->grad_dtype, start);
    if (a->grad_dtype != FP32) {
        widen_block(wide_grad, grad, a->grad_dtype, n);
        grad = wide_grad;
    }
    const float *w = AT(a->weight, FP32, start);
    if (a->is_split) {
        join_block(old_w, AT(a->weight, BF16, start), AT(a->low, BF16, start), n);
        w = old_w;
    }
    const float *m = AT(a->exp_avg, a->moment_dtype, start), *v = AT(a->exp_avg_sq, a->moment_dtype, start);
    if (is_narrow) {
        widen_block(old_m, m, a->moment_dtype, n);
        widen_block(old_v, v, a->moment_dtype, n);
        m = old_m, v = old_v;
    }

    /* What stays in the caches is written where it belongs; the rest is put there once a block of it is whole. */
    void *w_place = AT(a->weight_out, FP32, start);
    void *m_place = AT(a->exp_avg_out, a->moment_dtype, start), *v_place = AT(a->exp_avg_sq_out, a->moment_dtype, start);
    float *w_out = a->stream_state || a->is_split ? new_w : w_place;
    float *m_out = a->stream_state || is_narrow ? new_m : m_place;
    float *v_out = a->stream_state || is_narrow ? new_v : v_place;
    if (is_narrow && w_out == w)
        w_out = new_w; /* the old weight is needed once more, for the rounding */
    if (a->only_traffic)
        traffic_block(grad, w, m, v, w_out, m_out, v_out, n);
    else
        adam_block(a, is_tail, grad, w, m, v, w_out, m_out, v_out, n);

    if (is_narrow) {
        uint16_t *half_m = half, *half_v = half_low;
        round_moments(a, grad, w, new_m, new_v, half_m, half_v, n);
        put(m_place, half_m, 2 * n, a->stream_state);
        put(v_place, half_v, 2 * n, a->stream_state);
    } else if (m_out == new_m) {
        put(m_place, new_m, 4 * n, a->stream_state);
        put(v_place, new_v, 4 * n, a->stream_state);
    }
    if (a->is_split) {
        split_block(half, half_low, new_w, n);
        put(AT(a->weight_out, BF16, start), half, 2 * n, a->stream_state);
        put(AT(a->low_out, BF16, start), half_low, 2 * n, a->stream_state);
    } else if (w_out == new_w)
        put(w_place, new_w, 4 * n, a->stream_state);
    if (a->half_dtype == FP32)
        put(AT(a->half_out, FP32, start), w_out, 4 * n, a->stream_half);
    else if (a->half_dtype != NONE) {
        narrow_block(half, w_out, a->half_dtype, n);
        put(AT(a->half_out, a->half_dtype, start), half, 2 * n, a->stream_half);
    }
}

static void step_chunk(void *job, int64_t chunk)
{
    const struct adam *a = job;
    const int64_t tail = a->n - a->num_tail;
    BLOCKS_OF_CHUNK(chunk, a->n, start, count)
    {
        int64_t before = tail <= start ? 0 : tail - start < count ? tail - start : count;
        if (before)
            step_block(a, start, before, 0);
        if (before < count)
            step_block(a, start + before, count - before, 1);
    }
    finish_streams();
}

int portwright_adam_step(struct adam *a, int num_threads) { return share_out(step_chunk, a, num_chunks_of(a->n), num_threads); }

/* What the caller's idea of the structures is held against. */
int portwright_layout(void) { return (int)(sizeof(struct adam) * 1000 + sizeof(struct convert)); }
