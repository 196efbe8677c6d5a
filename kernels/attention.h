/*
 * Tiles of attention, shared by forward and backward. A tile is TILE tokens of one head in fp32:
 * either a token a row, padded with zeros to a width that is a multiple of 16, or turned, a token a
 * column. Scores are kept turned (a key a row, a query a column), so that maxima, sums and exp go
 * over vectors of queries, and one kind of product (kernels/product.h) does everything.
 */
#ifndef WEIR_KERNELS_ATTENTION_H
#define WEIR_KERNELS_ATTENTION_H

#include "kernels/expf.h"
#include "kernels/host.h"
#include "kernels/product.h"
#include "kernels/rows.h"

#define TILE 64u /* tokens; part of the numerics, never tuned to a machine */

static inline uint32_t attention_width(uint32_t head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

/* Length rounded up to tiles. */
static inline uint64_t attention_padded(uint32_t length)
{
    return ((uint64_t)length + TILE - 1) / TILE * TILE;
}

static inline uint32_t attention_rows(uint32_t length, uint32_t first)
{
    return length - first < TILE ? length - first : TILE;
}

/* The rows of one head in an array of N x heads x D. */
struct attention_head {
    uint64_t first, stride; /* elements */
};

static inline struct attention_head attention_head_at(const struct weir_attention_args *a,
                                                      uint32_t heads, uint32_t sequence,
                                                      uint32_t head)
{
    uint64_t token = (uint64_t)sequence * a->length;
    return (struct attention_head){.first = (token * heads + head) * a->head_dim,
                                   .stride = (uint64_t)heads * a->head_dim};
}

/* A pointer a row: gcc makes no vectors of a loop whose 32-bit index might wrap. */
WEIR_INLINE float *attention_row(float *tile, uint32_t row, uint32_t width)
{
    return tile + (size_t)row * width;
}

/* Tokens [first, first + rows) of a head; what lies beyond, up to TILE and to the width, is 0. */
WEIR_INLINE void attention_load(float *tile, const void *x, int bf16, struct attention_head head,
                                uint32_t head_dim, uint32_t first, uint32_t rows)
{
    uint32_t width = attention_width(head_dim);
    if (rows < TILE || head_dim < width)
        memset(tile, 0, TILE * (size_t)width * sizeof *tile);
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t at = head.first + (first + r) * head.stride;
        float *row = attention_row(tile, r, width);
        WEIR_SIMD
        for (uint32_t d = 0; d < head_dim; d++)
            row[d] = weir_act_load(x, bf16, at + d);
    }
}

WEIR_INLINE void attention_store(void *x, int bf16, struct attention_head head, uint32_t head_dim,
                                 uint32_t first, uint32_t rows, const float *tile)
{
    uint32_t width = attention_width(head_dim);
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t at = head.first + (first + r) * head.stride;
        const float *row = tile + (size_t)r * width;
        WEIR_SIMD
        for (uint32_t d = 0; d < head_dim; d++)
            weir_act_store(x, bf16, at + d, row[d]);
    }
}

typedef float attention_four __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* before gcc 12 there is only this one */
typedef int32_t attention_picks __attribute__((vector_size(16)));
#define PICK(a, b, ...) __builtin_shuffle(a, b, (attention_picks){__VA_ARGS__})
#endif

/* to[j][i] = from[i][j] for 4 x 4; strides in floats */
WEIR_INLINE void attention_turn_four(float *to, size_t to_stride, const float *from,
                                     size_t from_stride)
{
    attention_four in[4], pair[4], out[4];
    for (uint32_t i = 0; i < 4; i++)
        in[i] = *(const attention_four *)(from + i * from_stride);
    for (uint32_t i = 0; i < 2; i++) {
        pair[i] = PICK(in[2 * i], in[2 * i + 1], 0, 4, 1, 5);
        pair[i + 2] = PICK(in[2 * i], in[2 * i + 1], 2, 6, 3, 7);
    }
    for (uint32_t i = 0; i < 2; i++) {
        out[2 * i] = PICK(pair[2 * i], pair[2 * i + 1], 0, 1, 4, 5);
        out[2 * i + 1] = PICK(pair[2 * i], pair[2 * i + 1], 2, 3, 6, 7);
    }
    for (uint32_t i = 0; i < 4; i++)
        *(attention_four *)(to + i * to_stride) = out[i];
}

/* turned[d][r] = tile[r][d]; turned has as many rows as the tile is wide */
WEIR_INLINE void attention_turn(float *turned, const float *tile, uint32_t head_dim)
{
    uint32_t width = attention_width(head_dim);
    for (uint32_t d = 0; d < width; d += 4)
        for (uint32_t r = 0; r < TILE; r += 4)
            attention_turn_four(turned + (size_t)d * TILE + r, TILE, tile + (size_t)r * width + d,
                                width);
}

/* turned[key][query] (+)= rows of `keys` times a turned tile of queries */
static inline void attention_scores(enum weir_isa isa, float *scores, const float *keys,
                                    const float *queries, uint32_t head_dim)
{
    const struct weir_product p = {.c = scores,
                                   .a = keys,
                                   .b = queries,
                                   .m = TILE,
                                   .n = TILE,
                                   .k = head_dim,
                                   .a_row = attention_width(head_dim),
                                   .a_step = 1,
                                   .fresh = true};
    WEIR_BY_ISA(isa, weir_product, (&p));
}

/* out[query] (+)= sum over keys of scores[key][query] * values[key] */
static inline void attention_to_queries(enum weir_isa isa, float *out, const float *scores,
                                        const float *values, uint32_t width, uint32_t keys,
                                        bool fresh)
{
    const struct weir_product p = {.c = out,
                                   .a = scores,
                                   .b = values,
                                   .m = TILE,
                                   .n = width,
                                   .k = keys,
                                   .a_row = 1,
                                   .a_step = TILE,
                                   .fresh = fresh};
    WEIR_BY_ISA(isa, weir_product, (&p));
}

/* out[key] (+)= sum over queries of scores[key][query] * values[query] */
static inline void attention_to_keys(enum weir_isa isa, float *out, const float *scores,
                                     const float *values, uint32_t width, uint32_t queries,
                                     bool fresh)
{
    const struct weir_product p = {.c = out,
                                   .a = scores,
                                   .b = values,
                                   .m = TILE,
                                   .n = width,
                                   .k = queries,
                                   .a_row = TILE,
                                   .a_step = 1,
                                   .fresh = fresh};
    WEIR_BY_ISA(isa, weir_product, (&p));
}

/* Floats of one thread's scratch. */
uint64_t weir_attention_thread_floats(const struct weir_attention_args *a);
size_t weir_attention_ranges(const struct weir_attention_args *a, int thread_count,
                             struct weir_range *ranges, bool backward);

#endif
