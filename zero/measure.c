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

/* Enough to leave the caches, little enough for small budgets. */
static uint64_t sample_bytes(const weir_run *run)
{
    uint64_t bytes = 32u << 20;
    uint64_t least = run->options.device_bytes < run->options.host_bytes ? run->options.device_bytes
                                                                         : run->options.host_bytes;
    while (bytes > least / 2 && bytes > 4096 * SLICES)
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

static enum weir_status update_time(weir_run *run, void *memory, uint64_t bytes,
                                    double *bytes_per_s)
{
    uint32_t element_bytes = weir_part_bytes(&run->model, WEIR_PART_STATE) +
                             weir_part_bytes(&run->model, WEIR_PART_GRAD) +
                             weir_part_bytes(&run->model, WEIR_PART_WEIGHT);
    uint64_t most = bytes / element_bytes / WEIR_ALIGN_ELEMENTS * WEIR_ALIGN_ELEMENTS;
    uint32_t elements = most > WEIR_SEGMENT_ELEMENTS ? WEIR_SEGMENT_ELEMENTS : (uint32_t)most;
    *bytes_per_s = 1e10;
    if (elements == 0)
        return WEIR_OK;
    memset(memory, 0, (size_t)elements * element_bytes);
    char *grad = (char *)memory + (size_t)elements * weir_part_bytes(&run->model, WEIR_PART_STATE);
    uint64_t bad = 0;
    struct weir_adam_args args = {
        .dtype = run->model.dtype,
        .grad_dtype = run->model.grad_dtype,
        .state = memory,
        .grad = grad,
        .weight = grad + (size_t)elements * weir_part_bytes(&run->model, WEIR_PART_GRAD),
        .eps = 1,
        .clip_factor = 1,
        .correction1 = 1,
        .correction2 = 1,
        .bad_count = &bad,
        .segment_count = 1,
        .segments = {{.count = elements, .padded_count = elements, .lr_scale = 1}},
    };
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t begin = weir_now_ns();
        WEIR_TRY(run->math->adam(run->kernels, run->compute, &args));
        WEIR_TRY(run->table->stream_sync(run->compute));
        uint64_t took = weir_now_ns() - begin;
        best = took < best ? took : best;
    }
    *bytes_per_s = rate((double)elements * element_bytes, best);
    return WEIR_OK;
}

static enum weir_status compute_time(weir_run *run, void *memory, uint64_t bytes,
                                     double *flops_per_s)
{
    uint32_t n = 1024;
    struct weir_gemm_shape shape = {.in = run->model.dtype, .out = WEIR_FP32};
    uint64_t need;
    uint32_t gemm;
    uint64_t scratch_bytes;
    do {
        n /= 2;
        shape.m = shape.n = shape.k = n;
        WEIR_TRY(run->math->gemm_prepare(run->kernels, &shape, &gemm, &scratch_bytes));
        need = 12ull * n * n + scratch_bytes;
    } while (need > bytes && n > 16);
    *flops_per_s = 1e11;
    if (need > bytes)
        return WEIR_OK;
    memset(memory, 0, need);
    char *at = memory;
    struct weir_gemm_args args = {.gemm = gemm,
                                  .a = at,
                                  .b = at + 4ull * n * n,
                                  .c = at + 8ull * n * n,
                                  .scratch = at + 12ull * n * n};
    /* A product takes a millisecond, other work of the machine takes turns of several. */
    uint64_t best = UINT64_MAX, until = weir_now_ns() + COMPUTE_NS;
    for (int i = 0; i < TRIES || weir_now_ns() < until; i++) {
        uint64_t begin = weir_now_ns();
        WEIR_TRY(run->math->gemm(run->kernels, run->compute, &args));
        WEIR_TRY(run->table->stream_sync(run->compute));
        uint64_t took = weir_now_ns() - begin;
        best = took < best ? took : best;
    }
    *flops_per_s = rate(2.0 * n * n * n, best);
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
    /* A drive with room for the extent need not have it for the sample. */
    while (bytes > 4096 * SLICES &&
           weir_extent_preflight(run->options.nvme_path, bytes * FILE_ROUNDS) == WEIR_ERR_NOSPACE)
        bytes /= 2;
    uint64_t file_bytes = bytes * FILE_ROUNDS, took;
    WEIR_TRY(weir_extent_open(extent, io, run->options.nvme_path, file_bytes,
                              run->options.require_direct, NULL, NULL, NULL));
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
    struct weir_extent extent = {.fd = -1};
    WEIR_TRY(weir_run_io_open(run, NULL, &io));
    enum weir_status status = weir_io_memory_add(io, memory, bytes);
    if (status == WEIR_OK)
        status = drive_passes(run, io, memory, bytes, &extent, out);
    weir_io_close(
        io); /* waits for what is in flight; only then may the number of the file be free */
    if (extent.fd >= 0)
        weir_extent_close(&extent);
    return status;
}

static enum weir_status measure(weir_run *run, void *device, void *host, uint64_t bytes,
                                struct weir_cost *out)
{
    WEIR_TRY(copy_time(run, device, host, bytes, WEIR_COPY_TO_DEVICE, &out->to_device_bytes_per_s));
    WEIR_TRY(copy_time(run, host, device, bytes, WEIR_COPY_TO_HOST, &out->to_host_bytes_per_s));
    WEIR_TRY(update_time(run, host, bytes, &out->update_bytes_per_s));
    WEIR_TRY(compute_time(run, host, bytes, &out->compute_flops_per_s));
    return drive_time(run, host, bytes, out);
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
    uint64_t bytes = sample_bytes(run);
    void *device, *host;
    struct weir_device_info info;
    run->table->info(run->device, &info);
    *out =
        (struct weir_cost){.struct_bytes = sizeof *out, .update_on_compute = info.calls_run_on_cpu};
    WEIR_TRY(weir_pool_take(run->device_pool, "rate measurement", bytes, &device));
    enum weir_status status = weir_pool_take(run->host_pool, "rate measurement", bytes, &host);
    if (status == WEIR_OK) {
        status = measure(run, device, host, bytes, out);
        status = memory_give(run->host_pool, host, status);
    }
    return memory_give(run->device_pool, device, status);
}
