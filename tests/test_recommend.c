/* Which block, depth and engine weir-bench recommends. */
#include "tests/support.h"

#include "examples/bench/io.h"

#define MIB 1048576u

enum { READ = PATTERN_READ, WRITE = PATTERN_WRITE, MIXED = PATTERN_MIXED };
enum { RING = ENGINE_URING, POOL = ENGINE_THREADS };

/* The knee, not the top: the fewest bytes in flight within 3 % of the best. */
static void the_knee_is_recommended(void **state)
{
    (void)state;
    const struct measured points[] = {{MIB, 1, RING, READ, 2.00, 0.01},
                                      {MIB, 8, RING, READ, 3.90, 0.01},
                                      {MIB, 32, RING, READ, 4.00, 0.01},
                                      {8 * MIB, 8, RING, READ, 3.95, 0.01},
                                      {8 * MIB, 32, RING, READ, 3.99, 0.01}};
    struct recommendation advice = recommend(points, 5);
    assert_int_equal(1, advice.index);
    assert_true(advice.within && advice.fraction == 3.90 / 4.00);
}

/* A point must do in each direction what another does there. */
static void every_direction_counts(void **state)
{
    (void)state;
    const struct measured points[] = {{MIB, 8, RING, READ, 4.0, 0.01},
                                      {MIB, 32, RING, READ, 4.0, 0.01},
                                      {MIB, 8, RING, WRITE, 1.0, 0.01},
                                      {MIB, 32, RING, WRITE, 2.0, 0.01}};
    struct recommendation advice = recommend(points, 4);
    assert_int_equal(32, points[advice.index].depth);
    assert_true(advice.within && advice.fraction == 1);
}

/* Where none is near the best everywhere, the nearest is named, and that it is only that. */
static void the_nearest_is_named_as_such(void **state)
{
    (void)state;
    const struct measured points[] = {{MIB, 8, RING, READ, 4.0, 0.01},
                                      {MIB, 32, RING, READ, 3.0, 0.01},
                                      {MIB, 8, RING, WRITE, 1.0, 0.01},
                                      {MIB, 32, RING, WRITE, 2.0, 0.01}};
    struct recommendation advice = recommend(points, 4);
    assert_int_equal(32, points[advice.index].depth);
    assert_true(!advice.within && advice.fraction == 0.75);
}

/* Of two engines that are as fast the one that leaves more of the CPU. */
static void the_cheaper_engine_wins(void **state)
{
    (void)state;
    const struct measured points[] = {{MIB, 8, POOL, READ, 4.00, 0.03},
                                      {MIB, 8, RING, READ, 3.95, 0.01}};
    assert_int_equal(1, recommend(points, 2).index);
    const struct measured slower[] = {{MIB, 8, POOL, READ, 4.00, 0.03},
                                      {MIB, 8, RING, READ, 3.80, 0.01}};
    assert_int_equal(0, recommend(slower, 2).index);
}

/* Reads at 2 and writes at 4 GB/s: of equal parts in turns 2.67; a mix that was measured faster
 * counts instead. */
static void the_best_of_a_mix(void **state)
{
    (void)state;
    struct measured points[] = {{MIB, 8, RING, READ, 2, 0.01},
                                {MIB, 8, RING, WRITE, 4, 0.01},
                                {MIB, 8, RING, MIXED, 2.5, 0.01}};
    double turns = io_mix_best(points, 3, 1e9, 1e9);
    assert_true(turns > 2.666 && turns < 2.667);
    points[2].gb_per_s = 3;
    assert_true(io_mix_best(points, 3, 1e9, 1e9) == 3);
    assert_true(io_mix_best(points, 1, 1e9, 1e9) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_knee_is_recommended),
        cmocka_unit_test(every_direction_counts),
        cmocka_unit_test(the_nearest_is_named_as_such),
        cmocka_unit_test(the_cheaper_engine_wins),
        cmocka_unit_test(the_best_of_a_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
