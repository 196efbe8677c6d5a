/*
 * `io`, in pieces that `all` uses as well.
 */
#ifndef WEIR_BENCH_IO_H
#define WEIR_BENCH_IO_H

#include "examples/bench/io_files.h"
#include "examples/bench/io_series.h"
#include "examples/bench/recommend.h"
#include "examples/bench/report.h"

/* What the sweep found. */
struct io_found {
    struct io_series *series; /* by pattern, engine, block, depth */
    struct measured *points;  /* the same */
    size_t count;
    struct recommendation advice; /* index into both */
};

/* The parts of the options: rows, drives and a recommendation. found: empty before, io_found_free
 * after; filled if the sweep is a part. */
enum weir_status io_parts_measure(const struct io_files *files, const struct options *options,
                                  struct io_found *found, struct report *report);
/* The engines of the options that the kernel lets run; each that it does not is a note. None:
 * WEIR_ERR_UNSUPPORTED. */
enum weir_status io_engines_find(const struct options *options, struct report *report,
                                 struct number_list *engines);
/* Points of all patterns, engines, blocks and depths of the options, measured in rounds. */
enum weir_status io_sweep(const struct io_files *files, const struct options *options,
                          const struct number_list *engines, struct io_found *found);
void io_found_free(struct io_found *found);
/* io_layouts.c: the recommended point in memory of each layout. */
enum weir_status io_layouts(const struct io_files *files, const struct options *options,
                            const struct io_point *point, struct report *report);
/* io_replay.c: the pattern of training, and what it means for a step. found NULL: no sweep. */
enum weir_status io_replay(const struct io_files *files, const struct options *options,
                           const struct io_point *point, const struct io_found *found,
                           struct report *report);
/* io_replay.c: best rate of a mix of reads and writes: the mixed points' own best or, if that is
 * more, what reads and writes would reach in turns. 0: not measured. */
double io_mix_best(const struct measured *points, size_t count, double read_bytes,
                   double written_bytes);

#endif
