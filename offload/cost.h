/*
 * What a plan costs: bytes of each link, seconds by a discrete-event walk (one server a lane; read
 * and write share the drive, on the host device updates share the cores with compute), and the
 * floor of the schedule (DESIGN 4s).
 */
#ifndef WEIR_OFFLOAD_COST_H
#define WEIR_OFFLOAD_COST_H

#include "offload/plan.h"

struct weir_plan_cost {
    uint64_t read_bytes, written_bytes, to_device_bytes, to_host_bytes, update_bytes;
    double step_s; /* simulated */
    double lane_busy_s[WEIR_LANE_COUNT];
    double floor_s; /* 4s, with ramps */
    double compute_s, io_s;
};

/* pending: [thing_count], or NULL: all trained blocks pending. */
enum weir_status weir_plan_cost(const struct weir_plan *plan, const struct weir_trace *trace,
                                const struct weir_cost *cost, const bool *pending,
                                struct weir_plan_cost *out);

#endif
