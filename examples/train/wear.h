/*
 * What training asks of the drives under --nvme: room, traffic, and how long they last. A drive's
 * endurance is the amount that may be written to it in its life (TBW, in its data sheet).
 */
#ifndef WEIR_TRAIN_WEAR_H
#define WEIR_TRAIN_WEAR_H

#include "core/status.h"
#include <weir/drive.h>

struct wear {
    double endurance_bytes[WEIR_DRIVES_MOST]; /* 0: not given */
    size_t count;                             /* of drives */
};

/* list: one size for all drives of nvme, or one a drive, as "600TB,1.2PB"; NULL: not given. */
enum weir_status wear_read(struct wear *wear, const char *list, const char *nvme);
/* A line or two a drive: its share, rates and room, bytes of a step, steps that it lasts. */
enum weir_status wear_plan(const struct wear *wear, weir_run *run,
                           const struct weir_prediction *prediction);
/* What each drive moved since the run was opened. */
enum weir_status wear_summary(const struct wear *wear, weir_run *run, double written_step_bytes);
/* Bytes written to all drives since the run was opened. */
enum weir_status wear_written(weir_run *run, uint64_t *bytes);

#endif
