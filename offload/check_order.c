#include "core/memory.h"
#include "offload/check_internal.h"
#include "offload/dump_internal.h"

/* Ops of each lane that are complete; READ and WRITE are counted in order. */
struct clock {
    uint32_t complete[WEIR_LANE_COUNT];
};

/* Who touched a cell last: the nth op (from 1) of a lane. */
struct mark {
    uint32_t writer_lane, writer;
    uint32_t readers[WEIR_LANE_COUNT];
    size_t op;     /* + 1: the last that touched it, */
    uint64_t item; /* and as which of its things */
};

struct order {
    struct weir_check *check;
    struct mark *marks[WEIR_TIER_COUNT];
    struct clock *done; /* [op]: complete whenever its lane's ops up to it are */
    uint32_t *lane_ops; /* op indices, lane by lane */
    size_t lane_first[WEIR_LANE_COUNT];
    struct clock begun[WEIR_LANE_COUNT]; /* complete whenever the lane's last op has begun */
    uint32_t count[WEIR_LANE_COUNT];
    size_t op;          /* the one being looked at, */
    uint32_t number;    /* its number in its lane, */
    struct clock clock; /* and what is complete when it begins */
};

static void clock_join(struct clock *clock, const struct clock *other)
{
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++)
        if (other->complete[l] > clock->complete[l])
            clock->complete[l] = other->complete[l];
}

static bool completes_in_order(enum weir_lane lane)
{
    return lane != WEIR_LANE_READ && lane != WEIR_LANE_WRITE;
}

/* Is the lane's nth op complete, or this op itself? */
static enum weir_status behind(struct order *o, uint32_t lane, uint32_t number, uint64_t at)
{
    const struct weir_op *op = &o->check->plan->ops[o->op];
    if (number <= o->clock.complete[lane] || (lane == op->lane && number == o->number))
        return WEIR_OK;
    return weir_check_fail(o->check, o->op,
                           "does not wait for op %u, which touches the same bytes "
                           "at %llu",
                           o->lane_ops[o->lane_first[lane] + number - 1], (unsigned long long)at);
}

static enum weir_status touch(struct order *o, const struct weir_check_range *range, uint64_t item,
                              bool write)
{
    const struct weir_check_tier *tier = &o->check->tiers[range->tier];
    enum weir_lane lane = o->check->plan->ops[o->op].lane;
    for (size_t i = range->first; i < range->end; i++) {
        struct mark *mark = &o->marks[range->tier][i];
        if (mark->op == o->op + 1 && mark->item != item)
            return weir_check_fail(o->check, o->op, "two of its things overlap at %llu",
                                   (unsigned long long)tier->at[i]);
        if (tier->fixed[i])
            return weir_check_fail(o->check, o->op, "touches mail at %llu",
                                   (unsigned long long)tier->at[i]);
        if (mark->writer > 0)
            WEIR_TRY(behind(o, mark->writer_lane, mark->writer, tier->at[i]));
        for (uint32_t l = 0; write && l < WEIR_LANE_COUNT; l++)
            if (mark->readers[l] > 0)
                WEIR_TRY(behind(o, l, mark->readers[l], tier->at[i]));
        if (write)
            *mark = (struct mark){.writer_lane = lane, .writer = o->number};
        else
            mark->readers[lane] = o->number;
        mark->op = o->op + 1;
        mark->item = item;
    }
    return WEIR_OK;
}

static enum weir_status stage_touch(struct order *o, uint32_t stage)
{
    const struct weir_check *check = o->check;
    for (uint32_t a = check->active_first[stage]; a < check->active_first[stage + 1]; a++) {
        uint32_t use = check->active[a];
        const struct weir_trace_use *u = &check->trace->uses[use];
        bool write = u->access == WEIR_NEW || u->access == WEIR_CHANGE || u->access == WEIR_WRITE;
        WEIR_TRY(touch(o, &check->use_bytes[use], (uint64_t)u->id * 4, write));
        WEIR_TRY(touch(o, &check->use_grads[use], (uint64_t)u->id * 4 + 1, true));
    }
    for (uint32_t i = check->scratch_first[stage]; i < check->scratch_first[stage + 1]; i++) {
        uint32_t s = check->scratch[i];
        WEIR_TRY(touch(o, &check->scratches[s], (uint64_t)s * 4 + 2, true));
    }
    return WEIR_OK;
}

static enum weir_status places_touch(struct order *o)
{
    const struct weir_op *op = &o->check->plan->ops[o->op];
    for (uint32_t p = 0; p < WEIR_OP_PLACES; p++) {
        bool transfer = op->kind <= WEIR_OP_D2H;
        bool write = transfer ? p == 1 : op->kind != WEIR_OP_UPDATE || p != 1;
        WEIR_TRY(touch(o, &o->check->ops[o->op * WEIR_OP_PLACES + p], p, write));
    }
    return WEIR_OK;
}

static enum weir_status waits_join(struct order *o)
{
    const struct weir_op *op = &o->check->plan->ops[o->op];
    bool seen[WEIR_LANE_COUNT] = {false};
    for (uint32_t w = 0; w < op->wait_count; w++) {
        struct weir_wait wait = op->waits[w];
        if (wait.lane >= WEIR_LANE_COUNT || seen[wait.lane])
            return weir_check_fail(o->check, o->op, "waits for lane %u twice or it does not exist",
                                   wait.lane);
        seen[wait.lane] = true;
        if (wait.count == 0 || wait.count > o->count[wait.lane])
            return weir_check_fail(o->check, o->op,
                                   "waits for %u ops of lane %s, but only %u come before it",
                                   wait.count, weir_lane_names[wait.lane], o->count[wait.lane]);
        clock_join(&o->clock, &o->done[o->lane_ops[o->lane_first[wait.lane] + wait.count - 1]]);
    }
    return WEIR_OK;
}

static enum weir_status op_order(struct order *o)
{
    const struct weir_op *op = &o->check->plan->ops[o->op];
    uint32_t before = o->count[op->lane];
    const struct clock *previous =
        before > 0 ? &o->done[o->lane_ops[o->lane_first[op->lane] + before - 1]] : NULL;
    o->number = before + 1;
    o->clock = o->begun[op->lane];
    if (previous && completes_in_order(op->lane))
        clock_join(&o->clock, previous);
    WEIR_TRY(waits_join(o));
    o->begun[op->lane] = o->clock;
    o->count[op->lane] = o->number;
    struct clock *done = &o->done[o->op];
    *done = o->clock;
    if (previous)
        clock_join(done, previous);
    done->complete[op->lane] = o->number;
    return op->kind == WEIR_OP_COMPUTE ? stage_touch(o, op->thing) : places_touch(o);
}

static enum weir_status order_open(struct order *o)
{
    const struct weir_plan *plan = o->check->plan;
    for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++)
        WEIR_TRY(weir_alloc(&o->marks[t], o->check->tiers[t].count, sizeof *o->marks[t],
                            "check: marks"));
    WEIR_TRY(weir_alloc(&o->done, plan->op_count, sizeof *o->done, "check: clocks"));
    WEIR_TRY(weir_alloc(&o->lane_ops, plan->op_count, sizeof *o->lane_ops, "check: lanes"));
    size_t count[WEIR_LANE_COUNT] = {0}, first = 0;
    for (size_t i = 0; i < plan->op_count; i++)
        count[plan->ops[i].lane]++;
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++) {
        o->lane_first[l] = first;
        first += count[l];
        count[l] = 0;
    }
    for (size_t i = 0; i < plan->op_count; i++) {
        enum weir_lane lane = plan->ops[i].lane;
        o->lane_ops[o->lane_first[lane] + count[lane]++] = (uint32_t)i;
    }
    return WEIR_OK;
}

enum weir_status weir_check_order(struct weir_check *check)
{
    struct order order = {.check = check};
    enum weir_status status = order_open(&order);
    for (; status == WEIR_OK && order.op < check->plan->op_count; order.op++)
        status = op_order(&order);
    for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++)
        weir_free(order.marks[t]);
    weir_free(order.done);
    weir_free(order.lane_ops);
    return status;
}
