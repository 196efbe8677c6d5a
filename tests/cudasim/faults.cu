#include "kernels/device.cuh"
#include "tests/cudasim/faults.h"

/* One launch of FAULT_BLOCKS x FAULT_THREADS. */
#define FAULT(name, kernel, shared_bytes)                                                          \
    int name(struct CUstream_st *stream, bool planted, const uint32_t *in, uint32_t *out)          \
    {                                                                                              \
        return cudasim::launch(stream, #kernel, FAULT_BLOCKS, FAULT_THREADS, shared_bytes, kernel, \
                               planted, in, out);                                                  \
    }

static __device__ uint32_t element(void)
{
    return blockIdx.x * FAULT_THREADS + threadIdx.x;
}

static __device__ uint32_t neighbour(void)
{
    return (threadIdx.x + 33) % FAULT_THREADS; /* of another warp */
}

static __global__ void reuse(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ uint32_t words[FAULT_THREADS];
    words[threadIdx.x] = in[element()];
    __syncthreads();
    uint32_t first = words[neighbour()];
    if (!planted)
        __syncthreads();
    words[threadIdx.x] = first + 1;
    __syncthreads();
    out[element()] = first + words[neighbour()];
}
FAULT(fault_reuse, reuse, 0)

static __global__ void early_read(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ uint32_t words[FAULT_THREADS];
    words[threadIdx.x] = in[element()];
    if (!planted)
        __syncthreads();
    out[element()] = words[neighbour()];
}
FAULT(fault_early_read, early_read, 0)

static __global__ void lock_step(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ uint32_t words[FAULT_THREADS];
    words[threadIdx.x] = in[element()];
    if (!planted)
        __syncwarp();
    out[element()] = words[threadIdx.x ^ 1];
}
FAULT(fault_lock_step, lock_step, 0)

static __global__ void plain_add(bool planted, const uint32_t *in, uint32_t *out)
{
    if (threadIdx.x != 0)
        return;
    if (planted)
        out[0] += in[element()];
    else
        atomicAdd(&out[0], in[element()]);
}
FAULT(fault_plain_add, plain_add, 0)

static __global__ void unwritten(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ uint32_t words[FAULT_THREADS + 1];
    words[threadIdx.x] = in[element()];
    if (threadIdx.x == 0 && !planted)
        words[FAULT_THREADS] = 7;
    __syncthreads();
    out[element()] = words[neighbour()] + words[FAULT_THREADS];
}
FAULT(fault_unwritten, unwritten, 0)

static __global__ void stale(bool planted, const uint32_t *in, uint32_t *out)
{
    WEIR_SHARED(uint32_t, words);
    if (blockIdx.x == 0 || !planted)
        words[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[element()] = words[neighbour()];
}
FAULT(fault_stale, stale, FAULT_THREADS * sizeof(uint32_t))

static __global__ void overrun(bool planted, const uint32_t *in, uint32_t *out)
{
    WEIR_SHARED(uint32_t, words);
    words[threadIdx.x + (planted ? 1 : 0)] = in[element()];
    out[element()] = words[threadIdx.x + (planted ? 1 : 0)];
}
FAULT(fault_overrun, overrun, FAULT_THREADS * sizeof(uint32_t))

static __global__ void static_overrun(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ uint32_t words[FAULT_THREADS];
    words[threadIdx.x + (planted ? 1 : 0)] = in[element()];
    out[element()] = words[threadIdx.x + (planted ? 1 : 0)];
}
FAULT(fault_static_overrun, static_overrun, 0)

static __global__ void odd_vector(bool planted, const uint32_t *in, uint32_t *out)
{
    const uint32_t *first = in + blockIdx.x * FAULT_THREADS + (planted ? 1 : 0);
    const uint4 *words = reinterpret_cast<const uint4 *>(first);
    out[element()] = words->x + words->w + threadIdx.x;
}
FAULT(fault_odd_vector, odd_vector, 0)

static __global__ void divergent(bool planted, const uint32_t *in, uint32_t *out)
{
    if (planted && threadIdx.x >= 32)
        __syncthreads();
    else
        __syncthreads();
    out[element()] = in[element()];
}

/* The same with one barrier for all: what the fault is measured against. */
static __global__ void convergent(bool, const uint32_t *in, uint32_t *out)
{
    __syncthreads();
    out[element()] = in[element()];
}

int fault_divergent(struct CUstream_st *stream, bool planted, const uint32_t *in, uint32_t *out)
{
    return cudasim::launch(stream, "divergent", FAULT_BLOCKS, FAULT_THREADS, 0,
                           planted ? divergent : convergent, planted, in, out);
}

static __global__ void early_exit(bool planted, const uint32_t *in, uint32_t *out)
{
    if (planted && threadIdx.x >= 32)
        return;
    __syncthreads();
    out[element()] = in[element()];
}
FAULT(fault_early_exit, early_exit, 0)

static __global__ void outside_mask(bool planted, const uint32_t *in, uint32_t *out)
{
    uint32_t value = in[element()];
    if (threadIdx.x % 32 < 16)
        value = __shfl_sync(0xFFFFu, value, planted ? 16 : 15);
    out[element()] = value;
}
FAULT(fault_outside_mask, outside_mask, 0)

static __global__ void foreign_mask(bool planted, const uint32_t *in, uint32_t *out)
{
    unsigned mask = planted || threadIdx.x % 32 < 16 ? 0xFFFFu : 0xFFFF0000u;
    out[element()] = __shfl_xor_sync(mask, in[element()], 1);
}
FAULT(fault_foreign_mask, foreign_mask, 0)

static __global__ void missing_lane(bool planted, const uint32_t *in, uint32_t *out)
{
    uint32_t value = in[element()];
    if (!planted || threadIdx.x != 5)
        value = __shfl_xor_sync(WEIR_WHOLE_WARP, value, 1);
    __syncthreads();
    out[element()] = value;
}
FAULT(fault_missing_lane, missing_lane, 0)

/* The first 16 threads each copy 16 bytes; every thread reads a word that another copied. */
static __device__ void copy_in(uint32_t *words, const uint32_t *in)
{
    if (threadIdx.x < FAULT_THREADS / 4)
        weir_copy_async(words + 4 * threadIdx.x, in + blockIdx.x * FAULT_THREADS + 4 * threadIdx.x,
                        true);
    weir_copy_async_commit();
}

static __global__ void no_wait(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ __align__(16) uint32_t words[FAULT_THREADS];
    copy_in(words, in);
    if (!planted)
        weir_copy_async_wait<0>();
    __syncthreads();
    out[element()] = words[neighbour()];
    weir_copy_async_wait<0>();
}
FAULT(fault_no_wait, no_wait, 0)

static __global__ void wait_alone(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ __align__(16) uint32_t words[FAULT_THREADS];
    copy_in(words, in);
    weir_copy_async_wait<0>();
    if (!planted)
        __syncthreads();
    out[element()] = words[neighbour()];
}
FAULT(fault_wait_alone, wait_alone, 0)

static __global__ void never_waited(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ __align__(16) uint32_t words[FAULT_THREADS];
    copy_in(words, in);
    if (!planted)
        weir_copy_async_wait<0>();
    out[element()] = in[element()];
}
FAULT(fault_never_waited, never_waited, 0)

static __global__ void misaligned(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ __align__(16) uint32_t words[FAULT_THREADS];
    if (threadIdx.x == 0)
        weir_copy_async(words + (planted ? 2 : 4), in, true);
    weir_copy_async_commit();
    weir_copy_async_wait<0>();
    out[element()] = in[element()];
}
FAULT(fault_misaligned, misaligned, 0)

static __global__ void matrices(bool planted, const uint32_t *in, uint32_t *out)
{
    __shared__ __align__(16) uint32_t words[FAULT_THREADS];
    words[threadIdx.x] = in[element()];
    __syncthreads();
    uint32_t parts[4];
    weir_ldmatrix(parts, words + threadIdx.x % 8 * 4 + (planted ? 2 : 0));
    out[element()] = parts[0];
}
FAULT(fault_ldmatrix, matrices, 0)

static __global__ void copy_words(bool, const uint32_t *in, uint32_t *out)
{
    if (threadIdx.x < FAULT_THREADS)
        out[element()] = in[element()];
}

int fault_block_size(struct CUstream_st *stream, bool planted, const uint32_t *in, uint32_t *out)
{
    return cudasim::launch(stream, "copy_words", FAULT_BLOCKS, planted ? 1056 : 1024, 0, copy_words,
                           planted, in, out);
}

int fault_shared_bytes(struct CUstream_st *stream, bool planted, const uint32_t *in, uint32_t *out)
{
    return cudasim::launch(stream, "copy_words", FAULT_BLOCKS, FAULT_THREADS,
                           planted ? 64 << 10 : 48 << 10, copy_words, planted, in, out);
}

static __global__ void much_shared(bool, const uint32_t *in, uint32_t *out)
{
    out[element()] = in[element()];
}

int fault_shared_most(struct CUstream_st *stream, bool planted, const uint32_t *in, uint32_t *out)
{
    int bytes = planted ? 100 << 10 : 99 << 10;
    int code = cudasim::shared_allow("much_shared", (const void *)much_shared, bytes);
    return code ? code
                : cudasim::launch(stream, "much_shared", FAULT_BLOCKS, FAULT_THREADS, bytes,
                                  much_shared, planted, in, out);
}

static __global__ void product(const uint16_t *a, const uint16_t *b, float *c)
{
    __shared__ __align__(16) uint16_t rows_a[16 * 16], rows_b[16 * 8];
    unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 16 * 16; i += 32)
        rows_a[i] = a[i];
    for (unsigned i = lane; i < 16 * 8; i += 32)
        rows_b[i] = b[i];
    __syncwarp();
    uint32_t of_a[4], of_b[4];
    weir_ldmatrix(of_a, rows_a + lane % 16 * 16 + lane / 16 * 8);
    weir_ldmatrix_transposed(of_b, rows_b + lane % 16 * 8);
    float d[4] = {0, 0, 0, 0};
    weir_mma_bf16(d, of_a, of_b);
    for (unsigned i = 0; i < 4; i++)
        c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

int fault_product(struct CUstream_st *stream, const uint16_t *a, const uint16_t *b, float *c)
{
    return cudasim::launch(stream, "product", 1, 32, 0, product, a, b, c);
}

static __global__ void shuffles(int32_t *out)
{
    int lane = (int)threadIdx.x, value = 100 + lane;
    out[lane] = __shfl_sync(WEIR_WHOLE_WARP, value, lane + 3, 8);
    out[32 + lane] = __shfl_up_sync(WEIR_WHOLE_WARP, value, 5, 16);
    out[64 + lane] = __shfl_down_sync(WEIR_WHOLE_WARP, value, 5, 16);
    out[96 + lane] = __shfl_xor_sync(WEIR_WHOLE_WARP, value, 6);
    out[128 + lane] = (int)__ballot_sync(WEIR_WHOLE_WARP, lane % 3 == 0);
    out[160 + lane] =
        __any_sync(WEIR_WHOLE_WARP, lane == 40) * 2 + __all_sync(WEIR_WHOLE_WARP, lane < 32);
    out[192 + lane] = __syncthreads_count(lane < 20) + 100 * __syncthreads_or(lane == 1) +
                      1000 * __syncthreads_and(lane != 1);
    double wide = lane + 0.5;
    out[224 + lane] = (int)(2 * __shfl_sync(WEIR_WHOLE_WARP, wide, 31 - lane));
}

int fault_shuffles(struct CUstream_st *stream, int32_t *out)
{
    return cudasim::launch(stream, "shuffles", 1, 32, 0, shuffles, out);
}
