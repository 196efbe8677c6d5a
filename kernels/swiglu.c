/*
 * SwiGLU (Shazeer 2020): out = silu(gate) * up, silu(g) = g / (1 + exp(-g)).
 */
#include "kernels/expf.h"
#include "kernels/host.h"
#include "kernels/rows.h"

#define CHUNK 4096u

WEIR_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + weir_exp(-x));
}

WEIR_INLINE void forward_any(const struct weir_swiglu_args *a, uint64_t first, uint64_t end,
                             int bf16)
{
    WEIR_SIMD
    for (uint64_t i = first; i < end; i++) {
        float g = weir_act_load(a->gate, bf16, i);
        weir_act_store(a->out, bf16, i, g * sigmoid(g) * weir_act_load(a->up, bf16, i));
    }
}

WEIR_INLINE void backward_loop(const struct weir_swiglu_args *a, uint64_t first, uint64_t end,
                               int bf16, int with_out)
{
    WEIR_SIMD
    for (uint64_t i = first; i < end; i++) {
        float g = weir_act_load(a->gate, bf16, i), u = weir_act_load(a->up, bf16, i);
        float d = weir_act_load(a->dout, bf16, i), s = sigmoid(g), silu = g * s;
        weir_act_store(a->dup, bf16, i, d * silu);
        weir_act_store(a->dgate, bf16, i, d * u * (s + silu * (1.0f - s)));
        if (with_out)
            weir_act_store(a->out, bf16, i, silu * u);
    }
}

/* Two loops: a choice inside would keep it from becoming vectors. */
WEIR_INLINE void backward_any(const struct weir_swiglu_args *a, uint64_t first, uint64_t end,
                              int bf16)
{
    if (a->out)
        backward_loop(a, first, end, bf16, 1);
    else
        backward_loop(a, first, end, bf16, 0);
}

#define FORM(name, any, bf16)                                                                      \
    WEIR_INLINE void name##_body(const struct weir_swiglu_args *a, uint64_t first, uint64_t end)   \
    {                                                                                              \
        any(a, first, end, bf16);                                                                  \
    }                                                                                              \
    WEIR_EACH_ISA(static void, name,                                                               \
                  (const struct weir_swiglu_args *a, uint64_t first, uint64_t end),                \
                  (a, first, end))
FORM(forward_bf16, forward_any, 1)
FORM(forward_fp32, forward_any, 0)
FORM(backward_bf16, backward_any, 1)
FORM(backward_fp32, backward_any, 0)

static void swiglu_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_swiglu_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint64_t at = 0; at < a.count; at += CHUNK) {
        uint64_t end = a.count - at < CHUNK ? a.count : at + CHUNK;
        if (a.dout && a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, backward_bf16, (&a, at, end));
        else if (a.dout)
            WEIR_BY_ISA(k->isa, backward_fp32, (&a, at, end));
        else if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, forward_bf16, (&a, at, end));
        else
            WEIR_BY_ISA(k->isa, forward_fp32, (&a, at, end));
    }
}

enum weir_status weir_host_swiglu_forward(struct weir_kernels *kernels, struct weir_stream *stream,
                                          const struct weir_swiglu_args *a)
{
    uint64_t bytes = weir_act_bytes(a->dtype, a->count);
    struct weir_swiglu_args forward = *a;
    forward.dout = NULL;
    struct weir_range ranges[] = {
        {a->gate, bytes, false}, {a->up, bytes, false}, {a->out, bytes, true}};
    return weir_host_queue(kernels, stream, swiglu_run, &forward, sizeof forward, ranges, 3);
}

enum weir_status weir_host_swiglu_backward(struct weir_kernels *kernels, struct weir_stream *stream,
                                           const struct weir_swiglu_args *a)
{
    uint64_t bytes = weir_act_bytes(a->dtype, a->count);
    struct weir_range ranges[] = {{a->gate, bytes, false}, {a->up, bytes, false},
                                  {a->dout, bytes, false}, {a->dgate, bytes, true},
                                  {a->dup, bytes, true},   {a->out, bytes, true}};
    return weir_host_queue(kernels, stream, swiglu_run, a, sizeof *a, ranges, a->out ? 6 : 5);
}
