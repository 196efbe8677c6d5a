/*
 * Places spans of known lifetime and size at offsets so that no two that live at once overlap.
 * Touches no memory and knows no budget: the caller asks for a height and says what is enough.
 * Purely a function of its input.
 */
#ifndef WEIR_ALLOC_ARENA_H
#define WEIR_ALLOC_ARENA_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>

struct weir_span {
    uint32_t start, end; /* lives in [start, end); start < end */
    uint64_t bytes;      /* > 0, a multiple of WEIR_ARENA_ALIGN_BYTES */
    uint64_t offset;     /* out */
};
#define WEIR_ARENA_ALIGN_BYTES 4096

/*
 * First fit in a few orders; where the best of them is not far above `enough`, whoever sticks out
 * goes first and all is placed again, until the height is at most `enough` or the tries are used
 * up. The best placement found is written to spans[].offset and its height to *height.
 *
 * returns: WEIR_ERR_NOMEM  heap memory for the work
 */
enum weir_status weir_arena_place(struct weir_span *spans, size_t span_count, uint64_t enough,
                                  uint64_t *height);

#endif
