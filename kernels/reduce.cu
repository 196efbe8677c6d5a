/*
 * A complete gradient window: rounded in place to the dtype in which it waits, squares summed per
 * segment, to the bit what kernels/reduce.c gives; and clearing residuals.
 *
 * A segment is a block's work, WEIR_ALIGN_ELEMENTS of it a warp's: a tile, of which a thread is one
 * lane of the sum. The product of two floats is exact in fp64, so fused it gives the same bits.
 *
 * Rounding to bf16 halves a segment in place: what a turn of tiles writes has been read in this
 * turn or before. Then segments move up to each other, those at a time that do not lie in each
 * other's way: of a full window [1], [2,3], [4..7], [8..15].
 */
#include "kernels/rows.cuh"
extern "C" {
#include "kernels/window.h"
}

#define WARPS 16u
#define TILE  WEIR_ALIGN_ELEMENTS
#define EACH  (TILE / WEIR_WARP)
static_assert(WEIR_NORM_LANES == WEIR_WARP, "a thread is a lane");

/* The thread's lane of a tile, rounded: elements from count on are zeros. */
template <bool bf16>
static __device__ __forceinline__ void lane_load(const float *tile, uint32_t count,
                                                 float (&x)[EACH])
{
    uint32_t lane = threadIdx.x % WEIR_WARP;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        x[i] = i * WEIR_WARP + lane < count ? tile[i * WEIR_WARP + lane] : 0.0f;
    if (bf16)
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            x[i] = weir_device_widen(weir_device_narrow(x[i]));
}

/* Of a whole tile, to thread 0 of the warp. */
static __device__ __forceinline__ double squares_sum(const float (&x)[EACH])
{
    double sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        sum = __fma_rn((double)x[i], (double)x[i], sum);
#pragma unroll
    for (uint32_t half = WEIR_WARP / 2; half > 0; half /= 2)
        sum = __dadd_rn(sum, __shfl_down_sync(WEIR_WHOLE_WARP, sum, half));
    return sum;
}

/* Tile `tile` of a segment that has become bf16, or padding of one that stays. */
template <bool bf16>
static __device__ __forceinline__ void lane_store(float *segment, uint32_t tile, uint32_t count,
                                                  const float (&x)[EACH])
{
    uint32_t at = tile * TILE + threadIdx.x % WEIR_WARP;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++, at += WEIR_WARP)
        if (bf16)
            reinterpret_cast<uint16_t *>(segment)[at] = weir_device_narrow(x[i]);
        else if (at >= count)
            segment[at] = 0.0f;
}

template <bool bf16>
static __global__ void __launch_bounds__(WARPS *WEIR_WARP)
    reduce_segment(const __grid_constant__ weir_reduce_args a)
{
    __shared__ double sums[WEIR_SEGMENT_ELEMENTS / TILE];
    const struct weir_window_segment &segment = a.segments[blockIdx.x];
    const uint32_t tiles = segment.padded_count / TILE;
    float *values = a.grad + segment.offset;
    for (uint32_t first = 0; first < tiles; first += WARPS) {
        uint32_t tile = first + threadIdx.x / WEIR_WARP, begin = tile * TILE;
        float x[EACH];
        if (tile < tiles) {
            lane_load<bf16>(values + begin, segment.count > begin ? segment.count - begin : 0, x);
            double sum = squares_sum(x);
            if (threadIdx.x % WEIR_WARP == 0)
                sums[tile] = sum;
        }
        __syncthreads();
        if (tile < tiles)
            lane_store<bf16>(values, tile, segment.count, x);
    }
    if (threadIdx.x > 0)
        return;
    double sum = 0;
    for (uint32_t tile = 0; tile < tiles; tile++)
        sum = __dadd_rn(sum, sums[tile]);
    a.partials[blockIdx.x] = sum;
}

/* Segment first + blockIdx.x, rounded already, moves to where it belongs: down, perhaps over
 * itself. A piece is read whole before any of it is written. */
static __global__ void __launch_bounds__(1024)
    move_segments(const __grid_constant__ weir_reduce_args a, uint32_t first)
{
    constexpr uint32_t each = 4, piece = 1024 * each;
    const struct weir_window_segment &segment = a.segments[first + blockIdx.x];
    uint32_t units = segment.padded_count * sizeof(uint16_t) / sizeof(uint4);
    const uint4 *from = reinterpret_cast<const uint4 *>(a.grad + segment.offset);
    uint4 *to = reinterpret_cast<uint4 *>(reinterpret_cast<uint16_t *>(a.grad) + segment.offset);
    for (uint32_t at = threadIdx.x; at - threadIdx.x < units; at += piece) {
        uint4 bytes[each];
#pragma unroll
        for (uint32_t i = 0; i < each; i++)
            if (at + i * 1024 < units)
                bytes[i] = from[at + i * 1024];
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < each; i++)
            if (at + i * 1024 < units)
                to[at + i * 1024] = bytes[i];
        __syncthreads();
    }
}

/* Whether segment `moving` comes to lie on what `resting` has yet to give away. */
static bool in_the_way(const struct weir_window_segment *resting,
                       const struct weir_window_segment *moving)
{
    uint64_t to = 2ull * moving->offset, from = 4ull * resting->offset;
    return to < from + 2ull * resting->padded_count && from < to + 2ull * moving->padded_count;
}

/* Segments from `first` on that may move at once. */
static uint32_t movable_count(const struct weir_reduce_args *a, uint32_t first)
{
    for (uint32_t s = first + 1; s < a->segment_count; s++)
        for (uint32_t other = first; other < s; other++)
            if (in_the_way(&a->segments[other], &a->segments[s]))
                return s - first;
    return a->segment_count - first;
}

enum weir_status weir_cuda_reduce(struct weir_kernels *, struct weir_stream *stream,
                                  const struct weir_reduce_args *a)
{
    if (a->segment_count == 0)
        return WEIR_OK;
    if (a->grad_dtype == WEIR_FP32)
        return WEIR_LAUNCH(stream, reduce_segment<false>, a->segment_count, WARPS * WEIR_WARP, 0,
                           *a);
    WEIR_TRY(WEIR_LAUNCH(stream, reduce_segment<true>, a->segment_count, WARPS * WEIR_WARP, 0, *a));
    for (uint32_t s = 1; s < a->segment_count;) {
        uint32_t count = movable_count(a, s);
        WEIR_TRY(WEIR_LAUNCH(stream, move_segments, count, 1024, 0, *a, s));
        s += count;
    }
    return WEIR_OK;
}

#define CLEAR_THREADS 256u

/* Block (x, s): units of 16 bytes of segment s. */
static __global__ void __launch_bounds__(CLEAR_THREADS)
    clear_residual(const __grid_constant__ weir_clear_residual_args a, uint64_t state_bytes)
{
    const struct weir_window_segment &segment = a.segments[blockIdx.y];
    uint32_t unit = blockIdx.x * CLEAR_THREADS + threadIdx.x;
    unsigned char *residual = static_cast<unsigned char *>(a.state) + segment.offset * state_bytes;
    if (unit < segment.padded_count * sizeof(uint16_t) / sizeof(uint4))
        reinterpret_cast<uint4 *>(residual)[unit] = make_uint4(0, 0, 0, 0);
}

enum weir_status weir_cuda_clear_residual(struct weir_kernels *, struct weir_stream *stream,
                                          const struct weir_clear_residual_args *a)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < a->segment_count; s++)
        most = max(most, a->segments[s].padded_count);
    if (most == 0 || weir_residual_bytes(a->dtype) == 0)
        return WEIR_OK;
    uint32_t blocks = most * sizeof(uint16_t) / sizeof(uint4) / CLEAR_THREADS;
    return WEIR_LAUNCH(stream, clear_residual, dim3(blocks, a->segment_count), CLEAR_THREADS, 0, *a,
                       weir_state_bytes(a->dtype));
}
