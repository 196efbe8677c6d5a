/*
 * Where the parts of a window lie (kernels.h: struct weir_window_segment).
 */
#ifndef WEIR_KERNELS_WINDOW_H
#define WEIR_KERNELS_WINDOW_H

#include "kernels/kernels.h"

static inline uint64_t weir_dtype_bytes(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? sizeof(uint16_t) : sizeof(float);
}

static inline uint64_t weir_residual_bytes(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? sizeof(int16_t) : 0;
}

/* Residual, exp_avg, exp_avg_sq. */
static inline uint64_t weir_state_bytes(enum weir_dtype dtype)
{
    return weir_residual_bytes(dtype) + 2 * sizeof(float);
}

/* Elements of a window, padding included: segments are neighbours. */
static inline uint32_t weir_window_elements(const struct weir_window_segment *segments,
                                            uint32_t count)
{
    return count ? segments[count - 1].offset + segments[count - 1].padded_count : 0;
}

#endif
