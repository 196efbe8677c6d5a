#include "io/safetensors_internal.h"

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[WEIR_FILE_DTYPE_COUNT] = {
    [WEIR_FILE_BF16] = {"BF16", 2}, [WEIR_FILE_F16] = {"F16", 2}, [WEIR_FILE_F32] = {"F32", 4},
    [WEIR_FILE_F64] = {"F64", 8},   [WEIR_FILE_I16] = {"I16", 2}, [WEIR_FILE_I32] = {"I32", 4},
    [WEIR_FILE_I64] = {"I64", 8},   [WEIR_FILE_U8] = {"U8", 1},
};

uint32_t weir_file_dtype_bytes(enum weir_file_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *weir_file_dtype_name(enum weir_file_dtype dtype)
{
    return dtypes[dtype].name;
}

bool weir_file_tensor_measure(struct weir_file_tensor *tensor)
{
    uint64_t elements = 1, bytes;
    for (uint32_t i = 0; i < tensor->dim_count; i++)
        if (__builtin_mul_overflow(elements, tensor->shape[i], &elements))
            return false;
    if (__builtin_mul_overflow(elements, dtypes[tensor->dtype].bytes, &bytes) || bytes > INT64_MAX)
        return false;
    tensor->element_count = elements;
    tensor->byte_count = bytes;
    return true;
}

bool weir_file_metadata_valid(json_t *metadata)
{
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return false;
    }
    return json_is_object(metadata);
}
