/* The operations of kernel_outputs, at shapes around a tile's and a block's edges. */
#include "tests/gpu/kernel_outputs.h"

#include <math.h>
#include <string.h>

#define ROWS   37u
#define WIDTH  130u
#define VALUES (ROWS * WIDTH)

/* Device memory of the operation: `count` values of the dtype each. */
static enum weir_status values_take(struct outputs *o, uint64_t count, enum weir_dtype dtype,
                                    void **out, int pieces)
{
    for (int i = 0; i < pieces; i++)
        WEIR_TRY(outputs_values(o, count, dtype, &out[i]));
    return WEIR_OK;
}

/* ---- windows */

static const uint32_t counts[] = {65536, 3000, 2048, 1};
#define SEGMENTS    (sizeof counts / sizeof *counts)
#define WINDOW_MOST 73728u

static uint32_t window_cut(struct weir_window_segment *segments)
{
    uint32_t at = 0;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        uint32_t padded =
            (counts[s] + WEIR_ALIGN_ELEMENTS - 1) / WEIR_ALIGN_ELEMENTS * WEIR_ALIGN_ELEMENTS;
        segments[s] = (struct weir_window_segment){at, counts[s], padded, 1.5f, (float)(s & 1)};
        at += padded;
    }
    return at;
}

/* A state as training has it: no second moment is below 0. */
static enum weir_status state_make(struct outputs *o, const struct weir_window_segment *segments,
                                   uint32_t elements, void **out)
{
    static char state[WINDOW_MOST * 10];
    uint64_t each = o->dtype == WEIR_BF16 ? 10 : 8, at = 0;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        uint64_t p = segments[s].padded_count;
        char *here = state + at;
        for (uint64_t i = 0; i < p; i++) {
            int16_t residual = (int16_t)(i * 2654435761u >> 16);
            float moments[2] = {(float)sin((double)i), (float)fabs(cos((double)i))};
            if (each == 10)
                memcpy(here + 2 * i, &residual, 2);
            memcpy(here + (each - 8) * p + 4 * i, &moments[0], 4);
            memcpy(here + (each - 4) * p + 4 * i, &moments[1], 4);
        }
        at += p * each;
    }
    return outputs_upload(o, state, elements * each, out);
}

enum weir_status outputs_adam(struct outputs *o)
{
    struct weir_adam_args a = {.dtype = o->dtype,
                               .lr = 1e-2f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-8f,
                               .weight_decay = 0.1f,
                               .clip_factor = 0.7f,
                               .correction1 = 0.271f,
                               .correction2 = 0.142625f,
                               .segment_count = SEGMENTS};
    struct weir_clear_residual_args clear = {.dtype = o->dtype, .segment_count = SEGMENTS};
    uint32_t elements = window_cut(a.segments);
    memcpy(clear.segments, a.segments, sizeof a.segments);
    uint64_t none = 0, state_bytes = elements * (o->dtype == WEIR_BF16 ? 10u : 8u);
    for (int grad = WEIR_BF16; grad <= WEIR_FP32; grad++) {
        void *weight, *gradient, *state, *bad_count;
        a.grad_dtype = (enum weir_dtype)grad;
        WEIR_TRY(outputs_values(o, elements, o->dtype, &weight));
        WEIR_TRY(outputs_values(o, elements, a.grad_dtype, &gradient));
        WEIR_TRY(state_make(o, a.segments, elements, &state));
        WEIR_TRY(outputs_upload(o, &none, sizeof none, &bad_count));
        a.weight = weight, a.grad = gradient, a.state = clear.state = state;
        a.bad_count = bad_count;
        for (int step = 0; step < 3; step++)
            WEIR_TRY(o->math->adam(o->kernels, o->stream, &a));
        WEIR_TRY(outputs_record(o, "adam weight", weight, elements, outputs_form_of(o->dtype),
                                BOUND_BITS));
        WEIR_TRY(outputs_record(o, "adam state", state, state_bytes, OUTPUTS_BYTES, BOUND_BITS));
        WEIR_TRY(outputs_record(o, "adam bad count", bad_count, 8, OUTPUTS_BYTES, BOUND_BITS));
        WEIR_TRY(o->math->clear_residual(o->kernels, o->stream, &clear));
        WEIR_TRY(
            outputs_record(o, "clear_residual", state, state_bytes, OUTPUTS_BYTES, BOUND_BITS));
    }
    return WEIR_OK;
}

enum weir_status outputs_reduce(struct outputs *o)
{
    struct weir_reduce_args a = {.grad_dtype = o->dtype, .segment_count = SEGMENTS};
    uint32_t elements = window_cut(a.segments);
    void *grad, *partials;
    double zeros[SEGMENTS] = {0};
    WEIR_TRY(outputs_values(o, elements, WEIR_FP32, &grad));
    WEIR_TRY(outputs_upload(o, zeros, sizeof zeros, &partials));
    a.grad = grad, a.partials = partials;
    WEIR_TRY(o->math->reduce(o->kernels, o->stream, &a));
    WEIR_TRY(outputs_record(o, "reduce", grad, elements, outputs_form_of(o->dtype), BOUND_BITS));
    return outputs_record(o, "reduce partials", partials, SEGMENTS, OUTPUTS_FP64, BOUND_BITS);
}

/* ---- elements */

enum weir_status outputs_casts(struct outputs *o)
{
    enum weir_dtype from = o->dtype == WEIR_BF16 ? WEIR_FP32 : WEIR_BF16;
    void *in, *m[3];
    WEIR_TRY(outputs_values(o, VALUES, from, &in));
    WEIR_TRY(values_take(o, VALUES, o->dtype, m, 3));
    struct weir_cast_args cast = {in, m[0], from, o->dtype, VALUES};
    struct weir_add_args add = {m[0], m[1], m[2], o->dtype, VALUES};
    WEIR_TRY(o->math->cast(o->kernels, o->stream, &cast));
    WEIR_TRY(o->math->add(o->kernels, o->stream, &add));
    WEIR_TRY(outputs_record(o, "cast", m[0], VALUES, outputs_form_of(o->dtype), BOUND_BITS));
    return outputs_record(o, "add", m[2], VALUES, outputs_form_of(o->dtype), BOUND_BITS);
}

enum weir_status outputs_swiglu(struct outputs *o)
{
    void *m[6];
    WEIR_TRY(values_take(o, VALUES, o->dtype, m, 6));
    struct weir_swiglu_args a = {m[0], m[1], m[2], NULL, NULL, NULL, o->dtype, VALUES};
    WEIR_TRY(o->math->swiglu_forward(o->kernels, o->stream, &a));
    a.dout = m[3], a.dgate = m[4], a.dup = m[5];
    WEIR_TRY(o->math->swiglu_backward(o->kernels, o->stream, &a));
    static const char *const names[] = {"swiglu", "swiglu dgate", "swiglu dup"};
    static const int at[] = {2, 4, 5};
    for (int i = 0; i < 3; i++)
        WEIR_TRY(outputs_record(o, names[i], m[at[i]], VALUES, outputs_form_of(o->dtype),
                                outputs_bound_of(o->dtype)));
    return WEIR_OK;
}

/* ---- rows */

enum weir_status outputs_norm(struct outputs *o)
{
    void *x[2], *f[3], *weight, *dweight, *rstd;
    WEIR_TRY(values_take(o, VALUES, o->dtype, x, 2));
    WEIR_TRY(values_take(o, VALUES, WEIR_FP32, f, 3));
    WEIR_TRY(outputs_values(o, WIDTH, o->dtype, &weight));
    WEIR_TRY(outputs_values(o, WIDTH, WEIR_FP32, &dweight));
    WEIR_TRY(outputs_values(o, ROWS, WEIR_FP32, &rstd));
    struct weir_norm_args a = {.x = x[0],
                               .weight = weight,
                               .y = x[1],
                               .rstd = rstd,
                               .rows = ROWS,
                               .width = WIDTH,
                               .eps = 1e-5f,
                               .dtype = o->dtype};
    WEIR_TRY(o->math->norm_forward(o->kernels, o->stream, &a));
    a.y = NULL, a.dy = f[0], a.residual_d = f[1], a.dx = f[2], a.dweight = dweight;
    WEIR_TRY(o->math->norm_backward(o->kernels, o->stream, &a));
    WEIR_TRY(outputs_record(o, "norm", x[1], VALUES, outputs_form_of(o->dtype),
                            outputs_bound_of(o->dtype)));
    WEIR_TRY(outputs_record(o, "norm rstd", rstd, ROWS, OUTPUTS_FP32, BOUND_FP32));
    WEIR_TRY(outputs_record(o, "norm dx", f[2], VALUES, OUTPUTS_FP32, BOUND_FP32));
    return outputs_record(o, "norm dweight", dweight, WIDTH, OUTPUTS_FP32, BOUND_FP32);
}

enum weir_status outputs_rope(struct outputs *o)
{
    void *x, *table;
    const uint32_t heads = 5, head_dim = 26;
    WEIR_TRY(outputs_values(o, (uint64_t)ROWS * heads * head_dim, o->dtype, &x));
    WEIR_TRY(outputs_values(o, ROWS * head_dim, WEIR_FP32, &table));
    struct weir_rope_table_args t = {
        .cos_sin = table, .length = ROWS, .head_dim = head_dim, .theta = 10000};
    struct weir_rope_args a = {x, table, 1, ROWS, heads, head_dim, false, o->dtype};
    WEIR_TRY(o->math->rope_table(o->kernels, o->stream, &t));
    WEIR_TRY(o->math->rope(o->kernels, o->stream, &a));
    WEIR_TRY(outputs_record(o, "rope table", table, ROWS * head_dim, OUTPUTS_FP32, BOUND_FP32));
    return outputs_record(o, "rope", x, (uint64_t)ROWS * heads * head_dim,
                          outputs_form_of(o->dtype), outputs_bound_of(o->dtype));
}

enum weir_status outputs_head(struct outputs *o)
{
    void *logits, *targets, *stats[3], *loss, *dlogits;
    const double zero = 0;
    WEIR_TRY(outputs_values(o, VALUES, WEIR_FP32, &logits));
    WEIR_TRY(outputs_ids(o, ROWS, WIDTH, &targets));
    WEIR_TRY(values_take(o, ROWS, WEIR_FP32, stats, 3));
    WEIR_TRY(outputs_upload(o, &zero, sizeof zero, &loss));
    WEIR_TRY(outputs_values(o, VALUES, o->dtype, &dlogits));
    struct weir_head_args a = {.logits = logits,
                               .targets = targets,
                               .rows = ROWS,
                               .tile_rows = WIDTH,
                               .first = true,
                               .max = stats[0],
                               .sum = stats[1],
                               .target_logit = stats[2],
                               .loss = loss,
                               .scale = 1.0f / ROWS,
                               .dlogits = dlogits,
                               .dtype = o->dtype};
    WEIR_TRY(o->math->head_stats(o->kernels, o->stream, &a));
    WEIR_TRY(o->math->head_loss(o->kernels, o->stream, &a));
    WEIR_TRY(o->math->head_grad(o->kernels, o->stream, &a));
    WEIR_TRY(outputs_record(o, "head max", stats[0], ROWS, OUTPUTS_FP32, BOUND_BITS));
    WEIR_TRY(outputs_record(o, "head sum", stats[1], ROWS, OUTPUTS_FP32, BOUND_FP32));
    WEIR_TRY(outputs_record(o, "head loss", loss, 1, OUTPUTS_FP64, BOUND_FP32));
    return outputs_record(o, "head dlogits", dlogits, VALUES, outputs_form_of(o->dtype),
                          outputs_bound_of(o->dtype));
}

/* ---- attention: grouped heads, a length that no tile divides */

static enum weir_status attention_of(struct outputs *o, uint32_t length, uint32_t head_dim)
{
    struct weir_attention_args a = {.sequences = 2,
                                    .length = length,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = head_dim,
                                    .scale = 1 / sqrtf((float)head_dim),
                                    .dtype = o->dtype};
    uint64_t n = 2ull * length, q = n * 4 * head_dim, kv = n * 2 * head_dim;
    void *of_q[4], *of_kv[4], *lse, *scratch;
    WEIR_TRY(values_take(o, q, o->dtype, of_q, 4));
    WEIR_TRY(values_take(o, kv, o->dtype, of_kv, 4));
    WEIR_TRY(outputs_values(o, n * 4, WEIR_FP32, &lse));
    uint64_t scratch_bytes = o->math->attention_scratch_bytes(&a, 2);
    WEIR_TRY(outputs_scratch(o, scratch_bytes, &scratch));
    a.q = of_q[0], a.out = of_q[1], a.dout = of_q[2], a.dq = of_q[3];
    a.k = of_kv[0], a.v = of_kv[1], a.dk = of_kv[2], a.dv = of_kv[3];
    a.lse = lse, a.scratch = scratch;
    WEIR_TRY(o->math->attention_forward(o->kernels, o->stream, &a));
    WEIR_TRY(outputs_record(o, "attention lse", lse, n * 4, OUTPUTS_FP32, BOUND_FP32));
    WEIR_TRY(o->math->attention_backward(o->kernels, o->stream, &a));
    const struct {
        const char *name;
        const void *memory;
        uint64_t count;
    } out[] = {{"attention", a.out, q},
               {"attention dq", a.dq, q},
               {"attention dk", a.dk, kv},
               {"attention dv", a.dv, kv}};
    for (int i = 0; i < 4; i++)
        WEIR_TRY(outputs_record(o, out[i].name, out[i].memory, out[i].count,
                                outputs_form_of(o->dtype), outputs_bound_of(o->dtype)));
    return WEIR_OK;
}

enum weir_status outputs_attention(struct outputs *o)
{
    WEIR_TRY(attention_of(o, 150, 64));
    WEIR_TRY(outputs_return(o));
    return attention_of(o, 70, 128);
}

enum weir_status outputs_embed(struct outputs *o)
{
    struct weir_embed_args a = {
        .token_count = ROWS, .width = WIDTH, .row_count = 19, .dtype = o->dtype};
    void *tokens, *table, *x, *d, *grad, *scratch;
    WEIR_TRY(outputs_ids(o, ROWS, 19, &tokens));
    WEIR_TRY(outputs_values(o, 19 * WIDTH, o->dtype, &table));
    WEIR_TRY(outputs_values(o, VALUES, o->dtype, &x));
    WEIR_TRY(outputs_values(o, VALUES, WEIR_FP32, &d));
    WEIR_TRY(outputs_values(o, 19 * WIDTH, WEIR_FP32, &grad));
    WEIR_TRY(outputs_scratch(o, o->math->embed_scratch_bytes(&a), &scratch));
    a.tokens = tokens, a.table = table, a.x = x, a.d = d, a.grad = grad, a.scratch = scratch;
    WEIR_TRY(o->math->embed_forward(o->kernels, o->stream, &a));
    WEIR_TRY(o->math->embed_backward(o->kernels, o->stream, &a));
    WEIR_TRY(outputs_record(o, "embed", x, VALUES, outputs_form_of(o->dtype), BOUND_BITS));
    return outputs_record(o, "embed grad", grad, 19 * WIDTH, OUTPUTS_FP32, BOUND_FP32);
}

/* ---- products, in every pair of transposes */

enum weir_status outputs_gemm(struct outputs *o)
{
    const uint32_t m = 72, n = 136, k = 104;
    void *a, *b, *c, *scratch;
    WEIR_TRY(outputs_values(o, m * k, o->dtype, &a));
    WEIR_TRY(outputs_values(o, k * n, o->dtype, &b));
    WEIR_TRY(outputs_values(o, m * n, WEIR_FP32, &c));
    for (int transposes = 0; transposes < 4; transposes++) {
        struct weir_gemm_shape shape = {
            m, n, k, transposes & 1, transposes & 2, transposes == 3, o->dtype, WEIR_FP32};
        struct weir_gemm_args args = {.a = a, .b = b, .c = c};
        uint64_t scratch_bytes;
        WEIR_TRY(o->math->gemm_prepare(o->kernels, &shape, &args.gemm, &scratch_bytes));
        WEIR_TRY(outputs_scratch(o, scratch_bytes, &scratch));
        args.scratch = scratch;
        WEIR_TRY(o->math->gemm(o->kernels, o->stream, &args));
        WEIR_TRY(outputs_record(o, "gemm", c, m * n, OUTPUTS_FP32, BOUND_FP32));
    }
    return WEIR_OK;
}

/* Each element is k, exactly, whatever the order; so that one that a split of k loses shows. */
enum weir_status outputs_gemm_ones(struct outputs *o)
{
    enum { M = 8, N = 12, K_MOST = 65537 };
    static const uint32_t depths[] = {K_MOST, 8191, 4096 + 64};
    static char ones[N * K_MOST * sizeof(float)];
    const uint16_t narrow = weir_bf16_from_float(1);
    const float wide = 1;
    const size_t each = o->dtype == WEIR_BF16 ? sizeof narrow : sizeof wide;
    for (size_t i = 0; i < (size_t)N * K_MOST; i++)
        memcpy(ones + i * each, o->dtype == WEIR_BF16 ? (const void *)&narrow : &wide, each);
    void *a, *b, *c, *scratch;
    WEIR_TRY(outputs_upload(o, ones, M * K_MOST * each, &a));
    WEIR_TRY(outputs_upload(o, ones, N * K_MOST * each, &b));
    WEIR_TRY(outputs_values(o, M * N, WEIR_FP32, &c));
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        struct weir_gemm_shape shape = {M, N, depths[i], false, true, false, o->dtype, WEIR_FP32};
        struct weir_gemm_args args = {.a = a, .b = b, .c = c};
        uint64_t scratch_bytes;
        WEIR_TRY(o->math->gemm_prepare(o->kernels, &shape, &args.gemm, &scratch_bytes));
        WEIR_TRY(outputs_scratch(o, scratch_bytes, &scratch));
        args.scratch = scratch;
        WEIR_TRY(o->math->gemm(o->kernels, o->stream, &args));
        WEIR_TRY(outputs_record(o, "gemm of ones", c, M * N, OUTPUTS_FP32, BOUND_BITS));
    }
    return WEIR_OK;
}
