/*
 * The board: for every byte range of every tier the last writer and the readers since. An op's
 * waits are the ops it follows on the bytes it touches, less those that other waits imply.
 */
#include "core/memory.h"
#include "offload/plan_internal.h"

#include <string.h>

#define LANES WEIR_LANE_COUNT

/* Counts of completed ops, by lane. */
struct clock {
    uint32_t n[LANES];
};

/* Bytes from `at` to the next cell. */
struct cell {
    uint64_t at;
    uint32_t writer_lane, writer; /* writer 0: none */
    uint32_t readers[LANES];
};
/* The cells of BUCKET_BYTES neighbouring bytes, so that a cut moves few of them. */
#define BUCKET_BYTES (64ull << 20)
struct bucket {
    struct cell *cells;
    size_t count, capacity;
};
struct tier_cells {
    struct bucket *buckets;
    size_t count, capacity;
};
struct lane_history {
    struct clock *after; /* [n]: complete whenever the lane's first n ops are */
    size_t count, capacity;
};
struct weir_board {
    struct tier_cells tiers[WEIR_TIER_COUNT];
    struct lane_history history[LANES];
    struct clock seen[LANES]; /* complete whenever the lane's next op begins */
};

static bool in_order(uint32_t lane)
{
    return lane != WEIR_LANE_READ && lane != WEIR_LANE_WRITE;
}

enum weir_status weir_board_open(struct weir_board **out)
{
    struct weir_board *board;
    WEIR_TRY(weir_alloc(&board, 1, sizeof *board, "board"));
    *out = board;
    for (uint32_t l = 0; l < LANES; l++) {
        struct lane_history *h = &board->history[l];
        WEIR_TRY(weir_grow(&h->after, &h->capacity, 1, sizeof *h->after, "board"));
        h->after[0] = (struct clock){{0}};
        h->count = 1;
    }
    return WEIR_OK;
}

void weir_board_close(struct weir_board *board)
{
    if (!board)
        return;
    for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++) {
        for (size_t i = 0; i < board->tiers[t].count; i++)
            weir_free(board->tiers[t].buckets[i].cells);
        weir_free(board->tiers[t].buckets);
    }
    for (uint32_t l = 0; l < LANES; l++)
        weir_free(board->history[l].after);
    weir_free(board);
}

static enum weir_status bucket_find(struct tier_cells *t, uint64_t at, struct bucket **out)
{
    size_t index = (size_t)(at / BUCKET_BYTES);
    WEIR_TRY(weir_grow(&t->buckets, &t->capacity, index + 1, sizeof *t->buckets, "board"));
    for (; t->count <= index; t->count++)
        t->buckets[t->count] = (struct bucket){0};
    struct bucket *bucket = *out = &t->buckets[index];
    if (bucket->count > 0)
        return WEIR_OK;
    WEIR_TRY(weir_grow(&bucket->cells, &bucket->capacity, 1, sizeof *bucket->cells, "board"));
    bucket->cells[0] = (struct cell){.at = index * BUCKET_BYTES};
    bucket->count = 1;
    return WEIR_OK;
}

/* The cell that begins at `at`, made if there is none. */
static enum weir_status cell_cut(struct bucket *t, uint64_t at, size_t *index)
{
    size_t low = 0, high = t->count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (t->cells[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    if (t->cells[low].at != at) {
        WEIR_TRY(weir_grow(&t->cells, &t->capacity, t->count + 1, sizeof *t->cells, "board"));
        low++;
        memmove(t->cells + low + 1, t->cells + low, (t->count - low) * sizeof *t->cells);
        t->count++;
        t->cells[low] = t->cells[low - 1];
        t->cells[low].at = at;
    }
    *index = low;
    return WEIR_OK;
}

static void need(struct clock *needs, uint32_t lane, uint32_t number)
{
    if (number > needs->n[lane])
        needs->n[lane] = number;
}

/* Bytes [from, to) of one bucket. */
static enum weir_status range_touch(struct bucket *b, uint64_t from, uint64_t to, bool write,
                                    uint32_t lane, uint32_t number, struct clock *needs)
{
    size_t first, end;
    WEIR_TRY(cell_cut(b, from, &first));
    WEIR_TRY(cell_cut(b, to, &end));
    for (size_t i = first; i < end; i++) {
        struct cell *cell = &b->cells[i];
        if (cell->writer > 0 && !(cell->writer_lane == lane && cell->writer == number))
            need(needs, cell->writer_lane, cell->writer);
        for (uint32_t l = 0; write && l < LANES; l++)
            if (cell->readers[l] > 0 && !(l == lane && cell->readers[l] == number))
                need(needs, l, cell->readers[l]);
        if (!write)
            cell->readers[lane] = number;
    }
    if (write) {
        b->cells[first] = (struct cell){.at = from, .writer_lane = lane, .writer = number};
        memmove(b->cells + first + 1, b->cells + end, (b->count - end) * sizeof *b->cells);
        b->count -= end - first - 1;
    }
    return WEIR_OK;
}

static enum weir_status touch(struct weir_board *board, const struct weir_touch *touch,
                              uint32_t lane, uint32_t number, struct clock *needs)
{
    uint64_t at = touch->place.offset, end = at + touch->place.bytes;
    while (at < end) {
        struct bucket *bucket;
        uint64_t bound = (at / BUCKET_BYTES + 1) * BUCKET_BYTES, to = end < bound ? end : bound;
        WEIR_TRY(bucket_find(&board->tiers[touch->place.tier], at, &bucket));
        WEIR_TRY(range_touch(bucket, at, to, touch->write, lane, number, needs));
        at = to;
    }
    return WEIR_OK;
}

static const struct clock *after(const struct weir_board *board, uint32_t lane, uint32_t number)
{
    return &board->history[lane].after[number];
}

static void merge(struct clock *into, const struct clock *from)
{
    for (uint32_t l = 0; l < LANES; l++)
        if (from->n[l] > into->n[l])
            into->n[l] = from->n[l];
}

static bool implied(const struct weir_board *board, const struct clock *needs, uint32_t lane)
{
    for (uint32_t k = 0; k < LANES; k++)
        if (k != lane && needs->n[k] > 0 && after(board, k, needs->n[k])->n[lane] >= needs->n[lane])
            return true;
    return false;
}

static enum weir_status history_add(struct weir_board *board, uint32_t lane, uint32_t number)
{
    struct lane_history *h = &board->history[lane];
    WEIR_TRY(weir_grow(&h->after, &h->capacity, h->count + 1, sizeof *h->after, "board"));
    struct clock now = h->after[h->count - 1];
    merge(&now, &board->seen[lane]);
    now.n[lane] = number;
    h->after[h->count++] = now;
    return WEIR_OK;
}

enum weir_status weir_board_add(struct weir_board *board, struct weir_op *op,
                                const struct weir_touch *touches, size_t count)
{
    uint32_t lane = op->lane, number = (uint32_t)board->history[lane].count;
    struct clock needs = {{0}}, kept = {{0}}, *seen = &board->seen[lane];
    for (size_t i = 0; i < count; i++)
        if (touches[i].place.bytes > 0)
            WEIR_TRY(touch(board, &touches[i], lane, number, &needs));
    if (in_order(lane))
        seen->n[lane] = number - 1;
    for (uint32_t l = 0; l < LANES; l++)
        if (needs.n[l] <= seen->n[l])
            needs.n[l] = 0;
    for (uint32_t l = 0; l < LANES; l++)
        if (needs.n[l] > 0 && !implied(board, &needs, l))
            kept.n[l] = needs.n[l];
    op->wait_count = 0;
    for (uint32_t l = 0; l < LANES; l++)
        if (kept.n[l] > 0) {
            op->waits[op->wait_count++] = (struct weir_wait){l, kept.n[l]};
            merge(seen, after(board, l, kept.n[l]));
        }
    return history_add(board, lane, number);
}
