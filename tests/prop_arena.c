/*
 * Random span sets against two independent judges: a pairwise overlap check, and the most bytes
 * alive at any one moment, below which no placement can be.
 */
#include "alloc/arena.h"
#include "core/memory.h"
#include "tests/support.h"

#include <string.h>

#define SPANS 400
#define TIME  60

static uint64_t load_most(const struct weir_span *spans, size_t count)
{
    uint64_t most = 0;
    for (uint32_t t = 0; t < 4 * TIME; t++) {
        uint64_t load = 0;
        for (size_t i = 0; i < count; i++)
            load += spans[i].start <= t && t < spans[i].end ? spans[i].bytes : 0;
        most = load > most ? load : most;
    }
    return most;
}

static void assert_placed(const struct weir_span *spans, size_t count, uint64_t height)
{
    uint64_t top = 0;
    for (size_t i = 0; i < count; i++) {
        const struct weir_span *a = &spans[i];
        assert_int_equal(0, a->offset % WEIR_ARENA_ALIGN_BYTES);
        top = a->offset + a->bytes > top ? a->offset + a->bytes : top;
        for (size_t j = 0; j < i; j++) {
            const struct weir_span *b = &spans[j];
            bool together = a->start < b->end && b->start < a->end;
            bool overlap = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
            assert_false(together && overlap);
        }
    }
    assert_int_equal(top, height);
}

static size_t draw_spans(struct test_random *random, struct weir_span *spans, uint64_t sizes)
{
    size_t count = test_random_below(random, SPANS) + 1;
    uint64_t longest = test_random_below(random, TIME) + 1;
    for (size_t i = 0; i < count; i++) {
        uint32_t start = (uint32_t)test_random_below(random, TIME);
        uint32_t end = start + 1 + (uint32_t)test_random_below(random, longest);
        uint64_t pages = test_random_below(random, sizes) + 1;
        spans[i] = (struct weir_span){start, end, pages * WEIR_ARENA_ALIGN_BYTES, UINT64_MAX};
    }
    return count;
}

/* No two spans that live together overlap, the height is the highest end and at least the load,
 * and the same input gives the same placement. */
static void no_overlap_at_a_possible_height_repeatably(void **state)
{
    (void)state;
    struct test_random random = test_random_open(1);
    static struct weir_span spans[SPANS], again[SPANS];
    for (uint32_t n = 0; n < test_draws(60); n++) {
        size_t count = draw_spans(&random, spans, n % 2 ? 3 : 1000);
        memcpy(again, spans, count * sizeof *spans);
        uint64_t height, height_again, most = load_most(spans, count);
        uint64_t enough = n % 3 == 0 ? 0 : most + most / 50;
        assert_ok(weir_arena_place(spans, count, enough, &height));
        assert_placed(spans, count, height);
        assert_true(height >= most);
        assert_true(height <= most + most / 2);
        assert_ok(weir_arena_place(again, count, enough, &height_again));
        assert_memory_equal(spans, again, count * sizeof *spans);
    }
}

/* Spans that all live at once are stacked without a gap; spans that never meet share offset 0. */
static void trivial_sets_are_perfect(void **state)
{
    (void)state;
    struct weir_span spans[10];
    uint64_t height, sum = 0;
    for (uint32_t i = 0; i < 10; i++) {
        spans[i] = (struct weir_span){i, 10, (i + 1) * UINT64_C(4096), 0};
        sum += spans[i].bytes;
    }
    assert_ok(weir_arena_place(spans, 10, 0, &height));
    assert_int_equal(sum, height);
    for (uint32_t i = 0; i < 10; i++)
        spans[i].end = i + 1;
    assert_ok(weir_arena_place(spans, 10, 0, &height));
    assert_int_equal(10 * 4096, height);
    assert_ok(weir_arena_place(NULL, 0, 0, &height));
    assert_int_equal(0, height);
}

/* A span without lifetime or of a crooked size is refused by its number. */
static void bad_spans_are_refused(void **state)
{
    (void)state;
    uint64_t height;
    struct weir_span spans[2] = {{0, 1, 4096, 0}, {3, 3, 4096, 0}};
    assert_fails(weir_arena_place(spans, 2, 0, &height), WEIR_ERR_ARG, "span 1");
    spans[1] = (struct weir_span){3, 4, 4097, 0};
    assert_fails(weir_arena_place(spans, 2, 0, &height), WEIR_ERR_ARG, "4097");
    spans[1] = (struct weir_span){3, 4, 0, 0};
    assert_fails(weir_arena_place(spans, 2, 0, &height), WEIR_ERR_ARG, "span 1");
}

/* Whichever allocation fails, it is NOMEM, nothing leaks, and a retry succeeds. */
static void any_failed_allocation_is_nomem(void **state)
{
    (void)state;
    struct weir_span spans[2] = {{0, 2, 4096, 0}, {1, 3, 4096, 0}};
    uint64_t height, held = weir_alloc_bytes(), nth = 0;
    enum weir_status status;
    do {
        weir_alloc_fail_at(++nth);
        status = weir_arena_place(spans, 2, 0, &height);
        assert_true(status == WEIR_OK || status == WEIR_ERR_NOMEM);
        assert_int_equal(held, weir_alloc_bytes());
    } while (status != WEIR_OK);
    weir_alloc_fail_at(0);
    assert_true(nth > 3);
    assert_int_equal(8192, height);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_overlap_at_a_possible_height_repeatably),
        cmocka_unit_test(trivial_sets_are_perfect),
        cmocka_unit_test(bad_spans_are_refused),
        cmocka_unit_test(any_failed_allocation_is_nomem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
