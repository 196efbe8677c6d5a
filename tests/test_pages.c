/* Memory by the page: aligned, zeroed, and resident once it was touched. */
#include "core/pages.h"
#include "tests/support.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static uint64_t resident_pages(void *memory, uint64_t bytes)
{
    static unsigned char seen[(300 * MIB) / 4096];
    uint64_t count = (bytes + 4095) / 4096, sum = 0;
    assert_true(count <= sizeof seen);
    assert_int_equal(0, mincore(memory, bytes, seen));
    for (uint64_t i = 0; i < count; i++)
        sum += seen[i] & 1;
    return sum;
}

/* Sizes for one thread and for several, none of which divides evenly. */
static void touched_pages_are_resident_and_zero(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {
        1, 4096, 4097, 2 * MIB - 1, 63 * MIB, 129 * MIB + 4095, 257 * MIB + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        _Atomic bool told = false;
        unsigned char *memory;
        void *out;
        assert_ok(weir_pages_map("host", NULL, &told, sizes[i], &out));
        memory = out;
        assert_int_equal(0, (uintptr_t)memory % (sizes[i] < 2 * MIB - 4095 ? 4096 : 2 * MIB));
        assert_int_equal(0, resident_pages(memory, sizes[i]));
        weir_pages_clear(memory, sizes[i]);
        assert_int_equal((sizes[i] + 4095) / 4096, resident_pages(memory, sizes[i]));
        for (uint64_t at = 0; at < sizes[i]; at += 997)
            assert_int_equal(0, memory[at]);
        assert_int_equal(0, memory[sizes[i] - 1]);
        weir_pages_unmap(memory, sizes[i]);
    }
}

/* Nothing, and more than there can be. */
static void odd_sizes_have_one_answer(void **state)
{
    (void)state;
    _Atomic bool told = false;
    void *memory;
    assert_ok(weir_pages_map("host", NULL, &told, 0, &memory));
    weir_pages_clear(memory, 0);
    weir_pages_unmap(memory, 0);
    assert_fails(weir_pages_map("host", NULL, &told, UINT64_MAX, &memory), WEIR_ERR_NOMEM,
                 "device \"host\": 18446744073709551615 bytes are not addressable");
    assert_fails(weir_pages_map("cuda", NULL, &told, (uint64_t)1 << 55, &memory), WEIR_ERR_NOMEM,
                 "device \"cuda\": need 36028797018963968 bytes of memory, this machine has ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(touched_pages_are_resident_and_zero),
        cmocka_unit_test(odd_sizes_have_one_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
