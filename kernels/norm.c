/*
 * RMSNorm (Zhang & Sennrich 2019): y = x * rstd * w. With g = dy * w and
 * c = sum(g * x) * rstd^3 / H: dx = residual_d + rstd * g - c * x, dw = sum over rows of dy * x *
 * rstd.
 */
#include "kernels/host.h"
#include "kernels/rows.h"

#define COLUMNS 64u /* of dw that one thread sums over all rows at a time */

WEIR_INLINE void forward_any(const struct weir_norm_args *a, uint64_t row, int bf16)
{
    const void *x = weir_act_at(a->x, bf16 ? WEIR_BF16 : WEIR_FP32, row * a->width);
    void *y = weir_act_at_mutable(a->y, bf16 ? WEIR_BF16 : WEIR_FP32, row * a->width);
    float lane[WEIR_LANES] = {0};
    uint32_t whole = a->width / WEIR_LANES * WEIR_LANES;
    for (uint32_t i = 0; i < whole; i += WEIR_LANES) {
        WEIR_SIMD
        for (uint32_t l = 0; l < WEIR_LANES; l++) {
            float v = weir_act_load(x, bf16, i + l);
            lane[l] += v * v;
        }
    }
    for (uint32_t i = whole; i < a->width; i++) {
        float v = weir_act_load(x, bf16, i);
        lane[i - whole] += v * v;
    }
    float rstd = 1.0f / __builtin_sqrtf(weir_lanes_sum(lane) / (float)a->width + a->eps);
    a->rstd[row] = rstd;
    WEIR_SIMD
    for (uint32_t i = 0; i < a->width; i++)
        weir_act_store(y, bf16, i,
                       weir_act_load(x, bf16, i) * rstd * weir_act_load(a->weight, bf16, i));
}

WEIR_INLINE void forward_bf16_body(const struct weir_norm_args *a, uint64_t row)
{
    forward_any(a, row, 1);
}
WEIR_EACH_ISA(static void, forward_bf16, (const struct weir_norm_args *a, uint64_t row), (a, row))
WEIR_INLINE void forward_fp32_body(const struct weir_norm_args *a, uint64_t row)
{
    forward_any(a, row, 0);
}
WEIR_EACH_ISA(static void, forward_fp32, (const struct weir_norm_args *a, uint64_t row), (a, row))

static void forward_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_norm_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t row = 0; row < a.rows; row++)
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, forward_bf16, (&a, row));
        else
            WEIR_BY_ISA(k->isa, forward_fp32, (&a, row));
}

enum weir_status weir_host_norm_forward(struct weir_kernels *kernels, struct weir_stream *stream,
                                        const struct weir_norm_args *a)
{
    uint64_t bytes = weir_act_bytes(a->dtype, (uint64_t)a->rows * a->width);
    struct weir_range ranges[] = {{a->x, bytes, false},
                                  {a->weight, weir_act_bytes(a->dtype, a->width), false},
                                  {a->y, bytes, true},
                                  {a->rstd, a->rows * sizeof(float), true}};
    return weir_host_queue(kernels, stream, forward_run, a, sizeof *a, ranges, 4);
}

/* dw of columns [first, end), all rows in order; before dx, which may overwrite dy. */
WEIR_INLINE void weight_any(const struct weir_norm_args *a, uint32_t first, uint32_t count,
                            int bf16)
{
    float sum[COLUMNS];
    for (uint32_t c = 0; c < count; c++)
        sum[c] = a->fresh ? 0 : a->dweight[first + c];
    for (uint32_t row = 0; row < a->rows; row++) {
        uint64_t at = (uint64_t)row * a->width + first;
        WEIR_SIMD
        for (uint32_t c = 0; c < count; c++)
            sum[c] += a->dy[at + c] * (weir_act_load(a->x, bf16, at + c) * a->rstd[row]);
    }
    for (uint32_t c = 0; c < count; c++)
        a->dweight[first + c] = sum[c];
}
WEIR_INLINE void weight_bf16_body(const struct weir_norm_args *a, uint32_t first, uint32_t count)
{
    weight_any(a, first, count, 1);
}
WEIR_EACH_ISA(static void, weight_bf16,
              (const struct weir_norm_args *a, uint32_t first, uint32_t count), (a, first, count))
WEIR_INLINE void weight_fp32_body(const struct weir_norm_args *a, uint32_t first, uint32_t count)
{
    weight_any(a, first, count, 0);
}
WEIR_EACH_ISA(static void, weight_fp32,
              (const struct weir_norm_args *a, uint32_t first, uint32_t count), (a, first, count))

WEIR_INLINE void input_any(const struct weir_norm_args *a, uint64_t row, int bf16)
{
    uint64_t at = row * a->width;
    float lane[WEIR_LANES] = {0};
    uint32_t whole = a->width / WEIR_LANES * WEIR_LANES;
    for (uint32_t i = 0; i < whole; i += WEIR_LANES) {
        WEIR_SIMD
        for (uint32_t l = 0; l < WEIR_LANES; l++)
            lane[l] += a->dy[at + i + l] * weir_act_load(a->weight, bf16, i + l) *
                       weir_act_load(a->x, bf16, at + i + l);
    }
    for (uint32_t i = whole; i < a->width; i++)
        lane[i - whole] +=
            a->dy[at + i] * weir_act_load(a->weight, bf16, i) * weir_act_load(a->x, bf16, at + i);
    float rstd = a->rstd[row];
    float c = weir_lanes_sum(lane) * rstd * rstd * rstd / (float)a->width;
    WEIR_SIMD
    for (uint32_t i = 0; i < a->width; i++) {
        float d = rstd * (a->dy[at + i] * weir_act_load(a->weight, bf16, i)) -
                  c * weir_act_load(a->x, bf16, at + i);
        a->dx[at + i] = a->residual_d ? a->residual_d[at + i] + d : d;
    }
}
WEIR_INLINE void input_bf16_body(const struct weir_norm_args *a, uint64_t row)
{
    input_any(a, row, 1);
}
WEIR_EACH_ISA(static void, input_bf16, (const struct weir_norm_args *a, uint64_t row), (a, row))
WEIR_INLINE void input_fp32_body(const struct weir_norm_args *a, uint64_t row)
{
    input_any(a, row, 0);
}
WEIR_EACH_ISA(static void, input_fp32, (const struct weir_norm_args *a, uint64_t row), (a, row))

static void backward_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_norm_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t first = 0; first < a.width; first += COLUMNS) {
        uint32_t count = a.width - first < COLUMNS ? a.width - first : COLUMNS;
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, weight_bf16, (&a, first, count));
        else
            WEIR_BY_ISA(k->isa, weight_fp32, (&a, first, count));
    }
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t row = 0; row < a.rows; row++)
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, input_bf16, (&a, row));
        else
            WEIR_BY_ISA(k->isa, input_fp32, (&a, row));
}

enum weir_status weir_host_norm_backward(struct weir_kernels *kernels, struct weir_stream *stream,
                                         const struct weir_norm_args *a)
{
    uint64_t count = (uint64_t)a->rows * a->width;
    struct weir_range ranges[] = {{a->x, weir_act_bytes(a->dtype, count), false},
                                  {a->weight, weir_act_bytes(a->dtype, a->width), false},
                                  {a->rstd, a->rows * sizeof(float), false},
                                  {a->dy, count * sizeof(float), false},
                                  {a->dx, count * sizeof(float), true},
                                  {a->dweight, a->width * sizeof(float), true},
                                  {a->residual_d, count * sizeof(float), false}};
    return weir_host_queue(kernels, stream, backward_run, a, sizeof *a, ranges,
                           a->residual_d ? 7 : 6);
}
