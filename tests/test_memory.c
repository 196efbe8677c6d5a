#include "core/memory.h"
#include "tests/support.h"

#include <string.h>

/* Memory is zeroed, counted while held, never NULL on success. */
static void memory_is_zeroed_and_counted(void **state)
{
    (void)state;
    uint64_t before = weir_alloc_bytes();
    unsigned char *bytes;
    void *none;
    assert_ok(weir_alloc(&bytes, 100, 10, "bytes"));
    assert_ok(weir_alloc(&none, 0, 8, "nothing"));
    assert_non_null(none);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(0, bytes[i]);
    assert_true(weir_alloc_bytes() >= before + 1000);
    weir_free(bytes);
    weir_free(none);
    weir_free(NULL);
    assert_int_equal(before, weir_alloc_bytes());
}

/* A product that overflows is out of memory, and the text says of what. */
static void overflow_is_nomem(void **state)
{
    (void)state;
    void *memory;
    assert_fails(weir_alloc(&memory, SIZE_MAX / 2, 3, "the trace"), WEIR_ERR_NOMEM, "the trace");
}

/* Growing keeps what was there, zeroes the rest, doubles, and does nothing when there is room. */
static void grow_keeps_and_doubles(void **state)
{
    (void)state;
    uint32_t *array = NULL;
    size_t capacity = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        size_t old = capacity;
        assert_ok(weir_grow(&array, &capacity, i + 1, sizeof *array, "numbers"));
        assert_true(capacity == old || capacity >= 2 * old);
        assert_int_equal(0, array[i]);
        array[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(i, array[i]);
    weir_free(array);
}

/* A failed growth leaves the array as it was. */
static void failed_growth_changes_nothing(void **state)
{
    (void)state;
    uint32_t *array = NULL;
    size_t capacity = 0;
    assert_ok(weir_grow(&array, &capacity, 4, sizeof *array, "numbers"));
    uint32_t *old = array;
    size_t old_capacity = capacity;
    array[3] = 3;
    weir_alloc_fail_at(1);
    assert_fails(weir_grow(&array, &capacity, capacity + 1, sizeof *array, "numbers"),
                 WEIR_ERR_NOMEM, "numbers");
    assert_ptr_equal(old, array);
    assert_int_equal(old_capacity, capacity);
    assert_int_equal(3, array[3]);
    weir_free(array);
    weir_alloc_fail_at(0);
}

/* Exactly the nth allocation fails, once, and the count of a run is told afterwards. */
static void nth_allocation_fails_once(void **state)
{
    (void)state;
    weir_alloc_fail_at(3);
    for (int i = 1; i <= 6; i++) {
        char *text;
        enum weir_status status = weir_strdup(&text, "text");
        assert_int_equal(i == 3 ? WEIR_ERR_NOMEM : WEIR_OK, status);
        if (status == WEIR_OK) {
            assert_string_equal("text", text);
            weir_free(text);
        }
    }
    assert_int_equal(6, weir_alloc_fail_at(0));
    assert_int_equal(0, weir_alloc_fail_at(0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_and_counted),
        cmocka_unit_test(overflow_is_nomem),
        cmocka_unit_test(grow_keeps_and_doubles),
        cmocka_unit_test(failed_growth_changes_nothing),
        cmocka_unit_test(nth_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
