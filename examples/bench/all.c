/*
 * A short form of every command, and the machine's profile for the planner.
 */
#include "core/memory.h"
#include "examples/bench/commands.h"
#include "examples/bench/io.h"
#include "examples/bench/progress.h"
#include "examples/profile.h"
#include "zero/run.h"

#include <string.h>

#define BUDGET_BYTES  (UINT64_C(1) << 30) /* of the run whose rates are measured */
#define UPDATE_BYTES  16.0 /* a parameter in bf16 training: state, fp32 gradient, weight */
#define SHORT_SECONDS 0.2
#define SHORT_BYTES   (UINT64_C(256) << 20)
#define LATENCY_BYTES 4096u

/* The last row of a part whose text field has this value; NULL: none. */
static const json_t *row_find(const struct report *report, const char *part, const char *field,
                              const char *text)
{
    const json_t *row, *found = NULL;
    size_t i;
    json_array_foreach(json_object_get(report->root, "results"), i, row)
    {
        const char *is = json_string_value(json_object_get(row, field));
        if (strcmp(json_string_value(json_object_get(row, "part")), part) == 0 && is &&
            strcmp(is, text) == 0)
            found = row;
    }
    return found;
}

/* ---- drives */

/* Reads and writes at the recommended point, and one small read at a time, of one drive alone. */
static enum weir_status drive_measure(const struct io_files *files, const struct options *o,
                                      uint32_t file, const struct io_point *point,
                                      struct profile_drive *out)
{
    struct io_series series[3] = {{.point = *point}, {.point = *point}, {.point = *point}};
    struct io_target one = files->target;
    one.files[0] = files->target.files[file];
    one.file_count = 1;
    series[0].point.pattern = PATTERN_READ;
    series[1].point.pattern = PATTERN_WRITE;
    series[2].point.pattern = PATTERN_READ;
    series[2].point.depth = 1;
    series[2].point.block_bytes = LATENCY_BYTES;
    enum weir_status status =
        io_series_run(&one, series, 3, o->rounds, o->seconds, files->target.files[file].name);
    if (status == WEIR_OK) {
        out->read_bytes_per_s = 1e9 * spread_of(series[0].rates, series[0].round_count).median;
        out->write_bytes_per_s = 1e9 * spread_of(series[1].rates, series[1].round_count).median;
        out->latency_s = 1e-9 * histogram_percentile(series[2].latencies, 50);
        out->depth = point->depth;
        out->piece_bytes = point->block_bytes;
        status = weir_strdup(&out->path, files->target.files[file].name);
    }
    if (status == WEIR_OK)
        status = weir_strdup(&out->device, files->where[file].device);
    for (int i = 0; i < 3; i++)
        weir_free(series[i].latencies);
    return status;
}

static enum weir_status drives_measure(const struct options *o, struct report *report,
                                       struct profile *profile)
{
    struct io_files files;
    struct io_found found = {0};
    WEIR_TRY(io_files_open(&files, o));
    enum weir_status status = io_parts_measure(&files, o, &found, report);
    if (status == WEIR_OK) {
        const struct measured *best = &found.points[found.advice.index];
        profile->cost.read_bytes_per_s =
            1e9 * recommend_rate(found.points, found.count, best, PATTERN_READ);
        profile->cost.write_bytes_per_s =
            1e9 * recommend_rate(found.points, found.count, best, PATTERN_WRITE);
    }
    for (uint32_t f = 0; f < files.target.file_count && status == WEIR_OK; f++) {
        struct profile_drive *drive = &profile->drives[profile->drive_count++];
        status = drive_measure(&files, o, f, &found.series[found.advice.index].point, drive);
        if (drive->latency_s > profile->cost.latency_s)
            profile->cost.latency_s = drive->latency_s;
    }
    io_found_free(&found);
    io_files_close(&files);
    return status;
}

/* ---- the rest of the cost */

/* What a run would measure for itself at its first layout. */
static enum weir_status cost_measure(const struct options *o, struct weir_cost *cost)
{
    weir_run *run;
    progress_begin("rates of a run", 1);
    progress_step("products, updates, copies");
    WEIR_TRY(weir_open(&run, &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                    .device = device_names[o->device],
                                                    .device_bytes = BUDGET_BYTES,
                                                    .host_bytes = BUDGET_BYTES,
                                                    .dtype = WEIR_BF16,
                                                    .grad_dtype = WEIR_FP32,
                                                    .thread_count = (int)o->threads.values[0]}));
    enum weir_status status = weir_cost_measure(run, cost);
    weir_close(run);
    progress_end();
    return status;
}

/* Where a command measured longer, its figure. */
static void cost_refine(const struct report *report, struct weir_cost *cost)
{
    const json_t *to_device = row_find(report, "copy", "direction", "to device"),
                 *to_host = row_find(report, "copy", "direction", "to host"),
                 *adam = row_find(report, "adam", "dtype", "bf16"),
                 *layer = row_find(report, "layer", "dtype", "bf16");
    double flops = 1e9 * json_number_value(json_object_get(layer, "gflop_per_s"));
    cost->to_device_bytes_per_s = 1e9 * json_number_value(json_object_get(to_device, "gb_per_s"));
    cost->to_host_bytes_per_s = 1e9 * json_number_value(json_object_get(to_host, "gb_per_s"));
    cost->update_bytes_per_s =
        UPDATE_BYTES * 1e9 / json_number_value(json_object_get(adam, "ns_per_parameter"));
    if (!cost->update_on_compute)
        return;
    /* The device is the host: one kernel, in one memory. */
    cost->device_update_bytes_per_s = cost->update_bytes_per_s;
    if (flops > cost->compute_flops_per_s)
        cost->compute_flops_per_s = flops;
}

static enum weir_status machine_fill(const struct options *o, const struct report *report,
                                     struct profile *profile)
{
    const json_t *machine = json_object_get(report->root, "machine");
    profile->core_count = (uint64_t)json_integer_value(json_object_get(machine, "cores"));
    profile->memory_bytes = (uint64_t)json_integer_value(json_object_get(machine, "memory_bytes"));
    WEIR_TRY(weir_strdup(&profile->cpu, json_string_value(json_object_get(machine, "cpu"))));
    WEIR_TRY(weir_strdup(&profile->kernel, json_string_value(json_object_get(machine, "kernel"))));
    return weir_strdup(&profile->device, device_names[o->device]);
}

static enum weir_status parts_run(const struct options *o, struct report *report,
                                  struct profile *profile)
{
    struct options part = *o;
    WEIR_TRY(cost_measure(o, &profile->cost));
    WEIR_TRY(drives_measure(o, report, profile)); /* what may fail, before what takes minutes */
    part.bytes = SHORT_BYTES;
    WEIR_TRY(copy_measure(&part, report));
    WEIR_TRY(memory_measure(&part, report));
    part.parameters = (double)(UINT64_C(32) << 20);
    part.dtypes.count = 1; /* bf16 */
    WEIR_TRY(adam_measure(&part, report));
    part.dtypes = (struct number_list){.values = {0, 1}, .count = 2}; /* fp32 where bf16 is not */
    part.rounds = 3;
    part.hidden = part.kv = 2048;
    part.intermediate = 5632;
    part.tokens = 512;
    WEIR_TRY(gemm_measure(&part, report));
    cost_refine(report, &profile->cost);
    return machine_fill(o, report, profile);
}

enum weir_status all_measure(const struct options *options, struct report *report)
{
    struct profile profile = {.cost = {.struct_bytes = sizeof profile.cost}};
    struct options o = *options;
    WEIR_TRY(io_engines_find(options, report, &o.engines));
    o.engines.count = 1; /* the one that training would use */
    enum weir_status status = parts_run(&o, report, &profile);
    if (status == WEIR_OK && o.save)
        status = profile_write(&profile, o.save);
    profile_free(&profile);
    return status;
}
