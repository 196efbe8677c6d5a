#include "tests/support_toy_work.h"

#include <math.h>

static float weight_at(const void *weight, enum weir_dtype dtype, uint64_t i)
{
    return dtype == WEIR_BF16 ? weir_float_from_bf16(((const uint16_t *)weight)[i])
                              : ((const float *)weight)[i];
}

void work_input(const struct work *w)
{
    for (uint32_t i = 0; i < w->width; i++)
        w->y[i] = w->seed + (float)(i % 17) * 0.01f;
}

static float inner_at(const struct work *w, uint32_t i)
{
    return w->x[i] * weight_at(w->weight, w->dtype, (i * 7u) % w->elements) +
           weight_at(w->weight, w->dtype, (i * 13u + 5u) % w->elements);
}

void work_forward(const struct work *w)
{
    float sum = 0;
    for (uint64_t j = 0; j < w->elements; j++)
        sum += weight_at(w->weight, w->dtype, j);
    for (uint32_t i = 0; i < w->width; i++) {
        float inner = inner_at(w, i);
        if (w->inner)
            w->inner[i] = inner;
        w->y[i] = inner * 0.5f + w->x[i] * 0.25f + sum * 1e-4f;
    }
}

void work_loss(const struct work *w)
{
    float sum = 0;
    for (uint32_t i = 0; i < w->width; i++) {
        sum += w->x[i] * w->x[i];
        if (w->dx)
            w->dx[i] = w->x[i] * 0.01f;
    }
    w->loss[0] = sum;
}

static void work_grad(const struct work *w)
{
    for (uint64_t j = 0; j < w->elements; j++) {
        float g = w->dy[j % w->width] + (float)(j % 5) * 1e-3f;
        if (w->x)
            g += w->x[(j * 3) % w->width] * 1e-2f + weight_at(w->weight, w->dtype, j) * 1e-2f;
        w->grad[j] = w->fresh ? g : w->grad[j] + g;
    }
    if (w->poison)
        w->grad[0] = INFINITY;
}

void work_backward(const struct work *w)
{
    if (w->grad)
        work_grad(w);
    for (uint32_t i = 0; w->dx && i < w->width; i++) {
        float inner = w->inner_in ? w->inner_in[i] : inner_at(w, i);
        w->dx[i] = w->dy[i] * 0.25f + w->dy[i] * 0.1f * inner;
    }
}

void work_write(const struct work *w)
{
    for (uint64_t j = 0; j < w->elements; j++) {
        /* Padding is 0 and stays it: checkpoints do not hold it. */
        float v = weight_at(w->weight, w->dtype, j);
        v = v == 0 ? 0 : v * 0.5f + 0.125f;
        if (w->dtype == WEIR_BF16)
            ((uint16_t *)w->weight_out)[j] = weir_bf16_from_float(v);
        else
            ((float *)w->weight_out)[j] = v;
    }
}

uint64_t trained_elements(const struct toy_spec *spec, uint32_t block)
{
    uint64_t count = 0;
    for (uint32_t t = 0; t < spec->tensor_count[block]; t++)
        if (spec->kind[block][t] == WEIR_TRAINED)
            count += (spec->elements[block][t] + 2047) / 2048 * 2048;
    return count;
}

uint64_t all_elements(const struct toy_spec *spec, uint32_t block)
{
    uint64_t count = 0;
    for (uint32_t t = 0; t < spec->tensor_count[block]; t++)
        count += (spec->elements[block][t] + 2047) / 2048 * 2048;
    return count;
}
