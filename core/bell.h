/*
 * A doorbell: a sleeper reads it, looks for work, sleeps unless it rang meanwhile. It gives callers
 * no order that ThreadSanitizer could see (core/tsan.h).
 */
#ifndef WEIR_CORE_BELL_H
#define WEIR_CORE_BELL_H

#include "core/tsan.h"

#include <stdint.h>

struct weir_bell {
    _Atomic uint32_t value; /* rings * 2; the lowest bit: somebody sleeps */
};
uint32_t weir_bell_read(struct weir_bell *bell);
void weir_bell_ring(struct weir_bell *bell);
void weir_bell_sleep(struct weir_bell *bell, uint32_t seen);
/* No longer than that; UINT64_MAX: as the above. */
void weir_bell_sleep_for(struct weir_bell *bell, uint32_t seen, uint64_t most_ns);

#endif
