/*
 * What a device gives: copies over the link, matrix products, attention, Adam and the operations on
 * rows, at the shapes of a model's layers, through the tables that a training step goes through.
 *
 *   device_rate [--device cuda|host] [--only NAME,...] [--seconds S] [--threads N]
 *               [--device-memory MIB] [--host-memory MIB] [--json FILE] [--tiny]
 *
 * A row's rate is the median over repetitions, each long enough for the host's clock, with the
 * lowest and the highest. Whether results are right is not asked here: the tests do.
 */
#include "examples/bench/device_rate.h"
#include "core/clock.h"
#include "core/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUES       (UINT64_C(1) << 21)
#define REPETITIONS  8 /* at which a row aims */
#define ROUNDS_LEAST 3
#define ROUNDS_MOST  64

/* Names that --only takes: of rows, and of their groups. */
static const struct {
    const char *group, *name;
} names[] = {
    {"copy", "copy_to_device"},
    {"copy", "copy_to_host"},
    {"copy", "copy_both_ways"},
    {"copy", "copy_on_device"},
    {"gemm", "gemm_forward"},
    {"gemm", "gemm_dx"},
    {"gemm", "gemm_dw"},
    {"attention", "attention_forward"},
    {"attention", "attention_backward"},
    {"adam", "adam_device"},
    {"adam", "adam_pinned"},
    {"rows", "norm_forward"},
    {"rows", "norm_backward"},
    {"rows", "rope"},
    {"rows", "swiglu_forward"},
    {"rows", "swiglu_backward"},
    {"rows", "add"},
    {"rows", "cast"},
    {"rows", "reduce"},
    {"rows", "head_stats"},
    {"rows", "head_grad"},
    {"rows", "embed_forward"},
    {"rows", "embed_backward"},
};
#define NAME_COUNT (sizeof names / sizeof *names)

/* ---- which rows */

/* Whether the comma-separated list has the word. */
static bool list_has(const char *list, const char *word)
{
    size_t bytes = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == bytes && strncmp(at, word, bytes) == 0)
            return true;
    return false;
}

bool rate_wanted(const struct rate *rate, const char *name)
{
    if (!rate->only || list_has(rate->only, name))
        return true;
    for (size_t i = 0; i < NAME_COUNT; i++)
        if (strcmp(names[i].name, name) == 0)
            return list_has(rate->only, names[i].group);
    return false;
}

static enum weir_status only_check(const char *only)
{
    for (const char *at = only; *at; at += strcspn(at, ","), at += *at == ',') {
        size_t bytes = strcspn(at, ",");
        bool known = false;
        for (size_t i = 0; i < NAME_COUNT; i++)
            known = known ||
                    (strlen(names[i].name) == bytes && !strncmp(at, names[i].name, bytes)) ||
                    (strlen(names[i].group) == bytes && !strncmp(at, names[i].group, bytes));
        if (!known)
            return weir_fail(WEIR_ERR_ARG,
                             "--only: \"%.*s\" is no row; name rows, or groups of copy, gemm, "
                             "attention, adam, rows",
                             (int)bytes, at);
    }
    return WEIR_OK;
}

/* ---- memory of a case */

enum weir_status rate_memory(struct rate *rate, uint64_t bytes, bool zero, void **out)
{
    if (rate->memory_count == RATE_PIECES)
        return weir_fail(WEIR_ERR_STATE, "device_rate: a case has more than %d pieces",
                         RATE_PIECES);
    WEIR_TRY(rate->table->mem_alloc(rate->device, bytes, out));
    rate->memory[rate->memory_count++] = *out;
    if (zero)
        return rate->table->fill(rate->compute, *out, 0, bytes);
    for (uint64_t at = 0; at < bytes; at += rate->values_bytes) {
        uint64_t part = bytes - at < rate->values_bytes ? bytes - at : rate->values_bytes;
        WEIR_TRY(rate->table->copy(rate->compute, (char *)*out + at, rate->values, part,
                                   WEIR_COPY_TO_DEVICE));
    }
    return rate_sync(rate);
}

static enum weir_status pinned_near(struct rate *rate, uint64_t bytes, void **out)
{
    weir_numa_enter(&rate->numa);
    enum weir_status status = rate->table->pin_alloc(rate->device, bytes, out);
    weir_numa_leave(&rate->numa);
    return status;
}

enum weir_status rate_pinned(struct rate *rate, uint64_t bytes, void **out)
{
    if (rate->pinned_count == RATE_PIECES)
        return weir_fail(WEIR_ERR_STATE, "device_rate: a case has more than %d pieces",
                         RATE_PIECES);
    if (bytes > rate->host_bytes - rate->host_used_bytes)
        return weir_fail(WEIR_ERR_NOMEM,
                         "pinned memory: need %llu bytes, %llu of %llu left; raise --host-memory",
                         (unsigned long long)bytes,
                         (unsigned long long)(rate->host_bytes - rate->host_used_bytes),
                         (unsigned long long)rate->host_bytes);
    WEIR_TRY(pinned_near(rate, bytes, out));
    rate->pinned[rate->pinned_count++] = *out;
    rate->host_used_bytes += bytes;
    memset(*out, 0, bytes);
    return WEIR_OK;
}

static enum weir_status memory_return(struct rate *rate)
{
    WEIR_TRY(rate_sync(rate));
    while (rate->memory_count > 0)
        WEIR_TRY(rate->table->mem_free(rate->device, rate->memory[--rate->memory_count]));
    while (rate->pinned_count > 0)
        WEIR_TRY(rate->table->pin_free(rate->device, rate->pinned[--rate->pinned_count]));
    rate->host_used_bytes = 0;
    return WEIR_OK;
}

enum weir_status rate_case_end(struct rate *rate, const char *name, enum weir_status status)
{
    if (status != WEIR_OK && status != WEIR_ERR_NOMEM)
        return status;
    if (status == WEIR_ERR_NOMEM) {
        printf("%-19s left out: %s\n", name, weir_last_error()->text);
        json_array_append_new(
            rate->left_out, json_pack("{s:s, s:s}", "name", name, "why", weir_last_error()->text));
    }
    return memory_return(rate);
}

/* ---- one row */

enum weir_status rate_sync(struct rate *rate)
{
    WEIR_TRY(rate->table->stream_sync(rate->to_device));
    WEIR_TRY(rate->table->stream_sync(rate->to_host));
    return rate->table->stream_sync(rate->compute);
}

static enum weir_status calls_time(struct rate *rate, const struct rate_work *work, uint64_t calls,
                                   double *seconds)
{
    uint64_t began = weir_now_ns();
    for (uint64_t i = 0; i < calls; i++)
        WEIR_TRY(work->run(rate, work->context));
    WEIR_TRY(rate_sync(rate));
    uint64_t took = weir_now_ns() - began;
    *seconds = (double)(took > 0 ? took : 1) * 1e-9;
    return WEIR_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void row_report(struct rate *rate, const struct rate_work *work, const double *seconds,
                       int rounds)
{
    double scale = work->amount * (work->flops ? 1e-12 : 1e-9);
    double median = scale / seconds[rounds / 2];
    double lowest = scale / seconds[rounds - 1], highest = scale / seconds[0];
    const char *unit = work->flops ? "TFLOP/s" : "GB/s";
    printf("%-19s %-32s %-5s %9.4g %-8s %9.4g to %9.4g  %11.1f us", work->name, work->shape,
           work->dtype ? work->dtype : "", median, unit, lowest, highest,
           seconds[rounds / 2] * 1e6);
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:i}", "name", work->name,
                            "shape", work->shape, "dtype", work->dtype ? work->dtype : "", "unit",
                            unit, "rate", median, "lowest", lowest, "highest", highest, "call_s",
                            seconds[rounds / 2], "rounds", rounds);
    if (work->parameters > 0) {
        double parameters = work->parameters / seconds[rounds / 2];
        printf("  %.1f M parameters/s", parameters * 1e-6);
        json_object_set_new(row, "parameters_per_s", json_real(parameters));
    }
    printf("\n");
    fflush(stdout);
    json_array_append_new(rate->rows, row);
}

enum weir_status rate_measure(struct rate *rate, const struct rate_work *work)
{
    if (!rate_wanted(rate, work->name))
        return WEIR_OK;
    double took, total = 0, seconds[ROUNDS_MOST];
    uint64_t calls = 1;
    int rounds = 0;
    WEIR_TRY(calls_time(rate, work, 1, &took)); /* warm */
    WEIR_TRY(calls_time(rate, work, 1, &took));
    while (took < rate->seconds / REPETITIONS && calls < UINT64_C(1) << 20) {
        calls *= 2;
        WEIR_TRY(calls_time(rate, work, calls, &took));
    }
    while (rounds < ROUNDS_LEAST || (total < rate->seconds && rounds < ROUNDS_MOST)) {
        WEIR_TRY(calls_time(rate, work, calls, &took));
        total += took;
        seconds[rounds++] = took / (double)calls;
    }
    qsort(seconds, (size_t)rounds, sizeof *seconds, by_value);
    row_report(rate, work, seconds, rounds);
    return WEIR_OK;
}

/* ---- all of them */

static enum weir_status values_make(struct rate *rate)
{
    rate->values_bytes = VALUES * sizeof(uint16_t);
    WEIR_TRY(pinned_near(rate, rate->values_bytes, &rate->values));
    uint16_t *values = rate->values;
    float drawn[1024];
    for (uint64_t i = 0; i < VALUES; i += 1024) {
        weir_random_normal(1, "device_rate", i, 1024, 1, drawn);
        for (uint64_t k = 0; k < 1024; k++)
            values[i + k] = weir_bf16_from_float(drawn[k]);
    }
    return WEIR_OK;
}

static enum weir_status rate_open(struct rate *rate, const char *device, uint64_t device_bytes)
{
    int node;
    WEIR_TRY(weir_device_find(device, &rate->table));
    WEIR_TRY(rate->table->numa_node(&node));
    weir_numa_open(&rate->numa, node, NULL);
    WEIR_TRY(rate->table->open(&rate->device,
                               &(struct weir_device_options){.memory_bytes = device_bytes,
                                                             .thread_count = rate->thread_count,
                                                             .cpus = weir_numa_cpus(&rate->numa)}));
    const struct weir_device_table *table = rate->table;
    WEIR_TRY(table->stream_create(rate->device, WEIR_ENGINE_COMPUTE, "compute", &rate->compute));
    WEIR_TRY(
        table->stream_create(rate->device, WEIR_ENGINE_TO_DEVICE, "to device", &rate->to_device));
    WEIR_TRY(table->stream_create(rate->device, WEIR_ENGINE_TO_HOST, "to host", &rate->to_host));
    WEIR_TRY(weir_kernels_find(device, &rate->math));
    WEIR_TRY(rate->math->open(&rate->kernels, rate->device, rate->thread_count, NULL, NULL));
    return values_make(rate);
}

static void rate_close(struct rate *rate)
{
    if (rate->values)
        (void)rate->table->pin_free(rate->device, rate->values);
    if (rate->kernels)
        rate->math->close(rate->kernels);
    if (rate->to_host)
        rate->table->stream_destroy(rate->to_host);
    if (rate->to_device)
        rate->table->stream_destroy(rate->to_device);
    if (rate->compute)
        rate->table->stream_destroy(rate->compute);
    if (rate->device)
        rate->table->close(rate->device);
}

static enum weir_status rate_run(struct rate *rate)
{
    printf("%s; a row: median, lowest to highest of its repetitions, time of a call\n",
           rate->math->describe(rate->kernels));
    WEIR_TRY(rate_copies(rate));
    WEIR_TRY(rate_gemms(rate));
    WEIR_TRY(rate_attention(rate));
    WEIR_TRY(rate_adam(rate));
    WEIR_TRY(rate_rows(rate));
    WEIR_TRY(rate_head(rate));
    return rate_embed(rate);
}

static enum weir_status json_write(struct rate *rate, const char *path)
{
    struct weir_device_info info;
    rate->table->info(rate->device, &info);
    json_t *all = json_pack("{s:s, s:s, s:f, s:b, s:O, s:O}", "device", info.name, "kernels",
                            rate->math->describe(rate->kernels), "seconds", rate->seconds, "tiny",
                            rate->tiny, "rows", rate->rows, "left_out", rate->left_out);
    int failed = json_dump_file(all, path, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(all);
    if (failed)
        return weir_fail(WEIR_ERR_IO, "--json \"%s\": cannot be written", path);
    return WEIR_OK;
}

static bool flag_take(struct rate *rate, const char *flag, const char *value, const char **device,
                      const char **json, uint64_t *device_bytes)
{
    char *end = NULL;
    double number = strtod(value, &end);
    bool positive = end != value && *end == '\0' && number > 0;
    if (strcmp(flag, "--device") == 0)
        *device = value;
    else if (strcmp(flag, "--only") == 0)
        rate->only = value;
    else if (strcmp(flag, "--json") == 0)
        *json = value;
    else if (strcmp(flag, "--seconds") == 0 && positive)
        rate->seconds = number;
    else if (strcmp(flag, "--threads") == 0 && positive && number <= 4096)
        rate->thread_count = (int)number;
    else if (strcmp(flag, "--device-memory") == 0 && positive && number < 0x1p30)
        *device_bytes = (uint64_t)(number * 0x1p20);
    else if (strcmp(flag, "--host-memory") == 0 && positive && number < 0x1p30)
        rate->host_bytes = (uint64_t)(number * 0x1p20);
    else
        return false;
    return true;
}

/* A quarter of this machine's memory. */
static uint64_t quarter_bytes(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) / 4 * (uint64_t)sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    const char *device = "cuda", *json = NULL;
    uint64_t device_bytes = 0;
    struct rate rate = {
        .thread_count = weir_thread_cpus(), .seconds = 0.3, .host_bytes = quarter_bytes()};
    bool usable = true;
    for (int i = 1; i < argc && usable; i++) {
        bool tiny = strcmp(argv[i], "--tiny") == 0;
        rate.tiny = rate.tiny || tiny;
        usable = tiny || (i + 1 < argc &&
                          flag_take(&rate, argv[i], argv[i + 1], &device, &json, &device_bytes));
        i += !tiny;
    }
    if (!usable) {
        fprintf(stderr, "usage: device_rate [--device cuda|host] [--only NAME,...] [--seconds S] "
                        "[--threads N] [--device-memory MIB] [--host-memory MIB] [--json FILE] "
                        "[--tiny]\n");
        return 2;
    }
    if (device_bytes == 0) /* the host's device is the host's memory */
        device_bytes = strcmp(device, "host") == 0 ? quarter_bytes() : UINT64_MAX;
    rate.rows = json_array();
    rate.left_out = json_array();
    enum weir_status status = rate.only ? only_check(rate.only) : WEIR_OK;
    if (status == WEIR_OK)
        status = rate_open(&rate, device, device_bytes);
    if (status == WEIR_OK)
        status = rate_run(&rate);
    if (status == WEIR_OK && json)
        status = json_write(&rate, json);
    if (status != WEIR_OK)
        fprintf(stderr, "device_rate: %s\n", weir_last_error()->text);
    rate_close(&rate);
    json_decref(rate.rows);
    json_decref(rate.left_out);
    return status == WEIR_OK ? 0 : status == WEIR_ERR_ARG ? 2 : 1;
}
