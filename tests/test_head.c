/* Cross-entropy over tiles of the vocabulary. */
#include "tests/support_op.h"

#include <math.h>
#include <string.h>

#define MASKED (-100)
#define SCALE  0.125f

struct shape {
    uint32_t rows, vocab, tile_rows;
};

static const struct shape shapes[] = {
    {1, 1, 1},       {3, 31, 31},  {33, 127, 33},   {31, 100, 16}, {127, 65, 64},
    {2, 5000, 4096}, {4097, 3, 3}, {3, 9001, 4097}, /* more than a GPU's block holds */
    {2, 8200, 8200},
};
#define SHAPE_COUNT (sizeof shapes / sizeof *shapes)

/* Every fourth row but the first is masked; the last id is among the targets. */
static int32_t target_at(const struct shape *s, uint32_t row)
{
    return row % 4 == 3 ? MASKED : (int32_t)(s->vocab - 1 - row * 7 % s->vocab);
}

struct head {
    struct weir_head_args args; /* of one tile */
    float *tile;
    void *dlogits;
};

static struct head head_make(struct test_kernels *t, const struct shape *s,
                             const struct weir_head_args *stats)
{
    uint64_t bytes = (uint64_t)s->rows * s->tile_rows * sizeof(float);
    struct head h = {*stats, test_kernels_memory(t, bytes), test_kernels_memory(t, bytes)};
    h.args.logits = h.tile;
    h.args.dlogits = h.dlogits;
    h.args.scale = SCALE;
    return h;
}

static void tile_put(const struct head *h, const struct shape *s, const float *logits)
{
    for (uint32_t r = 0; r < s->rows; r++)
        memcpy(h->tile + (uint64_t)r * h->args.tile_rows,
               logits + (uint64_t)r * s->vocab + h->args.first_vocab,
               h->args.tile_rows * sizeof *logits);
}

static void tile_get(const struct head *h, const struct shape *s, char *dlogits)
{
    uint64_t bytes = h->args.dtype == WEIR_BF16 ? 2 : 4;
    for (uint32_t r = 0; r < s->rows; r++)
        memcpy(dlogits + ((uint64_t)r * s->vocab + h->args.first_vocab) * bytes,
               (char *)h->dlogits + (uint64_t)r * h->args.tile_rows * bytes,
               h->args.tile_rows * bytes);
}

/* The statistics of all tiles in order, or, with dlogits, their gradients. */
static void tiles_run(struct test_kernels *t, const struct shape *s, const float *logits,
                      const struct weir_head_args *stats, char *dlogits)
{
    struct head h = head_make(t, s, stats);
    for (uint32_t first = 0; first < s->vocab; first += s->tile_rows) {
        h.args.first_vocab = first;
        h.args.first = first == 0;
        h.args.tile_rows = s->vocab - first < s->tile_rows ? s->vocab - first : s->tile_rows;
        tile_put(&h, s, logits);
        assert_ok(dlogits ? t->table->head_grad(t->kernels, t->stream, &h.args)
                          : t->table->head_stats(t->kernels, t->stream, &h.args));
        test_kernels_wait(t);
        if (dlogits)
            tile_get(&h, s, dlogits);
    }
}

/* in: logits. out: dlogits, the loss, and rows of log(sum) + max. */
static void head_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                     void *const *in, void *const *out)
{
    const struct shape *s = op->shape;
    int32_t *targets = test_kernels_memory(t, s->rows * sizeof *targets);
    for (uint32_t r = 0; r < s->rows; r++)
        targets[r] = target_at(s, r);
    double *loss = test_kernels_memory(t, sizeof *loss);
    struct weir_head_args stats = {.targets = targets,
                                   .rows = s->rows,
                                   .max = test_kernels_memory(t, s->rows * sizeof(float)),
                                   .sum = test_kernels_memory(t, s->rows * sizeof(float)),
                                   .target_logit = test_kernels_memory(t, s->rows * sizeof(float)),
                                   .loss = loss,
                                   .dtype = dtype};
    tiles_run(t, s, in[0], &stats, NULL);
    assert_ok(t->table->head_loss(t->kernels, t->stream, &stats));
    tiles_run(t, s, in[0], &stats, out[0]);
    *(float *)out[1] = (float)*loss;
    for (uint32_t r = 0; r < s->rows; r++)
        ((float *)out[2])[r] = logf(stats.sum[r]) + stats.max[r];
}

static double row_lse(const double *logits, uint32_t vocab)
{
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp(logits[i]);
    return log(sum);
}

static void head_expect(const struct test_op *op, double *const *in, double *const *out)
{
    const struct shape *s = op->shape;
    for (uint32_t r = 0; r < s->rows; r++) {
        const double *logits = in[0] + (uint64_t)r * s->vocab;
        int32_t target = target_at(s, r);
        out[2][r] = row_lse(logits, s->vocab);
        if (target == MASKED)
            continue;
        out[1][0] += out[2][r] - logits[target];
        double *d = out[0] + (uint64_t)r * s->vocab;
        for (uint32_t i = 0; i < s->vocab; i++)
            d[i] = (exp(logits[i] - out[2][r]) - ((int32_t)i == target)) * (double)SCALE;
    }
}

static double head_value(const struct test_op *op, double *const *in)
{
    const struct shape *s = op->shape;
    double sum = 0;
    for (uint32_t r = 0; r < s->rows; r++) {
        const double *logits = in[0] + (uint64_t)r * s->vocab;
        int32_t target = target_at(s, r);
        if (target != MASKED)
            sum += (row_lse(logits, s->vocab) - logits[target]) * (double)SCALE;
    }
    return sum;
}

static struct test_op op_of(const struct shape *s)
{
    uint64_t count = (uint64_t)s->rows * s->vocab;
    return (struct test_op){.in = {{count, false}},
                            .in_count = 1,
                            .out = {{count, true}, {1, false}, {s->rows, false}},
                            .out_count = 3,
                            .shape = s,
                            .run = head_run,
                            .expect = head_expect,
                            .tolerance = 2e-6,
                            .value = head_value,
                            .gradients = {{0, 0}},
                            .gradient_count = 1};
}

/* Loss, statistics and gradient are right over one tile and over many, the last one short. */
static void tiles_give_loss_and_gradient(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        if (shapes[i].rows > 1000 && test_kernels_slow())
            continue;
        struct test_op op = op_of(&shapes[i]);
        if (shapes[i].vocab == 1)
            op.gradient_count = 0; /* it is 0 */
        test_op_check(&op, i);
    }
}

/* A row whose target is -100 has a gradient of exactly 0, whatever its logits are. */
static void masked_rows_do_not_count(void **state)
{
    (void)state;
    static const struct shape shape = {8, 40, 16};
    struct test_op op = op_of(&shape);
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++) {
        float logits[8 * 40], d[8 * 40], loss, other, lse[8];
        for (uint32_t i = 0; i < 8 * 40; i++)
            logits[i] = sinf((float)i);
        float *in[] = {logits}, *out[] = {d, &loss, lse};
        assert_true(test_op_run(&op, NULL, 2, (enum weir_dtype)dtype, in, out));
        for (uint32_t i = 0; i < 40; i++)
            logits[3 * 40 + i] = NAN;
        out[1] = &other;
        assert_true(test_op_run(&op, NULL, 2, (enum weir_dtype)dtype, in, out));
        assert_true(loss == other && loss > 0);
        for (uint32_t i = 0; i < 40; i++)
            assert_true(d[3 * 40 + i] == 0 && d[7 * 40 + i] == 0 && d[2 * 40 + i] != 0);
    }
}

/* Logits of any size give finite statistics: each tile's sum is relative to the running maximum. */
static void large_logits_stay_finite(void **state)
{
    (void)state;
    static const struct shape shape = {3, 48, 16};
    struct test_op op = op_of(&shape);
    float logits[3 * 48], d[3 * 48], loss, lse[3];
    for (uint32_t r = 0; r < 3; r++)
        for (uint32_t i = 0; i < 48; i++)
            logits[r * 48 + i] = (r == 1 ? -1e4f : 1e4f) * (float)(i % 16 + i / 16);
    float *in[] = {logits}, *out[] = {d, &loss, lse};
    assert_true(test_op_run(&op, NULL, 2, WEIR_FP32, in, out));
    assert_true(lse[0] == 17e4f && lse[1] == 0 && lse[2] == 17e4f);
    assert_true(isfinite(loss));
    for (uint32_t i = 0; i < 3 * 48; i++)
        assert_true(fabsf(d[i]) <= SCALE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_give_loss_and_gradient),
        cmocka_unit_test(masked_rows_do_not_count),
        cmocka_unit_test(large_logits_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
