/*
 * What every operation with values as in- and output must do, for tests that say only which values
 * go in and what should come out: the right values, right gradients, the same bits on each
 * instruction set and with each team, on cuda in each order of threads, bf16 close to fp32, and
 * nothing written beyond an output.
 */
#ifndef WEIR_TESTS_SUPPORT_OP_H
#define WEIR_TESTS_SUPPORT_OP_H

#include "tests/support.h"
#include "tests/support_kernels.h"

#define TEST_OP_ARRAYS 8

struct test_op_array {
    uint64_t count;
    bool act; /* in the run's dtype; else fp32 */
};

struct test_op {
    struct test_op_array in[TEST_OP_ARRAYS], out[TEST_OP_ARRAYS];
    uint32_t in_count, out_count;
    const void *shape;
    /* Queue the operation on device memory; the outputs hold noise. */
    void (*run)(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                void *const *in, void *const *out);

    /* One of the two. expect: the outputs in fp64, right to `tolerance` of the largest (0: to the
     * bit). value: a number in fp64, of which output gradients[i].out is the gradient by input
     * gradients[i].in, checked by central differences to 1e-3 of the largest (1e-6 if
     * all are 0). */
    void (*expect)(const struct test_op *op, double *const *in, double *const *out);
    double tolerance, cuda_tolerance; /* cuda_tolerance 0: the same there */
    bool same_bits;                   /* on cuda as on the host */
    double (*value)(const struct test_op *op, double *const *in);
    struct {
        uint32_t in, out;
    } gradients[TEST_OP_ARRAYS];
    uint32_t gradient_count;
};

/* Inputs in [-1, 1) from the seed; all of the above. */
void test_op_check(const struct test_op *op, uint64_t seed);

/* One run on given inputs, as floats. False if the variant (support_kernels.h) is absent. */
bool test_op_run(const struct test_op *op, const char *variant, int thread_count,
                 enum weir_dtype dtype, float *const *in, float *const *out);
void test_op_make(const struct test_op_array *arrays, uint32_t count, float **out);
void test_op_free(float **arrays, uint32_t count);

#endif
