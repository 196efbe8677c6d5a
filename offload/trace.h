/*
 * The recorded events of one key's step; const once sealed.
 *
 * The recorder checks each event as it comes (ids, access, nesting, life of kept tensors), so a
 * sealed trace is well-formed. A stage runs from the first want, scratch, put or get after a done
 * to the next done. Replay walks the same events with a cursor and compares (4e).
 *
 * Rules it enforces, WEIR_ERR_ARG or _STATE naming the tensor: a kept tensor is born (NEW) before
 * it is used, is used no more after LAST until born again, and is not wanted twice at once; NEW
 * ends an earlier life; a block may be wanted while held (LIFO nesting) unless one of the two is
 * WRITE; GRAD, ADD, WRITE only where they make sense (frozen: GRAD is READ, ADD is an error); done
 * only what is held; put (NEW, CHANGE) and get only of kept tensors held now that are not optional;
 * everything is done at the end. done of a nested block is of its innermost want.
 */
#ifndef WEIR_OFFLOAD_TRACE_H
#define WEIR_OFFLOAD_TRACE_H

#include "offload/model.h"

enum weir_event_kind {
    WEIR_EVENT_WANT,    /* uses[first .. first + count) */
    WEIR_EVENT_DONE,    /* dones[first .. first + count): indices into uses[] */
    WEIR_EVENT_SCRATCH, /* bytes; first: ordinal among the scratches; count: innermost want's event
                         */
    WEIR_EVENT_PUT,     /* first: use index, count: ordinal among puts and gets */
    WEIR_EVENT_GET,
};
struct weir_trace_event {
    enum weir_event_kind kind;
    uint32_t first, count;
    uint32_t stage;     /* want, scratch, put, get: the open stage; done: the stage it closes */
    uint32_t stage_end; /* scratch: it lasts for [stage, stage_end) */
    uint64_t bytes;
};
struct weir_trace_use {
    uint32_t id;
    enum weir_access access;
    uint32_t stage_first, stage_end; /* [first stage, end stage) between want and done */
    uint32_t life;                   /* kept: ordinal of its life in this step */
    bool grad_fresh;                 /* first GRAD or ADD of the block in the step */
    bool grad_last;                  /* last GRAD or ADD of the block in the step */
    double recompute_flops;          /* more work of its first stage if it is refused; NEW: 0 */
};
struct weir_trace {
    char *key;
    bool sealed;
    struct weir_trace_event *events;
    size_t event_count, event_capacity;
    struct weir_trace_use *uses;
    size_t use_count, use_capacity;
    uint32_t *dones;
    size_t done_count, done_capacity;
    double *stage_flops;
    size_t stage_count, stage_capacity;
    uint32_t scratch_count, put_get_count;
    bool stage_open;
    uint32_t *held; /* use indices, a stack */
    size_t held_count, held_capacity;
    uint32_t *latest; /* while recording: [thing], its latest use + 1 */
    size_t latest_capacity;
};

enum weir_status weir_trace_open(struct weir_trace **out, const char *key);
void weir_trace_close(struct weir_trace *trace);
enum weir_status weir_trace_want(struct weir_trace *trace, const struct weir_model *model,
                                 const struct weir_use *uses, size_t count);
enum weir_status weir_trace_done(struct weir_trace *trace, const struct weir_model *model,
                                 const uint32_t *ids, size_t count);
enum weir_status weir_trace_scratch(struct weir_trace *trace, uint64_t bytes);
enum weir_status weir_trace_work(struct weir_trace *trace, double flops);
/* put: true for put, false for get */
enum weir_status weir_trace_copy(struct weir_trace *trace, const struct weir_model *model,
                                 uint32_t kept, bool put);
enum weir_status weir_trace_seal(struct weir_trace *trace, const struct weir_model *model);
uint64_t weir_trace_bytes(const struct weir_trace *trace); /* heap it holds */

/* "want L0.weight:READ x0.1:NEW" for error texts. */
void weir_want_describe(const struct weir_model *model, const struct weir_use *uses, size_t count,
                        char *out, size_t out_bytes);
/* An event as such a line. */
void weir_trace_describe(const struct weir_trace *trace, const struct weir_model *model,
                         size_t event, char *out, size_t out_bytes);

#endif
