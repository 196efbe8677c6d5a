/*
 * CUDA for kernels that are compiled as C++ (-x c++ -include shim.h): the language's words, the
 * built-in variables and functions, launches, and the emulated half of kernels/device.cuh.
 *
 * One block runs at a time and each of its threads is a fiber. Fibers change at __syncthreads*,
 * __syncwarp and the *_sync operations only, in one of three orders (order.h). Static shared memory
 * is thread-local memory of the shared object that holds the kernels, so nothing else there may be
 * thread-local; it is poisoned before each block, as dynamic shared memory is. Misuse that no
 * hardware would report ends the process with a line that names kernel, block and thread.
 */
#ifndef CUDASIM_SHIM_H
#define CUDASIM_SHIM_H

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#define WEIR_CUDASIM 1

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local

extern "C" int cudasim_launch(struct CUstream_st *stream, const char *name, void (*run)(void *),
                              void *context, void (*drop)(void *));
extern "C" void cudasim_check_arguments(const char *kernel, const void *arguments, size_t bytes);

namespace cudasim
{

/* ---- the built-in variables of the thread that runs */
extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;

/* ---- launches */
struct Launch {
    const char *kernel;
    const void *address;
    dim3 grid, block;
    size_t shared_bytes;
    void (*body)(void *context);
    void *context;
};
void launch_check(const Launch &launch);
void launch_run(const Launch &launch);
int shared_allow(const char *kernel, const void *address, size_t bytes);
unsigned char *dynamic_shared();

template <class... P, class... A>
int launch(CUstream_st *stream, const char *name, dim3 grid, dim3 block, size_t shared_bytes,
           void (*kernel)(P...), A... arguments)
{
    struct Job {
        Launch launch;
        void (*kernel)(P...);
        std::tuple<P...> arguments;
    };
    auto *job = new Job{{}, kernel, {static_cast<P>(arguments)...}};
    job->launch = {name,
                   reinterpret_cast<const void *>(kernel),
                   grid,
                   block,
                   shared_bytes,
                   [](void *context) {
                       auto *self = static_cast<Job *>(context);
                       std::apply(self->kernel, self->arguments);
                   },
                   job};
    launch_check(job->launch);
    cudasim_check_arguments(name, &job->arguments, sizeof job->arguments);
    return cudasim_launch(
        stream, name, [](void *context) { launch_run(static_cast<Job *>(context)->launch); }, job,
        [](void *context) { delete static_cast<Job *>(context); });
}

/* ---- barriers of a block; place: file and line */
enum class Vote { none, any, all, count };
int barrier(const char *place, Vote vote, int predicate);

/* ---- operations of a warp */
enum class Shuffle { index, up, down, exclusive_or };
uint64_t shuffle(unsigned mask, Shuffle kind, uint64_t value, int lane, int width);
unsigned ballot(unsigned mask, bool predicate);
void warp_barrier(unsigned mask);
void multiply_tile(float d[4], const uint32_t a[4], const uint32_t b[2]);
void load_matrices(uint32_t r[4], const void *row, bool transposed);

/* ---- asynchronous copies of a thread */
void copy_async(void *to, const void *from, bool valid);
void copy_async_commit();
void copy_async_wait(int left);

template <class T> T shuffle_of(unsigned mask, Shuffle kind, T value, int lane, int width)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = shuffle(mask, kind, bits, lane, width);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Read, change, write as one step; the old value. */
template <class T, class Change> T change_atomically(T *at, Change change)
{
    static_assert(std::is_integral_v<T>, "atomic operations on integers only");
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(at, &old, change(old), false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
    return old;
}

} // namespace cudasim

#define threadIdx (cudasim::thread_index)
#define blockIdx  (cudasim::block_index)
#define blockDim  (cudasim::block_size)
#define gridDim   (cudasim::grid_size)
#define warpSize  32

#define CUDASIM_TEXT_(x)       #x
#define CUDASIM_TEXT(x)        CUDASIM_TEXT_(x)
#define CUDASIM_PLACE          (__FILE__ ":" CUDASIM_TEXT(__LINE__))
#define __syncthreads()        ((void)cudasim::barrier(CUDASIM_PLACE, cudasim::Vote::none, 0))
#define __syncthreads_or(p)    (cudasim::barrier(CUDASIM_PLACE, cudasim::Vote::any, !!(p)))
#define __syncthreads_and(p)   (cudasim::barrier(CUDASIM_PLACE, cudasim::Vote::all, !!(p)))
#define __syncthreads_count(p) (cudasim::barrier(CUDASIM_PLACE, cudasim::Vote::count, !!(p)))

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize)
{
    return cudasim::shuffle_of(mask, cudasim::Shuffle::index, value, lane, width);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize)
{
    return cudasim::shuffle_of(mask, cudasim::Shuffle::up, value, (int)delta, width);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize)
{
    return cudasim::shuffle_of(mask, cudasim::Shuffle::down, value, (int)delta, width);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize)
{
    return cudasim::shuffle_of(mask, cudasim::Shuffle::exclusive_or, value, lanes, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    return cudasim::ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate)
{
    return cudasim::ballot(mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate)
{
    return cudasim::ballot(mask, predicate != 0) == mask;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu)
{
    cudasim::warp_barrier(mask);
}
inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Float forms are left out: the order of their sums would be the hardware's. */
#define CUDASIM_ATOMIC(name, new_value)                                                            \
    template <class T> T name(T *at, std::type_identity_t<T> value)                                \
    {                                                                                              \
        return cudasim::change_atomically(                                                         \
            at, [=]([[maybe_unused]] T old) -> T { return (T)(new_value); });                      \
    }                                                                                              \
    template <class T> T name##_system(T *at, std::type_identity_t<T> value)                       \
    {                                                                                              \
        return name(at, value);                                                                    \
    }                                                                                              \
    template <class T> T name##_block(T *at, std::type_identity_t<T> value)                        \
    {                                                                                              \
        return name(at, value);                                                                    \
    }
CUDASIM_ATOMIC(atomicAdd, old + value)
CUDASIM_ATOMIC(atomicSub, old - value)
CUDASIM_ATOMIC(atomicMax, old > value ? old : value)
CUDASIM_ATOMIC(atomicMin, old < value ? old : value)
CUDASIM_ATOMIC(atomicOr, old | value)
CUDASIM_ATOMIC(atomicAnd, old &value)
CUDASIM_ATOMIC(atomicExch, value)
template <class T>
T atomicCAS(T *at, std::type_identity_t<T> compare, std::type_identity_t<T> value)
{
    return cudasim::change_atomically(at, [=](T old) { return old == compare ? value : old; });
}

/* ---- loads and stores with hints. The hint is lost, the alignment is not: UBSan checks it. */
#define CUDASIM_LOAD(name)                                                                         \
    template <class T> T name(const T *at)                                                         \
    {                                                                                              \
        return *at;                                                                                \
    }
#define CUDASIM_STORE(name)                                                                        \
    template <class T> void name(T *at, std::type_identity_t<T> value)                             \
    {                                                                                              \
        *at = value;                                                                               \
    }
CUDASIM_LOAD(__ldg)
CUDASIM_LOAD(__ldcs)
CUDASIM_LOAD(__ldcg)
CUDASIM_LOAD(__ldca)
CUDASIM_LOAD(__ldlu)
CUDASIM_LOAD(__ldcv)
CUDASIM_STORE(__stcs)
CUDASIM_STORE(__stcg)
CUDASIM_STORE(__stwb)
CUDASIM_STORE(__stwt)

#include "tests/cudasim/shim_math.h"

/* ---- the emulated half of kernels/device.cuh */
#define WEIR_LAUNCH(on, kernel, grid, block, shared_bytes, ...)                                    \
    weir_cuda_result((on)->device,                                                                 \
                     cudasim::launch(weir_cuda_stream(on), #kernel, (grid), (block),               \
                                     (shared_bytes), kernel __VA_OPT__(, ) __VA_ARGS__),           \
                     #kernel)
#define WEIR_SHARED(T, name) T *name = reinterpret_cast<T *>(cudasim::dynamic_shared())
#define WEIR_SHARED_ALLOW(on, kernel, bytes)                                                       \
    weir_cuda_result(                                                                              \
        (on)->device,                                                                              \
        cudasim::shared_allow(#kernel, reinterpret_cast<const void *>(kernel), (bytes)),           \
        "shared memory of " #kernel)

inline void weir_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    cudasim::multiply_tile(d, a, b);
}
inline void weir_ldmatrix(uint32_t r[4], const void *row)
{
    cudasim::load_matrices(r, row, false);
}
inline void weir_ldmatrix_transposed(uint32_t r[4], const void *row)
{
    cudasim::load_matrices(r, row, true);
}
inline void weir_copy_async(void *shared_to, const void *from, bool valid)
{
    cudasim::copy_async(shared_to, from, valid);
}
inline void weir_copy_async_commit(void)
{
    cudasim::copy_async_commit();
}
template <int left> void weir_copy_async_wait(void)
{
    cudasim::copy_async_wait(left);
}
inline float weir_exp2(float x)
{
    float power = exp2f(x);
    return power < __FLT_MIN__ ? 0.0f : power;
}

#endif
