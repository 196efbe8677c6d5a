/*
 * Rotary positions (Su et al. 2021), pairs (i, i + D/2), and the table of cos and sin.
 * Scaled frequencies: linear stretches every wavelength by factor; llama3, which Llama 3.1 uses,
 * stretches long ones, keeps short ones and interpolates those between.
 */
#include "kernels/host.h"
#include "kernels/rows.h"

#include <math.h>

static double frequency(const struct weir_rope_table_args *a, uint32_t pair)
{
    const double two_pi = 6.283185307179586476925;
    double f = pow(a->theta, -2.0 * pair / a->head_dim);
    if (a->scaling == WEIR_ROPE_PLAIN)
        return f;
    if (a->scaling == WEIR_ROPE_LINEAR)
        return f / a->factor;
    double wavelength = two_pi / f;
    if (wavelength < a->original_length / a->high_freq_factor)
        return f;
    if (wavelength > a->original_length / a->low_freq_factor)
        return f / a->factor;
    double smooth = (a->original_length / wavelength - a->low_freq_factor) /
                    (a->high_freq_factor - a->low_freq_factor);
    return (1 - smooth) * f / a->factor + smooth * f;
}

static void table_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_rope_table_args a;
    memcpy(&a, call->args, sizeof a);
    uint32_t half = a.head_dim / 2;
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t i = 0; i < half; i++) {
        double f = frequency(&a, i);
        for (uint32_t t = 0; t < a.length; t++) {
            double angle = t * f;
            a.cos_sin[2 * ((uint64_t)t * half + i)] = (float)cos(angle);
            a.cos_sin[2 * ((uint64_t)t * half + i) + 1] = (float)sin(angle);
        }
    }
}

static uint64_t table_bytes(uint32_t length, uint32_t head_dim)
{
    return (uint64_t)length * head_dim * sizeof(float);
}

enum weir_status weir_host_rope_table(struct weir_kernels *kernels, struct weir_stream *stream,
                                      const struct weir_rope_table_args *a)
{
    struct weir_range range = {a->cos_sin, table_bytes(a->length, a->head_dim), true};
    return weir_host_queue(kernels, stream, table_run, a, sizeof *a, &range, 1);
}

WEIR_INLINE void rotate_any(const struct weir_rope_args *a, uint64_t token, int bf16)
{
    uint32_t half = a->head_dim / 2;
    const float *table = a->cos_sin + token % a->length * a->head_dim;
    for (uint32_t h = 0; h < a->heads; h++) {
        void *x = weir_act_at_mutable(a->x, bf16 ? WEIR_BF16 : WEIR_FP32,
                                      (token * a->heads + h) * a->head_dim);
        WEIR_SIMD
        for (uint32_t i = 0; i < half; i++) {
            float c = table[2 * i], s = a->backward ? -table[2 * i + 1] : table[2 * i + 1];
            float p = weir_act_load(x, bf16, i), q = weir_act_load(x, bf16, i + half);
            weir_act_store(x, bf16, i, p * c - q * s);
            weir_act_store(x, bf16, i + half, q * c + p * s);
        }
    }
}
WEIR_INLINE void rotate_bf16_body(const struct weir_rope_args *a, uint64_t token)
{
    rotate_any(a, token, 1);
}
WEIR_EACH_ISA(static void, rotate_bf16, (const struct weir_rope_args *a, uint64_t token),
              (a, token))
WEIR_INLINE void rotate_fp32_body(const struct weir_rope_args *a, uint64_t token)
{
    rotate_any(a, token, 0);
}
WEIR_EACH_ISA(static void, rotate_fp32, (const struct weir_rope_args *a, uint64_t token),
              (a, token))

static void rope_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_rope_args a;
    memcpy(&a, call->args, sizeof a);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t token = 0; token < a.sequences * a.length; token++)
        if (a.dtype == WEIR_BF16)
            WEIR_BY_ISA(k->isa, rotate_bf16, (&a, token));
        else
            WEIR_BY_ISA(k->isa, rotate_fp32, (&a, token));
}

enum weir_status weir_host_rope(struct weir_kernels *kernels, struct weir_stream *stream,
                                const struct weir_rope_args *a)
{
    uint64_t count = (uint64_t)a->sequences * a->length * a->heads * a->head_dim;
    struct weir_range ranges[] = {{a->x, weir_act_bytes(a->dtype, count), true},
                                  {a->cos_sin, table_bytes(a->length, a->head_dim), false}};
    return weir_host_queue(kernels, stream, rope_run, a, sizeof *a, ranges, 2);
}
