#include "core/host_internal.h"
#include "core/memory.h"

#include <omp.h>
#include <string.h>
#include <time.h>

/* ---- the thread's floating point and team */

/* Denormals are numbers (DESIGN 7c), whatever a library set before. */
static void denormals_on(void)
{
#if defined(__x86_64__)
    const unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~(flush_to_zero | denormals_are_zero));
#elif defined(__aarch64__)
    const uint64_t flush_to_zero = UINT64_C(1) << 24;
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control & ~flush_to_zero));
#endif
}

/* The team starts with the engine, so that no step starts a thread. OpenMP's own synchronisation is
 * not instrumented, so under ThreadSanitizer the team is this thread alone. */
static void team_start(int thread_count)
{
    int count = thread_count > 0 ? thread_count : omp_get_num_procs();
    omp_set_dynamic(0);
    omp_set_num_threads(WEIR_TSAN ? 1 : count);
#pragma omp parallel
    denormals_on();
}

/* ---- strict mode's disorder */

/* xorshift64 (Marsaglia 2003) */
static uint64_t draw(struct host_engine *engine)
{
    engine->random ^= engine->random << 13;
    engine->random ^= engine->random >> 7;
    engine->random ^= engine->random << 17;
    return engine->random;
}

/* Delays an operation, rarely by long; true: let the engine's other streams go first. */
static bool postpone(struct host_engine *engine)
{
    if (!engine->device->options.strict)
        return false;
    uint64_t drawn = draw(engine);
    if (drawn % 4 == 0)
        return true;
    if (drawn % 16 == 1)
        nanosleep(&(struct timespec){.tv_nsec = (long)(drawn >> 32) % 200000}, NULL);
    return false;
}

/* ---- operations */

void weir_host_event_release(struct weir_event *event)
{
    if (atomic_fetch_sub_explicit(&event->hold_count, 1, memory_order_release) > 1)
        return;
    /* only the last holder acquires: holders stay unordered among themselves */
    (void)atomic_load_explicit(&event->hold_count, memory_order_acquire);
    weir_free(event);
}

static void bells_ring(struct host_device *device)
{
    struct host_engine *engine = atomic_load_explicit(&device->engines, memory_order_acquire);
    for (; engine != NULL; engine = engine->next)
        weir_bell_ring(&engine->bell);
}

static void ticket_complete(struct host_engine *engine, const struct host_ticket *ticket)
{
    atomic_store_explicit(&ticket->event->completed, ticket->number, memory_order_release);
    weir_host_event_release(ticket->event);
    bells_ring(engine->device);
}

/* A ticket completes after the one before it. In one stream it always does; when another stream
 * records an event anew, this keeps earlier waits from passing too soon. */
static bool ready(const struct host_entry *entry)
{
    const struct host_ticket *ticket = &entry->ticket;
    if (entry->op == HOST_WAIT)
        return atomic_load_explicit(&ticket->event->completed, memory_order_acquire) >=
               ticket->number;
    if (entry->op == HOST_RECORD)
        return atomic_load_explicit(&ticket->event->completed, WEIR_HIDDEN_ACQUIRE) + 1 ==
               ticket->number;
    return true;
}

static void fail_injected(struct host_stream *stream)
{
    struct host_device *device = stream->engine->device;
    weir_fail_device(1,
                     "device \"host\": an operation of stream \"%s\" failed by request of a test",
                     stream->name);
    weir_sticky_set(&device->sticky, weir_last_error());
    atomic_store_explicit(&device->failed, true, WEIR_HIDDEN_RELEASE);
}

/* Whether the next copy, fill or call may run: not after a failure. */
static bool healthy(struct host_stream *stream)
{
    struct host_device *device = stream->engine->device;
    uint64_t left = atomic_load_explicit(&device->fail_countdown, memory_order_relaxed);
    while (left > 0 &&
           !atomic_compare_exchange_weak_explicit(&device->fail_countdown, &left, left - 1,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
    if (left == 1)
        fail_injected(stream);
    return !atomic_load_explicit(&device->failed, WEIR_HIDDEN_ACQUIRE);
}

static void move_run(const struct host_move *move)
{
    if (move->source != NULL)
        memcpy(move->destination, move->source, move->bytes);
    else
        memset(move->destination, move->value, move->bytes);
}

static void call_run(struct host_call *call)
{
#if WEIR_TSAN
    for (size_t i = 0; i < call->range_count; i++)
        weir_tsan_range(call->ranges[i].bytes, call->ranges[i].byte_count, call->ranges[i].written);
#endif
    call->fn(call->argument);
}

static void entry_run(struct host_stream *stream)
{
    struct host_entry *entry = &stream->entry;
    switch (entry->op) {
    case HOST_COPY:
    case HOST_FILL:
        if (healthy(stream))
            move_run(&entry->move);
        weir_host_move_release(&entry->move);
        break;
    case HOST_CALL:
        if (healthy(stream))
            call_run(&entry->call);
        break;
    case HOST_RECORD:
        ticket_complete(stream->engine, &entry->ticket);
        break;
    case HOST_WAIT:
        weir_host_event_release(entry->ticket.event);
        break;
    case HOST_CLOSE:
        break;
    }
}

/* ---- the thread */

#define BRIEF_MOST 8 /* then the others have their turn, whatever comes */

WEIR_TSAN_BLIND static void slot_read(const struct host_slot *slot, uint64_t *words)
{
    for (size_t i = 0; i < HOST_ENTRY_WORDS; i++)
        words[i] = slot->words[i];
}

/* Take the next entry out of its slot, if it is whole. */
static bool entry_load(struct host_stream *stream, uint64_t position)
{
    struct host_slot *slot = &stream->slots[position % WEIR_STREAM_DEPTH];
    if (atomic_load_explicit(&slot->serial, memory_order_acquire) != position + 1)
        return false;
    uint64_t words[HOST_ENTRY_WORDS];
    slot_read(slot, words);
    memcpy(&stream->entry, words, sizeof words);
    return true;
}

/* Run the next operation of *link's stream if it can; whether there was something to do. A closed
 * stream leaves the list, and its memory is its closer's once `done` says so. */
static bool stream_step(struct host_engine *engine, struct host_stream **link)
{
    struct host_stream *stream = *link;
    uint64_t done = atomic_load_explicit(&stream->done, memory_order_relaxed);
    if (!stream->loaded)
        stream->loaded = entry_load(stream, done);
    if (!stream->loaded || !ready(&stream->entry))
        return false;
    if (postpone(engine))
        return true;
    entry_run(stream);
    stream->loaded = false;
    if (stream->entry.op == HOST_CLOSE)
        *link = stream->next;
    atomic_store_explicit(&stream->done, done + 1, memory_order_release);
    weir_bell_ring(&engine->device->progress);
    return true;
}

/* Takes no time. */
static bool brief(const struct host_entry *entry)
{
    return entry->op == HOST_RECORD || entry->op == HOST_WAIT ||
           (entry->op == HOST_CALL && entry->call.brief);
}

static bool brief_next(struct host_stream *stream)
{
    if (!stream->loaded)
        stream->loaded =
            entry_load(stream, atomic_load_explicit(&stream->done, memory_order_relaxed));
    return stream->loaded && brief(&stream->entry);
}

/* A stream's turn: one operation and what is brief behind it. Else whoever is told of that
 * operation would wait for a kernel of another stream at the event, and for one more at the wake.
 */
static bool stream_turn(struct host_engine *engine, struct host_stream **link)
{
    struct host_stream *stream = *link;
    bool progress = stream_step(engine, link), more = progress;
    for (int i = 0; i < BRIEF_MOST && more && *link == stream && brief_next(stream); i++)
        more = stream_step(engine, link);
    return progress;
}

static void streams_adopt(struct host_engine *engine)
{
    struct host_stream *stream =
        atomic_exchange_explicit(&engine->arriving, NULL, memory_order_acquire);
    while (stream != NULL) {
        struct host_stream *next = stream->next;
        stream->next = engine->streams;
        engine->streams = stream;
        stream = next;
    }
}

static bool streams_step(struct host_engine *engine)
{
    bool progress = false;
    for (struct host_stream **link = &engine->streams; *link != NULL;) {
        struct host_stream *stream = *link;
        progress |= stream_turn(engine, link);
        if (*link == stream)
            link = &stream->next;
    }
    return progress;
}

static bool streams_drained(const struct host_engine *engine)
{
    for (struct host_stream *stream = engine->streams; stream != NULL; stream = stream->next)
        if (atomic_load_explicit(&stream->queued, WEIR_HIDDEN_ACQUIRE) !=
            atomic_load_explicit(&stream->done, memory_order_relaxed))
            return false;
    return true;
}

static void *engine_main(void *argument)
{
    struct host_engine *engine = argument;
    denormals_on();
    if (engine->kind == WEIR_ENGINE_COMPUTE)
        team_start(engine->device->options.thread_count);
    for (;;) {
        uint32_t seen = weir_bell_read(&engine->bell);
        bool stopping = atomic_load_explicit(&engine->stopping, WEIR_HIDDEN_ACQUIRE);
        streams_adopt(engine);
        if (streams_step(engine))
            continue;
        if (stopping && streams_drained(engine))
            return NULL;
        weir_bell_sleep(&engine->bell, seen);
    }
}

static const char *const thread_names[] = {"weir-compute", "weir-to-device", "weir-to-host"};

/* The compute engine's team has all CPUs. */
static void thread_place(const struct host_engine *engine)
{
    const struct weir_device_options *options = &engine->device->options;
    if (engine->kind == WEIR_ENGINE_COMPUTE || options->cpus == NULL)
        return;
    int os_errno = pthread_setaffinity_np(engine->thread, sizeof *options->cpus, options->cpus);
    if (os_errno != 0)
        weir_log(options->log, WEIR_LOG_WARNING,
                 "device \"host\": thread %s stays on any CPU (errno %d), copies may be slower; "
                 "leave this process the CPUs of one node",
                 thread_names[engine->kind], os_errno);
}

enum weir_status weir_host_engine_open(struct host_device *device, enum weir_engine kind,
                                       struct host_engine **out)
{
    struct host_engine *engine;
    WEIR_TRY(weir_alloc(&engine, 1, sizeof *engine, "an engine of device \"host\""));
    engine->device = device;
    engine->kind = kind;
    engine->random = (device->options.seed + kind + 1) * UINT64_C(0x9E3779B97F4A7C15) | 1;
    int os_errno = pthread_create(&engine->thread, NULL, engine_main, engine);
    if (os_errno != 0) {
        weir_free(engine);
        return weir_fail_errno(WEIR_ERR_NOMEM, os_errno,
                               "device \"host\": cannot start thread %s; raise the thread limit",
                               thread_names[kind]);
    }
    pthread_setname_np(engine->thread, thread_names[kind]);
    thread_place(engine);
    pthread_mutex_lock(&device->lock);
    engine->next = atomic_load_explicit(&device->engines, memory_order_relaxed);
    atomic_store_explicit(&device->engines, engine, memory_order_release);
    pthread_mutex_unlock(&device->lock);
    *out = engine;
    return WEIR_OK;
}

static void streams_free(struct host_engine *engine)
{
    while (engine->streams != NULL) {
        struct host_stream *stream = engine->streams;
        engine->streams = stream->next;
        weir_free(stream);
    }
}

void weir_host_engines_close(struct host_device *device)
{
    struct host_engine *first = atomic_load_explicit(&device->engines, memory_order_acquire);
    for (struct host_engine *engine = first; engine != NULL; engine = engine->next) {
        atomic_store_explicit(&engine->stopping, true, WEIR_HIDDEN_RELEASE);
        weir_bell_ring(&engine->bell);
    }
    /* engines ring each other's bells until the last one has ended */
    for (struct host_engine *engine = first; engine != NULL; engine = engine->next)
        pthread_join(engine->thread, NULL);
    while (first != NULL) {
        struct host_engine *engine = first;
        first = engine->next;
        streams_free(engine);
        weir_free(engine);
    }
}
