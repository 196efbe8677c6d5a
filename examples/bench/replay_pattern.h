/*
 * What a step of training asks of the drive while blocks come back updated: windows of state and
 * weight (and gradient) are read ahead into a ring, updated by the host's Adam, and written back
 * while the next ones arrive. Reads go before writes. Several drives are one volume, as in
 * training.
 *
 *     struct replay_sample sample;
 *     WEIR_TRY(replay_open(&replay, &target, &(struct replay_options){...}));
 *     WEIR_TRY(replay_run(replay, 500000000, &sample));
 *     replay_close(replay);
 */
#ifndef WEIR_BENCH_REPLAY_PATTERN_H
#define WEIR_BENCH_REPLAY_PATTERN_H

#include "examples/bench/io_point.h"

struct replay;

struct replay_options {
    const char *engine;
    uint64_t piece_bytes;
    uint32_t depth, ring; /* of each drive; windows */
    enum gradients gradients;
    bool update;
    int thread_count; /* of the update's team */
};

struct replay_sample {
    struct io_sample io;
    uint64_t window_count;
    uint64_t update_ns; /* that the update's thread was busy */
};

/* Files of so many bytes, all together, hold twice the ring of windows; else WEIR_ERR_ARG. */
enum weir_status replay_fits(uint64_t byte_count, uint32_t ring, enum gradients gradients);
/* Makes memory and writes states into all of the files, which replay_fits. target stays the
 * caller's and is borrowed. */
enum weir_status replay_open(struct replay **out, const struct io_target *target,
                             const struct replay_options *options);
/* Begins no window after ns; the clock ends when all are written and synced. Goes on where the run
 * before ended. WEIR_ERR_CORRUPT: what was read are not the numbers that were written. */
enum weir_status replay_run(struct replay *replay, uint64_t ns, struct replay_sample *sample);
void replay_close(struct replay *replay);
/* Of one window: 10 MiB of state, 2 of weight, and 0, 2 or 4 of gradient. */
uint64_t replay_read_bytes(enum gradients gradients);
uint64_t replay_written_bytes(void);

#endif
