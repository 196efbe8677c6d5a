/*
 * What the two halves of replay share: replay.c runs on the user thread, driver.c on the driver.
 *
 * One lock guards all that both touch; each field says who writes it. Nothing waits under the lock
 * but pthread_cond_wait. How each kind of wait of the plan is met:
 *   op that waits     for READ, WRITE           for TO_DEVICE, TO_HOST, UPDATE, COLLECTIVE, COMPUTE
 *   READ, WRITE       complete, seen by driver  complete, seen by driver through event_query
 *   the stream lanes  complete, seen by driver  begun; then event_wait on the lane's stream
 *   COMPUTE           complete, seen by driver  begun; then event_wait on the compute stream
 * Between a lane of the device and one of the updater: complete, seen by driver.
 */
#ifndef WEIR_OFFLOAD_REPLAY_INTERNAL_H
#define WEIR_OFFLOAD_REPLAY_INTERNAL_H

#include "offload/replay.h"

/* Ops of one lane begun and not known complete, of READ, WRITE and COMPUTE. */
#define WEIR_LANE_SLOTS 8u
/* The same of the lanes that the driver queues on streams; a slot's event is re-recorded only after
 * that. Every half ring a host function wakes the driver, and holds the stream up on a GPU, as long
 * as a window of weights is on its way. */
#define WEIR_EVENT_SLOTS 32u

/* READ, WRITE: written by the driver; else by stamps on the op's stream. Read between steps. */
struct weir_op_time {
    uint64_t begin_ns, end_ns; /* 0: left out */
};

struct weir_get_order {
    void *to;
    uint64_t mail_offset, byte_count;
};

struct weir_score {
    const struct weir_plan *plan;
    const struct weir_trace *trace;
    uint32_t *order;                     /* op indices, lane by lane */
    uint32_t first[WEIR_LANE_COUNT + 1]; /* of each lane in order[] */
    bool *wakes;                         /* [op]: the driver must hear of its completion */
    bool updates_apart;                  /* on another device than the rest */
    struct weir_op_time *times;          /* [op], of the latest step; NULL: not timed */
    uint64_t begin_ns;                   /* of that step */
    struct weir_get_order *gets;         /* of the step; as many as the trace has puts and gets */
};

/* What serves a lane's ops in order. */
struct weir_lane_queue {
    struct weir_device *device; /* NULL: READ, WRITE */
    const struct weir_device_table *table;
    struct weir_stream *stream;                  /* NULL: READ, WRITE */
    struct weir_event *events[WEIR_EVENT_SLOTS]; /* of op n: n mod slots */
};

struct weir_lane_state {
    uint32_t count;    /* ops of this step */
    uint32_t begun;    /* driver; COMPUTE: user thread, stages whose work is all queued */
    uint32_t complete; /* the first n; driver; COMPUTE: user thread */
    const struct weir_lane_queue *queue;
    bool finished[WEIR_LANE_SLOTS]; /* READ, WRITE: complete out of order; driver */
};

struct weir_replay {
    struct weir_replay_options options;
    pthread_t driver;
    bool driver_started;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* the driver moved something; the user thread may be waiting */
    bool stop;              /* user thread */
    bool failed;            /* driver: `sticky` holds why */
    struct weir_sticky sticky;

    /* the step; set by begin while the driver is idle */
    struct weir_score *score; /* NULL: no step */
    const bool *pending;
    bool aborting;    /* user thread: only updates that are owed move bytes */
    bool abort_heard; /* driver */
    bool aborted;     /* user thread: and no stage will run any more */
    struct weir_lane_state lanes[WEIR_LANE_COUNT];
    struct weir_lane_queue queues[WEIR_LANE_COUNT];
    struct weir_lane_queue link_queue; /* of UPDATE where the plan says over the link */
    struct weir_replay_stats stats;    /* driver */

    /* transfers outside steps */
    const struct weir_io_request *outside; /* user thread */
    size_t outside_count, outside_submitted, outside_complete;
    enum weir_status outside_status;
    struct weir_error outside_error;

    /* user thread only */
    size_t cursor; /* of trace.events */
    uint32_t opened_count, held_count;
    size_t get_count; /* of score.gets */

    /* compute engine only: written by stamps in stream order, read after a sync */
    uint64_t stall_from_ns, stall_ns;

    struct weir_log_entry *entries; /* both, under the lock */
    size_t entry_count, entry_capacity;
};

void *weir_replay_drive(void *replay);
/* replay_events.c: the open stage's work is all queued. */
enum weir_status weir_replay_seal(struct weir_replay *replay);
/* Under the lock. */
void weir_replay_note(struct weir_replay *replay, enum weir_log_kind kind, size_t index,
                      bool left_out);

/* Keep in *at when the stream comes by; at NULL: nothing is to be kept. */
enum weir_status weir_replay_stamp(struct weir_stream *stream, uint64_t *at);

/* NULL: not timed. */
static inline struct weir_op_time *weir_op_time_of(const struct weir_score *score,
                                                   const struct weir_op *op)
{
    return score->times ? &score->times[op - score->plan->ops] : NULL;
}

static inline bool weir_lane_is_io(uint32_t lane)
{
    return lane == WEIR_LANE_READ || lane == WEIR_LANE_WRITE;
}

/* A wait of one for the other is for completion: no event orders the two. */
static inline bool weir_lanes_apart(const struct weir_lane_state *a,
                                    const struct weir_lane_state *b)
{
    return !a->queue->device || a->queue->device != b->queue->device;
}

static inline struct weir_event *weir_lane_event(const struct weir_lane_state *lane,
                                                 uint32_t op_number)
{
    return lane->queue->events[op_number % WEIR_EVENT_SLOTS];
}

#endif
