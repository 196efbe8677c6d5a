#include "tests/support_kernels.h"
#include "tests/cudasim/order.h"
#include "tests/cudasim/runtime.h"
#include "tests/gpu/memory.h"
#include "tests/support.h"

#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif
#ifdef ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(bytes, count)   ((void)(bytes), (void)(count))
#define ASAN_UNPOISON_MEMORY_REGION(bytes, count) ((void)(bytes), (void)(count))
#endif

#define GUARD_BYTES 64u /* behind each piece of memory */

/* In programs that are linked with the simulator. */
#pragma weak cudasim_thread_order
#pragma weak cudasim_share_memory
/* In programs for a GPU. */
#pragma weak test_gpu_memory
#pragma weak test_gpu_memory_free

const char *const test_variant_names[TEST_VARIANT_COUNT] = {
    "generic", "avx2", "avx512", "cuda forward", "cuda reverse", "cuda random"};

bool test_kernels_simulated(void)
{
    return cudasim_thread_order != NULL;
}

bool test_kernels_for_cuda(void)
{
    return test_kernels_simulated() || test_gpu_memory != NULL;
}

bool test_kernels_slow(void)
{
#ifdef THREAD_SANITIZER
    return test_kernels_simulated();
#else
    return false;
#endif
}

bool test_kernels_cuda(const struct test_kernels *t)
{
    return strcmp(t->table->name, "cuda") == 0;
}

/* Device and instruction set of a variant; false if it is absent. */
static bool variant_find(const char *variant, const char **device, const char **isa)
{
    if (!variant && test_kernels_for_cuda())
        variant = "cuda forward";
    *device = "host";
    *isa = variant;
    for (int order = 0; order < CUDASIM_ORDER_COUNT; order++)
        if (variant && strcmp(variant, test_variant_names[TEST_ISA_COUNT + order]) == 0) {
            *device = "cuda";
            *isa = NULL;
            if (!test_kernels_for_cuda())
                return false;
            if (test_kernels_simulated())
                cudasim_thread_order((enum cudasim_order)order, 1);
        }
    return true;
}

static void device_open(struct test_kernels *t, const char *name, int thread_count)
{
    const struct weir_device_table *table;
    struct weir_device_options options = {
        .memory_bytes = UINT64_MAX, .thread_count = thread_count, .strict = true, .seed = 1};
    assert_ok(weir_device_find(name, &table));
    assert_ok(table->open(&t->device, &options));
    assert_ok(table->stream_create(t->device, WEIR_ENGINE_COMPUTE, "test", &t->stream));
}

bool test_kernels_open(struct test_kernels *t, const char *variant, int thread_count)
{
    const char *device, *isa;
    *t = (struct test_kernels){0};
    if (!variant_find(variant, &device, &isa))
        return false;
    if (test_kernels_simulated())
        cudasim_share_memory(true);
    device_open(t, device, thread_count);
    assert_ok(weir_kernels_find(device, &t->table));
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
    while (t->memory_count > 0)
        test_kernels_memory_free(t, t->memory[t->memory_count - 1]);
    table->close(t->device);
}

/* A GPU's own memory is not the CPU's. */
static enum weir_status memory_make(struct test_kernels *t, uint64_t bytes, void **out)
{
    if (test_kernels_cuda(t) && test_gpu_memory != NULL)
        return test_gpu_memory(bytes, out);
    return t->device->table->mem_alloc(t->device, bytes, out);
}

void test_kernels_memory_free(struct test_kernels *t, void *memory)
{
    size_t i = 0;
    while (i < t->memory_count && t->memory[i] != memory)
        i++;
    assert_true(i < t->memory_count);
    ASAN_UNPOISON_MEMORY_REGION((char *)memory + t->memory_bytes[i], GUARD_BYTES);
    if (test_kernels_cuda(t) && test_gpu_memory != NULL)
        assert_ok(test_gpu_memory_free(memory));
    else
        assert_ok(t->device->table->mem_free(t->device, memory));
    t->memory_count--;
    t->memory[i] = t->memory[t->memory_count];
    t->memory_bytes[i] = t->memory_bytes[t->memory_count];
}

void *test_kernels_memory(struct test_kernels *t, uint64_t bytes)
{
    assert_true(t->memory_count < sizeof t->memory / sizeof *t->memory);
    void *memory;
    assert_ok(memory_make(t, bytes + GUARD_BYTES, &memory));
    ASAN_POISON_MEMORY_REGION((char *)memory + bytes, GUARD_BYTES);
    t->memory_bytes[t->memory_count] = bytes;
    t->memory[t->memory_count++] = memory;
    return memory;
}

void test_kernels_wait(struct test_kernels *t)
{
    assert_ok(t->device->table->stream_sync(t->stream));
}
