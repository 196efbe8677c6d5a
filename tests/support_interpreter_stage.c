#include "tests/support_interpreter.h"

#include <string.h>

uint64_t test_mix(uint64_t value)
{
    value = (value ^ (value >> 32)) * 0x9E3779B97F4A7C15u;
    return value ^ (value >> 29);
}

void test_update(uint64_t *state, const uint64_t *grad, uint64_t *weight, size_t state_count,
                 size_t grad_count, size_t weight_count)
{
    for (size_t i = 0; i < state_count; i++)
        state[i] = test_mix(state[i] + 3 * grad[i * grad_count / state_count] +
                            5 * weight[i * weight_count / state_count]);
    for (size_t i = 0; i < weight_count; i++)
        weight[i] = test_mix(weight[i] + state[i * state_count / weight_count] +
                             grad[i * grad_count / weight_count]);
}

void test_clear(uint64_t *state, size_t count)
{
    for (size_t i = 0; i < count; i += 5)
        state[i] = 0;
}

void test_reduce(uint64_t *grad, size_t grad_count, bool half)
{
    size_t count = half ? grad_count / 2 : grad_count;
    for (size_t i = 0; i < count; i++)
        grad[i] = half ? test_mix(grad[2 * i] + 7 * grad[2 * i + 1]) : test_mix(grad[i] + 11);
}

/* ---- stages */

struct run {
    const struct test_stage *s;
    uint64_t digest;
};

static uint64_t digest(uint64_t from, const void *bytes, uint64_t byte_count)
{
    const uint64_t *words = bytes;
    uint64_t sums[2] = {from, ~from};
    for (uint64_t i = 0; i + 1 < byte_count / 8; i += 2) {
        sums[0] = (sums[0] ^ words[i]) * 0x9E3779B97F4A7C15u + (sums[0] >> 31);
        sums[1] = (sums[1] ^ words[i + 1]) * 0xBF58476D1CE4E5B9u + (sums[1] >> 29);
    }
    return test_mix(sums[0] + test_mix(sums[1]));
}

/* words = keep * old + something of the digest: only what is kept depends on the old bytes. */
static void change(struct run *r, uint64_t salt, void *bytes, uint64_t byte_count, bool keep)
{
    uint64_t *words = bytes, base = test_mix(r->digest + salt * 0x51ED270B35AE7u);
    for (uint64_t i = 0; i < byte_count / 8; i++)
        words[i] = (keep ? words[i] * 3 : 0) + (base ^ (i * 0x9E3779B97F4A7C15u));
}

static bool active(const struct run *r, uint32_t use)
{
    const struct weir_trace_use *u = &r->s->trace->uses[use];
    return u->stage_first <= r->s->stage && r->s->stage < u->stage_end && !r->s->refused[use];
}

static uint64_t byte_count(const struct run *r, uint32_t use)
{
    const struct weir_thing *thing = &r->s->model->things[r->s->trace->uses[use].id];
    return thing->is_block ? thing->element_count * weir_part_bytes(r->s->model, WEIR_PART_WEIGHT)
                           : thing->slot_bytes;
}

static uint64_t grad_byte_count(const struct run *r, uint32_t use)
{
    return r->s->model->things[r->s->trace->uses[use].id].trained_element_count * 4;
}

/* Do the bytes hold something when the stage begins? */
static bool holds_bytes(const struct run *r, uint32_t use)
{
    const struct weir_trace_use *u = &r->s->trace->uses[use];
    return u->access != WEIR_NEW || u->stage_first < r->s->stage;
}

static bool first_sum(const struct run *r, uint32_t use)
{
    const struct weir_trace_use *u = &r->s->trace->uses[use];
    for (uint32_t i = 0; i < use; i++)
        if (r->s->trace->uses[i].id == u->id && active(r, i) && r->s->views[i].grad)
            return false;
    return true;
}

static bool fresh(const struct run *r, uint32_t use)
{
    const struct weir_trace_use *u = &r->s->trace->uses[use];
    return u->grad_fresh && u->stage_first == r->s->stage;
}

/* put copies in before the stage's work, get out after it. */
static void mail_move(struct run *r, enum weir_event_kind kind)
{
    const struct test_stage *s = r->s;
    for (size_t i = 0; i < s->trace->event_count; i++) {
        const struct weir_trace_event *e = &s->trace->events[i];
        if (e->kind != kind || e->stage != s->stage)
            continue;
        uint64_t bytes = byte_count(r, e->first);
        uint64_t *mail = s->mail[e->count];
        for (uint64_t k = 0; kind == WEIR_EVENT_PUT && k < bytes / 8; k++)
            mail[k] = test_mix(s->step * 1000003 + e->count * 101 + k);
        if (kind == WEIR_EVENT_PUT)
            memcpy(s->views[e->first].bytes, mail, bytes);
        else
            memcpy(mail, s->views[e->first].bytes, bytes);
    }
}

static bool was_put(const struct run *r, uint32_t use)
{
    for (size_t i = 0; i < r->s->trace->event_count; i++)
        if (r->s->trace->events[i].kind == WEIR_EVENT_PUT &&
            r->s->trace->events[i].stage == r->s->stage && r->s->trace->events[i].first == use)
            return true;
    return false;
}

static void inputs_read(struct run *r)
{
    const struct test_stage *s = r->s;
    for (uint32_t i = 0; i < s->trace->use_count; i++) {
        if (!active(r, i))
            continue;
        if (s->views[i].bytes && (holds_bytes(r, i) || was_put(r, i)))
            r->digest = digest(r->digest + i, s->views[i].bytes, byte_count(r, i));
        if (s->views[i].grad && first_sum(r, i) && !fresh(r, i))
            r->digest = digest(r->digest + i, s->views[i].grad, grad_byte_count(r, i));
    }
}

static void outputs_write(struct run *r)
{
    const struct test_stage *s = r->s;
    uint64_t inputs = r->digest;
    for (uint32_t i = 0; i < s->trace->use_count; i++) {
        enum weir_access access = s->trace->uses[i].access;
        if (!active(r, i))
            continue;
        r->digest = inputs;
        if (access == WEIR_NEW || access == WEIR_CHANGE || access == WEIR_WRITE)
            change(r, i * 2, s->views[i].bytes, byte_count(r, i),
                   holds_bytes(r, i) || was_put(r, i));
        if (s->views[i].grad && first_sum(r, i))
            change(r, i * 2 + 1, s->views[i].grad, grad_byte_count(r, i), !fresh(r, i));
    }
    for (uint32_t i = 0; i < s->trace->use_count; i++) {
        if (active(r, i) && s->views[i].bytes)
            r->digest = digest(r->digest + i, s->views[i].bytes, byte_count(r, i));
        if (active(r, i) && s->views[i].grad)
            r->digest = digest(r->digest + i, s->views[i].grad, grad_byte_count(r, i));
    }
}

/* Scratch is written first and must still be there at the end of each of its stages. */
static void scratches_move(struct run *r, bool write)
{
    const struct test_stage *s = r->s;
    for (size_t i = 0; s->scratches && i < s->trace->event_count; i++) {
        const struct weir_trace_event *e = &s->trace->events[i];
        if (e->kind != WEIR_EVENT_SCRATCH || s->stage < e->stage || s->stage >= e->stage_end)
            continue;
        unsigned char *bytes = s->scratches[e->first], value = (unsigned char)(e->first * 37 + 1);
        if (write && s->stage == e->stage)
            memset(bytes, value, e->bytes);
        for (uint64_t k = 0; !write && k < e->bytes; k++)
            if (bytes[k] != value) {
                r->digest = ~r->digest;
                break;
            }
    }
}

uint64_t test_stage_run(const struct test_stage *stage)
{
    struct run r = {.s = stage, .digest = stage->step * 31 + stage->stage};
    scratches_move(&r, true);
    mail_move(&r, WEIR_EVENT_PUT);
    inputs_read(&r);
    outputs_write(&r);
    mail_move(&r, WEIR_EVENT_GET);
    scratches_move(&r, false);
    return r.digest;
}
