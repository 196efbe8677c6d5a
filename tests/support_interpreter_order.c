/* The order in which ops begin and complete. */
#include "tests/support_interpreter.h"

#include <stdlib.h>
#include <string.h>

struct lanes {
    const struct weir_plan *plan;
    test_order_op *run;
    void *context;
    struct test_order *order;
    uint32_t *ops; /* op indices, lane by lane */
    uint32_t first[WEIR_LANE_COUNT + 1];
    uint32_t begun[WEIR_LANE_COUNT], complete[WEIR_LANE_COUNT];
    bool *finished; /* [op] */
    bool *ran;      /* [op]: its effect has happened, at its beginning or at its end */
};

static void lanes_open(struct lanes *l)
{
    const struct weir_plan *plan = l->plan;
    l->ops = calloc(plan->op_count + 1, sizeof *l->ops);
    l->finished = calloc(plan->op_count + 1, 1);
    l->ran = calloc(plan->op_count + 1, 1);
    assert_true(l->ops && l->finished && l->ran);
    uint32_t next[WEIR_LANE_COUNT];
    for (size_t i = 0; i < plan->op_count; i++)
        l->first[plan->ops[i].lane + 1]++;
    for (uint32_t k = 0; k < WEIR_LANE_COUNT; k++)
        l->first[k + 1] += l->first[k];
    memcpy(next, l->first, sizeof next);
    for (size_t i = 0; i < plan->op_count; i++)
        l->ops[next[plan->ops[i].lane]++] = (uint32_t)i;
}

static void lanes_close(struct lanes *l)
{
    free(l->ops);
    free(l->finished);
    free(l->ran);
}

static bool may_begin(const struct lanes *l, uint32_t lane)
{
    if (l->first[lane] + l->begun[lane] == l->first[lane + 1])
        return false;
    bool in_order = lane != WEIR_LANE_READ && lane != WEIR_LANE_WRITE;
    if (in_order && l->complete[lane] < l->begun[lane])
        return false;
    const struct weir_op *op = &l->plan->ops[l->ops[l->first[lane] + l->begun[lane]]];
    for (uint32_t w = 0; w < op->wait_count; w++)
        if (l->complete[op->waits[w].lane] < op->waits[w].count)
            return false;
    return true;
}

static void begin(struct lanes *l, uint32_t lane)
{
    size_t op = l->ops[l->first[lane] + l->begun[lane]++];
    bool at_once =
        op != l->order->late && (op == l->order->early || test_random_below(&l->order->random, 2));
    if (at_once)
        l->run(l->context, op);
    l->ran[op] = at_once;
}

static void finish(struct lanes *l, uint32_t lane, size_t op)
{
    if (!l->ran[op])
        l->run(l->context, op);
    l->finished[op] = true;
    while (l->complete[lane] < l->begun[lane] &&
           l->finished[l->ops[l->first[lane] + l->complete[lane]]])
        l->complete[lane]++;
}

/* Begin or finish one op: the early one if it may, the late one only if nothing else can move. */
static bool move(struct lanes *l)
{
    struct {
        uint32_t lane;
        size_t op;
        bool begin;
    } choices[256], *chosen = NULL;
    size_t count = 0, late = SIZE_MAX;
    for (uint32_t lane = 0; lane < WEIR_LANE_COUNT; lane++) {
        if (may_begin(l, lane)) {
            choices[count].op = l->ops[l->first[lane] + l->begun[lane]];
            choices[count].lane = lane;
            choices[count++].begin = true;
        }
        for (uint32_t i = l->complete[lane]; i < l->begun[lane] && count < 240; i++)
            if (!l->finished[l->ops[l->first[lane] + i]]) {
                choices[count].op = l->ops[l->first[lane] + i];
                choices[count].lane = lane;
                choices[count++].begin = false;
            }
    }
    for (size_t i = 0; i < count; i++)
        if (choices[i].op == l->order->early && choices[i].op != l->order->late)
            chosen = &choices[i];
        else if (choices[i].op == l->order->late && !choices[i].begin)
            late = i;
    if (count == 0)
        return false;
    size_t pick = test_random_below(&l->order->random, count);
    if (pick == late)
        pick = (pick + 1) % count;
    if (!chosen)
        chosen = &choices[pick];
    if (chosen->begin)
        begin(l, chosen->lane);
    else
        finish(l, chosen->lane, chosen->op);
    return true;
}

bool test_order_run(const struct weir_plan *plan, struct test_order *order, test_order_op *run,
                    void *context)
{
    bool whole = true;
    if (order->listed) {
        for (size_t i = 0; i < plan->op_count; i++)
            run(context, i);
        return true;
    }
    struct lanes lanes = {.plan = plan, .run = run, .context = context, .order = order};
    lanes_open(&lanes);
    while (move(&lanes))
        ;
    for (uint32_t l = 0; l < WEIR_LANE_COUNT; l++)
        whole &= lanes.first[l] + lanes.complete[l] == lanes.first[l + 1];
    lanes_close(&lanes);
    return whole;
}
