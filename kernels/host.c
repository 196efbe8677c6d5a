/*
 * Opening the host instance: which instruction set, how large a team, and the table.
 */
#include "kernels/host.h"
#include "core/memory.h"

#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
#define TEAM_OF_ONE 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEAM_OF_ONE 1
#endif
#endif
#ifndef TEAM_OF_ONE
#define TEAM_OF_ONE 0 /* ThreadSanitizer does not know OpenMP's barriers */
#endif

static const char *const isa_names[] = {"generic", "avx2", "avx512"};

static enum weir_isa isa_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return WEIR_ISA_AVX512;
    if (__builtin_cpu_supports("avx2"))
        return WEIR_ISA_AVX2;
#endif
    return WEIR_ISA_GENERIC;
}

static enum weir_status isa_choose(const char *name, enum weir_isa *isa)
{
    enum weir_isa best = isa_best();
    *isa = best;
    if (!name || strcmp(name, "auto") == 0)
        return WEIR_OK;
    for (enum weir_isa i = WEIR_ISA_GENERIC; i <= best; i++)
        if (strcmp(isa_names[i], name) == 0) {
            *isa = i;
            return WEIR_OK;
        }
    return weir_fail(WEIR_ERR_UNSUPPORTED,
                     "instruction set \"%s\": this CPU has up to %s; choose "
                     "auto",
                     name, isa_names[best]);
}

static void host_close(struct weir_kernels *kernels)
{
    struct weir_host_kernels *k = (struct weir_host_kernels *)kernels;
    weir_host_gemm_close(k);
    weir_free(k);
}

static enum weir_status host_open(struct weir_kernels **out, struct weir_device *device,
                                  int thread_count, const char *isa, struct weir_log *log)
{
    struct weir_host_kernels *k;
    enum weir_isa chosen;
    if (thread_count < 1)
        return weir_fail(WEIR_ERR_ARG, "kernels \"host\": a team of %d threads; give at least 1",
                         thread_count);
    WEIR_TRY(isa_choose(isa, &chosen));
    WEIR_TRY(weir_alloc(&k, 1, sizeof *k, "kernels"));
    k->base.table = &weir_kernels_host;
    k->device = device;
    k->log = log;
    k->thread_count = TEAM_OF_ONE ? 1 : thread_count;
    k->isa = chosen;
    k->failure = (struct weir_sticky)WEIR_STICKY_INIT;
    enum weir_status status = weir_host_gemm_open(k);
    if (status != WEIR_OK) {
        host_close(&k->base);
        return status;
    }
    snprintf(k->description, sizeof k->description, "host %s, %s GEMM, %d threads",
             isa_names[k->isa], k->bf16_gemm ? "bf16" : "widened fp32", k->thread_count);
    *out = &k->base;
    return WEIR_OK;
}

static const char *host_describe(const struct weir_kernels *kernels)
{
    return ((const struct weir_host_kernels *)kernels)->description;
}

enum weir_status weir_host_queue(struct weir_kernels *kernels, struct weir_stream *stream,
                                 weir_call_fn *fn, const void *args, size_t arg_bytes,
                                 const struct weir_range *ranges, size_t range_count)
{
    struct weir_host_argument argument;
    if (arg_bytes > sizeof argument.args)
        return weir_fail(WEIR_ERR_ARG, "kernel call: %zu bytes of arguments, at most %zu",
                         arg_bytes, sizeof argument.args);
    argument.kernels = (struct weir_host_kernels *)kernels;
    WEIR_TRY(weir_sticky_raise(&argument.kernels->failure));
    memcpy(argument.args, args, arg_bytes);
    return stream->device->table->call(stream, fn, &argument,
                                       offsetof(struct weir_host_argument, args) + arg_bytes,
                                       ranges, range_count);
}

const struct weir_kernels_table weir_kernels_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .describe = host_describe,
    .gemm_prepare = weir_host_gemm_prepare,
    .attention_scratch_bytes = weir_host_attention_scratch_bytes,
    .embed_scratch_bytes = weir_host_embed_scratch_bytes,
    .gemm = weir_host_gemm,
    .adam = weir_host_adam,
    .clear_residual = weir_host_clear_residual,
    .reduce = weir_host_reduce,
    .cast = weir_host_cast,
    .add = weir_host_add,
    .embed_forward = weir_host_embed_forward,
    .embed_backward = weir_host_embed_backward,
    .norm_forward = weir_host_norm_forward,
    .norm_backward = weir_host_norm_backward,
    .rope_table = weir_host_rope_table,
    .rope = weir_host_rope,
    .attention_forward = weir_host_attention_forward,
    .attention_backward = weir_host_attention_backward,
    .swiglu_forward = weir_host_swiglu_forward,
    .swiglu_backward = weir_host_swiglu_backward,
    .head_stats = weir_host_head_stats,
    .head_loss = weir_host_head_loss,
    .head_grad = weir_host_head_grad,
};
