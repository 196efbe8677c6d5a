/*
 * The driver thread: begins each lane's ops in order as their waits are met, and sleeps in one
 * place, weir_io_reap.
 */
#include "core/clock.h"
#include "core/thread.h"
#include "offload/dump_internal.h"
#include "offload/replay_internal.h"

#include <stdio.h>

#define RESULTS 64

/* Ids of outside transfers are above those of ops. */
#define OUTSIDE_ID (1ull << 40)

static void fail(struct weir_replay *r)
{
    weir_sticky_set(&r->sticky, weir_last_error());
    r->failed = true;
    pthread_cond_broadcast(&r->changed);
}

static const struct weir_op *lane_op(const struct weir_replay *r, uint32_t lane, uint32_t number)
{
    return &r->score->plan->ops[r->score->order[r->score->first[lane] + number]];
}

/* An op that is left out takes its turn and moves nothing (4r). An aborted step only finishes the
 * updates it owes: their reads, the weights' too, and their write-backs. */
static bool moves(const struct weir_replay *r, const struct weir_op *op)
{
    if (op->pending_only)
        return r->pending[op->thing];
    if (r->aborting)
        return op->kind == WEIR_OP_READ && op->part == WEIR_PART_WEIGHT && r->pending[op->thing];
    return true;
}

static bool waits_met(const struct weir_replay *r, const struct weir_op *op)
{
    for (uint32_t i = 0; i < op->wait_count; i++) {
        const struct weir_lane_state *on = &r->lanes[op->waits[i].lane];
        bool apart = weir_lanes_apart(&r->lanes[op->lane], on);
        if ((apart ? on->complete : on->begun) < op->waits[i].count)
            return false;
    }
    return true;
}

static void *host_bytes(const struct weir_replay *r, const struct weir_place *place)
{
    return (char *)r->options.slabs[place->tier] + place->offset;
}

static enum weir_status transfer_begin(struct weir_replay *r, const struct weir_op *op,
                                       uint64_t number)
{
    bool read = op->kind == WEIR_OP_READ;
    const struct weir_place *drive = &op->places[read ? 0 : 1], *host = &op->places[read ? 1 : 0];
    struct weir_io_request request = {
        .id = number << 1 | (read ? 0 : 1),
        .kind = read ? WEIR_IO_READ : WEIR_IO_WRITE,
        .file = r->options.extent_file,
        .offset_bytes = drive->offset,
        .bytes = host_bytes(r, host),
        .byte_count = drive->bytes,
    };
    struct weir_op_time *time = weir_op_time_of(r->score, op);
    if (time)
        time->begin_ns = weir_now_ns();
    *(read ? &r->stats.read_bytes : &r->stats.written_bytes) += drive->bytes;
    return weir_io_submit(r->options.io, &request, 1);
}

static enum weir_status copy_begin(struct weir_replay *r, const struct weir_op *op,
                                   struct weir_stream *stream)
{
    bool down = op->kind == WEIR_OP_H2D;
    *(down ? &r->stats.to_device_bytes : &r->stats.to_host_bytes) += op->places[0].bytes;
    return stream->device->table->copy(stream, host_bytes(r, &op->places[1]),
                                       host_bytes(r, &op->places[0]), op->places[0].bytes,
                                       down ? WEIR_COPY_TO_DEVICE : WEIR_COPY_TO_HOST);
}

static enum weir_status stream_op_begin(struct weir_replay *r, const struct weir_op *op,
                                        struct weir_stream *stream)
{
    const struct weir_replay_hooks *hooks = &r->options.hooks;
    switch (op->kind) {
    case WEIR_OP_H2D:
    case WEIR_OP_D2H:
        return copy_begin(r, op, stream);
    case WEIR_OP_UPDATE:
        return hooks->update(hooks->context, stream, op->thing, op->window,
                             host_bytes(r, &op->places[0]), host_bytes(r, &op->places[1]),
                             host_bytes(r, &op->places[2]));
    case WEIR_OP_CLEAR:
        return hooks->clear(hooks->context, stream, op->thing, op->window,
                            host_bytes(r, &op->places[0]));
    case WEIR_OP_REDUCE:
        return hooks->reduce(hooks->context, stream, op->thing, op->window,
                             host_bytes(r, &op->places[0]));
    default:
        return weir_fail(WEIR_ERR_CORRUPT, "plan \"%s\": op kind %d in a stream lane",
                         r->score->plan->key, (int)op->kind);
    }
}

static enum weir_status stream_op_time(struct weir_replay *r, const struct weir_op *op,
                                       struct weir_stream *stream)
{
    struct weir_op_time *time = weir_op_time_of(r->score, op);
    WEIR_TRY(weir_replay_stamp(stream, time ? &time->begin_ns : NULL));
    WEIR_TRY(stream_op_begin(r, op, stream));
    return weir_replay_stamp(stream, time ? &time->end_ns : NULL);
}

static void wake(void *argument)
{
    weir_io_wake(*(struct weir_io **)argument);
}

static enum weir_status stream_begin(struct weir_replay *r, const struct weir_op *op)
{
    struct weir_lane_state *lane = &r->lanes[op->lane];
    for (uint32_t i = 0; i < op->wait_count; i++) {
        struct weir_lane_state *on = &r->lanes[op->waits[i].lane];
        uint32_t count = op->waits[i].count;
        if (on != lane && on->queue->stream && count > on->complete)
            WEIR_TRY(lane->queue->table->event_wait(lane->queue->stream,
                                                    weir_lane_event(on, count - 1)));
    }
    if (moves(r, op))
        WEIR_TRY(stream_op_time(r, op, lane->queue->stream));
    WEIR_TRY(
        lane->queue->table->event_record(lane->queue->stream, weir_lane_event(lane, lane->begun)));
    if (r->aborting || r->score->wakes[op - r->score->plan->ops])
        WEIR_TRY(lane->queue->table->call(lane->queue->stream, wake, &r->options.io,
                                          sizeof r->options.io, NULL, 0));
    return WEIR_OK;
}

static void io_finish(struct weir_lane_state *lane, uint32_t number)
{
    lane->finished[number % WEIR_LANE_SLOTS] = true;
    while (lane->complete < lane->begun && lane->finished[lane->complete % WEIR_LANE_SLOTS])
        lane->finished[lane->complete++ % WEIR_LANE_SLOTS] = false;
}

/* Begin the lane's next op if its turn has come. */
static enum weir_status lane_advance(struct weir_replay *r, uint32_t lane_index, bool *moved)
{
    struct weir_lane_state *lane = &r->lanes[lane_index];
    uint32_t slots = lane->queue->stream ? WEIR_EVENT_SLOTS : WEIR_LANE_SLOTS;
    if (lane->begun == lane->count || lane->begun - lane->complete == slots)
        return WEIR_OK;
    const struct weir_op *op = lane_op(r, lane_index, lane->begun);
    if (!waits_met(r, op))
        return WEIR_OK;
    bool left_out = !moves(r, op);
    if (lane->queue->stream)
        WEIR_TRY(stream_begin(r, op));
    else if (!left_out)
        WEIR_TRY(transfer_begin(r, op, lane->begun));
    weir_replay_note(r, WEIR_LOG_OP, (size_t)(op - r->score->plan->ops), left_out);
    lane->begun++;
    if (!lane->queue->stream && left_out)
        io_finish(lane, lane->begun - 1);
    *moved = true;
    return WEIR_OK;
}

/* Results, and the events that have passed, become the lanes' complete counts. */
static enum weir_status lanes_poll(struct weir_replay *r)
{
    for (uint32_t l = 0; l < WEIR_LANE_COMPUTE; l++) {
        struct weir_lane_state *lane = &r->lanes[l];
        bool passed = lane->queue->stream != NULL;
        while (passed && lane->complete < lane->begun) {
            WEIR_TRY(
                lane->queue->table->event_query(weir_lane_event(lane, lane->complete), &passed));
            lane->complete += passed;
        }
    }
    return WEIR_OK;
}

/* The front knows files and offsets; whose bytes they were is known here. */
static enum weir_status transfer_fail(const struct weir_replay *r, const struct weir_op *op,
                                      const struct weir_error *error)
{
    char name[128];
    weir_op_name(r->options.model, op, name, sizeof name);
    struct weir_error named = *error;
    size_t length = (size_t)snprintf(named.text, sizeof named.text, "%s: ", name);
    snprintf(named.text + length, sizeof named.text - length, "%s", error->text);
    return weir_fail_with(&named);
}

static enum weir_status result_take(struct weir_replay *r, const struct weir_io_result *result)
{
    if (result->id >= OUTSIDE_ID) {
        r->outside_complete++;
        if (result->status != WEIR_OK && r->outside_status == WEIR_OK) {
            r->outside_status = result->status;
            r->outside_error = result->error;
        }
        return WEIR_OK;
    }
    if (!r->score) /* the step failed and was left with this in flight */
        return WEIR_OK;
    uint32_t lane = result->id & 1 ? WEIR_LANE_WRITE : WEIR_LANE_READ;
    uint32_t number = (uint32_t)(result->id >> 1);
    const struct weir_op *op = lane_op(r, lane, number);
    if (result->status != WEIR_OK)
        return transfer_fail(r, op, &result->error);
    struct weir_op_time *time = weir_op_time_of(r->score, op);
    if (time)
        time->end_ns = weir_now_ns();
    io_finish(&r->lanes[lane], number);
    return WEIR_OK;
}

static enum weir_status outside_advance(struct weir_replay *r, bool *moved)
{
    while (r->outside_submitted < r->outside_count &&
           r->outside_submitted - r->outside_complete < WEIR_LANE_SLOTS) {
        struct weir_io_request request = r->outside[r->outside_submitted];
        request.id = OUTSIDE_ID + r->outside_submitted;
        WEIR_TRY(weir_io_submit(r->options.io, &request, 1));
        r->outside_submitted++;
        *moved = true;
    }
    return WEIR_OK;
}

/* Once: what began before the abort did not all have a call of wake behind it. */
static enum weir_status abort_hear(struct weir_replay *r)
{
    for (uint32_t l = 0; l < WEIR_LANE_COMPUTE; l++) {
        const struct weir_lane_queue *queue = r->lanes[l].queue;
        if (queue->stream)
            WEIR_TRY(queue->table->call(queue->stream, wake, &r->options.io, sizeof r->options.io,
                                        NULL, 0));
    }
    r->abort_heard = true;
    return WEIR_OK;
}

/* The stages that an aborted step left out take their turns too, and wait for what they would have
 * waited for: orders that others have through them hold. */
static void compute_advance(struct weir_replay *r, bool *moved)
{
    struct weir_lane_state *lane = &r->lanes[WEIR_LANE_COMPUTE];
    while (lane->complete < r->score->plan->stage_count) {
        const struct weir_op *op = lane_op(r, WEIR_LANE_COMPUTE, lane->complete);
        for (uint32_t i = 0; i < op->wait_count; i++)
            if (r->lanes[op->waits[i].lane].complete < op->waits[i].count)
                return;
        lane->begun = ++lane->complete;
        *moved = true;
    }
}

static enum weir_status advance(struct weir_replay *r, bool *moved)
{
    WEIR_TRY(lanes_poll(r));
    WEIR_TRY(outside_advance(r, moved));
    for (uint32_t l = 0; r->score && l < WEIR_LANE_COMPUTE; l++)
        WEIR_TRY(lane_advance(r, l, moved));
    if (r->score && r->aborted && !r->abort_heard)
        WEIR_TRY(abort_hear(r));
    if (r->score && r->aborted)
        compute_advance(r, moved);
    return WEIR_OK;
}

/* Everything that can begin has begun; sleep until something is complete or somebody wakes us. */
static enum weir_status sleep_once(struct weir_replay *r)
{
    struct weir_io_result results[RESULTS];
    size_t count = 0;
    pthread_mutex_unlock(&r->lock);
    enum weir_status status =
        weir_io_reap(r->options.io, results, RESULTS, WEIR_IO_FOREVER, &count);
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; status == WEIR_OK && i < count; i++)
        status = result_take(r, &results[i]);
    return status;
}

void *weir_replay_drive(void *argument)
{
    struct weir_replay *r = argument;
    pthread_setname_np(pthread_self(), "weir-driver");
    weir_thread_prompt();
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        bool moved = false;
        if (!r->failed && advance(r, &moved) != WEIR_OK)
            fail(r);
        pthread_cond_broadcast(&r->changed);
        if (!moved && !r->stop && sleep_once(r) != WEIR_OK) {
            fail(r);
            while (!r->stop) /* nothing is left to wait for but close */
                pthread_cond_wait(&r->changed, &r->lock);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}
