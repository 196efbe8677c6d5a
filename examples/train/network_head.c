/*
 * Embedding and head: the two ends that are cut by rows of the vocabulary. The head works on chunks
 * of tokens and tiles of rows; it never holds more than one tile of logits of one chunk.
 */
#include "examples/train/network_internal.h"

static struct weir_embed_args embed_args(const struct network *net, const struct vocab_rows *rows,
                                         const int32_t *tokens)
{
    return (struct weir_embed_args){.tokens = tokens,
                                    .token_count = net->tokens,
                                    .width = net->shape.hidden,
                                    .first_row = rows->first_row,
                                    .row_count = rows->rows,
                                    .dtype = net->shape.dtype,
                                    .table = rows->weight,
                                    .grad = rows->grad,
                                    .fresh = rows->fresh};
}

enum weir_status network_embed_forward(const struct network *net, const struct vocab_rows *rows,
                                       const int32_t *tokens, void *x)
{
    struct weir_embed_args args = embed_args(net, rows, tokens);
    args.x = x;
    return net->math->embed_forward(net->kernels, net->stream, &args);
}

enum weir_status network_embed_backward(const struct network *net, const struct vocab_rows *rows,
                                        const int32_t *tokens, const float *d, void *scratch)
{
    struct weir_embed_args args = embed_args(net, rows, tokens);
    args.d = d;
    args.scratch = scratch;
    return net->math->embed_backward(net->kernels, net->stream, &args);
}

uint64_t network_embed_scratch_bytes(const struct network *net, const struct vocab_rows *rows)
{
    struct weir_embed_args args = embed_args(net, rows, NULL);
    return net->math->embed_scratch_bytes(&args);
}

/* One chunk of tokens at work on one tile of rows. */
struct spot {
    uint32_t first_token, tokens;
    uint32_t first_row, tile_rows; /* first_row: within the block */
    const struct head_gemms *gemms;
    void *normed;    /* tokens x H act */
    float *rstd;     /* tokens */
    float *one_tile; /* scratch, tokens x tile_rows */
    float *logits;   /* tokens x tile_rows: there, or the block's */
    void *dlogits;   /* act */
    void *work;
};

static struct spot chunk_begin(const struct network *net, uint32_t chunk, void *scratch)
{
    const struct network_shape *s = &net->shape;
    struct spot spot = {.first_token = chunk * s->chunk_tokens};
    uint32_t left = net->tokens - spot.first_token;
    spot.tokens = left < s->chunk_tokens ? left : s->chunk_tokens;
    uint64_t tile = s->tile_rows < s->vocab ? s->tile_rows : s->vocab;
    struct bump bump = {scratch, 0};
    spot.normed = bump_take(&bump, (uint64_t)spot.tokens * s->hidden * act_bytes(net));
    spot.rstd = bump_take(&bump, spot.tokens * sizeof(float));
    spot.one_tile = bump_take(&bump, spot.tokens * tile * sizeof(float));
    spot.dlogits = bump_take(&bump, spot.tokens * tile * act_bytes(net));
    spot.work = bump_take(&bump, 0);
    return spot;
}

static void tile_set(const struct network *net, struct spot *spot, const struct vocab_rows *rows,
                     uint32_t first_row)
{
    const struct network_shape *s = &net->shape;
    uint32_t left = rows->rows - first_row;
    spot->first_row = first_row;
    spot->tile_rows = left < s->tile_rows ? left : s->tile_rows;
    spot->logits = rows->logits ? rows->logits + (uint64_t)spot->first_token * rows->rows +
                                      (uint64_t)spot->tokens * first_row
                                : spot->one_tile;
    spot->gemms = &net->head[spot->tokens < s->chunk_tokens][spot->tile_rows < s->tile_rows];
}

static struct weir_norm_args chunk_norm_args(const struct network *net, const struct spot *spot,
                                             const struct head_norm *norm, const void *x)
{
    const struct network_shape *s = &net->shape;
    return (struct weir_norm_args){.x = (const char *)x +
                                        (uint64_t)spot->first_token * s->hidden * act_bytes(net),
                                   .weight = norm->weight,
                                   .rstd = spot->rstd,
                                   .rows = spot->tokens,
                                   .width = s->hidden,
                                   .eps = s->norm_eps,
                                   .dtype = s->dtype};
}

static enum weir_status chunk_norm(const struct network *net, const struct spot *spot,
                                   const struct head_norm *norm, const void *x)
{
    struct weir_norm_args args = chunk_norm_args(net, spot, norm, x);
    args.y = spot->normed;
    return net->math->norm_forward(net->kernels, net->stream, &args);
}

static const void *tile_weight(const struct network *net, const struct spot *spot,
                               const struct vocab_rows *rows)
{
    return (const char *)rows->weight +
           (uint64_t)spot->first_row * net->shape.hidden * act_bytes(net);
}

static struct weir_head_args head_args(const struct network *net, const struct spot *spot,
                                       const struct vocab_rows *rows, const int32_t *targets,
                                       const struct head_stats *stats)
{
    uint32_t t = spot->first_token;
    return (struct weir_head_args){.logits = spot->logits,
                                   .targets = targets + t,
                                   .rows = spot->tokens,
                                   .first_vocab = rows->first_row + spot->first_row,
                                   .tile_rows = spot->tile_rows,
                                   .first = rows->first_row + spot->first_row == 0,
                                   .max = stats->max + t,
                                   .sum = stats->sum + t,
                                   .target_logit = stats->target_logit + t,
                                   .dtype = net->shape.dtype};
}

enum weir_status network_head_stats(const struct network *net, const struct vocab_rows *rows,
                                    const struct head_norm *norm, const void *x,
                                    const int32_t *targets, const struct head_stats *stats,
                                    void *scratch)
{
    for (uint32_t c = 0; c < network_chunk_count(net); c++) {
        struct spot spot = chunk_begin(net, c, scratch);
        WEIR_TRY(chunk_norm(net, &spot, norm, x));
        for (uint32_t row = 0; row < rows->rows; row += net->shape.tile_rows) {
            tile_set(net, &spot, rows, row);
            WEIR_TRY(queue_gemm(net, spot.gemms->logits, spot.normed, tile_weight(net, &spot, rows),
                                spot.logits, spot.work));
            struct weir_head_args args = head_args(net, &spot, rows, targets, stats);
            WEIR_TRY(net->math->head_stats(net->kernels, net->stream, &args));
        }
    }
    return WEIR_OK;
}

enum weir_status network_head_loss(const struct network *net, const int32_t *targets,
                                   const struct head_stats *stats, double *losses)
{
    for (uint32_t c = 0; c < network_chunk_count(net); c++) {
        struct spot spot = chunk_begin(net, c, NULL);
        uint32_t t = spot.first_token;
        struct weir_head_args args = {.targets = targets + t,
                                      .rows = spot.tokens,
                                      .max = stats->max + t,
                                      .sum = stats->sum + t,
                                      .target_logit = stats->target_logit + t,
                                      .loss = losses + c};
        WEIR_TRY(net->math->head_loss(net->kernels, net->stream, &args));
    }
    return WEIR_OK;
}

/* One tile of one chunk: logits again unless kept, their gradient, into d and the rows' gradient.
 */
static enum weir_status tile_grad(const struct network *net, const struct spot *spot,
                                  const struct vocab_rows *rows, const int32_t *targets,
                                  const struct head_stats *stats, float scale, float *d)
{
    const struct network_shape *s = &net->shape;
    const void *weight = tile_weight(net, spot, rows);
    if (!rows->logits)
        WEIR_TRY(
            queue_gemm(net, spot->gemms->logits, spot->normed, weight, spot->logits, spot->work));
    struct weir_head_args args = head_args(net, spot, rows, targets, stats);
    args.scale = scale;
    args.dlogits = spot->dlogits;
    WEIR_TRY(net->math->head_grad(net->kernels, net->stream, &args));
    WEIR_TRY(queue_gemm(net, args.first ? spot->gemms->d_first : spot->gemms->d_add, spot->dlogits,
                        weight, d + (uint64_t)spot->first_token * s->hidden, spot->work));
    bool fresh = rows->fresh && spot->first_token == 0;
    return queue_gemm(net, fresh ? spot->gemms->w_first : spot->gemms->w_add, spot->dlogits,
                      spot->normed, rows->grad + (uint64_t)spot->first_row * s->hidden, spot->work);
}

/* The chunk's gradient of the normed boundary becomes that of the boundary, in place. */
static enum weir_status chunk_norm_back(const struct network *net, const struct spot *spot,
                                        const struct head_norm *norm, const void *x, float *d)
{
    struct weir_norm_args args = chunk_norm_args(net, spot, norm, x);
    args.dy = d + (uint64_t)spot->first_token * net->shape.hidden;
    args.dx = d + (uint64_t)spot->first_token * net->shape.hidden;
    args.dweight = norm->grad;
    args.fresh = norm->fresh && spot->first_token == 0;
    return net->math->norm_backward(net->kernels, net->stream, &args);
}

enum weir_status network_head_grad(const struct network *net, const struct vocab_rows *rows,
                                   const struct head_norm *norm, const void *x,
                                   const int32_t *targets, const struct head_stats *stats,
                                   float scale, float *d, void *scratch)
{
    bool last = rows->first_row + rows->rows == net->shape.vocab;
    for (uint32_t c = 0; c < network_chunk_count(net); c++) {
        struct spot spot = chunk_begin(net, c, scratch);
        WEIR_TRY(chunk_norm(net, &spot, norm, x));
        for (uint32_t row = 0; row < rows->rows; row += net->shape.tile_rows) {
            tile_set(net, &spot, rows, row);
            WEIR_TRY(tile_grad(net, &spot, rows, targets, stats, scale, d));
        }
        if (last)
            WEIR_TRY(chunk_norm_back(net, &spot, norm, x, d));
    }
    return WEIR_OK;
}
