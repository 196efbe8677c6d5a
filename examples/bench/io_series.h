/*
 * Points measured in rounds: each round measures all of them once, so that a drift of the machine
 * hits all alike; a figure is the median over rounds, with the lowest and the highest.
 */
#ifndef WEIR_BENCH_IO_SERIES_H
#define WEIR_BENCH_IO_SERIES_H

#include "examples/bench/buffers.h"
#include "examples/bench/io_point.h"
#include <jansson.h>

struct io_series {
    struct io_point point;
    enum layout layout;
    double rates[ROUNDS_MOST]; /* GB/s, by round */
    uint32_t round_count;
    struct io_sample total; /* sums over rounds */
    struct histogram *latencies;
};

/* The median, and the ends, of rates[0..count), which it sorts. */
struct spread {
    double median, low, high;
};
struct spread spread_of(double *rates, uint32_t count);

/* Results are added to what series[] hold; latencies are made if NULL. what: said as progress. */
enum weir_status io_series_run(const struct io_target *target, struct io_series *series,
                               size_t count, uint64_t rounds, double seconds, const char *what);
void io_series_free(struct io_series *series, size_t count);
/* One result of the report; part: "io" or "layout". */
json_t *io_series_row(const struct io_series *series, const struct io_target *target,
                      const char *part);
/* {"process_read_bytes", ...}: null where the kernel does not say. */
json_t *kernel_counters_row(const struct kernel_counters *counted);
/* into += from */
void io_sample_add(struct io_sample *into, const struct io_sample *from);

#endif
