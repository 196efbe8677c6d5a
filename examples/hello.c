/*
 * weir as the memory manager of somebody else's loop: twelve layers, 192 MiB of weights, gradients
 * and Adam's moments, trained in 32 MiB of device and 64 MiB of host memory, the rest on NVMe.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { LAYERS = 12, COUNT = 1 << 20, STEPS = 3 };
static weir_run *run;
static uint32_t layer[LAYERS]; /* ids */
static float values[COUNT];
static struct weir_options options; /* static structs begin as zeros, and zero is the default */
static struct weir_tensor tensor;
static struct weir_update adam;
static struct weir_report report;
static struct weir_prediction plan;

static void must(enum weir_status status)
{
    if (status != WEIR_OK) {
        fprintf(stderr, "hello: %s\n", weir_last_error()->text);
        exit(1);
    }
}

/* The loss is |w|^2 / 2, so the gradient is the weight. Dry, weir sees what is wanted and when. */
static void step(bool dry)
{
    must(weir_step_begin(run, "train", dry));
    for (int l = LAYERS - 1; l >= 0; l--) {
        struct weir_use use = {layer[l], WEIR_GRAD};
        struct weir_view view;
        must(weir_want(run, &use, 1, &view));
        must(weir_want_wait(run)); /* device "host": this thread may use the view from here on */
        float *weight = (float *)view.bytes;
        for (int k = 0; !dry && k < COUNT; k++)
            view.grad[k] = weight[k] + (view.grad_fresh ? 0 : view.grad[k]);
        must(weir_done(run, &layer[l], 1));
    }
    must(weir_step_end(run, &adam, &report));
}

/* Elements do not touch each other, so one can be trained in plain floats. */
static float plain(float w)
{
    float m = 0, v = 0;
    for (int t = 1; t <= STEPS; t++) {
        m = adam.beta1 * m + (1 - adam.beta1) * w;
        v = adam.beta2 * v + (1 - adam.beta2) * w * w;
        w -= adam.lr * (m / (1 - powf(adam.beta1, (float)t))) /
             (sqrtf(v / (1 - powf(adam.beta2, (float)t))) + adam.eps);
    }
    return w;
}

int main(void)
{
    options.struct_bytes = sizeof options;
    options.device = "host";
    options.device_bytes = 32u << 20;
    options.host_bytes = 64u << 20;
    options.nvme_path = ".";
    options.dtype = options.grad_dtype = WEIR_FP32;
    must(weir_open(&run, &options));
    adam.struct_bytes = sizeof adam;
    adam.lr = 0.1f, adam.beta1 = 0.9f, adam.beta2 = 0.999f, adam.eps = 1;
    tensor.struct_bytes = sizeof tensor;
    tensor.kind = WEIR_TRAINED;
    tensor.dim_count = 1, tensor.shape[0] = COUNT;
    tensor.lr_scale = tensor.decay_scale = 1;
    for (int l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", l);
        tensor.name = name; /* weir copies it */
        must(weir_block_add(run, &tensor, 1, &layer[l]));
    }
    report.struct_bytes = sizeof report, plan.struct_bytes = sizeof plan;
    step(true);
    must(weir_layout(run));
    for (int l = 0; l < LAYERS; l++) {
        for (int k = 0; k < COUNT; k++)
            values[k] = (float)(l + 1 + k % 8) / 16;
        must(weir_block_load(run, layer[l], 0, WEIR_FP32, values, 0, COUNT));
    }
    for (int t = 0; t < STEPS; t++)
        step(false);
    int wrong = 0;
    for (int l = 0; l < LAYERS; l++) {
        must(weir_block_store(run, layer[l], 0, WEIR_FP32, values, 0, COUNT));
        for (int k = 0; k < COUNT; k++)
            wrong += !(fabsf(values[k] - plain((float)(l + 1 + k % 8) / 16)) < 1e-5f);
    }
    must(weir_predict(run, "train", &plan));
    printf("device %3d MiB at most\nhost   %3d MiB at most\nnvme   %3d MiB\n",
           (int)(report.device_peak_bytes >> 20), (int)(report.host_peak_bytes >> 20),
           (int)(plan.nvme_bytes >> 20));
    printf("%d of %d weights differ from plain floats\n", wrong, LAYERS * COUNT);
    weir_close(run);
    return wrong != 0;
}
