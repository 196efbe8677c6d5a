/* The extent over several directories: who gets how much, and what happens where space is short.
 * Small file systems are tmpfs in a mount namespace of this process; where none can be made those
 * tests are skipped by name. */
#include "tests/support.h"

#include "core/file.h"
#include "core/memory.h"
#include "io/extent.h"
#include "tests/support_engine.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB    (UINT64_C(1) << 20)
#define DRIVES 3u

static char paths[DRIVES][300];
static bool may_mount;

static int group_setup(void **state)
{
    (void)test_directory_setup(state);
    for (uint32_t d = 0; d < DRIVES; d++) {
        snprintf(paths[d], sizeof paths[d], "%s/drive%u", test_directory, d);
        assert_int_equal(0, mkdir(paths[d], 0700));
    }
    may_mount =
        unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    return 0;
}

static void small_mount(uint32_t drive, uint64_t mib)
{
    char size[32];
    snprintf(size, sizeof size, "size=%llum", (unsigned long long)mib);
    if (!may_mount || mount("none", paths[drive], "tmpfs", 0, size) != 0) {
        printf("SKIPPED: no tmpfs can be mounted here\n");
        skip();
    }
}

static void small_unmount(uint32_t drive)
{
    assert_int_equal(0, umount(paths[drive]));
}

struct lines {
    unsigned warning_count, info_count;
    char warning[512];
};

static void lines_add(void *context, enum weir_log_level level, const char *line)
{
    struct lines *lines = context;
    if (level == WEIR_LOG_INFO) {
        lines->info_count++;
        return;
    }
    /* Of kernels whose tmpfs has no O_DIRECT. */
    if (test_contains(line, "O_DIRECT"))
        return;
    lines->warning_count++;
    snprintf(lines->warning, sizeof lines->warning, "%s", line);
}

struct rig {
    struct weir_io *io;
    struct weir_extent extent;
    struct lines lines;
    struct weir_log log;
    uint64_t progress_bytes, progress_all;
};

static void progress_add(void *context, uint64_t done_bytes, uint64_t all_bytes)
{
    struct rig *rig = context;
    assert_true(done_bytes > rig->progress_bytes && done_bytes <= all_bytes);
    rig->progress_bytes = done_bytes;
    rig->progress_all = all_bytes;
}

static void places_make(struct weir_extent_place *places, const double *rates)
{
    for (uint32_t d = 0; d < DRIVES; d++)
        places[d] = (struct weir_extent_place){paths[d], rates[d]};
}

static enum weir_status rig_open(struct rig *rig, const struct weir_io_engine_table *table,
                                 const double *rates, uint32_t count, uint64_t bytes)
{
    struct weir_extent_place places[DRIVES];
    places_make(places, rates);
    *rig = (struct rig){.log = {lines_add, &rig->lines, PTHREAD_MUTEX_INITIALIZER}};
    WEIR_TRY(weir_io_open(&rig->io, &(struct weir_io_options){.engine_table = table,
                                                              .depth = 4,
                                                              .drive_count = count,
                                                              .request_count = 2 * count,
                                                              .log = &rig->log}));
    return weir_extent_open(&rig->extent, rig->io,
                            &(struct weir_extent_options){.places = places,
                                                          .place_count = count,
                                                          .byte_count = bytes,
                                                          .verify = true,
                                                          .log = &rig->log,
                                                          .progress = progress_add,
                                                          .progress_context = rig});
}

static void rig_close(struct rig *rig)
{
    weir_io_close(rig->io);
    weir_extent_close(&rig->extent);
}

/* All zero; then a pattern, through the extent's one file number. */
static void bytes_travel(struct rig *rig)
{
    uint64_t bytes = rig->extent.byte_count;
    unsigned char *memory = test_memory_make(bytes, 1), *back = test_memory_make(bytes, 0);
    test_front_move(rig->io, WEIR_IO_READ, rig->extent.file, 0, memory, bytes);
    assert_memory_equal(back, memory, bytes);
    test_pattern_fill(memory, bytes, 61);
    test_front_move(rig->io, WEIR_IO_WRITE, rig->extent.file, 0, memory, bytes);
    test_front_move(rig->io, WEIR_IO_READ, rig->extent.file, 0, back, bytes);
    assert_memory_equal(memory, back, bytes);
    free(memory);
    free(back);
}

static uint64_t drives_sum(const struct rig *rig)
{
    uint64_t sum = 0;
    for (uint32_t d = 0; d < rig->extent.drive_count; d++)
        sum += rig->extent.drives[d].byte_count;
    return sum;
}

static void bytes_are_spread_by_rate(void **state)
{
    /* 3 : 1 : 2 of 96 MiB, each file unlinked, reserved, written in full and verified from the
     * first byte; a line in the log for each. */
    (void)state;
    struct rig rig;
    const double rates[DRIVES] = {3e9, 1e9, 2e9};
    assert_ok(rig_open(&rig, &weir_io_threads, rates, DRIVES, 96 * MIB));
    const uint64_t expected[DRIVES] = {48 * MIB, 16 * MIB, 32 * MIB};
    for (uint32_t d = 0; d < DRIVES; d++) {
        const struct weir_extent_drive *drive = &rig.extent.drives[d];
        struct stat stat;
        assert_int_equal(expected[d], drive->byte_count);
        assert_string_equal(paths[d], drive->path);
        assert_int_equal(0, fstat(drive->fd, &stat));
        assert_int_equal(0, stat.st_nlink);
        assert_int_equal(expected[d], stat.st_size);
        assert_true((uint64_t)stat.st_blocks * 512 >= expected[d]);
    }
    struct weir_io_counters counters;
    weir_io_count(rig.io, &counters);
    assert_int_equal(96 * MIB, counters.written_bytes);
    assert_int_equal(96 * MIB, counters.verified_bytes);
    assert_int_equal(96 * MIB, rig.progress_bytes);
    assert_int_equal(96 * MIB, rig.progress_all);
    assert_int_equal(DRIVES, rig.lines.info_count);
    assert_int_equal(0, rig.lines.warning_count);
    bytes_travel(&rig);
    rig_close(&rig);
}

static void a_small_extent_meets_every_drive_too(void **state)
{
    /* 1 MiB and 4 KiB in stripes of 64 KiB; the sum is exact to each drive's alignment. */
    (void)state;
    struct rig rig;
    const double rates[DRIVES] = {1, 1, 1};
    assert_ok(rig_open(&rig, &weir_io_threads, rates, DRIVES, MIB + 4096));
    for (uint32_t d = 0; d < DRIVES; d++)
        assert_in_range(rig.extent.drives[d].byte_count, 5 * 65536, 6 * 65536);
    assert_in_range(drives_sum(&rig), MIB + 4096, MIB + 4096 + DRIVES * 65536);
    bytes_travel(&rig);
    rig_close(&rig);
}

static void a_drive_takes_what_it_holds_and_others_the_rest(void **state)
{
    /* A third of 60 MiB does not fit into 12 MiB: the drive takes that less a margin, the others
     * more, and the log says so with numbers. */
    (void)state;
    struct rig rig;
    const double rates[DRIVES] = {1e9, 1e9, 1e9};
    small_mount(1, 12);
    assert_ok(rig_open(&rig, &weir_io_threads, rates, DRIVES, 60 * MIB));
    uint64_t small = rig.extent.drives[1].byte_count;
    assert_in_range(small, 10 * MIB, 12 * MIB - 12 * MIB / 64);
    assert_int_equal(60 * MIB, drives_sum(&rig));
    assert_in_range(rig.extent.drives[0].byte_count, 23 * MIB, 26 * MIB);
    assert_int_equal(1, rig.lines.warning_count);
    assert_true(test_contains(rig.lines.warning, paths[1]) &&
                test_contains(rig.lines.warning, "12582912 bytes free") &&
                test_contains(rig.lines.warning, "20971520 would be its share"));
    bytes_travel(&rig);
    rig_close(&rig);
    small_unmount(1);
}

static void a_drive_with_next_to_no_space_is_left_out(void **state)
{
    /* 256 KiB of 60 MiB: no file is made there, and the others hold all. */
    (void)state;
    struct rig rig;
    const double rates[DRIVES] = {1e9, 1e9, 1e9};
    small_mount(0, 1);
    char path[400];
    snprintf(path, sizeof path, "%s/somebody-else", paths[0]);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 768; i++)
        assert_int_equal(1, fwrite((char[1024]){0}, 1024, 1, file));
    assert_int_equal(0, fclose(file));
    assert_ok(rig_open(&rig, &weir_io_threads, rates, DRIVES, 60 * MIB));
    assert_int_equal(-1, rig.extent.drives[0].fd);
    assert_int_equal(0, rig.extent.drives[0].byte_count);
    assert_int_equal(60 * MIB, drives_sum(&rig));
    assert_int_equal(1, rig.lines.warning_count);
    bytes_travel(&rig);
    rig_close(&rig);
    small_unmount(0);
}

static void a_drive_far_slower_than_the_others_is_left_out(void **state)
{
    /* 1/80 of the summed rate: less than a stripe of the longest cycle. Where its space is needed
     * it holds its stripe all the same. */
    (void)state;
    struct rig rig;
    const double rates[DRIVES] = {3e9, 6e7, 2e9};
    assert_ok(rig_open(&rig, &weir_io_threads, rates, DRIVES, 60 * MIB));
    assert_int_equal(0, rig.extent.drives[1].byte_count);
    assert_int_equal(60 * MIB, drives_sum(&rig));
    assert_int_equal(1, rig.lines.warning_count);
    assert_true(test_contains(rig.lines.warning, paths[1]) &&
                test_contains(rig.lines.warning, "less than 1/64 of the rate"));
    bytes_travel(&rig);
    rig_close(&rig);

    small_mount(0, 16);
    small_mount(2, 16);
    assert_ok(rig_open(&rig, &weir_io_threads, rates, DRIVES, 60 * MIB));
    assert_in_range(rig.extent.drives[1].byte_count, 28 * MIB, 40 * MIB);
    bytes_travel(&rig);
    rig_close(&rig);
    small_unmount(0);
    small_unmount(2);
}

static void directories_of_one_file_system_share_its_space(void **state)
{
    /* Two directories of a file system of 16 MiB hold 12 MiB between them, and not 24. */
    (void)state;
    char inner[2][400];
    small_mount(0, 16);
    struct weir_extent_place places[2];
    for (int d = 0; d < 2; d++) {
        snprintf(inner[d], sizeof inner[d], "%s/%d", paths[0], d);
        assert_int_equal(0, mkdir(inner[d], 0700));
        places[d] = (struct weir_extent_place){inner[d], d ? 1e9 : 3e9};
    }
    assert_ok(weir_extent_preflight(places, 2, 12 * MIB));
    assert_fails(weir_extent_preflight(places, 2, 24 * MIB), WEIR_ERR_NOSPACE,
                 "25165824 needed and 16777216 free in all 2 directories");
    assert_true(test_contains(weir_last_error()->text, inner[0]) ||
                test_contains(weir_last_error()->text, inner[1]));
    small_unmount(0);
}

static void preflight_names_the_path_that_is_wrong(void **state)
{
    /* One pass over all paths: the missing one, the impossible rate, too few or too many. */
    (void)state;
    struct weir_extent_place places[WEIR_IO_DRIVES_MOST + 1];
    places_make(places, (const double[DRIVES]){1, 1, 1});
    assert_ok(weir_extent_preflight(places, DRIVES, MIB));
    assert_fails(weir_extent_preflight(places, DRIVES, UINT64_C(1) << 60), WEIR_ERR_NOSPACE,
                 "1152921504606846976 needed");
    places[1].bytes_per_s = 0;
    assert_fails(weir_extent_preflight(places, DRIVES, MIB), WEIR_ERR_ARG, paths[1]);
    places[2].directory = "/nowhere";
    places[1].bytes_per_s = 1;
    assert_fails(weir_extent_preflight(places, DRIVES, MIB), WEIR_ERR_ARG,
                 "\"/nowhere\": no such directory");
    assert_fails(weir_extent_preflight(places, 0, MIB), WEIR_ERR_ARG, "0 directories");
    assert_fails(weir_extent_preflight(places, WEIR_IO_DRIVES_MOST + 1, MIB), WEIR_ERR_ARG,
                 "17 directories");
}

static void whatever_fails_leaves_nothing(void **state)
{
    /* The Nth piece of the fill, the Nth open and the Nth allocation: one error, nothing held. */
    (void)state;
    const double rates[DRIVES] = {1, 2, 1};
    uint64_t held = weir_alloc_bytes();
    struct rig rig;
    enum { PIECE, OPEN, ALLOC, KINDS };
    const enum weir_status statuses[KINDS] = {WEIR_ERR_IO, WEIR_ERR_IO, WEIR_ERR_NOMEM};
    for (int kind = 0; kind < KINDS; kind++) {
        uint64_t nth = 1;
        for (enum weir_status status = WEIR_ERR_IO; status != WEIR_OK; nth++) {
            test_engine_script = (struct test_engine_script){
                .fault_at = kind == PIECE ? nth : 0, .fault_count = 1, .fault_result = -EIO};
            weir_file_fail_at(WEIR_FILE_OPEN, kind == OPEN ? nth : 0, EMFILE);
            weir_alloc_fail_at(kind == ALLOC ? nth : 0);
            status = rig_open(&rig, &test_engine, rates, DRIVES, 8 * MIB);
            weir_alloc_fail_at(0);
            weir_file_fail_at(WEIR_FILE_OPEN, 0, 0);
            assert_true(status == WEIR_OK || status == statuses[kind]);
            assert_int_equal(status == WEIR_OK ? DRIVES : 0, rig.extent.drive_count);
            if (kind == PIECE && status != WEIR_OK)
                assert_true(test_contains(weir_last_error()->text, "/drive"));
            rig_close(&rig);
            assert_int_equal(held, weir_alloc_bytes());
        }
        assert_true(nth > DRIVES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_spread_by_rate),
        cmocka_unit_test(a_small_extent_meets_every_drive_too),
        cmocka_unit_test(a_drive_takes_what_it_holds_and_others_the_rest),
        cmocka_unit_test(a_drive_with_next_to_no_space_is_left_out),
        cmocka_unit_test(a_drive_far_slower_than_the_others_is_left_out),
        cmocka_unit_test(directories_of_one_file_system_share_its_space),
        cmocka_unit_test(preflight_names_the_path_that_is_wrong),
        cmocka_unit_test(whatever_fails_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, group_setup, test_directory_teardown);
}
