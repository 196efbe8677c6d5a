/*
 * One point of the sweep, measured once: blocks of one size, so many in flight on each drive, in
 * order through the file, as training reads its states.
 *
 *     struct io_sample sample;
 *     WEIR_TRY(io_point_run(&target, &point, memory, (struct io_limit){.ns = 500000000}, &sample,
 *                           &histogram));
 *
 * The clock runs from before the first request until the last one is complete and, where anything
 * was written, fdatasync has returned. Opening the engine and registering memory are outside.
 */
#ifndef WEIR_BENCH_IO_POINT_H
#define WEIR_BENCH_IO_POINT_H

#include "examples/bench/histogram.h"
#include "examples/bench/kernel_counters.h"
#include "examples/bench/options.h"
#include "io/engine.h"

/* Tests put their own here. */
struct io_clock {
    uint64_t (*now_ns)(void);
    double (*cpu_s)(void); /* of all threads of this process, those of the kernel among them */
};
extern const struct io_clock io_clock_real;

/* Files that were written in full, one a drive; of several, a volume as training has it. */
struct io_target {
    struct io_target_file {
        const char *name;
        int fd;
        bool direct;
        double share; /* of the volume's bytes */
    } files[FLAG_LIST_MOST];
    uint32_t file_count;
    uint64_t byte_count;         /* of the file or the volume */
    const struct drives *drives; /* for what the kernel counted */
    const struct io_clock *clock;
    const struct weir_io_engine_table *engine_table; /* instead of a point's engine; NULL: none */
};

struct io_point {
    enum pattern pattern;
    const char *engine;
    uint64_t block_bytes;
    uint32_t depth; /* of each drive */
};

/* Nothing is begun after either is reached; bytes 0: no such limit. */
struct io_limit {
    uint64_t ns, bytes;
};

struct io_sample {
    uint64_t read_bytes, written_bytes, ns;
    double cpu_s;
    bool registered;
    struct kernel_counters counted;
};

/* Bytes of memory that a point needs. */
uint64_t io_point_memory(const struct io_target *target, const struct io_point *point);
/* The file or volume holds the point's requests in flight; else WEIR_ERR_ARG. */
enum weir_status io_point_fits(const struct io_target *target, const struct io_point *point);
/* memory: 2 MiB-aligned. Latencies of requests, from submit to reap in ns, are added. */
enum weir_status io_point_run(const struct io_target *target, const struct io_point *point,
                              unsigned char *memory, struct io_limit limit,
                              struct io_sample *sample, struct histogram *latencies);
/* A front over the target's files, memory registered; *file is the only one, or the volume. For the
 * replay too. */
enum weir_status io_target_open(const struct io_target *target, const struct weir_io_options *how,
                                void *memory, uint64_t byte_count, struct weir_io **io,
                                uint32_t *file);
/* Sets the target's byte_count from the bytes of each file and the shares: what a volume holds of
 * them. */
enum weir_status io_target_size(struct io_target *target, uint64_t each_bytes);
/* Whatever the drive or the kernel holds back reaches the drive. */
enum weir_status io_target_sync(const struct io_target *target);

#endif
