/*
 * Property: whatever requests are outstanding, a file or volume under the front is a byte array.
 *
 * Random reads and writes, odd in offset, size and memory, many more pieces than depth, run against
 * an array of the file's bytes. Requests that overlap are never outstanding together when one of
 * them writes, but they do share blocks. Every read must equal the array, and in the end the file.
 * Half of the memory is registered, up to a point that some pieces pass.
 * Run for every engine and for the test engine (short, late, reordered; it refuses what is not
 * aligned), direct and buffered, on a file and on volumes of 1 to 5 drives with drawn shares, for
 * alignments of 512 to 65536 bytes, verified or not, each drive with a depth of its own.
 */
#include "tests/support.h"

#include "io/io_internal.h"
#include "tests/support_volume.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MOST     (1u << 20)
#define REQUEST_MOST  150000u
#define REQUEST_COUNT 12u
#define BLOCK         4096u
#define DRIVES_MOST   5u

struct flying {
    bool used;
    struct weir_io_request request;
    unsigned char *memory;
};

struct world {
    struct test_random random;
    struct weir_io *io;
    uint32_t file;
    bool direct;
    int fd;                    /* of a file */
    struct test_volume volume; /* or one of these: count is not 0 */
    unsigned char *model;
    uint64_t size; /* as far as finished writes go: reads stay below it */
    struct flying flying[REQUEST_COUNT];
    uint64_t finished_count;
};

static bool fits(const struct world *world, const struct weir_io_request *request)
{
    for (uint32_t i = 0; i < REQUEST_COUNT; i++) {
        const struct weir_io_request *other = &world->flying[i].request;
        if (world->flying[i].used &&
            (request->kind == WEIR_IO_WRITE || other->kind == WEIR_IO_WRITE) &&
            request->offset_bytes < other->offset_bytes + other->byte_count &&
            other->offset_bytes < request->offset_bytes + request->byte_count)
            return false;
    }
    return true;
}

/* Half of the numbers are whole blocks. */
static uint64_t draw(struct test_random *random, uint64_t bound)
{
    uint64_t value = test_random_below(random, bound);
    return test_random_below(random, 2) ? value / BLOCK * BLOCK : value;
}

static void submit_one(struct world *world)
{
    uint32_t place = 0;
    while (place < REQUEST_COUNT && world->flying[place].used)
        place++;
    if (place == REQUEST_COUNT)
        return;
    struct flying *flying = &world->flying[place];
    struct test_random *random = &world->random;
    struct weir_io_request request = {.id = place, .file = world->file};
    request.kind = test_random_below(random, 2) ? WEIR_IO_READ : WEIR_IO_WRITE;
    uint64_t end = request.kind == WEIR_IO_READ ? world->size : FILE_MOST;
    if (end == 0)
        return;
    request.offset_bytes = draw(random, end);
    request.byte_count = draw(random, REQUEST_MOST);
    if (request.byte_count > end - request.offset_bytes)
        request.byte_count = end - request.offset_bytes;
    if (!fits(world, &request))
        return;
    request.bytes = flying->memory + draw(random, 2) * (test_random_below(random, 64) + 1);
    unsigned char value = (unsigned char)test_random_next(random);
    for (uint64_t i = 0; i < request.byte_count; i++)
        ((unsigned char *)request.bytes)[i] = (unsigned char)(value + i * 7);
    if (request.kind == WEIR_IO_WRITE)
        memcpy(world->model + request.offset_bytes, request.bytes, request.byte_count);
    *flying = (struct flying){true, request, flying->memory};
    assert_ok(weir_io_submit(world->io, &request, 1));
}

static void reap_some(struct world *world)
{
    struct weir_io_result results[3];
    size_t count;
    assert_ok(weir_io_reap(world->io, results, 3, WEIR_IO_FOREVER, &count));
    for (size_t i = 0; i < count; i++) {
        struct flying *flying = &world->flying[results[i].id];
        assert_true(flying->used);
        if (results[i].status != WEIR_OK)
            fail_msg("%s", results[i].error.text);
        if (flying->request.kind == WEIR_IO_READ)
            assert_memory_equal(world->model + flying->request.offset_bytes, flying->request.bytes,
                                flying->request.byte_count);
        uint64_t end = flying->request.offset_bytes + flying->request.byte_count;
        if (flying->request.byte_count > 0 && end > world->size)
            world->size = end;
        flying->used = false;
        world->finished_count++;
    }
}

static bool any_flying(const struct world *world)
{
    for (uint32_t i = 0; i < REQUEST_COUNT; i++)
        if (world->flying[i].used)
            return true;
    return false;
}

static void all_equals_model(struct world *world)
{
    struct stat stat;
    /* Else the front would have gone on without O_DIRECT. */
    assert_int_equal(0, test_engine_script.refused_count);
    assert_int_equal(world->direct, weir_io_file_direct(world->io, world->file));
    unsigned char *back = test_memory_make(FILE_MOST + 1, 0);
    if (world->volume.count > 0) {
        test_front_move(world->io, WEIR_IO_READ, world->file, 0, back, FILE_MOST);
        assert_memory_equal(world->model, back, FILE_MOST);
        for (uint32_t d = 0; d < world->volume.count; d++) {
            assert_int_equal(0, fstat(world->volume.fds[d], &stat));
            assert_int_equal(world->volume.bytes[d], stat.st_size);
        }
    } else {
        assert_int_equal(0, fstat(world->fd, &stat));
        assert_int_equal(world->size, stat.st_size);
        int flags = fcntl(world->fd, F_GETFL);
        assert_int_equal(0, fcntl(world->fd, F_SETFL, flags & ~O_DIRECT));
        assert_int_equal(world->size, pread(world->fd, back, FILE_MOST + 1, 0));
        assert_memory_equal(world->model, back, world->size);
    }
    free(back);
}

struct kind {
    const struct weir_io_engine_table *table;
    const char *directory;
    bool direct, volume;
    uint64_t seed;
    uint32_t align_least; /* of the drive below */
};

static void file_open(struct world *world, const struct kind *kind,
                      const struct weir_io_options *options, uint32_t align)
{
    int flags = O_TMPFILE | O_RDWR | (kind->direct ? O_DIRECT : 0);
    assert_ok(weir_io_open(&world->io, options));
    world->fd = open(kind->directory, flags, 0600);
    assert_true(world->fd >= 0);
    assert_ok(weir_io_file_open(world->io, "model", world->fd, kind->direct, align, &world->file));
}

static void volume_open(struct world *world, const struct kind *kind,
                        const struct weir_io_options *options, uint32_t align)
{
    struct test_random *random = &world->random;
    double shares[DRIVES_MOST];
    struct test_volume_spec spec = {.options = *options,
                                    .directory = kind->directory,
                                    .flags = kind->direct ? O_DIRECT : 0,
                                    .align_bytes = align,
                                    .count = 1 + (uint32_t)test_random_below(random, DRIVES_MOST),
                                    .shares = shares,
                                    .stripe_bytes = (align > BLOCK ? align : BLOCK) *
                                                    (1 + test_random_below(random, 4)),
                                    .byte_count = FILE_MOST,
                                    .verify = test_random_below(random, 2)};
    test_shares_draw(random, shares, spec.count);
    spec.options.drive_count = 1 + (uint32_t)test_random_below(random, spec.count);
    test_volume_open(&world->volume, &spec);
    world->io = world->volume.io;
    world->file = world->volume.volume;
    world->size = FILE_MOST;
    for (uint32_t d = 0; d < spec.count; d++)
        if (test_random_below(random, 2))
            assert_ok(weir_io_file_tune(world->io, world->volume.files[d],
                                        1 + (uint32_t)test_random_below(random, options->depth),
                                        options->piece_bytes));
}

static void world_open(struct world *world, const struct kind *kind)
{
    static const uint32_t aligns[] = {512, BLOCK, 16384, 65536};
    struct test_random *random = &world->random;
    uint32_t align = aligns[test_random_below(random, 4)];
    align = align > kind->align_least ? align : kind->align_least;
    test_engine_script = (struct test_engine_script){.random = {.state = kind->seed ^ 1},
                                                     .reorder = true,
                                                     .late = true,
                                                     .shorten = true,
                                                     .align_bytes = align};
    const struct weir_io_options options = {
        .engine_table = kind->table,
        .depth = 1 + (uint32_t)test_random_below(random, 9),
        .request_count = REQUEST_COUNT,
        .piece_bytes = align > 4 * BLOCK ? align : 4 * BLOCK,
    };
    if (kind->volume)
        volume_open(world, kind, &options, align);
    else
        file_open(world, kind, &options, align);
    world->model = calloc(1, FILE_MOST);
    assert_non_null(world->model);
    for (uint32_t i = 0; i < REQUEST_COUNT; i++) {
        world->flying[i].memory = test_memory_make((REQUEST_MOST / BLOCK + 2) * BLOCK, 0);
        if (test_random_below(random, 2))
            assert_ok(weir_io_memory_add(world->io, world->flying[i].memory, REQUEST_MOST));
    }
}

static void world_close(struct world *world)
{
    if (world->volume.count > 0) {
        test_volume_close(&world->volume);
    } else {
        weir_io_close(world->io);
        close(world->fd);
    }
    for (uint32_t i = 0; i < REQUEST_COUNT; i++)
        free(world->flying[i].memory);
    free(world->model);
}

static void world_run(const struct kind *kind, uint32_t steps)
{
    struct world world = {.random = {.state = kind->seed}, .direct = kind->direct};
    world_open(&world, kind);
    for (uint32_t step = 0; step < steps; step++) {
        submit_one(&world);
        if (any_flying(&world) && test_random_below(&world.random, 3) == 0)
            reap_some(&world);
    }
    while (any_flying(&world))
        reap_some(&world);
    assert_true(world.finished_count > 0);
    all_equals_model(&world);
    world_close(&world);
}

static void rounds_run(bool volume, uint32_t rounds)
{
    char directory[256];
    test_directory_make(directory);
    int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    assert_true(fd >= 0);
    uint32_t least = weir_io_align_ask(fd);
    close(fd);
    struct test_random random = test_random_open(17);
    for (uint32_t round = 0; round < rounds; round++)
        for (int direct = 0; direct < 2; direct++) {
            struct kind kind = {.table = &test_engine,
                                .directory = directory,
                                .direct = direct,
                                .volume = volume,
                                .seed = test_random_next(&random),
                                .align_least = least};
            world_run(&kind, 120);
            for (size_t i = 0; (kind.table = test_engine_at(i)) != NULL; i++)
                world_run(&kind, 120);
        }
    test_directory_remove(directory);
}

static void a_file_under_the_front_is_a_byte_array(void **state)
{
    /* Reads equal the array of what was written, neighbours of parts of blocks included. */
    (void)state;
    rounds_run(false, test_draws(12));
}

static void a_volume_under_the_front_is_a_byte_array(void **state)
{
    /* The same, however its bytes lie on drives; no drive's file changes its length. */
    (void)state;
    rounds_run(true, test_draws(40));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_file_under_the_front_is_a_byte_array),
                                       cmocka_unit_test(a_volume_under_the_front_is_a_byte_array)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
