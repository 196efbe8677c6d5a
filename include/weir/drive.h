/*
 * The drives under a run's NVMe tier: what each can do, what it holds and what it has borne.
 *
 *     for (size_t i = 0; i < weir_drive_count(run); i++) {
 *         struct weir_drive drive;
 *         drive.struct_bytes = sizeof drive;
 *         if (weir_drive_at(run, i, &drive) == WEIR_OK)
 *             printf("%s %g\n", drive.path, drive.share);
 *     }
 *
 * The tier's bytes lie on its drives stripe by stripe, in proportion to their rates, so that every
 * transfer moves on all of them at once. Which bytes lie where never changes a bit of the training.
 */
#ifndef WEIR_DRIVE_H
#define WEIR_DRIVE_H

#include <weir/weir.h>

WEIR_API_BEGIN

#define WEIR_DRIVES_MOST 16

/* Of one drive alone. */
struct weir_drive_rate {
    double read_bytes_per_s, write_bytes_per_s;
    uint64_t piece_bytes; /* of one transfer; 0: weir's own choice */
    uint32_t depth;       /* transfers in flight; 0: weir's own choice */
};

struct weir_drive {
    size_t struct_bytes;
    const char *path;                   /* as in nvme_path; the run's until it is closed */
    struct weir_drive_rate rate;        /* measured, or given with the costs */
    double share;                       /* of the tier's bytes and of its traffic */
    uint64_t free_bytes;                /* that its file system has now */
    uint64_t byte_count;                /* of the file there; 0 before the layout */
    uint64_t read_bytes, written_bytes; /* of the file, its first filling included */
    uint64_t verified_bytes, verify_ns; /* with weir_options.verify: what it compared, and the time
                                         * of the driver thread that hashing took */
};

/* 0 without an NVMe tier. */
size_t weir_drive_count(const weir_run *run);
/* After the first weir_predict or weir_layout, or with costs given at open; before, rates and
 * shares are 0. Costs without rates of drives: 1 for each. An index past the last drive is
 * WEIR_ERR_ARG. Between steps. */
enum weir_status weir_drive_at(weir_run *run, size_t index, struct weir_drive *out) WEIR_MUST_CHECK;

WEIR_API_END
#endif
