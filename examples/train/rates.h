/*
 * The rates of --profile, for the device and the directories of this run.
 */
#ifndef WEIR_TRAIN_RATES_H
#define WEIR_TRAIN_RATES_H

#include "examples/train/arguments.h"
#include <weir/drive.h>

struct rates {
    struct weir_cost cost; /* its drives point to those below: do not copy */
    struct weir_drive_rate drives[WEIR_DRIVES_MOST];
};

/* WEIR_ERR_ARG: the profile is of another device, or knows nothing of the file system of one of
 * --nvme's directories; else the errors of profile_read. */
enum weir_status rates_read(struct rates *rates, const struct arguments *arguments);

#endif
