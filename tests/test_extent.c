/* The extent: what is promised of an unlinked, fully written file. */
#include "tests/support.h"

#include "core/file.h"
#include "core/memory.h"
#include "io/extent.h"
#include "tests/support_engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES (20u << 20) /* more than two requests of the fill */

struct lines {
    int warning_count, info_count;
    char last[512];
};

static void lines_add(void *context, enum weir_log_level level, const char *line)
{
    struct lines *lines = context;
    if (level == WEIR_LOG_WARNING)
        lines->warning_count++;
    else
        lines->info_count++;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

static struct weir_io *io_make_with(const struct weir_io_engine_table *table, bool require_direct,
                                    struct weir_log *log)
{
    struct weir_io *io;
    assert_ok(weir_io_open(&io, &(struct weir_io_options){.engine = "threads",
                                                          .engine_table = table,
                                                          .depth = 8,
                                                          .request_count = 2,
                                                          .require_direct = require_direct,
                                                          .log = log}));
    return io;
}

static struct weir_io *io_make(const struct weir_io_engine_table *table)
{
    return io_make_with(table, false, NULL);
}

static enum weir_status extent_open(struct weir_extent *extent, struct weir_io *io, uint64_t bytes,
                                    struct weir_log *log)
{
    const struct weir_extent_place place = {.directory = test_directory};
    return weir_extent_open(
        extent, io,
        &(struct weir_extent_options){
            .places = &place, .place_count = 1, .byte_count = bytes, .log = log});
}

static size_t entry_count(void)
{
    DIR *dir = opendir(test_directory);
    assert_non_null(dir);
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

struct steps {
    uint64_t last, count;
};

static void steps_add(void *context, uint64_t done, uint64_t all)
{
    struct steps *steps = context;
    assert_int_equal(BYTES, all);
    assert_true(done > steps->last);
    steps->last = done;
    steps->count++;
}

static void an_extent_is_unlinked_written_in_full_and_zero(void **state)
{
    /* No name is left, every block has its space, all bytes are 0, progress ends at the end, and
     * the log has path, bytes and pid. */
    (void)state;
    struct lines lines = {0};
    struct weir_log log = {lines_add, &lines, PTHREAD_MUTEX_INITIALIZER};
    struct weir_io *io = io_make_with(NULL, true, &log);
    struct steps steps = {0};
    struct weir_extent extent;
    const struct weir_extent_place place = {.directory = test_directory};
    assert_ok(weir_extent_open(&extent, io,
                               &(struct weir_extent_options){.places = &place,
                                                             .place_count = 1,
                                                             .byte_count = BYTES,
                                                             .log = &log,
                                                             .progress = steps_add,
                                                             .progress_context = &steps}));
    assert_int_equal(BYTES, steps.last);
    assert_int_equal(3, steps.count);
    assert_int_equal(0, entry_count());
    struct weir_io_counters counters;
    weir_io_count(io, &counters);
    assert_int_equal(BYTES, counters.written_bytes);
    struct stat stat;
    assert_int_equal(0, fstat(extent.drives[0].fd, &stat));
    assert_int_equal(BYTES, stat.st_size);
    assert_true((uint64_t)stat.st_blocks * 512 >= BYTES);
    assert_int_equal(0, stat.st_nlink);
    assert_true(extent.direct);
    uint64_t align = weir_io_file_align_bytes(io, extent.file);
    assert_true(align > 0 && 4096 % align == 0);
    unsigned char *bytes = aligned_alloc(4096, BYTES);
    assert_non_null(bytes);
    memset(bytes, 1, BYTES);
    assert_int_equal(BYTES, pread(extent.drives[0].fd, bytes, BYTES, 0));
    for (size_t i = 0; i < BYTES; i++)
        if (bytes[i] != 0)
            fail_msg("byte %zu is %d", i, bytes[i]);
    free(bytes);
    char pid[32];
    snprintf(pid, sizeof pid, "pid %ld", (long)getpid());
    assert_int_equal(1, lines.info_count);
    assert_int_equal(0, lines.warning_count);
    assert_true(test_contains(lines.last, test_directory) &&
                test_contains(lines.last, "20971520") && test_contains(lines.last, pid));
    weir_extent_close(&extent);
    weir_extent_close(&extent);
    weir_io_close(io);
}

static void a_file_system_that_refuses_direct_writes_is_said_once(void **state)
{
    /* O_DIRECT is taken at open and fails with EINVAL at the first write: buffered after one
     * warning, or an error when direct is required. */
    (void)state;
    test_engine_script = (struct test_engine_script){.refuse_direct = true};
    struct lines lines = {0};
    struct weir_log log = {lines_add, &lines, PTHREAD_MUTEX_INITIALIZER};
    struct weir_io *io = io_make_with(&test_engine, false, &log);
    struct weir_extent extent;
    assert_ok(extent_open(&extent, io, BYTES, &log));
    assert_false(extent.direct);
    assert_int_equal(1, weir_io_file_align_bytes(io, extent.file));
    assert_int_equal(0, fcntl(extent.drives[0].fd, F_GETFL) & O_DIRECT);
    assert_true(test_engine_script.refused_count > 0);
    assert_int_equal(1, lines.warning_count);
    struct stat stat;
    assert_int_equal(0, fstat(extent.drives[0].fd, &stat));
    assert_int_equal(BYTES, stat.st_size);
    weir_io_close(io);
    weir_extent_close(&extent);

    io = io_make_with(&test_engine, true, &log);
    assert_fails(extent_open(&extent, io, BYTES, &log), WEIR_ERR_UNSUPPORTED,
                 "does not take O_DIRECT");
    assert_int_equal(0, extent.drive_count);
    assert_int_equal(1, lines.warning_count);
    weir_extent_close(&extent);
    weir_io_close(io);
}

static void an_open_that_fails_is_made_good_or_said(void **state)
{
    /* The opens fail in turn: a file system without unlinked files gets one by a name that is gone
     * at once, one without O_DIRECT is said, anything else fails. */
    (void)state;
    static const struct {
        int os_errno;
        bool direct;
    } rows[] = {{EOPNOTSUPP, true}, {EISDIR, true}, {EINVAL, false}};
    struct weir_io *io = io_make(NULL);
    struct weir_extent extent;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weir_file_fail_at(WEIR_FILE_OPEN, 1, rows[i].os_errno);
        assert_ok(extent_open(&extent, io, BYTES, NULL));
        assert_int_equal(2, weir_file_fail_at(WEIR_FILE_OPEN, 0, 0));
        assert_int_equal(rows[i].direct, extent.direct);
        assert_int_equal(0, entry_count());
        weir_extent_close(&extent);
    }
    weir_file_fail_from(WEIR_FILE_OPEN, 1, EMFILE);
    assert_fails(extent_open(&extent, io, BYTES, NULL), WEIR_ERR_IO, "no file can be made there");
    assert_int_equal(EMFILE, weir_last_error()->os_errno);
    assert_int_equal(1, weir_file_fail_at(WEIR_FILE_OPEN, 0, 0));
    weir_io_close(io);
}

static void a_failed_fill_leaves_nothing(void **state)
{
    /* The Nth piece of the fill fails: the extent is an error with its text, closed and unlinked.
     */
    (void)state;
    uint64_t held = weir_alloc_bytes();
    for (uint64_t nth = 1; nth <= BYTES >> 20; nth += 3) {
        test_engine_script = (struct test_engine_script){
            .fault_at = nth, .fault_count = 1, .fault_result = -EIO, .reorder = true};
        struct weir_io *io = io_make(&test_engine);
        struct weir_extent extent;
        assert_fails(extent_open(&extent, io, BYTES, NULL), WEIR_ERR_IO, "write of 1048576 bytes");
        assert_int_equal(EIO, weir_last_error()->os_errno);
        assert_int_equal(1, test_engine_script.faulted_count);
        assert_int_equal(0, extent.drive_count);
        weir_io_close(io);
        assert_int_equal(held, weir_alloc_bytes());
    }
    assert_int_equal(0, entry_count());
}

static enum weir_status preflight(const char *path, uint64_t bytes)
{
    return weir_extent_preflight(&(struct weir_extent_place){.directory = path}, 1, bytes);
}

static void preflight_says_what_is_wrong_and_makes_nothing(void **state)
{
    /* A missing test_directory, a file, too little space and odd sizes are named before any write.
     */
    (void)state;
    char path[300];
    assert_ok(preflight(test_directory, BYTES));
    snprintf(path, sizeof path, "%s/none", test_directory);
    assert_fails(preflight(path, 1), WEIR_ERR_ARG, "no such directory");
    assert_fails(preflight("/dev/null", 1), WEIR_ERR_ARG, "not a directory");
    assert_fails(preflight(test_directory, UINT64_C(1) << 60), WEIR_ERR_NOSPACE,
                 "need 1152921504606846976 bytes");
    struct weir_io *io = io_make(NULL);
    struct weir_extent extent;
    assert_fails(extent_open(&extent, io, UINT64_C(1) << 60, NULL), WEIR_ERR_NOSPACE,
                 test_directory);
    assert_fails(extent_open(&extent, io, 5000, NULL), WEIR_ERR_ARG, "5000 bytes");
    assert_fails(extent_open(&extent, io, 0, NULL), WEIR_ERR_ARG, "0 bytes");
    assert_int_equal(0, entry_count());
    weir_io_close(io);
}

/* The kernel would send SIGXFSZ, which ends a program. */
static void a_file_size_limit_is_an_error(void **state)
{
    (void)state;
    struct rlimit before, low;
    struct weir_extent extent;
    struct weir_io *io = io_make(NULL);
    assert_int_equal(0, getrlimit(RLIMIT_FSIZE, &before));
    low = before;
    low.rlim_cur = BYTES / 2;
    assert_int_equal(0, setrlimit(RLIMIT_FSIZE, &low));
    enum weir_status status = extent_open(&extent, io, BYTES, NULL);
    assert_int_equal(0, setrlimit(RLIMIT_FSIZE, &before));
    assert_int_equal(WEIR_ERR_IO, status);
    assert_true(test_contains(weir_last_error()->text, "ulimit -f"));
    assert_int_equal(0, entry_count());
    weir_io_close(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_extent_is_unlinked_written_in_full_and_zero),
        cmocka_unit_test(a_file_system_that_refuses_direct_writes_is_said_once),
        cmocka_unit_test(an_open_that_fails_is_made_good_or_said),
        cmocka_unit_test(a_failed_fill_leaves_nothing),
        cmocka_unit_test(preflight_says_what_is_wrong_and_makes_nothing),
        cmocka_unit_test(a_file_size_limit_is_an_error),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
