/* What the front tells the engine of beforehand, memory and files: over every engine that was
 * built. */
#include "tests/support.h"

#include "io/engine.h"
#include "tests/support_engine.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096u
#define MIB   (1u << 20)

static void memory_across_two_registered_pieces_is_moved_too(void **state)
{
    /* Neighbouring memory added apart, the second after a transfer: requests inside either, across
     * both, and half outside. */
    struct weir_io *io = test_front_open(*state, 4);
    int fd = test_file_make(O_DIRECT);
    uint32_t file;
    assert_ok(weir_io_file_open(io, "f", fd, true, BLOCK, &file));
    unsigned char *memory = test_memory_make(4 * MIB, 0), *bytes = test_memory_make(MIB, 0);
    assert_false(weir_io_memory_registered(io));
    assert_ok(weir_io_memory_add(io, memory, MIB));
    const uint64_t starts[] = {0, MIB, MIB / 2, MIB + MIB / 2, 3 * MIB, BLOCK, 2 * MIB - BLOCK};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        test_pattern_fill(bytes, MIB, 20 + i);
        memcpy(memory + starts[i], bytes, MIB);
        test_front_move(io, WEIR_IO_WRITE, file, i * MIB, memory + starts[i], MIB);
        memset(memory + starts[i], 0, MIB);
        test_front_move(io, WEIR_IO_READ, file, i * MIB, memory + starts[i], MIB);
        assert_memory_equal(bytes, memory + starts[i], MIB);
        if (i == 0)
            assert_ok(weir_io_memory_add(io, memory + MIB, MIB));
    }
    weir_io_close(io);
    close(fd);
    free(memory);
    free(bytes);
}

static void a_descriptor_that_was_reused_names_the_new_file(void **state)
{
    /* The number of a closed file comes back for another one: its bytes are the other's. */
    struct weir_io *io = test_front_open(*state, 2);
    unsigned char back[3] = {0};
    for (unsigned char i = 1; i < 4; i++) {
        int fd = test_file_make(0);
        uint32_t file;
        assert_int_equal(1, pwrite(fd, &i, 1, 0));
        assert_ok(weir_io_file_open(io, "f", fd, false, 0, &file));
        test_front_move(io, WEIR_IO_READ, file, 0, &back[i - 1], 1);
        assert_int_equal(i, back[i - 1]);
        close(fd);
    }
    weir_io_close(io);
}

static unsigned warning_count;

static void warnings_count(void *context, enum weir_log_level level, const char *line)
{
    (void)context;
    warning_count += level == WEIR_LOG_WARNING && test_contains(line, "refuses memory");
}

static void memory_that_is_refused_is_logged_once_and_works(void **state)
{
    /* DESIGN 6b: the engine's refusal is one warning, and no error of the front. */
    (void)state;
    struct weir_log log = {.fn = warnings_count, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct weir_io *io;
    char bytes[64];
    for (int refused = 0; refused < 2; refused++) {
        test_engine_script = (struct test_engine_script){.refuse_memory = refused};
        warning_count = 0;
        assert_ok(weir_io_open(
            &io, &(struct weir_io_options){
                     .engine_table = &test_engine, .depth = 1, .request_count = 1, .log = &log}));
        assert_ok(weir_io_memory_add(io, bytes, 32));
        assert_ok(weir_io_memory_add(io, bytes + 32, 32));
        assert_int_equal(refused, warning_count);
        assert_int_equal(!refused, weir_io_memory_registered(io));
        weir_io_close(io);
    }
}

static void memory_that_is_refused_is_an_error_where_it_is_required(void **state)
{
    /* The same refusal, and an engine that registers nothing, with require_registered. */
    (void)state;
    struct weir_io *io;
    char bytes[64];
    test_engine_script = (struct test_engine_script){.refuse_memory = true};
    struct weir_io_options options = {
        .engine_table = &test_engine, .depth = 1, .request_count = 1, .require_registered = true};
    assert_ok(weir_io_open(&io, &options));
    assert_fails(weir_io_memory_add(io, bytes, 64), WEIR_ERR_UNSUPPORTED, "refuses memory");
    weir_io_close(io);
    options.engine_table = &weir_io_threads;
    assert_ok(weir_io_open(&io, &options));
    assert_fails(weir_io_memory_add(io, bytes, 64), WEIR_ERR_UNSUPPORTED, "registers no memory");
    weir_io_close(io);
}

int main(void)
{
    const struct CMUnitTest per_engine[] = {
        TEST_PER_ENGINE(memory_across_two_registered_pieces_is_moved_too),
        TEST_PER_ENGINE(a_descriptor_that_was_reused_names_the_new_file),
    };
    const struct CMUnitTest once[] = {
        cmocka_unit_test(memory_that_is_refused_is_logged_once_and_works),
        cmocka_unit_test(memory_that_is_refused_is_an_error_where_it_is_required),
    };
    return cmocka_run_group_tests(once, NULL, NULL) +
           test_engines_run(per_engine, sizeof per_engine / sizeof per_engine[0],
                            test_directory_setup, test_directory_teardown);
}
