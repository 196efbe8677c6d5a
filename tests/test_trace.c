/* The recorder turns wants and dones into stages, uses and lives, and refuses what makes no sense.
 */
#include "tests/support_trace.h"

#include <stdio.h>
#include <string.h>

struct fixture {
    struct weir_model model;
    struct weir_trace *trace;
    uint32_t layer, mixed, frozen, x, optional;
};

static uint32_t block_add(struct weir_model *model, const char *name, uint32_t count,
                          const enum weir_kind *kinds)
{
    struct weir_tensor tensors[2];
    char names[2][16];
    uint32_t id = 0;
    for (uint32_t t = 0; t < count; t++) {
        snprintf(names[t], sizeof names[t], "%s.%u", name, t);
        tensors[t] = (struct weir_tensor){.struct_bytes = sizeof *tensors,
                                          .name = names[t],
                                          .kind = kinds[t],
                                          .dim_count = 1,
                                          .shape = {100}};
    }
    assert_ok(weir_model_block_add(model, tensors, count, &id));
    return id;
}

static void open(struct fixture *f)
{
    struct weir_kept kept = {.struct_bytes = sizeof kept, .name = "x", .byte_count = 100};
    weir_model_open(&f->model, WEIR_BF16, WEIR_FP32, WEIR_GRAIN_DEFAULT);
    f->layer = block_add(&f->model, "L", 1, (enum weir_kind[]){WEIR_TRAINED});
    f->mixed = block_add(&f->model, "M", 2, (enum weir_kind[]){WEIR_TRAINED, WEIR_FROZEN});
    f->frozen = block_add(&f->model, "F", 1, (enum weir_kind[]){WEIR_FROZEN});
    assert_ok(weir_model_kept_add(&f->model, &kept, &f->x));
    kept.name = "o";
    kept.optional = true;
    assert_ok(weir_model_kept_add(&f->model, &kept, &f->optional));
    assert_ok(weir_trace_open(&f->trace, "train"));
}

static void close(struct fixture *f)
{
    weir_trace_close(f->trace);
    weir_model_close(&f->model);
}

static enum weir_status want(struct fixture *f, uint32_t id, enum weir_access access)
{
    return weir_trace_want(f->trace, &f->model, &(struct weir_use){id, access}, 1);
}

static enum weir_status done(struct fixture *f, uint32_t id)
{
    return weir_trace_done(f->trace, &f->model, &id, 1);
}

/* A stage runs from the first want, scratch, put or get after a done to the next done. */
static void stages_end_with_a_done(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    assert_ok(want(&f, f.layer, WEIR_READ));
    assert_ok(want(&f, f.x, WEIR_NEW)); /* the same stage */
    assert_ok(weir_trace_work(f.trace, 5));
    assert_ok(done(&f, f.x));
    assert_ok(weir_trace_work(f.trace, 2)); /* of the stage that ended */
    assert_ok(want(&f, f.x, WEIR_READ));
    assert_ok(weir_trace_scratch(f.trace, 10));
    assert_ok(done(&f, f.x));
    assert_ok(weir_trace_scratch(f.trace, 20)); /* opens the third */
    assert_ok(done(&f, f.layer));
    assert_ok(weir_trace_seal(f.trace, &f.model));
    const struct weir_trace_use *uses = f.trace->uses;
    assert_int_equal(f.trace->stage_count, 3);
    assert_int_equal(f.trace->use_count, 3);
    assert_int_equal(uses[0].stage_first, 0);
    assert_int_equal(uses[0].stage_end, 3);
    assert_int_equal(uses[1].stage_end, 1);
    assert_int_equal(uses[2].stage_first, 1);
    assert_int_equal(uses[2].stage_end, 2);
    assert_true(f.trace->stage_flops[0] == 7 && f.trace->stage_flops[2] == 0);
    assert_int_equal(f.trace->scratch_count, 2);
    assert_int_equal(f.trace->events[f.trace->event_count - 2].stage, 2);
    assert_int_equal(f.trace->events[f.trace->event_count - 2].stage_end, 3);
    assert_true(weir_trace_bytes(f.trace) > sizeof *f.trace);
    close(&f);
}

/* Stages pass while an outer want is held, and its scratch lasts; uses of one want end together. */
static void scratches_last_until_their_want_is_done(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    assert_ok(want(&f, f.layer, WEIR_READ));
    assert_ok(weir_trace_scratch(f.trace, 10));
    for (int i = 0; i < 2; i++) {
        assert_ok(want(&f, f.x, i == 0 ? WEIR_NEW : WEIR_READ));
        assert_ok(weir_trace_scratch(f.trace, 20));
        assert_ok(done(&f, f.x));
    }
    assert_ok(weir_trace_scratch(f.trace, 30));
    assert_ok(done(&f, f.layer));
    const struct weir_use both[] = {{f.layer, WEIR_READ}, {f.x, WEIR_READ}};
    assert_ok(weir_trace_want(f.trace, &f.model, both, 2));
    assert_ok(weir_trace_scratch(f.trace, 40));
    assert_ok(done(&f, f.x));
    assert_ok(weir_trace_scratch(f.trace, 50)); /* its want is not done whole */
    assert_ok(done(&f, f.layer));
    assert_ok(weir_trace_seal(f.trace, &f.model));
    static const uint32_t expected[][2] = {{0, 3}, {0, 1}, {1, 2}, {2, 3}, {3, 5}, {4, 5}};
    for (size_t i = 0, s = 0; i < f.trace->event_count; i++)
        if (f.trace->events[i].kind == WEIR_EVENT_SCRATCH) {
            assert_int_equal(f.trace->events[i].stage, expected[s][0]);
            assert_int_equal(f.trace->events[i].stage_end, expected[s++][1]);
        }
    assert_int_equal(f.trace->scratch_count, 6);
    close(&f);
}

/* grad_fresh and grad_last are of the first and last GRAD or ADD; frozen blocks have neither. */
static void gradients_know_their_first_and_last_use(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    const enum weir_access layer[] = {WEIR_READ, WEIR_GRAD, WEIR_READ, WEIR_ADD, WEIR_READ};
    for (size_t i = 0; i < 5; i++) {
        assert_ok(want(&f, f.layer, layer[i]));
        assert_ok(done(&f, f.layer));
    }
    assert_ok(want(&f, f.frozen, WEIR_GRAD));
    assert_ok(done(&f, f.frozen));
    assert_ok(weir_trace_seal(f.trace, &f.model));
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(f.trace->uses[i].grad_fresh, i == 1);
        assert_int_equal(f.trace->uses[i].grad_last, i == 3);
    }
    close(&f);
}

/* done ends the innermost want of a nested block; lives of a kept tensor are numbered. */
static void wants_nest_and_lives_are_numbered(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    assert_ok(want(&f, f.layer, WEIR_GRAD));
    assert_ok(want(&f, f.layer, WEIR_READ));
    assert_ok(done(&f, f.layer));
    assert_int_equal(f.trace->uses[1].stage_end, 1);
    assert_int_equal(f.trace->uses[0].stage_end, UINT32_MAX);
    assert_ok(want(&f, f.x, WEIR_NEW));
    assert_ok(done(&f, f.x));
    assert_ok(want(&f, f.x, WEIR_LAST));
    assert_ok(done(&f, f.x));
    assert_ok(want(&f, f.x, WEIR_NEW)); /* born again */
    assert_ok(done(&f, f.x));
    assert_ok(want(&f, f.x, WEIR_NEW)); /* ends an earlier life */
    assert_ok(weir_trace_done(f.trace, &f.model, (uint32_t[]){f.layer, f.x}, 2));
    assert_ok(weir_trace_seal(f.trace, &f.model));
    const uint32_t lives[] = {0, 0, 1, 2};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(f.trace->uses[2 + i].life, lives[i]);
    close(&f);
}

/* Each wrong event is refused by name, and leaves the trace as it was. */
static void wrong_events_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    assert_fails(weir_trace_work(f.trace, 1), WEIR_ERR_STATE, "before the first want");
    assert_fails(weir_trace_seal(f.trace, &f.model), WEIR_ERR_STATE, "without a want");
    assert_fails(want(&f, 99, WEIR_READ), WEIR_ERR_ARG, "id 99");
    assert_fails(want(&f, f.layer, (enum weir_access)77), WEIR_ERR_ARG, "access 77");
    assert_fails(want(&f, f.layer, WEIR_NEW), WEIR_ERR_ARG, "\"L.0\"");
    assert_fails(want(&f, f.frozen, WEIR_ADD), WEIR_ERR_ARG, "\"F.0\"");
    assert_fails(want(&f, f.x, WEIR_GRAD), WEIR_ERR_ARG, "\"x\"");
    assert_fails(want(&f, f.x, WEIR_READ), WEIR_ERR_STATE, "before it was born");
    assert_fails(done(&f, f.layer), WEIR_ERR_STATE, "0 are held");
    assert_fails(weir_trace_scratch(f.trace, 8), WEIR_ERR_STATE, "outside a want");
    assert_fails(weir_trace_copy(f.trace, &f.model, f.x, true), WEIR_ERR_STATE, "not held");
    assert_int_equal(f.trace->event_count + f.trace->use_count + f.trace->stage_count, 0);

    assert_ok(want(&f, f.layer, WEIR_READ));
    const struct weir_use half[] = {{f.x, WEIR_NEW}, {f.layer, WEIR_WRITE}};
    assert_fails(weir_trace_want(f.trace, &f.model, half, 2), WEIR_ERR_STATE, "WRITE");
    assert_fails(want(&f, f.x, WEIR_READ), WEIR_ERR_STATE, "before it was born");
    assert_int_equal(f.trace->held_count, 1);
    assert_fails(weir_trace_scratch(f.trace, 0), WEIR_ERR_ARG, "0 bytes");
    assert_fails(weir_trace_seal(f.trace, &f.model), WEIR_ERR_STATE, "\"L.0\" is held");
    assert_fails(weir_trace_done(f.trace, &f.model, (uint32_t[]){f.layer, f.layer}, 2),
                 WEIR_ERR_STATE, "1 are held");
    assert_fails(weir_trace_copy(f.trace, &f.model, f.layer, true), WEIR_ERR_ARG, "a block");
    assert_ok(want(&f, f.x, WEIR_NEW));
    assert_fails(want(&f, f.x, WEIR_CHANGE), WEIR_ERR_STATE, "held already");
    assert_ok(done(&f, f.x));
    assert_ok(want(&f, f.x, WEIR_LAST));
    assert_fails(weir_trace_copy(f.trace, &f.model, f.x, true), WEIR_ERR_STATE, "LAST");
    assert_ok(weir_trace_copy(f.trace, &f.model, f.x, false));
    assert_ok(done(&f, f.x));
    assert_fails(want(&f, f.x, WEIR_READ), WEIR_ERR_STATE, "after its LAST");
    assert_ok(want(&f, f.optional, WEIR_NEW));
    assert_fails(weir_trace_copy(f.trace, &f.model, f.optional, true), WEIR_ERR_ARG, "refused");
    assert_fails(weir_trace_work(f.trace, -1), WEIR_ERR_ARG, "work");
    assert_ok(weir_trace_done(f.trace, &f.model, (uint32_t[]){f.layer, f.optional}, 2));
    assert_ok(want(&f, f.mixed, WEIR_WRITE));
    assert_fails(want(&f, f.mixed, WEIR_READ), WEIR_ERR_STATE, "WRITE");
    assert_ok(done(&f, f.mixed));
    assert_ok(weir_trace_seal(f.trace, &f.model));
    assert_fails(want(&f, f.layer, WEIR_READ), WEIR_ERR_STATE, "after its end");
    close(&f);
}

/* The text of an event names kind, tensors and access, and never writes past the room given. */
static void events_are_described(void **state)
{
    (void)state;
    struct fixture f;
    open(&f);
    const struct weir_use uses[] = {{f.layer, WEIR_GRAD}, {f.x, WEIR_NEW}};
    const char *expected[] = {"want L.0:GRAD x:NEW", "scratch 77 bytes", "put x", "get x",
                              "done x L.0"};
    assert_ok(weir_trace_want(f.trace, &f.model, uses, 2));
    assert_ok(weir_trace_scratch(f.trace, 77));
    assert_ok(weir_trace_copy(f.trace, &f.model, f.x, true));
    assert_ok(weir_trace_copy(f.trace, &f.model, f.x, false));
    assert_ok(weir_trace_done(f.trace, &f.model, (uint32_t[]){f.x, f.layer}, 2));
    for (size_t i = 0; i < 5; i++) {
        char text[64];
        weir_trace_describe(f.trace, &f.model, i, text, sizeof text);
        assert_string_equal(text, expected[i]);
        for (size_t room = 1; room < 12; room++) {
            memset(text, '#', sizeof text);
            weir_trace_describe(f.trace, &f.model, i, text, room);
            assert_int_equal(text[room], '#');
            assert_true(strlen(text) < room && strncmp(text, expected[i], strlen(text)) == 0);
        }
    }
    close(&f);
}

/* Random llama and wild traces are accepted and their uses lie inside their stages. */
static void random_traces_are_well_formed(void **state)
{
    (void)state;
    struct test_random random = test_random_open(11);
    for (uint32_t i = 0; i < test_draws(200); i++) {
        struct test_model m;
        test_model_open(&m, &random);
        struct weir_trace *traces[] = {test_trace_train(&m), test_trace_eval(&m),
                                       test_trace_wild(&m, &random, 80)};
        for (size_t t = 0; t < 3; t++) {
            for (size_t u = 0; u < traces[t]->use_count; u++) {
                const struct weir_trace_use *use = &traces[t]->uses[u];
                assert_true(use->stage_first < use->stage_end);
                assert_true(use->stage_end <= traces[t]->stage_count);
            }
            weir_trace_close(traces[t]);
        }
        test_model_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_end_with_a_done),
        cmocka_unit_test(scratches_last_until_their_want_is_done),
        cmocka_unit_test(gradients_know_their_first_and_last_use),
        cmocka_unit_test(wants_nest_and_lives_are_numbered),
        cmocka_unit_test(wrong_events_are_refused),
        cmocka_unit_test(events_are_described),
        cmocka_unit_test(random_traces_are_well_formed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
