/* Plans of random traces under random limits: check accepts them, and on real bytes, whatever the
 * order that lanes and waits allow, they give what a straight loop over plain arrays gives. */
#include "tests/support_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void bits_draw(struct test_random *random, bool *bits, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bits[i] = test_random_below(random, 2);
}

static uint64_t draw_seed; /* WEIR_SEED that begins with the draw under way */

static void check_one(const struct test_case *c, uint32_t key, const bool *bits)
{
    if (weir_plan_check(c->plans[key], c->homes, &c->m.model, c->traces[key], &c->limits, bits) !=
        WEIR_OK)
        fail_msg("seed %llu: %s", (unsigned long long)draw_seed, weir_last_error()->text);
}

static void check_both(struct test_case *c, struct test_random *random)
{
    bool *bits = calloc(c->m.model.thing_count, sizeof *bits);
    assert_non_null(bits);
    for (uint32_t i = 0; i < 2; i++) {
        bits_draw(random, bits, c->m.model.thing_count);
        check_one(c, i, NULL);
        check_one(c, i, bits);
    }
    free(bits);
}

/* Keys in random turn, orders drawn anew. */
static void run_both(struct test_case *c, struct test_random *random, uint32_t steps)
{
    struct test_machine machine;
    test_machine_open(&machine, &c->m.model, c->homes, c->plans, 2, test_random_next(random));
    for (uint32_t s = 0; s < steps; s++) {
        uint32_t key = (uint32_t)test_random_below(random, 2);
        struct test_order order = test_order_draw(random, c->plans[key]);
        const char *fault = test_machine_step(&machine, c->plans[key], c->traces[key], &order);
        if (fault)
            fail_msg("seed %llu, step %u of \"%s\": %s", (unsigned long long)draw_seed, s,
                     c->plans[key]->key, fault);
    }
    test_machine_close(&machine);
}

static void plans_hold(struct test_random random, bool wild, uint32_t draws)
{
    uint32_t fits = 0;
    for (uint32_t i = 0; i < draws; i++) {
        draw_seed = random.state;
        struct test_case c;
        if (test_case_open(&c, &random, wild)) {
            check_both(&c, &random);
            run_both(&c, &random, 5);
            fits++;
        }
        test_case_close(&c);
        random.state = draw_seed;
        test_random_next(&random);
    }
    printf("%u of %u plans fit\n", fits, draws);
    assert_true(fits > (draws < 40 ? 0 : draws / 4));
}

/* Every plan of a random llama passes check with all, none and drawn pending bits, and runs. */
static void plans_of_training_steps_give_the_same_bytes(void **state)
{
    (void)state;
    plans_hold(test_random_open(1), false, test_draws(120));
}

/* The same of wild traces: nested wants, WRITE, put and get, kept tensors born and left anywhere.
 */
static void plans_of_wild_traces_give_the_same_bytes(void **state)
{
    (void)state;
    plans_hold(test_random_open(2), true, test_draws(200));
}

/* weir_plan_best plans both keys together; what it returns holds too, at the limits and without. */
static void best_plans_give_the_same_bytes(void **state)
{
    (void)state;
    struct test_random random = test_random_open(4);
    const struct weir_cost cost = {.struct_bytes = sizeof cost,
                                   .read_bytes_per_s = 1e9,
                                   .write_bytes_per_s = 8e8,
                                   .to_device_bytes_per_s = 1e10,
                                   .to_host_bytes_per_s = 1e10,
                                   .update_bytes_per_s = 1e10,
                                   .device_update_bytes_per_s = 1e10,
                                   .compute_flops_per_s = 1e11,
                                   .latency_s = 1e-4};
    uint32_t fits = 0;
    for (uint32_t i = 0; i < test_draws(40); i++) {
        struct test_case c;
        draw_seed = random.state;
        test_case_open(&c, &random, i & 1);
        for (uint32_t k = 0; k < 2; k++) {
            weir_plan_free(c.plans[k]);
            c.plans[k] = NULL;
        }
        weir_homes_free(c.homes);
        c.homes = NULL;
        enum weir_status status =
            weir_plan_best(c.plans, &c.homes, &c.m.model,
                           (const struct weir_trace *const *)c.traces, 2, &c.limits, &cost);
        if (status != WEIR_ERR_NOMEM) {
            assert_ok(status);
            check_both(&c, &random);
            run_both(&c, &random, 4);
            fits++;
        }
        test_case_close(&c);
    }
    printf("%u plans fit\n", fits);
    assert_true(fits > 0);
}

/* Checking takes time in proportion to the ops: a plan of thousands in milliseconds. */
static void large_plans_are_checked_quickly(void **state)
{
    (void)state;
    struct test_model m;
    test_model_open_large(&m, 5, 4, (struct weir_grain){2048, 2048, 2}, 4096 * 60);
    struct weir_trace *trace = test_trace_train(&m);
    struct weir_plan *plan = NULL;
    struct weir_homes *homes = NULL;
    const struct weir_limits limits = {8 << 20, 8 << 20, true, 0};
    const struct weir_plan_choice choice = {2, 2, 1 << 20, 0, 0, 0, false};
    assert_ok(weir_plan_make(&plan, &homes, &m.model, trace, &limits, &choice));
    clock_t start = clock();
    assert_ok(weir_plan_check(plan, homes, &m.model, trace, &limits, NULL));
    printf("%zu ops, check %.1f ms\n", plan->op_count,
           (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC);
    assert_true(plan->op_count > 2000);
    weir_plan_free(plan);
    weir_homes_free(homes);
    weir_trace_close(trace);
    test_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_of_training_steps_give_the_same_bytes),
        cmocka_unit_test(plans_of_wild_traces_give_the_same_bytes),
        cmocka_unit_test(best_plans_give_the_same_bytes),
        cmocka_unit_test(large_plans_are_checked_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
