/*
 * Inside the host instance: queues that order one way.
 *
 * A thread queues an entry by copying it into its stream's ring word by word and storing the slot's
 * serial with release; the engine thread that serves the stream acquires that serial, copies the
 * entry out and runs it. Nothing on this path orders the operation before a later queueing: room is
 * told by hidden orders (core/tsan.h), and sleepers are woken by raw futexes. The ways back are the
 * event's `completed` and the stream's `done`, both stored with release and acquired only by who
 * waits for them.
 *
 * Each field has one writer, named at its group.
 */
#ifndef WEIR_CORE_HOST_INTERNAL_H
#define WEIR_CORE_HOST_INTERNAL_H

#include "core/bell.h"
#include "core/charge.h"
#include "core/host.h"
#include "core/tsan.h"

#include <stdalign.h>

/* ---- memory that the device knows */

enum host_kind { HOST_FREE, HOST_DEVICE, HOST_PINNED, HOST_REGISTERED };

/* Read without a lock by who queues in strict mode, hence the atomics: a lock there would order
 * enqueuers. `state` changes last when a block is made and first when it is freed. */
struct host_block {
    struct host_block *next; /* fixed once the block is in the list */
    _Atomic uint64_t state;  /* serial * 4 + enum host_kind */
    _Atomic uintptr_t base;
    _Atomic uint64_t bytes;
    _Atomic uint64_t move_count; /* copies and fills queued or running, strict mode */
};

/* ---- queues */

struct weir_event {
    struct host_device *device;
    uint64_t recorded;           /* who records; callers order it, so it is plain */
    _Atomic uint64_t completed;  /* engines: tickets complete in order */
    _Atomic uint64_t hold_count; /* the creator and each queued entry that names the event */
};

enum host_op { HOST_COPY, HOST_FILL, HOST_RECORD, HOST_WAIT, HOST_CALL, HOST_CLOSE };

struct host_move {
    void *destination;
    const void *source; /* NULL: fill with value */
    uint64_t bytes;
    struct host_block *blocks[2]; /* strict mode: those that must not be freed yet */
    unsigned char value;
};

struct host_call {
    weir_call_fn *fn;
    alignas(max_align_t) unsigned char argument[WEIR_CALL_BYTES];
    bool brief; /* names no bytes: a stamp, a wake */
#if WEIR_TSAN
    struct weir_range ranges[WEIR_CALL_RANGES];
    size_t range_count;
#endif
};

struct host_ticket {
    struct weir_event *event;
    uint64_t number;
};

struct host_entry {
    enum host_op op;
    union {
        struct host_move move;     /* COPY, FILL */
        struct host_ticket ticket; /* RECORD, WAIT */
        struct host_call call;
    };
};

#define HOST_ENTRY_WORDS (sizeof(struct host_entry) / sizeof(uint64_t))
_Static_assert(sizeof(struct host_entry) % sizeof(uint64_t) == 0, "entries travel as words");

struct host_slot {
    _Atomic uint64_t
        serial; /* the position of the entry in it, from 1; released when it is whole */
    volatile uint64_t words[HOST_ENTRY_WORDS];
};

struct host_stream {
    struct weir_stream base;
    struct host_engine *engine;
    char name[24];
    /* who queues: plain, so that two threads that queue without order are seen as a race */
    uint64_t head;
    _Atomic uint64_t queued; /* the same for other threads */
    /* the engine thread */
    struct host_stream *next;
    bool loaded; /* entry is out of its slot and has not run yet */
    struct host_entry entry;
    _Atomic uint64_t done; /* entries run; frees their slots */
    struct host_slot slots[WEIR_STREAM_DEPTH];
};

struct host_engine {
    struct host_engine *next; /* fixed once the engine is in the list */
    struct host_device *device;
    enum weir_engine kind;
    pthread_t thread;
    struct weir_bell bell;
    _Atomic bool stopping;                  /* who closes the device */
    _Atomic(struct host_stream *) arriving; /* new streams, pushed by who makes them */
    struct host_stream *streams;            /* the engine thread */
    uint64_t random;                        /* the engine thread; strict mode */
};

struct host_device {
    struct weir_device base;
    struct weir_device_options options;
    struct weir_bell progress; /* rung after every operation, for CPU threads that wait */

    pthread_mutex_t lock; /* making and freeing of memory and engines */
    struct host_engine *kinds[3];
    _Atomic(struct host_engine *) engines;
    _Atomic(struct host_block *) blocks;
    struct weir_charge charge;
    _Atomic bool no_huge_pages; /* logged once */

    _Atomic bool failed; /* spares the healthy path the lock of `sticky` */
    struct weir_sticky sticky;
    _Atomic uint64_t fail_countdown; /* weir_host_fail_at */
};

static inline struct host_device *host_device(struct weir_device *device)
{
    return (struct host_device *)device;
}

static inline struct host_stream *host_stream(struct weir_stream *stream)
{
    return (struct host_stream *)stream;
}

/* WEIR_OK, or the device's first failure. */
static inline enum weir_status host_check(struct host_device *device)
{
    if (!atomic_load_explicit(&device->failed, WEIR_HIDDEN_ACQUIRE))
        return WEIR_OK;
    return weir_sticky_raise(&device->sticky);
}

/* host_engine.c; what a thread does with an event or a stream is in host_stream.c */
enum weir_status weir_host_engine_open(struct host_device *device, enum weir_engine kind,
                                       struct host_engine **out);
void weir_host_engines_close(struct host_device *device); /* drains and frees all streams */
void weir_host_event_release(struct weir_event *event);

/* host_memory.c */
enum weir_status weir_host_mem_alloc(struct weir_device *device, uint64_t bytes, void **out);
enum weir_status weir_host_mem_free(struct weir_device *device, void *memory);
enum weir_status weir_host_pin_alloc(struct weir_device *device, uint64_t bytes, void **out);
enum weir_status weir_host_pin_free(struct weir_device *device, void *memory);
enum weir_status weir_host_pin_register(struct weir_device *device, void *memory, uint64_t bytes);
enum weir_status weir_host_pin_unregister(struct weir_device *device, void *memory);
/* Strict mode: find and hold the blocks of a copy or fill; ARG unless its direction is true. */
enum weir_status weir_host_move_check(struct host_device *device, struct host_move *move,
                                      enum weir_copy direction);
void weir_host_move_release(struct host_move *move);
void weir_host_blocks_free(struct host_device *device);

/* host_stream.c */
enum weir_status weir_host_stream_create(struct weir_device *device, enum weir_engine engine,
                                         const char *name, struct weir_stream **out);
void weir_host_stream_destroy(struct weir_stream *stream);
enum weir_status weir_host_stream_sync(struct weir_stream *stream);
enum weir_status weir_host_event_create(struct weir_device *device, struct weir_event **out);
void weir_host_event_destroy(struct weir_event *event);
enum weir_status weir_host_event_record(struct weir_stream *stream, struct weir_event *event);
enum weir_status weir_host_event_wait(struct weir_stream *stream, struct weir_event *event);
enum weir_status weir_host_event_query(struct weir_event *event, bool *complete);
enum weir_status weir_host_event_sync(struct weir_event *event);
enum weir_status weir_host_copy(struct weir_stream *stream, void *destination, const void *source,
                                uint64_t bytes, enum weir_copy direction);
enum weir_status weir_host_fill(struct weir_stream *stream, void *destination, unsigned char value,
                                uint64_t bytes);
enum weir_status weir_host_call(struct weir_stream *stream, weir_call_fn *fn, const void *argument,
                                size_t argument_bytes, const struct weir_range *ranges,
                                size_t range_count);

#endif
