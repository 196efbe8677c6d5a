/*
 * What tests share: a seeded generator (the seed is printed, WEIR_SEED overrides it), a directory
 * that goes away, and cmocka with its prerequisites.
 */
#ifndef WEIR_TESTS_SUPPORT_H
#define WEIR_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/status.h"

/* Fail the test with weir's own text unless e is WEIR_OK. */
#define assert_ok(e)                                                                               \
    do {                                                                                           \
        enum weir_status s_ = (e);                                                                 \
        if (s_ != WEIR_OK)                                                                         \
            fail_msg("%s: %s", weir_status_name(s_), weir_last_error()->text);                     \
    } while (0)
/* e fails with `status` and its text contains `part`. */
#define assert_fails(e, status, part)                                                              \
    do {                                                                                           \
        enum weir_status s_ = (e);                                                                 \
        if (s_ != (status))                                                                        \
            fail_msg("expected %s, got %s", weir_status_name(status), weir_status_name(s_));       \
        if (!test_contains(weir_last_error()->text, part))                                         \
            fail_msg("\"%s\" does not contain \"%s\"", weir_last_error()->text, part);             \
    } while (0)

bool test_contains(const char *text, const char *part);

struct test_random {
    uint64_t state;
    const unsigned char *bytes, *end; /* a fuzzer's: drawn from first; NULL: none */
};
/* Seeded from WEIR_SEED, else `fallback`; prints the seed. */
struct test_random test_random_open(uint64_t fallback);
uint64_t test_random_next(struct test_random *random);
uint64_t test_random_below(struct test_random *random, uint64_t bound); /* bound > 0 */
double test_random_unit(struct test_random *random);                    /* [0, 1) */

/* A fresh directory below the build's working directory or TMPDIR; removed with all it holds. */
void test_directory_make(char path[static 256]);
/* The same in memory where the system offers that: for tests that write and sync many files. */
void test_directory_make_in_memory(char path[static 256]);
void test_directory_remove(const char *path);
/* A group's own directory, for cmocka_run_group_tests, and a nameless file in it. */
extern char test_directory[256];
int test_directory_setup(void **state);
int test_directory_teardown(void **state);
int test_file_make(int flags);

/* How many different values; sorts them. */
size_t test_distinct(uint64_t *values, size_t count);

/* Scale of random draws: WEIR_DRAWS percent (default 100), at least 1. */
uint32_t test_draws(uint32_t normal);

#endif
