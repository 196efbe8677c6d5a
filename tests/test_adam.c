/* AdamW on windows: what it computes, for which elements, and what it reports. */
#include "tests/support.h"
#include "tests/support_kernels.h"

#include <math.h>
#include <string.h>

#define COUNT  3000u
#define PADDED 4096u

struct window {
    struct test_kernels t;
    struct weir_adam_args args;
    int16_t *residual;
    float *m, *v;
    void *weight, *grad;
};

/* One segment of COUNT elements, all zero, in bf16 or fp32 training; gradients fp32. */
static void window_open(struct window *w, enum weir_dtype dtype)
{
    assert_true(test_kernels_open(&w->t, NULL, 2));
    char *state = test_kernels_memory(&w->t, PADDED * 10);
    w->weight = test_kernels_memory(&w->t, PADDED * 4);
    w->grad = test_kernels_memory(&w->t, PADDED * 4);
    uint64_t *bad_count = test_kernels_memory(&w->t, sizeof *bad_count);
    memset(state, 0, PADDED * 10);
    memset(w->weight, 0, PADDED * 4);
    memset(w->grad, 0, PADDED * 4);
    *bad_count = 0;
    w->residual = (void *)state;
    w->m = (void *)(state + (dtype == WEIR_BF16 ? PADDED * 2 : 0));
    w->v = w->m + PADDED;
    w->args = (struct weir_adam_args){.dtype = dtype,
                                      .grad_dtype = WEIR_FP32,
                                      .state = state,
                                      .weight = w->weight,
                                      .grad = w->grad,
                                      .lr = 1e-2f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.95f,
                                      .eps = 1e-8f,
                                      .weight_decay = 0.1f,
                                      .clip_factor = 1,
                                      .correction1 = 0.1f,
                                      .correction2 = 0.05f,
                                      .bad_count = bad_count,
                                      .segment_count = 1,
                                      .segments = {{0, COUNT, PADDED, 1, 1}}};
}

static void window_step(struct window *w)
{
    assert_ok(w->t.table->adam(w->t.kernels, w->t.stream, &w->args));
    test_kernels_wait(&w->t);
}

static float master_at(const struct window *w, uint32_t i)
{
    float master = ((const float *)w->weight)[i];
    if (w->args.dtype == WEIR_BF16)
        weir_master_join((const uint16_t *)w->weight + i, w->residual + i, &master, 1);
    return master;
}

static void masters_set(struct window *w, const float *master)
{
    if (w->args.dtype == WEIR_BF16)
        assert_int_equal(0, weir_master_split(master, w->weight, w->residual, COUNT));
    else
        memcpy(w->weight, master, COUNT * sizeof *master);
}

/* AdamW as published, in double. */
static void reference_step(const struct weir_adam_args *a, const float *grad, double *p, double *m,
                           double *v)
{
    double lr = (double)a->lr * (double)a->segments[0].lr_scale;
    double decay = (double)a->weight_decay * (double)a->segments[0].decay_scale;
    for (uint32_t i = 0; i < COUNT; i++) {
        double g = (double)grad[i] * (double)a->clip_factor;
        m[i] = (double)a->beta1 * m[i] + (1 - (double)a->beta1) * g;
        v[i] = (double)a->beta2 * v[i] + (1 - (double)a->beta2) * g * g;
        p[i] *= 1 - lr * decay;
        p[i] -= lr * (m[i] / (double)a->correction1) /
                (sqrt(v[i] / (double)a->correction2) + (double)a->eps);
    }
}

static void steps_check(enum weir_dtype dtype, float lr_scale, float decay_scale)
{
    static float start[COUNT];
    static double p[COUNT], m[COUNT], v[COUNT];
    struct test_random random = test_random_open(71);
    struct window w;
    window_open(&w, dtype);
    w.args.clip_factor = 0.5f;
    w.args.segments[0].lr_scale = lr_scale;
    w.args.segments[0].decay_scale = decay_scale;
    for (uint32_t i = 0; i < COUNT; i++) {
        p[i] = (double)(start[i] = (float)test_random_unit(&random) - 0.5f);
        m[i] = v[i] = 0;
    }
    masters_set(&w, start);
    for (int step = 1; step <= 30; step++) {
        float *grad = w.grad;
        for (uint32_t i = 0; i < COUNT; i++)
            grad[i] = (float)test_random_unit(&random) - 0.4f;
        w.args.correction1 = (float)(1 - pow((double)w.args.beta1, step));
        w.args.correction2 = (float)(1 - pow((double)w.args.beta2, step));
        window_step(&w);
        reference_step(&w.args, grad, p, m, v);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        if (fabs((double)master_at(&w, i) - p[i]) > 1e-5)
            fail_msg("element %u: %.9g, expected %.9g", i, (double)master_at(&w, i), p[i]);
        assert_true(fabs((double)w.m[i] - m[i]) < 1e-6);
        assert_true(fabs((double)w.v[i] - v[i]) < 1e-6);
    }
    assert_int_equal(0, *w.args.bad_count);
    test_kernels_close(&w.t);
}

/* Thirty steps follow AdamW in double, in bf16 and fp32 training: the split loses nothing. */
static void steps_follow_adamw(void **state)
{
    (void)state;
    steps_check(WEIR_BF16, 1, 1);
    steps_check(WEIR_FP32, 1, 1);
    steps_check(WEIR_BF16, 0.25f, 0);
}

/* Updates far below a bf16 weight's spacing add up in the residual until the weight moves. */
static void small_updates_are_not_lost(void **state)
{
    (void)state;
    static float start[COUNT];
    struct window w;
    window_open(&w, WEIR_BF16);
    w.args.lr = 1e-4f;
    w.args.weight_decay = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        start[i] = 1;
        ((float *)w.grad)[i] = 1;
    }
    masters_set(&w, start);
    for (int step = 1; step <= 100; step++) {
        w.args.correction1 = (float)(1 - pow((double)w.args.beta1, step));
        w.args.correction2 = (float)(1 - pow((double)w.args.beta2, step));
        window_step(&w);
        if (step == 1)
            assert_int_equal(0x3F80, *(uint16_t *)w.weight);
    }
    assert_true(fabsf(master_at(&w, 0) - 0.99f) < 1e-5f);
    assert_true(fabsf(weir_float_from_bf16(*(uint16_t *)w.weight) - 0.99f) < 0.002f);
    test_kernels_close(&w.t);
}

/* Padding stays zero, even with eps 0, where 0 / 0 would be nan. */
static void padding_stays_zero(void **state)
{
    (void)state;
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++) {
        struct window w;
        window_open(&w, (enum weir_dtype)dtype);
        w.args.eps = 0;
        for (uint32_t i = 0; i < COUNT; i++)
            ((float *)w.grad)[i] = 1;
        window_step(&w);
        assert_true(master_at(&w, COUNT - 1) < 0);
        for (uint32_t i = COUNT; i < PADDED; i++)
            assert_true(master_at(&w, i) == 0 && w.m[i] == 0 && w.v[i] == 0);
        assert_int_equal(0, *w.args.bad_count);
        test_kernels_close(&w.t);
    }
}

/* Masters that a weight cannot hold are counted on top of what the counter held: in bf16 from
 * 0x7F7F8000 on, in fp32 only inf and nan. */
static void bad_masters_are_counted(void **state)
{
    (void)state;
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++) {
        struct window w;
        window_open(&w, (enum weir_dtype)dtype);
        *w.args.bad_count = 100;
        static float start[COUNT];
        memset(start, 0, sizeof start);
        start[5] = 3.3961775e38f;  /* 0x7F7F8000: rounds up to inf in bf16 */
        start[6] = -3.3895314e38f; /* the largest bf16 */
        if (dtype == WEIR_BF16)
            assert_int_equal(1, weir_master_split(start, w.weight, w.residual, COUNT));
        else
            masters_set(&w, start);
        ((float *)w.grad)[7] = INFINITY;
        ((float *)w.grad)[COUNT - 1] = NAN;
        w.args.weight_decay = 0;
        window_step(&w);
        assert_int_equal(dtype == WEIR_BF16 ? 103 : 102, *w.args.bad_count);
        test_kernels_close(&w.t);
    }
}

/* Every part of the window and the counter may lie in pinned host memory: the same bits. */
static void windows_in_host_memory_are_updated(void **state)
{
    (void)state;
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++) {
        struct test_random random = test_random_open(72);
        struct window w;
        window_open(&w, (enum weir_dtype)dtype);
        const struct weir_device_table *table = w.t.device->table;
        const uint64_t bytes[4] = {PADDED * 10, PADDED * 4, PADDED * 4, sizeof(uint64_t)};
        void *device[4] = {w.args.state, w.weight, w.grad, w.args.bad_count}, *host[4];
        ((float *)w.grad)[17] = INFINITY;
        for (uint32_t i = 0; i < COUNT; i++) {
            w.m[i] = (float)test_random_unit(&random) - 0.5f;
            w.v[i] = (float)test_random_unit(&random);
            ((float *)w.grad)[i] += (float)test_random_unit(&random);
        }
        for (int i = 0; i < 4; i++) {
            assert_ok(table->pin_alloc(w.t.device, bytes[i], &host[i]));
            memcpy(host[i], device[i], bytes[i]);
        }
        window_step(&w);
        w.args.state = host[0];
        w.args.weight = host[1];
        w.args.grad = host[2];
        w.args.bad_count = host[3];
        window_step(&w);
        assert_int_equal(1, *w.args.bad_count);
        for (int i = 0; i < 4; i++) {
            assert_memory_equal(device[i], host[i], bytes[i]);
            assert_ok(table->pin_free(w.t.device, host[i]));
        }
        test_kernels_close(&w.t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow_adamw),
        cmocka_unit_test(small_updates_are_not_lost),
        cmocka_unit_test(padding_stays_zero),
        cmocka_unit_test(bad_masters_are_counted),
        cmocka_unit_test(windows_in_host_memory_are_updated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
