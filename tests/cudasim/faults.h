/*
 * Small kernels, each right or with one planted fault, for the tests of the simulator itself.
 */
#ifndef CUDASIM_FAULTS_H
#define CUDASIM_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

#define FAULT_THREADS 64u
#define FAULT_BLOCKS  4u

/* Queue a grid of FAULT_BLOCKS blocks that reads in[FAULT_BLOCKS * FAULT_THREADS] and writes
 * out[FAULT_BLOCKS * FAULT_THREADS]; with or without its fault. */
typedef int fault_launch(struct CUstream_st *stream, bool planted, const uint32_t *in,
                         uint32_t *out);

fault_launch fault_reuse;          /* shared memory is written again before all have read it */
fault_launch fault_early_read;     /* ... is read without a barrier after the write */
fault_launch fault_lock_step;      /* ... is exchanged within a warp without __syncwarp */
fault_launch fault_plain_add;      /* blocks add to one word without an atomic */
fault_launch fault_unwritten;      /* a word of shared memory that nobody wrote is read */
fault_launch fault_stale;          /* ... which the block before this one wrote */
fault_launch fault_overrun;        /* one word behind dynamic shared memory is written */
fault_launch fault_static_overrun; /* ... behind static shared memory */
fault_launch fault_odd_vector;     /* 16 bytes are read at once from 4 bytes off */
fault_launch fault_divergent;      /* half of the block waits in another barrier */
fault_launch fault_early_exit;     /* half of the block exits before a barrier */
fault_launch fault_outside_mask;   /* a shuffle reads a lane that its mask does not name */
fault_launch fault_foreign_mask;   /* a lane calls a shuffle whose mask does not name it */
fault_launch fault_missing_lane;   /* one lane does not come to a shuffle */
fault_launch fault_no_wait;        /* cp.async is read before its wait */
fault_launch fault_wait_alone;     /* ... after the thread's wait, without a barrier */
fault_launch fault_never_waited;   /* ... never waited for at all */
fault_launch fault_misaligned;     /* cp.async to 8 bytes off */
fault_launch fault_ldmatrix;       /* ldmatrix from 8 bytes off */
fault_launch fault_block_size;     /* 1056 threads */
fault_launch fault_shared_bytes;   /* 64 KiB of dynamic shared memory without leave */
fault_launch fault_shared_most;    /* leave for 100 KiB */

/* c[16][8] = a[16][16] b[16][8] for one warp: fragments by ldmatrix, in shared memory. */
int fault_product(struct CUstream_st *stream, const uint16_t *a, const uint16_t *b, float *c);
/* What each shuffle and vote gives for lane values 100 + lane: out[8][32]. */
int fault_shuffles(struct CUstream_st *stream, int32_t *out);

#ifdef __cplusplus
}
#endif

#endif
