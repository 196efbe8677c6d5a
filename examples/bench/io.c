#include "examples/bench/io.h"
#include "core/memory.h"
#include "examples/bench/commands.h"
#include "examples/bench/replay_pattern.h"
#include "examples/bench/units.h"

#include <string.h>

enum weir_status io_engines_find(const struct options *options, struct report *report,
                                 struct number_list *engines)
{
    *engines = (struct number_list){.count = 0};
    for (uint32_t e = 0; e < options->engines.count; e++) {
        struct weir_io *io;
        enum weir_status status = weir_io_open(
            &io, &(struct weir_io_options){.engine = engine_names[options->engines.values[e]],
                                           .depth = 1,
                                           .request_count = 1});
        if (status == WEIR_OK)
            engines->values[engines->count++] = options->engines.values[e];
        else if (status == WEIR_ERR_UNSUPPORTED && options->engines.count > 1)
            WEIR_TRY(report_note(report, "left out: %s", weir_last_error()->text));
        else
            return status;
        if (status == WEIR_OK)
            weir_io_close(io);
    }
    return engines->count > 0
               ? WEIR_OK
               : weir_fail(WEIR_ERR_UNSUPPORTED, "--engine: the kernel lets none of them run");
}

/* ---- sweep */

static void points_fill(const struct options *o, const struct number_list *engines,
                        struct io_found *found)
{
    size_t i = 0;
    for (uint32_t p = 0; p < o->patterns.count; p++)
        for (uint32_t e = 0; e < engines->count; e++)
            for (uint32_t b = 0; b < o->blocks.count; b++)
                for (uint32_t d = 0; d < o->depths.count; d++) {
                    struct io_series *series = &found->series[i];
                    series->layout = o->layout;
                    series->point =
                        (struct io_point){.pattern = (enum pattern)o->patterns.values[p],
                                          .engine = engine_names[engines->values[e]],
                                          .block_bytes = o->blocks.values[b],
                                          .depth = (uint32_t)o->depths.values[d]};
                    found->points[i++] = (struct measured){.block_bytes = o->blocks.values[b],
                                                           .depth = series->point.depth,
                                                           .engine = (int)engines->values[e],
                                                           .pattern = (int)o->patterns.values[p]};
                }
}

static void points_rate(struct io_found *found)
{
    for (size_t i = 0; i < found->count; i++) {
        const struct io_series *series = &found->series[i];
        double rates[ROUNDS_MOST];
        memcpy(rates, series->rates, sizeof rates);
        found->points[i].gb_per_s = spread_of(rates, series->round_count).median;
        found->points[i].cpu_s_per_gb =
            series->total.cpu_s * 1e9 /
            (double)(series->total.read_bytes + series->total.written_bytes);
    }
    found->advice = recommend(found->points, found->count);
}

enum weir_status io_sweep(const struct io_files *files, const struct options *o,
                          const struct number_list *engines, struct io_found *found)
{
    found->count = (size_t)o->patterns.count * engines->count * o->blocks.count * o->depths.count;
    WEIR_TRY(weir_alloc(&found->series, found->count, sizeof *found->series, "points"));
    WEIR_TRY(weir_alloc(&found->points, found->count, sizeof *found->points, "points"));
    points_fill(o, engines, found);
    WEIR_TRY(
        io_series_run(&files->target, found->series, found->count, o->rounds, o->seconds, "sweep"));
    points_rate(found);
    return WEIR_OK;
}

void io_found_free(struct io_found *found)
{
    io_series_free(found->series, found->count);
    weir_free(found->points);
    *found = (struct io_found){0};
}

/* ---- in words */

static json_t *direction_add(const struct io_found *found, enum pattern pattern, char *text,
                             size_t room)
{
    const struct measured *like = &found->points[found->advice.index];
    double best = recommend_best(found->points, found->count, (int)pattern),
           rate = recommend_rate(found->points, found->count, like, (int)pattern);
    size_t used = strlen(text);
    if (best <= 0)
        return json_null();
    snprintf(text + used, room - used, "%s%s %.2f GB/s (%.0f %% of the best, %.2f)",
             text[0] ? ", " : "", pattern_names[pattern], rate, 100 * rate / best, best);
    return json_real(rate / best);
}

static enum weir_status advice_add(const struct io_found *found, struct report *report)
{
    const struct measured *point = &found->points[found->advice.index];
    char block[24], rates[256] = "", text[512];
    json_t *fractions[PATTERN_COUNT];
    for (int p = 0; p < PATTERN_COUNT; p++)
        fractions[p] = direction_add(found, (enum pattern)p, rates, sizeof rates);
    snprintf(text, sizeof text,
             "Recommended: blocks of %s, %u in flight on each drive, engine %s: %s.%s",
             bytes_text(point->block_bytes, block), point->depth, engine_names[point->engine],
             rates,
             found->advice.within
                 ? ""
                 : " No point is within 3 % of the best in every direction; this is nearest.");
    return report_set(report, "recommendation",
                      json_pack("{s:s, s:I, s:I, s:b, s:o, s:o, s:o, s:s}", "engine",
                                engine_names[point->engine], "block_bytes",
                                (json_int_t)point->block_bytes, "depth", (json_int_t)point->depth,
                                "within_3_percent", found->advice.within, "read_fraction",
                                fractions[PATTERN_READ], "write_fraction", fractions[PATTERN_WRITE],
                                "mixed_fraction", fractions[PATTERN_MIXED], "text", text));
}

static enum weir_status drives_add(const struct io_files *files, struct report *report)
{
    json_t *drives = json_array();
    double sum = 0;
    for (uint32_t f = 0; f < files->target.file_count; f++)
        sum += files->target.files[f].share;
    for (uint32_t f = 0; f < files->target.file_count; f++) {
        const struct drive *drive = &files->where[f];
        json_t *row = json_pack(
            "{s:s, s:s, s:s, s:s, s:b, s:f}", "path", files->target.files[f].name, "file_system",
            drive->file_system, "device", drive->device, "disks", drive->disks, "direct",
            files->target.files[f].direct, "share", files->target.files[f].share / sum);
        if (json_array_append_new(drives, row) != 0) { /* a NULL is refused too */
            json_decref(drives);
            return report_set(report, "drives", NULL);
        }
        for (uint32_t other = 0; other < f; other++)
            if (*drive->device && strcmp(drive->device, files->where[other].device) == 0)
                WEIR_TRY(report_note(report, "\"%s\" and \"%s\" are on the same device, %s",
                                     files->target.files[other].name, files->target.files[f].name,
                                     drive->device));
    }
    WEIR_TRY(report_set(report, "drives", drives));
    WEIR_TRY(report_set(report, "file_bytes", json_integer((json_int_t)files->target.byte_count)));
    return files->first_gb_per_s > 0
               ? report_set(report, "first_write_gb_per_s", json_real(files->first_gb_per_s))
               : WEIR_OK;
}

static enum weir_status results_add(const struct io_files *files, const struct io_found *found,
                                    struct report *report)
{
    bool cached = false, unregistered = false;
    for (size_t i = 0; i < found->count; i++) {
        json_t *row = io_series_row(&found->series[i], &files->target, "io");
        cached = cached || json_is_true(json_object_get(row, "from_page_cache"));
        unregistered = unregistered || (strcmp(found->series[i].point.engine, "uring") == 0 &&
                                        !found->series[i].total.registered);
        WEIR_TRY(report_row(report, row));
    }
    if (cached)
        WEIR_TRY(report_note(report,
                             "points marked \"page cache\" moved bytes that the kernel did "
                             "not count on their way to storage: they are memory's figures, "
                             "not a drive's"));
    if (unregistered)
        WEIR_TRY(report_note(report, "io_uring registers no memory here, which costs CPU time: "
                                     "raise the limit of locked memory (ulimit -l)"));
    return advice_add(found, report);
}

/* ---- the command */

/* What a later part has no room for is said before the first one is measured. */
static enum weir_status parts_fit(const struct io_files *files, const struct options *o)
{
    for (uint32_t p = 0; p < o->patterns.count && options_want(o, PART_SWEEP); p++)
        for (uint32_t b = 0; b < o->blocks.count; b++)
            for (uint32_t d = 0; d < o->depths.count; d++)
                WEIR_TRY(
                    io_point_fits(&files->target,
                                  &(struct io_point){.pattern = (enum pattern)o->patterns.values[p],
                                                     .block_bytes = o->blocks.values[b],
                                                     .depth = (uint32_t)o->depths.values[d]}));
    if (options_want(o, PART_REPLAY))
        return replay_fits(files->target.byte_count, (uint32_t)o->ring, o->gradients);
    return WEIR_OK;
}

enum weir_status io_parts_measure(const struct io_files *files, const struct options *o,
                                  struct io_found *found, struct report *report)
{
    struct number_list engines;
    WEIR_TRY(parts_fit(files, o));
    if (o->replay_left_out)
        WEIR_TRY(report_note(report, "left out: the replay of training, which writes; --pattern "
                                     "read leaves the file as it is"));
    WEIR_TRY(drives_add(files, report));
    WEIR_TRY(io_engines_find(o, report, &engines));
    struct io_point point = {.engine = engine_names[engines.values[0]],
                             .block_bytes = o->blocks.values[o->blocks.count - 1],
                             .depth = (uint32_t)o->depths.values[o->depths.count - 1]};
    bool sweep = options_want(o, PART_SWEEP);
    if (sweep) {
        WEIR_TRY(io_sweep(files, o, &engines, found));
        WEIR_TRY(results_add(files, found, report));
        point = found->series[found->advice.index].point;
    }
    if (options_want(o, PART_LAYOUTS))
        WEIR_TRY(io_layouts(files, o, &point, report));
    if (options_want(o, PART_REPLAY))
        WEIR_TRY(io_replay(files, o, &point, sweep ? found : NULL, report));
    return WEIR_OK;
}

enum weir_status io_measure(const struct options *options, struct report *report)
{
    struct io_files files;
    struct io_found found = {0};
    WEIR_TRY(io_files_open(&files, options));
    enum weir_status status = io_parts_measure(&files, options, &found, report);
    io_found_free(&found);
    io_files_close(&files);
    return status;
}
