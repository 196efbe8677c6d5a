/*
 * The device table: everything weir asks of a device besides mathematics (that is kernels/).
 *
 * An instance is a const struct weir_device_table; core/device.c lists the instances that were
 * built. `host` runs on the CPU: device memory is a bounded region of host memory, each stream is a
 * queue served by an engine thread. It is the product on machines without a GPU and a stricter GPU
 * in tests. `cuda` is a GPU: there calls may run one at a time over all streams.
 *
 * CONTRACT, for every function of every instance
 *  - Streams execute their operations in the order in which they were queued. Nothing else orders
 *    two streams, or a stream and a CPU thread, except: queueing happens before the operation;
 *    event_record in one stream happens before whatever follows an event_wait for it in another;
 *    a true event_query, event_sync and stream_sync give the way back to the calling thread.
 *    The host instance upholds exactly this and no more (no lock shared between enqueuer and
 *    operation), so that ThreadSanitizer sees a missing event as the race that it is.
 *  - One thread at a time queues on one stream. Different streams may be used by different threads.
 *  - Queueing never waits for an operation to finish, except when a stream's queue is full
 *    (WEIR_STREAM_DEPTH entries); then it waits for room.
 *  - event_wait waits for the last event_record queued before it (by any thread, ordered before by
 *    the callers' own synchronisation); a later re-record does not change what an earlier wait
 *    waits for. Waiting for an event that was never recorded is WEIR_ERR_STATE in strict mode.
 *  - A failure of an operation is sticky in the device and surfaces, with the device's text, at the
 *    next call on it; operations after it are skipped, events still complete so that nobody hangs.
 *    On cuda calls still run, for CUDA leaves no other way to wake who sleeps until one has.
 *  - Strict mode (host instance): seeded random delays before operations; fresh memory is 0xA5,
 *    freed memory 0x5A; copies only between pinned host memory and device memory and only in the
 *    direction named; freeing memory under a queued or running copy is WEIR_ERR_STATE.
 */
#ifndef WEIR_CORE_DEVICE_H
#define WEIR_CORE_DEVICE_H

#include "core/status.h"
#include <sched.h>
#include <stddef.h>
#include <stdint.h>

struct weir_device; /* one open device of some instance */
struct weir_stream;
struct weir_event;

#define WEIR_STREAM_DEPTH 1024
#define WEIR_CALL_BYTES   512 /* most argument bytes of a call */
#define WEIR_CALL_RANGES  16  /* most declared ranges of a call */

/* Which engine serves a stream. On the host instance each is one thread. Several streams may share
 * an engine: then an operation that waits does not hold up the others. The host's compute engine is
 * the only thread that enters OpenMP and oneDNN. */
enum weir_engine { WEIR_ENGINE_COMPUTE, WEIR_ENGINE_TO_DEVICE, WEIR_ENGINE_TO_HOST };

enum weir_copy { WEIR_COPY_TO_DEVICE, WEIR_COPY_TO_HOST, WEIR_COPY_ON_DEVICE };

/* Bytes that a call reads or writes; declared to ThreadSanitizer by the host instance. */
struct weir_range {
    const void *bytes;
    size_t byte_count;
    bool written; /* false: read only */
};

/* Runs on the stream's engine, in stream order. Must not call into the device. */
typedef void weir_call_fn(void *argument);

struct weir_device_options {
    uint64_t memory_bytes; /* bound of mem_alloc, in bytes; UINT64_MAX: none */
    int thread_count;      /* host: OpenMP team of the compute engine */
    const cpu_set_t *cpus; /* of the engines that copy; NULL: anywhere. Borrowed until close */
    bool strict;
    uint64_t seed; /* strict: of the delays */
    struct weir_log *log;
};

struct weir_device_info {
    char name[96];
    uint64_t memory_bytes, memory_used_bytes, memory_peak_bytes;
    bool calls_run_on_cpu; /* kernels are weir_call_fn on the engine thread (host) */
    bool reaches_host;     /* kernels may read and write pinned host memory */
};

struct weir_device_table {
    const char *name;
    /* Nearest to the device that open would take; -1: anywhere, or open will say why not. */
    enum weir_status (*numa_node)(int *node);
    enum weir_status (*open)(struct weir_device **out, const struct weir_device_options *options);
    void (*close)(struct weir_device *device); /* waits for all streams first */
    void (*info)(struct weir_device *device, struct weir_device_info *out);

    enum weir_status (*mem_alloc)(struct weir_device *device, uint64_t bytes, void **out);
    enum weir_status (*mem_free)(struct weir_device *device, void *memory);
    /* Pinned host memory, 2 MiB-aligned, huge pages advised, touched. */
    enum weir_status (*pin_alloc)(struct weir_device *device, uint64_t bytes, void **out);
    enum weir_status (*pin_free)(struct weir_device *device, void *memory);
    /* Pin memory that the caller owns. */
    enum weir_status (*pin_register)(struct weir_device *device, void *memory, uint64_t bytes);
    enum weir_status (*pin_unregister)(struct weir_device *device, void *memory);

    enum weir_status (*stream_create)(struct weir_device *device, enum weir_engine engine,
                                      const char *name, struct weir_stream **out);
    void (*stream_destroy)(struct weir_stream *stream); /* waits for it first */
    enum weir_status (*stream_sync)(struct weir_stream *stream);

    enum weir_status (*event_create)(struct weir_device *device, struct weir_event **out);
    void (*event_destroy)(struct weir_event *event);
    enum weir_status (*event_record)(struct weir_stream *stream, struct weir_event *event);
    enum weir_status (*event_wait)(struct weir_stream *stream, struct weir_event *event);
    enum weir_status (*event_query)(struct weir_event *event, bool *complete); /* never waits */
    enum weir_status (*event_sync)(struct weir_event *event);

    enum weir_status (*copy)(struct weir_stream *stream, void *destination, const void *source,
                             uint64_t bytes, enum weir_copy direction);
    enum weir_status (*fill)(struct weir_stream *stream, void *destination, unsigned char value,
                             uint64_t bytes); /* device memory */
    /* argument[0..argument_bytes) is copied into the queue before the call returns. */
    enum weir_status (*call)(struct weir_stream *stream, weir_call_fn *fn, const void *argument,
                             size_t argument_bytes, const struct weir_range *ranges,
                             size_t range_count);
};

/* The first member of every instance's struct weir_device, so that callers need only the pointer.
 */
struct weir_device {
    const struct weir_device_table *table;
};

/* Likewise of every instance's struct weir_stream. */
struct weir_stream {
    struct weir_device *device;
};

/* By name ("host"); WEIR_ERR_UNSUPPORTED lists what was built. */
enum weir_status weir_device_find(const char *name, const struct weir_device_table **out);

#endif
