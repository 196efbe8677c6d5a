/*
 * A complete gradient window: round it to the dtype in which it waits, and sum squares per segment.
 * And what a caller's own change of the weight does to the state: residuals become 0.
 */
#include "kernels/host.h"
#include "kernels/simd.h"
#include "kernels/window.h"

#define CHUNK WEIR_ALIGN_ELEMENTS
#define LANES WEIR_NORM_LANES

/* In fp64 lane[i mod 32] += x[i]^2, then the tree, then *sum. */
WEIR_INLINE void squares_body(const float *x, uint32_t count, double *sum)
{
    double lane[LANES] = {0};
    uint32_t whole = count - count % LANES;
    for (uint32_t i = 0; i < whole; i += LANES) {
        WEIR_SIMD
        for (uint32_t l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l] * (double)x[i + l];
    }
    for (uint32_t i = whole; i < count; i++)
        lane[i - whole] += (double)x[i] * (double)x[i];
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    *sum += lane[0];
}
WEIR_EACH_ISA(static void, squares, (const float *x, uint32_t count, double *sum), (x, count, sum))

/* out[i] = x[i] in bf16, and x[i] becomes the rounded value. */
WEIR_INLINE void round_body(float *restrict x, uint32_t count, uint16_t *restrict out)
{
    WEIR_SIMD
    for (uint32_t i = 0; i < count; i++) {
        out[i] = weir_narrow(x[i]);
        x[i] = weir_widen(out[i]);
    }
}
WEIR_EACH_ISA(static void, round, (float *x, uint32_t count, uint16_t *out), (x, count, out))

/* Elements [0, count) of a segment. In bf16 each chunk is rounded into a small buffer and then laid
 * at the segment's start, behind what has been read. */
static double segment_reduce(enum weir_isa isa, enum weir_dtype dtype, float *x, uint32_t count)
{
    double sum = 0;
    uint16_t rounded[CHUNK];
    for (uint32_t at = 0; at < count; at += CHUNK) {
        uint32_t n = count - at < CHUNK ? count - at : CHUNK;
        if (dtype == WEIR_BF16)
            WEIR_BY_ISA(isa, round, (x + at, n, rounded));
        WEIR_BY_ISA(isa, squares, (x + at, n, &sum));
        if (dtype == WEIR_BF16)
            memcpy((char *)x + at * sizeof *rounded, rounded, n * sizeof *rounded);
    }
    return sum;
}

static void reduce_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    const struct weir_reduce_args *a = (const void *)call->args;
    uint64_t bytes = weir_dtype_bytes(a->grad_dtype);
#pragma omp parallel for num_threads(k->thread_count) schedule(static) if (k->thread_count > 1)
    for (uint32_t s = 0; s < a->segment_count; s++) {
        const struct weir_window_segment *segment = &a->segments[s];
        float *x = a->grad + segment->offset;
        a->partials[s] = segment_reduce(k->isa, a->grad_dtype, x, segment->count);
        memset((char *)x + segment->count * bytes, 0,
               (segment->padded_count - segment->count) * bytes);
    }
    if (a->grad_dtype == WEIR_FP32)
        return;
    /* Ascending: a segment comes to lie on segments that have already moved. */
    for (uint32_t s = 0; s < a->segment_count; s++)
        memmove((char *)a->grad + a->segments[s].offset * bytes, a->grad + a->segments[s].offset,
                a->segments[s].padded_count * bytes);
}

enum weir_status weir_host_reduce(struct weir_kernels *kernels, struct weir_stream *stream,
                                  const struct weir_reduce_args *a)
{
    uint64_t elements = weir_window_elements(a->segments, a->segment_count);
    struct weir_range ranges[] = {
        {a->grad, elements * sizeof *a->grad, true},
        {a->partials, a->segment_count * sizeof *a->partials, true},
    };
    return weir_host_queue(kernels, stream, reduce_run, a, sizeof *a, ranges, 2);
}

static void clear_residual_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_clear_residual_args *a = (const void *)call->args;
    for (uint32_t s = 0; s < a->segment_count; s++)
        memset((char *)a->state + a->segments[s].offset * weir_state_bytes(a->dtype), 0,
               a->segments[s].padded_count * weir_residual_bytes(a->dtype));
}

enum weir_status weir_host_clear_residual(struct weir_kernels *kernels, struct weir_stream *stream,
                                          const struct weir_clear_residual_args *a)
{
    uint64_t elements = weir_window_elements(a->segments, a->segment_count);
    struct weir_range range = {a->state, elements * weir_state_bytes(a->dtype), true};
    return weir_host_queue(kernels, stream, clear_residual_run, a, sizeof *a, &range, 1);
}
