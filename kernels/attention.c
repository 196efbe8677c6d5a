/*
 * Causal grouped-query attention forward: online softmax over tiles of keys (Dao et al. 2022,
 * algorithm 1). A tile of queries is one thread's work.
 */
#include "kernels/attention.h"

#include <math.h>
#include <omp.h>

uint64_t weir_attention_thread_floats(const struct weir_attention_args *a)
{
    uint64_t width = attention_padded(a->head_dim);
    uint64_t keys = ((uint64_t)a->length + TILE - 1) / TILE * TILE;
    /* backward: dk and dv of all keys, eight tiles of D, four of scores, one row of delta */
    return 2 * keys * width + 8 * TILE * width + 4 * TILE * TILE + 4 * TILE;
}

uint64_t weir_host_attention_scratch_bytes(const struct weir_attention_args *shape,
                                           int thread_count)
{
    return weir_attention_thread_floats(shape) * sizeof(float) *
           (uint64_t)(thread_count > 0 ? thread_count : 1);
}

size_t weir_attention_ranges(const struct weir_attention_args *a, int thread_count,
                             struct weir_range *r, bool backward)
{
    uint64_t n = (uint64_t)a->sequences * a->length;
    uint64_t q = weir_act_bytes(a->dtype, n * a->heads * a->head_dim);
    uint64_t k = weir_act_bytes(a->dtype, n * a->kv_heads * a->head_dim);
    size_t c = 0;
    r[c++] = (struct weir_range){a->q, q, false};
    r[c++] = (struct weir_range){a->k, k, false};
    r[c++] = (struct weir_range){a->v, k, false};
    r[c++] = (struct weir_range){a->out, q, !backward};
    r[c++] = (struct weir_range){a->lse, n * a->heads * sizeof(float), !backward};
    r[c++] = (struct weir_range){a->scratch, weir_host_attention_scratch_bytes(a, thread_count),
                                 true};
    if (backward) {
        r[c++] = (struct weir_range){a->dout, q, false};
        r[c++] = (struct weir_range){a->dq, q, true};
        r[c++] = (struct weir_range){a->dk, k, true};
        r[c++] = (struct weir_range){a->dv, k, true};
    }
    return c;
}

struct forward {
    float *q, *k, *k_turned, *v, *out; /* TILE x width */
    float *score;                      /* TILE x TILE */
    float *max, *sum;                  /* TILE */
};

static struct forward forward_cut(const struct weir_attention_args *a, float *at)
{
    uint64_t tile = TILE * attention_padded(a->head_dim);
    return (struct forward){.q = at, .k = at + tile, .k_turned = at + 2 * tile, .v = at + 3 * tile,
                            .out = at + 4 * tile, .score = at + 5 * tile,
                            .max = at + 5 * tile + TILE * TILE,
                            .sum = at + 5 * tile + TILE * TILE + TILE};
}

WEIR_INLINE float row_sum(const float *x)
{
    float lane[WEIR_LANES] = {0};
    for (uint32_t i = 0; i < TILE; i += WEIR_LANES)
        for (uint32_t l = 0; l < WEIR_LANES; l++)
            lane[l] += x[i + l];
    return weir_lanes_sum(lane);
}

/* Scores of one row become weights; what was summed before shrinks by the rise of the maximum. */
WEIR_INLINE void row_soften(struct forward *f, uint32_t row, uint32_t visible, float scale,
                            uint32_t width)
{
    float *score = f->score + row * TILE, most = f->max[row];
    for (uint32_t j = 0; j < TILE; j++)
        score[j] = j < visible ? score[j] * scale : -INFINITY;
    for (uint32_t j = 0; j < TILE; j++)
        most = score[j] > most ? score[j] : most;
    float shrink = weir_exp(f->max[row] - most);
    for (uint32_t j = 0; j < TILE; j++)
        score[j] = weir_exp(score[j] - most);
    f->sum[row] = f->sum[row] * shrink + row_sum(score);
    f->max[row] = most;
    for (uint32_t d = 0; d < width; d++)
        f->out[row * width + d] *= shrink;
}

WEIR_INLINE void forward_any(const struct weir_attention_args *a, uint32_t sequence, uint32_t head,
                             uint32_t first, float *scratch, int bf16)
{
    struct attention_spot s = attention_spot_of(a, sequence, head);
    struct forward f = forward_cut(a, scratch);
    uint32_t width = attention_padded(a->head_dim), rows = attention_rows(a->length, first);
    attention_tile(f.q, a->q, bf16, s.q + first * s.q_stride, s.q_stride, a->head_dim, rows);
    memset(f.out, 0, TILE * width * sizeof *f.out);
    for (uint32_t r = 0; r < TILE; r++) {
        f.max[r] = -INFINITY;
        f.sum[r] = 0;
    }
    for (uint32_t key = 0; key < first + rows; key += TILE) {
        uint32_t keys = attention_rows(a->length, key);
        attention_tile(f.k, a->k, bf16, s.k + key * s.k_stride, s.k_stride, a->head_dim, keys);
        attention_tile(f.v, a->v, bf16, s.k + key * s.k_stride, s.k_stride, a->head_dim, keys);
        attention_turn(f.k_turned, f.k, TILE, width);
        memset(f.score, 0, TILE * TILE * sizeof *f.score);
        attention_product(f.score, f.q, f.k_turned, width, TILE);
        for (uint32_t r = 0; r < TILE; r++) {
            uint32_t past = first + r + 1 - key, visible = past < keys ? past : keys;
            row_soften(&f, r, visible, a->scale, width);
        }
        attention_product(f.out, f.score, f.v, TILE, width);
    }
    for (uint32_t r = 0; r < rows; r++) {
        float inverse = 1.0f / f.sum[r];
        for (uint32_t d = 0; d < a->head_dim; d++)
            weir_act_store(a->out, bf16, s.q + (first + r) * s.q_stride + d,
                           f.out[r * width + d] * inverse);
        a->lse[s.lse + (first + r) * s.lse_stride] = f.max[r] + logf(f.sum[r]);
    }
}

#define FORM(name, bf16)                                                                           \
    WEIR_INLINE void name##_body(const struct weir_attention_args *a, uint32_t sequence,           \
                                 uint32_t head, uint32_t first, float *scratch)                    \
    {                                                                                              \
        forward_any(a, sequence, head, first, scratch, bf16);                                      \
    }                                                                                              \
    WEIR_EACH_ISA(static void, name,                                                               \
                  (const struct weir_attention_args *a, uint32_t sequence, uint32_t head,          \
                   uint32_t first, float *scratch),                                                \
                  (a, sequence, head, first, scratch))
FORM(forward_bf16, 1)
FORM(forward_fp32, 0)

static void forward_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_attention_args a;
    memcpy(&a, call->args, sizeof a);
    uint32_t tiles = (a.length + TILE - 1) / TILE, heads = a.sequences * a.heads;
    uint64_t floats = weir_attention_thread_floats(&a);
    /* Later tiles see more keys: dealt one by one, so that the team ends together. */
#pragma omp parallel for num_threads(k->thread_count) schedule(dynamic, 1)
    for (uint32_t i = 0; i < heads * tiles; i++) {
        uint32_t tile = tiles - 1 - i / heads, spot = i % heads;
        float *scratch = (float *)a.scratch + (uint64_t)omp_get_thread_num() * floats;
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, forward_bf16,
                        (&a, spot / a.heads, spot % a.heads, tile * TILE, scratch));
        else
            WEIR_BY_ISA(k->isa, forward_fp32,
                        (&a, spot / a.heads, spot % a.heads, tile * TILE, scratch));
    }
}

enum weir_status weir_host_attention_forward(struct weir_kernels *kernels,
                                             struct weir_stream *stream,
                                             const struct weir_attention_args *a)
{
    const struct weir_host_kernels *k = (const struct weir_host_kernels *)kernels;
    struct weir_range ranges[WEIR_CALL_RANGES];
    size_t count = weir_attention_ranges(a, k->thread_count, ranges, false);
    return weir_host_queue(kernels, stream, forward_run, a, sizeof *a, ranges, count);
}
