/*
 * Counts of durations in buckets whose width is less than 1 % of their value, for percentiles of
 * millions of latencies in fixed memory.
 *
 *     histogram_add(&histogram, done_ns - begun_ns);
 *     double p99_us = histogram_percentile(&histogram, 99) / 1e3;
 */
#ifndef WEIR_BENCH_HISTOGRAM_H
#define WEIR_BENCH_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BITS    7 /* of a value that are kept: a bucket is at most 1/128 of it wide */
#define HISTOGRAM_BUCKETS ((64 - HISTOGRAM_BITS + 1) << HISTOGRAM_BITS)

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t total;
};

void histogram_add(struct histogram *histogram, uint64_t value);
/* The middle of the bucket that holds the value of rank ceil(percent / 100 * total), the first
 * being 1; within 1/256 of that value. 0 where nothing was added. percent: above 0, at most 100. */
double histogram_percentile(const struct histogram *histogram, double percent);

#endif
