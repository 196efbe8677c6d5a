/*
 * Pass 2 and 3: how long each item stays on the device, where it waits in between, and at which
 * offsets. One timeline of bytes a stage decides what fits; the arena turns spans into offsets.
 */
#include "alloc/arena.h"
#include "core/memory.h"
#include "offload/plan_timeline.h"

#include <stdlib.h>
#include <string.h>

static bool arrives(const struct weir_draft *d, const struct weir_stay *s)
{
    const struct weir_item *item = &d->items[s->item];
    return item->kind == WEIR_ITEM_WEIGHT ||
           ((item->kind == WEIR_ITEM_GRAD || item->kind == WEIR_ITEM_KEPT) && s->first_use > 0);
}

static bool departs(const struct weir_draft *d, const struct weir_stay *s)
{
    const struct weir_item *item = &d->items[s->item];
    return item->kind == WEIR_ITEM_GRAD ||
           (item->kind == WEIR_ITEM_KEPT && s->last_use + 1 < item->use_count);
}

/* One stay a use, in item order. */
static enum weir_status stays_make(struct weir_draft *d)
{
    weir_free(d->stays);
    d->stays = NULL;
    d->stay_count = 0;
    WEIR_TRY(weir_alloc(&d->stays, d->use_count, sizeof *d->stays, "plan stays"));
    for (uint32_t i = 0; i < d->item_count; i++) {
        struct weir_item *item = &d->items[i];
        item->refused = false;
        item->first_stay = (uint32_t)d->stay_count;
        item->stay_count = item->home ? 0 : item->use_count;
        for (uint32_t u = 0; u < item->stay_count; u++) {
            const struct weir_item_use *use = &d->uses[item->first_use + u];
            d->stays[d->stay_count++] = (struct weir_stay){.item = i,
                                                           .first_use = u,
                                                           .last_use = u,
                                                           .a = use->start,
                                                           .b = use->end,
                                                           .start = use->start,
                                                           .end = use->end};
        }
    }
    return WEIR_OK;
}

static enum weir_status uses_take(struct weir_draft *d, struct weir_timeline *line)
{
    for (size_t i = 0; i < d->stay_count; i++)
        if (!d->items[d->stays[i].item].optional)
            weir_timeline_take(line, d->stays[i].a, d->stays[i].b,
                               d->items[d->stays[i].item].bytes);
    d->least_bytes = 0;
    for (uint32_t t = 0; t < d->stage_count; t++)
        if (line->load[t] > d->least_bytes) {
            d->least_bytes = line->load[t];
            d->least_stage = t;
        }
    if (d->least_bytes > line->capacity)
        return weir_fail_budget(
            d->over_budget,
            "device: stage %llu of step \"%s\" needs %llu bytes at once, %llu given; "
            "lower the micro-batch or raise device_bytes",
            (unsigned long long)d->least_stage, d->trace->key, (unsigned long long)d->least_bytes,
            (unsigned long long)line->capacity);
    return WEIR_OK;
}

/* All by one stage before any by two: none starves the others. */
static void margins_grow(struct weir_draft *d, struct weir_timeline *line)
{
    for (uint32_t n = 1; n <= d->choice.lead; n++)
        for (size_t i = 0; i < d->stay_count; i++) {
            struct weir_stay *s = &d->stays[i];
            const struct weir_item *item = &d->items[s->item];
            if (item->optional)
                continue;
            if (arrives(d, s) && s->start > 0 && s->start == s->a - n + 1 &&
                weir_timeline_take_if(line, s->start - 1, s->start, item->bytes))
                s->start--;
            if (departs(d, s) && s->end == s->b + n - 1 && s->end < d->stage_count &&
                weir_timeline_take_if(line, s->end, s->end + 1, item->bytes))
                s->end++;
        }
}

struct gap {
    uint32_t weight, a; /* stages saved nothing: shorter first, a dirty item's counts half */
    uint32_t before, after;
};

static int gap_order(const void *x, const void *y)
{
    const struct gap *p = x, *q = y;
    if (p->weight != q->weight)
        return p->weight < q->weight ? -1 : 1;
    if (p->a != q->a)
        return p->a < q->a ? -1 : 1;
    return p->after < q->after ? -1 : p->after > q->after;
}

static uint32_t root_of(const struct weir_draft *d, uint32_t stay)
{
    while (d->stays[stay].gone)
        stay--; /* joined stays are neighbours of one item */
    return stay;
}

static void gap_bridge(struct weir_draft *d, struct weir_timeline *line, const struct gap *gap)
{
    struct weir_stay *q = &d->stays[root_of(d, gap->before)], *r = &d->stays[gap->after];
    uint64_t bytes = d->items[q->item].bytes;
    if (q->end < r->start && !weir_timeline_take_if(line, q->end, r->start, bytes))
        return;
    if (r->start < q->end)
        weir_timeline_give(line, r->start, q->end < r->end ? q->end : r->end, bytes);
    q->last_use = r->last_use;
    q->b = r->b;
    q->end = q->end > r->end ? q->end : r->end;
    r->gone = true;
}

static enum weir_status gaps_bridge(struct weir_draft *d, struct weir_timeline *line)
{
    struct gap *gaps;
    size_t count = 0;
    WEIR_TRY(weir_alloc(&gaps, d->stay_count, sizeof *gaps, "plan gaps"));
    for (uint32_t i = 1; i < d->stay_count; i++) {
        const struct weir_stay *q = &d->stays[i - 1], *r = &d->stays[i];
        const struct weir_item *item = &d->items[r->item];
        if (q->item != r->item || item->optional)
            continue;
        uint32_t length = r->a - q->b;
        gaps[count++] =
            (struct gap){item->kind == WEIR_ITEM_WEIGHT ? 2 * length : length, r->a, i - 1, i};
    }
    qsort(gaps, count, sizeof *gaps, gap_order);
    /* A stay that was extended over a later one is found through the later one's mark; order within
     * an item does not matter, since a join keeps the earliest. */
    for (size_t i = 0; i < count; i++)
        gap_bridge(d, line, &gaps[i]);
    weir_free(gaps);
    return WEIR_OK;
}

static bool uses_dirty(const struct weir_draft *d, const struct weir_stay *s)
{
    const struct weir_item *item = &d->items[s->item];
    for (uint32_t u = s->first_use; u <= s->last_use; u++)
        if (d->uses[item->first_use + u].dirty)
            return true;
    return false;
}

/* Kept bytes, and bf16-waiting gradients that leave before they are complete, need a place of their
 * own; an fp32 gradient waits in its home. */
static bool waits_apart(const struct weir_draft *d, const struct weir_item *item)
{
    return item->kind == WEIR_ITEM_KEPT ||
           (item->kind == WEIR_ITEM_GRAD && d->model->grad_dtype == WEIR_BF16);
}

static void span_add(struct weir_draft *d, uint32_t before, uint32_t after)
{
    const struct weir_stay *q = &d->stays[before], *r = &d->stays[after];
    struct weir_wait_span *last = d->span_count > 0 ? &d->spans[d->span_count - 1] : NULL;
    if (last && last->item == q->item && !uses_dirty(d, q)) {
        last->end = r->a + 1;
        last->stay_count = after - last->first_stay;
        return;
    }
    d->spans[d->span_count++] = (struct weir_wait_span){.start = q->b - 1,
                                                        .end = r->a + 1,
                                                        .bytes = d->items[q->item].bytes,
                                                        .item = q->item,
                                                        .first_stay = before,
                                                        .stay_count = after - before};
}

static void item_spans(struct weir_draft *d, const struct weir_item *item)
{
    uint32_t before = UINT32_MAX;
    for (uint32_t s = item->first_stay; s < item->first_stay + item->stay_count; s++) {
        if (d->stays[s].gone)
            continue;
        if (before != UINT32_MAX)
            span_add(d, before, s);
        before = s;
    }
}

static int span_order(const void *x, const void *y)
{
    const struct weir_wait_span *p = x, *q = y;
    uint32_t a = p->end - p->start, b = q->end - q->start;
    if (a != b)
        return a < b ? -1 : 1;
    if (p->start != q->start)
        return p->start < q->start ? -1 : 1;
    return p->item < q->item ? -1 : p->item > q->item;
}

static enum weir_status spans_make(struct weir_draft *d)
{
    weir_free(d->spans);
    d->spans = NULL;
    d->span_count = 0;
    WEIR_TRY(weir_alloc(&d->spans, d->stay_count, sizeof *d->spans, "plan waits"));
    for (size_t i = 0; i < d->item_count; i++)
        if (waits_apart(d, &d->items[i]) && !d->items[i].optional)
            item_spans(d, &d->items[i]);
    qsort(d->spans, d->span_count, sizeof *d->spans, span_order);
    return WEIR_OK;
}

static enum weir_status waits_choose(struct weir_draft *d, struct weir_timeline *device,
                                     struct weir_timeline *host)
{
    WEIR_TRY(spans_make(d));
    for (size_t i = 0; i < d->span_count; i++) {
        struct weir_wait_span *span = &d->spans[i];
        span->on_host = weir_timeline_take_if(host, span->start, span->end, span->bytes);
        if (!span->on_host && !d->nvme)
            return weir_fail_budget(
                d->over_budget,
                "host: step \"%s\" has no room for %llu bytes that wait over stages "
                "%u to %u, %llu given; raise host_bytes or give an nvme_path",
                d->trace->key, (unsigned long long)span->bytes, span->start, span->end,
                (unsigned long long)host->capacity);
    }
    return weir_draft_optionals(d, device, host);
}

static enum weir_status residency(struct weir_draft *d, struct weir_timeline *device,
                                  struct weir_timeline *host)
{
    for (uint32_t t = 0; t <= d->stage_count; t++)
        device->load[t] = host->load[t] = 0;
    memset(d->optional_bytes, 0, sizeof d->optional_bytes);
    WEIR_TRY(stays_make(d));
    WEIR_TRY(uses_take(d, device));
    margins_grow(d, device);
    WEIR_TRY(gaps_bridge(d, device));
    WEIR_TRY(waits_choose(d, device, host));
    d->peak_bytes = 0;
    for (uint32_t t = 0; t < d->stage_count; t++)
        if (device->load[t] > d->peak_bytes)
            d->peak_bytes = device->load[t];
    return WEIR_OK;
}

/* Offsets of all stays. */
static enum weir_status device_arena(struct weir_draft *d, uint64_t enough)
{
    struct weir_span *spans;
    size_t count = 0;
    WEIR_TRY(weir_alloc(&spans, d->stay_count + 1, sizeof *spans, "plan places"));
    for (size_t i = 0; i < d->stay_count; i++)
        if (!d->stays[i].gone)
            spans[count++] = (struct weir_span){d->stays[i].start, d->stays[i].end,
                                                d->items[d->stays[i].item].bytes, 0};
    d->device_height = 0;
    enum weir_status status = weir_arena_place(spans, count, enough, &d->device_height);
    size_t next = 0;
    for (size_t i = 0; status == WEIR_OK && i < d->stay_count; i++)
        if (!d->stays[i].gone)
            d->stays[i].offset = spans[next++].offset;
    weir_free(spans);
    return status;
}

static enum weir_status spans_arena(struct weir_draft *d, bool host, uint64_t enough,
                                    uint64_t *height)
{
    struct weir_span *spans;
    size_t count = 0;
    WEIR_TRY(weir_alloc(&spans, d->span_count + 1, sizeof *spans, "plan places"));
    for (size_t i = 0; i < d->span_count; i++)
        if (d->spans[i].on_host == host && d->spans[i].bytes > 0)
            spans[count++] =
                (struct weir_span){d->spans[i].start, d->spans[i].end, d->spans[i].bytes, 0};
    *height = 0;
    enum weir_status status = weir_arena_place(spans, count, enough, height);
    size_t next = 0;
    for (size_t i = 0; status == WEIR_OK && i < d->span_count; i++)
        if (d->spans[i].on_host == host && d->spans[i].bytes > 0)
            d->spans[i].offset = spans[next++].offset;
    weir_free(spans);
    return status;
}

/* Placement wastes a little: whoever came last moves to NVMe, or is refused, until it fits. */
static enum weir_status host_arena(struct weir_draft *d, uint64_t room)
{
    for (;;) {
        WEIR_TRY(spans_arena(d, true, room, &d->wait_host_bytes));
        if (d->wait_host_bytes <= room)
            return WEIR_OK;
        size_t i = d->span_count;
        while (i > 0 && !(d->spans[i - 1].on_host && d->spans[i - 1].bytes > 0))
            i--;
        struct weir_wait_span *span = &d->spans[i - 1];
        struct weir_item *item = &d->items[span->item];
        if (item->optional) {
            weir_draft_refuse(d, item);
            span->bytes = 0;
        } else if (d->nvme) {
            span->on_host = false;
        } else {
            return weir_fail_budget(
                d->over_budget,
                "host: step \"%s\" needs %llu bytes for tensors that wait, %llu are "
                "left; raise host_bytes or give an nvme_path",
                d->trace->key, (unsigned long long)d->wait_host_bytes, (unsigned long long)room);
        }
    }
}

/* What the arena makes of an aim at so many bytes. */
static enum weir_status device_aim(struct weir_draft *d, uint64_t device_bytes, uint64_t aim,
                                   struct weir_timeline *device, struct weir_timeline *host)
{
    device->capacity = aim;
    WEIR_TRY(residency(d, device, host));
    uint64_t ample = d->peak_bytes + d->peak_bytes / 16;
    return device_arena(d, device_bytes < 2 * ample ? device_bytes : ample);
}

/* Aim lower by what sticks out until it fits, then halfway back up while that is worth it. */
static enum weir_status device_fit(struct weir_draft *d, uint64_t device_bytes,
                                   struct weir_timeline *device, struct weir_timeline *host)
{
    const uint64_t step = device_bytes / 64 + 1;
    uint64_t aim = device_bytes, fails = device_bytes;
    WEIR_TRY(device_aim(d, device_bytes, aim, device, host));
    while (d->device_height > device_bytes) {
        if (d->peak_bytes <= d->least_bytes || aim <= d->least_bytes)
            return weir_fail_budget(
                d->over_budget,
                "device: step \"%s\" needs %llu bytes when placed, %llu given; lower "
                "the micro-batch or raise device_bytes",
                d->trace->key, (unsigned long long)d->device_height,
                (unsigned long long)device_bytes);
        uint64_t over = d->device_height - device_bytes, lower = over > step ? over : step;
        fails = aim;
        aim = aim > lower ? aim - lower : 0;
        aim = aim < d->peak_bytes - 1 ? aim : d->peak_bytes - 1;
        aim = aim > d->least_bytes ? aim : d->least_bytes;
        WEIR_TRY(device_aim(d, device_bytes, aim, device, host));
    }
    uint64_t fits = aim;
    while (fails - fits > step) {
        aim = fits + (fails - fits) / 2;
        WEIR_TRY(device_aim(d, device_bytes, aim, device, host));
        *(d->device_height <= device_bytes ? &fits : &fails) = aim;
    }
    return aim == fits ? WEIR_OK : device_aim(d, device_bytes, fits, device, host);
}

static void totals_count(struct weir_draft *d)
{
    d->refused_bytes = 0;
    for (size_t i = 0; i < d->item_count; i++)
        d->refused_bytes += d->items[i].refused ? d->items[i].bytes : 0;
}

enum weir_status weir_draft_place(struct weir_draft *d, uint64_t device_bytes, uint64_t host_room)
{
    struct weir_timeline device = {NULL, 0}, host = {NULL, host_room};
    enum weir_status status =
        weir_alloc(&device.load, d->stage_count + 1u, sizeof *device.load, "timeline");
    if (status == WEIR_OK)
        status = weir_alloc(&host.load, d->stage_count + 1u, sizeof *host.load, "timeline");
    if (status == WEIR_OK)
        status = device_fit(d, device_bytes, &device, &host);
    if (status == WEIR_OK)
        status = host_arena(d, host_room);
    if (status == WEIR_OK)
        status = spans_arena(d, false, UINT64_MAX, &d->wait_nvme_bytes);
    if (status == WEIR_OK)
        totals_count(d);
    weir_free(device.load);
    weir_free(host.load);
    return status;
}
