/* Writing past the caches, where what is written is not read again soon. */
#ifndef PORTWRIGHT_STREAM_H
#define PORTWRIGHT_STREAM_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

#endif
