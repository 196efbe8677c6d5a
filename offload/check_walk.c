#include "core/memory.h"
#include "offload/check_internal.h"

/* A block's or kept tensor's newest versions; a home that holds an older one is stale. */
struct now {
    uint32_t weight, frozen, state, grad, kept; /* frozen: the weight of the frozen windows */
    uint32_t updated_weight, updated_state;     /* what UPDATE makes */
    bool pending;                               /* before the step */
    bool summed;                                /* in this step, up to now */
    uint32_t summed_stage;                      /* the last stage that did */
    uint32_t reduce_count;
};

struct walk {
    struct weir_check *check;
    struct now *now; /* [thing] */
    uint32_t serial; /* versions of gradients and kept tensors, never used twice */
    bool abort;
};

static const char *const part_names[] = {"weight", "gradient", "state", "bytes"};

static const struct weir_content nothing = {.kind = WEIR_CONTENT_NONE};

static enum weir_status stage_kept(struct walk *w, uint32_t stage, uint32_t use)
{
    struct weir_check *check = w->check;
    const struct weir_trace_use *u = &check->trace->uses[use];
    const struct weir_check_range *bytes = &check->use_bytes[use];
    struct now *now = &w->now[u->id];
    struct weir_content content = {WEIR_CONTENT_KEPT, u->id, now->kept, 0};
    bool born = u->access == WEIR_NEW && u->stage_first == stage;
    if (check->plan->uses[use].refused)
        return WEIR_OK;
    if (!born && !weir_check_holds(check, bytes, content))
        return weir_check_fail_stage(check, stage, u->id, "the kept bytes are not there");
    if (u->access == WEIR_NEW || u->access == WEIR_CHANGE) {
        content.version = now->kept = ++w->serial;
        weir_check_put(check, bytes, content);
    }
    return WEIR_OK;
}

/* The trained windows of a block come first; only they are updated. */
static enum weir_status stage_weight(struct walk *w, uint32_t stage, uint32_t use)
{
    struct weir_check *check = w->check;
    const struct weir_trace_use *u = &check->trace->uses[use];
    const struct weir_thing *block = &check->model->things[u->id];
    struct now *now = &w->now[u->id];
    uint64_t trained_bytes = block->trained_element_count * check->weight_bytes;
    struct weir_check_range trained =
        weir_check_front(check, &check->use_bytes[use], trained_bytes);
    struct weir_check_range frozen = check->use_bytes[use];
    struct weir_content content = {WEIR_CONTENT_WEIGHT, u->id, now->weight, 0};
    struct weir_content cold = {WEIR_CONTENT_WEIGHT, u->id, now->frozen, trained_bytes};
    frozen.first = trained.end;
    if ((trained.first < trained.end && !weir_check_holds(check, &trained, content)) ||
        (frozen.first < frozen.end && !weir_check_holds(check, &frozen, cold)))
        return weir_check_fail_stage(check, stage, u->id, "the newest weight is not there");
    if (u->access == WEIR_WRITE) {
        content.version = ++now->weight;
        cold.version = ++now->frozen;
        weir_check_put(check, &trained, content);
        weir_check_put(check, &frozen, cold);
    }
    return WEIR_OK;
}

/* A stage adds to a gradient once, however many wants of it nest. */
static enum weir_status stage_sum(struct walk *w, uint32_t stage, uint32_t use)
{
    struct weir_check *check = w->check;
    uint32_t id = check->trace->uses[use].id;
    const struct weir_check_range *grads = &check->use_grads[use];
    struct now *now = &w->now[id];
    struct weir_content content = {WEIR_CONTENT_GRAD, id, now->grad, 0};
    if (now->summed && !weir_check_holds(check, grads, content))
        return weir_check_fail_stage(check, stage, id, "the gradient summed so far is not there");
    if (now->summed && now->summed_stage == stage)
        return WEIR_OK;
    content.version = now->grad = ++w->serial;
    now->summed = true;
    now->summed_stage = stage;
    weir_check_put(check, grads, content);
    return WEIR_OK;
}

/* Written in its first stage, still there in the others. */
static enum weir_status stage_scratch(struct weir_check *check, uint32_t stage, uint32_t scratch)
{
    const struct weir_content content = {WEIR_CONTENT_SCRATCH, scratch, 0, 0};
    const struct weir_check_range *bytes = &check->scratches[scratch];
    if (stage > check->scratch_stage[scratch] && !weir_check_holds(check, bytes, content))
        return weir_check_fail_plan(check, "stage %u: scratch %u is not there any more", stage,
                                    scratch);
    weir_check_put(check, bytes, content);
    return WEIR_OK;
}

static enum weir_status stage_walk(struct walk *w, uint32_t stage)
{
    struct weir_check *check = w->check;
    for (uint32_t a = check->active_first[stage]; a < check->active_first[stage + 1]; a++) {
        uint32_t use = check->active[a];
        const struct weir_trace_use *u = &check->trace->uses[use];
        const struct weir_thing *thing = &check->model->things[u->id];
        if (!thing->is_block)
            WEIR_TRY(stage_kept(w, stage, use));
        else if (u->access != WEIR_ADD)
            WEIR_TRY(stage_weight(w, stage, use));
        if (weir_check_sums(thing, u->access))
            WEIR_TRY(stage_sum(w, stage, use));
    }
    for (uint32_t i = check->scratch_first[stage]; i < check->scratch_first[stage + 1]; i++)
        WEIR_TRY(stage_scratch(check, stage, check->scratch[i]));
    return WEIR_OK;
}

/* Which bytes of its thing a transfer must find: any version, the right part and window. */
static bool content_fits(const struct walk *w, const struct weir_op *op,
                         const struct weir_content *content)
{
    const struct weir_check *check = w->check;
    const struct weir_thing *thing = &check->model->things[op->thing];
    uint64_t bytes = op->places[0].bytes;
    if (content->thing != op->thing)
        return false;
    if (!thing->is_block)
        return content->kind == WEIR_CONTENT_KEPT;
    const struct weir_window *window = &thing->windows[op->window];
    uint32_t element = op->part == WEIR_PART_WEIGHT            ? check->weight_bytes
                       : op->part == WEIR_PART_STATE           ? check->state_bytes
                       : content->kind == WEIR_CONTENT_REDUCED ? check->grad_bytes
                                                               : WEIR_DEVICE_GRAD_BYTES;
    bool kind = op->part == WEIR_PART_WEIGHT ? content->kind == WEIR_CONTENT_WEIGHT
                : op->part == WEIR_PART_STATE
                    ? content->kind == WEIR_CONTENT_STATE
                    : content->kind == WEIR_CONTENT_GRAD || content->kind == WEIR_CONTENT_REDUCED;
    return kind && content->offset == window->offset * element &&
           bytes == window->element_count * element;
}

static enum weir_status transfer_walk(struct walk *w, size_t index)
{
    struct weir_check *check = w->check;
    const struct weir_op *op = &check->plan->ops[index];
    const struct weir_check_range *from = &check->ops[index * WEIR_OP_PLACES];
    struct weir_content content = check->tiers[from->tier].contents[from->first];
    if (!content_fits(w, op, &content) || !weir_check_holds(check, from, content))
        return weir_check_fail(check, index, "what it moves is not the %s of its window",
                               part_names[op->part]);
    weir_check_put(check, from + 1, content);
    return WEIR_OK;
}

static enum weir_status update_walk(struct walk *w, size_t index)
{
    struct weir_check *check = w->check;
    const struct weir_op *op = &check->plan->ops[index];
    const struct weir_check_range *places = &check->ops[index * WEIR_OP_PLACES];
    const struct now *now = &w->now[op->thing];
    uint64_t offset = check->model->things[op->thing].windows[op->window].offset;
    struct weir_content state = {WEIR_CONTENT_STATE, op->thing, now->updated_state - 1,
                                 offset * check->state_bytes};
    struct weir_content grad = {WEIR_CONTENT_REDUCED, op->thing, now->grad,
                                offset * check->grad_bytes};
    struct weir_content weight = {WEIR_CONTENT_WEIGHT, op->thing, now->updated_weight - 1,
                                  offset * check->weight_bytes};
    if (!weir_check_holds(check, &places[0], state))
        return weir_check_fail(check, index, "the window's state is not there");
    if (now->summed || !weir_check_holds(check, &places[1], grad))
        return weir_check_fail(check, index, "the window's pending gradient is not there");
    if (!weir_check_holds(check, &places[2], weight))
        return weir_check_fail(check, index, "the window's weight is not there");
    state.version++;
    weight.version++;
    weir_check_put(check, &places[0], state);
    weir_check_put(check, &places[2], weight);
    return WEIR_OK;
}

/* After an update in this step, if one is due; clearing twice changes nothing. */
static enum weir_status clear_walk(struct walk *w, size_t index)
{
    struct weir_check *check = w->check;
    const struct weir_op *op = &check->plan->ops[index];
    const struct weir_check_range *place = &check->ops[index * WEIR_OP_PLACES];
    const struct now *now = &w->now[op->thing];
    uint64_t offset = check->model->things[op->thing].windows[op->window].offset;
    struct weir_content state = {WEIR_CONTENT_STATE, op->thing, now->updated_state,
                                 offset * check->state_bytes};
    bool found = weir_check_holds(check, place, state);
    state.version++;
    if (!found && !weir_check_holds(check, place, state))
        return weir_check_fail(check, index, "the window's newest state is not there");
    weir_check_put(check, place, state);
    return WEIR_OK;
}

static enum weir_status reduce_walk(struct walk *w, size_t index)
{
    struct weir_check *check = w->check;
    const struct weir_op *op = &check->plan->ops[index];
    const struct weir_check_range *place = &check->ops[index * WEIR_OP_PLACES];
    struct now *now = &w->now[op->thing];
    const struct weir_window *window = &check->model->things[op->thing].windows[op->window];
    struct weir_content content = {WEIR_CONTENT_GRAD, op->thing, now->grad,
                                   window->offset * WEIR_DEVICE_GRAD_BYTES};
    if (!now->summed || !weir_check_holds(check, place, content))
        return weir_check_fail(check, index, "the window's summed gradient is not there");
    now->reduce_count++;
    struct weir_check_range front =
        weir_check_front(check, place, window->element_count * check->grad_bytes);
    weir_check_put(check, place, nothing);
    content.kind = WEIR_CONTENT_REDUCED;
    content.offset = window->offset * check->grad_bytes;
    weir_check_put(check, &front, content);
    return WEIR_OK;
}

/* The same rule as replay's: what is left out takes its turn and moves nothing. */
static bool left_out(const struct walk *w, const struct weir_op *op)
{
    if (op->pending_only)
        return !w->now[op->thing].pending;
    if (!w->abort)
        return false;
    bool read = op->kind == WEIR_OP_READ && op->part == WEIR_PART_WEIGHT;
    return !read || !w->now[op->thing].pending;
}

static enum weir_status op_walk(struct walk *w, size_t index)
{
    const struct weir_op *op = &w->check->plan->ops[index];
    if (left_out(w, op))
        return WEIR_OK;
    switch (op->kind) {
    case WEIR_OP_UPDATE:
        return update_walk(w, index);
    case WEIR_OP_CLEAR:
        return clear_walk(w, index);
    case WEIR_OP_REDUCE:
        return reduce_walk(w, index);
    case WEIR_OP_COMPUTE:
        return stage_walk(w, op->thing);
    default:
        return transfer_walk(w, index);
    }
}

static enum weir_status home_check(const struct walk *w, uint32_t block, uint32_t window,
                                   uint32_t part, struct weir_content content)
{
    const struct weir_check *check = w->check;
    const struct weir_thing *thing = &check->model->things[block];
    uint64_t elements = thing->windows[window].element_count;
    struct weir_check_range range = *weir_check_home(check, block, window, part);
    content.thing = block;
    content.offset = thing->windows[window].offset;
    content.offset *= part == WEIR_PART_WEIGHT  ? check->weight_bytes
                      : part == WEIR_PART_STATE ? check->state_bytes
                                                : check->grad_bytes;
    if (part == WEIR_PART_GRAD)
        range = weir_check_front(check, &range, elements * check->grad_bytes);
    if (weir_check_holds(check, &range, content))
        return WEIR_OK;
    return weir_check_fail_plan(check,
                                "at its end the home of the %s of \"%s\" window %u does not hold "
                                "the newest one",
                                part_names[part], thing->name, window);
}

static enum weir_status block_end(const struct walk *w, uint32_t block, bool pending)
{
    const struct weir_thing *thing = &w->check->model->things[block];
    const struct now *now = &w->now[block];
    for (uint32_t i = 0; i < thing->window_count; i++) {
        bool trained = i < thing->trained_window_count;
        WEIR_TRY(home_check(
            w, block, i, WEIR_PART_WEIGHT,
            (struct weir_content){WEIR_CONTENT_WEIGHT, 0, trained ? now->weight : now->frozen, 0}));
        if (!trained)
            continue;
        WEIR_TRY(home_check(w, block, i, WEIR_PART_STATE,
                            (struct weir_content){WEIR_CONTENT_STATE, 0, now->state, 0}));
        if (pending)
            WEIR_TRY(home_check(w, block, i, WEIR_PART_GRAD,
                                (struct weir_content){WEIR_CONTENT_REDUCED, 0, now->grad, 0}));
    }
    uint32_t reduces = now->summed ? thing->trained_window_count : 0;
    if (now->reduce_count != reduces)
        return weir_check_fail_plan(w->check, "the gradient of \"%s\" is reduced %u times, not %u",
                                    thing->name, now->reduce_count, reduces);
    return WEIR_OK;
}

static void step_begin(struct walk *w)
{
    for (uint32_t i = 0; i < w->check->model->thing_count; i++) {
        struct now *now = &w->now[i];
        bool updates = now->pending && w->check->used[i];
        now->updated_weight = now->weight = now->weight + updates;
        now->updated_state = now->state = now->state + updates;
        now->summed = false;
        now->reduce_count = 0;
    }
}

static enum weir_status step_walk(struct walk *w)
{
    const struct weir_check *check = w->check;
    step_begin(w);
    for (size_t i = 0; i < check->plan->op_count; i++)
        WEIR_TRY(op_walk(w, i));
    for (uint32_t i = 0; i < check->model->thing_count; i++) {
        if (!check->model->things[i].is_block)
            continue;
        struct now *now = &w->now[i];
        if (check->written[i] && check->model->dtype == WEIR_BF16 && !w->abort)
            now->state++;
        bool pending = now->summed || (now->pending && !check->used[i]);
        WEIR_TRY(block_end(w, i, pending));
        now->pending = pending;
    }
    return WEIR_OK;
}

/* Homes as they are between steps; everything else holds nothing yet. */
static void contents_reset(struct walk *w)
{
    struct weir_check *check = w->check;
    for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++)
        for (size_t i = 0; i < check->tiers[t].count; i++)
            check->tiers[t].contents[i] = nothing;
    for (uint32_t i = 0; i < check->model->thing_count; i++) {
        const struct weir_thing *thing = &check->model->things[i];
        for (uint32_t k = 0; thing->is_block && k < thing->window_count; k++) {
            const struct weir_window *window = &thing->windows[k];
            struct weir_content content = {WEIR_CONTENT_WEIGHT, i, 0,
                                           window->offset * check->weight_bytes};
            weir_check_put(check, weir_check_home(check, i, k, WEIR_PART_WEIGHT), content);
            if (k >= thing->trained_window_count)
                continue;
            content = (struct weir_content){WEIR_CONTENT_STATE, i, 0,
                                            window->offset * check->state_bytes};
            weir_check_put(check, weir_check_home(check, i, k, WEIR_PART_STATE), content);
            if (!w->now[i].pending)
                continue;
            struct weir_check_range front =
                weir_check_front(check, weir_check_home(check, i, k, WEIR_PART_GRAD),
                                 window->element_count * check->grad_bytes);
            content = (struct weir_content){WEIR_CONTENT_REDUCED, i, 0,
                                            window->offset * check->grad_bytes};
            weir_check_put(check, &front, content);
        }
    }
}

enum weir_status weir_check_contents(struct weir_check *check, const bool *pending, bool all,
                                     bool abort)
{
    struct walk walk = {.check = check, .abort = abort};
    WEIR_TRY(weir_alloc(&walk.now, check->model->thing_count, sizeof *walk.now, "check: versions"));
    for (uint32_t i = 0; i < check->model->thing_count; i++)
        walk.now[i].pending =
            check->model->things[i].trained_element_count > 0 && (pending ? pending[i] : all);
    contents_reset(&walk);
    enum weir_status status = WEIR_OK;
    for (int step = 0; status == WEIR_OK && step < (abort ? 1 : 2); step++)
        status = step_walk(&walk);
    weir_free(walk.now);
    return status;
}
