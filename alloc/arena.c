#include "alloc/arena.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

#define ORDER_COUNT 4
#define TRIES       40
#define NEAR        32 /* 1/32 above enough */

/* A placed span. The boxes of a try are kept sorted by `low`, so that first fit is one scan. */
struct box {
    uint32_t start, end;
    uint64_t low, high;
};

/* What an order sorts by: first, then second, then the span's number, all ascending. */
struct rank {
    uint64_t first, second;
    uint32_t span;
};

struct work {
    const struct weir_span *spans;
    size_t span_count;
    struct rank *ranks;   /* the order of the present try */
    struct box *boxes;    /* placed so far */
    uint64_t *offsets;    /* of the present try, by span */
    uint64_t *best;       /* of the lowest try */
    uint64_t best_height; /* UINT64_MAX: no try yet */
};

static struct rank rank_of(const struct weir_span *span, int order)
{
    uint64_t length = span->end - span->start;
    uint64_t largest = ~span->bytes, longest = ~length;
    switch (order) {
    case 0:
        return (struct rank){largest, span->start, 0};
    case 1:
        return (struct rank){span->start, largest, 0};
    case 2:
        return (struct rank){longest, largest, 0};
    default:
        return (struct rank){~(span->bytes / WEIR_ARENA_ALIGN_BYTES * length), span->start, 0};
    }
}

static int rank_compare(const void *left, const void *right)
{
    const struct rank *a = left, *b = right;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    if (a->second != b->second)
        return a->second < b->second ? -1 : 1;
    return (a->span > b->span) - (a->span < b->span);
}

static void order_make(struct work *work, int order)
{
    for (size_t i = 0; i < work->span_count; i++) {
        work->ranks[i] = rank_of(&work->spans[i], order);
        work->ranks[i].span = (uint32_t)i;
    }
    qsort(work->ranks, work->span_count, sizeof *work->ranks, rank_compare);
}

static void order_move_to_front(struct work *work, size_t position)
{
    struct rank moved = work->ranks[position];
    memmove(work->ranks + 1, work->ranks, position * sizeof *work->ranks);
    work->ranks[0] = moved;
}

/* The lowest gap between the boxes that live when the span does. */
static uint64_t lowest_fit(const struct box *boxes, size_t count, const struct weir_span *span)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (boxes[i].start >= span->end || span->start >= boxes[i].end)
            continue;
        if (at + span->bytes <= boxes[i].low)
            break;
        if (boxes[i].high > at)
            at = boxes[i].high;
    }
    return at;
}

static void box_insert(struct box *boxes, size_t count, struct box box)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (boxes[middle].low <= box.low)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(boxes + low + 1, boxes + low, (count - low) * sizeof *boxes);
    boxes[low] = box;
}

/* Place all spans in the present order, or until one sticks out of the best placement so far; *top
 * is the position of the highest. */
static uint64_t first_fit(struct work *work, size_t *top)
{
    uint64_t height = 0;
    for (size_t i = 0; i < work->span_count && height < work->best_height; i++) {
        const struct weir_span *span = &work->spans[work->ranks[i].span];
        uint64_t at = lowest_fit(work->boxes, i, span);
        box_insert(work->boxes, i, (struct box){span->start, span->end, at, at + span->bytes});
        work->offsets[work->ranks[i].span] = at;
        if (at + span->bytes > height) {
            height = at + span->bytes;
            *top = i;
        }
    }
    return height;
}

/* One placement in the present order; true: low enough. */
static bool try_order(struct work *work, uint64_t enough, size_t *top)
{
    uint64_t height = first_fit(work, top);
    if (height < work->best_height) {
        work->best_height = height;
        memcpy(work->best, work->offsets, work->span_count * sizeof *work->best);
    }
    return work->best_height <= enough;
}

/* Each order once; then, if it is not far from enough, the best one again and again. */
static void search(struct work *work, uint64_t enough)
{
    int best = 0;
    size_t top = 0;
    for (int order = 0; order < ORDER_COUNT; order++) {
        uint64_t before = work->best_height;
        order_make(work, order);
        if (try_order(work, enough, &top))
            return;
        best = work->best_height < before ? order : best;
    }
    if (work->best_height - enough > enough / NEAR)
        return;
    order_make(work, best);
    for (int try = 0; try < TRIES && !try_order(work, enough, &top); try++)
        order_move_to_front(work, top);
}

/* The most bytes that live at once: no placement is lower, so reaching it ends the search.
 * A span's start adds its bytes, its end takes them away, ends before starts. */
static enum weir_status most_at_once(const struct weir_span *spans, size_t span_count,
                                     uint64_t *bytes)
{
    struct rank *edges;
    WEIR_TRY(weir_alloc(&edges, span_count * 2, sizeof *edges, "the edges of an arena's spans"));
    for (size_t i = 0; i < span_count; i++) {
        edges[2 * i] = (struct rank){spans[i].start, 1, (uint32_t)i};
        edges[2 * i + 1] = (struct rank){spans[i].end, 0, (uint32_t)i};
    }
    qsort(edges, span_count * 2, sizeof *edges, rank_compare);
    uint64_t load = 0, most = 0;
    for (size_t i = 0; i < span_count * 2; i++) {
        uint64_t change = spans[edges[i].span].bytes;
        load = edges[i].second ? load + change : load - change;
        if (load > most)
            most = load;
    }
    weir_free(edges);
    *bytes = most;
    return WEIR_OK;
}

static enum weir_status check(const struct weir_span *spans, size_t span_count)
{
    if (span_count > UINT32_MAX)
        return weir_fail(WEIR_ERR_ARG, "arena: %zu spans, at most %u", span_count, UINT32_MAX);
    for (size_t i = 0; i < span_count; i++)
        if (spans[i].start >= spans[i].end || spans[i].bytes == 0 ||
            spans[i].bytes % WEIR_ARENA_ALIGN_BYTES != 0)
            return weir_fail(WEIR_ERR_ARG,
                             "arena: span %zu lives in [%u, %u) with %llu bytes; it needs a "
                             "lifetime and a positive multiple of %d bytes",
                             i, spans[i].start, spans[i].end, (unsigned long long)spans[i].bytes,
                             WEIR_ARENA_ALIGN_BYTES);
    return WEIR_OK;
}

static enum weir_status work_make(struct work *work)
{
    size_t count = work->span_count;
    WEIR_TRY(weir_alloc(&work->ranks, count, sizeof *work->ranks, "an arena's order"));
    WEIR_TRY(weir_alloc(&work->boxes, count, sizeof *work->boxes, "an arena's boxes"));
    WEIR_TRY(weir_alloc(&work->offsets, count, sizeof *work->offsets, "an arena's offsets"));
    return weir_alloc(&work->best, count, sizeof *work->best, "an arena's best offsets");
}

static void work_free(struct work *work)
{
    weir_free(work->ranks);
    weir_free(work->boxes);
    weir_free(work->offsets);
    weir_free(work->best);
}

enum weir_status weir_arena_place(struct weir_span *spans, size_t span_count, uint64_t enough,
                                  uint64_t *height)
{
    WEIR_TRY(check(spans, span_count));
    uint64_t least;
    WEIR_TRY(most_at_once(spans, span_count, &least));
    struct work work = {.spans = spans, .span_count = span_count, .best_height = UINT64_MAX};
    enum weir_status status = work_make(&work);
    if (status == WEIR_OK) {
        search(&work, enough > least ? enough : least);
        for (size_t i = 0; i < span_count; i++)
            spans[i].offset = work.best[i];
        *height = span_count > 0 ? work.best_height : 0;
    }
    work_free(&work);
    return status;
}
