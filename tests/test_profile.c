/* The machine's profile: what is written is read, and nothing else is. */
#include "tests/support.h"

#include "core/file.h"
#include "examples/profile.h"
#include "examples/replace.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[300];

static struct profile example(void)
{
    struct profile profile = {
        .cpu = "a CPU",
        .kernel = "6.1",
        .core_count = 2,
        .memory_bytes = 8ull << 30,
        .device = "host",
        .cost = {.struct_bytes = sizeof profile.cost,
                 .read_bytes_per_s = 3.4e9 / 7,
                 .write_bytes_per_s = 2.5e9,
                 .to_device_bytes_per_s = 1e10,
                 .to_host_bytes_per_s = 1.1e10,
                 .update_bytes_per_s = 3e10,
                 .device_update_bytes_per_s = 3.1e10,
                 .link_update_bytes_per_s = 0,
                 .compute_flops_per_s = 4e11,
                 .latency_s = 63.5e-6,
                 .update_on_compute = true},
        .drives = {{.path = "/data \"1\"",
                    .device = "nvme0n1p1",
                    .read_bytes_per_s = 3.4e9 / 7,
                    .write_bytes_per_s = 2.5e9,
                    .latency_s = 63.5e-6,
                    .depth = 8,
                    .piece_bytes = 2097152}},
        .drive_count = 1,
    };
    return profile;
}

static void written(const struct profile *profile)
{
    snprintf(path, sizeof path, "%s/machine.json", test_directory);
    assert_ok(profile_write(profile, path));
}

/* Every field comes back, rates to the bit. */
static void what_is_written_is_read(void **state)
{
    (void)state;
    struct profile profile = example(), back;
    written(&profile);
    assert_ok(profile_read(&back, path));
    assert_memory_equal(&profile.cost.read_bytes_per_s, &back.cost.read_bytes_per_s,
                        offsetof(struct weir_cost, update_on_compute) -
                            offsetof(struct weir_cost, read_bytes_per_s));
    assert_int_equal(sizeof back.cost, back.cost.struct_bytes);
    assert_true(back.cost.update_on_compute);
    assert_string_equal("a CPU", back.cpu);
    assert_string_equal("6.1", back.kernel);
    assert_string_equal("host", back.device);
    assert_int_equal(2, back.core_count);
    assert_int_equal(8ull << 30, back.memory_bytes);
    assert_int_equal(1, back.drive_count);
    assert_string_equal("/data \"1\"", back.drives[0].path);
    assert_string_equal("nvme0n1p1", back.drives[0].device);
    assert_true(profile.drives[0].read_bytes_per_s == back.drives[0].read_bytes_per_s);
    assert_true(profile.drives[0].write_bytes_per_s == back.drives[0].write_bytes_per_s);
    assert_true(profile.drives[0].latency_s == back.drives[0].latency_s);
    assert_int_equal(8, back.drives[0].depth);
    assert_int_equal(2097152, back.drives[0].piece_bytes);
    profile_free(&back);
}

/* Writes root and expects the reader to refuse it, naming the file and `part`. */
static void refused(const json_t *root, enum weir_status status, const char *part)
{
    struct profile back;
    assert_int_equal(0, json_dump_file(root, path, 0));
    assert_fails(profile_read(&back, path), status, part);
    assert_true(test_contains(weir_last_error()->text, path));
    assert_int_equal(0, back.drive_count);
    assert_null(back.cpu);
}

/* Each number in turn missing, 0, negative, text, too large; each must be refused by its name. */
static void numbers_refused(const char *where, json_t *root, json_t *object)
{
    const char *key;
    json_t *value, *names = json_array(), *name_value;
    size_t n;
    int count = 0;
    json_object_foreach(object, key, value)
    {
        if (json_is_number(value))
            json_array_append_new(names, json_string(key));
    }
    json_array_foreach(names, n, name_value)
    {
        char full[64];
        const char *name = json_string_value(name_value);
        snprintf(full, sizeof full, "%s.%s ", where, name);
        bool may_be_0 = strcmp(name, "link_update_bytes_per_s") == 0;
        json_t *kept = json_incref(json_object_get(object, name)),
               *bad[] = {json_real(-1), json_string("1"), json_null(), json_integer(0)};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            json_object_set_new(object, name, bad[i]);
            if (i < 3 || !may_be_0)
                refused(root, WEIR_ERR_CORRUPT, full);
        }
        json_object_del(object, name);
        refused(root, WEIR_ERR_CORRUPT, full);
        json_object_set_new(object, name, kept);
        count++;
    }
    json_decref(names);
    assert_true(count >= 2);
    json_object_set_new(object, "more", json_integer(1));
    refused(root, WEIR_ERR_CORRUPT, ".more is not known");
    json_object_del(object, "more");
}

static void bad_numbers_are_refused_by_name(void **state)
{
    (void)state;
    struct profile profile = example();
    written(&profile);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    numbers_refused("cost", root, json_object_get(root, "cost"));
    numbers_refused("machine", root, json_object_get(root, "machine"));
    numbers_refused("drives[0]", root, json_array_get(json_object_get(root, "drives"), 0));
    json_t *drive = json_array_get(json_object_get(root, "drives"), 0);
    json_object_set_new(drive, "depth", json_real(1.5));
    refused(root, WEIR_ERR_CORRUPT, "drives[0].depth is not a positive whole number");
    json_object_set_new(drive, "depth", json_integer(1ll << 33));
    refused(root, WEIR_ERR_CORRUPT, "drives[0].depth");
    json_decref(root);
}

/* Another version, what is no profile, and what is missing at the top. */
static void other_files_are_refused(void **state)
{
    (void)state;
    struct profile profile = example(), back;
    written(&profile);
    json_t *root = json_load_file(path, 0, NULL);
    json_object_set_new(root, "weir_profile", json_integer(2));
    refused(root, WEIR_ERR_UNSUPPORTED, "weir_profile is 2, this program knows 1");
    json_object_del(root, "weir_profile");
    refused(root, WEIR_ERR_CORRUPT, "not a profile");
    json_object_set_new(root, "weir_profile", json_integer(1));
    static const char *const tops[] = {"machine", "device", "cost", "drives"};
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) {
        json_t *kept = json_incref(json_object_get(root, tops[i]));
        json_object_del(root, tops[i]);
        refused(root, WEIR_ERR_CORRUPT, tops[i]);
        json_object_set_new(root, tops[i], kept);
    }
    json_object_set_new(json_object_get(root, "cost"), "update_on_compute", json_integer(1));
    refused(root, WEIR_ERR_CORRUPT, "cost.update_on_compute");
    json_decref(root);
    FILE *file = fopen(path, "w");
    fputs("{\"weir_profile\": 1, \"weir_profile\": 1}", file);
    fclose(file);
    assert_fails(profile_read(&back, path), WEIR_ERR_CORRUPT, "duplicate");
    assert_fails(profile_read(&back, "/nowhere/machine.json"), WEIR_ERR_IO, "/nowhere");
}

/* Whatever call fails, the old file stays as it was and nothing lies beside it. */
static void a_failed_write_leaves_the_old_file(void **state)
{
    (void)state;
    static const enum weir_file_call calls[] = {WEIR_FILE_OPEN, WEIR_FILE_WRITE, WEIR_FILE_SYNC,
                                                WEIR_FILE_RENAME};
    struct profile profile = example(), back;
    char beside[310];
    written(&profile);
    snprintf(beside, sizeof beside, "%s" REPLACE_SUFFIX, path);
    profile.cost.latency_s = 1;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        weir_file_fail_at(calls[i], 1, ENOSPC);
        assert_fails(profile_write(&profile, path), WEIR_ERR_NOSPACE, path);
        assert_int_equal(1, weir_file_fail_at(calls[i], 0, 0));
        assert_int_equal(-1, access(beside, F_OK));
        assert_ok(profile_read(&back, path));
        assert_true(back.cost.latency_s < 1);
        profile_free(&back);
    }
    profile.cost.latency_s = 0;
    assert_fails(profile_write(&profile, path), WEIR_ERR_CORRUPT, "cost.latency_s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(bad_numbers_are_refused_by_name),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
