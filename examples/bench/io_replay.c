#include "examples/bench/io.h"
#include "examples/bench/progress.h"
#include "examples/bench/replay_pattern.h"

#define NS_LEAST 1000000000u /* of a round: the ring fills and drains in each */

double io_mix_best(const struct measured *points, size_t count, double read_bytes,
                   double written_bytes)
{
    double read = recommend_best(points, count, PATTERN_READ),
           write = recommend_best(points, count, PATTERN_WRITE),
           mixed = recommend_best(points, count, PATTERN_MIXED);
    double turns = read > 0 && write > 0
                       ? (read_bytes + written_bytes) / (read_bytes / read + written_bytes / write)
                       : 0;
    return turns > mixed ? turns : mixed;
}

/* ---- what it means for a step (bytes a parameter and step: docs/bench.md) */

static const struct {
    const char *homes;
    double read_bytes, written_bytes; /* a parameter */
} homes[] = {
    {"states", 10, 10},
    {"states and weights", 14, 12},
    {"states, weights, bf16 gradients", 16, 14},
    {"states, weights, fp32 gradients", 18, 16},
};

static enum weir_status steps_add(const struct options *o, double gb_per_s, struct report *report)
{
    for (size_t h = 0; h < sizeof homes / sizeof *homes; h++) {
        double read = homes[h].read_bytes * o->parameters,
               written = homes[h].written_bytes * o->parameters;
        json_t *steps = o->endurance > 0 ? json_real(o->endurance * 1e12 / written) : json_null();
        WEIR_TRY(report_row(report, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:o}", "part", "step",
                                              "homes", homes[h].homes, "parameters", o->parameters,
                                              "read_bytes", read, "written_bytes", written,
                                              "seconds", (read + written) / gb_per_s / 1e9,
                                              "steps_of_endurance", steps)));
    }
    return WEIR_OK;
}

/* ---- the replay */

struct rounds {
    double rates[ROUNDS_MOST];
    struct replay_sample total;
};

static enum weir_status rounds_run(struct replay *replay, const struct options *o,
                                   struct rounds *rounds)
{
    uint64_t ns = (uint64_t)(o->seconds * 1e9);
    for (uint64_t i = 0; i < o->rounds; i++) {
        struct replay_sample sample;
        progress_step("round %llu", (unsigned long long)i + 1);
        WEIR_TRY(replay_run(replay, ns > NS_LEAST ? ns : NS_LEAST, &sample));
        rounds->rates[i] =
            (double)(sample.io.read_bytes + sample.io.written_bytes) / (double)sample.io.ns;
        io_sample_add(&rounds->total.io, &sample.io);
        rounds->total.window_count += sample.window_count;
        rounds->total.update_ns += sample.update_ns;
    }
    return WEIR_OK;
}

static json_t *replay_row(const struct options *o, const struct io_point *point,
                          const struct io_found *found, struct rounds *rounds)
{
    static const char *const gradient_names[] = {"none", "bf16", "fp32"};
    const struct io_sample *io = &rounds->total.io;
    struct spread rate = spread_of(rounds->rates, (uint32_t)o->rounds);
    double read = (double)io->read_bytes, written = (double)io->written_bytes;
    double best = found ? io_mix_best(found->points, found->count, read, written) : 0;
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:f, s:I, "
        "s:I, s:I, s:f, s:o, s:b}",
        "part", "replay", "update", o->update == UPDATE_NONE ? "none" : "adam", "gradients",
        gradient_names[o->gradients], "ring", (json_int_t)o->ring, "engine", point->engine,
        "block_bytes", (json_int_t)point->block_bytes, "depth", (json_int_t)point->depth,
        "gb_per_s", rate.median, "gb_per_s_low", rate.low, "gb_per_s_high", rate.high,
        "read_gb_per_s", rate.median * read / (read + written), "written_gb_per_s",
        rate.median * written / (read + written), "best_gb_per_s",
        best > 0 ? json_real(best) : json_null(), "best_fraction",
        best > 0 ? json_real(rate.median / best) : json_null(), "update_fraction",
        (double)rounds->total.update_ns / (double)io->ns, "cpu_s_per_gb",
        io->cpu_s / (read + written) * 1e9, "window_count", (json_int_t)rounds->total.window_count,
        "read_bytes", (json_int_t)io->read_bytes, "written_bytes", (json_int_t)io->written_bytes,
        "seconds", (double)io->ns * 1e-9, "kernel", kernel_counters_row(&io->counted),
        "from_page_cache", kernel_counters_missed(&io->counted, io->read_bytes, io->written_bytes));
}

enum weir_status io_replay(const struct io_files *files, const struct options *o,
                           const struct io_point *point, const struct io_found *found,
                           struct report *report)
{
    struct replay *replay;
    struct rounds rounds = {.rates = {0}};
    progress_begin("replay of training", (uint32_t)o->rounds + 1);
    progress_step("writing states");
    WEIR_TRY(replay_open(&replay, &files->target,
                         &(struct replay_options){.engine = point->engine,
                                                  .piece_bytes = point->block_bytes,
                                                  .depth = point->depth,
                                                  .ring = (uint32_t)o->ring,
                                                  .gradients = (enum gradients)o->gradients,
                                                  .update = o->update == UPDATE_ADAM,
                                                  .thread_count = (int)o->threads.values[0]}));
    enum weir_status status = rounds_run(replay, o, &rounds);
    replay_close(replay);
    progress_end();
    WEIR_TRY(status);
    json_t *row = replay_row(o, point, found, &rounds);
    double rate = json_number_value(json_object_get(row, "gb_per_s"));
    WEIR_TRY(report_row(report, row));
    return o->parameters > 0 ? steps_add(o, rate, report) : WEIR_OK;
}
