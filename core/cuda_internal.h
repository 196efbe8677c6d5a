/*
 * Inside the cuda instance: each function of the table is a check, one CUDA call, and its result.
 *
 * Queueing takes no lock: the list of blocks and of streams is for who makes and frees them.
 * Device 0 is the device: CUDA_VISIBLE_DEVICES says which one that is.
 */
#ifndef WEIR_CORE_CUDA_INTERNAL_H
#define WEIR_CORE_CUDA_INTERNAL_H

#include "core/bell.h"
#include "core/charge.h"
#include "core/cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdalign.h>

/* ---- memory that the device knows */

enum cuda_kind { CUDA_MAPPED, CUDA_SMALL, CUDA_PINNED, CUDA_REGISTERED };

struct cuda_block {
    struct cuda_block *next;
    enum cuda_kind kind;
    void *memory;
    uint64_t bytes;       /* asked for */
    uint64_t whole_bytes; /* MAPPED: what was taken for them */
    CUmemGenericAllocationHandle handle;
};

/* The driver's own functions: a program linked with them does not start without a driver, so they
 * are found at open. */
struct cuda_driver {
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*address_free)(CUdeviceptr, size_t);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
};

/* ---- streams and events */

struct weir_event {
    struct cuda_device *device;
    cudaEvent_t event;
    bool recorded; /* who records; callers order it, so it is plain */
};

struct cuda_slot {
    struct cuda_stream *stream;
    weir_call_fn *fn;
    alignas(max_align_t) unsigned char argument[WEIR_CALL_BYTES];
#if WEIR_TSAN
    struct weir_range ranges[WEIR_CALL_RANGES];
    size_t range_count;
#endif
};

struct cuda_stream {
    struct weir_stream base;
    struct cuda_stream *next;
    cudaStream_t stream;
    char name[24];
    uint64_t called;       /* who queues: calls ever queued */
    _Atomic uint64_t run;  /* the callback: calls that have run; frees their slots */
    struct weir_bell room; /* rung then */
    _Atomic uint64_t left; /* the callback: calls that touch this stream no more */
    _Atomic bool given_up; /* who frees: a call that comes now does nothing */
    struct cuda_slot slots[WEIR_STREAM_DEPTH];
};

struct cuda_device {
    struct weir_device base;
    struct weir_device_options options;
    struct cuda_driver driver;
    char name[64];
    uint64_t total_bytes; /* of the device */
    uint64_t granularity_bytes;
    bool reaches_host;

    pthread_mutex_t lock; /* the lists below */
    struct cuda_block *blocks;
    struct cuda_stream *streams;
    struct weir_charge charge;
    _Atomic bool no_huge_pages; /* logged once */

    _Atomic bool failed; /* spares the healthy path the lock of `sticky` */
    struct weir_sticky sticky;
};

static inline struct cuda_device *cuda_device(struct weir_device *device)
{
    return (struct cuda_device *)device;
}

static inline struct cuda_stream *cuda_stream(struct weir_stream *stream)
{
    return (struct cuda_stream *)stream;
}

/* WEIR_OK, or the device's first failure. */
static inline enum weir_status cuda_check(struct cuda_device *device)
{
    if (!atomic_load_explicit(&device->failed, WEIR_HIDDEN_ACQUIRE))
        return WEIR_OK;
    return weir_sticky_raise(&device->sticky);
}

/* Before anything that the calling thread asks of CUDA: device 0 is its device, and healthy. */
enum weir_status weir_cuda_enter(struct cuda_device *device);

/* Pinned memory is registered, and a copy of it queued, in pieces that end at multiples of this
 * address: drivers refuse one registration of 512 GiB, some machines far smaller ones, and a copy
 * must not span two. By address, so that a copy need not look up where its memory was cut. Tests
 * make pieces small, before any device is open. */
extern uint64_t weir_cuda_piece_bytes;

/* Of bytes that begin at `at`: those of its first piece. */
static inline uint64_t cuda_piece(uintptr_t at, uint64_t bytes)
{
    uint64_t piece = weir_cuda_piece_bytes - at % weir_cuda_piece_bytes;
    return piece < bytes ? piece : bytes;
}

/* cuda_memory.c */
enum weir_status weir_cuda_memory_open(struct cuda_device *device);
void weir_cuda_memory_close(struct cuda_device *device);
enum weir_status weir_cuda_mem_alloc(struct weir_device *device, uint64_t bytes, void **out);
enum weir_status weir_cuda_mem_free(struct weir_device *device, void *memory);
enum weir_status weir_cuda_pin_alloc(struct weir_device *device, uint64_t bytes, void **out);
enum weir_status weir_cuda_pin_free(struct weir_device *device, void *memory);
enum weir_status weir_cuda_pin_register(struct weir_device *device, void *memory, uint64_t bytes);
enum weir_status weir_cuda_pin_unregister(struct weir_device *device, void *memory);

/* cuda_stream.c */

/* How long a stream of a failed device is waited for. Tests make it short. */
extern uint64_t weir_cuda_patience_ns;
void weir_cuda_streams_close(struct cuda_device *device);
enum weir_status weir_cuda_stream_create(struct weir_device *device, enum weir_engine engine,
                                         const char *name, struct weir_stream **out);
void weir_cuda_stream_destroy(struct weir_stream *stream);
enum weir_status weir_cuda_stream_sync(struct weir_stream *stream);
enum weir_status weir_cuda_event_create(struct weir_device *device, struct weir_event **out);
void weir_cuda_event_destroy(struct weir_event *event);
enum weir_status weir_cuda_event_record(struct weir_stream *stream, struct weir_event *event);
enum weir_status weir_cuda_event_wait(struct weir_stream *stream, struct weir_event *event);
enum weir_status weir_cuda_event_query(struct weir_event *event, bool *complete);
enum weir_status weir_cuda_event_sync(struct weir_event *event);
enum weir_status weir_cuda_copy(struct weir_stream *stream, void *destination, const void *source,
                                uint64_t bytes, enum weir_copy direction);
enum weir_status weir_cuda_fill(struct weir_stream *stream, void *destination, unsigned char value,
                                uint64_t bytes);
enum weir_status weir_cuda_call(struct weir_stream *stream, weir_call_fn *fn, const void *argument,
                                size_t argument_bytes, const struct weir_range *ranges,
                                size_t range_count);

#endif
