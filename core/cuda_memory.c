#include "core/cuda_internal.h"
#include "core/memory.h"
#include "core/pages.h"

#include <string.h>

static const char *const kind_names[] = {"device memory", "device memory", "pinned memory",
                                         "registered memory"};

static const CUmemAllocationProp on_device = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
};

/* The driver's codes and the runtime's are the same numbers. */
static enum weir_status result(struct cuda_device *device, int code, const char *call)
{
    return weir_cuda_result(&device->base, code, call);
}

/* ---- open and close */

/* By version, so that a later toolkit does not give another signature; before 12.5 there was but
 * the toolkit's own. */
static cudaError_t entry_get(const char *name, void **function,
                             enum cudaDriverEntryPointQueryResult *found)
{
#if CUDART_VERSION >= 12050
    return cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, found);
#else
    return cudaGetDriverEntryPoint(name, function, cudaEnableDefault, found);
#endif
}

static enum weir_status entry_find(struct cuda_device *device, const char *name, void *out)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    WEIR_TRY(result(device, (int)entry_get(name, &function, &found), "cudaGetDriverEntryPoint"));
    if (found != cudaDriverEntryPointSuccess || function == NULL)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "device \"cuda\": the NVIDIA driver has no %s; install a newer one", name);
    memcpy(out, &function, sizeof function);
    return WEIR_OK;
}

enum weir_status weir_cuda_memory_open(struct cuda_device *device)
{
    struct cuda_driver *driver = &device->driver;
    WEIR_TRY(entry_find(device, "cuMemAddressReserve", &driver->reserve));
    WEIR_TRY(entry_find(device, "cuMemCreate", &driver->create));
    WEIR_TRY(entry_find(device, "cuMemMap", &driver->map));
    WEIR_TRY(entry_find(device, "cuMemSetAccess", &driver->set_access));
    WEIR_TRY(entry_find(device, "cuMemUnmap", &driver->unmap));
    WEIR_TRY(entry_find(device, "cuMemRelease", &driver->release));
    WEIR_TRY(entry_find(device, "cuMemAddressFree", &driver->address_free));
    WEIR_TRY(entry_find(device, "cuMemGetAllocationGranularity", &driver->granularity));
    size_t granularity_bytes = 0;
    WEIR_TRY(result(
        device,
        (int)driver->granularity(&granularity_bytes, &on_device, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity"));
    device->granularity_bytes = granularity_bytes;
    return WEIR_OK;
}

/* ---- the list of blocks */

static enum weir_status block_new(struct cuda_block **out, enum cuda_kind kind, uint64_t bytes)
{
    struct cuda_block *block;
    WEIR_TRY(weir_alloc(&block, 1, sizeof *block, "a block of device \"cuda\""));
    block->kind = kind;
    block->bytes = bytes;
    *out = block;
    return WEIR_OK;
}

static void block_add(struct cuda_device *device, struct cuda_block *block)
{
    pthread_mutex_lock(&device->lock);
    block->next = device->blocks;
    device->blocks = block;
    pthread_mutex_unlock(&device->lock);
}

/* Takes the block that begins at memory out of the list; it is of `kind` or `other`. */
static enum weir_status block_take(struct cuda_device *device, const void *memory,
                                   enum cuda_kind kind, enum cuda_kind other,
                                   struct cuda_block **out)
{
    pthread_mutex_lock(&device->lock);
    struct cuda_block **link = &device->blocks;
    while (*link != NULL &&
           ((*link)->memory != memory || ((*link)->kind != kind && (*link)->kind != other)))
        link = &(*link)->next;
    struct cuda_block *block = *link;
    if (block != NULL)
        *link = block->next;
    pthread_mutex_unlock(&device->lock);
    *out = block;
    if (block != NULL)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG, "device \"cuda\": %p is not the start of %s", memory,
                     kind_names[kind]);
}

/* ---- device memory: whole granules by the driver, what is smaller by cudaMalloc, which packs */

/* pre: bytes are charged already */
static enum weir_status nomem(struct cuda_device *device, uint64_t bytes)
{
    (void)cudaGetLastError(); /* told here */
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    struct weir_device_info info;
    device->base.table->info(&device->base, &info);
    return weir_fail(WEIR_ERR_NOMEM,
                     "device \"cuda\": need %llu bytes, the GPU has %zu of %zu free, weir holds "
                     "%llu; lower the device budget or end what else uses the GPU",
                     (unsigned long long)bytes, free_bytes, total_bytes,
                     (unsigned long long)(info.memory_used_bytes - bytes));
}

/* Of a step of making the block. The tables of a mapping are device memory too, so that each of
 * them may find none left; the steps before are undone, and the device is as it was. */
static enum weir_status memory_result(struct cuda_device *device, const struct cuda_block *block,
                                      CUresult code, const char *call)
{
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        return nomem(device, block->bytes);
    return result(device, (int)code, call);
}

/* Undoes as far as `mapped_fill` came. Runs every step and keeps the first failure. */
static enum weir_status mapped_undo(struct cuda_device *device, const struct cuda_block *block,
                                    bool created, bool mapped)
{
    const struct cuda_driver *driver = &device->driver;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)block->memory;
    enum weir_status status = WEIR_OK, next;
    if (mapped)
        status = result(device, (int)driver->unmap(at, block->whole_bytes), "cuMemUnmap");
    if (created) {
        next = result(device, (int)driver->release(block->handle), "cuMemRelease");
        status = status == WEIR_OK ? next : status;
    }
    next = result(device, (int)driver->address_free(at, block->whole_bytes), "cuMemAddressFree");
    return status == WEIR_OK ? next : status;
}

static enum weir_status mapped_fill(struct cuda_device *device, struct cuda_block *block,
                                    bool *created, bool *mapped)
{
    const struct cuda_driver *driver = &device->driver;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)block->memory;
    CUmemAccessDesc access = {.location = on_device.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    WEIR_TRY(memory_result(device, block,
                           driver->create(&block->handle, block->whole_bytes, &on_device, 0),
                           "cuMemCreate"));
    *created = true;
    WEIR_TRY(memory_result(device, block, driver->map(at, block->whole_bytes, 0, block->handle, 0),
                           "cuMemMap"));
    *mapped = true;
    return memory_result(device, block, driver->set_access(at, block->whole_bytes, &access, 1),
                         "cuMemSetAccess");
}

static enum weir_status mapped_make(struct cuda_device *device, struct cuda_block *block)
{
    uint64_t granularity_bytes = device->granularity_bytes;
    if (block->bytes > UINT64_MAX / 2)
        return nomem(device, block->bytes);
    block->whole_bytes =
        (block->bytes + granularity_bytes - 1) / granularity_bytes * granularity_bytes;
    CUdeviceptr at = 0;
    WEIR_TRY(memory_result(device, block, device->driver.reserve(&at, block->whole_bytes, 0, 0, 0),
                           "cuMemAddressReserve"));
    block->memory = (void *)(uintptr_t)at;
    bool created = false, mapped = false;
    enum weir_status status = mapped_fill(device, block, &created, &mapped);
    if (status != WEIR_OK) {
        struct weir_error first = *weir_last_error();
        (void)mapped_undo(device, block, created, mapped);
        return weir_fail_with(&first);
    }
    return WEIR_OK;
}

static enum weir_status small_make(struct cuda_device *device, struct cuda_block *block)
{
    cudaError_t code = cudaMalloc(&block->memory, block->bytes > 0 ? block->bytes : 1);
    return memory_result(device, block, (CUresult)code, "cudaMalloc");
}

static enum weir_status memory_make(struct cuda_device *device, uint64_t bytes, void **out)
{
    struct cuda_block *block;
    enum cuda_kind kind = bytes < device->granularity_bytes ? CUDA_SMALL : CUDA_MAPPED;
    WEIR_TRY(block_new(&block, kind, bytes));
    enum weir_status status =
        kind == CUDA_SMALL ? small_make(device, block) : mapped_make(device, block);
    if (status != WEIR_OK) {
        weir_free(block);
        return status;
    }
    block_add(device, block);
    *out = block->memory;
    return WEIR_OK;
}

enum weir_status weir_cuda_mem_alloc(struct weir_device *base, uint64_t bytes, void **out)
{
    struct cuda_device *device = cuda_device(base);
    WEIR_TRY(weir_cuda_enter(device));
    WEIR_TRY(weir_charge_take(&device->charge, bytes));
    enum weir_status status = memory_make(device, bytes, out);
    if (status != WEIR_OK)
        weir_charge_give(&device->charge, bytes);
    return status;
}

static enum weir_status memory_free(struct cuda_device *device, struct cuda_block *block)
{
    enum weir_status status = block->kind == CUDA_MAPPED
                                  ? mapped_undo(device, block, true, true)
                                  : result(device, (int)cudaFree(block->memory), "cudaFree");
    weir_free(block);
    return status;
}

/* What frees does so on a failed device too, then tells. */
enum weir_status weir_cuda_mem_free(struct weir_device *base, void *memory)
{
    struct cuda_device *device = cuda_device(base);
    if (memory != NULL) {
        struct cuda_block *block;
        WEIR_TRY(block_take(device, memory, CUDA_MAPPED, CUDA_SMALL, &block));
        weir_charge_give(&device->charge, block->bytes);
        WEIR_TRY(memory_free(device, block));
    }
    return cuda_check(device);
}

/* ---- pinned memory */

uint64_t weir_cuda_piece_bytes = UINT64_C(1) << 36; /* 64 GiB */

/* Whatever CUDA calls it (some machines say "invalid argument" of too much), nothing was pinned and
 * the device is as it was. A fault of the device itself comes again at its next call. */
static enum weir_status pin_refused(const struct cuda_block *block, uint64_t done_bytes,
                                    uint64_t piece_bytes, cudaError_t code)
{
    (void)cudaGetLastError(); /* told here */
    return weir_fail(
        WEIR_ERR_NOMEM,
        "device \"cuda\": the driver cannot pin %llu bytes of host memory at %p: %s, %s, at a "
        "piece of %llu bytes after %llu; %s",
        (unsigned long long)block->bytes, block->memory, cudaGetErrorName(code),
        cudaGetErrorString(code), (unsigned long long)piece_bytes, (unsigned long long)done_bytes,
        code == cudaErrorHostMemoryAlreadyRegistered
            ? "something else in this process has pinned it: undo that first"
            : "lower the host budget, raise the memory limits of the container or VM (ulimit -l "
              "too), or free memory on this machine");
}

/* The pieces of the block's first bytes. Runs every step and keeps the first failure. */
static enum weir_status host_unregister(struct cuda_device *device, const struct cuda_block *block,
                                        uint64_t bytes)
{
    enum weir_status status = WEIR_OK;
    for (uint64_t at = 0, piece; at < bytes; at += piece) {
        char *memory = (char *)block->memory + at;
        piece = cuda_piece((uintptr_t)memory, bytes - at);
        enum weir_status next =
            result(device, (int)cudaHostUnregister(memory), "cudaHostUnregister");
        status = status == WEIR_OK ? next : status;
    }
    return status;
}

static uint64_t pinned_bytes(const struct cuda_block *block)
{
    return block->bytes > 0 ? block->bytes : 1; /* CUDA registers no empty range */
}

static enum weir_status host_register(struct cuda_device *device, struct cuda_block *block)
{
    uint64_t bytes = pinned_bytes(block);
    for (uint64_t at = 0, piece; at < bytes; at += piece) {
        char *memory = (char *)block->memory + at;
        piece = cuda_piece((uintptr_t)memory, bytes - at);
        cudaError_t code = cudaHostRegister(memory, piece, cudaHostRegisterMapped);
        if (code == cudaSuccess)
            continue;
        (void)pin_refused(block, at, piece, code);
        struct weir_error first = *weir_last_error();
        (void)host_unregister(device, block, at);
        return weir_fail_with(&first);
    }
    return WEIR_OK;
}

/* Not cudaHostAlloc's, which rounds up and does not say by how much. */
enum weir_status weir_cuda_pin_alloc(struct weir_device *base, uint64_t bytes, void **out)
{
    struct cuda_device *device = cuda_device(base);
    WEIR_TRY(weir_cuda_enter(device));
    struct cuda_block *block;
    WEIR_TRY(block_new(&block, CUDA_PINNED, bytes));
    enum weir_status status =
        weir_pages_map("cuda", device->options.log, &device->no_huge_pages, bytes, &block->memory);
    if (status == WEIR_OK) {
        weir_pages_clear(block->memory, bytes);
        status = host_register(device, block);
        if (status != WEIR_OK)
            weir_pages_unmap(block->memory, bytes);
    }
    if (status != WEIR_OK) {
        weir_free(block);
        return status;
    }
    block_add(device, block);
    *out = block->memory;
    return WEIR_OK;
}

static enum weir_status pinned_free(struct cuda_device *device, struct cuda_block *block)
{
    enum weir_status status = host_unregister(device, block, pinned_bytes(block));
    if (block->kind == CUDA_PINNED)
        weir_pages_unmap(block->memory, block->bytes);
    weir_free(block);
    return status;
}

static enum weir_status pinned_take_free(struct weir_device *base, void *memory,
                                         enum cuda_kind kind)
{
    struct cuda_device *device = cuda_device(base);
    struct cuda_block *block;
    WEIR_TRY(block_take(device, memory, kind, kind, &block));
    WEIR_TRY(pinned_free(device, block));
    return cuda_check(device);
}

enum weir_status weir_cuda_pin_free(struct weir_device *base, void *memory)
{
    if (memory == NULL)
        return cuda_check(cuda_device(base));
    return pinned_take_free(base, memory, CUDA_PINNED);
}

enum weir_status weir_cuda_pin_unregister(struct weir_device *base, void *memory)
{
    return pinned_take_free(base, memory, CUDA_REGISTERED);
}

/* Before CUDA says so without a name. */
static enum weir_status register_check(struct cuda_device *device, uintptr_t at, uint64_t bytes)
{
    struct cuda_block found = {.memory = NULL};
    pthread_mutex_lock(&device->lock);
    for (struct cuda_block *block = device->blocks; block != NULL; block = block->next) {
        uintptr_t start = (uintptr_t)block->memory;
        if (at < start + block->bytes && start < at + bytes)
            found = *block;
    }
    pthread_mutex_unlock(&device->lock);
    if (found.memory == NULL)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG,
                     "device \"cuda\": %p of %llu bytes overlaps %s %p of %llu bytes; pin memory "
                     "once",
                     (void *)at, (unsigned long long)bytes, kind_names[found.kind], found.memory,
                     (unsigned long long)found.bytes);
}

enum weir_status weir_cuda_pin_register(struct weir_device *base, void *memory, uint64_t bytes)
{
    struct cuda_device *device = cuda_device(base);
    WEIR_TRY(weir_cuda_enter(device));
    WEIR_TRY(register_check(device, (uintptr_t)memory, bytes));
    struct cuda_block *block;
    WEIR_TRY(block_new(&block, CUDA_REGISTERED, bytes));
    block->memory = memory;
    enum weir_status status = host_register(device, block);
    if (status != WEIR_OK) {
        weir_free(block);
        return status;
    }
    block_add(device, block);
    return WEIR_OK;
}

void weir_cuda_memory_close(struct cuda_device *device)
{
    while (device->blocks != NULL) {
        struct cuda_block *block = device->blocks;
        device->blocks = block->next;
        if (block->kind == CUDA_MAPPED || block->kind == CUDA_SMALL)
            (void)memory_free(device, block);
        else
            (void)pinned_free(device, block);
    }
}
