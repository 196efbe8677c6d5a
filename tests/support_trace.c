#include "tests/support_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096

static uint32_t draw(struct test_random *random, uint32_t least, uint32_t most)
{
    return least + (uint32_t)test_random_below(random, most - least + 1);
}

static uint32_t block_add(struct test_model *m, const char *name, uint32_t tensor_count,
                          const uint64_t *elements, const bool *frozen)
{
    struct weir_tensor tensors[8];
    char names[8][32];
    for (uint32_t t = 0; t < tensor_count; t++) {
        snprintf(names[t], sizeof names[t], "%s.%u", name, t);
        tensors[t] = (struct weir_tensor){.struct_bytes = sizeof *tensors,
                                          .name = names[t],
                                          .kind = frozen[t] ? WEIR_FROZEN : WEIR_TRAINED,
                                          .dim_count = 1,
                                          .shape = {elements[t]},
                                          .lr_scale = 1,
                                          .decay_scale = 1};
    }
    uint32_t id = 0;
    assert_ok(weir_model_block_add(&m->model, tensors, tensor_count, &id));
    return id;
}

static uint32_t kept_add(struct test_model *m, const char *stem, uint32_t i, uint32_t k,
                         uint64_t bytes, bool optional)
{
    char name[32];
    snprintf(name, sizeof name, "%s%u.%u", stem, i, k);
    struct weir_kept kept = {
        .struct_bytes = sizeof kept, .name = name, .byte_count = bytes, .optional = optional};
    uint32_t id = 0;
    assert_ok(weir_model_kept_add(&m->model, &kept, &id));
    return id;
}

/* 1 to 3 tensors; the last ones frozen with some chance. */
static uint32_t block_draw(struct test_model *m, struct test_random *random, const char *stem,
                           uint32_t index, bool all_frozen, bool mixed)
{
    char name[32];
    uint64_t elements[3];
    bool frozen[3];
    uint32_t count = draw(random, 1, 3);
    bool from = all_frozen;
    for (uint32_t t = 0; t < count; t++) {
        elements[t] = draw(random, 1, 9000);
        from = from || (mixed && t > 0 && draw(random, 0, 1));
        frozen[t] = from;
    }
    snprintf(name, sizeof name, "%s%u", stem, index);
    return block_add(m, name, count, elements, frozen);
}

static void kept_draw(struct test_model *m, struct test_random *random)
{
    uint64_t boundary = draw(random, 1, 6 * PAGE), inner = draw(random, 1, 12 * PAGE);
    for (uint32_t k = 0; k < m->micro_count; k++) {
        for (uint32_t l = 0; l <= m->layer_count; l++)
            m->x[l][k] = kept_add(m, "x", l, k, boundary, false);
        for (uint32_t l = 0; l < m->layer_count; l++)
            m->inner[l][k] = kept_add(m, "inner", l, k, inner, true);
        for (uint32_t i = 0; i < 2; i++)
            m->d[i][k] = kept_add(m, "d", i, k, boundary * 2, false);
        m->tokens[k] = kept_add(m, "tokens", 0, k, draw(random, 1, PAGE), false);
        m->loss[k] = kept_add(m, "loss", 0, k, 8, false);
        m->running[k] = kept_add(m, "running", 0, k, draw(random, 1, 2 * PAGE), false);
    }
}

void test_model_open(struct test_model *m, struct test_random *random)
{
    *m = (struct test_model){.layer_count = draw(random, 1, TEST_LAYERS),
                             .micro_count = draw(random, 1, TEST_MICRO),
                             .piece_count = draw(random, 1, TEST_PIECES),
                             .tied = draw(random, 0, 1)};
    m->group_count = draw(random, 1, 2);
    if (m->group_count > m->micro_count)
        m->group_count = m->micro_count;
    m->head_count = m->tied ? m->piece_count : draw(random, 1, TEST_PIECES);
    m->frozen_embedding = !m->tied && draw(random, 0, 3) == 0;
    m->scratch_bytes = draw(random, 1, 8 * PAGE);
    m->layer_scratch_bytes = m->scratch_bytes % 3 ? 0 : m->scratch_bytes / 3;
    enum weir_dtype dtype = draw(random, 0, 2) ? WEIR_BF16 : WEIR_FP32;
    weir_model_open(&m->model, dtype, draw(random, 0, 1) ? WEIR_BF16 : WEIR_FP32,
                    (struct weir_grain){2048, 2048, 2});
    bool mixed = draw(random, 0, 2) == 0;
    for (uint32_t i = 0; i < m->piece_count; i++)
        m->embedding[i] = block_draw(m, random, "E", i, m->frozen_embedding, false);
    for (uint32_t l = 0; l < m->layer_count; l++)
        m->layer[l] = block_draw(m, random, "L", l, mixed && draw(random, 0, 4) == 0, mixed);
    for (uint32_t i = 0; i < m->head_count; i++)
        m->head[i] = m->tied ? m->embedding[i] : block_draw(m, random, "H", i, false, false);
    m->norm = block_draw(m, random, "N", 0, false, false);
    kept_draw(m, random);
}

void test_model_open_large(struct test_model *m, uint32_t layers, uint32_t micro,
                           struct weir_grain grain, uint64_t layer_elements)
{
    assert_true(layers <= TEST_LAYERS && micro <= TEST_MICRO);
    *m = (struct test_model){.layer_count = layers,
                             .micro_count = micro,
                             .group_count = 1,
                             .piece_count = 1,
                             .head_count = 1,
                             .tied = true,
                             .scratch_bytes = PAGE};
    weir_model_open(&m->model, WEIR_BF16, WEIR_FP32, grain);
    const bool trained[1] = {false};
    const uint64_t small[1] = {grain.segment_elements};
    m->embedding[0] = m->head[0] = block_add(m, "E", 1, &layer_elements, trained);
    for (uint32_t l = 0; l < layers; l++) {
        char name[16];
        snprintf(name, sizeof name, "L%u", l);
        m->layer[l] = block_add(m, name, 1, &layer_elements, trained);
    }
    m->norm = block_add(m, "N", 1, small, trained);
    kept_draw(m, &(struct test_random){.state = 1});
}

void test_model_close(struct test_model *m)
{
    weir_model_close(&m->model);
}

/* ---- a recording, and its shorthands */

struct recording {
    const struct test_model *m;
    struct weir_trace *trace;
    bool train;
    uint32_t first, end; /* micro-batches of the group */
};

static void want(struct recording *r, uint32_t id, enum weir_access access)
{
    assert_ok(weir_trace_want(r->trace, &r->m->model, &(struct weir_use){id, access}, 1));
}

static void done(struct recording *r, uint32_t id)
{
    assert_ok(weir_trace_done(r->trace, &r->m->model, &id, 1));
}

/* One piece of compute on kept tensors, between a want and a done of them all. */
static void compute(struct recording *r, const struct weir_use *uses, size_t count, double flops,
                    uint64_t scratch_bytes)
{
    uint32_t ids[8];
    assert_ok(weir_trace_want(r->trace, &r->m->model, uses, count));
    if (scratch_bytes > 0)
        assert_ok(weir_trace_scratch(r->trace, scratch_bytes));
    assert_ok(weir_trace_work(r->trace, flops));
    for (size_t i = 0; i < count; i++)
        ids[i] = uses[i].id;
    assert_ok(weir_trace_done(r->trace, &r->m->model, ids, count));
}

static void embed_forward(struct recording *r)
{
    const struct test_model *m = r->m;
    for (uint32_t k = r->first; k < r->end; k++) {
        want(r, m->tokens[k], WEIR_NEW);
        assert_ok(weir_trace_copy(r->trace, &m->model, m->tokens[k], true));
        done(r, m->tokens[k]);
    }
    for (uint32_t i = 0; i < m->piece_count; i++) {
        want(r, m->embedding[i], WEIR_READ);
        for (uint32_t k = r->first; k < r->end; k++)
            compute(r,
                    (struct weir_use[]){{m->tokens[k], WEIR_READ},
                                        {m->x[0][k], i ? WEIR_CHANGE : WEIR_NEW}},
                    2, 10, 0);
        done(r, m->embedding[i]);
    }
}

static void layers_forward(struct recording *r)
{
    const struct test_model *m = r->m;
    for (uint32_t l = 0; l < m->layer_count; l++) {
        want(r, m->layer[l], WEIR_READ);
        if (m->layer_scratch_bytes > 0)
            assert_ok(weir_trace_scratch(r->trace, m->layer_scratch_bytes));
        for (uint32_t k = r->first; k < r->end; k++)
            compute(r,
                    (struct weir_use[]){{m->x[l][k], r->train ? WEIR_READ : WEIR_LAST},
                                        {m->x[l + 1][k], WEIR_NEW},
                                        {m->inner[l][k], WEIR_NEW}},
                    r->train ? 3 : 2, 1e6, m->scratch_bytes);
        done(r, m->layer[l]);
    }
}

static void head_forward(struct recording *r)
{
    const struct test_model *m = r->m;
    want(r, m->norm, WEIR_READ);
    for (uint32_t i = 0; i < m->head_count; i++) {
        bool last = !r->train && i + 1 == m->head_count;
        want(r, m->head[i], WEIR_READ);
        for (uint32_t k = r->first; k < r->end; k++)
            compute(r,
                    (struct weir_use[]){{m->x[m->layer_count][k], last ? WEIR_LAST : WEIR_READ},
                                        {m->running[k], i ? WEIR_CHANGE : WEIR_NEW}},
                    2, 1e5, m->scratch_bytes / 2);
        done(r, m->head[i]);
    }
    done(r, m->norm);
}

static void loss_read(struct recording *r)
{
    const struct test_model *m = r->m;
    for (uint32_t k = r->first; k < r->end; k++) {
        assert_ok(weir_trace_want(
            r->trace, &m->model,
            (struct weir_use[]){{m->running[k], WEIR_LAST}, {m->loss[k], WEIR_NEW}}, 2));
        assert_ok(weir_trace_copy(r->trace, &m->model, m->loss[k], false));
        assert_ok(weir_trace_done(r->trace, &m->model, (uint32_t[]){m->running[k], m->loss[k]}, 2));
    }
}

static void head_backward(struct recording *r)
{
    const struct test_model *m = r->m;
    want(r, m->norm, WEIR_GRAD);
    for (uint32_t i = 0; i < m->head_count; i++) {
        bool last = i + 1 == m->head_count;
        want(r, m->head[i], WEIR_GRAD);
        for (uint32_t k = r->end; k-- > r->first;)
            compute(r,
                    (struct weir_use[]){{m->x[m->layer_count][k], last ? WEIR_LAST : WEIR_READ},
                                        {m->d[m->layer_count & 1][k], i ? WEIR_CHANGE : WEIR_NEW},
                                        {m->running[k], WEIR_READ}},
                    3, 3e5, m->scratch_bytes);
        done(r, m->head[i]);
    }
    done(r, m->norm);
}

static void layers_backward(struct recording *r)
{
    const struct test_model *m = r->m;
    for (uint32_t l = m->layer_count; l-- > 0;) {
        want(r, m->layer[l], WEIR_GRAD);
        if (m->layer_scratch_bytes > 0)
            assert_ok(weir_trace_scratch(r->trace, m->layer_scratch_bytes));
        for (uint32_t k = r->end; k-- > r->first;)
            compute(r,
                    (struct weir_use[]){{m->x[l][k], WEIR_LAST},
                                        {m->d[(l + 1) & 1][k], WEIR_LAST},
                                        {m->d[l & 1][k], WEIR_NEW},
                                        {m->inner[l][k], WEIR_LAST}},
                    4, 3e6, m->scratch_bytes * 2);
        done(r, m->layer[l]);
    }
}

static void embed_backward(struct recording *r)
{
    const struct test_model *m = r->m;
    for (uint32_t i = 0; i < m->piece_count; i++) {
        bool last = i + 1 == m->piece_count;
        want(r, m->embedding[i], m->frozen_embedding ? WEIR_GRAD : WEIR_ADD);
        for (uint32_t k = r->end; k-- > r->first;)
            compute(r,
                    (struct weir_use[]){{m->d[0][k], last ? WEIR_LAST : WEIR_READ},
                                        {m->tokens[k], last ? WEIR_LAST : WEIR_READ}},
                    2, 10, 0);
        done(r, m->embedding[i]);
    }
}

static struct weir_trace *llama_record(const struct test_model *m, const char *key, bool train)
{
    struct recording r = {.m = m, .train = train};
    assert_ok(weir_trace_open(&r.trace, key));
    uint32_t groups = train ? m->group_count : 1;
    for (uint32_t g = groups; g-- > 0;) {
        r.first = m->micro_count * g / groups;
        r.end = m->micro_count * (g + 1) / groups;
        embed_forward(&r);
        layers_forward(&r);
        head_forward(&r);
        if (train) {
            head_backward(&r);
            loss_read(&r);
            layers_backward(&r);
            embed_backward(&r);
        } else {
            loss_read(&r);
        }
    }
    assert_ok(weir_trace_seal(r.trace, &m->model));
    return r.trace;
}

struct weir_trace *test_trace_train(const struct test_model *m)
{
    return llama_record(m, "train", true);
}

struct weir_trace *test_trace_eval(const struct test_model *m)
{
    return llama_record(m, "eval", false);
}

/* ---- wild */

#define HELD_MOST 4

struct wild {
    struct recording r;
    struct test_random *random;
    uint32_t held[HELD_MOST], held_count;
    enum weir_access held_access[HELD_MOST];
    bool *alive; /* [thing]: born and not yet LAST */
};

static bool is_held(const struct wild *w, uint32_t id, bool only_write)
{
    for (uint32_t i = 0; i < w->held_count; i++)
        if (w->held[i] == id && (!only_write || w->held_access[i] == WEIR_WRITE))
            return true;
    return false;
}

/* A legal access of this thing now; false: there is none. */
static bool access_draw(struct wild *w, uint32_t id, enum weir_access *access)
{
    const struct weir_thing *thing = &w->r.m->model.things[id];
    if (thing->is_block) {
        static const enum weir_access often[] = {WEIR_READ, WEIR_READ, WEIR_GRAD,
                                                 WEIR_GRAD, WEIR_ADD,  WEIR_WRITE};
        *access = often[draw(w->random, 0, 5)];
        if (*access == WEIR_ADD && thing->trained_element_count == 0)
            *access = WEIR_GRAD;
        return !is_held(w, id, *access != WEIR_WRITE);
    }
    static const enum weir_access alive[] = {WEIR_READ, WEIR_READ, WEIR_CHANGE, WEIR_LAST,
                                             WEIR_NEW};
    *access = w->alive[id] ? alive[draw(w->random, 0, 4)] : WEIR_NEW;
    return !is_held(w, id, false);
}

static void wild_want(struct wild *w)
{
    struct weir_use uses[HELD_MOST];
    size_t count = 0;
    uint32_t wish = draw(w->random, 1, 2);
    for (uint32_t tries = 0; tries < 20 && count < wish && w->held_count < HELD_MOST; tries++) {
        uint32_t id = draw(w->random, 0, (uint32_t)w->r.m->model.thing_count - 1);
        enum weir_access access;
        if (!access_draw(w, id, &access))
            continue;
        uses[count++] = (struct weir_use){id, access};
        w->held[w->held_count] = id;
        w->held_access[w->held_count++] = access;
        w->alive[id] = access != WEIR_LAST;
    }
    if (count > 0)
        assert_ok(weir_trace_want(w->r.trace, &w->r.m->model, uses, count));
}

static void wild_done(struct wild *w)
{
    uint32_t id = w->held[draw(w->random, 0, w->held_count - 1)], at = w->held_count;
    while (w->held[--at] != id)
        ;
    done(&w->r, id);
    w->held_count--;
    memmove(&w->held[at], &w->held[at + 1], (w->held_count - at) * sizeof *w->held);
    memmove(&w->held_access[at], &w->held_access[at + 1],
            (w->held_count - at) * sizeof *w->held_access);
}

static void wild_copy(struct wild *w)
{
    uint32_t at = draw(w->random, 0, w->held_count - 1), id = w->held[at];
    const struct weir_thing *thing = &w->r.m->model.things[id];
    if (thing->is_block || thing->optional)
        return;
    bool put = w->held_access[at] == WEIR_NEW || w->held_access[at] == WEIR_CHANGE;
    assert_ok(weir_trace_copy(w->r.trace, &w->r.m->model, id, put && draw(w->random, 0, 1)));
}

struct weir_trace *test_trace_wild(const struct test_model *m, struct test_random *random,
                                   uint32_t events)
{
    struct wild w = {.r = {.m = m}, .random = random};
    w.alive = calloc(m->model.thing_count, sizeof *w.alive);
    assert_non_null(w.alive);
    assert_ok(weir_trace_open(&w.r.trace, "wild"));
    for (uint32_t i = 0; i < events; i++) {
        uint32_t what = draw(random, 0, 9);
        if (w.held_count == 0 || (what < 4 && w.held_count < HELD_MOST))
            wild_want(&w);
        else if (what < 8)
            wild_done(&w);
        else if (what == 8)
            assert_ok(weir_trace_scratch(w.r.trace, draw(random, 1, 3 * PAGE)));
        else
            wild_copy(&w);
    }
    while (w.held_count > 0)
        wild_done(&w);
    assert_ok(weir_trace_seal(w.r.trace, &m->model));
    free(w.alive);
    return w.r.trace;
}
