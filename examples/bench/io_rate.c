/*
 * How fast weir's I/O moves one file: blocks in order, `depth` of them in flight.
 *
 *   io_rate FILE uring|threads read|write BLOCK_BYTES DEPTH SECONDS registered|plain
 *
 * FILE has been written in full. Buffers are 2 MiB-aligned huge pages, touched before the clock
 * starts. Prints one line: bytes per second, CPU seconds per GB, "registered" or "plain" as it was.
 */
#include "core/clock.h"
#include "io/io.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

struct rate {
    struct weir_io *io;
    uint32_t file;
    enum weir_io_kind kind;
    uint64_t block_bytes, block_count, next; /* blocks of the file; the next one to move */
    unsigned char *memory;                   /* one block for each request */
    uint64_t moved_bytes;
};

static enum weir_status block_begin(struct rate *r, uint64_t id)
{
    uint64_t block = r->next++ % r->block_count;
    return weir_io_submit(r->io,
                          &(struct weir_io_request){.id = id,
                                                    .kind = r->kind,
                                                    .file = r->file,
                                                    .offset_bytes = block * r->block_bytes,
                                                    .bytes = r->memory + id * r->block_bytes,
                                                    .byte_count = r->block_bytes},
                          1);
}

static enum weir_status blocks_move(struct rate *r, uint32_t depth, uint64_t until_ns)
{
    uint64_t outstanding = 0;
    for (; outstanding < depth; outstanding++)
        WEIR_TRY(block_begin(r, outstanding));
    while (outstanding > 0) {
        struct weir_io_result results[64];
        size_t count;
        WEIR_TRY(weir_io_reap(r->io, results, 64, WEIR_IO_FOREVER, &count));
        for (size_t i = 0; i < count; i++) {
            if (results[i].status != WEIR_OK)
                return weir_fail_with(&results[i].error);
            r->moved_bytes += r->block_bytes;
            if (weir_now_ns() < until_ns)
                WEIR_TRY(block_begin(r, results[i].id));
            else
                outstanding--;
        }
    }
    return WEIR_OK;
}

static unsigned char *memory_make(size_t bytes)
{
    bytes = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    unsigned char *memory = aligned_alloc(HUGE_PAGE_BYTES, bytes);
    if (memory == NULL)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0x5A, bytes);
    return memory;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static enum weir_status file_take(struct rate *r, const char *path)
{
    struct stat stat;
    int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &stat) != 0)
        return weir_fail(WEIR_ERR_ARG, "\"%s\": cannot be opened with O_DIRECT", path);
    r->block_count = (uint64_t)stat.st_size / r->block_bytes;
    if (r->block_count == 0)
        return weir_fail(WEIR_ERR_ARG, "\"%s\": smaller than a block", path);
    return weir_io_file_open(r->io, path, fd, true, 0, &r->file);
}

static enum weir_status run(char **values)
{
    uint32_t depth = (uint32_t)strtoul(values[5], NULL, 10);
    struct rate r = {.kind = strcmp(values[3], "write") == 0 ? WEIR_IO_WRITE : WEIR_IO_READ,
                     .block_bytes = strtoull(values[4], NULL, 10)};
    if (depth == 0 || r.block_bytes == 0)
        return weir_fail(WEIR_ERR_ARG, "BLOCK_BYTES and DEPTH are positive");
    r.memory = memory_make(depth * r.block_bytes);
    if (r.memory == NULL)
        return weir_fail(WEIR_ERR_NOMEM, "no memory for %u blocks", depth);
    WEIR_TRY(weir_io_open(&r.io, &(struct weir_io_options){.engine = values[2],
                                                           .depth = depth,
                                                           .request_count = depth,
                                                           .piece_bytes = r.block_bytes}));
    WEIR_TRY(file_take(&r, values[1]));
    if (strcmp(values[7], "registered") == 0)
        WEIR_TRY(weir_io_memory_add(r.io, r.memory, depth * r.block_bytes));
    double cpu = cpu_seconds();
    uint64_t begin_ns = weir_now_ns();
    WEIR_TRY(blocks_move(&r, depth, begin_ns + (uint64_t)(strtod(values[6], NULL) * 1e9)));
    double seconds = (double)(weir_now_ns() - begin_ns) * 1e-9, moved = (double)r.moved_bytes;
    printf("%.0f %.4f %s\n", moved / seconds, (cpu_seconds() - cpu) / (moved * 1e-9),
           weir_io_memory_registered(r.io) ? "registered" : "plain");
    weir_io_close(r.io);
    free(r.memory);
    return WEIR_OK;
}

int main(int count, char **values)
{
    if (count != 8) {
        fprintf(stderr, "io_rate FILE uring|threads read|write BLOCK_BYTES DEPTH SECONDS "
                        "registered|plain\n");
        return 2;
    }
    if (run(values) != WEIR_OK) {
        fprintf(stderr, "io_rate: %s\n", weir_last_error()->text);
        return 1;
    }
    return 0;
}
