/* One rank: every collective is the identity. */
#include "core/memory.h"
#include "zero/comm.h"

#include <string.h>

struct single {
    struct weir_comm base;
    bool aborted;
};

static enum weir_status alive(const struct weir_comm *comm)
{
    if (((const struct single *)comm)->aborted)
        return weir_fail(WEIR_ERR_COMM, "communicator \"single\": it was aborted; open a new run");
    return WEIR_OK;
}

static const struct weir_comm_table single_table;

static enum weir_status single_open(struct weir_comm **out)
{
    struct single *single;
    WEIR_TRY(weir_alloc(&single, 1, sizeof *single, "communicator"));
    single->base.table = &single_table;
    *out = &single->base;
    return WEIR_OK;
}

static void single_close(struct weir_comm *comm)
{
    weir_free(comm);
}

static uint32_t single_rank(const struct weir_comm *comm)
{
    (void)comm;
    return 0;
}

static uint32_t single_rank_count(const struct weir_comm *comm)
{
    (void)comm;
    return 1;
}

static enum weir_status single_all_gather(struct weir_comm *comm, const double *mine, size_t count,
                                          double *all)
{
    WEIR_TRY(alive(comm));
    if (mine != all)
        memcpy(all, mine, count * sizeof *all);
    return WEIR_OK;
}

static enum weir_status single_reduce_scatter(struct weir_comm *comm, const double *all,
                                              size_t count, enum weir_reduction reduction,
                                              double *mine)
{
    (void)reduction;
    return single_all_gather(comm, all, count, mine);
}

static enum weir_status single_all_reduce(struct weir_comm *comm, double *values, size_t count,
                                          enum weir_reduction reduction)
{
    (void)values, (void)count, (void)reduction;
    return alive(comm);
}

static enum weir_status single_broadcast(struct weir_comm *comm, void *bytes, size_t byte_count,
                                         uint32_t root)
{
    (void)bytes, (void)byte_count;
    if (root != 0)
        return weir_fail(WEIR_ERR_ARG, "broadcast: root %u of 1 rank", root);
    return alive(comm);
}

static enum weir_status single_barrier(struct weir_comm *comm)
{
    return alive(comm);
}

static void single_abort(struct weir_comm *comm)
{
    ((struct single *)comm)->aborted = true;
}

static const struct weir_comm_table single_table = {
    .name = "single",
    .open = single_open,
    .close = single_close,
    .rank = single_rank,
    .rank_count = single_rank_count,
    .all_gather = single_all_gather,
    .reduce_scatter = single_reduce_scatter,
    .all_reduce = single_all_reduce,
    .broadcast = single_broadcast,
    .barrier = single_barrier,
    .abort = single_abort,
};

static const struct weir_comm_table *const instances[] = {&single_table};

enum weir_status weir_comm_find(const char *name, const struct weir_comm_table **out)
{
    for (size_t i = 0; i < sizeof instances / sizeof *instances; i++)
        if (strcmp(instances[i]->name, name) == 0) {
            *out = instances[i];
            return WEIR_OK;
        }
    return weir_fail(WEIR_ERR_UNSUPPORTED, "communicator \"%s\": not built; there is: single",
                     name);
}
