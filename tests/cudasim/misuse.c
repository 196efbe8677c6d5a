/*
 * misuse NAME does one thing that CUDA code must not do; the simulator ends it with a line that
 * says so (CMakeLists.txt holds the lines). Without an argument: the names.
 */
#include "tests/cudasim/runtime.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 4096

static cudaStream_t stream;
static cudaEvent_t event;
static char *device, *pinned, *pageable;

static void must(cudaError_t code)
{
    if (code != cudaSuccess) {
        fprintf(stderr, "misuse: %s\n", cudaGetErrorName(code));
        exit(1);
    }
}

static void copy_pageable(void)
{
    must(cudaMemcpyAsync(device, pageable, BYTES, cudaMemcpyHostToDevice, stream));
}

static void copy_direction(void)
{
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyDeviceToHost, stream));
}

static void copy_open_direction(void)
{
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyDefault, stream));
}

static void copy_overrun(void)
{
    must(cudaMemcpyAsync(device + 1, pinned, BYTES, cudaMemcpyHostToDevice, stream));
}

/* Each half is pinned, but by a registration of its own. */
static void copy_across_registrations(void)
{
    must(cudaHostRegister(pageable, BYTES / 2, cudaHostRegisterMapped));
    must(cudaHostRegister(pageable + BYTES / 2, BYTES / 2, cudaHostRegisterMapped));
    must(cudaMemcpyAsync(device, pageable, BYTES, cudaMemcpyHostToDevice, stream));
}

static void fill_host(void)
{
    must(cudaMemsetAsync(pinned, 0, BYTES, stream));
}

static void use_freed(void)
{
    must(cudaFree(device));
    must(cudaMemsetAsync(device, 0, BYTES, stream));
}

static void unpin_under_copy(void)
{
    cudasim_schedule(CUDASIM_LAZY, 0);
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    must(cudaHostUnregister(pinned));
    must(cudaStreamSynchronize(stream));
}

static void free_twice(void)
{
    must(cudaFree(device));
    must(cudaFree(device));
}

static void default_stream(void)
{
    must(cudaMemsetAsync(device, 0, BYTES, NULL));
}

static void dead_stream(void)
{
    must(cudaStreamDestroy(stream));
    must(cudaMemsetAsync(device, 0, BYTES, stream));
}

static void event_timed(void)
{
    must(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
}

static void event_spins(void)
{
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
}

static void dead_event(void)
{
    must(cudaEventDestroy(event));
    must(cudaEventRecord(event, stream));
}

static void destroy_busy_stream(void)
{
    cudasim_schedule(CUDASIM_LAZY, 0);
    must(cudaMemsetAsync(device, 0, BYTES, stream));
    must(cudaStreamDestroy(stream));
}

static void CUDART_CB calls_cuda(cudaStream_t on, cudaError_t status, void *argument)
{
    (void)on, (void)status, (void)argument;
    must(cudaEventQuery(event));
}

static void call_in_callback(void)
{
    must(cudaStreamAddCallback(stream, calls_cuda, NULL, 0));
    must(cudaStreamSynchronize(stream));
}

static void touch_device_memory(void)
{
    *(volatile char *)device = 1;
}

static void CUDART_CB callback_touch(cudaStream_t on, cudaError_t status, void *argument)
{
    (void)on, (void)status, (void)argument;
    touch_device_memory();
}

static void no_drop(void *context)
{
    (void)context;
}

static void touches_device_memory(void *argument)
{
    (void)argument;
    touch_device_memory();
}

static void callback_touches(void)
{
    must(cudaStreamAddCallback(stream, callback_touch, NULL, 0));
    must(cudaStreamSynchronize(stream));
}

static void kernel_touches_freed(void)
{
    must(cudaFree(device));
    cudasim_launch(stream, "kernel", touches_device_memory, NULL, no_drop);
    must(cudaStreamSynchronize(stream));
}

static const struct {
    const char *name;
    void (*run)(void);
} misuses[] = {
    {"copy_pageable", copy_pageable},
    {"copy_direction", copy_direction},
    {"copy_open_direction", copy_open_direction},
    {"copy_overrun", copy_overrun},
    {"copy_across_registrations", copy_across_registrations},
    {"fill_host", fill_host},
    {"use_freed", use_freed},
    {"unpin_under_copy", unpin_under_copy},
    {"free_twice", free_twice},
    {"default_stream", default_stream},
    {"dead_stream", dead_stream},
    {"event_timed", event_timed},
    {"event_spins", event_spins},
    {"dead_event", dead_event},
    {"destroy_busy_stream", destroy_busy_stream},
    {"call_in_callback", call_in_callback},
    {"touch_device_memory", touch_device_memory},
    {"callback_touches", callback_touches},
    {"kernel_touches_freed", kernel_touches_freed},
};

int main(int argument_count, char **arguments)
{
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    must(cudaMalloc((void **)&device, BYTES));
    pinned = aligned_alloc(4096, BYTES);
    pageable = aligned_alloc(4096, BYTES);
    if (!pinned || !pageable)
        return 1;
    memset(pinned, 0, BYTES);
    memset(pageable, 0, BYTES);
    must(cudaHostRegister(pinned, BYTES, cudaHostRegisterMapped));
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        if (argument_count < 2)
            puts(misuses[i].name);
        else if (strcmp(misuses[i].name, arguments[1]) == 0)
            misuses[i].run();
    }
    puts("nothing was refused");
    return 0;
}
