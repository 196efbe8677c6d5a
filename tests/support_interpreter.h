/*
 * Runs plans on real bytes: device, host and NVMe are arrays, ops copy and mix them, in any order
 * that lanes and waits allow. Beside it the same steps run straight on arrays of their own, one for
 * each thing, without a plan. Whatever a stage reads goes into its digest, so a wrong byte shows.
 *
 *     test_machine_open(&machine, model, homes, plans, 2, seed);
 *     test_machine_step(&machine, plan, trace, &order)     // NULL, or what differs
 */
#ifndef WEIR_TESTS_SUPPORT_INTERPRETER_H
#define WEIR_TESTS_SUPPORT_INTERPRETER_H

#include "offload/plan.h"
#include "tests/support.h"

/* READ and WRITE complete in any order, the other lanes one op after the other. */
struct test_order {
    bool listed;        /* exactly the plan's order; else drawn from random */
    size_t late, early; /* ops that wait as long, come as soon as they may; SIZE_MAX: none */
    struct test_random random;
};

struct test_thing_bytes { /* the straight reference */
    uint64_t *weight, *state, *grad, *reduced, *kept;
};

enum test_page { TEST_PAGE_NEVER, TEST_PAGE_WRITTEN, TEST_PAGE_FREED };

struct test_machine {
    const struct weir_model *model;
    const struct weir_homes *homes;
    uint32_t part_bytes[3];
    unsigned char *slabs[WEIR_TIER_COUNT];
    unsigned char *pages[WEIR_TIER_COUNT]; /* enum test_page of each 4096 bytes */
    uint64_t bytes[WEIR_TIER_COUNT];
    struct test_thing_bytes *things;
    bool *pending; /* [thing] */
    uint64_t step;
    const char *fault;            /* of the step under way */
    uint64_t *digests, *expected; /* [stage] */
    uint64_t stage_capacity;
};

/* pending bits, weights and states are drawn from seed. */
void test_machine_open(struct test_machine *machine, const struct weir_model *model,
                       const struct weir_homes *homes, struct weir_plan *const *plans,
                       size_t plan_count, uint64_t seed);
void test_machine_close(struct test_machine *machine);
/* One step on both; NULL if every byte that counts is the same, else what is not. */
const char *test_machine_step(struct test_machine *machine, const struct weir_plan *plan,
                              const struct weir_trace *trace, struct test_order *order);

/* support_interpreter_order.c: run(context, op) for each op of a plan, in an order that lanes and
 * waits allow. False: some op can never begin. */
typedef void test_order_op(void *context, size_t op);
bool test_order_run(const struct weir_plan *plan, struct test_order *order, test_order_op *run,
                    void *context);

/* support_interpreter_stage.c: what compute does to what it is handed, the same for both. */
struct test_view {
    void *bytes, *grad; /* NULL: none */
};
struct test_stage {
    const struct weir_model *model;
    const struct weir_trace *trace;
    uint32_t stage;
    uint64_t step;
    const struct test_view *views; /* [use] */
    const bool *refused;           /* [use] */
    void *const *mail;             /* [put or get] */
    void *const *scratches;        /* [scratch]; NULL: none */
};
uint64_t test_stage_run(const struct test_stage *stage);
uint64_t test_mix(uint64_t value);
/* Of one window; counts of 8-byte words. */
void test_update(uint64_t *state, const uint64_t *grad, uint64_t *weight, size_t state_count,
                 size_t grad_count, size_t weight_count);
void test_clear(uint64_t *state, size_t count);
/* grad_count: words of the fp32 window; half: the result is dense in the first half. */
void test_reduce(uint64_t *grad, size_t grad_count, bool half);

#endif
