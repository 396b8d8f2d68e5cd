/* Adam on the CPU in one pass over memory, which is what bounds it: half-precision gradient in, half-precision weight out.
 *
 * Work goes in blocks that fit the first cache: what is not fp32 is widened into a buffer there, one loop computes in fp32, and what is
 * only written goes out past the caches. The order and the rounding of the operations are those of torch's own fused CPU kernel.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include "half.h"
#include "threads.h"

enum { BLOCK = 512, CHUNK = 16384, LANES = 32 };

#ifdef __FP_FAST_FMAF
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c)) /* a call for each element where the processor has none */
#endif

struct adam {
    const void *grad;
    const float *weight;
    const void *exp_avg, *exp_avg_sq;
    float *weight_out;
    void *exp_avg_out, *exp_avg_sq_out;
    void *half_out;
    int64_t n;
    int32_t grad_dtype, moment_dtype, half_dtype;
    int32_t stream_half, stream_state; /* whether what is written goes past the caches */
    int32_t decay, only_traffic;
    uint32_t salt; /* of the stochastic rounding: another one each step */
    float grad_factor, decay_factor, lerp_weight, beta2, one_minus_beta2, bias_correction2_sqrt, eps, negative_step_size;
};

/* Whole cache lines go past the caches, so that a line is not read only to be overwritten. */
static void stream_out(void *out, const void *source, int64_t num_bytes)
{
    char *to = out;
    const char *from = source;
#if defined(__x86_64__)
    int64_t head = (int64_t)(-(uintptr_t)to & 63);
    if (head > num_bytes)
        head = num_bytes;
    memcpy(to, from, (size_t)head);
    to += head, from += head, num_bytes -= head;
    for (; num_bytes >= 64; to += 64, from += 64, num_bytes -= 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512((__m512i *)to, _mm512_loadu_si512(from));
#else
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
#endif
    }
#endif
    memcpy(to, from, (size_t)num_bytes);
}

static void finish_streams(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

static void put(void *out, const void *source, int64_t num_bytes, int stream)
{
    if (stream)
        stream_out(out, source, num_bytes);
    else
        memcpy(out, source, (size_t)num_bytes);
}

enum { PLAIN, COUPLED, DECOUPLED }; /* weight decay */

static inline __attribute__((always_inline)) void adam_loop(const struct adam *restrict a, const int decay, const int is_small,
                                                            const float *grad, const float *weight, const float *exp_avg,
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
        v = FMA(rest2 * g, g, v * beta2);
        float denominator = sqrtf(v) / correction + eps;
        exp_avg_out[i] = m;
        exp_avg_sq_out[i] = v;
        weight_out[i] = w + step_size * m / denominator;
    }
}

static void adam_block(const struct adam *a, const float *grad, const float *weight, const float *exp_avg, const float *exp_avg_sq,
                       float *weight_out, float *exp_avg_out, float *exp_avg_sq_out, int64_t n)
{
#define LOOP(decay, is_small) adam_loop(a, decay, is_small, grad, weight, exp_avg, exp_avg_sq, weight_out, exp_avg_out, exp_avg_sq_out, n)
    const int is_small = fabsf(a->lerp_weight) < 0.5f; /* as torch's lerp: exact at both ends */
    switch (a->decay * 2 + is_small) {
    case PLAIN * 2: LOOP(PLAIN, 0); break;
    case PLAIN * 2 + 1: LOOP(PLAIN, 1); break;
    case COUPLED * 2: LOOP(COUPLED, 0); break;
    case COUPLED * 2 + 1: LOOP(COUPLED, 1); break;
    case DECOUPLED * 2: LOOP(DECOUPLED, 0); break;
    case DECOUPLED * 2 + 1: LOOP(DECOUPLED, 1); break;
    }
#undef LOOP
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

#define AT(array, dtype, i) ((char *)(array) + (i) * ((dtype) == FP32 ? 4 : 2))

static void step_block(const struct adam *a, int64_t start, int64_t n)
{
    float wide_grad[BLOCK], wide_m[BLOCK], wide_v[BLOCK], new_w[BLOCK], new_m[BLOCK], new_v[BLOCK];
    uint16_t half[BLOCK], half_m[BLOCK], half_v[BLOCK];
    const int is_narrow = a->moment_dtype != FP32, is_buffered = a->stream_state || is_narrow;

    const float *grad = (const float *)AT(a->grad, a->grad_dtype, start);
    if (a->grad_dtype != FP32) {
        widen_block(wide_grad, grad, a->grad_dtype, n);
        grad = wide_grad;
    }
    const float *m = (const float *)AT(a->exp_avg, a->moment_dtype, start);
    const float *v = (const float *)AT(a->exp_avg_sq, a->moment_dtype, start);
    if (is_narrow) {
        widen_block(wide_m, m, a->moment_dtype, n);
        widen_block(wide_v, v, a->moment_dtype, n);
        m = wide_m, v = wide_v;
    }
    void *m_place = AT(a->exp_avg_out, a->moment_dtype, start), *v_place = AT(a->exp_avg_sq_out, a->moment_dtype, start);
    const float *w = a->weight + start;
    float *w_out = is_buffered ? new_w : a->weight_out + start;
    float *m_out = is_buffered ? new_m : m_place, *v_out = is_buffered ? new_v : v_place;
    if (a->only_traffic)
        traffic_block(grad, w, m, v, w_out, m_out, v_out, n);
    else
        adam_block(a, grad, w, m, v, w_out, m_out, v_out, n);
    if (is_narrow) {
        round_moments(a, grad, w, new_m, new_v, half_m, half_v, n);
        put(m_place, half_m, 2 * n, a->stream_state);
        put(v_place, half_v, 2 * n, a->stream_state);
    } else if (is_buffered) {
        put(m_place, new_m, 4 * n, a->stream_state);
        put(v_place, new_v, 4 * n, a->stream_state);
    }
    if (is_buffered)
        put(a->weight_out + start, new_w, 4 * n, a->stream_state);
    if (a->half_dtype == FP32)
        put(AT(a->half_out, FP32, start), w_out, 4 * n, a->stream_half);
    else if (a->half_dtype != NONE) {
        narrow_block(half, w_out, a->half_dtype, n);
        put(AT(a->half_out, a->half_dtype, start), half, 2 * n, a->stream_half);
    }
}

static int64_t num_chunks_of(int64_t n) { return (n + CHUNK - 1) / CHUNK; }

#define BLOCKS_OF_CHUNK(chunk, total, start, count)                                                                                       \
    for (int64_t start = (chunk) * CHUNK, last = (total) < start + CHUNK ? (total) : start + CHUNK, count;                                 \
         start < last && (count = last - start < BLOCK ? last - start : BLOCK, 1); start += BLOCK)

static void step_chunk(void *job, int64_t chunk)
{
    const struct adam *a = job;
    BLOCKS_OF_CHUNK(chunk, a->n, start, count) step_block(a, start, count);
    finish_streams();
}

int portwright_adam_step(struct adam *a, int num_threads) { return share_out(step_chunk, a, num_chunks_of(a->n), num_threads); }

struct convert {
    void *out;
    const void *source;
    int64_t n;
    int32_t out_dtype, source_dtype, stream;
};

static void convert_chunk(void *job, int64_t chunk)
{
    const struct convert *c = job;
    float wide[BLOCK];
    uint16_t half[BLOCK];
    BLOCKS_OF_CHUNK(chunk, c->n, start, count)
    {
        const void *source = AT(c->source, c->source_dtype, start);
        if (c->source_dtype != FP32) {
            widen_block(wide, source, c->source_dtype, count);
            source = wide;
        }
        if (c->out_dtype == FP32)
            put(AT(c->out, FP32, start), source, 4 * count, c->stream);
        else {
            narrow_block(half, source, c->out_dtype, count);
            put(AT(c->out, c->out_dtype, start), half, 2 * count, c->stream);
        }
    }
    finish_streams();
}

int portwright_convert(struct convert *c, int num_threads) { return share_out(convert_chunk, c, num_chunks_of(c->n), num_threads); }

static void add_chunk(void *job, int64_t chunk)
{
    const struct convert *c = job;
    float wide[BLOCK];
    BLOCKS_OF_CHUNK(chunk, c->n, start, count)
    {
        const float *source = (const float *)AT(c->source, c->source_dtype, start);
        if (c->source_dtype != FP32) {
            widen_block(wide, source, c->source_dtype, count);
            source = wide;
        }
        float *sum = (float *)c->out + start;
        ELEMENTWISE
        for (int64_t i = 0; i < count; i++)
            sum[i] += source[i];
    }
}

int portwright_add(struct convert *c, int num_threads) { return share_out(add_chunk, c, num_chunks_of(c->n), num_threads); }

struct squares {
    const void *source;
    int64_t n;
    int32_t dtype;
    double *sums; /* one a chunk, added in their order: the same whatever the threads did */
};

static void squares_chunk(void *job, int64_t chunk)
{
    const struct squares *s = job;
    float wide[BLOCK];
    double lanes[LANES] = {0};
    BLOCKS_OF_CHUNK(chunk, s->n, start, count)
    {
        const float *source = (const float *)AT(s->source, s->dtype, start);
        if (s->dtype != FP32) {
            widen_block(wide, source, s->dtype, count);
            source = wide;
        }
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES)
            for (int lane = 0; lane < LANES; lane++)
                lanes[lane] += (double)source[i + lane] * (double)source[i + lane];
        for (; i < count; i++)
            lanes[i % LANES] += (double)source[i] * (double)source[i];
    }
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    s->sums[chunk] = sum;
}

double portwright_sum_squares(const void *source, int64_t n, int32_t dtype, int num_threads)
{
    int64_t num_chunks = num_chunks_of(n);
    struct squares job = {source, n, dtype, malloc(sizeof(double) * (size_t)(num_chunks + 1))};
    if (!job.sums)
        return -1; /* no sum of squares is negative: out of memory */
    share_out(squares_chunk, &job, num_chunks, num_threads);
    double sum = 0;
    for (int64_t chunk = 0; chunk < num_chunks; chunk++)
        sum += job.sums[chunk];
    free(job.sums);
    return sum;
}

struct bytes {
    char *out;
    const char *source;
    int64_t n;
};

enum { CHUNK_BYTES = 4 * CHUNK };

static void zero_chunk(void *job, int64_t chunk)
{
    struct bytes *b = job;
    int64_t start = chunk * CHUNK_BYTES, left = b->n - start;
    memset(b->out + start, 0, (size_t)(left < CHUNK_BYTES ? left : CHUNK_BYTES));
}

static void copy_chunk(void *job, int64_t chunk)
{
    struct bytes *b = job;
    int64_t start = chunk * CHUNK_BYTES, left = b->n - start;
    stream_out(b->out + start, b->source + start, left < CHUNK_BYTES ? left : CHUNK_BYTES);
    finish_streams();
}

/* Zeroes in the order in which the other functions give out their chunks: pages come to lie near the threads that will use them. */
int portwright_touch(void *out, int64_t num_bytes, int num_threads)
{
    struct bytes job = {out, NULL, num_bytes};
    return share_out(zero_chunk, &job, (num_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES, num_threads);
}

int portwright_copy(void *out, const void *source, int64_t num_bytes, int num_threads)
{
    struct bytes job = {out, source, num_bytes};
    return share_out(copy_chunk, &job, (num_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES, num_threads);
}

/* Thread i runs on core i of the list from now on; an empty list lets them run anywhere in `anywhere` again. Gives how many could not be bound. */
int portwright_bind(const int32_t *cores, int num_cores)
{
    if (num_cores > MAX_THREADS)
        return num_cores;
    pthread_mutex_lock(&pool.callers);
    pool.num_bound = num_cores;
    for (int i = 0; i < num_cores; i++)
        pool.bound_cores[i] = cores[i];
    make_workers(num_cores);
    int num_failed = num_cores > pool.num_workers ? num_cores - pool.num_workers : 0;
    for (int i = 0; num_cores && i < pool.num_workers; i++)
        num_failed += bind_worker(i) != 0;
    pthread_mutex_unlock(&pool.callers);
    return num_failed;
}

int portwright_layout(void) { return (int)sizeof(struct adam); }
