/*
 * Where bytes live between steps (DESIGN 4c). Device: whole blocks. Host: weights, then gradients
 * and states, cut at windows. NVMe: the rest.
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

enum weir_status weir_homes_choose(const struct weir_model *model,
                                   const struct weir_trace *const *traces, size_t trace_count,
                                   uint64_t bytes, bool *device_home, uint64_t *taken)
{
    uint32_t *order;
    size_t count;
    *taken = 0;
    WEIR_TRY(blocks_order(model, traces, trace_count, &order, &count));
    for (int trained = 0; trained < 2; trained++)
        for (size_t i = 0; i < count; i++) {
            uint32_t id = order[i];
            uint64_t need = weir_block_device_bytes(model, id);
            if ((model->things[id].trained_window_count > 0) != trained || need > bytes - *taken)
                continue;
            device_home[id] = true;
            *taken += need;
        }
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

static enum weir_status part_fill(struct weir_homes *homes, uint32_t block, enum weir_part part,
                                  uint64_t host_limit, bool nvme, bool *over_budget)
{
    const struct weir_thing *thing = &homes->model->things[block];
    for (uint32_t w = 0; w < thing->window_count; w++) {
        struct weir_place *place = &homes->blocks[block][w].part[part];
        if (!has_part(thing, w, part))
            continue;
        uint64_t bytes = thing->windows[w].element_count * weir_part_bytes(homes->model, part);
        bool host = bytes <= host_limit && homes->host_end <= host_limit - bytes;
        if (!host && !nvme)
            return weir_fail_budget(
                over_budget,
                "host: homes need more than %llu bytes at block \"%s\", window %u; "
                "raise host_bytes or give an nvme_path",
                (unsigned long long)host_limit, thing->name, w);
        uint64_t *end = host ? &homes->host_end : &homes->nvme_end;
        *place = (struct weir_place){host ? WEIR_TIER_HOST : WEIR_TIER_NVME, *end, bytes};
        *end += bytes;
    }
    return WEIR_OK;
}

static enum weir_status homes_fill(struct weir_homes *homes, const uint32_t *order, size_t count,
                                   const bool *device_home, uint64_t host_limit, bool nvme,
                                   bool *over_budget)
{
    WEIR_TRY(weir_alloc(&homes->blocks, homes->model->thing_count, sizeof *homes->blocks, "homes"));
    for (size_t i = 0; i < count; i++)
        WEIR_TRY(weir_alloc(&homes->blocks[order[i]], homes->model->things[order[i]].window_count,
                            sizeof **homes->blocks, "homes"));
    for (size_t i = 0; i < count; i++)
        if (device_home[order[i]])
            device_fill(homes, order[i]);
    for (size_t i = 0; i < count; i++)
        if (!device_home[order[i]])
            WEIR_TRY(part_fill(homes, order[i], WEIR_PART_WEIGHT, host_limit, nvme, over_budget));
    for (size_t i = 0; i < count; i++)
        if (!device_home[order[i]]) {
            WEIR_TRY(part_fill(homes, order[i], WEIR_PART_GRAD, host_limit, nvme, over_budget));
            WEIR_TRY(part_fill(homes, order[i], WEIR_PART_STATE, host_limit, nvme, over_budget));
        }
    return WEIR_OK;
}

enum weir_status weir_homes_make(struct weir_homes **out, const struct weir_model *model,
                                 const struct weir_trace *const *traces, size_t trace_count,
                                 const bool *device_home, uint64_t device_first,
                                 uint64_t host_first, uint64_t host_limit, bool nvme,
                                 bool *over_budget)
{
    struct weir_homes *homes;
    uint32_t *order = NULL;
    size_t count;
    WEIR_TRY(weir_alloc(&homes, 1, sizeof *homes, "homes"));
    *homes = (struct weir_homes){.model = model,
                                 .device_first = device_first,
                                 .device_end = device_first,
                                 .host_first = host_first,
                                 .host_end = host_first};
    enum weir_status status = blocks_order(model, traces, trace_count, &order, &count);
    if (status == WEIR_OK)
        status = homes_fill(homes, order, count, device_home, host_limit, nvme, over_budget);
    weir_free(order);
    if (status != WEIR_OK) {
        weir_homes_free(homes);
        return status;
    }
    *out = homes;
    return WEIR_OK;
}
