#include "core/clock.h"
#include "core/cuda_internal.h"
#include "core/memory.h"
#include "core/thread.h"

#include <stdio.h>
#include <string.h>

struct CUstream_st *weir_cuda_stream(struct weir_stream *stream)
{
    return cuda_stream(stream)->stream;
}

static enum weir_status result(struct cuda_device *device, cudaError_t code, const char *call)
{
    return weir_cuda_result(&device->base, (int)code, call);
}

/* ---- streams */

static struct cuda_device *device_of(struct cuda_stream *stream)
{
    return cuda_device(stream->base.device);
}

enum weir_status weir_cuda_stream_create(struct weir_device *base, enum weir_engine engine,
                                         const char *name, struct weir_stream **out)
{
    (void)engine; /* the hardware has an engine for each direction and finds it by the copy */
    struct cuda_device *device = cuda_device(base);
    WEIR_TRY(weir_cuda_enter(device));
    struct cuda_stream *stream;
    WEIR_TRY(weir_alloc(&stream, 1, sizeof *stream, "a stream of device \"cuda\""));
    /* The ring is walked through over many steps: touched now, or resident memory would creep. */
    for (size_t at = 0; at < sizeof *stream; at += 4096)
        ((volatile char *)stream)[at] = 0;
    stream->base.device = base;
    snprintf(stream->name, sizeof stream->name, "%s", name);
    enum weir_status status =
        result(device, cudaStreamCreateWithFlags(&stream->stream, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
    if (status != WEIR_OK) {
        weir_free(stream);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    stream->next = device->streams;
    device->streams = stream;
    pthread_mutex_unlock(&device->lock);
    *out = &stream->base;
    return WEIR_OK;
}

uint64_t weir_cuda_patience_ns = UINT64_C(5000000000);
static _Atomic(struct cuda_stream *) given_up; /* still CUDA's, by `next`; never freed */

/* On a failed device cudaStreamSynchronize returns at once, and the calls run after that; with them
 * one, maybe, of which cudaStreamAddCallback said that it had failed. A driver that has lost its
 * GPU may never run them. Whether they have run in time. */
static bool calls_wait(struct cuda_stream *stream, uint64_t most_ns)
{
    const uint64_t begin_ns = weir_now_ns();
    for (;;) {
        uint32_t seen = weir_bell_read(&stream->room);
        if (atomic_load_explicit(&stream->run, WEIR_HIDDEN_ACQUIRE) >= stream->called)
            break;
        uint64_t waited_ns = weir_now_ns() - begin_ns;
        if (waited_ns >= most_ns)
            return false;
        weir_bell_sleep_for(&stream->room, seen,
                            most_ns == UINT64_MAX ? UINT64_MAX : most_ns - waited_ns);
    }
    while (atomic_load_explicit(&stream->left, memory_order_acquire) < stream->called)
        sched_yield();
    return true;
}

/* Not freed, for a late call would come to it. */
static void stream_give_up(struct cuda_device *device, struct cuda_stream *stream)
{
    uint64_t run = atomic_load_explicit(&stream->run, memory_order_relaxed);
    atomic_store_explicit(&stream->given_up, true, memory_order_release);
    weir_log(device->options.log, WEIR_LOG_WARNING,
             "device \"cuda\": stream \"%s\": %llu of %llu calls have not run %llu ms after CUDA "
             "failed; the stream's %zu bytes are not given back: end this process before another "
             "uses the GPU",
             stream->name, (unsigned long long)(stream->called - run),
             (unsigned long long)stream->called,
             (unsigned long long)weir_cuda_patience_ns / 1000000, sizeof *stream);
    stream->next = atomic_load_explicit(&given_up, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&given_up, &stream->next, stream,
                                                  memory_order_release, memory_order_relaxed))
        ;
}

/* Failures stay with the device; there is nothing to do about them here. */
static void stream_free(struct cuda_device *device, struct cuda_stream *stream)
{
    enum weir_status status =
        result(device, cudaStreamSynchronize(stream->stream), "cudaStreamSynchronize");
    if (!calls_wait(stream, status == WEIR_OK ? UINT64_MAX : weir_cuda_patience_ns)) {
        stream_give_up(device, stream);
        return;
    }
    (void)result(device, cudaStreamDestroy(stream->stream), "cudaStreamDestroy");
    weir_free(stream);
}

void weir_cuda_stream_destroy(struct weir_stream *base)
{
    if (base == NULL)
        return;
    struct cuda_device *device = cuda_device(base->device);
    pthread_mutex_lock(&device->lock);
    struct cuda_stream **link = &device->streams;
    while (&(*link)->base != base)
        link = &(*link)->next;
    *link = (*link)->next;
    pthread_mutex_unlock(&device->lock);
    stream_free(device, cuda_stream(base));
}

void weir_cuda_streams_close(struct cuda_device *device)
{
    while (device->streams != NULL) {
        struct cuda_stream *stream = device->streams;
        device->streams = stream->next;
        stream_free(device, stream);
    }
}

enum weir_status weir_cuda_stream_sync(struct weir_stream *base)
{
    struct cuda_stream *stream = cuda_stream(base);
    struct cuda_device *device = device_of(stream);
    WEIR_TRY(weir_cuda_enter(device));
    return result(device, cudaStreamSynchronize(stream->stream), "cudaStreamSynchronize");
}

/* ---- events */

enum weir_status weir_cuda_event_create(struct weir_device *base, struct weir_event **out)
{
    struct cuda_device *device = cuda_device(base);
    WEIR_TRY(weir_cuda_enter(device));
    struct weir_event *event;
    WEIR_TRY(weir_alloc(&event, 1, sizeof *event, "an event of device \"cuda\""));
    event->device = device;
    /* Who waits for one sleeps: a core that spins is missed by the team that updates. */
    enum weir_status status = result(
        device,
        cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming | cudaEventBlockingSync),
        "cudaEventCreateWithFlags");
    if (status != WEIR_OK) {
        weir_free(event);
        return status;
    }
    *out = event;
    return WEIR_OK;
}

void weir_cuda_event_destroy(struct weir_event *event)
{
    if (event == NULL)
        return;
    (void)result(event->device, cudaEventDestroy(event->event), "cudaEventDestroy");
    weir_free(event);
}

enum weir_status weir_cuda_event_record(struct weir_stream *base, struct weir_event *event)
{
    WEIR_TRY(weir_cuda_enter(event->device));
    WEIR_TRY(result(event->device, cudaEventRecord(event->event, weir_cuda_stream(base)),
                    "cudaEventRecord"));
    event->recorded = true;
    return WEIR_OK;
}

enum weir_status weir_cuda_event_wait(struct weir_stream *base, struct weir_event *event)
{
    WEIR_TRY(weir_cuda_enter(event->device));
    if (!event->recorded && event->device->options.strict)
        return weir_fail(WEIR_ERR_STATE,
                         "device \"cuda\": event %p is waited for but was never recorded; queue "
                         "its record first",
                         (void *)event);
    return result(event->device, cudaStreamWaitEvent(weir_cuda_stream(base), event->event, 0),
                  "cudaStreamWaitEvent");
}

/* After a failure events count as complete, so that who polls for one goes on and finds it. */
enum weir_status weir_cuda_event_query(struct weir_event *event, bool *complete)
{
    *complete = true;
    WEIR_TRY(weir_cuda_enter(event->device));
    cudaError_t code = cudaEventQuery(event->event);
    *complete = code != cudaErrorNotReady;
    if (*complete)
        return result(event->device, code, "cudaEventQuery");
    (void)cudaGetLastError(); /* no failure, but CUDA keeps it as one */
    return WEIR_OK;
}

enum weir_status weir_cuda_event_sync(struct weir_event *event)
{
    WEIR_TRY(weir_cuda_enter(event->device));
    return result(event->device, cudaEventSynchronize(event->event), "cudaEventSynchronize");
}

/* ---- operations */

enum weir_status weir_cuda_copy(struct weir_stream *base, void *destination, const void *source,
                                uint64_t bytes, enum weir_copy direction)
{
    static const enum cudaMemcpyKind kinds[] = {
        [WEIR_COPY_TO_DEVICE] = cudaMemcpyHostToDevice,
        [WEIR_COPY_TO_HOST] = cudaMemcpyDeviceToHost,
        [WEIR_COPY_ON_DEVICE] = cudaMemcpyDeviceToDevice,
    };
    struct cuda_stream *stream = cuda_stream(base);
    struct cuda_device *device = device_of(stream);
    WEIR_TRY(weir_cuda_enter(device));
    uintptr_t host = (uintptr_t)(direction == WEIR_COPY_TO_DEVICE ? source : destination);
    for (uint64_t at = 0, piece; at < bytes; at += piece) {
        piece = direction == WEIR_COPY_ON_DEVICE ? bytes : cuda_piece(host + at, bytes - at);
        WEIR_TRY(result(device,
                        cudaMemcpyAsync((char *)destination + at, (const char *)source + at, piece,
                                        kinds[direction], stream->stream),
                        "cudaMemcpyAsync"));
    }
    return WEIR_OK;
}

enum weir_status weir_cuda_fill(struct weir_stream *base, void *destination, unsigned char value,
                                uint64_t bytes)
{
    struct cuda_stream *stream = cuda_stream(base);
    struct cuda_device *device = device_of(stream);
    WEIR_TRY(weir_cuda_enter(device));
    if (bytes == 0)
        return WEIR_OK;
    return result(device, cudaMemsetAsync(destination, value, bytes, stream->stream),
                  "cudaMemsetAsync");
}

/* ---- calls */

/* Room is told by hidden orders alone: a call gives its queuer no order (core/device.h). Where none
 * comes for a while, CUDA is asked whether it has failed: a lost GPU's calls may never run. */
static enum weir_status slot_wait(struct cuda_stream *stream, struct cuda_slot **out)
{
    for (;;) {
        uint32_t seen = weir_bell_read(&stream->room);
        uint64_t run = atomic_load_explicit(&stream->run, WEIR_HIDDEN_ACQUIRE);
        *out = &stream->slots[stream->called % WEIR_STREAM_DEPTH];
        if (stream->called - run < WEIR_STREAM_DEPTH)
            return WEIR_OK;
        uint64_t begin_ns = weir_now_ns();
        weir_bell_sleep_for(&stream->room, seen, weir_cuda_patience_ns);
        if (weir_now_ns() - begin_ns < weir_cuda_patience_ns)
            continue;
        cudaError_t code = cudaStreamQuery(stream->stream);
        if (code != cudaErrorNotReady)
            WEIR_TRY(result(device_of(stream), code, "cudaStreamQuery"));
        else
            (void)cudaGetLastError(); /* no failure, but CUDA keeps it as one */
    }
}

#define SLOT_WORDS (sizeof(struct cuda_slot) / sizeof(uint64_t))
_Static_assert(sizeof(struct cuda_slot) % sizeof(uint64_t) == 0, "slots travel as words");

/* Only hidden orders tell that the slot's former call has run. */
WEIR_TSAN_BLIND static void slot_write(struct cuda_slot *slot, const uint64_t *words)
{
    volatile uint64_t *to = (volatile uint64_t *)slot;
    for (size_t i = 0; i < SLOT_WORDS; i++)
        to[i] = words[i];
}

static void slot_run(struct cuda_slot *slot)
{
#if WEIR_TSAN
    for (size_t i = 0; i < slot->range_count; i++)
        weir_tsan_range(slot->ranges[i].bytes, slot->ranges[i].byte_count, slot->ranges[i].written);
#endif
    slot->fn(slot->argument);
}

/* Also after a failure of the device: a thread may sleep until its call wakes it, and finds the
 * failure then. */
static void CUDART_CB callback(cudaStream_t on, cudaError_t status, void *argument)
{
    static _Thread_local bool prompt; /* a thread of CUDA's: the streams wait for it too */
    (void)on, (void)status;
    if (!prompt)
        weir_thread_prompt();
    prompt = true;
    struct cuda_slot *slot = argument;
    struct cuda_stream *stream = slot->stream;
    if (!atomic_load_explicit(&stream->given_up, memory_order_acquire))
        slot_run(slot); /* else what it would touch may be gone */
    uint64_t run = atomic_load_explicit(&stream->run, memory_order_relaxed) + 1;
    atomic_store_explicit(&stream->run, run, WEIR_HIDDEN_RELEASE);
    weir_bell_ring(&stream->room);
    atomic_store_explicit(&stream->left, run, memory_order_release);
}

enum weir_status weir_cuda_call(struct weir_stream *base, weir_call_fn *fn, const void *argument,
                                size_t argument_bytes, const struct weir_range *ranges,
                                size_t range_count)
{
    struct cuda_stream *stream = cuda_stream(base);
    struct cuda_device *device = device_of(stream);
    WEIR_TRY(weir_cuda_enter(device));
    if (argument_bytes > WEIR_CALL_BYTES || range_count > WEIR_CALL_RANGES)
        return weir_fail(WEIR_ERR_ARG,
                         "stream \"%s\": call with %zu argument bytes and %zu ranges, at most %d "
                         "and %d",
                         stream->name, argument_bytes, range_count, WEIR_CALL_BYTES,
                         WEIR_CALL_RANGES);
    struct cuda_slot filled = {.stream = stream, .fn = fn};
    if (argument_bytes > 0)
        memcpy(filled.argument, argument, argument_bytes);
#if WEIR_TSAN
    if (range_count > 0)
        memcpy(filled.ranges, ranges, range_count * sizeof *ranges);
    filled.range_count = range_count;
#else
    (void)ranges;
#endif
    uint64_t words[SLOT_WORDS];
    memcpy(words, &filled, sizeof words);
    struct cuda_slot *slot;
    WEIR_TRY(slot_wait(stream, &slot));
    slot_write(slot, words);
    /* Not cudaLaunchHostFunc: after a failure that one never runs the function, so the slot would
     * stay taken and whoever waits for the call would sleep for ever. */
    WEIR_TRY(result(device, cudaStreamAddCallback(stream->stream, callback, slot, 0),
                    "cudaStreamAddCallback"));
    stream->called++;
    return WEIR_OK;
}
