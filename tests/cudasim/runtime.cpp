/*
 * The simulated cudart: the calls about the machine, streams and operations; events are in
 * runtime_event.cpp, memory in runtime_memory.cpp. What is in none, no code under test may call: it
 * would not link.
 */
#include "tests/cudasim/runtime_internal.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace cudasim::runtime
{

State &state = *new State; /* outlives every thread */

void violation(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("cudasim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(87);
}

namespace
{

thread_local cudaError_t last_error;

struct Environment {
    Environment()
    {
        if (const char *machine = getenv("CUDASIM_CAPABILITY")) {
            char *end;
            state.major = (int)strtol(machine, &end, 10);
            state.minor = *end == '.' ? (int)strtol(end + 1, &end, 10) : -1;
            if (state.major < 1 || state.minor < 0 || *end)
                violation("CUDASIM_CAPABILITY=%s; MAJOR.MINOR", machine);
        }
        const char *given = getenv("CUDASIM_SCHEDULE");
        if (!given || strcmp(given, "eager") == 0)
            return;
        if (strcmp(given, "lazy") == 0)
            cudasim_schedule(CUDASIM_LAZY, 0);
        else if (strncmp(given, "random:", 7) == 0)
            cudasim_schedule(CUDASIM_RANDOM, strtoull(given + 7, nullptr, 0));
        else
            violation("CUDASIM_SCHEDULE=%s; eager, lazy or random:SEED", given);
    }
} environment;

class Locked
{
  public:
    Locked()
    {
        state.monitor.lock();
    }
    ~Locked()
    {
        state.monitor.unlock();
    }

  private:
    Unseen unseen_;
};

} // namespace

Call::Call(const char *name, bool frees) : frees_(frees)
{
    if (within_callback())
        violation("%s within a host function", name);
    state.monitor.lock();
    state.calls++;
    bool counts = strncmp(name, state.only.c_str(), state.only.size()) == 0;
    if (counts && ++state.counted == state.fail_call)
        code_ = state.call_code;
    else
        code_ = state.fault;
}

Call::~Call()
{
    state.monitor.unlock();
}

bool Call::refused() const
{
    return code_ != 0 && !frees_;
}

cudaError_t Call::result(cudaError_t code) const
{
    if (code_ != 0)
        code = static_cast<cudaError_t>(code_);
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

cudaError_t Call::waited() const
{
    return result(static_cast<cudaError_t>(state.fault));
}

} // namespace cudasim::runtime

using namespace cudasim::runtime;

/* ---- for tests */

void cudasim_schedule(cudasim_mode mode, uint64_t seed)
{
    Locked locked;
    state.mode = mode;
    state.random = seed;
}

void cudasim_memory(uint64_t total_bytes)
{
    Locked locked;
    state.total_bytes = total_bytes;
}

void cudasim_register_most(uint64_t bytes, int code)
{
    Locked locked;
    state.register_most = bytes;
    state.register_code = code;
}

void cudasim_reach_host(int reach)
{
    Locked locked;
    state.reach_host = reach != 0;
}

void cudasim_share_memory(int share)
{
    Locked locked;
    guard_share(share != 0);
}

void cudasim_machine(int driver_version, int device_count, int major, int minor)
{
    Locked locked;
    state.driver_version = driver_version;
    state.device_count = device_count;
    state.major = major;
    state.minor = minor;
}

uint64_t cudasim_fail_at(uint64_t nth, int code)
{
    Locked locked;
    uint64_t since = state.counted - state.calls_asked;
    state.calls_asked = state.counted;
    state.fail_call = nth > 0 ? state.counted + nth : 0;
    state.call_code = code;
    return since;
}

void cudasim_fail_only(const char *prefix)
{
    Locked locked;
    state.only = prefix ? prefix : "";
}

uint64_t cudasim_fail_operation_at(uint64_t nth, int code)
{
    Locked locked;
    uint64_t since = state.work;
    state.work = 0;
    state.fail_work = nth;
    state.work_code = code;
    return since;
}

void cudasim_lose_callbacks(int lose)
{
    Locked locked;
    state.lose_callbacks = lose != 0;
}

void cudasim_reset(void)
{
    Locked locked;
    state.fault = 0;
    last_error = cudaSuccess;
}

uint64_t cudasim_leaks(void)
{
    Locked locked;
    for (const CUstream_st *stream : state.streams)
        fprintf(stderr, "cudasim: leak: stream %d\n", stream->number);
    for (const CUevent_st *event : state.events)
        fprintf(stderr, "cudasim: leak: event %p\n", static_cast<const void *>(event));
    return state.streams.size() + state.events.size() + memory_leaks();
}

uint64_t cudasim_unrecorded_waits(void)
{
    Locked locked;
    return state.unrecorded_waits;
}

uint64_t cudasim_operations(void)
{
    Locked locked;
    return state.operations;
}

int cudasim_call(const char *name)
{
    Call call(name);
    return call.result();
}

int cudasim_launch(CUstream_st *stream, const char *name, void (*run)(void *), void *context,
                   void (*drop)(void *))
{
    Call call(name);
    std::shared_ptr<void> held(context, drop);
    if (call.refused())
        return call.result();
    stream_check(stream, name);
    Operation operation{.name = name, .run = [run, context] { run(context); }};
    operation.context = std::move(held);
    queue(stream, std::move(operation));
    return cudaSuccess;
}

/* ---- the machine */

#define API extern "C" __attribute__((visibility("default")))

API cudaError_t cudaDriverGetVersion(int *version)
{
    Call call("cudaDriverGetVersion");
    if (!call.refused())
        *version = state.driver_version;
    return call.result();
}

API cudaError_t cudaGetDeviceCount(int *count)
{
    Call call("cudaGetDeviceCount");
    if (call.refused())
        return call.result();
    if (state.driver_version == 0)
        return call.result(cudaErrorInsufficientDriver); /* leaves *count as it was */
    *count = state.device_count;
    return call.result(state.device_count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    Call call("cudaGetDeviceProperties");
    if (call.refused())
        return call.result();
    if (device < 0 || device >= state.device_count)
        return call.result(cudaErrorInvalidDevice);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "Simulated GPU");
    properties->totalGlobalMem = state.total_bytes;
    properties->major = state.major;
    properties->minor = state.minor;
    properties->multiProcessorCount = 4;
    /* CUDA C Programming Guide, compute capabilities */
    const bool small = (state.major == 8 && state.minor >= 6) || state.major >= 12;
    properties->sharedMemPerMultiprocessor = size_t{small              ? 100u
                                                    : state.major == 8 ? 164u
                                                                       : 228u}
                                             << 10;
    properties->reservedSharedMemPerBlock = 1 << 10;
    properties->canUseHostPointerForRegisteredMem = state.reach_host;
    return call.result();
}

API cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    Call call("cudaDeviceGetAttribute");
    if (call.refused())
        return call.result();
    if (device < 0 || device >= state.device_count)
        return call.result(cudaErrorInvalidDevice);
    const std::map<cudaDeviceAttr, int> values = {
        {cudaDevAttrComputeCapabilityMajor, state.major},
        {cudaDevAttrComputeCapabilityMinor, state.minor},
        {cudaDevAttrComputeMode, cudaComputeModeDefault},
        {cudaDevAttrCanUseHostPointerForRegisteredMem, state.reach_host},
        {cudaDevAttrConcurrentManagedAccess, 0}, /* there is no managed memory */
    };
    auto found = values.find(attribute);
    if (found == values.end())
        return call.result(cudaErrorInvalidValue);
    *value = found->second;
    return call.result();
}

API cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    Call call("cudaDeviceGetPCIBusId");
    if (call.refused())
        return call.result();
    if (device < 0 || device >= state.device_count)
        return call.result(cudaErrorInvalidDevice);
    snprintf(out, static_cast<size_t>(bytes), "FFFF:FF:1F.0"); /* in no machine */
    return call.result();
}

API cudaError_t cudaSetDevice(int device)
{
    Call call("cudaSetDevice");
    if (call.refused())
        return call.result();
    return call.result(device >= 0 && device < state.device_count ? cudaSuccess
                                                                  : cudaErrorInvalidDevice);
}

/* These two tell and change nothing but the calling thread's last error: never counted. */
API cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

API const char *cudaGetErrorName(cudaError_t code)
{
    for (const auto &error : errors)
        if (error.code == code)
            return error.name;
    return "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t code)
{
    for (const auto &error : errors)
        if (error.code == code)
            return error.text;
    return "unrecognized error code";
}

/* ---- streams */

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    Call call("cudaStreamCreateWithFlags");
    if (call.refused())
        return call.result();
    if (flags != cudaStreamNonBlocking)
        violation("a stream that the default stream waits for");
    *out = new CUstream_st;
    stream_start(*out);
    return call.result();
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Call call("cudaStreamDestroy", true);
    stream_check(stream, "cudaStreamDestroy");
    if (state.fault == 0 && !stream->queue.empty())
        violation("stream %d is destroyed with %zu operations queued", stream->number,
                  stream->queue.size());
    force(stream, stream->queued);
    stream_end(stream);
    return call.result();
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Call call("cudaStreamSynchronize");
    if (call.refused())
        return call.result();
    stream_check(stream, "cudaStreamSynchronize");
    force(stream, stream->queued);
    order_acquire(&stream->order);
    return call.waited();
}

API cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    Call call("cudaStreamQuery");
    if (call.refused())
        return call.result();
    stream_check(stream, "cudaStreamQuery");
    return stream->completed < stream->queued ? call.result(cudaErrorNotReady) : call.waited();
}

/* ---- operations; copies and fills are in runtime_memory.cpp */

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                      void *argument, unsigned flags)
{
    Call call("cudaStreamAddCallback");
    if (call.refused())
        return call.result();
    stream_check(stream, "cudaStreamAddCallback");
    if (flags != 0)
        return call.result(cudaErrorInvalidValue);
    auto run = [=] { callback(stream, static_cast<cudaError_t>(state.fault), argument); };
    queue(stream, {.name = "callback", .kind = Kind::callback, .run = run});
    return call.result();
}
