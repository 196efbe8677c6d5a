/* Any bytes as a safetensors file, or (if they begin with {) as the index of one: opened and every
 * tensor read, or refused by an error that names the file. */
#include "core/memory.h"
#include "io/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define SHARD "model-00001-of-00001.safetensors"

static char directory[256];

static void shard_make(void)
{
    char path[300];
    char bytes[8 + 64 + 4] = "\x40";
    memset(bytes + 8, ' ', 64);
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    memcpy(bytes + 8, header, sizeof header - 1);
    fuzz_file(directory, SHARD, bytes, sizeof bytes, path);
}

static void tensors_read(const struct weir_tensors *tensors)
{
    char bytes[1024];
    for (size_t i = 0; i < weir_tensors_count(tensors); i++) {
        const struct weir_file_tensor *t = weir_tensors_at(tensors, i);
        assert_ptr_equal(t, weir_tensors_find(tensors, t->name));
        assert_true(t->byte_count == t->element_count * weir_file_dtype_bytes(t->dtype));
        uint64_t count = t->byte_count < sizeof bytes ? t->byte_count : sizeof bytes;
        assert_ok(weir_tensors_read(tensors, t, 0, bytes, count));
        assert_ok(weir_tensors_read(tensors, t, t->byte_count - count, bytes, count));
        fuzz_named(weir_tensors_read(tensors, t, t->byte_count, bytes, 1), t->name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!directory[0]) {
        fuzz_directory(directory);
        shard_make();
    }
    char path[300];
    bool index = size > 0 && data[0] == '{';
    const char *name = index ? "model.safetensors.index.json" : "model.safetensors";
    uint64_t held = weir_alloc_bytes();
    fuzz_file(directory, name, data, size, path);
    struct weir_tensors *tensors;
    enum weir_status status = weir_tensors_open(&tensors, path);
    fuzz_named(status, directory);
    if (status == WEIR_OK) {
        tensors_read(tensors);
        weir_tensors_close(tensors);
    }
    assert_true(weir_alloc_bytes() == held);
    return 0;
}
