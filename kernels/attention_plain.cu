/*
 * Attention in fp32 arithmetic without tensor cores: fp32 training, and the bf16 shapes that
 * attention.cu does not take (head_dim over 128, or no multiple of 8). Any head_dim.
 *
 * A block has 16 x 16 threads and works on tiles of 64 tokens. Thread (x, y) has of a 64 x 64
 * result rows y + 16 i and columns x + 16 j. A block makes at most 128 columns of an output; wider
 * heads are shared by several blocks (blockIdx.y), each of which makes the scores anew.
 */
#include "kernels/attention.cuh"

static const uint32_t TILE = 64, SIDE = 16, PLAIN_THREADS = SIDE * SIDE;
static const uint32_t OWN = TILE / SIDE;     /* rows, and columns, of a thread */
static const uint32_t DEPTH = 32;            /* of head_dim at a time, in products of rows */
static const uint32_t SLICE = 128;           /* columns of an output, made at a time */
static const uint32_t CHUNKS = SLICE / TILE; /* of it */
static const uint32_t PITCH = TILE + 1;      /* of tiles in shared memory: no bank conflicts */
static const uint32_t DEPTH_PITCH = DEPTH + 1;
static const uint32_t OPERAND_FLOATS = 2 * TILE * DEPTH_PITCH; /* or a tile of values */
static const uint32_t PLAIN_SHARED_BYTES = (OPERAND_FLOATS + TILE * PITCH) * sizeof(float);
static_assert(OPERAND_FLOATS >= TILE * PITCH, "both uses fit");

struct plain_shared {
    float *operands; /* two tiles' DEPTH columns, or TILE columns of one */
    float *weights;  /* TILE x TILE */
};

template <class T> struct plain_head {
    const T *x;
    uint32_t stride, length, head_dim;
};

template <class T>
__device__ __forceinline__ plain_head<T> head_at(const weir_attention_args &a, const void *x,
                                                 uint32_t heads, uint32_t sequence, uint32_t head)
{
    const attention_rows at = attention_rows_at(a, heads, sequence, head);
    return {static_cast<const T *>(x) + at.first, at.stride, a.length, a.head_dim};
}

/* 0 beyond the head. */
template <class T>
__device__ __forceinline__ float element(const plain_head<T> &h, uint32_t token, uint32_t column)
{
    if (token >= h.length || column >= h.head_dim)
        return 0;
    return attention_widen(h.x[(uint64_t)token * h.stride + column]);
}

__device__ __forceinline__ void narrow(float *out, float value)
{
    *out = value;
}
__device__ __forceinline__ void narrow(uint16_t *out, float value)
{
    *out = weir_device_narrow(value);
}

/* scores = tokens [first, first + TILE) of one head times those of another from `second` on. */
template <class T>
__device__ __forceinline__ void scores_make(float (&scores)[OWN][OWN], const plain_shared &shared,
                                            const plain_head<T> &left, uint32_t first,
                                            const plain_head<T> &right, uint32_t second)
{
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    float *rows = shared.operands, *columns = rows + TILE * DEPTH_PITCH;
    for (uint32_t i = 0; i < OWN; i++)
        for (uint32_t j = 0; j < OWN; j++)
            scores[i][j] = 0;
    for (uint32_t d = 0; d < left.head_dim; d += DEPTH) {
        __syncthreads();
        for (uint32_t at = threadIdx.x; at < TILE * DEPTH; at += PLAIN_THREADS) {
            uint32_t row = at / DEPTH, column = at % DEPTH;
            rows[row * DEPTH_PITCH + column] = element(left, first + row, d + column);
            columns[row * DEPTH_PITCH + column] = element(right, second + row, d + column);
        }
        __syncthreads();
#pragma unroll 4
        for (uint32_t k = 0; k < DEPTH; k++)
#pragma unroll
            for (uint32_t i = 0; i < OWN; i++)
#pragma unroll
                for (uint32_t j = 0; j < OWN; j++)
                    scores[i][j] = fmaf(rows[(y + SIDE * i) * DEPTH_PITCH + k],
                                        columns[(x + SIDE * j) * DEPTH_PITCH + k], scores[i][j]);
    }
}

__device__ __forceinline__ void weights_put(const plain_shared &shared,
                                            const float (&weights)[OWN][OWN])
{
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++)
#pragma unroll
        for (uint32_t j = 0; j < OWN; j++)
            shared.weights[(y + SIDE * i) * PITCH + x + SIDE * j] = weights[i][j];
}

/* What a block makes of an output: SLICE columns of a tile of rows. */
struct plain_sums {
    float at[CHUNKS][OWN][OWN];
};

__device__ __forceinline__ void sums_start(plain_sums &sums)
{
#pragma unroll
    for (uint32_t c = 0; c < CHUNKS; c++)
#pragma unroll
        for (uint32_t i = 0; i < OWN; i++)
#pragma unroll
            for (uint32_t j = 0; j < OWN; j++)
                sums.at[c][i][j] = 0;
}

/* sums += the weights in shared memory times tokens [first, first + TILE) of a head. */
template <class T>
__device__ __forceinline__ void sums_add(plain_sums &sums, const plain_shared &shared,
                                         const plain_head<T> &head, uint32_t first)
{
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#pragma unroll
    for (uint32_t c = 0; c < CHUNKS; c++) {
        const uint32_t from = blockIdx.y * SLICE + c * TILE;
        __syncthreads();
        for (uint32_t at = threadIdx.x; at < TILE * TILE; at += PLAIN_THREADS)
            shared.operands[at / TILE * PITCH + at % TILE] =
                element(head, first + at / TILE, from + at % TILE);
        __syncthreads();
#pragma unroll 4
        for (uint32_t k = 0; k < TILE; k++)
#pragma unroll
            for (uint32_t i = 0; i < OWN; i++)
#pragma unroll
                for (uint32_t j = 0; j < OWN; j++)
                    sums.at[c][i][j] =
                        fmaf(shared.weights[(y + SIDE * i) * PITCH + k],
                             shared.operands[k * PITCH + x + SIDE * j], sums.at[c][i][j]);
    }
    __syncthreads(); /* the weights are done with */
}

template <class T>
__device__ __forceinline__ void sums_store(const weir_attention_args &a, void *out,
                                           const attention_rows &at, uint32_t first,
                                           const plain_sums &sums, const float (&factor)[OWN])
{
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    T *to = static_cast<T *>(out) + at.first;
#pragma unroll
    for (uint32_t c = 0; c < CHUNKS; c++)
#pragma unroll
        for (uint32_t i = 0; i < OWN; i++)
#pragma unroll
            for (uint32_t j = 0; j < OWN; j++) {
                uint32_t row = first + y + SIDE * i;
                uint32_t column = blockIdx.y * SLICE + c * TILE + x + SIDE * j;
                if (row < a.length && column < a.head_dim)
                    narrow(to + (uint64_t)row * at.stride + column, sums.at[c][i][j] * factor[i]);
            }
}

/* Over the 16 threads that share their rows. */
__device__ __forceinline__ float row_max(float value)
{
#pragma unroll
    for (uint32_t lanes = SIDE / 2; lanes > 0; lanes /= 2)
        value = fmaxf(value, __shfl_xor_sync(WEIR_WHOLE_WARP, value, (int)lanes));
    return value;
}
__device__ __forceinline__ float row_sum(float value)
{
#pragma unroll
    for (uint32_t lanes = SIDE / 2; lanes > 0; lanes /= 2)
        value += __shfl_xor_sync(WEIR_WHOLE_WARP, value, (int)lanes);
    return value;
}

/* One tile of scores of a thread's rows becomes weights; sums shrink by the maximum's rise. */
__device__ __forceinline__ void soften(float (&scores)[OWN][OWN], float (&max)[OWN],
                                       float (&sum)[OWN], plain_sums &out, float scale,
                                       uint32_t first, uint32_t key)
{
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        float most = max[i], more = 0;
#pragma unroll
        for (uint32_t j = 0; j < OWN; j++) {
            bool visible = key + x + SIDE * j <= first + y + SIDE * i;
            scores[i][j] = visible ? scores[i][j] * scale : -INFINITY;
            most = fmaxf(most, scores[i][j]);
        }
        most = row_max(most);
        float shrink = expf(max[i] - most);
#pragma unroll
        for (uint32_t j = 0; j < OWN; j++) {
            scores[i][j] = expf(scores[i][j] - most);
            more += scores[i][j];
        }
        sum[i] = sum[i] * shrink + row_sum(more);
        max[i] = most;
#pragma unroll
        for (uint32_t c = 0; c < CHUNKS; c++)
#pragma unroll
            for (uint32_t j = 0; j < OWN; j++)
                out.at[c][i][j] *= shrink;
    }
}

template <class T>
__global__ void __launch_bounds__(PLAIN_THREADS)
    attention_plain_forward_kernel(const weir_attention_args a)
{
    WEIR_SHARED(float, memory);
    const plain_shared shared = {memory, memory + OPERAND_FLOATS};
    const uint32_t all = a.sequences * a.heads, count = gridDim.x / all;
    const uint32_t first = (count - 1 - blockIdx.x / all) * TILE;
    const uint32_t sequence = blockIdx.x % all / a.heads, head = blockIdx.x % a.heads;
    const uint32_t kv_head = head / (a.heads / a.kv_heads);
    const plain_head<T> q = head_at<T>(a, a.q, a.heads, sequence, head);
    const plain_head<T> k = head_at<T>(a, a.k, a.kv_heads, sequence, kv_head);
    const plain_head<T> v = head_at<T>(a, a.v, a.kv_heads, sequence, kv_head);
    float max[OWN], sum[OWN], scores[OWN][OWN];
    plain_sums out;
    sums_start(out);
    for (uint32_t i = 0; i < OWN; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    for (uint32_t key = 0; key < min(first + TILE, a.length); key += TILE) {
        scores_make(scores, shared, q, first, k, key);
        soften(scores, max, sum, out, a.scale, first, key);
        weights_put(shared, scores);
        sums_add(out, shared, v, key);
    }
    float factor[OWN];
    for (uint32_t i = 0; i < OWN; i++) {
        const uint32_t row = first + threadIdx.x / SIDE + SIDE * i;
        factor[i] = 1.0f / sum[i];
        if (threadIdx.x % SIDE == 0 && row < a.length && blockIdx.y == 0)
            a.lse[((uint64_t)sequence * a.length + row) * a.heads + head] = max[i] + logf(sum[i]);
    }
    sums_store<T>(a, a.out, attention_rows_at(a, a.heads, sequence, head), first, out, factor);
}

/* Scores become weights, gradients of weights become those of scores. Rows are keys if keys_stay,
 * else queries; a row and a column are tokens of this sequence. */
template <bool keys_stay>
__device__ __forceinline__ void weigh(const weir_attention_args &a, const float *delta,
                                      uint64_t scalars, float (&scores)[OWN][OWN],
                                      float (&d)[OWN][OWN], uint32_t first, uint32_t second)
{
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++)
#pragma unroll
        for (uint32_t j = 0; j < OWN; j++) {
            const uint32_t row = first + y + SIDE * i, column = second + x + SIDE * j;
            const uint32_t key = keys_stay ? row : column, query = keys_stay ? column : row;
            float p = 0;
            if (key <= query && query < a.length) {
                const uint64_t at = scalars + (uint64_t)query * a.heads;
                p = expf(fmaf(scores[i][j], a.scale, -a.lse[at]));
                d[i][j] = p * (d[i][j] - delta[at]) * a.scale;
            } else
                d[i][j] = 0;
            scores[i][j] = p;
        }
}

template <class T, bool keys_stay>
__global__ void __launch_bounds__(PLAIN_THREADS, keys_stay ? 1 : 2)
    attention_plain_backward_kernel(const weir_attention_args a, const float *delta)
{
    WEIR_SHARED(float, memory);
    const plain_shared shared = {memory, memory + OPERAND_FLOATS};
    const uint32_t group = a.heads / a.kv_heads, heads = keys_stay ? a.kv_heads : a.heads;
    const uint32_t all = a.sequences * heads, tile = blockIdx.x / all;
    const uint32_t first = (keys_stay ? tile : gridDim.x / all - 1 - tile) * TILE;
    const uint32_t sequence = blockIdx.x % all / heads, index = blockIdx.x % heads;
    const uint32_t kv_head = keys_stay ? index : index / group;
    const plain_head<T> k = head_at<T>(a, a.k, a.kv_heads, sequence, kv_head);
    const plain_head<T> v = head_at<T>(a, a.v, a.kv_heads, sequence, kv_head);
    float scores[OWN][OWN], d[OWN][OWN];
    plain_sums by_scores, by_weights; /* dq or dk; dv */
    sums_start(by_scores);
    sums_start(by_weights);
    for (uint32_t h = 0; h < (keys_stay ? group : 1); h++) {
        const uint32_t head = keys_stay ? index * group + h : index;
        const plain_head<T> q = head_at<T>(a, a.q, a.heads, sequence, head);
        const plain_head<T> dout = head_at<T>(a, a.dout, a.heads, sequence, head);
        const uint64_t scalars = (uint64_t)sequence * a.length * a.heads + head;
        const uint32_t end = keys_stay ? a.length : min(first + TILE, a.length);
        for (uint32_t second = keys_stay ? first : 0; second < end; second += TILE) {
            scores_make(scores, shared, keys_stay ? k : q, first, keys_stay ? q : k, second);
            scores_make(d, shared, keys_stay ? v : dout, first, keys_stay ? dout : v, second);
            weigh<keys_stay>(a, delta, scalars, scores, d, first, second);
            if (keys_stay) {
                weights_put(shared, scores);
                sums_add(by_weights, shared, dout, second);
            }
            weights_put(shared, d);
            sums_add(by_scores, shared, keys_stay ? q : k, second);
        }
    }
    const attention_rows at = attention_rows_at(a, heads, sequence, index);
    const float one[OWN] = {1, 1, 1, 1};
    sums_store<T>(a, keys_stay ? a.dk : a.dq, at, first, by_scores, one);
    if (keys_stay)
        sums_store<T>(a, a.dv, at, first, by_weights, one);
}

static dim3 grid_of(const struct weir_attention_args *a, uint32_t heads)
{
    uint32_t tiles = (a->length + TILE - 1) / TILE;
    return dim3(tiles * a->sequences * heads, (a->head_dim + SLICE - 1) / SLICE);
}

template <class T>
static enum weir_status forward_launch(struct weir_stream *stream,
                                       const struct weir_attention_args *a)
{
    return WEIR_LAUNCH(stream, attention_plain_forward_kernel<T>, grid_of(a, a->heads),
                       PLAIN_THREADS, PLAIN_SHARED_BYTES, *a);
}

template <class T>
static enum weir_status backward_launch(struct weir_stream *stream,
                                        const struct weir_attention_args *a, const float *delta)
{
    const auto attention_plain_dk_dv = attention_plain_backward_kernel<T, true>;
    const auto attention_plain_dq = attention_plain_backward_kernel<T, false>;
    WEIR_TRY(WEIR_LAUNCH(stream, attention_plain_dk_dv, grid_of(a, a->kv_heads), PLAIN_THREADS,
                         PLAIN_SHARED_BYTES, *a, delta));
    return WEIR_LAUNCH(stream, attention_plain_dq, grid_of(a, a->heads), PLAIN_THREADS,
                       PLAIN_SHARED_BYTES, *a, delta);
}

enum weir_status weir_attention_plain_forward(struct weir_stream *stream,
                                              const struct weir_attention_args *a)
{
    return a->dtype == WEIR_BF16 ? forward_launch<uint16_t>(stream, a)
                                 : forward_launch<float>(stream, a);
}

enum weir_status weir_attention_plain_backward(struct weir_stream *stream,
                                               const struct weir_attention_args *a,
                                               const float *delta)
{
    return a->dtype == WEIR_BF16 ? backward_launch<uint16_t>(stream, a, delta)
                                 : backward_launch<float>(stream, a, delta);
}
