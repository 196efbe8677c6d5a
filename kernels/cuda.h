/*
 * The cuda instance of the kernels table: shared by the .cu files that implement its operations.
 *
 * Each operation is a function weir_cuda_NAME that launches its kernels on the stream. Its numerics
 * are those of kernels/kernels.h in fp32 with these freedoms: the order of a sum is the kernel's
 * own, fixed by the shape alone (no atomic adds of floats), and products and sums may be fused.
 * adam, cast, reduce and clear_residual have none: they agree with the host's to the bit (but for
 * which nan a nan is), and are compiled without fused multiply-add.
 */
#ifndef WEIR_KERNELS_CUDA_H
#define WEIR_KERNELS_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif
#include "core/cuda.h"
#include "kernels/kernels.h"

struct weir_cuda_gemms; /* gemm.cu */

struct weir_cuda_kernels {
    struct weir_kernels base;
    struct weir_device *device;
    struct weir_log *log;
    struct weir_cuda_gemms *gemms;
    int capability;              /* major */
    uint64_t shared_bytes;       /* of a multiprocessor, for its blocks together */
    uint64_t block_shared_bytes; /* that CUDA takes of it for each */
    bool attention_told; /* who queues: that attention does without tensor cores was logged */
    char description[128];
};

extern const struct weir_kernels_table weir_kernels_cuda;

/* gemm.cu */
enum weir_status weir_cuda_gemm_open(struct weir_cuda_kernels *kernels);
void weir_cuda_gemm_close(struct weir_cuda_kernels *kernels);
enum weir_status weir_cuda_gemm_prepare(struct weir_kernels *kernels,
                                        const struct weir_gemm_shape *shape, uint32_t *gemm,
                                        uint64_t *scratch_bytes);
uint64_t weir_cuda_attention_scratch_bytes(const struct weir_attention_args *shape,
                                           int thread_count);
uint64_t weir_cuda_embed_scratch_bytes(const struct weir_embed_args *shape);

#define WEIR_CUDA_KERNEL(name, args)                                                               \
    enum weir_status weir_cuda_##name(struct weir_kernels *kernels, struct weir_stream *stream,    \
                                      const struct args *a);
WEIR_CUDA_KERNEL(gemm, weir_gemm_args)
WEIR_CUDA_KERNEL(adam, weir_adam_args)
WEIR_CUDA_KERNEL(clear_residual, weir_clear_residual_args)
WEIR_CUDA_KERNEL(reduce, weir_reduce_args)
WEIR_CUDA_KERNEL(cast, weir_cast_args)
WEIR_CUDA_KERNEL(add, weir_add_args)
WEIR_CUDA_KERNEL(embed_forward, weir_embed_args)
WEIR_CUDA_KERNEL(embed_backward, weir_embed_args)
WEIR_CUDA_KERNEL(norm_forward, weir_norm_args)
WEIR_CUDA_KERNEL(norm_backward, weir_norm_args)
WEIR_CUDA_KERNEL(rope_table, weir_rope_table_args)
WEIR_CUDA_KERNEL(rope, weir_rope_args)
WEIR_CUDA_KERNEL(attention_forward, weir_attention_args)
WEIR_CUDA_KERNEL(attention_backward, weir_attention_args)
WEIR_CUDA_KERNEL(swiglu_forward, weir_swiglu_args)
WEIR_CUDA_KERNEL(swiglu_backward, weir_swiglu_args)
WEIR_CUDA_KERNEL(head_stats, weir_head_args)
WEIR_CUDA_KERNEL(head_loss, weir_head_args)
WEIR_CUDA_KERNEL(head_grad, weir_head_args)
#undef WEIR_CUDA_KERNEL

#ifdef __cplusplus
}
#endif
#endif
