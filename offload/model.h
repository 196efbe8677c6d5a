/*
 * What a run moves: blocks of tensors, and kept tensors. An id is an index into things[].
 *
 * A block's trained tensors come first, then its frozen ones; each tensor starts at a multiple of
 * align_elements, so an element has one index, the same in weight, gradient and state (DESIGN 5d).
 * Segments cut each tensor, windows are up to window_segments neighbouring segments; a window holds
 * trained or frozen segments, never both. Immutable once weir_layout has run.
 */
#ifndef WEIR_OFFLOAD_MODEL_H
#define WEIR_OFFLOAD_MODEL_H

#include "core/status.h"
#include "kernels/kernels.h"
#include <weir/weir.h>

/* The grain: constants of the library; smaller in tests, so that small blocks have many windows. */
struct weir_grain {
    uint32_t segment_elements, align_elements, window_segments;
};
#define WEIR_GRAIN_DEFAULT                                                                         \
    (struct weir_grain)                                                                            \
    {                                                                                              \
        WEIR_SEGMENT_ELEMENTS, WEIR_ALIGN_ELEMENTS, WEIR_WINDOW_SEGMENTS                           \
    }

enum weir_part { WEIR_PART_WEIGHT, WEIR_PART_GRAD, WEIR_PART_STATE, WEIR_PART_KEPT };

struct weir_segment {
    uint32_t tensor; /* of its block */
    uint32_t count, padded_count;
    uint64_t offset; /* elements from the block's start */
};
struct weir_window {
    uint64_t offset;        /* elements from the block's start */
    uint64_t element_count; /* padded */
    uint32_t first_segment, segment_count;
};
struct weir_block_tensor {
    char *name;
    enum weir_kind kind;
    uint32_t dim_count;
    uint64_t shape[4], count, offset; /* elements */
    float lr_scale, decay_scale;
    char *whole_name; /* NULL: it is the whole; else rows from first_row of whole_rows */
    uint64_t whole_rows, first_row;
};
struct weir_thing {
    bool is_block;
    char *name; /* a block's: its first tensor's */
    /* block */
    struct weir_block_tensor *tensors;
    struct weir_segment *segments;
    struct weir_window *windows; /* the trained ones first */
    uint32_t tensor_count, segment_count, window_count, trained_window_count;
    uint64_t element_count, trained_element_count; /* padded */
    uint32_t
        first_segment; /* of the run: index of its first norm partial (trained segments only) */
    uint32_t trained_segment_count;
    /* kept */
    uint64_t byte_count; /* as asked for */
    uint64_t slot_bytes; /* rounded up to 4096 */
    bool optional;
    double recompute_flops; /* at each want after NEW, if refused */
};
struct weir_model {
    enum weir_dtype dtype, grad_dtype;
    struct weir_grain grain;
    struct weir_thing *things;
    size_t thing_count, thing_capacity;
    uint32_t trained_segment_count; /* of the run */
};

void weir_model_open(struct weir_model *model, enum weir_dtype dtype, enum weir_dtype grad_dtype,
                     struct weir_grain grain);
void weir_model_close(struct weir_model *model);
enum weir_status weir_model_block_add(struct weir_model *model, const struct weir_tensor *tensors,
                                      size_t count, uint32_t *id);
enum weir_status weir_model_kept_add(struct weir_model *model, const struct weir_kept *kept,
                                     uint32_t *id);

/* 5b: the form of the state, one table used by extent, window and checkpoint. */
struct weir_state_array {
    const char *name; /* "residual", "exp_avg", "exp_avg_sq" */
    uint32_t element_bytes;
};
const struct weir_state_array *weir_state_arrays(enum weir_dtype dtype, size_t *count);

/* Bytes an element in its home: weight 2 or 4, state 10 or 8, gradient 4 or 2. On the device a
 * gradient is always fp32: WEIR_DEVICE_GRAD_BYTES. */
uint32_t weir_part_bytes(const struct weir_model *model, enum weir_part part);
#define WEIR_DEVICE_GRAD_BYTES 4u

/* The segments of a window as the kernels take them; out[] has window_segments entries. */
void weir_window_segments(const struct weir_thing *block, uint32_t window,
                          struct weir_window_segment *out);

#endif
