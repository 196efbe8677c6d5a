/*
 * The update of pending blocks, and how a block becomes pending: norm, finite check, clip factor.
 */
#include "zero/run.h"

#include <math.h>
#include <string.h>

/* Where the device that the stream belongs to counts the block's masters that are not finite. */
static uint64_t *count_of(const weir_run *run, const struct weir_stream *stream, uint32_t block)
{
    bool on_device = run->device_counts && stream->device == run->device;
    return on_device ? &run->device_counts[block] : &run->bad_counts[block];
}

static void adam_fill(const weir_run *run, const struct weir_stream *stream, uint32_t block,
                      uint32_t window, struct weir_adam_args *args)
{
    const struct weir_thing *thing = &run->model.things[block];
    const struct weir_owed *owed = &run->owed[block];
    *args = (struct weir_adam_args){
        .dtype = run->model.dtype,
        .grad_dtype = run->model.grad_dtype,
        .lr = owed->lr,
        .beta1 = owed->beta1,
        .beta2 = owed->beta2,
        .eps = owed->eps,
        .weight_decay = owed->weight_decay,
        .clip_factor = owed->clip_factor,
        .correction1 = owed->correction1,
        .correction2 = owed->correction2,
        .bad_count = count_of(run, stream, block),
        .segment_count = thing->windows[window].segment_count,
    };
    weir_window_segments(thing, window, args->segments);
}

/* Of the device that the stream belongs to. */
static struct weir_kernels *kernels_of(const weir_run *run, const struct weir_stream *stream)
{
    return stream->device == run->updater ? run->update_kernels : run->kernels;
}

static enum weir_status update(void *context, struct weir_stream *stream, uint32_t block,
                               uint32_t window, void *state, const void *grad, void *weight)
{
    weir_run *run = context;
    struct weir_adam_args args;
    adam_fill(run, stream, block, window, &args);
    args.state = state;
    args.grad = grad;
    args.weight = weight;
    struct weir_kernels *kernels = kernels_of(run, stream);
    return kernels->table->adam(kernels, stream, &args);
}

static enum weir_status clear(void *context, struct weir_stream *stream, uint32_t block,
                              uint32_t window, void *state)
{
    weir_run *run = context;
    const struct weir_thing *thing = &run->model.things[block];
    struct weir_clear_residual_args args = {
        .dtype = run->model.dtype,
        .state = state,
        .segment_count = thing->windows[window].segment_count,
    };
    weir_window_segments(thing, window, args.segments);
    struct weir_kernels *kernels = kernels_of(run, stream);
    return kernels->table->clear_residual(kernels, stream, &args);
}

static enum weir_status reduce(void *context, struct weir_stream *stream, uint32_t block,
                               uint32_t window, float *grad)
{
    weir_run *run = context;
    const struct weir_thing *thing = &run->model.things[block];
    struct weir_reduce_args args = {
        .grad_dtype = run->model.grad_dtype,
        .grad = grad,
        .partials = run->partials + thing->first_segment + thing->windows[window].first_segment,
        .segment_count = thing->windows[window].segment_count,
    };
    weir_window_segments(thing, window, args.segments);
    return run->math->reduce(run->kernels, stream, &args);
}

struct weir_replay_hooks weir_optimizer_hooks(weir_run *run)
{
    return (struct weir_replay_hooks){
        .context = run, .update = update, .clear = clear, .reduce = reduce};
}

/* Sum of values[0..count) over a fixed tree: halves, the first the larger power of two. */
static double tree_sum(const double *values, size_t count)
{
    if (count <= 2)
        return count == 0 ? 0.0 : count == 1 ? values[0] : values[0] + values[1];
    size_t half = 1;
    while (half * 2 < count)
        half *= 2;
    return tree_sum(values, half) + tree_sum(values + half, count - half);
}

/* gradients[block]: this step made one. */
static bool made_gradient(const struct weir_trace *trace, const struct weir_model *model,
                          size_t use)
{
    const struct weir_trace_use *u = &trace->uses[use];
    return model->things[u->id].is_block && model->things[u->id].trained_window_count > 0 &&
           u->grad_last;
}

static enum weir_status norm_find(weir_run *run, double *norm)
{
    size_t count = run->model.trained_segment_count;
    memset(run->norms, 0, count * sizeof *run->norms);
    const struct weir_trace *trace = run->key->trace;
    for (size_t i = 0; i < trace->use_count; i++) {
        if (!made_gradient(trace, &run->model, i))
            continue;
        const struct weir_thing *block = &run->model.things[trace->uses[i].id];
        WEIR_TRY(run->table->copy(
            run->compute, run->norms + block->first_segment, run->partials + block->first_segment,
            block->trained_segment_count * sizeof *run->norms, WEIR_COPY_TO_HOST));
    }
    WEIR_TRY(run->table->stream_sync(run->compute));
    WEIR_TRY(run->comm->table->all_gather(run->comm, run->norms, count, run->norms));
    *norm = sqrt(tree_sum(run->norms, count));
    return WEIR_OK;
}

enum weir_status weir_optimizer_step(weir_run *run, const struct weir_update *u,
                                     struct weir_report *report)
{
    double norm;
    WEIR_TRY(norm_find(run, &norm));
    report->grad_norm = norm;
    report->skipped = !isfinite(norm);
    if (report->skipped)
        return WEIR_OK;
    run->update_count++;
    double t = (double)run->update_count;
    struct weir_owed owed = {
        .lr = u->lr,
        .beta1 = u->beta1,
        .beta2 = u->beta2,
        .eps = u->eps,
        .weight_decay = u->weight_decay,
        .clip_factor = u->clip > 0 && norm > (double)u->clip ? (float)((double)u->clip / norm) : 1,
        .correction1 = (float)(1.0 - pow((double)u->beta1, t)),
        .correction2 = (float)(1.0 - pow((double)u->beta2, t)),
    };
    const struct weir_trace *trace = run->key->trace;
    for (size_t i = 0; i < trace->use_count; i++)
        if (made_gradient(trace, &run->model, i)) {
            run->owed[trace->uses[i].id] = owed;
            run->pending[trace->uses[i].id] = true;
        }
    return WEIR_OK;
}

enum weir_status weir_optimizer_finish(weir_run *run, uint32_t block, uint32_t window,
                                       struct weir_window_bytes *at)
{
    const uint32_t changed = 1u << WEIR_PART_STATE | 1u << WEIR_PART_WEIGHT;
    const struct weir_window_home *home = &run->homes->blocks[block][window];
    if (home->part[WEIR_PART_WEIGHT].tier == WEIR_TIER_DEVICE) {
        char *device = run->slabs[WEIR_TIER_DEVICE];
        WEIR_TRY(update(run, run->compute, block, window,
                        device + home->part[WEIR_PART_STATE].offset,
                        device + home->part[WEIR_PART_GRAD].offset,
                        device + home->part[WEIR_PART_WEIGHT].offset));
        return weir_home_fetch(&run->home, block, window, changed, at);
    }
    WEIR_TRY(weir_home_fetch(&run->home, block, window, WEIR_PARTS_ALL, at));
    WEIR_TRY(update(run, run->update_stream, block, window, at->part[WEIR_PART_STATE],
                    at->part[WEIR_PART_GRAD], at->part[WEIR_PART_WEIGHT]));
    WEIR_TRY(run->update_stream->device->table->stream_sync(run->update_stream));
    return weir_home_store(&run->home, block, window, changed, at);
}

/* A weight alone may hide it: 5a rounds some nan to zero. */
static bool master_finite(const void *weight, const int16_t *residual, enum weir_dtype dtype,
                          uint64_t i)
{
    const uint16_t *narrow = weight;
    float master;
    if (dtype == WEIR_FP32)
        return isfinite(((const float *)weight)[i]);
    if (!residual)
        return isfinite(weir_float_from_bf16(narrow[i]));
    weir_master_join(&narrow[i], &residual[i], &master, 1);
    uint16_t rounded;
    int16_t rest;
    return weir_master_split(&master, &rounded, &rest, 1) == 0;
}

bool weir_window_bad(const weir_run *run, uint32_t block, uint32_t window,
                     const struct weir_window_bytes *at, struct weir_bad_element *bad)
{
    const struct weir_thing *thing = &run->model.things[block];
    const struct weir_window *w = &thing->windows[window];
    const uint64_t weight_bytes = weir_part_bytes(&run->model, WEIR_PART_WEIGHT);
    const uint64_t state_bytes = weir_part_bytes(&run->model, WEIR_PART_STATE);
    const char *weights = at->part[WEIR_PART_WEIGHT], *states = at->part[WEIR_PART_STATE];
    for (uint32_t s = 0; s < w->segment_count; s++) {
        const struct weir_segment *segment = &thing->segments[w->first_segment + s];
        uint64_t from = segment->offset - w->offset;
        const void *weight = weights + from * weight_bytes;
        const void *residual = states ? states + from * state_bytes : NULL;
        uint64_t i = 0;
        while (i < segment->count && master_finite(weight, residual, run->model.dtype, i))
            i++;
        const struct weir_block_tensor *tensor = &thing->tensors[segment->tensor];
        *bad = (struct weir_bad_element){tensor->name, segment->offset + i - tensor->offset};
        if (i < segment->count)
            return true;
    }
    return false;
}

/* Which tensor and element is it? Reads the block again. */
static enum weir_status bad_name(weir_run *run, uint32_t block)
{
    const uint32_t parts = 1u << WEIR_PART_WEIGHT | 1u << WEIR_PART_STATE;
    const struct weir_thing *thing = &run->model.things[block];
    for (uint32_t w = 0; w < thing->trained_window_count; w++) {
        struct weir_window_bytes at;
        struct weir_bad_element bad;
        WEIR_TRY(weir_home_fetch(&run->home, block, w, parts, &at));
        if (weir_window_bad(run, block, w, &at, &bad))
            return weir_fail(
                WEIR_ERR_CORRUPT,
                "tensor \"%s\": element %llu is not finite after update %llu; resume from "
                "a checkpoint with a lower learning rate",
                bad.tensor, (unsigned long long)bad.element, (unsigned long long)run->update_count);
    }
    return weir_fail(WEIR_ERR_CORRUPT, "block \"%s\": an update left a master that is not finite",
                     thing->name);
}

enum weir_status weir_optimizer_verify(weir_run *run)
{
    const size_t count = run->model.thing_count;
    uint64_t *fetched = run->device_counts ? run->bad_counts + count : NULL;
    if (fetched) {
        WEIR_TRY(run->table->copy(run->compute, fetched, run->device_counts,
                                  count * sizeof *fetched, WEIR_COPY_TO_HOST));
        WEIR_TRY(run->table->stream_sync(run->compute));
    }
    for (size_t i = 0; i < count; i++)
        if (run->bad_counts[i] > 0 || (fetched && fetched[i] > 0))
            return bad_name(run, (uint32_t)i);
    return WEIR_OK;
}
