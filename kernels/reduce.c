/*
 * A complete gradient window: round it to the dtype in which it waits, and sum squares per segment.
 */
#include "kernels/host.h"
#include "kernels/simd.h"

/* fp64 sum of squares over 16 lanes (lane = index mod 16) and the tree 8, 4, 2, 1. */
WEIR_INLINE void squares_body(const float *x, uint32_t count, double *out)
{
    double lane[WEIR_LANES] = {0};
    uint32_t whole = count / WEIR_LANES * WEIR_LANES;
    for (uint32_t i = 0; i < whole; i += WEIR_LANES)
        for (uint32_t l = 0; l < WEIR_LANES; l++)
            lane[l] += (double)x[i + l] * (double)x[i + l];
    for (uint32_t i = whole; i < count; i++)
        lane[i - whole] += (double)x[i] * (double)x[i];
    for (uint32_t half = WEIR_LANES / 2; half > 0; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    *out = lane[0];
}
WEIR_EACH_ISA(static void, squares, (const float *x, uint32_t count, double *out), (x, count, out))

WEIR_INLINE void round_body(float *x, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        x[i] = weir_widen(weir_narrow(x[i]));
}
WEIR_EACH_ISA(static void, round, (float *x, uint32_t count), (x, count))

/* The rounded floats' high halves, packed towards the window's start: what is written never passes
 * what is still to be read, so one thread in ascending order needs no other memory. */
static void pack(float *grad, uint64_t count)
{
    uint16_t *out = (uint16_t *)(void *)grad;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, grad + i, sizeof bits);
        uint16_t high = (uint16_t)(bits >> 16);
        memcpy(out + i, &high, sizeof high);
    }
}

static uint64_t padded_elements(const struct weir_window_segment *segments, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t s = 0; s < count; s++)
        sum += segments[s].padded_count;
    return sum;
}

static void reduce_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_reduce_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t s = 0; s < a.segment_count; s++) {
        const struct weir_window_segment *segment = &a.segments[s];
        float *x = a.grad + segment->offset;
        memset(x + segment->count, 0, (segment->padded_count - segment->count) * sizeof *x);
        if (a.grad_dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, round, (x, segment->count));
        WEIR_BY_ISA(k->isa, squares, (x, segment->count, &a.partials[s]));
    }
    if (a.grad_dtype == WEIR_BF16)
        pack(a.grad, padded_elements(a.segments, a.segment_count));
}

enum weir_status weir_host_reduce(struct weir_kernels *kernels, struct weir_stream *stream,
                                  const struct weir_reduce_args *a)
{
    struct weir_range ranges[] = {
        {a->grad, padded_elements(a->segments, a->segment_count) * sizeof *a->grad, true},
        {a->partials, a->segment_count * sizeof *a->partials, true}};
    return weir_host_queue(kernels, stream, reduce_run, a, sizeof *a, ranges, 2);
}

static void clear_run(void *argument)
{
    struct weir_host_argument *call = argument;
    struct weir_clear_residual_args a;
    memcpy(&a, call->args, sizeof a);
    for (uint32_t s = 0; a.dtype == WEIR_BF16 && s < a.segment_count; s++)
        memset((char *)a.state + a.segments[s].offset * 10ull, 0, a.segments[s].padded_count * 2ull);
}

enum weir_status weir_host_clear_residual(struct weir_kernels *kernels, struct weir_stream *stream,
                                          const struct weir_clear_residual_args *a)
{
    struct weir_range range = {
        a->state, padded_elements(a->segments, a->segment_count) * (a->dtype == WEIR_BF16 ? 10 : 8),
        true};
    return weir_host_queue(kernels, stream, clear_run, a, sizeof *a, &range, 1);
}
