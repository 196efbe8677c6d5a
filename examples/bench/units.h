/*
 * Sizes as people write them. Binary units for sizes (KiB is 1024), GB/s in 10^9 everywhere.
 */
#ifndef WEIR_BENCH_UNITS_H
#define WEIR_BENCH_UNITS_H

#include <stdint.h>

/* "8 MiB", in the largest unit that leaves a whole number, "1.5 GiB" at most one decimal. */
const char *bytes_text(uint64_t bytes, char out[static 24]);

#endif
