/*
 * Pass 1: the trace becomes items with their uses.
 */
#include "core/memory.h"
#include "offload/plan_internal.h"

#include <stdlib.h>

static enum weir_status item_add(struct weir_draft *d, struct weir_item item, uint32_t *index)
{
    WEIR_TRY(
        weir_grow(&d->items, &d->item_capacity, d->item_count + 1, sizeof *d->items, "plan items"));
    *index = (uint32_t)d->item_count;
    d->items[d->item_count++] = item;
    return WEIR_OK;
}

/* A use of an item, before sorting. */
struct raw_use {
    uint32_t item;
    struct weir_item_use use;
};
struct raw_list {
    struct raw_use *uses;
    size_t count, capacity;
};

static enum weir_status raw_add(struct raw_list *list, uint32_t item, struct weir_item_use use)
{
    WEIR_TRY(
        weir_grow(&list->uses, &list->capacity, list->count + 1, sizeof *list->uses, "plan uses"));
    list->uses[list->count++] = (struct raw_use){item, use};
    return WEIR_OK;
}

static enum weir_status block_part(struct weir_draft *d, struct raw_list *list, uint32_t *of,
                                   struct weir_item item, struct weir_item_use use)
{
    if (of[item.id] == UINT32_MAX)
        WEIR_TRY(item_add(d, item, &of[item.id]));
    return raw_add(list, of[item.id], use);
}

static enum weir_status block_use(struct weir_draft *d, struct raw_list *list,
                                  const struct weir_trace_use *u)
{
    const struct weir_thing *thing = &d->model->things[u->id];
    struct weir_item_use use = {.start = u->stage_first, .end = u->stage_end};
    bool home = d->device_home[u->id];
    if (u->access != WEIR_ADD) {
        use.written = use.dirty = u->access == WEIR_WRITE;
        struct weir_item item = {.kind = WEIR_ITEM_WEIGHT,
                                 .id = u->id,
                                 .home = home,
                                 .bytes = thing->element_count *
                                          weir_part_bytes(d->model, WEIR_PART_WEIGHT)};
        WEIR_TRY(block_part(d, list, d->weight_item, item, use));
    }
    if ((u->access == WEIR_GRAD || u->access == WEIR_ADD) && thing->trained_window_count > 0) {
        use.written = false;
        use.dirty = true;
        use.grad_last = u->grad_last;
        struct weir_item item = {.kind = WEIR_ITEM_GRAD,
                                 .id = u->id,
                                 .home = home,
                                 .bytes = thing->trained_element_count * WEIR_DEVICE_GRAD_BYTES};
        WEIR_TRY(block_part(d, list, d->grad_item, item, use));
    }
    return WEIR_OK;
}

static enum weir_status kept_use(struct weir_draft *d, struct raw_list *list, size_t index,
                                 uint32_t *life_item)
{
    const struct weir_trace_use *u = &d->trace->uses[index];
    const struct weir_thing *thing = &d->model->things[u->id];
    if (u->access == WEIR_NEW) {
        struct weir_item item = {.kind = WEIR_ITEM_KEPT,
                                 .id = u->id,
                                 .life = u->life,
                                 .bytes = thing->slot_bytes,
                                 .optional = thing->optional};
        WEIR_TRY(item_add(d, item, &life_item[u->id]));
    }
    d->use_item[index] = life_item[u->id];
    d->items[life_item[u->id]].recompute_flops += u->recompute_flops;
    struct weir_item_use use = {.start = u->stage_first,
                                .end = u->stage_end,
                                .dirty = u->access == WEIR_NEW || u->access == WEIR_CHANGE};
    return raw_add(list, life_item[u->id], use);
}

static enum weir_status scratch_use(struct weir_draft *d, struct raw_list *list,
                                    const struct weir_trace_event *event)
{
    uint32_t item;
    WEIR_TRY(item_add(d,
                      (struct weir_item){.kind = WEIR_ITEM_SCRATCH,
                                         .id = event->first,
                                         .bytes = weir_page_up(event->bytes)},
                      &item));
    return raw_add(list, item,
                   (struct weir_item_use){.start = event->stage, .end = event->stage_end});
}

static int raw_order(const void *a, const void *b)
{
    const struct raw_use *x = a, *y = b;
    if (x->item != y->item)
        return x->item < y->item ? -1 : 1;
    if (x->use.start != y->use.start)
        return x->use.start < y->use.start ? -1 : 1;
    return x->use.end < y->use.end ? -1 : x->use.end > y->use.end;
}

/* Sorted by item and stage; nested and overlapping uses become one. */
static enum weir_status uses_join(struct weir_draft *d, struct raw_list *list)
{
    if (list->count > 1)
        qsort(list->uses, list->count, sizeof *list->uses, raw_order);
    WEIR_TRY(weir_grow(&d->uses, &d->use_capacity, list->count, sizeof *d->uses, "plan uses"));
    for (size_t i = 0; i < list->count; i++) {
        const struct raw_use *raw = &list->uses[i];
        struct weir_item *item = &d->items[raw->item];
        struct weir_item_use *last = item->use_count > 0 ? &d->uses[d->use_count - 1] : NULL;
        if (last && raw->use.start < last->end) {
            last->end = raw->use.end > last->end ? raw->use.end : last->end;
            last->dirty |= raw->use.dirty;
            last->written |= raw->use.written;
            last->grad_last |= raw->use.grad_last;
            continue;
        }
        if (!last)
            item->first_use = (uint32_t)d->use_count;
        item->use_count++;
        d->uses[d->use_count++] = raw->use;
    }
    return WEIR_OK;
}

static enum weir_status items_find(struct weir_draft *d, struct raw_list *list, uint32_t *life_item)
{
    for (size_t i = 0; i < d->trace->use_count; i++) {
        const struct weir_trace_use *u = &d->trace->uses[i];
        WEIR_TRY(d->model->things[u->id].is_block ? block_use(d, list, u)
                                                  : kept_use(d, list, i, life_item));
    }
    for (size_t i = 0; i < d->trace->event_count; i++)
        if (d->trace->events[i].kind == WEIR_EVENT_SCRATCH && d->trace->events[i].bytes > 0)
            WEIR_TRY(scratch_use(d, list, &d->trace->events[i]));
    WEIR_TRY(uses_join(d, list));
    for (size_t i = 0; i < d->trace->event_count; i++) {
        const struct weir_trace_event *event = &d->trace->events[i];
        if (event->kind == WEIR_EVENT_PUT || event->kind == WEIR_EVENT_GET)
            d->mail_bytes += d->model->things[d->trace->uses[event->first].id].slot_bytes;
    }
    return WEIR_OK;
}

static enum weir_status tables_make(struct weir_draft *d, uint32_t **life_item)
{
    size_t things = d->model->thing_count;
    WEIR_TRY(weir_alloc(&d->weight_item, things, sizeof(uint32_t), "plan tables"));
    WEIR_TRY(weir_alloc(&d->grad_item, things, sizeof(uint32_t), "plan tables"));
    WEIR_TRY(weir_alloc(&d->use_item, d->trace->use_count, sizeof(uint32_t), "plan tables"));
    WEIR_TRY(weir_alloc(life_item, things, sizeof(uint32_t), "plan tables"));
    for (size_t i = 0; i < things; i++)
        d->weight_item[i] = d->grad_item[i] = UINT32_MAX;
    return WEIR_OK;
}

enum weir_status weir_draft_open(struct weir_draft *d, const struct weir_model *model,
                                 const struct weir_trace *trace, const bool *device_home)
{
    *d = (struct weir_draft){.model = model,
                             .trace = trace,
                             .device_home = device_home,
                             .stage_count = (uint32_t)trace->stage_count};
    uint32_t *life_item = NULL;
    struct raw_list list = {0};
    enum weir_status status = tables_make(d, &life_item);
    if (status == WEIR_OK)
        status = items_find(d, &list, life_item);
    weir_free(list.uses);
    weir_free(life_item);
    if (status != WEIR_OK)
        weir_draft_close(d);
    return status;
}

void weir_draft_close(struct weir_draft *d)
{
    void *arrays[] = {d->items,    d->uses,  d->weight_item, d->grad_item,
                      d->use_item, d->stays, d->spans};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        weir_free(arrays[i]);
    *d = (struct weir_draft){0};
}
