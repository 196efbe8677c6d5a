#include "core/memory.h"
#include "offload/check_internal.h"

#include <stdlib.h>

static enum weir_status cut(struct weir_check *check, enum weir_tier tier, uint64_t offset,
                            uint64_t bytes)
{
    struct weir_check_tier *t = &check->tiers[tier];
    WEIR_TRY(weir_grow(&t->at, &t->capacity, t->count + 2, sizeof *t->at, "check: bounds"));
    t->at[t->count++] = offset;
    t->at[t->count++] = offset + bytes;
    return WEIR_OK;
}

/* Bytes of a gradient in its home; behind them, on the device, lies the rest of the fp32 window. */
static uint64_t front_bytes(const struct weir_check *check, uint32_t block, uint32_t window)
{
    return check->model->things[block].windows[window].element_count * check->grad_bytes;
}

static enum weir_status ops_cut(struct weir_check *check)
{
    for (size_t i = 0; i < check->plan->op_count; i++) {
        const struct weir_op *op = &check->plan->ops[i];
        for (uint32_t p = 0; p < WEIR_OP_PLACES; p++)
            if (op->places[p].bytes > 0)
                WEIR_TRY(cut(check, op->places[p].tier, op->places[p].offset, op->places[p].bytes));
        if (op->kind == WEIR_OP_REDUCE)
            WEIR_TRY(cut(check, op->places[0].tier, op->places[0].offset,
                         front_bytes(check, op->thing, op->window)));
    }
    return WEIR_OK;
}

static enum weir_status homes_cut(struct weir_check *check)
{
    for (uint32_t i = 0; i < check->model->thing_count; i++) {
        const struct weir_thing *thing = &check->model->things[i];
        for (uint32_t w = 0; thing->is_block && w < thing->window_count; w++)
            for (uint32_t p = 0; p < 3; p++) {
                const struct weir_place *place = &check->homes->blocks[i][w].part[p];
                if (place->bytes == 0)
                    continue;
                WEIR_TRY(cut(check, place->tier, place->offset, place->bytes));
                if (p == WEIR_PART_GRAD)
                    WEIR_TRY(cut(check, place->tier, place->offset, front_bytes(check, i, w)));
            }
    }
    return WEIR_OK;
}

static uint64_t use_bytes(const struct weir_check *check, uint32_t use)
{
    const struct weir_trace_use *u = &check->trace->uses[use];
    const struct weir_thing *thing = &check->model->things[u->id];
    if (!thing->is_block)
        return check->plan->uses[use].refused ? 0 : thing->slot_bytes;
    return u->access == WEIR_ADD ? 0 : thing->element_count * check->weight_bytes;
}

static uint64_t use_grad_bytes(const struct weir_check *check, uint32_t use)
{
    const struct weir_trace_use *u = &check->trace->uses[use];
    const struct weir_thing *thing = &check->model->things[u->id];
    return weir_check_sums(thing, u->access) ? thing->trained_element_count * WEIR_DEVICE_GRAD_BYTES
                                             : 0;
}

static enum weir_status trace_cut(struct weir_check *check)
{
    for (uint32_t i = 0; i < check->trace->use_count; i++) {
        const struct weir_use_place *place = &check->plan->uses[i];
        const struct weir_thing *thing = &check->model->things[check->trace->uses[i].id];
        if (use_bytes(check, i) > 0) {
            WEIR_TRY(cut(check, WEIR_TIER_DEVICE, place->bytes_offset, use_bytes(check, i)));
            WEIR_TRY(cut(check, WEIR_TIER_DEVICE, place->bytes_offset,
                         thing->trained_element_count * check->weight_bytes));
        }
        if (use_grad_bytes(check, i) > 0)
            WEIR_TRY(cut(check, WEIR_TIER_DEVICE, place->grad_offset, use_grad_bytes(check, i)));
    }
    for (size_t i = 0; i < check->trace->event_count; i++) {
        const struct weir_trace_event *e = &check->trace->events[i];
        if (e->kind == WEIR_EVENT_SCRATCH)
            WEIR_TRY(cut(check, WEIR_TIER_DEVICE, check->plan->scratches[e->first],
                         weir_check_round(e->bytes)));
        else if (e->kind == WEIR_EVENT_PUT || e->kind == WEIR_EVENT_GET)
            WEIR_TRY(cut(check, WEIR_TIER_HOST, check->plan->mail[e->count],
                         check->model->things[check->trace->uses[e->first].id].slot_bytes));
    }
    return WEIR_OK;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static enum weir_status tier_finish(struct weir_check_tier *tier)
{
    if (tier->count > 0)
        qsort(tier->at, tier->count, sizeof *tier->at, compare);
    size_t bounds = 0;
    for (size_t i = 0; i < tier->count; i++)
        if (bounds == 0 || tier->at[bounds - 1] != tier->at[i])
            tier->at[bounds++] = tier->at[i];
    tier->count = bounds > 0 ? bounds - 1 : 0;
    WEIR_TRY(weir_alloc(&tier->contents, tier->count, sizeof *tier->contents, "check: contents"));
    return weir_alloc(&tier->fixed, tier->count, sizeof *tier->fixed, "check: marks");
}

static size_t bound_find(const struct weir_check_tier *tier, uint64_t at)
{
    size_t low = 0, high = tier->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (tier->at[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct weir_check_range range_find(const struct weir_check *check, enum weir_tier tier,
                                          uint64_t offset, uint64_t bytes)
{
    if (bytes == 0)
        return (struct weir_check_range){.tier = tier};
    size_t first = bound_find(&check->tiers[tier], offset);
    return (struct weir_check_range){tier, first, bound_find(&check->tiers[tier], offset + bytes)};
}

struct weir_check_range weir_check_front(const struct weir_check *check,
                                         const struct weir_check_range *range, uint64_t bytes)
{
    const struct weir_check_tier *tier = &check->tiers[range->tier];
    struct weir_check_range front = *range;
    while (front.end > front.first && tier->at[front.end] - tier->at[front.first] > bytes)
        front.end--;
    return front;
}

static enum weir_status ranges_alloc(struct weir_check *check)
{
    size_t homes = 0;
    WEIR_TRY(weir_alloc(&check->home_first, check->model->thing_count, sizeof *check->home_first,
                        "check: homes"));
    for (size_t i = 0; i < check->model->thing_count; i++) {
        check->home_first[i] = homes;
        homes += check->model->things[i].is_block ? check->model->things[i].window_count : 0;
    }
    WEIR_TRY(weir_alloc(&check->homes_at, homes * 3, sizeof *check->homes_at, "check: homes"));
    WEIR_TRY(weir_alloc(&check->ops, check->plan->op_count * WEIR_OP_PLACES, sizeof *check->ops,
                        "check: ops"));
    WEIR_TRY(weir_alloc(&check->use_bytes, check->trace->use_count, sizeof *check->use_bytes,
                        "check: uses"));
    WEIR_TRY(weir_alloc(&check->use_grads, check->trace->use_count, sizeof *check->use_grads,
                        "check: uses"));
    return weir_alloc(&check->scratches, check->trace->scratch_count, sizeof *check->scratches,
                      "check: scratches");
}

/* Homes and mail are there all the time: no two may share a byte. */
static enum weir_status fixed_claim(struct weir_check *check, const struct weir_check_range *range,
                                    const char *what, const char *name)
{
    struct weir_check_tier *tier = &check->tiers[range->tier];
    for (size_t i = range->first; i < range->end; i++) {
        if (tier->fixed[i])
            return weir_check_fail_plan(check, "the %s of \"%s\" overlaps a home or mail at %llu",
                                        what, name, (unsigned long long)tier->at[i]);
        tier->fixed[i] = true;
    }
    return WEIR_OK;
}

static enum weir_status homes_find(struct weir_check *check)
{
    for (uint32_t i = 0; i < check->model->thing_count; i++) {
        const struct weir_thing *thing = &check->model->things[i];
        for (uint32_t w = 0; thing->is_block && w < thing->window_count; w++)
            for (uint32_t p = 0; p < 3; p++) {
                const struct weir_place *place = &check->homes->blocks[i][w].part[p];
                struct weir_check_range *range =
                    &check->homes_at[(check->home_first[i] + w) * 3 + p];
                *range = range_find(check, place->tier, place->offset, place->bytes);
                WEIR_TRY(fixed_claim(check, range, "home", thing->name));
            }
    }
    return WEIR_OK;
}

/* After this only mail is marked: ops may touch homes, never mail. */
static enum weir_status mail_find(struct weir_check *check)
{
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < check->trace->event_count; i++) {
            const struct weir_trace_event *e = &check->trace->events[i];
            if (e->kind != WEIR_EVENT_PUT && e->kind != WEIR_EVENT_GET)
                continue;
            const struct weir_thing *kept = &check->model->things[check->trace->uses[e->first].id];
            struct weir_check_range range =
                range_find(check, WEIR_TIER_HOST, check->plan->mail[e->count], kept->slot_bytes);
            WEIR_TRY(fixed_claim(check, &range, "mail", kept->name));
        }
        for (uint32_t t = 0; pass == 0 && t < WEIR_TIER_COUNT; t++)
            for (size_t i = 0; i < check->tiers[t].count; i++)
                check->tiers[t].fixed[i] = false;
    }
    return WEIR_OK;
}

static void plan_find(struct weir_check *check)
{
    const struct weir_plan *plan = check->plan;
    for (size_t i = 0; i < plan->op_count; i++)
        for (uint32_t p = 0; p < WEIR_OP_PLACES; p++)
            check->ops[i * WEIR_OP_PLACES + p] =
                range_find(check, plan->ops[i].places[p].tier, plan->ops[i].places[p].offset,
                           plan->ops[i].places[p].bytes);
    for (uint32_t i = 0; i < check->trace->use_count; i++) {
        check->use_bytes[i] =
            range_find(check, WEIR_TIER_DEVICE, plan->uses[i].bytes_offset, use_bytes(check, i));
        check->use_grads[i] = range_find(check, WEIR_TIER_DEVICE, plan->uses[i].grad_offset,
                                         use_grad_bytes(check, i));
    }
    for (size_t i = 0; i < check->trace->event_count; i++) {
        const struct weir_trace_event *e = &check->trace->events[i];
        if (e->kind == WEIR_EVENT_SCRATCH)
            check->scratches[e->first] = range_find(
                check, WEIR_TIER_DEVICE, plan->scratches[e->first], weir_check_round(e->bytes));
    }
}

enum weir_status weir_check_cells_make(struct weir_check *check)
{
    WEIR_TRY(ops_cut(check));
    WEIR_TRY(homes_cut(check));
    WEIR_TRY(trace_cut(check));
    for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++)
        WEIR_TRY(tier_finish(&check->tiers[t]));
    WEIR_TRY(ranges_alloc(check));
    WEIR_TRY(homes_find(check));
    WEIR_TRY(mail_find(check));
    plan_find(check);
    return WEIR_OK;
}

void weir_check_cells_free(struct weir_check *check)
{
    for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++) {
        weir_free(check->tiers[t].at);
        weir_free(check->tiers[t].contents);
        weir_free(check->tiers[t].fixed);
    }
    weir_free(check->home_first);
    weir_free(check->homes_at);
    weir_free(check->ops);
    weir_free(check->use_bytes);
    weir_free(check->use_grads);
    weir_free(check->scratches);
}

bool weir_check_holds(const struct weir_check *check, const struct weir_check_range *range,
                      struct weir_content content)
{
    const struct weir_check_tier *tier = &check->tiers[range->tier];
    for (size_t i = range->first; i < range->end; i++) {
        const struct weir_content *cell = &tier->contents[i];
        if (cell->kind != content.kind || cell->thing != content.thing ||
            cell->version != content.version ||
            cell->offset != content.offset + (tier->at[i] - tier->at[range->first]))
            return false;
    }
    return range->end > range->first;
}

void weir_check_put(struct weir_check *check, const struct weir_check_range *range,
                    struct weir_content content)
{
    struct weir_check_tier *tier = &check->tiers[range->tier];
    for (size_t i = range->first; i < range->end; i++) {
        tier->contents[i] = content;
        tier->contents[i].offset += tier->at[i] - tier->at[range->first];
    }
}
