/* The front: what io/io.h promises, over every engine that was built. */
#include "tests/support.h"

#include "core/memory.h"
#include "io/engine.h"
#include "tests/support_engine.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4096u
#define MIB   (1u << 20)

static void large_requests_come_back_as_they_were_written(void **state)
{
    /* Three requests of many more pieces than depth, direct and buffered, under their own ids. */
    for (int direct = 0; direct < 2; direct++) {
        struct weir_io *io = test_front_open(*state, 3);
        int fd = test_file_make(direct ? O_DIRECT : 0);
        uint32_t file;
        assert_ok(weir_io_file_open(io, "f", fd, direct, 0, &file));
        unsigned char *bytes = test_memory_make(3 * MIB, 0), *back = test_memory_make(3 * MIB, 0);
        test_pattern_fill(bytes, 3 * MIB, 5);
        struct weir_io_request requests[3];
        for (uint64_t i = 0; i < 3; i++)
            requests[i] =
                (struct weir_io_request){i, WEIR_IO_WRITE, file, i * MIB, bytes + i * MIB, MIB};
        assert_ok(weir_io_submit(io, requests, 3));
        test_front_reap(io, 3);
        for (uint64_t i = 0; i < 3; i++) {
            requests[i].kind = WEIR_IO_READ;
            requests[i].bytes = back + i * MIB;
        }
        assert_ok(weir_io_submit(io, requests, 3));
        unsigned seen = 0;
        while (seen != 7) {
            struct weir_io_result result;
            size_t count;
            assert_ok(weir_io_reap(io, &result, 1, WEIR_IO_FOREVER, &count));
            if (count == 0)
                continue;
            assert_int_equal(WEIR_OK, result.status);
            assert_true(result.id < 3 && !(seen & 1u << result.id));
            seen |= 1u << result.id;
            assert_memory_equal(bytes + result.id * MIB, back + result.id * MIB, MIB);
        }
        struct weir_io_counters counters;
        weir_io_count(io, &counters);
        assert_int_equal(3 * MIB, counters.written_bytes);
        assert_int_equal(3 * MIB, counters.read_bytes);
        assert_true(counters.read_ns > 0 && counters.write_ns > 0);
        assert_int_equal(0, counters.bounced_bytes);
        weir_io_close(io);
        close(fd);
        free(bytes);
        free(back);
    }
}

static void a_misaligned_direct_write_changes_only_its_own_bytes(void **state)
{
    /* Parts of blocks at both ends, over old bytes and past the file's end: neighbours stay, and
     * the file is as long as its last byte says. */
    struct weir_io *io = test_front_open(*state, 4);
    int fd = test_file_make(O_DIRECT);
    uint32_t file;
    assert_ok(weir_io_file_open(io, "f", fd, true, BLOCK, &file));
    assert_int_equal(BLOCK, weir_io_file_align_bytes(io, file));
    size_t most = 80 * BLOCK;
    unsigned char *model = test_memory_make(most, 0), *memory = test_memory_make(most, 0);
    test_pattern_fill(memory, most, 6);
    const struct {
        uint64_t offset, count, skew;
    } writes[] = {{0, 100, 0},     {50, 1, 3},     {8000, 300, 1},
                  {4096, 4096, 8}, {5, 200000, 2}, {200005, 50000, 0},
                  {4095, 2, 0},    {260000, 1, 0}, {0, 64 * 1024, 1}};
    uint64_t size = 0;
    for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
        unsigned char *bytes = memory + writes[i].skew + i;
        test_front_move(io, WEIR_IO_WRITE, file, writes[i].offset, bytes, writes[i].count);
        memcpy(model + writes[i].offset, bytes, writes[i].count);
        uint64_t end = writes[i].offset + writes[i].count;
        size = end > size ? end : size;
        struct stat stat;
        assert_int_equal(0, fstat(fd, &stat));
        assert_int_equal(size, stat.st_size);
        unsigned char *back = test_memory_make(size + 1, 0xCC);
        test_front_move(io, WEIR_IO_READ, file, 0, back + 1, size);
        assert_memory_equal(model, back + 1, size);
        assert_int_equal(0xCC, back[0]);
        free(back);
    }
    struct weir_io_counters counters;
    weir_io_count(io, &counters);
    assert_true(counters.bounced_bytes > 250000);
    weir_io_close(io);
    close(fd);
    free(model);
    free(memory);
}

static void a_read_past_the_end_fails_alone_and_names_the_file(void **state)
{
    /* The file ends inside the request: CORRUPT with name and byte, once; the next request works.
     */
    for (int direct = 0; direct < 2; direct++) {
        struct weir_io *io = test_front_open(*state, 4);
        int fd = test_file_make(0), again = -1;
        assert_int_equal(0, ftruncate(fd, 150000));
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        again = open(path, O_RDWR | (direct ? O_DIRECT : 0));
        assert_true(again >= 0);
        uint32_t file;
        assert_ok(weir_io_file_open(io, "cut.bin", again, direct, direct ? BLOCK : 0, &file));
        unsigned char *bytes = test_memory_make(4 * 65536, 0);
        struct weir_io_request requests[2] = {{1, WEIR_IO_READ, file, 0, bytes, 4 * 65536},
                                              {2, WEIR_IO_READ, file, 0, bytes, 0}};
        requests[1].bytes = bytes + 65536;
        assert_ok(weir_io_submit(io, requests, 2));
        unsigned seen = 0;
        while (seen != 6) {
            struct weir_io_result result;
            size_t count;
            assert_ok(weir_io_reap(io, &result, 1, WEIR_IO_FOREVER, &count));
            if (count == 0)
                continue;
            assert_false(seen & 1u << result.id);
            seen |= 1u << result.id;
            if (result.id == 2)
                assert_int_equal(WEIR_OK, result.status);
            else {
                assert_int_equal(WEIR_ERR_CORRUPT, result.status);
                assert_true(test_contains(result.error.text, "\"cut.bin\": ends at byte 1"));
            }
        }
        test_front_move(io, WEIR_IO_READ, file, 1, bytes, 149999);
        weir_io_close(io);
        close(again);
        close(fd);
        free(bytes);
    }
}

static void a_wrong_submit_takes_nothing(void **state)
{
    /* Too many, an unknown file, no memory or an overflow: refused as a whole, the front goes on.
     */
    struct weir_io *io = test_front_open(*state, 2);
    int fd = test_file_make(0);
    uint32_t file;
    assert_ok(weir_io_file_open(io, "f", fd, false, 0, &file));
    char byte[9] = "abcdefgh";
    struct weir_io_request good = {1, WEIR_IO_WRITE, file, 0, byte, 8}, many[9];
    for (int i = 0; i < 9; i++)
        many[i] = good;
    assert_fails(weir_io_submit(io, many, 9), WEIR_ERR_STATE, "9 requests submitted, 0 of 8");
    many[1].file = 5;
    assert_fails(weir_io_submit(io, many, 2), WEIR_ERR_ARG, "file 5 of 1");
    many[1] = good;
    many[1].bytes = NULL;
    assert_fails(weir_io_submit(io, many, 2), WEIR_ERR_ARG, "8 bytes at");
    many[1] = good;
    many[1].offset_bytes = INT64_MAX - 4;
    assert_fails(weir_io_submit(io, many, 2), WEIR_ERR_ARG, "offset");
    many[1] = good;
    many[1].kind = (enum weir_io_kind)7;
    assert_fails(weir_io_submit(io, many, 2), WEIR_ERR_ARG, "kind 7");
    struct stat stat;
    assert_int_equal(0, fstat(fd, &stat));
    assert_int_equal(0, stat.st_size);
    test_front_move(io, WEIR_IO_WRITE, file, 0, byte, 8);
    weir_io_close(io);
    close(fd);
}

static void what_cannot_be_opened_is_refused_by_name(void **state)
{
    /* Options, engines and files that the front cannot serve are errors before anything moves. */
    const struct weir_io_engine_table *table = *state;
    struct weir_io *io;
    struct weir_io_options options = {.engine = "steam", .depth = 1, .request_count = 1};
    assert_fails(weir_io_open(&io, &options), WEIR_ERR_UNSUPPORTED, "\"steam\": not built");
    assert_true(test_contains(weir_last_error()->text, table->name));
    options.engine = table->name;
    options.depth = 0;
    assert_fails(weir_io_open(&io, &options), WEIR_ERR_ARG, "depth 0");
    options.depth = 1;
    options.piece_bytes = 1000;
    assert_fails(weir_io_open(&io, &options), WEIR_ERR_ARG, "1000 bytes");
    options.piece_bytes = 0;
    options.require_direct = true;
    assert_ok(weir_io_open(&io, &options));
    uint32_t file;
    int fd = test_file_make(0), pipes[2];
    assert_int_equal(0, pipe(pipes));
    assert_fails(weir_io_file_open(io, "slow", fd, false, 0, &file), WEIR_ERR_UNSUPPORTED,
                 "\"slow\": opened without O_DIRECT");
    assert_fails(weir_io_file_open(io, "pipe", pipes[0], true, 0, &file), WEIR_ERR_UNSUPPORTED,
                 "\"pipe\": not a regular file");
    assert_fails(weir_io_file_open(io, "gone", -1, true, 0, &file), WEIR_ERR_ARG, "\"gone\"");
    assert_fails(weir_io_file_open(io, "odd", fd, true, 768, &file), WEIR_ERR_UNSUPPORTED,
                 "768 bytes");
    weir_io_close(io);
    weir_io_close(NULL);
    close(fd);
    close(pipes[0]);
    close(pipes[1]);
}

static void after_open_nothing_is_allocated(void **state)
{
    /* DESIGN 7e: transfers, bounces and failures leave the heap as it was. */
    struct weir_io *io = test_front_open(*state, 4);
    int fd = test_file_make(O_DIRECT);
    uint32_t file;
    assert_ok(weir_io_file_open(io, "f", fd, true, 0, &file));
    unsigned char *bytes = test_memory_make(MIB, 1);
    weir_alloc_fail_at(0);
    uint64_t held = weir_alloc_bytes();
    test_front_move(io, WEIR_IO_WRITE, file, 0, bytes, MIB);
    test_front_move(io, WEIR_IO_WRITE, file, 77, bytes + 5, 100000);
    test_front_move(io, WEIR_IO_READ, file, 3, bytes + 1, 300000);
    assert_ok(weir_io_submit(
        io, &(struct weir_io_request){1, WEIR_IO_READ, file, 2 * MIB, bytes, BLOCK}, 1));
    struct weir_io_result result = {0};
    for (size_t count = 0; count == 0;)
        assert_ok(weir_io_reap(io, &result, 1, WEIR_IO_FOREVER, &count));
    assert_int_equal(WEIR_ERR_CORRUPT, result.status);
    assert_int_equal(0, weir_alloc_fail_at(0));
    assert_int_equal(held, weir_alloc_bytes());
    weir_io_close(io);
    close(fd);
    free(bytes);
}

static void ten_thousand_requests_pass_through_depth_4(void **state)
{
    /* 64 outstanding at a time, many more than the engine has entries, of 1 byte to 3 pieces, in
     * registered memory and elsewhere: each comes back once, and what was written is read. */
    struct weir_io *io;
    assert_ok(weir_io_open(&io, &(struct weir_io_options){
                                    .engine = ((const struct weir_io_engine_table *)*state)->name,
                                    .depth = 4,
                                    .request_count = 64,
                                    .piece_bytes = BLOCK}));
    enum { ROOM = 3 * BLOCK };
    int fd = test_file_make(0);
    uint32_t file;
    assert_ok(weir_io_file_open(io, "f", fd, false, 0, &file));
    unsigned char *bytes = test_memory_make(64 * ROOM, 0), *back = test_memory_make(64 * ROOM, 0);
    assert_ok(weir_io_memory_add(io, bytes, 40 * ROOM));
    struct test_random random = {.state = 9};
    for (int round = 0; round < 79; round++) {
        test_pattern_fill(bytes, 64 * ROOM, test_random_next(&random));
        struct weir_io_request requests[64];
        for (uint64_t i = 0; i < 64; i++)
            requests[i] = (struct weir_io_request){i,
                                                   WEIR_IO_WRITE,
                                                   file,
                                                   i * ROOM + test_random_below(&random, 100),
                                                   bytes + i * ROOM,
                                                   1 + test_random_below(&random, ROOM - 100)};
        assert_ok(weir_io_submit(io, requests, 64));
        test_front_reap(io, 64);
        for (uint64_t i = 0; i < 64; i++) {
            requests[i].kind = WEIR_IO_READ;
            requests[i].bytes = back + i * ROOM;
        }
        assert_ok(weir_io_submit(io, requests, 64));
        test_front_reap(io, 64);
        for (uint64_t i = 0; i < 64; i++)
            assert_memory_equal(bytes + i * ROOM, back + i * ROOM, requests[i].byte_count);
    }
    weir_io_close(io);
    close(fd);
    free(bytes);
    free(back);
}

static void failed_requests_leave_the_engine_working(void **state)
{
    /* Writes to a file opened for reading fail one by one, the reads between them are whole. */
    struct weir_io *io = test_front_open(*state, 4);
    int fd = test_file_make(0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int closed_fd = open(path, O_RDONLY);
    assert_true(closed_fd >= 0);
    unsigned char *bytes = test_memory_make(MIB, 0), *back = test_memory_make(MIB, 0);
    test_pattern_fill(bytes, MIB, 8);
    assert_int_equal(MIB, pwrite(fd, bytes, MIB, 0));
    uint32_t file;
    assert_ok(weir_io_file_open(io, "sealed", closed_fd, false, 0, &file));
    for (uint64_t round = 0; round < 100; round++) {
        memset(back, 0, MIB);
        struct weir_io_request requests[2] = {{0, WEIR_IO_WRITE, file, 0, bytes + 1, 300000},
                                              {1, WEIR_IO_READ, file, round, back, 700000}};
        assert_ok(weir_io_submit(io, requests, 2));
        for (size_t got = 0, count; got < 2; got += count) {
            struct weir_io_result result;
            assert_ok(weir_io_reap(io, &result, 1, WEIR_IO_FOREVER, &count));
            if (count == 1)
                assert_int_equal(result.id == 0 ? WEIR_ERR_IO : WEIR_OK, result.status);
            if (count == 1 && result.id == 0)
                assert_true(test_contains(result.error.text, "\"sealed\""));
        }
        assert_memory_equal(bytes + round, back, 700000);
    }
    weir_io_close(io);
    close(closed_fd);
    close(fd);
    free(bytes);
    free(back);
}

static void *front_wake(void *io)
{
    weir_io_wake(io);
    return NULL;
}

static void reap_ends_by_time_or_wake_without_a_request(void **state)
{
    /* The driver's one sleeping place: a timeout and another thread's wake both end it, empty. */
    struct weir_io *io = test_front_open(*state, 2);
    struct weir_io_result result;
    size_t count = 9;
    assert_ok(weir_io_reap(io, &result, 1, 0, &count));
    assert_int_equal(0, count);
    assert_ok(weir_io_reap(io, &result, 1, 1000000, &count));
    assert_int_equal(0, count);
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, front_wake, io));
    assert_ok(weir_io_reap(io, &result, 1, WEIR_IO_FOREVER, &count));
    assert_int_equal(0, count);
    pthread_join(thread, NULL);
    weir_io_close(io);
}

static void reads_go_before_writes_and_do_not_starve_them(void **state)
{
    /* With both waiting reads are queued first, and at least one piece in five is a write. */
    (void)state;
    test_engine_script = (struct test_engine_script){0};
    struct weir_io *io;
    assert_ok(weir_io_open(&io, &(struct weir_io_options){.engine_table = &test_engine,
                                                          .depth = 1,
                                                          .request_count = 4,
                                                          .piece_bytes = BLOCK}));
    int fd = test_file_make(0);
    assert_int_equal(0, ftruncate(fd, 80 * BLOCK));
    uint32_t file;
    assert_ok(weir_io_file_open(io, "f", fd, false, 0, &file));
    unsigned char *bytes = test_memory_make(80 * BLOCK, 1);
    struct weir_io_request requests[2] = {
        {1, WEIR_IO_WRITE, file, 0, bytes, 40 * BLOCK},
        {2, WEIR_IO_READ, file, 40 * BLOCK, bytes + 40 * BLOCK, 40 * BLOCK}};
    assert_ok(weir_io_submit(io, requests, 2));
    test_front_reap(io, 2);
    assert_int_equal(80, test_engine_script.queued_count);
    assert_int_equal(WEIR_IO_READ, test_engine_script.kinds[0]);
    for (int first = 0, reads = 0; first < 45; first += 5, reads = 0) {
        for (int i = first; i < first + 5; i++)
            reads += test_engine_script.kinds[i] == WEIR_IO_READ;
        assert_int_equal(4, reads);
    }
    weir_io_close(io);
    close(fd);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest per_engine[] = {
        TEST_PER_ENGINE(large_requests_come_back_as_they_were_written),
        TEST_PER_ENGINE(a_misaligned_direct_write_changes_only_its_own_bytes),
        TEST_PER_ENGINE(a_read_past_the_end_fails_alone_and_names_the_file),
        TEST_PER_ENGINE(a_wrong_submit_takes_nothing),
        TEST_PER_ENGINE(what_cannot_be_opened_is_refused_by_name),
        TEST_PER_ENGINE(after_open_nothing_is_allocated),
        TEST_PER_ENGINE(ten_thousand_requests_pass_through_depth_4),
        TEST_PER_ENGINE(failed_requests_leave_the_engine_working),
        TEST_PER_ENGINE(reap_ends_by_time_or_wake_without_a_request),
    };
    const struct CMUnitTest once[] = {
        cmocka_unit_test(reads_go_before_writes_and_do_not_starve_them),
    };
    return cmocka_run_group_tests(once, test_directory_setup, test_directory_teardown) +
           test_engines_run(per_engine, sizeof per_engine / sizeof per_engine[0],
                            test_directory_setup, test_directory_teardown);
}
