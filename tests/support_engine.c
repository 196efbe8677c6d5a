#include "tests/support_engine.h"

#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_BYTES 4096u

struct test_engine_script test_engine_script;

struct held {
    struct weir_io_piece piece;
    bool faulted;
};

struct weir_io_engine {
    uint32_t depth, held_count, submitted_count;
    struct held *held; /* in the order of queueing; the first submitted_count may be moved */
};

static enum weir_status engine_open(struct weir_io_engine **out, uint32_t depth,
                                    struct weir_log *log)
{
    (void)log;
    struct weir_io_engine *engine;
    WEIR_TRY(weir_alloc(&engine, 1, sizeof *engine, "the test engine"));
    engine->depth = depth;
    enum weir_status status =
        weir_alloc(&engine->held, depth, sizeof *engine->held, "the test engine's pieces");
    if (status != WEIR_OK)
        weir_free(engine);
    else
        *out = engine;
    return status;
}

static void engine_close(struct weir_io_engine *engine)
{
    weir_free(engine->held);
    weir_free(engine);
}

static enum weir_status engine_memory(struct weir_io_engine *engine, void *bytes,
                                      uint64_t byte_count, bool *registered)
{
    (void)engine, (void)bytes, (void)byte_count;
    *registered = !test_engine_script.refuse_memory;
    if (!*registered)
        return weir_fail(WEIR_ERR_UNSUPPORTED, "io engine \"test\": refuses memory");
    return WEIR_OK;
}

static void engine_file(struct weir_io_engine *engine, int fd)
{
    (void)engine, (void)fd;
}

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static bool collide(const struct weir_io_piece *a, const struct weir_io_piece *b)
{
    bool reads = a->kind == WEIR_IO_READ || b->kind == WEIR_IO_READ;
    bool writes = a->kind == WEIR_IO_WRITE || b->kind == WEIR_IO_WRITE;
    return (reads &&
            overlap((uintptr_t)a->bytes, a->byte_count, (uintptr_t)b->bytes, b->byte_count)) ||
           (writes && a->fd == b->fd &&
            overlap(a->offset_bytes, a->byte_count, b->offset_bytes, b->byte_count));
}

static bool engine_queue(struct weir_io_engine *engine, const struct weir_io_piece *piece)
{
    struct test_engine_script *script = &test_engine_script;
    if (engine->held_count == engine->depth)
        return false;
    if (script->queued_count < TEST_ENGINE_LOG)
        script->kinds[script->queued_count] = piece->kind;
    bool counts = script->fault_fd == 0 || script->fault_fd == piece->fd;
    uint64_t number = script->queued_count += counts;
    bool faulted = counts && script->fault_at != 0 && number >= script->fault_at &&
                   number - script->fault_at < script->fault_count;
    script->faulted_count += faulted;
    for (uint32_t i = 0; i < engine->held_count; i++)
        script->overlap_count += collide(piece, &engine->held[i].piece);
    engine->held[engine->held_count++] = (struct held){*piece, faulted};
    return true;
}

static enum weir_status engine_submit(struct weir_io_engine *engine)
{
    if (++test_engine_script.submit_count == test_engine_script.submit_fails)
        return weir_fail(WEIR_ERR_IO, "io engine \"test\": refuses to start");
    engine->submitted_count = engine->held_count;
    return WEIR_OK;
}

/* What a shortened read did not bring is spoilt, so that only a second read can make it right. */
static int64_t move(const struct weir_io_piece *piece, bool direct)
{
    struct test_engine_script *script = &test_engine_script;
    uint64_t all = piece->byte_count;
    bool shorten = script->shorten && test_random_below(&script->random, 2) == 0;
    uint64_t cut = shorten ? 1 + test_random_below(&script->random, all) : all;
    if (piece->kind == WEIR_IO_READ) {
        ssize_t got = pread(piece->fd, piece->bytes, all, (off_t)piece->offset_bytes);
        if (got < 0)
            return -errno;
        if ((uint64_t)got <= cut)
            return got;
        memset((char *)piece->bytes + cut, 0xEE, (size_t)got - cut);
        return (int64_t)cut;
    }
    uint64_t put = direct ? (cut + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES : cut;
    ssize_t moved =
        pwrite(piece->fd, piece->bytes, put < all ? put : all, (off_t)piece->offset_bytes);
    if (moved < 0)
        return -errno;
    return (uint64_t)moved < cut ? moved : (int64_t)cut;
}

static bool refuses(const struct weir_io_piece *piece, bool direct)
{
    const struct test_engine_script *script = &test_engine_script;
    uint64_t align = script->align_bytes != 0 ? script->align_bytes : 1;
    return direct && (script->refuse_direct || piece->offset_bytes % align != 0 ||
                      piece->byte_count % align != 0 || (uintptr_t)piece->bytes % align != 0);
}

static int64_t held_finish(const struct held *held)
{
    bool direct = (fcntl(held->piece.fd, F_GETFL) & O_DIRECT) != 0;
    if (held->faulted)
        return test_engine_script.fault_result;
    if (!refuses(&held->piece, direct))
        return move(&held->piece, direct);
    test_engine_script.refused_count++;
    return -EINVAL;
}

/* A submitted piece that may complete, from a drawn one on; submitted_count: there is none. */
static uint32_t held_find(const struct weir_io_engine *engine)
{
    struct test_engine_script *script = &test_engine_script;
    uint32_t count = engine->submitted_count;
    uint32_t from =
        script->reorder && count > 0 ? (uint32_t)test_random_below(&script->random, count) : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t place = (from + i) % count;
        if (script->hold_fd == 0 || engine->held[place].piece.fd != script->hold_fd)
            return place;
    }
    return count;
}

static struct held held_take(struct weir_io_engine *engine, uint32_t place)
{
    struct held taken = engine->held[place];
    memmove(engine->held + place, engine->held + place + 1,
            (engine->held_count - place - 1) * sizeof *engine->held);
    engine->held_count--;
    engine->submitted_count--;
    return taken;
}

static enum weir_status engine_reap(struct weir_io_engine *engine, struct weir_io_completion *out,
                                    size_t capacity, uint64_t timeout_ns, size_t *count)
{
    (void)timeout_ns;
    struct test_engine_script *script = &test_engine_script;
    *count = 0;
    if (script->late && test_random_below(&script->random, 2) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = (long)script->late_ns}, NULL);
        return WEIR_OK;
    }
    size_t most = script->late ? 1 + test_random_below(&script->random, capacity) : capacity;
    if (script->stray && engine->submitted_count > 0) {
        out[(*count)++] = (struct weir_io_completion){UINT64_MAX, 1};
        script->stray = false;
    }
    for (uint32_t place; *count < most && (place = held_find(engine)) < engine->submitted_count;) {
        struct held held = held_take(engine, place);
        out[(*count)++] = (struct weir_io_completion){held.piece.token, held_finish(&held)};
    }
    return WEIR_OK;
}

static void engine_wake(struct weir_io_engine *engine)
{
    (void)engine; /* reap never waits */
}

const struct weir_io_engine_table test_engine = {
    .name = "test",
    .open = engine_open,
    .close = engine_close,
    .memory = engine_memory,
    .file = engine_file,
    .queue = engine_queue,
    .submit = engine_submit,
    .reap = engine_reap,
    .wake = engine_wake,
};

#define ENGINES_MOST 4

static const struct weir_io_engine_table *running[ENGINES_MOST + 1];
static size_t running_count;

static void engines_try(void)
{
    const struct weir_io_engine_table *table;
    for (size_t i = 0; (table = weir_io_engine_at(i)) != NULL; i++) {
        struct weir_io_engine *engine;
        assert_true(i < ENGINES_MOST);
        enum weir_status status = table->open(&engine, 1, NULL);
        if (status == WEIR_ERR_UNSUPPORTED) {
            printf("SKIPPED %s\n", weir_last_error()->text);
            continue;
        }
        assert_ok(status);
        table->close(engine);
        running[running_count++] = table;
    }
    assert_true(running_count > 0);
}

const struct weir_io_engine_table *test_engine_at(size_t index)
{
    if (running_count == 0)
        engines_try();
    return running[index];
}

const char *test_engine_draw(uint64_t number)
{
    (void)test_engine_at(0);
    return running[number % running_count]->name;
}

const char *test_drives_draw(const char *directory, uint64_t seed, struct weir_drive_rate *rates)
{
    static char list[TEST_DRIVES_MOST * 300];
    struct test_random random = {.state = seed};
    uint32_t count = 1 + (uint32_t)test_random_below(&random, TEST_DRIVES_MOST);
    size_t length = 0;
    for (uint32_t i = 0; i < count; i++) {
        char *path = list + length + (i > 0);
        snprintf(path, 300, "%s/drive%u", directory, i);
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        if (i > 0)
            list[length] = ',';
        length += strlen(path) + (i > 0);
        rates[i] = (struct weir_drive_rate){1e9 + (double)test_random_below(&random, 9) * 1e9, 1e9,
                                            4096u << test_random_below(&random, 10), 1};
    }
    return list;
}

int test_engines_run(const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                     CMFixtureFunction teardown)
{
    struct CMUnitTest bound[32];
    assert_true(count > 0 && count <= sizeof bound / sizeof bound[0]);
    int failures = 0;
    size_t engines = 0;
    for (const struct weir_io_engine_table *table; (table = test_engine_at(engines)); engines++) {
        for (size_t i = 0; i < count; i++) {
            bound[i] = tests[i];
            bound[i].initial_state = (void *)(uintptr_t)table;
        }
        failures += _cmocka_run_group_tests(table->name, bound, count, setup, teardown);
    }
    return failures + (engines == 0);
}

unsigned char *test_memory_make(size_t bytes, unsigned char value)
{
    unsigned char *memory =
        aligned_alloc(BLOCK_BYTES, (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
    assert_non_null(memory);
    memset(memory, value, bytes);
    return memory;
}

void test_pattern_fill(unsigned char *bytes, size_t count, uint64_t seed)
{
    struct test_random random = {.state = seed};
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)test_random_next(&random);
}

struct weir_io *test_front_open(const struct weir_io_engine_table *table, uint32_t depth)
{
    struct weir_io *io;
    assert_ok(weir_io_open(&io, &(struct weir_io_options){.engine = table->name,
                                                          .depth = depth,
                                                          .request_count = 8,
                                                          .piece_bytes = TEST_FRONT_PIECE}));
    return io;
}

void test_front_reap(struct weir_io *io, size_t want)
{
    while (want > 0) {
        struct weir_io_result results[8];
        size_t count;
        assert_ok(weir_io_reap(io, results, 8, WEIR_IO_FOREVER, &count));
        assert_true(count <= want);
        for (size_t i = 0; i < count; i++)
            if (results[i].status != WEIR_OK)
                fail_msg("%s", results[i].error.text);
        want -= count;
    }
}

void test_front_move(struct weir_io *io, enum weir_io_kind kind, uint32_t file, uint64_t offset,
                     void *bytes, uint64_t count)
{
    assert_ok(
        weir_io_submit(io, &(struct weir_io_request){7, kind, file, offset, bytes, count}, 1));
    test_front_reap(io, 1);
}
