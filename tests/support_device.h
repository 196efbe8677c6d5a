/*
 * One open device with five streams over its three engines, and calls that tests steer: a gate that
 * holds its stream until it is opened, and a counter.
 */
#ifndef WEIR_TESTS_SUPPORT_DEVICE_H
#define WEIR_TESTS_SUPPORT_DEVICE_H

#include "core/device.h"
#include "tests/support.h"

#include <semaphore.h>

/* Every built instance, the host one twice. */
struct test_variant {
    const char *name;
    bool strict;
};
extern const struct test_variant test_variants[];
extern const size_t test_variant_count;

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

/* A call that adds 1 to a plain int; ordered by streams and events alone. */
void test_count_queue(struct test_device *device, struct weir_stream *stream, int *count);

#endif
