#include "tests/support_kernels.h"
#include "tests/support.h"

const char *const test_isa_names[TEST_ISA_COUNT] = {"generic", "avx2", "avx512"};

static void device_open(struct test_kernels *t, int thread_count)
{
    const struct weir_device_table *table;
    struct weir_device_options options = {
        .memory_bytes = UINT64_MAX, .thread_count = thread_count, .strict = true, .seed = 1};
    assert_ok(weir_device_find("host", &table));
    assert_ok(table->open(&t->device, &options));
    assert_ok(table->stream_create(t->device, WEIR_ENGINE_COMPUTE, "test", &t->stream));
}

bool test_kernels_open(struct test_kernels *t, const char *isa, int thread_count)
{
    *t = (struct test_kernels){0};
    device_open(t, thread_count);
    assert_ok(weir_kernels_find("host", &t->table));
    enum weir_status status = t->table->open(&t->kernels, t->device, thread_count, isa, NULL);
    if (status == WEIR_OK)
        return true;
    t->kernels = NULL;
    test_kernels_close(t);
    assert_int_equal(WEIR_ERR_UNSUPPORTED, status);
    return false;
}

void test_kernels_close(struct test_kernels *t)
{
    const struct weir_device_table *table = t->device->table;
    table->stream_destroy(t->stream);
    if (t->kernels)
        t->table->close(t->kernels);
    for (size_t i = 0; i < t->memory_count; i++)
        assert_ok(table->mem_free(t->device, t->memory[i]));
    table->close(t->device);
}

void *test_kernels_memory(struct test_kernels *t, uint64_t bytes)
{
    assert_true(t->memory_count < sizeof t->memory / sizeof *t->memory);
    void *memory;
    assert_ok(t->device->table->mem_alloc(t->device, bytes, &memory));
    t->memory[t->memory_count++] = memory;
    return memory;
}

void test_kernels_wait(struct test_kernels *t)
{
    assert_ok(t->device->table->stream_sync(t->stream));
}
