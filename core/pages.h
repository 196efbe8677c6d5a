/*
 * Memory by the page, for slabs: no more bytes than were asked for, huge pages where the kernel
 * gives them (they double the rate of direct I/O: docs/benchmarks.md), all there before it is used.
 */
#ifndef WEIR_CORE_PAGES_H
#define WEIR_CORE_PAGES_H

#include "core/status.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Fresh zeroed pages, aligned to 4 KiB; from 2 MiB on to 2 MiB, in huge pages. owner is for what is
 * said: NOMEM, also where the machine has fewer bytes available, and once by `told` that the kernel
 * refuses huge pages. log: NULL is silent. */
enum weir_status weir_pages_map(const char *owner, struct weir_log *log, _Atomic bool *told,
                                uint64_t bytes, void **out);
void weir_pages_unmap(void *memory, uint64_t bytes); /* as they were mapped */

/* Zeros, written on as many cores as this thread may use. So fresh pages are backed, at memory's
 * speed, where this thread's NUMA policy says, and what the machine has not is missed now. */
void weir_pages_clear(void *memory, uint64_t bytes);

#endif
