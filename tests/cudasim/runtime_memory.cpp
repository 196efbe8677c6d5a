/*
 * The simulated memory: what is allocated, reserved, mapped and registered, and the copies that may
 * touch it. Fresh device memory is 0xCB; what was freed is no longer accessible, and its addresses
 * are not given out again.
 */
#include "tests/cudasim/runtime_internal.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace cudasim::runtime
{

namespace
{

constexpr size_t granularity_bytes = size_t{2} << 20;
constexpr unsigned char fresh = 0xCB;

using Entry = std::map<char *, Memory>::iterator;

/* The allocation, living or freed, that begins at or last before the address. */
Entry entry_before(const void *bytes)
{
    char *at = static_cast<char *>(const_cast<void *>(bytes));
    Entry entry = state.memory.upper_bound(at);
    return entry == state.memory.begin() ? state.memory.end() : --entry;
}

const char *place_name(const Memory &memory)
{
    return memory.device ? "device memory" : "pinned host memory";
}

bool fits(size_t bytes)
{
    return bytes <= state.total_bytes - state.used_bytes;
}

} // namespace

void range_check(const void *bytes, size_t count, Place place, const char *what)
{
    const char *at = static_cast<const char *>(bytes);
    Entry entry = entry_before(bytes);
    bool inside = entry != state.memory.end() &&
                  at < entry->first + (entry->second.bytes > 0 ? entry->second.bytes : 1);
    if (!inside)
        violation("%s: %p is neither device memory nor pinned host memory", what, bytes);
    const Memory &memory = entry->second;
    if (memory.freed)
        violation("%s: %p lies in %s of %zu bytes at %p that was freed", what, bytes,
                  place_name(memory), memory.bytes, static_cast<void *>(entry->first));
    if (count > memory.bytes - static_cast<size_t>(at - entry->first))
        violation("%s: %zu bytes at %p overrun %s of %zu bytes at %p", what, count, bytes,
                  place_name(memory), memory.bytes, static_cast<void *>(entry->first));
    if (place != Place::any && memory.device != (place == Place::device))
        violation("%s: %p lies in %s", what, bytes, place_name(memory));
}

uint64_t memory_leaks()
{
    uint64_t count = 0;
    for (const auto &[at, memory] : state.memory)
        if (!memory.freed) {
            fprintf(stderr, "cudasim: leak: %s of %zu bytes at %p\n", place_name(memory),
                    memory.bytes, static_cast<void *>(at));
            count++;
        }
    for (const Physical *physical : state.physical) {
        fprintf(stderr, "cudasim: leak: cuMemCreate of %zu bytes\n", physical->bytes);
        count++;
    }
    for (const auto &[at, reservation] : state.reservations) {
        fprintf(stderr, "cudasim: leak: cuMemAddressReserve of %zu bytes\n", reservation.bytes);
        count++;
    }
    return count;
}

} // namespace cudasim::runtime

using namespace cudasim::runtime;

void cudasim_check_range(const void *bytes, size_t count, int device_only, const char *what)
{
    range_check(bytes, count, device_only ? Place::device : Place::any, what);
}

/* Each aligned word is looked up, so that no kernel need tell its arguments. */
void cudasim_check_arguments(const char *kernel, const void *arguments, size_t bytes)
{
    Unseen unseen;
    state.monitor.lock();
    for (size_t at = 0; !state.reach_host && at + sizeof(char *) <= bytes; at += sizeof(char *)) {
        char *word;
        memcpy(&word, static_cast<const char *>(arguments) + at, sizeof word);
        Entry entry = entry_before(word);
        if (entry == state.memory.end() || entry->second.device || entry->second.freed ||
            word >= entry->first + entry->second.bytes)
            continue;
        violation("kernel %s is given %p, which lies in pinned host memory; this machine's kernels "
                  "do not reach it",
                  kernel, static_cast<void *>(word));
    }
    state.monitor.unlock();
}

#define API extern "C" __attribute__((visibility("default")))

/* ---- device memory of cudart */

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    Call call("cudaMemGetInfo");
    if (call.refused())
        return call.result();
    *free_bytes = state.total_bytes - state.used_bytes;
    *total_bytes = state.total_bytes;
    return call.result();
}

API cudaError_t cudaMalloc(void **out, size_t bytes)
{
    Call call("cudaMalloc");
    if (call.refused())
        return call.result();
    *out = fits(bytes) ? guarded_alloc(bytes) : nullptr;
    if (!*out)
        return call.result(cudaErrorMemoryAllocation);
    memset(*out, fresh, bytes);
    state.memory[static_cast<char *>(*out)] = {bytes, true, false, false};
    state.used_bytes += bytes;
    return call.result();
}

/* Waits for the device, as CUDA does. */
API cudaError_t cudaFree(void *memory)
{
    Call call("cudaFree", true);
    if (!memory)
        return call.result();
    auto entry = state.memory.find(static_cast<char *>(memory));
    if (entry == state.memory.end() || entry->second.freed || !entry->second.device ||
        entry->second.mapped)
        violation("cudaFree of %p, which cudaMalloc did not give or which was freed", memory);
    for (CUstream_st *stream : std::vector(state.streams))
        force(stream, stream->queued);
    guarded_free(memory, entry->second.bytes);
    entry->second.freed = true;
    state.used_bytes -= entry->second.bytes;
    return call.result();
}

/* ---- pinned host memory */

API cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    Call call("cudaHostRegister");
    if (call.refused())
        return call.result();
    if (!memory || bytes == 0 || flags != cudaHostRegisterMapped)
        return call.result(cudaErrorInvalidValue);
    if (bytes > state.register_most)
        return call.result(static_cast<cudaError_t>(state.register_code));
    char *at = static_cast<char *>(memory);
    for (const auto &[other, held] : state.memory)
        if (!held.freed && at < other + held.bytes && other < at + bytes)
            return call.result(cudaErrorHostMemoryAlreadyRegistered);
    state.memory[at] = {bytes, false, false, false};
    return call.result();
}

/* The memory is its owner's again: forgotten, not freed. */
API cudaError_t cudaHostUnregister(void *memory)
{
    Call call("cudaHostUnregister", true);
    auto entry = state.memory.find(static_cast<char *>(memory));
    if (entry == state.memory.end() || entry->second.device)
        violation("cudaHostUnregister of %p, which is not registered", memory);
    state.memory.erase(entry);
    return call.result();
}

/* ---- the driver's virtual memory */

static CUresult driver(const Call &call, CUresult code = CUDA_SUCCESS)
{
    return static_cast<CUresult>(call.result(static_cast<cudaError_t>(code)));
}

static CUresult mem_granularity(size_t *out, const CUmemAllocationProp *properties,
                                CUmemAllocationGranularity_flags)
{
    Call call("cuMemGetAllocationGranularity");
    if (call.refused())
        return driver(call);
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return driver(call, CUDA_ERROR_INVALID_VALUE);
    *out = granularity_bytes;
    return driver(call);
}

static CUresult mem_address_reserve(CUdeviceptr *out, size_t bytes, size_t, CUdeviceptr,
                                    unsigned long long)
{
    Call call("cuMemAddressReserve");
    if (call.refused())
        return driver(call);
    if (bytes == 0 || bytes % granularity_bytes != 0)
        return driver(call, CUDA_ERROR_INVALID_VALUE);
    void *at = mmap(nullptr, bytes + granularity_bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return driver(call, CUDA_ERROR_OUT_OF_MEMORY);
    *out = (reinterpret_cast<CUdeviceptr>(at) + granularity_bytes - 1) / granularity_bytes *
           granularity_bytes;
    state.reservations[*out] = {bytes, nullptr, false};
    return driver(call);
}

static CUresult mem_create(CUmemGenericAllocationHandle *out, size_t bytes,
                           const CUmemAllocationProp *properties, unsigned long long flags)
{
    Call call("cuMemCreate");
    if (call.refused())
        return driver(call);
    if (bytes == 0 || bytes % granularity_bytes != 0 || flags != 0 ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return driver(call, CUDA_ERROR_INVALID_VALUE);
    if (!fits(bytes))
        return driver(call, CUDA_ERROR_OUT_OF_MEMORY);
    state.used_bytes += bytes;
    state.physical.push_back(new Physical{bytes, 0, false});
    *out = reinterpret_cast<CUmemGenericAllocationHandle>(state.physical.back());
    return driver(call);
}

static Physical *physical_find(CUmemGenericAllocationHandle handle, const char *call)
{
    for (Physical *physical : state.physical)
        if (physical == reinterpret_cast<Physical *>(handle) && !physical->released)
            return physical;
    violation("%s of a handle that cuMemCreate did not give or that was released", call);
}

static Reservation &reservation_find(CUdeviceptr at, size_t bytes, const char *call)
{
    auto entry = state.reservations.find(at);
    if (entry == state.reservations.end() || entry->second.bytes != bytes)
        violation("%s of %zu bytes at %#llx, which is no whole reservation", call, bytes, at);
    return entry->second;
}

static CUresult mem_map(CUdeviceptr at, size_t bytes, size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long)
{
    Call call("cuMemMap");
    if (call.refused())
        return driver(call);
    Reservation &reservation = reservation_find(at, bytes, "cuMemMap");
    Physical *physical = physical_find(handle, "cuMemMap");
    if (reservation.held || physical->at != 0 || offset != 0 || physical->bytes != bytes)
        violation("cuMemMap of %zu bytes at %#llx: mapped already, or in part", bytes, at);
    reservation.held = physical;
    physical->at = at;
    return driver(call);
}

static CUresult mem_set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access,
                               size_t count)
{
    Call call("cuMemSetAccess");
    if (call.refused())
        return driver(call);
    Reservation &reservation = reservation_find(at, bytes, "cuMemSetAccess");
    if (!reservation.held || count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        violation("cuMemSetAccess of %zu bytes at %#llx: not mapped, or not for writing", bytes,
                  at);
    void *memory = reinterpret_cast<void *>(at);
    if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0)
        return driver(call, CUDA_ERROR_OUT_OF_MEMORY);
    guard_add(memory, bytes);
    memset(memory, fresh, bytes);
    reservation.accessible = true;
    state.memory[static_cast<char *>(memory)] = {bytes, true, false, true};
    return driver(call);
}

static void physical_drop(Physical *physical)
{
    if (!physical->released || physical->at != 0)
        return;
    state.used_bytes -= physical->bytes;
    std::erase(state.physical, physical);
    delete physical;
}

static CUresult mem_unmap(CUdeviceptr at, size_t bytes)
{
    Call call("cuMemUnmap", true);
    Reservation &reservation = reservation_find(at, bytes, "cuMemUnmap");
    if (!reservation.held)
        violation("cuMemUnmap of %zu bytes at %#llx, where nothing is mapped", bytes, at);
    char *memory = reinterpret_cast<char *>(at);
    if (reservation.accessible) {
        guard_remove(memory);
        state.memory[memory].freed = true;
    }
    reservation.held->at = 0;
    physical_drop(reservation.held);
    reservation.held = nullptr;
    reservation.accessible = false;
    return driver(call);
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
    Call call("cuMemRelease", true);
    Physical *physical = physical_find(handle, "cuMemRelease");
    physical->released = true;
    physical_drop(physical);
    return driver(call);
}

/* The addresses stay reserved, without access: a late access faults. */
static CUresult mem_address_free(CUdeviceptr at, size_t bytes)
{
    Call call("cuMemAddressFree", true);
    if (reservation_find(at, bytes, "cuMemAddressFree").held)
        violation("cuMemAddressFree of %zu bytes at %#llx, where memory is mapped", bytes, at);
    state.reservations.erase(at);
    return driver(call);
}

static cudaError_t entry_point(const char *name, void **out, cudaDriverEntryPointQueryResult *found)
{
    static const std::map<std::string, void *> functions = {
        {"cuMemGetAllocationGranularity", reinterpret_cast<void *>(mem_granularity)},
        {"cuMemAddressReserve", reinterpret_cast<void *>(mem_address_reserve)},
        {"cuMemCreate", reinterpret_cast<void *>(mem_create)},
        {"cuMemMap", reinterpret_cast<void *>(mem_map)},
        {"cuMemSetAccess", reinterpret_cast<void *>(mem_set_access)},
        {"cuMemUnmap", reinterpret_cast<void *>(mem_unmap)},
        {"cuMemRelease", reinterpret_cast<void *>(mem_release)},
        {"cuMemAddressFree", reinterpret_cast<void *>(mem_address_free)},
    };
    Call call("cudaGetDriverEntryPoint");
    if (call.refused())
        return call.result();
    auto function = functions.find(name);
    *out = function == functions.end() ? nullptr : function->second;
    *found = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return call.result();
}

#if CUDART_VERSION >= 12050
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned,
                                                 unsigned long long,
                                                 cudaDriverEntryPointQueryResult *found)
{
    return entry_point(name, out, found);
}
#else
API cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long,
                                        cudaDriverEntryPointQueryResult *found)
{
    return entry_point(name, out, found);
}
#endif

/* ---- copies and fills: checked when they are queued, and again when they run */

static void copy_check(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    Place target = kind == cudaMemcpyDeviceToHost ? Place::pinned : Place::device;
    Place source = kind == cudaMemcpyHostToDevice ? Place::pinned : Place::device;
    range_check(to, bytes, target, "destination of a copy");
    range_check(from, bytes, source, "source of a copy");
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                cudaStream_t stream)
{
    Call call("cudaMemcpyAsync");
    if (call.refused())
        return call.result();
    stream_check(stream, "cudaMemcpyAsync");
    if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToHost &&
        kind != cudaMemcpyDeviceToDevice)
        violation("cudaMemcpyAsync of kind %d, which leaves the direction open", kind);
    copy_check(to, from, bytes, kind);
    auto run = [=] {
        copy_check(to, from, bytes, kind);
        memcpy(to, from, bytes);
    };
    queue(stream, {.name = "copy", .run = run});
    return call.result();
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    Call call("cudaMemsetAsync");
    if (call.refused())
        return call.result();
    stream_check(stream, "cudaMemsetAsync");
    range_check(to, bytes, Place::device, "a fill");
    auto run = [=] {
        range_check(to, bytes, Place::device, "a fill");
        memset(to, value, bytes);
    };
    queue(stream, {.name = "fill", .run = run});
    return call.result();
}
