/*
 * Cross-entropy on one tile of the vocabulary at a time. Per token: the running maximum m and sum s
 * of exp(l - m) over the tiles in order (Milakov & Gimelshein 2018); the loss of
 * a token is log(s) + m - target.
 */
#include "kernels/expf.h"
#include "kernels/host.h"
#include "kernels/rows.h"

#include <math.h>

#define MASKED (-100)

WEIR_INLINE float tile_max(const float *l, uint32_t count)
{
    float lane[WEIR_LANES];
    for (uint32_t i = 0; i < WEIR_LANES; i++)
        lane[i] = -INFINITY;
    uint32_t whole = count / WEIR_LANES * WEIR_LANES;
    for (uint32_t i = 0; i < whole; i += WEIR_LANES) {
        WEIR_SIMD
        for (uint32_t j = 0; j < WEIR_LANES; j++)
            lane[j] = l[i + j] > lane[j] ? l[i + j] : lane[j];
    }
    for (uint32_t i = whole; i < count; i++)
        lane[i - whole] = l[i] > lane[i - whole] ? l[i] : lane[i - whole];
    float most = lane[0];
    for (uint32_t j = 1; j < WEIR_LANES; j++)
        most = lane[j] > most ? lane[j] : most;
    return most;
}

WEIR_INLINE float tile_sum(const float *l, uint32_t count, float max)
{
    float lane[WEIR_LANES] = {0};
    uint32_t whole = count / WEIR_LANES * WEIR_LANES;
    for (uint32_t i = 0; i < whole; i += WEIR_LANES) {
        WEIR_SIMD
        for (uint32_t j = 0; j < WEIR_LANES; j++)
            lane[j] += weir_exp(l[i + j] - max);
    }
    for (uint32_t i = whole; i < count; i++)
        lane[i - whole] += weir_exp(l[i] - max);
    return weir_lanes_sum(lane);
}

WEIR_INLINE void stats_body(const struct weir_head_args *a, uint32_t row)
{
    const float *l = a->logits + (uint64_t)row * a->tile_rows;
    float before = a->first ? -INFINITY : a->max[row];
    float here = tile_max(l, a->tile_rows), max = here > before ? here : before;
    float sum = tile_sum(l, a->tile_rows, max);
    a->sum[row] = a->first ? sum : a->sum[row] * weir_exp(before - max) + sum;
    a->max[row] = max;
    int64_t target = (int64_t)a->targets[row] - a->first_vocab;
    if (target >= 0 && target < a->tile_rows)
        a->target_logit[row] = l[target];
    else if (a->first)
        a->target_logit[row] = 0;
}
WEIR_EACH_ISA(static void, stats, (const struct weir_head_args *a, uint32_t row), (a, row))

static void stats_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_head_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t row = 0; row < a.rows; row++)
        WEIR_BY_ISA(k->isa, stats, (&a, row));
}

static size_t stats_ranges(const struct weir_head_args *a, struct weir_range *r, bool written)
{
    r[0] = (struct weir_range){a->targets, a->rows * sizeof *a->targets, false};
    r[1] = (struct weir_range){a->max, a->rows * sizeof *a->max, written};
    r[2] = (struct weir_range){a->sum, a->rows * sizeof *a->sum, written};
    r[3] = (struct weir_range){a->target_logit, a->rows * sizeof *a->target_logit, written};
    return 4;
}

enum weir_status weir_host_head_stats(struct weir_kernels *kernels, struct weir_stream *stream,
                                      const struct weir_head_args *a)
{
    struct weir_range ranges[5];
    size_t n = stats_ranges(a, ranges, true);
    ranges[n++] = (struct weir_range){a->logits, (uint64_t)a->rows * a->tile_rows * 4, false};
    return weir_host_queue(kernels, stream, stats_run, a, sizeof *a, ranges, n);
}

static void loss_run(void *argument)
{
    struct weir_host_argument *call = argument;
    struct weir_head_args a;
    memcpy(&a, call->args, sizeof a);
    double loss = 0;
    for (uint32_t row = 0; row < a.rows; row++)
        if (a.targets[row] != MASKED)
            loss += weir_ln(a.sum[row]) + ((double)a.max[row] - (double)a.target_logit[row]);
    *a.loss = loss;
}

enum weir_status weir_host_head_loss(struct weir_kernels *kernels, struct weir_stream *stream,
                                     const struct weir_head_args *a)
{
    struct weir_range ranges[5];
    size_t n = stats_ranges(a, ranges, false);
    ranges[n++] = (struct weir_range){a->loss, sizeof *a->loss, true};
    return weir_host_queue(kernels, stream, loss_run, a, sizeof *a, ranges, n);
}

WEIR_INLINE void grad_any(const struct weir_head_args *a, uint32_t row, int bf16)
{
    uint64_t at = (uint64_t)row * a->tile_rows;
    void *d = weir_act_at_mutable(a->dlogits, a->dtype, at);
    if (a->targets[row] == MASKED) {
        memset(d, 0, weir_act_bytes(a->dtype, a->tile_rows));
        return;
    }
    const float *l = a->logits + at, max = a->max[row], each = a->scale / a->sum[row];
    WEIR_SIMD
    for (uint32_t i = 0; i < a->tile_rows; i++)
        weir_act_store(d, bf16, i, weir_exp(l[i] - max) * each);
    int64_t target = (int64_t)a->targets[row] - a->first_vocab;
    if (target >= 0 && target < a->tile_rows)
        weir_act_store(d, bf16, (uint64_t)target, weir_exp(l[target] - max) * each - a->scale);
}
WEIR_INLINE void grad_bf16_body(const struct weir_head_args *a, uint32_t row)
{
    grad_any(a, row, 1);
}
WEIR_EACH_ISA(static void, grad_bf16, (const struct weir_head_args *a, uint32_t row), (a, row))
WEIR_INLINE void grad_fp32_body(const struct weir_head_args *a, uint32_t row)
{
    grad_any(a, row, 0);
}
WEIR_EACH_ISA(static void, grad_fp32, (const struct weir_head_args *a, uint32_t row), (a, row))

static void grad_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_head_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t row = 0; row < a.rows; row++)
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, grad_bf16, (&a, row));
        else
            WEIR_BY_ISA(k->isa, grad_fp32, (&a, row));
}

enum weir_status weir_host_head_grad(struct weir_kernels *kernels, struct weir_stream *stream,
                                     const struct weir_head_args *a)
{
    struct weir_range ranges[6];
    size_t n = stats_ranges(a, ranges, false);
    uint64_t count = (uint64_t)a->rows * a->tile_rows;
    ranges[n++] = (struct weir_range){a->logits, count * sizeof(float), false};
    ranges[n++] = (struct weir_range){a->dlogits, weir_act_bytes(a->dtype, count), true};
    return weir_host_queue(kernels, stream, grad_run, a, sizeof *a, ranges, n);
}
