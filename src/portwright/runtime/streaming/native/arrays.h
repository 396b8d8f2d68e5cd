/* Elementwise work on whole arrays beside the optimizer's step: conversions, sums, zeroing, copies. */
#ifndef PORTWRIGHT_ARRAYS_H
#define PORTWRIGHT_ARRAYS_H

#include <stdlib.h>

#include "half.h"
#include "stream.h"
#include "threads.h"

enum { BLOCK = 512, CHUNK = 16384, LANES = 32 }; /* elements: of the first cache; of a thread at a time; of a sum */

#define AT(array, dtype, i) ((void *)((char *)(array) + (i) * ((dtype) == FP32 ? 4 : 2)))

static int64_t num_chunks_of(int64_t n) { return (n + CHUNK - 1) / CHUNK; }

#define BLOCKS_OF_CHUNK(chunk, total, start, count)                                                                                       \
    for (int64_t start = (chunk) * CHUNK, last = (total) < start + CHUNK ? (total) : start + CHUNK, count;                                 \
         start < last && (count = last - start < BLOCK ? last - start : BLOCK, 1); start += BLOCK)

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
        const float *source = AT(c->source, c->source_dtype, start);
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

/* Sums of squares are kept apart by lane within a chunk and by chunk, and added in one order: the same whatever the threads did. */
static void add_squares(double *restrict sums, const void *source, int dtype, int64_t n)
{
    float wide[BLOCK];
    double lanes[LANES];
    if (dtype != FP32) {
        widen_block(wide, source, dtype, n);
        source = wide;
    }
    const float *values = source;
    memcpy(lanes, sums, sizeof lanes); /* a copy of its own stays in registers */
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += (double)values[i + lane] * (double)values[i + lane];
    memcpy(sums, lanes, sizeof lanes);
    for (; i < n; i++)
        sums[i % LANES] += (double)values[i] * (double)values[i];
}

static double total_of(const double *sums, int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < n; i++)
        total += sums[i];
    return total;
}

struct squares {
    const void *source;
    int64_t n;
    int32_t dtype;
    double *sums; /* one a chunk */
};

static void squares_chunk(void *job, int64_t chunk)
{
    const struct squares *s = job;
    double lanes[LANES] = {0};
    BLOCKS_OF_CHUNK(chunk, s->n, start, count) add_squares(lanes, AT(s->source, s->dtype, start), s->dtype, count);
    s->sums[chunk] = total_of(lanes, LANES);
}

static double *make_sums(int64_t num_chunks) { return malloc(sizeof(double) * (size_t)(num_chunks + 1)); }

double portwright_sum_squares(const void *source, int64_t n, int32_t dtype, int num_threads)
{
    int64_t num_chunks = num_chunks_of(n);
    struct squares job = {source, n, dtype, make_sums(num_chunks)};
    if (!job.sums)
        return -1; /* no sum of squares is negative: out of memory */
    share_out(squares_chunk, &job, num_chunks, num_threads);
    double total = total_of(job.sums, num_chunks);
    free(job.sums);
    return total;
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

#endif
