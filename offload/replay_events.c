/*
 * The caller's events, compared with the trace as they come, and the compute lane: a stage opens
 * when its bytes are on their way and is sealed when no more work can be queued in it.
 */
#include "core/clock.h"
#include "offload/replay_internal.h"

#include <stdio.h>
#include <string.h>

/* Around a stage's waits, on the compute stream: what passes between the two is a stall. */
static void stall_from(void *argument)
{
    struct weir_replay *r = *(struct weir_replay **)argument;
    r->stall_from_ns = weir_now_ns();
}

static void stall_until(void *argument)
{
    struct weir_replay *r = *(struct weir_replay **)argument;
    r->stall_ns += weir_now_ns() - r->stall_from_ns;
}

static void stamp(void *argument)
{
    **(uint64_t **)argument = weir_now_ns();
}

enum weir_status weir_replay_stamp(struct weir_stream *stream, uint64_t *at)
{
    return at ? stream->device->table->call(stream, stamp, &at, sizeof at, NULL, 0) : WEIR_OK;
}

/* Of a stage; NULL: not timed. */
static struct weir_op_time *stage_time(const struct weir_replay *r, uint32_t stage)
{
    const struct weir_score *score = r->score;
    return weir_op_time_of(
        score, &score->plan->ops[score->order[score->first[WEIR_LANE_COMPUTE] + stage]]);
}

/* The open stage's work is all queued. */
enum weir_status weir_replay_seal(struct weir_replay *r)
{
    struct weir_lane_state *compute = &r->lanes[WEIR_LANE_COMPUTE];
    if (compute->begun == r->opened_count)
        return WEIR_OK;
    if (compute->begun - compute->complete == WEIR_LANE_SLOTS) {
        WEIR_TRY(compute->queue->table->event_sync(weir_lane_event(compute, compute->complete)));
        pthread_mutex_lock(&r->lock);
        compute->complete++;
        pthread_mutex_unlock(&r->lock);
    }
    struct weir_op_time *time = stage_time(r, compute->begun);
    WEIR_TRY(weir_replay_stamp(compute->queue->stream, time ? &time->end_ns : NULL));
    pthread_mutex_lock(&r->lock);
    enum weir_status status = compute->queue->table->event_record(
        compute->queue->stream, weir_lane_event(compute, compute->begun));
    if (status == WEIR_OK) /* else nobody may wait for what the event held before */
        compute->begun++;
    pthread_mutex_unlock(&r->lock);
    weir_io_wake(r->options.io);
    return status;
}

/* Make the compute stream wait for what stage needs; blocks until that has been issued. */
static enum weir_status stage_waits(struct weir_replay *r, const struct weir_op *op)
{
    const struct weir_lane_state *compute = &r->lanes[WEIR_LANE_COMPUTE];
    for (uint32_t i = 0; i < op->wait_count; i++) {
        struct weir_lane_state *on = &r->lanes[op->waits[i].lane];
        uint32_t count = op->waits[i].count;
        bool apart = weir_lanes_apart(compute, on);
        while (!r->failed && (apart ? on->complete : on->begun) < count)
            pthread_cond_wait(&r->changed, &r->lock);
        if (r->failed)
            return weir_sticky_raise(&r->sticky);
        if (on != compute && count > on->complete)
            WEIR_TRY(compute->queue->table->event_wait(compute->queue->stream,
                                                       weir_lane_event(on, count - 1)));
    }
    return WEIR_OK;
}

/* Whether something of that may still be under way. Else no stall is timed: on a GPU a call holds
 * the stream up for many microseconds, which is much beside a stage of a small model. */
static bool waits_left(const struct weir_replay *r, const struct weir_op *op)
{
    for (uint32_t i = 0; i < op->wait_count; i++)
        if (r->lanes[op->waits[i].lane].complete < op->waits[i].count)
            return true;
    return false;
}

static enum weir_status stage_open(struct weir_replay *r, uint32_t stage)
{
    if (stage < r->opened_count)
        return WEIR_OK;
    WEIR_TRY(weir_replay_seal(r));
    const struct weir_score *score = r->score;
    const struct weir_op *op =
        &score->plan->ops[score->order[score->first[WEIR_LANE_COMPUTE] + stage]];
    struct weir_stream *compute = r->options.compute;
    const struct weir_device_table *table = compute->device->table;
    pthread_mutex_lock(&r->lock);
    bool waits = waits_left(r, op);
    pthread_mutex_unlock(&r->lock);
    if (waits)
        WEIR_TRY(table->call(compute, stall_from, &r, sizeof r, NULL, 0));
    pthread_mutex_lock(&r->lock);
    enum weir_status status = stage_waits(r, op);
    weir_replay_note(r, WEIR_LOG_OP, (size_t)(op - score->plan->ops), false);
    pthread_mutex_unlock(&r->lock);
    WEIR_TRY(status);
    if (waits)
        WEIR_TRY(table->call(compute, stall_until, &r, sizeof r, NULL, 0));
    r->opened_count = stage + 1;
    struct weir_op_time *time = stage_time(r, stage);
    return weir_replay_stamp(compute, time ? &time->begin_ns : NULL);
}

static enum weir_status diverged(const struct weir_replay *r, const char *got)
{
    const struct weir_trace *trace = r->score->trace;
    char expected[200] = "the end of the step";
    if (r->cursor < trace->event_count)
        weir_trace_describe(trace, r->options.model, r->cursor, expected, sizeof expected);
    return weir_fail(WEIR_ERR_DIVERGED,
                     "step \"%s\", event %zu: %s, recorded was: %s; abort the step, or record this "
                     "shape under another key",
                     trace->key, r->cursor, got, expected);
}

/* The next event if it is of this kind. */
static const struct weir_trace_event *event_next(const struct weir_replay *r,
                                                 enum weir_event_kind kind)
{
    const struct weir_trace *trace = r->score->trace;
    if (r->cursor == trace->event_count || trace->events[r->cursor].kind != kind)
        return NULL;
    return &trace->events[r->cursor];
}

static const char *thing_name(const struct weir_replay *r, uint32_t id)
{
    return id < r->options.model->thing_count ? r->options.model->things[id].name : "no such id";
}

static bool uses_equal(const struct weir_trace *trace, const struct weir_trace_event *event,
                       const struct weir_use *uses, size_t count)
{
    if (event->count != count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (trace->uses[event->first + i].id != uses[i].id ||
            trace->uses[event->first + i].access != uses[i].access)
            return false;
    return true;
}

static void view_fill(const struct weir_replay *r, uint32_t use_index, struct weir_view *view)
{
    const struct weir_trace_use *use = &r->score->trace->uses[use_index];
    const struct weir_use_place *place = &r->score->plan->uses[use_index];
    char *device = r->options.slabs[WEIR_TIER_DEVICE];
    *view = (struct weir_view){.grad_fresh = use->grad_fresh};
    if (!place->refused && place->bytes_offset != WEIR_NOWHERE)
        view->bytes = device + place->bytes_offset;
    if (place->grad_offset != WEIR_NOWHERE)
        view->grad = (float *)(void *)(device + place->grad_offset);
}

static enum weir_status step_required(struct weir_replay *r, const char *call)
{
    if (!r->score)
        return weir_fail(WEIR_ERR_STATE, "%s: no step is open; call weir_step_begin first", call);
    return weir_sticky_raise(&r->sticky);
}

static void event_note(struct weir_replay *r, enum weir_log_kind kind)
{
    if (r->entry_capacity == 0)
        return;
    pthread_mutex_lock(&r->lock);
    weir_replay_note(r, kind, r->cursor, false);
    pthread_mutex_unlock(&r->lock);
}

enum weir_status weir_replay_want(struct weir_replay *r, const struct weir_use *uses, size_t count,
                                  struct weir_view *views)
{
    WEIR_TRY(step_required(r, "want"));
    const struct weir_trace_event *event = event_next(r, WEIR_EVENT_WANT);
    if (!event || !uses_equal(r->score->trace, event, uses, count)) {
        char got[200];
        weir_want_describe(r->options.model, uses, count, got, sizeof got);
        return diverged(r, got);
    }
    event_note(r, WEIR_LOG_WANT);
    WEIR_TRY(stage_open(r, event->stage));
    for (size_t i = 0; i < count; i++)
        view_fill(r, event->first + (uint32_t)i, &views[i]);
    r->held_count += (uint32_t)count;
    r->cursor++;
    return WEIR_OK;
}

enum weir_status weir_replay_scratch(struct weir_replay *r, uint64_t bytes, void **out)
{
    WEIR_TRY(step_required(r, "scratch"));
    const struct weir_trace_event *event = event_next(r, WEIR_EVENT_SCRATCH);
    if (!event || event->bytes != bytes) {
        char got[160];
        snprintf(got, sizeof got, "scratch of %llu bytes", (unsigned long long)bytes);
        return diverged(r, got);
    }
    WEIR_TRY(stage_open(r, event->stage));
    *out = (char *)r->options.slabs[WEIR_TIER_DEVICE] + r->score->plan->scratches[event->first];
    r->cursor++;
    return WEIR_OK;
}

/* The next event is a put or get of this kept tensor. */
static enum weir_status copy_event(struct weir_replay *r, enum weir_event_kind kind, uint32_t kept,
                                   const struct weir_trace_event **event)
{
    const char *call = kind == WEIR_EVENT_PUT ? "put" : "get";
    WEIR_TRY(step_required(r, call));
    *event = event_next(r, kind);
    if (!*event || r->score->trace->uses[(*event)->first].id != kept) {
        char got[160];
        snprintf(got, sizeof got, "%s of \"%s\"", call, thing_name(r, kept));
        return diverged(r, got);
    }
    return stage_open(r, (*event)->stage);
}

enum weir_status weir_replay_put(struct weir_replay *r, uint32_t kept, const void *bytes)
{
    const struct weir_trace_event *event;
    WEIR_TRY(copy_event(r, WEIR_EVENT_PUT, kept, &event));
    struct weir_view view;
    view_fill(r, event->first, &view);
    uint64_t byte_count = r->options.model->things[kept].byte_count;
    void *mail = (char *)r->options.slabs[WEIR_TIER_HOST] + r->score->plan->mail[event->count];
    memcpy(mail, bytes, byte_count);
    r->cursor++;
    struct weir_stream *compute = r->options.compute;
    return compute->device->table->copy(compute, view.bytes, mail, byte_count, WEIR_COPY_TO_DEVICE);
}

enum weir_status weir_replay_get(struct weir_replay *r, uint32_t kept, void *bytes)
{
    const struct weir_trace_event *event;
    WEIR_TRY(copy_event(r, WEIR_EVENT_GET, kept, &event));
    struct weir_view view;
    view_fill(r, event->first, &view);
    struct weir_get_order order = {.to = bytes,
                                   .mail_offset = r->score->plan->mail[event->count],
                                   .byte_count = r->options.model->things[kept].byte_count};
    r->score->gets[r->get_count++] = order;
    r->cursor++;
    struct weir_stream *compute = r->options.compute;
    return compute->device->table->copy(
        compute, (char *)r->options.slabs[WEIR_TIER_HOST] + order.mail_offset, view.bytes,
        order.byte_count, WEIR_COPY_TO_HOST);
}

static bool dones_equal(const struct weir_trace *trace, const struct weir_trace_event *event,
                        const uint32_t *ids, size_t count)
{
    if (event->count != count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (trace->uses[trace->dones[event->first + i]].id != ids[i])
            return false;
    return true;
}

enum weir_status weir_replay_done(struct weir_replay *r, const uint32_t *ids, size_t count)
{
    WEIR_TRY(step_required(r, "done"));
    const struct weir_trace_event *event = event_next(r, WEIR_EVENT_DONE);
    if (!event || !dones_equal(r->score->trace, event, ids, count)) {
        char got[160];
        snprintf(got, sizeof got, "done of %zu, the first \"%s\"", count,
                 count ? thing_name(r, ids[0]) : "");
        return diverged(r, got);
    }
    event_note(r, WEIR_LOG_DONE);
    r->held_count -= (uint32_t)count;
    r->cursor++;
    /* Work may still be queued for what is held; the next want seals the stage then. */
    return r->held_count == 0 ? weir_replay_seal(r) : WEIR_OK;
}
