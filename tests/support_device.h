/*
 * One open device with five streams over its three engines, and calls that tests steer: a gate that
 * holds its stream until it is opened, and a counter.
 */
#ifndef WEIR_TESTS_SUPPORT_DEVICE_H
#define WEIR_TESTS_SUPPORT_DEVICE_H

#include "core/device.h"
#include "tests/support.h"

#include <semaphore.h>

/* Each instance, strict and not. A program runs those of the instance that its first argument
 * names; without one those of the host. */
struct test_variant {
    const char *name;
    bool strict;
};
#define TEST_VARIANTS 2
void test_variants_choose(int argument_count, char **arguments,
                          struct test_variant out[TEST_VARIANTS]);

#define TEST_MEMORY_BYTES (UINT64_C(64) << 20)

/* Indices of streams: two that share the compute engine, two that share the to-device engine. */
enum { COMPUTE, UPDATE, TO_DEVICE, TO_DEVICE_2, TO_HOST, STREAM_COUNT };

struct test_gate {
    sem_t opened;
};
#define TEST_GATES 8

struct test_device {
    struct test_variant variant;
    const struct weir_device_table *table;
    struct weir_device *device;
    struct weir_stream *streams[STREAM_COUNT];
    struct test_gate gates[TEST_GATES];
    int gate_count;
    bool cpu; /* device memory is the CPU's */
};

void test_device_open(struct test_device *device, struct test_variant variant, uint64_t seed);
void test_device_close(struct test_device *device);

/* cmocka setup and teardown: *state is a struct test_variant before, a struct test_device after. */
int test_device_setup(void **state);
int test_device_teardown(void **state);

/* Queue a call that waits until its gate is opened; closing the device opens what is still shut, so
 * that a failed test ends. */
struct test_gate *test_gate_queue(struct test_device *device, struct weir_stream *stream);
void test_gate_open(struct test_gate *gate);

/* Marks are set by copies: calls, of which a gate is one, may run one at a time over all streams.
 */
#define TEST_MARKS 64
struct test_marks {
    struct test_device *device;
    unsigned char *on_device, *pinned;
};
void test_marks_open(struct test_marks *marks, struct test_device *device);
void test_marks_close(struct test_marks *marks);
void test_mark_queue(struct test_marks *marks, struct weir_stream *stream, int mark);
bool test_mark_seen(const struct test_marks *marks, int mark);

/* A call that adds 1 to a plain int; ordered by streams and events alone. */
void test_count_queue(struct test_device *device, struct weir_stream *stream, int *count);

#endif
