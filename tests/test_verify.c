/* Verification: what a drive changed is found, named, and never passed on; nothing else is. */
#include "tests/support.h"

#include "core/memory.h"
#include "tests/support_volume.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK  4096u
#define STRIPE (4 * BLOCK)
#define BYTES  (24 * STRIPE)

static const double halves[2] = {1, 1};

static void volume_open(struct test_volume *v, const struct weir_io_engine_table *table, int flags,
                        bool verify)
{
    test_volume_open(v, &(struct test_volume_spec){.options = {.engine_table = table,
                                                               .depth = 3,
                                                               .request_count = 8,
                                                               .piece_bytes = 2 * BLOCK},
                                                   .flags = flags,
                                                   .count = 2,
                                                   .shares = halves,
                                                   .stripe_bytes = STRIPE,
                                                   .byte_count = BYTES,
                                                   .verify = verify});
}

/* Behind the front's back. */
static void bit_flip(int fd, uint64_t at)
{
    int flags = fcntl(fd, F_GETFL);
    unsigned char byte;
    assert_int_equal(0, fcntl(fd, F_SETFL, flags & ~O_DIRECT));
    assert_int_equal(1, pread(fd, &byte, 1, (off_t)at));
    byte ^= 0x10;
    assert_int_equal(1, pwrite(fd, &byte, 1, (off_t)at));
    assert_int_equal(0, fdatasync(fd));
    assert_int_equal(0, fcntl(fd, F_SETFL, flags));
}

static struct weir_io_result read_try(struct test_volume *v, uint64_t offset, void *bytes,
                                      uint64_t count)
{
    struct weir_io_result result = {.status = WEIR_OK};
    size_t got = 0;
    assert_ok(weir_io_submit(
        v->io, &(struct weir_io_request){1, WEIR_IO_READ, v->volume, offset, bytes, count}, 1));
    while (got == 0)
        assert_ok(weir_io_reap(v->io, &result, 1, WEIR_IO_FOREVER, &got));
    return result;
}

static void a_flipped_bit_is_found_and_named(void **state)
{
    /* One bit of drive 1, anywhere, direct and buffered: CORRUPT with the file and its block's
     * offset for whoever reads the block, also a part of it; the others read as before. Without
     * verification it goes unnoticed. */
    struct test_random random = test_random_open(41);
    unsigned char *bytes = test_memory_make(BYTES, 0), *back = test_memory_make(BYTES, 0);
    test_pattern_fill(bytes, BYTES, 9);
    for (uint32_t round = 0; round < test_draws(40); round++) {
        bool verify = round % 8 != 7;
        struct test_volume v;
        volume_open(&v, *state, round % 2 ? O_DIRECT : 0, verify);
        test_front_move(v.io, WEIR_IO_WRITE, v.volume, 0, bytes, BYTES);
        uint64_t at = test_random_below(&random, v.bytes[1]);
        bit_flip(v.fds[1], at);
        struct weir_io_result result = read_try(&v, 0, back, BYTES);
        uint64_t linear = (at / STRIPE * 2 + 1) * STRIPE + at % STRIPE;
        char named[64];
        snprintf(named, sizeof named, "\"drive1\": the 4096 bytes at %llu ",
                 (unsigned long long)(at / BLOCK * BLOCK));
        assert_int_equal(verify ? WEIR_ERR_CORRUPT : WEIR_OK, result.status);
        assert_true(!verify || test_contains(result.error.text, named));
        uint64_t near = linear / BLOCK * BLOCK + test_random_below(&random, BLOCK);
        result = read_try(&v, near, back, 1);
        assert_int_equal(verify ? WEIR_ERR_CORRUPT : WEIR_OK, result.status);
        test_front_move(v.io, WEIR_IO_READ, v.volume, 0, back, STRIPE); /* all of drive 0 */
        assert_memory_equal(bytes, back, STRIPE);
        struct weir_io_counters counters;
        weir_io_count(v.io, &counters);
        assert_true(verify ? counters.verified_bytes >= BYTES && counters.verify_ns > 0
                           : counters.verified_bytes + counters.verify_ns == 0);
        test_volume_close(&v);
    }
    free(bytes);
    free(back);
}

static void a_changed_block_is_not_made_good_by_a_write_of_its_part(void **state)
{
    /* A write of part of a block reads it first: the flip in the rest fails that write, and does
     * not get a new hash. A write of all of it makes it good. */
    unsigned char *bytes = test_memory_make(BYTES, 3), *back = test_memory_make(BYTES, 0);
    struct test_volume v;
    volume_open(&v, *state, O_DIRECT, true);
    test_front_move(v.io, WEIR_IO_WRITE, v.volume, 0, bytes, BYTES);
    bit_flip(v.fds[0], 2 * BLOCK + 4000);
    assert_ok(weir_io_submit(
        v.io, &(struct weir_io_request){1, WEIR_IO_WRITE, v.volume, 2 * BLOCK + 10, bytes, 100},
        1));
    struct weir_io_result result = {.status = WEIR_OK};
    for (size_t got = 0; got == 0;)
        assert_ok(weir_io_reap(v.io, &result, 1, WEIR_IO_FOREVER, &got));
    assert_int_equal(WEIR_ERR_CORRUPT, result.status);
    assert_int_equal(WEIR_ERR_CORRUPT, read_try(&v, 2 * BLOCK, back, BLOCK).status);
    test_front_move(v.io, WEIR_IO_WRITE, v.volume, 2 * BLOCK, bytes, BLOCK);
    test_front_move(v.io, WEIR_IO_WRITE, v.volume, 2 * BLOCK + 10, bytes + 5, 100);
    test_front_move(v.io, WEIR_IO_READ, v.volume, 0, back, BYTES);
    assert_memory_equal(bytes, back, BYTES);
    test_volume_close(&v);
    free(bytes);
    free(back);
}

static void bytes_that_were_not_written_are_not_compared(void **state)
{
    /* What was in the file before, or changed there before the first write, reads as it is. */
    unsigned char *bytes = test_memory_make(BYTES, 5), *back = test_memory_make(BYTES, 1);
    struct test_volume v;
    volume_open(&v, *state, O_DIRECT, true);
    bit_flip(v.fds[0], 7 * BLOCK);
    test_front_move(v.io, WEIR_IO_READ, v.volume, 0, back, BYTES);
    test_front_move(v.io, WEIR_IO_WRITE, v.volume, BLOCK, bytes, BLOCK);
    bit_flip(v.fds[0], 0);
    test_front_move(v.io, WEIR_IO_READ, v.volume, 0, back, STRIPE);
    assert_int_equal(0x10, back[0]);
    assert_memory_equal(bytes, back + BLOCK, BLOCK);
    test_volume_close(&v);
    free(bytes);
    free(back);
}

static void parts_of_one_block_are_read_and_written_at_once(void **state)
{
    /* Requests that share a block and no byte, many outstanding, short and in any order: hashes are
     * of whole writes, so none is CORRUPT and every byte is right. */
    (void)state;
    struct test_random random = test_random_open(42);
    unsigned char *model = test_memory_make(BYTES, 0), *memory = test_memory_make(8 * BLOCK, 0);
    for (uint32_t round = 0; round < test_draws(200); round++) {
        test_engine_script =
            (struct test_engine_script){.random = {.state = test_random_next(&random)},
                                        .reorder = true,
                                        .late = true,
                                        .shorten = round % 2};
        struct test_volume v;
        volume_open(&v, &test_engine, O_DIRECT, true);
        test_pattern_fill(model, BYTES, round);
        test_front_move(v.io, WEIR_IO_WRITE, v.volume, 0, model, BYTES);
        for (int batch = 0; batch < 6; batch++) {
            uint64_t at = test_random_below(&random, 3 * STRIPE);
            for (uint64_t i = 0; i < 8; i++, at += 700) {
                enum weir_io_kind kind =
                    test_random_below(&random, 2) ? WEIR_IO_READ : WEIR_IO_WRITE;
                test_pattern_fill(memory + i * BLOCK, 650, test_random_next(&random));
                if (kind == WEIR_IO_WRITE)
                    memcpy(model + at, memory + i * BLOCK, 650);
                assert_ok(weir_io_submit(
                    v.io,
                    &(struct weir_io_request){at, kind, v.volume, at, memory + i * BLOCK, 650}, 1));
            }
            test_front_reap(v.io, 8);
            for (uint64_t i = 0; i < 8; i++)
                assert_memory_equal(model + at - (8 - i) * 700, memory + i * BLOCK, 650);
        }
        test_volume_close(&v);
    }
    free(model);
    free(memory);
}

static void verification_is_one_allocation_that_was_announced(void **state)
{
    /* The heap grows by what weir_io_verify_bytes says; a second call and requests past the
     * verified length are refused. */
    struct weir_io *io = test_front_open(*state, 2);
    int fd = test_file_make(0);
    uint32_t file;
    assert_int_equal(0, ftruncate(fd, 10 * BLOCK));
    assert_ok(weir_io_file_open(io, "f", fd, false, 0, &file));
    uint64_t held = weir_alloc_bytes();
    weir_alloc_fail_at(0);
    assert_ok(weir_io_file_verify(io, file, 10 * BLOCK));
    assert_int_equal(1, weir_alloc_fail_at(0));
    /* The allocator rounds up. */
    assert_in_range(weir_alloc_bytes() - held, weir_io_verify_bytes(10 * BLOCK), 64);
    assert_int_equal(40, weir_io_verify_bytes(10 * BLOCK));
    assert_int_equal(BLOCK, weir_io_file_align_bytes(io, file));
    assert_fails(weir_io_file_verify(io, file, 10 * BLOCK), WEIR_ERR_STATE, "once");
    unsigned char byte = 1;
    struct weir_io_request past = {1, WEIR_IO_READ, file, 10 * BLOCK, &byte, 1};
    assert_fails(weir_io_submit(io, &past, 1), WEIR_ERR_ARG, "ends at byte 40961");
    test_front_move(io, WEIR_IO_WRITE, file, 10 * BLOCK - 1, &byte, 1);
    weir_io_close(io);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest per_engine[] = {
        TEST_PER_ENGINE(a_flipped_bit_is_found_and_named),
        TEST_PER_ENGINE(a_changed_block_is_not_made_good_by_a_write_of_its_part),
        TEST_PER_ENGINE(bytes_that_were_not_written_are_not_compared),
        TEST_PER_ENGINE(verification_is_one_allocation_that_was_announced),
    };
    const struct CMUnitTest once[] = {
        cmocka_unit_test(parts_of_one_block_are_read_and_written_at_once),
    };
    return cmocka_run_group_tests(once, test_directory_setup, test_directory_teardown) +
           test_engines_run(per_engine, sizeof per_engine / sizeof per_engine[0],
                            test_directory_setup, test_directory_teardown);
}
