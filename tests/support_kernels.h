/*
 * The kernels of an instance on an open device, for tests of single operations.
 *
 * A program that is linked with the simulator (tests/cudasim: weir_sim_test) has variants of the
 * cuda instance too, one for each order in which the simulator runs threads; elsewhere they are
 * absent. A program for a GPU (tests/gpu) has them too: there an order is one more run, which must
 * give the same bits. So one source tests both instances.
 */
#ifndef WEIR_TESTS_SUPPORT_KERNELS_H
#define WEIR_TESTS_SUPPORT_KERNELS_H

#include "kernels/kernels.h"

#define TEST_ISA_COUNT     3 /* of the host: generic, which every CPU has, avx2, avx512 */
#define TEST_VARIANT_COUNT 6 /* then cuda forward, cuda reverse, cuda random */
extern const char *const test_variant_names[TEST_VARIANT_COUNT];

struct test_kernels {
    struct weir_device *device;
    struct weir_stream *stream;
    const struct weir_kernels_table *table;
    struct weir_kernels *kernels;
    void *memory[32];
    uint64_t memory_bytes[32];
    size_t memory_count;
};

/* False, with nothing open, if this CPU lacks the instruction set, or for variants of cuda in a
 * program that is not for it. NULL: the instance that the program is for: cuda with a simulator or
 * a GPU, else the host with its best instruction set. thread_count is the host's team. */
bool test_kernels_open(struct test_kernels *t, const char *variant, int thread_count);
void test_kernels_close(struct test_kernels *t);
bool test_kernels_simulated(void);
bool test_kernels_for_cuda(void); /* whether variants of cuda are there: simulated or on a GPU */
/* Whether they run under ThreadSanitizer, where shapes should have few threads and blocks. */
bool test_kernels_slow(void);
bool test_kernels_cuda(const struct test_kernels *t); /* whether this is one */
/* Device memory, which tests read and write while the stream rests. AddressSanitizer knows its
 * end. */
void *test_kernels_memory(struct test_kernels *t, uint64_t bytes);
void test_kernels_memory_free(struct test_kernels *t, void *memory); /* else at close */
void test_kernels_wait(struct test_kernels *t);

#endif
