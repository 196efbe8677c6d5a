/*
 * This machine's rates for the planner, measured once at the first layout: each from the fastest of
 * a few short tries. They decide where bytes lie and when they move, never what is computed.
 */
#include "zero/run.h"

#include <string.h>

#define TRIES      3
#define COMPUTE_NS 50000000u
#define UPDATE_NS  2000000u

#define LEAST_PRODUCT 16u
#define LEAST_SAMPLE  32768u

/* Enough to leave the caches, and on a GPU for a product that outlasts its launch; little enough
 * for small budgets. Beside a GPU stand cores with caches of a hundred MiB. */
#define HOST_SAMPLE (32u << 20)
#define GPU_SAMPLE  (256u << 20)

struct sample {
    void *host, *device;
    uint64_t host_bytes, device_bytes;
};

static uint64_t sample_bytes(uint64_t most, uint64_t budget)
{
    uint64_t bytes = most;
    while (bytes > budget / 2 && bytes > LEAST_SAMPLE)
        bytes /= 2;
    return bytes;
}

static double rate(double amount, uint64_t best_ns)
{
    return amount * 1e9 / (double)(best_ns > 0 ? best_ns : 1);
}

static enum weir_status copy_time(weir_run *run, void *to, const void *from, uint64_t bytes,
                                  enum weir_copy direction, double *bytes_per_s)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t begin = weir_now_ns();
        WEIR_TRY(run->table->copy(run->compute, to, from, bytes, direction));
        WEIR_TRY(run->table->stream_sync(run->compute));
        uint64_t took = weir_now_ns() - begin;
        best = took < best ? took : best;
    }
    *bytes_per_s = rate((double)bytes, best);
    return WEIR_OK;
}

/* A window of as many segments as the sample holds; the sample's last word counts bad masters. */
static uint64_t update_window(const weir_run *run, char *memory, uint64_t bytes,
                              struct weir_adam_args *args)
{
    uint32_t state_bytes = weir_part_bytes(&run->model, WEIR_PART_STATE);
    uint32_t grad_bytes = weir_part_bytes(&run->model, WEIR_PART_GRAD);
    uint32_t element_bytes =
        state_bytes + grad_bytes + weir_part_bytes(&run->model, WEIR_PART_WEIGHT);
    uint64_t left = (bytes - sizeof *args->bad_count) / element_bytes;
    uint32_t elements = 0;
    while (args->segment_count < WEIR_WINDOW_SEGMENTS && left >= WEIR_ALIGN_ELEMENTS) {
        uint32_t count = left < WEIR_SEGMENT_ELEMENTS
                             ? (uint32_t)(left / WEIR_ALIGN_ELEMENTS * WEIR_ALIGN_ELEMENTS)
                             : WEIR_SEGMENT_ELEMENTS;
        args->segments[args->segment_count++] = (struct weir_window_segment){
            .offset = elements, .count = count, .padded_count = count, .lr_scale = 1};
        elements += count;
        left -= count;
    }
    args->state = memory;
    args->grad = memory + (uint64_t)elements * state_bytes;
    args->weight = memory + (uint64_t)elements * (state_bytes + grad_bytes);
    args->bad_count = (uint64_t *)(void *)(memory + bytes) - 1;
    return (uint64_t)elements * element_bytes;
}

/* The fastest of a few times for the first `count` windows of the sample, all queued at once. */
static enum weir_status windows_time(struct weir_kernels *kernels, struct weir_stream *stream,
                                     const struct weir_adam_args *first, uint64_t window_bytes,
                                     uint64_t count, uint64_t *best_ns)
{
    *best_ns = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t begin = weir_now_ns();
        for (uint64_t w = 0; w < count; w++) {
            struct weir_adam_args args = *first;
            args.state = (char *)first->state + w * window_bytes;
            args.grad = (char *)first->grad + w * window_bytes;
            args.weight = (char *)first->weight + w * window_bytes;
            WEIR_TRY(kernels->table->adam(kernels, stream, &args));
        }
        WEIR_TRY(stream->device->table->stream_sync(stream));
        uint64_t took = weir_now_ns() - begin;
        *best_ns = took < *best_ns ? took : *best_ns;
    }
    return WEIR_OK;
}

/* Ever twice as many windows, until they take their time or fill the sample: on a GPU one takes no
 * longer than its launch, and fits into a cache. The sample holds zeros. */
static enum weir_status update_time(weir_run *run, struct weir_kernels *kernels,
                                    struct weir_stream *stream, void *memory, uint64_t bytes,
                                    double *bytes_per_s)
{
    struct weir_adam_args args = {.dtype = run->model.dtype,
                                  .grad_dtype = run->model.grad_dtype,
                                  .eps = 1,
                                  .clip_factor = 1,
                                  .correction1 = 1,
                                  .correction2 = 1};
    uint64_t window_bytes = update_window(run, memory, bytes, &args);
    *bytes_per_s = 1e10;
    if (window_bytes == 0)
        return WEIR_OK;
    uint64_t most = (bytes - sizeof *args.bad_count) / window_bytes, count = 1, best_ns;
    WEIR_TRY(windows_time(kernels, stream, &args, window_bytes, count, &best_ns));
    while (best_ns < UPDATE_NS && count < most) {
        count = 2 * count < most ? 2 * count : most;
        WEIR_TRY(windows_time(kernels, stream, &args, window_bytes, count, &best_ns));
    }
    *bytes_per_s = rate((double)(count * window_bytes), best_ns);
    return WEIR_OK;
}

/* The fastest of the products n x n that run in `for_ns`; 0: the sample is too small for one. */
static enum weir_status product_time(weir_run *run, char *memory, uint64_t bytes, uint32_t n,
                                     uint64_t for_ns, uint64_t *best_ns)
{
    struct weir_gemm_shape shape = {
        .m = n, .n = n, .k = n, .in = run->model.dtype, .out = WEIR_FP32};
    uint64_t matrix_bytes = 4ull * n * n, scratch_bytes;
    struct weir_gemm_args args = {.a = memory,
                                  .b = memory + matrix_bytes,
                                  .c = memory + 2 * matrix_bytes,
                                  .scratch = memory + 3 * matrix_bytes};
    *best_ns = 0;
    if (3 * matrix_bytes > bytes)
        return WEIR_OK;
    WEIR_TRY(run->math->gemm_prepare(run->kernels, &shape, &args.gemm, &scratch_bytes));
    if (3 * matrix_bytes + scratch_bytes > bytes)
        return WEIR_OK;
    uint64_t best = UINT64_MAX, until = weir_now_ns() + for_ns;
    for (int i = 0; i < TRIES || weir_now_ns() < until; i++) {
        uint64_t begin = weir_now_ns();
        WEIR_TRY(run->math->gemm(run->kernels, run->compute, &args));
        WEIR_TRY(run->table->stream_sync(run->compute));
        uint64_t took = weir_now_ns() - begin;
        best = took < best ? took : best;
    }
    *best_ns = best;
    return WEIR_OK;
}

/* Products ever twice as wide, until one takes as long as all tries may or fills the sample; then
 * tries of the one with the highest rate: other work of the machine takes turns of several
 * milliseconds, in which a small product does not even begin. */
static enum weir_status compute_time(weir_run *run, void *memory, uint64_t bytes,
                                     double *flops_per_s)
{
    uint64_t took = 0;
    uint32_t best = 0;
    *flops_per_s = 0;
    for (uint32_t n = LEAST_PRODUCT; took < COMPUTE_NS; n *= 2) {
        WEIR_TRY(product_time(run, memory, bytes, n, 0, &took));
        if (took == 0)
            break;
        double flops = rate(2.0 * n * n * n, took);
        best = flops > *flops_per_s ? n : best;
        *flops_per_s = flops > *flops_per_s ? flops : *flops_per_s;
    }
    if (best > 0)
        WEIR_TRY(product_time(run, memory, bytes, best, COMPUTE_NS, &took));
    *flops_per_s = best > 0 ? rate(2.0 * best * best * best, took) : 1e11;
    return WEIR_OK;
}

static enum weir_status measure(weir_run *run, const struct weir_device_info *info,
                                const struct sample *at, struct weir_cost *out)
{
    uint64_t few = at->host_bytes < HOST_SAMPLE ? at->host_bytes : HOST_SAMPLE;
    uint64_t both = few < at->device_bytes ? few : at->device_bytes;
    memset(at->host, 0, at->host_bytes);
    WEIR_TRY(run->table->fill(run->compute, at->device, 0, at->device_bytes));
    WEIR_TRY(copy_time(run, at->device, at->host, both, WEIR_COPY_TO_DEVICE,
                       &out->to_device_bytes_per_s));
    WEIR_TRY(
        copy_time(run, at->host, at->device, both, WEIR_COPY_TO_HOST, &out->to_host_bytes_per_s));
    WEIR_TRY(update_time(run, run->update_kernels, run->update_stream, at->host, at->host_bytes,
                         &out->update_bytes_per_s));
    WEIR_TRY(update_time(run, run->kernels, run->compute, at->device, at->device_bytes,
                         &out->device_update_bytes_per_s));
    if (run->updater && info->reaches_host)
        WEIR_TRY(update_time(run, run->kernels, run->compute, at->host, at->host_bytes,
                             &out->link_update_bytes_per_s));
    WEIR_TRY(compute_time(run, at->device, at->device_bytes, &out->compute_flops_per_s));
    return weir_drives_measure(run, at->host, few, out);
}

/* Given back whatever failed, so that the caller may try again; the first error stays. */
static enum weir_status memory_give(struct weir_pool *pool, void *memory, enum weir_status status)
{
    if (status == WEIR_OK)
        return weir_pool_give(pool, memory);
    struct weir_error error = *weir_last_error();
    (void)weir_pool_give(pool, memory);
    return weir_fail_with(&error);
}

enum weir_status weir_cost_measure(weir_run *run, struct weir_cost *out)
{
    struct weir_device_info info;
    run->table->info(run->device, &info);
    uint64_t most = info.calls_run_on_cpu ? HOST_SAMPLE : GPU_SAMPLE;
    struct sample at = {
        .host_bytes = sample_bytes(most, run->options.host_bytes),
        .device_bytes = sample_bytes(most, run->options.device_bytes),
    };
    const char *what = "rate measurement";
    *out = (struct weir_cost){.struct_bytes = sizeof *out, .update_on_compute = !run->updater};
    WEIR_TRY(weir_pool_take(run->device_pool, what, at.device_bytes, &at.device));
    enum weir_status status = weir_pool_take(run->host_pool, what, at.host_bytes, &at.host);
    if (status == WEIR_OK) {
        status = measure(run, &info, &at, out);
        status = memory_give(run->host_pool, at.host, status);
    }
    return memory_give(run->device_pool, at.device, status);
}
