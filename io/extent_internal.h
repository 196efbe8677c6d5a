/* Which directory of an extent holds how much. */
#ifndef WEIR_IO_EXTENT_INTERNAL_H
#define WEIR_IO_EXTENT_INTERNAL_H

#include "io/extent.h"

struct weir_extent_spread {
    uint64_t stripe_bytes;
    double shares[WEIR_IO_DRIVES_MOST];       /* their sum is 1; 0: left out */
    double wishes[WEIR_IO_DRIVES_MOST];       /* by rate alone */
    uint64_t bytes[WEIR_IO_DRIVES_MOST];      /* each one's, by stripes */
    uint64_t free_bytes[WEIR_IO_DRIVES_MOST]; /* each one's part of its file system's */
    uint64_t needed_bytes;                    /* of all */
};
/* The errors are those of weir_extent_preflight. */
enum weir_status weir_extent_spread(struct weir_extent_spread *out,
                                    const struct weir_extent_place *places, uint32_t count,
                                    uint64_t bytes);

#endif
