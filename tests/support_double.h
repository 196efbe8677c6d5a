/*
 * Doubles of the four tables under a run (struct weir_seams in zero/run.h): the real instance, with
 * faults injected at the Nth place, once or for good. One run at a time is open on them.
 *
 *     test_fault_set(TEST_FAULT_DEVICE, 7, false);
 *     weir_open_with(&run, &options, &(struct weir_seams){.device = &test_double_device, ...});
 */
#ifndef WEIR_TESTS_SUPPORT_DOUBLE_H
#define WEIR_TESTS_SUPPORT_DOUBLE_H

#include "io/engine.h"
#include "kernels/kernels.h"
#include "tests/support.h"
#include "zero/comm.h"

#include <stdatomic.h>

enum test_fault_kind {
    TEST_FAULT_DEVICE,  /* any call of the device table that returns a status: DEVICE */
    TEST_FAULT_KERNELS, /* the same of the kernels table: DEVICE */
    TEST_FAULT_COMM,    /* the same of the comm table: COMM */
    TEST_FAULT_SUBMIT,  /* the I/O engine's submit: IO */
    TEST_FAULT_RESULT,  /* a completion brings -EIO */
    TEST_FAULT_FULL,    /* a write's brings -ENOSPC */
    TEST_FAULT_SHORT,   /* a completion brings half; what it did not bring of a read is spoilt */
    TEST_FAULT_LATE,    /* a reap brings nothing of what has arrived */
    TEST_FAULT_REORDER, /* the completions that a reap brings come in another order */
    TEST_FAULT_COUNT,
};

struct test_fault {
    atomic_uint_fast64_t nth; /* 1 = the next; 0: none */
    atomic_bool for_good;     /* every one from the nth on */
    atomic_uint_fast64_t made_count, failed_count;
};
extern struct test_fault test_faults[TEST_FAULT_COUNT];
void test_fault_set(enum test_fault_kind kind, uint64_t nth, bool for_good);
/* One more place of this kind is passed: does it fail? */
bool test_fault_turn(enum test_fault_kind kind);

extern const struct weir_device_table test_double_device;
extern const struct weir_kernels_table test_double_kernels;
extern const struct weir_comm_table test_double_comm;
extern const struct weir_io_engine_table test_double_io;

#endif
