/*
 * A Llama on a run: its blocks and kept tensors, and one step as want and done events (DESIGN 4i to
 * 4m). The same function records a step dry and runs it.
 */
#ifndef WEIR_TRAIN_LLAMA_H
#define WEIR_TRAIN_LLAMA_H

#include "examples/train/network.h"
#include <signal.h>
#include <weir/weir.h>

struct llama_spec {
    struct network_shape shape;
    uint32_t layer_count, micro_count; /* micro-batches a step */
    bool tied;
    uint64_t row_elements; /* most elements of a block of vocabulary rows: 2^26; less in tests */
};
#define LLAMA_ROW_ELEMENTS (1ull << 26)

/* Rows of the embedding or of the head that are one block. */
struct llama_rows {
    uint32_t block, first_row, rows;
};

struct llama {
    weir_run *run;
    struct llama_spec spec;
    struct network net;
    uint32_t *layers; /* blocks */
    struct llama_rows *embed, *head;
    uint32_t row_block_count;          /* of each */
    uint32_t final_norm;               /* block */
    uint32_t rope;                     /* kept, by micro-batch and layer: */
    uint32_t *boundary;                /* [layer_count + 1][micro_count], N x H act */
    uint32_t *inner;                   /* [layer_count][micro_count], optional */
    uint32_t *d;                       /* [2][micro_count], N x H fp32 */
    uint32_t *tokens;                  /* [micro_count], int32 [2][N]: inputs, targets */
    uint32_t *stats;                   /* [micro_count], float [3][N] */
    uint32_t *logits;                  /* [row_block_count][micro_count], optional, N x rows fp32 */
    uint32_t *loss;                    /* [micro_count], double [chunks] */
    double *losses;                    /* [micro_count * chunks] on the host */
    const volatile sig_atomic_t *stop; /* NULL, or leave the step when it is not 0 */
};

/* Adds every block and kept tensor to the run. */
enum weir_status llama_open(struct llama **out, weir_run *run, const struct llama_spec *spec,
                            int thread_count);
void llama_close(struct llama *llama);

struct llama_step {
    const char *key;
    bool dry;
    uint32_t group_count;  /* 4j; divides nothing: groups differ by at most one micro-batch */
    const int32_t *tokens; /* [micro_count][2][N]: inputs and targets; dry: NULL */
    uint64_t target_count; /* targets that are not -100, of the whole step; 4m */
    const struct weir_update *update; /* NULL: evaluation */
};
/* loss: mean over the targets. CANCELED: stop was set; the step was aborted. */
enum weir_status llama_run(struct llama *llama, const struct llama_step *step, double *loss,
                           struct weir_report *report);

/* Tensors by name, for loading and initialising. */
struct llama_tensor {
    const char *name; /* Hugging Face's; owned by the llama */
    uint32_t block;
    size_t tensor;
    uint64_t first, count; /* elements of the whole tensor that this block holds */
    uint64_t whole_shape[2];
    uint32_t dim_count;
};
size_t llama_tensor_count(const struct llama *llama);
void llama_tensor_at(const struct llama *llama, size_t index, struct llama_tensor *out,
                     char name[static 96]);
/* Whether the model has a tensor of that name. */
bool llama_tensor_known(const struct llama *llama, const char *name);
uint64_t llama_parameter_count(const struct llama *llama);

#endif
