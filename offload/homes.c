/*
 * Where bytes live between steps (DESIGN 4c). Device: whole blocks. Host: weights, then gradients
 * that return within a step, states, other gradients, each spread evenly over the windows. NVMe:
 * the rest.
 */
#include "core/memory.h"
#include "offload/plan_internal.h"

uint64_t weir_block_device_bytes(const struct weir_model *model, uint32_t block)
{
    const struct weir_thing *thing = &model->things[block];
    return thing->element_count * weir_part_bytes(model, WEIR_PART_WEIGHT) +
           thing->trained_element_count *
               (WEIR_DEVICE_GRAD_BYTES + weir_part_bytes(model, WEIR_PART_STATE));
}

/* Blocks in the order of first want over the traces, then those that no trace wants. */
static enum weir_status blocks_order(const struct weir_model *model,
                                     const struct weir_trace *const *traces, size_t trace_count,
                                     uint32_t **out, size_t *count)
{
    bool *seen;
    *count = 0;
    WEIR_TRY(weir_alloc(&seen, model->thing_count, sizeof *seen, "block order"));
    enum weir_status status = weir_alloc(out, model->thing_count, sizeof **out, "block order");
    for (size_t t = 0; status == WEIR_OK && t < trace_count; t++)
        for (size_t i = 0; i < traces[t]->use_count; i++) {
            uint32_t id = traces[t]->uses[i].id;
            if (model->things[id].is_block && !seen[id]) {
                seen[id] = true;
                (*out)[(*count)++] = id;
            }
        }
    for (uint32_t i = 0; status == WEIR_OK && i < model->thing_count; i++)
        if (model->things[i].is_block && !seen[i])
            (*out)[(*count)++] = i;
    weir_free(seen);
    return status;
}

/* room * passed / total, in pages: no product overflows below 16 TiB. */
static uint64_t share(uint64_t room, uint64_t passed, uint64_t total)
{
    if (room >= total)
        return passed;
    return (room / WEIR_PAGE) * (passed / WEIR_PAGE) / (total / WEIR_PAGE) * WEIR_PAGE;
}

static void blocks_spread(const struct weir_model *model, const uint32_t *order, size_t count,
                          bool trained, uint64_t bytes, bool *device_home, uint64_t *taken)
{
    uint64_t total = 0, passed = 0, room = bytes - *taken, placed = 0;
    for (size_t i = 0; i < count; i++)
        if ((model->things[order[i]].trained_window_count > 0) == trained)
            total += weir_block_device_bytes(model, order[i]);
    for (size_t i = 0; i < count; i++) {
        uint64_t need = weir_block_device_bytes(model, order[i]);
        if ((model->things[order[i]].trained_window_count > 0) != trained)
            continue;
        if (placed <= share(room, passed, total) && need <= room - placed) {
            device_home[order[i]] = true;
            placed += need;
        }
        passed += need;
    }
    for (size_t i = 0; i < count; i++) { /* what was left between them */
        uint64_t need = weir_block_device_bytes(model, order[i]);
        bool kind = (model->things[order[i]].trained_window_count > 0) == trained;
        if (kind && !device_home[order[i]] && need <= room - placed) {
            device_home[order[i]] = true;
            placed += need;
        }
    }
    *taken += placed;
}

enum weir_status weir_homes_choose(const struct weir_model *model,
                                   const struct weir_trace *const *traces, size_t trace_count,
                                   uint64_t bytes, bool *device_home, uint64_t *taken)
{
    uint32_t *order;
    size_t count;
    *taken = 0;
    WEIR_TRY(blocks_order(model, traces, trace_count, &order, &count));
    for (int trained = 0; trained < 2; trained++)
        blocks_spread(model, order, count, trained, bytes, device_home, taken);
    weir_free(order);
    return WEIR_OK;
}

void weir_homes_count(const struct weir_model *model, const bool *device_home,
                      uint64_t *weight_bytes, uint64_t *all_bytes)
{
    *weight_bytes = *all_bytes = 0;
    for (size_t i = 0; i < model->thing_count; i++) {
        const struct weir_thing *thing = &model->things[i];
        if (!thing->is_block || device_home[i])
            continue;
        uint64_t weight = thing->element_count * weir_part_bytes(model, WEIR_PART_WEIGHT);
        *weight_bytes += weight;
        *all_bytes +=
            weight + thing->trained_element_count * (weir_part_bytes(model, WEIR_PART_GRAD) +
                                                     weir_part_bytes(model, WEIR_PART_STATE));
    }
}

void weir_homes_free(struct weir_homes *homes)
{
    if (!homes)
        return;
    for (size_t i = 0; homes->blocks && i < homes->model->thing_count; i++)
        weir_free(homes->blocks[i]);
    weir_free(homes->blocks);
    weir_free(homes);
}

static bool has_part(const struct weir_thing *thing, uint32_t window, enum weir_part part)
{
    return part == WEIR_PART_WEIGHT || window < thing->trained_window_count;
}

/* A block on the device: weight, gradient (fp32), state, each contiguous. */
static void device_fill(struct weir_homes *homes, uint32_t block)
{
    const struct weir_model *model = homes->model;
    const struct weir_thing *thing = &model->things[block];
    static const enum weir_part parts[] = {WEIR_PART_WEIGHT, WEIR_PART_GRAD, WEIR_PART_STATE};
    for (int p = 0; p < 3; p++) {
        uint64_t each =
            parts[p] == WEIR_PART_GRAD ? WEIR_DEVICE_GRAD_BYTES : weir_part_bytes(model, parts[p]);
        for (uint32_t w = 0; w < thing->window_count; w++) {
            if (!has_part(thing, w, parts[p]))
                continue;
            homes->blocks[block][w].part[parts[p]] = (struct weir_place){
                WEIR_TIER_DEVICE, homes->device_end, thing->windows[w].element_count * each};
            homes->device_end += thing->windows[w].element_count * each;
        }
    }
}

/* One part of the blocks that do not live on the device. */
struct tranche {
    enum weir_part part;
    bool returns; /* gradients: of blocks whose gradient leaves and comes back within a step */
};
struct filling {
    struct weir_homes *homes;
    const uint32_t *order; /* blocks that do not live on the device, first wanted first */
    size_t count;
    const bool *returns; /* [thing] */
    uint64_t host_limit;
};

static void place_take(struct weir_place *place, enum weir_tier tier, uint64_t *end, uint64_t bytes)
{
    *place = (struct weir_place){tier, *end, bytes};
    *end += bytes;
}

/* How many windows of a block a tranche has. */
static uint32_t tranche_windows(const struct filling *f, uint32_t block,
                                const struct tranche *tranche)
{
    const struct weir_thing *thing = &f->homes->model->things[block];
    if (tranche->part == WEIR_PART_WEIGHT)
        return thing->window_count;
    if (tranche->part == WEIR_PART_GRAD && tranche->returns != f->returns[block])
        return 0;
    return thing->trained_window_count;
}

static uint64_t window_bytes(const struct filling *f, uint32_t block, uint32_t window,
                             enum weir_part part)
{
    return f->homes->model->things[block].windows[window].element_count *
           weir_part_bytes(f->homes->model, part);
}

static uint64_t tranche_bytes(const struct filling *f, const struct tranche *tranche)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < f->count; i++)
        for (uint32_t w = 0; w < tranche_windows(f, f->order[i], tranche); w++)
            bytes += window_bytes(f, f->order[i], w, tranche->part);
    return bytes;
}

/* Windows go to host memory as evenly as whole windows allow, so that every stage leaves its share
 * of traffic to the drive; all of them if there is room. */
static void tranche_spread(struct filling *f, const struct tranche *tranche)
{
    uint64_t total = tranche_bytes(f, tranche), passed = 0, placed = 0;
    uint64_t room = f->host_limit - f->homes->host_end;
    for (size_t i = 0; i < f->count; i++)
        for (uint32_t w = 0; w < tranche_windows(f, f->order[i], tranche); w++) {
            uint64_t bytes = window_bytes(f, f->order[i], w, tranche->part);
            bool turn = placed <= share(room, passed, total) && bytes <= room - placed;
            passed += bytes;
            if (!turn)
                continue;
            placed += bytes;
            place_take(&f->homes->blocks[f->order[i]][w].part[tranche->part], WEIR_TIER_HOST,
                       &f->homes->host_end, bytes);
        }
}

/* What was not placed yet: in the rest of host memory, or on NVMe. */
static enum weir_status tranche_rest(struct filling *f, const struct tranche *tranche, bool nvme,
                                     bool *over_budget)
{
    for (size_t i = 0; i < f->count; i++)
        for (uint32_t w = 0; w < tranche_windows(f, f->order[i], tranche); w++) {
            struct weir_place *place = &f->homes->blocks[f->order[i]][w].part[tranche->part];
            uint64_t bytes = window_bytes(f, f->order[i], w, tranche->part);
            if (place->bytes > 0)
                continue;
            if (bytes <= f->host_limit - f->homes->host_end)
                place_take(place, WEIR_TIER_HOST, &f->homes->host_end, bytes);
            else if (nvme)
                place_take(place, WEIR_TIER_NVME, &f->homes->nvme_end, bytes);
            else
                return weir_fail_budget(
                    over_budget,
                    "host: homes need more than %llu bytes at block \"%s\", window %u; "
                    "raise host_bytes or give an nvme_path",
                    (unsigned long long)f->host_limit, f->homes->model->things[f->order[i]].name,
                    w);
        }
    return WEIR_OK;
}

/* By the traffic that a byte saves a step: a weight three bytes and more; a gradient that returns
 * four, but weights have the room that was kept for them; a state two, both in the forward pass,
 * which has the most; another gradient one there and one in the backward pass. */
static enum weir_status host_fill(struct filling *f, bool nvme, bool *over_budget)
{
    static const struct tranche order[] = {{WEIR_PART_WEIGHT, false},
                                           {WEIR_PART_GRAD, true},
                                           {WEIR_PART_STATE, false},
                                           {WEIR_PART_GRAD, false}};
    for (int i = 0; i < 4; i++) {
        tranche_spread(f, &order[i]);
        WEIR_TRY(tranche_rest(f, &order[i], nvme, over_budget));
    }
    return WEIR_OK;
}

/* Gradients that may leave before they are complete; a bf16 one waits elsewhere then. */
static void returns_find(const struct weir_model *model, const struct weir_trace *const *traces,
                         size_t trace_count, bool *returns)
{
    for (size_t t = 0; t < trace_count && model->grad_dtype == WEIR_FP32; t++)
        for (size_t i = 0; i < traces[t]->use_count; i++) {
            const struct weir_trace_use *use = &traces[t]->uses[i];
            if ((use->access == WEIR_GRAD || use->access == WEIR_ADD) && !use->grad_last)
                returns[use->id] = true;
        }
}

static enum weir_status homes_fill(struct filling *f, uint32_t *order, size_t count,
                                   const bool *device_home, bool nvme, bool *over_budget)
{
    struct weir_homes *homes = f->homes;
    WEIR_TRY(weir_alloc(&homes->blocks, homes->model->thing_count, sizeof *homes->blocks, "homes"));
    for (size_t i = 0; i < count; i++) {
        uint32_t id = order[i];
        WEIR_TRY(weir_alloc(&homes->blocks[id], homes->model->things[id].window_count,
                            sizeof **homes->blocks, "homes"));
        if (device_home[id])
            device_fill(homes, id);
        else
            order[f->count++] = id;
    }
    f->order = order;
    return host_fill(f, nvme, over_budget);
}

enum weir_status weir_homes_make(struct weir_homes **out, const struct weir_model *model,
                                 const struct weir_trace *const *traces, size_t trace_count,
                                 const bool *device_home, uint64_t device_first,
                                 uint64_t host_first, uint64_t host_limit, bool nvme,
                                 bool *over_budget)
{
    struct weir_homes *homes;
    uint32_t *order = NULL;
    bool *returns = NULL;
    size_t count;
    WEIR_TRY(weir_alloc(&homes, 1, sizeof *homes, "homes"));
    *homes = (struct weir_homes){.model = model,
                                 .device_first = device_first,
                                 .device_end = device_first,
                                 .host_first = host_first,
                                 .host_end = host_first};
    enum weir_status status = blocks_order(model, traces, trace_count, &order, &count);
    if (status == WEIR_OK)
        status = weir_alloc(&returns, model->thing_count, sizeof *returns, "homes");
    if (status == WEIR_OK) {
        returns_find(model, traces, trace_count, returns);
        struct filling f = {.homes = homes, .returns = returns, .host_limit = host_limit};
        status = homes_fill(&f, order, count, device_home, nvme, over_budget);
    }
    weir_free(returns);
    weir_free(order);
    if (status != WEIR_OK) {
        weir_homes_free(homes);
        return status;
    }
    *out = homes;
    return WEIR_OK;
}
