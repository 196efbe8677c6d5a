/*
 * What weir-train says: a line a step, a JSON object a step, a summary.
 */
#ifndef WEIR_TRAIN_JOURNAL_H
#define WEIR_TRAIN_JOURNAL_H

#include "core/status.h"
#include <stdint.h>
#include <stdio.h>
#include <weir/weir.h>

struct journal {
    FILE *json; /* NULL: none */
    const char *path;
};

struct journal_step {
    uint64_t step, steps, tokens;
    double loss, lr, eval_loss; /* eval_loss nan: not evaluated */
    double seconds_left;
    uint64_t nvme_written_total_bytes; /* by this process */
    const char *bound;                 /* what the step waited for most: compute, nvme, link */
    struct weir_report report;
};

/* Opens path for appending, after dropping lines of steps beyond `steps_done`. */
enum weir_status journal_open(struct journal *journal, const char *path, uint64_t steps_done);
void journal_close(struct journal *journal);
enum weir_status journal_step(struct journal *journal, const struct journal_step *step);

struct journal_summary {
    uint64_t steps;
    double eval_loss, seconds, tokens, flops, peak_flops_per_s;
    uint64_t device_peak_bytes, host_peak_bytes, nvme_bytes, read_bytes, written_bytes;
    const char *io_engine; /* NULL: nothing lies on NVMe */
    bool io_direct, io_registered;
};
void journal_summary(const struct journal_summary *summary);
/* What lives where, and bytes a step. */
void journal_layout(const struct weir_prediction *prediction, uint32_t group_count);
uint64_t journal_peak_rss_bytes(void);

#endif
