/*
 * Tiles of attention, shared by forward and backward. A tile is TILE tokens of one head in fp32, its
 * width D padded with zeros to a multiple of 16, so that every product is one micro-kernel over
 * vectors of 16.
 */
#ifndef WEIR_KERNELS_ATTENTION_H
#define WEIR_KERNELS_ATTENTION_H

#include "kernels/expf.h"
#include "kernels/host.h"
#include "kernels/rows.h"

#define TILE 64u /* tokens; part of the numerics, never tuned to a machine */

typedef float vector16 __attribute__((vector_size(64), aligned(4), may_alias));

static inline uint32_t attention_padded(uint32_t head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

#define AT(x, at) (*(vector16 *)((x) + (at)))

/* c[4 rows][16 * columns] += a[4 rows][k] b[k][..], sums in the order of k. */
#define MICRO(columns)                                                                             \
    do {                                                                                           \
        vector16 sum[4][columns];                                                                  \
        for (uint32_t r = 0; r < 4; r++)                                                           \
            for (uint32_t v = 0; v < columns; v++)                                                 \
                sum[r][v] = AT(c, (i + r) * n + j + 16 * v);                                       \
        for (uint32_t t = 0; t < k; t++)                                                           \
            for (uint32_t r = 0; r < 4; r++)                                                       \
                for (uint32_t v = 0; v < columns; v++)                                             \
                    sum[r][v] += a[(i + r) * k + t] * AT(b, t * n + j + 16 * v);                   \
        for (uint32_t r = 0; r < 4; r++)                                                           \
            for (uint32_t v = 0; v < columns; v++)                                                 \
                AT(c, (i + r) * n + j + 16 * v) = sum[r][v];                                       \
    } while (0)

/* c[TILE][n] += a[TILE][k] b[k][n]; n a multiple of 16. */
WEIR_INLINE void attention_product(float *c, const float *a, float *b, uint32_t k, uint32_t n)
{
    for (uint32_t i = 0; i < TILE; i += 4) {
        uint32_t j = 0;
        for (; j + 64 <= n; j += 64)
            MICRO(4);
        for (; j < n; j += 16)
            MICRO(1);
    }
}

/* Tokens [first, first + TILE) of one head, zeros beyond count and beyond D. */
WEIR_INLINE void attention_tile(float *tile, const void *x, int bf16, uint64_t head_offset,
                                uint64_t stride, uint32_t head_dim, uint32_t count)
{
    uint32_t width = attention_padded(head_dim);
    for (uint32_t r = 0; r < TILE; r++)
        for (uint32_t d = 0; d < width; d++)
            tile[r * width + d] =
                r < count && d < head_dim ? weir_act_load(x, bf16, head_offset + r * stride + d) : 0;
}

/* out[columns][rows] = in[rows][columns] */
WEIR_INLINE void attention_turn(float *out, const float *in, uint32_t rows, uint32_t columns)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns; c++)
            out[c * rows + r] = in[r * columns + c];
}

/* One (sequence, head): where its rows are. */
struct attention_spot {
    uint64_t q, k;             /* element of token 0 in q, out, dq; in k, v, dk, dv */
    uint64_t q_stride, k_stride;
    uint64_t lse, lse_stride;
    uint32_t length, head_dim;
};

static inline struct attention_spot attention_spot_of(const struct weir_attention_args *a,
                                                      uint32_t sequence, uint32_t head)
{
    uint32_t kv_head = head / (a->heads / a->kv_heads);
    uint64_t token = (uint64_t)sequence * a->length;
    return (struct attention_spot){
        .q_stride = (uint64_t)a->heads * a->head_dim,
        .k_stride = (uint64_t)a->kv_heads * a->head_dim,
        .q = (token * a->heads + head) * a->head_dim,
        .k = (token * a->kv_heads + kv_head) * a->head_dim,
        .lse = token * a->heads + head,
        .lse_stride = a->heads,
        .length = a->length,
        .head_dim = a->head_dim};
}

static inline uint32_t attention_rows(uint32_t length, uint32_t first)
{
    return length - first < TILE ? length - first : TILE;
}

/* Floats of one thread's scratch. */
uint64_t weir_attention_thread_floats(const struct weir_attention_args *a);
size_t weir_attention_ranges(const struct weir_attention_args *a, int thread_count,
                             struct weir_range *ranges, bool backward);

#endif
