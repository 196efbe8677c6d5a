/* Volumes: several files as one, each with a queue of its own, over every engine that was built and
 * over the test engine where a file has to fail or to stand still. */
#include "tests/support.h"

#include "tests/support_paced.h"
#include "tests/support_volume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK    4096u
#define STRIPE   (4 * BLOCK)
#define BYTES    (60 * STRIPE)
#define REQUESTS 12u

static const double halves[2] = {1, 1}, uneven[3] = {3, 1, 2};

static struct weir_io_options options_of(const struct weir_io_engine_table *table)
{
    return (struct weir_io_options){
        .engine_table = table, .depth = 3, .request_count = REQUESTS, .piece_bytes = 8 * BLOCK};
}

static struct test_volume_spec spec_of(const struct weir_io_engine_table *table,
                                       const double *shares, uint32_t count)
{
    return (struct test_volume_spec){.options = options_of(table),
                                     .flags = O_DIRECT,
                                     .count = count,
                                     .shares = shares,
                                     .stripe_bytes = STRIPE,
                                     .byte_count = BYTES};
}

static unsigned char *pattern_make(uint64_t seed)
{
    unsigned char *bytes = test_memory_make(BYTES, 0);
    test_pattern_fill(bytes, BYTES, seed);
    return bytes;
}

static void bytes_lie_on_the_drives_by_share(void **state)
{
    /* Written through the volume and read from the files: 3 : 1 : 2, stripe by stripe, nothing
     * lost; each file's counters say what went there. */
    struct test_volume v;
    struct test_volume_spec spec = spec_of(*state, uneven, 3);
    test_volume_open(&v, &spec);
    unsigned char *bytes = pattern_make(1), *back = test_memory_make(BYTES, 0);
    test_front_move(v.io, WEIR_IO_WRITE, v.volume, 0, bytes, BYTES);
    const uint64_t stripes[3] = {30, 10, 20};
    uint64_t found = 0;
    for (uint32_t d = 0; d < 3; d++) {
        struct weir_io_counters counters;
        assert_int_equal(stripes[d] * STRIPE, v.bytes[d]);
        weir_io_file_count(v.io, v.files[d], &counters);
        assert_int_equal(v.bytes[d], counters.written_bytes);
        assert_true(counters.write_ns > 0 && counters.read_bytes == 0);
        assert_int_equal(v.bytes[d], pread(v.fds[d], back, v.bytes[d], 0));
        for (uint64_t s = 0; s < stripes[d]; s++)
            for (uint64_t at = 0; at < BYTES; at += STRIPE)
                found += memcmp(back + s * STRIPE, bytes + at, STRIPE) == 0;
    }
    assert_int_equal(60, found);
    struct weir_io_counters all, sums;
    weir_io_count(v.io, &all);
    weir_io_file_count(v.io, v.volume, &sums);
    assert_int_equal(BYTES, all.written_bytes);
    assert_int_equal(BYTES, sums.written_bytes);
    test_front_move(v.io, WEIR_IO_READ, v.volume, 0, back, BYTES);
    assert_memory_equal(bytes, back, BYTES);
    test_volume_close(&v);
    free(bytes);
    free(back);
}

static void ten_thousand_requests_pass_through_depth_4(void **state)
{
    /* 64 outstanding at a time on five drives that share one depth, of 1 byte to 3 stripes, odd in
     * every way, verified: each comes back once, and what was written is read. */
    enum { ROOM = 3 * BLOCK, COUNT = 64 };
    const double shares[5] = {1, 2, 0.5, 0, 3};
    struct test_volume v;
    struct test_volume_spec spec = spec_of(*state, shares, 5);
    spec.options = (struct weir_io_options){.engine_table = *state,
                                            .depth = 4,
                                            .drive_count = 1,
                                            .request_count = COUNT,
                                            .piece_bytes = BLOCK};
    spec.flags = 0;
    spec.stripe_bytes = BLOCK;
    spec.verify = true;
    test_volume_open(&v, &spec);
    assert_true(BYTES >= COUNT * ROOM);
    unsigned char *bytes = test_memory_make(COUNT * ROOM, 0);
    unsigned char *back = test_memory_make(COUNT * ROOM, 0);
    struct test_random random = {.state = 10};
    for (int round = 0; round < 79; round++) {
        test_pattern_fill(bytes, COUNT * ROOM, test_random_next(&random));
        struct weir_io_request requests[COUNT];
        for (uint64_t i = 0; i < COUNT; i++)
            requests[i] = (struct weir_io_request){i,
                                                   WEIR_IO_WRITE,
                                                   v.volume,
                                                   i * ROOM + test_random_below(&random, 100),
                                                   bytes + i * ROOM,
                                                   1 + test_random_below(&random, ROOM - 100)};
        assert_ok(weir_io_submit(v.io, requests, COUNT));
        test_front_reap(v.io, COUNT);
        for (uint64_t i = 0; i < COUNT; i++) {
            requests[i].kind = WEIR_IO_READ;
            requests[i].bytes = back + i * ROOM;
        }
        assert_ok(weir_io_submit(v.io, requests, COUNT));
        test_front_reap(v.io, COUNT);
        for (uint64_t i = 0; i < COUNT; i++)
            assert_memory_equal(bytes + i * ROOM, back + i * ROOM, requests[i].byte_count);
    }
    test_volume_close(&v);
    free(bytes);
    free(back);
}

static void failed_requests_leave_the_others_whole(void **state)
{
    /* Beside a volume one file is open for reading only: writes to it fail a hundred times, named,
     * and the volume's requests between them are whole. */
    struct test_volume v;
    struct test_volume_spec spec = spec_of(*state, halves, 2);
    test_volume_open(&v, &spec);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", v.fds[1]);
    int sealed_fd = open(path, O_RDONLY);
    uint32_t sealed, volume;
    assert_true(sealed_fd >= 0);
    assert_ok(weir_io_file_open(v.io, "sealed", sealed_fd, false, 0, &sealed));
    uint32_t files[2] = {v.files[0], sealed};
    assert_ok(weir_io_volume_open(v.io, "half sealed", files, halves, 2, STRIPE, &volume));
    unsigned char *bytes = pattern_make(8), *back = test_memory_make(BYTES, 0);
    test_front_move(v.io, WEIR_IO_WRITE, v.volume, 0, bytes, BYTES);
    for (uint64_t round = 0; round < 100; round++) {
        memset(back, 0, BYTES);
        struct weir_io_request requests[2] = {
            {0, WEIR_IO_WRITE, volume, 0, bytes, BYTES / 2},
            {1, WEIR_IO_READ, v.volume, BYTES / 2 + round, back, BYTES / 2 - round}};
        assert_ok(weir_io_submit(v.io, requests, 2));
        for (size_t got = 0, count; got < 2; got += count) {
            struct weir_io_result result;
            assert_ok(weir_io_reap(v.io, &result, 1, WEIR_IO_FOREVER, &count));
            if (count == 1)
                assert_int_equal(result.id == 0 ? WEIR_ERR_IO : WEIR_OK, result.status);
            if (count == 1 && result.id == 0)
                assert_true(test_contains(result.error.text, "\"sealed\""));
        }
        assert_memory_equal(bytes + BYTES / 2 + round, back, BYTES / 2 - round);
    }
    test_volume_close(&v);
    close(sealed_fd);
    free(bytes);
    free(back);
}

static void what_cannot_be_a_volume_is_refused(void **state)
{
    /* A file twice, a volume in a volume, an unknown file, stripes that a file cannot take, a busy
     * front; tuning and verifying are of files. */
    (void)state;
    struct test_volume v;
    struct test_volume_spec spec = spec_of(&test_engine, halves, 2);
    test_engine_script = (struct test_engine_script){0};
    spec.align_bytes = 16384;
    test_volume_open(&v, &spec);
    uint32_t out, twice[2] = {v.files[0], v.files[0]}, nested[2] = {v.files[0], v.volume};
    uint32_t unknown[2] = {v.files[0], 99};
    assert_int_equal(16384, weir_io_file_align_bytes(v.io, v.volume));
    assert_fails(weir_io_volume_open(v.io, "w", twice, halves, 2, STRIPE, &out), WEIR_ERR_ARG,
                 "\"drive0\" is named twice");
    assert_fails(weir_io_volume_open(v.io, "w", nested, halves, 2, STRIPE, &out), WEIR_ERR_ARG,
                 "a volume itself");
    assert_fails(weir_io_volume_open(v.io, "w", unknown, halves, 2, STRIPE, &out), WEIR_ERR_ARG,
                 "number 99, which is not open");
    assert_fails(weir_io_volume_open(v.io, "w", v.files, halves, 2, BLOCK, &out), WEIR_ERR_ARG,
                 "needs multiples of 16384");
    assert_fails(weir_io_file_verify(v.io, v.volume, BYTES), WEIR_ERR_ARG, "not a volume");
    assert_fails(weir_io_file_tune(v.io, v.volume, 1, 16384), WEIR_ERR_ARG, "not a volume");
    assert_fails(weir_io_file_tune(v.io, v.files[0], 4, 16384), WEIR_ERR_ARG, "depth 4");
    assert_fails(weir_io_file_tune(v.io, v.files[0], 1, 4096), WEIR_ERR_ARG, "4096 bytes");
    assert_fails(weir_io_file_tune(v.io, v.files[0], 1, 65536), WEIR_ERR_ARG, "65536 bytes");
    assert_fails(weir_io_file_verify(v.io, v.files[0], BYTES), WEIR_ERR_ARG, "its 491520 bytes");
    unsigned char *bytes = pattern_make(2);
    assert_ok(weir_io_submit(
        v.io, &(struct weir_io_request){1, WEIR_IO_WRITE, v.volume, 0, bytes, BYTES}, 1));
    assert_fails(weir_io_volume_open(v.io, "w", v.files, halves, 2, STRIPE, &out), WEIR_ERR_STATE,
                 "1 requests outstanding");
    assert_fails(weir_io_file_tune(v.io, v.files[0], 1, 16384), WEIR_ERR_STATE, "1 requests");
    assert_fails(weir_io_file_verify(v.io, v.files[0], v.bytes[0]), WEIR_ERR_STATE, "1 are");
    test_front_reap(v.io, 1);
    test_volume_close(&v);
    free(bytes);
}

static void a_file_keeps_its_own_depth_and_piece(void **state)
{
    /* One file tuned to one piece of a block at a time, the other as the front: both move all, and
     * no more of the first are in the engine than it says. */
    (void)state;
    test_engine_script = (struct test_engine_script){.reorder = true};
    struct test_volume v;
    struct test_volume_spec spec = spec_of(&test_engine, halves, 2);
    test_volume_open(&v, &spec);
    assert_ok(weir_io_file_tune(v.io, v.files[0], 1, BLOCK));
    unsigned char *bytes = pattern_make(3), *back = test_memory_make(BYTES, 0);
    test_front_move(v.io, WEIR_IO_WRITE, v.volume, 0, bytes, BYTES);
    assert_int_equal(v.bytes[0] / BLOCK + v.bytes[1] / STRIPE, test_engine_script.queued_count);
    test_engine_script = (struct test_engine_script){.hold_fd = v.fds[0]};
    assert_ok(weir_io_submit(
        v.io, &(struct weir_io_request){1, WEIR_IO_READ, v.volume, 0, back, BYTES}, 1));
    struct weir_io_result result;
    size_t count;
    for (int turn = 0; turn < 100; turn++) {
        assert_ok(weir_io_reap(v.io, &result, 1, 0, &count));
        assert_int_equal(0, count);
    }
    assert_int_equal(1 + v.bytes[1] / STRIPE, test_engine_script.queued_count);
    test_engine_script.hold_fd = 0;
    test_front_reap(v.io, 1);
    assert_memory_equal(bytes, back, BYTES);
    test_volume_close(&v);
    free(bytes);
    free(back);
}

/* Twelve each: of the volume, on both drives; of drive 1 alone; of drive 0 alone. Odd and whole,
 * reads and writes, no two of the same bytes. */
static void three_dozen_submit(const struct test_volume *v, unsigned char *memory)
{
    for (uint64_t i = 0; i < 36; i++) {
        uint64_t row = i / 12, stripe = i % 12, odd = i % 4 < 2 ? 0 : 9;
        struct weir_io_request request = {.id = i,
                                          .kind = i % 2 ? WEIR_IO_WRITE : WEIR_IO_READ,
                                          .file = row == 0 ? v->volume : v->files[2 - row],
                                          .offset_bytes = (12 + stripe) * STRIPE + odd,
                                          .bytes = memory + i * STRIPE + odd / 2,
                                          .byte_count = STRIPE - BLOCK};
        if (row == 0)
            request.offset_bytes = stripe * 2 * STRIPE + STRIPE / 2 + odd;
        assert_ok(weir_io_submit(v->io, &request, 1));
    }
}

/* Reap until all of `wanted` are done. */
static uint64_t done_reap(struct test_volume *v, uint64_t done, uint64_t wanted)
{
    for (int turn = 0; (done & wanted) != wanted; turn++) {
        struct weir_io_result results[8];
        size_t count;
        assert_true(turn < 10000);
        assert_ok(weir_io_reap(v->io, results, 8, 0, &count));
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(WEIR_OK, results[i].status);
            done |= UINT64_C(1) << results[i].id;
        }
    }
    return done;
}

static void a_drive_that_stands_still_holds_up_no_other(void **state)
{
    /* Drive 1 completes nothing, with more requests on it than its depth, until all requests of
     * drive 0 alone are done; then the rest. */
    (void)state;
    test_engine_script = (struct test_engine_script){0};
    struct test_volume v;
    struct test_volume_spec spec = spec_of(&test_engine, halves, 2);
    spec.options.request_count = 36;
    test_volume_open(&v, &spec);
    unsigned char *memory = test_memory_make(37 * STRIPE, 7);
    test_engine_script.hold_fd = v.fds[1];
    three_dozen_submit(&v, memory);
    uint64_t done = done_reap(&v, 0, UINT64_C(0xFFF) << 24);
    assert_int_equal(UINT64_C(0xFFF) << 24, done);
    test_engine_script.hold_fd = 0;
    assert_int_equal((UINT64_C(1) << 36) - 1, done_reap(&v, done, (UINT64_C(1) << 36) - 1));
    test_volume_close(&v);
    free(memory);
}

/* All requests of the volume, one for each sixth of it; the status of each by its id. */
static void sixths_run(struct test_volume *v, enum weir_io_kind kind, unsigned char *memory,
                       struct weir_io_result *results)
{
    uint64_t each = BYTES / 6;
    for (uint64_t i = 0; i < 6; i++)
        assert_ok(weir_io_submit(
            v->io, &(struct weir_io_request){i, kind, v->volume, i * each, memory + i * each, each},
            1));
    for (size_t got = 0, turns = 0; got < 6; turns++) {
        struct weir_io_result some[6];
        size_t count;
        assert_true(turns < 100000);
        assert_ok(weir_io_reap(v->io, some, 6, WEIR_IO_FOREVER, &count));
        for (size_t i = 0; i < count; i++, got++)
            results[some[i].id] = some[i];
    }
}

static void one_drive_that_fails_is_named_and_the_others_go_on(void **state)
{
    /* EIO and ENOSPC of drive 1 from its Nth piece on: the requests that meet it fail once with its
     * name, those before are whole, and the other drives work on. */
    (void)state;
    unsigned char *bytes = pattern_make(4), *back = test_memory_make(BYTES, 0);
    for (uint64_t nth = 1; nth <= 12; nth++)
        for (int full = 0; full < 2; full++) {
            test_engine_script = (struct test_engine_script){.reorder = true, .late = nth % 2};
            struct test_volume v;
            struct test_volume_spec spec = spec_of(&test_engine, uneven, 3);
            test_volume_open(&v, &spec);
            test_engine_script.fault_fd = v.fds[1];
            test_engine_script.fault_at = nth;
            test_engine_script.fault_count = UINT64_MAX;
            test_engine_script.fault_result = full ? -ENOSPC : -EIO;
            struct weir_io_result results[6];
            sixths_run(&v, WEIR_IO_WRITE, bytes, results);
            unsigned failed = 0;
            for (int i = 0; i < 6; i++) {
                if (results[i].status == WEIR_OK)
                    continue;
                failed++;
                assert_int_equal(full ? WEIR_ERR_NOSPACE : WEIR_ERR_IO, results[i].status);
                assert_true(test_contains(results[i].error.text, "file \"drive1\": write of"));
            }
            assert_int_equal(nth <= 10, failed > 0); /* it has ten stripes */
            test_engine_script.fault_at = 0;
            test_front_move(v.io, WEIR_IO_WRITE, v.files[0], 0, bytes, STRIPE);
            test_front_move(v.io, WEIR_IO_READ, v.files[0], 0, back, STRIPE);
            assert_memory_equal(bytes, back, STRIPE);
            sixths_run(&v, WEIR_IO_WRITE, bytes, results);
            test_front_move(v.io, WEIR_IO_READ, v.volume, 0, back, BYTES);
            assert_memory_equal(bytes, back, BYTES);
            test_volume_close(&v);
        }
    free(bytes);
    free(back);
}

static void a_drive_that_slows_down_midway_gives_the_same_bytes(void **state)
{
    /* Ten times slower after the first half, on a paced drive: late, and every byte right. */
    (void)state;
    test_pace = (struct test_pace){.read_bytes_per_s = 4e8, .write_bytes_per_s = 4e8};
    struct test_volume v;
    struct test_volume_spec spec = spec_of(&test_paced, halves, 2);
    test_volume_open(&v, &spec);
    unsigned char *bytes = pattern_make(5), *back = test_memory_make(BYTES, 0);
    for (uint64_t half = 0; half < 2; half++) {
        struct weir_io_counters before, after;
        weir_io_file_count(v.io, v.files[1], &before);
        test_front_move(v.io, WEIR_IO_WRITE, v.volume, half * BYTES / 2, bytes + half * BYTES / 2,
                        BYTES / 2);
        weir_io_file_count(v.io, v.files[1], &after);
        double least_s = (double)BYTES / 4 / 4e8 * (half ? 10 : 1);
        assert_true((double)(after.write_ns - before.write_ns) * 1e-9 >= least_s * 0.99);
        test_slow_drive.fd = v.fds[1];
        test_slow_drive.factor = 10;
    }
    test_front_move(v.io, WEIR_IO_READ, v.volume, 0, back, BYTES);
    assert_memory_equal(bytes, back, BYTES);
    test_volume_close(&v);
    free(bytes);
    free(back);
}

static unsigned warning_count;

static void warnings_count(void *context, enum weir_log_level level, const char *line)
{
    (void)context;
    warning_count += level == WEIR_LOG_WARNING && test_contains(line, "does not take O_DIRECT");
}

static void direct_that_is_refused_late_is_given_up_file_by_file(void **state)
{
    /* O_DIRECT taken at open, EINVAL at the first transfers, several of them in flight: each file
     * is buffered after one warning, or the request fails where direct is required. */
    (void)state;
    struct weir_log log = {.fn = warnings_count, .lock = PTHREAD_MUTEX_INITIALIZER};
    unsigned char *bytes = pattern_make(6), *back = test_memory_make(BYTES, 0);
    for (int verify = 0; verify < 2; verify++) {
        warning_count = 0;
        test_engine_script = (struct test_engine_script){.refuse_direct = true, .reorder = true};
        struct test_volume v;
        struct test_volume_spec spec = spec_of(&test_engine, uneven, 3);
        spec.options.log = &log;
        spec.verify = verify;
        test_volume_open(&v, &spec);
        assert_true(weir_io_file_direct(v.io, v.volume));
        test_front_move(v.io, WEIR_IO_WRITE, v.volume, 0, bytes, BYTES);
        assert_false(weir_io_file_direct(v.io, v.volume));
        assert_int_equal(3, warning_count);
        assert_in_range(test_engine_script.refused_count, 4, 9); /* depth 3, three files */
        assert_int_equal(verify ? BLOCK : 1, weir_io_file_align_bytes(v.io, v.volume));
        test_front_move(v.io, WEIR_IO_READ, v.volume, 3, back, BYTES - 5);
        assert_memory_equal(bytes + 3, back, BYTES - 5);
        for (uint32_t d = 0; d < 3; d++)
            assert_int_equal(0, fcntl(v.fds[d], F_GETFL) & O_DIRECT);
        test_volume_close(&v);
    }
    test_engine_script = (struct test_engine_script){.refuse_direct = true};
    struct test_volume v;
    struct test_volume_spec spec = spec_of(&test_engine, uneven, 3);
    spec.options.require_direct = true;
    test_volume_open(&v, &spec);
    struct weir_io_result results[6];
    sixths_run(&v, WEIR_IO_READ, back, results);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(WEIR_ERR_UNSUPPORTED, results[i].status);
        assert_true(test_contains(results[i].error.text, "O_DIRECT, which is required"));
    }
    test_volume_close(&v);
    free(bytes);
    free(back);
}

static void einval_after_a_direct_transfer_is_an_error(void **state)
{
    /* A file that took direct transfers does take O_DIRECT: a later EINVAL is the drive's. */
    (void)state;
    test_engine_script = (struct test_engine_script){0};
    struct test_volume v;
    struct test_volume_spec spec = spec_of(&test_engine, halves, 2);
    test_volume_open(&v, &spec);
    unsigned char *bytes = pattern_make(7);
    struct weir_io_result results[6];
    test_front_move(v.io, WEIR_IO_WRITE, v.volume, 0, bytes, BYTES);
    test_engine_script = (struct test_engine_script){
        .fault_at = 1, .fault_count = UINT64_MAX, .fault_result = -EINVAL};
    sixths_run(&v, WEIR_IO_READ, bytes, results);
    for (int i = 0; i < 6; i++)
        assert_int_equal(EINVAL, results[i].error.os_errno);
    assert_true(weir_io_file_direct(v.io, v.volume));
    test_volume_close(&v);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest per_engine[] = {
        TEST_PER_ENGINE(bytes_lie_on_the_drives_by_share),
        TEST_PER_ENGINE(ten_thousand_requests_pass_through_depth_4),
        TEST_PER_ENGINE(failed_requests_leave_the_others_whole),
    };
    const struct CMUnitTest once[] = {
        cmocka_unit_test(what_cannot_be_a_volume_is_refused),
        cmocka_unit_test(a_file_keeps_its_own_depth_and_piece),
        cmocka_unit_test(a_drive_that_stands_still_holds_up_no_other),
        cmocka_unit_test(one_drive_that_fails_is_named_and_the_others_go_on),
        cmocka_unit_test(a_drive_that_slows_down_midway_gives_the_same_bytes),
        cmocka_unit_test(direct_that_is_refused_late_is_given_up_file_by_file),
        cmocka_unit_test(einval_after_a_direct_transfer_is_an_error),
    };
    return cmocka_run_group_tests(once, test_directory_setup, test_directory_teardown) +
           test_engines_run(per_engine, sizeof per_engine / sizeof per_engine[0],
                            test_directory_setup, test_directory_teardown);
}
