/*
 * The simulated cuBLASLt: matrix products of fp32 and bf16 operands, accumulated in fp32 in one
 * order, queued as an operation of the stream. What cuBLASLt leaves undefined (operands less
 * aligned than promised, a workspace that is too small or misaligned, a product without a chosen
 * algorithm) ends the process; what it refuses is refused with its status.
 *
 * Products with k of 256 and more are split in two, the second half by way of the workspace, if the
 * preference allows; what is left in the workspace is poison. If it allows reductions in place,
 * whose order nobody promises, the cut is in turns at one place and another. A second half that is
 * no multiple of 128 loses what is beyond, as is reported of some versions.
 */
#include "tests/cudasim/runtime_internal.h"

#include <cstring>
#include <cublasLt.h>

using cudasim::runtime::violation;

#ifdef CUDASIM_TSAN
extern "C" {
void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes);
}
#endif

struct cublasLtContext {
    int in_place_count; /* products whose halves were added in no promised order */
};

namespace
{

constexpr uint32_t algorithm_mark = 0x77656972;
constexpr uint64_t split_least = 256, split_whole = 128;
constexpr size_t workspace_align = 256;
constexpr unsigned char poison = 0xCB;

int newest_major = 99; /* compute capability that it has kernels for */

struct Product {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose[2]; /* of A, B: cublasOperation_t */
};

struct Layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t leading;
};

enum Operand { A, B, C, D, operands };

struct Preference {
    uint64_t workspace_bytes = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t align[operands] = {256, 256, 256, 256};
};

/* What a cublasLtMatmulAlgo_t holds. */
struct Algorithm {
    uint32_t mark;
    uint32_t reduction; /* 0: not split */
    uint64_t m, n, k;
    uint64_t workspace_bytes;
    uint32_t align[operands];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

struct Matrix {
    Layout layout;
    const void *at;
    bool transposed;
};

Product *product_of(cublasLtMatmulDesc_t handle)
{
    return reinterpret_cast<Product *>(handle);
}
Layout *layout_of(cublasLtMatrixLayout_t handle)
{
    return reinterpret_cast<Layout *>(handle);
}
Preference *preference_of(cublasLtMatmulPreference_t handle)
{
    return reinterpret_cast<Preference *>(handle);
}

size_t element_bytes(cudaDataType_t type)
{
    return type == CUDA_R_16BF ? 2 : 4;
}

uint64_t layout_bytes(const Layout &l)
{
    return ((l.columns - 1) * static_cast<uint64_t>(l.leading) + l.rows) * element_bytes(l.type);
}

float element(const Matrix &x, uint64_t row, uint64_t column)
{
    uint64_t at = x.transposed ? row * static_cast<uint64_t>(x.layout.leading) + column
                               : column * static_cast<uint64_t>(x.layout.leading) + row;
    if (x.layout.type == CUDA_R_32F)
        return static_cast<const float *>(x.at)[at];
    uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(x.at)[at]) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t round_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* ---- what is refused, as cuBLASLt's table of types has it */

bool types_known(const Product &p, const Layout &a, const Layout &b, const Layout &c)
{
    bool operands_known = a.type == b.type && (a.type == CUDA_R_16BF || a.type == CUDA_R_32F);
    bool result_known = c.type == CUDA_R_32F || (c.type == CUDA_R_16BF && a.type == CUDA_R_16BF);
    return p.compute == CUBLAS_COMPUTE_32F && p.scale == CUDA_R_32F && operands_known &&
           result_known;
}

bool operation_known(int32_t operation)
{
    return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T;
}

bool leading_fits(const Layout &l)
{
    return l.rows > 0 && l.columns > 0 && l.leading > 0 &&
           static_cast<uint64_t>(l.leading) >= l.rows;
}

struct Shape {
    uint64_t m, n, k;
};

cublasStatus_t shape_make(Shape *out, const Product &p, const Layout &a, const Layout &b,
                          const Layout &c, const Layout &d)
{
    if (!operation_known(p.transpose[0]) || !operation_known(p.transpose[1]))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const Layout *l : {&a, &b, &c, &d})
        if (!leading_fits(*l))
            return CUBLAS_STATUS_INVALID_VALUE;
    bool ta = p.transpose[0] == CUBLAS_OP_T, tb = p.transpose[1] == CUBLAS_OP_T;
    *out = {ta ? a.columns : a.rows, tb ? b.rows : b.columns, ta ? a.rows : a.columns};
    if ((tb ? b.columns : b.rows) != out->k || c.rows != out->m || c.columns != out->n ||
        d.rows != out->m || d.columns != out->n || c.type != d.type)
        return CUBLAS_STATUS_INVALID_VALUE;
    bool small = out->m <= INT32_MAX && out->n <= INT32_MAX && out->k <= INT32_MAX;
    return small && types_known(p, a, b, c) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- one queued product */

struct Job {
    cublasLtContext *context;
    Shape shape;
    Matrix a, b, c;
    Layout layout; /* of D */
    void *d;
    float alpha, beta;
    uint32_t reduction;
    void *workspace;
    size_t workspace_bytes;
};

void declare([[maybe_unused]] const void *bytes, [[maybe_unused]] size_t count,
             [[maybe_unused]] bool written)
{
#ifdef CUDASIM_TSAN
    if (written)
        __tsan_write_range(const_cast<void *>(bytes), count);
    else
        __tsan_read_range(const_cast<void *>(bytes), count);
#endif
}

void use(const void *bytes, size_t count, bool written, const char *what)
{
    cudasim_check_range(bytes, count, 1, what);
    declare(bytes, count, written);
}

/* sum[column][row] over [first, last) of k, in order. */
void half_add(const Job &job, uint64_t first, uint64_t last, float *sum)
{
    const uint64_t m = job.shape.m;
    std::vector<float> a(m * (last - first));
    for (uint64_t k = first; k < last; k++)
        for (uint64_t row = 0; row < m; row++)
            a[(k - first) * m + row] = element(job.a, row, k);
    memset(sum, 0, m * job.shape.n * sizeof *sum);
    for (uint64_t n = 0; n < job.shape.n; n++)
        for (uint64_t k = first; k < last; k++) {
            const float factor = element(job.b, k, n), *from = &a[(k - first) * m];
            for (uint64_t row = 0; row < m; row++)
                sum[n * m + row] += from[row] * factor;
        }
}

void result_store(const Job &job, const float *sum)
{
    for (uint64_t n = 0; n < job.shape.n; n++)
        for (uint64_t row = 0; row < job.shape.m; row++) {
            float value = job.alpha * sum[n * job.shape.m + row];
            if (job.beta != 0)
                value += job.beta * element(job.c, row, n);
            uint64_t at = n * static_cast<uint64_t>(job.layout.leading) + row;
            if (job.layout.type == CUDA_R_16BF)
                static_cast<uint16_t *>(job.d)[at] = round_to_bf16(value);
            else
                static_cast<float *>(job.d)[at] = value;
        }
}

void job_run(void *context)
{
    const Job &job = *static_cast<Job *>(context);
    use(job.a.at, layout_bytes(job.a.layout), false, "cublasLtMatmul: A");
    use(job.b.at, layout_bytes(job.b.layout), false, "cublasLtMatmul: B");
    if (job.beta != 0)
        use(job.c.at, layout_bytes(job.c.layout), false, "cublasLtMatmul: C");
    use(job.d, layout_bytes(job.layout), true, "cublasLtMatmul: D");
    const uint64_t count = job.shape.m * job.shape.n, k = job.shape.k;
    std::vector<float> sum(count);
    if (job.reduction == CUBLASLT_REDUCTION_SCHEME_NONE) {
        half_add(job, 0, k, sum.data());
        result_store(job, sum.data());
        return;
    }
    use(job.workspace, job.workspace_bytes, true, "cublasLtMatmul: the workspace");
    auto *half = static_cast<float *>(job.workspace);
    bool turned = job.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE &&
                  job.context->in_place_count++ % 2 == 1;
    uint64_t cut = turned ? k / 3 : k / 2;
    half_add(job, 0, cut, sum.data());
    half_add(job, cut, k - k % split_whole, half);
    for (uint64_t i = 0; i < count; i++)
        sum[i] += half[i];
    result_store(job, sum.data());
    memset(job.workspace, poison, job.workspace_bytes);
}

void job_drop(void *context)
{
    delete static_cast<Job *>(context);
}

void align_check(const void *at, uint32_t align, const char *what)
{
    if (reinterpret_cast<uintptr_t>(at) % align != 0)
        violation("cublasLtMatmul: %s lies at %p; the algorithm was chosen for multiples of %u "
                  "bytes",
                  what, at, align);
}

void algorithm_check(const Algorithm &algorithm, const Shape &shape, const void *const *at,
                     const void *workspace, size_t workspace_bytes)
{
    const char *const names[] = {"A", "B", "C", "D"};
    if (algorithm.mark != algorithm_mark || algorithm.m != shape.m || algorithm.n != shape.n ||
        algorithm.k != shape.k)
        violation("cublasLtMatmul: the algorithm was chosen for no or another shape than %llu x "
                  "%llu x %llu",
                  (unsigned long long)shape.m, (unsigned long long)shape.n,
                  (unsigned long long)shape.k);
    for (int i = 0; i < operands; i++)
        align_check(at[i], algorithm.align[i], names[i]);
    if (workspace_bytes < algorithm.workspace_bytes)
        violation("cublasLtMatmul: a workspace of %zu bytes; the algorithm needs %llu",
                  workspace_bytes, (unsigned long long)algorithm.workspace_bytes);
    if (algorithm.workspace_bytes > 0)
        align_check(workspace, workspace_align, "the workspace");
}

/* An injected failure, or a fault of the device. */
cublasStatus_t begin(const char *name)
{
    return cudasim_call(name) == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INTERNAL_ERROR;
}

template <class Object, class Handle>
cublasStatus_t make(const char *name, Object object, Handle *out)
{
    if (begin(name) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *out = reinterpret_cast<Handle>(new Object(object));
    return CUBLAS_STATUS_SUCCESS;
}

/* What frees does so, whatever it returns. */
template <class Object> cublasStatus_t destroy(const char *name, Object *object)
{
    delete object;
    return begin(name);
}

template <class T> cublasStatus_t put(T *to, const void *value, size_t bytes)
{
    if (bytes != sizeof(T))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, sizeof *to);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

void cudasim_cublaslt_newest(int major)
{
    newest_major = major;
}

#define API extern "C" __attribute__((visibility("default")))

API const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    default:
        return "an unknown status";
    }
}

API cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    return make("cublasLtCreate", cublasLtContext{}, out);
}
API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy("cublasLtDestroy", handle);
}

API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                            cudaDataType_t scale)
{
    return make("cublasLtMatmulDescCreate", Product{compute, scale, {CUBLAS_OP_N, CUBLAS_OP_N}},
                out);
}
API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
    return destroy("cublasLtMatmulDescDestroy", product_of(product));
}
API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                                  cublasLtMatmulDescAttributes_t attribute,
                                                  const void *value, size_t bytes)
{
    if (begin("cublasLtMatmulDescSetAttribute") != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_INTERNAL_ERROR;
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA)
        return put(&product_of(product)->transpose[0], value, bytes);
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSB)
        return put(&product_of(product)->transpose[1], value, bytes);
    return CUBLAS_STATUS_INVALID_VALUE;
}

API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                              uint64_t rows, uint64_t columns, int64_t leading)
{
    return make("cublasLtMatrixLayoutCreate", Layout{type, rows, columns, leading}, out);
}
API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy("cublasLtMatrixLayoutDestroy", layout_of(layout));
}

API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return make("cublasLtMatmulPreferenceCreate", Preference{}, out);
}
API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy("cublasLtMatmulPreferenceDestroy", preference_of(preference));
}
API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void *value, size_t bytes)
{
    if (begin("cublasLtMatmulPreferenceSetAttribute") != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_INTERNAL_ERROR;
    Preference *p = preference_of(preference);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return put(&p->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return put(&p->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return put(&p->align[A], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return put(&p->align[B], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return put(&p->align[C], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return put(&p->align[D], value, bytes);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t *results,
    int *count)
{
    *count = 0;
    if (begin("cublasLtMatmulAlgoGetHeuristic") != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_INTERNAL_ERROR;
    Shape shape;
    cublasStatus_t status = shape_make(&shape, *product_of(product), *layout_of(a), *layout_of(b),
                                       *layout_of(c), *layout_of(d));
    if (cudasim::runtime::state.major > newest_major)
        return CUBLAS_STATUS_ARCH_MISMATCH;
    if (status != CUBLAS_STATUS_SUCCESS || wanted < 1)
        return wanted < 1 ? CUBLAS_STATUS_INVALID_VALUE : status;
    const Preference &p = *preference_of(preference);
    Algorithm algorithm = {
        algorithm_mark, CUBLASLT_REDUCTION_SCHEME_NONE, shape.m, shape.n, shape.k, 0, {}};
    memcpy(algorithm.align, p.align, sizeof p.align);
    const uint64_t half_bytes = shape.m * shape.n * sizeof(float);
    if (shape.k >= split_least && half_bytes <= p.workspace_bytes && p.reductions != 0) {
        algorithm.reduction = p.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE
                                  ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                                  : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        algorithm.workspace_bytes = half_bytes;
    }
    results[0] = {};
    memcpy(&results[0].algo, &algorithm, sizeof algorithm);
    results[0].workspaceSize = algorithm.workspace_bytes;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                  const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                                  const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                                  const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                  cublasLtMatrixLayout_t d_layout,
                                  const cublasLtMatmulAlgo_t *chosen, void *workspace,
                                  size_t workspace_bytes, cudaStream_t stream)
{
    const Product &p = *product_of(product);
    Shape shape;
    cublasStatus_t status = shape_make(&shape, p, *layout_of(a_layout), *layout_of(b_layout),
                                       *layout_of(c_layout), *layout_of(d_layout));
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!chosen)
        violation(
            "cublasLtMatmul: no algorithm is given; a heuristic at each call may change bits");
    Algorithm algorithm;
    memcpy(&algorithm, chosen, sizeof algorithm);
    const void *const at[] = {a, b, c, d};
    algorithm_check(algorithm, shape, at, workspace, workspace_bytes);
    auto *job = new Job{handle,
                        shape,
                        {*layout_of(a_layout), a, p.transpose[0] == CUBLAS_OP_T},
                        {*layout_of(b_layout), b, p.transpose[1] == CUBLAS_OP_T},
                        {*layout_of(c_layout), c, false},
                        *layout_of(d_layout),
                        d,
                        *static_cast<const float *>(alpha),
                        *static_cast<const float *>(beta),
                        algorithm.reduction,
                        workspace,
                        algorithm.workspace_bytes};
    return cudasim_launch(stream, "cublasLtMatmul", job_run, job, job_drop) == 0
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
