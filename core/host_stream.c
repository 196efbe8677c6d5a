#include "core/host_internal.h"
#include "core/memory.h"

#include <stdio.h>
#include <string.h>

/* ---- queueing */

static bool has_room(struct host_stream *stream)
{
    uint64_t done = atomic_load_explicit(&stream->done, WEIR_HIDDEN_ACQUIRE);
    return stream->head - done < WEIR_STREAM_DEPTH;
}

static void wait_for_room(struct host_stream *stream)
{
    struct weir_bell *bell = &stream->engine->device->progress;
    for (;;) {
        uint32_t seen = weir_bell_read(bell);
        if (has_room(stream))
            return;
        weir_bell_sleep(bell, seen);
    }
}

/* Only hidden orders tell that the engine has read the slot's former entry. */
WEIR_TSAN_BLIND static void slot_write(struct host_slot *slot, const uint64_t *words)
{
    for (size_t i = 0; i < HOST_ENTRY_WORDS; i++)
        slot->words[i] = words[i];
}

static void enqueue(struct host_stream *stream, const struct host_entry *entry)
{
    wait_for_room(stream);
    struct host_slot *slot = &stream->slots[stream->head % WEIR_STREAM_DEPTH];
    uint64_t words[HOST_ENTRY_WORDS];
    memcpy(words, entry, sizeof words);
    slot_write(slot, words);
    stream->head++;
    atomic_store_explicit(&slot->serial, stream->head, memory_order_release);
    atomic_store_explicit(&stream->queued, stream->head, WEIR_HIDDEN_RELEASE);
    weir_bell_ring(&stream->engine->bell);
}

/* ---- streams */

/* Under ThreadSanitizer each stream has a thread of its own: streams that share one would be
 * ordered by it, and a missing event between them would not be seen. */
static enum weir_status engine_for(struct host_device *device, enum weir_engine kind,
                                   struct host_engine **out)
{
    if (WEIR_TSAN)
        return weir_host_engine_open(device, kind, out);
    *out = device->kinds[kind];
    return WEIR_OK;
}

enum weir_status weir_host_stream_create(struct weir_device *base, enum weir_engine kind,
                                         const char *name, struct weir_stream **out)
{
    struct host_device *device = host_device(base);
    WEIR_TRY(host_check(device));
    struct host_engine *engine;
    WEIR_TRY(engine_for(device, kind, &engine));
    struct host_stream *stream;
    WEIR_TRY(weir_alloc(&stream, 1, sizeof *stream, "a stream of device \"host\""));
    /* The ring is walked through over many steps: touched now, or resident memory would creep. */
    for (size_t at = 0; at < sizeof *stream; at += 4096)
        ((volatile char *)stream)[at] = 0;
    stream->base.device = base;
    stream->engine = engine;
    snprintf(stream->name, sizeof stream->name, "%s", name);
    stream->next = atomic_load_explicit(&engine->arriving, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&engine->arriving, &stream->next, stream,
                                                  memory_order_release, memory_order_relaxed))
        ;
    weir_bell_ring(&engine->bell);
    *out = &stream->base;
    return WEIR_OK;
}

static void wait_until_done(struct host_stream *stream)
{
    struct weir_bell *bell = &stream->engine->device->progress;
    uint64_t queued = atomic_load_explicit(&stream->queued, memory_order_relaxed);
    for (;;) {
        uint32_t seen = weir_bell_read(bell);
        if (atomic_load_explicit(&stream->done, memory_order_acquire) >= queued)
            return;
        weir_bell_sleep(bell, seen);
    }
}

void weir_host_stream_destroy(struct weir_stream *base)
{
    if (base == NULL)
        return;
    struct host_stream *stream = host_stream(base);
    enqueue(stream, &(struct host_entry){.op = HOST_CLOSE});
    wait_until_done(stream);
    weir_free(stream);
}

enum weir_status weir_host_stream_sync(struct weir_stream *base)
{
    struct host_stream *stream = host_stream(base);
    wait_until_done(stream);
    return host_check(stream->engine->device);
}

/* ---- events */

enum weir_status weir_host_event_create(struct weir_device *base, struct weir_event **out)
{
    WEIR_TRY(host_check(host_device(base)));
    struct weir_event *event;
    WEIR_TRY(weir_alloc(&event, 1, sizeof *event, "an event of device \"host\""));
    event->device = host_device(base);
    atomic_init(&event->hold_count, 1);
    *out = event;
    return WEIR_OK;
}

void weir_host_event_destroy(struct weir_event *event)
{
    if (event != NULL)
        weir_host_event_release(event);
}

static void ticket_enqueue(struct host_stream *stream, enum host_op op, struct weir_event *event)
{
    atomic_fetch_add_explicit(&event->hold_count, 1, memory_order_relaxed);
    enqueue(stream, &(struct host_entry){.op = op, .ticket = {event, event->recorded}});
}

enum weir_status weir_host_event_record(struct weir_stream *base, struct weir_event *event)
{
    WEIR_TRY(host_check(event->device));
    event->recorded++;
    ticket_enqueue(host_stream(base), HOST_RECORD, event);
    return WEIR_OK;
}

static enum weir_status check_recorded(const struct weir_event *event)
{
    if (event->recorded > 0 || !event->device->options.strict)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_STATE,
                     "device \"host\": event %p is waited for but was never "
                     "recorded; queue its record first",
                     (const void *)event);
}

enum weir_status weir_host_event_wait(struct weir_stream *base, struct weir_event *event)
{
    WEIR_TRY(host_check(event->device));
    WEIR_TRY(check_recorded(event));
    ticket_enqueue(host_stream(base), HOST_WAIT, event);
    return WEIR_OK;
}

static bool is_complete(struct weir_event *event)
{
    return atomic_load_explicit(&event->completed, memory_order_acquire) >= event->recorded;
}

enum weir_status weir_host_event_query(struct weir_event *event, bool *complete)
{
    *complete = is_complete(event);
    return host_check(event->device);
}

enum weir_status weir_host_event_sync(struct weir_event *event)
{
    WEIR_TRY(check_recorded(event));
    for (;;) {
        uint32_t seen = weir_bell_read(&event->device->progress);
        if (is_complete(event))
            return host_check(event->device);
        weir_bell_sleep(&event->device->progress, seen);
    }
}

/* ---- operations */

enum weir_status weir_host_copy(struct weir_stream *base, void *destination, const void *source,
                                uint64_t bytes, enum weir_copy direction)
{
    struct host_stream *stream = host_stream(base);
    WEIR_TRY(host_check(stream->engine->device));
    if (bytes == 0)
        return WEIR_OK;
    if (destination == NULL || source == NULL)
        return weir_fail(WEIR_ERR_ARG, "stream \"%s\": copy of %llu bytes from %p to %p",
                         stream->name, (unsigned long long)bytes, source, destination);
    struct host_entry entry = {.op = HOST_COPY,
                               .move = {destination, source, bytes, {NULL, NULL}, 0}};
    WEIR_TRY(weir_host_move_check(stream->engine->device, &entry.move, direction));
    enqueue(stream, &entry);
    return WEIR_OK;
}

enum weir_status weir_host_fill(struct weir_stream *base, void *destination, unsigned char value,
                                uint64_t bytes)
{
    struct host_stream *stream = host_stream(base);
    WEIR_TRY(host_check(stream->engine->device));
    if (bytes == 0)
        return WEIR_OK;
    struct host_entry entry = {.op = HOST_FILL,
                               .move = {destination, NULL, bytes, {NULL, NULL}, value}};
    WEIR_TRY(weir_host_move_check(stream->engine->device, &entry.move, WEIR_COPY_ON_DEVICE));
    enqueue(stream, &entry);
    return WEIR_OK;
}

enum weir_status weir_host_call(struct weir_stream *base, weir_call_fn *fn, const void *argument,
                                size_t argument_bytes, const struct weir_range *ranges,
                                size_t range_count)
{
    struct host_stream *stream = host_stream(base);
    WEIR_TRY(host_check(stream->engine->device));
    if (argument_bytes > WEIR_CALL_BYTES || range_count > WEIR_CALL_RANGES)
        return weir_fail(WEIR_ERR_ARG,
                         "stream \"%s\": call with %zu argument bytes and %zu ranges, at most %d "
                         "and %d",
                         stream->name, argument_bytes, range_count, WEIR_CALL_BYTES,
                         WEIR_CALL_RANGES);
    struct host_entry entry = {.op = HOST_CALL, .call = {.fn = fn, .brief = range_count == 0}};
    if (argument_bytes > 0)
        memcpy(entry.call.argument, argument, argument_bytes);
#if WEIR_TSAN
    if (range_count > 0)
        memcpy(entry.call.ranges, ranges, range_count * sizeof *ranges);
    entry.call.range_count = range_count;
#else
    (void)ranges;
#endif
    enqueue(stream, &entry);
    return WEIR_OK;
}
