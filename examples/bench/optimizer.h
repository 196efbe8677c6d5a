/*
 * The host's Adam on windows, as a run queues it: for `adam` and for the replay of training.
 */
#ifndef WEIR_BENCH_OPTIMIZER_H
#define WEIR_BENCH_OPTIMIZER_H

#include "kernels/kernels.h"

#define WINDOW_ELEMENTS (WEIR_WINDOW_SEGMENTS * (uint64_t)WEIR_SEGMENT_ELEMENTS)

struct optimizer {
    const struct weir_device_table *table;
    struct weir_device *device;
    struct weir_stream *stream;
    const struct weir_kernels_table *math;
    struct weir_kernels *kernels;
    int thread_count;
};

enum weir_status optimizer_open(struct optimizer *optimizer, int thread_count);
void optimizer_close(struct optimizer *optimizer);
/* Bytes of a parameter's state: residual in bf16, and two moments. */
uint64_t optimizer_state_bytes(enum weir_dtype dtype);
/* One step of a whole window; the pointers are those of its arrays. */
struct weir_adam_args optimizer_args(enum weir_dtype dtype, enum weir_dtype grad_dtype, void *state,
                                     void *weight, const void *grad, uint64_t *bad_count);
/* Numbers such as training has them, in all arrays of a window; none of them is 0 or denormal. */
void optimizer_values(enum weir_dtype dtype, enum weir_dtype grad_dtype, void *state, void *weight,
                      void *grad);

#endif
