/*
 * The host instance of the kernels table: shared by the files that implement its operations.
 *
 * Each operation is a function weir_host_NAME that declares what it reads and writes and queues a
 * call; the call runs on the compute engine's thread and splits its loop over a team:
 *     #pragma omp parallel for num_threads(k->thread_count) schedule(static)
 * with `if (k->thread_count > 1)`, so that a team of one never enters OpenMP.
 */
#ifndef WEIR_KERNELS_HOST_H
#define WEIR_KERNELS_HOST_H

#include "kernels/kernels.h"

enum weir_isa { WEIR_ISA_GENERIC, WEIR_ISA_AVX2, WEIR_ISA_AVX512 };

#define WEIR_GEMM_MOST 256

struct weir_gemm; /* gemm.c */

struct weir_host_kernels {
    struct weir_kernels base;
    struct weir_device *device;
    struct weir_log *log;
    int thread_count; /* of the team; 1 under ThreadSanitizer */
    enum weir_isa isa;
    bool bf16_gemm; /* oneDNN multiplies bf16 here; else tiles are widened to fp32 */
    struct weir_gemm *gemms[WEIR_GEMM_MOST];
    uint32_t gemm_count;
    void *engine; /* dnnl_engine_t */
    void *stream; /* dnnl_stream_t */
    bool widening_said;
    struct weir_sticky failure; /* of an operation on the engine thread; raised by the next call */
    char description[96];
};

extern const struct weir_kernels_table weir_kernels_host;

/* What a queued call gets: the kernels and a copy of the arguments. */
struct weir_host_argument {
    struct weir_host_kernels *kernels;
    _Alignas(8) unsigned char args[WEIR_CALL_BYTES - sizeof(void *)];
};

/* Queue fn with {kernels, args}; fails with what an earlier operation reported. */
enum weir_status weir_host_queue(struct weir_kernels *kernels, struct weir_stream *stream,
                                 weir_call_fn *fn, const void *args, size_t arg_bytes,
                                 const struct weir_range *ranges, size_t range_count);

/* cast.c: a team's loop, for use inside a call. */
void weir_host_narrow(const struct weir_host_kernels *kernels, const float *in, uint16_t *out,
                      uint64_t count);
void weir_host_widen(const struct weir_host_kernels *kernels, const uint16_t *in, float *out,
                     uint64_t count);

/* gemm.c */
enum weir_status weir_host_gemm_open(struct weir_host_kernels *kernels);
void weir_host_gemm_close(struct weir_host_kernels *kernels);
enum weir_status weir_host_gemm_prepare(struct weir_kernels *kernels,
                                        const struct weir_gemm_shape *shape, uint32_t *gemm,
                                        uint64_t *scratch_bytes);
uint64_t weir_host_attention_scratch_bytes(const struct weir_attention_args *shape,
                                           int thread_count);
uint64_t weir_host_embed_scratch_bytes(const struct weir_embed_args *shape);

#define WEIR_HOST_KERNEL(name, args)                                                               \
    enum weir_status weir_host_##name(struct weir_kernels *kernels, struct weir_stream *stream,    \
                                      const struct args *a);
WEIR_HOST_KERNEL(gemm, weir_gemm_args)
WEIR_HOST_KERNEL(adam, weir_adam_args)
WEIR_HOST_KERNEL(clear_residual, weir_clear_residual_args)
WEIR_HOST_KERNEL(reduce, weir_reduce_args)
WEIR_HOST_KERNEL(cast, weir_cast_args)
WEIR_HOST_KERNEL(add, weir_add_args)
WEIR_HOST_KERNEL(embed_forward, weir_embed_args)
WEIR_HOST_KERNEL(embed_backward, weir_embed_args)
WEIR_HOST_KERNEL(norm_forward, weir_norm_args)
WEIR_HOST_KERNEL(norm_backward, weir_norm_args)
WEIR_HOST_KERNEL(rope_table, weir_rope_table_args)
WEIR_HOST_KERNEL(rope, weir_rope_args)
WEIR_HOST_KERNEL(attention_forward, weir_attention_args)
WEIR_HOST_KERNEL(attention_backward, weir_attention_args)
WEIR_HOST_KERNEL(swiglu_forward, weir_swiglu_args)
WEIR_HOST_KERNEL(swiglu_backward, weir_swiglu_args)
WEIR_HOST_KERNEL(head_stats, weir_head_args)
WEIR_HOST_KERNEL(head_loss, weir_head_args)
WEIR_HOST_KERNEL(head_grad, weir_head_args)
#undef WEIR_HOST_KERNEL

#endif
