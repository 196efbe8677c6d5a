/* Which plan is taken of several, what is said if none fits, and what never changes it. */
#include "core/memory.h"
#include "offload/cost.h"
#include "offload/home.h"
#include "tests/support_cost.h"
#include "tests/support_step.h"

/* Without limits everything lives on the device: nothing moves, nothing is refused. */
static void unlimited_budgets_put_everything_on_the_device(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama(&s);
    assert_ok(test_step_best(&s));
    assert_int_equal(s.plan->op_count, 14 + 14 + 14);
    assert_int_equal(test_step_ops(s.plan, WEIR_OP_COMPUTE), 14);
    assert_int_equal(test_step_ops(s.plan, WEIR_OP_UPDATE), 14);
    assert_int_equal(test_step_ops(s.plan, WEIR_OP_REDUCE), 14);
    assert_int_equal(s.homes->nvme_end, 0);
    assert_int_equal(s.homes->host_end, s.homes->host_first);
    assert_int_equal(s.homes->device_first, s.plan->device_transient_bytes);
    assert_int_equal(s.homes->device_end - s.homes->device_first, 16 * (13 * TEST_WINDOW + 2048));
    assert_int_equal(s.plan->refused_bytes, 0);
    test_step_close(&s);
}

/* Too little: the text names the tier, the step, the bytes wanted and given, and what to do. */
static void too_little_memory_is_said_in_bytes(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama(&s);
    s.limits.device_bytes = 64 << 10;
    assert_fails(test_step_best(&s), WEIR_ERR_NOMEM, "device: stage 6 of step \"train\" needs ");
    assert_true(test_contains(weir_last_error()->text, "65536 given"));
    assert_true(test_contains(weir_last_error()->text, "raise device_bytes"));
    s.limits = (struct weir_limits){164 << 10, 64 << 10, true, 0};
    assert_fails(test_step_best(&s), WEIR_ERR_NOMEM, "host: step \"train\" needs a ring of 131072");
    assert_true(test_contains(weir_last_error()->text, "65536 given; raise host_bytes"));
    s.limits = (struct weir_limits){164 << 10, 512 << 10, false, 0};
    assert_fails(test_step_best(&s), WEIR_ERR_NOMEM,
                 "host: weights, gradients and states need 884736 bytes, 524288 given; raise "
                 "host_bytes or give an nvme_path");
    assert_null(s.plan);
    assert_null(s.homes);
    test_step_close(&s);
}

/* 4y: a ring of less than two pieces is refused, also for a later key beside given homes. */
static void a_ring_too_small_is_no_plan(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama(&s);
    s.choice.ring_bytes = 128 << 10;
    s.limits.device_bytes = 164 << 10;
    assert_ok(test_step_plan(&s));
    s.choice.ring_bytes -= TEST_PAGE;
    assert_fails(test_step_plan(&s), WEIR_ERR_NOMEM, "needs a ring of 131072 bytes");
    test_step_close(&s);

    test_step_open(&s, WEIR_BF16, WEIR_FP32);
    uint32_t a = test_step_block(&s, "a", WEIR_TRAINED, 2048),
             k = test_step_kept(&s, "k", 0, 0, 64 << 10, false);
    test_step_want(&s, a, WEIR_READ);
    test_step_done(&s, a);
    assert_ok(weir_trace_seal(s.trace, &s.model));
    s.choice.ring_bytes = 64 << 10;
    s.limits = (struct weir_limits){64 << 10, 64 << 10, true, 0};
    assert_ok(test_step_plan(&s));
    struct weir_trace *later;
    assert_ok(weir_trace_open(&later, "later"));
    assert_ok(weir_trace_want(later, &s.model, &(struct weir_use){k, WEIR_NEW}, 1));
    assert_ok(weir_trace_done(later, &s.model, &k, 1));
    assert_ok(weir_trace_seal(later, &s.model));
    struct weir_plan *plan = NULL;
    struct weir_homes *homes = s.homes;
    s.choice.ring_bytes = 128 << 10;
    assert_fails(weir_plan_make(&plan, &homes, &s.model, later, &s.limits, &s.choice),
                 WEIR_ERR_NOMEM, "host: step \"later\" needs a ring of 131072 bytes");
    assert_null(plan);
    assert_ptr_equal(homes, s.homes);
    weir_trace_close(later);
    test_step_close(&s);
}

/* load, store and save pass every block through the ring, also those that no step wants. */
static void a_block_that_is_never_wanted_fits_the_ring(void **state)
{
    (void)state;
    struct test_step s;
    test_step_open(&s, WEIR_BF16, WEIR_FP32);
    uint32_t a = test_step_block(&s, "a", WEIR_TRAINED, 2048);
    (void)test_step_block(&s, "b", WEIR_TRAINED, TEST_WINDOW);
    test_step_want(&s, a, WEIR_READ);
    test_step_done(&s, a);
    assert_ok(weir_trace_seal(s.trace, &s.model));
    s.limits = (struct weir_limits){64 << 10, 128 << 10, true, 0};
    s.choice.ring_bytes = (128 << 10) - TEST_PAGE;
    assert_fails(test_step_plan(&s), WEIR_ERR_NOMEM, "needs a ring of 131072 bytes");
    s.choice.ring_bytes = 128 << 10;
    assert_ok(test_step_plan(&s));
    assert_true(s.plan->ring_bytes >= 2 * weir_home_buffer_bytes(&s.model));
    test_step_close(&s);
}

/* A plan is a function of its inputs, and its hash of the plan. */
static void the_same_inputs_give_the_same_plan(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama_tight(&s);
    uint64_t hash = weir_plan_hash(s.plan, s.homes);
    assert_ok(test_step_plan(&s));
    assert_true(weir_plan_hash(s.plan, s.homes) == hash);
    assert_true(weir_plan_bytes(s.plan) >= s.plan->op_count * sizeof *s.plan->ops);
    s.limits.device_bytes *= 2;
    assert_ok(test_step_plan(&s));
    assert_true(weir_plan_hash(s.plan, s.homes) != hash);
    test_step_close(&s);
}

/* The best plan is simulated no slower than those of other shares of homes. */
static void the_best_plan_is_the_fastest_tried(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama(&s);
    s.limits = (struct weir_limits){600 << 10, 600 << 10, true, 0};
    assert_ok(test_step_best(&s));
    struct weir_plan_cost cost;
    assert_ok(weir_plan_cost(s.plan, s.trace, &test_step_costs, NULL, &cost));
    double best_s = cost.step_s;
    struct weir_plan_choice choice = s.plan->choice;
    assert_true(choice.device_home_bytes > 0);
    s.choice = choice;
    for (s.choice.lead = 1; s.choice.lead <= 2; s.choice.lead++) {
        assert_ok(test_step_plan(&s));
        assert_ok(weir_plan_cost(s.plan, s.trace, &test_step_costs, NULL, &cost));
        assert_true(cost.step_s >= best_s);
    }
    s.choice = choice;
    s.choice.device_home_bytes = 0;
    assert_ok(test_step_plan(&s));
    assert_ok(weir_plan_cost(s.plan, s.trace, &test_step_costs, NULL, &cost));
    assert_true(cost.step_s > best_s);
    test_step_close(&s);
}

/* Cores that are slower than the link leave updates to the device; where it cannot, they do them.
 * The plan is the same else, so that one might pass for the other. */
static void updates_go_where_they_are_faster(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama(&s);
    s.limits = (struct weir_limits){600 << 10, 600 << 10, true, 0};
    const struct weir_trace *trace = s.trace;
    for (int link = 0; link < 2; link++) {
        struct weir_cost cost = test_cost_slow_cores;
        cost.link_update_bytes_per_s *= link;
        assert_ok(weir_plan_best(&s.plan, &s.homes, &s.model, &trace, 1, &s.limits, &cost));
        assert_true(test_step_ops(s.plan, WEIR_OP_UPDATE) > 0);
        assert_int_equal(link, s.plan->choice.update_over_link);
        weir_plan_free(s.plan);
        weir_homes_free(s.homes);
        s.plan = NULL;
        s.homes = NULL;
    }
    test_step_close(&s);
}

/* Whichever allocation fails, planning is NOMEM and holds nothing: it never settles for the plan
 * that it had memory for. */
static void failed_allocations_are_never_a_smaller_plan(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama(&s);
    s.limits = (struct weir_limits){600 << 10, 600 << 10, true, 0};
    uint64_t before = weir_alloc_bytes(), failures = 0;
    enum weir_status status = WEIR_ERR_NOMEM;
    for (uint64_t n = 1; status != WEIR_OK; n++) {
        weir_alloc_fail_at(n);
        status = test_step_best(&s);
        weir_alloc_fail_at(0);
        if (status == WEIR_OK)
            break;
        assert_int_equal(status, WEIR_ERR_NOMEM);
        assert_true(test_contains(weir_last_error()->text, "heap: "));
        assert_null(s.plan);
        assert_null(s.homes);
        assert_int_equal(weir_alloc_bytes(), before);
        failures++;
    }
    assert_true(failures > 100);
    test_step_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unlimited_budgets_put_everything_on_the_device),
        cmocka_unit_test(too_little_memory_is_said_in_bytes),
        cmocka_unit_test(a_ring_too_small_is_no_plan),
        cmocka_unit_test(a_block_that_is_never_wanted_fits_the_ring),
        cmocka_unit_test(the_same_inputs_give_the_same_plan),
        cmocka_unit_test(the_best_plan_is_the_fastest_tried),
        cmocka_unit_test(updates_go_where_they_are_faster),
        cmocka_unit_test(failed_allocations_are_never_a_smaller_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
