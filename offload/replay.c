/*
 * The user thread's half of replay: open and close, the step's begin, end and abort, and transfers
 * outside steps. The events between are in replay_events.c.
 */
#include "core/clock.h"
#include "core/memory.h"
#include "offload/replay_internal.h"

#include <string.h>

/* Which ops' completions the driver must be woken for: those that another processor's op waits for,
 * every half ring of slots (so that slots come free), and each lane's last. */
static void wakes_find(struct weir_score *score)
{
    const struct weir_plan *plan = score->plan;
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct weir_op *op = &plan->ops[i];
        for (uint32_t w = 0; w < op->wait_count; w++) {
            const struct weir_wait *wait = &op->waits[w];
            bool update = score->updates_apart &&
                          (op->lane == WEIR_LANE_UPDATE || wait->lane == WEIR_LANE_UPDATE);
            if (weir_lane_is_io(op->lane) || update)
                score->wakes[score->order[score->first[wait->lane] + wait->count - 1]] = true;
        }
    }
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++)
        for (uint32_t i = score->first[l]; i < score->first[l + 1]; i++)
            if ((i - score->first[l]) % (WEIR_EVENT_SLOTS / 2) == WEIR_EVENT_SLOTS / 2 - 1 ||
                i + 1 == score->first[l + 1])
                score->wakes[score->order[i]] = true;
}

enum weir_status weir_score_make(struct weir_score **out, const struct weir_plan *plan,
                                 const struct weir_trace *trace, bool updates_apart)
{
    struct weir_score *score;
    WEIR_TRY(weir_alloc(&score, 1, sizeof *score, "score"));
    score->updates_apart = updates_apart;
    score->plan = plan;
    score->trace = trace;
    enum weir_status status =
        weir_alloc(&score->order, plan->op_count, sizeof *score->order, "score");
    if (status == WEIR_OK)
        status = weir_alloc(&score->wakes, plan->op_count, sizeof *score->wakes, "score");
    if (status == WEIR_OK)
        status = weir_alloc(&score->gets, trace->put_get_count, sizeof *score->gets, "score");
    if (status != WEIR_OK) {
        weir_score_free(score);
        return status;
    }
    for (size_t i = 0; i < plan->op_count; i++)
        score->first[plan->ops[i].lane + 1]++;
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++)
        score->first[l + 1] += score->first[l];
    uint32_t next[WEIR_LANE_COUNT];
    memcpy(next, score->first, sizeof next);
    for (size_t i = 0; i < plan->op_count; i++)
        score->order[next[plan->ops[i].lane]++] = (uint32_t)i;
    wakes_find(score);
    *out = score;
    return WEIR_OK;
}

void weir_score_free(struct weir_score *score)
{
    if (!score)
        return;
    weir_free(score->order);
    weir_free(score->wakes);
    weir_free(score->times);
    weir_free(score->gets);
    weir_free(score);
}

enum weir_status weir_score_time(struct weir_score *score)
{
    return weir_alloc(&score->times, score->plan->op_count, sizeof *score->times, "timeline");
}

uint64_t weir_score_time_bytes(const struct weir_plan *plan)
{
    return plan->op_count * sizeof(struct weir_op_time);
}

uint64_t weir_score_bytes(const struct weir_plan *plan, const struct weir_trace *trace)
{
    return plan->op_count * (sizeof(uint32_t) + sizeof(bool)) +
           trace->put_get_count * sizeof(struct weir_get_order);
}

static enum weir_status queue_open(struct weir_lane_queue *queue, struct weir_device *device,
                                   enum weir_engine engine, const char *name)
{
    queue->device = device;
    queue->table = device->table;
    if (!queue->stream)
        WEIR_TRY(queue->table->stream_create(device, engine, name, &queue->stream));
    for (uint32_t i = 0; i < WEIR_EVENT_SLOTS; i++)
        WEIR_TRY(queue->table->event_create(device, &queue->events[i]));
    return WEIR_OK;
}

static void queue_close(struct weir_lane_queue *queue, bool borrowed)
{
    if (queue->stream && !borrowed)
        queue->table->stream_destroy(queue->stream);
    for (uint32_t i = 0; i < WEIR_EVENT_SLOTS; i++)
        if (queue->events[i])
            queue->table->event_destroy(queue->events[i]);
}

static enum weir_status queues_open(struct weir_replay *r)
{
    struct weir_device *device = r->options.device, *updater = r->options.updater;
    struct weir_lane_queue *queues = r->queues;
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++)
        r->lanes[l].queue = &queues[l];
    queues[WEIR_LANE_COMPUTE].stream = r->options.compute;
    WEIR_TRY(queue_open(&queues[WEIR_LANE_COMPUTE], device, WEIR_ENGINE_COMPUTE, "compute"));
    WEIR_TRY(queue_open(&queues[WEIR_LANE_TO_DEVICE], device, WEIR_ENGINE_TO_DEVICE, "to-device"));
    WEIR_TRY(queue_open(&queues[WEIR_LANE_TO_HOST], device, WEIR_ENGINE_TO_HOST, "to-host"));
    WEIR_TRY(queue_open(&queues[WEIR_LANE_COLLECTIVE], device, WEIR_ENGINE_COMPUTE, "collective"));
    WEIR_TRY(queue_open(&queues[WEIR_LANE_UPDATE], updater ? updater : device, WEIR_ENGINE_COMPUTE,
                        "update"));
    return updater ? queue_open(&r->link_queue, device, WEIR_ENGINE_COMPUTE, "link update")
                   : WEIR_OK;
}

static enum weir_status driver_start(struct weir_replay *r)
{
    int error = pthread_create(&r->driver, NULL, weir_replay_drive, r);
    if (error)
        return weir_fail_errno(WEIR_ERR_NOMEM, error, "driver thread: pthread_create failed");
    r->driver_started = true;
    return WEIR_OK;
}

enum weir_status weir_replay_open(struct weir_replay **out,
                                  const struct weir_replay_options *options)
{
    struct weir_replay *r;
    WEIR_TRY(weir_alloc(&r, 1, sizeof *r, "replay"));
    r->options = *options;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    pthread_mutex_init(&r->sticky.lock, NULL);
    enum weir_status status = queues_open(r);
    if (status == WEIR_OK)
        status = driver_start(r);
    if (status != WEIR_OK) {
        weir_replay_close(r);
        return status;
    }
    *out = r;
    return WEIR_OK;
}

static void driver_stop(struct weir_replay *r)
{
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    weir_io_wake(r->options.io);
    pthread_join(r->driver, NULL);
}

void weir_replay_close(struct weir_replay *r)
{
    if (!r)
        return;
    if (r->driver_started)
        driver_stop(r);
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++)
        queue_close(&r->queues[l], l == WEIR_LANE_COMPUTE);
    queue_close(&r->link_queue, false);
    pthread_mutex_destroy(&r->sticky.lock);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    weir_free(r->entries);
    weir_free(r);
}

enum weir_status weir_replay_begin(struct weir_replay *r, struct weir_score *score,
                                   const bool *pending)
{
    WEIR_TRY(weir_sticky_raise(&r->sticky));
    if (r->score)
        return weir_fail(WEIR_ERR_STATE, "step \"%s\": begun inside step \"%s\"; end that first",
                         score->plan->key, r->score->plan->key);
    pthread_mutex_lock(&r->lock);
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++) {
        r->lanes[l].count = score->first[l + 1] - score->first[l];
        r->lanes[l].begun = r->lanes[l].complete = 0;
    }
    r->lanes[WEIR_LANE_UPDATE].queue = score->plan->choice.update_over_link && r->options.updater
                                           ? &r->link_queue
                                           : &r->queues[WEIR_LANE_UPDATE];
    if (score->times) {
        memset(score->times, 0, score->plan->op_count * sizeof *score->times);
        score->begin_ns = weir_now_ns();
    }
    r->stats = (struct weir_replay_stats){0};
    r->stall_ns = 0; /* the compute stream is idle */
    r->cursor = r->opened_count = r->held_count = 0;
    r->get_count = 0;
    r->pending = pending;
    r->aborting = r->aborted = r->abort_heard = false;
    r->score = score;
    weir_replay_note(r, WEIR_LOG_BEGIN, 0, false);
    pthread_mutex_unlock(&r->lock);
    weir_io_wake(r->options.io);
    return WEIR_OK;
}

static bool lanes_complete(const struct weir_replay *r)
{
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++)
        if (r->lanes[l].complete < r->lanes[l].count)
            return false;
    return true;
}

/* Wait for every lane; the step is over whether it went well or not. */
static enum weir_status step_close(struct weir_replay *r)
{
    weir_io_wake(r->options.io);
    pthread_mutex_lock(&r->lock);
    while (!r->failed && !lanes_complete(r))
        pthread_cond_wait(&r->changed, &r->lock);
    weir_replay_note(r, WEIR_LOG_END, 0, false);
    r->score = NULL;
    pthread_mutex_unlock(&r->lock);
    return weir_sticky_raise(&r->sticky);
}

/* All compute is known complete. */
static enum weir_status compute_finish(struct weir_replay *r, uint32_t stages)
{
    WEIR_TRY(r->options.device->table->stream_sync(r->options.compute));
    pthread_mutex_lock(&r->lock);
    r->lanes[WEIR_LANE_COMPUTE].begun = r->lanes[WEIR_LANE_COMPUTE].complete = stages;
    pthread_mutex_unlock(&r->lock);
    return WEIR_OK;
}

enum weir_status weir_replay_end(struct weir_replay *r, struct weir_replay_stats *stats)
{
    WEIR_TRY(weir_sticky_raise(&r->sticky));
    const struct weir_trace *trace = r->score->trace;
    if (r->cursor < trace->event_count) {
        char expected[256];
        weir_trace_describe(trace, r->options.model, r->cursor, expected, sizeof expected);
        return weir_fail(WEIR_ERR_DIVERGED,
                         "step \"%s\", event %zu of %zu: end of the step, recorded was: %s; abort "
                         "the step, or record this shape under another key",
                         trace->key, r->cursor, trace->event_count, expected);
    }
    WEIR_TRY(weir_replay_seal(r));
    WEIR_TRY(compute_finish(r, r->opened_count));
    const struct weir_get_order *gets = r->score->gets;
    for (size_t i = 0; i < r->get_count; i++)
        memcpy(gets[i].to, (char *)r->options.slabs[WEIR_TIER_HOST] + gets[i].mail_offset,
               gets[i].byte_count);
    WEIR_TRY(step_close(r));
    *stats = r->stats;
    stats->stall_ns = r->stall_ns;
    return WEIR_OK;
}

enum weir_status weir_replay_abort(struct weir_replay *r)
{
    WEIR_TRY(weir_sticky_raise(&r->sticky));
    if (!r->score)
        return WEIR_OK;
    pthread_mutex_lock(&r->lock);
    r->aborting = true;
    pthread_mutex_unlock(&r->lock);
    WEIR_TRY(compute_finish(r, r->opened_count));
    pthread_mutex_lock(&r->lock);
    r->aborted = true;
    pthread_mutex_unlock(&r->lock);
    return step_close(r);
}

enum weir_status weir_replay_transfer(struct weir_replay *r, const struct weir_io_request *requests,
                                      size_t count)
{
    WEIR_TRY(weir_sticky_raise(&r->sticky));
    pthread_mutex_lock(&r->lock);
    r->outside = requests;
    r->outside_submitted = r->outside_complete = 0;
    r->outside_status = WEIR_OK;
    r->outside_count = count;
    pthread_mutex_unlock(&r->lock);
    weir_io_wake(r->options.io);
    pthread_mutex_lock(&r->lock);
    while (!r->failed && r->outside_complete < count)
        pthread_cond_wait(&r->changed, &r->lock);
    r->outside_count = r->outside_submitted = r->outside_complete = 0;
    enum weir_status status = r->outside_status;
    pthread_mutex_unlock(&r->lock);
    if (status != WEIR_OK)
        return weir_fail_with(&r->outside_error);
    return weir_sticky_raise(&r->sticky);
}

enum weir_status weir_replay_log_start(struct weir_replay *r, size_t capacity)
{
    weir_free(r->entries);
    r->entries = NULL;
    r->entry_count = r->entry_capacity = 0;
    WEIR_TRY(weir_alloc(&r->entries, capacity, sizeof *r->entries, "replay log"));
    r->entry_capacity = capacity;
    return WEIR_OK;
}

const struct weir_log_entry *weir_replay_log_read(struct weir_replay *r, size_t *count)
{
    pthread_mutex_lock(&r->lock);
    *count = r->entry_count;
    pthread_mutex_unlock(&r->lock);
    return r->entries;
}

void weir_replay_note(struct weir_replay *r, enum weir_log_kind kind, size_t index, bool left_out)
{
    if (r->entry_count < r->entry_capacity)
        r->entries[r->entry_count++] =
            (struct weir_log_entry){.kind = kind, .index = (uint32_t)index, .left_out = left_out};
}
