/*
 * Rows of values on the device: 16-byte accesses where width and addresses allow, single elements
 * otherwise, and sums over a row.
 *
 * An element belongs to the same thread whichever way it is read, so bits depend on the shape
 * alone. A row is the work of blockDim.x threads, a whole number of warps; a block holds blockDim.y
 * rows. Elements are float, or uint16_t for the bits of bf16.
 */
#ifndef WEIR_KERNELS_ROWS_CUH
#define WEIR_KERNELS_ROWS_CUH

#include "kernels/device.cuh"

/* count neighbours, moved at once or in pieces of 16 bytes. */
template <class T, uint32_t count>
struct alignas(sizeof(T) * count < 16 ? sizeof(T) * count : 16) weir_pack {
    T at[count];
};

__device__ __forceinline__ float weir_act_widen(float value)
{
    return value;
}
__device__ __forceinline__ float weir_act_widen(uint16_t bits)
{
    return weir_device_widen(bits);
}
__device__ __forceinline__ void weir_act_narrow(float value, float *out)
{
    *out = value;
}
__device__ __forceinline__ void weir_act_narrow(float value, uint16_t *out)
{
    *out = weir_device_narrow(value);
}

/* Elements [at, at + count) of a row; `beyond` from width on. whole: count divides width, and the
 * row is aligned to 16 bytes or to count elements, whichever is less. */
template <bool whole, class T, uint32_t count>
__device__ __forceinline__ void weir_row_load(const T *row, uint32_t at, uint32_t width,
                                              float (&out)[count], float beyond = 0.0f)
{
    if (whole) {
        weir_pack<T, count> pack = {};
        if (at < width)
            pack = *reinterpret_cast<const weir_pack<T, count> *>(row + at);
#pragma unroll
        for (uint32_t i = 0; i < count; i++)
            out[i] = at < width ? weir_act_widen(pack.at[i]) : beyond;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < count; i++)
            out[i] = at + i < width ? weir_act_widen(row[at + i]) : beyond;
    }
}

/* The other way; nothing from width on. */
template <bool whole, class T, uint32_t count>
__device__ __forceinline__ void weir_row_store(T *row, uint32_t at, uint32_t width,
                                               const float (&values)[count])
{
    if (whole) {
        weir_pack<T, count> pack;
#pragma unroll
        for (uint32_t i = 0; i < count; i++)
            weir_act_narrow(values[i], &pack.at[i]);
        if (at < width)
            *reinterpret_cast<weir_pack<T, count> *>(row + at) = pack;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < count; i++)
            if (at + i < width)
                weir_act_narrow(values[i], &row[at + i]);
    }
}

/* A thread's share of a row in registers: `each` packs, blockDim.x packs apart, from `first` on. */
template <bool whole, class T, uint32_t each, uint32_t count>
__device__ __forceinline__ void weir_row_load_share(const T *row, uint32_t first, uint32_t width,
                                                    float (&out)[each][count], float beyond = 0.0f)
{
#pragma unroll
    for (uint32_t j = 0; j < each; j++)
        weir_row_load<whole>(row, first + (j * blockDim.x + threadIdx.x) * count, width, out[j],
                             beyond);
}
template <bool whole, class T, uint32_t each, uint32_t count>
__device__ __forceinline__ void weir_row_store_share(T *row, uint32_t first, uint32_t width,
                                                     const float (&values)[each][count])
{
#pragma unroll
    for (uint32_t j = 0; j < each; j++)
        weir_row_store<whole>(row, first + (j * blockDim.x + threadIdx.x) * count, width,
                              values[j]);
}

struct weir_row_add {
    static constexpr float neutral = 0.0f;
    static __device__ __forceinline__ float of(float a, float b)
    {
        return a + b;
    }
};
/* A nan loses, as in the host's comparison. */
struct weir_row_max {
    static constexpr float neutral = -__builtin_huge_valf();
    static __device__ __forceinline__ float of(float a, float b)
    {
        return fmaxf(a, b);
    }
};

template <class Op> __device__ __forceinline__ float weir_warp_fold(float value)
{
#pragma unroll
    for (uint32_t away = WEIR_WARP / 2; away > 0; away /= 2)
        value = Op::of(value, __shfl_xor_sync(WEIR_WHOLE_WARP, value, away));
    return value;
}

/* Over the threads of a row, to all of them; by every thread of the block. partial: shared memory
 * that no other call of this kernel uses. */
template <class Op>
__device__ __forceinline__ float weir_row_fold(float value, float (&partial)[WEIR_WARP])
{
    value = weir_warp_fold<Op>(value);
    if (blockDim.x == WEIR_WARP)
        return value;
    const uint32_t warps = blockDim.x / WEIR_WARP, lane = threadIdx.x % WEIR_WARP;
    const uint32_t first = threadIdx.y * warps;
    if (lane == 0)
        partial[first + threadIdx.x / WEIR_WARP] = value;
    __syncthreads();
    return weir_warp_fold<Op>(lane < warps ? partial[first + lane] : Op::neutral);
}

/* Threads that give each `share` elements of a row, at most `most` (a multiple of 32); several
 * narrow rows in a block, so that blocks are not what fills a multiprocessor up. */
static inline dim3 weir_row_block(uint32_t width, uint32_t share, uint32_t most)
{
    uint32_t warps = (width + share * WEIR_WARP - 1) / (share * WEIR_WARP);
    uint32_t threads = (warps > 0 ? warps : 1) * WEIR_WARP;
    threads = threads < most ? threads : most;
    return dim3(threads, threads < 128 ? 128 / threads : 1);
}

static inline uint32_t weir_ceil_divide(uint32_t count, uint32_t by)
{
    return count / by + (count % by > 0);
}

static inline bool weir_aligned16(const void *address)
{
    return (uintptr_t)address % 16 == 0;
}

#endif
