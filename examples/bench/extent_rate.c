/*
 * How fast an extent over several directories is, against each of them alone.
 *
 *   extent_rate MIB SECONDS ROUNDS DIRECTORY...
 *
 * An extent of MIB in each directory alone, and one over all, spread by what a first turn of each
 * alone moved; all are written in full before the clock starts. Then in turns, for reading and for
 * writing: each alone, all together; windows of 10 MiB, four of them in flight, as a small ring
 * has. One line a round: bytes per second of each alone, of all together, and their ratio.
 */
#include "core/clock.h"
#include "io/extent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB             (UINT64_C(1) << 20)
#define WINDOW_BYTES    (10 * MIB)
#define WINDOWS         4u
#define DEPTH           32u
#define PIECE_BYTES     (2 * MIB)
#define HUGE_PAGE_BYTES (2 * MIB)

struct bench {
    struct weir_io *io;
    unsigned char *memory; /* WINDOWS of them */
    uint64_t extent_bytes;
    double seconds;
    uint32_t count;
    struct weir_extent alone[WEIR_IO_DRIVES_MOST], together;
};

static enum weir_status window_begin(struct bench *b, const struct weir_extent *extent,
                                     enum weir_io_kind kind, uint64_t number, uint64_t id)
{
    uint64_t windows = extent->byte_count / WINDOW_BYTES;
    return weir_io_submit(b->io,
                          &(struct weir_io_request){.id = id,
                                                    .kind = kind,
                                                    .file = extent->file,
                                                    .offset_bytes = number % windows * WINDOW_BYTES,
                                                    .bytes = b->memory + id * WINDOW_BYTES,
                                                    .byte_count = WINDOW_BYTES},
                          1);
}

static enum weir_status extent_time(struct bench *b, const struct weir_extent *extent,
                                    enum weir_io_kind kind, double *bytes_per_s)
{
    uint64_t begin_ns = weir_now_ns(), end_ns = begin_ns, moved = 0, number = 0;
    uint64_t until_ns = begin_ns + (uint64_t)(b->seconds * 1e9);
    uint32_t outstanding = 0;
    for (; outstanding < WINDOWS; outstanding++)
        WEIR_TRY(window_begin(b, extent, kind, number++, outstanding));
    while (outstanding > 0) {
        struct weir_io_result results[WINDOWS];
        size_t count;
        WEIR_TRY(weir_io_reap(b->io, results, WINDOWS, WEIR_IO_FOREVER, &count));
        for (size_t i = 0; i < count; i++) {
            if (results[i].status != WEIR_OK)
                return weir_fail_with(&results[i].error);
            /* What is left when the time is over counts with the time it takes. */
            moved += WINDOW_BYTES;
            end_ns = weir_now_ns();
            if (end_ns < until_ns)
                WEIR_TRY(window_begin(b, extent, kind, number++, results[i].id));
            else
                outstanding--;
        }
    }
    *bytes_per_s = (double)moved / ((double)(end_ns - begin_ns) * 1e-9);
    return WEIR_OK;
}

static enum weir_status extents_open(struct bench *b, char **directories)
{
    struct weir_extent_place places[WEIR_IO_DRIVES_MOST];
    for (uint32_t d = 0; d < b->count; d++) {
        double ignored;
        places[d] = (struct weir_extent_place){directories[d], 1};
        WEIR_TRY(weir_extent_open(&b->alone[d], b->io,
                                  &(struct weir_extent_options){.places = &places[d],
                                                                .place_count = 1,
                                                                .byte_count = b->extent_bytes}));
        WEIR_TRY(extent_time(b, &b->alone[d], WEIR_IO_READ, &ignored));
        WEIR_TRY(extent_time(b, &b->alone[d], WEIR_IO_READ, &places[d].bytes_per_s));
    }
    WEIR_TRY(weir_extent_open(&b->together, b->io,
                              &(struct weir_extent_options){.places = places,
                                                            .place_count = b->count,
                                                            .byte_count = b->extent_bytes}));
    for (uint32_t d = 0; d < b->count; d++)
        printf("# \"%s\": %.0f bytes/s, %llu bytes of %llu\n", directories[d],
               places[d].bytes_per_s, (unsigned long long)b->together.drives[d].byte_count,
               (unsigned long long)b->extent_bytes);
    return WEIR_OK;
}

static enum weir_status round_run(struct bench *b, enum weir_io_kind kind)
{
    double sum = 0, rate;
    printf("%s", kind == WEIR_IO_READ ? "read " : "write");
    for (uint32_t d = 0; d < b->count; d++) {
        WEIR_TRY(extent_time(b, &b->alone[d], kind, &rate));
        sum += rate;
        printf(" %.0f", rate);
    }
    WEIR_TRY(extent_time(b, &b->together, kind, &rate));
    printf(" together %.0f ratio %.3f\n", rate, rate / sum);
    fflush(stdout);
    return WEIR_OK;
}

static enum weir_status bench_run(struct bench *b, long rounds, char **directories)
{
    if (b->count == 0 || b->count > WEIR_IO_DRIVES_MOST || b->extent_bytes < WINDOW_BYTES)
        return weir_fail(WEIR_ERR_ARG, "give 1 to %u directories and at least %llu MiB",
                         WEIR_IO_DRIVES_MOST, (unsigned long long)(WINDOW_BYTES / MIB));
    b->memory = aligned_alloc(HUGE_PAGE_BYTES, WINDOWS * WINDOW_BYTES);
    if (b->memory == NULL)
        return weir_fail(WEIR_ERR_NOMEM, "no memory for %u windows", WINDOWS);
    madvise(b->memory, WINDOWS * WINDOW_BYTES, MADV_HUGEPAGE);
    memset(b->memory, 0x5A, WINDOWS * WINDOW_BYTES);
    WEIR_TRY(weir_io_open(&b->io, &(struct weir_io_options){.depth = DEPTH,
                                                            .drive_count = b->count,
                                                            .request_count = 2 * b->count + WINDOWS,
                                                            .piece_bytes = PIECE_BYTES}));
    WEIR_TRY(weir_io_memory_add(b->io, b->memory, WINDOWS * WINDOW_BYTES));
    WEIR_TRY(extents_open(b, directories));
    for (long round = 0; round < rounds; round++)
        for (enum weir_io_kind kind = WEIR_IO_READ; kind <= WEIR_IO_WRITE; kind++)
            WEIR_TRY(round_run(b, kind));
    return WEIR_OK;
}

int main(int count, char **values)
{
    if (count < 5) {
        fprintf(stderr, "extent_rate MIB SECONDS ROUNDS DIRECTORY...\n");
        return 2;
    }
    struct bench b = {.extent_bytes = strtoull(values[1], NULL, 10) * MIB,
                      .seconds = strtod(values[2], NULL),
                      .count = (uint32_t)count - 4};
    enum weir_status status = bench_run(&b, strtol(values[3], NULL, 10), values + 4);
    if (status != WEIR_OK)
        fprintf(stderr, "extent_rate: %s\n", weir_last_error()->text);
    weir_io_close(b.io);
    for (uint32_t d = 0; d < b.count && d < WEIR_IO_DRIVES_MOST; d++)
        weir_extent_close(&b.alone[d]);
    weir_extent_close(&b.together);
    free(b.memory);
    return status != WEIR_OK;
}
