#include "examples/bench/io_series.h"
#include "core/memory.h"
#include "examples/bench/progress.h"
#include "examples/bench/units.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct spread spread_of(double *rates, uint32_t count)
{
    qsort(rates, count, sizeof *rates, by_value);
    double middle = rates[count / 2];
    if (count % 2 == 0)
        middle = (middle + rates[count / 2 - 1]) / 2;
    return (struct spread){middle, rates[0], rates[count - 1]};
}

void io_sample_add(struct io_sample *into, const struct io_sample *from)
{
    struct kernel_counters *sum = &into->counted;
    const struct kernel_counters *part = &from->counted;
    bool first = into->ns == 0;
    into->read_bytes += from->read_bytes;
    into->written_bytes += from->written_bytes;
    into->ns += from->ns;
    into->cpu_s += from->cpu_s;
    into->registered = from->registered && (first || into->registered);
    sum->process_known = part->process_known && (first || sum->process_known);
    sum->device_known = part->device_known && (first || sum->device_known);
    sum->process_read_bytes += part->process_read_bytes;
    sum->process_written_bytes += part->process_written_bytes;
    sum->device_read_bytes += part->device_read_bytes;
    sum->device_written_bytes += part->device_written_bytes;
}

/* One for each layout that is asked for, large enough for every point of it. */
static enum weir_status memory_make(const struct io_target *target, const struct io_series *series,
                                    size_t count, struct buffers memory[LAYOUT_COUNT])
{
    for (int l = 0; l < LAYOUT_COUNT; l++) {
        uint64_t most = 0;
        for (size_t i = 0; i < count; i++) {
            uint64_t bytes = io_point_memory(target, &series[i].point);
            if ((int)series[i].layout == l && bytes > most)
                most = bytes;
        }
        if (most > 0)
            WEIR_TRY(buffers_open(&memory[l], most, (enum layout)l, "lower --depth or --block"));
    }
    return WEIR_OK;
}

static enum weir_status series_measure(const struct io_target *target, struct io_series *series,
                                       double seconds, unsigned char *memory)
{
    struct io_sample sample;
    struct io_limit limit = {.ns = (uint64_t)(seconds * 1e9)};
    if (!series->latencies)
        WEIR_TRY(weir_alloc(&series->latencies, 1, sizeof *series->latencies, "a histogram"));
    WEIR_TRY(io_point_run(target, &series->point, memory, limit, &sample, series->latencies));
    series->rates[series->round_count++] =
        (double)(sample.read_bytes + sample.written_bytes) / (double)sample.ns;
    io_sample_add(&series->total, &sample);
    return WEIR_OK;
}

static enum weir_status rounds_measure(const struct io_target *target, struct io_series *series,
                                       size_t count, uint64_t rounds, double seconds,
                                       const struct buffers memory[LAYOUT_COUNT])
{
    for (uint64_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < count; i++) {
            const struct io_point *point = &series[i].point;
            char block[24];
            progress_step("%s %s x %u, %s, memory %s, round %llu", pattern_names[point->pattern],
                          bytes_text(point->block_bytes, block), point->depth, point->engine,
                          layout_names[series[i].layout], (unsigned long long)round + 1);
            WEIR_TRY(series_measure(target, &series[i], seconds, memory[series[i].layout].bytes));
        }
    return WEIR_OK;
}

enum weir_status io_series_run(const struct io_target *target, struct io_series *series,
                               size_t count, uint64_t rounds, double seconds, const char *what)
{
    struct buffers memory[LAYOUT_COUNT] = {{0}};
    progress_begin(what, (uint32_t)(count * rounds));
    enum weir_status status = memory_make(target, series, count, memory);
    if (status == WEIR_OK)
        status = rounds_measure(target, series, count, rounds, seconds, memory);
    for (int l = 0; l < LAYOUT_COUNT; l++)
        buffers_close(&memory[l]);
    progress_end();
    return status;
}

void io_series_free(struct io_series *series, size_t count)
{
    for (size_t i = 0; series && i < count; i++)
        weir_free(series[i].latencies);
    weir_free(series);
}

static json_t *bytes_or_null(bool known, uint64_t bytes)
{
    return known ? json_integer((json_int_t)bytes) : json_null();
}

json_t *kernel_counters_row(const struct kernel_counters *counted)
{
    bool process = counted->process_known, device = counted->device_known;
    return json_pack("{s:o, s:o, s:o, s:o}", "process_read_bytes",
                     bytes_or_null(process, counted->process_read_bytes), "process_written_bytes",
                     bytes_or_null(process, counted->process_written_bytes), "device_read_bytes",
                     bytes_or_null(device, counted->device_read_bytes), "device_written_bytes",
                     bytes_or_null(device, counted->device_written_bytes));
}

json_t *io_series_row(const struct io_series *series, const struct io_target *target,
                      const char *part)
{
    const struct io_sample *total = &series->total;
    const struct histogram *latencies = series->latencies;
    double rates[ROUNDS_MOST], moved = (double)(total->read_bytes + total->written_bytes);
    bool direct = true;
    for (uint32_t i = 0; i < series->round_count; i++)
        rates[i] = series->rates[i];
    for (uint32_t f = 0; f < target->file_count; f++)
        direct = direct && target->files[f].direct;
    struct spread rate = spread_of(rates, series->round_count);
    bool cached = kernel_counters_missed(&total->counted, total->read_bytes, total->written_bytes);
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:b, s:b, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, "
        "s:I, s:f, s:I, s:o, s:b}",
        "part", part, "pattern", pattern_names[series->point.pattern], "engine",
        series->point.engine, "block_bytes", (json_int_t)series->point.block_bytes, "depth",
        (json_int_t)series->point.depth, "direct", direct, "registered", total->registered,
        "layout", layout_names[series->layout], "gb_per_s", rate.median, "gb_per_s_low", rate.low,
        "gb_per_s_high", rate.high, "p50_us", histogram_percentile(latencies, 50) / 1e3, "p99_us",
        histogram_percentile(latencies, 99) / 1e3, "p999_us",
        histogram_percentile(latencies, 99.9) / 1e3, "cpu_s_per_gb", total->cpu_s / moved * 1e9,
        "request_count", (json_int_t)latencies->total, "read_bytes", (json_int_t)total->read_bytes,
        "written_bytes", (json_int_t)total->written_bytes, "seconds", (double)total->ns * 1e-9,
        "rounds", (json_int_t)series->round_count, "kernel", kernel_counters_row(&total->counted),
        "from_page_cache", cached);
}
