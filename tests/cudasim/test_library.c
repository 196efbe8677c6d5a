/*
 * core/cuda_library.c finds cuBLASLt of the toolkit and every function that it forwards; no GPU is
 * needed for that.
 */
#include "tests/support.h"

#include <cublasLt.h>

/* The library's own table of names answers. */
static void names_come_from_the_library(void **state)
{
    (void)state;
    assert_string_equal("CUBLAS_STATUS_SUCCESS", cublasLtGetStatusName(CUBLAS_STATUS_SUCCESS));
    assert_string_equal("CUBLAS_STATUS_NOT_SUPPORTED",
                        cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED));
}

/* What needs no device works through the forwarders. */
static void descriptors_can_be_made(void **state)
{
    (void)state;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t preference;
    cublasOperation_t transpose = CUBLAS_OP_T;
    uint64_t bytes = 1024;
    assert_int_equal(0, cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    assert_int_equal(0, cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA,
                                                       &transpose, sizeof transpose));
    assert_int_equal(0, cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 16, 8, 16));
    assert_int_equal(0, cublasLtMatmulPreferenceCreate(&preference));
    assert_int_equal(
        0, cublasLtMatmulPreferenceSetAttribute(
               preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    assert_int_equal(0, cublasLtMatmulPreferenceDestroy(preference));
    assert_int_equal(0, cublasLtMatrixLayoutDestroy(layout));
    assert_int_equal(0, cublasLtMatmulDescDestroy(desc));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_come_from_the_library),
        cmocka_unit_test(descriptors_can_be_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
