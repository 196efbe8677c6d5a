/*
 * Same bits (DESIGN 7a) on toy blocks: whatever the budgets, tiers, kept activations, groups and
 * delays, a run through weir leaves the weights, residuals and moments, losses and norms of a plain
 * loop over arrays, bit for bit. Draws also evaluate between steps, skip a step, abort a step,
 * write weights, save in the middle and go on under other budgets. On a drive that lags, every want
 * is where a step is left.
 */
#include "core/memory.h"
#include "tests/support_cost.h"
#include "tests/support_engine.h"
#include "tests/support_toy.h"
#include "zero/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct weir_grain small = {2048, 2048, 2};

static char nvme[256], saves[256];
static bool lagging; /* the drive of the runs that are opened */

struct budgets {
    uint64_t device_bytes, host_bytes, ring_bytes;
    bool nvme;
};

static uint64_t state_bytes(const struct toy_spec *spec)
{
    uint64_t elements = 0;
    for (uint32_t b = 0; b < toy_block_count(spec); b++)
        for (uint32_t t = 0; t < spec->tensor_count[b]; t++)
            elements += (spec->elements[b][t] + 2047) / 2048 * 2048;
    return elements * 16;
}

static struct budgets budgets_draw(struct test_random *random, const struct toy_spec *spec)
{
    uint64_t all = state_bytes(spec);
    struct budgets b = {.nvme = test_random_below(random, 6) > 0};
    b.device_bytes = 100000 + (uint64_t)((double)all * test_random_unit(random) * 0.6);
    b.host_bytes = 200000 + (uint64_t)((double)all * test_random_unit(random) * 0.3);
    if (test_random_below(random, 20) == 0)
        b.device_bytes = UINT64_MAX;
    if (!b.nvme || test_random_below(random, 20) == 0)
        b.host_bytes = UINT64_MAX;
    return b;
}

static weir_run *run_open(const struct toy_spec *spec, const struct budgets *b, uint64_t seed)
{
    weir_run *run;
    struct weir_drive_rate drives[TEST_DRIVES_MOST];
    struct weir_cost rates = seed >> 8 & 1 ? test_cost_slow_cores : test_cost;
    rates.drives = drives;
    assert_ok(weir_open_with(&run,
                             &(struct weir_options){
                                 .struct_bytes = sizeof(struct weir_options),
                                 .device = "host",
                                 .device_bytes = b->device_bytes,
                                 .host_bytes = b->host_bytes,
                                 .nvme_path = b->nvme ? test_drives_draw(nvme, seed, drives) : NULL,
                                 .io_engine = test_engine_draw(seed),
                                 .dtype = spec->dtype,
                                 .grad_dtype = spec->grad_dtype,
                                 .thread_count = 2,
                                 .ring_bytes = b->ring_bytes,
                                 .strict = true,
                                 .strict_seed = seed,
                                 .verify = b->nvme && seed >> 9 & 1,
                                 .cost = &rates,
                             },
                             &(struct weir_seams){.grain = small,
                                                  .io = lagging ? &test_engine : NULL,
                                                  .updates_apart = seed >> 7 & 1}));
    return run;
}

struct draw {
    struct toy_spec spec;
    struct toy_plain plain;
    struct toy toy;
    weir_run *run;
    uint32_t groups;
    uint64_t nvme_steps, steps;
};

static struct toy_input input_for(const struct draw *d, uint32_t step, bool training)
{
    return (struct toy_input){.seed = 0.5f + (float)step * 0.125f,
                              .training = training,
                              .poison_block = -1,
                              .write_block = -1,
                              .groups = training ? d->groups : 1};
}

/* Three keys: training, evaluation, and training after a block's weight was written. */
static enum weir_status record(struct draw *d)
{
    struct weir_update update = {.struct_bytes = sizeof update};
    float loss;
    struct toy_input train = input_for(d, 0, true), evaluate = input_for(d, 0, false);
    assert_ok(toy_step(&d->toy, "train", true, &train, &update, &loss, NULL));
    assert_ok(toy_step(&d->toy, "eval", true, &evaluate, &update, &loss, NULL));
    struct toy_input write = train;
    write.write_block = 1;
    assert_ok(toy_step(&d->toy, "write", true, &write, &update, &loss, NULL));
    return weir_layout(d->run);
}

/* A run under drawn budgets that fits; raises them until one does. */
static void run_fit(struct draw *d, struct test_random *random)
{
    struct budgets b = budgets_draw(random, &d->spec);
    for (int attempt = 0;; attempt++) {
        d->run = run_open(&d->spec, &b, test_random_next(random));
        assert_ok(toy_open(&d->toy, d->run, &d->spec));
        enum weir_status status = record(d);
        if (status == WEIR_OK)
            return;
        assert_int_equal(WEIR_ERR_NOMEM, status);
        assert_true(attempt < 40);
        weir_close(d->run);
        b.device_bytes += b.device_bytes == UINT64_MAX ? 0 : b.device_bytes / 4;
        b.host_bytes += b.host_bytes == UINT64_MAX ? 0 : b.host_bytes / 4;
    }
}

static void bits_equal(const char *what, float a, float b)
{
    if (memcmp(&a, &b, sizeof a) != 0)
        fail_msg("%s: %.9g through weir, %.9g in the plain loop", what, (double)a, (double)b);
}

static void step_both(struct draw *d, const char *key, const struct toy_input *input,
                      const struct weir_update *update)
{
    struct weir_report report = {.struct_bytes = sizeof report};
    float loss, plain_loss;
    double norm;
    bool skipped;
    assert_ok(toy_step(&d->toy, key, false, input, update, &loss, &report));
    toy_plain_step(&d->plain, input, update, &plain_loss, &norm, &skipped);
    bits_equal("loss", loss, plain_loss);
    assert_memory_equal(&report.grad_norm, &norm, sizeof norm * (skipped ? 0 : 1));
    assert_int_equal(skipped, report.skipped);
    d->steps++;
    d->nvme_steps += report.nvme_read_bytes > 0;
}

static void resume_elsewhere(struct draw *d, struct test_random *random)
{
    char path[300];
    snprintf(path, sizeof path, "%s/step", saves);
    assert_ok(weir_save(d->run, path, NULL, NULL, 0));
    weir_close(d->run);
    run_fit(d, random);
    assert_ok(weir_load(d->run, path));
    assert_int_equal(0, toy_compare(d->run, &d->plain));
}

/* What happens beside ordinary steps, drawn. */
static void event_draw(struct draw *d, struct test_random *random, uint32_t step,
                       const struct weir_update *update)
{
    struct toy_input input = input_for(d, step, true);
    float loss;
    switch (test_random_below(random, 8)) {
    case 0:
        input.training = false;
        input.groups = 1;
        step_both(d, "eval", &input, update);
        break;
    case 1:
        input.poison_block = 0;
        step_both(d, "train", &input, update);
        break;
    case 2:
        d->toy.abort_at = (int)test_random_below(random, 12);
        if (toy_step(&d->toy, "train", false, &input, update, &loss, NULL) == WEIR_OK)
            toy_plain_step(&d->plain, &input, update, &loss, &(double){0}, &(bool){false});
        else
            assert_int_equal(WEIR_ERR_CANCELED, weir_last_error()->status);
        d->toy.abort_at = -1;
        break;
    case 3:
        input.write_block = 1;
        step_both(d, "write", &input, update);
        break;
    case 4:
        resume_elsewhere(d, random);
        break;
    case 5:
        assert_ok(weir_flush(d->run));
        break;
    default:
        break;
    }
}

static uint64_t draw_run(uint64_t seed, uint64_t *nvme_steps, uint64_t *steps)
{
    struct test_random random = {.state = seed};
    struct draw d = {.spec = toy_spec_draw(&random)};
    d.groups = 1 + (uint32_t)test_random_below(&random, d.spec.micro_count);
    toy_plain_open(&d.plain, &d.spec, small);
    run_fit(&d, &random);
    uint64_t hash = weir_plan_hash(d.run->keys[0]->plan, d.run->homes);
    assert_ok(toy_load(&d.toy, &d.plain));
    for (uint32_t step = 0; step < 4; step++) {
        struct weir_update update = {sizeof update,      0.01f, 0.9f, 0.95f, 1e-8f, 0.1f,
                                     step & 1 ? 0.5f : 0};
        struct toy_input input = input_for(&d, step, true);
        step_both(&d, "train", &input, &update);
        event_draw(&d, &random, step + 100, &update);
    }
    assert_ok(weir_flush(d.run));
    uint64_t different = toy_compare(d.run, &d.plain);
    if (different)
        fail_msg("seed %llu: %llu elements differ", (unsigned long long)seed,
                 (unsigned long long)different);
    *nvme_steps += d.nvme_steps;
    *steps += d.steps;
    weir_close(d.run);
    toy_plain_close(&d.plain);
    return hash;
}

static void any_budget_gives_the_same_bits(void **state)
{
    (void)state;
    struct test_random random = test_random_open(20261130);
    uint32_t draws = test_draws(120);
    uint64_t hashes[1024], nvme_steps = 0, steps = 0;
    for (uint32_t i = 0; i < draws; i++) {
        uint64_t seed = test_random_next(&random);
        hashes[i % 1024] = draw_run(seed, &nvme_steps, &steps);
    }
    size_t plans = test_distinct(hashes, draws < 1024 ? draws : 1024);
    printf("%u draws, %zu plans, %llu of %llu steps read NVMe\n", draws, plans,
           (unsigned long long)nvme_steps, (unsigned long long)steps);
    assert_true(plans * 10 >= draws * 6);
    assert_true(nvme_steps * 2 >= steps);
}

/* Every want is left once, each time after a whole step whose updates are owed. */
static uint64_t each_want_left(struct draw *d)
{
    for (int want = 0;; want++) {
        const struct weir_update update = {sizeof update, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f};
        struct toy_input input = input_for(d, (uint32_t)want, true);
        float loss;
        step_both(d, "train", &input, &update);
        d->toy.abort_at = want;
        enum weir_status status = toy_step(&d->toy, "train", false, &input, &update, &loss, NULL);
        d->toy.abort_at = -1;
        if (status == WEIR_OK) {
            toy_plain_step(&d->plain, &input, &update, &loss, &(double){0}, &(bool){false});
            return (uint64_t)want;
        }
        if (status != WEIR_ERR_CANCELED)
            fail_msg("left at want %d: %s", want, weir_last_error()->text);
    }
}

/* On a drive that lags behind compute and completes in any order. */
static uint64_t lagging_draw(uint64_t seed)
{
    struct test_random random = {.state = seed};
    struct draw d = {.spec = toy_spec_draw(&random), .groups = 1};
    printf("draw %llu\n", (unsigned long long)seed);
    toy_plain_open(&d.plain, &d.spec, small);
    test_engine_script = (struct test_engine_script){
        .random = {.state = seed}, .reorder = true, .late = true, .late_ns = 50000};
    run_fit(&d, &random);
    assert_ok(toy_load(&d.toy, &d.plain));
    uint64_t left = each_want_left(&d);
    assert_ok(weir_flush(d.run));
    assert_int_equal(0, toy_compare(d.run, &d.plain));
    weir_close(d.run); /* the script is its driver's until then */
    assert_int_equal(0, test_engine_script.overlap_count);
    toy_plain_close(&d.plain);
    return left;
}

/* One draw in about a hundred has a read that is owed, into bytes of one that was under way when
 * the step was left, ordered after it only by the stage between them. This was one. */
#define ORDERED_BY_A_STAGE 13819372491320860226u

static void what_is_owed_waits_for_what_was_under_way(void **state)
{
    (void)state;
    struct test_random random = test_random_open(20261201);
    lagging = true;
    uint64_t left = lagging_draw(ORDERED_BY_A_STAGE);
    for (uint32_t i = 0; i < test_draws(20); i++)
        left += lagging_draw(test_random_next(&random));
    lagging = false;
    printf("%llu steps were left\n", (unsigned long long)left);
    assert_true(left > 0);
}

/* Kept tensors of this kind that the training step writes to NVMe. */
static uint32_t kept_writes(const weir_run *run, bool optional)
{
    const struct weir_plan *plan = run->keys[0]->plan;
    uint32_t count = 0;
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct weir_op *op = &plan->ops[i];
        count += op->kind == WEIR_OP_WRITE && op->part == WEIR_PART_KEPT &&
                 run->model.things[op->thing].optional == optional;
    }
    return count;
}

/* The least host budget that holds the step: it has no room for what waits. Boundaries go to
 * NVMe because they must, optional tensors because computing them again is said to take long. */
static void waits_run(bool inner)
{
    struct draw d = {.groups = 1};
    d.spec = (struct toy_spec){.dtype = WEIR_BF16,
                               .grad_dtype = WEIR_FP32,
                               .block_count = 5,
                               .micro_count = 4,
                               .width = 4000,
                               .inner = inner};
    for (uint32_t b = 0; b < 5; b++) {
        d.spec.tensor_count[b] = 1;
        d.spec.elements[b][0] = 2048;
    }
    toy_plain_open(&d.plain, &d.spec, small);
    struct budgets b = {
        .device_bytes = inner ? 192 << 10 : 64 << 10, .host_bytes = 64 << 10, .nvme = true};
    for (;;) {
        d.run = run_open(&d.spec, &b, 7);
        assert_ok(toy_open(&d.toy, d.run, &d.spec));
        if (record(&d) == WEIR_OK)
            break;
        bool host = test_contains(weir_last_error()->text, "host:");
        *(host ? &b.host_bytes : &b.device_bytes) += 4096;
        weir_close(d.run);
    }
    assert_true(kept_writes(d.run, inner) > 0);
    assert_ok(toy_load(&d.toy, &d.plain));
    for (uint32_t step = 0; step < 3; step++) {
        const struct weir_update update = {sizeof update, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
        struct toy_input input = input_for(&d, step, true);
        step_both(&d, "train", &input, &update);
    }
    assert_ok(weir_flush(d.run));
    assert_int_equal(0, toy_compare(d.run, &d.plain));
    weir_close(d.run);
    toy_plain_close(&d.plain);
}

static void boundaries_wait_on_nvme_without_a_trace(void **state)
{
    (void)state;
    waits_run(false);
}

static void optional_tensors_wait_on_nvme_without_a_trace(void **state)
{
    (void)state;
    waits_run(true);
}

int main(void)
{
    test_directory_make(nvme);
    test_directory_make(saves);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_budget_gives_the_same_bits),
        cmocka_unit_test(what_is_owed_waits_for_what_was_under_way),
        cmocka_unit_test(boundaries_wait_on_nvme_without_a_trace),
        cmocka_unit_test(optional_tensors_wait_on_nvme_without_a_trace),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_directory_remove(nvme);
    test_directory_remove(saves);
    return failed;
}
