/*
 * A step whose compute and drive both have a set pace, and what it must cost by arithmetic alone.
 *
 * Blocks of equal size, wanted READ from the first to the last and GRAD back again. Compute is a
 * wait on the compute engine, so that it needs no core; gradients are cleared, and updates done, by
 * the real kernels.
 */
#ifndef WEIR_TESTS_SUPPORT_OVERLAP_H
#define WEIR_TESTS_SUPPORT_OVERLAP_H

#include "zero/run.h"

#define OVERLAP_BLOCKS 8u
#define OVERLAP_STAGES (2 * OVERLAP_BLOCKS)

struct overlap_spec {
    struct weir_grain grain;
    uint64_t block_elements;
    uint64_t forward_ns; /* of a block; backward takes twice that */
};
struct overlap {
    struct overlap_spec spec;
    weir_run *run;
    uint32_t blocks[OVERLAP_BLOCKS];
};
/* directory NULL: no NVMe. The cost is that of test_pace. */
void overlap_open(struct overlap *overlap, const struct overlap_spec *spec, uint64_t device_bytes,
                  uint64_t host_bytes, const char *directory);
void overlap_step(const struct overlap *overlap, bool dry, struct weir_report *report);

/* The traffic of a step on the drive, from the homes alone: forward brings what the update needs
 * and takes back what it changed; backward brings the weight again, unless the block was just left,
 * and takes the gradient away. Seconds are those of test_pace. */
struct overlap_traffic {
    double arrive_s[OVERLAP_STAGES], depart_s[OVERLAP_STAGES];
    uint64_t read_bytes, written_bytes;
};
struct overlap_traffic overlap_traffic(const struct overlap *overlap);
double overlap_io_seconds(const struct overlap_traffic *traffic);
/* DESIGN 4s, written as it stands there; compute_s is spread as forward_ns says. */
double overlap_floor_seconds(const struct overlap_traffic *traffic, double compute_s);

#endif
