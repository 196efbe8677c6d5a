/*
 * What saving and loading share: the list of whole tensors in the files, and where each block's
 * tensors lie in them.
 */
#ifndef WEIR_ZERO_CHECKPOINT_INTERNAL_H
#define WEIR_ZERO_CHECKPOINT_INTERNAL_H

#include "io/safetensors.h"
#include "zero/run.h"
#include <weir/checkpoint.h>

#define WEIR_FORMAT          1
#define WEIR_FILE_MODEL      "model.safetensors"
#define WEIR_FILE_STATES     "optimizer.safetensors"
#define WEIR_FILE_JSON       "state.json"
#define WEIR_JSON_MOST_BYTES (1u << 20) /* of state.json; save keeps below it, load refuses it */
#define WEIR_NAME_MOST_BYTES 900u       /* of a tensor, without ".exp_avg_sq" */

/* A tensor as the files know it: rows of it may live in several blocks. */
struct weir_whole {
    const char *name; /* borrowed from the model */
    enum weir_kind kind;
    uint32_t dim_count;
    uint64_t shape[4], count;
    uint64_t known_rows; /* that some block has */
    size_t model_index;  /* in the model file's list */
    size_t state_index;  /* of its first state array in the states' list; trained only */
};
struct weir_wholes {
    struct weir_whole *wholes;
    size_t count, capacity;
    size_t state_count; /* tensors of the states' file */
    size_t **of;        /* [thing][tensor]: index into wholes */
};
/* ARG: no block has some rows of a whole. */
enum weir_status weir_wholes_make(const weir_run *run, struct weir_wholes *out);
void weir_wholes_free(const weir_run *run, struct weir_wholes *wholes);

/* A name that the files can hold: UTF-8, not too long, not the format's own. */
bool weir_checkpoint_name(const char *name);
/* Elements of the whole before this tensor's first one. */
uint64_t weir_whole_first(const struct weir_block_tensor *tensor);
enum weir_file_dtype weir_weight_file_dtype(const weir_run *run);
enum weir_file_dtype weir_state_file_dtype(const struct weir_state_array *array);

/* One array of one segment: bytes in memory and its place in the files. */
struct weir_array_piece {
    void *bytes;
    uint64_t byte_count;
    size_t whole;
    uint32_t array;       /* of the states; meaningless for the weight */
    uint64_t first_bytes; /* in the whole tensor */
};
/* Visit the weight (array == UINT32_MAX) and the state arrays of each segment of a fetched window.
 */
typedef enum weir_status weir_piece_fn(void *context, const struct weir_array_piece *piece,
                                       bool is_weight);
enum weir_status weir_window_pieces(const weir_run *run, const struct weir_wholes *wholes,
                                    uint32_t block, uint32_t window,
                                    const struct weir_window_bytes *at, weir_piece_fn *fn,
                                    void *context);

#endif
