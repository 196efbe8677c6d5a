/*
 * Conformance of the device table: what core/device.h promises, for every built instance. What a
 * gate holds back cannot have run, so nothing here depends on timing.
 */
#include "core/clock.h"
#include "tests/support_device.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- order */

struct append {
    int *list, *count;
    int value;
    unsigned char filling[WEIR_CALL_BYTES - 2 * sizeof(int *) - sizeof(int)];
};
_Static_assert(sizeof(struct append) == WEIR_CALL_BYTES, "the largest argument");

static void append_run(void *argument)
{
    struct append *append = argument;
    bool whole = true;
    for (size_t i = 0; i < sizeof append->filling; i++)
        whole &= append->filling[i] == (unsigned char)(append->value + (int)i);
    append->list[(*append->count)++] = whole ? append->value : -1;
}

/* A stream runs its operations in queueing order, each with the argument bytes of its own, up to
 * the largest argument, though the caller's copy is overwritten at once. */
static void operations_run_in_queueing_order(void **state)
{
    struct test_device *d = *state;
    int list[200], count = 0;
    for (int n = 0; n < 200; n++) {
        struct append append = {.list = list, .count = &count, .value = n};
        for (size_t i = 0; i < sizeof append.filling; i++)
            append.filling[i] = (unsigned char)(n + (int)i);
        assert_ok(d->table->call(d->streams[COMPUTE], append_run, &append, sizeof append, NULL, 0));
        memset(&append, 0xEE, sizeof append);
    }
    assert_ok(d->table->stream_sync(d->streams[COMPUTE]));
    assert_int_equal(200, count);
    for (int n = 0; n < 200; n++)
        assert_int_equal(n, list[n]);
}

/* The compute engine's other stream runs 50 operations and more: whatever could run in this one
 * has. */
static void let_others_run(struct test_marks *marks)
{
    struct test_device *d = marks->device;
    for (int i = 0; i < 50; i++)
        test_mark_queue(marks, d->streams[UPDATE], i);
    assert_ok(d->table->stream_sync(d->streams[UPDATE]));
    for (int i = 0; i < 50; i++)
        assert_true(test_mark_seen(marks, i));
}

/* While a stream waits for an event that cannot come yet, the other stream of its engine runs. */
static void waiting_stream_holds_up_no_other(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event;
    int blocked = 0;
    struct test_marks marks;
    test_marks_open(&marks, d);
    assert_ok(d->table->event_create(d->device, &event));
    struct test_gate *gate = test_gate_queue(d, d->streams[TO_DEVICE]);
    assert_ok(d->table->event_record(d->streams[TO_DEVICE], event));
    assert_ok(d->table->event_wait(d->streams[COMPUTE], event));
    test_count_queue(d, d->streams[COMPUTE], &blocked);
    let_others_run(&marks);
    assert_int_equal(0, blocked);
    bool complete = true;
    assert_ok(d->table->event_query(event, &complete));
    assert_false(complete);
    test_gate_open(gate);
    assert_ok(d->table->stream_sync(d->streams[COMPUTE]));
    assert_int_equal(1, blocked);
    d->table->event_destroy(event);
    test_marks_close(&marks);
}

/* ---- events */

/* Three streams pass one plain int along by events alone; query, too, gives the way back. */
static void events_order_streams_and_the_caller(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event;
    int count = 0;
    assert_ok(d->table->event_create(d->device, &event));
    for (int n = 0; n < 300; n++) {
        struct weir_stream *from = d->streams[n % STREAM_COUNT];
        struct weir_stream *to = d->streams[(n + 1) % STREAM_COUNT];
        test_count_queue(d, from, &count);
        assert_ok(d->table->event_record(from, event));
        assert_ok(d->table->event_wait(to, event));
    }
    assert_ok(d->table->event_sync(event));
    assert_int_equal(300, count);
    test_count_queue(d, d->streams[0], &count);
    assert_ok(d->table->event_record(d->streams[0], event));
    for (bool complete = false; !complete; sched_yield())
        assert_ok(d->table->event_query(event, &complete));
    assert_int_equal(301, count);
    d->table->event_destroy(event);
}

/* A wait that was queued before an event is recorded anew passes at the earlier record. */
static void later_record_does_not_move_an_earlier_wait(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event;
    struct test_marks marks;
    test_marks_open(&marks, d);
    assert_ok(d->table->event_create(d->device, &event));
    assert_ok(d->table->event_record(d->streams[TO_DEVICE], event));
    assert_ok(d->table->event_wait(d->streams[COMPUTE], event));
    test_mark_queue(&marks, d->streams[COMPUTE], 0);
    struct test_gate *gate = test_gate_queue(d, d->streams[TO_DEVICE]);
    assert_ok(d->table->event_record(d->streams[TO_DEVICE], event));
    assert_ok(d->table->stream_sync(d->streams[COMPUTE]));
    assert_true(test_mark_seen(&marks, 0));
    test_gate_open(gate);
    assert_ok(d->table->event_sync(event));
    d->table->event_destroy(event);
    test_marks_close(&marks);
}

/* A wait that was queued after an event is recorded anew does not pass at the earlier record. */
static void wait_is_for_the_last_record(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event, *after;
    bool complete = true;
    struct test_marks marks;
    test_marks_open(&marks, d);
    assert_ok(d->table->event_create(d->device, &event));
    assert_ok(d->table->event_create(d->device, &after));
    assert_ok(d->table->event_record(d->streams[TO_DEVICE], event));
    assert_ok(d->table->event_sync(event));
    struct test_gate *gate = test_gate_queue(d, d->streams[TO_DEVICE]);
    assert_ok(d->table->event_record(d->streams[TO_DEVICE], event));
    assert_ok(d->table->event_wait(d->streams[COMPUTE], event));
    assert_ok(d->table->event_record(d->streams[COMPUTE], after));
    let_others_run(&marks);
    assert_ok(d->table->event_query(after, &complete));
    assert_false(complete);
    test_gate_open(gate);
    assert_ok(d->table->event_sync(after));
    assert_ok(d->table->event_query(event, &complete));
    assert_true(complete);
    d->table->event_destroy(event);
    d->table->event_destroy(after);
    test_marks_close(&marks);
}

/* The same when another stream, which is free to run, records the event anew. */
static void record_in_another_stream_does_not_free_earlier_waits(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event, *after;
    bool complete = true;
    struct test_marks marks;
    test_marks_open(&marks, d);
    assert_ok(d->table->event_create(d->device, &event));
    assert_ok(d->table->event_create(d->device, &after));
    struct test_gate *gate = test_gate_queue(d, d->streams[TO_DEVICE]);
    assert_ok(d->table->event_record(d->streams[TO_DEVICE], event));
    assert_ok(d->table->event_wait(d->streams[COMPUTE], event));
    assert_ok(d->table->event_record(d->streams[COMPUTE], after));
    assert_ok(d->table->event_record(d->streams[TO_HOST], event));
    let_others_run(&marks);
    assert_ok(d->table->event_query(after, &complete));
    assert_false(complete);
    test_gate_open(gate);
    assert_ok(d->table->event_sync(after));
    assert_ok(d->table->event_sync(event));
    d->table->event_destroy(event);
    d->table->event_destroy(after);
    test_marks_close(&marks);
}

/* An event may be destroyed while its record and waits are queued; they still take effect. */
static void queued_events_outlive_their_destruction(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event;
    int count = 0;
    assert_ok(d->table->event_create(d->device, &event));
    struct test_gate *gate = test_gate_queue(d, d->streams[TO_DEVICE]);
    test_count_queue(d, d->streams[TO_DEVICE], &count);
    assert_ok(d->table->event_record(d->streams[TO_DEVICE], event));
    assert_ok(d->table->event_wait(d->streams[TO_HOST], event));
    test_count_queue(d, d->streams[TO_HOST], &count);
    d->table->event_destroy(event);
    test_gate_open(gate);
    assert_ok(d->table->stream_sync(d->streams[TO_HOST]));
    assert_int_equal(2, count);
}

/* ---- queues */

struct flood {
    struct test_device *device;
    atomic_int queued, run;
    atomic_bool early; /* more was queued than a stream holds */
};

static void flood_run(void *argument)
{
    struct flood *flood = *(struct flood **)argument;
    int run = atomic_fetch_add_explicit(&flood->run, 1, memory_order_relaxed);
    if (atomic_load_explicit(&flood->queued, memory_order_relaxed) > run + WEIR_STREAM_DEPTH)
        atomic_store_explicit(&flood->early, true, memory_order_relaxed);
}

static void *flood_queue(void *argument)
{
    struct flood *flood = argument;
    struct test_device *d = flood->device;
    enum weir_status status = WEIR_OK;
    for (int i = 0; i < 3 * WEIR_STREAM_DEPTH && status == WEIR_OK; i++) {
        status = d->table->call(d->streams[COMPUTE], flood_run, &flood, sizeof flood, NULL, 0);
        atomic_fetch_add_explicit(&flood->queued, 1, memory_order_relaxed);
    }
    return status == WEIR_OK ? NULL : flood;
}

/* Queueing into a full stream waits for room and goes on, never more than the depth ahead. */
static void full_stream_waits_for_room(void **state)
{
    struct test_device *d = *state;
    struct flood flood = {.device = d};
    struct test_gate *gate = test_gate_queue(d, d->streams[COMPUTE]);
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, flood_queue, &flood));
    /* A GPU's own queue may be full before. */
    uint64_t until = weir_now_ns() + 2000000000;
    while (atomic_load(&flood.queued) < WEIR_STREAM_DEPTH - 1 && (d->cpu || weir_now_ns() < until))
        sched_yield();
    test_gate_open(gate);
    void *failed;
    assert_int_equal(0, pthread_join(thread, &failed));
    assert_null(failed);
    assert_ok(d->table->stream_sync(d->streams[COMPUTE]));
    assert_int_equal(3 * WEIR_STREAM_DEPTH, atomic_load(&flood.run));
    assert_false(atomic_load(&flood.early));
}

/* Destroying a stream, and closing the device over a living one, wait for what is queued. */
static void destroy_and_close_wait_for_what_is_queued(void **state)
{
    const struct test_variant *variant = *state;
    struct test_device d;
    test_device_open(&d, *variant, 2);
    struct weir_stream *extra;
    struct weir_event *event;
    int count = 0, left = 0;
    assert_ok(d.table->stream_create(d.device, WEIR_ENGINE_TO_HOST, "extra", &extra));
    for (int i = 0; i < 100; i++)
        test_count_queue(&d, extra, &count);
    d.table->stream_destroy(extra);
    assert_int_equal(100, count);
    assert_ok(d.table->event_create(d.device, &event));
    for (int i = 0; i < 100; i++)
        test_count_queue(&d, d.streams[TO_HOST], &left);
    assert_ok(d.table->event_record(d.streams[TO_HOST], event));
    assert_ok(d.table->event_wait(d.streams[COMPUTE], event));
    test_count_queue(&d, d.streams[COMPUTE], &left);
    d.table->event_destroy(event);
    d.table->close(d.device);
    assert_int_equal(101, left);
}

/* A call beyond the limits of its argument or ranges is refused, and nothing is queued. */
static void call_limits_are_errors(void **state)
{
    struct test_device *d = *state;
    struct weir_range ranges[WEIR_CALL_RANGES + 1] = {{NULL, 0, false}};
    unsigned char argument[WEIR_CALL_BYTES + 1] = {0};
    assert_fails(
        d->table->call(d->streams[COMPUTE], append_run, argument, sizeof argument, NULL, 0),
        WEIR_ERR_ARG, "513 argument bytes");
    assert_fails(
        d->table->call(d->streams[COMPUTE], append_run, argument, 8, ranges, WEIR_CALL_RANGES + 1),
        WEIR_ERR_ARG, "17 ranges");
    assert_ok(d->table->stream_sync(d->streams[COMPUTE]));
}

/* ---- bytes */

enum { AREA = 1 << 17 };

static void pattern(unsigned char *bytes, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)(i * 7 + (i >> 8) + seed);
}

/* Odd sizes at odd offsets travel to the device, within it and back, and touch nothing beside. */
static void copies_and_fills_move_exactly_their_bytes(void **state)
{
    struct test_device *d = *state;
    static const size_t sizes[] = {1, 3, 4095, 4097, 65537, 100003};
    struct weir_stream *stream = d->streams[COMPUTE];
    void *memory, *pinned;
    assert_ok(d->table->mem_alloc(d->device, 2 * AREA, &memory));
    assert_ok(d->table->pin_alloc(d->device, 2 * AREA, &pinned));
    unsigned char *device = memory, *host = pinned, *back = host + AREA;
    unsigned char *expected = malloc(AREA);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        size_t size = sizes[n], offset = 2 * n + 1;
        pattern(host, AREA, (unsigned)n);
        memset(back, 0x11, AREA);
        memset(expected, 0x22, AREA);
        memcpy(expected + offset, host + 2 * offset, size);
        expected[offset + size / 2] = 0x33;
        assert_ok(d->table->fill(stream, device, 0x22, 2 * AREA));
        assert_ok(
            d->table->copy(stream, device + offset, host + 2 * offset, size, WEIR_COPY_TO_DEVICE));
        assert_ok(d->table->fill(stream, device + offset + size / 2, 0x33, 1));
        assert_ok(d->table->copy(stream, device + AREA + offset, device + offset, size,
                                 WEIR_COPY_ON_DEVICE));
        assert_ok(d->table->copy(stream, back, device + AREA, AREA, WEIR_COPY_TO_HOST));
        assert_ok(d->table->copy(stream, back, device, 0, WEIR_COPY_TO_HOST));
        assert_ok(d->table->stream_sync(stream));
        assert_memory_equal(expected, back, AREA);
    }
    free(expected);
    assert_ok(d->table->mem_free(d->device, memory));
    assert_ok(d->table->pin_free(d->device, pinned));
}

/* Memory the caller owns takes part in copies once it is registered, until it is given back. */
static void registered_memory_is_pinned(void **state)
{
    struct test_device *d = *state;
    struct weir_stream *stream = d->streams[TO_DEVICE];
    void *memory;
    unsigned char *own = malloc(8192);
    pattern(own, 8192, 5);
    assert_ok(d->table->mem_alloc(d->device, 4096, &memory));
    assert_ok(d->table->pin_register(d->device, own, 8192));
    assert_fails(d->table->pin_register(d->device, own + 100, 10), WEIR_ERR_ARG, "overlaps");
    assert_ok(d->table->copy(stream, memory, own, 4096, WEIR_COPY_TO_DEVICE));
    assert_ok(d->table->copy(stream, own + 4096, memory, 4096, WEIR_COPY_TO_HOST));
    assert_ok(d->table->stream_sync(stream));
    assert_memory_equal(own, own + 4096, 4096);
    assert_ok(d->table->pin_unregister(d->device, own));
    assert_fails(d->table->pin_unregister(d->device, own), WEIR_ERR_ARG, "registered");
    assert_ok(d->table->mem_free(d->device, memory));
    free(own);
}

/* Device memory ends at its bound, with the figures in the text; freed bytes can be had again. */
static void memory_is_bounded_and_counted(void **state)
{
    struct test_device *d = *state;
    struct weir_device_info info;
    void *most, *one;
    assert_ok(d->table->mem_alloc(d->device, TEST_MEMORY_BYTES - 4096, &most));
    assert_int_equal(0, (uintptr_t)most % 4096);
    assert_fails(d->table->mem_alloc(d->device, 4097, &one), WEIR_ERR_NOMEM,
                 "need 4097 bytes, 4096 of 67108864 free");
    assert_ok(d->table->mem_alloc(d->device, 4096, &one));
    d->table->info(d->device, &info);
    assert_int_equal(TEST_MEMORY_BYTES, info.memory_bytes);
    assert_int_equal(TEST_MEMORY_BYTES, info.memory_used_bytes);
    assert_ok(d->table->mem_free(d->device, most));
    assert_ok(d->table->mem_free(d->device, NULL));
    d->table->info(d->device, &info);
    assert_int_equal(4096, info.memory_used_bytes);
    assert_int_equal(TEST_MEMORY_BYTES, info.memory_peak_bytes);
    assert_fails(d->table->mem_free(d->device, most), WEIR_ERR_ARG, "device memory");
    assert_ok(d->table->mem_alloc(d->device, TEST_MEMORY_BYTES - 4096, &most));
    assert_ok(d->table->mem_free(d->device, most));
    assert_ok(d->table->mem_free(d->device, one));
}

/* Large pinned memory begins on a huge page; what is freed must have been allocated so. */
static void pinned_memory_is_aligned(void **state)
{
    struct test_device *d = *state;
    void *small, *large;
    assert_ok(d->table->pin_alloc(d->device, 100, &small));
    assert_ok(d->table->pin_alloc(d->device, (2 << 20) + 5, &large));
    assert_int_equal(0, (uintptr_t)small % 4096);
    assert_int_equal(0, (uintptr_t)large % (2 << 20));
    memset(large, 1, (2 << 20) + 5);
    assert_fails(d->table->mem_free(d->device, large), WEIR_ERR_ARG, "device memory");
    assert_fails(d->table->pin_free(d->device, (char *)large + 4096), WEIR_ERR_ARG, "start of");
    assert_ok(d->table->pin_free(d->device, small));
    assert_ok(d->table->pin_free(d->device, large));
}

/* An unknown name is refused with the names that were built. */
static void unknown_device_lists_what_was_built(void **state)
{
    (void)state;
    const struct weir_device_table *table;
    assert_fails(weir_device_find("abacus", &table), WEIR_ERR_UNSUPPORTED, "built: host");
}

#define CASE(behaviour)                                                                            \
    {                                                                                              \
#behaviour, behaviour, test_device_setup, test_device_teardown, NULL                       \
    }

int main(int argument_count, char **arguments)
{
    struct test_variant variants[TEST_VARIANTS];
    test_variants_choose(argument_count, arguments, variants);
    static const struct CMUnitTest cases[] = {
        CASE(operations_run_in_queueing_order),
        CASE(waiting_stream_holds_up_no_other),
        CASE(events_order_streams_and_the_caller),
        CASE(later_record_does_not_move_an_earlier_wait),
        CASE(wait_is_for_the_last_record),
        CASE(record_in_another_stream_does_not_free_earlier_waits),
        CASE(queued_events_outlive_their_destruction),
        CASE(full_stream_waits_for_room),
        CASE(call_limits_are_errors),
        CASE(copies_and_fills_move_exactly_their_bytes),
        CASE(registered_memory_is_pinned),
        CASE(memory_is_bounded_and_counted),
        CASE(pinned_memory_is_aligned),
        {"destroy_and_close_wait_for_what_is_queued", destroy_and_close_wait_for_what_is_queued,
         NULL, NULL, NULL},
        cmocka_unit_test(unknown_device_lists_what_was_built),
    };
    int failed = 0;
    for (size_t v = 0; v < TEST_VARIANTS; v++) {
        struct CMUnitTest tests[sizeof cases / sizeof *cases];
        memcpy(tests, cases, sizeof cases);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            tests[i].initial_state = &variants[v];
        char group[64];
        snprintf(group, sizeof group, "%s%s", variants[v].name,
                 variants[v].strict ? ", strict" : "");
        failed += cmocka_run_group_tests_name(group, tests, NULL, NULL);
    }
    return failed;
}
