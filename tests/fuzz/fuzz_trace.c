/*
 * A model, traces of two keys, and budgets, drawn from the input. Their plans pass check and give
 * the right bytes in the interpreter; then the same traces run through the public calls on the host
 * device in strict mode. There every tensor is filled with one byte, known in a plain array beside
 * it, and compared whenever it is wanted. The update has a learning rate of 0, so weights change
 * only where the trace writes them.
 */
#include "core/memory.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support_cost.h"
#include "tests/support_plan.h"
#include "zero/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAD_VALUE  0x3c
#define KEPT_BYTES  (16u * 4096u) /* most of a kept tensor that tests draw */
#define GETS_MOST   64
#define USES_MOST   1024
#define THINGS_MOST 256

static char directory[256];

struct live {
    const struct test_case *c;
    weir_run *run;
    const struct weir_trace *trace;
    bool dry;
    unsigned char value[THINGS_MOST]; /* what the weight or kept tensor is filled with */
    bool refused[THINGS_MOST];
    struct weir_view views[USES_MOST];
    unsigned char next_value;
    struct {
        unsigned char bytes[KEPT_BYTES], value;
        uint64_t byte_count;
    } gets[GETS_MOST];
    size_t get_count;
};

static unsigned char value_next(struct live *l)
{
    l->next_value = l->next_value < 0x3e ? l->next_value + 1 : 0x38; /* small positive floats */
    return l->next_value;
}

struct compare {
    const unsigned char *bytes;
    uint64_t count;
    unsigned char value;
    char name[64];
};

/* One by one only to say where: loops over single bytes, instrumented, were half of the time. */
static void bytes_check(const char *name, const unsigned char *bytes, uint64_t count,
                        unsigned char value)
{
    if (count && bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0)
        return;
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] != value)
            fail_msg("%s: byte %llu is %#x, not %#x", name, (unsigned long long)i, bytes[i], value);
}

static void compare_run(void *argument)
{
    const struct compare *c = argument;
    bytes_check(c->name, c->bytes, c->count, c->value);
}

static void compare_queue(struct live *l, const char *name, const void *bytes, uint64_t count,
                          unsigned char value)
{
    struct compare c = {bytes, count, value, ""};
    const struct weir_range range = {bytes, count, false};
    snprintf(c.name, sizeof c.name, "%s", name);
    assert_ok(
        l->run->table->call(weir_compute_stream(l->run), compare_run, &c, sizeof c, &range, 1));
}

static void fill_queue(struct live *l, void *bytes, uint64_t count, unsigned char value)
{
    assert_ok(l->run->table->fill(weir_compute_stream(l->run), bytes, value, count));
}

static void kept_work(struct live *l, const struct weir_trace_use *use, void *bytes)
{
    const struct weir_thing *thing = &l->c->m.model.things[use->id];
    if (use->access == WEIR_NEW)
        l->refused[use->id] = bytes == NULL;
    assert_true((bytes == NULL) == l->refused[use->id] && (bytes || thing->optional));
    if (!bytes)
        return;
    if (use->access != WEIR_NEW)
        compare_queue(l, thing->name, bytes, thing->byte_count, l->value[use->id]);
    if (use->access != WEIR_NEW && use->access != WEIR_CHANGE)
        return;
    l->value[use->id] = value_next(l);
    fill_queue(l, bytes, thing->byte_count, l->value[use->id]);
}

static void block_work(struct live *l, const struct weir_trace_use *use,
                       const struct weir_view *view)
{
    const struct weir_thing *thing = &l->c->m.model.things[use->id];
    uint32_t weight_bytes = weir_part_bytes(&l->c->m.model, WEIR_PART_WEIGHT);
    unsigned char value = l->value[use->id];
    bool grad = use->access == WEIR_GRAD || use->access == WEIR_ADD;
    if (use->access == WEIR_WRITE)
        l->value[use->id] = value_next(l);
    for (uint32_t t = 0; t < thing->tensor_count; t++) {
        const struct weir_block_tensor *tensor = &thing->tensors[t];
        char *weight = view->bytes ? (char *)view->bytes + tensor->offset * weight_bytes : NULL;
        assert_true((weight == NULL) == (use->access == WEIR_ADD));
        if (weight)
            compare_queue(l, tensor->name, weight, tensor->count * weight_bytes, value);
        if (use->access == WEIR_WRITE)
            fill_queue(l, weight, tensor->count * weight_bytes, l->value[use->id]);
        if (!grad || tensor->kind == WEIR_FROZEN)
            continue;
        float *at = view->grad + tensor->offset;
        if (view->grad_fresh)
            fill_queue(l, at, tensor->count * sizeof *at, GRAD_VALUE);
        else
            compare_queue(l, tensor->name, at, tensor->count * sizeof *at, GRAD_VALUE);
    }
}

static void want(struct live *l, const struct weir_trace_event *event)
{
    struct weir_use uses[8];
    assert_true(event->count <= 8 && event->first + event->count <= USES_MOST);
    for (uint32_t i = 0; i < event->count; i++)
        uses[i] = (struct weir_use){l->trace->uses[event->first + i].id,
                                    l->trace->uses[event->first + i].access};
    assert_ok(weir_want(l->run, uses, event->count, &l->views[event->first]));
    for (uint32_t i = event->first; !l->dry && i < event->first + event->count; i++) {
        const struct weir_trace_use *use = &l->trace->uses[i];
        if (l->c->m.model.things[use->id].is_block)
            block_work(l, use, &l->views[i]);
        else
            kept_work(l, use, l->views[i].bytes);
    }
}

static void done(struct live *l, const struct weir_trace_event *event)
{
    uint32_t ids[8];
    assert_true(event->count <= 8);
    for (uint32_t i = 0; i < event->count; i++)
        ids[i] = l->trace->uses[l->trace->dones[event->first + i]].id;
    assert_ok(weir_done(l->run, ids, event->count));
}

static void put(struct live *l, uint32_t id)
{
    unsigned char bytes[KEPT_BYTES];
    l->value[id] = value_next(l);
    memset(bytes, l->value[id], sizeof bytes);
    assert_ok(weir_put(l->run, id, bytes));
}

static void get(struct live *l, uint32_t id)
{
    assert_true(l->get_count < GETS_MOST);
    l->gets[l->get_count].value = l->value[id];
    l->gets[l->get_count].byte_count = l->c->m.model.things[id].byte_count;
    assert_ok(weir_get(l->run, id, l->gets[l->get_count++].bytes));
}

static void event_run(struct live *l, const struct weir_trace_event *event)
{
    void *scratch;
    switch (event->kind) {
    case WEIR_EVENT_WANT:
        want(l, event);
        break;
    case WEIR_EVENT_DONE:
        done(l, event);
        break;
    case WEIR_EVENT_SCRATCH:
        assert_ok(weir_scratch(l->run, event->bytes, &scratch));
        if (!l->dry)
            fill_queue(l, scratch, event->bytes, 0x33);
        break;
    case WEIR_EVENT_PUT:
        put(l, l->trace->uses[event->first].id);
        break;
    case WEIR_EVENT_GET:
        get(l, l->trace->uses[event->first].id);
        break;
    }
}

/* Of gradients filled with GRAD_VALUE: each element of a trained tensor counts once. */
static double norm_expected(const struct live *l)
{
    const uint32_t bits = 0x01010101u * GRAD_VALUE;
    float value;
    memcpy(&value, &bits, sizeof value);
    if (l->c->m.model.grad_dtype == WEIR_BF16)
        value = weir_float_from_bf16((uint16_t)bits);
    uint64_t count = 0;
    for (size_t i = 0; i < l->trace->use_count; i++) {
        const struct weir_trace_use *use = &l->trace->uses[i];
        const struct weir_thing *thing = &l->c->m.model.things[use->id];
        for (uint32_t t = 0; thing->is_block && use->grad_last && t < thing->tensor_count; t++)
            count += thing->tensors[t].kind == WEIR_TRAINED ? thing->tensors[t].count : 0;
    }
    return sqrt((double)count * (double)value * (double)value);
}

static void step(struct live *l, uint32_t key, bool dry)
{
    static const struct weir_update update = {sizeof update, 0, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f};
    struct weir_report report = {.struct_bytes = sizeof report};
    char name[8];
    snprintf(name, sizeof name, "key%u", key);
    l->trace = l->c->traces[key];
    l->dry = dry;
    l->get_count = 0;
    assert_ok(weir_step_begin(l->run, name, dry));
    for (size_t i = 0; i < l->trace->event_count; i++)
        event_run(l, &l->trace->events[i]);
    assert_ok(weir_step_end(l->run, &update, &report));
    if (dry)
        return;
    double expected = norm_expected(l);
    if (fabs(report.grad_norm - expected) > 1e-9 * expected)
        fail_msg("norm %.12g, expected %.12g", report.grad_norm, expected);
    for (size_t i = 0; i < l->get_count; i++)
        bytes_check("get", l->gets[i].bytes, l->gets[i].byte_count, l->gets[i].value);
}

static void run_open(struct live *l, uint64_t seed)
{
    const struct weir_model *model = &l->c->m.model;
    const struct weir_limits *limits = &l->c->limits;
    const struct weir_options options = {
        .struct_bytes = sizeof options,
        .device = "host",
        .device_bytes = limits->device_bytes,
        .host_bytes = limits->host_bytes,
        .nvme_path = limits->nvme ? directory : NULL,
        .dtype = model->dtype,
        .grad_dtype = model->grad_dtype,
        .thread_count = 1,
        .strict = true,
        .strict_seed = seed,
        .cost = &test_cost,
    };
    assert_ok(weir_open_with(&l->run, &options, &(struct weir_seams){.grain = model->grain}));
}

static void things_add(struct live *l)
{
    const struct weir_model *model = &l->c->m.model;
    assert_true(model->thing_count <= THINGS_MOST);
    for (uint32_t i = 0; i < model->thing_count; i++) {
        const struct weir_thing *thing = &model->things[i];
        const struct weir_kept kept = {sizeof kept, thing->name, thing->byte_count, thing->optional,
                                       thing->recompute_flops};
        struct weir_tensor tensors[8];
        uint32_t id;
        for (uint32_t t = 0; t < thing->tensor_count; t++)
            tensors[t] = (struct weir_tensor){.struct_bytes = sizeof *tensors,
                                              .name = thing->tensors[t].name,
                                              .kind = thing->tensors[t].kind,
                                              .dim_count = 1,
                                              .shape = {thing->tensors[t].count},
                                              .lr_scale = 1,
                                              .decay_scale = 1};
        assert_true(thing->is_block || thing->byte_count <= KEPT_BYTES);
        assert_ok(thing->is_block ? weir_block_add(l->run, tensors, thing->tensor_count, &id)
                                  : weir_kept_add(l->run, &kept, &id));
        assert_int_equal(i, id);
    }
}

/* load: each tensor's weights become their value; else they must be it. */
static void weights_move(struct live *l, bool load)
{
    const struct weir_model *model = &l->c->m.model;
    unsigned char bytes[9000 * 4];
    for (uint32_t i = 0; i < model->thing_count; i++)
        for (uint32_t t = 0; t < model->things[i].tensor_count; t++) {
            uint64_t count = model->things[i].tensors[t].count;
            assert_true(count * 4 <= sizeof bytes);
            memset(bytes, load ? l->value[i] : 0, sizeof bytes);
            assert_ok(load ? weir_block_load(l->run, i, t, model->dtype, bytes, 0, count)
                           : weir_block_store(l->run, i, t, model->dtype, bytes, 0, count));
            bytes_check(model->things[i].tensors[t].name, bytes,
                        count * weir_part_bytes(model, WEIR_PART_WEIGHT), l->value[i]);
        }
}

static void live_run(const struct test_case *c, uint64_t seed)
{
    static struct live live;
    live = (struct live){.c = c, .next_value = 0x38};
    struct live *l = &live;
    run_open(l, seed);
    things_add(l);
    step(l, 0, true);
    step(l, 1, true);
    enum weir_status status = weir_layout(l->run);
    if (status != WEIR_OK) {
        assert_int_equal(WEIR_ERR_NOMEM, status);
    } else {
        for (uint32_t i = 0; i < c->m.model.thing_count; i++)
            l->value[i] = value_next(l);
        weights_move(l, true);
        step(l, 0, false);
        step(l, 1, false);
        step(l, 0, false);
        weights_move(l, false);
    }
    weir_close(l->run);
}

static void plans_judge(struct test_case *c, struct test_random *random)
{
    for (uint32_t k = 0; k < 2; k++)
        assert_ok(
            weir_plan_check(c->plans[k], c->homes, &c->m.model, c->traces[k], &c->limits, NULL));
    struct test_machine machine;
    test_machine_open(&machine, &c->m.model, c->homes, c->plans, 2, 5);
    for (uint32_t s = 0; s < 3; s++) {
        struct test_order order = test_order_draw(random, c->plans[s & 1]);
        const char *fault = test_machine_step(&machine, c->plans[s & 1], c->traces[s & 1], &order);
        if (fault)
            fail_msg("step %u: %s", s, fault);
    }
    test_machine_close(&machine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!directory[0])
        fuzz_directory(directory);
    struct test_random random = {.state = 1, .bytes = data, .end = data + size};
    uint64_t held = weir_alloc_bytes();
    struct test_case c;
    bool fits = test_case_open(&c, &random, test_random_below(&random, 2));
    if (fits)
        plans_judge(&c, &random);
    live_run(&c, test_random_below(&random, 1 << 16));
    test_case_close(&c);
    assert_true(weir_alloc_bytes() == held);
    return 0;
}
