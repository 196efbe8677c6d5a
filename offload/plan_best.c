/*
 * A few choices are planned and simulated; the fastest is proved and stays (DESIGN 4u).
 */
#include "core/memory.h"
#include "offload/cost.h"
#include "offload/plan_internal.h"

#define MIB        (1ull << 20)
#define LEAD_MOST  64u
#define TRIES_MOST 16

struct contest {
    const struct weir_model *model;
    const struct weir_trace *const *traces;
    size_t count;
    const struct weir_limits *limits;
    const struct weir_cost *cost;
    const struct weir_homes *given;
    struct weir_plan **best;
    struct weir_homes *best_homes;
    struct weir_plan_cost best_cost;
    struct weir_plan **trial;
    uint64_t tried[TRIES_MOST]; /* hashes: another choice may give the same plans */
    size_t tried_count;
    struct weir_error refusal; /* of the most frugal choice */
};

/* Most bytes wanted at once over the keys, if nothing lived on the device. */
static enum weir_status least_find(const struct contest *c, uint64_t *least)
{
    bool *none;
    *least = 0;
    WEIR_TRY(weir_alloc(&none, c->model->thing_count, sizeof *none, "homes"));
    enum weir_status status = WEIR_OK;
    for (size_t i = 0; status == WEIR_OK && i < c->count; i++) {
        struct weir_draft d;
        bool over_budget;
        status = weir_draft_open(&d, c->model, c->traces[i], none);
        if (status != WEIR_OK)
            break;
        d.nvme = true;
        d.over_budget = &over_budget;
        status = weir_draft_place(&d, UINT64_MAX, UINT64_MAX);
        *least = d.least_bytes > *least ? d.least_bytes : *least;
        weir_draft_close(&d);
    }
    weir_free(none);
    return status;
}

static uint64_t all_homes(const struct weir_model *model)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->thing_count; i++)
        if (model->things[i].is_block)
            bytes += weir_block_device_bytes(model, i);
    return bytes;
}

/* 4y: at least two of the largest pieces; by default twice that, so that one can be read while one
 * is updated and one written, and what the drive moves in two latencies; at most 96 MiB and a
 * quarter of the host budget. */
static uint64_t ring_default(const struct contest *c, bool frugal)
{
    uint64_t least = WEIR_PAGE;
    for (size_t i = 0; i < c->count; i++) {
        uint64_t bytes = weir_ring_least(c->model, c->traces[i]);
        least = bytes > least ? bytes : least;
    }
    if (c->limits->ring_bytes > 0)
        return weir_page_up(c->limits->ring_bytes > least ? c->limits->ring_bytes : least);
    uint64_t flight = (uint64_t)(2 * c->cost->read_bytes_per_s * c->cost->latency_s);
    uint64_t want = 2 * least + flight, most = c->limits->host_bytes / 4;
    most = most < 96 * MIB ? most : 96 * MIB;
    want = want < most ? want : most;
    return weir_page_up(frugal || want < least ? least : want);
}

static void trial_drop(struct contest *c, struct weir_homes *homes)
{
    for (size_t i = 0; i < c->count; i++) {
        weir_plan_free(c->trial[i]);
        c->trial[i] = NULL;
    }
    if (homes != c->given)
        weir_homes_free(homes);
}

static void trial_keep(struct contest *c, struct weir_homes *homes,
                       const struct weir_plan_cost *cost)
{
    for (size_t i = 0; i < c->count; i++) {
        weir_plan_free(c->best[i]);
        c->best[i] = c->trial[i];
        c->trial[i] = NULL;
    }
    if (c->best_homes != c->given)
        weir_homes_free(c->best_homes);
    c->best_homes = homes;
    c->best_cost = *cost;
}

static uint64_t moved_bytes(const struct weir_plan_cost *cost)
{
    return cost->read_bytes + cost->written_bytes + cost->to_device_bytes + cost->to_host_bytes;
}

/* Faster, or as fast and moving less. */
static bool beats(const struct weir_plan_cost *a, const struct weir_plan_cost *b)
{
    if (a->step_s < b->step_s || a->step_s > b->step_s)
        return a->step_s < b->step_s;
    return moved_bytes(a) < moved_bytes(b);
}

static bool tried_before(struct contest *c, const struct weir_homes *homes)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < c->count; i++)
        hash = (hash * 0x9E3779B97F4A7C15u + weir_plan_hash(c->trial[i], homes)) * 2 +
               c->trial[i]->choice.update_over_link; /* the same ops by another device */
    for (size_t i = 0; i < c->tried_count; i++)
        if (c->tried[i] == hash)
            return true;
    if (c->tried_count < TRIES_MOST)
        c->tried[c->tried_count++] = hash;
    return false;
}

/* Too little budget is remembered and not an error: another choice may fit. */
static enum weir_status try_choice(struct contest *c, const struct weir_plan_choice *choice)
{
    struct weir_homes *homes = (struct weir_homes *)c->given;
    bool over_budget;
    enum weir_status status = weir_plan_together(c->trial, &homes, c->model, c->traces, c->count,
                                                 c->limits, choice, &over_budget);
    if (over_budget) {
        c->refusal = *weir_last_error();
        return WEIR_OK;
    }
    WEIR_TRY(status);
    if (tried_before(c, homes)) {
        trial_drop(c, homes);
        return WEIR_OK;
    }
    struct weir_plan_cost cost;
    status = weir_plan_cost(c->trial[0], c->traces[0], c->cost, NULL, &cost);
    if (status == WEIR_OK && (!c->best[0] || beats(&cost, &c->best_cost)))
        trial_keep(c, homes, &cost);
    else
        trial_drop(c, homes);
    return status;
}

/* Stages that a block of the first key is held for, on average: the margin of one visit (4w). */
static uint32_t visit_stages(const struct contest *c)
{
    const struct weir_trace *trace = c->traces[0];
    uint64_t stages = 0, count = 0;
    for (size_t i = 0; i < trace->use_count; i++)
        if (c->model->things[trace->uses[i].id].is_block) {
            stages += trace->uses[i].stage_end - trace->uses[i].stage_first;
            count++;
        }
    uint64_t visit = count > 0 ? (stages + count - 1) / count : 1;
    return visit < LEAD_MOST ? (uint32_t)visit : LEAD_MOST;
}

/* Less of all that a plan can do without, until something fits; the last one decides what to say.
 */
static enum weir_status frugal_run(struct contest *c, uint32_t lead)
{
    const uint32_t leads[] = {lead, 0};
    for (int i = 0; i < 2 && !c->best[0]; i++) {
        const struct weir_plan_choice choice = {.lead = leads[i],
                                                .update_lead = lead,
                                                .ring_bytes = ring_default(c, true),
                                                .optional_host_bytes = UINT64_MAX};
        WEIR_TRY(try_choice(c, &choice));
    }
    return c->best[0] ? WEIR_OK : weir_fail_with(&c->refusal);
}

/* How much of the device is homes. */
static enum weir_status homes_try(struct contest *c, struct weir_plan_choice choice)
{
    uint64_t least, all = all_homes(c->model);
    WEIR_TRY(least_find(c, &least));
    uint64_t rest = c->limits->device_bytes > least ? c->limits->device_bytes - least : 0;
    rest = rest < all ? rest : all;
    for (uint32_t quarter = 0; quarter <= 4; quarter++) {
        choice.device_home_bytes = rest / 4 * quarter + (quarter == 4 ? rest % 4 : 0);
        if (c->given && quarter > 0)
            break;
        WEIR_TRY(try_choice(c, &choice));
    }
    return WEIR_OK;
}

/* Short margins leave more room to what stays. */
static enum weir_status leads_try(struct contest *c)
{
    struct weir_plan_choice choice = c->best[0]->choice;
    for (choice.lead = 1; choice.lead <= 2; choice.lead++)
        WEIR_TRY(try_choice(c, &choice));
    return WEIR_OK;
}

/* A GPU beside few or slow cores may do their updates across the link. */
static enum weir_status link_try(struct contest *c)
{
    struct weir_plan_choice choice = c->best[0]->choice;
    if (c->cost->update_on_compute || !(c->cost->link_update_bytes_per_s > 0))
        return WEIR_OK;
    choice.update_over_link = true;
    return try_choice(c, &choice);
}

/* A ring that holds a block's gradient takes what leaves off a crowded device before it is written.
 */
static enum weir_status ring_try(struct contest *c)
{
    struct weir_plan_choice choice = c->best[0]->choice;
    uint64_t wide = 0;
    for (size_t i = 0; i < c->model->thing_count; i++) {
        uint64_t bytes =
            c->model->things[i].trained_element_count * weir_part_bytes(c->model, WEIR_PART_GRAD);
        wide = bytes > wide ? bytes : wide;
    }
    wide = weir_page_up(wide + choice.ring_bytes);
    if (c->limits->ring_bytes > 0 || !c->limits->nvme || wide > c->limits->host_bytes / 4)
        return WEIR_OK;
    choice.ring_bytes = wide;
    return try_choice(c, &choice);
}

/* Less of what may be computed again in host memory, or more of it on NVMe. */
static enum weir_status optionals_try(struct contest *c)
{
    struct weir_plan_choice choice = c->best[0]->choice;
    uint64_t waits = c->best[0]->kept_wait_bytes[WEIR_TIER_HOST];
    for (uint64_t half = 0; half < 2 && waits > 0; half++) {
        choice.optional_host_bytes = waits / 2 * half;
        WEIR_TRY(try_choice(c, &choice));
    }
    choice = c->best[0]->choice;
    uint64_t refused = c->best[0]->refused_bytes;
    for (uint64_t half = 1; half <= 2 && refused > 0; half++) {
        choice.optional_nvme_bytes = refused / 2 * half;
        WEIR_TRY(try_choice(c, &choice));
    }
    return WEIR_OK;
}

static enum weir_status contest_run(struct contest *c)
{
    uint32_t visit = visit_stages(c);
    const struct weir_plan_choice choice = {.lead = visit,
                                            .update_lead = visit,
                                            .ring_bytes = ring_default(c, false),
                                            .optional_host_bytes = UINT64_MAX};
    WEIR_TRY(homes_try(c, choice));
    if (!c->best[0])
        return frugal_run(c, choice.lead);
    WEIR_TRY(leads_try(c));
    WEIR_TRY(optionals_try(c));
    WEIR_TRY(link_try(c));
    return ring_try(c);
}

/* The slab that a plan may address: later keys keep to the first layout's. */
static enum weir_status prove(const struct contest *c)
{
    for (size_t i = 0; i < c->count; i++)
        WEIR_TRY(
            weir_plan_check(c->best[i], c->best_homes, c->model, c->traces[i], c->limits, NULL));
    return WEIR_OK;
}

enum weir_status weir_plan_best(struct weir_plan **plans, struct weir_homes **homes,
                                const struct weir_model *model,
                                const struct weir_trace *const *traces, size_t trace_count,
                                const struct weir_limits *limits, const struct weir_cost *cost)
{
    struct contest c = {.model = model,
                        .traces = traces,
                        .count = trace_count,
                        .limits = limits,
                        .cost = cost,
                        .given = *homes,
                        .best = plans,
                        .best_homes = *homes};
    for (size_t i = 0; i < trace_count; i++)
        plans[i] = NULL;
    WEIR_TRY(weir_alloc(&c.trial, trace_count, sizeof *c.trial, "plan list"));
    enum weir_status status = contest_run(&c);
    if (status == WEIR_OK)
        status = prove(&c);
    weir_free(c.trial);
    for (size_t i = 0; status != WEIR_OK && i < trace_count; i++) {
        weir_plan_free(plans[i]);
        plans[i] = NULL;
    }
    if (status != WEIR_OK && c.best_homes != c.given)
        weir_homes_free(c.best_homes);
    else
        *homes = c.best_homes;
    return status;
}
