/*
 * A Hugging Face config.json of a LlamaForCausalLM. Whatever in it would change the result and is
 * not supported is refused by name.
 */
#ifndef WEIR_TRAIN_LLAMA_CONFIG_H
#define WEIR_TRAIN_LLAMA_CONFIG_H

#include "examples/train/llama.h"

struct llama_config {
    uint32_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, most_positions;
    bool tied;
    double norm_eps, deviation; /* deviation: of initial weights */
    struct weir_rope_table_args rope; /* theta and scaling */
    char *text;                 /* the file as it is, for checkpoints */
    size_t text_bytes;
};

/* path: a config.json, or a directory that holds one. UNSUPPORTED or CORRUPT name file and field. */
enum weir_status llama_config_read(struct llama_config *config, const char *path);
void llama_config_free(struct llama_config *config);

struct llama_spec llama_config_spec(const struct llama_config *config, uint32_t micro_batch,
                                    uint32_t length, uint32_t micro_count, enum weir_dtype dtype);

#endif
