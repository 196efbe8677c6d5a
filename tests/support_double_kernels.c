/* The host kernels, opened as they are but for their table. */
#include "kernels/host.h"
#include "tests/support_double.h"

static enum weir_status turn(const char *operation)
{
    if (!test_fault_turn(TEST_FAULT_KERNELS))
        return WEIR_OK;
    return weir_fail_device(700, "kernels \"double\": %s failed", operation);
}

static enum weir_status double_open(struct weir_kernels **out, struct weir_device *device,
                                    int thread_count, const char *isa, struct weir_log *log)
{
    WEIR_TRY(turn("open"));
    WEIR_TRY(weir_kernels_host.open(out, device, thread_count, isa, log));
    (*out)->table = &test_double_kernels;
    return WEIR_OK;
}

static void double_close(struct weir_kernels *kernels)
{
    weir_kernels_host.close(kernels);
}

static const char *double_describe(const struct weir_kernels *kernels)
{
    return weir_kernels_host.describe(kernels);
}

static enum weir_status double_gemm_prepare(struct weir_kernels *kernels,
                                            const struct weir_gemm_shape *shape, uint32_t *gemm,
                                            uint64_t *scratch_bytes)
{
    WEIR_TRY(turn("gemm_prepare"));
    return weir_kernels_host.gemm_prepare(kernels, shape, gemm, scratch_bytes);
}

#define DOUBLE(name, args)                                                                         \
    static enum weir_status double_##name(struct weir_kernels *kernels,                            \
                                          struct weir_stream *stream, const struct args *a)        \
    {                                                                                              \
        WEIR_TRY(turn(#name));                                                                     \
        return weir_kernels_host.name(kernels, stream, a);                                         \
    }
DOUBLE(gemm, weir_gemm_args)
DOUBLE(adam, weir_adam_args)
DOUBLE(clear_residual, weir_clear_residual_args)
DOUBLE(reduce, weir_reduce_args)
DOUBLE(cast, weir_cast_args)
DOUBLE(add, weir_add_args)
DOUBLE(embed_forward, weir_embed_args)
DOUBLE(embed_backward, weir_embed_args)
DOUBLE(norm_forward, weir_norm_args)
DOUBLE(norm_backward, weir_norm_args)
DOUBLE(rope_table, weir_rope_table_args)
DOUBLE(rope, weir_rope_args)
DOUBLE(attention_forward, weir_attention_args)
DOUBLE(attention_backward, weir_attention_args)
DOUBLE(swiglu_forward, weir_swiglu_args)
DOUBLE(swiglu_backward, weir_swiglu_args)
DOUBLE(head_stats, weir_head_args)
DOUBLE(head_loss, weir_head_args)
DOUBLE(head_grad, weir_head_args)

const struct weir_kernels_table test_double_kernels = {
    .name = "host",
    .open = double_open,
    .close = double_close,
    .describe = double_describe,
    .gemm_prepare = double_gemm_prepare,
    .attention_scratch_bytes = weir_host_attention_scratch_bytes,
    .embed_scratch_bytes = weir_host_embed_scratch_bytes,
    .gemm = double_gemm,
    .adam = double_adam,
    .clear_residual = double_clear_residual,
    .reduce = double_reduce,
    .cast = double_cast,
    .add = double_add,
    .embed_forward = double_embed_forward,
    .embed_backward = double_embed_backward,
    .norm_forward = double_norm_forward,
    .norm_backward = double_norm_backward,
    .rope_table = double_rope_table,
    .rope = double_rope,
    .attention_forward = double_attention_forward,
    .attention_backward = double_attention_backward,
    .swiglu_forward = double_swiglu_forward,
    .swiglu_backward = double_swiglu_backward,
    .head_stats = double_head_stats,
    .head_loss = double_head_loss,
    .head_grad = double_head_grad,
};
