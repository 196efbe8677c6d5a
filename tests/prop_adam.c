/*
 * Proves that Adam is the list of fp32 operations that kernels/adam.c documents, to the bit, on
 * each instruction set and with one thread and two: random windows with ordinary, denormal, huge
 * and infinite values against a scalar form written from that list. A nan is a nan: which one it is
 * is the machine's (x86 makes 0xFFC00000, a GPU 0x7FFFFFFF, which rounds up to a weight of -0).
 */
#include "tests/support.h"
#include "tests/support_kernels.h"

#include <math.h>
#include <string.h>

#define MOST_ELEMENTS (6u * 2048u * 3)

struct arrays {
    unsigned char state[MOST_ELEMENTS * 10];
    unsigned char weight[MOST_ELEMENTS * 4];
    unsigned char grad[MOST_ELEMENTS * 4];
    uint64_t bad_count;
};
static struct arrays before, expected;

static float value_draw(struct test_random *random)
{
    uint32_t bits = (uint32_t)test_random_next(random);
    switch (test_random_below(random, 8)) {
    case 0: /* any exponent */
        break;
    case 1: /* denormal */
        bits &= 0x807FFFFFu;
        break;
    case 2: /* near the largest */
        bits = (bits & 0x80FFFFFFu) | 0x7E000000u;
        break;
    default:
        return ((float)test_random_unit(random) - 0.5f) * 0.1f;
    }
    if ((bits & 0x7F800000u) == 0x7F800000u)
        bits &= 0xFF800000u; /* inf, no nan: which nan wins is no operation's business */
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void arrays_draw(struct test_random *random, const struct weir_adam_args *a,
                        uint32_t elements)
{
    memset(&before, 0, sizeof before);
    uint32_t segment = 0;
    for (uint32_t i = 0; i < elements; i++) {
        while (i >= a->segments[segment].offset + a->segments[segment].padded_count)
            segment++;
        const struct weir_window_segment *s = &a->segments[segment];
        uint32_t in = i - s->offset;
        if (in >= s->count)
            continue;
        float master = value_draw(random), m = value_draw(random), v = fabsf(value_draw(random));
        float grad = value_draw(random);
        uint64_t head = a->dtype == WEIR_BF16 ? 2 : 0;
        unsigned char *state = before.state + s->offset * (head + 8);
        memcpy(state + s->padded_count * head + in * 4, &m, 4);
        memcpy(state + s->padded_count * (head + 4) + in * 4, &v, 4);
        if (a->dtype == WEIR_BF16) {
            uint16_t weight;
            int16_t residual;
            weir_master_split(&master, &weight, &residual, 1);
            memcpy(before.weight + i * 2, &weight, 2);
            memcpy(state + in * 2, &residual, 2);
        } else {
            memcpy(before.weight + i * 4, &master, 4);
        }
        uint16_t grad16 = weir_bf16_from_float(grad);
        if (a->grad_dtype == WEIR_BF16)
            memcpy(before.grad + i * 2, &grad16, 2);
        else
            memcpy(before.grad + i * 4, &grad, 4);
    }
}

/* The list of operations, one a line. */
static float master_step(const struct weir_adam_args *a, const struct weir_window_segment *s,
                         float p, float *m, float *v, float grad)
{
    float rate = a->lr * s->lr_scale;
    float decay = rate * a->weight_decay;
    decay = decay * s->decay_scale;
    float g = grad * a->clip_factor;
    float kept = a->beta1 * *m, fresh = (1.0f - a->beta1) * g;
    *m = kept + fresh;
    float square = g * g;
    kept = a->beta2 * *v;
    fresh = (1.0f - a->beta2) * square;
    *v = kept + fresh;
    float decayed = decay * p;
    p = p - decayed;
    float top = *m / a->correction1;
    top = rate * top;
    float bottom = *v / a->correction2;
    bottom = sqrtf(bottom);
    bottom = bottom + a->eps;
    return p - top / bottom;
}

static void element_expect(const struct weir_adam_args *a, const struct weir_window_segment *s,
                           uint32_t in)
{
    uint64_t head = a->dtype == WEIR_BF16 ? 2 : 0, at = s->offset + in;
    unsigned char *state = expected.state + s->offset * (head + 8);
    unsigned char *m_at = state + s->padded_count * head + in * 4;
    unsigned char *v_at = state + s->padded_count * (head + 4) + in * 4;
    float p, m, v, grad;
    uint16_t weight, grad16;
    int16_t residual;
    memcpy(&m, m_at, 4);
    memcpy(&v, v_at, 4);
    memcpy(&grad16, expected.grad + at * 2, 2);
    memcpy(&grad, expected.grad + at * 4, 4);
    if (a->grad_dtype == WEIR_BF16)
        grad = weir_float_from_bf16(grad16);
    memcpy(&p, expected.weight + at * 4, 4);
    if (a->dtype == WEIR_BF16) {
        memcpy(&weight, expected.weight + at * 2, 2);
        memcpy(&residual, state + in * 2, 2);
        weir_master_join(&weight, &residual, &p, 1);
    }
    p = master_step(a, s, p, &m, &v, grad);
    memcpy(m_at, &m, 4);
    memcpy(v_at, &v, 4);
    if (a->dtype == WEIR_FP32) {
        expected.bad_count += isfinite(p) ? 0 : 1;
        memcpy(expected.weight + at * 4, &p, 4);
        return;
    }
    expected.bad_count += weir_master_split(&p, &weight, &residual, 1);
    memcpy(expected.weight + at * 2, &weight, 2);
    memcpy(state + in * 2, &residual, 2);
}

static void nan_unify(void *value)
{
    static const float one = NAN;
    float x;
    memcpy(&x, value, sizeof x);
    if (isnan(x))
        memcpy(value, &one, sizeof one);
}

/* All nans of a window become one; of a master that is one in two parts, the weight becomes 0. */
static void nans_unify(struct arrays *of, const struct weir_adam_args *a,
                       const struct weir_window_segment *s)
{
    uint64_t head = a->dtype == WEIR_BF16 ? 2 : 0;
    unsigned char *state = of->state + s->offset * (head + 8);
    for (uint32_t in = 0; in < s->count; in++) {
        uint64_t at = s->offset + in;
        nan_unify(state + s->padded_count * head + in * 4);
        nan_unify(state + s->padded_count * (head + 4) + in * 4);
        if (a->dtype == WEIR_FP32) {
            nan_unify(of->weight + at * 4);
            continue;
        }
        uint16_t weight;
        int16_t residual;
        float master;
        memcpy(&weight, of->weight + at * 2, 2);
        memcpy(&residual, state + in * 2, 2);
        weir_master_join(&weight, &residual, &master, 1);
        if (!isnan(master))
            continue;
        memset(of->weight + at * 2, 0, 2);
        memset(state + in * 2, 0, 2);
    }
}

static uint32_t window_draw(struct test_random *random, struct weir_adam_args *a)
{
    *a = (struct weir_adam_args){
        .dtype = test_random_below(random, 2) ? WEIR_BF16 : WEIR_FP32,
        .grad_dtype = test_random_below(random, 2) ? WEIR_BF16 : WEIR_FP32,
        .lr = (float)test_random_unit(random) * 0.01f,
        .beta1 = (float)test_random_unit(random),
        .beta2 = (float)test_random_unit(random),
        .eps = 1e-8f,
        .weight_decay = (float)test_random_unit(random),
        .clip_factor = (float)test_random_unit(random),
        .correction1 = (float)test_random_unit(random) + 0.001f,
        .correction2 = (float)test_random_unit(random) + 0.001f,
        .segment_count = (uint32_t)test_random_below(random, 6) + 1,
    };
    uint32_t offset = 0;
    for (uint32_t s = 0; s < a->segment_count; s++) {
        uint32_t count = (uint32_t)test_random_below(random, 3 * 2048) + 1;
        a->segments[s] = (struct weir_window_segment){
            .offset = offset,
            .count = count,
            .padded_count = (count + 2047) / 2048 * 2048,
            .lr_scale = test_random_below(random, 2) ? 1 : (float)test_random_unit(random),
            .decay_scale = test_random_below(random, 4) ? (float)test_random_unit(random) : 0,
        };
        offset += a->segments[s].padded_count;
    }
    return offset;
}

static void window_check(const char *isa, int threads, struct weir_adam_args a)
{
    struct test_kernels t;
    if (!test_kernels_open(&t, isa, threads))
        return;
    struct arrays *got = test_kernels_memory(&t, sizeof *got);
    memcpy(got, &before, sizeof *got);
    a.state = got->state;
    a.weight = got->weight;
    a.grad = got->grad;
    a.bad_count = &got->bad_count;
    assert_ok(t.table->adam(t.kernels, t.stream, &a));
    test_kernels_wait(&t);
    for (uint32_t s = 0; s < a.segment_count; s++)
        nans_unify(got, &a, &a.segments[s]);
    if (memcmp(got, &expected, sizeof *got) != 0) {
        size_t i = 0;
        while (((unsigned char *)got)[i] == ((unsigned char *)&expected)[i])
            i++;
        fail_msg("%s, %d threads, dtype %d, gradient %d: byte %zu of the arrays differs", isa,
                 threads, (int)a.dtype, (int)a.grad_dtype, i);
    }
    test_kernels_close(&t);
}

static void every_form_is_the_same_list_of_operations(void **state)
{
    (void)state;
    struct test_random random = test_random_open(81);
    for (uint32_t draw = 0; draw < test_draws(40); draw++) {
        struct weir_adam_args a;
        uint32_t elements = window_draw(&random, &a);
        arrays_draw(&random, &a, elements);
        memcpy(&expected, &before, sizeof expected);
        for (uint32_t s = 0; s < a.segment_count; s++) {
            for (uint32_t i = 0; i < a.segments[s].count; i++)
                element_expect(&a, &a.segments[s], i);
            nans_unify(&expected, &a, &a.segments[s]);
        }
        for (int variant = 0; variant < TEST_VARIANT_COUNT; variant++)
            window_check(test_variant_names[variant], 1 + (int)(draw % 2), a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_is_the_same_list_of_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
