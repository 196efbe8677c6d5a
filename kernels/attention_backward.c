/*
 * Attention backward (Dao et al. 2022, algorithm 4): weights again from lse. One (sequence, kv head)
 * is one thread's work, its query heads and tiles in order, so that dk and dv add up in one order.
 */
#include "kernels/attention.h"

#include <omp.h>

struct back {
    float *dk, *dv;                                     /* all keys x width */
    float *q, *k, *v, *d_out, *turned, *out, *dq;       /* TILE x width */
    float *weight, *d_weight, *weight_turned;           /* TILE x TILE */
    float *delta, *lse;                                 /* TILE */
};

static struct back back_cut(const struct weir_attention_args *a, float *at)
{
    uint64_t width = attention_padded(a->head_dim), tile = TILE * width, square = TILE * TILE;
    uint64_t keys = ((uint64_t)a->length + TILE - 1) / TILE * tile;
    float *t = at + 2 * keys, *s = t + 7 * tile;
    return (struct back){.dk = at, .dv = at + keys, .q = t, .k = t + tile, .v = t + 2 * tile,
                         .d_out = t + 3 * tile, .turned = t + 4 * tile, .out = t + 5 * tile,
                         .dq = t + 6 * tile, .weight = s, .d_weight = s + square,
                         .weight_turned = s + 2 * square, .delta = s + 3 * square,
                         .lse = s + 3 * square + TILE};
}

/* delta = sum over d of dout * out, in 16 lanes. */
WEIR_INLINE void deltas(const struct weir_attention_args *a, const struct attention_spot *s,
                        struct back *b, uint32_t first, uint32_t rows, uint32_t width)
{
    for (uint32_t r = 0; r < TILE; r++) {
        float lane[WEIR_LANES] = {0};
        for (uint32_t d = 0; d < width; d += WEIR_LANES)
            for (uint32_t l = 0; l < WEIR_LANES; l++)
                lane[l] += b->d_out[r * width + d + l] * b->out[r * width + d + l];
        b->delta[r] = weir_lanes_sum(lane);
        b->lse[r] = r < rows ? a->lse[s->lse + (first + r) * s->lse_stride] : 0;
    }
}

/* One tile of queries against one tile of keys. */
WEIR_INLINE void pair(const struct weir_attention_args *a, const struct attention_spot *s,
                      struct back *b, uint32_t first, uint32_t rows, uint32_t key, int bf16)
{
    uint32_t width = attention_padded(a->head_dim), keys = attention_rows(a->length, key);
    attention_tile(b->k, a->k, bf16, s->k + key * s->k_stride, s->k_stride, a->head_dim, keys);
    attention_tile(b->v, a->v, bf16, s->k + key * s->k_stride, s->k_stride, a->head_dim, keys);
    memset(b->weight, 0, TILE * TILE * sizeof *b->weight);
    memset(b->d_weight, 0, TILE * TILE * sizeof *b->d_weight);
    attention_turn(b->turned, b->k, TILE, width);
    attention_product(b->weight, b->q, b->turned, width, TILE);
    attention_turn(b->turned, b->v, TILE, width);
    attention_product(b->d_weight, b->d_out, b->turned, width, TILE);
    for (uint32_t r = 0; r < TILE; r++) {
        uint32_t past = first + r + 1 - key, visible = past < keys ? past : keys;
        visible = r < rows ? visible : 0;
        float *w = b->weight + r * TILE, *d = b->d_weight + r * TILE;
        for (uint32_t j = 0; j < TILE; j++) {
            float p = j < visible ? weir_exp(w[j] * a->scale - b->lse[r]) : 0;
            w[j] = p;
            d[j] = p * (d[j] - b->delta[r]) * a->scale;
        }
    }
    attention_turn(b->weight_turned, b->weight, TILE, TILE);
    attention_product(b->dv + (uint64_t)key * width, b->weight_turned, b->d_out, TILE, width);
    attention_turn(b->weight_turned, b->d_weight, TILE, TILE);
    attention_product(b->dk + (uint64_t)key * width, b->weight_turned, b->q, TILE, width);
    attention_product(b->dq, b->d_weight, b->k, TILE, width);
}

WEIR_INLINE void head_back(const struct weir_attention_args *a, const struct attention_spot *s,
                           struct back *b, int bf16)
{
    uint32_t width = attention_padded(a->head_dim);
    for (uint32_t first = 0; first < a->length; first += TILE) {
        uint32_t rows = attention_rows(a->length, first);
        uint64_t at = s->q + first * s->q_stride;
        attention_tile(b->q, a->q, bf16, at, s->q_stride, a->head_dim, rows);
        attention_tile(b->d_out, a->dout, bf16, at, s->q_stride, a->head_dim, rows);
        attention_tile(b->out, a->out, bf16, at, s->q_stride, a->head_dim, rows);
        deltas(a, s, b, first, rows, width);
        memset(b->dq, 0, TILE * width * sizeof *b->dq);
        for (uint32_t key = 0; key < first + rows; key += TILE)
            pair(a, s, b, first, rows, key, bf16);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t d = 0; d < a->head_dim; d++)
                weir_act_store(a->dq, bf16, at + r * s->q_stride + d, b->dq[r * width + d]);
    }
}

WEIR_INLINE void backward_any(const struct weir_attention_args *a, uint32_t sequence,
                              uint32_t kv_head, float *scratch, int bf16)
{
    struct back b = back_cut(a, scratch);
    uint32_t width = attention_padded(a->head_dim), group = a->heads / a->kv_heads;
    uint64_t keys = ((uint64_t)a->length + TILE - 1) / TILE * TILE;
    memset(b.dk, 0, 2 * keys * width * sizeof *b.dk);
    for (uint32_t h = 0; h < group; h++) {
        struct attention_spot s = attention_spot_of(a, sequence, kv_head * group + h);
        head_back(a, &s, &b, bf16);
    }
    struct attention_spot s = attention_spot_of(a, sequence, kv_head * group);
    for (uint32_t t = 0; t < a->length; t++)
        for (uint32_t d = 0; d < a->head_dim; d++) {
            weir_act_store(a->dk, bf16, s.k + t * s.k_stride + d, b.dk[(uint64_t)t * width + d]);
            weir_act_store(a->dv, bf16, s.k + t * s.k_stride + d, b.dv[(uint64_t)t * width + d]);
        }
}

#define FORM(name, bf16)                                                                           \
    WEIR_INLINE void name##_body(const struct weir_attention_args *a, uint32_t sequence,           \
                                 uint32_t kv_head, float *scratch)                                 \
    {                                                                                              \
        backward_any(a, sequence, kv_head, scratch, bf16);                                         \
    }                                                                                              \
    WEIR_EACH_ISA(static void, name,                                                               \
                  (const struct weir_attention_args *a, uint32_t sequence, uint32_t kv_head,       \
                   float *scratch),                                                                \
                  (a, sequence, kv_head, scratch))
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
            WEIR_BY_ISA(k->isa, backward_bf16, (&a, i / a.kv_heads, i % a.kv_heads, scratch));
        else
            WEIR_BY_ISA(k->isa, backward_fp32, (&a, i / a.kv_heads, i % a.kv_heads, scratch));
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
