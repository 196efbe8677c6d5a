/*
 * What every .cu file is written with. Under nvcc these are CUDA; tests/cudasim compiles the same
 * files as C++ with -include tests/cudasim/shim.h, which defines WEIR_CUDASIM and the emulated
 * half.
 *
 * Rules for kernels: launch with WEIR_LAUNCH only; PTX in this file only; no waiting between
 * blocks; no default stream; no reliance on implicit lock-step of a warp; no atomic add of floats.
 */
#ifndef WEIR_KERNELS_DEVICE_CUH
#define WEIR_KERNELS_DEVICE_CUH

#include "kernels/cuda.h"

#ifndef WEIR_CUDASIM
#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* Queue kernel<<<grid, block, shared_bytes>>>(...) on a struct weir_stream; an enum weir_status. */
#define WEIR_LAUNCH(on, kernel, grid, block, shared_bytes, ...)                                    \
    (kernel<<<(grid), (block), (shared_bytes), weir_cuda_stream(on)>>>(__VA_ARGS__),               \
     weir_cuda_result((on)->device, (int)cudaGetLastError(), #kernel))

/* T *name: the launch's dynamic shared memory, aligned to 16 bytes. */
#define WEIR_SHARED(T, name)                                                                       \
    extern __shared__ __align__(16) unsigned char weir_shared_[];                                  \
    T *name = reinterpret_cast<T *>(weir_shared_)
/* A kernel that may use more than 48 KiB of it says so once, before its first launch. */
#define WEIR_SHARED_ALLOW(on, kernel, bytes)                                                       \
    weir_cuda_result((on)->device,                                                                 \
                     (int)cudaFuncSetAttribute(                                                    \
                         kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)),       \
                     "shared memory of " #kernel)
#endif

#define WEIR_WARP       32u
#define WEIR_WHOLE_WARP 0xFFFFFFFFu

/* ---- tensor cores and asynchronous copies; the emulated half is in tests/cudasim/shim.h */
#ifndef WEIR_CUDASIM

/* d (16 x 8, fp32) += a (16 x 16, bf16, row) * b (16 x 8, bf16, col); PTX ISA, mma.m16n8k16. */
__device__ __forceinline__ void weir_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 matrices of 16-bit elements; lane l names row l mod 8 of matrix l / 8, 16 bytes. */
__device__ __forceinline__ void weir_ldmatrix(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
/* The same, each matrix transposed. */
__device__ __forceinline__ void weir_ldmatrix_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* 16 bytes, both sides 16-byte aligned; not valid: zeros, `from` is not read. */
__device__ __forceinline__ void weir_copy_async(void *shared_to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared_to)),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void weir_copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until all but the latest `left` committed groups of this thread have arrived; a barrier must
 * follow before other threads read them. */
template <int left> __device__ __forceinline__ void weir_copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* 2^x; 0 where that is less than the least normal number. One instruction: exp2f has three more, to
 * keep the subnormal ones. */
__device__ __forceinline__ float weir_exp2(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
#endif

/* ---- numbers: bf16 by integer arithmetic, as kernels/simd.h does it */
__device__ __forceinline__ float weir_device_widen(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}
__device__ __forceinline__ uint16_t weir_device_narrow(float value)
{
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

#endif
