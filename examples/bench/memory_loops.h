/*
 * Passes over arrays of floats by a team, for rates of memory.
 */
#ifndef WEIR_BENCH_MEMORY_LOOPS_H
#define WEIR_BENCH_MEMORY_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

#define LOOP_ELEMENTS 65536u /* counts are multiples of it */

struct loop {
    float *a; /* written */
    const float *b, *c;
    uint64_t count; /* elements */
    int thread_count;
    uint64_t sum; /* of read: so that nothing is left out */
};

typedef void loop_fn(struct loop *loop);

loop_fn loop_read;        /* b */
loop_fn loop_copy;        /* a = b */
loop_fn loop_triad;       /* a = b + s c */
loop_fn loop_copy_stream; /* with stores past the caches */
loop_fn loop_triad_stream;
/* Whether this CPU has such stores for us. */
bool loop_streams(void);

#endif
