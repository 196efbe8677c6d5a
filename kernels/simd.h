/*
 * One body, compiled for each instruction set: the same operations in the same order give the same
 * bits, since nothing is fused (-ffp-contract=off) and sums go over a fixed number of lanes.
 *
 *     WEIR_INLINE void scale_body(float *x, uint64_t n) { ... }
 *     WEIR_EACH_ISA(static void, scale, (float *x, uint64_t n), (x, n)) // scale_avx512, ...
 *     WEIR_BY_ISA(k->isa, scale, (x, n));
 *
 * Loops that must become vectors are marked WEIR_SIMD.
 */
#ifndef WEIR_KERNELS_SIMD_H
#define WEIR_KERNELS_SIMD_H

#include <stdint.h>
#include <string.h>

#define WEIR_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define WEIR_TARGET_AVX2 __attribute__((target("avx2")))
#if defined(__clang__) /* takes the whole width unasked, and does not know the option */
#define WEIR_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#else
#define WEIR_TARGET_AVX512                                                                         \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#endif
#else
#define WEIR_TARGET_AVX2
#define WEIR_TARGET_AVX512
#endif

/* gcc's -O2 leaves most loops scalar unless told. clang needs no telling, and would warn wherever a
 * sanitizer keeps it from doing as told. */
#if defined(__clang__)
#define WEIR_SIMD
#define WEIR_SIMD_SUM(sum)
#else
#define WEIR_PRAGMA(text)  _Pragma(#text)
#define WEIR_SIMD          _Pragma("omp simd")
#define WEIR_SIMD_SUM(sum) WEIR_PRAGMA(omp simd reduction(+ : sum))
#endif

/* name##_body is WEIR_INLINE; this makes its three compiled forms. */
#define WEIR_EACH_ISA(result, name, parameters, arguments)                                         \
    result name##_generic parameters                                                               \
    {                                                                                              \
        name##_body arguments;                                                                     \
    }                                                                                              \
    WEIR_TARGET_AVX2 result name##_avx2 parameters                                                 \
    {                                                                                              \
        name##_body arguments;                                                                     \
    }                                                                                              \
    WEIR_TARGET_AVX512 result name##_avx512 parameters                                             \
    {                                                                                              \
        name##_body arguments;                                                                     \
    }

#define WEIR_BY_ISA(isa, name, arguments)                                                          \
    do {                                                                                           \
        if ((isa) == WEIR_ISA_AVX512)                                                              \
            name##_avx512 arguments;                                                               \
        else if ((isa) == WEIR_ISA_AVX2)                                                           \
            name##_avx2 arguments;                                                                 \
        else                                                                                       \
            name##_generic arguments;                                                              \
    } while (0)

WEIR_INLINE uint32_t weir_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

WEIR_INLINE float weir_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

WEIR_INLINE float weir_widen(uint16_t bits)
{
    return weir_of_bits((uint32_t)bits << 16);
}

/* Nearest even; a nan stays one. Branch-free, so that loops over it become vectors. */
WEIR_INLINE uint16_t weir_narrow(float value)
{
    uint32_t bits = weir_bits(value);
    uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

/* The split of an fp32 master (DESIGN 5a). */
WEIR_INLINE float weir_join(uint16_t weight, int16_t residual)
{
    return weir_of_bits(((uint32_t)weight << 16) + (uint32_t)(int32_t)residual);
}

WEIR_INLINE uint16_t weir_split_weight(uint32_t bits)
{
    return (uint16_t)((bits + 0x8000u) >> 16);
}

WEIR_INLINE int16_t weir_split_residual(uint32_t bits)
{
    return (int16_t)(uint16_t)(bits - ((uint32_t)weir_split_weight(bits) << 16));
}

/* 1 if a master with these bits is not finite after rounding to its weight. */
WEIR_INLINE uint32_t weir_split_bad(uint32_t bits)
{
    return (bits & 0x7FFFFFFFu) >= 0x7F7F8000u;
}

#endif
