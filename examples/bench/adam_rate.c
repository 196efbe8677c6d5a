/*
 * Host Adam against memory: bytes a second of an update of all parameters and of an in-place triad
 * (a = a + s b, the same kind of stores) by the same team, in turns.
 *
 *   adam_rate bf16|fp32 PARAMETERS THREADS ROUNDS
 *
 * ROUNDS 0: an update for each line on stdin, so that another program can take turns with it.
 *
 * An update reads weight, gradient (fp32) and state and writes weight and state: 28 bytes a
 * parameter in both dtypes. Prints a line a round and the median ratio.
 */
#include "core/clock.h"
#include "kernels/host.h"
#include "kernels/simd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW      (WEIR_WINDOW_SEGMENTS * (uint64_t)WEIR_SEGMENT_ELEMENTS)
#define BYTES_MOVED 28.0 /* a parameter */
#define ROUNDS_MOST 99

struct bench {
    const struct weir_device_table *table;
    struct weir_device *device;
    struct weir_stream *stream;
    const struct weir_kernels_table *math;
    struct weir_kernels *kernels;
    enum weir_dtype dtype;
    uint64_t window_count;
    int thread_count;
    char *weight, *grad, *state; /* by window */
};

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

/* In the vectors that Adam uses. */
static void triad_run(void *argument)
{
    const struct triad *t = argument;
#pragma omp parallel for num_threads(t->thread_count) schedule(static)
    for (uint64_t i = 0; i < t->count; i += WEIR_SEGMENT_ELEMENTS)
        WEIR_BY_ISA(t->isa, segment, (t->a + i, t->b + i));
}

static enum weir_status triad_time(const struct bench *b, double *gb_per_s)
{
    uint64_t count = b->window_count * WINDOW;
    const struct weir_host_kernels *host = (const struct weir_host_kernels *)b->kernels;
    struct triad t = {(float *)b->state, (const float *)b->grad, count, b->thread_count, host->isa};
    uint64_t began = weir_now_ns();
    WEIR_TRY(b->table->call(b->stream, triad_run, &t, sizeof t, NULL, 0));
    WEIR_TRY(b->table->stream_sync(b->stream));
    *gb_per_s = 12.0 * (double)count / (double)(weir_now_ns() - began);
    return WEIR_OK;
}

static struct weir_adam_args window_args(const struct bench *b, uint64_t window, uint64_t *bad)
{
    uint64_t weight_bytes = b->dtype == WEIR_BF16 ? 2 : 4,
             state_bytes = b->dtype == WEIR_BF16 ? 10 : 8;
    struct weir_adam_args args = {.dtype = b->dtype,
                                  .grad_dtype = WEIR_FP32,
                                  .weight = b->weight + window * WINDOW * weight_bytes,
                                  .grad = b->grad + window * WINDOW * 4,
                                  .state = b->state + window * WINDOW * state_bytes,
                                  .lr = 1e-3f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.999f,
                                  .eps = 1e-8f,
                                  .weight_decay = 0.1f,
                                  .clip_factor = 1,
                                  .correction1 = 0.1f,
                                  .correction2 = 0.001f,
                                  .bad_count = bad,
                                  .segment_count = WEIR_WINDOW_SEGMENTS};
    for (uint32_t s = 0; s < WEIR_WINDOW_SEGMENTS; s++)
        args.segments[s] = (struct weir_window_segment){
            s * WEIR_SEGMENT_ELEMENTS, WEIR_SEGMENT_ELEMENTS, WEIR_SEGMENT_ELEMENTS, 1, 1};
    return args;
}

static enum weir_status adam_time(const struct bench *b, double *gb_per_s)
{
    uint64_t bad = 0, began = weir_now_ns();
    for (uint64_t w = 0; w < b->window_count; w++) {
        struct weir_adam_args args = window_args(b, w, &bad);
        WEIR_TRY(b->math->adam(b->kernels, b->stream, &args));
    }
    WEIR_TRY(b->table->stream_sync(b->stream));
    *gb_per_s = BYTES_MOVED * (double)(b->window_count * WINDOW) / (double)(weir_now_ns() - began);
    return WEIR_OK;
}

static enum weir_status bench_open(struct bench *b)
{
    uint64_t count = b->window_count * WINDOW;
    WEIR_TRY(weir_device_find("host", &b->table));
    WEIR_TRY(
        b->table->open(&b->device, &(struct weir_device_options){.memory_bytes = UINT64_MAX,
                                                                 .thread_count = b->thread_count}));
    WEIR_TRY(b->table->stream_create(b->device, WEIR_ENGINE_COMPUTE, "bench", &b->stream));
    WEIR_TRY(weir_kernels_find("host", &b->math));
    WEIR_TRY(b->math->open(&b->kernels, b->device, b->thread_count, NULL, NULL));
    void *memory;
    WEIR_TRY(b->table->pin_alloc(b->device, count * 18, &memory));
    memset(memory, 0, count * 18); /* 4 weight at most, 4 gradient, 10 state at most */
    b->weight = memory;
    b->grad = b->weight + count * 4;
    b->state = b->grad + count * 4;
    for (uint64_t i = 0; i < count; i++) /* zeros would be divided faster than numbers */
        ((float *)(void *)b->grad)[i] = 1e-3f + 1e-9f * (float)(i % 4096);
    return WEIR_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum weir_status turns_take(const struct bench *b)
{
    char line[16];
    double adam;
    while (fgets(line, sizeof line, stdin)) {
        WEIR_TRY(adam_time(b, &adam));
        printf("%.4f\n", BYTES_MOVED / adam);
        fflush(stdout);
    }
    return WEIR_OK;
}

static enum weir_status bench_run(struct bench *b, int rounds)
{
    double ratios[ROUNDS_MOST], adam, triad;
    WEIR_TRY(bench_open(b));
    WEIR_TRY(adam_time(b, &adam)); /* warm */
    if (rounds == 0)
        return turns_take(b);
    for (int i = 0; i < rounds; i++) {
        WEIR_TRY(triad_time(b, &triad));
        WEIR_TRY(adam_time(b, &adam));
        ratios[i] = adam / triad;
        printf("adam %.1f GB/s, %.3f ns a parameter; triad %.1f GB/s; ratio %.2f\n", adam,
               BYTES_MOVED / adam, triad, ratios[i]);
    }
    qsort(ratios, (size_t)rounds, sizeof *ratios, by_value);
    printf("%s: median ratio %.2f (%.2f to %.2f)\n", b->math->describe(b->kernels),
           ratios[rounds / 2], ratios[0], ratios[rounds - 1]);
    return WEIR_OK;
}

int main(int argc, char **argv)
{
    int rounds = argc == 5 ? (int)strtol(argv[4], NULL, 10) : -1;
    struct bench b = {.thread_count = argc == 5 ? (int)strtol(argv[3], NULL, 10) : 0,
                      .window_count =
                          argc == 5 ? (strtoull(argv[2], NULL, 10) + WINDOW - 1) / WINDOW : 0,
                      .dtype = argc == 5 && strcmp(argv[1], "bf16") == 0 ? WEIR_BF16 : WEIR_FP32};
    if (rounds < 0 || rounds > ROUNDS_MOST || b.thread_count < 1 || b.window_count == 0 ||
        (b.dtype == WEIR_FP32 && strcmp(argv[1], "fp32") != 0)) {
        fprintf(stderr, "usage: adam_rate bf16|fp32 PARAMETERS THREADS ROUNDS (0 to %d)\n",
                ROUNDS_MOST);
        return 2;
    }
    if (bench_run(&b, rounds) != WEIR_OK) {
        fprintf(stderr, "adam_rate: %s\n", weir_last_error()->text);
        return 1;
    }
    b.math->close(b.kernels);
    b.table->stream_destroy(b.stream);
    b.table->close(b.device);
    return 0;
}
