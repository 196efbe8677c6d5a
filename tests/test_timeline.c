/*
 * A step's timeline says what happened: every op of the plan once, with its bytes, after all that
 * it waited for, in rows that do not overlap, inside the step.
 */
#include "offload/replay_internal.h"
#include "tests/support_cost.h"
#include "tests/support_toy.h"
#include "zero/run.h"
#include <weir/timeline.h>

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct weir_grain small = {2048, 2048, 2};
static const struct toy_spec spec = {.dtype = WEIR_BF16,
                                     .grad_dtype = WEIR_FP32,
                                     .block_count = 4,
                                     .micro_count = 2,
                                     .tensor_count = {2, 1, 2, 1},
                                     .elements = {{9000, 511}, {6000}, {513, 9097}, {7000}},
                                     .width = 700};
static const struct toy_input input = {
    .seed = 1, .training = true, .poison_block = -1, .write_block = -1, .groups = 1};
static const struct weir_update update = {sizeof update, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1};
static char base[256];

struct fixture {
    weir_run *run;
    struct toy toy;
    struct toy_plain plain;
    struct weir_report report;
};

static void step(struct fixture *f, bool dry)
{
    float loss;
    f->report = (struct weir_report){.struct_bytes = sizeof f->report};
    assert_ok(toy_step(&f->toy, "train", dry, &input, &update, &loss, &f->report));
}

static void fixture_open(struct fixture *f, bool timeline)
{
    assert_ok(weir_open_with(&f->run,
                             &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                    .device = "host",
                                                    .device_bytes = 256 << 10,
                                                    .host_bytes = 384 << 10,
                                                    .nvme_path = base,
                                                    .dtype = spec.dtype,
                                                    .grad_dtype = spec.grad_dtype,
                                                    .thread_count = 1,
                                                    .cost = &test_cost},
                             &(struct weir_seams){.grain = small}));
    assert_ok(toy_open(&f->toy, f->run, &spec));
    toy_plain_open(&f->plain, &spec, small);
    step(f, true);
    if (timeline)
        assert_ok(weir_timeline_start(f->run));
    assert_ok(weir_layout(f->run));
    assert_ok(toy_load(&f->toy, &f->plain));
}

static void fixture_close(struct fixture *f)
{
    toy_plain_close(&f->plain);
    weir_close(f->run);
}

static const char *timeline_path(void)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/step.json", base);
    return path;
}

struct slice {
    double from, to; /* microseconds from the step's begin */
    int row;
    bool found;
};

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("no number \"%s\"", key);
    return json_number_value(value);
}

/* The op that an event names; compute stages are found by their number. */
static size_t op_of(const struct weir_plan *plan, const json_t *args)
{
    if (json_object_get(args, "op"))
        return (size_t)number(args, "op");
    size_t stage = (size_t)number(args, "stage"), i = 0;
    while (i < plan->op_count &&
           (plan->ops[i].kind != WEIR_OP_COMPUTE || plan->ops[i].thing != stage))
        i++;
    return i;
}

/* slices[op] of the file; bytes by kind. */
static void slices_read(const struct fixture *f, struct slice *slices, uint64_t *bytes)
{
    const struct weir_plan *plan = f->run->keys[0]->plan;
    json_error_t error;
    json_t *root = json_load_file(timeline_path(), JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("line %d: %s", error.line, error.text);
    const json_t *events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i), *args = json_object_get(event, "args");
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
            continue;
        size_t op = op_of(plan, args);
        assert_true(op < plan->op_count && !slices[op].found);
        double from = number(event, "ts"), took = number(event, "dur");
        slices[op] = (struct slice){from, from + took, (int)number(event, "tid"), true};
        assert_true(from >= 0 && took >= 0);
        assert_true((from + took) * 1e3 <= (double)f->report.step_ns);
        const char *name = json_string_value(json_object_get(event, "name"));
        assert_true(test_contains(name, plan->ops[op].kind == WEIR_OP_COMPUTE
                                            ? ":"
                                            : f->run->model.things[plan->ops[op].thing].name));
        if (plan->ops[op].kind != WEIR_OP_COMPUTE)
            bytes[plan->ops[op].kind] += (uint64_t)number(args, "bytes");
    }
    json_decref(root);
}

static struct slice *slices_make(const struct fixture *f, uint64_t *bytes)
{
    struct slice *slices = calloc(f->run->keys[0]->plan->op_count, sizeof *slices);
    assert_non_null(slices);
    slices_read(f, slices, bytes);
    return slices;
}

/* In a step with every update pending each op of the plan appears once, and the bytes of each kind
 * add up to the step's report. */
static void every_op_appears_once(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t bytes[WEIR_OP_KIND_COUNT] = {0};
    fixture_open(&f, true);
    for (int i = 0; i < 3; i++)
        step(&f, false);
    assert_ok(weir_timeline_write(f.run, timeline_path()));
    struct slice *slices = slices_make(&f, bytes);
    for (size_t i = 0; i < f.run->keys[0]->plan->op_count; i++)
        assert_true(slices[i].found);
    assert_true(f.report.nvme_read_bytes > 0 && f.report.nvme_written_bytes > 0);
    assert_true(f.report.to_device_bytes > 0 && f.report.to_host_bytes > 0);
    assert_true(f.report.host_peak_bytes <= 384 << 10); /* the times count */
    assert_int_equal(f.report.nvme_read_bytes, bytes[WEIR_OP_READ]);
    assert_int_equal(f.report.nvme_written_bytes, bytes[WEIR_OP_WRITE]);
    assert_int_equal(f.report.to_device_bytes, bytes[WEIR_OP_H2D]);
    assert_int_equal(f.report.to_host_bytes, bytes[WEIR_OP_D2H]);
    free(slices);
    fixture_close(&f);
}

/* Nanoseconds are written as microseconds. */
static bool not_before(double later, double earlier)
{
    return later >= earlier - 0.0005;
}

/* No op begins before what it waits for has ended, none of a stream lane before its forerunner has,
 * and no two slices of a row overlap. */
static void times_keep_the_order_of_the_plan(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t bytes[WEIR_OP_KIND_COUNT] = {0}, waits = 0;
    fixture_open(&f, true);
    for (int i = 0; i < 3; i++)
        step(&f, false);
    assert_ok(weir_timeline_write(f.run, timeline_path()));
    struct slice *slices = slices_make(&f, bytes);
    const struct weir_score *score = f.run->keys[0]->score;
    for (size_t i = 0; i < score->plan->op_count; i++) {
        const struct weir_op *op = &score->plan->ops[i];
        for (uint32_t w = 0; w < op->wait_count; w++, waits++)
            for (uint32_t n = 0; n < op->waits[w].count; n++)
                assert_true(not_before(
                    slices[i].from, slices[score->order[score->first[op->waits[w].lane] + n]].to));
        for (size_t j = 0; j < i; j++) {
            if (slices[j].row == slices[i].row)
                assert_true(not_before(slices[i].from, slices[j].to));
            if (score->plan->ops[j].lane == op->lane && !weir_lane_is_io(op->lane))
                assert_int_equal(slices[j].row, slices[i].row);
            if (score->plan->ops[j].lane != op->lane)
                assert_int_not_equal(slices[j].row, slices[i].row);
        }
    }
    assert_true(waits > score->plan->op_count / 2);
    free(slices);
    fixture_close(&f);
}

/* In the first step no update is pending: what was left out is not shown. */
static void what_was_left_out_is_not_shown(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t bytes[WEIR_OP_KIND_COUNT] = {0}, left_out = 0;
    fixture_open(&f, true);
    step(&f, false);
    assert_ok(weir_timeline_write(f.run, timeline_path()));
    struct slice *slices = slices_make(&f, bytes);
    const struct weir_plan *plan = f.run->keys[0]->plan;
    for (size_t i = 0; i < plan->op_count; i++) {
        assert_true(slices[i].found == !plan->ops[i].pending_only);
        left_out += plan->ops[i].pending_only;
    }
    assert_true(left_out > 0);
    assert_int_equal(f.report.nvme_read_bytes, bytes[WEIR_OP_READ]);
    free(slices);
    fixture_close(&f);
}

/* Calls out of order and files that cannot be written are errors that say so; the run goes on. */
static void misuse_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, true);
    assert_fails(weir_timeline_write(f.run, timeline_path()), WEIR_ERR_STATE, "no step was timed");
    step(&f, false);
    assert_fails(weir_timeline_write(f.run, base), WEIR_ERR_IO, "cannot be opened");
    assert_fails(weir_timeline_write(f.run, "/dev/full"), WEIR_ERR_NOSPACE, "/dev/full");
    assert_ok(weir_timeline_write(f.run, timeline_path()));
    assert_ok(weir_step_begin(f.run, "train", false));
    assert_ok(weir_step_abort(f.run));
    assert_fails(weir_timeline_write(f.run, timeline_path()), WEIR_ERR_STATE, "no step was timed");
    step(&f, false);
    fixture_close(&f);
    fixture_open(&f, false);
    assert_fails(weir_timeline_start(f.run), WEIR_ERR_STATE, "before weir_layout");
    step(&f, false);
    assert_fails(weir_timeline_write(f.run, timeline_path()), WEIR_ERR_STATE, "no step was timed");
    assert_null(f.run->keys[0]->score->times);
    fixture_close(&f);
}

int main(void)
{
    test_directory_make(base);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_appears_once),
        cmocka_unit_test(times_keep_the_order_of_the_plan),
        cmocka_unit_test(what_was_left_out_is_not_shown),
        cmocka_unit_test(misuse_is_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_directory_remove(base);
    return failed;
}
