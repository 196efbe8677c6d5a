#include "tests/support_plan.h"

/* Sizes from too little to more than enough, small ones as often as large ones. */
static uint64_t size_draw(struct test_random *random, uint64_t least, uint32_t doublings)
{
    uint64_t bytes = least << test_random_below(random, doublings);
    return (bytes + test_random_below(random, bytes)) / 4096 * 4096;
}

static void limits_draw(struct test_case *c, struct test_random *random)
{
    c->limits.nvme = test_random_below(random, 4) > 0;
    c->limits.device_bytes = size_draw(random, 64 << 10, 6);
    c->limits.host_bytes = size_draw(random, 256 << 10, c->limits.nvme ? 4 : 6);
    if (test_random_below(random, 16) == 0)
        c->limits.device_bytes = UINT64_MAX;
    if (test_random_below(random, 16) == 0)
        c->limits.host_bytes = UINT64_MAX;
    c->choice.lead = (uint32_t)test_random_below(random, 9);
    c->choice.update_lead = (uint32_t)test_random_below(random, 9);
    c->choice.ring_bytes = size_draw(random, 128 << 10, 3);
    c->choice.optional_host_bytes = size_draw(random, 4 << 10, 12);
    c->choice.optional_nvme_bytes = size_draw(random, 4 << 10, 12);
    if (c->limits.device_bytes < UINT64_MAX)
        c->choice.device_home_bytes = c->limits.device_bytes / 4 * test_random_below(random, 4);
}

bool test_case_open(struct test_case *c, struct test_random *random, bool wild)
{
    *c = (struct test_case){.homes = NULL};
    test_model_open(&c->m, random);
    c->traces[0] = wild ? test_trace_wild(&c->m, random, 60) : test_trace_train(&c->m);
    c->traces[1] = wild ? test_trace_wild(&c->m, random, 40) : test_trace_eval(&c->m);
    limits_draw(c, random);
    for (uint32_t i = 0; i < 2; i++) {
        enum weir_status status = weir_plan_make(&c->plans[i], &c->homes, &c->m.model, c->traces[i],
                                                 &c->limits, &c->choice);
        if (status == WEIR_ERR_NOMEM)
            return false;
        assert_ok(status);
    }
    return true;
}

void test_case_close(struct test_case *c)
{
    for (uint32_t i = 0; i < 2; i++) {
        if (c->plans[i])
            weir_plan_free(c->plans[i]);
        weir_trace_close(c->traces[i]);
    }
    if (c->homes)
        weir_homes_free(c->homes);
    test_model_close(&c->m);
}

struct test_order test_order_draw(struct test_random *random, const struct weir_plan *plan)
{
    return (struct test_order){.listed = test_random_below(random, 8) == 0,
                               .late = test_random_below(random, plan->op_count),
                               .early = test_random_below(random, plan->op_count),
                               .random = {.state = test_random_next(random)}};
}
