/*
 * Products of small fp32 tiles, the inner loops of attention. Each element of c is one sum in the
 * order of k, multiplied and added without fma: the same bits whatever the vectors' width.
 */
#ifndef WEIR_KERNELS_PRODUCT_H
#define WEIR_KERNELS_PRODUCT_H

#include "kernels/host.h"

/* c[m][n] = a b, or += if not fresh. b is [k][n], dense as c; a's element (row, step) is at
 * row * a_row + step * a_step, so a tile can be read turned. m a multiple of 4, n of 16. */
struct weir_product {
    float *c;
    const float *a, *b;
    uint32_t m, n, k;
    uint32_t a_row, a_step;
    bool fresh;
};

void weir_product_generic(const struct weir_product *p);
void weir_product_avx2(const struct weir_product *p);
void weir_product_avx512(const struct weir_product *p);

#endif
