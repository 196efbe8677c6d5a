#include "core/clock.h"
#include "examples/bench/buffers.h"
#include "examples/bench/commands.h"
#include "examples/bench/io_series.h"
#include "examples/bench/optimizer.h"
#include "examples/bench/progress.h"
#include "kernels/host.h"
#include "kernels/simd.h"

#include <string.h>

#define MOVED_BYTES  28.0 /* of a parameter: weight and state both ways, gradient (fp32) in */
#define LAYOUT_BYTES 18   /* most of a parameter: weight 4, gradient 4, state 10 */

struct adam {
    struct optimizer optimizer;
    struct buffers memory;
    enum weir_dtype dtype;
    uint64_t window_count;
    unsigned char *weight, *grad, *state; /* by window */
};

/* ---- an in-place triad in the vectors that Adam uses */

struct triad {
    float *a;
    const float *b;
    uint64_t count;
    int thread_count;
    enum weir_isa isa;
};

WEIR_INLINE void segment_body(float *restrict a, const float *restrict b)
{
    WEIR_SIMD
    for (uint32_t i = 0; i < WEIR_SEGMENT_ELEMENTS; i++)
        a[i] = a[i] + 0.5f * b[i];
}
WEIR_EACH_ISA(static void, segment, (float *restrict a, const float *restrict b), (a, b))

static void triad_run(void *argument)
{
    const struct triad *t = argument;
#pragma omp parallel for num_threads(t->thread_count) schedule(static)
    for (uint64_t i = 0; i < t->count; i += WEIR_SEGMENT_ELEMENTS)
        WEIR_BY_ISA(t->isa, segment, (t->a + i, t->b + i));
}

static enum weir_status triad_time(const struct adam *a, double *gb_per_s)
{
    const struct optimizer *o = &a->optimizer;
    const struct weir_host_kernels *host = (const struct weir_host_kernels *)o->kernels;
    uint64_t count = a->window_count * WINDOW_ELEMENTS;
    struct triad t = {(float *)(void *)a->state, (const float *)(const void *)a->grad, count,
                      o->thread_count, host->isa};
    uint64_t began_ns = weir_now_ns();
    WEIR_TRY(o->table->call(o->stream, triad_run, &t, sizeof t, NULL, 0));
    WEIR_TRY(o->table->stream_sync(o->stream));
    *gb_per_s = 12.0 * (double)count / (double)(weir_now_ns() - began_ns);
    return WEIR_OK;
}

/* ---- the update */

static enum weir_status adam_time(const struct adam *a, double *gb_per_s)
{
    const struct optimizer *o = &a->optimizer;
    uint64_t bad = 0, began_ns = weir_now_ns(), weight_bytes = a->dtype == WEIR_BF16 ? 2 : 4;
    for (uint64_t w = 0; w < a->window_count; w++) {
        struct weir_adam_args args = optimizer_args(
            a->dtype, WEIR_FP32, a->state + w * WINDOW_ELEMENTS * optimizer_state_bytes(a->dtype),
            a->weight + w * WINDOW_ELEMENTS * weight_bytes, a->grad + w * WINDOW_ELEMENTS * 4,
            &bad);
        WEIR_TRY(o->math->adam(o->kernels, o->stream, &args));
    }
    WEIR_TRY(o->table->stream_sync(o->stream));
    *gb_per_s = MOVED_BYTES * (double)(a->window_count * WINDOW_ELEMENTS) /
                (double)(weir_now_ns() - began_ns);
    return WEIR_OK;
}

static void adam_fill(struct adam *a, enum weir_dtype dtype)
{
    uint64_t weight_bytes = dtype == WEIR_BF16 ? 2 : 4, state_bytes = optimizer_state_bytes(dtype);
    a->dtype = dtype;
    optimizer_values(dtype, WEIR_FP32, a->state, a->weight, a->grad);
    for (uint64_t w = 1; w < a->window_count; w++) {
        memcpy(a->state + w * WINDOW_ELEMENTS * state_bytes, a->state,
               WINDOW_ELEMENTS * state_bytes);
        memcpy(a->weight + w * WINDOW_ELEMENTS * weight_bytes, a->weight,
               WINDOW_ELEMENTS * weight_bytes);
        memcpy(a->grad + w * WINDOW_ELEMENTS * 4, a->grad, WINDOW_ELEMENTS * 4);
    }
}

static enum weir_status adam_open(struct adam *a, const struct options *o)
{
    double windows = o->parameters / (double)WINDOW_ELEMENTS;
    *a = (struct adam){.window_count = windows > 1 ? (uint64_t)(windows + 0.999999) : 1};
    uint64_t count = a->window_count * WINDOW_ELEMENTS;
    WEIR_TRY(buffers_open(&a->memory, count * LAYOUT_BYTES, LAYOUT_HUGE, "lower --parameters"));
    a->weight = a->memory.bytes;
    a->grad = a->weight + count * 4;
    a->state = a->grad + count * 4;
    enum weir_status status = optimizer_open(&a->optimizer, (int)o->threads.values[0]);
    if (status != WEIR_OK)
        buffers_close(&a->memory);
    return status;
}

static void adam_close(struct adam *a)
{
    optimizer_close(&a->optimizer);
    buffers_close(&a->memory);
}

static enum weir_status dtype_measure(struct adam *a, const struct options *o,
                                      struct report *report)
{
    double rates[ROUNDS_MOST], triads[ROUNDS_MOST], ratios[ROUNDS_MOST];
    const char *dtype = a->dtype == WEIR_BF16 ? "bf16" : "fp32";
    uint64_t count = a->window_count * WINDOW_ELEMENTS;
    WEIR_TRY(adam_time(a, &rates[0])); /* warm */
    for (uint64_t i = 0; i < o->rounds; i++) {
        progress_step("%s, round %llu", dtype, (unsigned long long)i + 1);
        WEIR_TRY(triad_time(a, &triads[i]));
        WEIR_TRY(adam_time(a, &rates[i]));
        ratios[i] = rates[i] / triads[i];
    }
    struct spread rate = spread_of(rates, (uint32_t)o->rounds),
                  triad = spread_of(triads, (uint32_t)o->rounds),
                  ratio = spread_of(ratios, (uint32_t)o->rounds);
    return report_row(
        report,
        json_pack("{s:s, s:s, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "part",
                  "adam", "dtype", dtype, "threads", (json_int_t)a->optimizer.thread_count,
                  "parameters", (json_int_t)count, "kernels",
                  a->optimizer.math->describe(a->optimizer.kernels), "gb_per_s", rate.median,
                  "gb_per_s_low", rate.low, "gb_per_s_high", rate.high, "ns_per_parameter",
                  MOVED_BYTES / rate.median, "triad_gb_per_s", triad.median, "ratio", ratio.median,
                  "ratio_low", ratio.low, "ratio_high", ratio.high));
}

enum weir_status adam_measure(const struct options *o, struct report *report)
{
    struct adam a;
    enum weir_status status = WEIR_OK;
    WEIR_TRY(adam_open(&a, o));
    progress_begin("adam", (uint32_t)o->rounds * o->dtypes.count);
    for (uint32_t d = 0; d < o->dtypes.count && status == WEIR_OK; d++) {
        adam_fill(&a, o->dtypes.values[d] == 0 ? WEIR_BF16 : WEIR_FP32);
        status = dtype_measure(&a, o, report);
    }
    progress_end();
    adam_close(&a);
    return status;
}

static enum weir_status turns_take(const struct adam *a)
{
    char line[16];
    double gb_per_s;
    WEIR_TRY(adam_time(a, &gb_per_s)); /* warm */
    while (fgets(line, sizeof line, stdin)) {
        WEIR_TRY(adam_time(a, &gb_per_s));
        printf("%.4f\n", MOVED_BYTES / gb_per_s);
        fflush(stdout);
    }
    return WEIR_OK;
}

enum weir_status adam_turns(const struct options *o)
{
    struct adam a;
    WEIR_TRY(adam_open(&a, o));
    adam_fill(&a, o->dtypes.values[0] == 0 ? WEIR_BF16 : WEIR_FP32);
    enum weir_status status = turns_take(&a);
    adam_close(&a);
    return status;
}
