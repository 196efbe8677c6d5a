/*
 * The homes outside steps: one window at a time, in pinned host memory.
 *
 *     weir_home_fetch(home, block, window, WEIR_PARTS_ALL, &at);
 *     ... change at.part[WEIR_PART_STATE] ...
 *     weir_home_store(home, block, window, 1u << WEIR_PART_STATE, &at);
 *
 * A part whose home is in host memory is handed out in place; others are copied to a buffer that
 * holds one window, so a fetched window is valid until the next fetch.
 */
#ifndef WEIR_OFFLOAD_HOME_H
#define WEIR_OFFLOAD_HOME_H

#include "offload/replay.h"

struct weir_home {
    const struct weir_model *model;
    const struct weir_homes *homes;
    struct weir_replay *replay;
    uint32_t extent_file;
    void *slabs[2];             /* by enum weir_tier */
    void *buffer;               /* weir_home_buffer_bytes, pinned */
    struct weir_stream *stream; /* idle between calls */
};

#define WEIR_PARTS_ALL (1u << WEIR_PART_WEIGHT | 1u << WEIR_PART_GRAD | 1u << WEIR_PART_STATE)

struct weir_window_bytes {
    void *part[3]; /* by enum weir_part; NULL: not asked for, or a frozen window has none */
};

/* Bytes of the largest window's parts together. */
uint64_t weir_home_buffer_bytes(const struct weir_model *model);
enum weir_status weir_home_fetch(struct weir_home *home, uint32_t block, uint32_t window,
                                 uint32_t parts, struct weir_window_bytes *out);
enum weir_status weir_home_store(struct weir_home *home, uint32_t block, uint32_t window,
                                 uint32_t parts, const struct weir_window_bytes *bytes);

#endif
