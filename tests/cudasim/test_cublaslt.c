/*
 * The simulated cuBLASLt sees what the real one leaves undefined, and kernels/gemm.cu under
 * failures: each CUDA call of it that fails surfaces, and nothing is left behind.
 */
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/kernels.h"
#include "tests/cudasim/runtime.h"
#include "tests/support.h"
#include "tests/support_kernels.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROWS      24
#define COLUMNS   16
#define DEPTH     256 /* the least that is split */
#define WORKSPACE (1u << 20)

/* One call of cublasLtMatmul on column-major fp32 operands, C = A B. */
struct call {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a_layout, b_layout, c_layout;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t chosen;
    const cublasLtMatmulAlgo_t *algorithm;
    float *a, *b, *c;
    char *workspace;
    size_t workspace_bytes;
    cudaStream_t stream;
};

static cublasStatus_t choose(struct call *c)
{
    int count = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(c->handle, c->product, c->a_layout, c->b_layout, c->c_layout,
                                       c->c_layout, c->preference, 1, &c->chosen, &count);
    c->algorithm = &c->chosen.algo;
    c->workspace_bytes = c->chosen.workspaceSize;
    return status != CUBLAS_STATUS_SUCCESS || count == 1 ? status : CUBLAS_STATUS_INTERNAL_ERROR;
}

static void preference_put(struct call *c, cublasLtMatmulPreferenceAttributes_t what,
                           const void *value, size_t bytes)
{
    assert_int_equal(0, cublasLtMatmulPreferenceSetAttribute(c->preference, what, value, bytes));
}

static void operands_make(struct call *c)
{
    assert_int_equal(0, cudaMalloc((void **)&c->a, ROWS * DEPTH * sizeof(float)));
    assert_int_equal(0, cudaMalloc((void **)&c->b, DEPTH * COLUMNS * sizeof(float)));
    assert_int_equal(0, cudaMalloc((void **)&c->c, ROWS * COLUMNS * sizeof(float)));
    assert_int_equal(0, cudaMalloc((void **)&c->workspace, WORKSPACE));
    struct test_random random = {.state = 7};
    for (int i = 0; i < ROWS * DEPTH; i++)
        c->a[i] = (float)test_random_unit(&random) - 0.5f;
    for (int i = 0; i < DEPTH * COLUMNS; i++)
        c->b[i] = (float)test_random_unit(&random) - 0.5f;
}

static void call_open(struct call *c)
{
    const uint64_t most = WORKSPACE;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    *c = (struct call){0};
    cudasim_share_memory(1); /* operands are written and read in place */
    assert_int_equal(0, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    assert_int_equal(0, cublasLtCreate(&c->handle));
    assert_int_equal(0, cublasLtMatmulDescCreate(&c->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    assert_int_equal(0, cublasLtMatrixLayoutCreate(&c->a_layout, CUDA_R_32F, ROWS, DEPTH, ROWS));
    assert_int_equal(0,
                     cublasLtMatrixLayoutCreate(&c->b_layout, CUDA_R_32F, DEPTH, COLUMNS, DEPTH));
    assert_int_equal(0, cublasLtMatrixLayoutCreate(&c->c_layout, CUDA_R_32F, ROWS, COLUMNS, ROWS));
    assert_int_equal(0, cublasLtMatmulPreferenceCreate(&c->preference));
    preference_put(c, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    preference_put(c, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
    operands_make(c);
    assert_int_equal(0, choose(c));
    assert_true(c->workspace_bytes > 0);
}

static void call_close(struct call *c)
{
    cublasLtMatmulPreferenceDestroy(c->preference);
    cublasLtMatrixLayoutDestroy(c->a_layout);
    cublasLtMatrixLayoutDestroy(c->b_layout);
    cublasLtMatrixLayoutDestroy(c->c_layout);
    cublasLtMatmulDescDestroy(c->product);
    cublasLtDestroy(c->handle);
    cudaFree(c->a);
    cudaFree(c->b);
    cudaFree(c->c);
    cudaFree(c->workspace);
    cudaStreamDestroy(c->stream);
}

static cublasStatus_t call_run(struct call *c)
{
    const float one = 1, zero = 0;
    cublasStatus_t status = cublasLtMatmul(
        c->handle, c->product, &one, c->a, c->a_layout, c->b, c->b_layout, &zero, c->c, c->c_layout,
        c->c, c->c_layout, c->algorithm, c->workspace, c->workspace_bytes, c->stream);
    assert_int_equal(0, cudaStreamSynchronize(c->stream));
    return status;
}

/* ---- what ends the process */

static void small_workspace(struct call *c)
{
    c->workspace_bytes--;
}
static void short_workspace(struct call *c)
{
    c->workspace += WORKSPACE - 256; /* of the size asked for, but the memory ends before */
}
static void misaligned_workspace(struct call *c)
{
    c->workspace += 64;
}
static void misaligned_operand(struct call *c)
{
    c->a += 4; /* 16 bytes: 256 are promised unless said otherwise */
}
static void no_algorithm(struct call *c)
{
    c->algorithm = NULL;
}
static void other_shape(struct call *c)
{
    cublasLtMatrixLayoutDestroy(c->a_layout);
    cublasLtMatrixLayoutDestroy(c->c_layout);
    cublasLtMatrixLayoutCreate(&c->a_layout, CUDA_R_32F, ROWS - 1, DEPTH, ROWS);
    cublasLtMatrixLayoutCreate(&c->c_layout, CUDA_R_32F, ROWS - 1, COLUMNS, ROWS);
}
static void overrun(struct call *c)
{
    c->c += 64; /* as well aligned, but the last column lies beyond */
}
static void freed_operand(struct call *c)
{
    cudaFree(c->b);
}
static void host_operand(struct call *c)
{
    static _Alignas(256) float on_the_host[DEPTH * COLUMNS];
    c->b = on_the_host;
}

static const struct fault {
    const char *name;
    void (*plant)(struct call *c);
    const char *seen;
} faults[] = {
    {"small_workspace", small_workspace, "the algorithm needs"},
    {"short_workspace", short_workspace, "the workspace: 1536 bytes"},
    {"misaligned_workspace", misaligned_workspace, "the workspace lies at"},
    {"misaligned_operand", misaligned_operand, "A lies at"},
    {"no_algorithm", no_algorithm, "no algorithm is given"},
    {"other_shape", other_shape, "another shape than 23 x 16 x 256"},
    {"overrun", overrun, "cublasLtMatmul: D: 1536 bytes"},
    {"freed_operand", freed_operand, "that was freed"},
    {"host_operand", host_operand, "neither device memory nor pinned"},
};
#define FAULT_COUNT (sizeof faults / sizeof *faults)

static int fault_child(const char *name)
{
    struct call c;
    for (size_t i = 0; i < FAULT_COUNT; i++)
        if (strcmp(faults[i].name, name) == 0) {
            call_open(&c);
            faults[i].plant(&c);
            (void)call_run(&c);
            puts("nothing was seen");
            return 0;
        }
    return 2;
}

/* This program as a child with --fault; its exit status. */
static int child_run(const char *name, char *text, size_t bytes)
{
    char program[512], command[600];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(length > 0);
    program[length] = '\0';
    snprintf(command, sizeof command, "'%s' --fault %s 2>&1", program, name);
    FILE *child = popen(command, "r");
    assert_non_null(child);
    size_t used = fread(text, 1, bytes - 1, child);
    text[used] = '\0';
    return pclose(child) >> 8;
}

/* What cuBLASLt leaves undefined ends the process with a line that says what. */
static void undefined_calls_end_the_process(void **state)
{
    (void)state;
    char text[4096];
    for (size_t i = 0; i < FAULT_COUNT; i++)
        if (child_run(faults[i].name, text, sizeof text) != 87 || !strstr(text, faults[i].seen))
            fail_msg("fault %s: \"%s\" is not in:\n%s", faults[i].name, faults[i].seen, text);
}

/* ---- what is refused, and bits */

/* What cuBLASLt refuses is refused: rows beyond the leading dimension, depths that differ, a type
 * that it has no product for. */
static void refusals_have_cublas_statuses(void **state)
{
    (void)state;
    struct call c;
    call_open(&c);
    const struct {
        cudaDataType_t type;
        uint64_t rows, columns;
        int64_t leading;
        cublasStatus_t status;
    } layouts[] = {{CUDA_R_32F, ROWS, DEPTH, ROWS - 1, CUBLAS_STATUS_INVALID_VALUE},
                   {CUDA_R_32F, ROWS, DEPTH + 1, ROWS, CUBLAS_STATUS_INVALID_VALUE},
                   {CUDA_R_16F, ROWS, DEPTH, ROWS, CUBLAS_STATUS_NOT_SUPPORTED},
                   {CUDA_R_32F, ROWS, DEPTH, ROWS + 1, CUBLAS_STATUS_SUCCESS}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        cublasLtMatrixLayoutDestroy(c.a_layout);
        cublasLtMatrixLayoutCreate(&c.a_layout, layouts[i].type, layouts[i].rows,
                                   layouts[i].columns, layouts[i].leading);
        assert_int_equal(layouts[i].status, choose(&c));
    }
    call_close(&c);
}

/* Reductions in place give other bits at times; those by way of the workspace never. */
static void reductions_in_place_change_bits(void **state)
{
    (void)state;
    static float first[ROWS * COLUMNS];
    const uint32_t all = CUBLASLT_REDUCTION_SCHEME_MASK;
    struct call c;
    call_open(&c);
    assert_int_equal(0, call_run(&c));
    memcpy(first, c.c, sizeof first);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(0, call_run(&c));
        assert_memory_equal(first, c.c, sizeof first);
    }
    preference_put(&c, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &all, sizeof all);
    assert_int_equal(0, choose(&c));
    assert_int_equal(0, call_run(&c));
    memcpy(first, c.c, sizeof first);
    assert_int_equal(0, call_run(&c));
    assert_memory_not_equal(first, c.c, sizeof first);
    call_close(&c);
}

/* ---- kernels/gemm.cu */

static const struct weir_gemm_shape shape = {ROWS, COLUMNS, DEPTH,     false,
                                             true, false,   WEIR_BF16, WEIR_FP32};

static enum weir_status product_queue(struct test_kernels *t, char *memory)
{
    uint32_t gemm;
    uint64_t scratch_bytes;
    WEIR_TRY(t->table->gemm_prepare(t->kernels, &shape, &gemm, &scratch_bytes));
    const struct weir_gemm_args args = {.gemm = gemm,
                                        .a = memory,
                                        .b = memory + (1 << 16),
                                        .c = memory + (2 << 16),
                                        .scratch = memory + (3 << 16)};
    return t->table->gemm(t->kernels, t->stream, &args);
}

/* On a device that has failed, too. */
static void failed_close(struct test_kernels *t, struct weir_kernels *more)
{
    const struct weir_device_table *device = t->device->table;
    device->stream_destroy(t->stream);
    if (more)
        t->table->close(more);
    t->table->close(t->kernels);
    (void)device->mem_free(t->device, t->memory[0]);
    device->close(t->device);
    assert_int_equal(0, cudasim_leaks());
}

/* Open, prepare, multiply, with the nth CUDA call failing; whether there were as many. */
static bool failure_run(uint64_t nth)
{
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 1));
    char *memory = test_kernels_memory(&t, 5 << 16);
    struct weir_kernels *more = NULL;
    struct test_kernels other = t;
    cudasim_fail_at(nth, cudaErrorUnknown);
    enum weir_status status = t.table->open(&more, t.device, 1, NULL, NULL);
    other.kernels = more;
    if (status == WEIR_OK)
        status = product_queue(&other, memory);
    bool reached = cudasim_fail_at(0, 0) >= nth;
    assert_int_equal(reached ? WEIR_ERR_DEVICE : WEIR_OK, status);
    failed_close(&t, more);
    return reached;
}

/* Each CUDA call that fails, cuBLASLt's among them, surfaces as DEVICE; nothing is left behind (in
 * the address build the descriptors too). */
static void failed_calls_surface(void **state)
{
    (void)state;
    uint64_t nth = 1;
    while (failure_run(nth))
        nth++;
    assert_true(nth > 15); /* the calls of gemm.cu were reached */
}

/* Operands at no multiple of 16 bytes, a missing scratch and shapes that cuBLASLt has no algorithm
 * for are refused by name. */
static void bad_products_are_refused(void **state)
{
    (void)state;
    struct test_kernels t;
    uint32_t gemm;
    uint64_t scratch_bytes;
    assert_true(test_kernels_open(&t, NULL, 1));
    char *memory = test_kernels_memory(&t, 5 << 16);
    assert_ok(t.table->gemm_prepare(t.kernels, &shape, &gemm, &scratch_bytes));
    assert_true(scratch_bytes > 0);
    struct weir_gemm_args args = {.gemm = gemm,
                                  .a = memory,
                                  .b = memory + (1 << 16) + 8,
                                  .c = memory + (2 << 16),
                                  .scratch = memory + (3 << 16)};
    assert_fails(t.table->gemm(t.kernels, t.stream, &args), WEIR_ERR_ARG, "multiple of 16 bytes");
    args.b = memory + (1 << 16);
    args.scratch = NULL;
    assert_fails(t.table->gemm(t.kernels, t.stream, &args), WEIR_ERR_ARG, "no scratch");
    struct weir_gemm_shape huge = shape;
    huge.m = 3000000000u;
    assert_fails(t.table->gemm_prepare(t.kernels, &huge, &gemm, &scratch_bytes),
                 WEIR_ERR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    test_kernels_close(&t);
}

/* A library that is older than the GPU is told by name, and is no failure of the device: the run
 * may be opened on another. */
static void an_older_library_is_told(void **state)
{
    (void)state;
    struct test_kernels t;
    uint32_t gemm;
    uint64_t scratch_bytes;
    cudasim_machine(CUDART_VERSION, 1, 12, 0);
    cudasim_cublaslt_newest(9);
    assert_true(test_kernels_open(&t, NULL, 1));
    assert_fails(t.table->gemm_prepare(t.kernels, &shape, &gemm, &scratch_bytes),
                 WEIR_ERR_UNSUPPORTED,
                 "has no kernels for this GPU; build with a toolkit that has");
    cudasim_cublaslt_newest(12);
    assert_ok(t.table->gemm_prepare(t.kernels, &shape, &gemm, &scratch_bytes));
    test_kernels_close(&t);
    cudasim_machine(CUDART_VERSION, 1, 9, 0);
}

/* The product of ones at depths around what is split: each element is k. */
static void no_depth_loses_its_end(void **state)
{
    (void)state;
    enum { MOST = 4097 };
    static const uint32_t depths[] = {1, 127, 256, 257, 300, 384, 1000, MOST};
    struct test_kernels t;
    assert_true(test_kernels_open(&t, NULL, 1));
    float *a = test_kernels_memory(&t, 3 * MOST * sizeof *a);
    float *b = test_kernels_memory(&t, 5 * MOST * sizeof *b);
    float *c = test_kernels_memory(&t, 15 * sizeof *c);
    char *scratch = test_kernels_memory(&t, 1 << 16);
    for (uint32_t i = 0; i < 5 * MOST; i++)
        b[i] = a[i % (3 * MOST)] = 1;
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
        const struct weir_gemm_shape ones = {3,    5,     depths[d], false,
                                             true, false, WEIR_FP32, WEIR_FP32};
        struct weir_gemm_args args = {.a = a, .b = b, .c = c, .scratch = scratch};
        uint64_t scratch_bytes;
        assert_ok(t.table->gemm_prepare(t.kernels, &ones, &args.gemm, &scratch_bytes));
        assert_true(scratch_bytes <= 1 << 16);
        assert_int_equal(depths[d] >= 256 && depths[d] % 128 == 0, scratch_bytes > 0);
        assert_ok(t.table->gemm(t.kernels, t.stream, &args));
        assert_ok(t.device->table->stream_sync(t.stream));
        for (int i = 0; i < 15; i++)
            assert_true(c[i] == (float)depths[d]);
    }
    test_kernels_close(&t);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--fault") == 0)
        return fault_child(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(undefined_calls_end_the_process),
        cmocka_unit_test(refusals_have_cublas_statuses),
        cmocka_unit_test(reductions_in_place_change_bits),
        cmocka_unit_test(failed_calls_surface),
        cmocka_unit_test(bad_products_are_refused),
        cmocka_unit_test(an_older_library_is_told),
        cmocka_unit_test(no_depth_loses_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
