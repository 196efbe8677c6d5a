/*
 * Opening the cuda instance of the kernels table, and the table.
 */
#include "kernels/cuda.h"
extern "C" {
#include "core/memory.h"
}

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static struct weir_cuda_kernels *of(struct weir_kernels *kernels)
{
    return reinterpret_cast<struct weir_cuda_kernels *>(kernels);
}

static void cuda_close(struct weir_kernels *kernels)
{
    weir_cuda_gemm_close(of(kernels));
    weir_free(kernels);
}

static enum weir_status properties_read(struct weir_cuda_kernels *k)
{
    cudaDeviceProp properties;
    WEIR_TRY(weir_cuda_result(k->device, (int)cudaGetDeviceProperties(&properties, 0),
                              "cudaGetDeviceProperties"));
    k->capability = properties.major;
    k->shared_bytes = properties.sharedMemPerMultiprocessor;
    k->block_shared_bytes = properties.reservedSharedMemPerBlock;
    return WEIR_OK;
}

static enum weir_status cuda_open(struct weir_kernels **out, struct weir_device *device, int,
                                  const char *isa, struct weir_log *log)
{
    if (isa && strcmp(isa, "auto") != 0)
        return weir_fail(
            WEIR_ERR_UNSUPPORTED,
            "instruction set \"%s\": kernels \"cuda\" have none to choose from; choose "
            "auto",
            isa);
    struct weir_cuda_kernels *k;
    WEIR_TRY(weir_alloc(&k, 1, sizeof *k, "kernels"));
    k->base.table = &weir_kernels_cuda;
    k->device = device;
    k->log = log;
    enum weir_status status = properties_read(k);
    if (status == WEIR_OK)
        status = weir_cuda_gemm_open(k);
    if (status != WEIR_OK) {
        weir_free(k);
        return status;
    }
    struct weir_device_info info;
    device->table->info(device, &info);
    snprintf(k->description, sizeof k->description, "cuda %s, cuBLASLt GEMM", info.name);
    *out = &k->base;
    return WEIR_OK;
}

static const char *cuda_describe(const struct weir_kernels *kernels)
{
    return reinterpret_cast<const struct weir_cuda_kernels *>(kernels)->description;
}

const struct weir_kernels_table weir_kernels_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .gemm_prepare = weir_cuda_gemm_prepare,
    .attention_scratch_bytes = weir_cuda_attention_scratch_bytes,
    .embed_scratch_bytes = weir_cuda_embed_scratch_bytes,
    .gemm = weir_cuda_gemm,
    .adam = weir_cuda_adam,
    .clear_residual = weir_cuda_clear_residual,
    .reduce = weir_cuda_reduce,
    .cast = weir_cuda_cast,
    .add = weir_cuda_add,
    .embed_forward = weir_cuda_embed_forward,
    .embed_backward = weir_cuda_embed_backward,
    .norm_forward = weir_cuda_norm_forward,
    .norm_backward = weir_cuda_norm_backward,
    .rope_table = weir_cuda_rope_table,
    .rope = weir_cuda_rope,
    .attention_forward = weir_cuda_attention_forward,
    .attention_backward = weir_cuda_attention_backward,
    .swiglu_forward = weir_cuda_swiglu_forward,
    .swiglu_backward = weir_cuda_swiglu_backward,
    .head_stats = weir_cuda_head_stats,
    .head_loss = weir_cuda_head_loss,
    .head_grad = weir_cuda_head_grad,
};
