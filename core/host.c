#include "core/host_internal.h"
#include "core/memory.h"

#include <stdio.h>

static void host_close(struct weir_device *base)
{
    if (base == NULL)
        return;
    struct host_device *device = host_device(base);
    weir_host_engines_close(device);
    weir_host_blocks_free(device);
    pthread_mutex_destroy(&device->sticky.lock);
    weir_charge_close(&device->charge);
    pthread_mutex_destroy(&device->lock);
    weir_free(device);
}

static enum weir_status host_open(struct weir_device **out,
                                  const struct weir_device_options *options)
{
    struct host_device *device;
    WEIR_TRY(weir_alloc(&device, 1, sizeof *device, "device \"host\""));
    device->base.table = &weir_host_table;
    device->options = *options;
    pthread_mutex_init(&device->lock, NULL);
    weir_charge_open(&device->charge, "host", options->memory_bytes);
    pthread_mutex_init(&device->sticky.lock, NULL);
    for (enum weir_engine kind = WEIR_ENGINE_COMPUTE; kind <= WEIR_ENGINE_TO_HOST; kind++) {
        enum weir_status status = weir_host_engine_open(device, kind, &device->kinds[kind]);
        if (status != WEIR_OK) {
            host_close(&device->base);
            return status;
        }
    }
    *out = &device->base;
    return WEIR_OK;
}

static enum weir_status host_numa_node(int *node)
{
    *node = -1;
    return WEIR_OK;
}

static void host_info(struct weir_device *base, struct weir_device_info *out)
{
    struct host_device *device = host_device(base);
    *out = (struct weir_device_info){
        .memory_bytes = device->charge.bound_bytes, .calls_run_on_cpu = true, .reaches_host = true};
    snprintf(out->name, sizeof out->name, "host%s", device->options.strict ? " (strict)" : "");
    weir_charge_info(&device->charge, out);
}

void weir_host_fail_at(struct weir_device *device, uint64_t nth)
{
    atomic_store_explicit(&host_device(device)->fail_countdown, nth, memory_order_relaxed);
}

const struct weir_device_table weir_host_table = {
    .name = "host",
    .numa_node = host_numa_node,
    .open = host_open,
    .close = host_close,
    .info = host_info,
    .mem_alloc = weir_host_mem_alloc,
    .mem_free = weir_host_mem_free,
    .pin_alloc = weir_host_pin_alloc,
    .pin_free = weir_host_pin_free,
    .pin_register = weir_host_pin_register,
    .pin_unregister = weir_host_pin_unregister,
    .stream_create = weir_host_stream_create,
    .stream_destroy = weir_host_stream_destroy,
    .stream_sync = weir_host_stream_sync,
    .event_create = weir_host_event_create,
    .event_destroy = weir_host_event_destroy,
    .event_record = weir_host_event_record,
    .event_wait = weir_host_event_wait,
    .event_query = weir_host_event_query,
    .event_sync = weir_host_event_sync,
    .copy = weir_host_copy,
    .fill = weir_host_fill,
    .call = weir_host_call,
};
