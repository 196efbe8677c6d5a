/*
 * A model in plain arrays: weight, gradient and state of each block as one array, updated by
 * kernels alone. What a run through weir is compared with, bit for bit.
 */
#ifndef WEIR_TESTS_SUPPORT_PLAIN_H
#define WEIR_TESTS_SUPPORT_PLAIN_H

#include "kernels/kernels.h"
#include "offload/model.h"
#include "tests/support.h"
#include <weir/weir.h>

#define PLAIN_BLOCKS 64

extern const char *plain_device; /* on which it computes; "host" unless a program sets another */

struct plain_arrays {
    struct weir_model model;
    struct weir_device *device;
    struct weir_stream *stream;
    struct weir_kernels *kernels;
    bool apart; /* from the CPU: device memory is reached by copies alone */
    void *weight[PLAIN_BLOCKS], *state[PLAIN_BLOCKS]; /* the weight in device memory */
    float *grad[PLAIN_BLOCKS];                        /* the same */
    bool fresh[PLAIN_BLOCKS]; /* the gradient holds nothing of this step yet */
    bool made[PLAIN_BLOCKS];  /* it holds something */
    double *partials;
    uint64_t *bad_count;
    uint64_t update_count;
};

void plain_open(struct plain_arrays *plain, enum weir_dtype dtype, enum weir_dtype grad_dtype,
                struct weir_grain grain);
void plain_block_add(struct plain_arrays *plain, const struct weir_tensor *tensors, size_t count);
void plain_close(struct plain_arrays *plain);
/* Zeros in pinned memory, which the kernels of every device reach. */
void *plain_memory(struct plain_arrays *plain, uint64_t bytes);
void plain_memory_free(struct plain_arrays *plain, void *memory);
/* Zeros in the device's memory, for operands of products; on the host the same as pinned memory. */
void *plain_device_memory(struct plain_arrays *plain, uint64_t bytes);
void plain_device_memory_free(struct plain_arrays *plain, void *memory);
/* fp32 masters of a whole tensor. */
void plain_load(struct plain_arrays *plain, uint32_t block, uint32_t tensor, const float *values);
void plain_begin(struct plain_arrays *plain);
/* Round, norm, clip, update; or skip. Returns the norm. */
double plain_finish(struct plain_arrays *plain, const struct weir_update *update, bool *skipped);
/* Of each block's weights and residuals: a step with a gradient changes every one. */
void plain_hashes(const struct plain_arrays *plain, uint64_t *hashes);
void plain_all_changed(const struct plain_arrays *plain, const uint64_t *before);
/* Bytes of weight and state that differ from the run's homes. */
uint64_t plain_compare(const struct plain_arrays *plain, weir_run *run);

#endif
