#include "tests/support_device.h"

#include <stdlib.h>

const struct test_variant test_variants[] = {{"host", false}, {"host", true}};
const size_t test_variant_count = sizeof test_variants / sizeof *test_variants;

void test_device_open(struct test_device *device, struct test_variant variant, uint64_t seed)
{
    static const enum weir_engine engines[STREAM_COUNT] = {
        WEIR_ENGINE_COMPUTE, WEIR_ENGINE_COMPUTE, WEIR_ENGINE_TO_DEVICE, WEIR_ENGINE_TO_DEVICE,
        WEIR_ENGINE_TO_HOST};
    static const char *const names[STREAM_COUNT] = {"compute", "update", "to-device", "to-device-2",
                                                    "to-host"};
    device->variant = variant;
    device->gate_count = 0;
    assert_ok(weir_device_find(variant.name, &device->table));
    struct weir_device_options options = {.memory_bytes = TEST_MEMORY_BYTES,
                                          .thread_count = 1,
                                          .strict = variant.strict,
                                          .seed = seed};
    assert_ok(device->table->open(&device->device, &options));
    for (int i = 0; i < STREAM_COUNT; i++)
        assert_ok(device->table->stream_create(device->device, engines[i], names[i],
                                               &device->streams[i]));
}

void test_device_close(struct test_device *device)
{
    for (int i = 0; i < device->gate_count; i++)
        test_gate_open(&device->gates[i]);
    for (int i = 0; i < STREAM_COUNT; i++)
        device->table->stream_destroy(device->streams[i]);
    device->table->close(device->device);
}

int test_device_setup(void **state)
{
    const struct test_variant *variant = *state;
    struct test_device *device = calloc(1, sizeof *device);
    assert_non_null(device);
    test_device_open(device, *variant, 1);
    *state = device;
    return 0;
}

int test_device_teardown(void **state)
{
    test_device_close(*state);
    free(*state);
    return 0;
}

static void gate_wait(void *argument)
{
    struct test_gate *gate = *(struct test_gate **)argument;
    while (sem_wait(&gate->opened) != 0)
        ;
}

struct test_gate *test_gate_queue(struct test_device *device, struct weir_stream *stream)
{
    assert_true(device->gate_count < TEST_GATES);
    struct test_gate *gate = &device->gates[device->gate_count];
    assert_int_equal(0, sem_init(&gate->opened, 0, 0));
    assert_ok(device->table->call(stream, gate_wait, &gate, sizeof gate, NULL, 0));
    device->gate_count++;
    return gate;
}

void test_gate_open(struct test_gate *gate)
{
    assert_int_equal(0, sem_post(&gate->opened));
}

static void count_up(void *argument)
{
    ++**(int **)argument;
}

void test_count_queue(struct test_device *device, struct weir_stream *stream, int *count)
{
    struct weir_range range = {count, sizeof *count, true};
    assert_ok(device->table->call(stream, count_up, &count, sizeof count, &range, 1));
}
