/*
 * Pass 4: the ops of one arrival and of one departure, window by window, piece by piece.
 */
#include "core/memory.h"
#include "offload/home.h"
#include "offload/plan_maker.h"

uint64_t weir_piece_bytes(const struct weir_model *model)
{
    const struct weir_grain *g = &model->grain;
    return (uint64_t)g->segment_elements * g->window_segments *
           (weir_part_bytes(model, WEIR_PART_WEIGHT) + WEIR_DEVICE_GRAD_BYTES +
            weir_part_bytes(model, WEIR_PART_STATE));
}

static void most(uint64_t *a, uint64_t b)
{
    *a = b > *a ? b : *a;
}

/* Two of the largest pieces that can pass through the ring. Of blocks all, wanted or not: load,
 * store and save pass their windows through it as well. */
uint64_t weir_ring_least(const struct weir_model *model, const struct weir_trace *trace)
{
    uint64_t bytes = weir_home_buffer_bytes(model), piece = weir_piece_bytes(model);
    most(&bytes, WEIR_PAGE);
    for (size_t i = 0; i < trace->use_count; i++) {
        const struct weir_thing *thing = &model->things[trace->uses[i].id];
        if (!thing->is_block)
            most(&bytes, thing->slot_bytes < piece ? thing->slot_bytes : piece);
    }
    return 2 * bytes;
}

enum weir_status weir_maker_op_add(struct weir_maker *m, struct weir_op op,
                                   const struct weir_touch *touches, size_t count)
{
    struct weir_plan *plan = m->plan;
    WEIR_TRY(weir_board_add(m->board, &op, touches, count));
    WEIR_TRY(weir_grow(&plan->ops, &plan->op_capacity, plan->op_count + 1, sizeof *plan->ops,
                       "plan ops"));
    plan->ops[plan->op_count++] = op;
    return WEIR_OK;
}

static enum weir_status move_add(struct weir_maker *m, struct weir_op op, struct weir_place from,
                                 struct weir_place to)
{
    static const enum weir_lane lanes[] = {WEIR_LANE_READ, WEIR_LANE_WRITE, WEIR_LANE_TO_DEVICE,
                                           WEIR_LANE_TO_HOST};
    op.lane = lanes[op.kind];
    op.places[0] = from;
    op.places[1] = to;
    struct weir_touch touches[] = {{from, false}, {to, true}};
    return weir_maker_op_add(m, op, touches, 2);
}

/* The next bytes of the ring; the board finds whom to wait for. */
static struct weir_place ring_take(struct weir_maker *m, uint64_t bytes)
{
    if (m->ring_head + bytes > m->plan->ring_bytes)
        m->ring_head = 0;
    m->ring_head += bytes;
    return (struct weir_place){WEIR_TIER_HOST, m->ring_head - bytes, bytes};
}

static struct weir_place slice(struct weir_place place, uint64_t offset, uint64_t bytes)
{
    return (struct weir_place){place.tier, place.offset + offset, bytes};
}

/* READs of the parts of a window that live on NVMe, into one piece of the ring; at[] says where
 * each part then is. */
static enum weir_status window_fetch(struct weir_maker *m, struct weir_op op, uint32_t parts,
                                     const struct weir_window_home *home, bool weight_pending_only,
                                     struct weir_place at[3])
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < 3; p++) {
        at[p] = home->part[p];
        if (parts >> p & 1 && at[p].tier == WEIR_TIER_NVME)
            bytes += at[p].bytes;
    }
    if (bytes == 0)
        return WEIR_OK;
    static const uint32_t order[] = {WEIR_PART_STATE, WEIR_PART_GRAD, WEIR_PART_WEIGHT};
    struct weir_place piece = ring_take(m, bytes);
    uint64_t used = 0;
    for (int i = 0; i < 3; i++) {
        uint32_t p = order[i];
        if (!(parts >> p & 1) || home->part[p].tier != WEIR_TIER_NVME || home->part[p].bytes == 0)
            continue;
        at[p] = slice(piece, used, home->part[p].bytes);
        used += at[p].bytes;
        op.kind = WEIR_OP_READ;
        op.part = (enum weir_part)p;
        op.pending_only = p != WEIR_PART_WEIGHT || weight_pending_only;
        WEIR_TRY(move_add(m, op, home->part[p], at[p]));
    }
    return WEIR_OK;
}

/* What changes a state runs where it is: the device's own work beside reductions, so that in a lane
 * one processor does all. */
static enum weir_lane state_lane(const struct weir_place *state)
{
    return state->tier == WEIR_TIER_DEVICE ? WEIR_LANE_COLLECTIVE : WEIR_LANE_UPDATE;
}

static enum weir_status update_add(struct weir_maker *m, struct weir_op op,
                                   const struct weir_place at[3])
{
    op.kind = WEIR_OP_UPDATE;
    op.lane = state_lane(&at[WEIR_PART_STATE]);
    op.pending_only = true;
    op.places[0] = at[WEIR_PART_STATE];
    op.places[1] = at[WEIR_PART_GRAD];
    /* On the device a gradient has room for fp32; reduced to bf16 it fills the first half. */
    op.places[1].bytes = m->d->model->things[op.thing].windows[op.window].element_count *
                         weir_part_bytes(m->d->model, WEIR_PART_GRAD);
    op.places[2] = at[WEIR_PART_WEIGHT];
    struct weir_touch touches[] = {
        {op.places[0], true}, {op.places[1], false}, {op.places[2], true}};
    return weir_maker_op_add(m, op, touches, 3);
}

/* WRITEs of state and weight from the ring to their homes. */
static enum weir_status window_return(struct weir_maker *m, struct weir_op op,
                                      const struct weir_window_home *home,
                                      const struct weir_place at[3])
{
    static const uint32_t order[] = {WEIR_PART_STATE, WEIR_PART_WEIGHT};
    for (int i = 0; i < 2; i++)
        if (home->part[order[i]].tier == WEIR_TIER_NVME) {
            op.kind = WEIR_OP_WRITE;
            op.part = (enum weir_part)order[i];
            op.pending_only = true;
            WEIR_TRY(move_add(m, op, at[order[i]], home->part[order[i]]));
        }
    return WEIR_OK;
}

static enum weir_status window_arrive(struct weir_maker *m, const struct weir_coming *c,
                                      uint32_t window)
{
    struct weir_draft *d = m->d;
    const struct weir_thing *thing = &d->model->things[c->id];
    const struct weir_window_home *home = &d->homes->blocks[c->id][window];
    bool in_ring = home->part[WEIR_PART_WEIGHT].tier == WEIR_TIER_NVME;
    bool update =
        (in_ring ? c->update_in_ring : c->update_in_place) && window < thing->trained_window_count;
    struct weir_op op = {.arrives = true, .thing = c->id, .window = window, .stage = c->a};
    bool device = home->part[WEIR_PART_WEIGHT].tier == WEIR_TIER_DEVICE;
    struct weir_place at[3] = {home->part[0], home->part[1], home->part[2]};
    uint32_t parts = update ? 7u : 1u << WEIR_PART_WEIGHT;
    bool moves = c->stay != UINT32_MAX;
    if (!device && (update || moves))
        WEIR_TRY(window_fetch(m, op, parts, home, !moves, at));
    if (update)
        WEIR_TRY(update_add(m, op, at));
    if (moves) {
        uint64_t each = weir_part_bytes(d->model, WEIR_PART_WEIGHT);
        op.kind = WEIR_OP_H2D;
        op.part = WEIR_PART_WEIGHT;
        struct weir_place slot = {WEIR_TIER_DEVICE,
                                  d->stays[c->stay].offset + thing->windows[window].offset * each,
                                  thing->windows[window].element_count * each};
        WEIR_TRY(move_add(m, op, at[WEIR_PART_WEIGHT], slot));
    }
    return update && !device ? window_return(m, op, home, at) : WEIR_OK;
}

enum weir_status weir_maker_block_arrive(struct weir_maker *m, const struct weir_coming *c)
{
    const struct weir_thing *thing = &m->d->model->things[c->id];
    uint32_t count = c->stay == UINT32_MAX ? thing->trained_window_count : thing->window_count;
    for (uint32_t w = 0; w < count; w++)
        WEIR_TRY(window_arrive(m, c, w));
    return WEIR_OK;
}

/* Pieces of a kept tensor, or windows of a waiting gradient: how many, and the nth's range. */
static uint32_t piece_count(const struct weir_maker *m, const struct weir_item *item)
{
    if (item->kind == WEIR_ITEM_GRAD)
        return m->d->model->things[item->id].trained_window_count;
    uint64_t piece = weir_piece_bytes(m->d->model);
    return (uint32_t)((item->bytes + piece - 1) / piece);
}

static void piece_range(const struct weir_maker *m, const struct weir_item *item, uint32_t n,
                        uint64_t *offset, uint64_t *bytes)
{
    if (item->kind == WEIR_ITEM_GRAD) {
        const struct weir_window *w = &m->d->model->things[item->id].windows[n];
        *offset = w->offset * WEIR_DEVICE_GRAD_BYTES;
        *bytes = w->element_count * WEIR_DEVICE_GRAD_BYTES;
        return;
    }
    uint64_t piece = weir_piece_bytes(m->d->model);
    *offset = n * piece;
    *bytes = item->bytes - *offset < piece ? item->bytes - *offset : piece;
}

/* Where piece n of what left with `stay` waits. */
static struct weir_place wait_place(const struct weir_maker *m, const struct weir_item *item,
                                    const struct weir_stay *stay, uint32_t n, uint64_t offset,
                                    uint64_t bytes)
{
    if (item->kind == WEIR_ITEM_GRAD && m->d->model->grad_dtype == WEIR_FP32)
        return m->d->homes->blocks[item->id][n].part[WEIR_PART_GRAD];
    return slice(stay->wait, offset, bytes);
}

enum weir_status weir_maker_waiting_arrive(struct weir_maker *m, const struct weir_coming *c)
{
    const struct weir_stay *stay = &m->d->stays[c->stay], *before = &m->d->stays[c->before];
    const struct weir_item *item = &m->d->items[stay->item];
    struct weir_op op = {.arrives = true,
                         .thing = c->id,
                         .stage = c->a,
                         .part = item->kind == WEIR_ITEM_GRAD ? WEIR_PART_GRAD : WEIR_PART_KEPT};
    for (uint32_t n = 0; n < piece_count(m, item); n++) {
        uint64_t offset, bytes;
        piece_range(m, item, n, &offset, &bytes);
        struct weir_place from = wait_place(m, item, before, n, offset, bytes);
        op.window = n;
        if (from.tier == WEIR_TIER_NVME) {
            struct weir_place ring = ring_take(m, bytes);
            op.kind = WEIR_OP_READ;
            WEIR_TRY(move_add(m, op, from, ring));
            from = ring;
        }
        op.kind = WEIR_OP_H2D;
        WEIR_TRY(move_add(m, op, from,
                          (struct weir_place){WEIR_TIER_DEVICE, stay->offset + offset, bytes}));
    }
    return WEIR_OK;
}

static enum weir_status leave(struct weir_maker *m, struct weir_op op, struct weir_place from,
                              struct weir_place to)
{
    struct weir_place host = to.tier == WEIR_TIER_NVME ? ring_take(m, from.bytes) : to;
    op.kind = WEIR_OP_D2H;
    WEIR_TRY(move_add(m, op, from, host));
    if (to.tier != WEIR_TIER_NVME)
        return WEIR_OK;
    op.kind = WEIR_OP_WRITE;
    return move_add(m, op, host, to);
}

static enum weir_status waiting_depart(struct weir_maker *m, const struct weir_stay *stay)
{
    const struct weir_item *item = &m->d->items[stay->item];
    struct weir_op op = {.thing = item->id,
                         .stage = stay->b - 1,
                         .part = item->kind == WEIR_ITEM_GRAD ? WEIR_PART_GRAD : WEIR_PART_KEPT};
    for (uint32_t n = 0; n < piece_count(m, item); n++) {
        uint64_t offset, bytes;
        piece_range(m, item, n, &offset, &bytes);
        op.window = n;
        WEIR_TRY(leave(m, op, (struct weir_place){WEIR_TIER_DEVICE, stay->offset + offset, bytes},
                       wait_place(m, item, stay, n, offset, bytes)));
    }
    return WEIR_OK;
}

/* A complete gradient: reduce each window in place; unless it lives there, send it home. */
static enum weir_status gradient_finish(struct weir_maker *m, uint32_t id, uint64_t at,
                                        uint32_t stage, bool home)
{
    struct weir_draft *d = m->d;
    const struct weir_thing *thing = &d->model->things[id];
    for (uint32_t w = 0; w < thing->trained_window_count; w++) {
        const struct weir_window *window = &thing->windows[w];
        struct weir_op op = {.kind = WEIR_OP_REDUCE,
                             .lane = WEIR_LANE_COLLECTIVE,
                             .thing = id,
                             .window = w,
                             .stage = stage,
                             .part = WEIR_PART_GRAD};
        uint64_t offset = at + window->offset * WEIR_DEVICE_GRAD_BYTES;
        op.places[0] = (struct weir_place){WEIR_TIER_DEVICE, offset,
                                           window->element_count * WEIR_DEVICE_GRAD_BYTES};
        struct weir_touch touch = {op.places[0], true};
        WEIR_TRY(weir_maker_op_add(m, op, &touch, 1));
        if (home)
            continue;
        struct weir_place from = op.places[0], to = d->homes->blocks[id][w].part[WEIR_PART_GRAD];
        from.bytes = to.bytes;
        struct weir_op out = {.thing = id, .window = w, .stage = stage, .part = WEIR_PART_GRAD};
        WEIR_TRY(leave(m, out, from, to));
    }
    return WEIR_OK;
}

static enum weir_status state_clear(struct weir_maker *m, uint32_t id, uint32_t window,
                                    uint32_t stage)
{
    const struct weir_place *home = &m->d->homes->blocks[id][window].part[WEIR_PART_STATE];
    struct weir_place at = *home;
    struct weir_op op = {.thing = id, .window = window, .stage = stage, .part = WEIR_PART_STATE};
    if (home->tier == WEIR_TIER_NVME) {
        at = ring_take(m, home->bytes);
        op.kind = WEIR_OP_READ;
        WEIR_TRY(move_add(m, op, *home, at));
    }
    op.kind = WEIR_OP_CLEAR;
    op.lane = state_lane(&at);
    op.places[0] = at;
    op.places[1] = (struct weir_place){0};
    struct weir_touch touch = {at, true};
    WEIR_TRY(weir_maker_op_add(m, op, &touch, 1));
    if (home->tier != WEIR_TIER_NVME)
        return WEIR_OK;
    op.kind = WEIR_OP_WRITE;
    return move_add(m, op, at, *home);
}

/* A weight that the caller changed goes home; its residual is cleared. */
static enum weir_status weight_finish(struct weir_maker *m, uint32_t id, uint64_t at,
                                      uint32_t stage, bool home)
{
    struct weir_draft *d = m->d;
    const struct weir_thing *thing = &d->model->things[id];
    uint64_t each = weir_part_bytes(d->model, WEIR_PART_WEIGHT);
    for (uint32_t w = 0; w < thing->window_count; w++) {
        struct weir_op op = {.thing = id, .window = w, .stage = stage, .part = WEIR_PART_WEIGHT};
        struct weir_place from = {WEIR_TIER_DEVICE, at + thing->windows[w].offset * each,
                                  thing->windows[w].element_count * each};
        if (!home)
            WEIR_TRY(leave(m, op, from, d->homes->blocks[id][w].part[WEIR_PART_WEIGHT]));
        if (d->model->dtype == WEIR_BF16 && w < thing->trained_window_count)
            WEIR_TRY(state_clear(m, id, w, stage));
    }
    return WEIR_OK;
}

static bool stay_written(const struct weir_draft *d, const struct weir_stay *stay)
{
    const struct weir_item *item = &d->items[stay->item];
    for (uint32_t u = stay->first_use; u <= stay->last_use; u++)
        if (d->uses[item->first_use + u].written)
            return true;
    return false;
}

static bool stay_dirty(const struct weir_draft *d, const struct weir_stay *stay)
{
    const struct weir_item *item = &d->items[stay->item];
    for (uint32_t u = stay->first_use; u <= stay->last_use; u++)
        if (d->uses[item->first_use + u].dirty)
            return true;
    return false;
}

enum weir_status weir_maker_depart(struct weir_maker *m, uint32_t index)
{
    struct weir_draft *d = m->d;
    const struct weir_stay *stay = &d->stays[index];
    const struct weir_item *item = &d->items[stay->item];
    bool last = stay->last_use + 1 == item->use_count;
    switch (item->kind) {
    case WEIR_ITEM_WEIGHT:
        return stay_written(d, stay) ? weight_finish(m, item->id, stay->offset, stay->b - 1, false)
                                     : WEIR_OK;
    case WEIR_ITEM_GRAD:
        return last ? gradient_finish(m, item->id, stay->offset, stay->b - 1, false)
                    : waiting_depart(m, stay);
    case WEIR_ITEM_KEPT:
        return !last && stay_dirty(d, stay) ? waiting_depart(m, stay) : WEIR_OK;
    case WEIR_ITEM_SCRATCH:
        break;
    }
    return WEIR_OK;
}

/* Device homes: the gradient's reduction after its last use, cleared residuals after a WRITE. */
enum weir_status weir_maker_homes_depart(struct weir_maker *m, uint32_t stage)
{
    struct weir_draft *d = m->d;
    for (size_t i = 0; i < m->home_count; i++) {
        const struct weir_item *item = &d->items[m->homes[i]];
        const struct weir_place *at = d->homes->blocks[item->id][0].part;
        for (uint32_t u = 0; u < item->use_count; u++) {
            const struct weir_item_use *use = &d->uses[item->first_use + u];
            if (use->end != stage + 1)
                continue;
            if (item->kind == WEIR_ITEM_GRAD && u + 1 == item->use_count)
                WEIR_TRY(gradient_finish(m, item->id, at[WEIR_PART_GRAD].offset, stage, true));
            if (item->kind == WEIR_ITEM_WEIGHT && use->written)
                WEIR_TRY(weight_finish(m, item->id, at[WEIR_PART_WEIGHT].offset, stage, true));
        }
    }
    return WEIR_OK;
}
