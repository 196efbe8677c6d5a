/*
 * Bytes of device memory against their bound: every device instance counts them the same way. Any
 * thread may call take, give and info.
 */
#ifndef WEIR_CORE_CHARGE_H
#define WEIR_CORE_CHARGE_H

#include "core/device.h"

#include <pthread.h>

struct weir_charge {
    pthread_mutex_t lock;
    const char *device; /* its name */
    uint64_t bound_bytes, used_bytes, peak_bytes;
};
void weir_charge_open(struct weir_charge *charge, const char *device, uint64_t bound_bytes);
void weir_charge_close(struct weir_charge *charge);
/* WEIR_ERR_NOMEM names what is needed and free; nothing is counted then. */
enum weir_status weir_charge_take(struct weir_charge *charge, uint64_t bytes) WEIR_MUST_CHECK;
void weir_charge_give(struct weir_charge *charge, uint64_t bytes);
/* Into memory_used_bytes and memory_peak_bytes. */
void weir_charge_info(struct weir_charge *charge, struct weir_device_info *out);

#endif
