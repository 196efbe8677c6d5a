/*
 * Checkpoints: ordinary safetensors in the tensors' names, independent of budgets, tiers and ranks.
 *
 *     weir_save(run, "out/step-100", "{\"seed\": 1}", files, file_count);
 *     weir_load(run, "out/step-100");
 *
 * model.safetensors loads in `transformers` as it is; optimizer.safetensors holds residual, exp_avg
 * and exp_avg_sq of each trained tensor; state.json the counters and the caller's own object.
 */
#ifndef WEIR_CHECKPOINT_H
#define WEIR_CHECKPOINT_H

#include <weir/weir.h>

WEIR_API_BEGIN

/* A file of the caller's that belongs to a checkpoint (config.json, a tokenizer). No call reads it
 * back. The name has no slash and is none of the three above. */
struct weir_file {
    const char *name;
    const void *bytes;
    size_t byte_count;
};
/* Checkpoint: model.safetensors, optimizer.safetensors, state.json ("caller": caller_json, an
 * object; NULL: {}), files. Finishes what updates are owed. Written as directory.tmp, synced, then
 * renamed over directory: whatever happens, one complete checkpoint stands. Only a checkpoint or an
 * empty directory is replaced, with all that was put into it; one that holds anything else, a link
 * or a file is ARG. Weights that are not finite are CORRUPT, and the checkpoint before stands.
 * pre: laid out, outside steps */
enum weir_status weir_save(weir_run *run, const char *directory, const char *caller_json,
                           const struct weir_file *files, size_t file_count) WEIR_MUST_CHECK;
/* Weights, states and counters of a checkpoint of the same tensors and dtype; updates that are owed
 * are dropped. What is missing or of another shape is found before anything is changed. Values that
 * no training leaves (CORRUPT) are found while reading: then the run is lost.
 * pre: laid out, outside steps */
enum weir_status weir_load(weir_run *run, const char *directory) WEIR_MUST_CHECK;

WEIR_API_END
#endif
