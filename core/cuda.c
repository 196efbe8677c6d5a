#include "core/cuda_internal.h"
#include "core/memory.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* The oldest driver that runs what this toolkit compiled (CUDA's release notes, minor version
 * compatibility). */
#if CUDART_VERSION >= 13000
#define OLDEST_DRIVER 580
#else
#define OLDEST_DRIVER 525
#endif
#define OLDEST_CAPABILITY 8 /* major: bf16 tensor cores, cp.async */
#define RESERVE_BYTES     ((size_t)1 << 30)

/* ---- failures */

enum weir_status weir_cuda_keep(struct weir_device *base)
{
    struct cuda_device *device = cuda_device(base);
    weir_sticky_set(&device->sticky, weir_last_error());
    atomic_store_explicit(&device->failed, true, WEIR_HIDDEN_RELEASE);
    return weir_sticky_raise(&device->sticky);
}

enum weir_status weir_cuda_result(struct weir_device *base, int code, const char *call)
{
    if (code == cudaSuccess)
        return WEIR_OK;
    (void)cudaGetLastError(); /* told here: it must not surface at somebody's next launch */
    (void)weir_fail_device(
        code, "device \"cuda\": %s failed: %s, %s; resume from the last checkpoint", call,
        cudaGetErrorName((cudaError_t)code), cudaGetErrorString((cudaError_t)code));
    return weir_cuda_keep(base);
}

enum weir_status weir_cuda_enter(struct cuda_device *device)
{
    static _Thread_local bool entered;
    WEIR_TRY(cuda_check(device));
    if (!entered)
        WEIR_TRY(weir_cuda_result(&device->base, (int)cudaSetDevice(0), "cudaSetDevice"));
    entered = true;
    return WEIR_OK;
}

/* ---- open */

static enum weir_status driver_check(void)
{
    int version = 0;
    cudaError_t code = cudaDriverGetVersion(&version);
    if (code != cudaSuccess)
        return weir_fail_device((int)code, "device \"cuda\": cudaDriverGetVersion failed: %s, %s",
                                cudaGetErrorName(code), cudaGetErrorString(code));
    if (version == 0)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "device \"cuda\": no NVIDIA driver is loaded (CUDA runtime %d.%d needs "
                         "driver >= %d); install it or choose device \"host\"",
                         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, OLDEST_DRIVER);
    if (version / 1000 < CUDART_VERSION / 1000)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "device \"cuda\": the NVIDIA driver is for CUDA %d.%d, too old for CUDA "
                         "runtime %d.%d; install driver >= %d or choose device \"host\"",
                         version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
                         CUDART_VERSION % 1000 / 10, OLDEST_DRIVER);
    return WEIR_OK;
}

static enum weir_status count_check(void)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0))
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "device \"cuda\": the driver is loaded, but shows no GPU; look at "
                         "nvidia-smi and CUDA_VISIBLE_DEVICES, or choose device \"host\"");
    if (code != cudaSuccess)
        return weir_fail_device((int)code, "device \"cuda\": cudaGetDeviceCount failed: %s, %s",
                                cudaGetErrorName(code), cudaGetErrorString(code));
    return WEIR_OK;
}

static enum weir_status properties_read(struct cuda_device *device)
{
    struct cudaDeviceProp properties;
    WEIR_TRY(weir_cuda_enter(device));
    WEIR_TRY(weir_cuda_result(&device->base, (int)cudaGetDeviceProperties(&properties, 0),
                              "cudaGetDeviceProperties"));
    if (properties.major < OLDEST_CAPABILITY)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "device \"cuda\": %.40s has compute capability %d.%d, %d.0 is needed; "
                         "choose another GPU with CUDA_VISIBLE_DEVICES, or device \"host\"",
                         properties.name, properties.major, properties.minor, OLDEST_CAPABILITY);
    device->total_bytes = properties.totalGlobalMem;
    device->reaches_host = properties.canUseHostPointerForRegisteredMem != 0;
    snprintf(device->name, sizeof device->name, "%.40s, %llu MiB", properties.name,
             (unsigned long long)device->total_bytes >> 20);
    return WEIR_OK;
}

/* Without a bound: what is free now, less what CUDA takes later for modules and libraries. */
static enum weir_status bound_find(struct cuda_device *device)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (device->charge.bound_bytes != UINT64_MAX)
        return WEIR_OK;
    WEIR_TRY(weir_cuda_result(&device->base, (int)cudaMemGetInfo(&free_bytes, &total_bytes),
                              "cudaMemGetInfo"));
    size_t reserve_bytes = free_bytes / 16 < RESERVE_BYTES ? free_bytes / 16 : RESERVE_BYTES;
    device->charge.bound_bytes = free_bytes - reserve_bytes;
    return WEIR_OK;
}

static void cuda_close(struct weir_device *base)
{
    if (base == NULL)
        return;
    struct cuda_device *device = cuda_device(base);
    weir_cuda_streams_close(device);
    weir_cuda_memory_close(device);
    pthread_mutex_destroy(&device->sticky.lock);
    weir_charge_close(&device->charge);
    pthread_mutex_destroy(&device->lock);
    weir_free(device);
}

static enum weir_status cuda_open(struct weir_device **out,
                                  const struct weir_device_options *options)
{
    WEIR_TRY(driver_check());
    WEIR_TRY(count_check());
    struct cuda_device *device;
    WEIR_TRY(weir_alloc(&device, 1, sizeof *device, "device \"cuda\""));
    device->base.table = &weir_cuda_table;
    device->options = *options;
    pthread_mutex_init(&device->lock, NULL);
    weir_charge_open(&device->charge, "cuda", options->memory_bytes);
    pthread_mutex_init(&device->sticky.lock, NULL);
    enum weir_status status = properties_read(device);
    if (status == WEIR_OK)
        status = bound_find(device);
    if (status == WEIR_OK)
        status = weir_cuda_memory_open(device);
    if (status != WEIR_OK) {
        cuda_close(&device->base);
        return status;
    }
    *out = &device->base;
    return WEIR_OK;
}

/* Linux says where a PCI device is attached; -1 where it does not know either. */
static enum weir_status cuda_numa_node(int *node)
{
    char bus[32] = "", path[96], text[16] = "";
    *node = -1;
    if (driver_check() != WEIR_OK || count_check() != WEIR_OK)
        return weir_last_error()->status == WEIR_ERR_DEVICE ? WEIR_ERR_DEVICE : WEIR_OK;
    cudaError_t code = cudaDeviceGetPCIBusId(bus, (int)sizeof bus, 0);
    if (code != cudaSuccess)
        return weir_fail_device((int)code, "device \"cuda\": cudaDeviceGetPCIBusId failed: %s, %s",
                                cudaGetErrorName(code), cudaGetErrorString(code));
    for (char *c = bus; *c != 0; c++)
        *c = (char)tolower((unsigned char)*c);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return WEIR_OK;
    if (fgets(text, sizeof text, file) != NULL && isdigit((unsigned char)text[0]))
        *node = (int)strtol(text, NULL, 10);
    fclose(file);
    return WEIR_OK;
}

static void cuda_info(struct weir_device *base, struct weir_device_info *out)
{
    struct cuda_device *device = cuda_device(base);
    uint64_t bound = device->charge.bound_bytes;
    *out = (struct weir_device_info){.memory_bytes =
                                         bound < device->total_bytes ? bound : device->total_bytes,
                                     .reaches_host = device->reaches_host};
    snprintf(out->name, sizeof out->name, "%s", device->name);
    weir_charge_info(&device->charge, out);
}

const struct weir_device_table weir_cuda_table = {
    .name = "cuda",
    .numa_node = cuda_numa_node,
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .mem_alloc = weir_cuda_mem_alloc,
    .mem_free = weir_cuda_mem_free,
    .pin_alloc = weir_cuda_pin_alloc,
    .pin_free = weir_cuda_pin_free,
    .pin_register = weir_cuda_pin_register,
    .pin_unregister = weir_cuda_pin_unregister,
    .stream_create = weir_cuda_stream_create,
    .stream_destroy = weir_cuda_stream_destroy,
    .stream_sync = weir_cuda_stream_sync,
    .event_create = weir_cuda_event_create,
    .event_destroy = weir_cuda_event_destroy,
    .event_record = weir_cuda_event_record,
    .event_wait = weir_cuda_event_wait,
    .event_query = weir_cuda_event_query,
    .event_sync = weir_cuda_event_sync,
    .copy = weir_cuda_copy,
    .fill = weir_cuda_fill,
    .call = weir_cuda_call,
};
