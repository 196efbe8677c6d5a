/* Operations on rows of device_rate, in the bytes that they must read and write. */
#include "examples/bench/device_rate.h"

#include <stdio.h>

struct rows {
    uint32_t tokens, width, heads, head_dim;
    uint64_t values; /* tokens x width */
};

static struct rows rows_of(const struct rate *rate)
{
    struct rows r = {8192, 4096, 32, 128, 0};
    if (rate->tiny)
        r = (struct rows){9, 64, 2, 32, 0};
    r.values = (uint64_t)r.tokens * r.width;
    return r;
}

static struct rate_work work_of(const char *name, uint32_t rows, uint32_t width,
                                enum weir_dtype dtype, double bytes,
                                enum weir_status (*run)(struct rate *, void *), void *context)
{
    struct rate_work work = {.name = name,
                             .dtype = rate_dtype_name(dtype),
                             .amount = bytes,
                             .run = run,
                             .context = context};
    snprintf(work.shape, sizeof work.shape, "%u x %u", rows, width);
    return work;
}

#define RUN(operation)                                                                             \
    static enum weir_status operation##_run(struct rate *rate, void *context)                      \
    {                                                                                              \
        return rate->math->operation(rate->kernels, rate->compute, context);                       \
    }
RUN(norm_forward)
RUN(norm_backward)
RUN(rope)
RUN(swiglu_forward)
RUN(swiglu_backward)
RUN(add)
RUN(cast)
RUN(reduce)
RUN(head_stats)
RUN(head_grad)
RUN(embed_forward)
RUN(embed_backward)
#undef RUN

/* Backward reads x, the norm's gradient and the residual's, and writes one. */
static enum weir_status norms_of(struct rate *rate, enum weir_dtype dtype)
{
    struct rows r = rows_of(rate);
    uint64_t act = rate_act_bytes(dtype);
    struct weir_norm_args a = {.rows = r.tokens, .width = r.width, .eps = 1e-5f, .dtype = dtype};
    void *memory[8];
    const uint64_t bytes[8] = {r.values * act,  r.width * act,   r.values * act,  r.tokens * 4ull,
                               r.values * 4ull, r.values * 4ull, r.values * 4ull, r.width * 4ull};
    for (int i = 0; i < 8; i++)
        WEIR_TRY(rate_memory(rate, bytes[i], false, &memory[i]));
    a.x = memory[0], a.weight = memory[1], a.y = memory[2], a.rstd = memory[3];
    struct rate_work work = work_of("norm_forward", r.tokens, r.width, dtype,
                                    (double)(r.values * 2 * act + r.width * act + r.tokens * 4ull),
                                    norm_forward_run, &a);
    WEIR_TRY(norm_forward_run(rate, &a)); /* backward needs its rstd */
    WEIR_TRY(rate_measure(rate, &work));
    a.y = NULL, a.dy = memory[4], a.residual_d = memory[5], a.dx = memory[6], a.dweight = memory[7];
    a.fresh = true;
    work = work_of("norm_backward", r.tokens, r.width, dtype,
                   (double)(r.values * (act + 12) + r.width * (act + 4) + r.tokens * 4ull),
                   norm_backward_run, &a);
    return rate_measure(rate, &work);
}

static enum weir_status rope_of(struct rate *rate, enum weir_dtype dtype)
{
    struct rows r = rows_of(rate);
    void *x, *table;
    uint64_t table_bytes = (uint64_t)r.tokens * r.head_dim * sizeof(float);
    WEIR_TRY(rate_memory(rate, r.values * rate_act_bytes(dtype), false, &x));
    WEIR_TRY(rate_memory(rate, table_bytes, true, &table));
    struct weir_rope_table_args t = {
        .cos_sin = table, .length = r.tokens, .head_dim = r.head_dim, .theta = 10000};
    WEIR_TRY(rate->math->rope_table(rate->kernels, rate->compute, &t));
    struct weir_rope_args a = {.x = x,
                               .cos_sin = table,
                               .sequences = 1,
                               .length = r.tokens,
                               .heads = r.heads,
                               .head_dim = r.head_dim,
                               .dtype = dtype};
    struct rate_work work =
        work_of("rope", r.tokens, r.width, dtype,
                (double)(r.values * 2 * rate_act_bytes(dtype) + table_bytes), rope_run, &a);
    return rate_measure(rate, &work);
}

static enum weir_status swiglu_of(struct rate *rate, enum weir_dtype dtype)
{
    struct rows r = rows_of(rate);
    uint64_t act = rate_act_bytes(dtype);
    void *memory[6];
    for (int i = 0; i < 6; i++)
        WEIR_TRY(rate_memory(rate, r.values * act, false, &memory[i]));
    struct weir_swiglu_args a = {.gate = memory[0],
                                 .up = memory[1],
                                 .out = memory[2],
                                 .dout = memory[3],
                                 .dgate = memory[4],
                                 .dup = memory[5],
                                 .dtype = dtype,
                                 .count = r.values};
    struct rate_work work = work_of("swiglu_forward", r.tokens, r.width, dtype,
                                    (double)(r.values * 3 * act), swiglu_forward_run, &a);
    WEIR_TRY(rate_measure(rate, &work));
    work = work_of("swiglu_backward", r.tokens, r.width, dtype, (double)(r.values * 6 * act),
                   swiglu_backward_run, &a);
    return rate_measure(rate, &work);
}

/* add in the dtype; cast to it, from fp32, or from it to the other. */
static enum weir_status elements_of(struct rate *rate, enum weir_dtype dtype)
{
    struct rows r = rows_of(rate);
    uint64_t act = rate_act_bytes(dtype);
    void *memory[3];
    for (int i = 0; i < 3; i++)
        WEIR_TRY(rate_memory(rate, r.values * 4, false, &memory[i]));
    struct weir_add_args a = {
        .a = memory[0], .b = memory[1], .out = memory[2], .dtype = dtype, .count = r.values};
    struct rate_work work =
        work_of("add", r.tokens, r.width, dtype, (double)(r.values * 3 * act), add_run, &a);
    WEIR_TRY(rate_measure(rate, &work));
    struct weir_cast_args c = {.in = memory[0],
                               .out = memory[1],
                               .from = dtype == WEIR_BF16 ? WEIR_FP32 : WEIR_BF16,
                               .to = dtype,
                               .count = r.values};
    work = work_of("cast", r.tokens, r.width, dtype, (double)(r.values * 6), cast_run, &c);
    return rate_measure(rate, &work);
}

/* One window of a gradient. Zeros: repeated in place, other values would turn to noise. */
static enum weir_status reduce_of(struct rate *rate, enum weir_dtype dtype)
{
    uint32_t segments = rate->tiny ? 2 : WEIR_WINDOW_SEGMENTS;
    uint32_t elements = rate->tiny ? WEIR_ALIGN_ELEMENTS : WEIR_SEGMENT_ELEMENTS;
    uint64_t count = (uint64_t)segments * elements;
    void *grad, *partials;
    WEIR_TRY(rate_memory(rate, count * sizeof(float), true, &grad));
    WEIR_TRY(rate_memory(rate, segments * sizeof(double), true, &partials));
    struct weir_reduce_args a = {
        .grad_dtype = dtype, .grad = grad, .partials = partials, .segment_count = segments};
    for (uint32_t s = 0; s < segments; s++)
        a.segments[s] = (struct weir_window_segment){s * elements, elements, elements, 1, 1};
    struct rate_work work = work_of("reduce", segments, elements, dtype,
                                    (double)(count * (dtype == WEIR_BF16 ? 6 : 4)), reduce_run, &a);
    return rate_measure(rate, &work);
}

enum weir_status rate_rows(struct rate *rate)
{
    static const struct {
        const char *first, *second;
        enum weir_status (*measure)(struct rate *, enum weir_dtype);
    } cases[] = {{"norm_forward", "norm_backward", norms_of},
                 {"rope", "rope", rope_of},
                 {"swiglu_forward", "swiglu_backward", swiglu_of},
                 {"add", "cast", elements_of},
                 {"reduce", "reduce", reduce_of}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++)
            if (rate_wanted(rate, cases[i].first) || rate_wanted(rate, cases[i].second))
                WEIR_TRY(rate_case_end(rate, cases[i].first,
                                       cases[i].measure(rate, (enum weir_dtype)dtype)));
    return WEIR_OK;
}

/* Ids below `most`, from a fixed stride: device memory of `count`. */
static enum weir_status ids_make(struct rate *rate, uint32_t count, uint32_t most, void **out)
{
    void *pinned;
    WEIR_TRY(rate_pinned(rate, count * sizeof(int32_t), &pinned));
    for (uint32_t i = 0; i < count; i++)
        ((int32_t *)pinned)[i] = (int32_t)((uint64_t)i * 2654435761u % most);
    WEIR_TRY(rate_memory(rate, count * sizeof(int32_t), true, out));
    return rate->table->copy(rate->compute, *out, pinned, count * sizeof(int32_t),
                             WEIR_COPY_TO_DEVICE);
}

/* A chunk of tokens on one tile of the vocabulary. */
static enum weir_status head_of(struct rate *rate, enum weir_dtype dtype)
{
    uint32_t rows = rate->tiny ? 5 : WEIR_CHUNK_TOKENS, width = rate->tiny ? 96 : WEIR_TILE_ROWS;
    uint64_t values = (uint64_t)rows * width;
    struct weir_head_args a = {.rows = rows,
                               .tile_rows = width,
                               .first = true,
                               .scale = 1.0f / (float)rows,
                               .dtype = dtype};
    void *memory[5], *targets;
    const uint64_t bytes[5] = {values * sizeof(float), rows * sizeof(float), rows * sizeof(float),
                               rows * sizeof(float), values * rate_act_bytes(dtype)};
    for (int i = 0; i < 5; i++)
        WEIR_TRY(rate_memory(rate, bytes[i], false, &memory[i]));
    WEIR_TRY(ids_make(rate, rows, width, &targets));
    a.logits = memory[0], a.max = memory[1], a.sum = memory[2], a.target_logit = memory[3];
    a.dlogits = memory[4], a.targets = targets;
    struct rate_work work = work_of("head_stats", rows, width, dtype,
                                    (double)(values * 4 + rows * 16ull), head_stats_run, &a);
    WEIR_TRY(head_stats_run(rate, &a)); /* the gradient needs its sums */
    WEIR_TRY(rate_measure(rate, &work));
    work =
        work_of("head_grad", rows, width, dtype,
                (double)(values * (4 + rate_act_bytes(dtype)) + rows * 12ull), head_grad_run, &a);
    return rate_measure(rate, &work);
}

enum weir_status rate_head(struct rate *rate)
{
    if (!rate_wanted(rate, "head_stats") && !rate_wanted(rate, "head_grad"))
        return WEIR_OK;
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++)
        WEIR_TRY(rate_case_end(rate, "head", head_of(rate, (enum weir_dtype)dtype)));
    return WEIR_OK;
}

/* Every row of the table is some token's: backward reads d and adds to each row once. */
static enum weir_status embed_of(struct rate *rate, enum weir_dtype dtype)
{
    struct rows r = rows_of(rate);
    uint64_t act = rate_act_bytes(dtype);
    struct weir_embed_args a = {
        .token_count = r.tokens, .width = r.width, .row_count = r.tokens / 2, .dtype = dtype};
    uint64_t table_values = (uint64_t)a.row_count * r.width;
    void *memory[5], *tokens;
    const uint64_t bytes[5] = {table_values * act, r.values * act, r.values * sizeof(float),
                               table_values * sizeof(float),
                               rate->math->embed_scratch_bytes(&a) + 64};
    for (int i = 0; i < 5; i++)
        WEIR_TRY(rate_memory(rate, bytes[i], i == 3, &memory[i]));
    WEIR_TRY(ids_make(rate, r.tokens, a.row_count, &tokens));
    a.table = memory[0], a.x = memory[1], a.d = memory[2], a.grad = memory[3];
    a.scratch = memory[4], a.tokens = tokens;
    struct rate_work work =
        work_of("embed_forward", r.tokens, r.width, dtype,
                (double)(r.values * 2 * act + r.tokens * 4ull), embed_forward_run, &a);
    WEIR_TRY(rate_measure(rate, &work));
    work = work_of("embed_backward", r.tokens, r.width, dtype,
                   (double)(r.values * 4 + table_values * 8 + r.tokens * 4ull), embed_backward_run,
                   &a);
    return rate_measure(rate, &work);
}

enum weir_status rate_embed(struct rate *rate)
{
    if (!rate_wanted(rate, "embed_forward") && !rate_wanted(rate, "embed_backward"))
        return WEIR_OK;
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++)
        WEIR_TRY(rate_case_end(rate, "embed", embed_of(rate, (enum weir_dtype)dtype)));
    return WEIR_OK;
}
