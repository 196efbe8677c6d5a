/*
 * A complete gradient window: rounded in place to the dtype in which it waits, squares summed per
 * segment, to the bit what kernels/reduce.c gives; and clearing residuals.
 *
 * The definition of the sum fixes its time: 16 lanes, each a chain of additions in fp64 through the
 * segment. A segment is a block's work, so that the chains of all segments run side by side. One
 * warp adds; the others bring the next tile, round it and square it meanwhile.
 *
 * Rounding to bf16 halves a segment in place, tile by tile: what a tile writes has been read two
 * tiles' bytes before. Then segments move up to each other, those at a time that do not lie in each
 * other's way: of a full window [1], [2,3], [4..7], [8..15].
 */
#include "kernels/rows.cuh"
extern "C" {
#include "kernels/window.h"
}

#define LOADERS 256u
#define EACH    (WEIR_ALIGN_ELEMENTS / LOADERS)
#define TILE    WEIR_ALIGN_ELEMENTS

/* Elements [at, at + EACH) of a segment's tile, those beyond count as zeros. */
static __device__ __forceinline__ void tile_load(const float *tile, uint32_t at, uint32_t count,
                                                 float (&x)[EACH])
{
    weir_row_load<true>(tile, at, TILE, x);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        x[i] = at + i < count ? x[i] : 0.0f;
}

static __device__ __forceinline__ void squares_store(double *squares, const float (&x)[EACH])
{
#pragma unroll
    for (uint32_t i = 0; i < EACH; i += 2)
        *reinterpret_cast<double2 *>(squares + i) =
            make_double2((double)x[i] * (double)x[i], (double)x[i + 1] * (double)x[i + 1]);
}

/* The loaders' part of one turn: the tile `turn` comes in, its squares go to shared memory, and
 * what the turn before rounded goes out, now that every thread has read its own tile. */
template <bool bf16>
static __device__ __forceinline__ void loaders_turn(float *segment, uint32_t turn, uint32_t tiles,
                                                    uint32_t count, float (&x)[EACH],
                                                    double *squares)
{
    uint32_t at = threadIdx.x * EACH;
    float rounded[EACH];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        rounded[i] = x[i];
    if (turn < tiles) {
        uint32_t first = turn * TILE;
        tile_load(segment + first, at, count > first ? count - first : 0, x);
        if (bf16)
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                x[i] = weir_device_widen(weir_device_narrow(x[i]));
        squares_store(squares + at, x);
    }
    if (turn == 0)
        return;
    uint32_t before = (turn - 1) * TILE;
    if (bf16)
        weir_row_store<true>(reinterpret_cast<uint16_t *>(segment) + before, at, TILE, rounded);
    else if (before + at + EACH > count) /* its padding becomes zeros */
        weir_row_store<true>(segment + before, at, TILE, rounded);
}

/* Lane l adds elements l, l + 16, l + 32 ... of a tile of squares. */
static __device__ __forceinline__ double squares_add(double sum, const double *squares)
{
    uint32_t lane = threadIdx.x % WEIR_WARP;
    if (lane < WEIR_LANES)
#pragma unroll 16
        for (uint32_t i = 0; i < TILE; i += WEIR_LANES)
            sum = sum + squares[i + lane];
    return sum;
}

template <bool bf16>
static __global__ void __launch_bounds__(LOADERS + WEIR_WARP)
    reduce_segment(const __grid_constant__ weir_reduce_args a)
{
    __shared__ __align__(16) double squares[2][TILE];
    const struct weir_window_segment &segment = a.segments[blockIdx.x];
    uint32_t tiles = segment.padded_count / TILE;
    float x[EACH] = {};
    double sum = 0;
    for (uint32_t turn = 0; turn <= tiles; turn++) {
        if (threadIdx.x < LOADERS)
            loaders_turn<bf16>(a.grad + segment.offset, turn, tiles, segment.count, x,
                               squares[turn % 2]);
        else if (turn > 0)
            sum = squares_add(sum, squares[(turn - 1) % 2]);
        __syncthreads();
    }
    if (threadIdx.x < LOADERS)
        return;
#pragma unroll
    for (uint32_t half = WEIR_LANES / 2; half > 0; half /= 2)
        sum = sum + __shfl_down_sync(WEIR_WHOLE_WARP, sum, half);
    if (threadIdx.x == LOADERS)
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
        return WEIR_LAUNCH(stream, reduce_segment<false>, a->segment_count, LOADERS + WEIR_WARP, 0,
                           *a);
    WEIR_TRY(
        WEIR_LAUNCH(stream, reduce_segment<true>, a->segment_count, LOADERS + WEIR_WARP, 0, *a));
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
