/*
 * Pass 4: one order of all ops. At each stage the arrivals whose slot begins there, by first use;
 * then the stage; then the departures of what ends there. The board makes the waits.
 */
#include "core/memory.h"
#include "offload/plan_maker.h"

#include <stdlib.h>
#include <string.h>

static int coming_order(const void *x, const void *y)
{
    const struct weir_coming *p = x, *q = y;
    if (p->a != q->a)
        return p->a < q->a ? -1 : 1;
    if (p->kept != q->kept)
        return p->kept ? -1 : 1;
    if (p->id != q->id)
        return p->id < q->id ? -1 : 1;
    uint32_t s = p->stay + 1, t = q->stay + 1; /* an update alone before the weight */
    return s < t ? -1 : s > t;
}

static uint32_t earlier(uint32_t stage, uint32_t by)
{
    return stage > by ? stage - by : 0;
}

/* The block's first use of any kind carries its update. Where the weight lives in host memory or on
 * the device, or is not wanted yet, the update needs no slot and goes ahead by one visit; through
 * the ring it goes with the weight. */
static void block_coming(struct weir_maker *m, uint32_t id)
{
    struct weir_draft *d = m->d;
    uint32_t w = d->weight_item[id], g = d->grad_item[id];
    bool trained = d->model->things[id].trained_window_count > 0;
    uint32_t weight_at = w == UINT32_MAX ? UINT32_MAX : d->uses[d->items[w].first_use].start;
    uint32_t grad_at = g == UINT32_MAX ? UINT32_MAX : d->uses[d->items[g].first_use].start;
    uint32_t first = weight_at < grad_at ? weight_at : grad_at;
    bool alone = d->device_home[id] || grad_at < weight_at;
    if (trained && first != UINT32_MAX)
        m->coming[m->coming_count++] =
            (struct weir_coming){.a = first,
                                 .start = earlier(first, d->choice.update_lead),
                                 .id = id,
                                 .stay = UINT32_MAX,
                                 .before = UINT32_MAX,
                                 .update_in_place = true,
                                 .update_in_ring = alone};
    if (w == UINT32_MAX || d->device_home[id])
        return;
    const struct weir_item *item = &d->items[w];
    bool update = trained && !alone;
    for (uint32_t s = item->first_stay; s < item->first_stay + item->stay_count; s++) {
        if (d->stays[s].gone)
            continue;
        m->coming[m->coming_count++] = (struct weir_coming){.a = d->stays[s].a,
                                                            .start = d->stays[s].start,
                                                            .id = id,
                                                            .stay = s,
                                                            .before = UINT32_MAX,
                                                            .update_in_ring = update};
        update = false;
    }
}

static void waiting_coming(struct weir_maker *m, const struct weir_item *item)
{
    struct weir_draft *d = m->d;
    uint32_t before = UINT32_MAX;
    for (uint32_t s = item->first_stay; s < item->first_stay + item->stay_count; s++) {
        if (d->stays[s].gone)
            continue;
        if (before != UINT32_MAX)
            m->coming[m->coming_count++] =
                (struct weir_coming){.a = d->stays[s].a,
                                     .start = d->stays[s].start,
                                     .kept = item->kind == WEIR_ITEM_KEPT,
                                     .id = item->id,
                                     .stay = s,
                                     .before = before};
        before = s;
    }
}

static int stage_order(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a < b ? -1 : a > b;
}

/* Stays by the stage after which they leave; gradients last, so that kept bytes go first. */
static enum weir_status going_make(struct weir_maker *m)
{
    struct weir_draft *d = m->d;
    uint64_t *keys;
    WEIR_TRY(weir_alloc(&keys, d->stay_count, sizeof *keys, "departures"));
    enum weir_status status = weir_alloc(&m->going, d->stay_count, sizeof *m->going, "departures");
    for (uint32_t s = 0; status == WEIR_OK && s < d->stay_count; s++)
        if (!d->stays[s].gone)
            keys[m->going_count++] =
                (uint64_t)d->stays[s].b << 33 |
                (uint64_t)(d->items[d->stays[s].item].kind == WEIR_ITEM_GRAD) << 32 | s;
    if (status == WEIR_OK)
        qsort(keys, m->going_count, sizeof *keys, stage_order);
    for (size_t i = 0; status == WEIR_OK && i < m->going_count; i++)
        m->going[i] = (uint32_t)keys[i];
    weir_free(keys);
    return status;
}

static enum weir_status coming_make(struct weir_maker *m)
{
    struct weir_draft *d = m->d;
    WEIR_TRY(weir_alloc(&m->coming, d->stay_count + d->model->thing_count, sizeof *m->coming,
                        "arrivals"));
    for (uint32_t i = 0; i < d->model->thing_count; i++)
        if (d->model->things[i].is_block)
            block_coming(m, i);
    for (size_t i = 0; i < d->item_count; i++)
        if (d->items[i].kind == WEIR_ITEM_KEPT || d->items[i].kind == WEIR_ITEM_GRAD)
            waiting_coming(m, &d->items[i]);
    qsort(m->coming, m->coming_count, sizeof *m->coming, coming_order);
    return WEIR_OK;
}

/* Where the waiting bytes lie: behind ring and mail on the host, behind the homes on NVMe. */
static void waits_place(struct weir_maker *m)
{
    struct weir_draft *d = m->d;
    for (size_t i = 0; i < d->span_count; i++) {
        const struct weir_wait_span *span = &d->spans[i];
        if (span->bytes == 0)
            continue;
        uint64_t base = span->on_host ? m->plan->ring_bytes + d->mail_bytes : d->homes->nvme_end;
        struct weir_place place = {span->on_host ? WEIR_TIER_HOST : WEIR_TIER_NVME,
                                   base + span->offset, span->bytes};
        for (uint32_t s = span->first_stay; s < span->first_stay + span->stay_count; s++)
            d->stays[s].wait = place;
        m->plan->kept_wait_bytes[place.tier] += span->bytes;
    }
}

/* Which stay of an item covers a stage. */
static const struct weir_stay *stay_at(const struct weir_draft *d, uint32_t item, uint32_t stage)
{
    const struct weir_item *it = &d->items[item];
    for (uint32_t s = it->first_stay; s < it->first_stay + it->stay_count; s++)
        if (!d->stays[s].gone && d->stays[s].a <= stage && stage < d->stays[s].b)
            return &d->stays[s];
    return NULL;
}

static uint64_t item_offset(const struct weir_draft *d, uint32_t item, uint32_t stage)
{
    const struct weir_item *it = &d->items[item];
    if (it->home)
        return d->homes->blocks[it->id][0]
            .part[it->kind == WEIR_ITEM_GRAD ? WEIR_PART_GRAD : WEIR_PART_WEIGHT]
            .offset;
    const struct weir_stay *stay = stay_at(d, item, stage);
    return stay ? stay->offset : WEIR_NOWHERE;
}

static enum weir_status views_make(struct weir_maker *m)
{
    struct weir_draft *d = m->d;
    const struct weir_trace *trace = d->trace;
    struct weir_plan *plan = m->plan;
    WEIR_TRY(weir_alloc(&plan->uses, trace->use_count, sizeof *plan->uses, "plan views"));
    WEIR_TRY(
        weir_alloc(&plan->scratches, trace->scratch_count, sizeof *plan->scratches, "plan views"));
    WEIR_TRY(weir_alloc(&plan->mail, trace->put_get_count, sizeof *plan->mail, "plan views"));
    plan->use_count = trace->use_count;
    plan->scratch_count = trace->scratch_count;
    plan->mail_count = trace->put_get_count;
    for (size_t i = 0; i < trace->use_count; i++) {
        const struct weir_trace_use *u = &trace->uses[i];
        struct weir_use_place *place = &plan->uses[i];
        *place = (struct weir_use_place){WEIR_NOWHERE, WEIR_NOWHERE, false};
        bool block = d->model->things[u->id].is_block;
        uint32_t bytes_item = !block                  ? d->use_item[i]
                              : u->access != WEIR_ADD ? d->weight_item[u->id]
                                                      : UINT32_MAX;
        if (bytes_item != UINT32_MAX)
            place->bytes_offset = item_offset(d, bytes_item, u->stage_first);
        if (block && (u->access == WEIR_GRAD || u->access == WEIR_ADD) &&
            d->grad_item[u->id] != UINT32_MAX)
            place->grad_offset = item_offset(d, d->grad_item[u->id], u->stage_first);
        place->refused = !block && d->items[d->use_item[i]].refused;
    }
    for (size_t i = 0; i < d->item_count; i++)
        if (d->items[i].kind == WEIR_ITEM_SCRATCH)
            plan->scratches[d->items[i].id] = d->stays[d->items[i].first_stay].offset;
    uint64_t mail = plan->ring_bytes;
    for (size_t i = 0; i < trace->event_count; i++) {
        const struct weir_trace_event *event = &trace->events[i];
        if (event->kind != WEIR_EVENT_PUT && event->kind != WEIR_EVENT_GET)
            continue;
        plan->mail[event->count] = mail;
        mail += d->model->things[trace->uses[event->first].id].slot_bytes;
    }
    return WEIR_OK;
}

/* What each stage touches: every item over its uses. Counted, then filled. */
static enum weir_status stage_touches_make(struct weir_maker *m)
{
    struct weir_draft *d = m->d;
    size_t total = 0;
    for (size_t i = 0; i < d->use_count; i++)
        total += d->uses[i].end - d->uses[i].start;
    WEIR_TRY(weir_alloc(&m->stage_first, d->stage_count + 2u, sizeof *m->stage_first, "touches"));
    WEIR_TRY(weir_alloc(&m->stage_touch, total, sizeof *m->stage_touch, "touches"));
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < d->item_count; i++) {
            const struct weir_item *item = &d->items[i];
            for (uint32_t u = 0; u < item->use_count && !item->refused; u++) {
                const struct weir_item_use *use = &d->uses[item->first_use + u];
                struct weir_touch touch = {
                    {WEIR_TIER_DEVICE, item_offset(d, i, use->start), item->bytes},
                    use->dirty || item->kind == WEIR_ITEM_SCRATCH};
                for (uint32_t t = use->start; t < use->end; t++)
                    if (fill)
                        m->stage_touch[m->stage_first[t + 1]++] = touch;
                    else
                        m->stage_first[t + 2]++;
            }
        }
        for (uint32_t t = 2; !fill && t < d->stage_count + 2; t++)
            m->stage_first[t] += m->stage_first[t - 1];
    }
    return WEIR_OK;
}

static enum weir_status compute_add(struct weir_maker *m, uint32_t stage)
{
    struct weir_op op = {
        .kind = WEIR_OP_COMPUTE, .lane = WEIR_LANE_COMPUTE, .thing = stage, .stage = stage};
    return weir_maker_op_add(m, op, m->stage_touch + m->stage_first[stage],
                             m->stage_first[stage + 1] - m->stage_first[stage]);
}

static enum weir_status ops_make(struct weir_maker *m)
{
    size_t next = 0, gone = 0;
    for (uint32_t t = 0; t < m->d->stage_count; t++) {
        while (next < m->coming_count && m->coming[next].start <= t) {
            const struct weir_coming *c = &m->coming[next++];
            WEIR_TRY(c->before == UINT32_MAX ? weir_maker_block_arrive(m, c)
                                             : weir_maker_waiting_arrive(m, c));
        }
        WEIR_TRY(compute_add(m, t));
        while (gone < m->going_count && m->d->stays[m->going[gone]].b == t + 1)
            WEIR_TRY(weir_maker_depart(m, m->going[gone++]));
        WEIR_TRY(weir_maker_homes_depart(m, t));
    }
    return WEIR_OK;
}

static enum weir_status homes_list(struct weir_maker *m)
{
    WEIR_TRY(weir_alloc(&m->homes, m->d->item_count, sizeof *m->homes, "plan homes"));
    for (uint32_t i = 0; i < m->d->item_count; i++)
        if (m->d->items[i].home)
            m->homes[m->home_count++] = i;
    return WEIR_OK;
}

static enum weir_status make_all(struct weir_maker *m)
{
    waits_place(m);
    WEIR_TRY(views_make(m));
    WEIR_TRY(coming_make(m));
    WEIR_TRY(going_make(m));
    WEIR_TRY(homes_list(m));
    WEIR_TRY(stage_touches_make(m));
    WEIR_TRY(weir_board_open(&m->board));
    return ops_make(m);
}

enum weir_status weir_draft_ops(struct weir_draft *draft, struct weir_plan *plan)
{
    struct weir_maker m = {.d = draft, .plan = plan};
    enum weir_status status = make_all(&m);
    weir_board_close(m.board);
    weir_free(m.coming);
    weir_free(m.going);
    weir_free(m.homes);
    weir_free(m.stage_first);
    weir_free(m.stage_touch);
    return status;
}
