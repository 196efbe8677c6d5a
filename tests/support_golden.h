/*
 * What golden/make.py computed with PyTorch, and the same model on a run.
 */
#ifndef WEIR_TESTS_SUPPORT_GOLDEN_H
#define WEIR_TESTS_SUPPORT_GOLDEN_H

#include "examples/train/llama.h"
#include "io/safetensors.h"
#include "tests/support.h"

#define SEQUENCES 4
#define STEPS     10

struct golden {
    const char *name;
    struct weir_tensors *file;
    int32_t shape[9];
    double numbers[12];
    uint32_t length;
    int32_t *tokens, *targets; /* SEQUENCES x length */
    double loss[STEPS], grad_norm[STEPS];
};

/* Files lie in golden/ below the working directory. */
struct golden golden_open(const char *name);
void golden_close(struct golden *golden);
/* Elements [first, first + count) of the file's tensor group + name. */
void golden_read(const struct golden *golden, const char *group, const char *name, uint64_t first,
                 uint64_t count, void *out);
uint32_t golden_target_count(const struct golden *golden);
/* Zeros; the caller frees them. */
void *golden_array(uint64_t count, size_t size);

/* How the work is cut; the results must not depend on it. */
struct cut {
    uint32_t sequences; /* of a micro-batch */
    uint32_t tile_rows, chunk_tokens;
    uint64_t row_elements;
};

struct model {
    const struct golden *golden;
    weir_run *run;
    struct llama *llama;
    int32_t *batch; /* [micro_count][2][N] */
    struct weir_update update;
};

/* Recorded, laid out, the file's weights and batch filled in. */
void model_open(struct model *model, const struct golden *golden, const struct cut *cut,
                enum weir_dtype dtype);
void model_close(struct model *model);
void model_step(struct model *model, bool dry, bool training, double *loss,
                struct weir_report *report);

#endif
