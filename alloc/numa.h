/*
 * Where host memory and the threads that move bytes belong: on the NUMA node nearest the device.
 *
 *     weir_numa_open(&numa, WEIR_NUMA_NOWHERE, log);  // chooses a node and says so in one line
 *     weir_numa_enter(&numa);
 *     ...                                             // make slabs, start threads
 *     weir_numa_leave(&numa);
 *
 * Linux hands both choices down: a page lies where the thread that touches it first prefers it, and
 * a thread begins with the CPUs and the preference of the one that made it. So what makes memory
 * and threads need not know of nodes. The node is preferred: when it is full, others serve. With
 * one node nothing is bound. Compute threads stay on all CPUs: placement changes no team, so no
 * bit.
 */
#ifndef WEIR_ALLOC_NUMA_H
#define WEIR_ALLOC_NUMA_H

#include "core/status.h"
#include <sched.h>

#define WEIR_NUMA_NODES   64
#define WEIR_NUMA_NOWHERE (-1)

/* What the choice depends on, by node. CPUs and memory are those that this process may use; a node
 * that is not there has neither. */
struct weir_numa_map {
    int node_count;
    cpu_set_t cpus[WEIR_NUMA_NODES];
    bool memory[WEIR_NUMA_NODES];
    int distances[WEIR_NUMA_NODES][WEIR_NUMA_NODES];
};

/* The node with CPUs and memory that is nearest device_node. Of several, or if device_node is
 * NOWHERE (the device is the host), the one with the most CPUs; of several, the first. */
int weir_numa_choose(const struct weir_numa_map *map, int device_node);

struct weir_numa {
    bool bound; /* false: enter and leave do nothing */
    int node;
    cpu_set_t cpus;
    struct weir_log *log;
    /* what the thread had before enter */
    cpu_set_t thread_cpus;
    int thread_policy;
    unsigned long thread_nodes[16];
};

/* log is borrowed until the last leave. */
void weir_numa_open(struct weir_numa *numa, int device_node, struct weir_log *log);
/* The same on a given map. */
void weir_numa_open_on(struct weir_numa *numa, const struct weir_numa_map *map, int device_node,
                       struct weir_log *log);
/* For threads made elsewhere; NULL: anywhere. */
const cpu_set_t *weir_numa_cpus(const struct weir_numa *numa);
/* Place the calling thread, what it touches first and the threads that it makes. A kernel that
 * refuses is logged, and nothing more is placed from then on. */
void weir_numa_enter(struct weir_numa *numa);
void weir_numa_leave(struct weir_numa *numa);

#endif
