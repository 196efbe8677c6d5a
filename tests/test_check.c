/* check names what is wrong with a plan: each kind of damage, and the words that tell it. */
#include "tests/support_plan.h"

/* A llama whose plan uses every tier, and a copy of what the tests damage. */
struct fixture {
    struct test_case c;
    struct test_random random;
};

static size_t op_find(const struct test_case *c, enum weir_op_kind kind)
{
    for (size_t i = 0; i < c->plans[0]->op_count; i++)
        if (c->plans[0]->ops[i].kind == kind)
            return i;
    return SIZE_MAX;
}

static void open(struct fixture *f)
{
    f->random = (struct test_random){.state = 21};
    while (!test_case_open(&f->c, &f->random, false) || op_find(&f->c, WEIR_OP_WRITE) == SIZE_MAX ||
           f->c.traces[0]->scratch_count < 2)
        test_case_close(&f->c);
}

static enum weir_status check(const struct fixture *f)
{
    return weir_plan_check(f->c.plans[0], f->c.homes, &f->c.m.model, f->c.traces[0], &f->c.limits,
                           NULL);
}

/* *number set to `to` is refused with `words`; set back, the plan passes. */
#define REFUSES(number, to, words)                                                                 \
    do {                                                                                           \
        __typeof__(number) held = (number);                                                        \
        (number) = (__typeof__(number))(to);                                                       \
        assert_fails(check(&f), WEIR_ERR_CORRUPT, words);                                          \
        (number) = held;                                                                           \
        assert_ok(check(&f));                                                                      \
    } while (0)

/* Indices, counts and enums out of range are named, and never followed. */
static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    struct weir_plan *plan = f.c.plans[0];
    struct weir_op *h2d = &plan->ops[op_find(&f.c, WEIR_OP_H2D)];
    struct weir_op *compute = &plan->ops[op_find(&f.c, WEIR_OP_COMPUTE)];
    REFUSES(h2d->thing, 1000000, "thing 1000000");
    REFUSES(h2d->window, 1000000, "no such window");
    REFUSES(h2d->kind, 99, "kind 99");
    REFUSES(h2d->lane, 99, "lane 99");
    REFUSES(h2d->part, 77, "no such window or part");
    REFUSES(h2d->stage, 1000000, "stage 1000000");
    REFUSES(h2d->wait_count, 8, "8 waits");
    REFUSES(h2d->places[0].tier, 7, "what it may use");
    REFUSES(h2d->places[1].offset, UINT64_MAX - 4095, "what it may use");
    REFUSES(h2d->places[1].offset, h2d->places[1].offset + 1, "what it may use");
    REFUSES(h2d->places[2].bytes, 4096, "place 2");
    REFUSES(compute->thing, 1, "is not stage 0");
    REFUSES(compute->pending_only, true, "is not stage 0");
    REFUSES(compute->wait_count, WEIR_OP_WAITS, "lane");
    REFUSES(plan->op_count, plan->op_count - 1, "");
    REFUSES(plan->use_count, plan->use_count - 1, "not of the trace");
    REFUSES(plan->stage_count, plan->stage_count + 1, "not of the trace");
    REFUSES(plan->uses[0].bytes_offset, WEIR_NOWHERE, "not placed on the device");
    REFUSES(plan->uses[0].refused, true, "not optional");
    REFUSES(plan->scratches[0], UINT64_MAX - 4095, "scratch 0");
    REFUSES(plan->mail[0], UINT64_MAX - 4095, "no slot in host memory");
    test_case_close(&f.c);
}

/* What a plan addresses stays in the limits, and transients out of the homes. */
static void limits_are_hard(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    struct weir_plan *plan = f.c.plans[0];
    struct weir_homes *homes = f.c.homes;
    REFUSES(f.c.limits.device_bytes, plan->device_transient_bytes - 4096, "device transients take");
    REFUSES(f.c.limits.host_bytes, plan->host_transient_bytes - 4096, "host");
    REFUSES(f.c.limits.nvme, false, "nvme");
    REFUSES(homes->nvme_end, plan->nvme_bytes + 4096, "nvme homes take");
    REFUSES(plan->ring_bytes, plan->host_transient_bytes + 4096, "ring take");
    REFUSES(plan->device_transient_bytes, 4096, "");
    test_case_close(&f.c);
}

/* Homes and mail share no byte with each other, and mail none with an op. */
static void homes_and_mail_are_apart(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    struct weir_plan *plan = f.c.plans[0];
    struct weir_window_home *norm = f.c.homes->blocks[f.c.m.norm];
    struct weir_window_home *layer = f.c.homes->blocks[f.c.m.layer[0]];
    struct weir_op *read = &plan->ops[op_find(&f.c, WEIR_OP_READ)];
    REFUSES(norm[0].part[WEIR_PART_STATE].bytes, 4096, "the home of part 2");
    REFUSES(layer[0].part[WEIR_PART_WEIGHT], norm[0].part[WEIR_PART_STATE], "the home of part 0");
    REFUSES(plan->mail[0], read->places[1].offset, "touches mail");
    if (plan->mail_count > 1)
        REFUSES(plan->mail[0], plan->mail[1], "overlaps a home or mail");
    test_case_close(&f.c);
}

/* An op too early, a wait that goes missing, and contents that are not what is needed. */
static void order_and_contents_are_proved(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    struct weir_plan *plan = f.c.plans[0];
    struct weir_op *h2d = &plan->ops[op_find(&f.c, WEIR_OP_H2D)];
    struct weir_op *update = &plan->ops[op_find(&f.c, WEIR_OP_UPDATE)];
    struct weir_op *reduce = &plan->ops[op_find(&f.c, WEIR_OP_REDUCE)];
    assert_true(h2d->wait_count > 0 && reduce->wait_count > 0);
    REFUSES(h2d->wait_count, 0, "does not wait for op");
    REFUSES(reduce->wait_count, 0, "does not wait for op");
    REFUSES(h2d->waits[0].count, 1000000, "come before it");
    REFUSES(update->pending_only, false, "UPDATE");
    REFUSES(h2d->pending_only, true, "the newest weight is not there");
    REFUSES(plan->scratches[0], plan->uses[0].bytes_offset, "");
    test_case_close(&f.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(limits_are_hard),
        cmocka_unit_test(homes_and_mail_are_apart),
        cmocka_unit_test(order_and_contents_are_proved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
