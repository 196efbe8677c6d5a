/*
 * Bytes of one tier in use at each stage, under a capacity: what residency decides with.
 *
 *     if (weir_timeline_take_if(&device, stay->start - 1, stay->start, item->bytes))
 *         stay->start--;
 */
#ifndef WEIR_OFFLOAD_PLAN_TIMELINE_H
#define WEIR_OFFLOAD_PLAN_TIMELINE_H

#include "offload/plan_internal.h"

struct weir_timeline {
    uint64_t *load, capacity;
};

static inline bool weir_timeline_fits(const struct weir_timeline *line, uint32_t start,
                                      uint32_t end, uint64_t bytes)
{
    for (uint32_t t = start; t < end; t++)
        if (bytes > line->capacity || line->load[t] > line->capacity - bytes)
            return false;
    return true;
}

static inline void weir_timeline_take(struct weir_timeline *line, uint32_t start, uint32_t end,
                                      uint64_t bytes)
{
    for (uint32_t t = start; t < end; t++)
        line->load[t] += bytes;
}

static inline void weir_timeline_give(struct weir_timeline *line, uint32_t start, uint32_t end,
                                      uint64_t bytes)
{
    for (uint32_t t = start; t < end; t++)
        line->load[t] -= bytes;
}

static inline bool weir_timeline_take_if(struct weir_timeline *line, uint32_t start, uint32_t end,
                                         uint64_t bytes)
{
    if (!weir_timeline_fits(line, start, end, bytes))
        return false;
    weir_timeline_take(line, start, end, bytes);
    return true;
}

/* plan_optional.c */
enum weir_status weir_draft_optionals(struct weir_draft *draft, struct weir_timeline *device,
                                      struct weir_timeline *host);
void weir_draft_refuse(struct weir_draft *draft, struct weir_item *item);

#endif
