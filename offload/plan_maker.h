/*
 * Pass 4 of the planner in the making: shared by plan_moves.c (what one arrival or departure is
 * made of) and plan_ops.c (their order).
 */
#ifndef WEIR_OFFLOAD_PLAN_MAKER_H
#define WEIR_OFFLOAD_PLAN_MAKER_H

#include "offload/plan_internal.h"

/* Something that must be there before a stage. */
struct weir_coming {
    uint32_t a, start; /* first stage that uses it; the stage from which its slot is its own */
    bool kept;
    uint32_t id;
    uint32_t stay;        /* UINT32_MAX: only the update, nothing goes to the device */
    uint32_t before;      /* stay that left it waiting; UINT32_MAX: comes from its home */
    bool update_in_place; /* carries the pending update of windows whose weight is not on NVMe */
    bool update_in_ring;  /* of windows whose weight passes through the ring */
};

struct weir_maker {
    struct weir_draft *d;
    struct weir_plan *plan;
    struct weir_board *board;
    struct weir_coming *coming;
    size_t coming_count;
    uint32_t *going; /* stays sorted by b */
    size_t going_count;
    uint32_t *homes; /* items that live on the device */
    size_t home_count;
    uint64_t ring_head;
    uint32_t *stage_first; /* [stage + 1]: into stage_touch */
    struct weir_touch *stage_touch;
};

/* plan_moves.c */
enum weir_status weir_maker_op_add(struct weir_maker *maker, struct weir_op op,
                                   const struct weir_touch *touches, size_t count);
/* A weight with what it carries, or only its update. */
enum weir_status weir_maker_block_arrive(struct weir_maker *maker,
                                         const struct weir_coming *coming);
/* What waited off the device. */
enum weir_status weir_maker_waiting_arrive(struct weir_maker *maker,
                                           const struct weir_coming *coming);
enum weir_status weir_maker_depart(struct weir_maker *maker, uint32_t stay);
/* What ends with a stage and lives on the device. */
enum weir_status weir_maker_homes_depart(struct weir_maker *maker, uint32_t stage);

#endif
