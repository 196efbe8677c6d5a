/*
 * Calls on a run that a caller may get wrong or mean in an unusual way: each is as its header says,
 * and what is refused leaves the run as it was.
 */
#include "tests/support.h"
#include "tests/support_cost.h"
#include "zero/run.h"
#include <weir/checkpoint.h>
#include <weir/drive.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct weir_update update = {sizeof update, 0.01f, 0.9f, 0.95f, 1e-8f, 0, 0};

static weir_run *run_open(uint64_t device_bytes, uint64_t host_bytes, bool nvme)
{
    weir_run *run;
    assert_ok(weir_open_with(&run,
                             &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                    .device = "host",
                                                    .device_bytes = device_bytes,
                                                    .host_bytes = host_bytes,
                                                    .nvme_path = nvme ? test_directory : NULL,
                                                    .dtype = WEIR_FP32,
                                                    .grad_dtype = WEIR_FP32,
                                                    .thread_count = 1,
                                                    .ring_bytes = 1, /* the least that it takes */
                                                    .strict = true,
                                                    .cost = &test_cost},
                             &(struct weir_seams){.grain = {2048, 2048, 16}}));
    return run;
}

static struct weir_tensor tensor(const char *name, uint64_t rows, uint64_t width)
{
    return (struct weir_tensor){.struct_bytes = sizeof(struct weir_tensor),
                                .name = name,
                                .dim_count = 2,
                                .shape = {rows, width},
                                .lr_scale = 1,
                                .decay_scale = 1};
}

static uint32_t block_add(weir_run *run, const char *name, uint64_t rows, uint64_t width)
{
    uint32_t id;
    const struct weir_tensor t = tensor(name, rows, width);
    assert_ok(weir_block_add(run, &t, 1, &id));
    return id;
}

static uint32_t kept_add(weir_run *run, const char *name, uint64_t bytes)
{
    uint32_t id;
    const struct weir_kept kept = {
        .struct_bytes = sizeof kept, .name = name, .byte_count = bytes, .optional = false};
    assert_ok(weir_kept_add(run, &kept, &id));
    return id;
}

static struct weir_view want(weir_run *run, uint32_t id, enum weir_access access)
{
    struct weir_view view;
    assert_ok(weir_want(run, &(struct weir_use){id, access}, 1, &view));
    return view;
}

static void done(weir_run *run, uint32_t id)
{
    assert_ok(weir_done(run, &id, 1));
}

enum { SMALL = 7, ELEMENTS = 2048, LARGE = 16 * ELEMENTS };

/* Seven small blocks, of which the step wants each, and a large one, in the least host memory that
 * a layout takes. */
static weir_run *mixed_open(uint32_t *small, uint32_t *large)
{
    for (uint64_t host_bytes = 96 << 10;; host_bytes += 32 << 10) {
        weir_run *run = run_open(64 << 10, host_bytes, true);
        for (uint32_t i = 0; i < SMALL; i++) {
            char name[16];
            snprintf(name, sizeof name, "small%u", i);
            small[i] = block_add(run, name, 1, ELEMENTS);
        }
        *large = block_add(run, "large", 1, LARGE);
        assert_ok(weir_step_begin(run, "step", true));
        for (uint32_t i = 0; i < SMALL; i++) {
            want(run, small[i], WEIR_READ);
            done(run, small[i]);
        }
        assert_ok(weir_step_end(run, NULL, NULL));
        enum weir_status status = weir_layout(run);
        if (status == WEIR_OK)
            return run;
        assert_int_equal(WEIR_ERR_NOMEM, status);
        assert_true(host_bytes < 4 << 20);
        weir_close(run);
    }
}

/* load, store and save pass every block through the ring, also a large one that no key wants. */
static void a_block_that_no_key_wants_spoils_no_other(void **state)
{
    (void)state;
    static float values[LARGE], back[LARGE];
    uint32_t small[SMALL], large;
    weir_run *run = mixed_open(small, &large);
    for (uint32_t i = 0; i < LARGE; i++)
        values[i] = (float)i + 1;
    for (uint32_t i = 0; i < SMALL; i++)
        assert_ok(weir_block_load(run, small[i], 0, WEIR_FP32, values + i, 0, ELEMENTS));
    assert_ok(weir_block_load(run, large, 0, WEIR_FP32, values, 0, LARGE));
    for (uint32_t i = 0; i < SMALL; i++) {
        assert_ok(weir_block_store(run, small[i], 0, WEIR_FP32, back, 0, ELEMENTS));
        assert_memory_equal(back, values + i, ELEMENTS * sizeof *back);
    }
    assert_ok(weir_block_store(run, large, 0, WEIR_FP32, back, 0, LARGE));
    assert_memory_equal(back, values, sizeof values);
    weir_close(run);
}

/* The layer's scratch is written before the stages within it and read after them. The second stage
 * has more than the first, so that it would need the scratch's place. */
static void nested_step(weir_run *run, uint32_t layer, const uint32_t *kept, bool dry)
{
    void *scratch;
    struct weir_view views[2];
    assert_ok(weir_step_begin(run, "step", dry));
    want(run, layer, WEIR_READ);
    assert_ok(weir_scratch(run, 6000, &scratch));
    if (!dry) {
        assert_ok(weir_want_wait(run));
        memset(scratch, 7, 6000);
    }
    for (uint32_t first = 0, count = 1; first < 3; first += count++) {
        const struct weir_use uses[] = {{kept[first], WEIR_NEW}, {kept[2], WEIR_NEW}};
        assert_ok(weir_want(run, uses, count, views));
        assert_ok(weir_want_wait(run));
        for (uint32_t i = 0; !dry && i < count; i++)
            memset(views[i].bytes, 9, 6000);
        assert_ok(weir_done(run, kept + first, count));
    }
    assert_ok(weir_work(run, 1e6));
    for (int i = 0; !dry && i < 6000; i++)
        assert_int_equal(((unsigned char *)scratch)[i], 7);
    done(run, layer);
    assert_ok(weir_work(run, 1e6)); /* after the last done */
    assert_ok(weir_step_end(run, NULL, NULL));
}

static void scratch_lasts_while_its_want_is_held(void **state)
{
    (void)state;
    weir_run *run = run_open(64 << 10, 256 << 10, false);
    uint32_t layer = block_add(run, "layer", 2, 512);
    const uint32_t kept[] = {kept_add(run, "a", 6000), kept_add(run, "b", 6000),
                             kept_add(run, "c", 6000)};
    nested_step(run, layer, kept, true);
    assert_ok(weir_layout(run));
    for (int i = 0; i < 3; i++)
        nested_step(run, layer, kept, false);
    weir_close(run);
}

static void one_block_step(weir_run *run, const char *key, uint32_t block, bool dry)
{
    assert_ok(weir_step_begin(run, key, dry));
    want(run, block, WEIR_GRAD);
    done(run, block);
    if (dry)
        assert_ok(weir_step_end(run, &update, NULL));
}

/* A key whose dry step was aborted was never recorded: it may be again, and spoils no layout. */
static void an_aborted_dry_step_leaves_no_key(void **state)
{
    (void)state;
    struct weir_prediction with = {.struct_bytes = sizeof with}, without = with;
    struct weir_prediction *predictions[] = {&without, &with};
    for (int i = 0; i < 2; i++) {
        weir_run *run = run_open(256 << 10, 1 << 20, false);
        uint32_t block = block_add(run, "w", 4, 1024);
        if (i == 1) {
            assert_ok(weir_step_begin(run, "left", true));
            want(run, block, WEIR_GRAD);
            assert_ok(weir_step_abort(run));
            assert_fails(weir_predict(run, "left", &with), WEIR_ERR_ARG, "never recorded");
        }
        one_block_step(run, "train", block, true);
        assert_ok(weir_layout(run));
        assert_ok(weir_predict(run, "train", predictions[i]));
        one_block_step(run, "left", block, true);
        assert_ok(weir_layout(run));
        weir_close(run);
    }
    assert_true(with.plan_hash == without.plan_hash);
    assert_memory_equal(with.state_bytes, without.state_bytes, sizeof with.state_bytes);
}

/* Each is refused with a text that says what was given, and the run goes on. */
static void calls_out_of_place_are_refused(void **state)
{
    (void)state;
    weir_run *run = run_open(256 << 10, 1 << 20, false);
    struct weir_prediction prediction = {.struct_bytes = sizeof prediction};
    uint32_t block = block_add(run, "w", 4, 1024), x = kept_add(run, "x", 64);
    assert_fails(weir_step_begin(run, NULL, true), WEIR_ERR_ARG, "key is NULL");
    assert_ok(weir_step_begin(run, "step", true));
    assert_fails(weir_step_begin(run, "step", true), WEIR_ERR_STATE,
                 "already inside step \"step\"");
    assert_fails(weir_predict(run, "step", &prediction), WEIR_ERR_STATE, "being recorded");
    want(run, block, WEIR_READ);
    want(run, x, WEIR_NEW);
    assert_fails(weir_predict(run, "step", &prediction), WEIR_ERR_STATE, "being recorded");
    done(run, x);
    done(run, block);
    assert_ok(weir_step_end(run, NULL, NULL));
    assert_ok(weir_layout(run));
    assert_ok(weir_step_begin(run, "step", false));
    struct weir_view views[2];
    const struct weir_use other[] = {{block, WEIR_READ}, {x, WEIR_NEW}};
    assert_fails(weir_want(run, other, 2, views), WEIR_ERR_DIVERGED,
                 "want w:READ x:NEW, recorded was: want w:READ");
    assert_fails(weir_want(run, &(struct weir_use){block, (enum weir_access)77}, 1, views),
                 WEIR_ERR_DIVERGED, "want w:?");
    assert_ok(weir_step_abort(run));
    weir_close(run);
}

#define refused(call, text) assert_fails(call, WEIR_ERR_ARG, text)

static void a_pointer_that_is_null_is_named(void **state)
{
    (void)state;
    weir_run *run = run_open(256 << 10, 1 << 20, false);
    struct weir_prediction prediction = {.struct_bytes = sizeof prediction};
    struct weir_drive drive = {.struct_bytes = sizeof drive};
    const struct weir_tensor t = tensor("t", 1, 1);
    struct weir_view view;
    uint32_t id, block = block_add(run, "w", 4, 1024), x = kept_add(run, "x", 64);
    const struct weir_use use = {block, WEIR_READ};
    refused(weir_block_add(NULL, &t, 1, &id), "weir_block_add: run is NULL");
    refused(weir_block_add(run, NULL, 1, &id), "tensors is NULL");
    refused(weir_block_add(run, &t, 1, NULL), "id is NULL");
    refused(weir_kept_add(run, NULL, &id), "kept is NULL");
    refused(weir_step_begin(NULL, "step", true), "run is NULL");
    assert_ok(weir_step_begin(run, "step", true));
    refused(weir_want(run, NULL, 1, &view), "uses is NULL");
    refused(weir_want(run, &use, 1, NULL), "views is NULL");
    refused(weir_scratch(run, 64, NULL), "out is NULL");
    refused(weir_done(run, NULL, 1), "ids is NULL");
    want(run, block, WEIR_READ);
    want(run, x, WEIR_NEW);
    assert_ok(weir_put(run, x, NULL)); /* dry: nothing is read */
    done(run, x);
    done(run, block);
    assert_ok(weir_step_end(run, NULL, NULL));
    refused(weir_predict(run, NULL, &prediction), "key is NULL");
    refused(weir_predict(run, "step", NULL), "out is NULL");
    refused(weir_predict(run, "other", &prediction), "was never recorded; run its step dry");
    refused(weir_layout(NULL), "run is NULL");
    assert_ok(weir_layout(run));
    assert_ok(weir_step_begin(run, "step", false));
    want(run, block, WEIR_READ);
    want(run, x, WEIR_NEW);
    refused(weir_put(run, x, NULL), "bytes is NULL");
    assert_ok(weir_step_abort(run));
    refused(weir_block_load(run, block, 0, WEIR_FP32, NULL, 0, 1), "values is NULL");
    refused(weir_save(run, NULL, NULL, NULL, 0), "directory is NULL");
    refused(weir_save(run, "d", NULL, NULL, 1), "files is NULL");
    refused(weir_load(run, NULL), "directory is NULL");
    refused(weir_drive_at(run, 0, NULL), "out is NULL");
    refused(weir_drive_at(run, 0, &drive), "index 0; the run has 0 drives");
    weir_close(run);
}

static void what_would_be_taken_for_something_else_is_refused(void **state)
{
    (void)state;
    weir_run *run = run_open(256 << 10, 1 << 20, false);
    struct weir_prediction prediction = {0};
    struct weir_report report = {0};
    uint32_t block = block_add(run, "w", 4, 1024), x = kept_add(run, "x", 64);
    char key[200];
    float value = 1;
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    refused(weir_step_begin(run, key, true), "of 199 bytes; give 1 to 100");
    refused(weir_step_begin(run, "", true), "of 0 bytes");
    one_block_step(run, "train", block, true);
    refused(weir_predict(run, "train", &prediction), "out.struct_bytes is 0");
    assert_ok(weir_layout(run));
    one_block_step(run, "train", block, false);
    refused(weir_step_end(run, NULL, &report), "report.struct_bytes is 0");
    assert_ok(weir_step_end(run, NULL, NULL));
    refused(weir_block_load(run, block, 0, (enum weir_dtype)9, &value, 0, 1), "dtype 9");
    refused(weir_block_store(run, block, 0, (enum weir_dtype)9, &value, 0, 1), "dtype 9");
    assert_true(weir_block_offset(run, block, 0) == 0);
    assert_true(weir_block_offset(run, block, 1) == UINT64_MAX);
    assert_true(weir_block_offset(run, x, 0) == UINT64_MAX);
    assert_true(weir_block_offset(run, 77, 0) == UINT64_MAX);
    weir_close(run);
    struct weir_options options = {.struct_bytes = sizeof options,
                                   .device = "host",
                                   .device_bytes = 1 << 20,
                                   .host_bytes = 1 << 20,
                                   .thread_count = 100000};
    refused(weir_open(&run, &options), "thread_count 100000; give 0 to ");
}

/* Numbers that would only show as a weight that is not finite, one step later. */
static void updates_that_are_not_numbers_are_refused(void **state)
{
    (void)state;
    weir_run *run = run_open(256 << 10, 1 << 20, false);
    uint32_t block = block_add(run, "w", 4, 1024);
    one_block_step(run, "train", block, true);
    assert_ok(weir_layout(run));
    one_block_step(run, "train", block, false);
    for (int i = 0; i < 6; i++) {
        struct weir_update bad = update;
        float *fields[] = {&bad.lr,           &bad.lr,           &bad.eps,
                           &bad.weight_decay, &bad.weight_decay, &bad.clip};
        const char *const names[] = {"update.lr is nan",          "update.lr is inf",
                                     "update.eps is inf",         "update.weight_decay is nan",
                                     "update.weight_decay is -1", "update.clip is nan"};
        *fields[i] = i == 4 ? -1 : i == 1 || i == 2 ? INFINITY : NAN;
        assert_fails(weir_step_end(run, &bad, NULL), WEIR_ERR_ARG, names[i]);
    }
    assert_ok(weir_step_abort(run));
    weir_close(run);
}

/* A tensor that trains must be one that a checkpoint can hold. */
static void tensors_that_no_checkpoint_can_hold_are_refused(void **state)
{
    (void)state;
    static char name[1100];
    weir_run *run = run_open(256 << 10, 1 << 20, false);
    uint32_t id;
    memset(name, 'n', sizeof name - 1);
    const char *names[] = {"__metadata__", "\xff\xfe", name};
    for (size_t i = 0; i < 3; i++) {
        struct weir_tensor bad = tensor(names[i], 2, 8);
        assert_fails(weir_block_add(run, &bad, 1, &id), WEIR_ERR_ARG, "names are UTF-8");
        struct weir_kept kept = {
            .struct_bytes = sizeof kept, .name = names[i], .byte_count = 8, .optional = false};
        assert_fails(weir_kept_add(run, &kept, &id), WEIR_ERR_ARG, "names are UTF-8");
        bad = tensor("part", 2, 8);
        bad.whole_name = names[i];
        bad.whole_rows = 2;
        assert_fails(weir_block_add(run, &bad, 1, &id), WEIR_ERR_ARG, "names are UTF-8");
    }
    float bad_scales[] = {NAN, INFINITY, -1};
    for (size_t i = 0; i < 3; i++) {
        struct weir_tensor bad = tensor("scaled", 2, 8);
        *(i == 1 ? &bad.decay_scale : &bad.lr_scale) = bad_scales[i];
        assert_fails(weir_block_add(run, &bad, 1, &id), WEIR_ERR_ARG, "lr_scale");
    }
    weir_close(run);
}

static struct weir_tensor part(const char *name, uint64_t first, uint64_t rows, uint64_t all)
{
    struct weir_tensor t = tensor(name, rows, 8);
    t.whole_name = "whole";
    t.whole_rows = all;
    t.first_row = first;
    return t;
}

/* Parts of one tensor of the files are alike, apart, and together the whole. */
static void parts_of_a_whole_fit_together(void **state)
{
    (void)state;
    weir_run *run = run_open(256 << 10, 1 << 20, false);
    uint32_t id;
    struct weir_tensor t = part("a", 0, 4, 10);
    assert_ok(weir_block_add(run, &t, 1, &id));
    struct weir_tensor bad[7];
    for (size_t i = 0; i < 6; i++)
        bad[i] = part("b", 4, 4, 10);
    bad[0].kind = WEIR_FROZEN;
    bad[1].shape[1] = 16;
    bad[2].whole_rows = 12;
    bad[3].dim_count = 1;
    bad[4].first_row = 3;
    bad[5].whole_rows = bad[5].first_row = UINT64_MAX - 8;
    bad[6] = tensor("whole", 10, 8);
    static const char *const texts[] = {"one kind",  "one kind",   "one kind", "one kind",
                                        "in common", "lie within", "one kind"};
    for (size_t i = 0; i < 7; i++)
        assert_fails(weir_block_add(run, &bad[i], 1, &id), WEIR_ERR_ARG, texts[i]);
    struct weir_tensor together[] = {part("b", 4, 4, 10), part("c", 7, 3, 10)};
    assert_fails(weir_block_add(run, together, 2, &id), WEIR_ERR_ARG, "in common");
    assert_ok(weir_block_add(run, together, 1, &id));
    one_block_step(run, "train", id, true);
    assert_ok(weir_layout(run));
    char path[300];
    snprintf(path, sizeof path, "%s/hole", test_directory);
    assert_fails(weir_save(run, path, NULL, NULL, 0), WEIR_ERR_ARG, "8 of its 10 rows");
    weir_close(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_that_no_key_wants_spoils_no_other),
        cmocka_unit_test(scratch_lasts_while_its_want_is_held),
        cmocka_unit_test(an_aborted_dry_step_leaves_no_key),
        cmocka_unit_test(calls_out_of_place_are_refused),
        cmocka_unit_test(a_pointer_that_is_null_is_named),
        cmocka_unit_test(what_would_be_taken_for_something_else_is_refused),
        cmocka_unit_test(updates_that_are_not_numbers_are_refused),
        cmocka_unit_test(tensors_that_no_checkpoint_can_hold_are_refused),
        cmocka_unit_test(parts_of_a_whole_fit_together),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
