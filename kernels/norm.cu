/*
 * RMSNorm (kernels/norm.c has the formulas). A row is summed by its threads, who keep their share
 * in registers, so that rows up to 8192 wide are read once. dweight comes first, since dx may
 * overwrite dy; its sums go down columns and need no memory beyond a block's own.
 */
#include "kernels/rows.cuh"

namespace
{

constexpr uint32_t row_threads = 512;
constexpr uint32_t forward_pack = 8, forward_each = 2;
constexpr uint32_t input_pack = 4; /* 16 bytes of dy and dx, 8 of a bf16 x: each coalesced */

template <class T, bool whole>
__global__ void __launch_bounds__(row_threads) forward_rows(const weir_norm_args a)
{
    __shared__ float partial[WEIR_WARP];
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    const uint32_t width = row < a.rows ? a.width : 0;
    const uint32_t step = blockDim.x * forward_pack * forward_each;
    const T *x = static_cast<const T *>(a.x) + (uint64_t)row * a.width;
    const T *weight = static_cast<const T *>(a.weight);
    T *y = static_cast<T *>(a.y) + (uint64_t)row * a.width;
    float v[forward_each][forward_pack], sum = 0;
    for (uint32_t first = 0; first < width; first += step) {
        weir_row_load_share<whole>(x, first, width, v);
#pragma unroll
        for (uint32_t j = 0; j < forward_each; j++)
#pragma unroll
            for (uint32_t i = 0; i < forward_pack; i++)
                sum += v[j][i] * v[j][i];
    }
    sum = weir_row_fold<weir_row_add>(sum, partial);
    const float rstd = 1.0f / sqrtf(sum / (float)a.width + a.eps);
    if (width > 0 && threadIdx.x == 0)
        a.rstd[row] = rstd;
    for (uint32_t first = 0; first < width; first += step) {
        float w[forward_each][forward_pack];
        if (width > step)
            weir_row_load_share<whole>(x, first, width, v);
        weir_row_load_share<whole>(weight, first, width, w);
#pragma unroll
        for (uint32_t j = 0; j < forward_each; j++)
#pragma unroll
            for (uint32_t i = 0; i < forward_pack; i++)
                w[j][i] = v[j][i] * rstd * w[j][i];
        weir_row_store_share<whole>(y, first, width, w);
    }
}

template <class T> enum weir_status forward(struct weir_stream *stream, const weir_norm_args *a)
{
    bool whole = a->width % forward_pack == 0 && weir_aligned16(a->x) && weir_aligned16(a->y) &&
                 weir_aligned16(a->weight);
    dim3 block = weir_row_block(a->width, forward_pack * forward_each, row_threads);
    auto norm_forward = whole ? forward_rows<T, true> : forward_rows<T, false>;
    return WEIR_LAUNCH(stream, norm_forward, dim3(weir_ceil_divide(a->rows, block.y)), block, 0,
                       *a);
}

/* A block's columns and, for each four of them, the threads that share the rows: 64 bytes of dy and
 * 32 of a bf16 x a row, whole sectors, and 128 blocks at a width of 2048. */
constexpr uint32_t columns = 16, column_threads = columns / input_pack, row_lanes = 64;
constexpr uint32_t rows_ahead = 4; /* on their way at a time */
constexpr uint32_t column_warps = column_threads * row_lanes / WEIR_WARP;

/* At least 4 blocks on a multiprocessor, no more: registers hold what is on its way. */
template <class T, bool whole>
__global__ void __launch_bounds__(column_threads *row_lanes, 4)
    weight_columns(const weir_norm_args a)
{
    __shared__ float partial[column_warps][columns];
    const uint32_t at = blockIdx.x * columns + threadIdx.x * input_pack;
    float sum[input_pack] = {};
    for (uint32_t first = threadIdx.y; first < a.rows; first += row_lanes * rows_ahead) {
        float dy[rows_ahead][input_pack], x[rows_ahead][input_pack], rstd[rows_ahead];
#pragma unroll
        for (uint32_t j = 0; j < rows_ahead; j++) {
            const uint32_t row = first + j * row_lanes, width = row < a.rows ? a.width : 0;
            const uint64_t start = (uint64_t)row * a.width;
            weir_row_load<whole>(a.dy + start, at, width, dy[j]);
            weir_row_load<whole>(static_cast<const T *>(a.x) + start, at, width, x[j]);
            rstd[j] = width > 0 ? a.rstd[row] : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < rows_ahead; j++)
#pragma unroll
            for (uint32_t i = 0; i < input_pack; i++)
                sum[i] += dy[j][i] * (x[j][i] * rstd[j]);
    }
    const uint32_t thread = threadIdx.y * column_threads + threadIdx.x, lane = thread % WEIR_WARP;
#pragma unroll
    for (uint32_t i = 0; i < input_pack; i++) {
#pragma unroll
        for (uint32_t away = column_threads; away < WEIR_WARP; away *= 2)
            sum[i] += __shfl_xor_sync(WEIR_WHOLE_WARP, sum[i], away);
        if (lane < column_threads)
            partial[thread / WEIR_WARP][threadIdx.x * input_pack + i] = sum[i];
    }
    __syncthreads();
    const uint32_t column = blockIdx.x * columns + thread;
    if (thread >= columns || column >= a.width)
        return;
    float total = partial[0][thread];
    for (uint32_t warp = 1; warp < column_warps; warp++)
        total += partial[warp][thread];
    a.dweight[column] = a.fresh ? total : a.dweight[column] + total;
}

template <class T, bool whole, uint32_t each>
__global__ void __launch_bounds__(row_threads) input_rows(const weir_norm_args a)
{
    __shared__ float partial[WEIR_WARP];
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    const uint32_t width = row < a.rows ? a.width : 0;
    const uint32_t step = blockDim.x * input_pack * each;
    const uint64_t start = (uint64_t)row * a.width;
    const T *x = static_cast<const T *>(a.x) + start, *weight = static_cast<const T *>(a.weight);
    float xs[each][input_pack], gs[each][input_pack], sum = 0; /* g = dy * weight */
    auto load = [&](uint32_t first) {
        float w[each][input_pack];
        weir_row_load_share<whole>(x, first, width, xs);
        weir_row_load_share<whole>(a.dy + start, first, width, gs);
        weir_row_load_share<whole>(weight, first, width, w);
#pragma unroll
        for (uint32_t j = 0; j < each; j++)
#pragma unroll
            for (uint32_t i = 0; i < input_pack; i++)
                gs[j][i] *= w[j][i];
    };
    for (uint32_t first = 0; first < width; first += step) {
        load(first);
#pragma unroll
        for (uint32_t j = 0; j < each; j++)
#pragma unroll
            for (uint32_t i = 0; i < input_pack; i++)
                sum += gs[j][i] * xs[j][i];
    }
    sum = weir_row_fold<weir_row_add>(sum, partial);
    const float rstd = width > 0 ? a.rstd[row] : 0.0f;
    const float c = sum * rstd * rstd * rstd / (float)a.width;
    for (uint32_t first = 0; first < width; first += step) {
        float d[each][input_pack] = {};
        if (width > step)
            load(first);
        if (a.residual_d)
            weir_row_load_share<whole>(a.residual_d + start, first, width, d);
#pragma unroll
        for (uint32_t j = 0; j < each; j++)
#pragma unroll
            for (uint32_t i = 0; i < input_pack; i++)
                d[j][i] += rstd * gs[j][i] - c * xs[j][i];
        weir_row_store_share<whole>(a.dx + start, first, width, d);
    }
}

template <class T> enum weir_status backward(struct weir_stream *stream, const weir_norm_args *a)
{
    bool whole = a->width % input_pack == 0 && weir_aligned16(a->x) && weir_aligned16(a->weight) &&
                 weir_aligned16(a->dy) && weir_aligned16(a->dx) && weir_aligned16(a->residual_d);
    auto norm_dweight = whole ? weight_columns<T, true> : weight_columns<T, false>;
    WEIR_TRY(WEIR_LAUNCH(stream, norm_dweight, dim3(weir_ceil_divide(a->width, columns)),
                         dim3(column_threads, row_lanes), 0, *a));
    if (a->rows == 0)
        return WEIR_OK;
    bool wide = a->width > row_threads * input_pack * 2;
    dim3 block = weir_row_block(a->width, input_pack * (wide ? 4 : 2), row_threads);
    auto norm_dx = wide ? (whole ? input_rows<T, true, 4> : input_rows<T, false, 4>)
                        : (whole ? input_rows<T, true, 2> : input_rows<T, false, 2>);
    return WEIR_LAUNCH(stream, norm_dx, dim3(weir_ceil_divide(a->rows, block.y)), block, 0, *a);
}

} // namespace

enum weir_status weir_cuda_norm_forward(struct weir_kernels *, struct weir_stream *stream,
                                        const struct weir_norm_args *a)
{
    if (a->rows == 0)
        return WEIR_OK;
    return a->dtype == WEIR_BF16 ? forward<uint16_t>(stream, a) : forward<float>(stream, a);
}

enum weir_status weir_cuda_norm_backward(struct weir_kernels *, struct weir_stream *stream,
                                         const struct weir_norm_args *a)
{
    return a->dtype == WEIR_BF16 ? backward<uint16_t>(stream, a) : backward<float>(stream, a);
}
