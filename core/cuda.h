/*
 * The cuda instance of the device table (contract: core/device.h), and what kernels/ needs of it.
 * No CUDA header here: the types are CUDA's own, declared by name.
 */
#ifndef WEIR_CORE_CUDA_H
#define WEIR_CORE_CUDA_H

#include "core/device.h"

struct CUstream_st;

extern const struct weir_device_table weir_cuda_table;

/* The CUDA stream under a stream of the cuda instance. */
struct CUstream_st *weir_cuda_stream(struct weir_stream *stream);

/* code is a cudaError_t. 0: WEIR_OK. Else it is kept as by weir_cuda_keep: WEIR_ERR_DEVICE with the
 * name of the call and CUDA's text. */
enum weir_status weir_cuda_result(struct weir_device *device, int code, const char *call);
/* The calling thread's last error is a failure of the device: a library's, of which CUDA does not
 * know. The device keeps its first one. Returns that with its text, so that all callers hear the
 * same. */
enum weir_status weir_cuda_keep(struct weir_device *device);

#endif
