/*
 * The simulated CUDA runtime, as tests steer it (C and C++): cudart and the driver's cuMem* of one
 * GPU, strict, with its operations run one at a time in an order that a schedule chooses.
 *
 * A stream is a queue. Its operations run on host threads that give ThreadSanitizer exactly the
 * order that CUDA promises and no more: queueing before the operation, record before wait, the
 * operation before a successful synchronize or query. Host functions run on a thread of their
 * stream, one at a time over all streams; CUDA may do no better.
 *
 * Anything a correct program does not do (a copy of pageable memory, beyond an allocation, against
 * its direction; freed memory; device memory touched by the host; a CUDA call within a host
 * function; the default stream) ends the process with one line and status 87.
 *
 * DETERMINISM. With one host thread that sleeps only in CUDA calls, the order of operations is a
 * function of mode and seed. With several, it also depends on the order in which they call. What
 * nobody forces runs when no host thread has called for a while (a thread that sleeps for its host
 * function's sake must be woken): what runs then is a function of the state, when is not.
 */
#ifndef CUDASIM_RUNTIME_H
#define CUDASIM_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* eager: as soon as it can. lazy: when somebody waits for it, and what that needs, no more.
 * random: at each queueing, query and wait, a drawn number of operations of drawn streams. */
enum cudasim_mode { CUDASIM_EAGER, CUDASIM_LAZY, CUDASIM_RANDOM };
/* Programs choose by the environment: CUDASIM_SCHEDULE=eager, lazy or random:SEED. */
void cudasim_schedule(enum cudasim_mode mode, uint64_t seed);

/* The machine: device memory in bytes; the driver's version as CUDA gives it (13000; 0: none), and
 * how many GPUs of which compute capability. */
void cudasim_memory(uint64_t total_bytes);
/* Whether the host may touch device memory, as it may managed memory: for tests of operations. */
void cudasim_share_memory(int share);
/* A registration of more than `bytes` fails with the code, as some drivers and machines have it.
 * Without this: of 512 GiB and more, with cudaErrorMemoryAllocation. */
void cudasim_register_most(uint64_t bytes, int code);
/* The newest major compute capability that cuBLASLt has kernels for: all, unless this is called. */
void cudasim_cublaslt_newest(int major);
/* Whether kernels reach pinned host memory by its own address, as they do not on some systems
 * (WSL2). Where not, a kernel that is given such an address ends the process. */
void cudasim_reach_host(int reach);
/* Programs choose the capability by the environment: CUDASIM_CAPABILITY=8.6. */
void cudasim_machine(int driver_version, int device_count, int major, int minor);

/* The nth CUDA call from now (1 = the next) returns `code` and does nothing, but for calls that
 * free, which do so. The nth copy, fill or kernel that begins from now fails with `code`: it and
 * all later ones are skipped, and every later CUDA call returns the code, as after a fault of the
 * device. 0 turns it off. Each returns how many there were since the last time it was asked. */
uint64_t cudasim_fail_at(uint64_t nth, int code);
/* From now on calls are counted for cudasim_fail_at only if their name begins so. NULL: all. */
void cudasim_fail_only(const char *prefix);
uint64_t cudasim_fail_operation_at(uint64_t nth, int code);
/* Whether host functions that are due after a fault of the device are lost, as by a driver whose
 * GPU has fallen off the bus: they never run. */
void cudasim_lose_callbacks(int lose);
/* Forget a fault of the device, as a new process does. */
void cudasim_reset(void);

/* What CUDA still holds for the program; each on a line of stderr. */
uint64_t cudasim_leaks(void);
/* Waits for an event that was never recorded: legal, without effect, and hardly meant. */
uint64_t cudasim_unrecorded_waits(void);
uint64_t cudasim_operations(void); /* that have run since the start */

struct CUstream_st;

/* ---- for what else queues operations: the kernels' shim, the simulated cuBLASLt */

/* A CUDA call begins; 0, or the code it shall return. */
int cudasim_call(const char *name);
/* Queue run(context), then drop(context), as one operation. A cudaError_t. */
int cudasim_launch(struct CUstream_st *stream, const char *name, void (*run)(void *), void *context,
                   void (*drop)(void *));
/* Within an operation: bytes[0..count) is device memory, or memory that the device may use if
 * not device_only; else the process ends. */
/* Of a launch: no word of what a kernel is given is an address that the machine's kernels do not
 * reach; else the process ends. */
void cudasim_check_arguments(const char *kernel, const void *arguments, size_t bytes);
void cudasim_check_range(const void *bytes, size_t count, int device_only, const char *what);

#ifdef __cplusplus
}
#endif

#endif
