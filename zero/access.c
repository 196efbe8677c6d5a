/*
 * The homes between steps: values in and out, and finishing what is owed.
 */
#include "zero/run.h"

#include <math.h>
#include <string.h>

static enum weir_status block_finish(weir_run *run, uint32_t block)
{
    if (!run->pending[block])
        return WEIR_OK;
    struct weir_window_bytes at;
    for (uint32_t w = 0; w < run->model.things[block].trained_window_count; w++)
        WEIR_TRY(weir_optimizer_finish(run, block, w, &at));
    run->pending[block] = false;
    return weir_optimizer_verify(run);
}

enum weir_status weir_flush(weir_run *run)
{
    WEIR_TRY(weir_run_idle(run, "weir_flush"));
    for (uint32_t i = 0; i < run->model.thing_count; i++)
        if (run->model.things[i].is_block)
            WEIR_TRY(weir_run_result(run, block_finish(run, i)));
    return WEIR_OK;
}

/* The part of a segment that lies in [first, end) of its tensor. */
struct piece {
    uint64_t in_window;  /* element of the window's weight */
    uint64_t in_segment; /* element of the segment */
    uint64_t in_tensor;
    uint64_t count;
    char *state; /* the segment's */
    uint64_t padded_count;
};

struct range {
    uint32_t block;
    size_t tensor;
    uint64_t first, end; /* elements of the tensor */
};

static bool piece_find(const weir_run *run, const struct range *range, uint32_t window, uint32_t s,
                       void *state, struct piece *out)
{
    const struct weir_thing *block = &run->model.things[range->block];
    const struct weir_window *w = &block->windows[window];
    const struct weir_segment *segment = &block->segments[w->first_segment + s];
    if (segment->tensor != range->tensor)
        return false;
    uint64_t at = segment->offset - block->tensors[range->tensor].offset;
    uint64_t first = range->first > at ? range->first : at;
    uint64_t end = range->end < at + segment->count ? range->end : at + segment->count;
    if (first >= end)
        return false;
    *out = (struct piece){
        .in_window = segment->offset - w->offset + (first - at),
        .in_segment = first - at,
        .in_tensor = first,
        .count = end - first,
        .padded_count = segment->padded_count,
    };
    if (state)
        out->state = (char *)state +
                     (segment->offset - w->offset) * weir_part_bytes(&run->model, WEIR_PART_STATE);
    return true;
}

static int16_t *residual_at(const struct piece *piece)
{
    return piece->state ? (int16_t *)(void *)piece->state + piece->in_segment : NULL;
}

static float value_at(enum weir_dtype dtype, const void *values, uint64_t i)
{
    return dtype == WEIR_FP32 ? ((const float *)values)[i]
                              : weir_float_from_bf16(((const uint16_t *)values)[i]);
}

static void piece_load_bf16(const struct piece *piece, uint16_t *weight, enum weir_dtype dtype,
                            const void *values, uint64_t at)
{
    int16_t *residual = residual_at(piece);
    for (uint64_t i = 0; i < piece->count; i++) {
        float master = value_at(dtype, values, at + i);
        int16_t rest;
        (void)weir_master_split(&master, &weight[piece->in_window + i], &rest, 1);
        if (residual)
            residual[i] = rest;
    }
}

static void piece_load_fp32(const struct piece *piece, float *weight, enum weir_dtype dtype,
                            const void *values, uint64_t at)
{
    for (uint64_t i = 0; i < piece->count; i++)
        weight[piece->in_window + i] = value_at(dtype, values, at + i);
}

/* Before any is taken: whether all of them are finite as weights, which round a last time. */
static enum weir_status values_valid(const weir_run *run, const struct range *range,
                                     enum weir_dtype dtype, const void *values)
{
    for (uint64_t i = 0; i < range->end - range->first; i++) {
        float value = value_at(dtype, values, i);
        uint16_t weight;
        int16_t rest;
        if (run->model.dtype == WEIR_BF16 ? weir_master_split(&value, &weight, &rest, 1) == 0
                                          : isfinite(value))
            continue;
        const struct weir_block_tensor *t = &run->model.things[range->block].tensors[range->tensor];
        return weir_fail(
            WEIR_ERR_ARG,
            "weir_block_load: tensor \"%s\": element %llu would be %g, not finite as a "
            "weight; nothing was loaded, give finite values",
            t->name, (unsigned long long)(range->first + i), (double)value);
    }
    return WEIR_OK;
}

static void piece_store(const weir_run *run, const struct piece *piece, const void *weight,
                        enum weir_dtype dtype, void *values, uint64_t at)
{
    for (uint64_t i = 0; i < piece->count; i++) {
        float master;
        if (run->model.dtype == WEIR_FP32) {
            master = ((const float *)weight)[piece->in_window + i];
        } else {
            const uint16_t *w = (const uint16_t *)weight + piece->in_window + i;
            int16_t zero = 0;
            const int16_t *rest = residual_at(piece);
            if (dtype == WEIR_BF16) {
                ((uint16_t *)values)[at + i] = *w;
                continue;
            }
            weir_master_join(w, rest ? rest + i : &zero, &master, 1);
        }
        if (dtype == WEIR_FP32)
            ((float *)values)[at + i] = master;
        else
            ((uint16_t *)values)[at + i] = weir_bf16_from_float(master);
    }
}

static enum weir_status range_valid(weir_run *run, const struct range *range, enum weir_dtype dtype,
                                    const void *values, const char *call)
{
    WEIR_TRY(weir_run_idle(run, call));
    WEIR_TRY(weir_given(range->end > range->first ? values : "", call, "values"));
    if (dtype != WEIR_BF16 && dtype != WEIR_FP32)
        return weir_fail(WEIR_ERR_ARG, "%s: dtype %d; give WEIR_BF16 or WEIR_FP32", call,
                         (int)dtype);
    WEIR_TRY(weir_run_block(run, range->block, call));
    const struct weir_thing *block = &run->model.things[range->block];
    if (range->tensor >= block->tensor_count)
        return weir_fail(WEIR_ERR_ARG, "%s: block \"%s\" has %u tensors, tensor %zu was asked for",
                         call, block->name, block->tensor_count, range->tensor);
    uint64_t count = block->tensors[range->tensor].count;
    if (range->first > range->end || range->end > count)
        return weir_fail(WEIR_ERR_ARG,
                         "%s: tensor \"%s\" has %llu elements, [%llu, %llu) were "
                         "asked for",
                         call, block->tensors[range->tensor].name, (unsigned long long)count,
                         (unsigned long long)range->first, (unsigned long long)range->end);
    return WEIR_OK;
}

static bool window_meets(const struct weir_thing *block, uint32_t window, const struct range *range)
{
    const struct weir_window *w = &block->windows[window];
    uint64_t at = block->tensors[range->tensor].offset;
    return w->offset < at + range->end && at + range->first < w->offset + w->element_count;
}

static enum weir_status window_load(weir_run *run, const struct range *range, uint32_t window,
                                    enum weir_dtype dtype, const void *values)
{
    uint32_t parts = 1u << WEIR_PART_WEIGHT;
    if (run->model.dtype == WEIR_BF16)
        parts |= 1u << WEIR_PART_STATE;
    struct weir_window_bytes at;
    WEIR_TRY(weir_home_fetch(&run->home, range->block, window, parts, &at));
    uint32_t segments = run->model.things[range->block].windows[window].segment_count;
    struct piece piece;
    for (uint32_t s = 0; s < segments; s++)
        if (piece_find(run, range, window, s, at.part[WEIR_PART_STATE], &piece)) {
            uint64_t from = piece.in_tensor - range->first;
            if (run->model.dtype == WEIR_BF16)
                piece_load_bf16(&piece, at.part[WEIR_PART_WEIGHT], dtype, values, from);
            else
                piece_load_fp32(&piece, at.part[WEIR_PART_WEIGHT], dtype, values, from);
        }
    return weir_home_store(&run->home, range->block, window, parts, &at);
}

enum weir_status weir_block_load(weir_run *run, uint32_t block, size_t tensor,
                                 enum weir_dtype dtype, const void *values, uint64_t first,
                                 uint64_t count)
{
    struct range range = {block, tensor, first, first + count};
    WEIR_TRY(range_valid(run, &range, dtype, values, "weir_block_load"));
    WEIR_TRY(values_valid(run, &range, dtype, values));
    WEIR_TRY(weir_run_result(run, block_finish(run, block)));
    const struct weir_thing *thing = &run->model.things[block];
    for (uint32_t w = 0; w < thing->window_count; w++)
        if (window_meets(thing, w, &range))
            WEIR_TRY(weir_run_result(run, window_load(run, &range, w, dtype, values)));
    return WEIR_OK;
}

enum weir_status weir_block_store(weir_run *run, uint32_t block, size_t tensor,
                                  enum weir_dtype dtype, void *values, uint64_t first,
                                  uint64_t count)
{
    struct range range = {block, tensor, first, first + count};
    WEIR_TRY(range_valid(run, &range, dtype, values, "weir_block_store"));
    WEIR_TRY(weir_run_result(run, block_finish(run, block)));
    const struct weir_thing *thing = &run->model.things[block];
    uint32_t parts = 1u << WEIR_PART_WEIGHT;
    if (run->model.dtype == WEIR_BF16 && dtype == WEIR_FP32)
        parts |= 1u << WEIR_PART_STATE;
    for (uint32_t w = 0; w < thing->window_count; w++) {
        if (!window_meets(thing, w, &range))
            continue;
        struct weir_window_bytes at;
        WEIR_TRY(weir_run_result(run, weir_home_fetch(&run->home, block, w, parts, &at)));
        struct piece piece;
        for (uint32_t s = 0; s < thing->windows[w].segment_count; s++)
            if (piece_find(run, &range, w, s, at.part[WEIR_PART_STATE], &piece))
                piece_store(run, &piece, at.part[WEIR_PART_WEIGHT], dtype, values,
                            piece.in_tensor - first);
    }
    return WEIR_OK;
}
