#include "examples/bench/memory_loops.h"
#include "kernels/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SCALE 0.5f

WEIR_INLINE uint64_t read_sum(const uint64_t *restrict b)
{
    uint64_t sum = 0;
    WEIR_SIMD_SUM(sum)
    for (uint32_t i = 0; i < LOOP_ELEMENTS / 2; i++)
        sum += b[i];
    return sum;
}

WEIR_INLINE void copy_piece(float *restrict a, const float *restrict b)
{
    WEIR_SIMD
    for (uint32_t i = 0; i < LOOP_ELEMENTS; i++)
        a[i] = b[i];
}

WEIR_INLINE void triad_piece(float *restrict a, const float *restrict b, const float *restrict c)
{
    WEIR_SIMD
    for (uint32_t i = 0; i < LOOP_ELEMENTS; i++)
        a[i] = b[i] + SCALE * c[i];
}

void loop_read(struct loop *l)
{
    uint64_t sum = 0;
#pragma omp parallel for num_threads(l->thread_count) schedule(static) reduction(+ : sum)
    for (uint64_t i = 0; i < l->count; i += LOOP_ELEMENTS)
        sum += read_sum((const uint64_t *)(const void *)(l->b + i));
    l->sum = sum;
}

void loop_copy(struct loop *l)
{
#pragma omp parallel for num_threads(l->thread_count) schedule(static)
    for (uint64_t i = 0; i < l->count; i += LOOP_ELEMENTS)
        copy_piece(l->a + i, l->b + i);
}

void loop_triad(struct loop *l)
{
#pragma omp parallel for num_threads(l->thread_count) schedule(static)
    for (uint64_t i = 0; i < l->count; i += LOOP_ELEMENTS)
        triad_piece(l->a + i, l->b + i, l->c + i);
}

#if defined(__x86_64__)
bool loop_streams(void)
{
    return true;
}

void loop_copy_stream(struct loop *l)
{
#pragma omp parallel for num_threads(l->thread_count) schedule(static)
    for (uint64_t i = 0; i < l->count; i += LOOP_ELEMENTS)
        for (uint64_t j = i; j < i + LOOP_ELEMENTS; j += 4)
            _mm_stream_ps(l->a + j, _mm_load_ps(l->b + j));
    _mm_sfence();
}

void loop_triad_stream(struct loop *l)
{
    const __m128 scale = _mm_set1_ps(SCALE);
#pragma omp parallel for num_threads(l->thread_count) schedule(static)
    for (uint64_t i = 0; i < l->count; i += LOOP_ELEMENTS)
        for (uint64_t j = i; j < i + LOOP_ELEMENTS; j += 4)
            _mm_stream_ps(l->a + j, _mm_add_ps(_mm_load_ps(l->b + j),
                                               _mm_mul_ps(scale, _mm_load_ps(l->c + j))));
    _mm_sfence();
}
#else
bool loop_streams(void)
{
    return false;
}

void loop_copy_stream(struct loop *l)
{
    loop_copy(l);
}

void loop_triad_stream(struct loop *l)
{
    loop_triad(l);
}
#endif
