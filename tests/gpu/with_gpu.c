/*
 * with_gpu [--managed] PROGRAM [ARGUMENTS]: runs it where weir can use a GPU; --managed: where the
 * CPU may touch managed memory beside a kernel too. Elsewhere it says why not and ends with 77,
 * which CTest counts as skipped. Without a program: says what there is.
 *
 * with_gpu --facts: the device that weir uses, by CUDA itself, a line "NAME VALUE" each. nvidia-smi
 * counts GPUs in another order and knows nothing of CUDA_VISIBLE_DEVICES.
 */
#include "core/device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SKIPPED 77

static int attribute(enum cudaDeviceAttr which)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, 0) != cudaSuccess)
        value = -1; /* not known, which is no reason to go on nor to stop */
    (void)cudaGetLastError();
    return value;
}

static int facts_print(const char *name)
{
    size_t free_bytes, total_bytes;
    cudaError_t code = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (code != cudaSuccess) {
        printf("cudaMemGetInfo failed: %s, %s\n", cudaGetErrorName(code), cudaGetErrorString(code));
        return 1;
    }
    printf("name %s\n", name);
    printf("compute_capability %d.%d\n", attribute(cudaDevAttrComputeCapabilityMajor),
           attribute(cudaDevAttrComputeCapabilityMinor));
    printf("free_bytes %zu\ntotal_bytes %zu\n", free_bytes, total_bytes);
    printf("processes %s\n",
           attribute(cudaDevAttrComputeMode) == cudaComputeModeDefault ? "many" : "one");
    printf("reaches_host %d\n", attribute(cudaDevAttrCanUseHostPointerForRegisteredMem));
    printf("concurrent_managed_access %d\n", attribute(cudaDevAttrConcurrentManagedAccess));
    return 0;
}

int main(int argc, char **argv)
{
    const bool facts = argc == 2 && strcmp(argv[1], "--facts") == 0;
    const bool managed = argc > 1 && strcmp(argv[1], "--managed") == 0;
    char **program = argv + 1 + managed;
    const struct weir_device_table *table;
    struct weir_device *device;
    const struct weir_device_options options = {.memory_bytes = UINT64_MAX, .thread_count = 1};
    enum weir_status status = weir_device_find("cuda", &table);
    if (status == WEIR_OK)
        status = table->open(&device, &options);
    if (status != WEIR_OK) {
        printf("skipped: %s\n", weir_last_error()->text);
        return status == WEIR_ERR_UNSUPPORTED ? SKIPPED : 1;
    }
    struct weir_device_info info;
    table->info(device, &info);
    int result = facts ? facts_print(info.name) : 0;
    if (!facts)
        printf("%s\n", info.name);
    if (managed && attribute(cudaDevAttrConcurrentManagedAccess) == 0) {
        printf("skipped: %s has no concurrent managed access (as under WSL2), and this test's "
               "memory is the CPU's and the GPU's at once\n",
               info.name);
        result = SKIPPED;
    }
    fflush(stdout);
    table->close(device);
    if (facts || result != 0 || !*program)
        return result;
    execv(*program, program);
    perror(*program);
    return 1;
}
