/* Reducing a gradient window: rounding in place, padding, and the sums of squares. */
#include "tests/support.h"
#include "tests/support_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ELEMENTS (4u * WEIR_SEGMENT_ELEMENTS)

/* Elements of each segment of a window. */
struct shape {
    uint32_t segment_count, counts[WEIR_WINDOW_SEGMENTS];
};
static const struct shape uneven = {6, {65536, 1, 2047, 2048, 50001, 17}};

static uint32_t segments_fill(const struct shape *shape, struct weir_window_segment *segments)
{
    uint32_t offset = 0;
    for (uint32_t s = 0; s < shape->segment_count; s++) {
        uint32_t padded = (shape->counts[s] + 2047) / 2048 * 2048;
        segments[s] = (struct weir_window_segment){
            .offset = offset, .count = shape->counts[s], .padded_count = padded};
        offset += padded;
    }
    return offset;
}

/* The definition: of each 2048 elements 32 lanes by index and the tree 16, 8, 4, 2, 1; these in
 * order. */
static double squares_by_definition(const float *x, uint32_t count)
{
    double sum = 0;
    for (uint32_t first = 0; first < count; first += 2048) {
        double lane[32] = {0};
        for (uint32_t i = first; i < count && i < first + 2048; i++) {
            double square = (double)x[i] * (double)x[i];
            lane[i % 32] += square;
        }
        for (int half = 16; half > 0; half /= 2)
            for (int l = 0; l < half; l++)
                lane[l] += lane[l + half];
        sum += lane[0];
    }
    return sum;
}

static bool same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void segment_check(const struct weir_window_segment *segment, enum weir_dtype dtype,
                          const float *before, const void *after, double partial)
{
    static float rounded[WEIR_SEGMENT_ELEMENTS];
    for (uint32_t i = 0; i < segment->padded_count; i++) {
        uint32_t at = segment->offset + i;
        float value = i < segment->count ? before[at] : 0;
        if (dtype == WEIR_BF16) {
            uint16_t bits = weir_bf16_from_float(value);
            assert_int_equal(bits, ((const uint16_t *)after)[at]);
            value = weir_float_from_bf16(bits);
        } else {
            assert_memory_equal(&value, (const float *)after + at, sizeof value);
        }
        rounded[i] = value;
    }
    assert_true(same_double(squares_by_definition(rounded, segment->count), partial));
}

static void window_check(struct test_kernels *t, const struct shape *shape, enum weir_dtype dtype,
                         const float *before, float *grad, double *partials)
{
    struct weir_reduce_args a = {.grad_dtype = dtype,
                                 .grad = grad,
                                 .partials = partials,
                                 .segment_count = shape->segment_count};
    uint32_t elements = segments_fill(shape, a.segments);
    assert_true(elements <= MOST_ELEMENTS);
    memcpy(grad, before, elements * sizeof *grad);
    partials[shape->segment_count] = -1;
    assert_ok(t->table->reduce(t->kernels, t->stream, &a));
    test_kernels_wait(t);
    for (uint32_t s = 0; s < shape->segment_count; s++)
        segment_check(&a.segments[s], dtype, before, grad, partials[s]);
    assert_true(partials[shape->segment_count] == -1);
}

/* A few that are rounded in place and move far, over each other or over themselves; then drawn
 * ones.
 */
static uint32_t shapes_make(struct test_random *random, struct shape *shapes, uint32_t most)
{
    static const struct shape given[] = {
        {1, {3000}},
        {4, {17, 65536, 65536, 50001}},
        {3, {2048, 65535, 1}},
        {16, {64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64}},
        {5, {4097, 2049, 127, 33, 31}},
    };
    uint32_t count = 0;
    shapes[count++] = uneven;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        shapes[count++] = given[i];
    for (uint32_t draw = 0; draw < test_draws(20) && count < most; draw++) {
        struct shape *shape = &shapes[count++];
        shape->segment_count = (uint32_t)test_random_below(random, WEIR_WINDOW_SEGMENTS) + 1;
        for (uint32_t s = 0; s < shape->segment_count; s++)
            shape->counts[s] = (uint32_t)test_random_below(random, 1u << (10 + s % 4)) + 1;
    }
    return count;
}

/* Windows of uneven segments become dense, rounded to nearest even, with zero padding and the
 * defined sums, to the bit, on each instruction set and on cuda, in both dtypes, with one thread
 * and with two. */
static void windows_match_the_definition(void **state)
{
    (void)state;
    struct test_random random = test_random_open(31);
    struct shape shapes[40];
    uint32_t shape_count = shapes_make(&random, shapes, 40);
    float *before = malloc(MOST_ELEMENTS * sizeof *before);
    assert_non_null(before);
    for (uint32_t i = 0; i < MOST_ELEMENTS; i++)
        before[i] =
            (float)ldexp(test_random_unit(&random) - 0.5, (int)test_random_below(&random, 60) - 40);
    for (int variant = 0; variant < TEST_VARIANT_COUNT; variant++)
        for (int threads = 1; threads <= 2; threads++) {
            struct test_kernels t;
            if (!test_kernels_open(&t, test_variant_names[variant], threads))
                continue;
            float *grad = test_kernels_memory(&t, MOST_ELEMENTS * sizeof *grad);
            double *partials =
                test_kernels_memory(&t, (WEIR_WINDOW_SEGMENTS + 1) * sizeof *partials);
            for (uint32_t s = (uint32_t)threads - 1; s < shape_count; s += 2) {
                window_check(&t, &shapes[s], WEIR_BF16, before, grad, partials);
                window_check(&t, &shapes[s], WEIR_FP32, before, grad, partials);
            }
            test_kernels_close(&t);
        }
    free(before);
}

/* An inf, a nan, or a value that rounds to inf shows in its segment's sum, and only there. */
static void not_finite_shows_in_its_segment(void **state)
{
    (void)state;
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 2));
    float *grad = test_kernels_memory(&t, MOST_ELEMENTS * sizeof *grad);
    double *partials = test_kernels_memory(&t, uneven.segment_count * sizeof *partials);
    static const float poison[] = {INFINITY, -INFINITY, NAN, 3.4028235e38f};
    for (int p = 0; p < 4; p++) {
        struct weir_reduce_args a = {.grad_dtype = WEIR_BF16,
                                     .grad = grad,
                                     .partials = partials,
                                     .segment_count = uneven.segment_count};
        uint32_t elements = segments_fill(&uneven, a.segments);
        for (uint32_t i = 0; i < elements; i++)
            grad[i] = 1;
        grad[a.segments[4].offset + 4321] = poison[p];
        assert_ok(t.table->reduce(t.kernels, t.stream, &a));
        test_kernels_wait(&t);
        for (uint32_t s = 0; s < uneven.segment_count; s++)
            assert_int_equal(s != 4, isfinite(partials[s]) && partials[s] == uneven.counts[s]);
    }
    test_kernels_close(&t);
}

/* Clearing residuals touches nothing else of the state, and nothing at all in fp32 training. */
static void clear_residual_keeps_the_moments(void **state)
{
    (void)state;
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 2));
    unsigned char *bytes = test_kernels_memory(&t, MOST_ELEMENTS * 10ull);
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++) {
        struct weir_clear_residual_args a = {
            .dtype = (enum weir_dtype)dtype, .state = bytes, .segment_count = uneven.segment_count};
        uint64_t state_bytes =
            segments_fill(&uneven, a.segments) * (dtype == WEIR_BF16 ? 10ull : 8ull);
        memset(bytes, 0x77, state_bytes + 1);
        assert_ok(t.table->clear_residual(t.kernels, t.stream, &a));
        test_kernels_wait(&t);
        uint64_t at = 0;
        for (uint32_t s = 0; s < uneven.segment_count; s++) {
            uint64_t cleared = dtype == WEIR_BF16 ? a.segments[s].padded_count * 2ull : 0;
            for (uint64_t i = 0; i < cleared + a.segments[s].padded_count * 8ull; i++)
                if (bytes[at++] != (i < cleared ? 0 : 0x77))
                    fail_msg("segment %u, byte %llu", s, (unsigned long long)i);
        }
        assert_int_equal(state_bytes, at);
        assert_int_equal(0x77, bytes[state_bytes]);
    }
    test_kernels_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_match_the_definition),
        cmocka_unit_test(not_finite_shows_in_its_segment),
        cmocka_unit_test(clear_residual_keeps_the_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
