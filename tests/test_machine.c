/* What a machine can still give, told from files that the test wrote. */
#include "core/machine.h"
#include "tests/support.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static char root[256];

static void file_write(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(whole, 0777);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void machine_make(const char *groups)
{
    test_directory_make(root);
    file_write("/proc/meminfo", "MemTotal:       24684032 kB\nMemFree:  10 kB\n"
                                "MemAvailable:   1000 kB\nBuffers: 7 kB\n");
    file_write("/proc/self/cgroup", groups);
}

static void without_limits_it_is_what_the_kernel_says(void **state)
{
    (void)state;
    machine_make("0::/\n");
    assert_int_equal(1000 * 1024, weir_memory_available_bytes(root));
    file_write("/sys/fs/cgroup/memory.max", "max\n");
    assert_int_equal(1000 * 1024, weir_memory_available_bytes(root));
    test_directory_make(root);
    assert_true(weir_memory_available_bytes(root) == UINT64_MAX);
    assert_true(weir_memory_available_bytes("") > 0);
}

/* Version 2: the narrowest of a group and of those around it; caches of files can be had back. */
static void groups_of_version_2_are_limits(void **state)
{
    (void)state;
    machine_make("0::/outer/inner\n");
    file_write("/sys/fs/cgroup/outer/inner/memory.max", "600000\n");
    assert_int_equal(600000, weir_memory_available_bytes(root));
    file_write("/sys/fs/cgroup/outer/inner/memory.current", "500000\n");
    assert_int_equal(100000, weir_memory_available_bytes(root));
    file_write("/sys/fs/cgroup/outer/inner/memory.stat",
               "anon 400000\ninactive_anon 9\nactive_anon 9\ninactive_file 60000\n"
               "active_file 40000\n");
    assert_int_equal(200000, weir_memory_available_bytes(root));
    file_write("/sys/fs/cgroup/outer/memory.max", "150000\n");
    assert_int_equal(150000, weir_memory_available_bytes(root));
    file_write("/sys/fs/cgroup/outer/memory.current", "160000\n");
    assert_int_equal(0, weir_memory_available_bytes(root));
}

/* Version 1 beside a version 2 without memory; a container that is told its path outside. */
static void groups_of_version_1_are_limits(void **state)
{
    (void)state;
    machine_make("12:cpu,cpuacct:/x\n4:memory:/docker/0123\n1:name=systemd:/\n0::/\n");
    file_write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
    file_write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "200000\n");
    file_write("/sys/fs/cgroup/memory/memory.stat",
               "cache 1\nrss 2\ntotal_inactive_file 30000\ntotal_active_file 20000\n");
    assert_int_equal(150000, weir_memory_available_bytes(root));
    file_write("/sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(150000, weir_memory_available_bytes(root));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_limits_it_is_what_the_kernel_says),
        cmocka_unit_test(groups_of_version_2_are_limits),
        cmocka_unit_test(groups_of_version_1_are_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
