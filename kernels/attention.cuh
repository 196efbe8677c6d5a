/*
 * Causal grouped-query attention on cuda, bf16 on tensor cores in the manner of FlashAttention-2
 * (Dao 2023): shared by attention.cu (forward) and attention_backward.cu.
 *
 * A block has four warps. A tile is tokens of one head in shared memory, a token a row, padded by
 * 8 elements or folded, so that the eight rows of a matrix that ldmatrix reads lie in different
 * banks. A band is 16 rows: what one mma makes. Each warp owns whole bands of the tile that stays,
 * so scores, weights and results of a row never leave the warp's registers; the tile that streams
 * is read by all four.
 *
 * Lane l of a warp holds of a 16 x 8 result (PTX ISA, mma.m16n8k16) rows l / 4 and l / 4 + 8 and
 * columns l % 4 * 2 and the next: [0], [1] of the first row, [2], [3] of the second.
 */
#ifndef WEIR_KERNELS_ATTENTION_CUH
#define WEIR_KERNELS_ATTENTION_CUH

#include "kernels/device.cuh"

#define ATTENTION_THREADS 128u
#define ATTENTION_WARPS   4u
#define ATTENTION_BAND    16u
#define ATTENTION_LOG2E   1.44269504088896341f

/* attention_plain.cu: fp32 arithmetic without tensor cores, for every head_dim and dtype. */
enum weir_status weir_attention_plain_forward(struct weir_stream *stream,
                                              const struct weir_attention_args *a);
enum weir_status weir_attention_plain_backward(struct weir_stream *stream,
                                               const struct weir_attention_args *a,
                                               const float *delta);

/* Whether tensor cores do it: rows of whole 16-byte pieces, at most 128 wide. Narrower ones than a
 * kernel's width are filled up with zeros. */
static inline bool attention_on_tensor_cores(const struct weir_attention_args *a)
{
    return a->dtype == WEIR_BF16 && a->head_dim % 8 == 0 && a->head_dim <= 128;
}

/* Says once that bf16 attention does without them; attention.cu. */
void weir_attention_tell(struct weir_kernels *kernels, const struct weir_attention_args *a);

/* WEIR_ERR_ARG unless a launch can be made of it; attention.cu. */
enum weir_status weir_attention_check(const struct weir_attention_args *a, bool backward);

__device__ __forceinline__ float attention_widen(uint16_t bits)
{
    return weir_device_widen(bits);
}
__device__ __forceinline__ float attention_widen(float value)
{
    return value;
}

/* The rows of one head in an array of N x heads x D, in elements. */
struct attention_rows {
    uint64_t first;
    uint32_t stride;
};

__device__ __forceinline__ attention_rows attention_rows_at(const weir_attention_args &a,
                                                            uint32_t heads, uint32_t sequence,
                                                            uint32_t head)
{
    uint64_t token = (uint64_t)sequence * a.length;
    return {(token * heads + head) * a.head_dim, heads * a.head_dim};
}

template <uint32_t width> constexpr uint32_t attention_pitch = width + 8;

/* Where an element lies in a tile. */
template <uint32_t width> struct attention_padded {
    static constexpr uint32_t pitch = attention_pitch<width>;
    static __device__ __forceinline__ uint32_t at(uint32_t row, uint32_t column)
    {
        return row * pitch + column;
    }
};
/* Without padding, where a row is a multiple of 128 bytes: pieces of 16 bytes change places by row,
 * which keeps them in different banks as well. */
template <uint32_t width> struct attention_folded {
    static_assert(width % 64 == 0, "eight pieces change places among themselves");
    static constexpr uint32_t pitch = width;
    static __device__ __forceinline__ uint32_t at(uint32_t row, uint32_t column)
    {
        return row * pitch + (column ^ row % 8 * 8);
    }
};

/* Begin to copy tokens [first, first + rows) of a head; what lies beyond is 0. */
template <uint32_t rows, uint32_t width, class tile_form = attention_padded<width>>
__device__ __forceinline__ void attention_load(uint16_t *tile, const void *x,
                                               const attention_rows &at,
                                               const weir_attention_args &a, uint32_t first)
{
    constexpr uint32_t pieces = width / 8;
    const uint16_t *from = static_cast<const uint16_t *>(x) + at.first;
#pragma unroll
    for (uint32_t i = 0; i < rows * pieces; i += ATTENTION_THREADS) {
        uint32_t piece = i + threadIdx.x;
        uint32_t row = piece / pieces, column = piece % pieces * 8;
        if (rows * pieces % ATTENTION_THREADS != 0 && piece >= rows * pieces)
            break;
        bool valid = first + row < a.length && column < a.head_dim;
        weir_copy_async(tile + tile_form::at(row, column),
                        valid ? from + (uint64_t)(first + row) * at.stride + column : from, valid);
    }
}

/* The 16 x 16 of a band at `column`, as mma's first operand. */
template <class tile_form>
__device__ __forceinline__ void attention_first(uint32_t r[4], const uint16_t *band,
                                                uint32_t column)
{
    uint32_t lane = threadIdx.x % WEIR_WARP;
    weir_ldmatrix(r, band + tile_form::at(lane % 16, column + lane / 16 * 8));
}

/* As mma's second operand, for two results beside each other (r[0], r[1] and r[2], r[3]): the
 * transpose of 16 rows at 16 columns ... */
template <class tile_form>
__device__ __forceinline__ void attention_second_turned(uint32_t r[4], const uint16_t *rows,
                                                        uint32_t column)
{
    uint32_t lane = threadIdx.x % WEIR_WARP;
    weir_ldmatrix(r, rows + tile_form::at(lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
}
/* ... or these as they stand. */
template <class tile_form>
__device__ __forceinline__ void attention_second(uint32_t r[4], const uint16_t *rows,
                                                 uint32_t column)
{
    uint32_t lane = threadIdx.x % WEIR_WARP;
    weir_ldmatrix_transposed(r, rows + tile_form::at(lane % 16, column + lane / 16 * 8));
}

__device__ __forceinline__ uint32_t attention_pack(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* Results of a band, rounded to bf16, become the first operand of the next product. */
template <uint32_t columns>
__device__ __forceinline__ void attention_turn(uint32_t (&first)[columns / 16][4],
                                               const float (&results)[columns / 8][4])
{
#pragma unroll
    for (uint32_t n = 0; n < columns / 16; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float *from = &results[2 * n + i / 2][i % 2 * 2];
            first[n][i] = attention_pack(from[0], from[1]);
        }
}

/* scores[band][n] = the band's rows times the transpose of `columns` rows of the other tile. */
template <uint32_t width, uint32_t bands, uint32_t columns,
          class band_form = attention_padded<width>, class other_form = attention_padded<width>>
__device__ __forceinline__ void attention_scores(float (&scores)[bands][columns / 8][4],
                                                 const uint16_t *band, const uint16_t *other)
{
#pragma unroll
    for (uint32_t m = 0; m < bands; m++)
#pragma unroll
        for (uint32_t n = 0; n < columns / 8; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                scores[m][n][i] = 0;
#pragma unroll 2 /* more in flight would spill */
    for (uint32_t d = 0; d < width; d += 16) {
        uint32_t first[bands][4];
#pragma unroll
        for (uint32_t m = 0; m < bands; m++)
            attention_first<band_form>(first[m], band + m * ATTENTION_BAND * band_form::pitch, d);
#pragma unroll
        for (uint32_t n = 0; n < columns / 16; n++) {
            uint32_t second[4];
            attention_second_turned<other_form>(second, other + n * 16 * other_form::pitch, d);
#pragma unroll
            for (uint32_t m = 0; m < bands; m++) {
                weir_mma_bf16(scores[m][2 * n], first[m], second);
                weir_mma_bf16(scores[m][2 * n + 1], first[m], second + 2);
            }
        }
    }
}

/* sum[band] += first[band] times `columns` rows of the other tile. */
template <uint32_t width, uint32_t bands, uint32_t columns,
          class other_form = attention_padded<width>>
__device__ __forceinline__ void attention_add(float (&sum)[bands][width / 8][4],
                                              const uint32_t (&first)[bands][columns / 16][4],
                                              const uint16_t *other)
{
#pragma unroll
    for (uint32_t n = 0; n < columns / 16; n++)
#pragma unroll
        for (uint32_t d = 0; d < width / 16; d++) {
            uint32_t second[4];
            attention_second<other_form>(second, other + n * 16 * other_form::pitch, d * 16);
#pragma unroll
            for (uint32_t m = 0; m < bands; m++) {
                weir_mma_bf16(sum[m][2 * d], first[m][n], second);
                weir_mma_bf16(sum[m][2 * d + 1], first[m][n], second + 2);
            }
        }
}

/* Round a band times factor (of its two rows) to tokens [first, first + 16) of a head, by way of
 * `band`, shared memory that only this warp reads. */
template <uint32_t width, class band_form = attention_padded<width>>
__device__ __forceinline__ void
attention_store(void *x, const attention_rows &at, const weir_attention_args &a, uint32_t first,
                const float (&sum)[width / 8][4], const float (&factor)[2], uint16_t *band)
{
    constexpr uint32_t pieces = width / 8;
    uint32_t lane = threadIdx.x % WEIR_WARP;
    __syncwarp(WEIR_WHOLE_WARP);
#pragma unroll
    for (uint32_t n = 0; n < width / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint16_t *to = band + band_form::at(lane / 4 + i * 8, n * 8 + lane % 4 * 2);
            *reinterpret_cast<uint32_t *>(to) =
                attention_pack(sum[n][2 * i] * factor[i], sum[n][2 * i + 1] * factor[i]);
        }
    __syncwarp(WEIR_WHOLE_WARP);
    uint16_t *out = static_cast<uint16_t *>(x) + at.first;
    for (uint32_t piece = lane; piece < ATTENTION_BAND * pieces; piece += WEIR_WARP) {
        uint32_t row = piece / pieces, column = piece % pieces * 8;
        if (first + row < a.length && column < a.head_dim)
            *reinterpret_cast<uint4 *>(out + (uint64_t)(first + row) * at.stride + column) =
                *reinterpret_cast<const uint4 *>(band + band_form::at(row, column));
    }
}

#endif
