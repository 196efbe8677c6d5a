/*
 * fp32 master weights as one safetensors file under Hugging Face names. It appears whole or not at
 * all: written beside its place, synced, renamed. As model.safetensors beside a config.json it is a
 * model, and loading it gives back weight and residual to the bit.
 */
#ifndef WEIR_TRAIN_EXPORT_H
#define WEIR_TRAIN_EXPORT_H

#include "examples/train/llama.h"

/* The run's, with all owed updates finished. */
enum weir_status export_run(const struct llama *llama, const char *path);
/* Those of a checkpoint, from its files alone.
 * returns: WEIR_ERR_ARG  no residuals beside bf16 weights: not a checkpoint of weir-train */
enum weir_status export_checkpoint(const char *directory, const char *path);

#endif
