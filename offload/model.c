#include "offload/model.h"
#include "core/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PAGE 4096u

void weir_model_open(struct weir_model *model, enum weir_dtype dtype, enum weir_dtype grad_dtype,
                     struct weir_grain grain)
{
    *model = (struct weir_model){.dtype = dtype, .grad_dtype = grad_dtype, .grain = grain};
}

static void thing_free(struct weir_thing *thing)
{
    for (uint32_t t = 0; thing->tensors && t < thing->tensor_count; t++) {
        weir_free(thing->tensors[t].name);
        weir_free(thing->tensors[t].whole_name);
    }
    weir_free(thing->tensors);
    weir_free(thing->segments);
    weir_free(thing->windows);
    weir_free(thing->name);
}

void weir_model_close(struct weir_model *model)
{
    for (size_t i = 0; i < model->thing_count; i++)
        thing_free(&model->things[i]);
    weir_free(model->things);
    *model = (struct weir_model){0};
}

static bool name_taken(const struct weir_model *model, const char *name)
{
    for (size_t i = 0; i < model->thing_count; i++) {
        const struct weir_thing *thing = &model->things[i];
        if (!thing->is_block && strcmp(thing->name, name) == 0)
            return true;
        for (uint32_t t = 0; t < thing->tensor_count; t++)
            if (strcmp(thing->tensors[t].name, name) == 0)
                return true;
    }
    return false;
}

static enum weir_status count_find(const struct weir_tensor *tensor, uint64_t *count)
{
    *count = 1;
    if (tensor->dim_count < 1 || tensor->dim_count > 4)
        return weir_fail(WEIR_ERR_ARG, "tensor \"%s\": %u dimensions, give 1 to 4", tensor->name,
                         tensor->dim_count);
    for (uint32_t d = 0; d < tensor->dim_count; d++)
        if (tensor->shape[d] == 0 || __builtin_mul_overflow(*count, tensor->shape[d], count) ||
            *count >= 1ull << 44)
            return weir_fail(WEIR_ERR_ARG,
                             "tensor \"%s\": dimension %u is %llu; dimensions are "
                             "not 0 and a tensor has fewer than 2^44 elements",
                             tensor->name, d, (unsigned long long)tensor->shape[d]);
    return WEIR_OK;
}

/* What checkpoints need to know of a tensor, as it is given or already in the model. */
struct part {
    const char *name, *whole_name; /* the latter NULL: it is the whole */
    enum weir_kind kind;
    uint32_t dim_count;
    const uint64_t *shape;
    uint64_t whole_rows, first_row;
};

static struct part part_given(const struct weir_tensor *t)
{
    return (struct part){t->name,  t->whole_name, t->kind,     t->dim_count,
                         t->shape, t->whole_rows, t->first_row};
}

static struct part part_known(const struct weir_block_tensor *t)
{
    return (struct part){t->name,  t->whole_name, t->kind,     t->dim_count,
                         t->shape, t->whole_rows, t->first_row};
}

/* Two that are rows of one whole are alike but for the rows, and have none in common. */
static enum weir_status parts_agree(struct part a, struct part b)
{
    const char *whole = a.whole_name ? a.whole_name : a.name;
    if (strcmp(whole, b.whole_name ? b.whole_name : b.name) != 0)
        return WEIR_OK;
    bool alike = a.whole_name && b.whole_name && a.kind == b.kind && a.dim_count == b.dim_count &&
                 a.whole_rows == b.whole_rows;
    for (uint32_t d = 1; alike && d < a.dim_count; d++)
        alike = a.shape[d] == b.shape[d];
    if (!alike)
        return weir_fail(WEIR_ERR_ARG,
                         "tensor \"%s\": it and \"%s\" are \"%s\" in checkpoints; parts of a whole "
                         "have one kind, one width and one whole_rows",
                         a.name, b.name, whole);
    if (a.first_row < b.first_row + b.shape[0] && b.first_row < a.first_row + a.shape[0])
        return weir_fail(
            WEIR_ERR_ARG,
            "tensor \"%s\": rows from %llu, %llu of them, of \"%s\", some of which are "
            "\"%s\"; parts have no row in common",
            a.name, (unsigned long long)a.first_row, (unsigned long long)a.shape[0], whole, b.name);
    return WEIR_OK;
}

static enum weir_status whole_valid(const struct weir_model *model,
                                    const struct weir_tensor *tensors, size_t i)
{
    const struct weir_tensor *t = &tensors[i];
    uint64_t count, rows = t->whole_rows;
    WEIR_TRY(count_find(t, &count));
    if (t->whole_name && (rows < t->shape[0] || t->first_row > rows - t->shape[0] ||
                          rows >= (1ull << 44) / (count / t->shape[0])))
        return weir_fail(
            WEIR_ERR_ARG,
            "tensor \"%s\": rows from %llu, %llu of them, of \"%s\" with %llu; they lie "
            "within it, and it has fewer than 2^44 elements",
            t->name, (unsigned long long)t->first_row, (unsigned long long)t->shape[0],
            t->whole_name, (unsigned long long)rows);
    for (size_t j = 0; j < i; j++)
        WEIR_TRY(parts_agree(part_given(t), part_given(&tensors[j])));
    for (size_t k = 0; k < model->thing_count; k++)
        for (uint32_t j = 0; j < model->things[k].tensor_count; j++)
            WEIR_TRY(parts_agree(part_given(t), part_known(&model->things[k].tensors[j])));
    return WEIR_OK;
}

static enum weir_status tensor_valid(const struct weir_model *model,
                                     const struct weir_tensor *tensors, size_t i)
{
    const struct weir_tensor *t = &tensors[i];
    if (t->struct_bytes < sizeof *t || !t->name || !*t->name)
        return weir_fail(WEIR_ERR_ARG,
                         "tensor %zu of a block: it has no name, or struct_bytes is "
                         "%zu in place of %zu",
                         i, t->struct_bytes, sizeof *t);
    bool twice = name_taken(model, t->name);
    for (size_t j = 0; j < i; j++)
        twice = twice || strcmp(tensors[j].name, t->name) == 0;
    if (twice)
        return weir_fail(WEIR_ERR_ARG,
                         "tensor \"%s\": the name is taken; names are unique in a "
                         "run",
                         t->name);
    if (t->kind != WEIR_TRAINED && t->kind != WEIR_FROZEN)
        return weir_fail(WEIR_ERR_ARG, "tensor \"%s\": kind %d; give WEIR_TRAINED or WEIR_FROZEN",
                         t->name, (int)t->kind);
    if (i > 0 && t->kind == WEIR_TRAINED && tensors[i - 1].kind == WEIR_FROZEN)
        return weir_fail(WEIR_ERR_ARG,
                         "tensor \"%s\": trained after the frozen \"%s\"; a block's "
                         "trained tensors come first",
                         t->name, tensors[i - 1].name);
    if (!isfinite(t->lr_scale) || !isfinite(t->decay_scale) || t->lr_scale < 0 ||
        t->decay_scale < 0)
        return weir_fail(WEIR_ERR_ARG,
                         "tensor \"%s\": lr_scale %g, decay_scale %g; give finite numbers that are "
                         "not negative",
                         t->name, (double)t->lr_scale, (double)t->decay_scale);
    return whole_valid(model, tensors, i);
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* How many segments, and how many windows, of which trained. */
static enum weir_status counts_find(const struct weir_model *model, struct weir_thing *thing)
{
    const struct weir_grain *grain = &model->grain;
    uint64_t by_kind[2] = {0, 0};
    for (uint32_t t = 0; t < thing->tensor_count; t++)
        by_kind[thing->tensors[t].kind == WEIR_FROZEN] +=
            ceil_div(thing->tensors[t].count, grain->segment_elements);
    /* A run counts its segments in 32 bits. */
    uint64_t count = by_kind[0] + by_kind[1];
    if (count > UINT32_MAX - model->trained_segment_count)
        return weir_fail(WEIR_ERR_ARG,
                         "block \"%s\": %llu segments, and the run has %u trained ones already; "
                         "give fewer than 2^32",
                         thing->name, (unsigned long long)count, model->trained_segment_count);
    thing->trained_segment_count = (uint32_t)by_kind[0];
    thing->segment_count = (uint32_t)count;
    thing->trained_window_count = (uint32_t)ceil_div(by_kind[0], grain->window_segments);
    thing->window_count =
        thing->trained_window_count + (uint32_t)ceil_div(by_kind[1], grain->window_segments);
    return WEIR_OK;
}

static void segments_cut(const struct weir_grain *grain, struct weir_thing *thing)
{
    uint64_t offset = 0;
    uint32_t s = 0;
    for (uint32_t t = 0; t < thing->tensor_count; t++) {
        struct weir_block_tensor *tensor = &thing->tensors[t];
        tensor->offset = offset;
        for (uint64_t at = 0; at < tensor->count; at += grain->segment_elements) {
            uint64_t left = tensor->count - at;
            uint32_t count =
                left < grain->segment_elements ? (uint32_t)left : grain->segment_elements;
            uint32_t padded =
                (uint32_t)(ceil_div(count, grain->align_elements) * grain->align_elements);
            thing->segments[s++] = (struct weir_segment){t, count, padded, offset};
            offset += padded;
        }
        if (tensor->kind == WEIR_TRAINED)
            thing->trained_element_count = offset;
    }
    thing->element_count = offset;
}

static void windows_cut(const struct weir_grain *grain, struct weir_thing *thing)
{
    uint32_t s = 0;
    for (uint32_t w = 0; w < thing->window_count; w++) {
        uint32_t end =
            w < thing->trained_window_count ? thing->trained_segment_count : thing->segment_count;
        struct weir_window *window = &thing->windows[w];
        *window = (struct weir_window){.offset = thing->segments[s].offset, .first_segment = s};
        while (s < end && window->segment_count < grain->window_segments) {
            window->element_count += thing->segments[s++].padded_count;
            window->segment_count++;
        }
    }
}

static enum weir_status tensor_copy(const struct weir_tensor *from, struct weir_block_tensor *to)
{
    WEIR_TRY(weir_strdup(&to->name, from->name));
    if (from->whole_name)
        WEIR_TRY(weir_strdup(&to->whole_name, from->whole_name));
    to->kind = from->kind;
    to->dim_count = from->dim_count;
    memcpy(to->shape, from->shape, sizeof to->shape);
    to->lr_scale = from->lr_scale;
    to->decay_scale = from->decay_scale;
    to->whole_rows = from->whole_rows;
    to->first_row = from->first_row;
    return count_find(from, &to->count);
}

static enum weir_status block_fill(struct weir_model *model, struct weir_thing *thing,
                                   const struct weir_tensor *tensors)
{
    WEIR_TRY(weir_strdup(&thing->name, tensors[0].name));
    WEIR_TRY(weir_alloc(&thing->tensors, thing->tensor_count, sizeof *thing->tensors, "tensors"));
    for (uint32_t t = 0; t < thing->tensor_count; t++)
        WEIR_TRY(tensor_copy(&tensors[t], &thing->tensors[t]));
    WEIR_TRY(counts_find(model, thing));
    WEIR_TRY(
        weir_alloc(&thing->segments, thing->segment_count, sizeof *thing->segments, "segments"));
    WEIR_TRY(weir_alloc(&thing->windows, thing->window_count, sizeof *thing->windows, "windows"));
    segments_cut(&model->grain, thing);
    windows_cut(&model->grain, thing);
    thing->first_segment = model->trained_segment_count;
    return WEIR_OK;
}

static enum weir_status thing_add(struct weir_model *model, struct weir_thing *thing,
                                  enum weir_status status, uint32_t *id)
{
    if (status == WEIR_OK)
        status = weir_grow(&model->things, &model->thing_capacity, model->thing_count + 1,
                           sizeof *model->things, "things");
    if (status != WEIR_OK) {
        thing_free(thing);
        return status;
    }
    model->trained_segment_count += thing->trained_segment_count;
    *id = (uint32_t)model->thing_count;
    model->things[model->thing_count++] = *thing;
    return WEIR_OK;
}

enum weir_status weir_model_block_add(struct weir_model *model, const struct weir_tensor *tensors,
                                      size_t count, uint32_t *id)
{
    if (count == 0 || count > UINT32_MAX)
        return weir_fail(WEIR_ERR_ARG, "a block has %zu tensors; give at least one", count);
    for (size_t i = 0; i < count; i++)
        WEIR_TRY(tensor_valid(model, tensors, i));
    struct weir_thing thing = {.is_block = true, .tensor_count = (uint32_t)count};
    return thing_add(model, &thing, block_fill(model, &thing, tensors), id);
}

enum weir_status weir_model_kept_add(struct weir_model *model, const struct weir_kept *kept,
                                     uint32_t *id)
{
    if (kept->struct_bytes < sizeof *kept || !kept->name || !*kept->name)
        return weir_fail(WEIR_ERR_ARG,
                         "a kept tensor has no name, or struct_bytes is %zu in place "
                         "of %zu",
                         kept->struct_bytes, sizeof *kept);
    if (name_taken(model, kept->name))
        return weir_fail(WEIR_ERR_ARG,
                         "kept tensor \"%s\": the name is taken; names are unique in "
                         "a run",
                         kept->name);
    if (kept->byte_count == 0 || kept->byte_count >= 1ull << 46)
        return weir_fail(WEIR_ERR_ARG, "kept tensor \"%s\": %llu bytes; give 1 to 2^46", kept->name,
                         (unsigned long long)kept->byte_count);
    if (!(kept->recompute_flops >= 0 && kept->recompute_flops < 1e300))
        return weir_fail(WEIR_ERR_ARG, "kept tensor \"%s\": recompute_flops %g; give 0 or more",
                         kept->name, kept->recompute_flops);
    struct weir_thing thing = {.byte_count = kept->byte_count,
                               .slot_bytes = ceil_div(kept->byte_count, PAGE) * PAGE,
                               .optional = kept->optional,
                               .recompute_flops = kept->recompute_flops};
    return thing_add(model, &thing, weir_strdup(&thing.name, kept->name), id);
}

const struct weir_state_array *weir_state_arrays(enum weir_dtype dtype, size_t *count)
{
    static const struct weir_state_array bf16[] = {
        {"residual", 2}, {"exp_avg", 4}, {"exp_avg_sq", 4}};
    *count = dtype == WEIR_BF16 ? 3 : 2;
    return dtype == WEIR_BF16 ? bf16 : bf16 + 1;
}

uint32_t weir_part_bytes(const struct weir_model *model, enum weir_part part)
{
    size_t count;
    const struct weir_state_array *arrays = weir_state_arrays(model->dtype, &count);
    uint32_t bytes = 0;
    switch (part) {
    case WEIR_PART_WEIGHT:
        return model->dtype == WEIR_BF16 ? 2 : 4;
    case WEIR_PART_GRAD:
        return model->grad_dtype == WEIR_BF16 ? 2 : 4;
    case WEIR_PART_STATE:
        for (size_t i = 0; i < count; i++)
            bytes += arrays[i].element_bytes;
        return bytes;
    case WEIR_PART_KEPT:
        break;
    }
    return 1;
}

void weir_window_segments(const struct weir_thing *block, uint32_t window,
                          struct weir_window_segment *out)
{
    const struct weir_window *w = &block->windows[window];
    for (uint32_t s = 0; s < w->segment_count; s++) {
        const struct weir_segment *segment = &block->segments[w->first_segment + s];
        const struct weir_block_tensor *tensor = &block->tensors[segment->tensor];
        out[s] = (struct weir_window_segment){(uint32_t)(segment->offset - w->offset),
                                              segment->count, segment->padded_count,
                                              tensor->lr_scale, tensor->decay_scale};
    }
}
