/*
 * Operations that no source of kernels/ defines yet (scripts/cuda.cmake looks): refused by name.
 */
#include "kernels/cuda.h"

#define MISSING(name, args)                                                                        \
    enum weir_status weir_cuda_##name(struct weir_kernels *, struct weir_stream *,                 \
                                      const struct args *)                                         \
    {                                                                                              \
        return weir_fail(WEIR_ERR_UNSUPPORTED, "kernels \"cuda\": no " #name " in this build");    \
    }
#ifdef MISSING_gemm
MISSING(gemm, weir_gemm_args)
enum weir_status weir_cuda_gemm_open(struct weir_cuda_kernels *)
{
    return WEIR_OK;
}
void weir_cuda_gemm_close(struct weir_cuda_kernels *)
{
}
enum weir_status weir_cuda_gemm_prepare(struct weir_kernels *, const struct weir_gemm_shape *,
                                        uint32_t *, uint64_t *)
{
    return weir_fail(WEIR_ERR_UNSUPPORTED, "kernels \"cuda\": no gemm in this build");
}
#endif
#ifdef MISSING_adam
MISSING(adam, weir_adam_args)
#endif
#ifdef MISSING_clear_residual
MISSING(clear_residual, weir_clear_residual_args)
#endif
#ifdef MISSING_reduce
MISSING(reduce, weir_reduce_args)
#endif
#ifdef MISSING_cast
MISSING(cast, weir_cast_args)
#endif
#ifdef MISSING_add
MISSING(add, weir_add_args)
#endif
#ifdef MISSING_embed_forward
MISSING(embed_forward, weir_embed_args)
#endif
#ifdef MISSING_embed_backward
MISSING(embed_backward, weir_embed_args)
uint64_t weir_cuda_embed_scratch_bytes(const struct weir_embed_args *)
{
    return 0;
}
#endif
#ifdef MISSING_norm_forward
MISSING(norm_forward, weir_norm_args)
#endif
#ifdef MISSING_norm_backward
MISSING(norm_backward, weir_norm_args)
#endif
#ifdef MISSING_rope_table
MISSING(rope_table, weir_rope_table_args)
#endif
#ifdef MISSING_rope
MISSING(rope, weir_rope_args)
#endif
#ifdef MISSING_attention_forward
MISSING(attention_forward, weir_attention_args)
#endif
#ifdef MISSING_attention_backward
MISSING(attention_backward, weir_attention_args)
uint64_t weir_cuda_attention_scratch_bytes(const struct weir_attention_args *, int)
{
    return 0;
}
#endif
#ifdef MISSING_swiglu_forward
MISSING(swiglu_forward, weir_swiglu_args)
#endif
#ifdef MISSING_swiglu_backward
MISSING(swiglu_backward, weir_swiglu_args)
#endif
#ifdef MISSING_head_stats
MISSING(head_stats, weir_head_args)
#endif
#ifdef MISSING_head_loss
MISSING(head_loss, weir_head_args)
#endif
#ifdef MISSING_head_grad
MISSING(head_grad, weir_head_args)
#endif
