/* The arithmetic of the front: how a volume's bytes go round over its files, what is aligned to. */
#include "tests/support.h"

#include "io/io_internal.h"
#include "tests/support_volume.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define STRIPE 8192u

/* A cycle by the definition, one byte at a time: whose it is and where it lies there. */
static void bytes_compare(const struct weir_io_stripes *stripes, uint64_t linear)
{
    uint64_t locals[WEIR_IO_DRIVES_MOST] = {0};
    uint64_t number = linear / STRIPE;
    for (uint64_t s = 0; s < number; s++)
        locals[stripes->drives[s % stripes->cycle_count]] += STRIPE;
    uint32_t owner = stripes->drives[number % stripes->cycle_count];
    locals[owner] += linear % STRIPE;
    for (uint32_t d = 0; d < stripes->drive_count; d++)
        assert_int_equal(locals[d], weir_io_stripes_local(stripes, d, linear));
    assert_int_equal(linear, weir_io_stripes_linear(stripes, owner, locals[owner]));
    uint64_t run = STRIPE - linear % STRIPE;
    for (uint64_t s = number + 1; run < 5 * STRIPE; s++, run += STRIPE)
        if (stripes->drives[s % stripes->cycle_count] != owner)
            break;
    uint64_t found = weir_io_stripes_run(stripes, linear, 5 * STRIPE);
    assert_int_equal(run, found);
}

static void every_byte_has_one_place_and_one_way_back(void **state)
{
    /* Local offsets count the drive's own bytes before, so a linear range is one range of each
     * drive; the linear offset comes back; runs end where another drive begins. */
    (void)state;
    struct test_random random = test_random_open(31);
    for (uint32_t round = 0; round < test_draws(400); round++) {
        double shares[WEIR_IO_DRIVES_MOST];
        uint32_t count = 1 + (uint32_t)test_random_below(&random, WEIR_IO_DRIVES_MOST);
        test_shares_draw(&random, shares, count);
        struct weir_io_stripes stripes;
        assert_ok(weir_io_stripes_make(&stripes, shares, count, STRIPE));
        assert_in_range(stripes.cycle_count, 1, WEIR_IO_STRIPES_MOST);
        uint32_t sum = 0;
        for (uint32_t d = 0; d < count; d++) {
            assert_int_equal(shares[d] > 0, stripes.counts[d] > 0);
            sum += stripes.counts[d];
        }
        assert_int_equal(stripes.cycle_count, sum);
        for (int i = 0; i < 20; i++)
            bytes_compare(&stripes, test_random_below(&random, 300 * STRIPE));
    }
}

/* The end of the drive that is last, against the best that any split could do. */
static double slowness(const struct weir_io_stripes *stripes, const double *shares)
{
    double sum = 0, most = 0;
    for (uint32_t d = 0; d < stripes->drive_count; d++) {
        sum += shares[d];
        if (shares[d] > 0 && stripes->counts[d] / shares[d] > most)
            most = stripes->counts[d] / shares[d];
    }
    return most * sum / stripes->cycle_count;
}

static void the_cycle_ends_nearly_as_early_as_shares_allow(void **state)
{
    /* Ratios of small numbers are met exactly with the shortest cycle; drawn ones, none below a
     * stripe of the longest, to 4 % with up to four drives, to 15 % with up to 16. */
    (void)state;
    struct weir_io_stripes stripes;
    const double equal[4] = {7e9, 7e9, 7e9, 7e9}, ratio[3] = {3, 1, 2}, tiny[2] = {1, 1e-12};
    assert_ok(weir_io_stripes_make(&stripes, equal, 4, STRIPE));
    assert_int_equal(4, stripes.cycle_count);
    assert_ok(weir_io_stripes_make(&stripes, ratio, 3, STRIPE));
    assert_int_equal(6, stripes.cycle_count);
    assert_true(slowness(&stripes, ratio) < 1.000001);
    assert_ok(weir_io_stripes_make(&stripes, tiny, 2, STRIPE));
    assert_int_equal(WEIR_IO_STRIPES_MOST, stripes.cycle_count);
    assert_int_equal(1, stripes.counts[1]);
    struct test_random random = test_random_open(32);
    double worst[2] = {0, 0};
    for (uint32_t round = 0; round < test_draws(2000); round++) {
        double shares[WEIR_IO_DRIVES_MOST];
        uint32_t count = 1 + (uint32_t)test_random_below(&random, WEIR_IO_DRIVES_MOST);
        test_shares_draw(&random, shares, count);
        double sum = 0, least = 1;
        for (uint32_t d = 0; d < count; d++) {
            sum += shares[d];
            least = shares[d] > 0 ? fmin(least, shares[d]) : least;
        }
        if (least * WEIR_IO_STRIPES_MOST < sum)
            continue;
        assert_ok(weir_io_stripes_make(&stripes, shares, count, STRIPE));
        worst[count > 4] = fmax(worst[count > 4], slowness(&stripes, shares));
    }
    printf("slowest cycle: %.3f of up to four, %.3f of more\n", worst[0], worst[1]);
    assert_true(worst[0] >= 1 && worst[0] < 1.04);
    assert_true(worst[1] >= 1 && worst[1] < 1.15);
}

static void stripes_of_a_drive_are_spread_over_the_cycle(void **state)
{
    /* Any range of a few stripes gives each drive its part of them, to less than two. */
    (void)state;
    struct test_random random = test_random_open(33);
    for (uint32_t round = 0; round < test_draws(300); round++) {
        double shares[5];
        struct weir_io_stripes stripes;
        uint32_t count = 2 + (uint32_t)test_random_below(&random, 4);
        test_shares_draw(&random, shares, count);
        assert_ok(weir_io_stripes_make(&stripes, shares, count, STRIPE));
        uint64_t first = test_random_below(&random, 200), length = test_random_below(&random, 50);
        for (uint32_t d = 0; d < count; d++) {
            double part = (double)length * stripes.counts[d] / stripes.cycle_count;
            double has = (double)(weir_io_stripes_local(&stripes, d, (first + length) * STRIPE) -
                                  weir_io_stripes_local(&stripes, d, first * STRIPE)) /
                         STRIPE;
            assert_true(fabs(has - part) < 2);
        }
    }
}

static void the_shares_of_a_length_add_up(void **state)
{
    /* The files hold the volume's bytes, all and no more; wrong numbers are refused by name. */
    (void)state;
    struct test_random random = test_random_open(34);
    uint64_t bytes[WEIR_IO_DRIVES_MOST + 1];
    for (uint32_t round = 0; round < test_draws(300); round++) {
        double shares[WEIR_IO_DRIVES_MOST];
        uint32_t count = 1 + (uint32_t)test_random_below(&random, WEIR_IO_DRIVES_MOST);
        test_shares_draw(&random, shares, count);
        uint64_t all = test_random_next(&random) >> (2 + test_random_below(&random, 50)), sum = 0;
        assert_ok(weir_io_volume_share(shares, count, STRIPE, all, bytes));
        for (uint32_t d = 0; d < count; d++)
            sum += bytes[d];
        assert_int_equal(all, sum);
    }
    const double none[2] = {0, 0}, less[2] = {1, -1}, odd[2] = {NAN, 1}, one = 1;
    assert_fails(weir_io_volume_share(none, 2, STRIPE, 1, bytes), WEIR_ERR_ARG,
                 "each with a share");
    assert_fails(weir_io_volume_share(less, 2, STRIPE, 1, bytes), WEIR_ERR_ARG, "share of -1");
    assert_fails(weir_io_volume_share(odd, 2, STRIPE, 1, bytes), WEIR_ERR_ARG, "share of nan");
    assert_fails(weir_io_volume_share(&one, 0, STRIPE, 1, bytes), WEIR_ERR_ARG, "0 files");
    assert_fails(weir_io_volume_share(&one, 17, STRIPE, 1, bytes), WEIR_ERR_ARG, "17 files");
    assert_fails(weir_io_volume_share(&one, 1, 5000, 1, bytes), WEIR_ERR_ARG, "5000 bytes");
}

static void alignment_is_what_the_system_says(void **state)
{
    /* statx's two numbers if it has any, whatever they are; else the file system's block; 4096 only
     * where neither is of use. On a file here it is a power of two that a transfer can have. */
    (void)state;
    const uint32_t answers[] = {512, 4096, 16384, 65536};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(answers[i], weir_io_align_choose(answers[i], 4, 1024));
        assert_int_equal(answers[i], weir_io_align_choose(512, answers[i], 1024));
        assert_int_equal(answers[i], weir_io_align_choose(0, 0, answers[i]));
    }
    assert_int_equal(4096, weir_io_align_choose(0, 0, 0));
    assert_int_equal(4096, weir_io_align_choose(0, 0, 131072));
    assert_int_equal(4096, weir_io_align_choose(0, 0, 3000));
    assert_int_equal(4096, weir_io_align_choose(0, 512, 256));
    int fd = test_file_make(0);
    uint32_t align = weir_io_align_ask(fd);
    assert_true(align > 0 && align <= WEIR_IO_ALIGN_MOST && (align & (align - 1)) == 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_has_one_place_and_one_way_back),
        cmocka_unit_test(the_cycle_ends_nearly_as_early_as_shares_allow),
        cmocka_unit_test(stripes_of_a_drive_are_spread_over_the_cycle),
        cmocka_unit_test(the_shares_of_a_length_add_up),
        cmocka_unit_test(alignment_is_what_the_system_says),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
