#include "tests/support_device.h"

#include <stdlib.h>
#include <string.h>

void test_variants_choose(int argument_count, char **arguments,
                          struct test_variant out[TEST_VARIANTS])
{
    const char *name = argument_count > 1 ? arguments[1] : "host";
    for (int i = 0; i < TEST_VARIANTS; i++)
        out[i] = (struct test_variant){name, i == 1};
}

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
    struct weir_device_info info;
    device->table->info(device->device, &info);
    device->cpu = info.calls_run_on_cpu;
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

void test_marks_open(struct test_marks *marks, struct test_device *device)
{
    void *on_device, *pinned;
    assert_ok(device->table->mem_alloc(device->device, TEST_MARKS, &on_device));
    assert_ok(device->table->pin_alloc(device->device, TEST_MARKS, &pinned));
    memset(pinned, 0, TEST_MARKS);
    *marks = (struct test_marks){device, on_device, pinned};
}

void test_marks_close(struct test_marks *marks)
{
    struct test_device *device = marks->device;
    assert_ok(device->table->mem_free(device->device, marks->on_device));
    assert_ok(device->table->pin_free(device->device, marks->pinned));
}

void test_mark_queue(struct test_marks *marks, struct weir_stream *stream, int mark)
{
    const struct weir_device_table *table = marks->device->table;
    assert_ok(table->fill(stream, marks->on_device + mark, 1, 1));
    assert_ok(
        table->copy(stream, marks->pinned + mark, marks->on_device + mark, 1, WEIR_COPY_TO_HOST));
}

bool test_mark_seen(const struct test_marks *marks, int mark)
{
    return marks->pinned[mark] == 1;
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
