/*
 * In which order the simulator runs the threads of a kernel, for tests (C and C++): a kernel whose
 * results depend on it has a race. And what launches asked for.
 */
#ifndef CUDASIM_ORDER_H
#define CUDASIM_ORDER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cudasim_order {
    CUDASIM_ORDER_FORWARD,
    CUDASIM_ORDER_REVERSE,
    CUDASIM_ORDER_RANDOM,
    CUDASIM_ORDER_COUNT
};

/* Of blocks, and of the threads of a block between two switch points; for the launches that run
 * from now on. Each order has its own poison for shared memory that nobody has written (forward:
 * nan, reverse: large and positive, random: large and negative), so that a kernel that reads such
 * memory gives different results in different orders. */
void cudasim_thread_order(enum cudasim_order order, uint64_t seed);

/* The most dynamic shared memory, in bytes, of the launches since the last time it was asked. */
uint64_t cudasim_shared_most(void);

#ifdef __cplusplus
}
#endif

#endif
