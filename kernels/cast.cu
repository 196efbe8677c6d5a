/*
 * Elementwise between the two dtypes: casts and sums, to the bit what kernels/cast.c gives. A
 * thread has eight neighbouring elements, in accesses of 16 bytes where the addresses allow.
 */
#include "kernels/rows.cuh"
extern "C" {
#include "kernels/window.h"
}

#define THREADS 256u
#define EACH    8u
#define CHUNK   (THREADS * EACH)

template <class From, class To, bool whole>
static __global__ void __launch_bounds__(THREADS) cast(const From *in, To *out, uint64_t count)
{
    uint64_t first = (uint64_t)blockIdx.x * CHUNK;
    uint32_t left = (uint32_t)min(count - first, (uint64_t)CHUNK), at = threadIdx.x * EACH;
    float values[EACH];
    if (whole && at + EACH <= left) {
        weir_row_load<true>(in + first, at, left, values);
        weir_row_store<true>(out + first, at, left, values);
    } else {
        weir_row_load<false>(in + first, at, left, values);
        weir_row_store<false>(out + first, at, left, values);
    }
}

template <class T, bool whole>
static __global__ void __launch_bounds__(THREADS)
    add(const T *a, const T *b, T *out, uint64_t count)
{
    uint64_t first = (uint64_t)blockIdx.x * CHUNK;
    uint32_t left = (uint32_t)min(count - first, (uint64_t)CHUNK), at = threadIdx.x * EACH;
    bool packs = whole && at + EACH <= left;
    float x[EACH], y[EACH];
    if (packs) {
        weir_row_load<true>(a + first, at, left, x);
        weir_row_load<true>(b + first, at, left, y);
    } else {
        weir_row_load<false>(a + first, at, left, x);
        weir_row_load<false>(b + first, at, left, y);
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        x[i] = __fadd_rn(x[i], y[i]);
    if (packs)
        weir_row_store<true>(out + first, at, left, x);
    else
        weir_row_store<false>(out + first, at, left, x);
}

static bool aligned(const void *a, const void *b, const void *c)
{
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

template <class From, class To>
static enum weir_status cast_launch(struct weir_stream *stream, const struct weir_cast_args *a)
{
    uint32_t blocks = (uint32_t)((a->count + CHUNK - 1) / CHUNK);
    const From *in = static_cast<const From *>(a->in);
    To *out = static_cast<To *>(a->out);
    if (aligned(in, out, NULL))
        return WEIR_LAUNCH(stream, (cast<From, To, true>), blocks, THREADS, 0, in, out, a->count);
    return WEIR_LAUNCH(stream, (cast<From, To, false>), blocks, THREADS, 0, in, out, a->count);
}

enum weir_status weir_cuda_cast(struct weir_kernels *, struct weir_stream *stream,
                                const struct weir_cast_args *a)
{
    if (a->count == 0)
        return WEIR_OK;
    if (a->from == a->to)
        return stream->device->table->copy(stream, a->out, a->in,
                                           a->count * weir_dtype_bytes(a->to), WEIR_COPY_ON_DEVICE);
    return a->to == WEIR_BF16 ? cast_launch<float, uint16_t>(stream, a)
                              : cast_launch<uint16_t, float>(stream, a);
}

template <class T>
static enum weir_status add_launch(struct weir_stream *stream, const struct weir_add_args *args)
{
    uint32_t blocks = (uint32_t)((args->count + CHUNK - 1) / CHUNK);
    const T *a = static_cast<const T *>(args->a), *b = static_cast<const T *>(args->b);
    T *out = static_cast<T *>(args->out);
    if (aligned(a, b, out))
        return WEIR_LAUNCH(stream, (add<T, true>), blocks, THREADS, 0, a, b, out, args->count);
    return WEIR_LAUNCH(stream, (add<T, false>), blocks, THREADS, 0, a, b, out, args->count);
}

enum weir_status weir_cuda_add(struct weir_kernels *, struct weir_stream *stream,
                               const struct weir_add_args *a)
{
    if (a->count == 0)
        return WEIR_OK;
    return a->dtype == WEIR_BF16 ? add_launch<uint16_t>(stream, a) : add_launch<float>(stream, a);
}
