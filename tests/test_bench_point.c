/* A point of weir-bench on a clock and an engine that the test drives: figures to the digit. */
#include "tests/support.h"

#include "core/machine.h"
#include "core/memory.h"
#include "examples/bench/io.h"
#include "tests/support_engine.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB        (UINT64_C(1) << 20)
#define FILE_BYTES (64 * MIB)
#define PIECE_NS   250000u /* that the double takes to move one piece, one after the other */

static struct {
    uint64_t now_ns;
    double cpu_s;
} fake;

static uint64_t fake_now(void)
{
    return fake.now_ns;
}

static double fake_cpu(void)
{
    return fake.cpu_s;
}

static const struct io_clock fake_clock = {fake_now, fake_cpu};

/* The engine of the tests, on which each piece takes PIECE_NS and 10 us of CPU. */
static struct weir_io_engine_table paced;

static enum weir_status paced_reap(struct weir_io_engine *engine, struct weir_io_completion *out,
                                   size_t capacity, uint64_t timeout_ns, size_t *count)
{
    WEIR_TRY(test_engine.reap(engine, out, capacity > 0 ? 1 : 0, timeout_ns, count));
    fake.now_ns += *count * PIECE_NS;
    fake.cpu_s += (double)*count * 10e-6;
    return WEIR_OK;
}

struct fixture {
    struct drives drives;
    struct io_target target;
    struct buffers memory;
};

static int setup(void **state)
{
    static struct fixture f;
    paced = test_engine;
    paced.reap = paced_reap;
    fake.now_ns = 1000;
    fake.cpu_s = 7;
    test_engine_script = (struct test_engine_script){.late = false};
    f = (struct fixture){.target = {.file_count = 1,
                                    .byte_count = FILE_BYTES,
                                    .clock = &fake_clock,
                                    .engine_table = &paced}};
    f.target.drives = &f.drives;
    f.target.files[0] = (struct io_target_file){.name = "f", .fd = test_file_make(0), .share = 1};
    assert_int_equal(0, ftruncate(f.target.files[0].fd, (off_t)FILE_BYTES));
    assert_ok(buffers_open(&f.memory, 8 * MIB, LAYOUT_HUGE, "free some"));
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    buffers_close(&f->memory);
    close(f->target.files[0].fd);
    return 0;
}

/* What `report_print` says of one row. */
static void printed(json_t *row, char *text, size_t room)
{
    struct report report;
    assert_ok(report_open(&report, "io"));
    assert_ok(report_row(&report, row));
    FILE *file = fmemopen(text, room, "w");
    report_print(&report, file);
    fclose(file);
    report_close(&report);
}

static struct io_series series_run(struct fixture *f, enum pattern pattern, uint32_t depth,
                                   uint64_t bytes)
{
    struct io_series series = {
        .point = {.pattern = pattern, .engine = "uring", .block_bytes = MIB, .depth = depth}};
    assert_ok(weir_alloc(&series.latencies, 1, sizeof *series.latencies, "a histogram"));
    assert_ok(io_point_run(&f->target, &series.point, f->memory.bytes,
                           (struct io_limit){.ns = UINT64_MAX / 2, .bytes = bytes}, &series.total,
                           series.latencies));
    series.rates[series.round_count++] =
        (double)(series.total.read_bytes + series.total.written_bytes) / (double)series.total.ns;
    return series;
}

/* 40 blocks of 1 MiB, a quarter of a millisecond each: 40 MiB in 10 ms is 4.194 GB/s, 10 us of CPU
 * each is 9.54 ms a GB, and with one in flight each takes 250 us. */
static void a_known_rate_is_printed_to_the_digit(void **state)
{
    struct fixture *f = *state;
    char text[4096];
    struct io_series series = series_run(f, PATTERN_READ, 1, 40 * MIB);
    assert_int_equal(40 * MIB, series.total.read_bytes);
    assert_int_equal(0, series.total.written_bytes);
    assert_int_equal(40u * PIECE_NS, series.total.ns);
    json_t *row = io_series_row(&series, &f->target, "io");
    assert_true(json_number_value(json_object_get(row, "gb_per_s")) == 4.194304);
    assert_int_equal(40, json_integer_value(json_object_get(row, "request_count")));
    printed(row, text, sizeof text);
    assert_true(test_contains(text, "read     uring   1 MiB      1  4.194   4.194    4.194   25"));
    assert_true(test_contains(text, "0.0095"));
    assert_true(fabs(histogram_percentile(series.latencies, 50) - PIECE_NS) < PIECE_NS / 100.0);
    weir_free(series.latencies);
}

/* With four in flight a block waits for the three before it: a millisecond each, once the queue is
 * full, and the rate is the same. */
static void latency_counts_the_queue(void **state)
{
    struct fixture *f = *state;
    struct io_series series = series_run(f, PATTERN_WRITE, 4, 40 * MIB);
    assert_int_equal(40 * MIB, series.total.written_bytes);
    assert_int_equal(40u * PIECE_NS, series.total.ns);
    assert_true(fabs(histogram_percentile(series.latencies, 99) - 4e6 / 4) < 1e4);
    weir_free(series.latencies);
}

/* Of a mix half is read and half is written, and the two never touch the same blocks. */
static void a_mix_is_half_of_each_in_its_own_half(void **state)
{
    struct fixture *f = *state;
    unsigned char block[4096], low[4096] = {0};
    struct io_series series = series_run(f, PATTERN_MIXED, 2, 128 * MIB);
    assert_int_equal(64 * MIB, series.total.read_bytes);
    assert_int_equal(64 * MIB, series.total.written_bytes);
    int fd = f->target.files[0].fd;
    for (uint64_t at = 0; at < FILE_BYTES; at += MIB) {
        assert_int_equal(sizeof block, pread(fd, block, sizeof block, (off_t)at));
        assert_true((memcmp(block, low, sizeof block) == 0) == (at < FILE_BYTES / 2));
    }
    weir_free(series.latencies);
}

/* Nothing begins after the time is over, and what was begun is counted. */
static void time_ends_a_point(void **state)
{
    struct fixture *f = *state;
    static struct histogram latencies;
    struct io_sample sample;
    struct io_point point = {
        .pattern = PATTERN_READ, .engine = "uring", .block_bytes = MIB, .depth = 4};
    assert_ok(io_point_run(&f->target, &point, f->memory.bytes,
                           (struct io_limit){.ns = 10 * PIECE_NS}, &sample, &latencies));
    assert_int_equal((10 + 3) * MIB, sample.read_bytes);
    assert_int_equal((10 + 3) * PIECE_NS, sample.ns);
}

/* Bytes that the kernel did not count on their way to storage mark the row. */
static void what_the_kernel_did_not_count_is_marked(void **state)
{
    struct fixture *f = *state;
    char text[4096];
    struct io_series series = series_run(f, PATTERN_READ, 1, 40 * MIB);
    struct kernel_counters *counted = &series.total.counted;
    *counted = (struct kernel_counters){.process_read_bytes = 40 * MIB, .process_known = true};
    json_t *row = io_series_row(&series, &f->target, "io");
    assert_true(json_is_false(json_object_get(row, "from_page_cache")));
    json_decref(row);
    counted->process_read_bytes = 35 * MIB;
    row = io_series_row(&series, &f->target, "io");
    assert_true(json_is_true(json_object_get(row, "from_page_cache")));
    printed(row, text, sizeof text);
    assert_true(test_contains(text, "YES"));
    *counted = (struct kernel_counters){.process_read_bytes = 40 * MIB,
                                        .process_known = true,
                                        .device_read_bytes = 1,
                                        .device_known = true};
    row = io_series_row(&series, &f->target, "io");
    assert_true(json_is_true(json_object_get(row, "from_page_cache")));
    json_decref(row);
    weir_free(series.latencies);
}

/* Of a device on others what reached both counts, since the point began: a loop device that reads
 * out of the page cache of the file below it moves nothing there. */
static void the_bottom_of_layered_devices_counts(void **state)
{
    (void)state;
    struct kernel_counters before = {.device_read_bytes = 10,
                                     .device_written_bytes = 20,
                                     .bottom_read_bytes = 1000000,
                                     .bottom_written_bytes = 2000000,
                                     .device_known = true},
                           after = before;
    after.device_read_bytes += 500;
    after.device_written_bytes += 600;
    after.bottom_read_bytes += 7;
    after.bottom_written_bytes += 1200; /* both halves of a mirror */
    struct kernel_counters between = kernel_counters_between(&before, &after);
    assert_true(between.device_known && !between.process_known);
    assert_int_equal(7, between.device_read_bytes);
    assert_int_equal(600, between.device_written_bytes);
    assert_true(kernel_counters_missed(&between, 500, 600));
    assert_false(kernel_counters_missed(&between, 7, 600));
}

/* A block that fails is the point's failure. */
static void a_failed_block_is_an_error(void **state)
{
    struct fixture *f = *state;
    static struct histogram latencies;
    struct io_sample sample;
    struct io_point point = {
        .pattern = PATTERN_READ, .engine = "uring", .block_bytes = MIB, .depth = 4};
    test_engine_script.fault_at = 7;
    test_engine_script.fault_count = 1;
    test_engine_script.fault_result = -5;
    assert_fails(io_point_run(&f->target, &point, f->memory.bytes,
                              (struct io_limit){.ns = UINT64_MAX / 2, .bytes = 20 * MIB}, &sample,
                              &latencies),
                 WEIR_ERR_IO, "\"f\"");
    point.depth = 128;
    assert_fails(io_point_run(&f->target, &point, f->memory.bytes, (struct io_limit){.ns = 1},
                              &sample, &latencies),
                 WEIR_ERR_ARG, "128 are to be in flight");
}

/* More than there is would be mapped, touched, and end the process: it is refused before. */
static void memory_that_is_not_there_is_refused(void **state)
{
    (void)state;
    struct buffers buffers;
    uint64_t available = weir_memory_available_bytes("");
    if (available == UINT64_MAX)
        skip();
    assert_fails(
        buffers_open(&buffers, available + (available >> 3), LAYOUT_HUGE, "lower --parameters"),
        WEIR_ERR_NOMEM, "available; lower --parameters");
    buffers_close(&buffers);
}

int main(void)
{
#define POINT_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        POINT_TEST(a_known_rate_is_printed_to_the_digit),
        POINT_TEST(latency_counts_the_queue),
        POINT_TEST(a_mix_is_half_of_each_in_its_own_half),
        POINT_TEST(time_ends_a_point),
        POINT_TEST(what_the_kernel_did_not_count_is_marked),
        POINT_TEST(the_bottom_of_layered_devices_counts),
        POINT_TEST(a_failed_block_is_an_error),
        cmocka_unit_test(memory_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
