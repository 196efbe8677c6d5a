/*
 * One step of a Llama, layer-major: each block is wanted once a phase and all micro-batches of a
 * group pass through it. Sums over micro-batches run from the last to the first, everywhere.
 */
#include "core/status.h"
#include "examples/train/llama.h"

struct pass {
    struct llama *l;
    const struct llama_step *step;
    uint32_t first, end; /* micro-batches of the group */
    bool training;
};

static uint32_t x_id(const struct llama *l, uint32_t layer, uint32_t m)
{
    return l->boundary[layer * l->spec.micro_count + m];
}

static uint32_t d_id(const struct llama *l, uint32_t layer, uint32_t m)
{
    return l->d[(layer & 1) * l->spec.micro_count + m];
}

static uint64_t token_bytes(const struct llama *l)
{
    return 2ull * l->net.tokens;
}

/* Kept tensors of one piece of work, in one want and one done. */
#define MOST_USES 6
struct piece {
    struct weir_use uses[MOST_USES];
    struct weir_view views[MOST_USES];
    size_t count;
};

static void piece_use(struct piece *piece, uint32_t id, enum weir_access access)
{
    piece->uses[piece->count++] = (struct weir_use){id, access};
}

static enum weir_status piece_want(struct pass *p, struct piece *piece, double flops)
{
    if (p->l->stop && *p->l->stop)
        return weir_fail(WEIR_ERR_CANCELED, "step \"%s\": stopped by a signal", p->step->key);
    WEIR_TRY(weir_want(p->l->run, piece->uses, piece->count, piece->views));
    return weir_work(p->l->run, flops);
}

static enum weir_status piece_done(struct pass *p, const struct piece *piece)
{
    uint32_t ids[MOST_USES];
    for (size_t i = 0; i < piece->count; i++)
        ids[i] = piece->uses[i].id;
    return weir_done(p->l->run, ids, piece->count);
}

static enum weir_status block_want(struct pass *p, uint32_t block, enum weir_access access,
                                   struct weir_view *view)
{
    return weir_want(p->l->run, &(struct weir_use){block, access}, 1, view);
}

static enum weir_status block_done(struct pass *p, uint32_t block)
{
    return weir_done(p->l->run, &block, 1);
}

static enum weir_status rope_make(struct pass *p)
{
    struct piece piece = {.count = 0};
    piece_use(&piece, p->l->rope, WEIR_NEW);
    WEIR_TRY(piece_want(p, &piece, 0));
    if (!p->step->dry)
        WEIR_TRY(network_rope(&p->l->net, piece.views[0].bytes));
    return piece_done(p, &piece);
}

static struct vocab_rows rows_view(const struct llama_rows *rows, const struct weir_view *view,
                                   bool first_micro)
{
    return (struct vocab_rows){.first_row = rows->first_row,
                               .rows = rows->rows,
                               .weight = view->bytes,
                               .grad = view->grad,
                               .fresh = view->grad_fresh && first_micro};
}

static enum weir_status embed_piece(struct pass *p, uint32_t i, uint32_t m,
                                    const struct weir_view *block)
{
    struct llama *l = p->l;
    struct piece piece = {.count = 0};
    piece_use(&piece, l->tokens[m], i == 0 ? WEIR_NEW : WEIR_READ);
    piece_use(&piece, x_id(l, 0, m), i == 0 ? WEIR_NEW : WEIR_CHANGE);
    WEIR_TRY(piece_want(p, &piece, 0));
    if (i == 0)
        WEIR_TRY(weir_put(l->run, l->tokens[m],
                          p->step->dry ? NULL : p->step->tokens + m * token_bytes(l)));
    struct vocab_rows rows = rows_view(&l->embed[i], block, false);
    if (!p->step->dry)
        WEIR_TRY(network_embed_forward(&l->net, &rows, piece.views[0].bytes, piece.views[1].bytes));
    return piece_done(p, &piece);
}

static enum weir_status embed_forward(struct pass *p)
{
    for (uint32_t i = 0; i < p->l->row_block_count; i++) {
        struct weir_view block;
        WEIR_TRY(block_want(p, p->l->embed[i].block, WEIR_READ, &block));
        for (uint32_t m = p->first; m < p->end; m++)
            WEIR_TRY(embed_piece(p, i, m, &block));
        WEIR_TRY(block_done(p, p->l->embed[i].block));
    }
    return WEIR_OK;
}

static struct layer_weights layer_view(const struct llama *l, uint32_t layer,
                                       const struct weir_view *view, bool first_micro)
{
    struct layer_weights w = {.fresh = view->grad_fresh && first_micro};
    uint64_t bytes = l->spec.shape.dtype == WEIR_BF16 ? 2 : 4;
    for (size_t i = 0; i < LAYER_TENSORS && view->bytes; i++) {
        uint64_t offset = weir_block_offset(l->run, l->layers[layer], i);
        w.weight[i] = (const char *)view->bytes + offset * bytes;
        w.grad[i] = view->grad ? view->grad + offset : NULL;
    }
    return w;
}

static enum weir_status forward_piece(struct pass *p, uint32_t layer, uint32_t m,
                                      const struct weir_view *block)
{
    struct llama *l = p->l;
    struct piece piece = {.count = 0};
    piece_use(&piece, x_id(l, layer, m), p->training ? WEIR_READ : WEIR_LAST);
    piece_use(&piece, x_id(l, layer + 1, m), WEIR_NEW);
    piece_use(&piece, l->rope, WEIR_READ);
    if (p->training)
        piece_use(&piece, l->inner[layer * l->spec.micro_count + m], WEIR_NEW);
    WEIR_TRY(piece_want(p, &piece, network_layer_flops(&l->net)));
    void *scratch;
    WEIR_TRY(weir_scratch(l->run, l->net.forward_scratch_bytes + l->net.inner_bytes, &scratch));
    if (!p->step->dry) {
        void *inner = p->training ? piece.views[3].bytes : NULL;
        struct layer_weights w = layer_view(l, layer, block, false);
        WEIR_TRY(network_layer_forward(
            &l->net, &w, piece.views[2].bytes, piece.views[0].bytes, piece.views[1].bytes,
            inner ? inner : (char *)scratch + l->net.forward_scratch_bytes, scratch));
    }
    return piece_done(p, &piece);
}

static enum weir_status layers_forward(struct pass *p)
{
    for (uint32_t i = 0; i < p->l->spec.layer_count; i++) {
        struct weir_view block;
        WEIR_TRY(block_want(p, p->l->layers[i], WEIR_READ, &block));
        for (uint32_t m = p->first; m < p->end; m++)
            WEIR_TRY(forward_piece(p, i, m, &block));
        WEIR_TRY(block_done(p, p->l->layers[i]));
    }
    return WEIR_OK;
}

static struct head_stats stats_view(const struct llama *l, const struct weir_view *view)
{
    float *at = view->bytes;
    uint32_t n = l->net.tokens;
    return (struct head_stats){at, at ? at + n : NULL, at ? at + 2 * n : NULL};
}

static enum weir_status loss_get(struct pass *p, uint32_t m)
{
    struct llama *l = p->l;
    return weir_get(l->run, l->loss[m], l->losses + (size_t)m * network_chunk_count(&l->net));
}

/* Statistics of one block of rows; after the last block the loss. */
static enum weir_status stats_piece(struct pass *p, uint32_t i, uint32_t m,
                                    const struct weir_view *norm_view,
                                    const struct weir_view *block)
{
    struct llama *l = p->l;
    bool last = i + 1 == l->row_block_count, drop = last && !p->training;
    struct piece piece = {.count = 0};
    piece_use(&piece, x_id(l, l->spec.layer_count, m), drop ? WEIR_LAST : WEIR_READ);
    piece_use(&piece, l->stats[m], i == 0 ? WEIR_NEW : WEIR_CHANGE);
    piece_use(&piece, l->tokens[m], drop ? WEIR_LAST : WEIR_READ);
    if (p->training)
        piece_use(&piece, l->logits[i * l->spec.micro_count + m], WEIR_NEW);
    if (last)
        piece_use(&piece, l->loss[m], WEIR_NEW);
    WEIR_TRY(piece_want(p, &piece, network_head_flops(&l->net, l->head[i].rows)));
    void *scratch;
    WEIR_TRY(weir_scratch(l->run, l->net.head_scratch_bytes, &scratch));
    if (!p->step->dry) {
        struct vocab_rows rows = rows_view(&l->head[i], block, false);
        rows.logits = p->training ? piece.views[3].bytes : NULL;
        struct head_norm norm = {.weight = norm_view->bytes};
        struct head_stats stats = stats_view(l, &piece.views[1]);
        const int32_t *targets = (const int32_t *)piece.views[2].bytes + l->net.tokens;
        WEIR_TRY(network_head_stats(&l->net, &rows, &norm, piece.views[0].bytes, targets, &stats,
                                    scratch));
        if (last)
            WEIR_TRY(
                network_head_loss(&l->net, targets, &stats, piece.views[piece.count - 1].bytes));
    }
    if (last)
        WEIR_TRY(loss_get(p, m));
    return piece_done(p, &piece);
}

static enum weir_status head_stats_pass(struct pass *p)
{
    struct llama *l = p->l;
    struct weir_view norm, block;
    WEIR_TRY(block_want(p, l->final_norm, WEIR_READ, &norm));
    for (uint32_t i = 0; i < l->row_block_count; i++) {
        WEIR_TRY(block_want(p, l->head[i].block, WEIR_READ, &block));
        for (uint32_t m = p->first; m < p->end; m++)
            WEIR_TRY(stats_piece(p, i, m, &norm, &block));
        WEIR_TRY(block_done(p, l->head[i].block));
    }
    return block_done(p, l->final_norm);
}

static enum weir_status grad_piece(struct pass *p, uint32_t i, uint32_t m,
                                   const struct weir_view *norm_view, const struct weir_view *block)
{
    struct llama *l = p->l;
    bool last = i + 1 == l->row_block_count;
    struct piece piece = {.count = 0};
    piece_use(&piece, x_id(l, l->spec.layer_count, m), last ? WEIR_LAST : WEIR_READ);
    piece_use(&piece, l->stats[m], last ? WEIR_LAST : WEIR_READ);
    piece_use(&piece, l->tokens[m], WEIR_READ);
    piece_use(&piece, d_id(l, l->spec.layer_count, m), i == 0 ? WEIR_NEW : WEIR_CHANGE);
    piece_use(&piece, l->logits[i * l->spec.micro_count + m], WEIR_LAST);
    WEIR_TRY(piece_want(p, &piece, 2 * network_head_flops(&l->net, l->head[i].rows)));
    void *scratch;
    WEIR_TRY(weir_scratch(l->run, l->net.head_scratch_bytes, &scratch));
    if (!p->step->dry) {
        bool first_micro = m == p->end - 1;
        struct vocab_rows rows = rows_view(&l->head[i], block, first_micro);
        rows.logits = piece.views[4].bytes;
        struct head_norm norm = {norm_view->bytes, norm_view->grad,
                                 norm_view->grad_fresh && first_micro};
        struct head_stats stats = stats_view(l, &piece.views[1]);
        const int32_t *targets = (const int32_t *)piece.views[2].bytes + l->net.tokens;
        float scale = 1.0f / (float)(p->step->target_count > 0 ? p->step->target_count : 1);
        WEIR_TRY(network_head_grad(&l->net, &rows, &norm, piece.views[0].bytes, targets, &stats,
                                   scale, piece.views[3].bytes, scratch));
    }
    return piece_done(p, &piece);
}

/* A head of one block makes statistics and gradients in one visit. */
static enum weir_status head_grad_pass(struct pass *p)
{
    struct llama *l = p->l;
    struct weir_view norm, block;
    WEIR_TRY(block_want(p, l->final_norm, WEIR_GRAD, &norm));
    for (uint32_t i = 0; i < l->row_block_count; i++) {
        WEIR_TRY(block_want(p, l->head[i].block, WEIR_GRAD, &block));
        for (uint32_t m = p->end; m-- > p->first;) {
            if (l->row_block_count == 1)
                WEIR_TRY(stats_piece(p, i, m, &norm, &block));
            WEIR_TRY(grad_piece(p, i, m, &norm, &block));
        }
        WEIR_TRY(block_done(p, l->head[i].block));
    }
    return block_done(p, l->final_norm);
}

static enum weir_status backward_piece(struct pass *p, uint32_t layer, uint32_t m,
                                       const struct weir_view *block)
{
    struct llama *l = p->l;
    struct piece piece = {.count = 0};
    piece_use(&piece, x_id(l, layer, m), WEIR_LAST);
    piece_use(&piece, l->inner[layer * l->spec.micro_count + m], WEIR_LAST);
    piece_use(&piece, l->rope, WEIR_READ);
    piece_use(&piece, d_id(l, layer + 1, m), WEIR_LAST);
    piece_use(&piece, d_id(l, layer, m), WEIR_NEW);
    WEIR_TRY(piece_want(p, &piece, 2 * network_layer_flops(&l->net)));
    const struct network *net = &l->net;
    uint64_t work_bytes = net->forward_scratch_bytes > net->backward_scratch_bytes
                              ? net->forward_scratch_bytes
                              : net->backward_scratch_bytes;
    void *scratch;
    WEIR_TRY(weir_scratch(l->run, work_bytes + net->inner_bytes, &scratch));
    if (!p->step->dry) {
        struct layer_weights w = layer_view(l, layer, block, m == p->end - 1);
        const void *x = piece.views[0].bytes;
        void *inner = piece.views[1].bytes;
        if (!inner) {
            inner = (char *)scratch + work_bytes;
            WEIR_TRY(network_layer_forward(net, &w, piece.views[2].bytes, x, NULL, inner, scratch));
        }
        WEIR_TRY(network_layer_backward(net, &w, piece.views[2].bytes, x, inner,
                                        piece.views[3].bytes, piece.views[4].bytes, scratch));
    }
    return piece_done(p, &piece);
}

static enum weir_status layers_backward(struct pass *p)
{
    for (uint32_t i = p->l->spec.layer_count; i-- > 0;) {
        struct weir_view block;
        WEIR_TRY(block_want(p, p->l->layers[i], WEIR_GRAD, &block));
        for (uint32_t m = p->end; m-- > p->first;)
            WEIR_TRY(backward_piece(p, i, m, &block));
        WEIR_TRY(block_done(p, p->l->layers[i]));
    }
    return WEIR_OK;
}

static enum weir_status embed_grad_piece(struct pass *p, uint32_t i, uint32_t m,
                                         const struct weir_view *block)
{
    struct llama *l = p->l;
    bool last = i + 1 == l->row_block_count;
    struct piece piece = {.count = 0};
    piece_use(&piece, d_id(l, 0, m), last ? WEIR_LAST : WEIR_READ);
    piece_use(&piece, l->tokens[m], last ? WEIR_LAST : WEIR_READ);
    WEIR_TRY(piece_want(p, &piece, 0));
    struct vocab_rows rows = rows_view(&l->embed[i], block, m + 1 == l->spec.micro_count);
    void *scratch;
    WEIR_TRY(weir_scratch(l->run, network_embed_scratch_bytes(&l->net, &rows) + 64, &scratch));
    if (!p->step->dry)
        WEIR_TRY(network_embed_backward(&l->net, &rows, piece.views[1].bytes, piece.views[0].bytes,
                                        scratch));
    return piece_done(p, &piece);
}

/* After all groups, so that a tied weight adds up in the same order whatever the groups. */
static enum weir_status embed_backward(struct pass *p)
{
    for (uint32_t i = 0; i < p->l->row_block_count; i++) {
        struct weir_view block;
        WEIR_TRY(block_want(p, p->l->embed[i].block, WEIR_ADD, &block));
        for (uint32_t m = p->l->spec.micro_count; m-- > 0;)
            WEIR_TRY(embed_grad_piece(p, i, m, &block));
        WEIR_TRY(block_done(p, p->l->embed[i].block));
    }
    return WEIR_OK;
}

static enum weir_status group_run(struct pass *p)
{
    WEIR_TRY(embed_forward(p));
    WEIR_TRY(layers_forward(p));
    if (!p->training || p->l->row_block_count > 1)
        WEIR_TRY(head_stats_pass(p));
    if (!p->training)
        return WEIR_OK;
    WEIR_TRY(head_grad_pass(p));
    return layers_backward(p);
}

static enum weir_status events(struct llama *l, const struct llama_step *step)
{
    struct pass pass = {.l = l, .step = step, .training = step->update != NULL};
    uint32_t groups = step->group_count > 0 ? step->group_count : 1, count = l->spec.micro_count;
    WEIR_TRY(rope_make(&pass));
    for (uint32_t g = groups; g-- > 0;) {
        pass.first = (uint32_t)((uint64_t)count * g / groups);
        pass.end = (uint32_t)((uint64_t)count * (g + 1) / groups);
        if (pass.first < pass.end)
            WEIR_TRY(group_run(&pass));
    }
    return pass.training ? embed_backward(&pass) : WEIR_OK;
}

/* Leave an open step; the first error stays the one that is reported. */
static enum weir_status leave(struct llama *l, enum weir_status status)
{
    struct weir_error error = *weir_last_error();
    if (status == WEIR_ERR_IO || status == WEIR_ERR_CORRUPT || status == WEIR_ERR_DEVICE ||
        status == WEIR_ERR_COMM)
        return status;
    if (weir_step_abort(l->run) != WEIR_OK)
        return weir_last_error()->status;
    return weir_fail_with(&error);
}

enum weir_status llama_run(struct llama *l, const struct llama_step *step, double *loss,
                           struct weir_report *report)
{
    WEIR_TRY(weir_step_begin(l->run, step->key, step->dry));
    enum weir_status status = events(l, step);
    if (status != WEIR_OK)
        return leave(l, status);
    WEIR_TRY(weir_step_end(l->run, step->update, report));
    if (step->dry)
        return WEIR_OK;
    double sum = 0;
    for (size_t i = 0; i < (size_t)l->spec.micro_count * network_chunk_count(&l->net); i++)
        sum += l->losses[i];
    *loss = sum / (double)(step->target_count > 0 ? step->target_count : 1);
    return WEIR_OK;
}
