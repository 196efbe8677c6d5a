/*
 * The paced drive that overlap is measured with, and that a step on it moves what the formula says.
 * Nothing here depends on how fast this machine is: a drive may be late, never early.
 */
#include "tests/support.h"
#include "tests/support_overlap.h"
#include "tests/support_paced.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE  65536u
#define PIECES 8u

static char directory[256];

/* Eight pieces of a millisecond each, every second one a write at half the rate: the nth completion
 * comes no earlier than the sum of the first n, and brings the kernel's result. */
static void pieces_come_in_turn_and_never_early(void **state)
{
    (void)state;
    struct weir_io_engine *engine;
    static unsigned char bytes[PIECES][PIECE];
    test_pace = (struct test_pace){
        .read_bytes_per_s = PIECE * 1e3, .write_bytes_per_s = PIECE * 5e2, .latency_s = 1e-3};
    assert_ok(test_paced.open(&engine, PIECES, NULL));
    int fd = open(directory, O_TMPFILE | O_RDWR, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, PIECES * PIECE), 0);
    uint64_t begin = weir_now_ns(), due[PIECES], queue_ns = 0;
    for (uint32_t i = 0; i < PIECES; i++) {
        bool write = i % 2;
        queue_ns += write ? 2000000 : 1000000;
        due[i] = begin + queue_ns + 1000000;
        assert_true(test_paced.queue(
            engine, &(struct weir_io_piece){i, write ? WEIR_IO_WRITE : WEIR_IO_READ, fd,
                                            (uint64_t)i * PIECE, bytes[i], PIECE}));
    }
    assert_false(test_paced.queue(engine, &(struct weir_io_piece){.fd = fd}));
    assert_ok(test_paced.submit(engine));
    bool seen[PIECES] = {false};
    struct weir_io_completion done[PIECES];
    for (size_t have = 0, count; have < PIECES; have += count) {
        assert_ok(test_paced.reap(engine, done, PIECES, WEIR_IO_FOREVER, &count));
        uint64_t now = weir_now_ns();
        for (size_t i = 0; i < count; i++) {
            assert_false(seen[done[i].token]);
            seen[done[i].token] = true;
            assert_int_equal(done[i].result, PIECE);
            assert_true(now >= due[done[i].token]);
        }
    }
    test_paced.close(engine);
    close(fd);
}

/* A wake that comes while a piece waits for its time ends the reap, and is used up by it. */
static void a_wake_ends_a_reap_before_the_time(void **state)
{
    (void)state;
    struct weir_io_engine *engine;
    static unsigned char bytes[PIECE];
    test_pace = (struct test_pace){
        .read_bytes_per_s = 1, .write_bytes_per_s = 1, .latency_s = 0}; /* 18 hours */
    assert_ok(test_paced.open(&engine, 1, NULL));
    int fd = open(directory, O_TMPFILE | O_RDWR, 0600);
    assert_true(
        test_paced.queue(engine, &(struct weir_io_piece){7, WEIR_IO_WRITE, fd, 0, bytes, PIECE}));
    assert_ok(test_paced.submit(engine));
    struct weir_io_completion done;
    size_t count;
    for (int i = 0; i < 3; i++) {
        test_paced.wake(engine);
        assert_ok(test_paced.reap(engine, &done, 1, WEIR_IO_FOREVER, &count));
        assert_int_equal(count, 0);
    }
    test_paced.close(engine);
    close(fd);
}

/* Section 9: bytes by the formula to 1 %; and no step is faster than what the drive must move. */
static void a_step_moves_the_formulas_bytes(void **state)
{
    (void)state;
    const struct overlap_spec spec = {{2048, 2048, 2}, 8192, 200000};
    struct overlap o;
    struct weir_report report;
    test_pace =
        (struct test_pace){.read_bytes_per_s = 1e12, .write_bytes_per_s = 1e12, .latency_s = 0};
    overlap_open(&o, &spec, (3 * 2 + 2 * 4) * 8192 + 3 * 4096, 400 << 10, directory);
    overlap_step(&o, true, &report);
    assert_ok(weir_layout(o.run));
    struct overlap_traffic t = overlap_traffic(&o);
    assert_true(t.read_bytes > 0 && t.written_bytes > 0);
    test_pace =
        (struct test_pace){.read_bytes_per_s = 2e8, .write_bytes_per_s = 1e8, .latency_s = 1e-4};
    t = overlap_traffic(&o);
    overlap_step(&o, false, &report); /* nothing is pending yet */
    for (int i = 0; i < 3; i++) {
        overlap_step(&o, false, &report);
        assert_true(llabs((long long)(report.nvme_read_bytes - t.read_bytes)) * 100 <=
                    (long long)t.read_bytes);
        assert_true(llabs((long long)(report.nvme_written_bytes - t.written_bytes)) * 100 <=
                    (long long)t.written_bytes);
        assert_true((double)report.step_ns * 1e-9 >= overlap_io_seconds(&t) * 0.99);
        assert_true(overlap_floor_seconds(&t, 24 * 2e-4) >= overlap_io_seconds(&t));
    }
    weir_close(o.run);
}

int main(void)
{
    test_directory_make(directory);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_come_in_turn_and_never_early),
        cmocka_unit_test(a_wake_ends_a_reap_before_the_time),
        cmocka_unit_test(a_step_moves_the_formulas_bytes),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_directory_remove(directory);
    return failed;
}
