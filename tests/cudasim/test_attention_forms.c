/*
 * The kernels of attention backward for multiprocessors with little shared memory (two blocks fit
 * there) give the bits of the others.
 */
#include "kernels/kernels.h"
#include "tests/cudasim/order.h"
#include "tests/cudasim/runtime.h"
#include "tests/support.h"
#include "tests/support_kernels.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH 150u
#define HEADS  4u
#define GROUP  2u

enum { Q, K, V, OUT, DOUT, DQ, DK, DV, ARRAYS };

static uint64_t elements_of(int array, uint32_t head_dim)
{
    bool of_keys = array == K || array == V || array == DK || array == DV;
    return (uint64_t)LENGTH * (of_keys ? HEADS / GROUP : HEADS) * head_dim;
}

/* The gradients on a machine of this capability, one after the other; the caller frees them. Also
 * the most shared memory of a block. */
static uint16_t *gradients(int major, int minor, uint32_t head_dim, uint64_t *count,
                           uint64_t *shared_bytes)
{
    struct test_kernels t;
    struct test_random random = {.state = 5};
    uint16_t *at[ARRAYS];
    cudasim_machine(CUDART_VERSION, 1, major, minor);
    assert_true(test_kernels_open(&t, NULL, 1));
    for (int i = 0; i < ARRAYS; i++) {
        at[i] = test_kernels_memory(&t, elements_of(i, head_dim) * sizeof **at);
        for (uint64_t e = 0; e < elements_of(i, head_dim); e++)
            at[i][e] = weir_bf16_from_float((float)test_random_unit(&random) - 0.5f);
    }
    struct weir_attention_args a = {.q = at[Q],
                                    .k = at[K],
                                    .v = at[V],
                                    .out = at[OUT],
                                    .dout = at[DOUT],
                                    .dq = at[DQ],
                                    .dk = at[DK],
                                    .dv = at[DV],
                                    .lse = test_kernels_memory(&t, LENGTH * HEADS * sizeof(float)),
                                    .sequences = 1,
                                    .length = LENGTH,
                                    .heads = HEADS,
                                    .kv_heads = HEADS / GROUP,
                                    .head_dim = head_dim,
                                    .scale = 3 / sqrtf((float)head_dim),
                                    .dtype = WEIR_BF16};
    a.scratch = test_kernels_memory(&t, t.table->attention_scratch_bytes(&a, 1));
    assert_ok(t.table->attention_forward(t.kernels, t.stream, &a));
    test_kernels_wait(&t);
    (void)cudasim_shared_most();
    assert_ok(t.table->attention_backward(t.kernels, t.stream, &a));
    test_kernels_wait(&t);
    *shared_bytes = cudasim_shared_most();
    *count = elements_of(DQ, head_dim) + 2 * elements_of(DK, head_dim);
    uint16_t *all = malloc(*count * sizeof *all), *to = all;
    assert_non_null(all);
    for (int i = DQ; i <= DV; to += elements_of(i++, head_dim))
        memcpy(to, at[i], elements_of(i, head_dim) * sizeof *to);
    test_kernels_close(&t);
    cudasim_machine(CUDART_VERSION, 1, 9, 0);
    return all;
}

static void two_blocks_fit_and_bits_are_the_same(void **state)
{
    (void)state;
    static const uint32_t head_dims[] = {24, 64, 80, 96, 104, 128};
    for (size_t d = 0; d < sizeof head_dims / sizeof *head_dims; d++) {
        uint64_t count, wide_bytes, narrow_bytes;
        uint16_t *wide = gradients(9, 0, head_dims[d], &count, &wide_bytes);
        uint16_t *narrow = gradients(8, 9, head_dims[d], &count, &narrow_bytes);
        print_message("head_dim %u: %llu and %llu bytes a block\n", head_dims[d],
                      (unsigned long long)wide_bytes, (unsigned long long)narrow_bytes);
        assert_true(2 * (narrow_bytes + 1024) <= 100 << 10);
        assert_int_equal(head_dims[d] == 80, narrow_bytes == wide_bytes);
        assert_memory_equal(wide, narrow, count * sizeof *wide);
        uint64_t zeros = 0;
        for (uint64_t i = 0; i < count; i++)
            zeros += wide[i] == 0;
        assert_true(zeros < count / 10);
        free(wide);
        free(narrow);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_blocks_fit_and_bits_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
