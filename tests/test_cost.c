/* What a plan costs, by hand: small plans whose seconds and bytes can be added up on paper. */
#include "core/memory.h"
#include "offload/cost.h"
#include "tests/support_trace.h"

#include <math.h>

#define GB   1000000000ull
#define MOST 16

/* Rates at which 10^9 bytes or flops take a second. */
static const struct weir_cost unit = {.struct_bytes = sizeof unit,
                                      .read_bytes_per_s = 1e9,
                                      .write_bytes_per_s = 1e9,
                                      .to_device_bytes_per_s = 1e9,
                                      .to_host_bytes_per_s = 1e9,
                                      .update_bytes_per_s = 1e9,
                                      .device_update_bytes_per_s = 1e9,
                                      .compute_flops_per_s = 1e9};

struct sheet {
    struct weir_op ops[MOST];
    double flops[MOST];
    struct weir_plan plan;
    struct weir_trace trace;
};

static void sheet_open(struct sheet *s)
{
    *s = (struct sheet){.plan = {.key = "sheet"}};
    s->plan.ops = s->ops;
    s->trace.stage_flops = s->flops;
}

static struct weir_op *op_add(struct sheet *s, enum weir_op_kind kind, uint32_t stage,
                              uint64_t bytes)
{
    static const enum weir_lane lanes[] = {
        WEIR_LANE_READ,   WEIR_LANE_WRITE,  WEIR_LANE_TO_DEVICE,  WEIR_LANE_TO_HOST,
        WEIR_LANE_UPDATE, WEIR_LANE_UPDATE, WEIR_LANE_COLLECTIVE, WEIR_LANE_COMPUTE};
    assert_true(s->plan.op_count < MOST);
    struct weir_op *op = &s->ops[s->plan.op_count++];
    *op = (struct weir_op){.kind = kind, .lane = lanes[kind], .stage = stage, .arrives = true};
    op->places[0].bytes = bytes;
    return op;
}

static void wait_add(struct weir_op *op, enum weir_lane lane, uint32_t count)
{
    op->waits[op->wait_count++] = (struct weir_wait){lane, count};
}

static void stage_add(struct sheet *s, double seconds)
{
    uint32_t stage = s->plan.stage_count++;
    op_add(s, WEIR_OP_COMPUTE, stage, 0)->thing = stage;
    s->trace.stage_count = s->plan.stage_count;
    s->flops[stage] = seconds * 1e9;
}

static struct weir_plan_cost cost_of(const struct sheet *s, const struct weir_cost *cost,
                                     const bool *pending)
{
    struct weir_plan_cost out;
    assert_ok(weir_plan_cost(&s->plan, &s->trace, cost, pending, &out));
    return out;
}

static void assert_seconds(double is, double should)
{
    if (fabs(is - should) > 1e-9)
        fail_msg("%.9f s, not %.9f", is, should);
}

/* A chain of waits takes the sum of its ops; what nobody waits for runs beside it. */
static void waits_chain_and_lanes_overlap(void **state)
{
    (void)state;
    struct sheet s;
    sheet_open(&s);
    op_add(&s, WEIR_OP_READ, 0, 2 * GB);
    wait_add(op_add(&s, WEIR_OP_H2D, 0, 3 * GB), WEIR_LANE_READ, 1);
    op_add(&s, WEIR_OP_D2H, 0, 4 * GB);
    stage_add(&s, 5);
    wait_add(&s.ops[3], WEIR_LANE_TO_DEVICE, 1);
    struct weir_plan_cost cost = cost_of(&s, &unit, NULL);
    assert_seconds(cost.step_s, 2 + 3 + 5);
    assert_seconds(cost.lane_busy_s[WEIR_LANE_TO_HOST], 4);
    assert_int_equal(cost.read_bytes, 2 * GB);
    assert_int_equal(cost.to_device_bytes, 3 * GB);
    assert_int_equal(cost.to_host_bytes, 4 * GB);
    assert_int_equal(cost.written_bytes, 0);
}

/* READ and WRITE share the drive, first ready first served: a WRITE is not starved by READs. */
static void the_drive_serves_in_order_of_readiness(void **state)
{
    (void)state;
    struct sheet s;
    sheet_open(&s);
    op_add(&s, WEIR_OP_READ, 0, 3 * GB);
    op_add(&s, WEIR_OP_D2H, 0, 1 * GB);
    wait_add(op_add(&s, WEIR_OP_WRITE, 0, 1 * GB), WEIR_LANE_TO_HOST, 1); /* ready at 1 */
    wait_add(op_add(&s, WEIR_OP_H2D, 0, 5 * GB), WEIR_LANE_WRITE, 1);
    op_add(&s, WEIR_OP_READ, 0, 10 * GB); /* ready at 3, when the first one ends */
    stage_add(&s, 0);
    struct weir_plan_cost cost = cost_of(&s, &unit, NULL);
    assert_seconds(cost.step_s, 3 + 1 + 10);
    assert_seconds(cost.lane_busy_s[WEIR_LANE_READ] + cost.lane_busy_s[WEIR_LANE_WRITE], 14);
    s.ops[3].places[0].bytes = 20 * GB; /* begins at 4, after the WRITE; were it last, at 14 */
    assert_seconds(cost_of(&s, &unit, NULL).step_s, 3 + 1 + 20);
}

/* Latency delays who waits for a transfer, not the drive's next one. */
static void latency_is_paid_by_waiters_alone(void **state)
{
    (void)state;
    struct sheet s;
    struct weir_cost slow = unit;
    slow.latency_s = 0.5;
    sheet_open(&s);
    for (uint32_t i = 1; i <= 3; i++)
        op_add(&s, WEIR_OP_READ, 0, 1 * GB);
    wait_add(op_add(&s, WEIR_OP_H2D, 0, 1 * GB), WEIR_LANE_READ, 3);
    stage_add(&s, 0);
    assert_seconds(cost_of(&s, &slow, NULL).step_s, 3 + 0.5 + 1);
}

/* A wait counts the first n ops of a lane: the later end of them, not the end of the nth. */
static void a_wait_is_for_the_first_n_ops(void **state)
{
    (void)state;
    struct sheet s;
    struct weir_cost slow = unit;
    slow.latency_s = 2;
    sheet_open(&s);
    op_add(&s, WEIR_OP_READ, 0, 1 * GB);
    struct weir_op *none = op_add(&s, WEIR_OP_READ, 0, 1 * GB);
    none->pending_only = true; /* left out: complete at once, but counted behind the first */
    wait_add(op_add(&s, WEIR_OP_H2D, 0, 1 * GB), WEIR_LANE_READ, 2);
    stage_add(&s, 0);
    const bool pending[] = {false};
    assert_seconds(cost_of(&s, &slow, pending).step_s, 1 + 2 + 1);
}

/* 4r: an op left out takes no time and moves no bytes; all else stays. */
static void ops_of_blocks_not_pending_are_free(void **state)
{
    (void)state;
    struct sheet s;
    sheet_open(&s);
    op_add(&s, WEIR_OP_READ, 0, 1 * GB)->pending_only = true;
    op_add(&s, WEIR_OP_READ, 0, 2 * GB);
    struct weir_op *update = op_add(&s, WEIR_OP_UPDATE, 0, 1 * GB);
    update->places[1].bytes = 2 * GB;
    update->places[2].bytes = 4 * GB;
    update->pending_only = true;
    wait_add(update, WEIR_LANE_READ, 2);
    stage_add(&s, 0);
    const bool none[] = {false}, all[] = {true};
    struct weir_plan_cost cost = cost_of(&s, &unit, all), less = cost_of(&s, &unit, none);
    assert_seconds(cost.step_s, 1 + 2 + 7);
    assert_seconds(less.step_s, 2);
    assert_int_equal(cost.read_bytes, 3 * GB);
    assert_int_equal(cost.update_bytes, 7 * GB);
    assert_int_equal(less.read_bytes, 2 * GB);
    assert_int_equal(less.update_bytes, 0);
    assert_seconds(cost_of(&s, &unit, NULL).step_s, cost.step_s);
}

/* Nor does it pay the latency of a transfer that does not happen. */
static void ops_left_out_pay_no_latency(void **state)
{
    (void)state;
    struct sheet s;
    struct weir_cost slow = unit;
    slow.latency_s = 2;
    sheet_open(&s);
    op_add(&s, WEIR_OP_READ, 0, 1 * GB)->pending_only = true;
    wait_add(op_add(&s, WEIR_OP_H2D, 0, 1 * GB), WEIR_LANE_READ, 1);
    stage_add(&s, 0);
    const bool none[] = {false}, all[] = {true};
    assert_seconds(cost_of(&s, &slow, all).step_s, 1 + 2 + 1);
    assert_seconds(cost_of(&s, &slow, none).step_s, 1);
}

/* Ops that wait for each other are an error, not an endless loop. */
static void a_circle_of_waits_is_corrupt(void **state)
{
    (void)state;
    struct sheet s;
    struct weir_plan_cost out;
    sheet_open(&s);
    wait_add(op_add(&s, WEIR_OP_READ, 0, GB), WEIR_LANE_TO_DEVICE, 1);
    wait_add(op_add(&s, WEIR_OP_H2D, 0, GB), WEIR_LANE_READ, 1);
    stage_add(&s, 0);
    assert_fails(weir_plan_cost(&s.plan, &s.trace, &unit, NULL, &out), WEIR_ERR_CORRUPT,
                 "\"sheet\"");
}

/* 4s: the largest of IO up to s, compute s to t, IO from t on: here s = t = 1, 4 + 2 + 1. */
static void the_floor_is_the_worst_ramp(void **state)
{
    (void)state;
    struct sheet s;
    sheet_open(&s);
    op_add(&s, WEIR_OP_READ, 0, 1 * GB);
    op_add(&s, WEIR_OP_READ, 1, 2 * GB);
    op_add(&s, WEIR_OP_WRITE, 1, 1 * GB); /* of an arrival: the update's way home */
    stage_add(&s, 2);
    stage_add(&s, 2);
    op_add(&s, WEIR_OP_WRITE, 0, GB / 2)->arrives = false;
    op_add(&s, WEIR_OP_WRITE, 1, 1 * GB)->arrives = false;
    struct weir_plan_cost cost = cost_of(&s, &unit, NULL);
    assert_seconds(cost.floor_s, 7);
    assert_seconds(cost.compute_s, 4);
    assert_seconds(cost.io_s, 5.5);
    struct weir_cost slow = unit;
    slow.compute_flops_per_s = 1e8; /* 20 + 20: s = 0, t = 1 */
    assert_seconds(cost_of(&s, &slow, NULL).floor_s, 1 + 40 + 1);
    slow.compute_flops_per_s = 1e12; /* nothing left but the drive */
    assert_seconds(cost_of(&s, &slow, NULL).floor_s, 5.5);
}

/* On the host device an update and a stage of compute take turns, in the order of readiness; both
 * are compute to the floor. */
static void updates_take_turns_with_compute(void **state)
{
    (void)state;
    struct sheet s;
    sheet_open(&s);
    stage_add(&s, 2);
    op_add(&s, WEIR_OP_UPDATE, 1, 3 * GB);
    stage_add(&s, 4);
    assert_seconds(cost_of(&s, &unit, NULL).step_s, 6);
    struct weir_cost turns = unit;
    turns.update_on_compute = true;
    struct weir_plan_cost cost = cost_of(&s, &turns, NULL);
    assert_seconds(cost.step_s, 9);
    assert_seconds(cost.compute_s, 9);
    assert_seconds(cost.floor_s, 9);
    assert_seconds(cost.lane_busy_s[WEIR_LANE_COMPUTE], 6);
}

/* A GPU's updates of host memory share the link with what travels to the device; the cores' do not.
 */
static void updates_over_the_link_take_turns_with_copies(void **state)
{
    (void)state;
    struct sheet s;
    sheet_open(&s);
    op_add(&s, WEIR_OP_H2D, 0, 2 * GB);
    op_add(&s, WEIR_OP_UPDATE, 0, 3 * GB);
    stage_add(&s, 1);
    struct weir_cost cost = unit;
    cost.link_update_bytes_per_s = 3e9;
    assert_seconds(cost_of(&s, &cost, NULL).step_s, 3);
    s.plan.choice.update_over_link = true;
    assert_seconds(cost_of(&s, &cost, NULL).step_s, 3);
    cost.link_update_bytes_per_s = 1e9;
    assert_seconds(cost_of(&s, &cost, NULL).step_s, 5);
}

/* Section 9: a training step with all homes on NVMe is simulated within 5 % of its floor, whether
 * the drive or compute is four times faster than the other. */
static void planned_steps_stay_near_their_floor(void **state)
{
    (void)state;
    struct test_model m;
    test_model_open_large(&m, 5, 4, (struct weir_grain){2048, 2048, 2}, 4096 * 60);
    struct weir_trace *trace = test_trace_train(&m);
    const struct weir_limits limits = {8 << 20, 2 << 20, true, 0};
    const struct weir_plan_choice choice = {4, 4, 1 << 20, 0, 0, 0, false};
    struct weir_plan *plan = NULL;
    struct weir_homes *homes = NULL;
    assert_ok(weir_plan_make(&plan, &homes, &m.model, trace, &limits, &choice));
    struct weir_cost cost = unit;
    cost.to_device_bytes_per_s = cost.to_host_bytes_per_s = 1e10;
    cost.update_bytes_per_s = cost.device_update_bytes_per_s = 1e10;
    struct weir_plan_cost out;
    assert_ok(weir_plan_cost(plan, trace, &cost, NULL, &out));
    double io_s = out.io_s, flops = out.compute_s * cost.compute_flops_per_s;
    static const double ratios[] = {0.25, 1, 4};
    for (size_t i = 0; i < 3; i++) {
        cost.compute_flops_per_s = flops * ratios[i] / io_s;
        assert_ok(weir_plan_cost(plan, trace, &cost, NULL, &out));
        if (out.step_s > 1.05 * out.floor_s || out.step_s < out.compute_s)
            fail_msg("IO/C %g: step %g s, floor %g s, compute %g s", ratios[i], out.step_s,
                     out.floor_s, out.compute_s);
    }
    weir_plan_free(plan);
    weir_homes_free(homes);
    weir_trace_close(trace);
    test_model_close(&m);
}

/* Whichever allocation fails: NOMEM, and nothing is held. */
static void failed_allocations_are_reported(void **state)
{
    (void)state;
    struct sheet s;
    struct weir_plan_cost out;
    sheet_open(&s);
    stage_add(&s, 1);
    uint64_t before = weir_alloc_bytes(), failures = 0;
    enum weir_status status = WEIR_ERR_NOMEM;
    for (uint64_t n = 1; status != WEIR_OK; n++) {
        weir_alloc_fail_at(n);
        status = weir_plan_cost(&s.plan, &s.trace, &unit, NULL, &out);
        weir_alloc_fail_at(0);
        assert_true(status == WEIR_OK || status == WEIR_ERR_NOMEM);
        assert_int_equal(weir_alloc_bytes(), before);
        failures += status != WEIR_OK;
    }
    assert_int_equal(failures, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_chain_and_lanes_overlap),
        cmocka_unit_test(the_drive_serves_in_order_of_readiness),
        cmocka_unit_test(latency_is_paid_by_waiters_alone),
        cmocka_unit_test(a_wait_is_for_the_first_n_ops),
        cmocka_unit_test(ops_of_blocks_not_pending_are_free),
        cmocka_unit_test(ops_left_out_pay_no_latency),
        cmocka_unit_test(a_circle_of_waits_is_corrupt),
        cmocka_unit_test(the_floor_is_the_worst_ramp),
        cmocka_unit_test(updates_take_turns_with_compute),
        cmocka_unit_test(updates_over_the_link_take_turns_with_copies),
        cmocka_unit_test(planned_steps_stay_near_their_floor),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
