/*
 * In programs for a GPU: memory that the CPU too may touch while the stream rests. It is CUDA's
 * managed memory, which moves to the GPU when a kernel uses it, so kernels run on device memory.
 */
#ifndef WEIR_TESTS_GPU_MEMORY_H
#define WEIR_TESTS_GPU_MEMORY_H

#include "core/status.h"

#include <stdint.h>

enum weir_status test_gpu_memory(uint64_t bytes, void **out);
enum weir_status test_gpu_memory_free(void *memory);

#endif
