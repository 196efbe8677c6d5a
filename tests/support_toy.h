/*
 * A toy network that stands in for a model: cheap arithmetic that depends on every byte it is
 * given, so that a byte lost, stale or moved to the wrong place changes the result. Run through
 * weir (toy_step) and as a plain loop over arrays that uses only kernels/ (toy_plain_step).
 */
#ifndef WEIR_TESTS_SUPPORT_TOY_H
#define WEIR_TESTS_SUPPORT_TOY_H

#include "tests/support.h"
#include "tests/support_plain.h"
#include <weir/checkpoint.h>
#include <weir/weir.h>

#define TOY_BLOCKS  6
#define TOY_TENSORS 4
#define TOY_MICRO   4

struct toy_spec {
    enum weir_dtype dtype, grad_dtype;
    uint32_t block_count, micro_count;
    uint32_t tensor_count[TOY_BLOCKS];
    uint64_t elements[TOY_BLOCKS][TOY_TENSORS];
    enum weir_kind kind[TOY_BLOCKS][TOY_TENSORS];
    uint32_t width;          /* floats of a boundary */
    bool tied;               /* the first block's gradient is wanted again at the end (ADD) */
    bool inner;              /* optional activations are offered */
    bool head_only_gradient; /* a further block is wanted only with GRAD */
    bool block_scratch;      /* scratch that lasts while the micro-batches pass through a block */
};

/* One step, the same for both. */
struct toy_input {
    float seed; /* fills the first boundary */
    bool training;
    int poison_block; /* -1, or the block into whose gradient an inf is put */
    int write_block;  /* -1, or a block whose weight is changed by WEIR_WRITE first */
    uint32_t groups;
};

struct toy_spec toy_spec_draw(struct test_random *random);

/* Blocks into any model-like thing. */
void toy_tensors(const struct toy_spec *spec, uint32_t block, struct weir_tensor *tensors,
                 char names[TOY_TENSORS][32]);

struct toy { /* on a run */
    struct toy_spec spec;
    weir_run *run;
    uint32_t blocks[TOY_BLOCKS + 1];
    uint32_t boundary[TOY_BLOCKS + 2][TOY_MICRO], inner[TOY_BLOCKS + 1][TOY_MICRO];
    uint32_t d[2][TOY_MICRO], loss[TOY_MICRO], input[TOY_MICRO];
    float losses[TOY_MICRO];
    int abort_at;      /* -1, or leave the step at this want */
    bool scratch_lost; /* a block's scratch was overwritten */
    bool queue_failed; /* the last piece of the toy's own work could not be queued */
};
enum weir_status toy_open(struct toy *toy, weir_run *run,
                          const struct toy_spec *spec) WEIR_MUST_CHECK;
uint32_t toy_block_count(const struct toy_spec *spec);
/* CANCELED after abort_at. key: records when dry. */
enum weir_status toy_step(struct toy *toy, const char *key, bool dry, const struct toy_input *input,
                          const struct weir_update *update, float *loss,
                          struct weir_report *report);

struct toy_plain {
    struct toy_spec spec;
    struct plain_arrays arrays;
};
void toy_plain_open(struct toy_plain *plain, const struct toy_spec *spec, struct weir_grain grain);
void toy_plain_close(struct toy_plain *plain);
void toy_plain_step(struct toy_plain *plain, const struct toy_input *input,
                    const struct weir_update *update, float *loss, double *norm, bool *skipped);

/* The same initial weights into both; plain NULL: into the run alone. */
enum weir_status toy_load(struct toy *toy, struct toy_plain *plain) WEIR_MUST_CHECK;
/* Weight, residual and moments of every window, as bits; the number of elements that differ. */
uint64_t toy_compare(weir_run *run, const struct toy_plain *plain);

#endif
