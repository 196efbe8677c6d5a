/*
 * AdamW on the split state: the list of fp32 operations of kernels/adam.c, to the bit. Compiled
 * without fused multiply-add; division and root are the correctly rounded ones.
 *
 * A thread updates four neighbouring elements. So every access of a warp covers whole neighbouring
 * sectors, each byte moves once each way, and the window may as well lie in pinned host memory,
 * read and written across the link.
 */
#include "kernels/rows.cuh"
extern "C" {
#include "kernels/window.h"
}

#define THREADS 256u
#define EACH    4u

/* Pointers to the thread's elements. */
template <class T, class G> struct adam_place {
    T *weight;
    uint16_t *residual; /* bf16 training */
    float *m, *v;
    const G *grad;
};

template <class T> __device__ __forceinline__ float adam_join(T weight, uint16_t residual);
template <> __device__ __forceinline__ float adam_join(float weight, uint16_t)
{
    return weight;
}
template <> __device__ __forceinline__ float adam_join(uint16_t weight, uint16_t residual)
{
    return __uint_as_float(((uint32_t)weight << 16) + (uint32_t)(int32_t)(int16_t)residual);
}

/* The new weight and residual; 1 if the master is not finite after rounding (DESIGN 5a). */
__device__ __forceinline__ uint32_t adam_split(float p, float *weight, uint16_t *)
{
    *weight = p;
    return (__float_as_uint(p) & 0x7FFFFFFFu) >= 0x7F800000u;
}
__device__ __forceinline__ uint32_t adam_split(float p, uint16_t *weight, uint16_t *residual)
{
    uint32_t bits = __float_as_uint(p);
    *weight = (uint16_t)((bits + 0x8000u) >> 16);
    *residual = (uint16_t)(bits - ((uint32_t)*weight << 16));
    return (bits & 0x7FFFFFFFu) >= 0x7F7F8000u;
}

__device__ __forceinline__ float adam_update(const struct weir_adam_args &a, float rate,
                                             float decay, float p, float *m, float *v, float grad)
{
    float g = grad * a.clip_factor;
    *m = a.beta1 * *m + (1.0f - a.beta1) * g;
    *v = a.beta2 * *v + (1.0f - a.beta2) * (g * g);
    p = p - decay * p;
    float root = __fsqrt_rn(__fdiv_rn(*v, a.correction2));
    return p - __fdiv_rn(rate * __fdiv_rn(*m, a.correction1), root + a.eps);
}

/* `count` elements, at once or one at a time. Returns how many masters are bad. */
template <uint32_t count, class T, class G>
__device__ __forceinline__ uint32_t adam_elements(const struct weir_adam_args &a, float rate,
                                                  float decay, const adam_place<T, G> &at)
{
    constexpr bool split = sizeof(T) == 2;
    using weights = weir_pack<T, count>;
    using residuals = weir_pack<uint16_t, count>;
    using moments = weir_pack<float, count>;
    weights weight = *reinterpret_cast<const weights *>(at.weight);
    residuals residual = {};
    if (split)
        residual = *reinterpret_cast<const residuals *>(at.residual);
    moments m = *reinterpret_cast<const moments *>(at.m);
    moments v = *reinterpret_cast<const moments *>(at.v);
    weir_pack<G, count> grad = *reinterpret_cast<const weir_pack<G, count> *>(at.grad);
    uint32_t bad = 0;
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
        float p = adam_join(weight.at[i], residual.at[i]);
        p = adam_update(a, rate, decay, p, &m.at[i], &v.at[i], weir_act_widen(grad.at[i]));
        bad += adam_split(p, &weight.at[i], &residual.at[i]);
    }
    *reinterpret_cast<weights *>(at.weight) = weight;
    if (split)
        *reinterpret_cast<residuals *>(at.residual) = residual;
    *reinterpret_cast<moments *>(at.m) = m;
    *reinterpret_cast<moments *>(at.v) = v;
    return bad;
}

template <class T, class G>
__device__ __forceinline__ adam_place<T, G> adam_place_of(const struct weir_adam_args &a,
                                                          const struct weir_window_segment &segment,
                                                          uint32_t in)
{
    constexpr uint64_t residual_bytes = sizeof(T) == 2 ? 2 : 0;
    unsigned char *state = static_cast<unsigned char *>(a.state) +
                           segment.offset * (residual_bytes + 2 * sizeof(float));
    float *m = reinterpret_cast<float *>(state + segment.padded_count * residual_bytes);
    uint32_t at = segment.offset + in;
    return {static_cast<T *>(a.weight) + at, reinterpret_cast<uint16_t *>(state) + in, m + in,
            m + segment.padded_count + in, static_cast<const G *>(a.grad) + at};
}

template <class T, class G>
static __global__ void __launch_bounds__(THREADS) adam(const __grid_constant__ weir_adam_args a)
{
    uint32_t first = blockIdx.x * (THREADS * EACH), s = 0;
    while (first >= a.segments[s].offset + a.segments[s].padded_count)
        s++;
    const struct weir_window_segment &segment = a.segments[s];
    uint32_t in = first - segment.offset + threadIdx.x * EACH;
    float rate = a.lr * segment.lr_scale;
    float decay = rate * a.weight_decay * segment.decay_scale;
    uint32_t bad = 0;
    adam_place<T, G> at = adam_place_of<T, G>(a, segment, in);
    if (in + EACH <= segment.count)
        bad = adam_elements<EACH>(a, rate, decay, at);
    else /* padding is not touched */
        for (; in < segment.count; in++) {
            bad += adam_elements<1>(a, rate, decay, at);
            at = {at.weight + 1, at.residual + 1, at.m + 1, at.v + 1, at.grad + 1};
        }
    /* Hardly ever; then one atomic a warp, since the counter may lie in host memory. */
    if (!__any_sync(WEIR_WHOLE_WARP, bad != 0))
        return;
    for (uint32_t lanes = WEIR_WARP / 2; lanes > 0; lanes /= 2)
        bad += __shfl_xor_sync(WEIR_WHOLE_WARP, bad, lanes);
    if (threadIdx.x % WEIR_WARP == 0)
        atomicAdd_system(reinterpret_cast<unsigned long long *>(a.bad_count),
                         (unsigned long long)bad);
}

/* A block never spans two segments: they are padded to a multiple of its elements. */
static_assert(WEIR_ALIGN_ELEMENTS % (THREADS * EACH) == 0, "a block lies within one segment");

enum weir_status weir_cuda_adam(struct weir_kernels *, struct weir_stream *stream,
                                const struct weir_adam_args *a)
{
    uint32_t blocks = weir_window_elements(a->segments, a->segment_count) / (THREADS * EACH);
    if (blocks == 0)
        return WEIR_OK;
    bool bf16 = a->dtype == WEIR_BF16, bf16_grad = a->grad_dtype == WEIR_BF16;
    if (bf16 && bf16_grad)
        return WEIR_LAUNCH(stream, (adam<uint16_t, uint16_t>), blocks, THREADS, 0, *a);
    if (bf16)
        return WEIR_LAUNCH(stream, (adam<uint16_t, float>), blocks, THREADS, 0, *a);
    if (bf16_grad)
        return WEIR_LAUNCH(stream, (adam<float, uint16_t>), blocks, THREADS, 0, *a);
    return WEIR_LAUNCH(stream, (adam<float, float>), blocks, THREADS, 0, *a);
}
