/*
 * weir as the memory manager of somebody else's loop: twelve layers, 192 MiB of weights, gradients
 * and Adam's moments, trained in 32 MiB of device and 64 MiB of host memory, the rest on NVMe.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { LAYERS = 12, COUNT = 1 << 20, STEPS = 3 };
static struct weir_update adam; /* static structs begin as zeros: what is not set has its default */
static weir_run *run;
static uint32_t layer[LAYERS], sum; /* ids: a block each, and an activation */
static float values[COUNT];

static void must(enum weir_status status)
{
    if (status != WEIR_OK) {
        fprintf(stderr, "hello: %s\n", weir_last_error()->text);
        exit(1);
    }
}

static void want(int l, enum weir_access of_layer, enum weir_access of_sum,
                 struct weir_view views[2])
{
    struct weir_use uses[2] = {{layer[l], of_layer}, {sum, of_sum}};
    must(weir_want(run, uses, 2, views));
    must(weir_want_wait(run)); /* device "host": from here on this thread may use the views */
}

static void done(int l)
{
    uint32_t ids[2] = {layer[l], sum};
    must(weir_done(run, ids, 2));
}

/* Forward adds up the layers; the loss is |sum|^2 / 2, so each layer's gradient is the sum. */
static void step(bool dry, struct weir_report *report)
{
    struct weir_view v[2];
    must(weir_step_begin(run, "train", dry));
    for (int l = 0; l < LAYERS; l++) {
        want(l, WEIR_READ, l == 0 ? WEIR_NEW : WEIR_CHANGE, v);
        float *weight = (float *)v[0].bytes, *total = (float *)v[1].bytes;
        for (int k = 0; !dry && k < COUNT; k++)
            total[k] = weight[k] + (l == 0 ? 0 : total[k]);
        done(l);
    }
    for (int l = LAYERS - 1; l >= 0; l--) {
        want(l, WEIR_GRAD, l == 0 ? WEIR_LAST : WEIR_READ, v);
        float *grad = v[0].grad, *total = (float *)v[1].bytes;
        for (int k = 0; !dry && k < COUNT; k++)
            grad[k] = total[k] + (v[0].grad_fresh ? 0 : grad[k]);
        done(l);
    }
    must(weir_step_end(run, &adam, report));
}

static float first(int l, int k)
{
    return (float)(l + 1 + k % 8) / 16;
}

static void model_make(void)
{
    static struct weir_kept kept;
    kept.struct_bytes = sizeof kept;
    kept.name = "sum";
    kept.byte_count = sizeof values;
    must(weir_kept_add(run, &kept, &sum));
    static struct weir_tensor tensor;
    tensor.struct_bytes = sizeof tensor;
    tensor.kind = WEIR_TRAINED;
    tensor.dim_count = 1;
    tensor.shape[0] = COUNT;
    tensor.lr_scale = tensor.decay_scale = 1;
    for (int l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", l);
        tensor.name = name; /* weir copies it */
        must(weir_block_add(run, &tensor, 1, &layer[l]));
    }
    step(true, NULL); /* dry: weir sees what is wanted when */
    must(weir_layout(run));
    for (int l = 0; l < LAYERS; l++) {
        for (int k = 0; k < COUNT; k++)
            values[k] = first(l, k);
        must(weir_block_load(run, layer[l], 0, WEIR_FP32, values, 0, COUNT));
    }
}

/* Elements do not touch each other, so the same can be done to one of them in plain floats. */
static float plain(int l, int k)
{
    float m = 0, v = 0, moved = 0;
    for (int t = 1; t <= STEPS; t++) {
        float grad = 0;
        for (int i = 0; i < LAYERS; i++)
            grad += first(i, k) - moved;
        m = adam.beta1 * m + (1 - adam.beta1) * grad;
        v = adam.beta2 * v + (1 - adam.beta2) * grad * grad;
        moved += adam.lr * (m / (1 - powf(adam.beta1, (float)t))) /
                 (sqrtf(v / (1 - powf(adam.beta2, (float)t))) + adam.eps);
    }
    return first(l, k) - moved;
}

static int wrong_count(void)
{
    int wrong = 0;
    for (int l = 0; l < LAYERS; l++) {
        must(weir_block_store(run, layer[l], 0, WEIR_FP32, values, 0, COUNT));
        for (int k = 0; k < COUNT; k++)
            wrong += !(fabsf(values[k] - plain(l, k)) < 1e-5f);
    }
    return wrong;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void show(const struct weir_report *report)
{
    const char *const tiers[3] = {"device", "host", "nvme"};
    struct weir_prediction p;
    p.struct_bytes = sizeof p;
    must(weir_predict(run, "train", &p));
    uint64_t most[3] = {report->device_peak_bytes, report->host_peak_bytes, p.nvme_bytes};
    for (int t = 0; t < 3; t++)
        printf("%-6s %5.1f MiB at most; at home %5.1f weights, %5.1f gradients, %5.1f moments\n",
               tiers[t], mib(most[t]), mib(p.weight_bytes[t]), mib(p.grad_bytes[t]),
               mib(p.state_bytes[t]));
}

int main(void)
{
    static struct weir_options options;
    options.struct_bytes = sizeof options;
    options.device = "host";
    options.device_bytes = 32u << 20;
    options.host_bytes = 64u << 20;
    options.nvme_path = ".";
    options.dtype = options.grad_dtype = WEIR_FP32;
    must(weir_open(&run, &options));
    adam.struct_bytes = sizeof adam;
    adam.lr = 0.1f;
    adam.beta1 = 0.9f;
    adam.beta2 = 0.999f;
    adam.eps = 1;
    model_make();
    struct weir_report report;
    report.struct_bytes = sizeof report;
    for (int t = 0; t < STEPS; t++)
        step(false, &report);
    show(&report);
    int wrong = wrong_count();
    printf("%d of %d weights differ from plain floats\n", wrong, LAYERS * COUNT);
    weir_close(run);
    return wrong != 0;
}
