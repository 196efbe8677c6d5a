#include "tests/support_double.h"

struct test_fault test_faults[TEST_FAULT_COUNT];

void test_fault_set(enum test_fault_kind kind, uint64_t nth, bool for_good)
{
    struct test_fault *fault = &test_faults[kind];
    atomic_store(&fault->nth, nth);
    atomic_store(&fault->for_good, for_good);
    atomic_store(&fault->made_count, 0);
    atomic_store(&fault->failed_count, 0);
}

/* Relaxed: a double must not order threads that its instance does not order. */
bool test_fault_turn(enum test_fault_kind kind)
{
    struct test_fault *fault = &test_faults[kind];
    uint64_t made = atomic_fetch_add_explicit(&fault->made_count, 1, memory_order_relaxed) + 1;
    uint64_t nth = atomic_load_explicit(&fault->nth, memory_order_relaxed);
    bool for_good = atomic_load_explicit(&fault->for_good, memory_order_relaxed);
    if (nth == 0 || made < nth || (made > nth && !for_good))
        return false;
    atomic_fetch_add_explicit(&fault->failed_count, 1, memory_order_relaxed);
    return true;
}
