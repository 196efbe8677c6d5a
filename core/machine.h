/*
 * What the machine can still give.
 */
#ifndef WEIR_CORE_MACHINE_H
#define WEIR_CORE_MACHINE_H

#include <stdint.h>

/* Bytes of memory that this process may take before the kernel kills somebody for it: MemAvailable,
 * or what the limits of its control groups (v2 and v1) leave, if that is less. Caches of files
 * count as available; swap does not, as slabs have to stay in memory. UINT64_MAX: nothing tells.
 * root: "", or a directory that has another proc and sys, for tests. */
uint64_t weir_memory_available_bytes(const char *root);

#endif
