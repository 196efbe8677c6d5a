/*
 * The immutable result of planning: one order of all ops, and where everything lies.
 *
 * A lane is the part of ops[] with that lane, in order. A wait (lane, n) means: the first n ops of
 * that lane are complete. TO_DEVICE, TO_HOST, UPDATE, COLLECTIVE and COMPUTE complete in order;
 * READ and WRITE only begin in order and are counted in order. Indices, no pointers: a plan can be
 * dumped, hashed, diffed and mutated. Purely a function of its inputs (DESIGN 4u-4z).
 */
#ifndef WEIR_OFFLOAD_PLAN_H
#define WEIR_OFFLOAD_PLAN_H

#include "offload/trace.h"

enum weir_tier { WEIR_TIER_DEVICE, WEIR_TIER_HOST, WEIR_TIER_NVME, WEIR_TIER_COUNT };

enum weir_lane {
    WEIR_LANE_READ,
    WEIR_LANE_WRITE,
    WEIR_LANE_TO_DEVICE,
    WEIR_LANE_TO_HOST,
    WEIR_LANE_UPDATE,     /* of states in host memory */
    WEIR_LANE_COLLECTIVE, /* reductions, and updates of states on the device */
    WEIR_LANE_COMPUTE,
    WEIR_LANE_COUNT,
};

enum weir_op_kind {
    WEIR_OP_READ,    /* place[0] nvme -> place[1] host */
    WEIR_OP_WRITE,   /* place[0] host -> place[1] nvme */
    WEIR_OP_H2D,     /* place[0] host -> place[1] device */
    WEIR_OP_D2H,     /* place[0] device -> place[1] host */
    WEIR_OP_UPDATE,  /* place[0] state, [1] gradient, [2] weight: of one window, in place */
    WEIR_OP_CLEAR,   /* place[0] state: residual = 0 after a WEIR_WRITE */
    WEIR_OP_REDUCE,  /* place[0] a complete fp32 gradient window on the device; in place */
    WEIR_OP_COMPUTE, /* stage `thing`; what it touches is in the trace and views[] */
    WEIR_OP_KIND_COUNT,
};

struct weir_place {
    enum weir_tier tier;
    uint64_t offset, bytes; /* of the tier's slab or extent; bytes 0: unused place */
};
struct weir_wait {
    uint32_t lane, count;
};
#define WEIR_OP_PLACES 3
#define WEIR_OP_WAITS  WEIR_LANE_COUNT /* at most one a lane */

struct weir_op {
    enum weir_op_kind kind;
    enum weir_lane lane;
    enum weir_part part; /* of a transfer */
    bool pending_only;   /* left out unless block `thing` is pending; still takes its turn (4r) */
    bool arrives;        /* belongs to an arrival (for `stage`), else to a departure (from it) */
    uint32_t thing;      /* id; COMPUTE: the stage */
    uint32_t window;     /* of a block; kept tensor: piece index */
    uint32_t stage;      /* first stage that needs it, or stage after which it leaves */
    struct weir_place places[WEIR_OP_PLACES];
    uint32_t wait_count;
    struct weir_wait waits[WEIR_OP_WAITS];
};

/* Where one use (index of trace.uses) finds its bytes on the device. */
struct weir_use_place {
    uint64_t bytes_offset; /* weight or kept bytes */
    uint64_t grad_offset;
    bool refused; /* an optional kept tensor's life that is not kept */
};
#define WEIR_NOWHERE UINT64_MAX

/* The homes of one trained or frozen window; gradient and state places have bytes 0 if frozen. */
struct weir_window_home {
    struct weir_place part[3]; /* by enum weir_part: weight, grad, state */
};
/* Common to all keys. */
struct weir_homes {
    const struct weir_model *model;
    struct weir_window_home **blocks; /* [thing][window]; NULL for kept tensors */
    uint64_t device_first;            /* device homes lie in [device_first, device_end) */
    uint64_t device_end;
    uint64_t host_first, host_end;
    uint64_t nvme_end; /* homes lie in [0, nvme_end) of the extent; kept tensors behind */
};

struct weir_limits {
    uint64_t device_bytes, host_bytes; /* what plans may address; hard */
    bool nvme;                         /* is there an NVMe tier */
    uint64_t ring_bytes;               /* 0: chosen (4y) */
};

/* The few numbers that layout tries (4u). */
struct weir_plan_choice {
    uint32_t lead;        /* stages a margin may grow to */
    uint32_t update_lead; /* stages that an update goes ahead which needs no slot */
    uint64_t ring_bytes;
    uint64_t device_home_bytes; /* most bytes of homes on the device */
    /* most bytes of optional tensors that wait in host memory, and on NVMe */
    uint64_t optional_host_bytes, optional_nvme_bytes;
    bool update_over_link; /* states in host memory: by the device, not by the cores beside it */
};

struct weir_plan {
    char *key;
    struct weir_op *ops;
    size_t op_count, op_capacity;
    struct weir_use_place *uses; /* [trace.use_count] */
    size_t use_count;
    uint64_t *scratches; /* [trace.scratch_count] device offsets */
    size_t scratch_count;
    uint64_t *mail; /* [trace.put_get_count] host offsets of put and get slots */
    size_t mail_count;
    uint32_t stage_count;
    struct weir_plan_choice choice;
    uint64_t ring_bytes;                       /* host [0, ring_bytes) */
    uint64_t device_transient_bytes;           /* device [0, this) */
    uint64_t host_transient_bytes;             /* host: ring, mail and kept tensors, [0, this) */
    uint64_t nvme_bytes;                       /* end of what this plan addresses on NVMe */
    uint64_t kept_wait_bytes[WEIR_TIER_COUNT]; /* most at once, for reports */
    uint64_t refused_bytes;
};

/*
 * Plan one key. homes NULL in *homes: choose them (they are returned, owned by the caller); else
 * plan beside the ones given.
 *
 * returns: WEIR_ERR_NOMEM   the limits do not hold it: names tier, stage, bytes wanted and given
 */
enum weir_status weir_plan_make(struct weir_plan **out, struct weir_homes **homes,
                                const struct weir_model *model, const struct weir_trace *trace,
                                const struct weir_limits *limits,
                                const struct weir_plan_choice *choice);
void weir_plan_free(struct weir_plan *plan);
void weir_homes_free(struct weir_homes *homes);

/*
 * Plan all keys: tries a few choices, takes of those in which every key fits the one whose first
 * key is simulated fastest, and proves it with weir_plan_check.
 * homes non-NULL on entry: plan beside them.
 */
enum weir_status weir_plan_best(struct weir_plan **plans, struct weir_homes **homes,
                                const struct weir_model *model,
                                const struct weir_trace *const *traces, size_t trace_count,
                                const struct weir_limits *limits, const struct weir_cost *cost);

uint64_t weir_plan_hash(const struct weir_plan *plan, const struct weir_homes *homes); /* XXH3 */
uint64_t weir_plan_bytes(const struct weir_plan *plan); /* heap it holds */

/*
 * The one judge of a plan (offload/check.c): shares no code with the planner. Walks the ops with
 * contents and clocks, twice in a row, with all blocks pending and with none, and with the bits
 * given if not NULL ([thing_count]).
 *
 * returns: WEIR_ERR_CORRUPT naming op, stage, tensor and what is wrong
 */
enum weir_status weir_plan_check(const struct weir_plan *plan, const struct weir_homes *homes,
                                 const struct weir_model *model, const struct weir_trace *trace,
                                 const struct weir_limits *limits, const bool *pending);

/* Text form (offload/dump.c), one op a line, and back: parse(text(plan)) has the same hash. Parsing
 * is strict: WEIR_ERR_CORRUPT names line and field. The homes travel with the plan. */
enum weir_status weir_plan_text(const struct weir_plan *plan, const struct weir_homes *homes,
                                char **out);
enum weir_status weir_plan_parse(const char *text, const struct weir_model *model,
                                 struct weir_plan **plan, struct weir_homes **homes);

#endif
