/*
 * A Llama as a plain loop: every activation in its own array, every micro-batch in turn, the
 * functions of examples/train/network.h and nothing of offload/.
 */
#ifndef WEIR_TESTS_SUPPORT_LLAMA_H
#define WEIR_TESTS_SUPPORT_LLAMA_H

#include "examples/train/llama.h"
#include "tests/support_plain.h"

struct llama_plain {
    struct llama_spec spec;
    struct plain_arrays arrays; /* blocks in the order in which llama_open adds them */
    struct network net;
    uint32_t row_block_count;
};

/* like: a llama on a run, for its shapes; the weights are loaded into both. */
void llama_plain_open(struct llama_plain *plain, const struct llama *like, struct weir_grain grain);
void llama_plain_close(struct llama_plain *plain);
void llama_weights_load(const struct llama *llama, struct llama_plain *plain, uint64_t seed);
/* poison: put an inf into the gradient of the first layer. */
void llama_plain_step(struct llama_plain *plain, const int32_t *tokens, uint64_t target_count,
                      bool training, const struct weir_update *update, double *loss, double *norm,
                      bool *skipped);

#endif
