/*
 * The math table: every operation that weir and weir-train queue on a device.
 *
 * An instance is a const struct weir_kernels_table. The host instance runs each operation as a call
 * on the stream's engine thread with a team of thread_count OpenMP threads. Each operation declares
 * what it reads and writes (core/device.h) and fills its arguments' struct from plain values: no
 * hidden state, no allocation. Pointers are device memory unless said otherwise.
 *
 * NUMERICS (DESIGN 7b, 7c). Shapes: N tokens (rows), H hidden width, D head_dim, V vocabulary.
 * `act` is the run's dtype (bf16 or fp32): weights and activations; gradients between blocks and of
 * weights are fp32. bf16 inputs are widened, arithmetic is fp32, results are rounded to nearest
 * even once. Sums over a row use 16 lanes (lane = index mod 16) and a fixed tree (8, 4, 2, 1); sums
 * over rows go in row order; sums of squares have their own lanes (WEIR_NORM_LANES). So bits depend
 * on the instruction set and the team only through GEMM. Order of a row's values in an exp, a
 * division or a square root is elementwise; exp is our own polynomial, the same on every
 * instruction set. No fma unless written as fmaf on both sides.
 */
#ifndef WEIR_KERNELS_KERNELS_H
#define WEIR_KERNELS_KERNELS_H

#include "core/device.h"
#include <weir/weir.h>

#define WEIR_SEGMENT_ELEMENTS 65536u /* 2^16: update, sharding, checksum, norm partial */
#define WEIR_ALIGN_ELEMENTS   2048u  /* each tensor of a block starts at a multiple */
#define WEIR_WINDOW_SEGMENTS  16u
#define WEIR_TILE_ROWS        4096u /* of the vocabulary */
#define WEIR_CHUNK_TOKENS     1024u /* of the head */
#define WEIR_LANES            16u
#define WEIR_NORM_LANES       32u /* of each 2048 elements of a sum of squares */

struct weir_kernels;

/* C[m][n] = op(A) op(B) (+ C if accumulate), dense row-major. op(A) is m x k: stored [m][k], or
 * [k][m] if transpose_a; op(B) is k x n: stored [k][n], or [n][k] if transpose_b. in: dtype of A
 * and B; out: of C (accumulate needs FP32). */
struct weir_gemm_shape {
    uint32_t m, n, k;
    bool transpose_a, transpose_b, accumulate;
    enum weir_dtype in, out;
};
struct weir_gemm_args {
    uint32_t gemm; /* from gemm_prepare */
    const void *a, *b;
    void *c;
    void *scratch; /* gemm_scratch_bytes of it */
};

/* Elements of one window of a block: neighbouring segments, element offsets from the window's
 * start. Each array of a window's state is cut by segment: residual[p] | exp_avg[p] | exp_avg_sq[p]
 * with p = padded_count; in fp32 training there is no residual. Weight and gradient run through. */
struct weir_window_segment {
    uint32_t offset, count, padded_count; /* count <= 65536; padded to 2048 */
    float lr_scale, decay_scale;
};
struct weir_adam_args {
    enum weir_dtype dtype, grad_dtype;
    void *state, *weight;
    const void *grad; /* grad_dtype, contiguous over the window */
    float lr, beta1, beta2, eps, weight_decay;
    float clip_factor;              /* gradient times this; <= 1 */
    float correction1, correction2; /* 1 - beta^t, computed in double */
    uint64_t *bad_count; /* += masters not finite after rounding; host or device memory */
    uint32_t segment_count;
    struct weir_window_segment segments[WEIR_WINDOW_SEGMENTS];
};
struct weir_clear_residual_args { /* for WEIR_WRITE: residual = 0, moments stay */
    enum weir_dtype dtype;
    void *state;
    uint32_t segment_count;
    struct weir_window_segment segments[WEIR_WINDOW_SEGMENTS];
};
/* A complete fp32 gradient window: round in place to grad_dtype (bf16: the window's bytes become a
 * dense bf16 array at its start; padding elements become 0), partial[s] = sum of squares of the
 * rounded values of segment s in fp64 (inf or nan if one of them is): of each WEIR_ALIGN_ELEMENTS
 * in WEIR_NORM_LANES lanes and the tree 16, 8, 4, 2, 1, then from the first of these sums on. */
struct weir_reduce_args {
    enum weir_dtype grad_dtype;
    float *grad;
    double *partials; /* one per segment of the window */
    uint32_t segment_count;
    struct weir_window_segment segments[WEIR_WINDOW_SEGMENTS];
};

struct weir_cast_args { /* out[i] = in[i] in the other dtype */
    const void *in;
    void *out;
    enum weir_dtype from, to;
    uint64_t count;
};
struct weir_add_args { /* out = a + b, each act; out may be a */
    const void *a, *b;
    void *out;
    enum weir_dtype dtype;
    uint64_t count;
};

struct weir_embed_args {   /* rows [first_row, first_row + row_count) of the table */
    const int32_t *tokens; /* N; the caller checked 0 <= token < V */
    uint32_t token_count, width, first_row, row_count;
    enum weir_dtype dtype;
    const void *table; /* forward: row_count x H */
    void *x;           /* forward: N x H; rows of other pieces stay untouched */
    const float *d;    /* backward: N x H */
    float *grad;       /* backward: row_count x H; per id summed in token order, then added once */
    bool fresh;        /* backward: grad holds nothing, overwrite all of it */
    void *scratch;     /* backward: embed_scratch_bytes */
};

struct weir_norm_args { /* y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps); Zhang & Sennrich 2019
                         */
    const void *x, *weight;
    void *y;     /* forward: act; NULL in backward */
    float *rstd; /* N; out in forward, in in backward */
    uint32_t rows, width;
    float eps;
    enum weir_dtype dtype;
    const float *dy;         /* backward, N x H */
    float *dx;               /* backward: dx = residual_d + d(norm) ; may be dy or residual_d */
    const float *residual_d; /* NULL: 0 */
    float *dweight;          /* backward: += over rows in order, or = if fresh */
    bool fresh;
};

/* How frequencies are scaled, as in transformers' rope utils: linear divides all of them by factor,
 * llama3 those of long wavelengths. */
enum weir_rope_scaling { WEIR_ROPE_PLAIN, WEIR_ROPE_LINEAR, WEIR_ROPE_LLAMA3 };
struct weir_rope_table_args { /* Su et al. 2021 */
    float *cos_sin;           /* T x D/2 pairs {cos, sin}, computed in double */
    uint32_t length, head_dim;
    double theta;
    enum weir_rope_scaling scaling;
    double factor;                                             /* not PLAIN */
    double low_freq_factor, high_freq_factor, original_length; /* LLAMA3 */
};
struct weir_rope_args { /* in place, rotate_half pairing (i, i + D/2) */
    void *x;            /* N x heads x D */
    const float *cos_sin;
    uint32_t sequences, length, heads, head_dim; /* N = sequences * length */
    bool backward;                               /* rotate by the negative angle */
    enum weir_dtype dtype;
};

/* Causal grouped-query attention in tiles, no T x T matrix kept (Dao et al. 2022). */
struct weir_attention_args {
    const void *q, *k, *v; /* N x heads x D, N x kv_heads x D */
    void *out;             /* N x heads x D; in in backward */
    float *lse;            /* N x heads; out in forward, in in backward */
    uint32_t sequences, length, heads, kv_heads, head_dim;
    float scale; /* 1/sqrt(D) */
    enum weir_dtype dtype;
    const void *dout;   /* backward, act */
    void *dq, *dk, *dv; /* backward, act */
    void *scratch;      /* attention_scratch_bytes */
};

struct weir_swiglu_args { /* out = silu(gate) * up (Shazeer 2020) */
    const void *gate, *up;
    void *out;        /* forward; in backward too if not NULL (recomputed for dW) */
    const void *dout; /* backward */
    void *dgate, *dup;
    enum weir_dtype dtype;
    uint64_t count;
};

/* The head on one tile of the vocabulary: logits fp32, rows x tile_rows, dense. Token targets of
 * -100 do not count. Running maximum and sum of exp(l - max) per token over the tiles in order. */
struct weir_head_args {
    const float *logits;
    const int32_t *targets; /* rows */
    uint32_t rows, first_vocab, tile_rows;
    bool first;                      /* stats: start max, sum, target_logit */
    float *max, *sum, *target_logit; /* rows each */
    double *loss;  /* loss op: *loss = sum over rows in order of log(sum) + max - target */
    float scale;   /* grad: 1 / target tokens of the whole step */
    void *dlogits; /* grad: act, rows x tile_rows: (softmax - onehot) * scale; masked rows 0 */
    enum weir_dtype dtype;
};

struct weir_kernels_table {
    const char *name;
    /* isa: NULL or "auto": the best; else "generic", "avx2", "avx512" for tests. */
    enum weir_status (*open)(struct weir_kernels **out, struct weir_device *device,
                             int thread_count, const char *isa, struct weir_log *log);
    void (*close)(struct weir_kernels *kernels);
    const char *(*describe)(const struct weir_kernels *kernels); /* "host avx512 bf16, 2 threads" */

    /* Before step 1; the same shape again gives the same handle. */
    enum weir_status (*gemm_prepare)(struct weir_kernels *kernels,
                                     const struct weir_gemm_shape *shape, uint32_t *gemm,
                                     uint64_t *scratch_bytes);
    uint64_t (*attention_scratch_bytes)(const struct weir_attention_args *shape, int thread_count);
    uint64_t (*embed_scratch_bytes)(const struct weir_embed_args *shape);

#define WEIR_KERNEL(name, args)                                                                    \
    enum weir_status (*name)(struct weir_kernels * kernels, struct weir_stream * stream,           \
                             const struct args *a)
    WEIR_KERNEL(gemm, weir_gemm_args);
    WEIR_KERNEL(adam, weir_adam_args);
    WEIR_KERNEL(clear_residual, weir_clear_residual_args);
    WEIR_KERNEL(reduce, weir_reduce_args);
    WEIR_KERNEL(cast, weir_cast_args);
    WEIR_KERNEL(add, weir_add_args);
    WEIR_KERNEL(embed_forward, weir_embed_args);
    WEIR_KERNEL(embed_backward, weir_embed_args);
    WEIR_KERNEL(norm_forward, weir_norm_args);
    WEIR_KERNEL(norm_backward, weir_norm_args);
    WEIR_KERNEL(rope_table, weir_rope_table_args);
    WEIR_KERNEL(rope, weir_rope_args);
    WEIR_KERNEL(attention_forward, weir_attention_args);
    WEIR_KERNEL(attention_backward, weir_attention_args);
    WEIR_KERNEL(swiglu_forward, weir_swiglu_args);
    WEIR_KERNEL(swiglu_backward, weir_swiglu_args);
    WEIR_KERNEL(head_stats, weir_head_args);
    WEIR_KERNEL(head_loss, weir_head_args);
    WEIR_KERNEL(head_grad, weir_head_args);
#undef WEIR_KERNEL
};

/* The first member of every instance's struct. */
struct weir_kernels {
    const struct weir_kernels_table *table;
};

/* The instance for a device's table name ("host"). */
enum weir_status weir_kernels_find(const char *name, const struct weir_kernels_table **out);

/* CPU helpers of load and save (kernels/convert.c); padding is the caller's business. */
uint16_t weir_bf16_from_float(float value); /* nearest even; nan stays nan */
float weir_float_from_bf16(uint16_t bits);
float weir_float_from_f16(uint16_t bits);
/* 5a: weight = (bits + 0x8000) >> 16, residual = bits - (weight << 16). Returns how many masters
 * are not finite after rounding. */
uint64_t weir_master_split(const float *master, uint16_t *weight, int16_t *residual,
                           uint64_t count);
void weir_master_join(const uint16_t *weight, const int16_t *residual, float *master,
                      uint64_t count);
/* Values of a normal distribution (mean 0) from Philox4x32-10 (Salmon et al. 2011) keyed by seed
 * and tensor name, counter = element index; integer arithmetic until one scaling: the same bits
 * everywhere. */
void weir_random_normal(uint64_t seed, const char *name, uint64_t first, uint64_t count,
                        float deviation, float *out);

#endif
