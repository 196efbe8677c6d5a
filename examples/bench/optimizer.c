#include "examples/bench/optimizer.h"
#include "kernels/simd.h"

#include <math.h>

enum weir_status optimizer_open(struct optimizer *o, int thread_count)
{
    *o = (struct optimizer){.thread_count = thread_count};
    WEIR_TRY(weir_device_find("host", &o->table));
    WEIR_TRY(weir_kernels_find("host", &o->math));
    WEIR_TRY(
        o->table->open(&o->device, &(struct weir_device_options){.memory_bytes = UINT64_MAX,
                                                                 .thread_count = thread_count}));
    enum weir_status status =
        o->table->stream_create(o->device, WEIR_ENGINE_COMPUTE, "update", &o->stream);
    if (status == WEIR_OK)
        status = o->math->open(&o->kernels, o->device, thread_count, NULL, NULL);
    if (status != WEIR_OK)
        optimizer_close(o);
    return status;
}

void optimizer_close(struct optimizer *o)
{
    if (o->kernels)
        o->math->close(o->kernels);
    if (o->stream)
        o->table->stream_destroy(o->stream);
    if (o->device)
        o->table->close(o->device);
    *o = (struct optimizer){0};
}

uint64_t optimizer_state_bytes(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? 10 : 8;
}

struct weir_adam_args optimizer_args(enum weir_dtype dtype, enum weir_dtype grad_dtype, void *state,
                                     void *weight, const void *grad, uint64_t *bad_count)
{
    struct weir_adam_args args = {.dtype = dtype,
                                  .grad_dtype = grad_dtype,
                                  .weight = weight,
                                  .grad = grad,
                                  .state = state,
                                  .lr = 1e-6f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.999f,
                                  .eps = 1e-8f,
                                  .weight_decay = 0.1f,
                                  .clip_factor = 1,
                                  .correction1 = 0.1f,
                                  .correction2 = 0.001f,
                                  .bad_count = bad_count,
                                  .segment_count = WEIR_WINDOW_SEGMENTS};
    for (uint32_t s = 0; s < WEIR_WINDOW_SEGMENTS; s++)
        args.segments[s] = (struct weir_window_segment){
            s * WEIR_SEGMENT_ELEMENTS, WEIR_SEGMENT_ELEMENTS, WEIR_SEGMENT_ELEMENTS, 1, 1};
    return args;
}

/* Between 2^exponent and 2^(exponent + 1), its fraction drawn. xorshift64 (Marsaglia 2003). */
static float value_draw(uint64_t *state, int exponent)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return ldexpf(1 + (float)(*state >> 41) * 0x1p-23f, exponent);
}

void optimizer_values(enum weir_dtype dtype, enum weir_dtype grad_dtype, void *state, void *weight,
                      void *grad)
{
    uint64_t draw = 88172645463325252u;
    const uint32_t count = WEIR_SEGMENT_ELEMENTS;
    for (uint32_t s = 0; s < WEIR_WINDOW_SEGMENTS; s++) {
        char *at = (char *)state + s * count * optimizer_state_bytes(dtype);
        int16_t *residual = (int16_t *)(void *)at;
        float *moments = (float *)(void *)(at + (dtype == WEIR_BF16 ? 2 * count : 0));
        for (uint32_t i = 0; i < count; i++) {
            uint64_t index = (uint64_t)s * count + i;
            float master = value_draw(&draw, -6), slope = value_draw(&draw, -10);
            if (dtype == WEIR_BF16) {
                ((uint16_t *)weight)[index] = weir_split_weight(weir_bits(master));
                residual[i] = weir_split_residual(weir_bits(master));
            } else
                ((float *)weight)[index] = master;
            if (grad_dtype == WEIR_BF16)
                ((uint16_t *)grad)[index] = weir_narrow(slope);
            else
                ((float *)grad)[index] = slope;
            moments[i] = value_draw(&draw, -11);
            moments[count + i] = value_draw(&draw, -20);
        }
    }
}
