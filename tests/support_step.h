/*
 * Small steps to plan by hand: a model, one trace, limits, and the plan with its homes.
 */
#ifndef WEIR_TESTS_SUPPORT_STEP_H
#define WEIR_TESTS_SUPPORT_STEP_H

#include "offload/plan.h"
#include "tests/support.h"

#define TEST_PAGE   4096u
#define TEST_WINDOW 4096u /* elements of a full window */

/* A tied llama of 2 layers and 2 micro-batches (DESIGN 4, the example), or any other step. */
struct test_step {
    struct weir_model model;
    struct weir_trace *trace;
    uint32_t e, l[2], n, x[3][2], d[2][2], inner[2][2];
    struct weir_limits limits;
    struct weir_plan_choice choice;
    struct weir_plan *plan;
    struct weir_homes *homes;
};

/* An empty step of no limits; add blocks and kept tensors, then record and seal the trace. */
void test_step_open(struct test_step *s, enum weir_dtype dtype, enum weir_dtype grad_dtype);
void test_step_close(struct test_step *s);
uint32_t test_step_block(struct test_step *s, const char *name, enum weir_kind kind,
                         uint64_t elements);
/* Named "<stem><i>.<m>". */
uint32_t test_step_kept(struct test_step *s, const char *stem, uint32_t i, uint32_t m,
                        uint64_t bytes, bool optional);
void test_step_want(struct test_step *s, uint32_t id, enum weir_access access);
void test_step_done(struct test_step *s, uint32_t id);
/* One stage that uses kept tensors: TEST_COMPUTE(s, {id, access}, ...). */
void test_step_compute(struct test_step *s, const struct weir_use *uses, size_t count);
#define TEST_COMPUTE(s, ...)                                                                       \
    test_step_compute((s), (struct weir_use[]){__VA_ARGS__},                                       \
                      sizeof((struct weir_use[]){__VA_ARGS__}) / sizeof(struct weir_use))

/* The example of DESIGN 4, recorded. Four windows a layer, five of E, one of N. */
void test_step_llama(struct test_step *s);
/* The same in the least device memory that holds it, all homes on NVMe; planned. */
void test_step_llama_tight(struct test_step *s);

/* Plan with s->choice, and check; or the best of several choices at test_step_costs. */
enum weir_status test_step_plan(struct test_step *s);
enum weir_status test_step_best(struct test_step *s);
extern const struct weir_cost test_step_costs;
size_t test_step_ops(const struct weir_plan *plan, enum weir_op_kind kind);

#endif
