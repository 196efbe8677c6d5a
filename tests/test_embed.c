/* Embedding rows, the table in one piece and in several. */
#include "tests/support_op.h"

#include <math.h>
#include <string.h>

#define VOCAB 37u

/* The op sees rows [first_row, first_row + row_count) of the table. */
struct shape {
    uint32_t tokens, width, first_row, row_count;
    bool fresh;
};

static const struct shape shapes[] = {
    {1, 1, 0, VOCAB, true},     {33, 31, 0, VOCAB, false},   {127, 33, 0, 12, true},
    {127, 300, 12, 12, false},  {127, 33, 24, 13, true},     {500, 257, 5, 1, true},
    {4097, 8, 0, VOCAB, false}, /* some id more than once in each thousand */
    {3000, 1, 30, 7, true},     {31, 4097, 0, VOCAB, false}, {5, 1032, 0, VOCAB, true},
};
#define SHAPE_COUNT (sizeof shapes / sizeof *shapes)

/* Repeats, gaps, and one id that most tokens share. */
static int32_t token_at(uint32_t t)
{
    return t % 3 == 0 ? 5 : (int32_t)(t * t % VOCAB);
}

static struct weir_embed_args args_of(struct test_kernels *t, const struct shape *s,
                                      enum weir_dtype dtype)
{
    int32_t *tokens = test_kernels_memory(t, s->tokens * sizeof *tokens);
    for (uint32_t i = 0; i < s->tokens; i++)
        tokens[i] = token_at(i);
    return (struct weir_embed_args){.tokens = tokens,
                                    .token_count = s->tokens,
                                    .width = s->width,
                                    .first_row = s->first_row,
                                    .row_count = s->row_count,
                                    .dtype = dtype};
}

static bool within(const struct shape *s, int32_t token)
{
    return (uint32_t)token >= s->first_row && (uint32_t)token < s->first_row + s->row_count;
}

/* in: the table's rows, and what x held before. */
static void forward_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                        void *const *in, void *const *out)
{
    struct weir_embed_args a = args_of(t, op->shape, dtype);
    a.table = in[0];
    a.x = out[0];
    memcpy(out[0], in[1], op->in[1].count * (dtype == WEIR_BF16 ? 2 : 4));
    assert_ok(t->table->embed_forward(t->kernels, t->stream, &a));
}

static void forward_expect(const struct test_op *op, double *const *in, double *const *out)
{
    const struct shape *s = op->shape;
    for (uint64_t t = 0; t < s->tokens; t++) {
        int32_t token = token_at((uint32_t)t);
        const double *row = in[1] + t * s->width;
        if (within(s, token))
            row = in[0] + ((uint64_t)token - s->first_row) * s->width;
        memcpy(out[0] + t * s->width, row, s->width * sizeof *row);
    }
}

/* Rows of the piece are copied, those of other pieces are left as they were. */
static void forward_copies_rows_of_the_piece(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct shape *s = &shapes[i];
        uint64_t count = (uint64_t)s->tokens * s->width;
        uint64_t rows = (uint64_t)s->row_count * s->width;
        test_op_check(&(struct test_op){.in = {{rows, true}, {count, true}},
                                        .in_count = 2,
                                        .out = {{count, true}},
                                        .out_count = 1,
                                        .shape = s,
                                        .run = forward_run,
                                        .expect = forward_expect,
                                        .same_bits = true},
                      i);
    }
}

/* in: d, and the gradient before. */
static void backward_run(struct test_kernels *t, const struct test_op *op, enum weir_dtype dtype,
                         void *const *in, void *const *out)
{
    const struct shape *s = op->shape;
    struct weir_embed_args a = args_of(t, s, dtype);
    a.d = in[0];
    a.grad = out[0];
    a.fresh = s->fresh;
    a.scratch = test_kernels_memory(t, t->table->embed_scratch_bytes(&a));
    if (!s->fresh)
        memcpy(out[0], in[1], op->in[1].count * sizeof(float));
    assert_ok(t->table->embed_backward(t->kernels, t->stream, &a));
}

/* The definition, in fp32: per id the sum in the order of tokens, then added once. */
static void backward_expect(const struct test_op *op, double *const *in, double *const *out)
{
    const struct shape *s = op->shape;
    for (uint32_t row = 0; row < s->row_count; row++)
        for (uint32_t i = 0; i < s->width; i++) {
            uint64_t at = (uint64_t)row * s->width + i;
            float sum = 0;
            bool hit = false;
            for (uint32_t t = 0; t < s->tokens; t++) {
                if ((uint32_t)token_at(t) != s->first_row + row)
                    continue;
                float d = (float)in[0][(uint64_t)t * s->width + i];
                sum = hit ? sum + d : d;
                hit = true;
            }
            float before = s->fresh ? 0 : (float)in[1][at];
            out[0][at] = (double)(hit && !s->fresh ? before + sum : hit ? sum : before);
        }
}

/* To the bit, fresh or added; rows that no token names become 0 or stay. */
static void backward_sums_in_token_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct shape *s = &shapes[i];
        uint64_t rows = (uint64_t)s->row_count * s->width;
        test_op_check(
            &(struct test_op){.in = {{(uint64_t)s->tokens * s->width, false}, {rows, false}},
                              .in_count = 2,
                              .out = {{rows, false}},
                              .out_count = 1,
                              .shape = s,
                              .run = backward_run,
                              .expect = backward_expect,
                              .same_bits = true},
            10 + i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_copies_rows_of_the_piece),
        cmocka_unit_test(backward_sums_in_token_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
