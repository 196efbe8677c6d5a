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

bool test_op_run(const struct test_op *op, const char *isa, int thread_count, enum weir_dtype dtype,
                 float *const *in, float *const *out)
{
    struct test_kernels t;
    if (!test_kernels_open(&t, isa, thread_count))
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

/* Generic with one thread is what all others must equal. */
static void bits_check(const struct test_op *op, enum weir_dtype dtype, float *const *in,
                       float *const *out)
{
    float *other[TEST_OP_ARRAYS];
    test_op_make(op->out, op->out_count, other);
    assert_true(test_op_run(op, "generic", 1, dtype, in, out));
    for (int isa = 0; isa < TEST_ISA_COUNT; isa++)
        for (int threads = 1; threads <= 3; threads++) {
            if (!test_op_run(op, test_isa_names[isa], threads, dtype, in, other))
                continue;
            for (uint32_t i = 0; i < op->out_count; i++)
                for (uint64_t e = 0; e < op->out[i].count; e++)
                    if (memcmp(&out[i][e], &other[i][e], sizeof **out) != 0)
                        fail_msg("output %u[%llu], %s, %d threads: %.9g, not %.9g", i,
                                 (unsigned long long)e, test_isa_names[isa], threads,
                                 (double)other[i][e], (double)out[i][e]);
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

static void expectation_check(const struct test_op *op, double *const *in, float *const *out)
{
    double *want[TEST_OP_ARRAYS];
    doubles_make(op->out, op->out_count, out, want);
    for (uint32_t i = 0; i < op->out_count; i++)
        memset(want[i], 0, op->out[i].count * sizeof **want);
    op->expect(op, in, want);
    for (uint32_t i = 0; i < op->out_count; i++) {
        double tolerance = op->tolerance * largest(want[i], op->out[i].count);
        for (uint64_t e = 0; e < op->out[i].count; e++)
            close_check("value", i, e, want[i][e], (double)out[i][e], tolerance);
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
static void bf16_check(const struct test_op *op, float *const *bf16, float *const *fp32)
{
    for (uint32_t i = 0; i < op->out_count; i++) {
        double most = 0;
        for (uint64_t e = 0; e < op->out[i].count; e++)
            most = fabs((double)fp32[i][e]) > most ? fabs((double)fp32[i][e]) : most;
        for (uint64_t e = 0; e < op->out[i].count; e++)
            close_check("bf16", i, e, (double)fp32[i][e], (double)bf16[i][e],
                        op->tolerance == 0 && op->expect ? most / 256 : most / 128);
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

void test_op_check(const struct test_op *op, uint64_t seed)
{
    float *in[TEST_OP_ARRAYS], *fp32[TEST_OP_ARRAYS], *bf16[TEST_OP_ARRAYS];
    double *precise[TEST_OP_ARRAYS];
    inputs_draw(op, seed, in);
    test_op_make(op->out, op->out_count, fp32);
    test_op_make(op->out, op->out_count, bf16);
    doubles_make(op->in, op->in_count, in, precise);
    assert_true(op->expect || op->gradient_count > 0);
    bits_check(op, WEIR_FP32, in, fp32);
    if (op->expect)
        expectation_check(op, precise, fp32);
    for (uint32_t g = 0; g < op->gradient_count; g++)
        gradient_check(op, precise, fp32, g);
    inputs_round(op, in);
    assert_true(test_op_run(op, NULL, 1, WEIR_FP32, in, fp32));
    bits_check(op, WEIR_BF16, in, bf16);
    bf16_check(op, bf16, fp32);
    doubles_free(precise, op->in_count);
    test_op_free(bf16, op->out_count);
    test_op_free(fp32, op->out_count);
    test_op_free(in, op->in_count);
}
