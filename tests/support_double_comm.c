/* The communicator "single", opened as it is but for its table, which this keeps. */
#include "tests/support_double.h"

static const struct weir_comm_table *single;

static enum weir_status turn(const char *call)
{
    if (!test_fault_turn(TEST_FAULT_COMM))
        return WEIR_OK;
    return weir_fail(WEIR_ERR_COMM, "communicator \"double\": %s failed", call);
}

static enum weir_status double_open(struct weir_comm **out)
{
    WEIR_TRY(turn("open"));
    WEIR_TRY(weir_comm_find("single", &single));
    WEIR_TRY(single->open(out));
    (*out)->table = &test_double_comm;
    return WEIR_OK;
}

static void double_close(struct weir_comm *comm)
{
    single->close(comm);
}

static uint32_t double_rank(const struct weir_comm *comm)
{
    return single->rank(comm);
}

static uint32_t double_rank_count(const struct weir_comm *comm)
{
    return single->rank_count(comm);
}

#define DOUBLE(name, parameters, arguments)                                                        \
    static enum weir_status double_##name parameters                                               \
    {                                                                                              \
        WEIR_TRY(turn(#name));                                                                     \
        return single->name arguments;                                                             \
    }
DOUBLE(all_gather, (struct weir_comm * comm, const double *mine, size_t count, double *all),
       (comm, mine, count, all))
DOUBLE(reduce_scatter,
       (struct weir_comm * comm, const double *all, size_t count, enum weir_reduction reduction,
        double *mine),
       (comm, all, count, reduction, mine))
DOUBLE(all_reduce,
       (struct weir_comm * comm, double *values, size_t count, enum weir_reduction reduction),
       (comm, values, count, reduction))
DOUBLE(broadcast, (struct weir_comm * comm, void *bytes, size_t byte_count, uint32_t root),
       (comm, bytes, byte_count, root))
DOUBLE(barrier, (struct weir_comm * comm), (comm))

static void double_abort(struct weir_comm *comm)
{
    single->abort(comm);
}

const struct weir_comm_table test_double_comm = {
    .name = "single",
    .open = double_open,
    .close = double_close,
    .rank = double_rank,
    .rank_count = double_rank_count,
    .all_gather = double_all_gather,
    .reduce_scatter = double_reduce_scatter,
    .all_reduce = double_all_reduce,
    .broadcast = double_broadcast,
    .barrier = double_barrier,
    .abort = double_abort,
};
