/*
 * Conversions on the calling CPU thread, for loading and saving.
 */
#include "kernels/kernels.h"
#include "kernels/simd.h"

uint16_t weir_bf16_from_float(float value)
{
    return weir_narrow(value);
}

float weir_float_from_bf16(uint16_t bits)
{
    return weir_widen(bits);
}

float weir_float_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;
    uint32_t fraction = bits & 0x3FFu;
    if (exponent == 31)
        return weir_of_bits(sign | 0x7F800000u | fraction << 13);
    if (exponent > 0)
        return weir_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f; /* exact */
    return weir_of_bits(sign | weir_bits(tiny));
}

uint64_t weir_master_split(const float *master, uint16_t *weight, int16_t *residual, uint64_t count)
{
    uint64_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = weir_bits(master[i]);
        weight[i] = weir_split_weight(bits);
        residual[i] = weir_split_residual(bits);
        bad += weir_split_bad(bits);
    }
    return bad;
}

void weir_master_join(const uint16_t *weight, const int16_t *residual, float *master,
                      uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        master[i] = weir_join(weight[i], residual[i]);
}
