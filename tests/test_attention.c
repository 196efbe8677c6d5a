/* Causal grouped-query attention. Against fp64: fp32 to 4e-6 of the largest value; bf16, on the
 * same rounded inputs, to 2^-7 of it. */
#include "core/tsan.h"
#include "tests/support_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCRATCH_GUARD 64u

struct shape {
    uint32_t sequences, length, heads, kv_heads, head_dim;
};

/* Lengths around the tiles (64 on the host; 32, 64 and 128 on cuda), head widths around the vector
 * of 16 and those of cuda's tensor cores (64, 80, 96, 128; narrower multiples of 8; others). */
static const struct shape shapes[] = {
    {1, 1, 1, 1, 2},    {2, 1, 4, 2, 6},    {2, 31, 2, 1, 6},   {1, 33, 4, 2, 10},
    {3, 64, 3, 3, 16},  {1, 65, 6, 2, 18},  {1, 127, 2, 2, 80}, {1, 130, 2, 1, 96},
    {1, 70, 1, 1, 128}, {2, 1, 1, 1, 64},   {1, 31, 4, 2, 64},  {1, 257, 1, 1, 64},
    {2, 33, 4, 1, 80},  {1, 129, 4, 1, 96}, {1, 33, 4, 2, 128}, {1, 129, 1, 1, 128},
    {1, 65, 2, 1, 13},  {1, 66, 2, 1, 24},  {1, 67, 2, 2, 136}, {1, 321, 1, 1, 72},
};
#define LENGTH_MOST   512
#define HEAD_DIM_MOST 136
#define SHAPE_COUNT   (sizeof shapes / sizeof *shapes)

/* The simulator under ThreadSanitizer: what takes minutes is left to the other builds. */
static bool too_slow(const struct shape *s)
{
    bool small = s->length <= 70 || (s->length <= 129 && s->heads == 1);
    return WEIR_TSAN && test_kernels_simulated() && !small;
}

static uint64_t query_count(const struct shape *s)
{
    return (uint64_t)s->sequences * s->length * s->heads * s->head_dim;
}

static uint64_t key_count(const struct shape *s)
{
    return (uint64_t)s->sequences * s->length * s->kv_heads * s->head_dim;
}

static uint64_t row_count(const struct shape *s)
{
    return (uint64_t)s->sequences * s->length * s->heads;
}

/* Scores up to a few units, so that softmax is neither flat nor one-hot. */
static float scale_of(const struct shape *s)
{
    return 3 / sqrtf((float)s->head_dim);
}

enum { Q, K, V, DOUT, IN_COUNT };

static struct weir_attention_args args_of(const struct shape *s, enum weir_dtype dtype,
                                          void *const *in)
{
    return (struct weir_attention_args){.q = in[Q],
                                        .k = in[K],
                                        .v = in[V],
                                        .sequences = s->sequences,
                                        .length = s->length,
                                        .heads = s->heads,
                                        .kv_heads = s->kv_heads,
                                        .head_dim = s->head_dim,
                                        .scale = scale_of(s),
                                        .dtype = dtype};
}

/* Scratch for three threads, the most that a check runs, with a guard behind it. */
static unsigned char *scratch_give(struct test_kernels *t, struct weir_attention_args *a)
{
    uint64_t bytes = t->table->attention_scratch_bytes(a, 3);
    unsigned char *scratch = test_kernels_memory(t, bytes + SCRATCH_GUARD);
    memset(scratch + bytes, 0x5C, SCRATCH_GUARD);
    a->scratch = scratch;
    return scratch + bytes;
}

static void guard_check(struct test_kernels *t, const unsigned char *guard)
{
    test_kernels_wait(t);
    for (uint32_t i = 0; i < SCRATCH_GUARD; i++)
        assert_int_equal(0x5C, guard[i]);
}

/* One row of queries in fp64: its weights, and lse. */
static double weights_of(const struct shape *s, const double *q, const double *k, uint32_t visible,
                         double *weights)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t key = 0; key < visible; key++) {
        double score = 0;
        for (uint32_t d = 0; d < s->head_dim; d++)
            score += q[d] * k[(size_t)key * s->kv_heads * s->head_dim + d];
        weights[key] = score * (double)scale_of(s);
        most = weights[key] > most ? weights[key] : most;
    }
    for (uint32_t key = 0; key < visible; key++)
        sum += exp(weights[key] - most);
    for (uint32_t key = 0; key < visible; key++)
        weights[key] = exp(weights[key] - most) / sum;
    return most + log(sum);
}

/* Row (token, head): out[0..head_dim) and its lse. */
static double row_attend(const struct shape *s, double *const *in, uint64_t row, double *out)
{
    static double weights[LENGTH_MOST];
    uint32_t head = (uint32_t)(row % s->heads), position = (uint32_t)(row / s->heads % s->length);
    uint64_t token = row / s->heads, first = token - position;
    uint64_t kv = (first * s->kv_heads + head / (s->heads / s->kv_heads)) * s->head_dim;
    double lse = weights_of(s, in[Q] + row * s->head_dim, in[K] + kv, position + 1, weights);
    for (uint32_t d = 0; d < s->head_dim; d++) {
        out[d] = 0;
        for (uint32_t key = 0; key <= position; key++)
            out[d] += weights[key] * in[V][kv + (size_t)key * s->kv_heads * s->head_dim + d];
    }
    return lse;
}

static void forward_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                        void *const *in, void *const *out)
{
    struct weir_attention_args a = args_of(op->shape, dtype, in);
    a.out = out[0];
    a.lse = out[1];
    const unsigned char *guard = scratch_give(t, &a);
    assert_ok(t->table->attention_forward(t->kernels, t->stream, &a));
    guard_check(t, guard);
}

static void forward_expect(const struct test_op *op, double *const *in, double *const *out)
{
    const struct shape *s = op->shape;
    for (uint64_t row = 0; row < row_count(s); row++)
        out[1][row] = row_attend(s, in, row, out[0] + row * s->head_dim);
}

static struct test_op forward_op(const struct shape *s)
{
    return (struct test_op){
        .in = {{query_count(s), true}, {key_count(s), true}, {key_count(s), true}},
        .in_count = 3,
        .out = {{query_count(s), true}, {row_count(s), false}},
        .out_count = 2,
        .shape = s,
        .run = forward_run,
        .expect = forward_expect,
        .tolerance = 2e-6};
}

/* Outputs and lse are right for lengths and widths that fill no tile. */
static void forward_is_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        struct test_op op = forward_op(&shapes[i]);
        if (!too_slow(&shapes[i]))
            test_op_check(&op, i);
    }
}

/* Forward makes what backward reads; then backward. */
static void backward_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                         void *const *in, void *const *out)
{
    const struct shape *s = op->shape;
    struct weir_attention_args a = args_of(s, dtype, in);
    a.out = test_kernels_memory(t, query_count(s) * sizeof(float));
    a.lse = test_kernels_memory(t, row_count(s) * sizeof(float));
    const unsigned char *guard = scratch_give(t, &a);
    assert_ok(t->table->attention_forward(t->kernels, t->stream, &a));
    a.dout = in[DOUT];
    a.dq = out[0];
    a.dk = out[1];
    a.dv = out[2];
    assert_ok(t->table->attention_backward(t->kernels, t->stream, &a));
    guard_check(t, guard);
}

/* What row (token, head) of the queries gives to dq, dk and dv. */
static void row_back(const struct shape *s, double *const *in, uint64_t row, double *const *out)
{
    static double weights[LENGTH_MOST];
    uint32_t head = (uint32_t)(row % s->heads), position = (uint32_t)(row / s->heads % s->length);
    uint32_t width = s->head_dim, stride = s->kv_heads * width;
    uint64_t first = row / s->heads - position;
    uint64_t kv = (first * s->kv_heads + head / (s->heads / s->kv_heads)) * width, q = row * width;
    const double *dout = in[DOUT] + q;
    double delta = 0, d_weights[LENGTH_MOST];
    weights_of(s, in[Q] + q, in[K] + kv, position + 1, weights);
    for (uint32_t key = 0; key <= position; key++) {
        d_weights[key] = 0;
        for (uint32_t d = 0; d < width; d++)
            d_weights[key] += dout[d] * in[V][kv + (size_t)key * stride + d];
        delta += weights[key] * d_weights[key];
    }
    for (uint32_t key = 0; key <= position; key++) {
        double d_score = weights[key] * (d_weights[key] - delta) * (double)scale_of(s);
        uint64_t at = kv + (size_t)key * stride;
        for (uint32_t d = 0; d < width; d++) {
            out[0][q + d] += d_score * in[K][at + d];
            out[1][at + d] += d_score * in[Q][q + d];
            out[2][at + d] += weights[key] * dout[d];
        }
    }
}

static void backward_expect(const struct test_op *op, double *const *in, double *const *out)
{
    const struct shape *s = op->shape;
    for (uint64_t row = 0; row < row_count(s); row++)
        row_back(s, in, row, out);
}

static double backward_value(const struct test_op *op, double *const *in)
{
    const struct shape *s = op->shape;
    double sum = 0, out[HEAD_DIM_MOST];
    for (uint64_t row = 0; row < row_count(s); row++) {
        row_attend(s, in, row, out);
        for (uint32_t d = 0; d < s->head_dim; d++)
            sum += out[d] * in[DOUT][row * s->head_dim + d];
    }
    return sum;
}

static struct test_op backward_op(const struct shape *s)
{
    uint64_t q = query_count(s), k = key_count(s);
    return (struct test_op){.in = {{q, true}, {k, true}, {k, true}, {q, true}},
                            .in_count = IN_COUNT,
                            .out = {{q, true}, {k, true}, {k, true}},
                            .out_count = 3,
                            .shape = s,
                            .run = backward_run};
}

/* dq, dk and dv are the gradients by differences; dk and dv are summed over the query heads that
 * share them. */
static void backward_is_the_gradient(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        if (query_count(&shapes[i]) > 1 << 14 || too_slow(&shapes[i]))
            continue; /* the others are as good; differences are slow */
        struct test_op op = backward_op(&shapes[i]);
        op.value = backward_value;
        op.gradient_count = 3;
        for (uint32_t g = 0; g < 3; g++) {
            op.gradients[g].in = g; /* Q, K, V */
            op.gradients[g].out = g;
        }
        test_op_check(&op, 20 + i);
    }
}

/* dq, dk and dv are those of fp64, of every shape. With one key dq and dk are 0 but for rounding,
 * which is no part of the largest value. */
static void backward_is_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        struct test_op op = backward_op(&shapes[i]);
        op.expect = backward_expect;
        op.tolerance = 4e-6;
        if (shapes[i].length > 1 && !too_slow(&shapes[i]))
            test_op_check(&op, 50 + i);
    }
}

static void values_draw(float *values, uint64_t count, struct test_random *random)
{
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)(2 * test_random_unit(random) - 1);
}

/* What comes later changes no bit of what came before, across tiles and inside one. */
static void later_tokens_change_nothing_before(void **state)
{
    (void)state;
    static const struct shape shape = {1, 150, 2, 1, 10};
    struct test_random random = test_random_open(77);
    struct test_op op = forward_op(&shape);
    float *in[3], *out[2], *other[2];
    test_op_make(op.in, 3, in);
    test_op_make(op.out, 2, out);
    test_op_make(op.out, 2, other);
    for (int i = 0; i < 3; i++)
        values_draw(in[i], op.in[i].count, &random);
    assert_true(test_op_run(&op, NULL, 2, WEIR_FP32, in, out));
    static const uint32_t cuts[] = {149, 65, 64, 63, 1};
    for (int c = 0; c < 5; c++) {
        for (int i = 0; i < 3; i++) {
            uint64_t kept = op.in[i].count / shape.length * cuts[c];
            values_draw(in[i] + kept, op.in[i].count - kept, &random);
        }
        assert_true(test_op_run(&op, NULL, 2, WEIR_FP32, in, other));
        assert_memory_equal(out[0], other[0], cuts[c] * 20 * sizeof(float));
        assert_memory_equal(out[1], other[1], cuts[c] * 2 * sizeof(float));
        assert_memory_not_equal(out[0] + cuts[c] * 20, other[0] + cuts[c] * 20, sizeof(float));
        memcpy(out[0], other[0], op.out[0].count * sizeof(float));
        memcpy(out[1], other[1], op.out[1].count * sizeof(float));
    }
    test_op_free(in, 3);
    test_op_free(out, 2);
    test_op_free(other, 2);
}

/* Scores of thousands choose one key instead of overflowing. */
static void large_scores_choose_one_key(void **state)
{
    (void)state;
    static const struct shape shape = {1, 100, 1, 1, 2};
    struct test_op op = forward_op(&shape);
    float q[200], k[200], v[200], out[200], lse[100];
    for (int i = 0; i < 100; i++) {
        q[2 * i] = 1000;
        k[2 * i] = i == 7 ? 50 : -40; /* the key that all from row 7 on choose */
        v[2 * i] = (float)i;
        q[2 * i + 1] = k[2 * i + 1] = v[2 * i + 1] = 0;
    }
    assert_true(test_op_run(&op, NULL, 2, WEIR_FP32, (float *[]){q, k, v}, (float *[]){out, lse}));
    for (int i = 0; i < 100; i++) {
        assert_true(isfinite(lse[i]));
        if (i >= 7)
            assert_true(out[2 * i] == 7);
    }
}

static void close_to(const float *want, const float *got, uint64_t count, double tolerance)
{
    double most = 0;
    for (uint64_t i = 0; i < count; i++)
        most = fabs((double)want[i]) > most ? fabs((double)want[i]) : most;
    for (uint64_t i = 0; i < count; i++)
        if (!(fabs((double)want[i] - (double)got[i]) <= tolerance * most))
            fail_msg("[%llu] is %.9g on cuda, %.9g on the host", (unsigned long long)i,
                     (double)got[i], (double)want[i]);
}

static void instances_compare(const struct test_op *op, uint64_t seed)
{
    struct test_random random = test_random_open(seed);
    float *in[IN_COUNT], *host[3], *cuda[3];
    test_op_make(op->in, op->in_count, in);
    test_op_make(op->out, op->out_count, host);
    test_op_make(op->out, op->out_count, cuda);
    for (uint32_t i = 0; i < op->in_count; i++)
        values_draw(in[i], op->in[i].count, &random);
    for (int dtype = 0; dtype < 2; dtype++) {
        assert_true(test_op_run(op, "generic", 2, dtype ? WEIR_BF16 : WEIR_FP32, in, host));
        assert_true(test_op_run(op, "cuda random", 1, dtype ? WEIR_BF16 : WEIR_FP32, in, cuda));
        for (uint32_t i = 0; i < op->out_count; i++)
            close_to(host[i], cuda[i], op->out[i].count, dtype ? 1.0 / 128 : 4e-6);
    }
    test_op_free(in, op->in_count);
    test_op_free(host, op->out_count);
    test_op_free(cuda, op->out_count);
}

/* Both instances give the same within their bounds. */
static void cuda_agrees_with_the_host(void **state)
{
    (void)state;
    if (!test_kernels_for_cuda())
        skip();
    static const struct shape some[] = {{2, 65, 4, 2, 64}, {1, 40, 3, 1, 128}, {1, 35, 2, 2, 26}};
    for (size_t i = 0; i < 3; i++) {
        struct test_op forward = forward_op(&some[i]), backward = backward_op(&some[i]);
        instances_compare(&forward, 80 + i);
        instances_compare(&backward, 90 + i);
    }
}

/* Arguments that no launch can be made of are refused with their numbers. */
static void cuda_refuses_bad_arguments(void **state)
{
    (void)state;
    if (!test_kernels_for_cuda())
        skip();
    static const struct shape shape = {1, 4, 4, 2, 16};
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 1));
    char *memory = test_kernels_memory(&t, 1 << 16);
    void *const in[] = {memory, memory + 4096, memory + 8192};
    const struct weir_attention_args good = args_of(&shape, WEIR_BF16, in);
    struct weir_attention_args a = good;
    a.heads = 3;
    assert_fails(t.table->attention_forward(t.kernels, t.stream, &a), WEIR_ERR_ARG,
                 "3 heads on 2 kv_heads");
    a = good;
    a.length = 0;
    assert_fails(t.table->attention_backward(t.kernels, t.stream, &a), WEIR_ERR_ARG, "of 0 tokens");
    a = good;
    a.k = memory + 4096 + 8;
    assert_fails(t.table->attention_forward(t.kernels, t.stream, &a), WEIR_ERR_ARG, "16 bytes");
    a = good;
    a.dv = memory + 2;
    assert_fails(t.table->attention_backward(t.kernels, t.stream, &a), WEIR_ERR_ARG, "16 bytes");
    a = good;
    a.sequences = 1u << 30;
    assert_fails(t.table->attention_forward(t.kernels, t.stream, &a), WEIR_ERR_ARG, "2^31");
    test_kernels_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_right),
        cmocka_unit_test(backward_is_the_gradient),
        cmocka_unit_test(backward_is_right),
        cmocka_unit_test(later_tokens_change_nothing_before),
        cmocka_unit_test(large_scores_choose_one_key),
        cmocka_unit_test(cuda_agrees_with_the_host),
        cmocka_unit_test(cuda_refuses_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
