/*
 * Elementwise between the two dtypes: casts and sums.
 */
#include "kernels/host.h"
#include "kernels/simd.h"
#include "kernels/window.h"

#define CHUNK 4096u

WEIR_INLINE void narrow_body(const float *restrict in, uint16_t *restrict out, uint64_t count)
{
    WEIR_SIMD
    for (uint64_t i = 0; i < count; i++)
        out[i] = weir_narrow(in[i]);
}
WEIR_EACH_ISA(static void, narrow, (const float *in, uint16_t *out, uint64_t count),
              (in, out, count))

WEIR_INLINE void widen_body(const uint16_t *restrict in, float *restrict out, uint64_t count)
{
    WEIR_SIMD
    for (uint64_t i = 0; i < count; i++)
        out[i] = weir_widen(in[i]);
}
WEIR_EACH_ISA(static void, widen, (const uint16_t *in, float *out, uint64_t count),
              (in, out, count))

static uint64_t chunk_count(uint64_t at, uint64_t count)
{
    return count - at < CHUNK ? count - at : CHUNK;
}

void weir_host_narrow(const struct weir_host_kernels *k, const float *in, uint16_t *out,
                      uint64_t count)
{
#pragma omp parallel for num_threads(k->thread_count) schedule(static) if (k->thread_count > 1)
    for (uint64_t at = 0; at < count; at += CHUNK)
        WEIR_BY_ISA(k->isa, narrow, (in + at, out + at, chunk_count(at, count)));
}

void weir_host_widen(const struct weir_host_kernels *k, const uint16_t *in, float *out,
                     uint64_t count)
{
#pragma omp parallel for num_threads(k->thread_count) schedule(static) if (k->thread_count > 1)
    for (uint64_t at = 0; at < count; at += CHUNK)
        WEIR_BY_ISA(k->isa, widen, (in + at, out + at, chunk_count(at, count)));
}

static void cast_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_cast_args *a = (const void *)call->args;
    if (a->from == a->to)
        memcpy(a->out, a->in, a->count * weir_dtype_bytes(a->to));
    else if (a->to == WEIR_BF16)
        weir_host_narrow(call->kernels, a->in, a->out, a->count);
    else
        weir_host_widen(call->kernels, a->in, a->out, a->count);
}

enum weir_status weir_host_cast(struct weir_kernels *kernels, struct weir_stream *stream,
                                const struct weir_cast_args *a)
{
    struct weir_range ranges[] = {{a->in, a->count * weir_dtype_bytes(a->from), false},
                                  {a->out, a->count * weir_dtype_bytes(a->to), true}};
    return weir_host_queue(kernels, stream, cast_run, a, sizeof *a, ranges, 2);
}

WEIR_INLINE void add_bf16_body(const uint16_t *a, const uint16_t *b, uint16_t *out, uint64_t count)
{
    WEIR_SIMD
    for (uint64_t i = 0; i < count; i++)
        out[i] = weir_narrow(weir_widen(a[i]) + weir_widen(b[i]));
}
WEIR_EACH_ISA(static void, add_bf16,
              (const uint16_t *a, const uint16_t *b, uint16_t *out, uint64_t count),
              (a, b, out, count))

WEIR_INLINE void add_fp32_body(const float *a, const float *b, float *out, uint64_t count)
{
    WEIR_SIMD
    for (uint64_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}
WEIR_EACH_ISA(static void, add_fp32, (const float *a, const float *b, float *out, uint64_t count),
              (a, b, out, count))

static void add_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    const struct weir_add_args *x = (const void *)call->args;
#pragma omp parallel for num_threads(k->thread_count) schedule(static) if (k->thread_count > 1)
    for (uint64_t at = 0; at < x->count; at += CHUNK) {
        uint64_t n = chunk_count(at, x->count);
        if (x->dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, add_bf16,
                        ((const uint16_t *)x->a + at, (const uint16_t *)x->b + at,
                         (uint16_t *)x->out + at, n));
        else
            WEIR_BY_ISA(
                k->isa, add_fp32,
                ((const float *)x->a + at, (const float *)x->b + at, (float *)x->out + at, n));
    }
}

enum weir_status weir_host_add(struct weir_kernels *kernels, struct weir_stream *stream,
                               const struct weir_add_args *a)
{
    uint64_t bytes = a->count * weir_dtype_bytes(a->dtype);
    struct weir_range ranges[] = {
        {a->a, bytes, false}, {a->b, bytes, false}, {a->out, bytes, true}};
    return weir_host_queue(kernels, stream, add_run, a, sizeof *a, ranges, 3);
}
