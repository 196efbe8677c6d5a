/*
 * cuBLASLt, loaded by the first cublasLtCreate. A program that is linked with it has 200 MiB more
 * resident and starts 0.3 s later, also one that never computes on a GPU. The functions here are
 * those that kernels/gemm.cu calls, under their own names and seen by nobody else.
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF(token) #token
#define TEXT(macro)    TEXT_OF(macro)
#define LIBRARY        "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static struct {
    __typeof__(cublasLtCreate) *create;
    __typeof__(cublasLtDestroy) *destroy;
    __typeof__(cublasLtGetStatusName) *status_name;
    __typeof__(cublasLtMatmul) *matmul;
    __typeof__(cublasLtMatmulAlgoGetHeuristic) *heuristic;
    __typeof__(cublasLtMatmulDescCreate) *desc_create;
    __typeof__(cublasLtMatmulDescDestroy) *desc_destroy;
    __typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
    __typeof__(cublasLtMatmulPreferenceCreate) *preference_create;
    __typeof__(cublasLtMatmulPreferenceDestroy) *preference_destroy;
    __typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
    __typeof__(cublasLtMatrixLayoutCreate) *layout_create;
    __typeof__(cublasLtMatrixLayoutDestroy) *layout_destroy;
} lt;

static char problem[192]; /* why it could not be loaded; empty: it was */

static const struct {
    const char *name;
    void *at;
} functions[] = {
    {"cublasLtCreate", &lt.create},
    {"cublasLtDestroy", &lt.destroy},
    {"cublasLtGetStatusName", &lt.status_name},
    {"cublasLtMatmul", &lt.matmul},
    {"cublasLtMatmulAlgoGetHeuristic", &lt.heuristic},
    {"cublasLtMatmulDescCreate", &lt.desc_create},
    {"cublasLtMatmulDescDestroy", &lt.desc_destroy},
    {"cublasLtMatmulDescSetAttribute", &lt.desc_set},
    {"cublasLtMatmulPreferenceCreate", &lt.preference_create},
    {"cublasLtMatmulPreferenceDestroy", &lt.preference_destroy},
    {"cublasLtMatmulPreferenceSetAttribute", &lt.preference_set},
    {"cublasLtMatrixLayoutCreate", &lt.layout_create},
    {"cublasLtMatrixLayoutDestroy", &lt.layout_destroy},
};

/* Stays loaded: its own threads and state outlive any handle. */
static void load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    bool found = library != NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions && found; i++) {
        void *function = dlsym(library, functions[i].name);
        memcpy(functions[i].at, &function, sizeof function);
        found = function != NULL;
    }
    if (!found)
        snprintf(problem, sizeof problem, "%s; put CUDA's libraries on LD_LIBRARY_PATH", dlerror());
}

static bool loaded(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return problem[0] == '\0';
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return loaded() ? lt.create(handle) : CUBLAS_STATUS_NOT_INITIALIZED;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return loaded() ? lt.status_name(status) : problem;
}

/* pre of all others: cublasLtCreate has succeeded */

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return lt.destroy(handle);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    return lt.matmul(handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                     algorithm, workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    return lt.heuristic(handle, desc, a, b, c, d, preference, asked, results, count);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    return lt.desc_create(desc, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return lt.desc_destroy(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    return lt.desc_set(desc, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    return lt.preference_create(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return lt.preference_destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    return lt.preference_set(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    return lt.layout_create(layout, type, rows, columns, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return lt.layout_destroy(layout);
}
