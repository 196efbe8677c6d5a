/* Faults at the Nth place on a verified volume of three drives: allocations, submits, completions
 * that fail, come short, late or in another order. */
#include "tests/support.h"

#include "core/memory.h"
#include "tests/support_volume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK  4096u
#define STRIPE (2 * BLOCK)
#define EACH   (20 * STRIPE) /* of one request's range */
#define BYTES  (REQUESTS * EACH)

enum { READ_WHOLE, READ_ODD, WRITE_WHOLE, WRITE_ODD, REQUESTS };

static const double shares[3] = {2, 1, 3};

/* Written with a pattern, and four requests: whole and odd, reads and writes. */
struct rig {
    struct test_volume volume;
    unsigned char *before, *after, *memory;
    struct weir_io_request requests[REQUESTS];
    struct weir_io_result results[REQUESTS];
    unsigned result_count[REQUESTS];
};

static struct test_volume_spec spec_of(const struct weir_io_engine_table *table)
{
    return (struct test_volume_spec){.options = {.engine_table = table,
                                                 .depth = 2,
                                                 .request_count = REQUESTS,
                                                 .piece_bytes = 4 * BLOCK},
                                     .flags = O_DIRECT,
                                     .align_bytes = BLOCK,
                                     .count = 3,
                                     .shares = shares,
                                     .stripe_bytes = STRIPE,
                                     .byte_count = BYTES,
                                     .verify = true};
}

static void rig_make(struct rig *rig, const struct test_engine_script *script)
{
    *rig = (struct rig){.before = test_memory_make(BYTES, 0),
                        .after = test_memory_make(BYTES, 0),
                        .memory = test_memory_make(BYTES + BLOCK, 0)};
    struct test_volume_spec spec = spec_of(&test_engine);
    test_engine_script = (struct test_engine_script){0};
    test_volume_open(&rig->volume, &spec);
    test_pattern_fill(rig->before, BYTES, 51);
    test_pattern_fill(rig->memory, BYTES + BLOCK, 52);
    test_front_move(rig->volume.io, WEIR_IO_WRITE, rig->volume.volume, 0, rig->before, BYTES);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint64_t odd = i == READ_ODD || i == WRITE_ODD ? 77 : 0;
        rig->requests[i] = (struct weir_io_request){
            .id = i,
            .kind = i < WRITE_WHOLE ? WEIR_IO_READ : WEIR_IO_WRITE,
            .file = rig->volume.volume,
            .offset_bytes = i * EACH + odd,
            .bytes = rig->memory + i * EACH + odd / 2,
            .byte_count = EACH - 13 * odd,
        };
    }
    test_engine_script = *script;
}

static void rig_free(struct rig *rig)
{
    test_volume_close(&rig->volume);
    free(rig->before);
    free(rig->after);
    free(rig->memory);
}

static void rig_run(struct rig *rig)
{
    assert_ok(weir_io_submit(rig->volume.io, rig->requests, REQUESTS));
    for (size_t got = 0, turns = 0; got < REQUESTS; turns++) {
        struct weir_io_result results[REQUESTS];
        size_t count;
        assert_true(turns < 100000); /* a request that never ends */
        assert_ok(weir_io_reap(rig->volume.io, results, REQUESTS, WEIR_IO_FOREVER, &count));
        for (size_t i = 0; i < count; i++, got++) {
            rig->results[results[i].id] = results[i];
            rig->result_count[results[i].id]++;
        }
    }
}

/* A request that is OK did all it says and nothing beside it. Returns how many failed. */
static unsigned rig_check(struct rig *rig)
{
    unsigned failed = 0;
    test_engine_script = (struct test_engine_script){0};
    for (uint64_t i = 0; i < REQUESTS; i++) {
        const struct weir_io_request *request = &rig->requests[i];
        assert_int_equal(1, rig->result_count[i]);
        if (rig->results[i].status != WEIR_OK) {
            failed++;
            continue;
        }
        unsigned char *model = rig->before + request->offset_bytes;
        if (request->kind == WEIR_IO_READ)
            assert_memory_equal(model, request->bytes, request->byte_count);
        else
            memcpy(model, request->bytes, request->byte_count);
        test_front_move(rig->volume.io, WEIR_IO_READ, rig->volume.volume, i * EACH, rig->after,
                        EACH);
        assert_memory_equal(rig->before + i * EACH, rig->after, EACH);
    }
    return failed;
}

static void one_failed_piece_fails_its_request_once(void **state)
{
    /* The Nth piece returns -EIO, for every N, in order or not: one request fails, once, with the
     * text of a drive; the others are whole; nothing leaks. */
    (void)state;
    uint64_t held = weir_alloc_bytes(), nth = 1;
    for (unsigned failed = 1; failed > 0; nth++) {
        struct rig rig;
        rig_make(&rig, &(struct test_engine_script){.fault_at = nth,
                                                    .fault_count = 1,
                                                    .fault_result = -EIO,
                                                    .reorder = nth % 2,
                                                    .late = nth % 3 == 0});
        rig_run(&rig);
        uint64_t faulted = test_engine_script.faulted_count;
        for (int i = 0; i < REQUESTS; i++)
            if (rig.results[i].status != WEIR_OK) {
                assert_int_equal(WEIR_ERR_IO, rig.results[i].status);
                assert_int_equal(EIO, rig.results[i].error.os_errno);
                assert_true(test_contains(rig.results[i].error.text, "file \"drive"));
            }
        failed = rig_check(&rig);
        assert_int_equal(faulted, failed);
        rig_free(&rig);
        assert_int_equal(held, weir_alloc_bytes());
    }
    assert_true(nth > BYTES / STRIPE / 2); /* two stripes in a row may be one drive's */
}

static void short_late_and_reordered_pieces_are_made_good(void **state)
{
    /* And EINTR, EAGAIN now and then: all requests are whole. */
    (void)state;
    struct test_random random = test_random_open(53);
    for (uint32_t round = 0; round < test_draws(100); round++) {
        struct rig rig;
        rig_make(&rig,
                 &(struct test_engine_script){.random = {.state = test_random_next(&random)},
                                              .reorder = true,
                                              .late = true,
                                              .shorten = round % 3 != 0,
                                              .fault_at = 1 + test_random_below(&random, 40),
                                              .fault_count = 1 + test_random_below(&random, 200),
                                              .fault_result = round % 2 ? -EINTR : -EAGAIN});
        rig_run(&rig);
        for (int i = 0; i < REQUESTS; i++)
            if (rig.results[i].status != WEIR_OK)
                fail_msg("%s", rig.results[i].error.text);
        assert_int_equal(0, rig_check(&rig));
        rig_free(&rig);
    }
}

static void a_refused_submit_stops_the_front(void **state)
{
    /* The Nth submit fails, for every N: every later call says so, and nothing leaks. */
    (void)state;
    uint64_t held = weir_alloc_bytes(), nth = 1;
    for (bool reached = true; reached; nth++) {
        struct rig rig;
        rig_make(&rig, &(struct test_engine_script){.submit_fails = nth});
        assert_ok(weir_io_submit(rig.volume.io, rig.requests, REQUESTS));
        enum weir_status status = WEIR_OK;
        for (size_t got = 0, count; got < REQUESTS && status == WEIR_OK; got += count) {
            struct weir_io_result result;
            status = weir_io_reap(rig.volume.io, &result, 1, WEIR_IO_FOREVER, &count);
        }
        reached = test_engine_script.submit_count >= nth;
        assert_int_equal(reached ? WEIR_ERR_IO : WEIR_OK, status);
        if (reached)
            assert_fails(weir_io_submit(rig.volume.io, rig.requests, 0), WEIR_ERR_IO,
                         "refuses to start");
        rig_free(&rig);
        assert_int_equal(held, weir_alloc_bytes());
    }
    assert_true(nth > 5);
}

static void every_allocation_of_a_volume_may_fail(void **state)
{
    /* The Nth allocation fails, for every N and engine: NOMEM, and nothing is left behind. */
    (void)state;
    uint64_t held = weir_alloc_bytes();
    const struct weir_io_engine_table *table = &test_engine;
    for (size_t i = 0; table != NULL; table = test_engine_at(i++)) {
        struct test_volume_spec spec = spec_of(table);
        struct test_volume volume;
        enum weir_status status = WEIR_ERR_NOMEM;
        uint64_t nth = 1;
        for (; status != WEIR_OK; nth++) {
            weir_alloc_fail_at(nth);
            status = test_volume_try(&volume, &spec);
            weir_alloc_fail_at(0);
            if (status == WEIR_OK)
                test_volume_close(&volume);
            else
                assert_int_equal(WEIR_ERR_NOMEM, status);
            assert_int_equal(held, weir_alloc_bytes());
        }
        assert_true(nth > 15);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_failed_piece_fails_its_request_once),
        cmocka_unit_test(short_late_and_reordered_pieces_are_made_good),
        cmocka_unit_test(a_refused_submit_stops_the_front),
        cmocka_unit_test(every_allocation_of_a_volume_may_fail),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
