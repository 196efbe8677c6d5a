/*
 * A plan as text, which dump.c writes and parse.c reads: one thing a line, fields parted by single
 * spaces, numbers in decimal without leading zeros, lines in one fixed order; so a plan has one
 * text, and reading need not search.
 *
 *     weir-plan 1
 *     key train
 *     counts stages 12 ops 96 uses 30 scratches 4 mail 0
 *     choice lead 2 ring 32768 homes 0 link 0
 *     bytes ring 32768 device 180224 host 90112 nvme 905216 refused 0 wait 0 4096 0
 *     homes device 180224 180224 host 90112 90112 nvme 901120
 *     home 0 0 nvme:0+4096 nvme:8192+4096 nvme:16384+20480      thing, window: weight, grad, state
 *     use 0 0 - kept                                            bytes, grad offset
 *     scratch 0 4096
 *     op 0 read READ state 0/0 stage 0 arrives pending nvme:16384+20480 host:0+20480 - update:1
 *     end
 */
#ifndef WEIR_OFFLOAD_DUMP_INTERNAL_H
#define WEIR_OFFLOAD_DUMP_INTERNAL_H

#include "offload/plan.h"

extern const char *const weir_tier_names[WEIR_TIER_COUNT];
extern const char *const weir_lane_names[WEIR_LANE_COUNT];
extern const char *const weir_kind_names[WEIR_OP_KIND_COUNT];
extern const char *const weir_part_names[WEIR_PART_KEPT + 1];
extern const char *const weir_arrive_names[2];  /* by weir_op.arrives */
extern const char *const weir_pending_names[2]; /* by weir_op.pending_only */
extern const char *const weir_refused_names[2];

/* "READ state layer.0[3]": what an op does, to which window; not of a COMPUTE. */
void weir_op_name(const struct weir_model *model, const struct weir_op *op, char *out,
                  size_t out_bytes);

#endif
