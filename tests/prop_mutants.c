/* Plans with one thing wrong: an op or a wait dropped, swapped, retargeted, resized. Every mutant
 * whose bytes differ in some order, or that reads a byte never written or already freed, is
 * rejected by check. What check accepts is run in the orders that would hurt it most; it must be
 * equivalent, and few are. */
#include "tests/support_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum change { DROP, SWAP, RETARGET, RESIZE, PENDING, CHANGE_COUNT };
enum wait_change { WAIT_DROP, WAIT_SWAP, WAIT_RETARGET, WAIT_FEWER, WAIT_CHANGE_COUNT };

static const char *const change_names[] = {"drop", "swap", "retarget", "resize", "pending"};
static const char *const wait_names[] = {"drop", "swap", "retarget", "fewer"};
static const char *const kind_names[] = {"READ",   "WRITE", "H2D",    "D2H",
                                         "UPDATE", "CLEAR", "REDUCE", "COMPUTE"};

#define LEAST 50 /* mutants of each kind and op */
#define MOST  150

struct score {
    uint32_t made, rejected, equivalent;
};
static struct score op_scores[CHANGE_COUNT][WEIR_OP_KIND_COUNT];
static struct score wait_scores[WAIT_CHANGE_COUNT];

/* Can the interpreter see harm at all? Every few rejected drops run too. */
static uint32_t drops_run, drops_seen;

/* A copy of a case's first plan that may be changed. */
struct mutant {
    const struct test_case *c;
    struct weir_plan plan;
    size_t victims[1 + WEIR_OP_WAITS]; /* ops whose order matters most */
    size_t victim_count;
};

static void *copy(const void *from, size_t count, size_t bytes)
{
    void *to = malloc(count * bytes + 1);
    assert_non_null(to);
    if (count > 0)
        memcpy(to, from, count * bytes);
    return to;
}

static void mutant_open(struct mutant *m, const struct test_case *c)
{
    const struct weir_plan *plan = c->plans[0];
    *m = (struct mutant){.c = c, .plan = *plan};
    m->plan.ops = copy(plan->ops, plan->op_count, sizeof *plan->ops);
    m->plan.uses = copy(plan->uses, plan->use_count, sizeof *plan->uses);
    m->plan.scratches = copy(plan->scratches, plan->scratch_count, sizeof *plan->scratches);
    m->plan.mail = copy(plan->mail, plan->mail_count, sizeof *plan->mail);
}

static void mutant_close(struct mutant *m)
{
    free(m->plan.ops);
    free(m->plan.uses);
    free(m->plan.scratches);
    free(m->plan.mail);
}

static uint32_t lane_number(const struct weir_plan *plan, size_t op)
{
    uint32_t number = 0;
    for (size_t i = 0; i <= op; i++)
        number += plan->ops[i].lane == plan->ops[op].lane;
    return number;
}

static size_t lane_op(const struct weir_plan *plan, uint32_t lane, uint32_t number)
{
    for (size_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].lane == lane && --number == 0)
            return i;
    return SIZE_MAX;
}

/* An op and those it waits for. */
static void victims_note(struct mutant *m, size_t op)
{
    const struct weir_plan *plan = m->c->plans[0];
    m->victims[m->victim_count++] = op;
    for (uint32_t w = 0; w < plan->ops[op].wait_count; w++)
        m->victims[m->victim_count++] =
            lane_op(plan, plan->ops[op].waits[w].lane, plan->ops[op].waits[w].count);
}

/* The op is gone and the waits of the others still mean the ops that they meant. */
static bool op_drop(struct mutant *m, size_t op)
{
    uint32_t lane = m->plan.ops[op].lane, number = lane_number(&m->plan, op);
    memmove(&m->plan.ops[op], &m->plan.ops[op + 1],
            (m->plan.op_count - op - 1) * sizeof *m->plan.ops);
    m->plan.op_count--;
    for (size_t i = 0; i < m->plan.op_count; i++)
        for (uint32_t w = 0; w < m->plan.ops[i].wait_count; w++) {
            struct weir_wait *wait = &m->plan.ops[i].waits[w];
            if (wait->lane == lane && wait->count >= number && --wait->count == 0)
                *wait = m->plan.ops[i].waits[--m->plan.ops[i].wait_count];
        }
    return true;
}

/* With one of the next few ops; waits stay where they were written. */
static bool op_swap(struct mutant *m, struct test_random *random, size_t op)
{
    size_t other = op + 1 + test_random_below(random, 6);
    if (other >= m->plan.op_count)
        return false;
    struct weir_op held = m->plan.ops[op];
    m->plan.ops[op] = m->plan.ops[other];
    m->plan.ops[other] = held;
    return memcmp(&m->plan.ops[op], &held, sizeof held) != 0;
}

static uint64_t shifted(struct test_random *random, uint64_t offset, uint64_t step)
{
    uint64_t by = 4096 * (1 + test_random_below(random, 3));
    if (test_random_below(random, 3) == 0)
        by = step;
    return test_random_below(random, 2) && offset >= by ? offset - by : offset + by;
}

/* A scratch, put or get of the stage, elsewhere. */
static bool inner_retarget(struct mutant *m, struct test_random *random, uint32_t stage)
{
    const struct weir_trace *trace = m->c->traces[0];
    for (size_t i = 0; i < trace->event_count; i++) {
        const struct weir_trace_event *e = &trace->events[i];
        uint64_t *offset = e->kind == WEIR_EVENT_SCRATCH ? &m->plan.scratches[e->first]
                           : e->kind >= WEIR_EVENT_PUT   ? &m->plan.mail[e->count]
                                                         : NULL;
        if (e->stage != stage || !offset)
            continue;
        *offset = shifted(random, *offset, 4096);
        return true;
    }
    return false;
}

/* Compute finds a thing elsewhere: one use, scratch or mail slot. */
static bool stage_retarget(struct mutant *m, struct test_random *random, size_t op)
{
    if (test_random_below(random, 2) && inner_retarget(m, random, m->plan.ops[op].thing))
        return true;
    uint32_t stage = m->plan.ops[op].thing, use = UINT32_MAX;
    const struct weir_trace *trace = m->c->traces[0];
    for (size_t tries = 0; tries < 100 && use == UINT32_MAX; tries++) {
        uint32_t i = (uint32_t)test_random_below(random, trace->use_count);
        if (trace->uses[i].stage_first <= stage && stage < trace->uses[i].stage_end &&
            !m->plan.uses[i].refused)
            use = i;
    }
    if (use == UINT32_MAX)
        return false;
    struct weir_use_place *place = &m->plan.uses[use];
    bool grad = place->grad_offset != WEIR_NOWHERE &&
                (place->bytes_offset == WEIR_NOWHERE || test_random_below(random, 2));
    uint64_t *offset = grad ? &place->grad_offset : &place->bytes_offset;
    *offset = shifted(random, *offset, 8 * 4096);
    return true;
}

/* One place elsewhere, or the same places for another window or thing of the model. */
static bool op_retarget(struct mutant *m, struct test_random *random, size_t op)
{
    struct weir_op *o = &m->plan.ops[op];
    if (o->kind == WEIR_OP_COMPUTE)
        return stage_retarget(m, random, op);
    const struct weir_thing *thing = &m->c->m.model.things[o->thing];
    uint32_t which = (uint32_t)test_random_below(random, 5);
    if (which == 3 && thing->is_block && thing->window_count > 1) {
        o->window = (o->window + 1) % thing->window_count;
        return true;
    }
    if (which == 4) {
        uint32_t other = (uint32_t)test_random_below(random, m->c->m.model.thing_count);
        bool same = other == o->thing || m->c->m.model.things[other].is_block != thing->is_block ||
                    (thing->is_block && o->window >= m->c->m.model.things[other].window_count);
        o->thing = same ? o->thing : other;
        return !same;
    }
    struct weir_place *place = &o->places[which % WEIR_OP_PLACES];
    if (place->bytes == 0)
        place = &o->places[0];
    place->offset = shifted(random, place->offset, place->bytes);
    return true;
}

/* The same number of bytes more or less at each end. */
static bool op_resize(struct mutant *m, struct test_random *random, size_t op)
{
    struct weir_op *o = &m->plan.ops[op];
    if (o->kind == WEIR_OP_COMPUTE)
        return false;
    bool more = test_random_below(random, 2);
    for (uint32_t p = 0; p < WEIR_OP_PLACES; p++)
        if (o->places[p].bytes > 0) {
            if (!more && o->places[p].bytes == 4096)
                return false;
            o->places[p].bytes += more ? 4096 : (uint64_t)-4096;
        }
    return true;
}

static bool op_change(struct mutant *m, struct test_random *random, enum change change, size_t op)
{
    switch (change) {
    case DROP:
        return op_drop(m, op);
    case SWAP:
        return op_swap(m, random, op);
    case RETARGET:
        return op_retarget(m, random, op);
    case RESIZE:
        return op_resize(m, random, op);
    default:
        if (m->plan.ops[op].kind == WEIR_OP_COMPUTE)
            return false;
        m->plan.ops[op].pending_only = !m->plan.ops[op].pending_only;
        return true;
    }
}

static bool wait_change(struct mutant *m, struct test_random *random, enum wait_change change,
                        size_t op)
{
    struct weir_op *o = &m->plan.ops[op];
    if (o->wait_count == 0)
        return false;
    uint32_t w = (uint32_t)test_random_below(random, o->wait_count);
    size_t other = test_random_below(random, m->plan.op_count);
    struct weir_op *with = &m->plan.ops[other];
    switch (change) {
    case WAIT_DROP:
        o->waits[w] = o->waits[--o->wait_count];
        return true;
    case WAIT_SWAP: {
        struct weir_wait held = o->waits[w];
        if (with->wait_count == 0 || with == o)
            return false;
        o->waits[w] = with->waits[0];
        with->waits[0] = held;
        return true;
    }
    case WAIT_RETARGET:
        o->waits[w].lane =
            (o->waits[w].lane + 1 + (uint32_t)test_random_below(random, WEIR_LANE_COUNT - 1)) %
            WEIR_LANE_COUNT;
        return true;
    default:
        if (o->waits[w].count < 2)
            return false;
        o->waits[w].count -= 1 + (uint32_t)test_random_below(random, o->waits[w].count - 1);
        return true;
    }
}

/* Runs two steps in many orders: each op that matters late, the changed one early. */
static const char *hurt(struct mutant *m, struct test_random *random, size_t op)
{
    struct weir_plan *const plans[] = {&m->plan};
    const char *fault = NULL;
    for (size_t i = 0; i < m->victim_count + 3 && !fault; i++) {
        struct test_machine machine;
        struct test_order order = {.late = i < m->victim_count ? m->victims[i] : SIZE_MAX,
                                   .early = i > 0 && op < m->plan.op_count ? op : SIZE_MAX,
                                   .listed = i == m->victim_count,
                                   .random = {.state = test_random_next(random)}};
        test_machine_open(&machine, &m->c->m.model, m->c->homes, plans, 1,
                          test_random_next(random));
        for (int step = 0; step < 2 && !fault; step++)
            fault = test_machine_step(&machine, &m->plan, m->c->traces[0], &order);
        test_machine_close(&machine);
    }
    return fault;
}

static void rejected_drop_run(struct mutant *m, struct test_random *random, size_t op)
{
    if (test_random_below(random, 8) > 0)
        return;
    drops_run++;
    drops_seen += hurt(m, random, op) != NULL;
}

static void judge(struct mutant *m, struct test_random *random, size_t op, const char *what,
                  struct score *score)
{
    score->made++;
    enum weir_status status = weir_plan_check(&m->plan, m->c->homes, &m->c->m.model,
                                              m->c->traces[0], &m->c->limits, NULL);
    if (status == WEIR_ERR_CORRUPT) {
        score->rejected++;
        if (strcmp(what, "drop") == 0)
            rejected_drop_run(m, random, op);
        return;
    }
    assert_ok(status);
    const char *fault = hurt(m, random, op);
    if (fault)
        fail_msg("check accepts a plan with op %zu (%s) changed by %s, but %s", op,
                 kind_names[m->c->plans[0]->ops[op].kind], what, fault);
    score->equivalent++;
}

/* An op of this kind, or op_count. */
static size_t op_draw(const struct weir_plan *plan, struct test_random *random, uint32_t kind)
{
    for (int tries = 0; tries < 400; tries++) {
        size_t op = test_random_below(random, plan->op_count);
        if (plan->ops[op].kind == kind)
            return op;
    }
    return plan->op_count;
}

static void ops_mutate(const struct test_case *c, struct test_random *random, uint32_t each)
{
    for (uint32_t change = 0; change < CHANGE_COUNT; change++)
        for (uint32_t kind = 0; kind < WEIR_OP_KIND_COUNT; kind++)
            for (uint32_t i = 0; i < each && op_scores[change][kind].made < MOST; i++) {
                size_t op = op_draw(c->plans[0], random, kind);
                if (op == c->plans[0]->op_count)
                    break;
                struct mutant m;
                mutant_open(&m, c);
                victims_note(&m, op);
                if (op_change(&m, random, (enum change)change, op))
                    judge(&m, random, op, change_names[change], &op_scores[change][kind]);
                mutant_close(&m);
            }
}

static void waits_mutate(const struct test_case *c, struct test_random *random, uint32_t each)
{
    for (uint32_t change = 0; change < WAIT_CHANGE_COUNT; change++)
        for (uint32_t i = 0; i < each && wait_scores[change].made < 4 * MOST; i++) {
            size_t op = test_random_below(random, c->plans[0]->op_count);
            struct mutant m;
            mutant_open(&m, c);
            victims_note(&m, op);
            if (wait_change(&m, random, (enum wait_change)change, op))
                judge(&m, random, op, wait_names[change], &wait_scores[change]);
            mutant_close(&m);
        }
}

static bool applies(uint32_t change, uint32_t kind)
{
    return kind != WEIR_OP_COMPUTE || change < RESIZE;
}

static bool enough(void)
{
    for (uint32_t change = 0; change < CHANGE_COUNT; change++)
        for (uint32_t kind = 0; kind < WEIR_OP_KIND_COUNT; kind++)
            if (applies(change, kind) && op_scores[change][kind].made < LEAST)
                return false;
    for (uint32_t change = 0; change < WAIT_CHANGE_COUNT; change++)
        if (wait_scores[change].made < LEAST)
            return false;
    return true;
}

static void score_count(const char *change, const char *kind, const struct score *score,
                        struct score *sum)
{
    printf("%8s %-8s %5u mutants, %5u rejected, %4u equivalent\n", change, kind, score->made,
           score->rejected, score->equivalent);
    sum->made += score->made;
    sum->equivalent += score->equivalent;
}

/* Mutants of the plans of random llamas and wild traces, at least 50 of each kind and op. */
static void harmful_mutants_are_rejected(void **state)
{
    (void)state;
    struct test_random random = test_random_open(3);
    for (uint32_t plans = 0, i = 0; plans < 16 || !enough(); i++) {
        assert_true(i < 600);
        struct test_case c;
        if (test_case_open(&c, &random, i & 1) && c.plans[0]->op_count > 40 &&
            c.plans[0]->op_count < 1500) {
            ops_mutate(&c, &random, 12);
            waits_mutate(&c, &random, 48);
            plans++;
        }
        test_case_close(&c);
    }
    struct score sum = {0};
    for (uint32_t change = 0; change < CHANGE_COUNT; change++)
        for (uint32_t kind = 0; kind < WEIR_OP_KIND_COUNT; kind++)
            score_count(change_names[change], kind_names[kind], &op_scores[change][kind], &sum);
    for (uint32_t change = 0; change < WAIT_CHANGE_COUNT; change++)
        score_count(wait_names[change], "wait", &wait_scores[change], &sum);
    printf("%u mutants, %u equivalent; of %u rejected drops the bytes of %u differ\n", sum.made,
           sum.equivalent, drops_run, drops_seen);
    assert_true(drops_seen * 10 >= drops_run * 8);
    assert_true(sum.equivalent * 3 <= sum.made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(harmful_mutants_are_rejected)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
