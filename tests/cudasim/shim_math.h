/*
 * Device functions of numbers, for shim.h. Roundings are the named ones; the fast forms (__expf)
 * are the exact ones here, so their last bits are not what hardware gives.
 */
#ifndef CUDASIM_SHIM_MATH_H
#define CUDASIM_SHIM_MATH_H

inline unsigned __float_as_uint(float x)
{
    return std::bit_cast<unsigned>(x);
}
inline int __float_as_int(float x)
{
    return std::bit_cast<int>(x);
}
inline float __uint_as_float(unsigned x)
{
    return std::bit_cast<float>(x);
}
inline float __int_as_float(int x)
{
    return std::bit_cast<float>(x);
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
inline int __popc(unsigned x)
{
    return std::popcount(x);
}
inline int __clz(int x)
{
    return std::countl_zero((unsigned)x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

/* A GPU's arithmetic has one nan, which is not x86's: all bits are set but the sign. */
inline float cudasim_one_nan(float x)
{
    return x == x ? x : __uint_as_float(0x7FFFFFFFu);
}
inline float __fadd_rn(float a, float b)
{
    return cudasim_one_nan(a + b);
}
inline float __fsub_rn(float a, float b)
{
    return cudasim_one_nan(a - b);
}
inline float __fmul_rn(float a, float b)
{
    return cudasim_one_nan(a * b);
}
inline float __fmaf_rn(float a, float b, float c)
{
    return cudasim_one_nan(fmaf(a, b, c));
}
inline float __fdiv_rn(float a, float b)
{
    return cudasim_one_nan(a / b);
}
inline float __fsqrt_rn(float x)
{
    return cudasim_one_nan(sqrtf(x));
}
inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __exp2f(float x)
{
    return exp2f(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}

/* CUDA has these in the global namespace, for mixed types too. */
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    return (T)a < (T)b ? (T)b : (T)a;
}

#endif
