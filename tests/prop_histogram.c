/* Percentiles of the histogram against the same percentiles of the sorted values. */
#include "tests/support.h"

#include "examples/bench/histogram.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define VALUES_MOST 20000u

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t value_draw(struct test_random *random)
{
    uint64_t bits = test_random_below(random, 64);
    return test_random_next(random) >> bits;
}

static double exact(const uint64_t *sorted, size_t count, double percent)
{
    return (double)sorted[(size_t)ceil(percent / 100 * (double)count) - 1];
}

/* Every percentile of any values, of all magnitudes, is within 1 % of that of the sorted values. */
static void percentiles_are_within_one_percent(void **state)
{
    (void)state;
    static const double percents[] = {0.1, 1, 25, 50, 90, 99, 99.9, 100};
    static struct histogram histogram;
    static uint64_t values[VALUES_MOST];
    struct test_random random = test_random_open(21);
    for (uint32_t draw = 0; draw < test_draws(60); draw++) {
        size_t count = 1 + test_random_below(&random, VALUES_MOST);
        histogram = (struct histogram){.total = 0};
        for (size_t i = 0; i < count; i++) {
            values[i] = value_draw(&random);
            histogram_add(&histogram, values[i]);
        }
        assert_int_equal(count, histogram.total);
        qsort(values, count, sizeof *values, by_value);
        for (size_t p = 0; p < sizeof percents / sizeof *percents; p++) {
            double want = exact(values, count, percents[p]),
                   got = histogram_percentile(&histogram, percents[p]);
            if (fabs(got - want) > 0.01 * want)
                fail_msg("p%g of %zu values is %.0f, the histogram says %.0f", percents[p], count,
                         want, got);
        }
    }
}

/* Small values are not rounded at all, and an empty histogram says 0. */
static void small_values_are_exact(void **state)
{
    (void)state;
    static struct histogram histogram;
    assert_true(histogram_percentile(&histogram, 50) == 0);
    for (uint64_t value = 0; value < 256; value++) {
        histogram = (struct histogram){.total = 0};
        histogram_add(&histogram, value);
        assert_true(histogram_percentile(&histogram, 100) == (double)value);
    }
    histogram = (struct histogram){.total = 0};
    histogram_add(&histogram, UINT64_MAX);
    assert_true(fabs(histogram_percentile(&histogram, 100) / 0x1p64 - 1) < 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_are_within_one_percent),
        cmocka_unit_test(small_values_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
