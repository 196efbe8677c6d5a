/*
 * SwiGLU (Shazeer 2020): out = silu(gate) * up, silu(g) = g / (1 + exp(-g)). A thread has eight
 * neighbouring elements, in accesses of 16 bytes where the addresses allow; each operand moves
 * once.
 */
#include "kernels/rows.cuh"

#define THREADS 256u
#define EACH    8u
#define CHUNK   (THREADS * EACH)

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <bool whole, class T>
static __device__ __forceinline__ void forward_elements(const struct weir_swiglu_args &a,
                                                        uint64_t first, uint32_t at, uint32_t left)
{
    float gate[EACH], up[EACH];
    weir_row_load<whole>(static_cast<const T *>(a.gate) + first, at, left, gate);
    weir_row_load<whole>(static_cast<const T *>(a.up) + first, at, left, up);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        gate[i] = gate[i] * sigmoid(gate[i]) * up[i];
    weir_row_store<whole>(static_cast<T *>(a.out) + first, at, left, gate);
}

template <bool whole, class T>
static __device__ __forceinline__ void backward_elements(const struct weir_swiglu_args &a,
                                                         uint64_t first, uint32_t at, uint32_t left)
{
    float gate[EACH], up[EACH], d[EACH], out[EACH];
    weir_row_load<whole>(static_cast<const T *>(a.gate) + first, at, left, gate);
    weir_row_load<whole>(static_cast<const T *>(a.up) + first, at, left, up);
    weir_row_load<whole>(static_cast<const T *>(a.dout) + first, at, left, d);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        float s = sigmoid(gate[i]), silu = gate[i] * s;
        out[i] = silu * up[i];
        gate[i] = d[i] * up[i] * (s + silu * (1.0f - s));
        up[i] = d[i] * silu;
    }
    weir_row_store<whole>(static_cast<T *>(a.dgate) + first, at, left, gate);
    weir_row_store<whole>(static_cast<T *>(a.dup) + first, at, left, up);
    if (a.out)
        weir_row_store<whole>(static_cast<T *>(a.out) + first, at, left, out);
}

template <class T, bool backward, bool whole>
static __global__ void __launch_bounds__(THREADS) swiglu(const __grid_constant__ weir_swiglu_args a)
{
    uint64_t first = (uint64_t)blockIdx.x * CHUNK;
    uint32_t left = (uint32_t)min(a.count - first, (uint64_t)CHUNK), at = threadIdx.x * EACH;
    bool packs = whole && at + EACH <= left;
    if (backward && packs)
        backward_elements<true, T>(a, first, at, left);
    else if (backward)
        backward_elements<false, T>(a, first, at, left);
    else if (packs)
        forward_elements<true, T>(a, first, at, left);
    else
        forward_elements<false, T>(a, first, at, left);
}

template <class T, bool backward>
static enum weir_status swiglu_launch(struct weir_stream *stream, const struct weir_swiglu_args *a)
{
    if (a->count == 0)
        return WEIR_OK;
    uint32_t blocks = (uint32_t)((a->count + CHUNK - 1) / CHUNK);
    uintptr_t addresses = (uintptr_t)a->gate | (uintptr_t)a->up | (uintptr_t)a->out;
    if (backward)
        addresses |= (uintptr_t)a->dout | (uintptr_t)a->dgate | (uintptr_t)a->dup;
    if (addresses % 16 == 0)
        return WEIR_LAUNCH(stream, (swiglu<T, backward, true>), blocks, THREADS, 0, *a);
    return WEIR_LAUNCH(stream, (swiglu<T, backward, false>), blocks, THREADS, 0, *a);
}

enum weir_status weir_cuda_swiglu_forward(struct weir_kernels *, struct weir_stream *stream,
                                          const struct weir_swiglu_args *a)
{
    return a->dtype == WEIR_BF16 ? swiglu_launch<uint16_t, false>(stream, a)
                                 : swiglu_launch<float, false>(stream, a);
}

enum weir_status weir_cuda_swiglu_backward(struct weir_kernels *, struct weir_stream *stream,
                                           const struct weir_swiglu_args *a)
{
    return a->dtype == WEIR_BF16 ? swiglu_launch<uint16_t, true>(stream, a)
                                 : swiglu_launch<float, true>(stream, a);
}
