/*
 * This machine's rates for the planner, measured once at the first layout: each from the fastest of
 * a few short tries. They decide where bytes lie and when they move, never what is computed.
 */
#include "zero/run.h"

#include <string.h>

#define TRIES       3
#define SLICES      4u
#define FILE_ROUNDS 2u
#define COMPUTE_NS  50000000u

#define LEAST_PRODUCT 16u

/* Enough to leave the caches, and on a GPU for a product that outlasts its launch; little enough
 * for small budgets. */
#define HOST_SAMPLE (32u << 20)
#define GPU_SAMPLE  (256u << 20)

struct sample {
    void *host, *device;
    uint64_t host_bytes, device_bytes;
};

static uint64_t sample_bytes(uint64_t most, uint64_t budget)
{
    uint64_t bytes = most;
    while (bytes > budget / 2 && bytes > 4096 * SLICES)
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

/* The sample holds zeros. */
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
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t begin = weir_now_ns();
        WEIR_TRY(kernels->table->adam(kernels, stream, &args));
        WEIR_TRY(stream->device->table->stream_sync(stream));
        uint64_t took = weir_now_ns() - begin;
        best = took < best ? took : best;
    }
    *bytes_per_s = rate((double)window_bytes, best);
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

/* Products ever twice as wide, for a while or until one fills the sample; then tries of the one
 * with the highest rate: other work of the machine takes turns of several milliseconds. */
static enum weir_status compute_time(weir_run *run, void *memory, uint64_t bytes,
                                     double *flops_per_s)
{
    uint64_t until = weir_now_ns() + COMPUTE_NS, took;
    uint32_t best = 0;
    *flops_per_s = 0;
    for (uint32_t n = LEAST_PRODUCT; n == LEAST_PRODUCT || weir_now_ns() < until; n *= 2) {
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

/* All of them, whatever becomes of one: none may be in flight when the file is closed. */
static enum weir_status drive_wait(struct weir_io *io, size_t requests)
{
    struct weir_error first = {.status = WEIR_OK};
    for (size_t done = 0, count; done < requests; done += count) {
        struct weir_io_result results[SLICES];
        WEIR_TRY(weir_io_reap(io, results, SLICES, WEIR_IO_FOREVER, &count));
        for (size_t i = 0; i < count; i++)
            if (results[i].status != WEIR_OK && first.status == WEIR_OK)
                first = results[i].error;
    }
    return first.status == WEIR_OK ? WEIR_OK : weir_fail_with(&first);
}

/* One pass over the file, SLICES requests at once, each with its own slice of the memory. */
static enum weir_status drive_pass(struct weir_io *io, uint32_t file, void *memory, uint64_t bytes,
                                   enum weir_io_kind kind, uint64_t *took_ns)
{
    uint64_t begin = weir_now_ns(), slice = bytes / SLICES;
    for (uint64_t round = 0; round < FILE_ROUNDS; round++) {
        struct weir_io_request requests[SLICES];
        for (uint64_t i = 0; i < SLICES; i++)
            requests[i] = (struct weir_io_request){.id = i,
                                                   .kind = kind,
                                                   .file = file,
                                                   .offset_bytes = round * bytes + i * slice,
                                                   .bytes = (char *)memory + i * slice,
                                                   .byte_count = slice};
        WEIR_TRY(weir_io_submit(io, requests, SLICES));
        WEIR_TRY(drive_wait(io, SLICES));
    }
    *took_ns = weir_now_ns() - begin;
    return WEIR_OK;
}

/* One small read with nothing else in flight; the fastest of a few. */
static enum weir_status drive_latency(struct weir_io *io, uint32_t file, void *memory,
                                      double *latency_s)
{
    uint64_t best = UINT64_MAX;
    for (uint64_t i = 0; i < TRIES; i++) {
        struct weir_io_request request = {.id = i,
                                          .kind = WEIR_IO_READ,
                                          .file = file,
                                          .offset_bytes = i * 4096,
                                          .bytes = memory,
                                          .byte_count = 4096};
        uint64_t begin = weir_now_ns();
        WEIR_TRY(weir_io_submit(io, &request, 1));
        WEIR_TRY(drive_wait(io, 1));
        uint64_t took = weir_now_ns() - begin;
        best = took < best ? took : best;
    }
    *latency_s = (double)best * 1e-9;
    return WEIR_OK;
}

static enum weir_status drive_passes(weir_run *run, struct weir_io *io, void *memory,
                                     uint64_t bytes, struct weir_extent *extent,
                                     struct weir_cost *out)
{
    const struct weir_extent_place place = {.directory = run->options.nvme_path};
    /* A drive with room for the extent need not have it for the sample. */
    while (bytes > 4096 * SLICES &&
           weir_extent_preflight(&place, 1, bytes * FILE_ROUNDS) == WEIR_ERR_NOSPACE)
        bytes /= 2;
    uint64_t file_bytes = bytes * FILE_ROUNDS, took;
    WEIR_TRY(weir_extent_open(extent, io,
                              &(struct weir_extent_options){
                                  .places = &place, .place_count = 1, .byte_count = file_bytes}));
    WEIR_TRY(drive_pass(io, extent->file, memory, bytes, WEIR_IO_WRITE, &took));
    out->write_bytes_per_s = rate((double)file_bytes, took);
    WEIR_TRY(drive_pass(io, extent->file, memory, bytes, WEIR_IO_READ, &took));
    out->read_bytes_per_s = rate((double)file_bytes, took);
    return drive_latency(io, extent->file, memory, &out->latency_s);
}

static enum weir_status drive_time(weir_run *run, void *memory, uint64_t bytes,
                                   struct weir_cost *out)
{
    if (!run->options.nvme_path) {
        /* No plan moves a byte there; the walk only divides by it. */
        out->read_bytes_per_s = out->write_bytes_per_s = 1;
        return WEIR_OK;
    }
    struct weir_io *io;
    struct weir_extent extent = {.byte_count = 0};
    WEIR_TRY(weir_run_io_open(run, NULL, &io));
    enum weir_status status = weir_io_memory_add(io, memory, bytes);
    if (status == WEIR_OK)
        status = drive_passes(run, io, memory, bytes, &extent, out);
    weir_io_close(
        io); /* waits for what is in flight; only then may the number of the file be free */
    weir_extent_close(&extent);
    return status;
}

static enum weir_status measure(weir_run *run, const struct weir_device_info *info,
                                const struct sample *at, struct weir_cost *out)
{
    uint64_t both = at->host_bytes < at->device_bytes ? at->host_bytes : at->device_bytes;
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
    return drive_time(run, at->host, at->host_bytes, out);
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
    struct sample at = {
        .host_bytes = sample_bytes(HOST_SAMPLE, run->options.host_bytes),
        .device_bytes = sample_bytes(info.calls_run_on_cpu ? HOST_SAMPLE : GPU_SAMPLE,
                                     run->options.device_bytes),
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
