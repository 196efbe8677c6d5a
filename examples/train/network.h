/*
 * The arithmetic of a Llama on one micro-batch, as kernels queued on a stream. Knows nothing of
 * want and done: memory comes from the caller, so that weir-train's loop and a plain loop over
 * arrays run the same operations in the same order.
 *
 * Shapes: N = sequences * length tokens, H hidden, Q = heads * D, K = kv_heads * D, I intermediate,
 * V vocabulary. act is the run's dtype; d (gradients between blocks) and weight gradients are fp32.
 */
#ifndef WEIR_TRAIN_NETWORK_H
#define WEIR_TRAIN_NETWORK_H

#include "kernels/kernels.h"

/* Tensors of a layer's block, in this order. */
enum layer_tensor {
    LAYER_Q,      /* Q x H */
    LAYER_K,      /* K x H */
    LAYER_V,      /* K x H */
    LAYER_O,      /* H x Q */
    LAYER_GATE,   /* I x H */
    LAYER_UP,     /* I x H */
    LAYER_DOWN,   /* H x I */
    LAYER_NORM_1, /* H */
    LAYER_NORM_2, /* H */
    LAYER_TENSORS,
};

struct network_shape {
    uint32_t sequences, length; /* of a micro-batch */
    uint32_t hidden, heads, kv_heads, head_dim, intermediate, vocab;
    uint32_t tile_rows, chunk_tokens; /* WEIR_TILE_ROWS, WEIR_CHUNK_TOKENS; smaller in tests */
    float norm_eps;
    enum weir_dtype dtype;
    struct weir_rope_table_args rope; /* theta and scaling; the rest is filled */
};

/* GEMMs of one layer, by what they make. */
enum layer_gemm {
    GEMM_Q,
    GEMM_KV,
    GEMM_O,
    GEMM_UP,
    GEMM_DOWN, /* forward */
    GEMM_D_DOWN,
    GEMM_D_UP,
    GEMM_D_UP_ADD,
    GEMM_D_O,
    GEMM_D_Q,
    GEMM_D_KV_ADD, /* to inputs */
    GEMM_W_Q,
    GEMM_W_KV,
    GEMM_W_O,
    GEMM_W_UP,
    GEMM_W_DOWN, /* weights, fresh */
    GEMM_W_Q_ADD,
    GEMM_W_KV_ADD,
    GEMM_W_O_ADD,
    GEMM_W_UP_ADD,
    GEMM_W_DOWN_ADD,
    GEMM_COUNT,
};
/* GEMMs of the head: by chunk (full, rest) and tile (full, rest). */
struct head_gemms {
    uint32_t logits, d_first, d_add, w_first, w_add;
};

struct network {
    struct network_shape shape;
    struct weir_kernels *kernels;
    const struct weir_kernels_table *math;
    struct weir_stream *stream;
    uint32_t tokens; /* N */
    uint32_t gemms[GEMM_COUNT];
    struct head_gemms head[2][2]; /* [chunk is the rest][tile is the rest] */
    uint64_t gemm_scratch_bytes, attention_scratch_bytes;
    uint64_t inner_bytes;            /* a layer's activations between its boundaries */
    uint64_t forward_scratch_bytes;  /* of a layer, without inner_bytes */
    uint64_t backward_scratch_bytes; /* the same */
    uint64_t head_scratch_bytes;     /* of a chunk, in every use of the head */
};

/* Prepares every GEMM; before the first step. */
enum weir_status network_open(struct network *net, const struct network_shape *shape,
                              struct weir_kernels *kernels, struct weir_stream *stream,
                              int thread_count);

/* Weights of one layer: pointers per tensor; grads likewise. */
struct layer_weights {
    const void *weight[LAYER_TENSORS];
    float *grad[LAYER_TENSORS];
    bool fresh; /* grads hold nothing yet */
};

enum weir_status network_rope(const struct network *net, float *cos_sin);

/* y = layer(x); inner and scratch are the caller's. y NULL: only inner is wanted (recomputation).
 */
enum weir_status network_layer_forward(const struct network *net, const struct layer_weights *w,
                                       const float *cos_sin, const void *x, void *y, void *inner,
                                       void *scratch);
/* dx from dy, gradients into w->grad; inner as the forward left it. */
enum weir_status network_layer_backward(const struct network *net, const struct layer_weights *w,
                                        const float *cos_sin, const void *x, const void *inner,
                                        const float *dy, float *dx, void *scratch);

/* Rows [first_row, first_row + rows) of the vocabulary: a block of the head or of the embedding. */
struct vocab_rows {
    uint32_t first_row, rows;
    const void *weight;
    float *grad;
    bool fresh;
    float *logits; /* of the head, N x rows, chunk by chunk and tile by tile: from statistics to
                    * gradient; NULL: computed again */
};
enum weir_status network_embed_forward(const struct network *net, const struct vocab_rows *rows,
                                       const int32_t *tokens, void *x);
enum weir_status network_embed_backward(const struct network *net, const struct vocab_rows *rows,
                                        const int32_t *tokens, const float *d, void *scratch);
uint64_t network_embed_scratch_bytes(const struct network *net, const struct vocab_rows *rows);

/* Per token, over the tiles seen so far. */
struct head_stats {
    float *max, *sum, *target_logit; /* N each */
};
struct head_norm {
    const void *weight; /* H */
    float *grad;
    bool fresh;
};
/* Tiles of one block of rows; first_block starts the statistics. x: the last boundary, N x H. */
enum weir_status network_head_stats(const struct network *net, const struct vocab_rows *rows,
                                    const struct head_norm *norm, const void *x,
                                    const int32_t *targets, const struct head_stats *stats,
                                    void *scratch);
/* losses[chunk]: sum over the chunk's tokens. */
enum weir_status network_head_loss(const struct network *net, const int32_t *targets,
                                   const struct head_stats *stats, double *losses);
/* d (N x H): before the last block the gradient of the normed boundary, adding up over blocks;
 * after it the gradient of the boundary. */
enum weir_status network_head_grad(const struct network *net, const struct vocab_rows *rows,
                                   const struct head_norm *norm, const void *x,
                                   const int32_t *targets, const struct head_stats *stats,
                                   float scale, float *d, void *scratch);
uint32_t network_chunk_count(const struct network *net);

/* Multiplications and additions, for the planner's clock. */
double network_layer_flops(const struct network *net);
double network_head_flops(const struct network *net, uint32_t rows);

#endif
