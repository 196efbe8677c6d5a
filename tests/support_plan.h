/*
 * Random plans: a model, the traces of two keys, limits, and both plans beside the same homes.
 */
#ifndef WEIR_TESTS_SUPPORT_PLAN_H
#define WEIR_TESTS_SUPPORT_PLAN_H

#include "offload/plan.h"
#include "tests/support_interpreter.h"
#include "tests/support_trace.h"

struct test_case {
    struct test_model m;
    struct weir_trace *traces[2];
    struct weir_plan *plans[2]; /* NULL: it does not fit */
    struct weir_homes *homes;
    struct weir_limits limits;
    struct weir_plan_choice choice;
};

/* wild: traces without the shape of a training step. False: the limits drawn do not hold it. */
bool test_case_open(struct test_case *c, struct test_random *random, bool wild);
void test_case_close(struct test_case *c);
/* An order of ops for the interpreter. */
struct test_order test_order_draw(struct test_random *random, const struct weir_plan *plan);

#endif
