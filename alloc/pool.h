/*
 * A hard byte budget of one tier, and the slabs taken from it.
 *
 * A pool knows who holds how many bytes. Slabs are made through the device table (device memory or
 * pinned host memory), or lent by the caller; bytes that live elsewhere (trace, plan, tables) are
 * charged without being allocated here. A request beyond the budget is WEIR_ERR_NOMEM:
 *   pool "device": need 3221225472 bytes for "transients", 1073741824 of 8589934592 free; largest
 *   holders: weights 5368709120, scratch 2147483648; lower the micro-batch or raise device_bytes
 */
#ifndef WEIR_ALLOC_POOL_H
#define WEIR_ALLOC_POOL_H

#include "core/device.h"
#include "core/status.h"

struct weir_pool;

enum weir_pool_kind { WEIR_POOL_DEVICE, WEIR_POOL_HOST };

/* remedy: the end of the out-of-budget text ("lower the micro-batch or raise device_bytes").
 * name and remedy are copied. budget_bytes UINT64_MAX: no bound. */
enum weir_status weir_pool_open(struct weir_pool **out, struct weir_device *device,
                                enum weir_pool_kind kind, const char *name, uint64_t budget_bytes,
                                const char *remedy);
/* Frees every slab it made; lent ones go back untouched. NULL is fine. */
enum weir_status weir_pool_close(struct weir_pool *pool);

/* The pool uses memory[0..bytes) before it makes a slab of its own; for host pools it is pinned.
 * pre: no slab was taken yet; memory 4096-aligned; bytes <= budget */
enum weir_status weir_pool_lend(struct weir_pool *pool, void *memory, uint64_t bytes);

/* A slab of exactly `bytes` held by `holder`, 4096-aligned (2 MiB where the pool makes it). */
enum weir_status weir_pool_take(struct weir_pool *pool, const char *holder, uint64_t bytes,
                                void **out);
enum weir_status weir_pool_give(struct weir_pool *pool, void *slab);
/* Count bytes that live elsewhere; bytes may be negative to give them back. */
enum weir_status weir_pool_charge(struct weir_pool *pool, const char *holder, int64_t bytes);

uint64_t weir_pool_used_bytes(const struct weir_pool *pool);
uint64_t weir_pool_peak_bytes(const struct weir_pool *pool);
uint64_t weir_pool_budget_bytes(const struct weir_pool *pool);
/* Debug: whole-object invariants (sums agree, no overlap); WEIR_ERR_CORRUPT if not. */
enum weir_status weir_pool_check(const struct weir_pool *pool);

#endif
