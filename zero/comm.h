/*
 * The comm table: collectives over ranks. Instances: single (one rank: every collective is the
 * identity). Counts are elements; buffers are host memory. One thread at a time calls; every rank
 * makes the same calls in the same order. A failure is WEIR_ERR_COMM and ends the communicator.
 */
#ifndef WEIR_ZERO_COMM_H
#define WEIR_ZERO_COMM_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>

struct weir_comm;

enum weir_reduction { WEIR_REDUCE_SUM, WEIR_REDUCE_MAX };

struct weir_comm_table {
    const char *name;
    enum weir_status (*open)(struct weir_comm **out);
    void (*close)(struct weir_comm *comm);
    uint32_t (*rank)(const struct weir_comm *comm);
    uint32_t (*rank_count)(const struct weir_comm *comm);
    /* all[r * count ..] = rank r's mine[0 .. count); mine may be its own part of all */
    enum weir_status (*all_gather)(struct weir_comm *comm, const double *mine, size_t count,
                                   double *all);
    /* mine[i] = reduction over ranks of all[rank * count + i], in rank order */
    enum weir_status (*reduce_scatter)(struct weir_comm *comm, const double *all, size_t count,
                                       enum weir_reduction reduction, double *mine);
    enum weir_status (*all_reduce)(struct weir_comm *comm, double *values, size_t count,
                                   enum weir_reduction reduction);
    enum weir_status (*broadcast)(struct weir_comm *comm, void *bytes, size_t byte_count,
                                  uint32_t root);
    enum weir_status (*barrier)(struct weir_comm *comm);
    void (*abort)(struct weir_comm *comm); /* make the others' next call fail */
};

/* The first member of every instance's struct. */
struct weir_comm {
    const struct weir_comm_table *table;
};

enum weir_status weir_comm_find(const char *name, const struct weir_comm_table **out);

#endif
