/*
 * weir-train's command line. Every flag is one field; one bad flag is one error that names it.
 */
#ifndef WEIR_TRAIN_ARGUMENTS_H
#define WEIR_TRAIN_ARGUMENTS_H

#include "core/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <weir/weir.h>

enum schedule { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT };

struct arguments {
    const char *model, *data, *eval_data, *device, *nvme, *io_engine, *out, *log, *export_fp32,
        *timeline, *endurance, *profile;
    uint64_t device_bytes, host_bytes;    /* UINT64_MAX: all in memory */
    uint32_t seq_len, micro_batch, batch; /* batch: sequences a step */
    uint64_t steps, eval_every, eval_batches, warmup, save_every, keep, max_skips, seed;
    double lr, min_lr, weight_decay, beta1, beta2, eps, clip;
    enum schedule schedule;
    enum weir_dtype dtype, grad_dtype;
    int threads;
    bool resume, dry_run, require_direct, require_registered, verify, help;
};

enum weir_status arguments_read(struct arguments *arguments, int count, char **values);
void arguments_help(void);
/* The schedule by its name on the command line. */
const char *arguments_schedule(const struct arguments *arguments);
/* Learning rate of step (from 0): warmup, then the schedule down to min_lr at the last step. */
double arguments_lr(const struct arguments *arguments, uint64_t step);

#endif
