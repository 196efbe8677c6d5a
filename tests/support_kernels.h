/*
 * The kernels of the host instance on an open device, for tests of single operations.
 */
#ifndef WEIR_TESTS_SUPPORT_KERNELS_H
#define WEIR_TESTS_SUPPORT_KERNELS_H

#include "kernels/kernels.h"

#define TEST_ISA_COUNT 3
extern const char *const test_isa_names[TEST_ISA_COUNT]; /* generic first: every CPU has it */

struct test_kernels {
    struct weir_device *device;
    struct weir_stream *stream;
    const struct weir_kernels_table *table;
    struct weir_kernels *kernels;
    void *memory[32];
    size_t memory_count;
};

/* False, with nothing open, if this CPU lacks the instruction set. NULL: the best one. */
bool test_kernels_open(struct test_kernels *t, const char *isa, int thread_count);
void test_kernels_close(struct test_kernels *t);
/* Device memory, which tests on the host read and write while the stream rests. */
void *test_kernels_memory(struct test_kernels *t, uint64_t bytes);
void test_kernels_wait(struct test_kernels *t);

#endif
