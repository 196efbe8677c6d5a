#include "core/memory.h"
#include "offload/check_internal.h"
#include "offload/dump_internal.h"

#include <stdio.h>
#include <string.h>

static const enum weir_lane kind_lanes[] = {
    WEIR_LANE_READ,   WEIR_LANE_WRITE,  WEIR_LANE_TO_DEVICE,  WEIR_LANE_TO_HOST,
    WEIR_LANE_UPDATE, WEIR_LANE_UPDATE, WEIR_LANE_COLLECTIVE, WEIR_LANE_COMPUTE};

enum weir_status weir_check_fail_plan(const struct weir_check *check, const char *format, ...)
{
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return weir_fail(WEIR_ERR_CORRUPT, "plan \"%s\": %s; do not run it", check->plan->key, text);
}

enum weir_status weir_check_fail(const struct weir_check *check, size_t index, const char *format,
                                 ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct weir_op *op = &check->plan->ops[index];
    const char *kind = op->kind < WEIR_OP_KIND_COUNT ? weir_kind_names[op->kind] : "?";
    if (op->kind == WEIR_OP_COMPUTE || op->thing >= check->model->thing_count)
        return weir_check_fail_plan(check, "op %zu, %s %u, stage %u: %s", index, kind, op->thing,
                                    op->stage, text);
    return weir_check_fail_plan(check, "op %zu, %s \"%s\" window %u, stage %u: %s", index, kind,
                                check->model->things[op->thing].name, op->window, op->stage, text);
}

enum weir_status weir_check_fail_stage(const struct weir_check *check, uint32_t stage,
                                       uint32_t thing, const char *what)
{
    return weir_check_fail_plan(check, "stage %u, \"%s\": %s", stage,
                                check->model->things[thing].name, what);
}

static bool inside(uint64_t offset, uint64_t bytes, uint64_t first, uint64_t end)
{
    return offset >= first && offset <= end && bytes <= end - offset;
}

/* Whole pages of what this plan may address: its transients, and the homes. */
static bool addressable(const struct weir_check *check, enum weir_tier tier, uint64_t offset,
                        uint64_t bytes)
{
    const struct weir_plan *plan = check->plan;
    const struct weir_homes *homes = check->homes;
    if (bytes == 0 || offset % 4096 != 0 || bytes % 4096 != 0)
        return false;
    switch (tier) {
    case WEIR_TIER_DEVICE:
        return inside(offset, bytes, 0, plan->device_transient_bytes) ||
               inside(offset, bytes, homes->device_first, homes->device_end);
    case WEIR_TIER_HOST:
        return inside(offset, bytes, 0, plan->host_transient_bytes) ||
               inside(offset, bytes, homes->host_first, homes->host_end);
    default:
        return check->limits->nvme && inside(offset, bytes, 0, plan->nvme_bytes);
    }
}

static enum weir_status limits_check(const struct weir_check *check)
{
    const struct weir_plan *plan = check->plan;
    const struct weir_homes *homes = check->homes;
    const struct weir_limits *limits = check->limits;
    const struct {
        const char *what;
        uint64_t first, end, bytes;
    } areas[] = {
        {"device transients", 0, plan->device_transient_bytes, limits->device_bytes},
        {"device homes", homes->device_first, homes->device_end, limits->device_bytes},
        {"host transients", 0, plan->host_transient_bytes, limits->host_bytes},
        {"host homes", homes->host_first, homes->host_end, limits->host_bytes},
        {"ring", 0, plan->ring_bytes, plan->host_transient_bytes},
        {"nvme homes", 0, homes->nvme_end, plan->nvme_bytes},
        {"nvme", 0, plan->nvme_bytes, limits->nvme ? UINT64_MAX : 0},
    };
    for (size_t i = 0; i < sizeof areas / sizeof *areas; i++)
        if (areas[i].first > areas[i].end || areas[i].end > areas[i].bytes)
            return weir_check_fail_plan(check, "%s take [%llu, %llu) of %llu bytes", areas[i].what,
                                        (unsigned long long)areas[i].first,
                                        (unsigned long long)areas[i].end,
                                        (unsigned long long)areas[i].bytes);
    if ((homes->device_first < homes->device_end &&
         plan->device_transient_bytes > homes->device_first) ||
        (homes->host_first < homes->host_end && plan->host_transient_bytes > homes->host_first))
        return weir_check_fail_plan(check, "transients reach into the homes");
    return WEIR_OK;
}

static enum weir_status home_part_check(const struct weir_check *check, uint32_t block,
                                        uint32_t window, uint32_t part)
{
    const struct weir_thing *thing = &check->model->things[block];
    const struct weir_place *place = &check->homes->blocks[block][window].part[part];
    uint64_t elements = thing->windows[window].element_count;
    bool sum = part == WEIR_PART_GRAD && place->tier == WEIR_TIER_DEVICE; /* in place, in fp32 */
    uint64_t bytes = elements * (part == WEIR_PART_WEIGHT  ? check->weight_bytes
                                 : part == WEIR_PART_STATE ? check->state_bytes
                                 : sum                     ? WEIR_DEVICE_GRAD_BYTES
                                                           : check->grad_bytes);
    if (part != WEIR_PART_WEIGHT && window >= thing->trained_window_count)
        bytes = 0;
    const struct weir_homes *homes = check->homes;
    uint64_t first = place->tier == WEIR_TIER_DEVICE ? homes->device_first
                     : place->tier == WEIR_TIER_HOST ? homes->host_first
                                                     : 0;
    uint64_t end = place->tier == WEIR_TIER_DEVICE ? homes->device_end
                   : place->tier == WEIR_TIER_HOST ? homes->host_end
                                                   : homes->nvme_end;
    if (place->bytes == bytes &&
        (bytes == 0 || (place->tier < WEIR_TIER_COUNT && inside(place->offset, bytes, first, end) &&
                        addressable(check, place->tier, place->offset, bytes))))
        return WEIR_OK;
    return weir_check_fail_plan(check,
                                "the home of part %u of \"%s\" window %u, %llu bytes at %llu, is "
                                "not %llu bytes among the homes",
                                part, thing->name, window, (unsigned long long)place->bytes,
                                (unsigned long long)place->offset, (unsigned long long)bytes);
}

static enum weir_status homes_check(const struct weir_check *check)
{
    for (uint32_t i = 0; i < check->model->thing_count; i++) {
        const struct weir_thing *thing = &check->model->things[i];
        if (thing->is_block && !check->homes->blocks[i])
            return weir_check_fail_plan(check, "\"%s\" has no homes", thing->name);
        for (uint32_t w = 0; thing->is_block && w < thing->window_count; w++)
            for (uint32_t p = 0; p < 3; p++)
                WEIR_TRY(home_part_check(check, i, w, p));
    }
    return WEIR_OK;
}

static enum weir_status use_check(const struct weir_check *check, uint32_t index)
{
    const struct weir_trace_use *use = &check->trace->uses[index];
    const struct weir_use_place *place = &check->plan->uses[index];
    const struct weir_thing *thing = &check->model->things[use->id];
    uint64_t bytes =
        thing->is_block ? thing->element_count * check->weight_bytes : thing->slot_bytes;
    bool has_bytes = !place->refused && use->access != WEIR_ADD;
    bool has_grad = weir_check_sums(thing, use->access);
    if (place->refused && !thing->optional)
        return weir_check_fail_stage(check, use->stage_first, use->id,
                                     "refused, but it is not optional");
    if (has_bytes ? !addressable(check, WEIR_TIER_DEVICE, place->bytes_offset, bytes)
                  : !place->refused && place->bytes_offset != WEIR_NOWHERE)
        return weir_check_fail_stage(check, use->stage_first, use->id,
                                     "its bytes are not placed on the device");
    if (has_grad ? !addressable(check, WEIR_TIER_DEVICE, place->grad_offset,
                                thing->trained_element_count * WEIR_DEVICE_GRAD_BYTES)
                 : place->grad_offset != WEIR_NOWHERE)
        return weir_check_fail_stage(check, use->stage_first, use->id,
                                     "its gradient is not placed on the device");
    return WEIR_OK;
}

/* A life is refused as a whole: its uses from NEW on. */
static enum weir_status refusals_check(const struct weir_check *check)
{
    uint32_t *latest;
    WEIR_TRY(weir_alloc(&latest, check->model->thing_count, sizeof *latest, "check: lives"));
    enum weir_status status = WEIR_OK;
    for (uint32_t i = 0; status == WEIR_OK && i < check->trace->use_count; i++) {
        const struct weir_trace_use *use = &check->trace->uses[i];
        uint32_t before = latest[use->id];
        if (!check->model->things[use->id].is_block && use->access != WEIR_NEW && before > 0 &&
            check->plan->uses[before - 1].refused != check->plan->uses[i].refused)
            status = weir_check_fail_stage(check, use->stage_first, use->id,
                                           "one use is refused, another of the same life is not");
        latest[use->id] = i + 1;
    }
    weir_free(latest);
    return status;
}

static enum weir_status inner_events_check(const struct weir_check *check)
{
    for (size_t i = 0; i < check->trace->event_count; i++) {
        const struct weir_trace_event *e = &check->trace->events[i];
        if (e->kind == WEIR_EVENT_SCRATCH &&
            !inside(check->plan->scratches[e->first], weir_check_round(e->bytes), 0,
                    check->plan->device_transient_bytes))
            return weir_check_fail_plan(check, "stage %u: scratch %u is not placed on the device",
                                        e->stage, e->first);
        if (e->kind == WEIR_EVENT_SCRATCH && check->plan->scratches[e->first] % 4096 != 0)
            return weir_check_fail_plan(check, "stage %u: scratch %u is not at a whole page",
                                        e->stage, e->first);
        if (e->kind != WEIR_EVENT_PUT && e->kind != WEIR_EVENT_GET)
            continue;
        uint32_t kept = check->trace->uses[e->first].id;
        uint64_t at = check->plan->mail[e->count];
        if (at % 4096 != 0 || !inside(at, check->model->things[kept].slot_bytes, 0,
                                      check->plan->host_transient_bytes))
            return weir_check_fail_stage(check, e->stage, kept,
                                         "its put or get has no slot in host memory");
    }
    return WEIR_OK;
}

/* Places and tiers of each kind of op; UPDATE, CLEAR and REDUCE name windows of fixed size. */
static enum weir_status places_check(const struct weir_check *check, size_t index)
{
    static const enum weir_tier tiers[4][2] = {{WEIR_TIER_NVME, WEIR_TIER_HOST},
                                               {WEIR_TIER_HOST, WEIR_TIER_NVME},
                                               {WEIR_TIER_HOST, WEIR_TIER_DEVICE},
                                               {WEIR_TIER_DEVICE, WEIR_TIER_HOST}};
    static const uint32_t counts[] = {2, 2, 2, 2, 3, 1, 1, 0};
    const struct weir_op *op = &check->plan->ops[index];
    for (uint32_t p = 0; p < WEIR_OP_PLACES; p++) {
        const struct weir_place *place = &op->places[p];
        if (p >= counts[op->kind]
                ? place->bytes != 0
                : place->tier >= WEIR_TIER_COUNT ||
                      !addressable(check, place->tier, place->offset, place->bytes))
            return weir_check_fail(
                check, index, "place %u, %llu bytes at %llu of %s, is not within what it may use",
                p, (unsigned long long)place->bytes, (unsigned long long)place->offset,
                place->tier < WEIR_TIER_COUNT ? weir_tier_names[place->tier] : "?");
        if (op->kind <= WEIR_OP_D2H && p < 2 && place->tier != tiers[op->kind][p])
            return weir_check_fail(check, index, "place %u is in %s", p,
                                   weir_tier_names[place->tier]);
    }
    if (op->kind <= WEIR_OP_D2H && op->places[0].bytes != op->places[1].bytes)
        return weir_check_fail(check, index, "its places differ in size");
    return WEIR_OK;
}

static enum weir_status window_check(const struct weir_check *check, size_t index)
{
    const struct weir_op *op = &check->plan->ops[index];
    const struct weir_thing *thing = &check->model->things[op->thing];
    bool transfer = op->kind <= WEIR_OP_D2H;
    if (!thing->is_block) {
        if (!transfer || op->part != WEIR_PART_KEPT || op->pending_only)
            return weir_check_fail(check, index, "not an op of a kept tensor");
        return WEIR_OK;
    }
    bool trained = !transfer || op->part != WEIR_PART_WEIGHT;
    if ((transfer && op->part >= WEIR_PART_KEPT) ||
        op->window >= (trained ? thing->trained_window_count : thing->window_count))
        return weir_check_fail(check, index, "its block has no such window or part");
    if (transfer)
        return WEIR_OK;
    uint64_t elements = thing->windows[op->window].element_count;
    const struct weir_place *places = op->places;
    enum weir_tier tier = places[0].tier;
    bool right = tier != WEIR_TIER_NVME;
    if (op->kind == WEIR_OP_REDUCE)
        right = tier == WEIR_TIER_DEVICE && places[0].bytes == elements * WEIR_DEVICE_GRAD_BYTES;
    else
        right &= places[0].bytes == elements * check->state_bytes;
    if (op->kind == WEIR_OP_UPDATE)
        right &= places[1].tier == tier && places[1].bytes == elements * check->grad_bytes &&
                 places[2].tier == tier && places[2].bytes == elements * check->weight_bytes;
    if (op->kind == WEIR_OP_CLEAR)
        right &= check->model->dtype == WEIR_BF16;
    return right ? WEIR_OK : weir_check_fail(check, index, "its places are not those of a window");
}

/* A state at home on the device changes there; the processor of the update lane may be another. */
static bool in_its_lane(const struct weir_op *op)
{
    if (op->kind >= WEIR_OP_KIND_COUNT)
        return false;
    bool on_device = (op->kind == WEIR_OP_UPDATE || op->kind == WEIR_OP_CLEAR) &&
                     op->places[0].tier == WEIR_TIER_DEVICE;
    return op->lane == (on_device ? WEIR_LANE_COLLECTIVE : kind_lanes[op->kind]);
}

static enum weir_status op_check(const struct weir_check *check, size_t index, uint32_t *stage)
{
    const struct weir_op *op = &check->plan->ops[index];
    if (!in_its_lane(op))
        return weir_check_fail(check, index, "kind %d in lane %d", (int)op->kind, (int)op->lane);
    if (op->wait_count > WEIR_OP_WAITS || op->stage >= check->trace->stage_count)
        return weir_check_fail(check, index, "%u waits, stage %u of %zu", op->wait_count, op->stage,
                               check->trace->stage_count);
    WEIR_TRY(places_check(check, index));
    if (op->kind == WEIR_OP_COMPUTE) {
        if (op->thing != *stage || op->stage != *stage || op->pending_only)
            return weir_check_fail(check, index, "is not stage %u", *stage);
        ++*stage;
        return WEIR_OK;
    }
    if (op->thing >= check->model->thing_count)
        return weir_check_fail(check, index, "thing %u of %zu", op->thing,
                               check->model->thing_count);
    return window_check(check, index);
}

static enum weir_status numbers_check(const struct weir_check *check)
{
    const struct weir_plan *plan = check->plan;
    const struct weir_trace *trace = check->trace;
    if (strcmp(plan->key, trace->key) != 0 || plan->stage_count != trace->stage_count ||
        plan->use_count != trace->use_count || plan->scratch_count != trace->scratch_count ||
        plan->mail_count != trace->put_get_count || plan->op_count >= UINT32_MAX)
        return weir_check_fail_plan(check, "it is not of the trace \"%s\"", trace->key);
    WEIR_TRY(limits_check(check));
    WEIR_TRY(homes_check(check));
    for (uint32_t i = 0; i < trace->use_count; i++)
        WEIR_TRY(use_check(check, i));
    WEIR_TRY(refusals_check(check));
    WEIR_TRY(inner_events_check(check));
    uint32_t stage = 0;
    for (size_t i = 0; i < plan->op_count; i++)
        WEIR_TRY(op_check(check, i, &stage));
    if (stage != plan->stage_count)
        return weir_check_fail_plan(check, "%u of %u stages have a COMPUTE", stage,
                                    plan->stage_count);
    return WEIR_OK;
}

static enum weir_status things_mark(struct weir_check *check)
{
    size_t count = check->model->thing_count;
    WEIR_TRY(weir_alloc(&check->used, count, sizeof *check->used, "check: things"));
    WEIR_TRY(weir_alloc(&check->written, count, sizeof *check->written, "check: things"));
    for (size_t i = 0; i < check->trace->use_count; i++) {
        const struct weir_trace_use *use = &check->trace->uses[i];
        check->used[use->id] = true;
        check->written[use->id] |= use->access == WEIR_WRITE;
    }
    return WEIR_OK;
}

static enum weir_status scratches_list(struct weir_check *check)
{
    const struct weir_trace *trace = check->trace;
    size_t stages = trace->stage_count, total = 0;
    WEIR_TRY(weir_alloc(&check->scratch_first, stages + 2, sizeof *check->scratch_first,
                        "check: stages"));
    WEIR_TRY(weir_alloc(&check->scratch_stage, trace->scratch_count, sizeof *check->scratch_stage,
                        "check: stages"));
    for (size_t i = 0; i < trace->event_count; i++) {
        const struct weir_trace_event *e = &trace->events[i];
        if (e->kind != WEIR_EVENT_SCRATCH)
            continue;
        check->scratch_stage[e->first] = e->stage;
        total += e->stage_end - e->stage;
        for (uint32_t t = e->stage; t < e->stage_end; t++)
            check->scratch_first[t + 2]++;
    }
    for (size_t t = 0; t < stages; t++)
        check->scratch_first[t + 2] += check->scratch_first[t + 1];
    WEIR_TRY(weir_alloc(&check->scratch, total, sizeof *check->scratch, "check: stages"));
    for (size_t i = 0; i < trace->event_count; i++) {
        const struct weir_trace_event *e = &trace->events[i];
        for (uint32_t t = e->stage; e->kind == WEIR_EVENT_SCRATCH && t < e->stage_end; t++)
            check->scratch[check->scratch_first[t + 1]++] = e->first;
    }
    return WEIR_OK;
}

static enum weir_status uses_list(struct weir_check *check)
{
    const struct weir_trace *trace = check->trace;
    size_t stages = trace->stage_count, total = 0;
    WEIR_TRY(
        weir_alloc(&check->active_first, stages + 2, sizeof *check->active_first, "check: stages"));
    for (size_t i = 0; i < trace->use_count; i++) {
        total += trace->uses[i].stage_end - trace->uses[i].stage_first;
        for (uint32_t t = trace->uses[i].stage_first; t < trace->uses[i].stage_end; t++)
            check->active_first[t + 2]++;
    }
    for (size_t t = 0; t < stages; t++)
        check->active_first[t + 2] += check->active_first[t + 1];
    WEIR_TRY(weir_alloc(&check->active, total, sizeof *check->active, "check: stages"));
    for (uint32_t i = 0; i < trace->use_count; i++)
        for (uint32_t t = trace->uses[i].stage_first; t < trace->uses[i].stage_end; t++)
            check->active[check->active_first[t + 1]++] = i;
    return WEIR_OK;
}

static enum weir_status check_run(struct weir_check *check, const bool *pending)
{
    WEIR_TRY(numbers_check(check));
    WEIR_TRY(things_mark(check));
    WEIR_TRY(uses_list(check));
    WEIR_TRY(scratches_list(check));
    WEIR_TRY(weir_check_cells_make(check));
    WEIR_TRY(weir_check_order(check));
    WEIR_TRY(weir_check_contents(check, NULL, true, false));
    WEIR_TRY(weir_check_contents(check, NULL, false, false));
    if (pending)
        WEIR_TRY(weir_check_contents(check, pending, false, false));
    return weir_check_contents(check, NULL, true, true);
}

enum weir_status weir_plan_check(const struct weir_plan *plan, const struct weir_homes *homes,
                                 const struct weir_model *model, const struct weir_trace *trace,
                                 const struct weir_limits *limits, const bool *pending)
{
    struct weir_check check = {.plan = plan,
                               .homes = homes,
                               .model = model,
                               .trace = trace,
                               .limits = limits,
                               .weight_bytes = weir_part_bytes(model, WEIR_PART_WEIGHT),
                               .state_bytes = weir_part_bytes(model, WEIR_PART_STATE),
                               .grad_bytes = weir_part_bytes(model, WEIR_PART_GRAD)};
    enum weir_status status = check_run(&check, pending);
    weir_check_cells_free(&check);
    weir_free(check.used);
    weir_free(check.written);
    weir_free(check.active_first);
    weir_free(check.active);
    weir_free(check.scratch_first);
    weir_free(check.scratch);
    weir_free(check.scratch_stage);
    return status;
}
