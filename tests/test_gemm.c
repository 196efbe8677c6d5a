/* Products of the host instance: values, forms, handles, and the same bits at every run. */
#include "tests/support.h"
#include "tests/support_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST (160u * 520u) /* elements of an operand */

static const struct {
    uint32_t m, n, k;
} sizes[] = {{1, 1, 1}, {1, 17, 5}, {7, 1, 33}, {33, 65, 1}, {64, 64, 64}, {37, 129, 511}};
#define SIZE_COUNT (sizeof sizes / sizeof *sizes)

static const struct {
    enum weir_dtype in, out;
    bool accumulate;
} forms[] = {{WEIR_BF16, WEIR_BF16, false},
             {WEIR_BF16, WEIR_FP32, false},
             {WEIR_BF16, WEIR_FP32, true},
             {WEIR_FP32, WEIR_FP32, false},
             {WEIR_FP32, WEIR_FP32, true}};
#define FORM_COUNT (sizeof forms / sizeof *forms)

/* Operands as floats that bf16 holds exactly, and both stored forms of them. */
struct operands {
    float *a, *b, *c; /* device memory */
    uint16_t *a16, *b16;
    float *start; /* of an accumulated c */
};

static void operands_draw(struct test_kernels *t, struct operands *x, uint64_t seed)
{
    struct test_random random = test_random_open(seed);
    x->a = test_kernels_memory(t, MOST * 4);
    x->b = test_kernels_memory(t, MOST * 4);
    x->c = test_kernels_memory(t, MOST * 4);
    x->start = test_kernels_memory(t, MOST * 4);
    x->a16 = test_kernels_memory(t, MOST * 2);
    x->b16 = test_kernels_memory(t, MOST * 2);
    for (uint32_t i = 0; i < MOST; i++) {
        x->a16[i] = weir_bf16_from_float((float)test_random_unit(&random) - 0.5f);
        x->b16[i] = weir_bf16_from_float((float)test_random_unit(&random) - 0.5f);
        x->a[i] = weir_float_from_bf16(x->a16[i]);
        x->b[i] = weir_float_from_bf16(x->b16[i]);
        x->start[i] = (float)test_random_unit(&random) - 0.5f;
    }
}

static void gemm_run(struct test_kernels *t, const struct operands *x,
                     const struct weir_gemm_shape *shape)
{
    uint32_t gemm;
    uint64_t scratch_bytes;
    assert_ok(t->table->gemm_prepare(t->kernels, shape, &gemm, &scratch_bytes));
    struct weir_gemm_args args = {.gemm = gemm, .a = x->a, .b = x->b, .c = x->c};
    if (shape->in == WEIR_BF16) {
        args.a = x->a16;
        args.b = x->b16;
    }
    args.scratch = test_kernels_memory(t, scratch_bytes + 64);
    memset((char *)args.scratch + scratch_bytes, 0x3C, 64);
    memcpy(x->c, x->start, MOST * 4);
    assert_ok(t->table->gemm(t->kernels, t->stream, &args));
    test_kernels_wait(t);
    for (int i = 0; i < 64; i++) /* the scratch is as large as was said */
        assert_int_equal(0x3C, ((unsigned char *)args.scratch)[scratch_bytes + (uint64_t)i]);
    test_kernels_memory_free(t, args.scratch);
}

static float c_at(const struct operands *x, const struct weir_gemm_shape *s, uint64_t i)
{
    return s->out == WEIR_BF16 ? weir_float_from_bf16(((const uint16_t *)(const void *)x->c)[i])
                               : x->c[i];
}

/* Each element against fp64, within the worst error of an fp32 sum and one rounding. */
static void values_check(const struct operands *x, const struct weir_gemm_shape *s)
{
    for (uint32_t row = 0; row < s->m; row++)
        for (uint32_t column = 0; column < s->n; column++) {
            uint64_t at = (uint64_t)row * s->n + column;
            double sum = s->accumulate ? (double)x->start[at] : 0, size = fabs(sum);
            for (uint32_t i = 0; i < s->k; i++) {
                double product =
                    (double)x->a[s->transpose_a ? i * s->m + row : row * s->k + i] *
                    (double)x->b[s->transpose_b ? column * s->k + i : i * s->n + column];
                sum += product;
                size += fabs(product);
            }
            double bound = (s->k + 2) * size * 0x1p-24;
            if (s->out == WEIR_BF16)
                bound += fabs(sum) * 0x1p-8;
            if (!(fabs((double)c_at(x, s, at) - sum) <= bound))
                fail_msg("%u x %u x %u at %u, %u: %g, expected %g", s->m, s->n, s->k, row, column,
                         (double)c_at(x, s, at), sum);
        }
}

static void forms_check(const char *isa)
{
    for (size_t size = 0; size < SIZE_COUNT; size++) {
        struct test_kernels t;
        struct operands x;
        if (!test_kernels_open(&t, isa, 2))
            return;
        operands_draw(&t, &x, 41 + size);
        for (size_t form = 0; form < FORM_COUNT; form++)
            for (int transposes = 0; transposes < 4; transposes++) {
                struct weir_gemm_shape shape = {.m = sizes[size].m,
                                                .n = sizes[size].n,
                                                .k = sizes[size].k,
                                                .transpose_a = transposes & 1,
                                                .transpose_b = transposes >> 1,
                                                .accumulate = forms[form].accumulate,
                                                .in = forms[form].in,
                                                .out = forms[form].out};
                gemm_run(&t, &x, &shape);
                values_check(&x, &shape);
            }
        test_kernels_close(&t);
    }
}

/* All transposes, dtypes and accumulation, at sizes of one and odd ones, with the CPU's best. */
static void products_match_fp64(void **state)
{
    (void)state;
    forms_check(NULL);
}

/* The same where bf16 operands are widened to fp32 in the scratch. */
static void widened_products_match_fp64(void **state)
{
    (void)state;
    forms_check("generic");
}

/* A widened product is the fp32 product of the widened operands, rounded to nearest even once. */
static void widening_is_fp32_with_one_rounding(void **state)
{
    (void)state;
    struct test_kernels t;
    struct operands x;
    assert_true(test_kernels_open(&t, "generic", 2));
    operands_draw(&t, &x, 51);
    struct weir_gemm_shape shape = {37, 129, 511, false, true, false, WEIR_FP32, WEIR_FP32};
    gemm_run(&t, &x, &shape);
    static float wide[37 * 129];
    memcpy(wide, x.c, sizeof wide);
    shape.in = WEIR_BF16;
    gemm_run(&t, &x, &shape);
    assert_memory_equal(wide, x.c, sizeof wide);
    shape.out = WEIR_BF16;
    gemm_run(&t, &x, &shape);
    for (uint32_t i = 0; i < 37 * 129; i++)
        assert_int_equal(weir_bf16_from_float(wide[i]), ((uint16_t *)(void *)x.c)[i]);
    test_kernels_close(&t);
}

/* Run `shape` with all operands `shift` bytes into their pages; c is copied out. */
static void shifted_run(struct test_kernels *t, const struct weir_gemm_shape *shape,
                        const struct operands *x, uint64_t shift, void *out, uint64_t out_bytes)
{
    uint32_t gemm;
    uint64_t scratch_bytes;
    void *memory[4];
    assert_ok(t->table->gemm_prepare(t->kernels, shape, &gemm, &scratch_bytes));
    uint64_t bytes[4] = {MOST * 4, MOST * 4, out_bytes, scratch_bytes};
    for (int i = 0; i < 4; i++) {
        memory[i] = test_kernels_memory(t, bytes[i] + 8192);
        uint64_t page = ((uintptr_t)memory[i] + 4095) / 4096 * 4096 - (uintptr_t)memory[i];
        bytes[i] = page + shift * (uint64_t)(i + 1);
    }
    bool bf16 = shape->in == WEIR_BF16;
    struct weir_gemm_args args = {
        .gemm = gemm,
        .a = memcpy((char *)memory[0] + bytes[0], bf16 ? (void *)x->a16 : x->a, MOST * 2),
        .b = memcpy((char *)memory[1] + bytes[1], bf16 ? (void *)x->b16 : x->b, MOST * 2),
        .c = memcpy((char *)memory[2] + bytes[2], x->start, out_bytes),
        .scratch = (char *)memory[3] + bytes[3]};
    assert_ok(t->table->gemm(t->kernels, t->stream, &args));
    test_kernels_wait(t);
    memcpy(out, args.c, out_bytes);
    for (int i = 0; i < 4; i++)
        test_kernels_memory_free(t, memory[i]);
}

static void same_bits_check(const char *isa)
{
    static unsigned char first[70 * 130 * 4], again[70 * 130 * 4];
    struct test_kernels t;
    struct operands x;
    if (!test_kernels_open(&t, isa, 2))
        return;
    operands_draw(&t, &x, 61);
    for (size_t form = 0; form < FORM_COUNT; form++)
        for (int transposes = 0; transposes < 4; transposes++) {
            struct weir_gemm_shape shape = {70,
                                            130,
                                            300,
                                            transposes & 1,
                                            transposes >> 1,
                                            forms[form].accumulate,
                                            forms[form].in,
                                            forms[form].out};
            struct weir_gemm_shape other = {64, 64, 64, false, false, false, WEIR_FP32, WEIR_FP32};
            uint64_t bytes = 70 * 130 * (shape.out == WEIR_BF16 ? 2 : 4);
            shifted_run(&t, &shape, &x, 0, first, bytes);
            for (uint32_t run = 0; run < 6; run++) {
                shifted_run(&t, &other, &x, 0, again, 64 * 64 * 4);
                shifted_run(&t, &shape, &x, run % 3 * 64, again, bytes);
                assert_memory_equal(first, again, bytes);
            }
        }
    test_kernels_close(&t);
}

/* A prepared product gives the same bits at each run, between other products, and wherever its
 * operands and scratch lie at multiples of 64 bytes. */
static void runs_give_the_same_bits(void **state)
{
    (void)state;
    same_bits_check(NULL);
    same_bits_check("generic");
}

/* A shape has one handle; what cannot be is refused, and the 257th shape too. */
static void handles_are_checked(void **state)
{
    (void)state;
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 1));
    struct weir_gemm_shape shape = {3, 4, 5, false, false, false, WEIR_FP32, WEIR_FP32};
    uint32_t first, other, again;
    uint64_t bytes, bytes_again;
    assert_ok(t.table->gemm_prepare(t.kernels, &shape, &first, &bytes));
    shape.accumulate = true;
    assert_ok(t.table->gemm_prepare(t.kernels, &shape, &other, &bytes_again));
    assert_int_not_equal(first, other);
    shape.accumulate = false;
    assert_ok(t.table->gemm_prepare(t.kernels, &shape, &again, &bytes_again));
    assert_int_equal(first, again);
    assert_int_equal(bytes, bytes_again);

    struct weir_gemm_args args = {.gemm = 2};
    assert_fails(t.table->gemm(t.kernels, t.stream, &args), WEIR_ERR_ARG, "handle 2");
    shape.k = 0;
    assert_fails(t.table->gemm_prepare(t.kernels, &shape, &again, &bytes), WEIR_ERR_ARG, "3 x 4");
    shape = (struct weir_gemm_shape){3, 4, 5, false, false, true, WEIR_BF16, WEIR_BF16};
    assert_fails(t.table->gemm_prepare(t.kernels, &shape, &again, &bytes), WEIR_ERR_ARG, "fp32");

    shape = (struct weir_gemm_shape){1, 1, 1, false, false, false, WEIR_FP32, WEIR_FP32};
    for (shape.m = 1; shape.m <= 254; shape.m++)
        assert_ok(t.table->gemm_prepare(t.kernels, &shape, &again, &bytes));
    assert_fails(t.table->gemm_prepare(t.kernels, &shape, &again, &bytes), WEIR_ERR_UNSUPPORTED,
                 "256");
    test_kernels_close(&t);
}

/* What the instance says of itself names the instruction set; unknown ones and empty teams fail. */
static void open_names_the_instruction_set(void **state)
{
    (void)state;
    struct test_kernels t;
    assert_true(test_kernels_open(&t, "generic", 1));
    assert_true(test_contains(t.table->describe(t.kernels), "generic"));
    struct weir_kernels *more;
    assert_fails(t.table->open(&more, t.device, 1, "mmx", NULL), WEIR_ERR_UNSUPPORTED, "mmx");
    assert_fails(t.table->open(&more, t.device, 0, NULL, NULL), WEIR_ERR_ARG, "0 threads");
    const struct weir_kernels_table *table;
    assert_fails(weir_kernels_find("abacus", &table), WEIR_ERR_UNSUPPORTED, "abacus");
    test_kernels_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_fp64),
        cmocka_unit_test(widened_products_match_fp64),
        cmocka_unit_test(widening_is_fp32_with_one_rounding),
        cmocka_unit_test(runs_give_the_same_bits),
        cmocka_unit_test(handles_are_checked),
        cmocka_unit_test(open_names_the_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
