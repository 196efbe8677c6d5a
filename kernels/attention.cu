/*
 * Attention forward on tensor cores: online softmax over tiles of keys (Dao 2023, algorithm 1).
 * Keys of the next tile travel while this tile's are weighed and added, values while scores are
 * made.
 *
 * Against fp64 on the same bf16 inputs an output is within 2^-7 of the largest one: weights and the
 * result round to bf16 once each, 2^-8 together; the rest is fp32.
 */
#include "kernels/attention.cuh"

#include <type_traits>

/* Of a tile; what leaves registers enough on every architecture. */
template <uint32_t width> constexpr uint32_t forward_keys = width > 64 ? 32 : 64;

template <uint32_t width, uint32_t bands> struct forward_tiles {
    static constexpr uint32_t queries = ATTENTION_WARPS * bands * ATTENTION_BAND;
    static constexpr uint32_t keys = forward_keys<width>;
    static constexpr uint32_t pitch = attention_pitch<width>;
    /* Two blocks shall fit into the 100 KiB of a multiprocessor of 8.6, 8.9 and 12.0, each with the
     * 1 KiB that CUDA takes of it. At 128 they do without padding here, to the byte. */
    using query_form =
        std::conditional_t<width == 128, attention_folded<128>, attention_padded<width>>;
    static constexpr uint32_t shared_bytes =
        (queries * query_form::pitch + 2 * keys * pitch) * sizeof(uint16_t);
    static_assert(2 * (shared_bytes + (1 << 10)) <= 100 << 10, "two blocks fit everywhere");
};

/* What a warp has of its rows so far; a sum of the lane's own columns. */
template <uint32_t width, uint32_t bands> struct forward_sums {
    float out[bands][width / 8][4];
    float max[bands][2], sum[bands][2]; /* max: of scores before scaling */
};

template <uint32_t bands, uint32_t keys>
__device__ __forceinline__ void mask(float (&scores)[bands][keys / 8][4], uint32_t row,
                                     uint32_t key)
{
    uint32_t lane = threadIdx.x % WEIR_WARP;
    row += lane / 4;
    key += lane % 4 * 2;
#pragma unroll
    for (uint32_t m = 0; m < bands; m++)
#pragma unroll
        for (uint32_t n = 0; n < keys / 8; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                if (key + n * 8 + i % 2 > row + m * ATTENTION_BAND + i / 2 * 8)
                    scores[m][n][i] = -INFINITY;
}

/* Over the four lanes that share a row. */
__device__ __forceinline__ float row_max(float value)
{
    value = fmaxf(value, __shfl_xor_sync(WEIR_WHOLE_WARP, value, 1));
    return fmaxf(value, __shfl_xor_sync(WEIR_WHOLE_WARP, value, 2));
}
__device__ __forceinline__ float row_sum(float value)
{
    value += __shfl_xor_sync(WEIR_WHOLE_WARP, value, 1);
    return value + __shfl_xor_sync(WEIR_WHOLE_WARP, value, 2);
}

/* Scores become weights exp(score - max), rounded to bf16 after they are summed; what was summed
 * before shrinks by the maximum's rise. Every row sees key 0 in its first tile, so the maximum is
 * finite. */
template <uint32_t width, uint32_t keys>
__device__ __forceinline__ void soften(float (&out)[width / 8][4], float (&max)[2], float (&sum)[2],
                                       float (&scores)[keys / 8][4],
                                       uint32_t (&weights)[keys / 16][4], float scale_log2)
{
    float shrink[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float most = max[r], more = 0;
#pragma unroll
        for (uint32_t n = 0; n < keys / 8; n++)
            most = fmaxf(most, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
        most = row_max(most);
        shrink[r] = weir_exp2((max[r] - most) * scale_log2);
        float base = most * scale_log2;
#pragma unroll
        for (uint32_t n = 0; n < keys / 8; n++)
#pragma unroll
            for (uint32_t i = 2 * r; i < 2 * r + 2; i++) {
                scores[n][i] = weir_exp2(fmaf(scores[n][i], scale_log2, -base));
                more += scores[n][i];
            }
        sum[r] = sum[r] * shrink[r] + more;
        max[r] = most;
    }
    attention_turn<keys>(weights, scores);
#pragma unroll
    for (uint32_t n = 0; n < width / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            out[n][i] *= shrink[i / 2];
}

template <uint32_t width, uint32_t bands>
__device__ __forceinline__ void sums_start(forward_sums<width, bands> &s)
{
#pragma unroll
    for (uint32_t m = 0; m < bands; m++) {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            s.max[m][r] = -INFINITY;
            s.sum[m][r] = 0;
        }
#pragma unroll
        for (uint32_t n = 0; n < width / 8; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                s.out[m][n][i] = 0;
    }
}

/* out and lse of the warp's rows from `first` on; band: this warp's part of the tile of queries. */
template <uint32_t width, uint32_t bands>
__device__ __forceinline__ void forward_store(const weir_attention_args &a,
                                              const forward_sums<width, bands> &s,
                                              const attention_rows &at, uint32_t sequence,
                                              uint32_t head, uint32_t first, uint16_t *band)
{
    using form = typename forward_tiles<width, bands>::query_form;
    uint32_t lane = threadIdx.x % WEIR_WARP;
#pragma unroll
    for (uint32_t m = 0; m < bands; m++) {
        uint32_t row = first + m * ATTENTION_BAND;
        float factor[2];
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            float sum = row_sum(s.sum[m][r]);
            uint32_t position = row + lane / 4 + r * 8;
            factor[r] = 1.0f / sum;
            if (lane % 4 == 0 && position < a.length)
                a.lse[((uint64_t)sequence * a.length + position) * a.heads + head] =
                    s.max[m][r] * a.scale + logf(sum);
        }
        attention_store<width, form>(a.out, at, a, row, s.out[m], factor,
                                     band + m * ATTENTION_BAND * form::pitch);
    }
}

/* A block: one tile of queries of one head. The latest tiles see the most keys and come first; the
 * heads that share keys are neighbours. */
template <uint32_t width, uint32_t bands>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    attention_forward_kernel(const weir_attention_args a)
{
    using tiles = forward_tiles<width, bands>;
    WEIR_SHARED(uint16_t, queries);
    uint16_t *keys = queries + tiles::queries * tiles::query_form::pitch,
             *values = keys + tiles::keys * tiles::pitch;
    const uint32_t heads = a.sequences * a.heads, count = gridDim.x / heads;
    const uint32_t first = (count - 1 - blockIdx.x / heads) * tiles::queries;
    const uint32_t sequence = blockIdx.x % heads / a.heads, head = blockIdx.x % a.heads;
    const attention_rows q = attention_rows_at(a, a.heads, sequence, head);
    const attention_rows kv =
        attention_rows_at(a, a.kv_heads, sequence, head / (a.heads / a.kv_heads));
    const uint32_t own = threadIdx.x / WEIR_WARP * bands * ATTENTION_BAND;
    const uint32_t row = first + own, end = min(first + tiles::queries, a.length);
    const float scale_log2 = a.scale * ATTENTION_LOG2E;
    uint16_t *band = queries + own * tiles::query_form::pitch;
    forward_sums<width, bands> sums;
    sums_start(sums);

    attention_load<tiles::queries, width, typename tiles::query_form>(queries, a.q, q, a, first);
    attention_load<tiles::keys, width>(keys, a.k, kv, a, 0);
    weir_copy_async_commit();
    for (uint32_t key = 0; key < end; key += tiles::keys) {
        float scores[bands][tiles::keys / 8][4];
        const bool visible = key < row + bands * ATTENTION_BAND; /* to any row of this warp */
        weir_copy_async_wait<0>();
        __syncthreads(); /* these keys are here, and the values before are done with */
        attention_load<tiles::keys, width>(values, a.v, kv, a, key);
        weir_copy_async_commit();
        if (visible)
            attention_scores<width, bands, tiles::keys, typename tiles::query_form>(scores, band,
                                                                                    keys);
        weir_copy_async_wait<0>();
        __syncthreads(); /* these values are here, and the keys are done with */
        if (key + tiles::keys < end)
            attention_load<tiles::keys, width>(keys, a.k, kv, a, key + tiles::keys);
        weir_copy_async_commit();
        if (!visible)
            continue;
        if (key + tiles::keys > row + 1)
            mask<bands, tiles::keys>(scores, row, key);
        uint32_t weights[bands][tiles::keys / 16][4];
#pragma unroll
        for (uint32_t m = 0; m < bands; m++)
            soften<width, tiles::keys>(sums.out[m], sums.max[m], sums.sum[m], scores[m], weights[m],
                                       scale_log2);
        attention_add<width, bands, tiles::keys>(sums.out, weights, values);
    }
    forward_store(a, sums, q, sequence, head, row, band);
}

template <uint32_t width, uint32_t bands>
static enum weir_status forward_launch(struct weir_stream *stream,
                                       const struct weir_attention_args *a)
{
    using tiles = forward_tiles<width, bands>;
    const auto attention_forward = attention_forward_kernel<width, bands>;
    uint32_t count = (a->length + tiles::queries - 1) / tiles::queries;
    WEIR_TRY(WEIR_SHARED_ALLOW(stream, attention_forward, tiles::shared_bytes));
    return WEIR_LAUNCH(stream, attention_forward, count * a->sequences * a->heads,
                       ATTENTION_THREADS, tiles::shared_bytes, *a);
}

enum weir_status weir_attention_check(const struct weir_attention_args *a, bool backward)
{
    if (a->sequences == 0 || a->length == 0 || a->head_dim == 0 || a->kv_heads == 0 ||
        a->heads % a->kv_heads != 0 || a->heads == 0)
        return weir_fail(WEIR_ERR_ARG,
                         "attention: %u sequences of %u tokens, %u heads on %u kv_heads, head_dim "
                         "%u: none may be 0, and heads are a multiple of kv_heads",
                         a->sequences, a->length, a->heads, a->kv_heads, a->head_dim);
    uint64_t tokens = (uint64_t)a->sequences * a->length;
    if (tokens * a->heads > INT32_MAX)
        return weir_fail(WEIR_ERR_ARG,
                         "attention: %u sequences of %u tokens with %u heads are more than 2^31 "
                         "rows; use a smaller micro-batch",
                         a->sequences, a->length, a->heads);
    uintptr_t all = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->out |
                    (uintptr_t)a->lse | (uintptr_t)a->scratch;
    if (backward)
        all |= (uintptr_t)a->dout | (uintptr_t)a->dq | (uintptr_t)a->dk | (uintptr_t)a->dv;
    if (all % 16 != 0)
        return weir_fail(WEIR_ERR_ARG,
                         "attention: an array lies at no multiple of 16 bytes (the "
                         "lowest bits of all: %#x); align what is given",
                         (unsigned)(all % 16));
    return WEIR_OK;
}

void weir_attention_tell(struct weir_kernels *kernels, const struct weir_attention_args *a)
{
    auto *k = reinterpret_cast<struct weir_cuda_kernels *>(kernels);
    if (a->dtype != WEIR_BF16 || attention_on_tensor_cores(a) || k->attention_told)
        return;
    k->attention_told = true;
    weir_log(k->log, WEIR_LOG_WARNING,
             "kernels \"cuda\": attention with head_dim %u runs without tensor cores and will be "
             "slow; they take multiples of 8 up to 128: choose a model with such heads",
             a->head_dim);
}

enum weir_status weir_cuda_attention_forward(struct weir_kernels *kernels,
                                             struct weir_stream *stream,
                                             const struct weir_attention_args *a)
{
    WEIR_TRY(weir_attention_check(a, false));
    weir_attention_tell(kernels, a);
    if (!attention_on_tensor_cores(a))
        return weir_attention_plain_forward(stream, a);
    if (a->head_dim <= 64)
        return forward_launch<64, 2>(stream, a);
    if (a->head_dim <= 80)
        return forward_launch<80, 2>(stream, a);
    if (a->head_dim <= 96)
        return forward_launch<96, 2>(stream, a);
    return forward_launch<128, 2>(stream, a);
}
