/* Faults of the engine and of the allocator, each at the Nth place, as the front must bear them. */
#include "tests/support.h"

#include "core/memory.h"
#include "tests/support_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096u
#define PIECE (2 * BLOCK)
#define ALL   (16 * BLOCK)

enum { READ_WHOLE, READ_ODD, WRITE_WHOLE, WRITE_ODD, REQUESTS };

/* A direct file, written with a pattern, and four requests: whole and odd, reads and writes. */
struct rig {
    struct weir_io *io;
    int fd;
    uint32_t file;
    unsigned char *before; /* the file's bytes */
    unsigned char *memory[REQUESTS];
    struct weir_io_request requests[REQUESTS];
    struct weir_io_result results[REQUESTS];
    unsigned result_count[REQUESTS];
};

static void file_fill(struct rig *rig)
{
    rig->fd = open(test_directory, O_TMPFILE | O_RDWR, 0600);
    assert_true(rig->fd >= 0);
    rig->before = malloc(4 * ALL);
    assert_non_null(rig->before);
    struct test_random random = {.state = 11};
    for (size_t i = 0; i < 4 * ALL; i++)
        rig->before[i] = (unsigned char)test_random_next(&random);
    assert_int_equal(4 * ALL, pwrite(rig->fd, rig->before, 4 * ALL, 0));
    assert_int_equal(0, fdatasync(rig->fd));
    assert_int_equal(0, fcntl(rig->fd, F_SETFL, O_DIRECT));
}

static void rig_make(struct rig *rig)
{
    *rig = (struct rig){0};
    file_fill(rig);
    assert_ok(weir_io_open(&rig->io, &(struct weir_io_options){.engine_table = &test_engine,
                                                               .depth = 3,
                                                               .request_count = REQUESTS,
                                                               .piece_bytes = PIECE}));
    assert_ok(weir_io_file_open(rig->io, "rig", rig->fd, true, BLOCK, &rig->file));
    for (uint32_t i = 0; i < REQUESTS; i++) {
        bool odd = i == READ_ODD || i == WRITE_ODD;
        rig->memory[i] = aligned_alloc(BLOCK, ALL + BLOCK);
        assert_non_null(rig->memory[i]);
        memset(rig->memory[i], (int)(0x40 + i), ALL + BLOCK);
        rig->requests[i] = (struct weir_io_request){
            .id = i,
            .kind = i < WRITE_WHOLE ? WEIR_IO_READ : WEIR_IO_WRITE,
            .file = rig->file,
            .offset_bytes = i * ALL + (odd ? 77 : 0),
            .bytes = rig->memory[i] + (odd ? 3 : 0),
            .byte_count = odd ? ALL - 1000 : ALL,
        };
    }
}

static void rig_free(struct rig *rig)
{
    weir_io_close(rig->io);
    close(rig->fd);
    for (int i = 0; i < REQUESTS; i++)
        free(rig->memory[i]);
    free(rig->before);
}

static void rig_run(struct rig *rig)
{
    assert_ok(weir_io_submit(rig->io, rig->requests, REQUESTS));
    for (size_t got = 0, turns = 0; got < REQUESTS; turns++) {
        struct weir_io_result results[REQUESTS];
        size_t count;
        assert_true(turns < 100000); /* a request that never ends */
        assert_ok(weir_io_reap(rig->io, results, REQUESTS, WEIR_IO_FOREVER, &count));
        for (size_t i = 0; i < count; i++, got++) {
            rig->results[results[i].id] = results[i];
            rig->result_count[results[i].id]++;
        }
    }
    size_t count;
    struct weir_io_result result;
    assert_ok(weir_io_reap(rig->io, &result, 1, 0, &count));
    assert_int_equal(0, count);
}

/* A request that is OK did all it says; bytes outside every request are as before. */
static void rig_check(struct rig *rig)
{
    unsigned char *after = aligned_alloc(BLOCK, 4 * ALL);
    assert_non_null(after);
    assert_int_equal(4 * ALL, pread(rig->fd, after, 4 * ALL, 0));
    for (int i = 0; i < REQUESTS; i++) {
        const struct weir_io_request *request = &rig->requests[i];
        assert_int_equal(1, rig->result_count[i]);
        uint64_t begin = request->offset_bytes, end = begin + request->byte_count;
        if (rig->results[i].status == WEIR_OK)
            assert_memory_equal(request->kind == WEIR_IO_READ ? rig->before + begin : after + begin,
                                request->bytes, request->byte_count);
        uint64_t first = (uint64_t)i * ALL;
        assert_memory_equal(rig->before + first, after + first, begin - first);
        assert_memory_equal(rig->before + end, after + end, first + ALL - end);
    }
    free(after);
}

static unsigned failed_count(const struct rig *rig)
{
    unsigned count = 0;
    for (int i = 0; i < REQUESTS; i++)
        count += rig->results[i].status != WEIR_OK;
    return count;
}

static const struct weir_io_result *failed_first(const struct rig *rig)
{
    int i = 0;
    while (rig->results[i].status == WEIR_OK)
        i++;
    return &rig->results[i];
}

static void one_failed_piece_fails_its_request_once(void **state)
{
    /* The Nth piece queued returns -EIO, for every N: one request fails, once, with the text of the
     * piece; the others are whole, and nothing leaks. */
    (void)state;
    uint64_t held = weir_alloc_bytes();
    uint64_t nth = 1;
    for (;; nth++) {
        test_engine_script = (struct test_engine_script){
            .fault_at = nth, .fault_count = 1, .fault_result = -EIO, .reorder = nth % 2 == 0};
        struct rig rig;
        rig_make(&rig);
        rig_run(&rig);
        rig_check(&rig);
        unsigned failed = failed_count(&rig);
        assert_int_equal(test_engine_script.faulted_count, failed);
        if (failed == 1) {
            assert_int_equal(WEIR_ERR_IO, failed_first(&rig)->status);
            assert_int_equal(EIO, failed_first(&rig)->error.os_errno);
            assert_true(test_contains(failed_first(&rig)->error.text, "file \"rig\""));
        }
        rig_free(&rig);
        assert_int_equal(held, weir_alloc_bytes());
        if (failed == 0)
            break;
    }
    assert_true(nth > 4 * ALL / PIECE); /* every piece had its turn, reads before writes too */
}

static void when_every_piece_fails_every_request_fails_once(void **state)
{
    /* From the Nth piece on all fail: each request has one result, and the front comes to rest. */
    (void)state;
    for (uint64_t nth = 1; nth < 40; nth += 3) {
        test_engine_script = (struct test_engine_script){.fault_at = nth,
                                                         .fault_count = UINT64_MAX,
                                                         .fault_result = -ENOSPC,
                                                         .reorder = true,
                                                         .late = true};
        struct rig rig;
        rig_make(&rig);
        rig_run(&rig);
        rig_check(&rig);
        if (nth == 1)
            assert_int_equal(REQUESTS, failed_count(&rig));
        if (failed_count(&rig) > 0) {
            assert_int_equal(WEIR_ERR_NOSPACE, failed_first(&rig)->status);
            assert_true(test_contains(failed_first(&rig)->error.text, "free space"));
        }
        rig_free(&rig);
    }
}

static void interruptions_and_short_transfers_are_made_good(void **state)
{
    /* EINTR, EAGAIN and a written 0 now and then, short, late and reordered completions: all
     * requests are whole. */
    (void)state;
    struct test_random random = test_random_open(23);
    for (uint32_t round = 0; round < test_draws(150); round++) {
        test_engine_script =
            (struct test_engine_script){.random = {.state = test_random_next(&random)},
                                        .reorder = true,
                                        .late = true,
                                        .shorten = round % 3 != 0,
                                        .fault_at = 1 + test_random_below(&random, 40),
                                        .fault_count = 1 + test_random_below(&random, 300),
                                        .fault_result = round % 2 ? -EINTR : -EAGAIN};
        struct rig rig;
        rig_make(&rig);
        rig_run(&rig);
        if (failed_count(&rig) > 0)
            fail_msg("%s", failed_first(&rig)->error.text);
        rig_check(&rig);
        struct weir_io_counters counters;
        weir_io_count(rig.io, &counters);
        assert_true(test_engine_script.faulted_count == 0 || counters.resubmitted_count > 0);
        rig_free(&rig);
    }
}

static void a_piece_that_never_advances_fails_in_the_end(void **state)
{
    /* EINTR, EAGAIN or 0 bytes for ever: retries are bounded, the cause is in the text. */
    (void)state;
    const struct {
        int64_t result;
        enum weir_status read, write;
        const char *text;
    } causes[] = {
        {-EINTR, WEIR_ERR_IO, WEIR_ERR_IO, "Interrupted system call"},
        {-EAGAIN, WEIR_ERR_IO, WEIR_ERR_IO, "temporarily unavailable"},
        {0, WEIR_ERR_CORRUPT, WEIR_ERR_IO, "\"rig\""},
    };
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        test_engine_script = (struct test_engine_script){
            .fault_at = 1, .fault_count = UINT64_MAX, .fault_result = causes[i].result};
        struct rig rig;
        rig_make(&rig);
        rig_run(&rig);
        assert_int_equal(causes[i].read, rig.results[READ_WHOLE].status);
        assert_int_equal(causes[i].read, rig.results[READ_ODD].status);
        assert_int_equal(causes[i].write, rig.results[WRITE_WHOLE].status);
        for (int j = 0; j < REQUESTS; j++)
            assert_true(test_contains(rig.results[j].error.text, causes[i].text));
        rig_check(&rig);
        rig_free(&rig);
    }
}

static void an_engine_that_breaks_its_contract_stops_the_front(void **state)
{
    /* A completion of no piece, or a refused submit: reap fails, and so does every later call. More
     * bytes than asked fail the request. */
    (void)state;
    struct weir_io_result result;
    size_t count;
    struct rig rig;
    test_engine_script = (struct test_engine_script){.stray = true};
    rig_make(&rig);
    assert_ok(weir_io_submit(rig.io, rig.requests, REQUESTS));
    for (int i = 0; i < 2; i++)
        assert_fails(weir_io_reap(rig.io, &result, 1, WEIR_IO_FOREVER, &count), WEIR_ERR_IO,
                     "of no piece in flight");
    assert_fails(weir_io_submit(rig.io, rig.requests, 0), WEIR_ERR_IO, "of no piece in flight");
    rig_free(&rig);

    test_engine_script = (struct test_engine_script){.submit_fails = 1};
    rig_make(&rig);
    assert_ok(weir_io_submit(rig.io, rig.requests, 1));
    assert_fails(weir_io_reap(rig.io, &result, 1, WEIR_IO_FOREVER, &count), WEIR_ERR_IO,
                 "refuses to start");
    rig_free(&rig);

    test_engine_script = (struct test_engine_script){
        .fault_at = 1, .fault_count = UINT64_MAX, .fault_result = PIECE + 1};
    rig_make(&rig);
    rig_run(&rig);
    assert_int_equal(REQUESTS, failed_count(&rig));
    assert_true(test_contains(failed_first(&rig)->error.text, "io engine \"test\": moved 8193"));
    rig_free(&rig);
}

static enum weir_status open_all(const struct weir_io_engine_table *table, int fd)
{
    struct weir_io *io;
    WEIR_TRY(weir_io_open(
        &io, &(struct weir_io_options){.engine_table = table, .depth = 4, .request_count = 4}));
    enum weir_status status = WEIR_OK;
    for (uint32_t i = 0, file; i < 12 && status == WEIR_OK; i++)
        status = weir_io_file_open(io, "f", fd, false, 0, &file);
    weir_io_close(io);
    return status;
}

static void every_allocation_of_open_may_fail(void **state)
{
    /* The Nth allocation fails, for every N and engine: NOMEM, and nothing is left behind. */
    (void)state;
    int fd = open(test_directory, O_TMPFILE | O_RDWR, 0600);
    assert_true(fd >= 0);
    uint64_t held = weir_alloc_bytes();
    const struct weir_io_engine_table *table = &test_engine;
    for (size_t i = 0; table != NULL; table = test_engine_at(i++)) {
        uint64_t nth = 1;
        for (;; nth++) {
            weir_alloc_fail_at(nth);
            enum weir_status status = open_all(table, fd);
            weir_alloc_fail_at(0);
            assert_int_equal(held, weir_alloc_bytes());
            if (status == WEIR_OK)
                break;
            assert_int_equal(WEIR_ERR_NOMEM, status);
        }
        assert_true(nth > 8);
    }
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_failed_piece_fails_its_request_once),
        cmocka_unit_test(when_every_piece_fails_every_request_fails_once),
        cmocka_unit_test(interruptions_and_short_transfers_are_made_good),
        cmocka_unit_test(a_piece_that_never_advances_fails_in_the_end),
        cmocka_unit_test(an_engine_that_breaks_its_contract_stops_the_front),
        cmocka_unit_test(every_allocation_of_open_may_fail),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
