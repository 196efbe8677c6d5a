/*
 * The passes in a row, for one key or for several beside one set of homes.
 */
#include "core/memory.h"
#include "offload/plan_internal.h"

#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state on the stack: hashing allocates nothing */
#include <xxhash.h>

/* Several keys in the making. */
struct together {
    const struct weir_model *model;
    const struct weir_trace *const *traces;
    size_t count;
    const struct weir_limits *limits;
    struct weir_plan_choice choice;
    bool *device_home;
    struct weir_draft *drafts;
    bool *over_budget;
};

static enum weir_status homes_given(struct together *t, const struct weir_homes *homes)
{
    for (size_t i = 0; i < t->model->thing_count; i++)
        t->device_home[i] =
            homes->blocks[i] && homes->blocks[i][0].part[WEIR_PART_WEIGHT].tier == WEIR_TIER_DEVICE;
    return WEIR_OK;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* What the host budget leaves for waiting tensors: weights come first, and without NVMe all homes.
 */
static enum weir_status host_room(const struct together *t, const struct weir_draft *d,
                                  const struct weir_homes *homes, uint64_t *room)
{
    uint64_t ring = t->choice.ring_bytes, limit = homes ? homes->host_first : t->limits->host_bytes;
    uint64_t least = t->limits->nvme ? weir_ring_least(t->model, d->trace) : 0;
    if (ring < least)
        return weir_fail_budget(t->over_budget,
                                "host: step \"%s\" needs a ring of %llu bytes, two of its largest "
                                "pieces, %llu given; raise ring_bytes or host_bytes",
                                d->trace->key, (unsigned long long)least, (unsigned long long)ring);
    if (ring > limit || d->mail_bytes > limit - ring)
        return weir_fail_budget(t->over_budget,
                                "host: step \"%s\" needs a ring of %llu bytes and %llu for puts "
                                "and gets, %llu given; raise host_bytes",
                                d->trace->key, (unsigned long long)ring,
                                (unsigned long long)d->mail_bytes, (unsigned long long)limit);
    uint64_t weights = 0, all = 0, rest = limit - ring - d->mail_bytes;
    if (!homes)
        weir_homes_count(t->model, t->device_home, &weights, &all);
    if (!t->limits->nvme && all > rest)
        return weir_fail_budget(t->over_budget,
                                "host: weights, gradients and states need %llu bytes, %llu given; "
                                "raise host_bytes or give an nvme_path",
                                (unsigned long long)all, (unsigned long long)rest);
    *room = less(rest, t->limits->nvme ? weights : all);
    return WEIR_OK;
}

static enum weir_status drafts_place(struct together *t, const struct weir_homes *homes,
                                     uint64_t device_bytes)
{
    for (size_t i = 0; i < t->count; i++) {
        struct weir_draft *d = &t->drafts[i];
        uint64_t room = 0;
        WEIR_TRY(weir_draft_open(d, t->model, t->traces[i], t->device_home));
        d->choice = t->choice;
        d->nvme = t->limits->nvme;
        d->over_budget = t->over_budget;
        WEIR_TRY(host_room(t, d, homes, &room));
        WEIR_TRY(weir_draft_place(d, device_bytes, room));
    }
    return WEIR_OK;
}

static enum weir_status homes_new(struct together *t, struct weir_homes **homes)
{
    uint64_t device = 0, host = 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct weir_draft *d = &t->drafts[i];
        uint64_t host_bytes = t->choice.ring_bytes + d->mail_bytes + d->wait_host_bytes;
        device = d->device_height > device ? d->device_height : device;
        host = host_bytes > host ? host_bytes : host;
    }
    return weir_homes_make(homes, t->model, t->traces, t->count, t->device_home, device, host,
                           t->limits->host_bytes, t->limits->nvme, t->over_budget);
}

static enum weir_status plan_finish(struct together *t, size_t i, const struct weir_homes *homes,
                                    struct weir_plan **out)
{
    struct weir_draft *d = &t->drafts[i];
    struct weir_plan *plan;
    WEIR_TRY(weir_alloc(&plan, 1, sizeof *plan, "plan"));
    *out = plan;
    WEIR_TRY(weir_strdup(&plan->key, t->traces[i]->key));
    d->homes = homes;
    plan->stage_count = d->stage_count;
    plan->choice = t->choice;
    plan->ring_bytes = t->choice.ring_bytes;
    plan->device_transient_bytes = d->device_height;
    plan->host_transient_bytes = plan->ring_bytes + d->mail_bytes + d->wait_host_bytes;
    plan->nvme_bytes = homes->nvme_end + d->wait_nvme_bytes;
    plan->refused_bytes = d->refused_bytes;
    return weir_draft_ops(d, plan);
}

static enum weir_status together_make(struct together *t, struct weir_plan **plans,
                                      struct weir_homes **homes)
{
    bool given = *homes != NULL;
    uint64_t taken = 0, device_bytes = t->limits->device_bytes;
    WEIR_TRY(weir_alloc(&t->device_home, t->model->thing_count, sizeof *t->device_home, "homes"));
    WEIR_TRY(weir_alloc(&t->drafts, t->count, sizeof *t->drafts, "drafts"));
    if (given) {
        WEIR_TRY(homes_given(t, *homes));
        device_bytes = (*homes)->device_first;
        t->choice.ring_bytes = t->choice.ring_bytes < (*homes)->host_first ? t->choice.ring_bytes
                                                                           : (*homes)->host_first;
    } else {
        uint64_t most =
            t->choice.device_home_bytes < device_bytes ? t->choice.device_home_bytes : device_bytes;
        WEIR_TRY(weir_homes_choose(t->model, t->traces, t->count, most, t->device_home, &taken));
        device_bytes -= taken;
    }
    WEIR_TRY(drafts_place(t, *homes, device_bytes));
    if (!given)
        WEIR_TRY(homes_new(t, homes));
    for (size_t i = 0; i < t->count; i++)
        WEIR_TRY(plan_finish(t, i, *homes, &plans[i]));
    return WEIR_OK;
}

enum weir_status weir_plan_together(struct weir_plan **plans, struct weir_homes **homes,
                                    const struct weir_model *model,
                                    const struct weir_trace *const *traces, size_t count,
                                    const struct weir_limits *limits,
                                    const struct weir_plan_choice *choice, bool *over_budget)
{
    bool given = *homes != NULL;
    struct together t = {.model = model,
                         .traces = traces,
                         .count = count,
                         .limits = limits,
                         .choice = *choice,
                         .over_budget = over_budget};
    *over_budget = false;
    if (!limits->nvme)
        t.choice.ring_bytes = 0;
    for (size_t i = 0; i < count; i++)
        plans[i] = NULL;
    enum weir_status status = together_make(&t, plans, homes);
    for (size_t i = 0; t.drafts && i < count; i++)
        weir_draft_close(&t.drafts[i]);
    weir_free(t.drafts);
    weir_free(t.device_home);
    for (size_t i = 0; status != WEIR_OK && i < count; i++) {
        weir_plan_free(plans[i]);
        plans[i] = NULL;
    }
    if (status != WEIR_OK && !given) {
        weir_homes_free(*homes);
        *homes = NULL;
    }
    return status;
}

enum weir_status weir_plan_make(struct weir_plan **out, struct weir_homes **homes,
                                const struct weir_model *model, const struct weir_trace *trace,
                                const struct weir_limits *limits,
                                const struct weir_plan_choice *choice)
{
    bool over_budget;
    return weir_plan_together(out, homes, model, &trace, 1, limits, choice, &over_budget);
}

void weir_plan_free(struct weir_plan *plan)
{
    if (!plan)
        return;
    weir_free(plan->key);
    weir_free(plan->ops);
    weir_free(plan->uses);
    weir_free(plan->scratches);
    weir_free(plan->mail);
    weir_free(plan);
}

static void hash_place(XXH3_state_t *state, const struct weir_place *place)
{
    uint64_t words[3] = {place->tier, place->offset, place->bytes};
    XXH3_64bits_update(state, words, sizeof words);
}

static void hash_op(XXH3_state_t *state, const struct weir_op *op)
{
    uint64_t words[8] = {
        op->kind,  op->lane,   op->part,  op->pending_only,
        op->thing, op->window, op->stage, op->wait_count | (uint64_t)op->arrives << 8};
    XXH3_64bits_update(state, words, sizeof words);
    for (uint32_t p = 0; p < WEIR_OP_PLACES; p++)
        hash_place(state, &op->places[p]);
    for (uint32_t w = 0; w < op->wait_count; w++)
        XXH3_64bits_update(state, &op->waits[w], sizeof op->waits[w]);
}

static void hash_homes(XXH3_state_t *state, const struct weir_homes *homes)
{
    for (size_t i = 0; i < homes->model->thing_count; i++)
        for (uint32_t w = 0; homes->blocks[i] && w < homes->model->things[i].window_count; w++)
            for (uint32_t p = 0; p < 3; p++)
                hash_place(state, &homes->blocks[i][w].part[p]);
}

uint64_t weir_plan_hash(const struct weir_plan *plan, const struct weir_homes *homes)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    uint64_t areas[] = {plan->stage_count,
                        plan->ring_bytes,
                        plan->device_transient_bytes,
                        plan->host_transient_bytes,
                        plan->nvme_bytes,
                        homes->device_first,
                        homes->device_end,
                        homes->host_first,
                        homes->host_end,
                        homes->nvme_end};
    XXH3_64bits_update(&state, areas, sizeof areas);
    for (size_t i = 0; i < plan->op_count; i++)
        hash_op(&state, &plan->ops[i]);
    for (size_t i = 0; i < plan->use_count; i++) {
        uint64_t words[3] = {plan->uses[i].bytes_offset, plan->uses[i].grad_offset,
                             plan->uses[i].refused};
        XXH3_64bits_update(&state, words, sizeof words);
    }
    XXH3_64bits_update(&state, plan->scratches, plan->scratch_count * sizeof *plan->scratches);
    XXH3_64bits_update(&state, plan->mail, plan->mail_count * sizeof *plan->mail);
    hash_homes(&state, homes);
    return XXH3_64bits_digest(&state);
}

uint64_t weir_plan_bytes(const struct weir_plan *plan)
{
    return sizeof *plan + strlen(plan->key) + 1 + plan->op_capacity * sizeof *plan->ops +
           plan->use_count * sizeof *plan->uses + plan->scratch_count * sizeof *plan->scratches +
           plan->mail_count * sizeof *plan->mail;
}
