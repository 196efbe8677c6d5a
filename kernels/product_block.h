/*
 * One product for one instruction set; included once for each, with
 *   FORM     the suffix of its names
 *   TARGET   its attribute
 *   LANES    floats of one vector
 *   VECTORS  vectors of a block: 4 rows x VECTORS sums stay in registers
 */
#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
/* For each row r and vector v of the block; unrolled, so that sums are registers. */
#define EACH(statement)                                                                            \
    _Pragma("GCC unroll 4") for (uint32_t r = 0; r < ROWS; r++)                                    \
        _Pragma("GCC unroll 4") for (uint32_t v = 0; v < vectors; v++) statement
#define VECTOR PASTE(vector_, FORM)
#define BLOCK  PASTE(block_, FORM)

typedef float VECTOR __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* c[i .. i + 4)[j .. j + vectors * LANES) */
TARGET WEIR_INLINE void BLOCK(const struct weir_product *p, uint32_t i, uint32_t j,
                              const uint32_t vectors)
{
    float *c = p->c + (size_t)i * p->n + j;
    const float *a = p->a + (size_t)i * p->a_row, *b = p->b + j;
    const size_t row = p->a_row;
    VECTOR sum[ROWS][VECTORS] = {0};
    if (!p->fresh)
        EACH(sum[r][v] = *(const VECTOR *)(c + r * (size_t)p->n + v * LANES));
    for (uint32_t step = 0; step < p->k; step++, a += p->a_step, b += p->n)
        EACH(sum[r][v] += a[r * row] * *(const VECTOR *)(b + v * LANES));
    EACH(*(VECTOR *)(c + r * (size_t)p->n + v * LANES) = sum[r][v]);
}

TARGET void PASTE(weir_product_, FORM)(const struct weir_product *p)
{
    uint32_t j = 0;
    for (; j + VECTORS * LANES <= p->n; j += VECTORS * LANES)
        for (uint32_t i = 0; i < p->m; i += ROWS)
            BLOCK(p, i, j, VECTORS);
    for (; VECTORS * LANES > 16 && j < p->n; j += 16)
        for (uint32_t i = 0; i < p->m; i += ROWS)
            BLOCK(p, i, j, 16 / LANES);
}

#undef EACH
#undef PASTE_
#undef PASTE
#undef VECTOR
#undef BLOCK
#undef FORM
#undef TARGET
#undef LANES
#undef VECTORS
