/*
 * Cross-entropy on one tile of the vocabulary at a time (kernels/head.c has the formulas). A block
 * holds a row of a tile in registers: its maximum and its sum of exponentials take one reading.
 */
#include "kernels/rows.cuh"

namespace
{

constexpr int32_t masked = -100;
constexpr uint32_t threads = 256, pack = 4,
                   each =
                       WEIR_TILE_ROWS / (threads * pack); /* a whole tile in a block's registers */

template <bool whole> __global__ void __launch_bounds__(threads) stats_rows(const weir_head_args a)
{
    __shared__ float partial_max[WEIR_WARP], partial_sum[WEIR_WARP];
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    const uint32_t width = row < a.rows ? a.tile_rows : 0, step = blockDim.x * pack * each;
    const float *logits = a.logits + (uint64_t)row * width;
    /* Read by the thread that will write it: a row of one warp meets no barrier in between. */
    const bool has_before = threadIdx.x == 0 && width > 0 && !a.first;
    const float before = has_before ? a.max[row] : weir_row_max::neutral;
    float l[each][pack], max = before, sum = 0;
    for (uint32_t first = 0; first < width; first += step) {
        weir_row_load_share<whole>(logits, first, width, l, weir_row_max::neutral);
#pragma unroll
        for (uint32_t j = 0; j < each; j++)
#pragma unroll
            for (uint32_t i = 0; i < pack; i++)
                max = fmaxf(max, l[j][i]);
    }
    max = weir_row_fold<weir_row_max>(max, partial_max);
    for (uint32_t first = 0; first < width; first += step) {
        if (width > step)
            weir_row_load_share<whole>(logits, first, width, l, weir_row_max::neutral);
#pragma unroll
        for (uint32_t j = 0; j < each; j++)
#pragma unroll
            for (uint32_t i = 0; i < pack; i++)
                sum += expf(l[j][i] - max);
    }
    sum = weir_row_fold<weir_row_add>(sum, partial_sum);
    if (width == 0 || threadIdx.x > 0)
        return;
    a.sum[row] = a.first ? sum : a.sum[row] * expf(before - max) + sum;
    a.max[row] = max;
    const uint32_t target = (uint32_t)a.targets[row] - a.first_vocab;
    if (a.targets[row] != masked && target < width)
        a.target_logit[row] = logits[target];
    else if (a.first)
        a.target_logit[row] = 0;
}

/* One block: a chunk's rows are few. Thread sums, then a tree. */
__global__ void __launch_bounds__(threads) loss_rows(const weir_head_args a)
{
    __shared__ double partial[threads];
    double loss = 0;
    for (uint32_t row = threadIdx.x; row < a.rows; row += threads)
        if (a.targets[row] != masked)
            loss += log((double)a.sum[row]) + ((double)a.max[row] - (double)a.target_logit[row]);
    partial[threadIdx.x] = loss;
    for (uint32_t half = threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *a.loss = partial[0];
}

template <class T, bool whole>
__global__ void __launch_bounds__(threads) grad_rows(const weir_head_args a)
{
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    const uint32_t width = a.tile_rows, step = blockDim.x * pack * each;
    if (row >= a.rows)
        return;
    const float *logits = a.logits + (uint64_t)row * width;
    T *dlogits = static_cast<T *>(a.dlogits) + (uint64_t)row * width;
    const bool counts = a.targets[row] != masked;
    const uint32_t target = (uint32_t)a.targets[row] - a.first_vocab; /* of this row, if < width */
    const float max = a.max[row], share = a.scale / a.sum[row];
    for (uint32_t first = 0; first < width; first += step) {
        float l[each][pack];
        if (counts)
            weir_row_load_share<whole>(logits, first, width, l);
#pragma unroll
        for (uint32_t j = 0; j < each; j++) {
            const uint32_t at = first + (j * blockDim.x + threadIdx.x) * pack;
            float d[pack] = {};
#pragma unroll
            for (uint32_t i = 0; i < pack; i++)
                if (counts)
                    d[i] = expf(l[j][i] - max) * share - (at + i == target ? a.scale : 0.0f);
            weir_row_store<whole>(dlogits, at, width, d);
        }
    }
}

template <class T> enum weir_status grad(struct weir_stream *stream, const weir_head_args *a)
{
    bool whole =
        a->tile_rows % pack == 0 && weir_aligned16(a->logits) && weir_aligned16(a->dlogits);
    auto head_grad = whole ? grad_rows<T, true> : grad_rows<T, false>;
    dim3 block = weir_row_block(a->tile_rows, pack * each, threads);
    return WEIR_LAUNCH(stream, head_grad, dim3(weir_ceil_divide(a->rows, block.y)), block, 0, *a);
}

} // namespace

enum weir_status weir_cuda_head_stats(struct weir_kernels *, struct weir_stream *stream,
                                      const struct weir_head_args *a)
{
    if (a->rows == 0)
        return WEIR_OK;
    bool whole = a->tile_rows % pack == 0 && weir_aligned16(a->logits);
    auto head_stats = whole ? stats_rows<true> : stats_rows<false>;
    dim3 block = weir_row_block(a->tile_rows, pack * each, threads);
    return WEIR_LAUNCH(stream, head_stats, dim3(weir_ceil_divide(a->rows, block.y)), block, 0, *a);
}

enum weir_status weir_cuda_head_loss(struct weir_kernels *, struct weir_stream *stream,
                                     const struct weir_head_args *a)
{
    return WEIR_LAUNCH(stream, loss_rows, 1, threads, 0, *a);
}

enum weir_status weir_cuda_head_grad(struct weir_kernels *, struct weir_stream *stream,
                                     const struct weir_head_args *a)
{
    if (a->rows == 0)
        return WEIR_OK;
    return a->dtype == WEIR_BF16 ? grad<uint16_t>(stream, a) : grad<float>(stream, a);
}
