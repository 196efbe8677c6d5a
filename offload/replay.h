/*
 * Replay: runs a proved plan's lanes ahead of compute, one step at a time.
 *
 *     weir_replay_open(&replay, &options);            // starts the driver thread
 *     weir_score_make(&score, plan, trace);           // once a key
 *     weir_replay_begin(replay, score, pending);
 *     weir_replay_want / scratch / put / get / done   // the caller's events, compared with the
 * trace weir_replay_end(replay, &stats);                // every transfer is complete
 *
 * Threads: the user thread calls everything here, one call at a time; the driver alone submits and
 * reaps I/O and queues on the lanes' streams; compute is queued by the user thread. After open and
 * weir_score_make nothing is allocated. A failure is sticky: after it only close is useful.
 */
#ifndef WEIR_OFFLOAD_REPLAY_H
#define WEIR_OFFLOAD_REPLAY_H

#include "core/device.h"
#include "io/io.h"
#include "offload/plan.h"

struct weir_replay;

/* What offload asks of the optimizer and of collectives; queue on the stream, never wait. Pointers
 * are what the op's places name: host or device memory. */
struct weir_replay_hooks {
    void *context;
    enum weir_status (*update)(void *context, struct weir_stream *stream, uint32_t block,
                               uint32_t window, void *state, const void *grad, void *weight);
    enum weir_status (*clear)(void *context, struct weir_stream *stream, uint32_t block,
                              uint32_t window, void *state);
    enum weir_status (*reduce)(void *context, struct weir_stream *stream, uint32_t block,
                               uint32_t window, float *grad);
};

struct weir_replay_options {
    struct weir_device *device;
    struct weir_device *updater; /* of states in host memory; NULL: device */
    struct weir_io *io;          /* without an NVMe tier too: the driver sleeps in its reap */
    uint32_t extent_file;
    void *slabs[2]; /* base of the device's and the host's slab, by enum weir_tier */
    const struct weir_model *model;
    struct weir_replay_hooks hooks;
    struct weir_stream *compute; /* queued by the user thread */
};

/* A plan and its trace, indexed for replay; owns neither. */
struct weir_score;
/* updates_apart: the replay has an updater. */
enum weir_status weir_score_make(struct weir_score **out, const struct weir_plan *plan,
                                 const struct weir_trace *trace, bool updates_apart);
void weir_score_free(struct weir_score *score);
uint64_t weir_score_bytes(const struct weir_plan *plan, const struct weir_trace *trace); /* heap */
/* From the next step on keep when each op begins and ends. */
enum weir_status weir_score_time(struct weir_score *score);
uint64_t weir_score_time_bytes(const struct weir_plan *plan); /* heap that takes */

struct weir_replay_stats { /* of one step */
    uint64_t read_bytes, written_bytes, to_device_bytes, to_host_bytes;
    uint64_t stall_ns; /* the compute stream stood still for bytes */
};

enum weir_status weir_replay_open(struct weir_replay **out,
                                  const struct weir_replay_options *options);
void weir_replay_close(struct weir_replay *replay);

/* pending[thing]: read until end or abort returns. */
enum weir_status weir_replay_begin(struct weir_replay *replay, struct weir_score *score,
                                   const bool *pending);
enum weir_status weir_replay_want(struct weir_replay *replay, const struct weir_use *uses,
                                  size_t count, struct weir_view *views);
enum weir_status weir_replay_scratch(struct weir_replay *replay, uint64_t bytes, void **out);
enum weir_status weir_replay_put(struct weir_replay *replay, uint32_t kept, const void *bytes);
enum weir_status weir_replay_get(struct weir_replay *replay, uint32_t kept, void *bytes);
enum weir_status weir_replay_done(struct weir_replay *replay, const uint32_t *ids, size_t count);
enum weir_status weir_replay_end(struct weir_replay *replay, struct weir_replay_stats *stats);
/* Finish the pending updates that this step still owes, move nothing else, end the step. */
enum weir_status weir_replay_abort(struct weir_replay *replay);

/* Transfers outside steps, run by the driver; returns when all are complete. */
enum weir_status weir_replay_transfer(struct weir_replay *replay,
                                      const struct weir_io_request *requests, size_t count);

/* What happened in which order, for tests. */
enum weir_log_kind { WEIR_LOG_BEGIN, WEIR_LOG_WANT, WEIR_LOG_DONE, WEIR_LOG_OP, WEIR_LOG_END };
struct weir_log_entry {
    enum weir_log_kind kind;
    uint32_t index; /* OP: of plan.ops, when it is queued; WANT, DONE: of trace.events */
    bool left_out;  /* OP: took its turn, moved nothing */
};
/* Keep up to `capacity` entries from now; full: later ones are dropped. */
enum weir_status weir_replay_log_start(struct weir_replay *replay, size_t capacity);
/* Entries up to *count do not change any more; may be called inside a step. */
const struct weir_log_entry *weir_replay_log_read(struct weir_replay *replay, size_t *count);

#endif
