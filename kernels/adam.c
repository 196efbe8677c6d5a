/*
 * AdamW (Loshchilov & Hutter 2019, algorithm 2) on the split state, written once as a list of fp32
 * operations. Each line is rounded operation by operation, in the order of the parentheses, nothing
 * fused, division and root correctly rounded, so that every instruction set gives the same bits:
 *     rate  = lr * lr_scale
 *     decay = (rate * weight_decay) * decay_scale
 *     g     = grad * clip_factor
 *     m     = (beta1 * m) + ((1 - beta1) * g)
 *     v     = (beta2 * v) + ((1 - beta2) * (g * g))
 *     p     = p - (decay * p)
 *     p     = p - ((rate * (m / correction1)) / (sqrt(v / correction2) + eps))
 * p is the fp32 master: weight and residual joined before, split after (DESIGN 5a). Padding
 * elements are not touched.
 */
#include "kernels/host.h"
#include "kernels/simd.h"
#include "kernels/window.h"

#define CHUNK WEIR_ALIGN_ELEMENTS /* never across segments */

struct factors {
    float rate, decay, clip_factor, beta1, rest1, beta2, rest2, correction1, correction2, eps;
};

struct chunk {
    void *weight;
    int16_t *residual; /* bf16 training */
    float *m, *v;
    const void *grad;
    uint32_t count;
};

WEIR_INLINE float update(const struct factors *f, float p, float *m, float *v, float grad)
{
    float g = grad * f->clip_factor;
    *m = f->beta1 * *m + f->rest1 * g;
    *v = f->beta2 * *v + f->rest2 * (g * g);
    p = p - f->decay * p;
    return p - f->rate * (*m / f->correction1) / (__builtin_sqrtf(*v / f->correction2) + f->eps);
}

/* grad_bf16 is a constant where these two are inlined. Returns the count of bad masters. */
WEIR_INLINE uint32_t bf16_chunk(const struct factors *factors, const struct chunk *c,
                                bool grad_bf16)
{
    const struct factors f = *factors;
    uint16_t *restrict weight = c->weight;
    int16_t *restrict residual = c->residual;
    float *restrict m = c->m, *restrict v = c->v;
    const void *restrict grad = c->grad;
    uint32_t bad = 0;
    WEIR_SIMD_SUM(bad)
    for (uint32_t i = 0; i < c->count; i++) {
        float g = grad_bf16 ? weir_widen(((const uint16_t *)grad)[i]) : ((const float *)grad)[i];
        float m_new = m[i], v_new = v[i];
        float p = update(&f, weir_join(weight[i], residual[i]), &m_new, &v_new, g);
        uint32_t bits = weir_bits(p);
        m[i] = m_new;
        v[i] = v_new;
        weight[i] = weir_split_weight(bits);
        residual[i] = weir_split_residual(bits);
        bad += weir_split_bad(bits);
    }
    return bad;
}

WEIR_INLINE uint32_t fp32_chunk(const struct factors *factors, const struct chunk *c,
                                bool grad_bf16)
{
    const struct factors f = *factors;
    float *restrict weight = c->weight;
    float *restrict m = c->m, *restrict v = c->v;
    const void *restrict grad = c->grad;
    uint32_t bad = 0;
    WEIR_SIMD_SUM(bad)
    for (uint32_t i = 0; i < c->count; i++) {
        float g = grad_bf16 ? weir_widen(((const uint16_t *)grad)[i]) : ((const float *)grad)[i];
        float m_new = m[i], v_new = v[i];
        float p = update(&f, weight[i], &m_new, &v_new, g);
        m[i] = m_new;
        v[i] = v_new;
        weight[i] = p;
        bad += (weir_bits(p) & 0x7FFFFFFFu) >= 0x7F800000u;
    }
    return bad;
}

#define FORM(name, body, grad_bf16)                                                                \
    WEIR_INLINE void name##_body(const struct factors *f, const struct chunk *c, uint32_t *bad)    \
    {                                                                                              \
        *bad = body(f, c, grad_bf16);                                                              \
    }                                                                                              \
    WEIR_EACH_ISA(static void, name,                                                               \
                  (const struct factors *f, const struct chunk *c, uint32_t *bad), (f, c, bad))
FORM(bf16_bf16, bf16_chunk, true)
FORM(bf16_fp32, bf16_chunk, false)
FORM(fp32_bf16, fp32_chunk, true)
FORM(fp32_fp32, fp32_chunk, false)

static struct factors factors_of(const struct weir_adam_args *a,
                                 const struct weir_window_segment *segment)
{
    float rate = a->lr * segment->lr_scale;
    return (struct factors){
        .rate = rate,
        .decay = rate * a->weight_decay * segment->decay_scale,
        .clip_factor = a->clip_factor,
        .beta1 = a->beta1,
        .rest1 = 1.0f - a->beta1,
        .beta2 = a->beta2,
        .rest2 = 1.0f - a->beta2,
        .correction1 = a->correction1,
        .correction2 = a->correction2,
        .eps = a->eps,
    };
}

/* The chunk that begins at element `at` of the window, inside the segment. */
static struct chunk chunk_of(const struct weir_adam_args *a,
                             const struct weir_window_segment *segment, uint32_t at)
{
    uint32_t from = at - segment->offset;
    uint32_t left = segment->count > from ? segment->count - from : 0;
    char *state = (char *)a->state + segment->offset * weir_state_bytes(a->dtype);
    float *m = (void *)(state + segment->padded_count * weir_residual_bytes(a->dtype));
    return (struct chunk){
        .weight = (char *)a->weight + at * weir_dtype_bytes(a->dtype),
        .residual = (int16_t *)(void *)state + from,
        .m = m + from,
        .v = m + segment->padded_count + from,
        .grad = (const char *)a->grad + at * weir_dtype_bytes(a->grad_dtype),
        .count = left < CHUNK ? left : CHUNK,
    };
}

static uint32_t chunk_run(enum weir_isa isa, const struct weir_adam_args *a, uint32_t at)
{
    const struct weir_window_segment *segment = a->segments;
    while (at >= segment->offset + segment->padded_count)
        segment++;
    struct factors f = factors_of(a, segment);
    struct chunk c = chunk_of(a, segment, at);
    uint32_t bad = 0;
    if (a->dtype == WEIR_BF16 && a->grad_dtype == WEIR_BF16)
        WEIR_BY_ISA(isa, bf16_bf16, (&f, &c, &bad));
    else if (a->dtype == WEIR_BF16)
        WEIR_BY_ISA(isa, bf16_fp32, (&f, &c, &bad));
    else if (a->grad_dtype == WEIR_BF16)
        WEIR_BY_ISA(isa, fp32_bf16, (&f, &c, &bad));
    else
        WEIR_BY_ISA(isa, fp32_fp32, (&f, &c, &bad));
    return bad;
}

static void adam_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    const struct weir_adam_args *a = (const void *)call->args;
    uint32_t elements = weir_window_elements(a->segments, a->segment_count);
    uint64_t bad = 0;
    /* A window ends when its slowest thread does: who is held up leaves chunks to the others. */
#pragma omp parallel for num_threads(k->thread_count) schedule(dynamic, 8) reduction(+ : bad) if (k->thread_count > 1)
    for (uint32_t at = 0; at < elements; at += CHUNK)
        bad += chunk_run(k->isa, a, at);
    if (bad > 0)
        __atomic_fetch_add(a->bad_count, bad, __ATOMIC_RELAXED);
}

enum weir_status weir_host_adam(struct weir_kernels *kernels, struct weir_stream *stream,
                                const struct weir_adam_args *a)
{
    uint64_t elements = weir_window_elements(a->segments, a->segment_count);
    struct weir_range ranges[] = {
        {a->state, elements * weir_state_bytes(a->dtype), true},
        {a->weight, elements * weir_dtype_bytes(a->dtype), true},
        {a->grad, elements * weir_dtype_bytes(a->grad_dtype), false},
        {a->bad_count, sizeof *a->bad_count, true},
    };
    return weir_host_queue(kernels, stream, adam_run, a, sizeof *a, ranges, 4);
}
