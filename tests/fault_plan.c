/* When any one allocation fails, recording, check, text and parse say NOMEM and leave nothing
 * behind. */
#include "core/memory.h"
#include "tests/support_plan.h"

static struct test_case c;

static enum weir_status record(void)
{
    struct weir_trace *trace;
    const struct weir_use uses[] = {{c.m.layer[0], WEIR_GRAD}, {c.m.x[0][0], WEIR_NEW}};
    const uint32_t ids[] = {c.m.x[0][0], c.m.layer[0]};
    WEIR_TRY(weir_trace_open(&trace, "train"));
    enum weir_status status = weir_trace_want(trace, &c.m.model, uses, 2);
    if (status == WEIR_OK)
        status = weir_trace_scratch(trace, 100);
    if (status == WEIR_OK)
        status = weir_trace_done(trace, &c.m.model, ids, 2);
    if (status == WEIR_OK)
        status = weir_trace_seal(trace, &c.m.model);
    weir_trace_close(trace);
    return status;
}

static enum weir_status check(void)
{
    return weir_plan_check(c.plans[0], c.homes, &c.m.model, c.traces[0], &c.limits, NULL);
}

static enum weir_status text_and_back(void)
{
    char *text;
    struct weir_plan *plan;
    struct weir_homes *homes;
    WEIR_TRY(weir_plan_text(c.plans[0], c.homes, &text));
    enum weir_status status = weir_plan_parse(text, &c.m.model, &plan, &homes);
    weir_free(text);
    WEIR_TRY(status);
    weir_plan_free(plan);
    weir_homes_free(homes);
    return WEIR_OK;
}

static void fail_each(enum weir_status (*run)(void), uint64_t least)
{
    uint64_t held = weir_alloc_bytes(), n = 1;
    for (;; n++) {
        weir_alloc_fail_at(n);
        enum weir_status status = run();
        weir_alloc_fail_at(0);
        assert_true(weir_alloc_bytes() == held);
        if (status == WEIR_OK)
            break;
        assert_int_equal(status, WEIR_ERR_NOMEM);
    }
    assert_true(n > least);
}

static void each_failed_allocation_is_an_error(void **state)
{
    (void)state;
    struct test_random random = {.state = 31};
    while (!test_case_open(&c, &random, false))
        test_case_close(&c);
    fail_each(record, 5);
    fail_each(check, 20);
    fail_each(text_and_back, 10);
    test_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_failed_allocation_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
