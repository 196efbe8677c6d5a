#include "tests/support_interpreter.h"

#include <stdlib.h>
#include <string.h>

#define PAGE 4096

static void *bytes_alloc(uint64_t bytes)
{
    void *memory = calloc(bytes / 8 + 1, 8);
    assert_non_null(memory);
    return memory;
}

static void words_draw(struct test_random *random, uint64_t *words, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = test_random_next(random);
}

/* ---- open: the reference's arrays, and the same bytes in the homes */

static uint64_t *part_array(struct test_machine *m, uint32_t block, uint32_t part)
{
    struct test_thing_bytes *thing = &m->things[block];
    return part == WEIR_PART_WEIGHT ? thing->weight
           : part == WEIR_PART_GRAD ? thing->reduced
                                    : thing->state;
}

static char *window_bytes(struct test_machine *m, uint32_t block, uint32_t window, uint32_t part,
                          uint64_t *bytes)
{
    const struct weir_window *w = &m->model->things[block].windows[window];
    *bytes = w->element_count * m->part_bytes[part];
    return (char *)part_array(m, block, part) + w->offset * m->part_bytes[part];
}

/* Does this home hold something between steps? */
static bool home_counts(const struct test_machine *m, uint32_t block, uint32_t window,
                        uint32_t part)
{
    return part == WEIR_PART_WEIGHT || (window < m->model->things[block].trained_window_count &&
                                        (part == WEIR_PART_STATE || m->pending[block]));
}

static void thing_open(struct test_machine *m, struct test_random *random, uint32_t id)
{
    const struct weir_thing *thing = &m->model->things[id];
    struct test_thing_bytes *t = &m->things[id];
    if (!thing->is_block) {
        t->kept = bytes_alloc(thing->slot_bytes);
        return;
    }
    uint64_t weight = thing->element_count * m->part_bytes[WEIR_PART_WEIGHT];
    uint64_t state = thing->trained_element_count * m->part_bytes[WEIR_PART_STATE];
    uint64_t grad = thing->trained_element_count * 4;
    t->weight = bytes_alloc(weight);
    t->state = bytes_alloc(state);
    t->grad = bytes_alloc(grad);
    t->reduced = bytes_alloc(grad);
    words_draw(random, t->weight, weight);
    words_draw(random, t->state, state);
    words_draw(random, t->reduced, grad);
    m->pending[id] = thing->trained_element_count > 0 && test_random_below(random, 2);
    for (uint32_t w = 0; w < thing->window_count; w++)
        for (uint32_t p = 0; p < 3; p++) {
            if (!home_counts(m, id, w, p))
                continue;
            const struct weir_place *place = &m->homes->blocks[id][w].part[p];
            uint64_t bytes;
            const char *from = window_bytes(m, id, w, p, &bytes);
            memcpy(m->slabs[place->tier] + place->offset, from, bytes);
            memset(m->pages[place->tier] + place->offset / PAGE, TEST_PAGE_WRITTEN, bytes / PAGE);
        }
}

void test_machine_open(struct test_machine *m, const struct weir_model *model,
                       const struct weir_homes *homes, struct weir_plan *const *plans,
                       size_t plan_count, uint64_t seed)
{
    struct test_random random = {.state = seed};
    *m = (struct test_machine){.model = model,
                               .homes = homes,
                               .bytes = {homes->device_end, homes->host_end, homes->nvme_end}};
    for (uint32_t p = 0; p < 3; p++)
        m->part_bytes[p] = weir_part_bytes(model, (enum weir_part)p);
    for (size_t i = 0; i < plan_count; i++) {
        const uint64_t need[WEIR_TIER_COUNT] = {
            plans[i]->device_transient_bytes, plans[i]->host_transient_bytes, plans[i]->nvme_bytes};
        for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++)
            m->bytes[t] = need[t] > m->bytes[t] ? need[t] : m->bytes[t];
        if (plans[i]->stage_count > m->stage_capacity)
            m->stage_capacity = plans[i]->stage_count;
    }
    for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++) {
        m->slabs[t] = bytes_alloc(m->bytes[t]);
        m->pages[t] = bytes_alloc(m->bytes[t] / PAGE + 1);
        memset(m->slabs[t], 0xA5, m->bytes[t]);
    }
    m->things = bytes_alloc(model->thing_count * sizeof *m->things);
    m->pending = bytes_alloc(model->thing_count);
    m->digests = bytes_alloc(m->stage_capacity * 8);
    m->expected = bytes_alloc(m->stage_capacity * 8);
    for (uint32_t i = 0; i < model->thing_count; i++)
        thing_open(m, &random, i);
}

void test_machine_close(struct test_machine *m)
{
    for (uint32_t t = 0; t < WEIR_TIER_COUNT; t++) {
        free(m->slabs[t]);
        free(m->pages[t]);
    }
    for (size_t i = 0; i < m->model->thing_count; i++) {
        free(m->things[i].weight);
        free(m->things[i].state);
        free(m->things[i].grad);
        free(m->things[i].reduced);
        free(m->things[i].kept);
    }
    free(m->things);
    free(m->pending);
    free(m->digests);
    free(m->expected);
}

/* ---- one step */

struct step {
    struct test_machine *m;
    const struct weir_plan *plan;
    const struct weir_trace *trace;
    bool *used;                                /* [thing] */
    bool *refused;                             /* [use] */
    struct test_view *views, *reference_views; /* [use] */
    void **mail, **reference_mail;             /* [put or get] */
    void **scratches;                          /* [scratch] */
    bool *pending;                             /* before the step */
};

static void fault(struct step *s, const char *what)
{
    if (!s->m->fault)
        s->m->fault = what;
}

static void *at(struct step *s, const struct weir_place *place)
{
    return s->m->slabs[place->tier] + place->offset;
}

static void pages_set(struct step *s, enum weir_tier tier, uint64_t offset, uint64_t bytes,
                      enum test_page page)
{
    memset(s->m->pages[tier] + offset / PAGE, (int)page, bytes / PAGE);
    if (page == TEST_PAGE_FREED)
        memset(s->m->slabs[tier] + offset, 0x5A, bytes);
}

static void pages_need(struct step *s, enum weir_tier tier, uint64_t offset, uint64_t bytes)
{
    for (uint64_t i = offset / PAGE; i < (offset + bytes) / PAGE; i++) {
        if (s->m->pages[tier][i] == TEST_PAGE_NEVER)
            fault(s, "a byte never written is read");
        if (s->m->pages[tier][i] == TEST_PAGE_FREED)
            fault(s, "a freed byte is read");
    }
}

static void place_need(struct step *s, const struct weir_place *place)
{
    pages_need(s, place->tier, place->offset, place->bytes);
}

static void place_written(struct step *s, const struct weir_place *place)
{
    pages_set(s, place->tier, place->offset, place->bytes, TEST_PAGE_WRITTEN);
}

static uint64_t use_bytes(const struct step *s, uint32_t use)
{
    const struct weir_thing *thing = &s->m->model->things[s->trace->uses[use].id];
    return thing->is_block ? thing->element_count * s->m->part_bytes[WEIR_PART_WEIGHT]
                           : thing->slot_bytes;
}

static uint64_t use_grad_bytes(const struct step *s, uint32_t use)
{
    return s->m->model->things[s->trace->uses[use].id].trained_element_count * 4;
}

/* Has the gradient been summed in an earlier stage of the step? */
static bool summed(const struct step *s, uint32_t stage, uint32_t id)
{
    for (uint32_t i = 0; i < s->trace->use_count; i++)
        if (s->trace->uses[i].id == id && s->trace->uses[i].grad_fresh)
            return s->trace->uses[i].stage_first < stage;
    return false;
}

/* What compute reads must be written; what it makes is written from then on. */
static void stage_pages(struct step *s, uint32_t stage, bool after)
{
    for (uint32_t i = 0; i < s->trace->use_count; i++) {
        const struct weir_trace_use *u = &s->trace->uses[i];
        const struct weir_use_place *place = &s->plan->uses[i];
        if (u->stage_first > stage || u->stage_end <= stage || s->refused[i])
            continue;
        bool makes = u->access == WEIR_NEW || u->access == WEIR_CHANGE || u->access == WEIR_WRITE;
        bool reads = u->access != WEIR_NEW || u->stage_first < stage;
        bool ends = u->access == WEIR_LAST && u->stage_end == stage + 1;
        if (s->views[i].bytes && !after && reads)
            pages_need(s, WEIR_TIER_DEVICE, place->bytes_offset, use_bytes(s, i));
        if (s->views[i].bytes && after && (makes || ends))
            pages_set(s, WEIR_TIER_DEVICE, place->bytes_offset, use_bytes(s, i),
                      ends ? TEST_PAGE_FREED : TEST_PAGE_WRITTEN);
        if (s->views[i].grad && !after && summed(s, stage, u->id))
            pages_need(s, WEIR_TIER_DEVICE, place->grad_offset, use_grad_bytes(s, i));
        if (s->views[i].grad && after)
            pages_set(s, WEIR_TIER_DEVICE, place->grad_offset, use_grad_bytes(s, i),
                      TEST_PAGE_WRITTEN);
    }
}

static void scratches_free(struct step *s, uint32_t stage)
{
    for (size_t i = 0; i < s->trace->event_count; i++) {
        const struct weir_trace_event *e = &s->trace->events[i];
        if (e->kind == WEIR_EVENT_SCRATCH && e->stage_end == stage + 1)
            pages_set(s, WEIR_TIER_DEVICE, s->plan->scratches[e->first],
                      (e->bytes + PAGE - 1) / PAGE * PAGE, TEST_PAGE_FREED);
    }
}

static void compute(struct step *s, uint32_t stage)
{
    struct test_stage run = {.model = s->m->model,
                             .trace = s->trace,
                             .stage = stage,
                             .step = s->m->step,
                             .views = s->views,
                             .refused = s->refused,
                             .mail = s->mail,
                             .scratches = s->scratches};
    stage_pages(s, stage, false);
    s->m->digests[stage] = test_stage_run(&run);
    stage_pages(s, stage, true);
    scratches_free(s, stage);
}

/* The whole effect of an op, at one instant. */
static void op_run(void *step, size_t index)
{
    struct step *s = step;
    const struct weir_op *op = &s->plan->ops[index];
    const struct weir_place *p = op->places;
    if (op->pending_only && !s->pending[op->thing])
        return;
    switch (op->kind) {
    case WEIR_OP_COMPUTE:
        compute(s, op->thing);
        return;
    case WEIR_OP_UPDATE:
        place_need(s, &p[0]), place_need(s, &p[1]), place_need(s, &p[2]);
        test_update(at(s, &p[0]), at(s, &p[1]), at(s, &p[2]), p[0].bytes / 8, p[1].bytes / 8,
                    p[2].bytes / 8);
        return;
    case WEIR_OP_CLEAR:
        place_need(s, &p[0]);
        test_clear(at(s, &p[0]), p[0].bytes / 8);
        return;
    case WEIR_OP_REDUCE:
        place_need(s, &p[0]);
        test_reduce(at(s, &p[0]), p[0].bytes / 8, s->m->model->grad_dtype == WEIR_BF16);
        if (s->m->model->grad_dtype == WEIR_BF16)
            pages_set(s, p[0].tier, p[0].offset + p[0].bytes / 2, p[0].bytes / 2, TEST_PAGE_FREED);
        return;
    default:
        place_need(s, &p[0]);
        memcpy(at(s, &p[1]), at(s, &p[0]), p[0].bytes);
        place_written(s, &p[1]);
    }
}

/* ---- the reference */

static void reference_update(struct step *s, uint32_t block)
{
    const struct weir_thing *thing = &s->m->model->things[block];
    for (uint32_t w = 0; w < thing->trained_window_count; w++) {
        uint64_t state, grad, weight;
        char *at_state = window_bytes(s->m, block, w, WEIR_PART_STATE, &state);
        char *at_grad = window_bytes(s->m, block, w, WEIR_PART_GRAD, &grad);
        char *at_weight = window_bytes(s->m, block, w, WEIR_PART_WEIGHT, &weight);
        test_update((uint64_t *)(void *)at_state, (const uint64_t *)(void *)at_grad,
                    (uint64_t *)(void *)at_weight, state / 8, grad / 8, weight / 8);
    }
}

static void reference_clear(struct step *s, uint32_t block)
{
    const struct weir_thing *thing = &s->m->model->things[block];
    for (uint32_t w = 0; w < thing->trained_window_count; w++) {
        uint64_t bytes;
        char *state = window_bytes(s->m, block, w, WEIR_PART_STATE, &bytes);
        test_clear((uint64_t *)(void *)state, bytes / 8);
    }
}

static void reference_reduce(struct step *s, uint32_t block)
{
    const struct weir_thing *thing = &s->m->model->things[block];
    for (uint32_t w = 0; w < thing->trained_window_count; w++) {
        const struct weir_window *window = &thing->windows[w];
        uint64_t *grad = s->m->things[block].grad + window->offset / 2, bytes;
        test_reduce(grad, window->element_count / 2, s->m->model->grad_dtype == WEIR_BF16);
        char *to = window_bytes(s->m, block, w, WEIR_PART_GRAD, &bytes);
        memcpy(to, grad, bytes);
    }
}

static void reference_run(struct step *s)
{
    const struct weir_trace *trace = s->trace;
    for (uint32_t i = 0; i < s->m->model->thing_count; i++)
        if (s->used[i] && s->pending[i]) {
            reference_update(s, i);
            s->m->pending[i] = false;
        }
    for (uint32_t t = 0; t < trace->stage_count; t++) {
        struct test_stage run = {.model = s->m->model,
                                 .trace = trace,
                                 .stage = t,
                                 .step = s->m->step,
                                 .views = s->reference_views,
                                 .refused = s->refused,
                                 .mail = s->reference_mail};
        s->m->expected[t] = test_stage_run(&run);
    }
    for (uint32_t i = 0; i < trace->use_count; i++) {
        const struct weir_trace_use *u = &trace->uses[i];
        if (u->access == WEIR_WRITE && s->m->model->dtype == WEIR_BF16)
            reference_clear(s, u->id);
        if (u->grad_last) {
            reference_reduce(s, u->id);
            s->m->pending[u->id] = true;
        }
    }
}

/* ---- both */

static void views_fill(struct step *s)
{
    for (uint32_t i = 0; i < s->trace->use_count; i++) {
        const struct weir_trace_use *u = &s->trace->uses[i];
        const struct weir_thing *thing = &s->m->model->things[u->id];
        const struct test_thing_bytes *t = &s->m->things[u->id];
        s->used[u->id] = true;
        s->refused[i] = s->plan->uses[i].refused;
        bool sums = thing->is_block && thing->trained_element_count > 0 &&
                    (u->access == WEIR_GRAD || u->access == WEIR_ADD);
        if (!s->refused[i] && u->access != WEIR_ADD) {
            s->views[i].bytes = s->m->slabs[WEIR_TIER_DEVICE] + s->plan->uses[i].bytes_offset;
            s->reference_views[i].bytes = thing->is_block ? t->weight : t->kept;
        }
        if (sums) {
            s->views[i].grad = s->m->slabs[WEIR_TIER_DEVICE] + s->plan->uses[i].grad_offset;
            s->reference_views[i].grad = t->grad;
        }
    }
    for (size_t i = 0; i < s->trace->event_count; i++) {
        const struct weir_trace_event *e = &s->trace->events[i];
        if (e->kind == WEIR_EVENT_SCRATCH)
            s->scratches[e->first] = s->m->slabs[WEIR_TIER_DEVICE] + s->plan->scratches[e->first];
        if (e->kind != WEIR_EVENT_PUT && e->kind != WEIR_EVENT_GET)
            continue;
        s->mail[e->count] = s->m->slabs[WEIR_TIER_HOST] + s->plan->mail[e->count];
        s->reference_mail[e->count] = bytes_alloc(use_bytes(s, e->first));
    }
}

static void step_open(struct step *s)
{
    const struct weir_trace *trace = s->trace;
    size_t things = s->m->model->thing_count;
    s->used = bytes_alloc(things);
    s->pending = bytes_alloc(things);
    memcpy(s->pending, s->m->pending, things);
    s->refused = bytes_alloc(trace->use_count);
    s->views = bytes_alloc(trace->use_count * sizeof *s->views);
    s->reference_views = bytes_alloc(trace->use_count * sizeof *s->views);
    s->mail = bytes_alloc(trace->put_get_count * sizeof *s->mail);
    s->reference_mail = bytes_alloc(trace->put_get_count * sizeof *s->mail);
    s->scratches = bytes_alloc(trace->scratch_count * sizeof *s->scratches);
    views_fill(s);
}

static void step_close(struct step *s)
{
    for (uint32_t i = 0; i < s->trace->put_get_count; i++)
        free(s->reference_mail[i]);
    free(s->used);
    free(s->pending);
    free(s->refused);
    free(s->views);
    free(s->reference_views);
    free(s->mail);
    free(s->reference_mail);
    free(s->scratches);
}

static void homes_compare(struct step *s)
{
    struct test_machine *m = s->m;
    for (uint32_t i = 0; i < m->model->thing_count; i++) {
        const struct weir_thing *thing = &m->model->things[i];
        for (uint32_t w = 0; thing->is_block && w < thing->window_count; w++)
            for (uint32_t p = 0; p < 3; p++) {
                uint64_t bytes;
                const char *expected = window_bytes(m, i, w, p, &bytes);
                if (home_counts(m, i, w, p) &&
                    memcmp(at(s, &m->homes->blocks[i][w].part[p]), expected, bytes) != 0)
                    fault(s, p == WEIR_PART_WEIGHT ? "the home of a weight differs"
                             : p == WEIR_PART_GRAD ? "the home of a gradient differs"
                                                   : "the home of a state differs");
            }
    }
}

static void mail_compare(struct step *s)
{
    for (size_t i = 0; i < s->trace->event_count; i++) {
        const struct weir_trace_event *e = &s->trace->events[i];
        if (e->kind == WEIR_EVENT_GET &&
            memcmp(s->mail[e->count], s->reference_mail[e->count], use_bytes(s, e->first)) != 0)
            fault(s, "what a get fetched differs");
    }
}

/* Nothing but homes lives on: another key may use the rest. */
static void transients_free(struct step *s)
{
    const struct weir_homes *homes = s->m->homes;
    uint64_t device = s->plan->device_transient_bytes, host = s->plan->host_transient_bytes;
    pages_set(s, WEIR_TIER_DEVICE, 0, device, TEST_PAGE_FREED);
    pages_set(s, WEIR_TIER_HOST, 0, host, TEST_PAGE_FREED);
    pages_set(s, WEIR_TIER_NVME, homes->nvme_end, s->m->bytes[WEIR_TIER_NVME] - homes->nvme_end,
              TEST_PAGE_FREED);
}

const char *test_machine_step(struct test_machine *m, const struct weir_plan *plan,
                              const struct weir_trace *trace, struct test_order *order)
{
    struct step step = {.m = m, .plan = plan, .trace = trace};
    m->fault = NULL;
    m->step++;
    step_open(&step);
    if (!test_order_run(plan, order, op_run, &step))
        fault(&step, "the plan hangs");
    reference_run(&step);
    for (uint32_t t = 0; t < trace->stage_count; t++)
        if (m->digests[t] != m->expected[t])
            fault(&step, "what a stage reads differs");
    mail_compare(&step);
    homes_compare(&step);
    transients_free(&step);
    step_close(&step);
    return m->fault;
}
