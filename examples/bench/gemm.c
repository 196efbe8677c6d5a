/*
 * What the layout of operands costs oneDNN: GFLOP/s of the products that a layer makes, in the
 * layout in which weir hands them over, with both operands in plain rows, and with B packed ahead.
 */
#include "examples/bench/commands.h"
#include "examples/bench/gemm_forms.h"
#include "examples/bench/io_series.h"
#include "examples/bench/progress.h"
#include "examples/train/config.h"

#include <omp.h>
#include <string.h>

#define PACK_ROWS 256 /* weir packs a plain B where A has so many rows, at each product */
#define PRODUCTS  15
#define VISITS    2

static const int visits[VISITS] = {4, 16}; /* micro-batches */

struct product {
    const char *name;
    struct gemm_shape shape;
    int count;   /* in a layer, forward and backward */
    bool weight; /* B is a weight, the same for all micro-batches */
};

struct model {
    const char *name;
    uint32_t tokens, hidden, q, kv, intermediate;
};

struct layer { /* seconds of a micro-batch */
    double now, once[VISITS], flops;
};

static void products_make(const struct model *m, struct product out[PRODUCTS])
{
    const uint32_t t = m->tokens, h = m->hidden, f = m->intermediate, q = m->q, kv = m->kv;
    const struct product products[PRODUCTS] = {
        {"q", {t, q, h, false, true, true}, 1, true},
        {"k, v", {t, kv, h, false, true, true}, 2, true},
        {"o", {t, h, q, false, true, true}, 1, true},
        {"gate, up", {t, f, h, false, true, true}, 2, true},
        {"down", {t, h, f, false, true, true}, 1, true},
        {"d down", {t, f, h, false, false, true}, 1, true},
        {"d gate, up", {t, h, f, false, false, false}, 2, true},
        {"d o", {t, q, h, false, false, false}, 1, true},
        {"d q", {t, h, q, false, false, false}, 1, true},
        {"d k, v", {t, h, kv, false, false, false}, 2, true},
        {"dW q", {q, h, t, true, false, false}, 1, false},
        {"dW o", {h, q, t, true, false, false}, 1, false},
        {"dW k, v", {kv, h, t, true, false, false}, 2, false},
        {"dW gate, up", {f, h, t, true, false, false}, 2, false},
        {"dW down", {h, f, t, true, false, false}, 1, false},
    };
    memcpy(out, products, sizeof products);
}

static enum weir_status form_medians(struct gemm_forms *forms, uint64_t rounds,
                                     double median[FORM_COUNT])
{
    double seconds[FORM_COUNT][ROUNDS_MOST];
    for (int f = 0; f < FORM_COUNT; f++)
        WEIR_TRY(gemm_forms_run(forms, (enum gemm_form)f, &seconds[f][0])); /* warm */
    for (uint64_t i = 0; i < rounds; i++)
        for (int f = 0; f < FORM_COUNT; f++)
            WEIR_TRY(gemm_forms_run(forms, (enum gemm_form)f, &seconds[f][i]));
    for (int f = 0; f < FORM_COUNT; f++)
        median[f] = spread_of(seconds[f], (uint32_t)rounds).median;
    return WEIR_OK;
}

/* As weir runs it: a plain B is packed first where A has enough rows. */
static double now(const struct product *p, const double median[FORM_COUNT])
{
    bool packs = !p->shape.turned_b && p->shape.m >= PACK_ROWS;
    return packs ? median[FORM_PACKED] + median[FORM_PACKING] : median[FORM_AS_IT_IS];
}

static void layer_add(struct layer *layer, const struct product *p, const double median[FORM_COUNT],
                      double flops)
{
    double as_now = now(p, median);
    layer->now += p->count * as_now;
    layer->flops += p->count * flops;
    for (int v = 0; v < VISITS; v++) {
        double once = median[FORM_PACKED] + median[FORM_PACKING] / visits[v];
        layer->once[v] += p->count * (p->weight && once < as_now ? once : as_now);
    }
}

static enum weir_status product_measure(const struct model *model, const struct product *p,
                                        enum weir_dtype dtype, uint64_t rounds, struct layer *layer,
                                        struct report *report)
{
    struct gemm_forms *forms;
    double median[FORM_COUNT];
    double flops = 2.0 * p->shape.m * p->shape.n * p->shape.k;
    WEIR_TRY(gemm_forms_open(&forms, &p->shape, dtype));
    enum weir_status status = form_medians(forms, rounds, median);
    gemm_forms_close(forms);
    WEIR_TRY(status);
    layer_add(layer, p, median, flops);
    return report_row(
        report,
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:f, s:f, s:f, s:f}", "part", "gemm",
                  "model", model->name, "dtype", dtype == WEIR_BF16 ? "bf16" : "fp32", "product",
                  p->name, "m", (json_int_t)p->shape.m, "n", (json_int_t)p->shape.n, "k",
                  (json_int_t)p->shape.k, "count", p->count, "gflop_per_s",
                  flops / median[FORM_AS_IT_IS] * 1e-9, "rows_gflop_per_s",
                  flops / median[FORM_ROWS] * 1e-9, "packed_gflop_per_s",
                  flops / median[FORM_PACKED] * 1e-9, "packing_ms", median[FORM_PACKING] * 1e3));
}

static enum weir_status layer_measure(const struct model *model, enum weir_dtype dtype,
                                      uint64_t rounds, struct report *report)
{
    struct product products[PRODUCTS];
    struct layer layer = {.now = 0};
    const char *name = dtype == WEIR_BF16 ? "bf16" : "fp32";
    products_make(model, products);
    for (int p = 0; p < PRODUCTS; p++) {
        progress_step("%s, %s, %s", model->name, name, products[p].name);
        WEIR_TRY(product_measure(model, &products[p], dtype, rounds, &layer, report));
    }
    return report_row(report,
                      json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f}", "part", "layer",
                                "model", model->name, "dtype", name, "tokens",
                                (json_int_t)model->tokens, "ms", layer.now * 1e3, "gflop_per_s",
                                layer.flops / layer.now * 1e-9, "packed_once_4_ms",
                                layer.once[0] * 1e3, "packed_once_16_ms", layer.once[1] * 1e3));
}

/* A CPU without bf16 multiplies fp32 alone. */
static enum weir_status model_measure(const struct model *model, const struct options *o,
                                      struct report *report)
{
    for (uint32_t d = 0; d < o->dtypes.count; d++) {
        enum weir_dtype dtype = o->dtypes.values[d] == 0 ? WEIR_BF16 : WEIR_FP32;
        enum weir_status status = layer_measure(model, dtype, o->rounds, report);
        if (status == WEIR_ERR_UNSUPPORTED && dtype == WEIR_BF16 && o->dtypes.count > 1)
            status = report_note(report, "left out: %s", weir_last_error()->text);
        WEIR_TRY(status);
    }
    return WEIR_OK;
}

static enum weir_status config_measure(const char *path, const struct options *o,
                                       struct report *report)
{
    struct llama_config config;
    WEIR_TRY(llama_config_read(&config, path));
    struct model model = {.name = path,
                          .tokens = (uint32_t)o->tokens,
                          .hidden = config.hidden,
                          .q = config.heads * config.head_dim,
                          .kv = config.kv_heads * config.head_dim,
                          .intermediate = config.intermediate};
    llama_config_free(&config);
    return model_measure(&model, o, report);
}

enum weir_status gemm_measure(const struct options *o, struct report *report)
{
    char version[32];
    struct model given = {"as given",          (uint32_t)o->tokens, (uint32_t)o->hidden,
                          (uint32_t)o->hidden, (uint32_t)o->kv,     (uint32_t)o->intermediate};
    uint32_t models = o->configs.count > 0 ? o->configs.count : 1;
    omp_set_num_threads((int)o->threads.values[0]);
    WEIR_TRY(report_set(report, "gemm_library", json_string(gemm_version(version))));
    WEIR_TRY(report_set(report, "threads", json_integer((json_int_t)o->threads.values[0])));
    progress_begin("products", models * o->dtypes.count * PRODUCTS);
    if (o->configs.count == 0)
        WEIR_TRY(model_measure(&given, o, report));
    for (uint32_t c = 0; c < o->configs.count; c++)
        WEIR_TRY(config_measure(o->configs.values[c], o, report));
    progress_end();
    return WEIR_OK;
}
