/*
 * The parts of weir_plan_check. check.c looks at each number alone and runs the rest; check_bytes.c
 * cuts each tier at every bound that occurs into cells; check_order.c proves with clocks that every
 * op waits for what it touches; check_walk.c follows what each cell holds.
 */
#ifndef WEIR_OFFLOAD_CHECK_INTERNAL_H
#define WEIR_OFFLOAD_CHECK_INTERNAL_H

#include "offload/plan.h"

/* What bytes are. REDUCED: a complete gradient in grad_dtype; GRAD: a sum in fp32. */
enum weir_content_kind {
    WEIR_CONTENT_NONE,
    WEIR_CONTENT_WEIGHT,
    WEIR_CONTENT_STATE,
    WEIR_CONTENT_GRAD,
    WEIR_CONTENT_REDUCED,
    WEIR_CONTENT_KEPT,
    WEIR_CONTENT_SCRATCH, /* thing: its ordinal */
};
struct weir_content {
    enum weir_content_kind kind;
    uint32_t thing, version;
    uint64_t offset; /* bytes from the start of this part of the thing */
};

/* A tier as cells [at[i], at[i + 1]): every place of the plan is a range of whole cells. */
struct weir_check_tier {
    uint64_t *at;                  /* [count + 1], sorted */
    struct weir_content *contents; /* [count] */
    bool *fixed; /* [count]: homes and mail, while looking for overlaps; then mail alone */
    size_t count, capacity;
};
struct weir_check_range {
    enum weir_tier tier;
    size_t first, end; /* cells */
};

struct weir_check {
    const struct weir_plan *plan;
    const struct weir_homes *homes;
    const struct weir_model *model;
    const struct weir_trace *trace;
    const struct weir_limits *limits;
    uint32_t weight_bytes, state_bytes, grad_bytes; /* an element in its home */

    struct weir_check_tier tiers[WEIR_TIER_COUNT];
    struct weir_check_range *ops;       /* [op_count][WEIR_OP_PLACES] */
    struct weir_check_range *use_bytes; /* [use_count]; empty: nothing there */
    struct weir_check_range *use_grads; /* [use_count] */
    struct weir_check_range *scratches; /* [scratch_count] */
    struct weir_check_range *homes_at;  /* [home_first[thing] + window][3] */
    size_t *home_first;                 /* [thing_count] */

    uint32_t *active_first;  /* [stage_count + 1], into active[] */
    uint32_t *active;        /* use indices, stage by stage */
    uint32_t *scratch_first; /* [stage_count + 1], into scratch[] */
    uint32_t *scratch;       /* ordinals of scratches, stage by stage */
    uint32_t *scratch_stage; /* [scratch_count]: in which each begins */
    bool *used;              /* [thing_count]: wanted in this trace */
    bool *written;           /* with WRITE */
};

/* Bytes that a scratch of the trace takes. */
static inline uint64_t weir_check_round(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}
static inline bool weir_check_sums(const struct weir_thing *thing, enum weir_access access)
{
    return thing->is_block && thing->trained_element_count > 0 &&
           (access == WEIR_GRAD || access == WEIR_ADD);
}
static inline const struct weir_check_range *
weir_check_home(const struct weir_check *check, uint32_t block, uint32_t window, uint32_t part)
{
    return &check->homes_at[(check->home_first[block] + window) * 3 + part];
}

/* check.c: WEIR_ERR_CORRUPT naming the op, its stage and tensor. */
enum weir_status weir_check_fail(const struct weir_check *check, size_t op, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same of a compute stage and one thing of it, or of the plan as a whole. */
enum weir_status weir_check_fail_stage(const struct weir_check *check, uint32_t stage,
                                       uint32_t thing, const char *what);
enum weir_status weir_check_fail_plan(const struct weir_check *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* check_bytes.c */
enum weir_status weir_check_cells_make(struct weir_check *check);
void weir_check_cells_free(struct weir_check *check);
/* Do these cells hold content, running on from the first? */
bool weir_check_holds(const struct weir_check *check, const struct weir_check_range *range,
                      struct weir_content content);
void weir_check_put(struct weir_check *check, const struct weir_check_range *range,
                    struct weir_content content);
/* The first `bytes` of a range; bytes is a bound of cells. */
struct weir_check_range weir_check_front(const struct weir_check *check,
                                         const struct weir_check_range *range, uint64_t bytes);

/* check_order.c: each op waits for the last writer, and a writer for the readers, of all it
 * touches; nothing that an op or stage touches overlaps another of its things. */
enum weir_status weir_check_order(struct weir_check *check);

/* check_walk.c: two steps in a row from the given bits (NULL: all blocks have the value `all`).
 * abort: one step that only finishes the updates it owes. */
enum weir_status weir_check_contents(struct weir_check *check, const bool *pending, bool all,
                                     bool abort);

#endif
