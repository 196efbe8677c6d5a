#include "tests/support_step.h"

#include <stdio.h>

uint32_t test_step_block(struct test_step *s, const char *name, enum weir_kind kind,
                         uint64_t elements)
{
    struct weir_tensor t = {.struct_bytes = sizeof t,
                            .name = name,
                            .kind = kind,
                            .dim_count = 1,
                            .shape = {elements},
                            .lr_scale = 1,
                            .decay_scale = 1};
    uint32_t id = 0;
    assert_ok(weir_model_block_add(&s->model, &t, 1, &id));
    return id;
}

uint32_t test_step_kept(struct test_step *s, const char *stem, uint32_t i, uint32_t m,
                        uint64_t bytes, bool optional)
{
    char name[32];
    snprintf(name, sizeof name, "%s%u.%u", stem, i, m);
    struct weir_kept kept = {
        .struct_bytes = sizeof kept, .name = name, .byte_count = bytes, .optional = optional};
    uint32_t id = 0;
    assert_ok(weir_model_kept_add(&s->model, &kept, &id));
    return id;
}

void test_step_want(struct test_step *s, uint32_t id, enum weir_access access)
{
    assert_ok(weir_trace_want(s->trace, &s->model, &(struct weir_use){id, access}, 1));
}

void test_step_done(struct test_step *s, uint32_t id)
{
    assert_ok(weir_trace_done(s->trace, &s->model, &id, 1));
}

void test_step_compute(struct test_step *s, const struct weir_use *uses, size_t count)
{
    uint32_t ids[4];
    for (size_t i = 0; i < count; i++)
        ids[i] = uses[i].id;
    assert_ok(weir_trace_want(s->trace, &s->model, uses, count));
    assert_ok(weir_trace_work(s->trace, 1e6));
    assert_ok(weir_trace_done(s->trace, &s->model, ids, count));
}

void test_step_open(struct test_step *s, enum weir_dtype dtype, enum weir_dtype grad_dtype)
{
    *s = (struct test_step){.limits = {UINT64_MAX, UINT64_MAX, true, 0},
                            .choice = {2, 2, 256 << 10, 0, UINT64_MAX, 0, false}};
    weir_model_open(&s->model, dtype, grad_dtype, (struct weir_grain){2048, 2048, 2});
    assert_ok(weir_trace_open(&s->trace, "train"));
}

enum weir_status test_step_plan(struct test_step *s)
{
    weir_plan_free(s->plan);
    weir_homes_free(s->homes);
    s->plan = NULL;
    s->homes = NULL;
    WEIR_TRY(weir_plan_make(&s->plan, &s->homes, &s->model, s->trace, &s->limits, &s->choice));
    return weir_plan_check(s->plan, s->homes, &s->model, s->trace, &s->limits, NULL);
}

void test_step_close(struct test_step *s)
{
    weir_plan_free(s->plan);
    weir_homes_free(s->homes);
    weir_trace_close(s->trace);
    weir_model_close(&s->model);
}

static void llama_backward(struct test_step *s)
{
    test_step_want(s, s->e, WEIR_GRAD);
    test_step_want(s, s->n, WEIR_GRAD);
    for (uint32_t m = 2; m-- > 0;)
        TEST_COMPUTE(s, {s->x[2][m], WEIR_LAST}, {s->d[0][m], WEIR_NEW});
    test_step_done(s, s->n);
    test_step_done(s, s->e);
    for (uint32_t l = 2; l-- > 0;) {
        test_step_want(s, s->l[l], WEIR_GRAD);
        for (uint32_t m = 2; m-- > 0;)
            TEST_COMPUTE(s, {s->x[l][m], WEIR_LAST}, {s->inner[l][m], WEIR_LAST},
                         {s->d[1 - l][m], WEIR_LAST}, {s->d[l][m], WEIR_NEW});
        test_step_done(s, s->l[l]);
    }
    test_step_want(s, s->e, WEIR_ADD);
    for (uint32_t m = 2; m-- > 0;)
        TEST_COMPUTE(s, {s->d[0][m], WEIR_LAST});
    test_step_done(s, s->e);
    assert_ok(weir_trace_seal(s->trace, &s->model));
}

void test_step_llama(struct test_step *s)
{
    test_step_open(s, WEIR_BF16, WEIR_FP32);
    s->e = test_step_block(s, "E", WEIR_TRAINED, 5 * TEST_WINDOW);
    s->l[0] = test_step_block(s, "L0", WEIR_TRAINED, 4 * TEST_WINDOW);
    s->l[1] = test_step_block(s, "L1", WEIR_TRAINED, 4 * TEST_WINDOW);
    s->n = test_step_block(s, "N", WEIR_TRAINED, 100);
    for (uint32_t m = 0; m < 2; m++) {
        for (uint32_t l = 0; l < 3; l++)
            s->x[l][m] = test_step_kept(s, "x", l, m, TEST_PAGE, false);
        for (uint32_t i = 0; i < 2; i++) {
            s->d[i][m] = test_step_kept(s, "d", i, m, 2 * TEST_PAGE, false);
            s->inner[i][m] = test_step_kept(s, "i", i, m, 3 * TEST_PAGE, true);
        }
    }
    test_step_want(s, s->e, WEIR_READ);
    for (uint32_t m = 0; m < 2; m++)
        TEST_COMPUTE(s, {s->x[0][m], WEIR_NEW});
    test_step_done(s, s->e);
    for (uint32_t l = 0; l < 2; l++) {
        test_step_want(s, s->l[l], WEIR_READ);
        for (uint32_t m = 0; m < 2; m++)
            TEST_COMPUTE(s, {s->x[l][m], WEIR_READ}, {s->x[l + 1][m], WEIR_NEW},
                         {s->inner[l][m], WEIR_NEW});
        test_step_done(s, s->l[l]);
    }
    llama_backward(s);
}

void test_step_llama_tight(struct test_step *s)
{
    test_step_llama(s);
    s->limits.device_bytes = 164 << 10;
    s->limits.host_bytes = 256 << 10; /* the ring and nothing else */
    assert_ok(test_step_plan(s));
}

size_t test_step_ops(const struct weir_plan *plan, enum weir_op_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->op_count; i++)
        count += plan->ops[i].kind == kind;
    return count;
}

const struct weir_cost test_step_costs = {.struct_bytes = sizeof test_step_costs,
                                          .read_bytes_per_s = 1e9,
                                          .write_bytes_per_s = 1e9,
                                          .to_device_bytes_per_s = 1e10,
                                          .to_host_bytes_per_s = 1e10,
                                          .update_bytes_per_s = 1e10,
                                          .device_update_bytes_per_s = 1e10,
                                          .compute_flops_per_s = 1e10,
                                          .latency_s = 1e-4};

enum weir_status test_step_best(struct test_step *s)
{
    const struct weir_trace *trace = s->trace;
    weir_plan_free(s->plan);
    weir_homes_free(s->homes);
    s->plan = NULL;
    s->homes = NULL;
    return weir_plan_best(&s->plan, &s->homes, &s->model, &trace, 1, &s->limits, &test_step_costs);
}
