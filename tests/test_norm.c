/* RMSNorm: its values and gradients. */
#include "tests/support_op.h"

#include <math.h>
#include <string.h>

#define EPS 1e-5

enum alias { APART, OVER_DY, OVER_RESIDUAL };

struct shape {
    uint32_t rows, width;
    bool fresh;
    enum alias alias;
    bool residual;
};

static const struct shape shapes[] = {
    {1, 1, true, APART, true},
    {1, 31, false, APART, false},
    {33, 127, true, OVER_DY, false},
    {31, 33, false, OVER_DY, true},
    {127, 31, true, OVER_RESIDUAL, true},
    {5, 2048, false, OVER_RESIDUAL, true},
    {5, 600, true, OVER_DY, true}, /* two rows of two warps in a block of a GPU */
    {7, 300, false, APART, true},
    {4097, 33, false, APART, true},
    {3, 4097, true, OVER_RESIDUAL, true},
    {2, 8200, true, OVER_DY, true}, /* more than a GPU's block holds */
    {1, 9001, false, OVER_RESIDUAL, true},
};
#define SHAPE_COUNT (sizeof shapes / sizeof *shapes)

static struct weir_norm_args args_of(const struct shape *s, enum weir_dtype dtype, const void *x,
                                     const void *weight)
{
    return (struct weir_norm_args){.x = x,
                                   .weight = weight,
                                   .rows = s->rows,
                                   .width = s->width,
                                   .eps = (float)EPS,
                                   .dtype = dtype};
}

static double rstd_of(const double *x, uint32_t width)
{
    double sum = 0;
    for (uint32_t i = 0; i < width; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / width + (double)(float)EPS);
}

static void forward_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                        void *const *in, void *const *out)
{
    struct weir_norm_args a = args_of(op->shape, dtype, in[0], in[1]);
    a.y = out[0];
    a.rstd = out[1];
    assert_ok(t->table->norm_forward(t->kernels, t->stream, &a));
}

static void forward_expect(const struct test_op *op, double *const *in, double *const *out)
{
    const struct shape *s = op->shape;
    for (uint32_t r = 0; r < s->rows; r++) {
        const double *x = in[0] + (size_t)r * s->width;
        out[1][r] = rstd_of(x, s->width);
        for (uint32_t i = 0; i < s->width; i++)
            out[0][(size_t)r * s->width + i] = x[i] * out[1][r] * in[1][i];
    }
}

/* y and rstd are right, for rows of odd widths too. */
static void forward_is_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct shape *s = &shapes[i];
        uint64_t count = (uint64_t)s->rows * s->width;
        if (count > 8192 && test_kernels_slow())
            continue;
        test_op_check(&(struct test_op){.in = {{count, true}, {s->width, true}},
                                        .in_count = 2,
                                        .out = {{count, true}, {s->rows, false}},
                                        .out_count = 2,
                                        .shape = s,
                                        .run = forward_run,
                                        .expect = forward_expect,
                                        .tolerance = 2e-6},
                      100 + i);
    }
}

enum { X, WEIGHT, DY, RESIDUAL, DWEIGHT_BEFORE, IN_COUNT };

/* What aliases dx is copied there first. */
static void backward_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                         void *const *in, void *const *out)
{
    const struct shape *s = op->shape;
    struct weir_norm_args a = args_of(s, dtype, in[X], in[WEIGHT]);
    a.y = test_kernels_memory(t, op->in[X].count * 4);
    a.rstd = test_kernels_memory(t, s->rows * 4);
    assert_ok(t->table->norm_forward(t->kernels, t->stream, &a));
    a.y = NULL;
    a.dx = out[0];
    a.dweight = out[1];
    a.fresh = s->fresh;
    a.dy = s->alias == OVER_DY ? out[0] : in[DY];
    if (s->residual)
        a.residual_d = s->alias == OVER_RESIDUAL ? out[0] : in[RESIDUAL];
    if (s->alias != APART)
        memcpy(out[0], s->alias == OVER_DY ? in[DY] : in[RESIDUAL], op->out[0].count * 4);
    if (!s->fresh)
        memcpy(out[1], in[DWEIGHT_BEFORE], op->out[1].count * 4);
    assert_ok(t->table->norm_backward(t->kernels, t->stream, &a));
}

/* dx and dweight are its gradients, what they are added to included. */
static double backward_value(const struct test_op *op, double *const *in)
{
    const struct shape *s = op->shape;
    double sum = 0;
    for (uint32_t r = 0; r < s->rows; r++) {
        const size_t at = (size_t)r * s->width;
        double rstd = rstd_of(in[X] + at, s->width);
        for (uint32_t i = 0; i < s->width; i++) {
            sum += in[DY][at + i] * in[X][at + i] * rstd * in[WEIGHT][i];
            sum += s->residual ? in[RESIDUAL][at + i] * in[X][at + i] : 0;
        }
    }
    for (uint32_t i = 0; i < s->width && !s->fresh; i++)
        sum += in[DWEIGHT_BEFORE][i] * in[WEIGHT][i];
    return sum;
}

static void backward_expect(const struct test_op *op, double *const *in, double *const *out)
{
    const struct shape *s = op->shape;
    for (uint32_t i = 0; i < s->width && !s->fresh; i++)
        out[1][i] = in[DWEIGHT_BEFORE][i];
    for (uint32_t r = 0; r < s->rows; r++) {
        const size_t at = (size_t)r * s->width;
        const double *x = in[X] + at, *dy = in[DY] + at;
        double rstd = rstd_of(x, s->width), c = 0;
        for (uint32_t i = 0; i < s->width; i++)
            c += dy[i] * in[WEIGHT][i] * x[i] * rstd * rstd * rstd / s->width;
        for (uint32_t i = 0; i < s->width; i++) {
            out[0][at + i] = rstd * dy[i] * in[WEIGHT][i] - c * x[i];
            out[0][at + i] += s->residual ? in[RESIDUAL][at + i] : 0;
            out[1][i] += dy[i] * x[i] * rstd;
        }
    }
}

/* dx with and without a residual, in place of dy or of the residual, and dweight, fresh or added.
 * Its sums over rows in order lose more than a row's: up to 1e-5 of the largest. */
static void backward_is_the_gradient(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct shape *s = &shapes[i];
        uint64_t count = (uint64_t)s->rows * s->width;
        if (count > 8192 && test_kernels_slow())
            continue;
        test_op_check(&(struct test_op){.in = {{count, true},
                                               {s->width, true},
                                               {count, false},
                                               {count, false},
                                               {s->width, false}},
                                        .in_count = IN_COUNT,
                                        .out = {{count, false}, {s->width, false}},
                                        .out_count = 2,
                                        .shape = s,
                                        .run = backward_run,
                                        .expect = backward_expect,
                                        .tolerance = s->rows > 1000 ? 1e-5 : 2e-6,
                                        .value = backward_value,
                                        .gradients = {{X, 0}, {WEIGHT, 1}},
                                        .gradient_count = 2},
                      200 + i);
    }
}

/* A value that is not finite spoils its row of y and dx and its column of dweight, nothing else. */
static void rows_do_not_mix(void **state)
{
    (void)state;
    enum { ROWS = 33, WIDTH = 40, BAD_ROW = 17, BAD_COLUMN = 21 };
    static const struct shape shape = {ROWS, WIDTH, true, APART, true};
    const uint64_t count = ROWS * WIDTH;
    struct test_op forward = {.in = {{count, true}, {WIDTH, true}},
                              .in_count = 2,
                              .out = {{count, true}, {ROWS, false}},
                              .out_count = 2,
                              .shape = &shape,
                              .run = forward_run};
    struct test_op backward = {
        .in = {{count, true}, {WIDTH, true}, {count, false}, {count, false}, {WIDTH, false}},
        .in_count = IN_COUNT,
        .out = {{count, false}, {WIDTH, false}},
        .out_count = 2,
        .shape = &shape,
        .run = backward_run};
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++) {
        float x[ROWS * WIDTH], weight[WIDTH], dy[ROWS * WIDTH], residual[ROWS * WIDTH] = {0};
        float y[ROWS * WIDTH], rstd[ROWS], dx[ROWS * WIDTH], dweight[WIDTH], before[WIDTH] = {0};
        float *in[] = {x, weight, dy, residual, before};
        for (uint32_t i = 0; i < count; i++)
            x[i] = dy[i] = sinf((float)i + 1);
        for (uint32_t i = 0; i < WIDTH; i++)
            weight[i] = 1;
        x[BAD_ROW * WIDTH + 3] = INFINITY;
        assert_true(
            test_op_run(&forward, NULL, 2, (enum weir_dtype)dtype, in, (float *[]){y, rstd}));
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(i == BAD_ROW * WIDTH + 3, isnan(y[i]));
        assert_true(rstd[BAD_ROW] == 0 && rstd[BAD_ROW - 1] > 0);
        x[BAD_ROW * WIDTH + 3] = 1;
        dy[BAD_ROW * WIDTH + BAD_COLUMN] = NAN;
        assert_true(
            test_op_run(&backward, NULL, 2, (enum weir_dtype)dtype, in, (float *[]){dx, dweight}));
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(i / WIDTH == BAD_ROW, isnan(dx[i]));
        for (uint32_t i = 0; i < WIDTH; i++)
            assert_int_equal(i == BAD_COLUMN, isnan(dweight[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_right),
        cmocka_unit_test(backward_is_the_gradient),
        cmocka_unit_test(rows_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
