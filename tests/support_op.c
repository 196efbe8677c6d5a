#include "tests/support_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 64u
#define NOISE       0xC5 /* as floats far from any result */
#define SAMPLES     12u  /* elements of an input whose differences are taken */

void test_op_make(const struct test_op_array *arrays, uint32_t count, float **out)
{
    for (uint32_t i = 0; i < count; i++) {
        out[i] = calloc(arrays[i].count + 1, sizeof **out);
        assert_non_null(out[i]);
    }
}

void test_op_free(float **arrays, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(arrays[i]);
}

static uint64_t array_bytes(const struct test_op_array *array, enum weir_dtype dtype)
{
    return array->count * (array->act && dtype == WEIR_BF16 ? 2 : 4);
}

static void values_put(const struct test_op_array *array, enum weir_dtype dtype,
                       const float *values, void *bytes)
{
    if (array->act && dtype == WEIR_BF16)
        for (uint64_t i = 0; i < array->count; i++)
            ((uint16_t *)bytes)[i] = weir_bf16_from_float(values[i]);
    else
        memcpy(bytes, values, array->count * sizeof *values);
}

static void values_get(const struct test_op_array *array, enum weir_dtype dtype, const void *bytes,
                       float *values)
{
    if (array->act && dtype == WEIR_BF16)
        for (uint64_t i = 0; i < array->count; i++)
            values[i] = weir_float_from_bf16(((const uint16_t *)bytes)[i]);
    else
        memcpy(values, bytes, array->count * sizeof *values);
}

bool test_op_run(const struct test_op *op, const char *variant, int thread_count,
                 enum weir_dtype dtype, float *const *in, float *const *out)
{
    struct test_kernels t;
    if (!test_kernels_open(&t, variant, thread_count))
        return false;
    void *in_bytes[TEST_OP_ARRAYS], *out_bytes[TEST_OP_ARRAYS];
    for (uint32_t i = 0; i < op->in_count; i++) {
        in_bytes[i] = test_kernels_memory(&t, array_bytes(&op->in[i], dtype));
        values_put(&op->in[i], dtype, in[i], in_bytes[i]);
    }
    for (uint32_t i = 0; i < op->out_count; i++) {
        uint64_t bytes = array_bytes(&op->out[i], dtype);
        out_bytes[i] = test_kernels_memory(&t, bytes + GUARD_BYTES);
        memset(out_bytes[i], NOISE, bytes + GUARD_BYTES);
    }
    op->run(&t, op, dtype, in_bytes, out_bytes);
    test_kernels_wait(&t);
    for (uint32_t i = 0; i < op->out_count; i++) {
        const unsigned char *end = out_bytes[i];
        end += array_bytes(&op->out[i], dtype);
        for (uint32_t g = 0; g < GUARD_BYTES; g++)
            assert_int_equal(NOISE, end[g]);
        values_get(&op->out[i], dtype, out_bytes[i], out[i]);
    }
    test_kernels_close(&t);
    return true;
}

/* The variants of one instance, and the first of them, which all others must equal. */
struct instance {
    const char *reference;
    int first, end;
    double tolerance;
};

static struct instance instance_of(const struct test_op *op, bool cuda)
{
    if (!cuda)
        return (struct instance){"generic", 0, TEST_ISA_COUNT, op->tolerance};
    return (struct instance){test_variant_names[TEST_ISA_COUNT], TEST_ISA_COUNT, TEST_VARIANT_COUNT,
                             op->cuda_tolerance > 0 ? op->cuda_tolerance : op->tolerance};
}

static void same_check(const struct test_op *op, const char *what, int threads, float *const *want,
                       float *const *got)
{
    for (uint32_t i = 0; i < op->out_count; i++)
        for (uint64_t e = 0; e < op->out[i].count; e++)
            if (memcmp(&want[i][e], &got[i][e], sizeof **want) != 0)
                fail_msg("output %u[%llu], %s, %d threads: %.9g, not %.9g", i,
                         (unsigned long long)e, what, threads, (double)got[i][e],
                         (double)want[i][e]);
}

static void bits_check(const struct test_op *op, const struct instance *instance,
                       enum weir_dtype dtype, float *const *in, float *const *out)
{
    float *other[TEST_OP_ARRAYS];
    test_op_make(op->out, op->out_count, other);
    assert_true(test_op_run(op, instance->reference, 1, dtype, in, out));
    for (int i = instance->first; i < instance->end; i++)
        for (int threads = 1; threads <= (instance->first == 0 ? 3 : 1); threads++)
            if (test_op_run(op, test_variant_names[i], threads, dtype, in, other))
                same_check(op, test_variant_names[i], threads, out, other);
    if (instance->first > 0 && op->same_bits) {
        assert_true(test_op_run(op, "generic", 1, dtype, in, other));
        same_check(op, "cuda", 1, other, out);
    }
    test_op_free(other, op->out_count);
}

static double largest(const double *values, uint64_t count)
{
    double most = 0;
    for (uint64_t i = 0; i < count; i++)
        most = fabs(values[i]) > most ? fabs(values[i]) : most;
    return most;
}

/* A nan is equal to nothing. */
static void close_check(const char *what, uint32_t array, uint64_t at, double want, double got,
                        double tolerance)
{
    if (!(fabs(want - got) <= tolerance))
        fail_msg("%s: array %u[%llu] is %.9g, not %.9g, more than %.3g off", what, array,
                 (unsigned long long)at, got, want, tolerance);
}

static void doubles_make(const struct test_op_array *arrays, uint32_t count, float *const *values,
                         double **out)
{
    for (uint32_t i = 0; i < count; i++) {
        out[i] = calloc(arrays[i].count + 1, sizeof **out);
        assert_non_null(out[i]);
        for (uint64_t e = 0; e < arrays[i].count; e++)
            out[i][e] = (double)values[i][e];
    }
}

static void doubles_free(double **arrays, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(arrays[i]);
}

static void expectation_check(const struct test_op *op, double tolerance, double *const *in,
                              float *const *out)
{
    double *want[TEST_OP_ARRAYS];
    doubles_make(op->out, op->out_count, out, want);
    for (uint32_t i = 0; i < op->out_count; i++)
        memset(want[i], 0, op->out[i].count * sizeof **want);
    op->expect(op, in, want);
    for (uint32_t i = 0; i < op->out_count; i++) {
        double most = tolerance * largest(want[i], op->out[i].count);
        for (uint64_t e = 0; e < op->out[i].count; e++)
            close_check("value", i, e, want[i][e], (double)out[i][e], most);
    }
    doubles_free(want, op->out_count);
}

static void gradient_check(const struct test_op *op, double *const *in, float *const *out,
                           uint32_t which)
{
    const double step = 1e-4;
    uint32_t by = op->gradients[which].in, array = op->gradients[which].out;
    uint64_t count = op->in[by].count;
    assert_int_equal(count, op->out[array].count);
    double most = 0;
    for (uint64_t e = 0; e < count; e++)
        most = fabs((double)out[array][e]) > most ? fabs((double)out[array][e]) : most;
    uint64_t stride = count / SAMPLES + 1; /* not a multiple of the lanes */
    for (uint64_t e = count - 1; e < count; e -= stride) {
        double at = in[by][e];
        in[by][e] = at + step;
        double above = op->value(op, in);
        in[by][e] = at - step;
        double below = op->value(op, in);
        in[by][e] = at;
        close_check("gradient", array, e, (above - below) / (2 * step), (double)out[array][e],
                    1e-3 * most + 1e-6);
    }
}

/* bf16 outputs round once: 1/128 of the largest is two roundings of it. */
static void bf16_check(const struct test_op *op, double tolerance, float *const *bf16,
                       float *const *fp32)
{
    for (uint32_t i = 0; i < op->out_count; i++) {
        double most = 0;
        for (uint64_t e = 0; e < op->out[i].count; e++)
            most = fabs((double)fp32[i][e]) > most ? fabs((double)fp32[i][e]) : most;
        for (uint64_t e = 0; e < op->out[i].count; e++)
            close_check("bf16", i, e, (double)fp32[i][e], (double)bf16[i][e],
                        tolerance == 0 && op->expect ? most / 256 : most / 128);
    }
}

static void inputs_draw(const struct test_op *op, uint64_t seed, float **in)
{
    struct test_random random = {.state = seed};
    test_op_make(op->in, op->in_count, in);
    for (uint32_t i = 0; i < op->in_count; i++)
        for (uint64_t e = 0; e < op->in[i].count; e++)
            in[i][e] = (float)(2 * test_random_unit(&random) - 1);
}

static void inputs_round(const struct test_op *op, float **in)
{
    for (uint32_t i = 0; i < op->in_count; i++)
        for (uint64_t e = 0; e < op->in[i].count && op->in[i].act; e++)
            in[i][e] = weir_float_from_bf16(weir_bf16_from_float(in[i][e]));
}

static void instance_check(const struct test_op *op, const struct instance *instance, uint64_t seed)
{
    float *in[TEST_OP_ARRAYS], *fp32[TEST_OP_ARRAYS], *bf16[TEST_OP_ARRAYS];
    double *precise[TEST_OP_ARRAYS];
    inputs_draw(op, seed, in);
    test_op_make(op->out, op->out_count, fp32);
    test_op_make(op->out, op->out_count, bf16);
    doubles_make(op->in, op->in_count, in, precise);
    bits_check(op, instance, WEIR_FP32, in, fp32);
    if (op->expect)
        expectation_check(op, instance->tolerance, precise, fp32);
    for (uint32_t g = 0; g < op->gradient_count; g++)
        gradient_check(op, precise, fp32, g);
    inputs_round(op, in);
    assert_true(test_op_run(op, instance->reference, 1, WEIR_FP32, in, fp32));
    bits_check(op, instance, WEIR_BF16, in, bf16);
    bf16_check(op, instance->tolerance, bf16, fp32);
    doubles_free(precise, op->in_count);
    test_op_free(bf16, op->out_count);
    test_op_free(fp32, op->out_count);
    test_op_free(in, op->in_count);
}

void test_op_check(const struct test_op *op, uint64_t seed)
{
    assert_true(op->expect || op->gradient_count > 0);
    bool cuda = test_kernels_for_cuda();
    struct instance instance = instance_of(op, cuda);
    instance_check(op, &instance, seed);
}
