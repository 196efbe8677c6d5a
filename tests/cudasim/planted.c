/*
 * planted N: a pipeline over three streams and the host, two rounds in flight, with its Nth point
 * of synchronisation left out; 0: none. Under ThreadSanitizer each is a race that must be reported,
 * in every schedule, whether the numbers come out wrong or not. Whole, the numbers are right.
 */
#include "core/cuda.h"
#include "tests/cudasim/runtime.h"
#include "tests/support_device.h"

#include <stdlib.h>

#define BYTES  4096
#define ROUNDS 6
#define POINTS 11

static int left_out;

struct slot {
    unsigned char *in, *x, *y, *out; /* pinned, device, device, pinned */
    struct weir_event *arrived, *computed, *fetched;
};
static struct slot slots[2];
static struct test_device device;

/* Runs e unless it is the point that is left out. */
#define POINT(number, e)                                                                           \
    do {                                                                                           \
        if (left_out != (number))                                                                  \
            assert_ok(e);                                                                          \
    } while (0)

static void bump(void *argument)
{
    unsigned char *bytes = *(unsigned char **)argument;
    for (int i = 0; i < BYTES; i++)
        bytes[i]++;
}

static void expect(const struct slot *slot, int round)
{
    for (int i = 0; i < BYTES && left_out == 0; i++)
        assert_int_equal((unsigned char)(round + i + 1), slot->out[i]);
    volatile unsigned char *seen = slot->out;
    (void)seen[0]; /* the host's read, also where the numbers do not matter */
}

static void to_device(struct slot *slot, int round)
{
    const struct weir_device_table *t = device.table;
    struct weir_stream *stream = device.streams[TO_DEVICE];
    if (round >= 2)
        POINT(1, t->event_sync(slot->arrived)); /* the copy has read `in` */
    for (int i = 0; i < BYTES; i++)
        slot->in[i] = (unsigned char)(round + i);
    if (round >= 2)
        POINT(2, t->event_wait(stream, slot->computed)); /* x is read */
    assert_ok(t->copy(stream, slot->x, slot->in, BYTES, WEIR_COPY_TO_DEVICE));
    POINT(3, t->event_record(stream, slot->arrived));
}

static void compute(struct slot *slot, int round)
{
    const struct weir_device_table *t = device.table;
    struct weir_stream *stream = device.streams[COMPUTE];
    POINT(4, t->event_wait(stream, slot->arrived));
    if (round >= 2)
        POINT(5, t->event_wait(stream, slot->fetched)); /* y is read */
    assert_ok(t->copy(stream, slot->y, slot->x, BYTES, WEIR_COPY_ON_DEVICE));
    POINT(6, t->event_record(stream, slot->computed));
}

static void to_host(struct slot *slot, int round)
{
    const struct weir_device_table *t = device.table;
    struct weir_stream *stream = device.streams[TO_HOST];
    if (round >= 2) {
        POINT(7, t->event_sync(slot->fetched)); /* `out` is whole */
        expect(slot, round - 2);
    }
    POINT(8, t->event_wait(stream, slot->computed));
    assert_ok(t->copy(stream, slot->out, slot->y, BYTES, WEIR_COPY_TO_HOST));
    struct weir_range range = {slot->out, BYTES, true};
    assert_ok(t->call(stream, bump, &slot->out, sizeof slot->out, &range, 1));
    POINT(9, t->event_record(stream, slot->fetched));
}

static void *memory_make(bool on_device)
{
    void *memory;
    assert_ok(on_device ? device.table->mem_alloc(device.device, BYTES, &memory)
                        : device.table->pin_alloc(device.device, BYTES, &memory));
    return memory;
}

static void slot_open(struct slot *slot)
{
    *slot = (struct slot){.in = memory_make(false),
                          .x = memory_make(true),
                          .y = memory_make(true),
                          .out = memory_make(false)};
    assert_ok(device.table->event_create(device.device, &slot->arrived));
    assert_ok(device.table->event_create(device.device, &slot->computed));
    assert_ok(device.table->event_create(device.device, &slot->fetched));
}

static void slot_close(struct slot *slot)
{
    device.table->event_destroy(slot->arrived);
    device.table->event_destroy(slot->computed);
    device.table->event_destroy(slot->fetched);
}

static void pipeline(void **state)
{
    (void)state;
    test_device_open(&device, (struct test_variant){"cuda", false}, 1);
    slot_open(&slots[0]);
    slot_open(&slots[1]);
    for (int round = 0; round < ROUNDS; round++) {
        struct slot *slot = &slots[round % 2];
        to_device(slot, round);
        compute(slot, round);
        to_host(slot, round);
    }
    for (int round = ROUNDS - 2; round < ROUNDS; round++) {
        struct slot *slot = &slots[round % 2];
        POINT(10 + round % 2, device.table->event_sync(slot->fetched));
        expect(slot, round);
    }
    slot_close(&slots[0]);
    slot_close(&slots[1]);
    test_device_close(&device);
    assert_int_equal(0, cudasim_leaks());
    if (left_out == 0)
        assert_int_equal(0, cudasim_unrecorded_waits());
}

int main(int argument_count, char **arguments)
{
    left_out = argument_count > 1 ? atoi(arguments[1]) : 0;
    if (left_out < 0 || left_out > POINTS)
        return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(pipeline)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
