/*
 * Rotary positions (kernels/rope.c has the formulas). A thread turns one pack of pairs in several
 * heads of a token, whose angles it reads once.
 */
#include "kernels/rows.cuh"

namespace
{

constexpr uint32_t table_pairs = 32, table_lanes = 8, table_positions = 64;

__device__ double frequency(const weir_rope_table_args &a, uint32_t pair)
{
    const double two_pi = 6.283185307179586476925;
    const double f = pow(a.theta, -2.0 * pair / a.head_dim);
    if (a.scaling == WEIR_ROPE_PLAIN)
        return f;
    if (a.scaling == WEIR_ROPE_LINEAR)
        return f / a.factor;
    const double wavelength = two_pi / f;
    if (wavelength < a.original_length / a.high_freq_factor)
        return f;
    if (wavelength > a.original_length / a.low_freq_factor)
        return f / a.factor;
    const double smooth = (a.original_length / wavelength - a.low_freq_factor) /
                          (a.high_freq_factor - a.low_freq_factor);
    return (1 - smooth) * f / a.factor + smooth * f;
}

/* A thread makes the frequency of its pair once, for eight positions. */
__global__ void __launch_bounds__(table_pairs *table_lanes)
    table_blocks(const weir_rope_table_args a)
{
    const uint32_t half = a.head_dim / 2, pair = blockIdx.y * table_pairs + threadIdx.x;
    if (pair >= half)
        return;
    const double f = frequency(a, pair);
    const uint32_t first = blockIdx.x * table_positions;
    for (uint32_t i = threadIdx.y; i < table_positions && first + i < a.length; i += table_lanes) {
        double sine, cosine;
        sincos((first + i) * f, &sine, &cosine);
        float *out = a.cos_sin + 2 * ((uint64_t)(first + i) * half + pair);
        out[0] = (float)cosine;
        out[1] = (float)sine;
    }
}

constexpr uint32_t rotate_threads = 256, rotate_heads = 2; /* of a thread, `groups` apart */

/* Packs of `count` pairs; 1 where a half or an address is odd. */
template <class T, uint32_t count>
__global__ void __launch_bounds__(rotate_threads) rotate_tokens(const weir_rope_args a)
{
    typedef weir_pack<T, count> pack;
    const uint32_t token = blockIdx.x * blockDim.y + threadIdx.y;
    if (token >= a.sequences * a.length)
        return;
    const uint32_t half = a.head_dim / 2, packs = half / count;
    const uint32_t groups = (a.heads + rotate_heads - 1) / rotate_heads;
    const float *table = a.cos_sin + (uint64_t)(token % a.length) * a.head_dim;
    T *x = static_cast<T *>(a.x) + (uint64_t)token * a.heads * a.head_dim;
    for (uint32_t item = threadIdx.x; item < packs * groups; item += blockDim.x) {
        const uint32_t at = item % packs * count, group = item / packs;
        float angles[2 * count];
        pack low[rotate_heads], high[rotate_heads];
#pragma unroll
        for (uint32_t j = 0; j < rotate_heads; j++) {
            const uint32_t head = group + j * groups;
            if (head >= a.heads)
                continue;
            const T *from = x + head * a.head_dim + at;
            low[j] = *reinterpret_cast<const pack *>(from);
            high[j] = *reinterpret_cast<const pack *>(from + half);
        }
        weir_row_load<(count > 1)>(table, 2 * at, a.head_dim, angles);
#pragma unroll
        for (uint32_t j = 0; j < rotate_heads; j++) {
            const uint32_t head = group + j * groups;
            if (head >= a.heads)
                continue;
#pragma unroll
            for (uint32_t i = 0; i < count; i++) {
                const float c = angles[2 * i];
                const float s = a.backward ? -angles[2 * i + 1] : angles[2 * i + 1];
                const float p = weir_act_widen(low[j].at[i]), q = weir_act_widen(high[j].at[i]);
                weir_act_narrow(p * c - q * s, &low[j].at[i]);
                weir_act_narrow(q * c + p * s, &high[j].at[i]);
            }
            T *to = x + head * a.head_dim + at;
            *reinterpret_cast<pack *>(to) = low[j];
            *reinterpret_cast<pack *>(to + half) = high[j];
        }
    }
}

template <class T> enum weir_status rotate(struct weir_stream *stream, const weir_rope_args *a)
{
    constexpr uint32_t count = 16 / sizeof(T);
    const uint32_t half = a->head_dim / 2, tokens = a->sequences * a->length;
    bool whole = half % count == 0 && weir_aligned16(a->x) && weir_aligned16(a->cos_sin);
    uint32_t items = half / (whole ? count : 1) * weir_ceil_divide(a->heads, rotate_heads);
    if (items == 0 || tokens == 0)
        return WEIR_OK;
    items = items < rotate_threads ? items : rotate_threads;
    dim3 block(items, rotate_threads / items);
    auto rope = whole ? rotate_tokens<T, count> : rotate_tokens<T, 1>;
    return WEIR_LAUNCH(stream, rope, dim3(weir_ceil_divide(tokens, block.y)), block, 0, *a);
}

} // namespace

enum weir_status weir_cuda_rope_table(struct weir_kernels *, struct weir_stream *stream,
                                      const struct weir_rope_table_args *a)
{
    if (a->length == 0 || a->head_dim < 2)
        return WEIR_OK;
    dim3 grid(weir_ceil_divide(a->length, table_positions),
              weir_ceil_divide(a->head_dim / 2, table_pairs));
    return WEIR_LAUNCH(stream, table_blocks, grid, dim3(table_pairs, table_lanes), 0, *a);
}

enum weir_status weir_cuda_rope(struct weir_kernels *, struct weir_stream *stream,
                                const struct weir_rope_args *a)
{
    return a->dtype == WEIR_BF16 ? rotate<uint16_t>(stream, a) : rotate<float>(stream, a);
}
