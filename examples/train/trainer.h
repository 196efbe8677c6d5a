/*
 * weir-train's run: model, data, budgets and checkpoints put together.
 */
#ifndef WEIR_TRAIN_TRAINER_H
#define WEIR_TRAIN_TRAINER_H

#include "examples/train/arguments.h"
#include "examples/train/companions.h"
#include "examples/train/config.h"
#include "examples/train/corpus.h"
#include "examples/train/journal.h"
#include "examples/train/llama.h"
#include "examples/train/wear.h"

struct trainer {
    struct arguments arguments;
    struct llama_config config;
    struct companions companions;      /* none where nothing is saved */
    struct corpus corpus, eval_corpus; /* eval_corpus: closed unless --eval-data is given */
    uint64_t train_count, eval_first, eval_count; /* sequences */
    weir_run *run;
    struct llama *llama;
    uint32_t group_count;
    struct weir_prediction prediction;
    int32_t *tokens; /* [micro_count][2][N] */
    struct journal journal;
    struct wear wear;
    uint64_t step, first_step, skips; /* first_step: begun with; 0 unless resumed */
    uint64_t saved_step;              /* of the newest checkpoint; 0: there is none */
    uint64_t read_bytes, written_bytes;
    double trained_tokens, trained_seconds;
};

/* Everything that can be wrong with arguments, config, data and budgets is said here, before
 * anything is made. */
enum weir_status trainer_open(struct trainer *trainer, const struct arguments *arguments,
                              const volatile sig_atomic_t *stop);
/* WEIR_ERR_NOMEM: this machine has less memory than the plan needs. */
enum weir_status trainer_memory_check(const struct trainer *trainer);
/* Slabs and extents, weights or the newest checkpoint. */
enum weir_status trainer_start(struct trainer *trainer);
enum weir_status trainer_train(struct trainer *trainer);
void trainer_close(struct trainer *trainer);

/* checkpoints.c */
enum weir_status trainer_save(struct trainer *trainer);
/* The newest step-N under --out; found false: none. */
enum weir_status trainer_newest(const struct trainer *trainer, char *path, size_t path_bytes,
                                bool *found);
/* Removes what saves that were killed left under --out, and says so. */
void trainer_sweep(const struct trainer *trainer);

/* resume.c */
/* What state.json says of the run, for the caller to release; NULL: no memory. */
json_t *trainer_numbers(const struct trainer *trainer);
/* Refuses by name what would make it another run, and says once what changes bits. */
enum weir_status trainer_resume_check(const struct trainer *trainer, const char *path);

#endif
