/*
 * A drive of a set pace, for measuring how well transfers are hidden: a decorator over the thread
 * engine, which moves the bytes. One at a time is open.
 *
 *     test_pace = (struct test_pace){.read_bytes_per_s = 5e8, .write_bytes_per_s = 5e8};
 *     weir_open_with(&run, &options, &(struct weir_seams){.grain = grain, .io = &test_paced});
 *
 * Each file is a drive. Reads and writes of one share its queue, as in offload/cost.c: a piece
 * begins when the one queued before it has ended, takes bytes / rate, and its completion comes a
 * latency later. The queue's clock runs on whether or not somebody reaps, so late wakeups of this
 * machine do not add up.
 */
#ifndef WEIR_TESTS_SUPPORT_PACED_H
#define WEIR_TESTS_SUPPORT_PACED_H

#include "io/engine.h"

struct test_pace {
    double read_bytes_per_s, write_bytes_per_s;
    double latency_s;
};
extern struct test_pace test_pace;
/* A drive among them that takes `factor` times as long; fd 0: none. */
struct test_slow_drive {
    int fd;
    double factor;
};
extern struct test_slow_drive test_slow_drive;
extern const struct weir_io_engine_table test_paced;

#endif
