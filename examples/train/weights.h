/*
 * Where a Llama's first weights come from: random, or a Hugging Face directory.
 */
#ifndef WEIR_TRAIN_WEIGHTS_H
#define WEIR_TRAIN_WEIGHTS_H

#include "examples/train/llama.h"

#define WEIGHTS_CHUNK (1u << 20) /* elements in hand at once */
static inline uint64_t weights_chunk_at(uint64_t at, uint64_t count)
{
    return count - at < WEIGHTS_CHUNK ? count - at : WEIGHTS_CHUNK;
}

/* Matrices from a normal distribution keyed by seed, tensor name and element; norms 1. */
enum weir_status weights_random(const struct llama *llama, uint64_t seed, float deviation);
/* Names, shapes and dtypes are compared before anything is loaded; a tensor that is none of the
 * model's is refused, but for rotary frequencies and a tied head. F32, BF16 and F16. */
enum weir_status weights_load(const struct llama *llama, const char *directory);
/* The same comparison, without a layout: before any slab is made. */
enum weir_status weights_check(const struct llama *llama, const char *directory);

#endif
