/*
 * Same bits (DESIGN 7a) on the Llama: whatever the budgets, tiers, kept or recomputed activations,
 * groups of micro-batches and delays, training through weir leaves the weights, residuals and
 * moments, losses and norms of a plain loop, bit for bit.
 */
#include "tests/support_cost.h"
#include "tests/support_engine.h"
#include "tests/support_llama.h"
#include "zero/run.h"
#include <weir/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct weir_grain small = {2048, 2048, 2};

static char nvme[256], saves[256];
static uint32_t normal_draws = 120;
static bool small_models; /* for a simulated GPU, which is slow */

struct budgets {
    uint64_t device_bytes, host_bytes;
    bool nvme;
};

static struct llama_spec spec_draw(struct test_random *r)
{
    static const uint32_t dims[] = {2, 6, 10, 16};
    uint32_t kv = 1 + (uint32_t)test_random_below(r, 2);
    return (struct llama_spec){
        .shape = {.sequences = 1 + (uint32_t)test_random_below(r, 2),
                  .length = 1 + (uint32_t)test_random_below(r, 40),
                  .hidden = 17 + (uint32_t)test_random_below(r, 60),
                  .heads = kv * (1 + (uint32_t)test_random_below(r, 3)),
                  .kv_heads = kv,
                  .head_dim = dims[test_random_below(r, 4)],
                  .intermediate = 20 + (uint32_t)test_random_below(r, 150),
                  .vocab = 3 + (uint32_t)test_random_below(r, 300),
                  .tile_rows = 64,
                  .chunk_tokens = 32,
                  .norm_eps = 1e-5f,
                  .dtype = test_random_below(r, 3) ? WEIR_BF16 : WEIR_FP32,
                  .rope = {.theta = 10000}},
        .layer_count = 1 + (uint32_t)test_random_below(r, 3),
        .micro_count = 1 + (uint32_t)test_random_below(r, 4),
        .tied = test_random_below(r, 2),
        .row_elements = test_random_below(r, 2) ? 64 * 64 : 1u << 20,
    };
}

/* A simulated GPU's time goes by blocks of threads: fewer, but as many stages. */
static void spec_shrink(struct llama_spec *spec)
{
    struct network_shape *s = &spec->shape;
    s->sequences = s->kv_heads = 1;
    s->heads = 1 + s->heads % 2;
    s->length = 1 + s->length / 4;
    s->hidden = 13 + s->hidden / 4;
    s->intermediate = 15 + s->intermediate / 4;
    s->vocab = 3 + s->vocab / 2;
    if (spec->micro_count == 4) /* a lane may lag behind by more stages than have events */
        spec->micro_count = 8;
}

struct draw {
    struct llama_spec spec;
    enum weir_dtype grad_dtype;
    weir_run *run;
    struct llama *llama;
    struct llama_plain plain;
    uint32_t groups;
    int32_t *tokens;
    uint64_t target_count, steps, nvme_steps;
    bool has_targets;
};

static void run_open(struct draw *d, const struct budgets *b, uint64_t seed)
{
    struct weir_drive_rate drives[TEST_DRIVES_MOST];
    struct weir_cost rates = seed >> 8 & 1 ? test_cost_slow_cores : test_cost;
    rates.drives = drives;
    assert_ok(weir_open_with(
        &d->run,
        &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                               .device = plain_device,
                               .device_bytes = b->device_bytes,
                               .host_bytes = b->host_bytes,
                               .nvme_path = b->nvme ? test_drives_draw(nvme, seed, drives) : NULL,
                               .io_engine = test_engine_draw(seed),
                               .dtype = d->spec.shape.dtype,
                               .grad_dtype = d->grad_dtype,
                               .thread_count = small_models ? 1 : 2,
                               .strict = strcmp(plain_device, "host") == 0,
                               .strict_seed = seed,
                               .verify = b->nvme && seed >> 9 & 1,
                               .cost = &rates},
        &(struct weir_seams){.grain = small, .updates_apart = seed >> 7 & 1}));
    assert_ok(llama_open(&d->llama, d->run, &d->spec, 2));
}

static enum weir_status record(struct draw *d)
{
    struct weir_update update = {.struct_bytes = sizeof update};
    struct llama_step train = {
        .key = "train", .dry = true, .group_count = d->groups, .update = &update};
    struct llama_step evaluate = {.key = "eval", .dry = true};
    double loss;
    assert_ok(llama_run(d->llama, &train, &loss, NULL));
    assert_ok(llama_run(d->llama, &evaluate, &loss, NULL));
    return weir_layout(d->run);
}

static void run_close(struct draw *d)
{
    llama_close(d->llama);
    weir_close(d->run);
}

/* Budgets drawn, raised until the step fits. */
static void run_fit(struct draw *d, struct test_random *random)
{
    struct budgets b = {.nvme = test_random_below(random, 8) > 0};
    b.device_bytes = 60000 + test_random_below(random, small_models ? 100000 : 400000);
    b.host_bytes =
        b.nvme ? 120000 + test_random_below(random, small_models ? 60000 : 250000) : UINT64_MAX;
    if (test_random_below(random, 20) == 0)
        b.device_bytes = UINT64_MAX;
    for (int attempt = 0;; attempt++) {
        run_open(d, &b, test_random_next(random));
        enum weir_status status = record(d);
        if (status == WEIR_OK)
            return;
        assert_int_equal(WEIR_ERR_NOMEM, status);
        assert_true(attempt < 60);
        run_close(d);
        b.device_bytes += b.device_bytes == UINT64_MAX ? 0 : b.device_bytes / 4;
        b.host_bytes += b.host_bytes == UINT64_MAX ? 0 : b.host_bytes / 4;
    }
}

static void tokens_draw(struct draw *d, struct test_random *random)
{
    uint64_t n = 2ull * d->llama->net.tokens * d->spec.micro_count;
    d->target_count = 0;
    for (uint64_t i = 0; i < n; i++) {
        bool target = i / d->llama->net.tokens % 2 == 1;
        d->tokens[i] = (int32_t)test_random_below(random, d->spec.shape.vocab);
        if (target && test_random_below(random, 10) == 0)
            d->tokens[i] = -100;
        d->target_count += target && d->tokens[i] >= 0;
    }
    d->has_targets = d->target_count > 0;
    if (!d->has_targets)
        d->target_count = 1;
}

static void step_both(struct draw *d, const char *key, const struct weir_update *update)
{
    struct weir_report report = {.struct_bytes = sizeof report};
    double loss, plain_loss, norm;
    bool skipped, training = strcmp(key, "train") == 0;
    uint64_t before[PLAIN_BLOCKS];
    plain_hashes(&d->plain.arrays, before);
    struct llama_step step = {.key = key,
                              .group_count = training ? d->groups : 1,
                              .tokens = d->tokens,
                              .target_count = d->target_count,
                              .update = training ? update : NULL};
    assert_ok(llama_run(d->llama, &step, &loss, &report));
    llama_plain_step(&d->plain, d->tokens, d->target_count, training, update, &plain_loss, &norm,
                     &skipped);
    if (memcmp(&loss, &plain_loss, sizeof loss) != 0)
        fail_msg("loss %.17g through weir, %.17g in the plain loop", loss, plain_loss);
    if (training && memcmp(&report.grad_norm, &norm, sizeof norm) != 0)
        fail_msg("norm %.17g through weir, %.17g in the plain loop", report.grad_norm, norm);
    if (training && d->has_targets)
        plain_all_changed(&d->plain.arrays, before);
    d->steps++;
    d->nvme_steps += report.nvme_read_bytes > 0;
}

static void resume_elsewhere(struct draw *d, struct test_random *random)
{
    char path[300];
    snprintf(path, sizeof path, "%s/step", saves);
    assert_ok(weir_save(d->run, path, NULL, NULL, 0));
    run_close(d);
    run_fit(d, random);
    assert_ok(weir_load(d->run, path));
    assert_int_equal(0, plain_compare(&d->plain.arrays, d->run));
}

static uint64_t draw_run(uint64_t seed, uint64_t *nvme_steps, uint64_t *steps)
{
    struct test_random random = {.state = seed};
    struct draw d = {.spec = spec_draw(&random)};
    if (small_models)
        spec_shrink(&d.spec);
    d.grad_dtype = test_random_below(&random, 2) ? WEIR_BF16 : WEIR_FP32;
    d.groups = 1 + (uint32_t)test_random_below(&random, d.spec.micro_count);
    run_fit(&d, &random);
    llama_plain_open(&d.plain, d.llama, small);
    llama_weights_load(d.llama, &d.plain, seed);
    d.tokens = malloc(2ull * d.llama->net.tokens * d.spec.micro_count * sizeof *d.tokens);
    uint64_t hash = weir_plan_hash(d.run->keys[0]->plan, d.run->homes);
    for (uint32_t i = 0; i < 4; i++) {
        struct weir_update update = {sizeof update, 1e-2f,           0.9f, 0.95f, 1e-8f,
                                     0.1f,          i & 1 ? 0.3f : 0};
        tokens_draw(&d, &random);
        step_both(&d, "train", &update);
        if (test_random_below(&random, 4) == 0)
            step_both(&d, "eval", &update);
        if (test_random_below(&random, 5) == 0)
            resume_elsewhere(&d, &random);
    }
    assert_ok(weir_flush(d.run));
    uint64_t different = plain_compare(&d.plain.arrays, d.run);
    if (different)
        fail_msg("seed %llu: %llu bytes differ", (unsigned long long)seed,
                 (unsigned long long)different);
    *nvme_steps += d.nvme_steps;
    *steps += d.steps;
    run_close(&d);
    llama_plain_close(&d.plain);
    free(d.tokens);
    return hash;
}

static void any_budget_gives_the_same_bits(void **state)
{
    (void)state;
    struct test_random random = test_random_open(1130);
    uint32_t draws = test_draws(normal_draws);
    uint64_t hashes[1024], nvme_steps = 0, steps = 0;
    for (uint32_t i = 0; i < draws; i++) {
        uint64_t seed = test_random_next(&random);
        hashes[i % 1024] = draw_run(seed, &nvme_steps, &steps);
    }
    size_t plans = test_distinct(hashes, draws < 1024 ? draws : 1024);
    printf("%u draws, %zu plans, %llu of %llu steps read NVMe\n", draws, plans,
           (unsigned long long)nvme_steps, (unsigned long long)steps);
    assert_true(plans * 10 >= draws * 6);
    if (draws >= 8) /* one in eight runs has no drive at all */
        assert_true(nvme_steps * (draws < 20 ? 8 : 2) >= steps);
}

/* Arguments: another device than the host, and how many draws there, of smaller models. */
int main(int argument_count, char **arguments)
{
    if (argument_count > 1)
        plain_device = arguments[1];
    if (argument_count > 2) {
        normal_draws = (uint32_t)strtoul(arguments[2], NULL, 0);
        small_models = true;
    }
    test_directory_make(nvme);
    test_directory_make(saves);
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_budget_gives_the_same_bits)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_directory_remove(nvme);
    test_directory_remove(saves);
    return failed;
}
