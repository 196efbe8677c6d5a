/*
 * Sizes as people write them. Binary units for sizes (KiB is 1024), GB/s in 10^9 everywhere.
 */
#ifndef WEIR_BENCH_UNITS_H
#define WEIR_BENCH_UNITS_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>

/* "4GiB", "128KiB", "2GB" or "4096"; flag names the option in the error. A size that is no whole
 * number of bytes is refused. */
enum weir_status bytes_parse(const char *flag, const char *text, size_t length, uint64_t *out);
/* "8 MiB", in the largest unit that leaves a whole number, "1.5 GiB" at most one decimal. */
const char *bytes_text(uint64_t bytes, char out[static 24]);

#endif
