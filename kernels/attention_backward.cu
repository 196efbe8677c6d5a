/*
 * Attention backward on tensor cores (Dao 2023, algorithm 2): the weights again from lse. Nothing
 * is added atomically: one kernel makes dk and dv of a tile of keys, walking the query heads of its
 * group and their queries in order; another makes dq of a tile of queries, walking the keys in
 * order. So scores are made twice, and bits are a function of the shape.
 *
 * Both are one walk: a pair of tiles stays (keys and values, or queries and dout), pairs of the
 * other kind stream past it, double buffered. Products of the first of each pair are scores, of the
 * second the gradients of weights.
 *
 * Against fp64 on the same bf16 inputs a gradient is within 2^-7 of the largest one.
 */
#include "kernels/attention.cuh"

#include <type_traits>

static const uint32_t ROWS = ATTENTION_WARPS * ATTENTION_BAND; /* of a tile that stays */

/* Multiprocessors with the least shared memory for blocks, and what each block takes beside its own
 * (sm_86, sm_89, sm_120). */
static const uint32_t LEAST_SHARED_BYTES = 100 << 10, LEAST_RESERVED_BYTES = 1 << 10;

/* narrow: for a multiprocessor on which two blocks of the other form do not fit, and one leaves the
 * tensor cores idle while it waits. The bits are the same: 16 tokens at a time are added, in order,
 * however many a tile has. */
template <uint32_t width_, bool keys_stay_, bool narrow_> struct backward_form {
    static constexpr uint32_t width = width_;
    static constexpr bool keys_stay = keys_stay_;
    using tile =
        std::conditional_t<narrow_ && width == 128, attention_folded<128>, attention_padded<width>>;
    static constexpr uint32_t pitch = tile::pitch;
    static constexpr uint32_t columns = (width > 64 ? 32 : 64) / (narrow_ ? 2 : 1); /* streaming */
    static constexpr uint32_t stay = ROWS * pitch, stream = columns * pitch;        /* elements */
    static constexpr uint32_t blocks = keys_stay || narrow_ ? 2 : 3; /* what registers allow */
    static constexpr uint32_t scalars = keys_stay ? 2 * columns : 0;
    static constexpr uint32_t shared_bytes =
        (2 * stay + 4 * stream) * sizeof(uint16_t) + 2 * scalars * sizeof(float);
    static_assert(shared_bytes <= 99 << 10, "what a block may have on every architecture");
    static constexpr bool fits_twice =
        2 * (shared_bytes + LEAST_RESERVED_BYTES) <= LEAST_SHARED_BYTES;
    static_assert(!narrow_ || fits_twice, "what it is for");
};

/* One kernel's block: which tile stays, and what streams past it. */
struct backward_walk {
    uint32_t sequence, kv_head, head; /* head: of the queries that stay, or the first of a group */
    uint32_t first, tiles, steps;     /* tokens that stay; tiles a head; all steps */
};

struct backward_step {
    uint32_t head, token; /* query head; first token that streams */
};

template <class form> __device__ __forceinline__ backward_walk walk_of(const weir_attention_args &a)
{
    const uint32_t group = a.heads / a.kv_heads, heads = form::keys_stay ? a.kv_heads : a.heads;
    const uint32_t all = a.sequences * heads, count = gridDim.x / all;
    const uint32_t index = blockIdx.x % all % heads, tile = blockIdx.x / all;
    backward_walk w;
    w.sequence = blockIdx.x % all / heads;
    w.kv_head = form::keys_stay ? index : index / group;
    w.head = form::keys_stay ? index * group : index;
    /* The earliest keys and the latest queries have the most to do: they come first. */
    w.first = (form::keys_stay ? tile : count - 1 - tile) * ROWS;
    const uint32_t span = form::keys_stay ? a.length - w.first : min(w.first + ROWS, a.length);
    w.tiles = (span + form::columns - 1) / form::columns;
    w.steps = form::keys_stay ? group * w.tiles : w.tiles;
    return w;
}

template <class form>
__device__ __forceinline__ backward_step step_of(const backward_walk &w, uint32_t step)
{
    if (!form::keys_stay)
        return {w.head, step * form::columns};
    return {w.head + step / w.tiles, w.first + step % w.tiles * form::columns};
}

/* Begin to copy what streams at a step into one buffer. */
template <class form>
__device__ __forceinline__ void stream_load(const weir_attention_args &a, const backward_walk &w,
                                            const backward_step &s, uint16_t *buffer)
{
    const attention_rows at = form::keys_stay
                                  ? attention_rows_at(a, a.heads, w.sequence, s.head)
                                  : attention_rows_at(a, a.kv_heads, w.sequence, w.kv_head);
    attention_load<form::columns, form::width, typename form::tile>(
        buffer, form::keys_stay ? a.q : a.k, at, a, s.token);
    attention_load<form::columns, form::width, typename form::tile>(
        buffer + form::stream, form::keys_stay ? a.dout : a.v, at, a, s.token);
}

template <class form>
__device__ __forceinline__ void stay_load(const weir_attention_args &a, const backward_walk &w,
                                          uint16_t *stay)
{
    const attention_rows at = form::keys_stay
                                  ? attention_rows_at(a, a.kv_heads, w.sequence, w.kv_head)
                                  : attention_rows_at(a, a.heads, w.sequence, w.head);
    attention_load<ROWS, form::width, typename form::tile>(stay, form::keys_stay ? a.k : a.q, at, a,
                                                           w.first);
    attention_load<ROWS, form::width, typename form::tile>(
        stay + form::stay, form::keys_stay ? a.v : a.dout, at, a, w.first);
}

/* Of a query: lse times log2 e, and delta. Beyond the end a weight must come out as 0. */
struct backward_scalars {
    float lse, delta;
};
__device__ __forceinline__ backward_scalars scalars_at(const weir_attention_args &a,
                                                       const float *delta, uint32_t sequence,
                                                       uint32_t head, uint32_t position)
{
    if (position >= a.length)
        return {INFINITY, 0};
    uint64_t at = ((uint64_t)sequence * a.length + position) * a.heads + head;
    return {a.lse[at] * ATTENTION_LOG2E, delta[at]};
}

/* Scores become weights, gradients of weights become those of scores before scaling. own[r]: of the
 * lane's two rows, when these are queries; else of[column] and of[columns + column]. */
template <class form>
__device__ __forceinline__ void weigh(float (&scores)[1][form::columns / 8][4],
                                      float (&d)[1][form::columns / 8][4], float scale_log2,
                                      const backward_scalars (&own)[2], const float *of)
{
    const uint32_t lane = threadIdx.x % WEIR_WARP;
#pragma unroll
    for (uint32_t n = 0; n < form::columns / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t column = n * 8 + lane % 4 * 2 + i % 2;
            float lse = form::keys_stay ? of[column] : own[i / 2].lse;
            float delta = form::keys_stay ? of[form::columns + column] : own[i / 2].delta;
            float p = weir_exp2(fmaf(scores[0][n][i], scale_log2, -lse));
            scores[0][n][i] = p;
            d[0][n][i] = p * (d[0][n][i] - delta);
        }
}

/* A key after its query has no weight. */
template <class form>
__device__ __forceinline__ void mask(float (&scores)[1][form::columns / 8][4], uint32_t row,
                                     uint32_t column)
{
    const uint32_t lane = threadIdx.x % WEIR_WARP;
    row += lane / 4;
    column += lane % 4 * 2;
#pragma unroll
    for (uint32_t n = 0; n < form::columns / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t stays = row + i / 2 * 8, streams = column + n * 8 + i % 2;
            if (form::keys_stay ? stays > streams : streams > stays)
                scores[0][n][i] = -INFINITY;
        }
}

/* What one warp adds up: dq, or dk and dv. */
template <class form> struct backward_sums {
    float first[1][form::width / 8][4], second[1][form::width / 8][4];
};

template <class form> __device__ __forceinline__ void sums_start(backward_sums<form> &s)
{
#pragma unroll
    for (uint32_t n = 0; n < form::width / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            s.first[0][n][i] = s.second[0][n][i] = 0;
}

/* One step of one warp, whose rows begin at token `row` and lie at `band` of the pair that stays.
 */
template <class form>
__device__ __forceinline__ void
step_add(backward_sums<form> &sums, const uint16_t *band, const uint16_t *stream, uint32_t row,
         uint32_t token, float scale_log2, const backward_scalars (&own)[2], const float *of)
{
    using tile = typename form::tile;
    constexpr uint32_t width = form::width, columns = form::columns;
    const uint32_t key = form::keys_stay ? row : token, query = form::keys_stay ? token : row;
    constexpr uint32_t keys = form::keys_stay ? ATTENTION_BAND : columns;
    constexpr uint32_t queries = form::keys_stay ? columns : ATTENTION_BAND;
    if (key >= query + queries)
        return;
    float scores[1][columns / 8][4], d[1][columns / 8][4];
    attention_scores<width, 1, columns, tile, tile>(scores, band, stream);
    attention_scores<width, 1, columns, tile, tile>(d, band + form::stay, stream + form::stream);
    if (key + keys > query + 1)
        mask<form>(scores, row, token);
    weigh<form>(scores, d, scale_log2, own, of);
    uint32_t first[1][columns / 16][4];
    if (form::keys_stay) {
        attention_turn<columns>(first[0], scores[0]);
        attention_add<width, 1, columns, tile>(sums.second, first, stream + form::stream);
    }
    attention_turn<columns>(first[0], d[0]);
    attention_add<width, 1, columns, tile>(sums.first, first, stream);
}

template <class form>
__device__ __forceinline__ void backward_store(const weir_attention_args &a, const backward_walk &w,
                                               const backward_sums<form> &sums, uint32_t row,
                                               uint16_t *band)
{
    const attention_rows at = form::keys_stay
                                  ? attention_rows_at(a, a.kv_heads, w.sequence, w.kv_head)
                                  : attention_rows_at(a, a.heads, w.sequence, w.head);
    const float scale[2] = {a.scale, a.scale}, one[2] = {1, 1};
    attention_store<form::width, typename form::tile>(form::keys_stay ? a.dk : a.dq, at, a, row,
                                                      sums.first[0], scale, band);
    if (form::keys_stay)
        attention_store<form::width, typename form::tile>(a.dv, at, a, row, sums.second[0], one,
                                                          band + form::stay);
}

template <class form>
__global__ void __launch_bounds__(ATTENTION_THREADS, form::blocks)
    attention_backward_kernel(const weir_attention_args a, const float *delta)
{
    WEIR_SHARED(uint16_t, stay);
    uint16_t *stream = stay + 2 * form::stay;
    float *scalars = reinterpret_cast<float *>(stream + 4 * form::stream);
    const backward_walk w = walk_of<form>(a);
    const uint32_t own_row = threadIdx.x / WEIR_WARP * ATTENTION_BAND, row = w.first + own_row;
    const uint32_t lane = threadIdx.x % WEIR_WARP;
    const bool holds = form::keys_stay && threadIdx.x < form::columns; /* a query's scalars */
    uint16_t *band = stay + own_row * form::pitch;
    backward_scalars own[2] = {}, next = {};
    backward_sums<form> sums;
    sums_start(sums);

    stay_load<form>(a, w, stay);
    stream_load<form>(a, w, step_of<form>(w, 0), stream);
    weir_copy_async_commit();
    for (uint32_t r = 0; r < 2 && !form::keys_stay; r++)
        own[r] = scalars_at(a, delta, w.sequence, w.head, row + lane / 4 + r * 8);
    if (holds)
        next = scalars_at(a, delta, w.sequence, w.head, w.first + threadIdx.x);
    for (uint32_t step = 0; step < w.steps; step++) {
        const uint32_t buffer = step % 2;
        float *of = scalars + buffer * form::scalars;
        if (holds) {
            of[threadIdx.x] = next.lse;
            of[form::columns + threadIdx.x] = next.delta;
        }
        weir_copy_async_wait<0>();
        __syncthreads(); /* this pair is here, and the other buffer's is done with */
        if (step + 1 < w.steps) {
            const backward_step s = step_of<form>(w, step + 1);
            stream_load<form>(a, w, s, stream + (1 - buffer) * 2 * form::stream);
            weir_copy_async_commit();
            if (holds)
                next = scalars_at(a, delta, w.sequence, s.head, s.token + threadIdx.x);
        }
        step_add<form>(sums, band, stream + buffer * 2 * form::stream, row,
                       step_of<form>(w, step).token, a.scale * ATTENTION_LOG2E, own, of);
    }
    backward_store(a, w, sums, row, band);
}

/* delta = sum over d of dout * out: a warp a row, 4 rows a block. */
template <class T>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    attention_delta_kernel(const T *dout, const T *out, float *delta, uint64_t rows,
                           uint32_t head_dim)
{
    const uint64_t row = (uint64_t)blockIdx.x * ATTENTION_WARPS + threadIdx.x / WEIR_WARP;
    if (row >= rows)
        return;
    float sum = 0;
    for (uint32_t d = threadIdx.x % WEIR_WARP; d < head_dim; d += WEIR_WARP)
        sum = fmaf(attention_widen(dout[row * head_dim + d]),
                   attention_widen(out[row * head_dim + d]), sum);
    for (uint32_t lanes = WEIR_WARP / 2; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(WEIR_WHOLE_WARP, sum, (int)lanes);
    if (threadIdx.x % WEIR_WARP == 0)
        delta[row] = sum;
}

static uint64_t row_count(const struct weir_attention_args *a)
{
    return (uint64_t)a->sequences * a->length * a->heads;
}

/* delta, a number a row. */
uint64_t weir_cuda_attention_scratch_bytes(const struct weir_attention_args *shape,
                                           int thread_count)
{
    (void)thread_count;
    return row_count(shape) * sizeof(float);
}

template <class T>
static enum weir_status delta_launch(struct weir_stream *stream,
                                     const struct weir_attention_args *a)
{
    const auto attention_delta = attention_delta_kernel<T>;
    uint64_t blocks = (row_count(a) + ATTENTION_WARPS - 1) / ATTENTION_WARPS;
    return WEIR_LAUNCH(stream, attention_delta, (uint32_t)blocks, ATTENTION_THREADS, 0,
                       static_cast<const T *>(a->dout), static_cast<const T *>(a->out),
                       static_cast<float *>(a->scratch), row_count(a), a->head_dim);
}

template <class form>
static enum weir_status walk_launch(struct weir_stream *stream, const struct weir_attention_args *a)
{
    const auto attention_backward = attention_backward_kernel<form>;
    uint32_t tiles = (a->length + ROWS - 1) / ROWS;
    uint32_t heads = form::keys_stay ? a->kv_heads : a->heads;
    WEIR_TRY(WEIR_SHARED_ALLOW(stream, attention_backward, form::shared_bytes));
    return WEIR_LAUNCH(stream, attention_backward, tiles * a->sequences * heads, ATTENTION_THREADS,
                       form::shared_bytes, *a, static_cast<const float *>(a->scratch));
}

template <uint32_t width, bool keys_stay>
static enum weir_status form_launch(const struct weir_cuda_kernels *k, struct weir_stream *stream,
                                    const struct weir_attention_args *a)
{
    using wide = backward_form<width, keys_stay, false>;
    if constexpr (!wide::fits_twice)
        if (2 * (wide::shared_bytes + k->block_shared_bytes) > k->shared_bytes)
            return walk_launch<backward_form<width, keys_stay, true>>(stream, a);
    return walk_launch<wide>(stream, a);
}

template <uint32_t width>
static enum weir_status backward_launch(struct weir_kernels *kernels, struct weir_stream *stream,
                                        const struct weir_attention_args *a)
{
    const auto *k = reinterpret_cast<const struct weir_cuda_kernels *>(kernels);
    WEIR_TRY((form_launch<width, true>(k, stream, a)));
    return form_launch<width, false>(k, stream, a);
}

enum weir_status weir_cuda_attention_backward(struct weir_kernels *kernels,
                                              struct weir_stream *stream,
                                              const struct weir_attention_args *a)
{
    WEIR_TRY(weir_attention_check(a, true));
    weir_attention_tell(kernels, a);
    WEIR_TRY(a->dtype == WEIR_BF16 ? delta_launch<uint16_t>(stream, a)
                                   : delta_launch<float>(stream, a));
    if (!attention_on_tensor_cores(a))
        return weir_attention_plain_backward(stream, a, static_cast<const float *>(a->scratch));
    if (a->head_dim <= 64)
        return backward_launch<64>(kernels, stream, a);
    if (a->head_dim <= 80)
        return backward_launch<80>(kernels, stream, a);
    if (a->head_dim <= 96)
        return backward_launch<96>(kernels, stream, a);
    return backward_launch<128>(kernels, stream, a);
}
