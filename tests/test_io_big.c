/* One request of 2 GiB + 4 KiB, more than a system call moves, on files that hold every byte: over
 * the first engine on a file, over the second on a volume. Needs 2 GiB of memory and 3 of disk, and
 * is skipped by name without; sanitizers would take many times that. */
#include "tests/support.h"

#include "core/tsan.h"
#include "tests/support_volume.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BYTES ((UINT64_C(2) << 30) + 4096)
#define SKEW  64u /* of the caller's memory: every piece is bounced */

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED (WEIR_TSAN != 0)
#endif

/* Of all memory of the machine, what is available without swapping. */
static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib * 1024;
}

static void room_or_skip(void)
{
    struct statvfs space;
    assert_int_equal(0, statvfs(test_directory, &space));
    uint64_t free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
    if (!SANITIZED && available_bytes() > BYTES + BYTES / 2 && free_bytes > BYTES + BYTES / 2)
        return;
    printf("SKIPPED: 2 GiB in one request: %s, %llu bytes of memory, %llu of disk\n",
           SANITIZED ? "sanitized" : "not sanitized", (unsigned long long)available_bytes(),
           (unsigned long long)free_bytes);
    skip();
}

/* Word i is a function of i, so that no second copy is needed. */
static uint64_t word_at(uint64_t i)
{
    struct test_random random = {.state = i};
    return test_random_next(&random);
}

static void travel(struct weir_io *io, uint32_t file)
{
    unsigned char *memory = test_memory_make(BYTES + SKEW, 0);
    uint64_t *words = (uint64_t *)(void *)(memory + SKEW);
    for (uint64_t i = 0; i < BYTES / 8; i++)
        words[i] = word_at(i);
    test_front_move(io, WEIR_IO_WRITE, file, 0, words, BYTES);
    memset(memory, 0, BYTES + SKEW);
    test_front_move(io, WEIR_IO_READ, file, 0, words, BYTES);
    for (uint64_t i = 0; i < BYTES / 8; i++)
        if (words[i] != word_at(i))
            fail_msg("word %llu differs", (unsigned long long)i);
    free(memory);
}

static void two_gibibytes_are_one_request(void **state)
{
    (void)state;
    room_or_skip();
    struct weir_io *io;
    assert_ok(weir_io_open(&io, &(struct weir_io_options){.engine_table = test_engine_at(0),
                                                          .depth = 8,
                                                          .request_count = 1}));
    int fd = test_file_make(O_DIRECT);
    uint32_t file;
    assert_ok(weir_io_file_open(io, "big", fd, true, 0, &file));
    assert_int_equal(0, posix_fallocate(fd, 0, (off_t)BYTES));
    travel(io, file);
    weir_io_close(io);
    close(fd);
}

static void two_gibibytes_are_one_request_of_a_volume(void **state)
{
    (void)state;
    room_or_skip();
    const struct weir_io_engine_table *second = test_engine_at(1);
    const double shares[3] = {3, 1, 2};
    struct test_volume v;
    test_volume_open(&v, &(struct test_volume_spec){
                             .options = {.engine_table = second ? second : test_engine_at(0),
                                         .depth = 4,
                                         .request_count = 1},
                             .flags = O_DIRECT,
                             .count = 3,
                             .shares = shares,
                             .stripe_bytes = 1u << 20,
                             .byte_count = BYTES,
                             .verify = true});
    travel(v.io, v.volume);
    test_volume_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_gibibytes_are_one_request),
        cmocka_unit_test(two_gibibytes_are_one_request_of_a_volume),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
