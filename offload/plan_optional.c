/*
 * Pass 2, the last round: activations that the caller could compute again. Each stays on the
 * device, waits in host memory or on NVMe, or is refused.
 */
#include "core/memory.h"
#include "offload/plan_timeline.h"

#include <stdlib.h>

void weir_draft_refuse(struct weir_draft *d, struct weir_item *item)
{
    item->refused = true;
    for (uint32_t s = item->first_stay; s < item->first_stay + item->stay_count; s++)
        d->stays[s].gone = true;
}

/* On the device for all its life. */
static bool optional_stay(struct weir_draft *d, const struct weir_item *item,
                          struct weir_timeline *device)
{
    struct weir_stay *q = &d->stays[item->first_stay], *r = q + item->stay_count - 1;
    if (!weir_timeline_take_if(device, q->a, r->b, item->bytes))
        return false;
    for (struct weir_stay *s = q + 1; s <= r; s++)
        s->gone = true;
    q->last_use = r->last_use;
    q->b = q->end = r->b;
    return true;
}

/* Where an optional life may wait over stages [start, end). */
static bool optional_tier(struct weir_draft *d, uint64_t bytes, uint32_t start, uint32_t end,
                          struct weir_timeline *host, enum weir_tier *tier)
{
    if (bytes <= d->choice.optional_host_bytes - d->optional_bytes[WEIR_TIER_HOST] &&
        weir_timeline_take_if(host, start, end, bytes))
        *tier = WEIR_TIER_HOST;
    else if (d->nvme && bytes <= d->choice.optional_nvme_bytes - d->optional_bytes[WEIR_TIER_NVME])
        *tier = WEIR_TIER_NVME;
    else
        return false;
    d->optional_bytes[*tier] += bytes;
    return true;
}

/* Two stays and one wait: the common life of an activation. Its margins are one stage each. */
static bool optional_wait(struct weir_draft *d, const struct weir_item *item,
                          struct weir_timeline *device, struct weir_timeline *host)
{
    struct weir_stay *q = &d->stays[item->first_stay], *r = q + item->stay_count - 1;
    uint32_t out = q->b < d->stage_count ? q->b + 1 : q->b, in = r->a > 0 ? r->a - 1 : r->a;
    enum weir_tier tier;
    if (item->stay_count != 2 || out > in || !weir_timeline_fits(device, q->a, out, item->bytes) ||
        !weir_timeline_fits(device, in, r->b, item->bytes) ||
        !optional_tier(d, item->bytes, q->b - 1, r->a + 1, host, &tier))
        return false;
    weir_timeline_take(device, q->a, out, item->bytes);
    weir_timeline_take(device, in, r->b, item->bytes);
    q->end = out;
    r->start = in;
    d->spans[d->span_count++] = (struct weir_wait_span){.start = q->b - 1,
                                                        .end = r->a + 1,
                                                        .bytes = item->bytes,
                                                        .item = q->item,
                                                        .first_stay = item->first_stay,
                                                        .stay_count = 1,
                                                        .on_host = tier == WEIR_TIER_HOST};
    return true;
}

/* An optional life, and the work that a byte of it saves for every stage it is kept. */
struct optional {
    uint32_t item;
    double worth;
};

static int optional_order(const void *x, const void *y)
{
    const struct optional *p = x, *q = y;
    if (p->worth < q->worth || p->worth > q->worth)
        return p->worth > q->worth ? -1 : 1;
    return p->item > q->item ? -1 : p->item < q->item; /* the last born live shortest */
}

/* After all that must be: optional lives stay on the device, or wait, or are refused; those that
 * are dear to compute again, small and short come first. */
enum weir_status weir_draft_optionals(struct weir_draft *d, struct weir_timeline *device,
                                      struct weir_timeline *host)
{
    struct optional *list;
    size_t count = 0;
    WEIR_TRY(weir_alloc(&list, d->item_count, sizeof *list, "plan optionals"));
    for (uint32_t i = 0; i < d->item_count; i++) {
        const struct weir_item *item = &d->items[i];
        if (!item->optional)
            continue;
        const struct weir_stay *q = &d->stays[item->first_stay], *r = q + item->stay_count - 1;
        list[count++] = (struct optional){i, item->recompute_flops /
                                                 ((double)item->bytes * (double)(r->b - q->a))};
    }
    qsort(list, count, sizeof *list, optional_order);
    for (size_t i = 0; i < count; i++) {
        struct weir_item *item = &d->items[list[i].item];
        if (!optional_stay(d, item, device) && !optional_wait(d, item, device, host))
            weir_draft_refuse(d, item);
    }
    weir_free(list);
    return WEIR_OK;
}
