/* A plan's text, edited: refused by line and field, or parsed to a plan whose text parses to the
 * same one. What check accepts has a finite cost and gives the right bytes in the interpreter. */
#include "core/memory.h"
#include "offload/cost.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support_cost.h"
#include "tests/support_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct test_case cases[2];
static char *texts[2];

/* A training step and a wild trace, each with a plan of few ops. */
static void cases_make(void)
{
    struct test_random random = {.state = 3};
    char directory[256];
    fuzz_directory(directory);
    for (int i = 0; i < 2; i++) {
        while (!test_case_open(&cases[i], &random, i == 1) || !cases[i].limits.nvme ||
               cases[i].plans[0]->op_count > 150)
            test_case_close(&cases[i]);
        assert_ok(weir_plan_text(cases[i].plans[0], cases[i].homes, &texts[i]));
    }
}

#define MOST_BYTES (64u << 20)

static void accepted_run(const struct test_case *c, struct weir_plan *plan,
                         const struct weir_homes *homes)
{
    /* A rate for every kind of update: where one is 0 a plan that has it costs infinity. */
    struct weir_plan_cost predicted;
    assert_ok(weir_plan_cost(plan, c->traces[0], &test_cost_slow_cores, NULL, &predicted));
    assert_true(isfinite(predicted.step_s) && predicted.step_s >= 0);
    /* The machine holds every byte that a plan claims, and a claim costs a digit. */
    if (homes->nvme_end > MOST_BYTES || plan->nvme_bytes > MOST_BYTES)
        return;
    struct test_machine machine;
    test_machine_open(&machine, &c->m.model, homes, &plan, 1, 5);
    for (uint64_t step = 0; step < 3; step++) {
        struct test_order order = {
            .listed = step == 0, .late = SIZE_MAX, .early = SIZE_MAX, .random = {.state = step}};
        const char *fault = test_machine_step(&machine, plan, c->traces[0], &order);
        if (fault)
            fail_msg("check accepts a plan that gives wrong bytes: %s", fault);
    }
    test_machine_close(&machine);
}

static void parsed_judge(const struct test_case *c, struct weir_plan *plan,
                         struct weir_homes *homes)
{
    char *text;
    struct weir_plan *again;
    struct weir_homes *homes_again;
    assert_ok(weir_plan_text(plan, homes, &text));
    assert_ok(weir_plan_parse(text, &c->m.model, &again, &homes_again));
    assert_true(weir_plan_hash(plan, homes) == weir_plan_hash(again, homes_again));
    weir_plan_free(again);
    weir_homes_free(homes_again);
    weir_free(text);
    enum weir_status status =
        weir_plan_check(plan, homes, &c->m.model, c->traces[0], &c->limits, NULL);
    if (status == WEIR_OK)
        accepted_run(c, plan, homes);
    else
        fuzz_named(status, "plan \"");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!texts[0])
        cases_make();
    if (size == 0)
        return 0;
    int which = data[0] & 1;
    const struct test_case *c = &cases[which];
    uint64_t held = weir_alloc_bytes();
    size_t count;
    char *text = fuzz_edit(texts[which], strlen(texts[which]), data + 1, size - 1, &count);
    struct weir_plan *plan;
    struct weir_homes *homes;
    enum weir_status status = weir_plan_parse(text, &c->m.model, &plan, &homes);
    fuzz_named(status, "plan text line ");
    if (status == WEIR_OK) {
        parsed_judge(c, plan, homes);
        weir_plan_free(plan);
        weir_homes_free(homes);
    }
    free(text);
    assert_true(weir_alloc_bytes() == held);
    return 0;
}
