/*
 * weir's host Adam behind two plain functions, for a program that has the memory already:
 * adam_pages.py compiles it against a build's libraries and lets DeepSpeed update the same pages.
 */
#include "core/clock.h"
#include "examples/bench/optimizer.h"

static struct optimizer optimizer;

/* 0: ready, with a team of thread_count. */
int adam_shim_open(int thread_count)
{
    return (int)optimizer_open(&optimizer, thread_count);
}

/* One update in fp32 training; nanoseconds, or -1. state has 2 floats a parameter, by window. */
double adam_shim_step(float *state, float *weight, const float *grad, uint64_t window_count)
{
    const struct optimizer *o = &optimizer;
    uint64_t bad = 0, began_ns = weir_now_ns();
    for (uint64_t w = 0; w < window_count; w++) {
        struct weir_adam_args args =
            optimizer_args(WEIR_FP32, WEIR_FP32, state + w * WINDOW_ELEMENTS * 2,
                           weight + w * WINDOW_ELEMENTS, grad + w * WINDOW_ELEMENTS, &bad);
        if (o->math->adam(o->kernels, o->stream, &args) != WEIR_OK)
            return -1;
    }
    return o->table->stream_sync(o->stream) == WEIR_OK ? (double)(weir_now_ns() - began_ns) : -1;
}
