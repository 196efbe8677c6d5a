/*
 * GEMM by cublasLtMatmul. cuBLAS is column-major: a dense row-major C = op(A) op(B) is there
 * C' = op(B)' op(A)', so operands are swapped and nothing is copied. The algorithm of a shape is
 * chosen once, by cuBLASLt's heuristic, and kept, so that its bits never change (DESIGN 7c). Splits
 * of k are reduced in fp32 from the workspace in a separate step, never in place; and only where k
 * is whole tiles, since some versions are said to lose the rest (facebookexperimental/triton#2767).
 */
#include "kernels/device.cuh"

extern "C" {
#include "core/memory.h"
}
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#define GEMM_MOST             256u
#define SPLIT_WHOLE           128u /* elements of k */
#define GEMM_ALIGN            16u  /* promised to the heuristic, checked at each call */
#define WORKSPACE_ALIGN       256u /* cublasLtMatmul asks for it */
#define WORKSPACE_MOST        (UINT64_C(8) << 20)
#define WORKSPACE_MOST_HOPPER (UINT64_C(32) << 20) /* and later: what cuBLAS itself takes there */

struct gemm {
    struct weir_gemm_shape shape;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* weir's A, B, C as cuBLAS sees them: transposed */
    cublasLtMatmulAlgo_t algorithm;
    uint64_t workspace_bytes;
};

struct weir_cuda_gemms {
    cublasLtHandle_t handle;
    uint64_t workspace_most;
    struct gemm gemms[GEMM_MOST];
    uint32_t count;
};

static struct weir_cuda_kernels *cuda_kernels(struct weir_kernels *kernels)
{
    return reinterpret_cast<struct weir_cuda_kernels *>(kernels); /* base is its first member */
}

/* The device keeps it: CUDA itself may know nothing of a failure in cuBLASLt. What it knows is told
 * with it and taken from it, or it would surface at the next launch. */
static enum weir_status check(struct weir_device *device, cublasStatus_t status, const char *what,
                              const struct weir_gemm_shape *s)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return WEIR_OK;
    const cudaError_t under = cudaGetLastError();
    if (status == CUBLAS_STATUS_ARCH_MISMATCH) /* the library's fault, not the device's */
        return weir_fail(
            WEIR_ERR_UNSUPPORTED,
            "cuBLASLt: %s of a %u x %u x %u product: %s: cuBLASLt %d.%d has no kernels "
            "for this GPU; build with a toolkit that has (Blackwell: 12.8 or newer)",
            what, s->m, s->n, s->k, cublasLtGetStatusName(status), CUBLAS_VER_MAJOR,
            CUBLAS_VER_MINOR);
    (void)weir_fail_device((int)status,
                           "cuBLASLt: %s of a %u x %u x %u product failed: %s (CUDA: %s, %s); "
                           "resume from the last checkpoint",
                           what, s->m, s->n, s->k, cublasLtGetStatusName(status),
                           cudaGetErrorName(under), cudaGetErrorString(under));
    return weir_cuda_keep(device);
}

enum weir_status weir_cuda_gemm_open(struct weir_cuda_kernels *k)
{
    WEIR_TRY(weir_alloc(&k->gemms, 1, sizeof *k->gemms, "products on the cuda device"));
    k->gemms->workspace_most = k->capability >= 9 ? WORKSPACE_MOST_HOPPER : WORKSPACE_MOST;
    cublasStatus_t made = cublasLtCreate(&k->gemms->handle);
    if (made == CUBLAS_STATUS_SUCCESS)
        return WEIR_OK;
    const cudaError_t under = cudaGetLastError();
    weir_cuda_gemm_close(k);
    return weir_fail_device((int)made,
                            "cuBLASLt: no handle: %s (CUDA: %s, %s); does its version fit the "
                            "driver, and is device memory left for it?",
                            cublasLtGetStatusName(made), cudaGetErrorName(under),
                            cudaGetErrorString(under));
}

static void gemm_free(struct gemm *g)
{
    if (g->product)
        cublasLtMatmulDescDestroy(g->product);
    if (g->a)
        cublasLtMatrixLayoutDestroy(g->a);
    if (g->b)
        cublasLtMatrixLayoutDestroy(g->b);
    if (g->c)
        cublasLtMatrixLayoutDestroy(g->c);
    *g = {};
}

void weir_cuda_gemm_close(struct weir_cuda_kernels *k)
{
    if (!k->gemms)
        return;
    for (uint32_t i = 0; i < k->gemms->count; i++)
        gemm_free(&k->gemms->gemms[i]);
    if (k->gemms->handle)
        cublasLtDestroy(k->gemms->handle);
    weir_free(k->gemms);
    k->gemms = nullptr;
}

static cudaDataType_t type_of(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A stored row-major array of rows x columns: column-major, its transpose. */
static enum weir_status layout_make(struct weir_device *device, cublasLtMatrixLayout_t *out,
                                    enum weir_dtype dtype, uint32_t rows, uint32_t columns,
                                    const struct weir_gemm_shape *s)
{
    return check(device, cublasLtMatrixLayoutCreate(out, type_of(dtype), columns, rows, columns),
                 "a layout", s);
}

static enum weir_status transpose_set(struct weir_device *device, cublasLtMatmulDesc_t product,
                                      cublasLtMatmulDescAttributes_t operand, bool transpose,
                                      const struct weir_gemm_shape *s)
{
    int32_t operation = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    return check(device,
                 cublasLtMatmulDescSetAttribute(product, operand, &operation, sizeof operation),
                 "a transpose", s);
}

/* In fp32 the product is that of fp32 operands: no TF32. */
static enum weir_status descriptors_make(struct weir_device *device, struct gemm *g)
{
    const struct weir_gemm_shape *s = &g->shape;
    WEIR_TRY(check(device, cublasLtMatmulDescCreate(&g->product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "a descriptor", s));
    WEIR_TRY(transpose_set(device, g->product, CUBLASLT_MATMUL_DESC_TRANSA, s->transpose_b, s));
    WEIR_TRY(transpose_set(device, g->product, CUBLASLT_MATMUL_DESC_TRANSB, s->transpose_a, s));
    WEIR_TRY(layout_make(device, &g->a, s->in, s->transpose_a ? s->k : s->m,
                         s->transpose_a ? s->m : s->k, s));
    WEIR_TRY(layout_make(device, &g->b, s->in, s->transpose_b ? s->n : s->k,
                         s->transpose_b ? s->k : s->n, s));
    return layout_make(device, &g->c, s->out, s->m, s->n, s);
}

static enum weir_status preference_set(struct weir_device *device,
                                       cublasLtMatmulPreference_t preference,
                                       uint64_t workspace_most, const struct weir_gemm_shape *s)
{
    const uint32_t align = GEMM_ALIGN;
    const uint32_t reduction = s->k % SPLIT_WHOLE == 0 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                       : CUBLASLT_REDUCTION_SCHEME_NONE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } values[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_most, sizeof workspace_most},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align},
    };
    for (const auto &v : values)
        WEIR_TRY(check(
            device, cublasLtMatmulPreferenceSetAttribute(preference, v.attribute, v.value, v.bytes),
            "a preference", s));
    return WEIR_OK;
}

static enum weir_status algorithm_choose(struct weir_cuda_kernels *k, struct gemm *g)
{
    const struct weir_cuda_gemms *gemms = k->gemms;
    const struct weir_gemm_shape *s = &g->shape;
    cublasLtMatmulPreference_t preference;
    WEIR_TRY(check(k->device, cublasLtMatmulPreferenceCreate(&preference), "a preference", s));
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    cublasStatus_t found = CUBLAS_STATUS_SUCCESS;
    enum weir_status status = preference_set(k->device, preference, gemms->workspace_most, s);
    if (status == WEIR_OK)
        found = cublasLtMatmulAlgoGetHeuristic(gemms->handle, g->product, g->b, g->a, g->c, g->c,
                                               preference, 1, &result, &count);
    cublasStatus_t freed = cublasLtMatmulPreferenceDestroy(preference);
    WEIR_TRY(status);
    WEIR_TRY(check(k->device, freed, "the end of a preference", s));
    if (found == CUBLAS_STATUS_SUCCESS && (count == 0 || result.state != CUBLAS_STATUS_SUCCESS))
        found = count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : result.state;
    if (found == CUBLAS_STATUS_NOT_SUPPORTED)
        return weir_fail(
            WEIR_ERR_UNSUPPORTED,
            "cuBLASLt: %s: it has no algorithm for a %u x %u x %u product (%s to %s) "
            "in %llu bytes of workspace; use another width or dtype, or on a GPU that is newer "
            "than the toolkit a newer one",
            cublasLtGetStatusName(found), s->m, s->n, s->k, s->in == WEIR_BF16 ? "bf16" : "fp32",
            s->out == WEIR_BF16 ? "bf16" : "fp32", (unsigned long long)gemms->workspace_most);
    g->algorithm = result.algo;
    g->workspace_bytes = result.workspaceSize;
    return check(k->device, found, "the choice of an algorithm", s);
}

static bool shape_equal(const struct weir_gemm_shape *a, const struct weir_gemm_shape *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->transpose_a == b->transpose_a &&
           a->transpose_b == b->transpose_b && a->accumulate == b->accumulate && a->in == b->in &&
           a->out == b->out;
}

static enum weir_status shape_valid(const struct weir_cuda_gemms *gemms,
                                    const struct weir_gemm_shape *s)
{
    if (s->m == 0 || s->n == 0 || s->k == 0 || (s->accumulate && s->out != WEIR_FP32) ||
        (s->in == WEIR_FP32 && s->out == WEIR_BF16))
        return weir_fail(WEIR_ERR_ARG,
                         "GEMM %u x %u x %u: dimensions are not 0, an accumulated result is fp32, "
                         "fp32 operands give fp32",
                         s->m, s->n, s->k);
    if (gemms->count == GEMM_MOST)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "GEMM %u x %u x %u: %u shapes are prepared, the most of one run; use "
                         "fewer sequence lengths or micro-batch sizes",
                         s->m, s->n, s->k, GEMM_MOST);
    return WEIR_OK;
}

/* Room to align what the caller gives; none for none. */
static uint64_t scratch_of(const struct gemm *g)
{
    return g->workspace_bytes > 0 ? g->workspace_bytes + WORKSPACE_ALIGN - 1 : 0;
}

enum weir_status weir_cuda_gemm_prepare(struct weir_kernels *kernels,
                                        const struct weir_gemm_shape *shape, uint32_t *gemm,
                                        uint64_t *scratch_bytes)
{
    struct weir_cuda_kernels *k = cuda_kernels(kernels);
    struct weir_cuda_gemms *gemms = k->gemms;
    uint32_t at = 0;
    while (at < gemms->count && !shape_equal(&gemms->gemms[at].shape, shape))
        at++;
    struct gemm *g = &gemms->gemms[at < GEMM_MOST ? at : 0];
    if (at == gemms->count) {
        WEIR_TRY(shape_valid(gemms, shape));
        *g = {};
        g->shape = *shape;
        enum weir_status status = descriptors_make(k->device, g);
        if (status == WEIR_OK)
            status = algorithm_choose(k, g);
        if (status != WEIR_OK) {
            gemm_free(g);
            return status;
        }
        gemms->count++;
    }
    *gemm = at;
    *scratch_bytes = scratch_of(g);
    return WEIR_OK;
}

static enum weir_status pointers_valid(const struct gemm *g, const struct weir_gemm_args *a)
{
    const struct weir_gemm_shape *s = &g->shape;
    uintptr_t all = (uintptr_t)a->a | (uintptr_t)a->b | (uintptr_t)a->c;
    if (all % GEMM_ALIGN != 0)
        return weir_fail(WEIR_ERR_ARG,
                         "GEMM %u x %u x %u: a, b, c lie at %p, %p, %p; each must be at a multiple "
                         "of %u bytes",
                         s->m, s->n, s->k, a->a, a->b, a->c, GEMM_ALIGN);
    if (g->workspace_bytes > 0 && !a->scratch)
        return weir_fail(WEIR_ERR_ARG, "GEMM %u x %u x %u: no scratch; it needs %llu bytes", s->m,
                         s->n, s->k, (unsigned long long)scratch_of(g));
    return WEIR_OK;
}

enum weir_status weir_cuda_gemm(struct weir_kernels *kernels, struct weir_stream *stream,
                                const struct weir_gemm_args *a)
{
    struct weir_cuda_gemms *gemms = cuda_kernels(kernels)->gemms;
    if (a->gemm >= gemms->count)
        return weir_fail(WEIR_ERR_ARG, "GEMM: handle %u of %u; prepare the shape first", a->gemm,
                         gemms->count);
    const struct gemm *g = &gemms->gemms[a->gemm];
    WEIR_TRY(pointers_valid(g, a));
    uintptr_t workspace =
        ((uintptr_t)a->scratch + WORKSPACE_ALIGN - 1) & ~(uintptr_t)(WORKSPACE_ALIGN - 1);
    const float alpha = 1, beta = g->shape.accumulate ? 1 : 0;
    return check(stream->device,
                 cublasLtMatmul(gemms->handle, g->product, &alpha, a->b, g->b, a->a, g->a, &beta,
                                a->c, g->c, a->c, g->c, &g->algorithm,
                                g->workspace_bytes > 0 ? (void *)workspace : nullptr,
                                g->workspace_bytes, weir_cuda_stream(stream)),
                 "the launch", &g->shape);
}
