#include "examples/bench/gemm_forms.h"
#include "core/clock.h"
#include "core/machine.h"
#include "core/memory.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>

#define ARGS_MOST   3
#define ALIGNMENT   ((size_t)2 << 20)
#define ONE_AS_BF16 0x3F80u

struct form {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[ARGS_MOST];
    void *bytes[ARGS_MOST]; /* that args hold; NULL: another form's */
    int arg_count;
};

struct gemm_forms {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct form forms[FORM_COUNT];
};

static enum weir_status check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_UNSUPPORTED,
                     "oneDNN: %s failed with status %d; where the CPU has no bf16, --dtype fp32",
                     what, (int)status);
}

const char *gemm_version(char out[static 32])
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(out, 32, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
    return out;
}

/* What differs between oneDNN 2 and 3. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t desc;
typedef const_dnnl_memory_desc_t const_desc;
#define AS_CONST(d) (d)
static enum weir_status desc_make(desc *d, dnnl_dim_t rows, dnnl_dim_t columns,
                                  dnnl_data_type_t type, bool turned)
{
    dnnl_dims_t dims = {rows, columns}, strides = {turned ? 1 : columns, turned ? rows : 1};
    return check(dnnl_memory_desc_create_with_strides(d, 2, dims, type, strides), "descriptor");
}
static enum weir_status desc_any(desc *d, dnnl_dim_t rows, dnnl_dim_t columns,
                                 dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, columns};
    return check(dnnl_memory_desc_create_with_tag(d, 2, dims, type, dnnl_format_tag_any),
                 "descriptor");
}
static enum weir_status matmul_make(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const desc *a,
                                    const desc *b, const desc *c)
{
    return check(dnnl_matmul_primitive_desc_create(pd, engine, *a, *b, NULL, *c, NULL), "product");
}
static void desc_free(desc d)
{
    dnnl_memory_desc_destroy(d);
}
#else
typedef dnnl_memory_desc_t desc;
typedef const dnnl_memory_desc_t *const_desc;
#define AS_CONST(d) (&(d))
static enum weir_status desc_make(desc *d, dnnl_dim_t rows, dnnl_dim_t columns,
                                  dnnl_data_type_t type, bool turned)
{
    dnnl_dims_t dims = {rows, columns}, strides = {turned ? 1 : columns, turned ? rows : 1};
    return check(dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides), "descriptor");
}
static enum weir_status desc_any(desc *d, dnnl_dim_t rows, dnnl_dim_t columns,
                                 dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, columns};
    return check(dnnl_memory_desc_init_by_tag(d, 2, dims, type, dnnl_format_tag_any), "descriptor");
}
static enum weir_status matmul_make(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const desc *a,
                                    const desc *b, const desc *c)
{
    dnnl_matmul_desc_t matmul;
    WEIR_TRY(check(dnnl_matmul_desc_init(&matmul, a, b, NULL, c), "product"));
    return check(dnnl_primitive_desc_create(pd, &matmul, NULL, engine, NULL), "product");
}
static void desc_free(desc d)
{
    (void)d;
}
#endif

/* Memory of a descriptor, filled with small numbers. */
static enum weir_status arg_add(struct gemm_forms *f, struct form *form, int name, const_desc d)
{
    int at = form->arg_count;
    size_t count = (dnnl_memory_desc_get_size(d) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    uint64_t available = weir_memory_available_bytes("");
    if (count > available) /* it would be given, and the kernel would kill somebody for it */
        return weir_fail(WEIR_ERR_NOMEM,
                         "%zu bytes for a matrix, this machine or its container has %llu "
                         "available; lower --tokens or the widths",
                         count, (unsigned long long)available);
    unsigned short *bytes = aligned_alloc(ALIGNMENT, count);
    if (!bytes)
        return weir_fail(WEIR_ERR_NOMEM, "%zu bytes for a matrix; lower --tokens or the widths",
                         count);
    form->bytes[at] = bytes;
    for (size_t i = 0; i < count / 2; i++) /* bf16 and fp32 near 1 */
        bytes[i] = (unsigned short)(ONE_AS_BF16 + i % 64);
    form->args[at].arg = name;
    WEIR_TRY(check(dnnl_memory_create(&form->args[at].memory, d, f->engine, bytes), "memory"));
    form->arg_count++;
    return WEIR_OK;
}

static enum weir_status product_make(struct gemm_forms *f, struct form *form,
                                     dnnl_primitive_desc_t pd)
{
    WEIR_TRY(check(dnnl_primitive_create(&form->primitive, pd), "product"));
    WEIR_TRY(
        arg_add(f, form, DNNL_ARG_SRC, dnnl_primitive_desc_query_md(pd, dnnl_query_src_md, 0)));
    WEIR_TRY(arg_add(f, form, DNNL_ARG_WEIGHTS,
                     dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0)));
    return arg_add(f, form, DNNL_ARG_DST, dnnl_primitive_desc_query_md(pd, dnnl_query_dst_md, 0));
}

/* From B as weir has it to what the packed product takes. */
static enum weir_status packing_make(struct gemm_forms *f, desc b, dnnl_primitive_desc_t packed)
{
    struct form *form = &f->forms[FORM_PACKING];
    dnnl_primitive_desc_t pd;
    const_desc to = dnnl_primitive_desc_query_md(packed, dnnl_query_weights_md, 0);
    WEIR_TRY(
        check(dnnl_reorder_primitive_desc_create(&pd, AS_CONST(b), f->engine, to, f->engine, NULL),
              "packing"));
    enum weir_status status = check(dnnl_primitive_create(&form->primitive, pd), "packing");
    dnnl_primitive_desc_destroy(pd);
    WEIR_TRY(status);
    WEIR_TRY(arg_add(f, form, DNNL_ARG_FROM, AS_CONST(b)));
    form->args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, f->forms[FORM_PACKED].args[1].memory};
    form->arg_count = 2;
    return WEIR_OK;
}

static enum weir_status form_make(struct gemm_forms *f, enum gemm_form form, const desc *a,
                                  const desc *b, const desc *c, desc plain_b)
{
    dnnl_primitive_desc_t pd;
    WEIR_TRY(matmul_make(&pd, f->engine, a, b, c));
    enum weir_status status = product_make(f, &f->forms[form], pd);
    if (status == WEIR_OK && form == FORM_PACKED)
        status = packing_make(f, plain_b, pd);
    dnnl_primitive_desc_destroy(pd);
    return status;
}

enum { A, B, C, A_ROWS, B_ROWS, B_ANY, DESCS };

static enum weir_status forms_make(struct gemm_forms *f, const struct gemm_shape *s,
                                   dnnl_data_type_t type)
{
    desc d[DESCS];
    dnnl_data_type_t out = s->narrow_c ? type : dnnl_f32;
    WEIR_TRY(check(dnnl_engine_create(&f->engine, dnnl_cpu, 0), "engine"));
    WEIR_TRY(check(dnnl_stream_create(&f->stream, f->engine, dnnl_stream_in_order), "stream"));
    WEIR_TRY(desc_make(&d[A], s->m, s->k, type, s->turned_a));
    WEIR_TRY(desc_make(&d[B], s->k, s->n, type, s->turned_b));
    WEIR_TRY(desc_make(&d[C], s->m, s->n, out, false));
    WEIR_TRY(desc_make(&d[A_ROWS], s->m, s->k, type, false));
    WEIR_TRY(desc_make(&d[B_ROWS], s->k, s->n, type, false));
    WEIR_TRY(desc_any(&d[B_ANY], s->k, s->n, type));
    enum weir_status status = form_make(f, FORM_AS_IT_IS, &d[A], &d[B], &d[C], d[B]);
    if (status == WEIR_OK)
        status = form_make(f, FORM_ROWS, &d[A_ROWS], &d[B_ROWS], &d[C], d[B]);
    if (status == WEIR_OK)
        status = form_make(f, FORM_PACKED, &d[A], &d[B_ANY], &d[C], d[B]);
    for (int i = 0; i < DESCS; i++)
        desc_free(d[i]);
    return status;
}

enum weir_status gemm_forms_open(struct gemm_forms **out, const struct gemm_shape *shape,
                                 enum weir_dtype dtype)
{
    struct gemm_forms *f;
    WEIR_TRY(weir_alloc(&f, 1, sizeof *f, "forms of a product"));
    enum weir_status status = forms_make(f, shape, dtype == WEIR_BF16 ? dnnl_bf16 : dnnl_f32);
    if (status == WEIR_OK)
        *out = f;
    else
        gemm_forms_close(f);
    return status;
}

enum weir_status gemm_forms_run(struct gemm_forms *f, enum gemm_form form, double *seconds)
{
    struct form *run = &f->forms[form];
    uint64_t began_ns = weir_now_ns();
    WEIR_TRY(check(dnnl_primitive_execute(run->primitive, f->stream, run->arg_count, run->args),
                   "product"));
    WEIR_TRY(check(dnnl_stream_wait(f->stream), "product"));
    *seconds = (double)(weir_now_ns() - began_ns) * 1e-9;
    return WEIR_OK;
}

void gemm_forms_close(struct gemm_forms *f)
{
    for (int i = 0; i < FORM_COUNT; i++) {
        struct form *form = &f->forms[i];
        for (int a = 0; a < ARGS_MOST; a++) {
            if (form->bytes[a] && form->args[a].memory)
                dnnl_memory_destroy(form->args[a].memory);
            free(form->bytes[a]);
        }
        if (form->primitive)
            dnnl_primitive_destroy(form->primitive);
    }
    if (f->stream)
        dnnl_stream_destroy(f->stream);
    if (f->engine)
        dnnl_engine_destroy(f->engine);
    weir_free(f);
}
