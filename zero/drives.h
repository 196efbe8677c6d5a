/*
 * The drives of the NVMe tier: their list, their rates, what callers are told of them
 * (weir/drive.h).
 */
#ifndef WEIR_ZERO_DRIVES_H
#define WEIR_ZERO_DRIVES_H

#include "core/status.h"
#include "io/extent.h"
#include <weir/drive.h>

/* In flight on each drive: where training keeps the cores busy, less leaves it idle between a
 * completion and the next piece, and more makes an urgent read wait behind more writes. */
#define WEIR_DRIVE_FLIGHT_BYTES (64u << 20)
#define WEIR_DRIVE_PIECE_BYTES  (2u << 20) /* unless a drive's rate says another */
#define WEIR_DRIVE_PIECE_MOST   (4u << 20)
#define WEIR_DRIVE_DEPTH_MOST   64u

struct weir_drives {
    char *text; /* the list, cut at its commas */
    const char *paths[WEIR_DRIVES_MOST];
    uint32_t count;
    struct weir_drive_rate rates[WEIR_DRIVES_MOST]; /* measured, or given with the costs */
};

/* From "DIR,DIR". ARG: an empty name, one directory twice, more than WEIR_DRIVES_MOST. */
enum weir_status weir_drives_open(struct weir_drives *drives, const char *list);
void weir_drives_close(struct weir_drives *drives);
/* Take the rates given for them; NULL: all alike. ARG: one is not positive. */
enum weir_status weir_drives_given(struct weir_drives *drives, const struct weir_drive_rate *rates);
/* Rates by which the tier's bytes are spread: what a drive moves of reads and writes by turns, so
 * that all are done with their parts at one time. */
void weir_drives_places(const struct weir_drives *drives, struct weir_extent_place *places);
/* Give each file of an open extent its depth and its piece; rates are in the extent's order. */
enum weir_status weir_drives_tune(struct weir_io *io, const struct weir_extent *extent,
                                  const struct weir_drive_rate *rates);

#endif
