/* Initial weights: known answers, a normal distribution, and independence of how they are asked. */
#include "kernels/kernels.h"
#include "kernels/random.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

/* Philox4x32-10 gives the known answers of its authors. */
static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    };
    for (int i = 0; i < 2; i++) {
        uint32_t out[4];
        weir_philox(known[i].counter, known[i].key, out);
        assert_memory_equal(known[i].out, out, sizeof out);
    }
}

/* Any part of a tensor gets the values that it has in the whole, across 2^32 too. */
static void parts_equal_the_whole(void **state)
{
    (void)state;
    struct test_random random = test_random_open(21);
    enum { COUNT = 3000 };
    static float whole[COUNT], part[COUNT];
    static const uint64_t firsts[] = {0, ((uint64_t)1 << 32) - COUNT / 2};
    for (int f = 0; f < 2; f++) {
        weir_random_normal(7, "model.norm", firsts[f], COUNT, 0.02f, whole);
        for (uint32_t draw = 0; draw < test_draws(100); draw++) {
            uint64_t from = test_random_below(&random, COUNT);
            uint64_t count = test_random_below(&random, COUNT - from) + 1;
            weir_random_normal(7, "model.norm", firsts[f] + from, count, 0.02f, part);
            assert_memory_equal(whole + from, part, count * sizeof *part);
        }
    }
}

/* Mean, deviation, fourth moment and tails over 2^19 values are those of a normal distribution. */
static void values_are_normal(void **state)
{
    (void)state;
    enum { COUNT = 1 << 19 };
    float *x = malloc(COUNT * sizeof *x);
    assert_non_null(x);
    weir_random_normal(1, "w", 0, COUNT, 0.5f, x);
    double sum = 0, squares = 0, fourth = 0;
    uint32_t beyond_two = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        double z = (double)x[i] / 0.5;
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
        beyond_two += fabs(z) > 2;
    }
    free(x);
    assert_true(fabs(sum / COUNT) < 0.01);
    assert_true(fabs(sqrt(squares / COUNT) - 1) < 0.01);
    assert_true(fourth / COUNT > 2.7 && fourth / COUNT < 3.1);
    assert_true(beyond_two > COUNT * 0.042 && beyond_two < COUNT * 0.049);
}

static uint32_t equal_count(uint64_t seed_a, const char *a, uint64_t seed_b, const char *b)
{
    enum { COUNT = 1000 };
    float x[COUNT], y[COUNT];
    uint32_t equal = 0;
    weir_random_normal(seed_a, a, 0, COUNT, 1, x);
    weir_random_normal(seed_b, b, 0, COUNT, 1, y);
    for (uint32_t i = 0; i < COUNT; i++)
        equal += x[i] == y[i];
    return equal;
}

/* Another seed or another name gives other values, the same ones the same. */
static void seed_and_name_are_the_key(void **state)
{
    (void)state;
    assert_int_equal(1000, equal_count(1, "a.weight", 1, "a.weight"));
    assert_true(equal_count(1, "a.weight", 2, "a.weight") < 10);
    assert_true(equal_count(1, "a.weight", 1, "b.weight") < 10);
}

/* The values themselves never change: weights of a seed are the same in every build. */
static void values_are_pinned(void **state)
{
    (void)state;
    static const float at_start[4] = {-0x1.2d498ap-7f, -0x1.91e85ep+0f, 0x1.31f4e4p-1f,
                                      0x1.b88b6ap-1f};
    static const float across_2_32[4] = {0x1.79c936p-1f, -0x1.1399e2p+0f, -0x1.909172p-4f,
                                         0x1.351852p-1f};
    float x[4];
    weir_random_normal(1, "pinned", 0, 4, 1, x);
    assert_memory_equal(at_start, x, sizeof x);
    weir_random_normal(1, "pinned", ((uint64_t)1 << 32) - 2, 4, 1, x);
    assert_memory_equal(across_2_32, x, sizeof x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(parts_equal_the_whole),
        cmocka_unit_test(values_are_normal),
        cmocka_unit_test(seed_and_name_are_the_key),
        cmocka_unit_test(values_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
