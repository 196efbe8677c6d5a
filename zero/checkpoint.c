#include "zero/checkpoint.h"
#include "core/memory.h"

#include <jansson.h>
#include <string.h>

static const char *whole_name(const struct weir_block_tensor *tensor)
{
    return tensor->whole_name ? tensor->whole_name : tensor->name;
}

uint64_t weir_whole_first(const struct weir_block_tensor *tensor)
{
    return tensor->first_row * (tensor->count / tensor->shape[0]);
}

enum weir_file_dtype weir_weight_file_dtype(const weir_run *run)
{
    return run->model.dtype == WEIR_BF16 ? WEIR_FILE_BF16 : WEIR_FILE_F32;
}

enum weir_file_dtype weir_state_file_dtype(const struct weir_state_array *array)
{
    return array->element_bytes == 2 ? WEIR_FILE_I16 : WEIR_FILE_F32;
}

static size_t whole_find(const struct weir_wholes *wholes, const char *name)
{
    size_t i = 0;
    while (i < wholes->count && strcmp(wholes->wholes[i].name, name) != 0)
        i++;
    return i;
}

static enum weir_status whole_add(struct weir_wholes *wholes, const struct weir_block_tensor *t,
                                  size_t array_count, size_t *index)
{
    *index = whole_find(wholes, whole_name(t));
    if (*index < wholes->count) {
        wholes->wholes[*index].known_rows += t->shape[0];
        return WEIR_OK;
    }
    WEIR_TRY(weir_grow(&wholes->wholes, &wholes->capacity, wholes->count + 1,
                       sizeof *wholes->wholes, "checkpoint tensors"));
    struct weir_whole *whole = &wholes->wholes[wholes->count];
    *whole = (struct weir_whole){
        .name = whole_name(t),
        .kind = t->kind,
        .dim_count = t->dim_count,
        .count = t->count,
        .known_rows = t->shape[0],
        .model_index = wholes->count++,
        .state_index = wholes->state_count,
    };
    memcpy(whole->shape, t->shape, sizeof whole->shape);
    if (t->whole_name) {
        whole->shape[0] = t->whole_rows;
        whole->count = t->count / t->shape[0] * t->whole_rows;
    }
    if (t->kind == WEIR_TRAINED)
        wholes->state_count += array_count;
    return WEIR_OK;
}

enum weir_status weir_wholes_make(const weir_run *run, struct weir_wholes *out)
{
    size_t array_count;
    (void)weir_state_arrays(run->model.dtype, &array_count);
    *out = (struct weir_wholes){0};
    enum weir_status status =
        weir_alloc(&out->of, run->model.thing_count, sizeof *out->of, "checkpoint tensors");
    for (size_t i = 0; status == WEIR_OK && i < run->model.thing_count; i++) {
        const struct weir_thing *thing = &run->model.things[i];
        if (!thing->is_block)
            continue;
        status =
            weir_alloc(&out->of[i], thing->tensor_count, sizeof **out->of, "checkpoint tensors");
        for (uint32_t t = 0; status == WEIR_OK && t < thing->tensor_count; t++)
            status = whole_add(out, &thing->tensors[t], array_count, &out->of[i][t]);
    }
    for (size_t i = 0; status == WEIR_OK && i < out->count; i++)
        if (out->wholes[i].known_rows != out->wholes[i].shape[0])
            status = weir_fail(WEIR_ERR_ARG,
                               "tensor \"%s\": blocks have %llu of its %llu rows; add the others",
                               out->wholes[i].name, (unsigned long long)out->wholes[i].known_rows,
                               (unsigned long long)out->wholes[i].shape[0]);
    if (status != WEIR_OK)
        weir_wholes_free(run, out);
    return status;
}

bool weir_checkpoint_name(const char *name)
{
    if (strlen(name) > WEIR_NAME_MOST_BYTES || strcmp(name, "__metadata__") == 0)
        return false;
    json_t *text = json_string(name); /* NULL: not UTF-8 */
    json_decref(text);
    return text != NULL;
}

void weir_wholes_free(const weir_run *run, struct weir_wholes *wholes)
{
    for (size_t i = 0; wholes->of && i < run->model.thing_count; i++)
        weir_free(wholes->of[i]);
    weir_free(wholes->of);
    weir_free(wholes->wholes);
    *wholes = (struct weir_wholes){0};
}

static enum weir_status segment_pieces(const weir_run *run, const struct weir_segment *segment,
                                       uint64_t in_whole, char *state,
                                       struct weir_array_piece piece, weir_piece_fn *fn,
                                       void *context)
{
    size_t array_count;
    const struct weir_state_array *arrays = weir_state_arrays(run->model.dtype, &array_count);
    for (uint32_t a = 0; state && a < array_count; a++) {
        piece.array = a;
        piece.bytes = state;
        piece.byte_count = (uint64_t)segment->count * arrays[a].element_bytes;
        piece.first_bytes = in_whole * arrays[a].element_bytes;
        WEIR_TRY(fn(context, &piece, false));
        state += (uint64_t)segment->padded_count * arrays[a].element_bytes;
    }
    return WEIR_OK;
}

enum weir_status weir_window_pieces(const weir_run *run, const struct weir_wholes *wholes,
                                    uint32_t block, uint32_t window,
                                    const struct weir_window_bytes *at, weir_piece_fn *fn,
                                    void *context)
{
    const struct weir_thing *thing = &run->model.things[block];
    const struct weir_window *w = &thing->windows[window];
    const uint32_t weight_bytes = weir_part_bytes(&run->model, WEIR_PART_WEIGHT);
    const uint32_t state_bytes = weir_part_bytes(&run->model, WEIR_PART_STATE);
    for (uint32_t s = 0; s < w->segment_count; s++) {
        const struct weir_segment *segment = &thing->segments[w->first_segment + s];
        const struct weir_block_tensor *tensor = &thing->tensors[segment->tensor];
        uint64_t in_whole = segment->offset - tensor->offset + weir_whole_first(tensor);
        uint64_t in_window = segment->offset - w->offset;
        struct weir_array_piece piece = {
            .bytes = (char *)at->part[WEIR_PART_WEIGHT] + in_window * weight_bytes,
            .byte_count = (uint64_t)segment->count * weight_bytes,
            .whole = wholes->of[block][segment->tensor],
            .first_bytes = in_whole * weight_bytes,
        };
        WEIR_TRY(fn(context, &piece, true));
        char *state = at->part[WEIR_PART_STATE]
                          ? (char *)at->part[WEIR_PART_STATE] + in_window * state_bytes
                          : NULL;
        WEIR_TRY(segment_pieces(run, segment, in_whole, state, piece, fn, context));
    }
    return WEIR_OK;
}
