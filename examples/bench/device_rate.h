/*
 * device_rate's cases: each makes its memory, measures some rows and gives the memory back.
 *
 *   rate.seconds = 0.3;
 *   WEIR_TRY(rate_memory(rate, bytes, &memory));
 *   WEIR_TRY(rate_measure(rate, &(struct rate_work){.name = "copy_on_device", .run = copy, ...}));
 *
 * A case that does not fit into memory ends with WEIR_ERR_NOMEM and is left out by name.
 */
#ifndef WEIR_EXAMPLES_BENCH_DEVICE_RATE_H
#define WEIR_EXAMPLES_BENCH_DEVICE_RATE_H

#include "alloc/numa.h"
#include "kernels/kernels.h"

#include <jansson.h>

#define RATE_PIECES 16 /* of memory, at a time */

struct rate {
    const struct weir_device_table *table;
    struct weir_device *device;
    struct weir_numa numa; /* host memory lies near the device, as a run's does */
    struct weir_stream *compute, *to_device, *to_host;
    const struct weir_kernels_table *math;
    struct weir_kernels *kernels;
    int thread_count;
    double seconds;   /* of measuring, a row */
    bool tiny;        /* shapes for a simulated GPU */
    const char *only; /* comma-separated names; NULL: all */
    uint64_t host_bytes, host_used_bytes;
    void *values; /* pinned: normal, deviation 1, in bf16; as floats they are ordinary too */
    uint64_t values_bytes;
    void *memory[RATE_PIECES], *pinned[RATE_PIECES];
    uint32_t memory_count, pinned_count;
    json_t *rows, *left_out;
};

/* One row: `run` queues one call's work, which moves `amount` bytes or does as many operations. */
struct rate_work {
    const char *name;
    char shape[48];
    const char *dtype; /* NULL: none */
    bool flops;        /* amount are operations, not bytes */
    double amount, parameters;
    enum weir_status (*run)(struct rate *rate, void *context);
    void *context;
};

bool rate_wanted(const struct rate *rate, const char *name);
enum weir_status rate_measure(struct rate *rate, const struct rate_work *work);
enum weir_status rate_sync(struct rate *rate);

/* Memory until the case ends: of the device, holding ordinary numbers or zeros; pinned, zeros. */
enum weir_status rate_memory(struct rate *rate, uint64_t bytes, bool zero, void **out);
enum weir_status rate_pinned(struct rate *rate, uint64_t bytes, void **out);

enum weir_status rate_copies(struct rate *rate);
enum weir_status rate_gemms(struct rate *rate);
enum weir_status rate_attention(struct rate *rate);
enum weir_status rate_adam(struct rate *rate);
enum weir_status rate_rows(struct rate *rate);
enum weir_status rate_head(struct rate *rate);
enum weir_status rate_embed(struct rate *rate);

/* After each group of a case: its memory is given back; what did not fit is noted, not an error. */
enum weir_status rate_case_end(struct rate *rate, const char *name, enum weir_status status);

static inline uint64_t rate_act_bytes(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? 2 : 4;
}
static inline const char *rate_dtype_name(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? "bf16" : "fp32";
}

#endif
