/* Plans checked by hand: which ops a small step needs and where its bytes live. Each plan passes
 * weir_plan_check too. */
#include "tests/support_step.h"

/* The ops that move or change a window, COMPUTE left out. */
static size_t window_ops(const struct weir_plan *plan, uint32_t thing, uint32_t window,
                         const struct weir_op **out, size_t most)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct weir_op *op = &plan->ops[i];
        if (op->kind == WEIR_OP_COMPUTE || op->thing != thing || op->window != window)
            continue;
        assert_true(count < most);
        out[count++] = op;
    }
    return count;
}

struct row {
    enum weir_op_kind kind;
    enum weir_part part;
    bool pending_only;
};

static void assert_rows(const struct weir_op *const *ops, size_t count, const struct row *rows,
                        size_t row_count)
{
    assert_int_equal(count, row_count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ops[i]->kind, rows[i].kind);
        if (rows[i].kind != WEIR_OP_UPDATE && rows[i].kind != WEIR_OP_CLEAR)
            assert_int_equal(ops[i]->part, rows[i].part);
        assert_int_equal(ops[i]->pending_only, rows[i].pending_only);
    }
}

static uint32_t number_in_lane(const struct weir_plan *plan, const struct weir_op *op)
{
    uint32_t number = 0;
    for (const struct weir_op *o = plan->ops; o <= op; o++)
        number += o->lane == op->lane;
    return number;
}

static bool waits_for(const struct weir_plan *plan, const struct weir_op *op,
                      const struct weir_op *on)
{
    for (uint32_t w = 0; w < op->wait_count; w++)
        if (op->waits[w].lane == (uint32_t)on->lane &&
            op->waits[w].count >= number_in_lane(plan, on))
            return true;
    return false;
}

#define UPDATE_ROWS                                                                                \
    {WEIR_OP_READ, WEIR_PART_STATE, true}, {WEIR_OP_READ, WEIR_PART_GRAD, true},                   \
        {WEIR_OP_READ, WEIR_PART_WEIGHT, false}, {WEIR_OP_UPDATE, WEIR_PART_WEIGHT, true},         \
        {WEIR_OP_H2D, WEIR_PART_WEIGHT, false}, {WEIR_OP_WRITE, WEIR_PART_STATE, true},            \
    {                                                                                              \
        WEIR_OP_WRITE, WEIR_PART_WEIGHT, true                                                      \
    }
#define WEIGHT_ROWS                                                                                \
    {WEIR_OP_READ, WEIR_PART_WEIGHT, false},                                                       \
    {                                                                                              \
        WEIR_OP_H2D, WEIR_PART_WEIGHT, false                                                       \
    }
#define GRADIENT_ROWS                                                                              \
    {WEIR_OP_REDUCE, WEIR_PART_GRAD, false}, {WEIR_OP_D2H, WEIR_PART_GRAD, false},                 \
    {                                                                                              \
        WEIR_OP_WRITE, WEIR_PART_GRAD, false                                                       \
    }
#define ASSERT_ROWS(ops, count, rows) assert_rows(ops, count, rows, sizeof(rows) / sizeof *(rows))

/* The table of DESIGN 4: the update of each window of L1, its second visit, its gradient's way
 * home, and nothing else. */
static void windows_of_a_layer_have_the_ops_of_the_table(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama_tight(&s);
    const struct row rows[] = {UPDATE_ROWS, WEIGHT_ROWS, GRADIENT_ROWS};
    for (uint32_t w = 0; w < 4; w++) {
        const struct weir_op *ops[16];
        size_t count = window_ops(s.plan, s.l[1], w, ops, 16);
        ASSERT_ROWS(ops, count, rows);
        const struct weir_op *update = ops[3];
        assert_true(waits_for(s.plan, update, ops[2]));
        assert_true(waits_for(s.plan, ops[4], update) && waits_for(s.plan, ops[5], update));
        /* state, gradient and weight lie side by side in the ring */
        assert_int_equal(update->places[0].tier, WEIR_TIER_HOST);
        assert_int_equal(update->places[1].offset, update->places[0].offset + 10 * TEST_WINDOW);
        assert_int_equal(update->places[2].offset, update->places[1].offset + 4 * TEST_WINDOW);
        assert_int_equal(update->places[2].bytes, 2 * TEST_WINDOW);
        assert_true(update->places[2].offset + 2 * TEST_WINDOW <= s.plan->ring_bytes);
        for (size_t i = 0; i < 7; i++)
            assert_true(ops[i]->arrives && ops[i]->stage == 4);
        for (size_t i = 9; i < 12; i++)
            assert_true(!ops[i]->arrives && ops[i]->stage == 9);
    }
    test_step_close(&s);
}

/* A tied embedding: updated at its first want, its gradient is reduced once, after the ADD, and
 * between GRAD and ADD it leaves and comes back in fp32. */
static void a_tied_gradient_goes_home_after_its_last_done(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama_tight(&s);
    const struct weir_op *ops[24];
    size_t count = window_ops(s.plan, s.e, 0, ops, 24), reduced = 0;
    const struct row first[] = {UPDATE_ROWS};
    assert_rows(ops, 7, first, 7);
    for (size_t i = 7; i < count; i++) {
        assert_false(ops[i]->pending_only);
        if (ops[i]->kind == WEIR_OP_REDUCE) {
            reduced++;
            assert_int_equal(ops[i]->stage, s.plan->stage_count - 1);
            assert_int_equal(i, count - 3);
        }
    }
    assert_int_equal(reduced, 1);
    const struct row between[] = {{WEIR_OP_D2H, WEIR_PART_GRAD, false},
                                  {WEIR_OP_WRITE, WEIR_PART_GRAD, false},
                                  {WEIR_OP_READ, WEIR_PART_GRAD, false},
                                  {WEIR_OP_H2D, WEIR_PART_GRAD, false}};
    assert_rows(ops + count - 7, 4, between, 4);
    /* in fp32 it waits in its own home */
    const struct weir_place *home = &s.homes->blocks[s.e][0].part[WEIR_PART_GRAD];
    assert_int_equal(ops[count - 6]->places[1].offset, home->offset);
    assert_int_equal(ops[count - 5]->places[0].offset, home->offset);
    test_step_close(&s);
}

/* 9: bytes a parameter and step of a layer, clip on: 10 + 10 of state, 2 + 2 read and 2 written of
 * weight, 4 + 4 of gradient. */
static void traffic_of_a_layer_is_the_formula(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama_tight(&s);
    uint64_t read = 0, written = 0;
    for (size_t i = 0; i < s.plan->op_count; i++) {
        const struct weir_op *op = &s.plan->ops[i];
        if (op->kind == WEIR_OP_COMPUTE || op->thing != s.l[0])
            continue;
        read += op->kind == WEIR_OP_READ ? op->places[0].bytes : 0;
        written += op->kind == WEIR_OP_WRITE ? op->places[0].bytes : 0;
    }
    assert_int_equal(read, (10 + 4 + 2 + 2) * 4 * TEST_WINDOW);
    assert_int_equal(written, (10 + 4 + 2) * 4 * TEST_WINDOW);
    test_step_close(&s);
}

/* Without NVMe no op touches it, there is no ring, and homes in host memory are used in place. */
static void without_nvme_host_homes_are_used_in_place(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama(&s);
    s.limits = (struct weir_limits){164 << 10, 2 << 20, false, 0};
    assert_ok(test_step_plan(&s));
    assert_int_equal(test_step_ops(s.plan, WEIR_OP_READ) + test_step_ops(s.plan, WEIR_OP_WRITE), 0);
    assert_int_equal(s.plan->ring_bytes, 0);
    assert_int_equal(s.plan->nvme_bytes, 0);
    const struct row rows[] = {{WEIR_OP_UPDATE, WEIR_PART_WEIGHT, true},
                               {WEIR_OP_H2D, WEIR_PART_WEIGHT, false},
                               {WEIR_OP_H2D, WEIR_PART_WEIGHT, false},
                               {WEIR_OP_REDUCE, WEIR_PART_GRAD, false},
                               {WEIR_OP_D2H, WEIR_PART_GRAD, false}};
    const struct weir_op *ops[16];
    size_t count = window_ops(s.plan, s.l[0], 2, ops, 16);
    ASSERT_ROWS(ops, count, rows);
    const struct weir_window_home *home = &s.homes->blocks[s.l[0]][2];
    assert_int_equal(ops[0]->places[0].offset, home->part[WEIR_PART_STATE].offset);
    assert_int_equal(ops[1]->places[0].offset, home->part[WEIR_PART_WEIGHT].offset);
    assert_int_equal(ops[4]->places[1].offset, home->part[WEIR_PART_GRAD].offset);
    test_step_close(&s);
}

static bool at_host(const struct test_step *s, uint32_t block, uint32_t window, enum weir_part part)
{
    return s->homes->blocks[block][window].part[part].tier == WEIR_TIER_HOST;
}

/* Host memory goes to weights, to gradients that leave and return within the step (E's), to states,
 * to gradients; of what it holds in part every block has its share, to a window. */
static void host_homes_are_spread_over_the_step(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama(&s);
    uint64_t weights = 2 * (13 * TEST_WINDOW + 2048), returning = 5 * 4 * TEST_WINDOW;
    s.limits.device_bytes = 164 << 10;
    s.limits.host_bytes = s.choice.ring_bytes + weights + returning + 9 * 10 * TEST_WINDOW;
    assert_ok(test_step_plan(&s));
    const uint32_t blocks[] = {s.e, s.l[0], s.l[1], s.n};
    uint32_t windows = 0, states = 0, gradients = 0;
    /* tensors that wait come before states */
    assert_int_equal(s.homes->host_first, s.plan->host_transient_bytes);
    uint64_t room = s.limits.host_bytes - s.homes->host_first - weights - returning;
    uint64_t all = 10 * (13 * TEST_WINDOW + 2048);
    assert_true(room > all / 4 && room < all);
    for (uint32_t b = 0; b < 4; b++)
        for (uint32_t w = 0; w < s.model.things[blocks[b]].window_count; w++) {
            assert_true(at_host(&s, blocks[b], w, WEIR_PART_WEIGHT));
            states += at_host(&s, blocks[b], w, WEIR_PART_STATE);
            gradients += at_host(&s, blocks[b], w, WEIR_PART_GRAD);
            windows++;
            double even = (double)windows * (double)room / (double)all;
            assert_true(states > even - 1.01 && states < even + 1.01);
        }
    for (uint32_t w = 0; w < 5; w++)
        assert_true(at_host(&s, s.e, w, WEIR_PART_GRAD));
    assert_true(gradients <= 7); /* E's, and two in less than a window of state */
    assert_true(s.homes->host_end <= s.limits.host_bytes);
    test_step_close(&s);
}

/* Homes on the device are spread the same way: every second layer of four. */
static void device_homes_are_spread_over_the_step(void **state)
{
    (void)state;
    struct test_step s;
    test_step_open(&s, WEIR_BF16, WEIR_FP32);
    uint32_t ids[4], x = test_step_kept(&s, "x", 0, 0, TEST_PAGE, false);
    for (uint32_t i = 0; i < 4; i++)
        ids[i] =
            test_step_block(&s, (const char *[]){"a", "b", "c", "d"}[i], WEIR_TRAINED, TEST_WINDOW);
    for (uint32_t i = 0; i < 4; i++) {
        test_step_want(&s, ids[i], WEIR_READ);
        TEST_COMPUTE(&s, {x, WEIR_NEW});
        test_step_done(&s, ids[i]);
    }
    assert_ok(weir_trace_seal(s.trace, &s.model));
    s.choice.device_home_bytes = 2 * 16 * TEST_WINDOW;
    assert_ok(test_step_plan(&s));
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(s.homes->blocks[ids[i]][0].part[WEIR_PART_WEIGHT].tier,
                         i % 2 == 0 ? WEIR_TIER_DEVICE : WEIR_TIER_HOST);
    test_step_close(&s);
}

/* An optional life is refused where neither device nor host has room, for all its uses alike. */
static void optional_tensors_are_refused_before_they_go_to_nvme(void **state)
{
    (void)state;
    struct test_step s;
    test_step_llama_tight(&s);
    assert_int_equal(s.plan->refused_bytes, 4 * 3 * TEST_PAGE);
    size_t refused = 0;
    for (size_t i = 0; i < s.plan->use_count; i++) {
        bool optional = s.model.things[s.trace->uses[i].id].optional;
        assert_int_equal(s.plan->uses[i].refused, optional);
        refused += s.plan->uses[i].refused;
    }
    assert_int_equal(refused, 8);
    s.limits.device_bytes *= 2;
    s.limits.host_bytes = UINT64_MAX;
    assert_ok(test_step_plan(&s));
    assert_int_equal(s.plan->refused_bytes, 0);
    test_step_close(&s);
}

/* Frozen blocks arrive and never leave, and have no update. */
static void frozen_blocks_only_arrive(void **state)
{
    (void)state;
    struct test_step s;
    test_step_open(&s, WEIR_BF16, WEIR_FP32);
    uint32_t f = test_step_block(&s, "F", WEIR_FROZEN, TEST_WINDOW),
             x = test_step_kept(&s, "x", 0, 0, TEST_PAGE, false);
    test_step_want(&s, f, WEIR_GRAD);
    TEST_COMPUTE(&s, {x, WEIR_NEW});
    test_step_done(&s, f);
    assert_ok(weir_trace_seal(s.trace, &s.model));
    s.limits = (struct weir_limits){16 << 10, 256 << 10, true, 0};
    assert_ok(test_step_plan(&s));
    const struct weir_op *ops[8];
    const struct row rows[] = {WEIGHT_ROWS};
    size_t count = window_ops(s.plan, f, 0, ops, 8);
    ASSERT_ROWS(ops, count, rows);
    assert_int_equal(s.plan->uses[0].grad_offset, WEIR_NOWHERE);
    test_step_close(&s);
}

/* A block first wanted with ADD is updated before that stage without its weight going anywhere: the
 * read of the weight is pending-only too. */
static void a_block_wanted_to_add_first_is_updated_alone(void **state)
{
    (void)state;
    struct test_step s;
    test_step_open(&s, WEIR_BF16, WEIR_FP32);
    uint32_t b = test_step_block(&s, "B", WEIR_TRAINED, TEST_WINDOW);
    uint32_t x = test_step_kept(&s, "x", 0, 0, TEST_PAGE, false);
    test_step_want(&s, b, WEIR_ADD);
    TEST_COMPUTE(&s, {x, WEIR_NEW});
    test_step_done(&s, b);
    assert_ok(weir_trace_seal(s.trace, &s.model));
    s.limits = (struct weir_limits){32 << 10, 256 << 10, true, 0};
    assert_ok(test_step_plan(&s));
    const struct row rows[] = {{WEIR_OP_READ, WEIR_PART_STATE, true},
                               {WEIR_OP_READ, WEIR_PART_GRAD, true},
                               {WEIR_OP_READ, WEIR_PART_WEIGHT, true},
                               {WEIR_OP_UPDATE, WEIR_PART_WEIGHT, true},
                               {WEIR_OP_WRITE, WEIR_PART_STATE, true},
                               {WEIR_OP_WRITE, WEIR_PART_WEIGHT, true},
                               GRADIENT_ROWS};
    const struct weir_op *ops[16];
    size_t count = window_ops(s.plan, b, 0, ops, 16);
    ASSERT_ROWS(ops, count, rows);
    test_step_close(&s);
}

/* 4c: of what the device can hold, frozen blocks come first, then the first wanted that still fits;
 * a block lives there whole. */
static void device_homes_are_frozen_blocks_first_and_whole(void **state)
{
    (void)state;
    struct test_step s;
    test_step_open(&s, WEIR_BF16, WEIR_FP32);
    const uint32_t ids[] = {test_step_block(&s, "large", WEIR_TRAINED, 3 * TEST_WINDOW),
                            test_step_block(&s, "small", WEIR_TRAINED, TEST_WINDOW),
                            test_step_block(&s, "frozen", WEIR_FROZEN, 2 * TEST_WINDOW)};
    uint32_t x = test_step_kept(&s, "x", 0, 0, TEST_PAGE, false);
    for (uint32_t i = 0; i < 3; i++) {
        test_step_want(&s, ids[i], WEIR_READ);
        TEST_COMPUTE(&s, {x, WEIR_NEW});
        test_step_done(&s, ids[i]);
    }
    assert_ok(weir_trace_seal(s.trace, &s.model));
    s.choice.device_home_bytes = (2 * 2 + 16) * TEST_WINDOW;
    assert_ok(test_step_plan(&s));
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t w = 0; w < s.model.things[ids[i]].window_count; w++)
            for (uint32_t part = 0; part < (i < 2 ? 3u : 1u); part++)
                assert_int_equal(s.homes->blocks[ids[i]][w].part[part].tier,
                                 i == 0 ? WEIR_TIER_HOST : WEIR_TIER_DEVICE);
    s.choice.device_home_bytes = (2 + 16) * TEST_WINDOW; /* either, not both */
    assert_ok(test_step_plan(&s));
    assert_int_equal(s.homes->blocks[ids[2]][0].part[WEIR_PART_WEIGHT].tier, WEIR_TIER_DEVICE);
    assert_int_equal(s.homes->blocks[ids[1]][0].part[WEIR_PART_WEIGHT].tier, WEIR_TIER_HOST);
    test_step_close(&s);
}

/* WRITE: the changed weight goes home and the residual is cleared, pending or not. */
static void a_written_weight_goes_home_and_clears_its_residual(void **state)
{
    (void)state;
    struct test_step s;
    test_step_open(&s, WEIR_BF16, WEIR_FP32);
    uint32_t b = test_step_block(&s, "B", WEIR_TRAINED, TEST_WINDOW);
    uint32_t x = test_step_kept(&s, "x", 0, 0, TEST_PAGE, false);
    test_step_want(&s, b, WEIR_WRITE);
    TEST_COMPUTE(&s, {x, WEIR_NEW});
    test_step_done(&s, b);
    assert_ok(weir_trace_seal(s.trace, &s.model));
    s.limits = (struct weir_limits){16 << 10, 256 << 10, true, 0};
    assert_ok(test_step_plan(&s));
    const struct row rows[] = {UPDATE_ROWS,
                               {WEIR_OP_D2H, WEIR_PART_WEIGHT, false},
                               {WEIR_OP_WRITE, WEIR_PART_WEIGHT, false},
                               {WEIR_OP_READ, WEIR_PART_STATE, false},
                               {WEIR_OP_CLEAR, WEIR_PART_STATE, false},
                               {WEIR_OP_WRITE, WEIR_PART_STATE, false}};
    const struct weir_op *ops[16];
    size_t count = window_ops(s.plan, b, 0, ops, 16);
    ASSERT_ROWS(ops, count, rows);
    test_step_close(&s);
}

/* With bf16 gradients a window leaves in half its bytes, and UPDATE reads as many. */
static void complete_gradients_leave_in_grad_dtype(void **state)
{
    (void)state;
    struct test_step s;
    test_step_open(&s, WEIR_BF16, WEIR_BF16);
    uint32_t b = test_step_block(&s, "B", WEIR_TRAINED, TEST_WINDOW);
    uint32_t x = test_step_kept(&s, "x", 0, 0, TEST_PAGE, false);
    test_step_want(&s, b, WEIR_GRAD);
    TEST_COMPUTE(&s, {x, WEIR_NEW});
    test_step_done(&s, b);
    assert_ok(weir_trace_seal(s.trace, &s.model));
    s.limits = (struct weir_limits){32 << 10, 256 << 10, true, 0};
    assert_ok(test_step_plan(&s));
    const struct row rows[] = {UPDATE_ROWS, GRADIENT_ROWS};
    const struct weir_op *ops[16];
    size_t count = window_ops(s.plan, b, 0, ops, 16);
    ASSERT_ROWS(ops, count, rows);
    assert_int_equal(ops[3]->places[1].bytes, 2 * TEST_WINDOW);
    assert_int_equal(ops[7]->places[0].bytes, 4 * TEST_WINDOW);
    assert_int_equal(ops[8]->places[0].bytes, 2 * TEST_WINDOW);
    assert_int_equal(ops[8]->places[0].offset, ops[7]->places[0].offset);
    test_step_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_a_layer_have_the_ops_of_the_table),
        cmocka_unit_test(a_tied_gradient_goes_home_after_its_last_done),
        cmocka_unit_test(traffic_of_a_layer_is_the_formula),
        cmocka_unit_test(without_nvme_host_homes_are_used_in_place),
        cmocka_unit_test(host_homes_are_spread_over_the_step),
        cmocka_unit_test(device_homes_are_spread_over_the_step),
        cmocka_unit_test(optional_tensors_are_refused_before_they_go_to_nvme),
        cmocka_unit_test(frozen_blocks_only_arrive),
        cmocka_unit_test(a_block_wanted_to_add_first_is_updated_alone),
        cmocka_unit_test(device_homes_are_frozen_blocks_first_and_whole),
        cmocka_unit_test(a_written_weight_goes_home_and_clears_its_residual),
        cmocka_unit_test(complete_gradients_leave_in_grad_dtype),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
