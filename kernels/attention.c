/*
 * Causal grouped-query attention forward: online softmax over tiles of keys (Dao et al. 2022,
 * algorithm 1). A tile of queries is one thread's work.
 */
#include "kernels/attention.h"

#include <math.h>
#include <omp.h>

uint64_t weir_attention_thread_floats(const struct weir_attention_args *a)
{
    uint64_t width = attention_width(a->head_dim);
    /* backward, the larger: dk and dv of all keys, eight tiles, two of scores, lse and delta */
    return 2 * attention_padded(a->length) * width + 8 * TILE * width + 2 * TILE * TILE + 2 * TILE;
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
    uint64_t scratch = weir_host_attention_scratch_bytes(a, thread_count);
    size_t c = 0;
    r[c++] = (struct weir_range){a->q, q, false};
    r[c++] = (struct weir_range){a->k, k, false};
    r[c++] = (struct weir_range){a->v, k, false};
    r[c++] = (struct weir_range){a->out, q, !backward};
    r[c++] = (struct weir_range){a->lse, n * a->heads * sizeof(float), !backward};
    r[c++] = (struct weir_range){a->scratch, scratch, true};
    if (backward) {
        r[c++] = (struct weir_range){a->dout, q, false};
        r[c++] = (struct weir_range){a->dq, q, true};
        r[c++] = (struct weir_range){a->dk, k, true};
        r[c++] = (struct weir_range){a->dv, k, true};
    }
    return c;
}

struct forward {
    float *queries, *keys, *values, *out; /* tiles, queries turned */
    float *scores;                        /* TILE x TILE, turned */
    float *max, *sum, *shrink;            /* of each query */
};

static struct forward forward_cut(const struct weir_attention_args *a, float *at)
{
    size_t tile = (size_t)TILE * attention_width(a->head_dim);
    float *scores = at + 4 * tile, *rows = scores + TILE * TILE;
    return (struct forward){.queries = at,
                            .keys = at + tile,
                            .values = at + 2 * tile,
                            .out = at + 3 * tile,
                            .scores = scores,
                            .max = rows,
                            .sum = rows + TILE,
                            .shrink = rows + 2 * TILE};
}

/* Scores become weights exp(score - max); what was summed before shrinks by the maximum's rise.
 * The sum over the keys of a query goes in their order. */
WEIR_INLINE void scores_soften(struct forward *f, uint32_t keys, float scale, bool diagonal)
{
    float most[TILE], sum[TILE] = {0};
    memcpy(most, f->max, sizeof most);
    for (uint32_t key = 0; key < keys; key++) {
        float *score = attention_row(f->scores, key, TILE);
        for (uint32_t r = 0; diagonal && r < key; r++)
            score[r] = -INFINITY;
        WEIR_SIMD
        for (uint32_t r = 0; r < TILE; r++) {
            float s = score[r] * scale;
            most[r] = s > most[r] ? s : most[r];
            score[r] = s;
        }
    }
    for (uint32_t key = 0; key < keys; key++) {
        float *score = attention_row(f->scores, key, TILE);
        WEIR_SIMD
        for (uint32_t r = 0; r < TILE; r++) {
            float p = weir_exp(score[r] - most[r]);
            sum[r] += p;
            score[r] = p;
        }
    }
    WEIR_SIMD
    for (uint32_t r = 0; r < TILE; r++) {
        f->shrink[r] = weir_exp(f->max[r] - most[r]);
        f->sum[r] = f->sum[r] * f->shrink[r] + sum[r];
        f->max[r] = most[r];
    }
}

WEIR_INLINE void rows_scale(float *out, const float *factor, uint32_t width)
{
    for (uint32_t r = 0; r < TILE; r++) {
        float *row = attention_row(out, r, width), times = factor[r];
        WEIR_SIMD
        for (uint32_t d = 0; d < width; d++)
            row[d] *= times;
    }
}

/* The tile of queries from `first` on, of query head `head`. */
struct forward_work {
    uint32_t sequence, head, first;
    float *scratch;
};

WEIR_INLINE void forward_any(const struct weir_attention_args *a, enum weir_isa isa,
                             const struct forward_work *w, int bf16)
{
    const uint32_t head_dim = a->head_dim, width = attention_width(head_dim);
    const uint32_t rows = attention_rows(a->length, w->first);
    const struct attention_head q = attention_head_at(a, a->heads, w->sequence, w->head);
    const struct attention_head kv =
        attention_head_at(a, a->kv_heads, w->sequence, w->head / (a->heads / a->kv_heads));
    struct forward f = forward_cut(a, w->scratch);
    attention_load(f.out, a->q, bf16, q, head_dim, w->first, rows);
    attention_turn(f.queries, f.out, head_dim);
    for (uint32_t r = 0; r < TILE; r++) {
        f.max[r] = -INFINITY;
        f.sum[r] = 0;
    }
    for (uint32_t key = 0; key <= w->first; key += TILE) {
        uint32_t keys = attention_rows(a->length, key);
        attention_load(f.keys, a->k, bf16, kv, head_dim, key, keys);
        attention_load(f.values, a->v, bf16, kv, head_dim, key, keys);
        attention_scores(isa, f.scores, f.keys, f.queries, head_dim);
        scores_soften(&f, keys, a->scale, key == w->first);
        if (key > 0)
            rows_scale(f.out, f.shrink, width);
        attention_to_queries(isa, f.out, f.scores, f.values, width, keys, key == 0);
    }
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t token = (uint64_t)w->sequence * a->length + w->first + r;
        a->lse[token * a->heads + w->head] = f.max[r] + (float)weir_ln(f.sum[r]);
        f.shrink[r] = 1.0f / f.sum[r];
    }
    rows_scale(f.out, f.shrink, width);
    attention_store(a->out, bf16, q, head_dim, w->first, rows, f.out);
}

#define FORM(name, bf16)                                                                           \
    WEIR_INLINE void name##_body(const struct weir_attention_args *a, enum weir_isa isa,           \
                                 const struct forward_work *work)                                  \
    {                                                                                              \
        forward_any(a, isa, work, bf16);                                                           \
    }                                                                                              \
    WEIR_EACH_ISA(                                                                                 \
        static void, name,                                                                         \
        (const struct weir_attention_args *a, enum weir_isa isa, const struct forward_work *work), \
        (a, isa, work))
FORM(forward_bf16, 1)
FORM(forward_fp32, 0)

static void forward_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_attention_args a;
    memcpy(&a, call->args, sizeof a);
    uint32_t tiles = (uint32_t)(attention_padded(a.length) / TILE), heads = a.sequences * a.heads;
    uint64_t floats = weir_attention_thread_floats(&a);
    /* The latest tiles see the most keys: they come first, so that the team ends together. */
#pragma omp parallel for num_threads(k->thread_count) schedule(dynamic, 1)
    for (uint32_t i = 0; i < heads * tiles; i++) {
        struct forward_work work = {.sequence = i % heads / a.heads,
                                    .head = i % a.heads,
                                    .first = (tiles - 1 - i / heads) * TILE,
                                    .scratch = (float *)a.scratch +
                                               (uint64_t)omp_get_thread_num() * floats};
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, forward_bf16, (&a, k->isa, &work));
        else
            WEIR_BY_ISA(k->isa, forward_fp32, (&a, k->isa, &work));
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
