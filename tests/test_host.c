/*
 * What the host instance has beyond the table's contract: strict mode's refusals and patterns, and
 * failures by request.
 */
#include "core/host.h"
#include "core/memory.h"
#include "core/tsan.h"
#include "tests/support_device.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

static const struct test_variant plain = {"host", false}, strict = {"host", true};

/* A failed operation is told at every later call with its own text; what is queued behind it is
 * skipped, but events complete, and memory can be given back. */
static void failed_operation_is_sticky_and_hangs_nobody(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event;
    void *memory;
    int count = 0;
    bool complete = false;
    assert_ok(d->table->event_create(d->device, &event));
    assert_ok(d->table->mem_alloc(d->device, 4096, &memory));
    struct test_gate *gate = test_gate_queue(d, d->streams[TO_HOST]);
    test_gate_open(gate);
    assert_ok(d->table->stream_sync(d->streams[TO_HOST]));
    weir_host_fail_at(d->device, 2);
    gate = test_gate_queue(d, d->streams[TO_HOST]);
    for (int i = 0; i < 3; i++)
        test_count_queue(d, d->streams[TO_HOST], &count);
    assert_ok(d->table->event_record(d->streams[TO_HOST], event));
    assert_ok(d->table->event_wait(d->streams[COMPUTE], event));
    test_count_queue(d, d->streams[COMPUTE], &count);
    test_gate_open(gate);
    assert_fails(d->table->event_sync(event), WEIR_ERR_DEVICE, "\"to-host\" failed");
    assert_fails(d->table->stream_sync(d->streams[COMPUTE]), WEIR_ERR_DEVICE, "\"to-host\" failed");
    assert_int_equal(0, count);
    assert_fails(d->table->event_query(event, &complete), WEIR_ERR_DEVICE, "\"to-host\" failed");
    assert_true(complete);
    assert_fails(d->table->fill(d->streams[COMPUTE], memory, 0, 1), WEIR_ERR_DEVICE, "failed");
    assert_fails(d->table->event_record(d->streams[COMPUTE], event), WEIR_ERR_DEVICE, "failed");
    assert_fails(d->table->mem_free(d->device, memory), WEIR_ERR_DEVICE, "failed");
    struct weir_device_info info;
    d->table->info(d->device, &info);
    assert_int_equal(0, info.memory_used_bytes);
    d->table->event_destroy(event);
}

struct floats {
    float *result;
    int *team;
};

static void floats_run(void *argument)
{
    struct floats *floats = argument;
    volatile float tiny = 0x1p-126f;
    *floats->result = tiny * 0.5f;
    *floats->team = omp_get_max_threads();
}

#define UPDATES 3

/* All of it belongs to the compute engine's thread. */
struct updates {
    const struct weir_device_table *table;
    struct weir_event *events[UPDATES];
    bool done[UPDATES];
    int woken, late;
};

static void update_run(void *argument)
{
    **(bool **)argument = true;
}

static void wake_run(void *argument)
{
    (*(struct updates **)argument)->woken++;
}

/* A kernel of the other stream: is an update done that nobody was told of yet? */
static void kernel_run(void *argument)
{
    struct updates *u = *(struct updates **)argument;
    for (int i = 0; i < UPDATES; i++) {
        bool complete = false;
        assert_ok(u->table->event_query(u->events[i], &complete));
        u->late += u->done[i] && (!complete || u->woken < i + 1);
    }
}

/* Between an update, its event and its wake no kernel of another stream of the engine runs: who
 * waits for the update would wait for that too. */
static void events_and_wakes_do_not_wait_for_other_streams(void **state)
{
    if (WEIR_TSAN) /* each stream has a thread of its own there */
        skip();
    struct test_device *d = *state;
    struct updates u = {.table = d->table}, *at = &u;
    const struct weir_range range = {u.done, sizeof u.done, true};
    struct test_gate *gate = test_gate_queue(d, d->streams[COMPUTE]);
    for (int i = 0; i < UPDATES; i++) {
        bool *done = &u.done[i];
        struct weir_stream *update = d->streams[UPDATE], *compute = d->streams[COMPUTE];
        assert_ok(d->table->event_create(d->device, &u.events[i]));
        assert_ok(d->table->call(update, update_run, &done, sizeof done, &range, 1));
        assert_ok(d->table->event_record(update, u.events[i]));
        assert_ok(d->table->call(update, wake_run, &at, sizeof at, NULL, 0));
        for (int k = 0; k < 4; k++)
            assert_ok(d->table->call(compute, kernel_run, &at, sizeof at, &range, 1));
    }
    test_gate_open(gate);
    assert_ok(d->table->stream_sync(d->streams[COMPUTE]));
    assert_ok(d->table->stream_sync(d->streams[UPDATE]));
    assert_int_equal(UPDATES, u.woken);
    assert_int_equal(0, u.late);
    for (int i = 0; i < UPDATES; i++)
        d->table->event_destroy(u.events[i]);
}

/* Denormals are numbers on every engine; the compute engine's team is the size asked for. */
static void engines_keep_denormals(void **state)
{
    struct test_device *d = *state;
    for (int i = 0; i < STREAM_COUNT; i++) {
        float result = 0;
        int team = 0;
        struct floats floats = {&result, &team};
        assert_ok(d->table->call(d->streams[i], floats_run, &floats, sizeof floats, NULL, 0));
        assert_ok(d->table->stream_sync(d->streams[i]));
        assert_true(result == 0x1p-127f);
        if (i == COMPUTE)
            assert_int_equal(1, team);
    }
}

/* Copies name their direction truly, and the host side is pinned; the bytes lie in one piece. */
static void strict_copies_are_checked(void **state)
{
    struct test_device *d = *state;
    struct weir_stream *stream = d->streams[COMPUTE];
    void *device, *pinned, *own = malloc(4096);
    assert_ok(d->table->mem_alloc(d->device, 4096, &device));
    assert_ok(d->table->pin_alloc(d->device, 4096, &pinned));
    assert_fails(d->table->copy(stream, pinned, device, 8, WEIR_COPY_TO_DEVICE), WEIR_ERR_ARG,
                 "wants device memory");
    assert_fails(d->table->copy(stream, device, pinned, 8, WEIR_COPY_TO_HOST), WEIR_ERR_ARG,
                 "wants pinned host memory");
    assert_fails(d->table->copy(stream, device, pinned, 8, WEIR_COPY_ON_DEVICE), WEIR_ERR_ARG,
                 "source");
    assert_fails(d->table->copy(stream, device, own, 8, WEIR_COPY_TO_DEVICE), WEIR_ERR_ARG,
                 "not within one piece of pinned");
    assert_fails(d->table->copy(stream, device, pinned, 4097, WEIR_COPY_TO_DEVICE), WEIR_ERR_ARG,
                 "4097 bytes");
    assert_fails(d->table->fill(stream, pinned, 0, 8), WEIR_ERR_ARG, "wants device memory");
    /* refused copies hold nothing */
    assert_ok(d->table->mem_free(d->device, device));
    assert_ok(d->table->pin_free(d->device, pinned));
    free(own);
}

/* Fresh memory of both kinds holds 0xA5 in every byte. */
static void strict_memory_begins_as_a5(void **state)
{
    struct test_device *d = *state;
    void *device, *pinned;
    unsigned char expected[10000];
    memset(expected, 0xA5, sizeof expected);
    assert_ok(d->table->mem_alloc(d->device, sizeof expected, &device));
    assert_ok(d->table->pin_alloc(d->device, sizeof expected, &pinned));
    assert_memory_equal(expected, device, sizeof expected);
    assert_memory_equal(expected, pinned, sizeof expected);
    assert_ok(d->table->mem_free(d->device, device));
    assert_ok(d->table->pin_free(d->device, pinned));
}

/* Memory cannot be freed while a queued copy or fill names it, and can afterwards. */
static void strict_free_under_a_copy_is_an_error(void **state)
{
    struct test_device *d = *state;
    struct weir_stream *stream = d->streams[TO_DEVICE];
    void *device, *filled, *pinned, *own = malloc(4096);
    memset(own, 1, 4096);
    assert_ok(d->table->mem_alloc(d->device, 8192, &device));
    assert_ok(d->table->mem_alloc(d->device, 4096, &filled));
    assert_ok(d->table->pin_alloc(d->device, 4096, &pinned));
    assert_ok(d->table->pin_register(d->device, own, 4096));
    struct test_gate *gate = test_gate_queue(d, stream);
    assert_ok(d->table->copy(stream, (char *)device + 100, own, 4096, WEIR_COPY_TO_DEVICE));
    assert_ok(d->table->copy(stream, pinned, device, 1, WEIR_COPY_TO_HOST));
    assert_ok(d->table->fill(stream, filled, 3, 4096));
    assert_fails(d->table->mem_free(d->device, device), WEIR_ERR_STATE, "under 2 copies");
    assert_fails(d->table->mem_free(d->device, filled), WEIR_ERR_STATE, "under 1 copies");
    assert_fails(d->table->pin_free(d->device, pinned), WEIR_ERR_STATE, "pinned memory");
    assert_fails(d->table->pin_unregister(d->device, own), WEIR_ERR_STATE, "registered memory");
    test_gate_open(gate);
    assert_ok(d->table->stream_sync(stream));
    assert_ok(d->table->mem_free(d->device, device));
    assert_ok(d->table->mem_free(d->device, filled));
    assert_ok(d->table->pin_free(d->device, pinned));
    assert_ok(d->table->pin_unregister(d->device, own));
    free(own);
}

/* To wait for an event that nobody recorded is an error in strict mode. */
static void strict_wait_for_a_never_recorded_event_is_an_error(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event;
    assert_ok(d->table->event_create(d->device, &event));
    assert_fails(d->table->event_wait(d->streams[COMPUTE], event), WEIR_ERR_STATE, "never");
    assert_fails(d->table->event_sync(event), WEIR_ERR_STATE, "never");
    assert_ok(d->table->event_record(d->streams[TO_HOST], event));
    assert_ok(d->table->event_wait(d->streams[COMPUTE], event));
    assert_ok(d->table->event_sync(event));
    d->table->event_destroy(event);
}

/* Else such a wait passes at once, fresh memory is zero, and copies are not checked. */
static void lenient_mode_refuses_none_of_it(void **state)
{
    struct test_device *d = *state;
    struct weir_stream *stream = d->streams[COMPUTE];
    struct weir_event *event;
    bool complete = false;
    void *device;
    unsigned char own[16] = {1};
    assert_ok(d->table->event_create(d->device, &event));
    assert_ok(d->table->event_wait(stream, event));
    assert_ok(d->table->event_sync(event));
    assert_ok(d->table->event_query(event, &complete));
    assert_true(complete);
    assert_ok(d->table->mem_alloc(d->device, 4096, &device));
    assert_ok(d->table->copy(stream, own, device, 16, WEIR_COPY_TO_HOST));
    assert_ok(d->table->stream_sync(stream));
    assert_int_equal(0, own[0]);
    assert_ok(d->table->mem_free(d->device, device));
    d->table->event_destroy(event);
}

static enum weir_status use_everything(const struct weir_device_table *table)
{
    struct weir_device *device;
    struct weir_device_options options = {.memory_bytes = 1 << 20, .thread_count = 1};
    WEIR_TRY(table->open(&device, &options));
    struct weir_stream *stream = NULL;
    struct weir_event *event = NULL;
    void *memory;
    enum weir_status status = table->stream_create(device, WEIR_ENGINE_TO_HOST, "s", &stream);
    if (status == WEIR_OK)
        status = table->event_create(device, &event);
    if (status == WEIR_OK)
        status = table->mem_alloc(device, 4096, &memory);
    if (status == WEIR_OK)
        status = table->pin_alloc(device, 4096, &memory);
    if (status == WEIR_OK)
        status = table->event_record(stream, event);
    table->event_destroy(event);
    table->stream_destroy(stream);
    table->close(device);
    return status;
}

/* Whichever heap allocation fails, it is NOMEM and nothing is left. */
static void any_failed_allocation_is_nomem(void **state)
{
    (void)state;
    const struct weir_device_table *table;
    assert_ok(weir_device_find("host", &table));
    uint64_t held = weir_alloc_bytes(), nth = 0;
    enum weir_status status;
    do {
        weir_alloc_fail_at(++nth);
        status = use_everything(table);
        assert_true(status == WEIR_OK || status == WEIR_ERR_NOMEM);
        assert_int_equal(held, weir_alloc_bytes());
    } while (status != WEIR_OK);
    weir_alloc_fail_at(0);
    assert_true(nth > 7);
}

/* Queueing and running allocate nothing. */
static void steady_state_allocates_nothing(void **state)
{
    struct test_device *d = *state;
    struct weir_event *event;
    int count = 0;
    assert_ok(d->table->event_create(d->device, &event));
    weir_alloc_fail_at(0);
    for (int i = 0; i < 2 * WEIR_STREAM_DEPTH; i++) {
        test_count_queue(d, d->streams[TO_HOST], &count);
        assert_ok(d->table->event_record(d->streams[TO_HOST], event));
    }
    assert_ok(d->table->event_sync(event));
    assert_int_equal(2 * WEIR_STREAM_DEPTH, count);
    assert_int_equal(0, weir_alloc_fail_at(0));
    d->table->event_destroy(event);
}

#define CASE(variant, behaviour)                                                                   \
    {                                                                                              \
#behaviour, behaviour, test_device_setup, test_device_teardown, (void *)&(variant)         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(plain, failed_operation_is_sticky_and_hangs_nobody),
        CASE(strict, failed_operation_is_sticky_and_hangs_nobody),
        CASE(plain, engines_keep_denormals),
        CASE(strict, strict_copies_are_checked),
        CASE(strict, strict_memory_begins_as_a5),
        CASE(strict, strict_free_under_a_copy_is_an_error),
        CASE(strict, strict_wait_for_a_never_recorded_event_is_an_error),
        CASE(plain, lenient_mode_refuses_none_of_it),
        CASE(plain, events_and_wakes_do_not_wait_for_other_streams),
        CASE(plain, steady_state_allocates_nothing),
        cmocka_unit_test(any_failed_allocation_is_nomem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
