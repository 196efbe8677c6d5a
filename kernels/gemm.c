/*
 * GEMM by oneDNN's matmul: one primitive a shape, made once with the run's thread count (its bits
 * depend on both), run with the caller's scratch. Where oneDNN has no bf16 product (before
 * AVX-512), operands are widened to fp32 in the scratch and the result is rounded from it.
 *
 * Where A has many rows, a plain B is first packed into the form that oneDNN likes best: that pays
 * for the packing and more. A transposed B is not: there packing costs what it saves.
 */
#include "core/memory.h"
#include "kernels/host.h"
#include "kernels/window.h"

#include <dnnl.h>
#include <omp.h>
#include <string.h>

struct weir_gemm {
    struct weir_gemm_shape shape;
    bool widened;
    dnnl_primitive_t primitive, pack; /* pack NULL: b is used as it is */
    dnnl_memory_desc_t a, b, c;       /* of the product as it is made: fp32 if widened */
    dnnl_memory_t a_memory, b_memory, packed_memory, c_memory, scratch_memory,
        pack_scratch_memory;                          /* handles are set at each run */
    uint64_t primitive_scratch_bytes;                 /* of the product or of packing */
    uint64_t a_bytes, b_bytes, c_bytes, packed_bytes; /* copies in the scratch, padded */
    uint64_t scratch_bytes;
};

static enum weir_status check(dnnl_status_t status, const char *what,
                              const struct weir_gemm_shape *s)
{
    if (status == dnnl_success)
        return WEIR_OK;
    return weir_fail_device((int)status, "oneDNN: %s of a %u x %u x %u product failed", what, s->m,
                            s->n, s->k);
}

/* What differs between oneDNN 2 and 3: descriptors are values or handles, and a primitive
 * descriptor is made in two calls or one. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t const_desc;
static const_desc desc_of(const dnnl_memory_desc_t *desc)
{
    return *desc;
}
static void desc_free(dnnl_memory_desc_t *desc)
{
    if (*desc)
        dnnl_memory_desc_destroy(*desc);
}
static dnnl_status_t desc_make(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                               dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}
static dnnl_status_t desc_any(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                              dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_tag(out, 2, dims, type, dnnl_format_tag_any);
}
static dnnl_status_t matmul_make(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                                 const struct weir_gemm *g, const dnnl_memory_desc_t *b,
                                 dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, g->a, *b, NULL, g->c, attr);
}
static dnnl_status_t sum_append(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
#else
typedef const dnnl_memory_desc_t *const_desc;
static const_desc desc_of(const dnnl_memory_desc_t *desc)
{
    return desc;
}
static void desc_free(dnnl_memory_desc_t *desc)
{
    (void)desc;
}
static dnnl_status_t desc_make(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                               dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}
static dnnl_status_t desc_any(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                              dnnl_data_type_t type)
{
    return dnnl_memory_desc_init_by_tag(out, 2, dims, type, dnnl_format_tag_any);
}
static dnnl_status_t matmul_make(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                                 const struct weir_gemm *g, const dnnl_memory_desc_t *b,
                                 dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, &g->a, b, NULL, &g->c);
    return status != dnnl_success ? status
                                  : dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL);
}
static dnnl_status_t sum_append(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
#endif

/* From AVX-512 on, oneDNN multiplies bf16 (by instructions of its own or by emulation). */
static bool isa_has_bf16(void)
{
#if defined(__x86_64__)
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
#else
    return false;
#endif
}

enum weir_status weir_host_gemm_open(struct weir_host_kernels *k)
{
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_status_t status = dnnl_engine_create(&engine, dnnl_cpu, 0);
    if (status != dnnl_success)
        return weir_fail_device((int)status, "oneDNN: no CPU engine; is libdnnl built for CPUs?");
    k->engine = engine;
    status = dnnl_stream_create(&stream, engine, dnnl_stream_in_order);
    if (status != dnnl_success)
        return weir_fail_device((int)status, "oneDNN: no stream on the CPU engine");
    k->stream = stream;
    k->bf16_gemm = k->isa == WEIR_ISA_AVX512 && isa_has_bf16();
    return WEIR_OK;
}

static void gemm_free(struct weir_gemm *g)
{
    dnnl_memory_t memories[] = {g->a_memory, g->b_memory,       g->packed_memory,
                                g->c_memory, g->scratch_memory, g->pack_scratch_memory};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i])
            dnnl_memory_destroy(memories[i]);
    if (g->pack)
        dnnl_primitive_destroy(g->pack);
    if (g->primitive)
        dnnl_primitive_destroy(g->primitive);
    desc_free(&g->a);
    desc_free(&g->b);
    desc_free(&g->c);
    weir_free(g);
}

void weir_host_gemm_close(struct weir_host_kernels *k)
{
    for (uint32_t i = 0; i < k->gemm_count; i++)
        gemm_free(k->gemms[i]);
    if (k->stream)
        dnnl_stream_destroy(k->stream);
    if (k->engine)
        dnnl_engine_destroy(k->engine);
}

static enum weir_status descs_make(struct weir_gemm *g)
{
    const struct weir_gemm_shape *s = &g->shape;
    dnnl_data_type_t in = s->in == WEIR_BF16 && !g->widened ? dnnl_bf16 : dnnl_f32;
    dnnl_data_type_t out = s->out == WEIR_BF16 && !g->widened ? dnnl_bf16 : dnnl_f32;
    dnnl_dims_t a = {s->m, s->k}, b = {s->k, s->n}, c = {s->m, s->n};
    dnnl_dims_t a_strides = {s->transpose_a ? 1 : s->k, s->transpose_a ? s->m : 1};
    dnnl_dims_t b_strides = {s->transpose_b ? 1 : s->n, s->transpose_b ? s->k : 1};
    dnnl_dims_t c_strides = {s->n, 1};
    WEIR_TRY(check(desc_make(&g->a, a, in, a_strides), "descriptor", s));
    WEIR_TRY(check(desc_make(&g->b, b, in, b_strides), "descriptor", s));
    return check(desc_make(&g->c, c, out, c_strides), "descriptor", s);
}

static enum weir_status attr_make(const struct weir_gemm_shape *s, dnnl_primitive_attr_t attr,
                                  dnnl_post_ops_t ops)
{
    WEIR_TRY(check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
                   "scratchpad", s));
    if (s->accumulate) {
        WEIR_TRY(check(sum_append(ops), "accumulation", s));
        WEIR_TRY(check(dnnl_primitive_attr_set_post_ops(attr, ops), "accumulation", s));
    }
    return WEIR_OK;
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Which shapes are packed is part of the numerics: a function of the shape alone. */
#define PACK_ROWS_LEAST 256u

static enum weir_status memory_make(const struct weir_gemm *g, dnnl_memory_t *out, const_desc desc,
                                    dnnl_engine_t engine)
{
    return check(dnnl_memory_create(out, desc, engine, NULL), "memory", &g->shape);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What turns a plain b into `packed`. */
static enum weir_status pack_make(struct weir_gemm *g, const_desc packed, dnnl_engine_t engine,
                                  dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd;
    WEIR_TRY(
        check(dnnl_reorder_primitive_desc_create(&pd, desc_of(&g->b), engine, packed, engine, attr),
              "packing", &g->shape));
    enum weir_status status = check(dnnl_primitive_create(&g->pack, pd), "packing", &g->shape);
    if (status == WEIR_OK) {
        const_desc scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        g->packed_bytes = padded(dnnl_memory_desc_get_size(packed));
        g->primitive_scratch_bytes =
            larger(g->primitive_scratch_bytes, dnnl_memory_desc_get_size(scratch));
        status = memory_make(g, &g->pack_scratch_memory, scratch, engine);
    }
    dnnl_primitive_desc_destroy(pd);
    return status == WEIR_OK ? memory_make(g, &g->packed_memory, packed, engine) : status;
}

static enum weir_status memories_make(struct weir_gemm *g, dnnl_primitive_desc_t pd,
                                      dnnl_engine_t engine, dnnl_primitive_attr_t pack_attr)
{
    const_desc scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    const_desc b = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    g->primitive_scratch_bytes = dnnl_memory_desc_get_size(scratch);
    WEIR_TRY(memory_make(g, &g->a_memory, desc_of(&g->a), engine));
    WEIR_TRY(memory_make(g, &g->b_memory, desc_of(&g->b), engine));
    WEIR_TRY(memory_make(g, &g->c_memory, desc_of(&g->c), engine));
    WEIR_TRY(memory_make(g, &g->scratch_memory, scratch, engine));
    return dnnl_memory_desc_equal(b, desc_of(&g->b)) ? WEIR_OK : pack_make(g, b, engine, pack_attr);
}

static enum weir_status primitive_make(struct weir_gemm *g, dnnl_engine_t engine,
                                       dnnl_primitive_attr_t attr, dnnl_primitive_attr_t pack_attr)
{
    const struct weir_gemm_shape *s = &g->shape;
    dnnl_dims_t dims = {s->k, s->n};
    dnnl_data_type_t in = s->in == WEIR_BF16 && !g->widened ? dnnl_bf16 : dnnl_f32;
    bool pack = !s->transpose_b && s->m >= PACK_ROWS_LEAST;
    dnnl_memory_desc_t any = g->b;
    if (pack)
        WEIR_TRY(check(desc_any(&any, dims, in), "descriptor", s));
    dnnl_primitive_desc_t pd;
    enum weir_status status =
        check(matmul_make(&pd, engine, g, &any, attr), "primitive descriptor", s);
    if (pack)
        desc_free(&any);
    WEIR_TRY(status);
    status = check(dnnl_primitive_create(&g->primitive, pd), "primitive", s);
    if (status == WEIR_OK)
        status = memories_make(g, pd, engine, pack_attr);
    dnnl_primitive_desc_destroy(pd);
    return status;
}

static enum weir_status gemm_make(struct weir_host_kernels *k, struct weir_gemm *g)
{
    dnnl_primitive_attr_t attr = NULL, pack_attr = NULL;
    dnnl_post_ops_t ops = NULL;
    WEIR_TRY(descs_make(g));
    WEIR_TRY(check(dnnl_primitive_attr_create(&attr), "attributes", &g->shape));
    enum weir_status status = check(dnnl_post_ops_create(&ops), "post-ops", &g->shape);
    if (status == WEIR_OK)
        status = attr_make(&g->shape, attr, ops);
    if (status == WEIR_OK)
        status = check(dnnl_primitive_attr_create(&pack_attr), "attributes", &g->shape);
    if (status == WEIR_OK)
        status =
            check(dnnl_primitive_attr_set_scratchpad_mode(pack_attr, dnnl_scratchpad_mode_user),
                  "scratchpad", &g->shape);
    if (status == WEIR_OK) {
        /* A primitive splits its work for the team that it is made with. */
        int before = omp_get_max_threads();
        omp_set_num_threads(k->thread_count);
        status = primitive_make(g, k->engine, attr, pack_attr);
        omp_set_num_threads(before);
    }
    if (ops)
        dnnl_post_ops_destroy(ops);
    if (pack_attr)
        dnnl_primitive_attr_destroy(pack_attr);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static void scratch_count(struct weir_gemm *g)
{
    const struct weir_gemm_shape *s = &g->shape;
    g->scratch_bytes = padded(g->primitive_scratch_bytes) + g->packed_bytes;
    if (g->widened) {
        g->a_bytes = padded(4ull * s->m * s->k);
        g->b_bytes = padded(4ull * s->k * s->n);
        g->c_bytes = s->out == WEIR_BF16 ? padded(4ull * s->m * s->n) : 0;
        g->scratch_bytes += g->a_bytes + g->b_bytes + g->c_bytes;
    }
}

static bool shape_equal(const struct weir_gemm_shape *a, const struct weir_gemm_shape *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->transpose_a == b->transpose_a &&
           a->transpose_b == b->transpose_b && a->accumulate == b->accumulate && a->in == b->in &&
           a->out == b->out;
}

static enum weir_status shape_valid(const struct weir_host_kernels *k,
                                    const struct weir_gemm_shape *s)
{
    if (s->m == 0 || s->n == 0 || s->k == 0 || (s->accumulate && s->out != WEIR_FP32) ||
        (s->in == WEIR_FP32 && s->out == WEIR_BF16))
        return weir_fail(WEIR_ERR_ARG,
                         "GEMM %u x %u x %u: dimensions are not 0, an accumulated "
                         "result is fp32, fp32 operands give fp32",
                         s->m, s->n, s->k);
    if (k->gemm_count == WEIR_GEMM_MOST)
        return weir_fail(
            WEIR_ERR_UNSUPPORTED,
            "GEMM %u x %u x %u: %d shapes are prepared, the most of one run; use fewer "
            "sequence lengths or micro-batch sizes",
            s->m, s->n, s->k, WEIR_GEMM_MOST);
    return WEIR_OK;
}

/* Said once a run (DESIGN 6b). */
static void say_widened(struct weir_host_kernels *k)
{
    if (!k->widening_said && k->log)
        weir_log(k->log, WEIR_LOG_WARNING,
                 "GEMM: no bf16 product without AVX-512; operands are widened to fp32, which is "
                 "slower and needs scratch; use a CPU with AVX-512 or fp32 training");
    k->widening_said = true;
}

enum weir_status weir_host_gemm_prepare(struct weir_kernels *kernels,
                                        const struct weir_gemm_shape *shape, uint32_t *gemm,
                                        uint64_t *scratch_bytes)
{
    struct weir_host_kernels *k = (struct weir_host_kernels *)kernels;
    for (uint32_t i = 0; i < k->gemm_count; i++)
        if (shape_equal(&k->gemms[i]->shape, shape)) {
            *gemm = i;
            *scratch_bytes = k->gemms[i]->scratch_bytes;
            return WEIR_OK;
        }
    WEIR_TRY(shape_valid(k, shape));
    struct weir_gemm *g;
    WEIR_TRY(weir_alloc(&g, 1, sizeof *g, "GEMM"));
    g->shape = *shape;
    g->widened = shape->in == WEIR_BF16 && !k->bf16_gemm;
    if (g->widened)
        say_widened(k);
    enum weir_status status = gemm_make(k, g);
    if (status != WEIR_OK) {
        gemm_free(g);
        return status;
    }
    scratch_count(g);
    *gemm = k->gemm_count;
    *scratch_bytes = g->scratch_bytes;
    k->gemms[k->gemm_count++] = g;
    return WEIR_OK;
}

static dnnl_status_t primitive_run(const struct weir_host_kernels *k, dnnl_primitive_t primitive,
                                   const dnnl_exec_arg_t *args, void *const *bytes, int count)
{
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < count && status == dnnl_success; i++)
        status = dnnl_memory_set_data_handle(args[i].memory, bytes[i]);
    omp_set_num_threads(k->thread_count); /* some primitives ask again when they run */
    if (status == dnnl_success)
        status = dnnl_primitive_execute(primitive, k->stream, count, args);
    return status == dnnl_success ? dnnl_stream_wait(k->stream) : status;
}

/* scratch: the primitives' own, then b as packed. */
static dnnl_status_t execute(const struct weir_host_kernels *k, const struct weir_gemm *g,
                             const void *a, const void *b, void *c, void *scratch)
{
    void *plain = (void *)(uintptr_t)b,
         *packed = (char *)scratch + padded(g->primitive_scratch_bytes);
    if (g->pack) {
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, g->b_memory},
                                        {DNNL_ARG_TO, g->packed_memory},
                                        {DNNL_ARG_SCRATCHPAD, g->pack_scratch_memory}};
        void *bytes[] = {plain, packed, scratch};
        dnnl_status_t status = primitive_run(k, g->pack, args, bytes, 3);
        if (status != dnnl_success)
            return status;
    }
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, g->a_memory},
                                    {DNNL_ARG_WEIGHTS, g->pack ? g->packed_memory : g->b_memory},
                                    {DNNL_ARG_DST, g->c_memory},
                                    {DNNL_ARG_SCRATCHPAD, g->scratch_memory}};
    void *bytes[] = {(void *)(uintptr_t)a, g->pack ? packed : plain, c, scratch};
    return primitive_run(k, g->primitive, args, bytes, 4);
}

/* A product that did not happen must not go unseen: the next call on the kernels fails, and until
 * then the result is nan, which a step's finite check finds. */
static void gemm_failed(struct weir_host_kernels *k, const struct weir_gemm *g, int status, void *c)
{
    const struct weir_gemm_shape *s = &g->shape;
    (void)weir_fail_device(status, "oneDNN: a %u x %u x %u product failed as it ran", s->m, s->n,
                           s->k);
    weir_sticky_set(&k->failure, weir_last_error());
    memset(c, 0xFF, weir_dtype_bytes(s->out) * s->m * s->n);
}

static void gemm_run(void *argument)
{
    struct weir_host_argument *call = argument;
    struct weir_host_kernels *k = call->kernels;
    const struct weir_gemm_args *x = (const void *)call->args;
    const struct weir_gemm *g = k->gemms[x->gemm];
    const struct weir_gemm_shape *s = &g->shape;
    const void *a = x->a, *b = x->b;
    void *c = x->c;
    char *at = (char *)x->scratch + padded(g->primitive_scratch_bytes) + g->packed_bytes;
    if (g->widened) {
        weir_host_widen(k, x->a, (void *)at, (uint64_t)s->m * s->k);
        a = at;
        b = at += g->a_bytes;
        weir_host_widen(k, x->b, (void *)at, (uint64_t)s->k * s->n);
        if (s->out == WEIR_BF16)
            c = at + g->b_bytes;
    }
    dnnl_status_t status = execute(k, g, a, b, c, x->scratch);
    if (c != x->c)
        weir_host_narrow(k, c, x->c, (uint64_t)s->m * s->n);
    if (status != dnnl_success)
        gemm_failed(k, g, (int)status, x->c);
}

enum weir_status weir_host_gemm(struct weir_kernels *kernels, struct weir_stream *stream,
                                const struct weir_gemm_args *a)
{
    const struct weir_host_kernels *k = (const struct weir_host_kernels *)kernels;
    if (a->gemm >= k->gemm_count)
        return weir_fail(WEIR_ERR_ARG, "GEMM: handle %u of %u; prepare the shape first", a->gemm,
                         k->gemm_count);
    const struct weir_gemm *g = k->gemms[a->gemm];
    const struct weir_gemm_shape *s = &g->shape;
    struct weir_range ranges[] = {
        {a->a, weir_dtype_bytes(s->in) * s->m * s->k, false},
        {a->b, weir_dtype_bytes(s->in) * s->k * s->n, false},
        {a->c, weir_dtype_bytes(s->out) * s->m * s->n, true},
        {a->scratch, g->scratch_bytes, true},
    };
    return weir_host_queue(kernels, stream, gemm_run, a, sizeof *a, ranges,
                           g->scratch_bytes > 0 ? 4 : 3);
}
