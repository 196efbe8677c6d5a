/*
 * Between the passes of the planner: uses -> residency -> places -> ops (DESIGN 4u to 4z).
 */
#ifndef WEIR_OFFLOAD_PLAN_INTERNAL_H
#define WEIR_OFFLOAD_PLAN_INTERNAL_H

#include "offload/plan.h"

#define WEIR_PAGE 4096u

enum weir_item_kind { WEIR_ITEM_WEIGHT, WEIR_ITEM_GRAD, WEIR_ITEM_KEPT, WEIR_ITEM_SCRATCH };

/* Stages [start, end) in which an item must be on the device; overlapping uses are one. */
struct weir_item_use {
    uint32_t start, end;
    bool dirty;     /* what lies on the device is newer than any copy */
    bool written;   /* weight: WEIR_WRITE */
    bool grad_last; /* the gradient is complete after it */
};
/* All that the planner sees of a weight, a gradient, one life of a kept tensor, a scratch. */
struct weir_item {
    enum weir_item_kind kind;
    uint32_t id, life; /* scratch: its ordinal */
    uint64_t bytes;
    uint32_t first_use, use_count; /* in draft.uses */
    bool optional, refused;
    double recompute_flops;          /* optional: what refusing it costs */
    bool home;                       /* lives on the device for good: has no stays */
    uint32_t first_stay, stay_count; /* in draft.stays, once sorted */
};
/* Consecutive uses between which an item stays on the device: a slot over stages [start, end). */
struct weir_stay {
    uint32_t item;
    uint32_t first_use, last_use; /* of the item's */
    uint32_t a, b;                /* first stage used, stage after the last one used */
    uint32_t start, end;          /* with margins */
    uint64_t offset;
    bool gone;              /* joined to an earlier one, or refused */
    struct weir_place wait; /* where its bytes wait after it; bytes 0: nowhere */
};
/* Bytes waiting off the device from one stay to the next. */
struct weir_wait_span {
    uint32_t start, end;
    uint64_t bytes, offset;
    uint32_t first_stay, stay_count; /* of the item's stays: the ones that share this copy */
    uint32_t item;
    bool on_host;
};

/* A budget does not hold it: NOMEM that another choice may avoid, unlike the heap's. */
#define weir_fail_budget(over_budget, ...)                                                         \
    (*(over_budget) = true, weir_fail(WEIR_ERR_NOMEM, __VA_ARGS__))

/* A plan in the making. */
struct weir_draft {
    const struct weir_model *model;
    const struct weir_trace *trace;
    const struct weir_homes *homes; /* ops: where everything lives */
    const bool *device_home;        /* [thing] */
    struct weir_plan_choice choice;
    bool nvme;
    bool *over_budget; /* out, see weir_fail_budget */
    uint32_t stage_count;
    struct weir_item *items;
    size_t item_count, item_capacity;
    struct weir_item_use *uses;
    size_t use_count, use_capacity;
    uint32_t *weight_item, *grad_item; /* [thing]; UINT32_MAX: none */
    uint32_t *use_item;                /* [trace use]: kept item */
    struct weir_stay *stays;
    size_t stay_count;
    struct weir_wait_span *spans;
    size_t span_count;
    uint64_t optional_bytes[WEIR_TIER_COUNT]; /* that wait in each tier */
    uint64_t least_bytes, least_stage;        /* most that is wanted at once */
    uint64_t peak_bytes;
    uint64_t device_height, mail_bytes, wait_host_bytes, wait_nvme_bytes;
    uint64_t refused_bytes;
};

/* plan_uses.c */
enum weir_status weir_draft_open(struct weir_draft *draft, const struct weir_model *model,
                                 const struct weir_trace *trace, const bool *device_home);
void weir_draft_close(struct weir_draft *draft);

/* plan_residency.c: stays under device_bytes, waits under host_room; places both. */
enum weir_status weir_draft_place(struct weir_draft *draft, uint64_t device_bytes,
                                  uint64_t host_room);

/* plan_ops.c: the ops; homes are fixed, waits lie behind ring and mail, or behind the homes. */
enum weir_status weir_draft_ops(struct weir_draft *draft, struct weir_plan *plan);
uint64_t weir_piece_bytes(const struct weir_model *model); /* most of one piece of a kept tensor */
uint64_t weir_ring_least(const struct weir_model *model, const struct weir_trace *trace);

/* board.c: which op touched which byte last; gives each op its waits. */
struct weir_board;
enum weir_status weir_board_open(struct weir_board **out);
void weir_board_close(struct weir_board *board);
struct weir_touch {
    struct weir_place place;
    bool write;
};
/* Fills op->waits from what it touches. */
enum weir_status weir_board_add(struct weir_board *board, struct weir_op *op,
                                const struct weir_touch *touches, size_t count);

/* homes.c */
uint64_t weir_block_device_bytes(const struct weir_model *model, uint32_t block);
/* Which blocks live on the device: frozen ones first, then first wanted first, at most `bytes`. */
enum weir_status weir_homes_choose(const struct weir_model *model,
                                   const struct weir_trace *const *traces, size_t trace_count,
                                   uint64_t bytes, bool *device_home, uint64_t *taken);
/* Bytes of the weights, and of all parts, that live off the device. */
void weir_homes_count(const struct weir_model *model, const bool *device_home,
                      uint64_t *weight_bytes, uint64_t *all_bytes);
/* Device homes from device_first on; host homes from host_first up to host_limit; the rest NVMe. */
enum weir_status weir_homes_make(struct weir_homes **out, const struct weir_model *model,
                                 const struct weir_trace *const *traces, size_t trace_count,
                                 const bool *device_home, uint64_t device_first,
                                 uint64_t host_first, uint64_t host_limit, bool nvme,
                                 bool *over_budget);

/* plan.c: all keys beside one set of homes. over_budget: whether it failed for want of budget. */
enum weir_status weir_plan_together(struct weir_plan **plans, struct weir_homes **homes,
                                    const struct weir_model *model,
                                    const struct weir_trace *const *traces, size_t count,
                                    const struct weir_limits *limits,
                                    const struct weir_plan_choice *choice, bool *over_budget);

static inline uint64_t weir_page_up(uint64_t bytes)
{
    return (bytes + WEIR_PAGE - 1) / WEIR_PAGE * WEIR_PAGE;
}

#endif
