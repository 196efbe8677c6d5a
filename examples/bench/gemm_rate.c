/*
 * What the layout of operands costs oneDNN: GFLOP/s of the products that a layer makes, in the
 * layout in which weir hands them over, with both operands in plain rows, and with B packed ahead
 * into the form that oneDNN likes best; in turns.
 *
 *   gemm_rate bf16|fp32 TOKENS HIDDEN INTERMEDIATE KV THREADS ROUNDS
 *
 * HIDDEN is the width of q as well, KV that of k and of v. Prints a line a product (medians), then
 * what a layer takes now, and what it would take if each weight were packed once a visit of 1, 4 or
 * 16 micro-batches.
 */
#include "core/clock.h"

#include <dnnl.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MOST 99
#define PACK_ROWS   256 /* weir packs a plain B where A has so many rows, at each product */

struct product {
    const char *name;
    dnnl_dim_t m, n, k;
    bool turned_a, turned_b, narrow_c; /* narrow: the result is of the dtype, else fp32 */
    int count;                         /* in a layer, forward and backward */
    bool weight;                       /* B is a weight, the same for all micro-batches */
};

enum form { AS_IT_IS, ROWS, PACKED, PACKING, FORM_COUNT };
static const char *const form_names[] = {"as it is", "plain rows", "B packed ahead", "packing B"};

struct timed {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[4];
    int arg_count;
    double seconds[ROUNDS_MOST];
};

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static dnnl_data_type_t dtype;
static int thread_count, round_count;

static void require(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "gemm_rate: oneDNN: %s failed with status %d\n", what, (int)status);
    exit(1);
}

/* What differs between oneDNN 2 and 3. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t desc;
typedef const_dnnl_memory_desc_t const_desc;
#define AS_CONST(d) (d)
static desc desc_make(dnnl_dim_t rows, dnnl_dim_t columns, dnnl_data_type_t type, bool turned)
{
    desc d;
    dnnl_dims_t dims = {rows, columns}, strides = {turned ? 1 : columns, turned ? rows : 1};
    require(dnnl_memory_desc_create_with_strides(&d, 2, dims, type, strides), "descriptor");
    return d;
}
static desc desc_any(dnnl_dim_t rows, dnnl_dim_t columns, dnnl_data_type_t type)
{
    desc d;
    dnnl_dims_t dims = {rows, columns};
    require(dnnl_memory_desc_create_with_tag(&d, 2, dims, type, dnnl_format_tag_any), "descriptor");
    return d;
}
static dnnl_primitive_desc_t matmul_make(const desc *a, const desc *b, const desc *c)
{
    dnnl_primitive_desc_t pd;
    require(dnnl_matmul_primitive_desc_create(&pd, engine, *a, *b, NULL, *c, NULL), "product");
    return pd;
}
#else
typedef dnnl_memory_desc_t desc;
typedef const dnnl_memory_desc_t *const_desc;
#define AS_CONST(d) (&(d))
static desc desc_make(dnnl_dim_t rows, dnnl_dim_t columns, dnnl_data_type_t type, bool turned)
{
    desc d;
    dnnl_dims_t dims = {rows, columns}, strides = {turned ? 1 : columns, turned ? rows : 1};
    require(dnnl_memory_desc_init_by_strides(&d, 2, dims, type, strides), "descriptor");
    return d;
}
static desc desc_any(dnnl_dim_t rows, dnnl_dim_t columns, dnnl_data_type_t type)
{
    desc d;
    dnnl_dims_t dims = {rows, columns};
    require(dnnl_memory_desc_init_by_tag(&d, 2, dims, type, dnnl_format_tag_any), "descriptor");
    return d;
}
static dnnl_primitive_desc_t matmul_make(const desc *a, const desc *b, const desc *c)
{
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t pd;
    require(dnnl_matmul_desc_init(&matmul, a, b, NULL, c), "product");
    require(dnnl_primitive_desc_create(&pd, &matmul, NULL, engine, NULL), "product");
    return pd;
}
#endif

/* Memory of a descriptor, filled with small numbers; freed with the process. */
static dnnl_memory_t memory_make(const_desc d)
{
    dnnl_memory_t memory;
    void *bytes = NULL;
    size_t count = (dnnl_memory_desc_get_size(d) + 63) / 64 * 64;
    if (posix_memalign(&bytes, 2 << 20, count) != 0)
        require(dnnl_out_of_memory, "memory");
    for (size_t i = 0; i < count / 2; i++) /* bf16 and fp32 near 1 */
        ((unsigned short *)bytes)[i] = (unsigned short)(0x3F80 + i % 64);
    require(dnnl_memory_create(&memory, d, engine, bytes), "memory");
    return memory;
}

static const_desc queried(dnnl_primitive_desc_t pd, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(pd, what, 0);
}

static void product_make(struct timed *t, dnnl_primitive_desc_t pd)
{
    require(dnnl_primitive_create(&t->primitive, pd), "product");
    t->arg_count = 3;
    t->args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, memory_make(queried(pd, dnnl_query_src_md))};
    t->args[1] =
        (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, memory_make(queried(pd, dnnl_query_weights_md))};
    t->args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, memory_make(queried(pd, dnnl_query_dst_md))};
}

/* From B as weir has it to what the packed product takes. */
static void packing_make(struct timed *t, desc b, const struct timed *packed,
                         dnnl_primitive_desc_t packed_pd)
{
    dnnl_primitive_desc_t pd;
    require(dnnl_reorder_primitive_desc_create(
                &pd, AS_CONST(b), engine, queried(packed_pd, dnnl_query_weights_md), engine, NULL),
            "packing");
    require(dnnl_primitive_create(&t->primitive, pd), "packing");
    t->arg_count = 2;
    t->args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, memory_make(AS_CONST(b))};
    t->args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, packed->args[1].memory};
    dnnl_primitive_desc_destroy(pd);
}

static void forms_make(const struct product *p, struct timed forms[FORM_COUNT])
{
    dnnl_data_type_t out = p->narrow_c ? dtype : dnnl_f32;
    desc c = desc_make(p->m, p->n, out, false);
    desc a = desc_make(p->m, p->k, dtype, p->turned_a),
         b = desc_make(p->k, p->n, dtype, p->turned_b);
    desc a_rows = desc_make(p->m, p->k, dtype, false), b_rows = desc_make(p->k, p->n, dtype, false);
    desc any = desc_any(p->k, p->n, dtype);
    dnnl_primitive_desc_t as_it_is = matmul_make(&a, &b, &c),
                          rows = matmul_make(&a_rows, &b_rows, &c),
                          packed = matmul_make(&a, &any, &c);
    product_make(&forms[AS_IT_IS], as_it_is);
    product_make(&forms[ROWS], rows);
    product_make(&forms[PACKED], packed);
    packing_make(&forms[PACKING], b, &forms[PACKED], packed);
    dnnl_primitive_desc_destroy(as_it_is);
    dnnl_primitive_desc_destroy(rows);
    dnnl_primitive_desc_destroy(packed);
}

static double run(struct timed *t)
{
    uint64_t began = weir_now_ns();
    require(dnnl_primitive_execute(t->primitive, stream, t->arg_count, t->args), "product");
    require(dnnl_stream_wait(stream), "product");
    return (double)(weir_now_ns() - began) / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void product_time(const struct product *p, double median[FORM_COUNT])
{
    struct timed forms[FORM_COUNT];
    forms_make(p, forms);
    for (int f = 0; f < FORM_COUNT; f++)
        (void)run(&forms[f]); /* warm */
    for (int i = 0; i < round_count; i++)
        for (int f = 0; f < FORM_COUNT; f++)
            forms[f].seconds[i] = run(&forms[f]);
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    printf("%-14s %5ld x %5ld x %5ld  x %d ", p->name, (long)p->m, (long)p->n, (long)p->k,
           p->count);
    for (int f = 0; f < FORM_COUNT; f++) {
        qsort(forms[f].seconds, (size_t)round_count, sizeof(double), by_value);
        median[f] = forms[f].seconds[round_count / 2];
        if (f == PACKING)
            printf(" %s %.2f ms", form_names[f], median[f] * 1e3);
        else
            printf(" %s %.0f,", form_names[f], flops / median[f] / 1e9);
    }
    printf("\n");
}

/* As weir runs it: a plain B is packed first where A has enough rows. */
static double now(const struct product *p, const double median[FORM_COUNT])
{
    bool packs = !p->turned_b && p->m >= PACK_ROWS;
    return packs ? median[PACKED] + median[PACKING] : median[AS_IT_IS];
}

static double packed_once(const struct product *p, const double median[FORM_COUNT], int micro)
{
    double once = median[PACKED] + median[PACKING] / micro, as_now = now(p, median);
    return p->weight && once < as_now ? once : as_now;
}

static void layer_time(const struct product *products, int count)
{
    static const int micros[] = {1, 4, 16};
    double total = 0, once[3] = {0}, rows = 0;
    for (int i = 0; i < count; i++) {
        double median[FORM_COUNT];
        product_time(&products[i], median);
        total += products[i].count * now(&products[i], median);
        rows += products[i].count * median[ROWS];
        for (int m = 0; m < 3; m++)
            once[m] += products[i].count * packed_once(&products[i], median, micros[m]);
    }
    printf("a layer's products, forward and backward, one micro-batch: now %.2f ms, plain rows "
           "%.2f ms\n",
           total * 1e3, rows * 1e3);
    for (int m = 0; m < 3; m++)
        printf("weights packed once a visit of %d: %.2f ms, %.1f %% less\n", micros[m],
               once[m] * 1e3, 100 * (1 - once[m] / total));
}

int main(int argc, char **argv)
{
    long n[6] = {0};
    for (int i = 0; argc == 8 && i < 6; i++)
        n[i] = strtol(argv[i + 2], NULL, 10);
    bool known = argc == 8 && (strcmp(argv[1], "bf16") == 0 || strcmp(argv[1], "fp32") == 0);
    if (!known || n[0] < 1 || n[1] < 1 || n[2] < 1 || n[3] < 1 || n[4] < 1 || n[5] < 1 ||
        n[5] > ROUNDS_MOST) {
        fprintf(
            stderr,
            "usage: gemm_rate bf16|fp32 TOKENS HIDDEN INTERMEDIATE KV THREADS ROUNDS (1 to %d)\n",
            ROUNDS_MOST);
        return 2;
    }
    dtype = strcmp(argv[1], "bf16") == 0 ? dnnl_bf16 : dnnl_f32;
    thread_count = (int)n[4];
    round_count = (int)n[5];
    omp_set_num_threads(thread_count);
    require(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine");
    require(dnnl_stream_create(&stream, engine, dnnl_stream_in_order), "stream");
    const dnnl_dim_t t = n[0], h = n[1], f = n[2], kv = n[3];
    const struct product products[] = {
        {"q, o", t, h, h, false, true, true, 2, true},
        {"k, v", t, kv, h, false, true, true, 2, true},
        {"gate, up", t, f, h, false, true, true, 2, true},
        {"down", t, h, f, false, true, true, 1, true},
        {"d down", t, f, h, false, false, true, 1, true},
        {"d gate, up", t, h, f, false, false, false, 2, true},
        {"d q, o", t, h, h, false, false, false, 2, true},
        {"d k, v", t, h, kv, false, false, false, 2, true},
        {"dW q, o", h, h, t, true, false, false, 2, false},
        {"dW k, v", kv, h, t, true, false, false, 2, false},
        {"dW gate, up", f, h, t, true, false, false, 2, false},
        {"dW down", h, f, t, true, false, false, 1, false},
    };
    printf("oneDNN %d.%d.%d, %s, %d threads; GFLOP/s, medians of %d\n", DNNL_VERSION_MAJOR,
           DNNL_VERSION_MINOR, DNNL_VERSION_PATCH, argv[1], thread_count, round_count);
    layer_time(products, (int)(sizeof products / sizeof *products));
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return 0;
}
