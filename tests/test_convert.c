/* The CPU helpers of load and save, casts and sums, against their definitions. */
#include "tests/support.h"
#include "tests/support_kernels.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The bf16 value nearest to a finite float, by trying its two neighbours in double. */
static uint16_t nearest_even(float value)
{
    uint16_t below = (uint16_t)(bits_of(value) >> 16), above = (uint16_t)(below + 1);
    double low = of_bits((uint32_t)below << 16), high = of_bits((uint32_t)above << 16);
    if (isinf(high))
        high = copysign(0x1p128, value);
    double down = fabs((double)value - low), up = fabs(high - (double)value);
    return down < up || (down == up && below % 2 == 0) ? below : above;
}

/* Every bf16 pattern survives widening and narrowing; a nan stays a nan. */
static void bf16_patterns_survive(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = weir_float_from_bf16((uint16_t)bits);
        assert_int_equal(bits << 16, bits_of(value));
        if (isnan(value))
            assert_true(isnan(weir_float_from_bf16(weir_bf16_from_float(value))));
        else
            assert_int_equal(bits, weir_bf16_from_float(value));
    }
}

/* Rounding to bf16 is to nearest, ties to even, over all exponents, with ties drawn on purpose. */
static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    struct test_random random = test_random_open(11);
    static const uint32_t tails[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    for (uint32_t draw = 0; draw < test_draws(200000); draw++) {
        uint32_t bits = (uint32_t)test_random_next(&random);
        if (draw % 2)
            bits = (bits & 0xFFFF0000u) | tails[draw / 2 % 6];
        float value = of_bits(bits);
        if (isfinite(value))
            assert_int_equal(nearest_even(value), weir_bf16_from_float(value));
    }
    assert_int_equal(0x7FC0, weir_bf16_from_float(of_bits(0x7F800001)) & 0x7FC0); /* not inf */
}

/* Every f16 pattern has the value that its fields define. */
static void f16_patterns_have_their_value(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
        float value = weir_float_from_f16((uint16_t)bits);
        assert_int_equal(bits >> 15, signbit(value) != 0);
        if (exponent == 31) {
            assert_true(fraction ? isnan(value) : isinf(value));
            continue;
        }
        double expected = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        assert_true(fabs((double)value) == expected);
    }
}

/* Join undoes split for every kind of master, weight is the nearest bf16, bad masters are counted.
 */
static void split_loses_nothing(void **state)
{
    (void)state;
    struct test_random random = test_random_open(12);
    enum { COUNT = 4096 };
    static float master[COUNT], back[COUNT];
    static uint16_t weight[COUNT];
    static int16_t residual[COUNT];
    for (uint32_t draw = 0; draw < test_draws(50); draw++) {
        uint64_t bad = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            uint32_t bits = (uint32_t)test_random_next(&random);
            if (i % 4 == 1)
                bits = (bits & 0xFFFF0000u) | 0x8000u;
            if (i % 64 == 2)
                bits = (bits & 0x80000000u) | (0x7F7F7FFEu + i / 64 % 4);
            master[i] = of_bits(bits);
            bad += (bits & 0x7FFFFFFFu) >= 0x7F7F8000u;
        }
        assert_int_equal(bad, weir_master_split(master, weight, residual, COUNT));
        weir_master_join(weight, residual, back, COUNT);
        assert_memory_equal(master, back, sizeof master);
        for (uint32_t i = 0; i < COUNT; i++) {
            uint32_t bits = bits_of(master[i]);
            if ((bits & 0x7FFFFFFFu) < 0x7F7F8000u && (bits & 0xFFFFu) != 0x8000u)
                assert_int_equal(nearest_even(master[i]), weight[i]);
        }
    }
}

static void cast_check(struct test_kernels *t, const float *wide, uint64_t count)
{
    float *in = test_kernels_memory(t, count * 4), *back = test_kernels_memory(t, count * 4);
    uint16_t *narrow = test_kernels_memory(t, count * 2 + 2), *sum = narrow;
    memcpy(in, wide, count * 4);
    narrow[count] = 0xBEEF;
    struct weir_cast_args down = {
        .in = in, .out = narrow, .from = WEIR_FP32, .to = WEIR_BF16, .count = count};
    struct weir_cast_args up = {
        .in = narrow, .out = back, .from = WEIR_BF16, .to = WEIR_FP32, .count = count};
    assert_ok(t->table->cast(t->kernels, t->stream, &down));
    assert_ok(t->table->cast(t->kernels, t->stream, &up));
    test_kernels_wait(t);
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(weir_bf16_from_float(wide[i]), narrow[i]);
        assert_int_equal((uint32_t)narrow[i] << 16, bits_of(back[i]));
    }
    struct weir_add_args add16 = {
        .a = narrow, .b = narrow, .out = sum, .dtype = WEIR_BF16, .count = count};
    struct weir_add_args add32 = {
        .a = in, .b = back, .out = in, .dtype = WEIR_FP32, .count = count};
    assert_ok(t->table->add(t->kernels, t->stream, &add16));
    assert_ok(t->table->add(t->kernels, t->stream, &add32));
    test_kernels_wait(t);
    for (uint64_t i = 0; i < count; i++) {
        float twice = back[i] + back[i], expected = wide[i] + back[i];
        if (isnan(twice)) /* which one it is is the machine's */
            assert_true(isnan(weir_float_from_bf16(sum[i])));
        else
            assert_int_equal(weir_bf16_from_float(twice), sum[i]);
        assert_true(isnan(expected) ? isnan(in[i]) : bits_of(expected) == bits_of(in[i]));
    }
    assert_int_equal(0xBEEF, narrow[count]);
}

/* The cast and add operations give the scalar helpers' bits on each instruction set, at odd counts,
 * and write nothing behind their end. */
static void cast_and_add_match_the_scalar_form(void **state)
{
    (void)state;
    struct test_random random = test_random_open(13);
    enum { MOST = 10001 };
    static float wide[MOST];
    static const uint64_t counts[] = {1, 15, 17, 4097, MOST};
    for (int variant = 0; variant < TEST_VARIANT_COUNT; variant++) {
        struct test_kernels t;
        if (!test_kernels_open(&t, test_variant_names[variant], 2))
            continue;
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            for (uint64_t i = 0; i < counts[c]; i++)
                wide[i] = of_bits((uint32_t)test_random_next(&random));
            cast_check(&t, wide, counts[c]);
        }
        test_kernels_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_patterns_survive),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(f16_patterns_have_their_value),
        cmocka_unit_test(split_loses_nothing),
        cmocka_unit_test(cast_and_add_match_the_scalar_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
