/*
 * What a Hugging Face config.json says about a Llama. Every key is known: it is used, or known to
 * change nothing, or must have the one value that weir-train computes with. Anything else is
 * refused by name, so that no model is ever trained as another one.
 *
 *     struct llama_config config;
 *     WEIR_TRY(llama_config_read(&config, "models/tinyllama"));
 *     printf("%llu parameters\n", (unsigned long long)llama_config_parameter_count(&config));
 *     llama_config_free(&config);
 */
#ifndef WEIR_TRAIN_CONFIG_H
#define WEIR_TRAIN_CONFIG_H

#include "core/status.h"
#include "kernels/kernels.h"
#include <jansson.h>

struct llama_config {
    uint32_t layer_count, hidden, heads, kv_heads, head_dim, intermediate, vocab;
    uint32_t position_count; /* max_position_embeddings: longest sequence it was made for */
    bool tied;               /* head and embedding are one tensor */
    float norm_eps;
    float init_deviation;             /* of random weights */
    struct weir_rope_table_args rope; /* theta, scaling and its factors; the rest is 0 */
    char *directory; /* of the weights; NULL: a config.json alone, random weights */
    char *text;      /* config.json as it was read, for checkpoints */
    size_t text_bytes;
};

/* path: a directory with config.json and safetensors, or a config.json alone. Fills *config, which
 * llama_config_free empties; after a failure it is empty.
 * returns: WEIR_ERR_UNSUPPORTED  a key whose value weir-train does not compute with, or unknown
 *          WEIR_ERR_CORRUPT      not JSON, a key is missing, of the wrong type or out of range
 *          WEIR_ERR_IO           a file cannot be read
 *          WEIR_ERR_ARG          a directory without safetensors */
enum weir_status llama_config_read(struct llama_config *config, const char *path) WEIR_MUST_CHECK;
/* The same from text; name stands for the file in errors. */
enum weir_status llama_config_parse(struct llama_config *config, const char *name, const char *text,
                                    size_t text_bytes) WEIR_MUST_CHECK;
void llama_config_free(struct llama_config *config);

/* A tied head counts once. */
uint64_t llama_config_parameter_count(const struct llama_config *config);
/* Additions and multiplications of forward and backward: 6 for each parameter of a matrix product
 * (the embedding is none, a head is one), and causal attention at half the square. Recomputation
 * does not count: this is what model FLOPs utilisation divides. */
double llama_config_token_flops(const struct llama_config *config, uint32_t sequence_tokens);

/* For config.c and config_rope.c: name is the file's in errors. */
enum weir_status llama_config_rope(struct llama_config *config, const char *name,
                                   const json_t *root);
/* key's number in [least, most]; absent or null: fallback. */
enum weir_status llama_config_number(const char *name, const json_t *object, const char *key,
                                     double fallback, double least, double most, double *out);
/* "where.key is VALUE; weir-train computes with NEED only" as WEIR_ERR_UNSUPPORTED. */
enum weir_status llama_config_refuse(const char *name, const char *where, const char *key,
                                     const json_t *value, const char *need);

#endif
