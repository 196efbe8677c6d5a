#include "core/memory.h"
#include "examples/bench/io.h"

#define DIRECTIONS 2

enum weir_status io_layouts(const struct io_files *files, const struct options *o,
                            const struct io_point *point, struct report *report)
{
    struct io_series series[LAYOUT_COUNT * DIRECTIONS] = {{.round_count = 0}};
    size_t count = 0;
    for (int l = 0; l < LAYOUT_COUNT; l++)
        for (uint32_t p = 0; p < o->patterns.count; p++) {
            if (o->patterns.values[p] == PATTERN_MIXED)
                continue;
            series[count].point = *point;
            series[count].point.pattern = (enum pattern)o->patterns.values[p];
            series[count++].layout = (enum layout)l;
        }
    if (count == 0)
        return report_note(report, "left out: layouts of memory, which are compared by reads and "
                                   "writes; --pattern mixed is neither");
    enum weir_status status =
        io_series_run(&files->target, series, count, o->rounds, o->seconds, "layouts of memory");
    for (size_t i = 0; i < count; i++) {
        if (status == WEIR_OK)
            status = report_row(report, io_series_row(&series[i], &files->target, "layout"));
        weir_free(series[i].latencies);
    }
    return status;
}
