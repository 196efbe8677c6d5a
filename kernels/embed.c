/*
 * Embedding rows: a gather forward; backward, per micro-batch, the rows of one token id are summed
 * in token order and added once, whatever the pieces into which the table is cut.
 */
#include "kernels/host.h"
#include "kernels/rows.h"

#define COLUMNS 256u

static void forward_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_embed_args a;
    memcpy(&a, call->args, sizeof a);
    uint64_t row_bytes = weir_act_bytes(a.dtype, a.width);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t t = 0; t < a.token_count; t++) {
        uint32_t row = (uint32_t)a.tokens[t] - a.first_row;
        if (row < a.row_count)
            memcpy((char *)a.x + t * row_bytes, (const char *)a.table + row * row_bytes, row_bytes);
    }
}

enum weir_status weir_host_embed_forward(struct weir_kernels *kernels, struct weir_stream *stream,
                                         const struct weir_embed_args *a)
{
    struct weir_range ranges[] = {
        {a->tokens, a->token_count * sizeof *a->tokens, false},
        {a->table, weir_act_bytes(a->dtype, (uint64_t)a->row_count * a->width), false},
        {a->x, weir_act_bytes(a->dtype, (uint64_t)a->token_count * a->width), true}};
    return weir_host_queue(kernels, stream, forward_run, a, sizeof *a, ranges, 3);
}

/* Tokens of this piece, stably sorted by row: begin[row_count + 1], order[token_count]. */
uint64_t weir_host_embed_scratch_bytes(const struct weir_embed_args *a)
{
    return ((uint64_t)a->row_count + 1 + a->token_count) * sizeof(uint32_t);
}

static void tokens_sort(const struct weir_embed_args *a, uint32_t *begin, uint32_t *order)
{
    memset(begin, 0, ((size_t)a->row_count + 1) * sizeof *begin);
    for (uint32_t t = 0; t < a->token_count; t++) {
        uint32_t row = (uint32_t)a->tokens[t] - a->first_row;
        if (row < a->row_count)
            begin[row + 1]++;
    }
    for (uint32_t row = 0; row < a->row_count; row++)
        begin[row + 1] += begin[row];
    for (uint32_t t = 0; t < a->token_count; t++) {
        uint32_t row = (uint32_t)a->tokens[t] - a->first_row;
        if (row < a->row_count)
            order[begin[row]++] = t;
    }
    /* Each begin has moved to the next row's: shift back. */
    memmove(begin + 1, begin, a->row_count * sizeof *begin);
    begin[0] = 0;
}

/* The gradient rows of one id; COLUMNS at a time, so that the sums stay close. */
WEIR_INLINE void row_body(const struct weir_embed_args *a, uint32_t row, const uint32_t *tokens,
                          uint32_t count)
{
    for (uint32_t first = 0; first < a->width; first += COLUMNS) {
        uint32_t columns = a->width - first < COLUMNS ? a->width - first : COLUMNS;
        float *grad = a->grad + (uint64_t)row * a->width + first, sum[COLUMNS];
        memcpy(sum, a->d + (uint64_t)tokens[0] * a->width + first, columns * sizeof *sum);
        for (uint32_t t = 1; t < count; t++) {
            const float *d = a->d + (uint64_t)tokens[t] * a->width + first;
            WEIR_SIMD
            for (uint32_t i = 0; i < columns; i++)
                sum[i] += d[i];
        }
        WEIR_SIMD
        for (uint32_t i = 0; i < columns; i++)
            grad[i] = a->fresh ? sum[i] : grad[i] + sum[i];
    }
}
WEIR_EACH_ISA(static void, row,
              (const struct weir_embed_args *a, uint32_t row, const uint32_t *tokens,
               uint32_t count),
              (a, row, tokens, count))

static void backward_run(void *argument)
{
    struct weir_host_argument *call = argument;
    const struct weir_host_kernels *k = call->kernels;
    struct weir_embed_args a;
    memcpy(&a, call->args, sizeof a);
    uint32_t *begin = a.scratch, *order = begin + a.row_count + 1;
    tokens_sort(&a, begin, order);
#pragma omp parallel for num_threads(k->thread_count) schedule(static)
    for (uint32_t r = 0; r < a.row_count; r++) {
        uint32_t count = begin[r + 1] - begin[r];
        if (count > 0)
            WEIR_BY_ISA(k->isa, row, (&a, r, order + begin[r], count));
        else if (a.fresh)
            memset(a.grad + (uint64_t)r * a.width, 0, a.width * sizeof *a.grad);
    }
}

enum weir_status weir_host_embed_backward(struct weir_kernels *kernels, struct weir_stream *stream,
                                          const struct weir_embed_args *a)
{
    struct weir_range ranges[] = {
        {a->tokens, a->token_count * sizeof *a->tokens, false},
        {a->d, (uint64_t)a->token_count * a->width * sizeof(float), false},
        {a->grad, (uint64_t)a->row_count * a->width * sizeof(float), true},
        {a->scratch, weir_host_embed_scratch_bytes(a), true}};
    return weir_host_queue(kernels, stream, backward_run, a, sizeof *a, ranges, 4);
}
