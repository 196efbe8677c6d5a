#include "kernels/host.h"
#include "kernels/simd.h"

#define CHUNK 4096u

WEIR_INLINE void narrow_body(const float *restrict in, uint16_t *restrict out, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = weir_narrow(in[i]);
}
WEIR_EACH_ISA(static void, narrow, (const float *in, uint16_t *out, uint64_t count),
              (in, out, count))

WEIR_INLINE void widen_body(const uint16_t *restrict in, float *restrict out, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = weir_widen(in[i]);
}
WEIR_EACH_ISA(static void, widen, (const uint16_t *in, float *out, uint64_t count),
              (in, out, count))

static uint64_t dtype_bytes(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? 2 : 4;
}

static uint64_t chunk_count(uint64_t at, uint64_t count)
{
    return count - at < CHUNK ? count - at : CHUNK;
}

static void cast_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_cast_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint64_t at = 0; at < a.count; at += CHUNK) {
        uint64_t n = chunk_count(at, a.count);
        if (a.from == a.to)
            memcpy((char *)a.out + at * dtype_bytes(a.to),
                   (const char *)a.in + at * dtype_bytes(a.to), n * dtype_bytes(a.to));
        else if (a.from == WEIR_FP32)
            WEIR_BY_ISA(k->isa, narrow, ((const float *)a.in + at, (uint16_t *)a.out + at, n));
        else
            WEIR_BY_ISA(k->isa, widen, ((const uint16_t *)a.in + at, (float *)a.out + at, n));
    }
}

enum weir_status weir_host_cast(struct weir_kernels *kernels, struct weir_stream *stream,
                                const struct weir_cast_args *a)
{
    struct weir_range ranges[] = {{a->in, a->count * dtype_bytes(a->from), false},
                                  {a->out, a->count * dtype_bytes(a->to), true}};
    return weir_host_queue(kernels, stream, cast_run, a, sizeof *a, ranges, 2);
}

WEIR_INLINE void add_bf16_body(const uint16_t *a, const uint16_t *b, uint16_t *out, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = weir_narrow(weir_widen(a[i]) + weir_widen(b[i]));
}
WEIR_EACH_ISA(static void, add_bf16,
              (const uint16_t *a, const uint16_t *b, uint16_t *out, uint64_t count),
              (a, b, out, count))

WEIR_INLINE void add_fp32_body(const float *a, const float *b, float *out, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}
WEIR_EACH_ISA(static void, add_fp32, (const float *a, const float *b, float *out, uint64_t count),
              (a, b, out, count))

static void add_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_add_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint64_t at = 0; at < a.count; at += CHUNK) {
        uint64_t n = chunk_count(at, a.count);
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, add_bf16, ((const uint16_t *)a.a + at, (const uint16_t *)a.b + at,
                                           (uint16_t *)a.out + at, n));
        else
            WEIR_BY_ISA(k->isa, add_fp32, ((const float *)a.a + at, (const float *)a.b + at,
                                           (float *)a.out + at, n));
    }
}

enum weir_status weir_host_add(struct weir_kernels *kernels, struct weir_stream *stream,
                               const struct weir_add_args *a)
{
    uint64_t bytes = a->count * dtype_bytes(a->dtype);
    struct weir_range ranges[] = {{a->a, bytes, false}, {a->b, bytes, false}, {a->out, bytes, true}};
    return weir_host_queue(kernels, stream, add_run, a, sizeof *a, ranges, 3);
}
