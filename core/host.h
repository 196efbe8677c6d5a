/*
 * The host instance of the device table (contract: core/device.h), and its fault for tests.
 */
#ifndef WEIR_CORE_HOST_H
#define WEIR_CORE_HOST_H

#include "core/device.h"

extern const struct weir_device_table weir_host_table;

/* Tests: the nth copy, fill or call that begins from now (1 = the next) fails with
 * WEIR_ERR_DEVICE; 0 turns it off. */
void weir_host_fail_at(struct weir_device *device, uint64_t nth);

#endif
