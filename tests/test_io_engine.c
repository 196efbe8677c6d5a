/* Conformance: what io/engine.h promises, of every engine that was built. */
#include "tests/support.h"

#include "io/engine.h"
#include "tests/support_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096u

static void engine_drain(const struct weir_io_engine_table *table, struct weir_io_engine *engine,
                         struct weir_io_completion *out, size_t want)
{
    for (size_t have = 0, count; have < want; have += count)
        assert_ok(table->reap(engine, out + have, want - have, WEIR_IO_FOREVER, &count));
}

static void each_piece_yields_one_completion_with_the_kernels_result(void **state)
{
    /* Bytes moved, 0 past the end and -errno all come back under the piece's own token. */
    const struct weir_io_engine_table *table = *state;
    struct weir_io_engine *engine;
    assert_ok(table->open(&engine, 8, NULL));
    int fd = test_file_make(0);
    char text[6] = "river", back[16] = "";
    assert_true(table->queue(
        engine, &(struct weir_io_piece){1, WEIR_IO_WRITE, fd, 100, text, sizeof text}));
    assert_ok(table->submit(engine));
    struct weir_io_completion done[3];
    engine_drain(table, engine, done, 1);
    assert_int_equal(1, done[0].token);
    assert_int_equal(6, done[0].result);

    struct weir_io_piece pieces[3] = {{10, WEIR_IO_READ, fd, 102, back, sizeof back},
                                      {11, WEIR_IO_READ, fd, 106, back + 8, 4},
                                      {12, WEIR_IO_READ, -1, 0, back + 12, 4}};
    for (int i = 0; i < 3; i++)
        assert_true(table->queue(engine, &pieces[i]));
    assert_ok(table->submit(engine));
    engine_drain(table, engine, done, 3);
    int64_t results[3] = {-1, -1, -1};
    for (int i = 0; i < 3; i++) {
        assert_in_range(done[i].token, 10, 12);
        results[done[i].token - 10] = done[i].result;
    }
    assert_int_equal(4, results[0]);
    assert_int_equal(0, results[1]);
    assert_int_equal(-EBADF, results[2]);
    assert_string_equal("ver", back);
    size_t count;
    assert_ok(table->reap(engine, done, 3, 0, &count));
    assert_int_equal(0, count);
    table->close(engine);
    close(fd);
}

static void queue_refuses_a_piece_beyond_depth_until_one_is_reaped(void **state)
{
    /* The depth bounds what is queued and not reaped, in flight or complete. */
    const struct weir_io_engine_table *table = *state;
    struct weir_io_engine *engine;
    assert_ok(table->open(&engine, 2, NULL));
    int fd = test_file_make(0);
    char byte[3] = {0};
    struct weir_io_piece piece = {0, WEIR_IO_WRITE, fd, 0, byte, 1};
    assert_true(table->queue(engine, &piece));
    assert_true(table->queue(engine, &piece));
    assert_false(table->queue(engine, &piece));
    assert_ok(table->submit(engine));
    struct weir_io_completion done[2];
    engine_drain(table, engine, done, 1);
    assert_true(table->queue(engine, &piece));
    assert_false(table->queue(engine, &piece));
    assert_ok(table->submit(engine));
    engine_drain(table, engine, done, 2);
    table->close(engine);
    close(fd);
}

static void pieces_in_flight_come_back_through_a_small_capacity(void **state)
{
    /* 300 pieces through depth 7 and room for two completions: each byte is moved exactly once. */
    const struct weir_io_engine_table *table = *state;
    struct weir_io_engine *engine;
    assert_ok(table->open(&engine, 7, NULL));
    int fd = test_file_make(0);
    unsigned char bytes[300], back[300] = {0}, seen[300] = {0};
    test_pattern_fill(bytes, sizeof bytes, 3);
    assert_int_equal(300, pwrite(fd, bytes, sizeof bytes, 0));
    size_t queued = 0, reaped = 0, count;
    while (reaped < 300) {
        for (; queued < 300; queued++) {
            struct weir_io_piece piece = {queued, WEIR_IO_READ, fd, queued, back + queued, 1};
            if (!table->queue(engine, &piece))
                break;
        }
        assert_ok(table->submit(engine));
        struct weir_io_completion done[2];
        assert_ok(table->reap(engine, done, 2, WEIR_IO_FOREVER, &count));
        for (size_t i = 0; i < count; i++, reaped++) {
            assert_int_equal(1, done[i].result);
            assert_int_equal(0, seen[done[i].token]++);
            assert_int_equal(bytes[done[i].token], back[done[i].token]);
        }
    }
    table->close(engine);
    close(fd);
}

static void reap_returns_when_its_time_is_over(void **state)
{
    /* Nothing is in flight: a bounded reap comes back empty. */
    const struct weir_io_engine_table *table = *state;
    struct weir_io_engine *engine;
    assert_ok(table->open(&engine, 1, NULL));
    struct weir_io_completion done;
    size_t count = 9;
    assert_ok(table->reap(engine, &done, 1, 0, &count));
    assert_int_equal(0, count);
    count = 9;
    assert_ok(table->reap(engine, &done, 1, 2000000, &count));
    assert_int_equal(0, count);
    table->close(engine);
}

static void a_wake_is_kept_until_a_reap_returns_nothing(void **state)
{
    /* A wake before reap ends it; one beside a completion is still there for the next reap. */
    const struct weir_io_engine_table *table = *state;
    struct weir_io_engine *engine;
    assert_ok(table->open(&engine, 4, NULL));
    struct weir_io_completion done;
    size_t count = 9;
    table->wake(engine);
    table->wake(engine);
    assert_ok(table->reap(engine, &done, 1, WEIR_IO_FOREVER, &count));
    assert_int_equal(0, count);

    int fd = test_file_make(0);
    char byte = 0;
    assert_true(table->queue(engine, &(struct weir_io_piece){5, WEIR_IO_WRITE, fd, 0, &byte, 1}));
    table->wake(engine);
    assert_ok(table->submit(engine));
    bool woken = false, complete = false;
    while (!woken || !complete) { /* hangs if either is lost */
        assert_ok(table->reap(engine, &done, 1, WEIR_IO_FOREVER, &count));
        if (count == 0)
            woken = true;
        else
            complete = true;
    }
    table->close(engine);
    close(fd);
}

struct waker {
    const struct weir_io_engine_table *table;
    struct weir_io_engine *engine;
    atomic_uint turn;
};

static void *waker_run(void *argument)
{
    struct waker *waker = argument;
    for (unsigned i = 1; i <= 2000; i++) {
        while (atomic_load(&waker->turn) != 2 * i - 1)
            sched_yield();
        atomic_store(&waker->turn, 2 * i);
        waker->table->wake(waker->engine);
    }
    return NULL;
}

static void no_wake_of_another_thread_is_lost(void **state)
{
    /* 2000 times a thread stores its turn and wakes a reap that has no other way to end. */
    struct waker waker = {.table = *state};
    assert_ok(waker.table->open(&waker.engine, 1, NULL));
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, waker_run, &waker));
    for (unsigned i = 1; i <= 2000; i++) {
        atomic_store(&waker.turn, 2 * i - 1);
        while (atomic_load(&waker.turn) != 2 * i) {
            struct weir_io_completion done;
            size_t count;
            assert_ok(waker.table->reap(waker.engine, &done, 1, WEIR_IO_FOREVER, &count));
            assert_int_equal(0, count);
        }
    }
    pthread_join(thread, NULL);
    waker.table->close(waker.engine);
}

static void close_waits_for_what_is_in_flight(void **state)
{
    /* After close every submitted write is in the file. */
    const struct weir_io_engine_table *table = *state;
    struct weir_io_engine *engine;
    assert_ok(table->open(&engine, 32, NULL));
    int fd = test_file_make(0);
    unsigned char *bytes = test_memory_make(32 * 65536, 0), *back = test_memory_make(32 * 65536, 0);
    test_pattern_fill(bytes, 32 * 65536, 4);
    for (uint64_t i = 0; i < 32; i++)
        assert_true(table->queue(engine, &(struct weir_io_piece){i, WEIR_IO_WRITE, fd, i * 65536,
                                                                 bytes + i * 65536, 65536}));
    assert_ok(table->submit(engine));
    table->close(engine);
    assert_int_equal(32 * 65536, pread(fd, back, 32 * 65536, 0));
    assert_memory_equal(bytes, back, 32 * 65536);
    free(bytes);
    free(back);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_PER_ENGINE(each_piece_yields_one_completion_with_the_kernels_result),
        TEST_PER_ENGINE(queue_refuses_a_piece_beyond_depth_until_one_is_reaped),
        TEST_PER_ENGINE(pieces_in_flight_come_back_through_a_small_capacity),
        TEST_PER_ENGINE(reap_returns_when_its_time_is_over),
        TEST_PER_ENGINE(a_wake_is_kept_until_a_reap_returns_nothing),
        TEST_PER_ENGINE(no_wake_of_another_thread_is_lost),
        TEST_PER_ENGINE(close_waits_for_what_is_in_flight),
    };
    return test_engines_run(tests, sizeof tests / sizeof tests[0], test_directory_setup,
                            test_directory_teardown);
}
