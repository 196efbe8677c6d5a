/* Copies, matrix products, attention and Adam of device_rate. */
#include "examples/bench/device_rate.h"

#include <stdio.h>

/* ---- copies, in bytes copied */

struct copy {
    char *device, *other, *pinned_in, *pinned_out;
    uint64_t bytes;
};

static enum weir_status copy_to_device(struct rate *rate, void *context)
{
    const struct copy *c = context;
    return rate->table->copy(rate->to_device, c->device, c->pinned_in, c->bytes,
                             WEIR_COPY_TO_DEVICE);
}

static enum weir_status copy_to_host(struct rate *rate, void *context)
{
    const struct copy *c = context;
    return rate->table->copy(rate->to_host, c->pinned_out, c->other, c->bytes, WEIR_COPY_TO_HOST);
}

static enum weir_status copy_both_ways(struct rate *rate, void *context)
{
    WEIR_TRY(copy_to_device(rate, context));
    return copy_to_host(rate, context);
}

static enum weir_status copy_on_device(struct rate *rate, void *context)
{
    const struct copy *c = context;
    return rate->table->copy(rate->compute, c->device, c->other, c->bytes, WEIR_COPY_ON_DEVICE);
}

static enum weir_status copies_of(struct rate *rate, uint64_t bytes)
{
    struct copy c = {.bytes = bytes};
    void *memory[4];
    WEIR_TRY(rate_memory(rate, bytes, false, &memory[0]));
    WEIR_TRY(rate_memory(rate, bytes, false, &memory[1]));
    WEIR_TRY(rate_pinned(rate, bytes, &memory[2]));
    WEIR_TRY(rate_pinned(rate, bytes, &memory[3]));
    c.device = memory[0], c.other = memory[1], c.pinned_in = memory[2], c.pinned_out = memory[3];
    struct rate_work work = {.context = &c, .amount = (double)bytes};
    bool mib = bytes >= 1u << 20;
    snprintf(work.shape, sizeof work.shape, "%llu %s", (unsigned long long)bytes >> (mib ? 20 : 10),
             mib ? "MiB" : "KiB");
    work.name = "copy_to_device", work.run = copy_to_device;
    WEIR_TRY(rate_measure(rate, &work));
    work.name = "copy_to_host", work.run = copy_to_host;
    WEIR_TRY(rate_measure(rate, &work));
    work.name = "copy_on_device", work.run = copy_on_device;
    WEIR_TRY(rate_measure(rate, &work));
    work.name = "copy_both_ways", work.run = copy_both_ways;
    work.amount *= 2;
    return rate_measure(rate, &work);
}

enum weir_status rate_copies(struct rate *rate)
{
    static const uint64_t pieces[2][2] = {{64u << 20, 1u << 30}, {64u << 10, 256u << 10}};
    if (!rate_wanted(rate, "copy_to_device") && !rate_wanted(rate, "copy_to_host") &&
        !rate_wanted(rate, "copy_both_ways") && !rate_wanted(rate, "copy_on_device"))
        return WEIR_OK;
    for (int i = 0; i < 2; i++)
        WEIR_TRY(rate_case_end(rate, "copy", copies_of(rate, pieces[rate->tiny][i])));
    return WEIR_OK;
}

/* ---- matrix products: the up projection of a layer, forward and both gradients */

static enum weir_status gemm_run(struct rate *rate, void *context)
{
    return rate->math->gemm(rate->kernels, rate->compute, context);
}

static enum weir_status gemm_of(struct rate *rate, const char *name,
                                const struct weir_gemm_shape *shape)
{
    uint64_t in_bytes = rate_act_bytes(shape->in), scratch_bytes;
    uint64_t m = shape->m, n = shape->n, k = shape->k;
    struct weir_gemm_args args = {0};
    void *memory[4];
    WEIR_TRY(rate->math->gemm_prepare(rate->kernels, shape, &args.gemm, &scratch_bytes));
    WEIR_TRY(rate_memory(rate, m * k * in_bytes, false, &memory[0]));
    WEIR_TRY(rate_memory(rate, k * n * in_bytes, false, &memory[1]));
    WEIR_TRY(rate_memory(rate, m * n * rate_act_bytes(shape->out), true, &memory[2]));
    WEIR_TRY(rate_memory(rate, scratch_bytes + 64, true, &memory[3]));
    args.a = memory[0], args.b = memory[1], args.c = memory[2], args.scratch = memory[3];
    struct rate_work work = {.name = name,
                             .dtype = rate_dtype_name(shape->in),
                             .flops = true,
                             .amount = 2.0 * (double)m * (double)n * (double)k,
                             .run = gemm_run,
                             .context = &args};
    snprintf(work.shape, sizeof work.shape, "m %u n %u k %u", shape->m, shape->n, shape->k);
    return rate_measure(rate, &work);
}

static enum weir_status gemms_of(struct rate *rate, uint32_t tokens, uint32_t hidden,
                                 uint32_t intermediate, enum weir_dtype dtype)
{
    const struct {
        const char *name;
        struct weir_gemm_shape shape;
    } products[] = {
        {"gemm_forward", {tokens, intermediate, hidden, false, true, false, dtype, dtype}},
        {"gemm_dx", {tokens, hidden, intermediate, false, false, false, dtype, WEIR_FP32}},
        {"gemm_dw", {intermediate, hidden, tokens, true, false, true, dtype, WEIR_FP32}},
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (rate_wanted(rate, products[i].name))
            WEIR_TRY(rate_case_end(rate, products[i].name,
                                   gemm_of(rate, products[i].name, &products[i].shape)));
    return WEIR_OK;
}

enum weir_status rate_gemms(struct rate *rate)
{
    static const struct {
        uint32_t tokens[2], widths[2][2];
    } shapes[2] = {{{2048, 8192}, {{2048, 5632}, {4096, 14336}}}, {{16, 40}, {{32, 48}, {64, 96}}}};
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++)
        for (int w = 0; w < 2; w++)
            for (int t = 0; t < 2; t++)
                WEIR_TRY(gemms_of(rate, shapes[rate->tiny].tokens[t],
                                  shapes[rate->tiny].widths[w][0], shapes[rate->tiny].widths[w][1],
                                  (enum weir_dtype)dtype));
    return WEIR_OK;
}

/* ---- attention */

static enum weir_status attention_forward(struct rate *rate, void *context)
{
    return rate->math->attention_forward(rate->kernels, rate->compute, context);
}

static enum weir_status attention_backward(struct rate *rate, void *context)
{
    return rate->math->attention_backward(rate->kernels, rate->compute, context);
}

static enum weir_status attention_memory(struct rate *rate, struct weir_attention_args *a)
{
    uint64_t act = rate_act_bytes(a->dtype), n = (uint64_t)a->sequences * a->length;
    uint64_t q = n * a->heads * a->head_dim * act, kv = n * a->kv_heads * a->head_dim * act;
    uint64_t scratch = rate->math->attention_scratch_bytes(a, rate->thread_count);
    void *memory[9], *lse;
    const uint64_t bytes[9] = {q, kv, kv, q, q, q, kv, kv, scratch + 64};
    for (int i = 0; i < 9; i++)
        WEIR_TRY(rate_memory(rate, bytes[i], false, &memory[i]));
    WEIR_TRY(rate_memory(rate, n * a->heads * sizeof(float), true, &lse));
    a->q = memory[0], a->k = memory[1], a->v = memory[2], a->out = memory[3], a->dout = memory[4];
    a->dq = memory[5], a->dk = memory[6], a->dv = memory[7], a->scratch = memory[8], a->lse = lse;
    return WEIR_OK;
}

/* Causal: half of the products, two forward and five backward. */
static enum weir_status attention_of(struct rate *rate, struct weir_attention_args *a)
{
    WEIR_TRY(attention_memory(rate, a));
    double t = a->length;
    struct rate_work work = {.name = "attention_forward",
                             .dtype = rate_dtype_name(a->dtype),
                             .flops = true,
                             .amount = 2.0 * t * t * a->head_dim * a->heads * a->sequences,
                             .run = attention_forward,
                             .context = a};
    snprintf(work.shape, sizeof work.shape, "%u tokens, %u/%u heads of %u", a->length, a->heads,
             a->kv_heads, a->head_dim);
    WEIR_TRY(attention_forward(rate, a)); /* backward needs its lse and out */
    WEIR_TRY(rate_measure(rate, &work));
    work.name = "attention_backward";
    work.amount *= 2.5;
    work.run = attention_backward;
    return rate_measure(rate, &work);
}

enum weir_status rate_attention(struct rate *rate)
{
    static const struct {
        uint32_t length, heads, kv_heads, head_dim;
        enum weir_dtype dtype;
    } shapes[2][6] = {{{2048, 32, 4, 64, WEIR_BF16},
                       {8192, 32, 4, 64, WEIR_BF16},
                       {2048, 32, 8, 128, WEIR_BF16},
                       {8192, 32, 8, 128, WEIR_BF16},
                       {2048, 32, 4, 64, WEIR_FP32},
                       {2048, 32, 8, 128, WEIR_FP32}},
                      {{33, 2, 1, 64, WEIR_BF16},
                       {65, 2, 1, 64, WEIR_BF16},
                       {33, 2, 2, 128, WEIR_BF16},
                       {65, 1, 1, 128, WEIR_BF16},
                       {33, 2, 1, 64, WEIR_FP32},
                       {20, 1, 1, 128, WEIR_FP32}}};
    if (!rate_wanted(rate, "attention_forward") && !rate_wanted(rate, "attention_backward"))
        return WEIR_OK;
    for (int i = 0; i < 6; i++) {
        float scale = shapes[rate->tiny][i].head_dim == 64 ? 0.125f : 0.08838835f;
        struct weir_attention_args a = {.sequences = 1,
                                        .length = shapes[rate->tiny][i].length,
                                        .heads = shapes[rate->tiny][i].heads,
                                        .kv_heads = shapes[rate->tiny][i].kv_heads,
                                        .head_dim = shapes[rate->tiny][i].head_dim,
                                        .scale = scale,
                                        .dtype = shapes[rate->tiny][i].dtype};
        WEIR_TRY(rate_case_end(rate, "attention", attention_of(rate, &a)));
    }
    return WEIR_OK;
}

/* ---- Adam: 28 bytes a parameter, weight and state both ways and the gradient */

#define ADAM_BYTES 28.0
#define ADAM_MOST  (UINT64_C(64) << 20) /* parameters */

struct adam {
    struct weir_adam_args args;
    uint64_t window_count, window_elements, weight_bytes, state_bytes;
    char *weight, *grad, *state;
};

static enum weir_status adam_run(struct rate *rate, void *context)
{
    struct adam *adam = context;
    for (uint64_t w = 0; w < adam->window_count; w++) {
        uint64_t at = w * adam->window_elements;
        adam->args.weight = adam->weight + at * adam->weight_bytes;
        adam->args.grad = adam->grad + at * sizeof(float);
        adam->args.state = adam->state + at * adam->state_bytes;
        WEIR_TRY(rate->math->adam(rate->kernels, rate->compute, &adam->args));
    }
    return WEIR_OK;
}

static void window_cut(struct adam *adam, uint32_t segments, uint32_t elements)
{
    adam->args.segment_count = segments;
    for (uint32_t s = 0; s < segments; s++)
        adam->args.segments[s] =
            (struct weir_window_segment){s * elements, elements, elements, 1, 1};
    adam->window_elements = (uint64_t)segments * elements;
}

/* On the device, or in pinned host memory that the device reads and writes. */
static enum weir_status adam_of(struct rate *rate, enum weir_dtype dtype, bool pinned)
{
    struct adam adam = {.args = {.dtype = dtype,
                                 .grad_dtype = WEIR_FP32,
                                 .lr = 1e-3f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .clip_factor = 1,
                                 .correction1 = 0.1f,
                                 .correction2 = 0.05f},
                        .weight_bytes = rate_act_bytes(dtype),
                        .state_bytes = dtype == WEIR_BF16 ? 10 : 8};
    window_cut(&adam, rate->tiny ? 2 : WEIR_WINDOW_SEGMENTS,
               rate->tiny ? WEIR_ALIGN_ELEMENTS : WEIR_SEGMENT_ELEMENTS);
    uint64_t most = rate->host_bytes / 2 / 16 / adam.window_elements;
    adam.window_count = rate->tiny ? 2 : ADAM_MOST / adam.window_elements;
    adam.window_count = pinned && most < adam.window_count ? most : adam.window_count;
    uint64_t count = adam.window_count * adam.window_elements;
    const uint64_t bytes[4] = {count * adam.weight_bytes, count * adam.state_bytes,
                               count * sizeof(float), sizeof(uint64_t)};
    void *memory[4];
    for (int i = 0; i < 4; i++) /* the gradient is no zeros, on the device */
        WEIR_TRY(pinned ? rate_pinned(rate, bytes[i], &memory[i])
                        : rate_memory(rate, bytes[i], i != 2, &memory[i]));
    adam.weight = memory[0], adam.state = memory[1], adam.grad = memory[2];
    adam.args.bad_count = memory[3];
    struct rate_work work = {.name = pinned ? "adam_pinned" : "adam_device",
                             .dtype = rate_dtype_name(dtype),
                             .amount = ADAM_BYTES * (double)count,
                             .parameters = (double)count,
                             .run = adam_run,
                             .context = &adam};
    snprintf(work.shape, sizeof work.shape, "%llu parameters", (unsigned long long)count);
    return rate_measure(rate, &work);
}

/* A kernel that reads what it does not reach is a fault of the device, and ends all. */
static enum weir_status reach_check(struct rate *rate)
{
    struct weir_device_info info;
    rate->table->info(rate->device, &info);
    if (info.calls_run_on_cpu || info.reaches_host)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_NOMEM, "%s: its kernels do not reach pinned host memory", info.name);
}

enum weir_status rate_adam(struct rate *rate)
{
    for (int pinned = 0; pinned < 2; pinned++)
        for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++) {
            const char *name = pinned ? "adam_pinned" : "adam_device";
            if (!rate_wanted(rate, name))
                continue;
            enum weir_status status = pinned ? reach_check(rate) : WEIR_OK;
            if (status == WEIR_OK)
                status = adam_of(rate, (enum weir_dtype)dtype, pinned);
            WEIR_TRY(rate_case_end(rate, name, status));
        }
    return WEIR_OK;
}
