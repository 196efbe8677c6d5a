/*
 * Rows of act values: widened into fp32 lines, sums over 16 lanes and a fixed tree.
 */
#ifndef WEIR_KERNELS_ROWS_H
#define WEIR_KERNELS_ROWS_H

#include "kernels/kernels.h"
#include "kernels/simd.h"

WEIR_INLINE float weir_act_load(const void *x, int bf16, uint64_t i)
{
    return bf16 ? weir_widen(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

WEIR_INLINE void weir_act_store(void *x, int bf16, uint64_t i, float value)
{
    if (bf16)
        ((uint16_t *)x)[i] = weir_narrow(value);
    else
        ((float *)x)[i] = value;
}

WEIR_INLINE float weir_lanes_sum(float lane[WEIR_LANES])
{
    for (uint32_t half = WEIR_LANES / 2; half > 0; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

static inline const void *weir_act_at(const void *x, enum weir_dtype dtype, uint64_t i)
{
    return (const char *)x + i * (dtype == WEIR_BF16 ? 2 : 4);
}

static inline void *weir_act_at_mutable(void *x, enum weir_dtype dtype, uint64_t i)
{
    return (char *)x + i * (dtype == WEIR_BF16 ? 2 : 4);
}

static inline uint64_t weir_act_bytes(enum weir_dtype dtype, uint64_t count)
{
    return count * (dtype == WEIR_BF16 ? 2 : 4);
}

#endif
