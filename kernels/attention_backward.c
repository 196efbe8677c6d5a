/*
 * Attention backward (Dao et al. 2022, algorithm 4): the weights again from lse. One (sequence, kv
 * head) is one thread's work: its query heads and their tiles in order, so that dk and dv add up in
 * one order; dq of a tile of queries adds up over the tiles of keys in order.
 */
#include "kernels/attention.h"

#include <math.h>
#include <omp.h>

struct back {
    float *dk, *dv;                                            /* of all keys, a token a row */
    float *queries, *queries_turned, *dout, *dout_turned, *dq; /* tiles of queries */
    float *keys, *values;                                      /* tiles of keys */
    float *weights, *dscores;                                  /* TILE x TILE, turned */
    float *lse, *delta;                                        /* of each query */
};

static struct back back_cut(const struct weir_attention_args *a, float *at)
{
    size_t width = attention_width(a->head_dim), tile = TILE * width;
    size_t all = attention_padded(a->length) * width;
    float *tiles = at + 2 * all, *scores = tiles + 7 * tile, *rows = scores + 2 * TILE * TILE;
    return (struct back){.dk = at,
                         .dv = at + all,
                         .queries = tiles,
                         .queries_turned = tiles + tile,
                         .dout = tiles + 2 * tile,
                         .dout_turned = tiles + 3 * tile,
                         .dq = tiles + 4 * tile,
                         .keys = tiles + 5 * tile,
                         .values = tiles + 6 * tile,
                         .weights = scores,
                         .dscores = scores + TILE * TILE,
                         .lse = rows,
                         .delta = rows + TILE};
}

/* delta = sum over d of dout * out, in 16 lanes. */
WEIR_INLINE void deltas_sum(float *delta, const float *dout, const float *out, uint32_t width)
{
    for (uint32_t r = 0; r < TILE; r++) {
        const float *a = dout + (size_t)r * width, *b = out + (size_t)r * width;
        float lane[WEIR_LANES] = {0};
        for (uint32_t d = 0; d < width; d += WEIR_LANES) {
            WEIR_SIMD
            for (uint32_t l = 0; l < WEIR_LANES; l++)
                lane[l] += a[d + l] * b[d + l];
        }
        delta[r] = weir_lanes_sum(lane);
    }
}

/* weights: scores become exp(score - lse); dscores: from the gradient of the weights to that of
 * the products q k. */
WEIR_INLINE void scores_back(struct back *b, uint32_t keys, float scale, bool diagonal)
{
    const float *lse = b->lse, *delta = b->delta;
    for (uint32_t key = 0; key < keys; key++) {
        float *weight = attention_row(b->weights, key, TILE);
        float *d = attention_row(b->dscores, key, TILE);
        for (uint32_t r = 0; diagonal && r < key; r++)
            weight[r] = -INFINITY; /* its exp is 0 */
        WEIR_SIMD
        for (uint32_t r = 0; r < TILE; r++) {
            float p = weir_exp(weight[r] * scale - lse[r]);
            weight[r] = p;
            d[r] = p * (d[r] - delta[r]) * scale;
        }
    }
}

/* One query head of one (sequence, kv head). */
struct back_work {
    uint32_t sequence, head;
    bool fresh; /* the first of its kv head */
};

WEIR_INLINE void queries_load(const struct weir_attention_args *a, const struct back_work *w,
                              struct back *b, uint32_t first, uint32_t rows, int bf16)
{
    const struct attention_head q = attention_head_at(a, a->heads, w->sequence, w->head);
    const uint32_t head_dim = a->head_dim;
    attention_load(b->dout, a->dout, bf16, q, head_dim, first, rows);
    attention_load(b->queries, a->out, bf16, q, head_dim, first, rows);
    deltas_sum(b->delta, b->dout, b->queries, attention_width(head_dim));
    attention_load(b->queries, a->q, bf16, q, head_dim, first, rows);
    attention_turn(b->queries_turned, b->queries, head_dim);
    attention_turn(b->dout_turned, b->dout, head_dim);
    for (uint32_t r = 0; r < TILE; r++) {
        uint64_t token = (uint64_t)w->sequence * a->length + first + r;
        b->lse[r] = r < rows ? a->lse[token * a->heads + w->head] : 0;
    }
}

WEIR_INLINE void head_back(const struct weir_attention_args *a, enum weir_isa isa,
                           const struct back_work *w, struct back *b, int bf16)
{
    const uint32_t head_dim = a->head_dim, width = attention_width(head_dim);
    const struct attention_head q = attention_head_at(a, a->heads, w->sequence, w->head);
    const struct attention_head kv =
        attention_head_at(a, a->kv_heads, w->sequence, w->head / (a->heads / a->kv_heads));
    for (uint32_t first = 0; first < a->length; first += TILE) {
        uint32_t rows = attention_rows(a->length, first);
        queries_load(a, w, b, first, rows, bf16);
        for (uint32_t key = 0; key <= first; key += TILE) {
            uint32_t keys = attention_rows(a->length, key);
            uint64_t at = (uint64_t)key * width;
            bool fresh = w->fresh && key == first; /* the first tile that sees these keys */
            attention_load(b->keys, a->k, bf16, kv, head_dim, key, keys);
            attention_load(b->values, a->v, bf16, kv, head_dim, key, keys);
            attention_scores(isa, b->weights, b->keys, b->queries_turned, head_dim);
            attention_scores(isa, b->dscores, b->values, b->dout_turned, head_dim);
            scores_back(b, keys, a->scale, key == first);
            attention_to_keys(isa, b->dv + at, b->weights, b->dout, width, rows, fresh);
            attention_to_keys(isa, b->dk + at, b->dscores, b->queries, width, rows, fresh);
            attention_to_queries(isa, b->dq, b->dscores, b->keys, width, keys, key == 0);
        }
        attention_store(a->dq, bf16, q, head_dim, first, rows, b->dq);
    }
}

WEIR_INLINE void backward_any(const struct weir_attention_args *a, enum weir_isa isa,
                              uint32_t index, float *scratch, int bf16)
{
    struct back b = back_cut(a, scratch);
    uint32_t sequence = index / a->kv_heads, kv_head = index % a->kv_heads;
    uint32_t group = a->heads / a->kv_heads;
    for (uint32_t h = 0; h < group; h++) {
        struct back_work work = {sequence, kv_head * group + h, h == 0};
        head_back(a, isa, &work, &b, bf16);
    }
    const struct attention_head kv = attention_head_at(a, a->kv_heads, sequence, kv_head);
    attention_store(a->dk, bf16, kv, a->head_dim, 0, a->length, b.dk);
    attention_store(a->dv, bf16, kv, a->head_dim, 0, a->length, b.dv);
}

#define FORM(name, bf16)                                                                           \
    WEIR_INLINE void name##_body(const struct weir_attention_args *a, enum weir_isa isa,           \
                                 uint32_t index, float *scratch)                                   \
    {                                                                                              \
        backward_any(a, isa, index, scratch, bf16);                                                \
    }                                                                                              \
    WEIR_EACH_ISA(                                                                                 \
        static void, name,                                                                         \
        (const struct weir_attention_args *a, enum weir_isa isa, uint32_t index, float *scratch),  \
        (a, isa, index, scratch))
FORM(backward_bf16, 1)
FORM(backward_fp32, 0)

static void backward_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_attention_args a;
    memcpy(&a, call->args, sizeof a);
    uint64_t floats = weir_attention_thread_floats(&a);
#pragma omp parallel for num_threads(k->thread_count) schedule(dynamic, 1)
    for (uint32_t i = 0; i < a.sequences * a.kv_heads; i++) {
        float *scratch = (float *)a.scratch + (uint64_t)omp_get_thread_num() * floats;
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, backward_bf16, (&a, k->isa, i, scratch));
        else
            WEIR_BY_ISA(k->isa, backward_fp32, (&a, k->isa, i, scratch));
    }
}

enum weir_status weir_host_attention_backward(struct weir_kernels *kernels,
                                              struct weir_stream *stream,
                                              const struct weir_attention_args *a)
{
    const struct weir_host_kernels *k = (const struct weir_host_kernels *)kernels;
    struct weir_range ranges[WEIR_CALL_RANGES];
    size_t count = weir_attention_ranges(a, k->thread_count, ranges, true);
    return weir_host_queue(kernels, stream, backward_run, a, sizeof *a, ranges, count);
}
