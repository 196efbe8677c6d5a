/* The host device, opened as it is but for its table: streams and events are its own. */
#include "core/host.h"
#include "tests/support_double.h"

static enum weir_status turn(const char *call)
{
    if (!test_fault_turn(TEST_FAULT_DEVICE))
        return WEIR_OK;
    return weir_fail_device(719, "device \"double\": %s failed", call);
}

static enum weir_status double_open(struct weir_device **out,
                                    const struct weir_device_options *options)
{
    WEIR_TRY(turn("open"));
    WEIR_TRY(weir_host_table.open(out, options));
    (*out)->table = &test_double_device;
    return WEIR_OK;
}

static enum weir_status double_numa_node(int *node)
{
    WEIR_TRY(turn("numa_node"));
    return weir_host_table.numa_node(node);
}

static void double_close(struct weir_device *device)
{
    weir_host_table.close(device);
}

static void double_info(struct weir_device *device, struct weir_device_info *out)
{
    weir_host_table.info(device, out);
}

/* Functions that return a status: DOUBLE(name, (parameters), (arguments)). */
#define DOUBLE(name, parameters, arguments)                                                        \
    static enum weir_status double_##name parameters                                               \
    {                                                                                              \
        WEIR_TRY(turn(#name));                                                                     \
        return weir_host_table.name arguments;                                                     \
    }
DOUBLE(mem_alloc, (struct weir_device * device, uint64_t bytes, void **out), (device, bytes, out))
DOUBLE(mem_free, (struct weir_device * device, void *memory), (device, memory))
DOUBLE(pin_alloc, (struct weir_device * device, uint64_t bytes, void **out), (device, bytes, out))
DOUBLE(pin_free, (struct weir_device * device, void *memory), (device, memory))
DOUBLE(pin_register, (struct weir_device * device, void *memory, uint64_t bytes),
       (device, memory, bytes))
DOUBLE(pin_unregister, (struct weir_device * device, void *memory), (device, memory))
DOUBLE(stream_create,
       (struct weir_device * device, enum weir_engine engine, const char *name,
        struct weir_stream **out),
       (device, engine, name, out))
DOUBLE(stream_sync, (struct weir_stream * stream), (stream))
DOUBLE(event_create, (struct weir_device * device, struct weir_event **out), (device, out))
DOUBLE(event_record, (struct weir_stream * stream, struct weir_event *event), (stream, event))
DOUBLE(event_wait, (struct weir_stream * stream, struct weir_event *event), (stream, event))
DOUBLE(event_query, (struct weir_event * event, bool *complete), (event, complete))
DOUBLE(event_sync, (struct weir_event * event), (event))
DOUBLE(copy,
       (struct weir_stream * stream, void *destination, const void *source, uint64_t bytes,
        enum weir_copy direction),
       (stream, destination, source, bytes, direction))
DOUBLE(fill, (struct weir_stream * stream, void *destination, unsigned char value, uint64_t bytes),
       (stream, destination, value, bytes))
DOUBLE(call,
       (struct weir_stream * stream, weir_call_fn *fn, const void *argument, size_t argument_bytes,
        const struct weir_range *ranges, size_t range_count),
       (stream, fn, argument, argument_bytes, ranges, range_count))

static void double_stream_destroy(struct weir_stream *stream)
{
    weir_host_table.stream_destroy(stream);
}

static void double_event_destroy(struct weir_event *event)
{
    weir_host_table.event_destroy(event);
}

const struct weir_device_table test_double_device = {
    .name = "host",
    .numa_node = double_numa_node,
    .open = double_open,
    .close = double_close,
    .info = double_info,
    .mem_alloc = double_mem_alloc,
    .mem_free = double_mem_free,
    .pin_alloc = double_pin_alloc,
    .pin_free = double_pin_free,
    .pin_register = double_pin_register,
    .pin_unregister = double_pin_unregister,
    .stream_create = double_stream_create,
    .stream_destroy = double_stream_destroy,
    .stream_sync = double_stream_sync,
    .event_create = double_event_create,
    .event_destroy = double_event_destroy,
    .event_record = double_event_record,
    .event_wait = double_event_wait,
    .event_query = double_event_query,
    .event_sync = double_event_sync,
    .copy = double_copy,
    .fill = double_fill,
    .call = double_call,
};
