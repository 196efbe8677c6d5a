/* Rotary positions: the table, the rotation and its inverse. */
#include "tests/support_op.h"

#include <math.h>
#include <string.h>

#define THETA 10000.0

struct shape {
    uint32_t sequences, length, heads, head_dim;
    bool backward;
};

static const struct shape shapes[] = {
    {1, 1, 1, 2, false},   {1, 1, 1, 2, true},    {2, 31, 3, 6, false}, {2, 31, 3, 6, true},
    {3, 33, 1, 80, false}, {1, 127, 2, 10, true}, {2, 5, 4, 128, true}, {1, 4097, 5, 8, false},
    {2, 3, 33, 64, true}, /* more heads than a GPU's thread turns */
};
#define SHAPE_COUNT (sizeof shapes / sizeof *shapes)

static const float *table_make(struct test_kernels *t, const struct weir_rope_table_args *given)
{
    struct weir_rope_table_args a = *given;
    a.cos_sin = test_kernels_memory(t, (uint64_t)a.length * a.head_dim * sizeof(float));
    assert_ok(t->table->rope_table(t->kernels, t->stream, &a));
    return a.cos_sin;
}

static void rope_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                     void *const *in, void *const *out)
{
    const struct shape *s = op->shape;
    struct weir_rope_args a = {.x = out[0],
                               .sequences = s->sequences,
                               .length = s->length,
                               .heads = s->heads,
                               .head_dim = s->head_dim,
                               .backward = s->backward,
                               .dtype = dtype};
    a.cos_sin = table_make(t, &(struct weir_rope_table_args){
                                  .length = s->length, .head_dim = s->head_dim, .theta = THETA});
    memcpy(out[0], in[0], op->in[0].count * (dtype == WEIR_BF16 ? 2 : 4));
    assert_ok(t->table->rope(t->kernels, t->stream, &a));
}

static void rope_expect(const struct test_op *op, double *const *in, double *const *out)
{
    const struct shape *s = op->shape;
    uint32_t half = s->head_dim / 2;
    for (uint64_t row = 0; row < (uint64_t)s->sequences * s->length * s->heads; row++) {
        double position = (double)(row / s->heads % s->length);
        const double *x = in[0] + row * s->head_dim;
        double *y = out[0] + row * s->head_dim;
        for (uint32_t i = 0; i < half; i++) {
            double angle = position * pow(THETA, -2.0 * i / s->head_dim);
            angle = s->backward ? -angle : angle;
            y[i] = x[i] * cos(angle) - x[i + half] * sin(angle);
            y[i + half] = x[i + half] * cos(angle) + x[i] * sin(angle);
        }
    }
}

/* Pairs (i, i + D/2) turn by position times frequency, the other way in backward. */
static void pairs_rotate(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct shape *s = &shapes[i];
        uint64_t count = (uint64_t)s->sequences * s->length * s->heads * s->head_dim;
        test_op_check(&(struct test_op){.in = {{count, true}},
                                        .in_count = 1,
                                        .out = {{count, true}},
                                        .out_count = 1,
                                        .shape = s,
                                        .run = rope_run,
                                        .expect = rope_expect,
                                        .tolerance = 1e-6},
                      i);
    }
}

#define LLAMA_DIM    128u
#define LLAMA_LENGTH 4097u

static double angle_error(const float *pair, double angle)
{
    return hypot((double)pair[0] - cos(angle), (double)pair[1] - sin(angle));
}

/* Plain frequencies hold to fp32 rounding at late positions: angles are made in double. */
static void angles_are_exact_at_late_positions(void **state)
{
    (void)state;
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 2));
    const float *table =
        table_make(&t, &(struct weir_rope_table_args){
                           .length = LLAMA_LENGTH, .head_dim = LLAMA_DIM, .theta = 5e5});
    test_kernels_wait(&t);
    for (uint32_t position = 0; position < LLAMA_LENGTH; position += 64)
        for (uint32_t i = 0; i < LLAMA_DIM / 2; i++) {
            double angle = position * pow(5e5, -2.0 * i / LLAMA_DIM);
            const float *pair = table + ((uint64_t)position * LLAMA_DIM / 2 + i) * 2;
            assert_true(angle_error(pair, angle) < 1e-7);
        }
    test_kernels_close(&t);
}

/* Llama 3.1's scaling: wavelengths up to 8192/4 are kept, from 8192/1 on stretched by 8, those
 * between interpolated by how often the original length holds them. */
static void llama3_stretches_long_wavelengths(void **state)
{
    (void)state;
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 2));
    const float *table = table_make(&t, &(struct weir_rope_table_args){.length = LLAMA_LENGTH,
                                                                       .head_dim = LLAMA_DIM,
                                                                       .theta = 5e5,
                                                                       .scaling = WEIR_ROPE_LLAMA3,
                                                                       .factor = 8,
                                                                       .low_freq_factor = 1,
                                                                       .high_freq_factor = 4,
                                                                       .original_length = 8192});
    test_kernels_wait(&t);
    uint32_t kept = 0, between = 0, stretched = 0;
    for (uint32_t i = 0; i < LLAMA_DIM / 2; i++) {
        double plain = pow(5e5, -2.0 * i / LLAMA_DIM), turns = 8192 * plain / (2 * acos(-1));
        double want = plain;
        if (turns <= 1)
            want = plain / 8;
        else if (turns < 4)
            want = plain / 8 + (plain - plain / 8) * (turns - 1) / 3;
        kept += turns >= 4;
        between += turns > 1 && turns < 4;
        stretched += turns <= 1;
        const float *last = table + ((uint64_t)(LLAMA_LENGTH - 1) * LLAMA_DIM / 2 + i) * 2;
        assert_true(angle_error(last, (LLAMA_LENGTH - 1) * want) < 1e-7);
    }
    assert_true(kept > 0 && between > 0 && stretched > 0);
    test_kernels_close(&t);
}

/* Linear scaling turns by the angle of a position factor times nearer. */
static void linear_stretches_every_wavelength(void **state)
{
    (void)state;
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 2));
    const float *table = table_make(&t, &(struct weir_rope_table_args){.length = LLAMA_LENGTH,
                                                                       .head_dim = LLAMA_DIM,
                                                                       .theta = 5e5,
                                                                       .scaling = WEIR_ROPE_LINEAR,
                                                                       .factor = 2.5});
    test_kernels_wait(&t);
    for (uint32_t i = 0; i < LLAMA_DIM / 2; i++) {
        double angle = (LLAMA_LENGTH - 1) / 2.5 * pow(5e5, -2.0 * i / LLAMA_DIM);
        const float *last = table + ((uint64_t)(LLAMA_LENGTH - 1) * LLAMA_DIM / 2 + i) * 2;
        assert_true(angle_error(last, angle) < 1e-7);
    }
    test_kernels_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_rotate),
        cmocka_unit_test(angles_are_exact_at_late_positions),
        cmocka_unit_test(llama3_stretches_long_wavelengths),
        cmocka_unit_test(linear_stretches_every_wavelength),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
