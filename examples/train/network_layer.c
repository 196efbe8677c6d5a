/*
 * One transformer layer, forward and backward.
 */
#include "examples/train/network_internal.h"

static enum weir_status norm(const struct network *net, const void *x, const void *weight, void *y,
                             float *rstd)
{
    struct weir_norm_args args = {.x = x,
                                  .weight = weight,
                                  .y = y,
                                  .rstd = rstd,
                                  .rows = net->tokens,
                                  .width = net->shape.hidden,
                                  .eps = net->shape.norm_eps,
                                  .dtype = net->shape.dtype};
    return net->math->norm_forward(net->kernels, net->stream, &args);
}

/* dx = residual_d + d(norm)/dx dy */
static enum weir_status norm_back(const struct network *net, const void *x,
                                  const struct layer_weights *w, enum layer_tensor which,
                                  const float *rstd, const float *dy, const float *residual_d,
                                  float *dx)
{
    struct weir_norm_args args = {.x = x,
                                  .weight = w->weight[which],
                                  .rstd = (float *)rstd,
                                  .rows = net->tokens,
                                  .width = net->shape.hidden,
                                  .eps = net->shape.norm_eps,
                                  .dtype = net->shape.dtype,
                                  .dy = dy,
                                  .dx = dx,
                                  .residual_d = residual_d,
                                  .dweight = w->grad[which],
                                  .fresh = w->fresh};
    return net->math->norm_backward(net->kernels, net->stream, &args);
}

static enum weir_status rope(const struct network *net, void *x, const float *cos_sin,
                             uint32_t heads, bool backward)
{
    const struct network_shape *s = &net->shape;
    struct weir_rope_args args = {.x = x,
                                  .cos_sin = cos_sin,
                                  .sequences = s->sequences,
                                  .length = s->length,
                                  .heads = heads,
                                  .head_dim = s->head_dim,
                                  .backward = backward,
                                  .dtype = s->dtype};
    return net->math->rope(net->kernels, net->stream, &args);
}

static struct weir_attention_args attention_args(const struct network *net, const struct inner *in,
                                                 void *scratch)
{
    const struct network_shape *s = &net->shape;
    return (struct weir_attention_args){.q = in->q,
                                        .k = in->k,
                                        .v = in->v,
                                        .out = in->o,
                                        .lse = in->lse,
                                        .sequences = s->sequences,
                                        .length = s->length,
                                        .heads = s->heads,
                                        .kv_heads = s->kv_heads,
                                        .head_dim = s->head_dim,
                                        .scale = 1.0f / __builtin_sqrtf((float)s->head_dim),
                                        .dtype = s->dtype,
                                        .scratch = scratch};
}

static enum weir_status add(const struct network *net, const void *a, const void *b, void *out,
                            uint64_t count)
{
    struct weir_add_args args = {
        .a = a, .b = b, .out = out, .dtype = net->shape.dtype, .count = count};
    return net->math->add(net->kernels, net->stream, &args);
}

static enum weir_status cast_down(const struct network *net, const float *in, void *out,
                                  uint64_t count)
{
    struct weir_cast_args args = {
        .in = in, .out = out, .from = WEIR_FP32, .to = net->shape.dtype, .count = count};
    return net->math->cast(net->kernels, net->stream, &args);
}

enum weir_status network_rope(const struct network *net, float *cos_sin)
{
    struct weir_rope_table_args args = net->shape.rope;
    args.cos_sin = cos_sin;
    return net->math->rope_table(net->kernels, net->stream, &args);
}

/* q, k, v, attention: x to x1. h: N x H of scratch. */
static enum weir_status attend(const struct network *net, const struct layer_weights *w,
                               const float *cos_sin, const void *x, const struct inner *in, void *h,
                               void *work)
{
    const struct network_shape *s = &net->shape;
    const uint32_t *g = net->gemms;
    WEIR_TRY(norm(net, x, w->weight[LAYER_NORM_1], h, in->rstd1));
    WEIR_TRY(queue_gemm(net, g[GEMM_Q], h, w->weight[LAYER_Q], in->q, work));
    WEIR_TRY(queue_gemm(net, g[GEMM_KV], h, w->weight[LAYER_K], in->k, work));
    WEIR_TRY(queue_gemm(net, g[GEMM_KV], h, w->weight[LAYER_V], in->v, work));
    WEIR_TRY(rope(net, in->q, cos_sin, s->heads, false));
    WEIR_TRY(rope(net, in->k, cos_sin, s->kv_heads, false));
    struct weir_attention_args attention = attention_args(net, in, work);
    WEIR_TRY(net->math->attention_forward(net->kernels, net->stream, &attention));
    WEIR_TRY(queue_gemm(net, g[GEMM_O], in->o, w->weight[LAYER_O], h, work));
    return add(net, x, h, in->x1, (uint64_t)net->tokens * s->hidden);
}

enum weir_status network_layer_forward(const struct network *net, const struct layer_weights *w,
                                       const float *cos_sin, const void *x, void *y, void *inner,
                                       void *scratch)
{
    const struct network_shape *s = &net->shape;
    const uint32_t *g = net->gemms;
    struct inner in = inner_cut(net, &(struct bump){inner, 0});
    struct bump bump = {scratch, 0};
    uint64_t n = net->tokens, act = act_bytes(net);
    void *h = bump_take(&bump, n * s->hidden * act);
    void *product = bump_take(&bump, n * s->intermediate * act);
    void *work = bump_take(&bump, 0);
    WEIR_TRY(attend(net, w, cos_sin, x, &in, h, work));
    WEIR_TRY(norm(net, in.x1, w->weight[LAYER_NORM_2], h, in.rstd2));
    WEIR_TRY(queue_gemm(net, g[GEMM_UP], h, w->weight[LAYER_GATE], in.gate, work));
    WEIR_TRY(queue_gemm(net, g[GEMM_UP], h, w->weight[LAYER_UP], in.up, work));
    if (!y)
        return WEIR_OK;
    struct weir_swiglu_args swiglu = {.gate = in.gate,
                                      .up = in.up,
                                      .out = product,
                                      .dtype = s->dtype,
                                      .count = n * s->intermediate};
    WEIR_TRY(net->math->swiglu_forward(net->kernels, net->stream, &swiglu));
    WEIR_TRY(queue_gemm(net, g[GEMM_DOWN], product, w->weight[LAYER_DOWN], h, work));
    return add(net, in.x1, h, y, n * s->hidden);
}

/* Scratch of a backward. */
struct back {
    void *act_d, *h;                         /* N x H act */
    void *product, *d_product, *dgate, *dup; /* N x I act */
    void *dq, *dk, *dv, *d_o;                /* act */
    float *dh, *dx1;                         /* N x H */
    void *work;
};

static struct back back_cut(const struct network *net, void *scratch)
{
    const struct network_shape *s = &net->shape;
    struct bump bump = {scratch, 0};
    uint64_t n = net->tokens, act = act_bytes(net);
    uint64_t hidden = n * s->hidden, inter = n * s->intermediate * act;
    uint64_t q = n * s->heads * s->head_dim * act, k = n * s->kv_heads * s->head_dim * act;
    return (struct back){.act_d = bump_take(&bump, hidden * act),
                         .h = bump_take(&bump, hidden * act),
                         .product = bump_take(&bump, inter),
                         .d_product = bump_take(&bump, inter),
                         .dgate = bump_take(&bump, inter),
                         .dup = bump_take(&bump, inter),
                         .dq = bump_take(&bump, q),
                         .dk = bump_take(&bump, k),
                         .dv = bump_take(&bump, k),
                         .d_o = bump_take(&bump, q),
                         .dh = bump_take(&bump, hidden * 4),
                         .dx1 = bump_take(&bump, hidden * 4),
                         .work = bump_take(&bump, 0)};
}

/* dy to dx1: through down, swiglu, gate and up, norm 2. */
static enum weir_status back_mlp(const struct network *net, const struct layer_weights *w,
                                 const struct inner *in, const struct back *b, const float *dy)
{
    const struct network_shape *s = &net->shape;
    const uint32_t *g = net->gemms, *gw = g + (w->fresh ? GEMM_W_Q : GEMM_W_Q_ADD) - GEMM_W_Q;
    uint64_t n = net->tokens;
    WEIR_TRY(cast_down(net, dy, b->act_d, n * s->hidden));
    WEIR_TRY(
        queue_gemm(net, g[GEMM_D_DOWN], b->act_d, w->weight[LAYER_DOWN], b->d_product, b->work));
    struct weir_swiglu_args swiglu = {.gate = in->gate,
                                      .up = in->up,
                                      .out = b->product,
                                      .dout = b->d_product,
                                      .dgate = b->dgate,
                                      .dup = b->dup,
                                      .dtype = s->dtype,
                                      .count = n * s->intermediate};
    WEIR_TRY(net->math->swiglu_backward(net->kernels, net->stream, &swiglu));
    WEIR_TRY(queue_gemm(net, gw[GEMM_W_DOWN], b->act_d, b->product, w->grad[LAYER_DOWN], b->work));
    WEIR_TRY(norm(net, in->x1, w->weight[LAYER_NORM_2], b->h, in->rstd2));
    WEIR_TRY(queue_gemm(net, gw[GEMM_W_UP], b->dgate, b->h, w->grad[LAYER_GATE], b->work));
    WEIR_TRY(queue_gemm(net, gw[GEMM_W_UP], b->dup, b->h, w->grad[LAYER_UP], b->work));
    WEIR_TRY(queue_gemm(net, g[GEMM_D_UP], b->dgate, w->weight[LAYER_GATE], b->dh, b->work));
    WEIR_TRY(queue_gemm(net, g[GEMM_D_UP_ADD], b->dup, w->weight[LAYER_UP], b->dh, b->work));
    return norm_back(net, in->x1, w, LAYER_NORM_2, in->rstd2, b->dh, dy, b->dx1);
}

/* dx1 to dx: through o, attention, q, k, v, norm 1. */
static enum weir_status back_attention(const struct network *net, const struct layer_weights *w,
                                       const float *cos_sin, const void *x, const struct inner *in,
                                       const struct back *b, float *dx)
{
    const struct network_shape *s = &net->shape;
    const uint32_t *g = net->gemms, *gw = g + (w->fresh ? GEMM_W_Q : GEMM_W_Q_ADD) - GEMM_W_Q;
    WEIR_TRY(cast_down(net, b->dx1, b->act_d, (uint64_t)net->tokens * s->hidden));
    WEIR_TRY(queue_gemm(net, g[GEMM_D_O], b->act_d, w->weight[LAYER_O], b->d_o, b->work));
    WEIR_TRY(queue_gemm(net, gw[GEMM_W_O], b->act_d, in->o, w->grad[LAYER_O], b->work));
    struct weir_attention_args attention = attention_args(net, in, b->work);
    attention.dout = b->d_o;
    attention.dq = b->dq;
    attention.dk = b->dk;
    attention.dv = b->dv;
    WEIR_TRY(net->math->attention_backward(net->kernels, net->stream, &attention));
    WEIR_TRY(rope(net, b->dq, cos_sin, s->heads, true));
    WEIR_TRY(rope(net, b->dk, cos_sin, s->kv_heads, true));
    WEIR_TRY(norm(net, x, w->weight[LAYER_NORM_1], b->h, in->rstd1));
    WEIR_TRY(queue_gemm(net, gw[GEMM_W_Q], b->dq, b->h, w->grad[LAYER_Q], b->work));
    WEIR_TRY(queue_gemm(net, gw[GEMM_W_KV], b->dk, b->h, w->grad[LAYER_K], b->work));
    WEIR_TRY(queue_gemm(net, gw[GEMM_W_KV], b->dv, b->h, w->grad[LAYER_V], b->work));
    WEIR_TRY(queue_gemm(net, g[GEMM_D_Q], b->dq, w->weight[LAYER_Q], b->dh, b->work));
    WEIR_TRY(queue_gemm(net, g[GEMM_D_KV_ADD], b->dk, w->weight[LAYER_K], b->dh, b->work));
    WEIR_TRY(queue_gemm(net, g[GEMM_D_KV_ADD], b->dv, w->weight[LAYER_V], b->dh, b->work));
    return norm_back(net, x, w, LAYER_NORM_1, in->rstd1, b->dh, b->dx1, dx);
}

enum weir_status network_layer_backward(const struct network *net, const struct layer_weights *w,
                                        const float *cos_sin, const void *x, const void *inner,
                                        const float *dy, float *dx, void *scratch)
{
    struct inner in = inner_cut(net, &(struct bump){(char *)inner, 0});
    struct back b = back_cut(net, scratch);
    WEIR_TRY(back_mlp(net, w, &in, &b, dy));
    return back_attention(net, w, cos_sin, x, &in, &b, dx);
}
