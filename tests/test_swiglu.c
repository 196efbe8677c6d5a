/* SwiGLU of the host instance, and the exp below it. */
#include "kernels/expf.h"
#include "kernels/host.h"
#include "tests/support_op.h"

#include <math.h>
#include <string.h>

static double silu(double g)
{
    return g / (1 + exp(-g));
}

static void forward_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                        void *const *in, void *const *out)
{
    struct weir_swiglu_args a = {
        .gate = in[0], .up = in[1], .out = out[0], .dtype = dtype, .count = op->in[0].count};
    assert_ok(t->table->swiglu_forward(t->kernels, t->stream, &a));
}

static void forward_expect(const struct test_op *op, double *const *in, double *const *out)
{
    for (uint64_t i = 0; i < op->in[0].count; i++)
        out[0][i] = silu(in[0][i]) * in[1][i];
}

static void backward_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                         void *const *in, void *const *out)
{
    struct weir_swiglu_args a = {.gate = in[0],
                                 .up = in[1],
                                 .dout = in[2],
                                 .dgate = out[0],
                                 .dup = out[1],
                                 .out = op->out_count == 3 ? out[2] : NULL,
                                 .dtype = dtype,
                                 .count = op->in[0].count};
    assert_ok(t->table->swiglu_backward(t->kernels, t->stream, &a));
}

static double backward_value(const struct test_op *op, double *const *in)
{
    double sum = 0;
    for (uint64_t i = 0; i < op->in[0].count; i++)
        sum += in[2][i] * silu(in[0][i]) * in[1][i];
    return sum;
}

static const uint64_t counts[] = {1, 31, 33, 127, 4096, 4097, 9001};
#define COUNT_COUNT (sizeof counts / sizeof *counts)

/* The product is right on counts around vectors and chunks. */
static void forward_is_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_COUNT; i++) {
        uint64_t n = counts[i];
        test_op_check(&(struct test_op){.in = {{n, true}, {n, true}},
                                        .in_count = 2,
                                        .out = {{n, true}},
                                        .out_count = 1,
                                        .run = forward_run,
                                        .expect = forward_expect,
                                        .tolerance = 1e-6},
                      i);
    }
}

/* Both gradients are right, whether or not the product is asked for again. */
static void backward_is_the_gradient(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_COUNT; i++) {
        uint64_t n = counts[i];
        test_op_check(&(struct test_op){.in = {{n, true}, {n, true}, {n, true}},
                                        .in_count = 3,
                                        .out = {{n, true}, {n, true}, {n, true}},
                                        .out_count = i % 2 == 0 ? 3 : 2,
                                        .run = backward_run,
                                        .value = backward_value,
                                        .gradients = {{0, 0}, {1, 1}},
                                        .gradient_count = 2},
                      10 + i);
    }
}

#define MOST 127u

/* Backward's product has the bits of forward's: a plan may keep or recompute it. */
static void recomputed_product_has_the_same_bits(void **state)
{
    (void)state;
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++) {
        float gate[MOST], up[MOST], forward[MOST], again[MOST], dgate[MOST], dup[MOST];
        for (uint32_t i = 0; i < MOST; i++) {
            gate[i] = 0.37f * (float)i - 20;
            up[i] = 1.0f / (float)(i + 1);
        }
        struct test_op op = {.in = {{MOST, true}, {MOST, true}, {MOST, true}},
                             .in_count = 2,
                             .out = {{MOST, true}, {MOST, true}, {MOST, true}},
                             .out_count = 1,
                             .run = forward_run};
        assert_true(test_op_run(&op, NULL, 2, (enum weir_dtype)dtype, (float *[]){gate, up},
                                (float *[]){forward}));
        op.run = backward_run;
        op.in_count = op.out_count = 3;
        assert_true(test_op_run(&op, NULL, 2, (enum weir_dtype)dtype, (float *[]){gate, up, up},
                                (float *[]){dgate, dup, again}));
        assert_memory_equal(forward, again, sizeof forward);
    }
}

/* Gates far out saturate instead of becoming nan: silu(g) is g or 0. */
static void far_gates_saturate(void **state)
{
    (void)state;
    float gate[4] = {200, -200, 88.9f, -1e30f}, up[4] = {1, 1, 1, 1}, out[4];
    struct test_op op = {.in = {{4, true}, {4, true}},
                         .in_count = 2,
                         .out = {{4, true}},
                         .out_count = 1,
                         .run = forward_run};
    assert_true(test_op_run(&op, NULL, 1, WEIR_FP32, (float *[]){gate, up}, (float *[]){out}));
    assert_true(out[0] == 200 && out[2] == 88.9f);
    assert_true(fabsf(out[1]) == 0 && fabsf(out[3]) == 0);
}

WEIR_INLINE void exps_body(float *x, uint32_t count)
{
    WEIR_SIMD
    for (uint32_t i = 0; i < count; i++)
        x[i] = weir_exp(x[i]);
}
WEIR_EACH_ISA(static void, exps, (float *x, uint32_t count), (x, count))

static double ulps(double want, float got)
{
    float near = (float)want;
    return fabs((double)got - want) / (double)(nextafterf(near, INFINITY) - near);
}

/* exp is within 2 ulp of libm's over its range (every 1009th float). */
static void exp_is_accurate(void **state)
{
    (void)state;
    uint64_t checked = 0;
    for (uint32_t bits = 0; bits < 0x42B20000u; bits += 1009)
        for (uint32_t sign = 0; sign < 2; sign++) {
            float x = weir_of_bits(bits | sign << 31);
            double want = exp((double)x);
            if (x < -87.33f || want > 3.4028235e38)
                continue;
            if (ulps(want, weir_exp(x)) > 2)
                fail_msg("exp(%.9g) = %.9g, not %.9g", (double)x, (double)weir_exp(x), want);
            checked++;
        }
    assert_true(checked > 1000000);
}

/* The ends: 0 below the normal floats, inf above the floats, nan stays nan, exp(0) is 1. */
static void exp_has_the_right_ends(void **state)
{
    (void)state;
    assert_true(weir_exp(-INFINITY) == 0 && weir_exp(-1e30f) == 0 && weir_exp(-87.4f) == 0);
    assert_true(weir_exp(INFINITY) == INFINITY && weir_exp(88.73f) == INFINITY);
    assert_true(isfinite(weir_exp(88.72f)));
    assert_true(isnan(weir_exp(NAN)) && isnan(weir_exp(-NAN)));
    assert_true(weir_exp(0) == 1 && weir_exp(-0.0f) == 1);
}

/* Vectors of each width give the bits of the scalar. */
static void exp_has_the_same_bits_everywhere(void **state)
{
    (void)state;
    float x[1000], y[1000];
    for (int isa = 0; isa < TEST_ISA_COUNT; isa++) {
        struct test_kernels t;
        if (!test_kernels_open(&t, test_variant_names[isa], 1))
            continue;
        test_kernels_close(&t);
        for (uint32_t i = 0; i < 1000; i++)
            y[i] = x[i] = (float)i * 0.2371f - 120;
        WEIR_BY_ISA((enum weir_isa)isa, exps, (y, 1000));
        for (uint32_t i = 0; i < 1000; i++)
            assert_int_equal(weir_bits(weir_exp(x[i])), weir_bits(y[i]));
    }
}

/* log agrees with libm's to 1e-14, and has its ends. */
static void log_is_accurate(void **state)
{
    (void)state;
    for (uint32_t bits = 0x00800000u; bits < 0x7F800000u; bits += 10007) {
        float x = weir_of_bits(bits);
        double want = log((double)x);
        if (fabs(weir_ln(x) - want) > 1e-14 * fmax(0.01, fabs(want)))
            fail_msg("log(%.9g) = %.17g, not %.17g", (double)x, weir_ln(x), want);
    }
    assert_true(weir_ln(1) == 0 && weir_ln(0) == -INFINITY && weir_ln(INFINITY) == INFINITY);
    assert_true(isnan(weir_ln(-1)) && isnan(weir_ln(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_right),
        cmocka_unit_test(backward_is_the_gradient),
        cmocka_unit_test(recomputed_product_has_the_same_bits),
        cmocka_unit_test(far_gates_saturate),
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(exp_has_the_right_ends),
        cmocka_unit_test(exp_has_the_same_bits_everywhere),
        cmocka_unit_test(log_is_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
