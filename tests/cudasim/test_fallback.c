/*
 * What the cuda instance does without: tensor cores in bf16 attention, which is said once, with
 * cause and remedy (DESIGN 6b), and a budget.
 */
#include "kernels/kernels.h"
#include "tests/cudasim/runtime.h"
#include "tests/support_device.h"

#include <stdio.h>

struct told {
    int count;
    enum weir_log_level level;
    char line[512];
};

static void hear(void *context, enum weir_log_level level, const char *line)
{
    struct told *told = context;
    told->count++;
    told->level = level;
    snprintf(told->line, sizeof told->line, "%s", line);
}

struct attention {
    struct weir_device *device;
    struct weir_stream *stream;
    struct weir_kernels *kernels;
    char *memory;
    struct weir_log log;
    struct told told;
};

#define ARRAY_BYTES 1024

static void attention_open(struct attention *t)
{
    const struct weir_device_table *table;
    const struct weir_kernels_table *math;
    void *memory;
    *t = (struct attention){.log = {.fn = hear}};
    t->log.context = &t->told;
    pthread_mutex_init(&t->log.lock, NULL);
    assert_ok(weir_device_find("cuda", &table));
    assert_ok(weir_kernels_find("cuda", &math));
    assert_ok(table->open(&t->device, &(struct weir_device_options){.memory_bytes = UINT64_MAX}));
    assert_ok(math->open(&t->kernels, t->device, 1, NULL, &t->log));
    assert_ok(table->stream_create(t->device, WEIR_ENGINE_COMPUTE, "user", &t->stream));
    assert_ok(table->mem_alloc(t->device, 10 * ARRAY_BYTES, &memory));
    assert_ok(table->fill(t->stream, memory, 0, 10 * ARRAY_BYTES));
    t->memory = memory;
}

/* One token's, forward and backward. */
static void attend(struct attention *t, uint32_t head_dim, enum weir_dtype dtype)
{
    char *at = t->memory;
    struct weir_attention_args a = {
        .q = at,
        .k = at + ARRAY_BYTES,
        .v = at + 2 * ARRAY_BYTES,
        .out = at + 3 * ARRAY_BYTES,
        .lse = (float *)(void *)(at + 4 * ARRAY_BYTES),
        .sequences = 1,
        .length = 1,
        .heads = 1,
        .kv_heads = 1,
        .head_dim = head_dim,
        .scale = 1,
        .dtype = dtype,
        .dout = at + 5 * ARRAY_BYTES,
        .dq = at + 6 * ARRAY_BYTES,
        .dk = at + 7 * ARRAY_BYTES,
        .dv = at + 8 * ARRAY_BYTES,
        .scratch = at + 9 * ARRAY_BYTES,
    };
    assert_true(t->kernels->table->attention_scratch_bytes(&a, 1) <= ARRAY_BYTES);
    assert_ok(t->kernels->table->attention_forward(t->kernels, t->stream, &a));
    assert_ok(t->kernels->table->attention_backward(t->kernels, t->stream, &a));
    assert_ok(t->device->table->stream_sync(t->stream));
}

static void attention_close(struct attention *t)
{
    const struct weir_device_table *table = t->device->table;
    table->stream_destroy(t->stream);
    assert_ok(table->mem_free(t->device, t->memory));
    t->kernels->table->close(t->kernels);
    table->close(t->device);
    pthread_mutex_destroy(&t->log.lock);
}

static void attention_without_tensor_cores_is_said_once(void **state)
{
    (void)state;
    static const uint32_t without[] = {136, 12};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        struct attention t;
        char dim[32];
        attention_open(&t);
        attend(&t, 128, WEIR_BF16);
        attend(&t, without[i], WEIR_FP32); /* nobody expects them there */
        assert_int_equal(0, t.told.count);
        attend(&t, without[i], WEIR_BF16);
        assert_int_equal(1, t.told.count);
        assert_int_equal(WEIR_LOG_WARNING, t.told.level);
        snprintf(dim, sizeof dim, "head_dim %u ", without[i]);
        assert_true(test_contains(t.told.line, dim));
        assert_true(test_contains(t.told.line, "without tensor cores"));
        attend(&t, without[i], WEIR_BF16);
        assert_int_equal(1, t.told.count);
        attention_close(&t);
    }
}

/* Without a budget a sixteenth of what is free stays so, and what is left is a bound like any. */
static void without_a_budget_some_memory_stays_free(void **state)
{
    (void)state;
    const struct weir_device_table *table;
    struct weir_device *device;
    struct weir_device_info info;
    void *memory;
    assert_ok(weir_device_find("cuda", &table));
    cudasim_memory((uint64_t)256 << 20);
    assert_ok(table->open(&device, &(struct weir_device_options){.memory_bytes = UINT64_MAX}));
    table->info(device, &info);
    assert_int_equal((uint64_t)240 << 20, info.memory_bytes);
    assert_fails(table->mem_alloc(device, (uint64_t)248 << 20, &memory), WEIR_ERR_NOMEM,
                 "251658240 of 251658240 free; raise the device budget");
    assert_ok(table->mem_alloc(device, (uint64_t)240 << 20, &memory));
    assert_ok(table->mem_free(device, memory));
    table->close(device);
    cudasim_memory((uint64_t)80 << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_budget_some_memory_stays_free),
        cmocka_unit_test(attention_without_tensor_cores_is_said_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
