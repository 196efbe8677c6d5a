/* Blocks are cut into segments and windows by the grain alone, and bad tensors are refused by name.
 */
#include "core/memory.h"
#include "offload/model.h"
#include "tests/support.h"

#include <stdio.h>

#define SMALL ((struct weir_grain){2048, 2048, 2})

static struct weir_tensor tensor(const char *name, enum weir_kind kind, uint64_t rows,
                                 uint64_t columns)
{
    return (struct weir_tensor){.struct_bytes = sizeof(struct weir_tensor),
                                .name = name,
                                .kind = kind,
                                .dim_count = 2,
                                .shape = {rows, columns},
                                .lr_scale = 1,
                                .decay_scale = 1};
}

static struct weir_model small_model(void)
{
    struct weir_model model;
    weir_model_open(&model, WEIR_BF16, WEIR_FP32, SMALL);
    return model;
}

static enum weir_status add_one(struct weir_model *model, struct weir_tensor t)
{
    uint32_t id;
    return weir_model_block_add(model, &t, 1, &id);
}

/* 5d: every tensor starts at a multiple of 2048 elements; segments never cross tensors. */
static void tensors_start_aligned_and_segments_stay_within_them(void **state)
{
    (void)state;
    struct weir_model model = small_model();
    struct weir_tensor t[] = {tensor("a", WEIR_TRAINED, 5, 1000), tensor("b", WEIR_TRAINED, 1, 1)};
    uint32_t id;
    assert_ok(weir_model_block_add(&model, t, 2, &id));
    const struct weir_thing *block = &model.things[id];
    assert_string_equal(block->name, "a");
    assert_int_equal(block->tensors[0].offset, 0);
    assert_int_equal(block->tensors[1].offset, 6144);
    assert_int_equal(block->element_count, 8192);
    assert_int_equal(block->segment_count, 4);
    const uint32_t tensors[] = {0, 0, 0, 1}, counts[] = {2048, 2048, 904, 1};
    for (uint32_t s = 0; s < 4; s++) {
        assert_int_equal(block->segments[s].tensor, tensors[s]);
        assert_int_equal(block->segments[s].count, counts[s]);
        assert_int_equal(block->segments[s].padded_count, 2048);
        assert_int_equal(block->segments[s].offset, s * 2048);
    }
    weir_model_close(&model);
}

/* A window is up to window_segments neighbours, trained or frozen and never both. */
static void windows_hold_trained_or_frozen_segments(void **state)
{
    (void)state;
    struct weir_model model = small_model();
    struct weir_tensor t[] = {tensor("a", WEIR_TRAINED, 3, 2048), tensor("b", WEIR_FROZEN, 1, 2048),
                              tensor("c", WEIR_FROZEN, 2, 2048)};
    uint32_t id;
    assert_ok(weir_model_block_add(&model, t, 3, &id));
    const struct weir_thing *block = &model.things[id];
    assert_int_equal(block->trained_window_count, 2);
    assert_int_equal(block->window_count, 4);
    assert_int_equal(block->trained_element_count, 3 * 2048);
    const uint32_t first[] = {0, 2, 3, 5}, segments[] = {2, 1, 2, 1};
    for (uint32_t w = 0; w < 4; w++) {
        assert_int_equal(block->windows[w].first_segment, first[w]);
        assert_int_equal(block->windows[w].segment_count, segments[w]);
        assert_int_equal(block->windows[w].offset, first[w] * 2048);
        assert_int_equal(block->windows[w].element_count, segments[w] * 2048);
    }
    weir_model_close(&model);
}

/* Norm partials are numbered over the run's trained segments, block after block. */
static void trained_segments_are_numbered_over_the_run(void **state)
{
    (void)state;
    struct weir_model model = small_model();
    assert_ok(add_one(&model, tensor("a", WEIR_TRAINED, 3, 2048)));
    assert_ok(add_one(&model, tensor("frozen", WEIR_FROZEN, 9, 2048)));
    assert_ok(add_one(&model, tensor("b", WEIR_TRAINED, 2, 2048)));
    assert_int_equal(model.things[0].first_segment, 0);
    assert_int_equal(model.things[2].first_segment, 3);
    assert_int_equal(model.trained_segment_count, 5);
    weir_model_close(&model);
}

/* Kernels get offsets from the window's start, and each tensor's own factors. */
static void window_segments_carry_their_tensors_factors(void **state)
{
    (void)state;
    struct weir_model model = small_model();
    struct weir_tensor t[] = {tensor("a", WEIR_TRAINED, 3, 2048), tensor("n", WEIR_TRAINED, 1, 7)};
    t[0].lr_scale = 0.5f;
    t[1].decay_scale = 0;
    uint32_t id;
    assert_ok(weir_model_block_add(&model, t, 2, &id));
    struct weir_window_segment out[2];
    weir_window_segments(&model.things[id], 1, out);
    assert_int_equal(out[0].offset, 0);
    assert_int_equal(out[0].count, 2048);
    assert_true(out[0].lr_scale == 0.5f && out[0].decay_scale == 1);
    assert_int_equal(out[1].offset, 2048);
    assert_int_equal(out[1].count, 7);
    assert_int_equal(out[1].padded_count, 2048);
    assert_true(out[1].lr_scale == 1 && out[1].decay_scale == 0);
    weir_model_close(&model);
}

/* 5a, 5b: 10 bytes of state a bf16 parameter, 8 an fp32 one, from one table. */
static void bytes_of_parts_follow_the_dtypes(void **state)
{
    (void)state;
    static const struct {
        enum weir_dtype dtype, grad;
        uint32_t weight_bytes, grad_bytes, state_bytes;
        size_t arrays;
    } rows[] = {{WEIR_BF16, WEIR_FP32, 2, 4, 10, 3},
                {WEIR_BF16, WEIR_BF16, 2, 2, 10, 3},
                {WEIR_FP32, WEIR_FP32, 4, 4, 8, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct weir_model model;
        weir_model_open(&model, rows[i].dtype, rows[i].grad, WEIR_GRAIN_DEFAULT);
        assert_int_equal(weir_part_bytes(&model, WEIR_PART_WEIGHT), rows[i].weight_bytes);
        assert_int_equal(weir_part_bytes(&model, WEIR_PART_GRAD), rows[i].grad_bytes);
        assert_int_equal(weir_part_bytes(&model, WEIR_PART_STATE), rows[i].state_bytes);
        size_t count;
        const struct weir_state_array *arrays = weir_state_arrays(rows[i].dtype, &count);
        assert_int_equal(count, rows[i].arrays);
        assert_string_equal(arrays[0].name, count == 3 ? "residual" : "exp_avg");
        assert_string_equal(arrays[count - 1].name, "exp_avg_sq");
        weir_model_close(&model);
    }
}

/* Each kind of bad tensor is an error that names it, and nothing is registered. */
static void bad_tensors_are_refused_by_name(void **state)
{
    (void)state;
    struct weir_model model = small_model();
    assert_ok(add_one(&model, tensor("taken", WEIR_TRAINED, 1, 1)));
    struct weir_tensor t = tensor("", WEIR_TRAINED, 1, 1);
    assert_fails(add_one(&model, t), WEIR_ERR_ARG, "no name");
    t.name = NULL;
    assert_fails(add_one(&model, t), WEIR_ERR_ARG, "no name");
    t = tensor("old", WEIR_TRAINED, 1, 1);
    t.struct_bytes = 8;
    assert_fails(add_one(&model, t), WEIR_ERR_ARG, "struct_bytes is 8");
    assert_fails(add_one(&model, tensor("taken", WEIR_TRAINED, 1, 1)), WEIR_ERR_ARG, "\"taken\"");
    assert_fails(add_one(&model, tensor("zero", WEIR_TRAINED, 4, 0)), WEIR_ERR_ARG, "\"zero\"");
    assert_fails(add_one(&model, tensor("large", WEIR_TRAINED, 1ull << 40, 1ull << 40)),
                 WEIR_ERR_ARG, "\"large\"");
    t = tensor("dims", WEIR_TRAINED, 1, 1);
    t.dim_count = 5;
    assert_fails(add_one(&model, t), WEIR_ERR_ARG, "\"dims\": 5 dimensions");
    t.dim_count = 0;
    assert_fails(add_one(&model, t), WEIR_ERR_ARG, "\"dims\": 0 dimensions");
    t = tensor("kind", (enum weir_kind)9, 1, 1);
    assert_fails(add_one(&model, t), WEIR_ERR_ARG, "\"kind\": kind 9");
    t = tensor("rows", WEIR_TRAINED, 4, 1);
    t.whole_name = "whole";
    t.whole_rows = 6;
    t.first_row = 3;
    assert_fails(add_one(&model, t), WEIR_ERR_ARG, "\"rows\"");
    uint32_t id;
    assert_fails(weir_model_block_add(&model, &t, 0, &id), WEIR_ERR_ARG, "at least one");
    assert_int_equal(model.thing_count, 1);
    assert_int_equal(model.trained_segment_count, 1);
    weir_model_close(&model);
}

/* The order of a block's tensors, and names twice within it. */
static void bad_blocks_are_refused_by_name(void **state)
{
    (void)state;
    struct weir_model model = small_model();
    uint32_t id;
    struct weir_tensor order[] = {tensor("ice", WEIR_FROZEN, 1, 1),
                                  tensor("fire", WEIR_TRAINED, 1, 1)};
    assert_fails(weir_model_block_add(&model, order, 2, &id), WEIR_ERR_ARG,
                 "\"fire\": trained after the frozen \"ice\"");
    struct weir_tensor twice[] = {tensor("t", WEIR_TRAINED, 1, 1), tensor("t", WEIR_TRAINED, 1, 1)};
    assert_fails(weir_model_block_add(&model, twice, 2, &id), WEIR_ERR_ARG, "\"t\"");
    assert_int_equal(model.thing_count, 0);
    weir_model_close(&model);
}

/* Shapes legal one by one whose segments do not fit 32 bits: refused before anything is cut. */
static void more_segments_than_can_be_counted_are_refused(void **state)
{
    (void)state;
    struct weir_model model = small_model();
    assert_fails(add_one(&model, tensor("big", WEIR_TRAINED, 1ull << 43, 1)), WEIR_ERR_ARG,
                 "\"big\"");
    weir_model_close(&model);
    weir_model_open(&model, WEIR_BF16, WEIR_FP32, WEIR_GRAIN_DEFAULT);
    struct weir_tensor t[17];
    char names[17][8];
    for (uint32_t i = 0; i < 17; i++) {
        snprintf(names[i], sizeof names[i], "t%u", i);
        t[i] = tensor(names[i], WEIR_FROZEN, (1ull << 44) - 1, 1);
    }
    uint32_t id;
    assert_fails(weir_model_block_add(&model, t, 17, &id), WEIR_ERR_ARG, "\"t0\"");
    assert_int_equal(model.thing_count, 0);
    weir_model_close(&model);
}

/* Kept tensors share the names of the run, and have bytes. */
static void bad_kept_tensors_are_refused_by_name(void **state)
{
    (void)state;
    struct weir_model model = small_model();
    assert_ok(add_one(&model, tensor("w", WEIR_TRAINED, 1, 1)));
    struct weir_kept kept = {.struct_bytes = sizeof kept, .name = "x", .byte_count = 4097};
    uint32_t id;
    assert_ok(weir_model_kept_add(&model, &kept, &id));
    assert_int_equal(model.things[id].byte_count, 4097);
    assert_int_equal(model.things[id].slot_bytes, 8192);
    assert_fails(weir_model_kept_add(&model, &kept, &id), WEIR_ERR_ARG, "\"x\"");
    assert_fails(add_one(&model, tensor("x", WEIR_TRAINED, 1, 1)), WEIR_ERR_ARG, "\"x\"");
    kept.name = "w";
    assert_fails(weir_model_kept_add(&model, &kept, &id), WEIR_ERR_ARG, "\"w\"");
    kept.name = "empty";
    kept.byte_count = 0;
    assert_fails(weir_model_kept_add(&model, &kept, &id), WEIR_ERR_ARG, "\"empty\": 0 bytes");
    kept.byte_count = UINT64_MAX;
    assert_fails(weir_model_kept_add(&model, &kept, &id), WEIR_ERR_ARG, "\"empty\"");
    kept.name = NULL;
    assert_fails(weir_model_kept_add(&model, &kept, &id), WEIR_ERR_ARG, "no name");
    assert_int_equal(model.thing_count, 2);
    weir_model_close(&model);
}

/* Whichever allocation fails, adding a block is NOMEM, holds nothing and can be tried again. */
static void failed_allocations_leave_the_model_as_it_was(void **state)
{
    (void)state;
    uint64_t before = weir_alloc_bytes(), failures = 0;
    struct weir_model model = small_model();
    struct weir_tensor t[] = {tensor("a", WEIR_TRAINED, 3, 2048), tensor("b", WEIR_FROZEN, 2, 9)};
    t[1].whole_name = "whole";
    t[1].whole_rows = 2;
    uint32_t id = 0;
    enum weir_status status;
    for (uint64_t n = 1;; n++) {
        weir_alloc_fail_at(n);
        status = weir_model_block_add(&model, t, 2, &id);
        weir_alloc_fail_at(0);
        if (status == WEIR_OK)
            break;
        assert_int_equal(status, WEIR_ERR_NOMEM);
        assert_int_equal(model.thing_count, 0);
        assert_int_equal(weir_alloc_bytes(), before);
        failures++;
    }
    assert_true(failures >= 6);
    assert_int_equal(model.things[id].window_count, 3);
    weir_model_close(&model);
    assert_int_equal(weir_alloc_bytes(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_start_aligned_and_segments_stay_within_them),
        cmocka_unit_test(windows_hold_trained_or_frozen_segments),
        cmocka_unit_test(trained_segments_are_numbered_over_the_run),
        cmocka_unit_test(window_segments_carry_their_tensors_factors),
        cmocka_unit_test(bytes_of_parts_follow_the_dtypes),
        cmocka_unit_test(bad_tensors_are_refused_by_name),
        cmocka_unit_test(bad_blocks_are_refused_by_name),
        cmocka_unit_test(more_segments_than_can_be_counted_are_refused),
        cmocka_unit_test(bad_kept_tensors_are_refused_by_name),
        cmocka_unit_test(failed_allocations_leave_the_model_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
