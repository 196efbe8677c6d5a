/*
 * Shapes, GEMMs and scratch sizes of the network.
 */
#include "examples/train/network_internal.h"

struct inner inner_cut(const struct network *net, struct bump *bump)
{
    const struct network_shape *s = &net->shape;
    uint64_t n = net->tokens, act = act_bytes(net);
    uint64_t q = (uint64_t)s->heads * s->head_dim, k = (uint64_t)s->kv_heads * s->head_dim;
    return (struct inner){
        .q = bump_take(bump, n * q * act),
        .k = bump_take(bump, n * k * act),
        .v = bump_take(bump, n * k * act),
        .o = bump_take(bump, n * q * act),
        .x1 = bump_take(bump, n * s->hidden * act),
        .gate = bump_take(bump, n * s->intermediate * act),
        .up = bump_take(bump, n * s->intermediate * act),
        .lse = bump_take(bump, n * s->heads * sizeof(float)),
        .rstd1 = bump_take(bump, n * sizeof(float)),
        .rstd2 = bump_take(bump, n * sizeof(float)),
    };
}

static enum weir_status prepare(struct network *net, struct weir_gemm_shape shape, uint32_t *gemm)
{
    uint64_t scratch;
    WEIR_TRY(net->math->gemm_prepare(net->kernels, &shape, gemm, &scratch));
    if (scratch > net->gemm_scratch_bytes)
        net->gemm_scratch_bytes = scratch;
    return WEIR_OK;
}

/* y[N][out] = x[N][in] W[out][in]^T */
static struct weir_gemm_shape forward_shape(const struct network *net, uint32_t in, uint32_t out)
{
    return (struct weir_gemm_shape){.m = net->tokens,
                                    .n = out,
                                    .k = in,
                                    .transpose_b = true,
                                    .in = net->shape.dtype,
                                    .out = net->shape.dtype};
}

/* dx[N][in] = dy[N][out] W[out][in] */
static struct weir_gemm_shape input_shape(const struct network *net, uint32_t in, uint32_t out,
                                          enum weir_dtype dtype, bool accumulate)
{
    return (struct weir_gemm_shape){.m = net->tokens,
                                    .n = in,
                                    .k = out,
                                    .accumulate = accumulate,
                                    .in = net->shape.dtype,
                                    .out = dtype};
}

/* dW[out][in] = dy[N][out]^T x[N][in] */
static struct weir_gemm_shape weight_shape(const struct network *net, uint32_t in, uint32_t out,
                                           bool accumulate)
{
    return (struct weir_gemm_shape){.m = out,
                                    .n = in,
                                    .k = net->tokens,
                                    .transpose_a = true,
                                    .accumulate = accumulate,
                                    .in = net->shape.dtype,
                                    .out = WEIR_FP32};
}

static enum weir_status layer_prepare(struct network *net)
{
    const struct network_shape *s = &net->shape;
    const uint32_t h = s->hidden, i = s->intermediate, q = s->heads * s->head_dim,
                   k = s->kv_heads * s->head_dim;
    uint32_t *g = net->gemms;
    WEIR_TRY(prepare(net, forward_shape(net, h, q), &g[GEMM_Q]));
    WEIR_TRY(prepare(net, forward_shape(net, h, k), &g[GEMM_KV]));
    WEIR_TRY(prepare(net, forward_shape(net, q, h), &g[GEMM_O]));
    WEIR_TRY(prepare(net, forward_shape(net, h, i), &g[GEMM_UP]));
    WEIR_TRY(prepare(net, forward_shape(net, i, h), &g[GEMM_DOWN]));
    WEIR_TRY(prepare(net, input_shape(net, i, h, s->dtype, false), &g[GEMM_D_DOWN]));
    WEIR_TRY(prepare(net, input_shape(net, h, i, WEIR_FP32, false), &g[GEMM_D_UP]));
    WEIR_TRY(prepare(net, input_shape(net, h, i, WEIR_FP32, true), &g[GEMM_D_UP_ADD]));
    WEIR_TRY(prepare(net, input_shape(net, q, h, s->dtype, false), &g[GEMM_D_O]));
    WEIR_TRY(prepare(net, input_shape(net, h, q, WEIR_FP32, false), &g[GEMM_D_Q]));
    WEIR_TRY(prepare(net, input_shape(net, h, k, WEIR_FP32, true), &g[GEMM_D_KV_ADD]));
    for (int add = 0; add < 2; add++) {
        uint32_t *w = g + (add ? GEMM_W_Q_ADD : GEMM_W_Q);
        WEIR_TRY(prepare(net, weight_shape(net, h, q, add), &w[0]));
        WEIR_TRY(prepare(net, weight_shape(net, h, k, add), &w[1]));
        WEIR_TRY(prepare(net, weight_shape(net, q, h, add), &w[2]));
        WEIR_TRY(prepare(net, weight_shape(net, h, i, add), &w[3]));
        WEIR_TRY(prepare(net, weight_shape(net, i, h, add), &w[4]));
    }
    return WEIR_OK;
}

static enum weir_status head_prepare(struct network *net, uint32_t chunk, uint32_t tile,
                                     struct head_gemms *out)
{
    const struct network_shape *s = &net->shape;
    if (chunk == 0 || tile == 0)
        return WEIR_OK;
    struct weir_gemm_shape logits = {.m = chunk,
                                     .n = tile,
                                     .k = s->hidden,
                                     .transpose_b = true,
                                     .in = s->dtype,
                                     .out = WEIR_FP32};
    struct weir_gemm_shape d = {
        .m = chunk, .n = s->hidden, .k = tile, .in = s->dtype, .out = WEIR_FP32};
    struct weir_gemm_shape w = {.m = tile,
                                .n = s->hidden,
                                .k = chunk,
                                .transpose_a = true,
                                .in = s->dtype,
                                .out = WEIR_FP32};
    WEIR_TRY(prepare(net, logits, &out->logits));
    WEIR_TRY(prepare(net, d, &out->d_first));
    WEIR_TRY(prepare(net, w, &out->w_first));
    d.accumulate = w.accumulate = true;
    WEIR_TRY(prepare(net, d, &out->d_add));
    return prepare(net, w, &out->w_add);
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t line_up(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void scratch_count(struct network *net, int thread_count)
{
    const struct network_shape *s = &net->shape;
    struct weir_attention_args attention = {.sequences = s->sequences,
                                            .length = s->length,
                                            .heads = s->heads,
                                            .kv_heads = s->kv_heads,
                                            .head_dim = s->head_dim,
                                            .dtype = s->dtype};
    net->attention_scratch_bytes = net->math->attention_scratch_bytes(&attention, thread_count);
    struct bump bump = {NULL, 0};
    (void)inner_cut(net, &bump);
    net->inner_bytes = bump.used;
    uint64_t n = net->tokens, act = act_bytes(net);
    uint64_t q = (uint64_t)s->heads * s->head_dim, k = (uint64_t)s->kv_heads * s->head_dim;
    uint64_t common = most(net->gemm_scratch_bytes, net->attention_scratch_bytes) + 64;
    net->forward_scratch_bytes = common + n * (s->hidden + s->intermediate) * act + 128;
    net->backward_scratch_bytes =
        common + n * act * (2ull * s->hidden + 4ull * s->intermediate + 2 * q + 2 * k) +
        n * 8ull * s->hidden + 16 * 64;
    uint64_t chunk = s->chunk_tokens < net->tokens ? s->chunk_tokens : net->tokens;
    uint64_t tile = s->tile_rows < s->vocab ? s->tile_rows : s->vocab;
    net->head_scratch_bytes = net->gemm_scratch_bytes + chunk * tile * (4 + act) +
                              chunk * s->hidden * act + chunk * 4 + 6 * 64;
    /* Callers put inner behind a layer's scratch: it must stay aligned. */
    net->forward_scratch_bytes = line_up(net->forward_scratch_bytes);
    net->backward_scratch_bytes = line_up(net->backward_scratch_bytes);
}

enum weir_status network_open(struct network *net, const struct network_shape *shape,
                              struct weir_kernels *kernels, struct weir_stream *stream,
                              int thread_count)
{
    *net = (struct network){.shape = *shape,
                            .kernels = kernels,
                            .math = kernels->table,
                            .stream = stream,
                            .tokens = shape->sequences * shape->length};
    net->shape.rope.length = shape->length;
    net->shape.rope.head_dim = shape->head_dim;
    WEIR_TRY(layer_prepare(net));
    uint32_t chunks[2] = {shape->chunk_tokens, net->tokens % shape->chunk_tokens};
    uint32_t tiles[2] = {shape->tile_rows, shape->vocab % shape->tile_rows};
    for (int c = 0; c < 2; c++)
        for (int t = 0; t < 2; t++)
            if ((c || net->tokens >= chunks[0]) && (t || shape->vocab >= tiles[0]))
                WEIR_TRY(head_prepare(net, chunks[c], tiles[t], &net->head[c][t]));
    scratch_count(net, thread_count);
    return WEIR_OK;
}

uint32_t network_chunk_count(const struct network *net)
{
    return (net->tokens + net->shape.chunk_tokens - 1) / net->shape.chunk_tokens;
}

double network_layer_flops(const struct network *net)
{
    const struct network_shape *s = &net->shape;
    double n = net->tokens, q = (double)s->heads * s->head_dim,
           k = (double)s->kv_heads * s->head_dim;
    double products = s->hidden * (2 * q + 2 * k + 3.0 * s->intermediate);
    return 2 * n * products + 2 * n * s->length * q;
}

double network_head_flops(const struct network *net, uint32_t rows)
{
    return 2.0 * net->tokens * rows * net->shape.hidden;
}
