/*
 * weir/drive.h: the list of an NVMe tier's directories, their shares by rate, what each holds.
 */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <weir/drive.h>

static const struct weir_drive_rate rates[] = {{3e9, 1.5e9, 0, 0}, {1e9, 1e9, 65536, 2}};
static const struct weir_cost cost = {sizeof cost, 2e9, 1e9,  1e10, 1e10, 1e10,
                                      1e10,        0,   1e10, 1e-4, true, rates};

static enum weir_status run_open(weir_run **run, const char *list, const struct weir_cost *given)
{
    return weir_open(run, &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                 .device = "host",
                                                 .device_bytes = 12 << 20,
                                                 .host_bytes = 24 << 20,
                                                 .nvme_path = list,
                                                 .grad_dtype = WEIR_FP32,
                                                 .verify = true,
                                                 .thread_count = 1,
                                                 .cost = given});
}

static void refused(const char *list, const struct weir_cost *given, const char *part)
{
    weir_run *run;
    assert_int_equal(WEIR_ERR_ARG, run_open(&run, list, given));
    assert_non_null(strstr(weir_last_error()->text, part));
}

/* "DIR/a,DIR/b" in test_directory, both made. */
static const char *two(void)
{
    static char list[600];
    char path[300];
    for (char name = 'a'; name <= 'b'; name++) {
        snprintf(path, sizeof path, "%s/%c", test_directory, name);
        mkdir(path, 0700);
    }
    snprintf(list, sizeof list, "%s/a,%s/b", test_directory, test_directory);
    return list;
}

static void bad_lists_and_rates_are_refused(void **state)
{
    (void)state;
    char list[4096] = "x";
    refused("", &cost, "empty name");
    refused("/tmp,", &cost, "empty name");
    refused(",/tmp", &cost, "empty name");
    refused("/tmp,/tmp/.", &cost, "are one directory");
    for (int i = 0; i < WEIR_DRIVES_MOST; i++)
        strcat(list, ",x");
    refused(list, &cost, "more than 16");
    struct weir_drive_rate zero[] = {{1e9, 1e9, 0, 0}, {1e9, 0, 0, 0}};
    struct weir_cost wrong = cost;
    wrong.drives = zero;
    refused(two(), &wrong, "1e+09 to read and 0 to write");
}

/* Two blocks of 2M parameters, most of it on NVMe. */
static void run_layout(weir_run *run)
{
    uint32_t ids[2];
    for (int i = 0; i < 2; i++) {
        char name[] = "w0";
        name[1] = (char)('0' + i);
        struct weir_tensor tensor = {.struct_bytes = sizeof tensor,
                                     .name = name,
                                     .dim_count = 2,
                                     .shape = {512, 1024},
                                     .lr_scale = 1,
                                     .decay_scale = 1};
        assert_ok(weir_block_add(run, &tensor, 1, &ids[i]));
    }
    struct weir_update update = {.struct_bytes = sizeof update};
    struct weir_report report = {.struct_bytes = sizeof report};
    assert_ok(weir_step_begin(run, "train", true));
    for (int i = 0; i < 2; i++) {
        struct weir_view view;
        assert_ok(weir_want(run, &(struct weir_use){ids[i], WEIR_GRAD}, 1, &view));
        assert_ok(weir_done(run, &ids[i], 1));
    }
    assert_ok(weir_step_end(run, &update, &report));
    assert_ok(weir_layout(run));
}

static struct weir_drive drive_at(weir_run *run, size_t index)
{
    struct weir_drive drive = {.struct_bytes = sizeof drive};
    assert_ok(weir_drive_at(run, index, &drive));
    return drive;
}

static void shares_follow_rates_and_fill_the_extent(void **state)
{
    (void)state;
    weir_run *run;
    assert_ok(run_open(&run, two(), &cost));
    assert_int_equal(2, weir_drive_count(run));
    /* By turns 1 GB/s and 0.5 GB/s. */
    assert_true(fabs(drive_at(run, 0).share - 2.0 / 3) < 1e-3);
    assert_true(fabs(drive_at(run, 1).share - 1.0 / 3) < 1e-3);
    assert_int_equal(0, drive_at(run, 0).byte_count);
    run_layout(run);
    struct weir_drive a = drive_at(run, 0), b = drive_at(run, 1);
    assert_string_equal(strrchr(a.path, '/'), "/a");
    assert_true(a.byte_count > 0 && b.byte_count > 0);
    assert_true(a.written_bytes >= a.byte_count && b.written_bytes >= b.byte_count);
    assert_true(fabs((double)a.byte_count / (double)(a.byte_count + b.byte_count) - a.share) <
                0.02);
    assert_true(a.share > 0.6 && a.share < 0.73);
    assert_true(b.rate.read_bytes_per_s == 1e9 && b.free_bytes > 0);
    struct weir_drive none = {.struct_bytes = sizeof none};
    assert_int_equal(WEIR_ERR_ARG, weir_drive_at(run, 2, &none));
    weir_close(run);
}

static void without_a_tier_there_are_none(void **state)
{
    (void)state;
    weir_run *run;
    assert_int_equal(
        WEIR_OK, weir_open(&run, &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                        .device = "host",
                                                        .device_bytes = UINT64_MAX,
                                                        .host_bytes = UINT64_MAX}));
    assert_int_equal(0, weir_drive_count(run));
    weir_close(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_lists_and_rates_are_refused),
        cmocka_unit_test(shares_follow_rates_and_fill_the_extent),
        cmocka_unit_test(without_a_tier_there_are_none),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
