/*
 * AdamW (Loshchilov & Hutter 2019, algorithm 2) on the split state, written once as a list of fp32
 * operations. Order of operations, each rounded once, none fused:
 *     g  = grad * clip_factor
 *     m  = beta1 * m + (1 - beta1) * g
 *     v  = beta2 * v + (1 - beta2) * (g * g)
 *     p  = p - (lr * lr_scale * weight_decay * decay_scale) * p
 *     p  = p - (lr * lr_scale) * ((m / correction1) / (sqrt(v / correction2) + eps))
 * p is the fp32 master: weight and residual joined before, split after (DESIGN 5a).
 */
#include "kernels/host.h"
#include "kernels/simd.h"

#define CHUNK 2048u

struct factors {
    float clip_factor, beta1, beta2, rest1, rest2, decay, lr, correction1, correction2, eps;
};

/* sqrtf without its errno branch: the instruction. */
WEIR_INLINE float root(float x)
{
    return __builtin_sqrtf(x);
}

WEIR_INLINE float step(const struct factors *f, float p, float *m, float *v, float grad)
{
    float g = grad * f->clip_factor;
    *m = f->beta1 * *m + f->rest1 * g;
    *v = f->beta2 * *v + f->rest2 * (g * g);
    p = p - f->decay * p;
    return p - f->lr * ((*m / f->correction1) / (root(*v / f->correction2) + f->eps));
}

WEIR_INLINE uint32_t bad_master(uint32_t bits)
{
    return (bits & 0x7FFFFFFFu) >= 0x7F7F8000u ? 1u : 0u;
}

struct chunk {
    uint16_t *restrict weight;  /* bf16 training */
    int16_t *restrict residual; /* bf16 training */
    float *restrict master;     /* fp32 training */
    float *restrict m, *restrict v;
    const void *restrict grad;
    uint32_t count;
};

/* Four forms by dtype and grad_dtype; the constants fold the choice away. */
WEIR_INLINE void chunk_any(const struct factors *f, const struct chunk *c, int bf16, int grad_bf16,
                           uint32_t *bad)
{
    uint16_t *restrict weight = c->weight;
    int16_t *restrict residual = c->residual;
    float *restrict master = c->master, *restrict m = c->m, *restrict v = c->v;
    const uint16_t *restrict g16 = c->grad;
    const float *restrict g32 = c->grad;
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        float grad = grad_bf16 ? weir_widen(g16[i]) : g32[i];
        float p = bf16 ? weir_of_bits(((uint32_t)weight[i] << 16) + (uint32_t)(int32_t)residual[i])
                       : master[i];
        p = step(f, p, &m[i], &v[i], grad);
        uint32_t bits = weir_bits(p);
        count += bad_master(bits);
        if (bf16) {
            uint32_t high = (bits + 0x8000u) >> 16;
            weight[i] = (uint16_t)high;
            residual[i] = (int16_t)(uint16_t)(bits - (high << 16));
        } else {
            master[i] = p;
        }
    }
    *bad = count;
}

#define FORM(name, bf16, grad_bf16)                                                                \
    WEIR_INLINE void name##_body(const struct factors *f, const struct chunk *c, uint32_t *bad)    \
    {                                                                                              \
        chunk_any(f, c, bf16, grad_bf16, bad);                                                     \
    }                                                                                              \
    WEIR_EACH_ISA(static void, name,                                                               \
                  (const struct factors *f, const struct chunk *c, uint32_t *bad), (f, c, bad))
FORM(adam_bf16_bf16, 1, 1)
FORM(adam_bf16_fp32, 1, 0)
FORM(adam_fp32_bf16, 0, 1)
FORM(adam_fp32_fp32, 0, 0)

static struct factors factors_of(const struct weir_adam_args *a,
                                 const struct weir_window_segment *segment)
{
    float lr = a->lr * segment->lr_scale;
    return (struct factors){.clip_factor = a->clip_factor, .beta1 = a->beta1, .beta2 = a->beta2,
                            .rest1 = 1.0f - a->beta1, .rest2 = 1.0f - a->beta2,
                            .decay = lr * (a->weight_decay * segment->decay_scale), .lr = lr,
                            .correction1 = a->correction1, .correction2 = a->correction2,
                            .eps = a->eps};
}

/* Elements [from, from + count) of a segment. */
static struct chunk chunk_of(const struct weir_adam_args *a,
                             const struct weir_window_segment *segment, uint32_t from)
{
    uint32_t left = segment->count - from;
    uint64_t at = (uint64_t)segment->offset + from;
    struct chunk c = {.count = left < CHUNK ? left : CHUNK};
    char *state = (char *)a->state + (uint64_t)segment->offset * (a->dtype == WEIR_BF16 ? 10 : 8);
    if (a->dtype == WEIR_BF16) {
        c.weight = (uint16_t *)a->weight + at;
        c.residual = (int16_t *)(void *)state + from;
        state += segment->padded_count * sizeof(int16_t);
    } else {
        c.master = (float *)a->weight + at;
    }
    c.m = (float *)(void *)state + from;
    c.v = (float *)(void *)state + segment->padded_count + from;
    c.grad = (const char *)a->grad + at * (a->grad_dtype == WEIR_BF16 ? 2 : 4);
    return c;
}

static uint32_t chunk_run(enum weir_isa isa, const struct weir_adam_args *a,
                          const struct weir_window_segment *segment, uint32_t from)
{
    struct factors f = factors_of(a, segment);
    struct chunk c = chunk_of(a, segment, from);
    uint32_t bad = 0;
    if (a->dtype == WEIR_BF16 && a->grad_dtype == WEIR_BF16)
        WEIR_BY_ISA(isa, adam_bf16_bf16, (&f, &c, &bad));
    else if (a->dtype == WEIR_BF16)
        WEIR_BY_ISA(isa, adam_bf16_fp32, (&f, &c, &bad));
    else if (a->grad_dtype == WEIR_BF16)
        WEIR_BY_ISA(isa, adam_fp32_bf16, (&f, &c, &bad));
    else
        WEIR_BY_ISA(isa, adam_fp32_fp32, (&f, &c, &bad));
    return bad;
}

static void adam_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_adam_args a;
    memcpy(&a, call->args, sizeof a);
    uint32_t most = 0;
    for (uint32_t s = 0; s < a.segment_count; s++)
        most = a.segments[s].count > most ? a.segments[s].count : most;
    uint32_t chunks = (most + CHUNK - 1) / CHUNK;
    uint64_t bad = 0;
#pragma omp parallel for num_threads(k->thread_count) schedule(static) reduction(+ : bad)
    for (uint32_t i = 0; i < a.segment_count * chunks; i++) {
        const struct weir_window_segment *segment = &a.segments[i / chunks];
        uint32_t from = i % chunks * CHUNK;
        if (from < segment->count)
            bad += chunk_run(k->isa, &a, segment, from);
    }
    *a.bad_count += bad;
}

enum weir_status weir_host_adam(struct weir_kernels *kernels, struct weir_stream *stream,
                                const struct weir_adam_args *a)
{
    uint64_t elements = 0;
    for (uint32_t s = 0; s < a->segment_count; s++)
        elements += a->segments[s].padded_count;
    struct weir_range ranges[] = {
        {a->state, elements * (a->dtype == WEIR_BF16 ? 10 : 8), true},
        {a->weight, elements * (a->dtype == WEIR_BF16 ? 2 : 4), true},
        {a->grad, elements * (a->grad_dtype == WEIR_BF16 ? 2 : 4), false},
        {a->bad_count, sizeof *a->bad_count, true}};
    return weir_host_queue(kernels, stream, adam_run, a, sizeof *a, ranges, 4);
}
