#include "tests/gpu/memory.h"

#include <cuda_runtime_api.h>

static enum weir_status result(cudaError_t code, const char *call)
{
    if (code == cudaSuccess)
        return WEIR_OK;
    return weir_fail_device((int)code, "%s failed: %s, %s", call, cudaGetErrorName(code),
                            cudaGetErrorString(code));
}

enum weir_status test_gpu_memory(uint64_t bytes, void **out)
{
    return result(cudaMallocManaged(out, bytes > 0 ? bytes : 1, cudaMemAttachGlobal),
                  "cudaMallocManaged");
}

enum weir_status test_gpu_memory_free(void *memory)
{
    return result(cudaFree(memory), "cudaFree");
}
