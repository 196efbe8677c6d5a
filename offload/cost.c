/*
 * A discrete-event walk of a plan: one server a lane; read and write share the drive, on the host
 * device updates and reductions share the cores with compute, and a GPU's updates of host memory
 * share the link with what travels to the device.
 */
#include "offload/cost.h"
#include "core/memory.h"

#include <string.h>

struct walk {
    const struct weir_plan *plan;
    const struct weir_trace *trace;
    const struct weir_cost *cost;
    const bool *pending;
    uint32_t *order, first[WEIR_LANE_COUNT + 1]; /* op indices by lane */
    double *done;                                /* [order index]: when the lane's first n are */
    uint32_t next[WEIR_LANE_COUNT];
    double free_s[WEIR_LANE_COUNT];
    double server_s[WEIR_LANE_COUNT];  /* [server_of(lane)]: when its last op ends */
    double *compute, *arrive, *depart; /* [stage] seconds of compute, and of the drive */
    double *beside;                    /* [stage] seconds of what takes turns with compute */
};

static uint64_t op_bytes(const struct weir_op *op)
{
    if (op->kind == WEIR_OP_UPDATE)
        return op->places[0].bytes + op->places[1].bytes + op->places[2].bytes;
    return op->places[0].bytes;
}

static bool left_out(const struct walk *w, const struct weir_op *op)
{
    return op->pending_only && w->pending && !w->pending[op->thing];
}

static double op_seconds(const struct walk *w, const struct weir_op *op)
{
    const struct weir_cost *c = w->cost;
    if (left_out(w, op))
        return 0;
    double bytes = (double)op_bytes(op);
    switch (op->lane) {
    case WEIR_LANE_READ:
        return bytes / c->read_bytes_per_s;
    case WEIR_LANE_WRITE:
        return bytes / c->write_bytes_per_s;
    case WEIR_LANE_TO_DEVICE:
        return bytes / c->to_device_bytes_per_s;
    case WEIR_LANE_TO_HOST:
        return bytes / c->to_host_bytes_per_s;
    case WEIR_LANE_UPDATE:
        return bytes / (w->plan->choice.update_over_link ? c->link_update_bytes_per_s
                                                         : c->update_bytes_per_s);
    case WEIR_LANE_COLLECTIVE:
        return bytes / c->device_update_bytes_per_s;
    case WEIR_LANE_COMPUTE:
        return w->compute[op->thing];
    case WEIR_LANE_COUNT:
        break;
    }
    return 0;
}

static bool is_drive(uint32_t lane)
{
    return lane == WEIR_LANE_READ || lane == WEIR_LANE_WRITE;
}

/* Lanes that take turns have one server: the first of them. */
static uint32_t server_of(const struct walk *w, uint32_t lane)
{
    if (is_drive(lane))
        return WEIR_LANE_READ;
    if (w->cost->update_on_compute && (lane == WEIR_LANE_COLLECTIVE || lane == WEIR_LANE_COMPUTE))
        return WEIR_LANE_UPDATE;
    if (w->plan->choice.update_over_link && lane == WEIR_LANE_UPDATE)
        return WEIR_LANE_TO_DEVICE;
    return lane;
}

static const struct weir_op *lane_next(const struct walk *w, uint32_t lane)
{
    uint32_t at = w->first[lane] + w->next[lane];
    return at < w->first[lane + 1] ? &w->plan->ops[w->order[at]] : NULL;
}

/* When the lane's next op is ready, and when it can begin; false: some wait is not met yet. */
static bool begin_time(const struct walk *w, uint32_t lane, const struct weir_op *op, double *ready,
                       double *start)
{
    *ready = w->free_s[lane];
    for (uint32_t i = 0; i < op->wait_count; i++) {
        uint32_t on = op->waits[i].lane, count = op->waits[i].count;
        if (w->next[on] < count)
            return false;
        double met = w->done[w->first[on] + count - 1];
        *ready = met > *ready ? met : *ready;
    }
    double served = w->server_s[server_of(w, lane)];
    *start = served > *ready ? served : *ready;
    return true;
}

static void op_run(struct walk *w, uint32_t lane, const struct weir_op *op, double start,
                   struct weir_plan_cost *out)
{
    double seconds = op_seconds(w, op), end = start + seconds;
    w->free_s[lane] = w->server_s[server_of(w, lane)] = end;
    out->lane_busy_s[lane] += seconds;
    if (is_drive(lane)) {
        (op->arrives ? w->arrive : w->depart)[op->stage] += seconds;
        /* Latency is hidden from the lane by what is in flight behind it, not from its waiters. */
        end += seconds > 0 ? w->cost->latency_s : 0;
    }
    if (server_of(w, lane) == server_of(w, WEIR_LANE_COMPUTE) && lane != WEIR_LANE_COMPUTE)
        w->beside[op->stage] += seconds;
    uint32_t at = w->first[lane] + w->next[lane]++;
    double before = w->next[lane] > 1 ? w->done[at - 1] : 0;
    w->done[at] = end > before ? end : before;
    out->step_s = w->done[at] > out->step_s ? w->done[at] : out->step_s;
}

static enum weir_status walk_run(struct walk *w, struct weir_plan_cost *out)
{
    for (size_t n = 0; n < w->plan->op_count; n++) {
        uint32_t best = WEIR_LANE_COUNT;
        double best_start = 0, best_ready = 0;
        for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++) {
            const struct weir_op *op = lane_next(w, l);
            double ready, start;
            if (!op || !begin_time(w, l, op, &ready, &start))
                continue;
            /* Lanes that take turns are served in the order in which they became ready. */
            if (best == WEIR_LANE_COUNT || start < best_start ||
                (start <= best_start && ready < best_ready)) {
                best = l;
                best_start = start;
                best_ready = ready;
            }
        }
        if (best == WEIR_LANE_COUNT)
            return weir_fail(WEIR_ERR_CORRUPT, "plan \"%s\": its ops wait for each other",
                             w->plan->key);
        op_run(w, best, lane_next(w, best), best_start, out);
    }
    return WEIR_OK;
}

static void bytes_count(const struct walk *w, struct weir_plan_cost *out)
{
    for (size_t i = 0; i < w->plan->op_count; i++) {
        const struct weir_op *op = &w->plan->ops[i];
        if (left_out(w, op))
            continue;
        uint64_t bytes = op_bytes(op);
        switch (op->kind) {
        case WEIR_OP_READ:
            out->read_bytes += bytes;
            break;
        case WEIR_OP_WRITE:
            out->written_bytes += bytes;
            break;
        case WEIR_OP_H2D:
            out->to_device_bytes += bytes;
            break;
        case WEIR_OP_D2H:
            out->to_host_bytes += bytes;
            break;
        case WEIR_OP_UPDATE:
            out->update_bytes += bytes;
            break;
        default:
            break;
        }
    }
}

/* 4s: over stages s <= t, what arrives up to s, computes s..t and departs from t on; never less
 * than all IO or all compute. */
static void floor_find(const struct walk *w, struct weir_plan_cost *out)
{
    double in = 0, chain = 0, best = 0, departs = 0;
    for (uint32_t t = 0; t < w->plan->stage_count; t++) {
        departs += w->depart[t];
        out->io_s += w->arrive[t] + w->depart[t];
    }
    for (uint32_t t = 0; t < w->plan->stage_count; t++) {
        double compute = w->compute[t] + w->beside[t];
        out->compute_s += compute;
        in += w->arrive[t];
        chain = (chain > in ? chain : in) + compute;
        best = chain + departs > best ? chain + departs : best;
        departs -= w->depart[t];
    }
    out->floor_s = best > out->io_s ? best : out->io_s;
}

/* A stage's own work, and what it must do again because the plan refused to keep it. */
static void compute_find(struct walk *w)
{
    for (uint32_t t = 0; t < w->plan->stage_count; t++)
        w->compute[t] = w->trace->stage_flops[t] / w->cost->compute_flops_per_s;
    for (size_t i = 0; i < w->plan->use_count; i++)
        if (w->plan->uses[i].refused)
            w->compute[w->trace->uses[i].stage_first] +=
                w->trace->uses[i].recompute_flops / w->cost->compute_flops_per_s;
}

static enum weir_status walk_open(struct walk *w)
{
    const struct weir_plan *plan = w->plan;
    WEIR_TRY(weir_alloc(&w->order, plan->op_count, sizeof *w->order, "simulation"));
    WEIR_TRY(weir_alloc(&w->done, plan->op_count, sizeof *w->done, "simulation"));
    WEIR_TRY(weir_alloc(&w->compute, plan->stage_count, sizeof *w->compute, "simulation"));
    WEIR_TRY(weir_alloc(&w->beside, plan->stage_count, sizeof *w->beside, "simulation"));
    WEIR_TRY(weir_alloc(&w->arrive, plan->stage_count, sizeof *w->arrive, "simulation"));
    WEIR_TRY(weir_alloc(&w->depart, plan->stage_count, sizeof *w->depart, "simulation"));
    for (size_t i = 0; i < plan->op_count; i++)
        w->first[plan->ops[i].lane + 1]++;
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++)
        w->first[l + 1] += w->first[l];
    uint32_t next[WEIR_LANE_COUNT];
    memcpy(next, w->first, sizeof next);
    for (size_t i = 0; i < plan->op_count; i++)
        w->order[next[plan->ops[i].lane]++] = (uint32_t)i;
    compute_find(w);
    return WEIR_OK;
}

enum weir_status weir_plan_cost(const struct weir_plan *plan, const struct weir_trace *trace,
                                const struct weir_cost *cost, const bool *pending,
                                struct weir_plan_cost *out)
{
    *out = (struct weir_plan_cost){0};
    struct walk w = {.plan = plan, .trace = trace, .cost = cost, .pending = pending};
    enum weir_status status = walk_open(&w);
    if (status == WEIR_OK)
        status = walk_run(&w, out);
    if (status == WEIR_OK) {
        bytes_count(&w, out);
        floor_find(&w, out);
    }
    weir_free(w.order);
    weir_free(w.done);
    weir_free(w.compute);
    weir_free(w.beside);
    weir_free(w.arrive);
    weir_free(w.depart);
    return status;
}
