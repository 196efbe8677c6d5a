#include "alloc/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORD_BITS (8 * sizeof(unsigned long))
#define MASK_BITS (8 * sizeof((struct weir_numa *)NULL)->thread_nodes)

/* ---- the choice */

static bool better(const struct weir_numa_map *map, int device_node, int node, int than)
{
    if (device_node >= 0) {
        const int *distances = map->distances[device_node];
        if (distances[node] != distances[than])
            return distances[node] < distances[than];
    }
    return CPU_COUNT(&map->cpus[node]) > CPU_COUNT(&map->cpus[than]);
}

int weir_numa_choose(const struct weir_numa_map *map, int device_node)
{
    int best = WEIR_NUMA_NOWHERE;
    for (int node = 0; node < map->node_count; node++)
        if (CPU_COUNT(&map->cpus[node]) > 0 && map->memory[node] &&
            (best < 0 || better(map, device_node, node, best)))
            best = node;
    return best;
}

/* ---- what this machine has */

#ifdef WEIR_NUMA
#include <numa.h>

static void node_cpus(int node, const cpu_set_t *allowed, struct bitmask *mask, cpu_set_t *out)
{
    if (numa_node_to_cpus(node, mask) != 0)
        return;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && numa_bitmask_isbitset(mask, cpu))
            CPU_SET(cpu, out);
}

/* NULL, or why nothing is known. */
static const char *map_read(struct weir_numa_map *map)
{
    cpu_set_t allowed;
    if (numa_available() < 0)
        return "the kernel knows no nodes";
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return "more CPUs than a cpu_set_t holds";
    struct bitmask *memory = numa_get_mems_allowed(), *mask = numa_allocate_cpumask();
    int count = numa_max_node() + 1;
    map->node_count = count < WEIR_NUMA_NODES ? count : WEIR_NUMA_NODES;
    for (int node = 0; node < map->node_count; node++) {
        if (!numa_bitmask_isbitset(numa_nodes_ptr, (unsigned)node))
            continue;
        node_cpus(node, &allowed, mask, &map->cpus[node]);
        map->memory[node] = numa_bitmask_isbitset(memory, (unsigned)node);
        for (int other = 0; other < map->node_count; other++)
            map->distances[node][other] = numa_distance(node, other);
    }
    numa_bitmask_free(mask);
    numa_bitmask_free(memory);
    return NULL;
}
#else
static const char *map_read(struct weir_numa_map *map)
{
    (void)map;
    return "built without libnuma";
}
#endif

static int nodes_usable(const struct weir_numa_map *map)
{
    int count = 0;
    for (int node = 0; node < map->node_count; node++)
        count += map->memory[node] || CPU_COUNT(&map->cpus[node]) > 0;
    return count;
}

void weir_numa_open_on(struct weir_numa *numa, const struct weir_numa_map *map, int device_node,
                       struct weir_log *log)
{
    int count = nodes_usable(map), node = weir_numa_choose(map, device_node);
    *numa = (struct weir_numa){.bound = count > 1 && node >= 0, .node = node, .log = log};
    if (!numa->bound) {
        weir_log(log, WEIR_LOG_INFO, "numa: %d node%s, nothing to bind", count,
                 count == 1 ? "" : "s");
        return;
    }
    numa->cpus = map->cpus[node];
    weir_log(log, WEIR_LOG_INFO,
             "numa: %d nodes, host memory and its threads on node %d with %d CPUs", count, node,
             CPU_COUNT(&numa->cpus));
}

void weir_numa_open(struct weir_numa *numa, int device_node, struct weir_log *log)
{
    struct weir_numa_map map = {.node_count = 0};
    const char *reason = map_read(&map);
    if (reason == NULL) {
        weir_numa_open_on(numa, &map, device_node, log);
        return;
    }
    *numa = (struct weir_numa){.node = WEIR_NUMA_NOWHERE};
    weir_log(log, WEIR_LOG_INFO, "numa: %s, nothing to bind", reason);
}

const cpu_set_t *weir_numa_cpus(const struct weir_numa *numa)
{
    return numa->bound ? &numa->cpus : NULL;
}

/* ---- the calling thread */

static bool thread_place(struct weir_numa *numa)
{
    unsigned long nodes[MASK_BITS / WORD_BITS] = {0};
    nodes[(size_t)numa->node / WORD_BITS] = 1ul << (size_t)numa->node % WORD_BITS;
    if (sched_getaffinity(0, sizeof numa->thread_cpus, &numa->thread_cpus) != 0 ||
        syscall(SYS_get_mempolicy, &numa->thread_policy, numa->thread_nodes, MASK_BITS, 0L, 0L) !=
            0)
        return false;
    if (sched_setaffinity(0, sizeof numa->cpus, &numa->cpus) != 0)
        return false;
    if (syscall(SYS_set_mempolicy, (long)MPOL_PREFERRED, nodes, MASK_BITS) == 0)
        return true;
    int os_errno = errno;
    sched_setaffinity(0, sizeof numa->thread_cpus, &numa->thread_cpus);
    errno = os_errno;
    return false;
}

void weir_numa_enter(struct weir_numa *numa)
{
    if (!numa->bound || thread_place(numa))
        return;
    weir_log(
        numa->log, WEIR_LOG_WARNING,
        "numa: cannot place memory and threads on node %d (errno %d), transfers may be slower; "
        "a container needs CAP_SYS_NICE for it",
        numa->node, errno);
    numa->bound = false;
}

void weir_numa_leave(struct weir_numa *numa)
{
    if (!numa->bound)
        return;
    long policy = numa->thread_policy;
    bool whole = syscall(SYS_set_mempolicy, policy, numa->thread_nodes, MASK_BITS) == 0;
    whole &= sched_setaffinity(0, sizeof numa->thread_cpus, &numa->thread_cpus) == 0;
    if (!whole)
        weir_log(numa->log, WEIR_LOG_WARNING,
                 "numa: the calling thread stays on node %d (errno %d); it was taken from the CPUs "
                 "that it had meanwhile",
                 numa->node, errno);
}
