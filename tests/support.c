#include "tests/support.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool test_contains(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

struct test_random test_random_open(uint64_t fallback)
{
    const char *given = getenv("WEIR_SEED");
    struct test_random random = {.state = given ? strtoull(given, NULL, 0) : fallback};
    printf("seed %llu\n", (unsigned long long)random.state);
    return random;
}

/* splitmix64 (Steele, Lea & Flood 2014) */
uint64_t test_random_next(struct test_random *random)
{
    uint64_t z = random->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* A fuzzer changes bytes, so a small choice takes one and leaves the others as they were. */
static uint64_t bytes_take(struct test_random *random, uint64_t bound)
{
    uint64_t value = 0;
    for (uint64_t most = 1; most < bound && random->bytes < random->end; most = most << 8 | 0xff)
        value = value << 8 | *random->bytes++;
    return value % bound;
}

uint64_t test_random_below(struct test_random *random, uint64_t bound)
{
    if (random->bytes < random->end)
        return bytes_take(random, bound);
    return test_random_next(random) % bound;
}

double test_random_unit(struct test_random *random)
{
    return (double)(test_random_next(random) >> 11) * 0x1p-53;
}

void test_directory_make(char path[static 256])
{
    const char *base = getenv("TMPDIR");
    snprintf(path, 256, "%s/weir-test-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
}

void test_directory_make_in_memory(char path[static 256])
{
    snprintf(path, 256, "/dev/shm/weir-test-XXXXXX");
    if (!mkdtemp(path))
        test_directory_make(path);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void test_directory_remove(const char *path)
{
    assert_int_equal(0, nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS));
}

char test_directory[256];

int test_directory_setup(void **state)
{
    (void)state;
    test_directory_make(test_directory);
    return 0;
}

int test_directory_teardown(void **state)
{
    (void)state;
    test_directory_remove(test_directory);
    return 0;
}

int test_file_make(int flags)
{
    int fd = open(test_directory, O_TMPFILE | O_RDWR | flags, 0600);
    assert_true(fd >= 0);
    return fd;
}

uint32_t test_draws(uint32_t normal)
{
    const char *given = getenv("WEIR_DRAWS");
    uint64_t draws = given ? (uint64_t)normal * strtoull(given, NULL, 0) / 100 : normal;
    return draws > 0 ? (uint32_t)draws : 1;
}

static int value_order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

size_t test_distinct(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof *values, value_order);
    size_t n = count > 0;
    for (size_t i = 1; i < count; i++)
        n += values[i] != values[i - 1];
    return n;
}
