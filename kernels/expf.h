/*
 * exp and log of a float, the same bits on every instruction set and with every libm: plain
 * operations in a fixed order, none fused.
 */
#ifndef WEIR_KERNELS_EXPF_H
#define WEIR_KERNELS_EXPF_H

#include "kernels/simd.h"

/* x = n ln2 + r with |r| <= ln2/2; exp(r) = 1 + (r + r^2 q(r)), q the interpolation of
 * (exp(r) - 1 - r) / r^2 at five Chebyshev nodes (8e-9 off). Within 2 ulp; results below 2^-126
 * become 0, so that no denormal slows a softmax down; nan stays nan. Masks where a
 * choice would become a jump, which keeps gcc from making vectors. */
WEIR_INLINE float weir_exp(float x)
{
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    const uint32_t low = 0u - (uint32_t)(x < -87.33f), high = 0u - (uint32_t)(x > 89.0f);
    float inside = weir_of_bits((weir_bits(x) & ~high) | (weir_bits(89.0f) & high));
    float shifted = inside * 1.44269504f + to_integer;
    float whole = shifted - to_integer;
    /* ln2 in two parts, the first short enough that its product with n is exact */
    float r = (inside - whole * 0.693145752f) - whole * 1.42860677e-6f;
    float q = 0.00139263261f;
    q = q * r + 0.00836329255f;
    q = q * r + 0.0416665524f;
    q = q * r + 0.166665763f;
    q = q * r + 0.5f;
    float y = 1.0f + (r + r * r * q);
    /* 2^n in two factors, since 2^128 is no float */
    int32_t n = (int32_t)(weir_bits(shifted) - weir_bits(to_integer)), half = n / 2;
    y = y * weir_of_bits((uint32_t)(half + 127) << 23) *
        weir_of_bits((uint32_t)(n - half + 127) << 23);
    return weir_of_bits(weir_bits(y) & ~low);
}

/* log of a positive normal float, or of 0, inf or nan; in double, x = 2^n m with m near 1 and
 * log(m) = 2 artanh((m - 1) / (m + 1)): within 1e-15. */
WEIR_INLINE double weir_ln(float x)
{
    if (!(x > 0) || x > 3.40282347e38f)
        return x == 0 ? -__builtin_inf() : x > 0 ? (double)x : __builtin_nan("");
    const uint32_t bits = weir_bits(x), root_half = 0x3F3504F3u;
    int32_t n = (int32_t)(bits - root_half) >> 23;
    double m = (double)weir_of_bits(bits - ((uint32_t)n << 23));
    double s = (m - 1.0) / (m + 1.0), squared = s * s, series = 0;
    for (int odd = 21; odd >= 1; odd -= 2)
        series = series * squared + 1.0 / odd;
    return n * 0.693147180559945309 + 2.0 * s * series;
}

#endif
