/*
 * An I/O engine for tests, the engines that run here, and a front over one. The test engine has no
 * threads: pieces are moved when they are reaped, and their completions are bent as the script
 * says. One at a time is open.
 */
#ifndef WEIR_TESTS_SUPPORT_ENGINE_H
#define WEIR_TESTS_SUPPORT_ENGINE_H

#include "io/engine.h"
#include "tests/support.h"
#include <weir/drive.h>

#define TEST_ENGINE_LOG  4096
#define TEST_FRONT_PIECE (64u * 1024)

struct test_engine_script {
    struct test_random random;
    bool reorder;     /* completions come in any order */
    bool late;        /* reap brings nothing half of the time */
    uint64_t late_ns; /* and takes so long then */
    bool shorten;     /* half of the transfers stop at a drawn byte */

    uint64_t fault_at;     /* the nth piece queued, 1 = the first; 0: none */
    uint64_t fault_count;  /* so many pieces from it on */
    int64_t fault_result;  /* their result, nothing is moved */
    int fault_fd;          /* only pieces of this file count; 0: all */
    int hold_fd;           /* pieces of this file do not complete; 0: all do */
    bool refuse_direct;    /* EINVAL while the file has O_DIRECT */
    uint32_t align_bytes;  /* EINVAL for direct pieces that are not multiples; 0: as the kernel */
    bool stray;            /* a completion that no piece asked for comes first */
    uint64_t submit_fails; /* the nth submit fails; 0: none */
    bool refuse_memory;    /* no memory is registered */

    /* What happened since the script was set. */
    uint64_t queued_count, faulted_count, refused_count, submit_count;
    uint64_t overlap_count; /* pieces queued where the outcome depends on another's in flight */
    enum weir_io_kind kinds[TEST_ENGINE_LOG]; /* of pieces in the order of queueing */
};

extern struct test_engine_script test_engine_script;
extern const struct weir_io_engine_table test_engine;

/* The engines that were built and that the kernel lets run, NULL past the end. One that it refuses,
 * as containers do, is named with the cause. */
const struct weir_io_engine_table *test_engine_at(size_t index);
/* One of them by number: the same number, the same engine. */
const char *test_engine_draw(uint64_t number);
/* An NVMe tier of one to TEST_DRIVES_MOST directories made under `directory`, "DIR,DIR", and rates
 * of each: the same seed, the same drives. The text is overwritten by the next call. */
#define TEST_DRIVES_MOST 3
const char *test_drives_draw(const char *directory, uint64_t seed, struct weir_drive_rate *rates);

/* Run the tests once for each of them, its table as their state. No engine, or a failure: not 0. */
#define TEST_PER_ENGINE(test)                                                                      \
    {                                                                                              \
#test, test, NULL, NULL, NULL                                                              \
    }
int test_engines_run(const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                     CMFixtureFunction teardown);

/* Memory aligned to 4096 bytes; bytes drawn from a seed. */
unsigned char *test_memory_make(size_t bytes, unsigned char value);
void test_pattern_fill(unsigned char *bytes, size_t count, uint64_t seed);

/* A front over the engine: 8 requests, pieces of TEST_FRONT_PIECE. */
struct weir_io *test_front_open(const struct weir_io_engine_table *table, uint32_t depth);
/* Reap until `want` requests are complete, all of them WEIR_OK. */
void test_front_reap(struct weir_io *io, size_t want);
/* One request, submitted and complete. */
void test_front_move(struct weir_io *io, enum weir_io_kind kind, uint32_t file, uint64_t offset,
                     void *bytes, uint64_t count);

#endif
