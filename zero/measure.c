/*
 * This machine's rates for the planner, measured once at the first layout, each from short tries.
 * They decide where bytes lie and when they move, never what is computed.
 *
 * The cores have other work that takes turns with a try, so that the fastest tells their rate. A
 * GPU has not, and its clocks follow the load: it begins at rest, with a slow link, rises at once
 * and sinks under work that lasts. So products come first, as they come in training (many in a row,
 * of numbers that are not zero, which cost less power), and the try in the middle tells their rate.
 */
#include "zero/run.h"

#include <stdlib.h>
#include <string.h>

#define TRIES      3
#define TRIES_MOST 256
#define COMPUTE_NS 50000000u
#define STEADY_NS  200000000u /* of products, where the clocks follow */
#define COPY_NS    50000000u
#define UPDATE_NS  2000000u
#define PRODUCT_NS 1000000u /* of products in a row, beside which a launch is nothing */

#define VALUES 32768u

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
    uint64_t best = UINT64_MAX, until = weir_now_ns() + COPY_NS;
    for (int i = 0; i < TRIES || weir_now_ns() < until; i++) {
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

/* ---- products */

/* The sample, of numbers as a model has them. */
static enum weir_status values_fill(weir_run *run, const struct sample *at)
{
    const bool narrow = run->model.dtype == WEIR_BF16;
    uint64_t filled = VALUES * (narrow ? sizeof(uint16_t) : sizeof(float));
    filled = filled < at->host_bytes ? filled : at->host_bytes;
    filled = filled < at->device_bytes ? filled : at->device_bytes;
    uint64_t count = filled / (narrow ? sizeof(uint16_t) : sizeof(float));
    float drawn[256], *wide = at->host;
    uint16_t *bits = at->host;
    for (uint64_t i = 0; i < count; i += 256) {
        uint64_t part = count - i < 256 ? count - i : 256;
        weir_random_normal(1, "rate measurement", i, part, 1, drawn);
        for (uint64_t k = 0; k < part; k++)
            if (narrow)
                bits[i + k] = weir_bf16_from_float(drawn[k]);
            else
                wide[i + k] = drawn[k];
    }
    WEIR_TRY(run->table->copy(run->compute, at->device, at->host, filled, WEIR_COPY_TO_DEVICE));
    for (uint64_t more; filled < at->device_bytes; filled += more) {
        more = filled < at->device_bytes - filled ? filled : at->device_bytes - filled;
        WEIR_TRY(run->table->copy(run->compute, (char *)at->device + filled, at->device, more,
                                  WEIR_COPY_ON_DEVICE));
    }
    return run->table->stream_sync(run->compute);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Times of `count` products in a row, for for_ns: the fastest, or the middle one. */
static enum weir_status products_time(weir_run *run, const struct weir_gemm_args *args,
                                      uint64_t count, uint64_t for_ns, bool middle,
                                      uint64_t *took_ns)
{
    uint64_t took[TRIES_MOST], until = weir_now_ns() + for_ns;
    size_t tries = 0;
    while (tries < TRIES || (tries < TRIES_MOST && weir_now_ns() < until)) {
        uint64_t begin = weir_now_ns();
        for (uint64_t i = 0; i < count; i++)
            WEIR_TRY(run->math->gemm(run->kernels, run->compute, args));
        WEIR_TRY(run->table->stream_sync(run->compute));
        took[tries++] = weir_now_ns() - begin;
    }
    qsort(took, tries, sizeof *took, by_value);
    *took_ns = took[middle ? tries / 2 : 0] / count;
    return WEIR_OK;
}

/* Of one product n x n; last: as good as it gets. 0: the sample is too small for one. */
static enum weir_status product_time(weir_run *run, const struct sample *at, uint32_t n, bool last,
                                     uint64_t *took_ns)
{
    struct weir_device_info info;
    struct weir_gemm_shape shape = {
        .m = n, .n = n, .k = n, .in = run->model.dtype, .out = WEIR_FP32};
    uint64_t matrix_bytes = 4ull * n * n, scratch_bytes;
    char *memory = at->device;
    struct weir_gemm_args args = {.a = memory,
                                  .b = memory + matrix_bytes,
                                  .c = memory + 2 * matrix_bytes,
                                  .scratch = memory + 3 * matrix_bytes};
    *took_ns = 0;
    if (3 * matrix_bytes > at->device_bytes)
        return WEIR_OK;
    WEIR_TRY(run->math->gemm_prepare(run->kernels, &shape, &args.gemm, &scratch_bytes));
    if (3 * matrix_bytes + scratch_bytes > at->device_bytes)
        return WEIR_OK;
    WEIR_TRY(products_time(run, &args, 1, 0, false, took_ns));
    if (!last)
        return WEIR_OK;
    run->table->info(run->device, &info);
    if (info.calls_run_on_cpu)
        return products_time(run, &args, 1, COMPUTE_NS, false, took_ns);
    return products_time(run, &args, 1 + PRODUCT_NS / (*took_ns + 1), STEADY_NS, true, took_ns);
}

/* Products ever twice as wide, until one takes as long as all tries may or fills the sample; then
 * tries of the one with the highest rate: other work of the machine takes turns of several
 * milliseconds, in which a small product does not even begin. */
static enum weir_status compute_time(weir_run *run, const struct sample *at, double *flops_per_s)
{
    uint64_t took = 0;
    uint32_t best = 0;
    *flops_per_s = 0;
    WEIR_TRY(values_fill(run, at));
    for (uint32_t n = LEAST_PRODUCT; took < COMPUTE_NS; n *= 2) {
        WEIR_TRY(product_time(run, at, n, false, &took));
        if (took == 0)
            break;
        double flops = rate(2.0 * n * n * n, took);
        best = flops > *flops_per_s ? n : best;
        *flops_per_s = flops > *flops_per_s ? flops : *flops_per_s;
    }
    if (best > 0)
        WEIR_TRY(product_time(run, at, best, true, &took));
    *flops_per_s = best > 0 ? rate(2.0 * best * best * best, took) : 1e11;
    return WEIR_OK;
}

static enum weir_status measure(weir_run *run, const struct weir_device_info *info,
                                const struct sample *at, struct weir_cost *out)
{
    uint64_t few = at->host_bytes < HOST_SAMPLE ? at->host_bytes : HOST_SAMPLE;
    uint64_t both = few < at->device_bytes ? few : at->device_bytes;
    WEIR_TRY(compute_time(run, at, &out->compute_flops_per_s));
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
