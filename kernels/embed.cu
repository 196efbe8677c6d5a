/*
 * Embedding rows: a gather forward; backward, the block of the first token of an id looks through
 * the tokens after it and sums their rows in token order, to the bits of the host's.
 *
 * Looking costs tokens^2 / 2 comparisons at most, of ids that the first-level cache holds; sums of
 * frequent ids are spread over blocks by columns and read eight rows at a time.
 */
#include "kernels/rows.cuh"

namespace
{

/* ---- forward */

template <class T, uint32_t count> __global__ void copy_rows(const weir_embed_args a)
{
    typedef weir_pack<T, count> pack;
    const uint32_t token = blockIdx.x * blockDim.y + threadIdx.y;
    if (token >= a.token_count)
        return;
    const uint32_t row = (uint32_t)a.tokens[token] - a.first_row, packs = a.width / count;
    if (row >= a.row_count)
        return;
    const pack *from = static_cast<const pack *>(a.table) + (uint64_t)row * packs;
    pack *to = static_cast<pack *>(a.x) + (uint64_t)token * packs;
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < packs; i += blockDim.x)
        to[i] = from[i];
}

template <class T> enum weir_status forward(struct weir_stream *stream, const weir_embed_args *a)
{
    constexpr uint32_t count = 16 / sizeof(T);
    bool whole = a->width % count == 0 && weir_aligned16(a->table) && weir_aligned16(a->x);
    dim3 block = weir_row_block(a->width / (whole ? count : 1), 2, 256);
    auto embed_forward = whole ? copy_rows<T, count> : copy_rows<T, 1>;
    return WEIR_LAUNCH(stream, embed_forward, dim3(weir_ceil_divide(a->token_count, block.y)),
                       block, 0, *a);
}

/* ---- backward */

constexpr uint32_t threads = 256, warps = threads / WEIR_WARP, sum_pack = 4;
constexpr uint32_t slice = threads * sum_pack; /* columns of a block */
constexpr uint32_t looks = 4, look_tokens = looks * threads;
static_assert(looks * warps == WEIR_WARP, "a lane of a warp for each word of matches");

/* By every thread of the block. */
__device__ bool is_first(const int32_t *tokens, uint32_t token, int32_t id)
{
    for (uint32_t end = token; end > 0;) {
        const uint32_t begin = end > look_tokens ? end - look_tokens : 0;
        bool found = false;
        for (uint32_t i = begin + threadIdx.x; i < end; i += threads)
            found |= tokens[i] == id;
        if (__syncthreads_or(found))
            return false;
        end = begin;
    }
    return true;
}

struct matches {
    uint32_t words[WEIR_WARP];    /* a bit a token, in token order */
    uint32_t tokens[look_tokens]; /* those whose bit is set, in order */
};

/* Tokens of [begin, begin + look_tokens) with this id; how many. By every thread of the block. */
__device__ uint32_t matches_find(const weir_embed_args &a, uint32_t begin, int32_t id,
                                 struct matches *shared)
{
    const uint32_t warp = threadIdx.x / WEIR_WARP, lane = threadIdx.x % WEIR_WARP;
    int32_t here[looks];
    uint32_t word[looks], any = 0;
#pragma unroll
    for (uint32_t j = 0; j < looks; j++) {
        const uint32_t i = begin + j * threads + threadIdx.x;
        here[j] = i < a.token_count ? a.tokens[i] : -1;
    }
#pragma unroll
    for (uint32_t j = 0; j < looks; j++) {
        word[j] = __ballot_sync(WEIR_WHOLE_WARP, here[j] == id);
        any |= word[j];
        if (lane == 0)
            shared->words[j * warps + warp] = word[j];
    }
    if (!__syncthreads_or(any != 0))
        return 0;
    uint32_t ends = (uint32_t)__popc(shared->words[lane]); /* of words 0 to lane, added up */
#pragma unroll
    for (uint32_t away = 1; away < WEIR_WARP; away *= 2) {
        const uint32_t below = __shfl_up_sync(WEIR_WHOLE_WARP, ends, away);
        ends += lane >= away ? below : 0;
    }
#pragma unroll
    for (uint32_t j = 0; j < looks; j++) {
        const uint32_t at = j * warps + warp;
        const uint32_t end = __shfl_sync(WEIR_WHOLE_WARP, ends, at);
        if (word[j] >> lane & 1)
            shared->tokens[end - (uint32_t)__popc(word[j] >> lane)] =
                begin + j * threads + threadIdx.x;
    }
    const uint32_t count = __shfl_sync(WEIR_WHOLE_WARP, ends, WEIR_WARP - 1);
    __syncthreads();
    return count;
}

/* Add the rows of tokens[0..count) in order; eight are on their way at a time. */
template <bool whole>
__device__ __forceinline__ void rows_add(const weir_embed_args &a, const uint32_t *tokens,
                                         uint32_t count, uint32_t at, float (&sum)[sum_pack])
{
    constexpr uint32_t ahead = 8;
    for (uint32_t first = 0; first < count; first += ahead) {
        float d[ahead][sum_pack];
#pragma unroll
        for (uint32_t j = 0; j < ahead; j++)
            if (first + j < count)
                weir_row_load<whole>(a.d + (uint64_t)tokens[first + j] * a.width, at, a.width,
                                     d[j]);
#pragma unroll
        for (uint32_t j = 0; j < ahead; j++)
            if (first + j < count)
#pragma unroll
                for (uint32_t i = 0; i < sum_pack; i++)
                    sum[i] += d[j][i];
    }
}

template <bool whole> __global__ void __launch_bounds__(threads) sum_tokens(const weir_embed_args a)
{
    __shared__ struct matches found;
    const uint32_t token = blockIdx.x, at = blockIdx.y * slice + threadIdx.x * sum_pack;
    const int32_t id = a.tokens[token];
    const uint32_t row = (uint32_t)id - a.first_row;
    if (row >= a.row_count || !is_first(a.tokens, token, id))
        return;
    float sum[sum_pack], before[sum_pack];
    weir_row_load<whole>(a.d + (uint64_t)token * a.width, at, a.width, sum);
    for (uint32_t begin = token + 1; begin < a.token_count; begin += look_tokens) {
        const uint32_t count = matches_find(a, begin, id, &found);
        rows_add<whole>(a, found.tokens, count, at, sum);
    }
    float *grad = a.grad + (uint64_t)row * a.width;
    if (!a.fresh) {
        weir_row_load<whole>(grad, at, a.width, before);
#pragma unroll
        for (uint32_t i = 0; i < sum_pack; i++)
            sum[i] = before[i] + sum[i];
    }
    weir_row_store<whole>(grad, at, a.width, sum);
}

} // namespace

enum weir_status weir_cuda_embed_forward(struct weir_kernels *, struct weir_stream *stream,
                                         const struct weir_embed_args *a)
{
    if (a->token_count == 0)
        return WEIR_OK;
    return a->dtype == WEIR_BF16 ? forward<uint16_t>(stream, a) : forward<float>(stream, a);
}

uint64_t weir_cuda_embed_scratch_bytes(const struct weir_embed_args *)
{
    return 0;
}

enum weir_status weir_cuda_embed_backward(struct weir_kernels *, struct weir_stream *stream,
                                          const struct weir_embed_args *a)
{
    uint64_t bytes = (uint64_t)a->row_count * a->width * sizeof(float);
    if (a->fresh && bytes > 0)
        WEIR_TRY(stream->device->table->fill(stream, a->grad, 0, bytes));
    if (a->token_count == 0 || bytes == 0)
        return WEIR_OK;
    bool whole = a->width % sum_pack == 0 && weir_aligned16(a->d) && weir_aligned16(a->grad);
    auto embed_backward = whole ? sum_tokens<true> : sum_tokens<false>;
    return WEIR_LAUNCH(stream, embed_backward,
                       dim3(a->token_count, weir_ceil_divide(a->width, slice)), threads, 0, *a);
}
