/*
 * Memory that transfers use. Its pages decide what a drive gives: where a transfer's pages lie
 * apart in physical memory, the kernel and the drive handle each of them.
 */
#ifndef WEIR_BENCH_BUFFERS_H
#define WEIR_BENCH_BUFFERS_H

#include "core/status.h"
#include "examples/bench/options.h"
#include <stdint.h>

struct buffers {
    unsigned char *bytes; /* 2 MiB-aligned */
    uint64_t byte_count;
    enum layout layout;
};

/* Filled with bytes that no drive and no file system can compress. LAYOUT_HUGE: huge pages are
 * asked for; else refused; LAYOUT_SCATTERED: pages are touched in random order, so that neighbours
 * lie apart. More than the machine or its container has available is WEIR_ERR_NOMEM: all of it is
 * touched, and the kernel would kill somebody. remedy: for that error, as "lower --depth". */
enum weir_status buffers_open(struct buffers *buffers, uint64_t byte_count, enum layout layout,
                              const char *remedy);
void buffers_close(struct buffers *buffers);

#endif
