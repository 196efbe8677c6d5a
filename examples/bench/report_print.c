/* The document's results as tables. */
#include "examples/bench/report.h"
#include "examples/bench/units.h"

#include <stdlib.h>
#include <string.h>

#define COLUMNS_MOST 14
#define CELL_BYTES   40

enum form { TEXT, COUNT, BYTES, REAL, YES };

struct column {
    const char *key, *heading;
    enum form form;
    int decimals;  /* REAL */
    double factor; /* REAL: times the value is shown */
};

#define TEXTS(key, heading)                                                                        \
    {                                                                                              \
        key, heading, TEXT, 0, 1                                                                   \
    }
#define COUNTS(key, heading)                                                                       \
    {                                                                                              \
        key, heading, COUNT, 0, 1                                                                  \
    }
#define SIZES(key, heading)                                                                        \
    {                                                                                              \
        key, heading, BYTES, 0, 1                                                                  \
    }
#define MARKS(key, heading)                                                                        \
    {                                                                                              \
        key, heading, YES, 0, 1                                                                    \
    }
#define REALS(key, heading, decimals)                                                              \
    {                                                                                              \
        key, heading, REAL, decimals, 1                                                            \
    }
#define SCALED(key, heading, decimals, factor)                                                     \
    {                                                                                              \
        key, heading, REAL, decimals, factor                                                       \
    }

static const struct table {
    const char *part, *title;
    struct column columns[COLUMNS_MOST];
} tables[] = {
    {"io",
     "Transfers by block and depth (in flight on each drive); writes end with fdatasync, inside "
     "the "
     "clock",
     {TEXTS("pattern", "pattern"), TEXTS("engine", "engine"), SIZES("block_bytes", "block"),
      COUNTS("depth", "depth"), REALS("gb_per_s", "GB/s", 3), REALS("gb_per_s_low", "lowest", 3),
      REALS("gb_per_s_high", "highest", 3), REALS("p50_us", "p50 us", 1),
      REALS("p99_us", "p99 us", 1), REALS("p999_us", "p99.9 us", 1),
      REALS("cpu_s_per_gb", "CPU s/GB", 4), MARKS("from_page_cache", "page cache")}},
    {"layout",
     "What the memory's pages cost: huge pages, pages of 4 KiB, and those scattered",
     {TEXTS("layout", "memory"), TEXTS("pattern", "pattern"), TEXTS("engine", "engine"),
      SIZES("block_bytes", "block"), COUNTS("depth", "depth"), REALS("gb_per_s", "GB/s", 3),
      REALS("gb_per_s_low", "lowest", 3), REALS("gb_per_s_high", "highest", 3),
      REALS("cpu_s_per_gb", "CPU s/GB", 4), MARKS("from_page_cache", "page cache")}},
    {"replay",
     "The pattern of training: windows read, updated and written back while the next ones arrive",
     {TEXTS("update", "update"), TEXTS("gradients", "gradients"), COUNTS("ring", "ring"),
      REALS("read_gb_per_s", "read GB/s", 3), REALS("written_gb_per_s", "write GB/s", 3),
      REALS("gb_per_s", "both", 3), REALS("gb_per_s_low", "lowest", 3),
      REALS("gb_per_s_high", "highest", 3), SCALED("best_fraction", "of the best %", 1, 100),
      SCALED("update_fraction", "update busy %", 1, 100), REALS("cpu_s_per_gb", "CPU s/GB", 4),
      MARKS("from_page_cache", "page cache")}},
    {"step",
     "What the drives take of a step, by what lives there",
     {TEXTS("homes", "on the drives"), SCALED("read_bytes", "read GB", 1, 1e-9),
      SCALED("written_bytes", "written GB", 1, 1e-9), REALS("seconds", "seconds", 2),
      REALS("steps_of_endurance", "steps they last", 0)}},
    {"memory",
     "Memory",
     {TEXTS("operation", "operation"), TEXTS("stores", "stores"), COUNTS("threads", "threads"),
      REALS("gb_per_s", "GB/s", 2), REALS("gb_per_s_low", "lowest", 2),
      REALS("gb_per_s_high", "highest", 2)}},
    {"adam",
     "Adam on the CPU, and an in-place triad with the same stores",
     {TEXTS("dtype", "dtype"), COUNTS("threads", "threads"), COUNTS("parameters", "parameters"),
      REALS("gb_per_s", "GB/s", 2), REALS("ns_per_parameter", "ns a parameter", 3),
      REALS("triad_gb_per_s", "triad GB/s", 2), REALS("ratio", "ratio", 3),
      REALS("ratio_low", "lowest", 3), REALS("ratio_high", "highest", 3)}},
    {"gemm",
     "Products of a layer",
     {TEXTS("model", "model"), TEXTS("dtype", "dtype"), TEXTS("product", "product"),
      COUNTS("m", "m"), COUNTS("n", "n"), COUNTS("k", "k"), COUNTS("count", "count"),
      REALS("gflop_per_s", "GFLOP/s", 0), REALS("rows_gflop_per_s", "plain rows", 0),
      REALS("packed_gflop_per_s", "B packed ahead", 0), REALS("packing_ms", "packing B ms", 2)}},
    {"layer",
     "A layer's products, forward and backward",
     {TEXTS("model", "model"), TEXTS("dtype", "dtype"), COUNTS("tokens", "tokens"),
      REALS("ms", "ms", 2), REALS("gflop_per_s", "GFLOP/s", 0),
      REALS("packed_once_4_ms", "packed once of 4", 2),
      REALS("packed_once_16_ms", "packed once of 16", 2)}},
    {"copy",
     "Copies between host and device",
     {TEXTS("direction", "direction"), SIZES("bytes", "bytes"), REALS("gb_per_s", "GB/s", 2),
      REALS("gb_per_s_low", "lowest", 2), REALS("gb_per_s_high", "highest", 2)}},
};

static void cell_text(const struct column *column, const json_t *row, char out[static CELL_BYTES])
{
    const json_t *value = json_object_get(row, column->key);
    const char *text;
    size_t length;
    char bytes[24];
    snprintf(out, CELL_BYTES, "-");
    if (!value || json_is_null(value))
        return;
    switch (column->form) {
    case TEXT: /* the end of a path tells it from others */
        text = json_string_value(value);
        length = strlen(text);
        snprintf(out, CELL_BYTES, "%s%s", length < CELL_BYTES ? "" : "...",
                 length < CELL_BYTES ? text : text + length - (CELL_BYTES - 4));
        break;
    case COUNT:
        snprintf(out, CELL_BYTES, "%lld", (long long)json_integer_value(value));
        break;
    case BYTES:
        snprintf(out, CELL_BYTES, "%s", bytes_text((uint64_t)json_integer_value(value), bytes));
        break;
    case REAL:
        snprintf(out, CELL_BYTES, "%.*f", column->decimals,
                 json_number_value(value) * column->factor);
        break;
    case YES:
        snprintf(out, CELL_BYTES, "%s", json_is_true(value) ? "YES" : "no");
        break;
    }
}

/* A column is as wide as its widest cell; a column without any value in all rows is left out. */
static void table_print(const struct table *table, const json_t *rows, FILE *out)
{
    const json_t *row;
    size_t i, widths[COLUMNS_MOST] = {0};
    char cell[CELL_BYTES];
    for (int c = 0; c < COLUMNS_MOST && table->columns[c].key; c++) {
        bool any = false;
        widths[c] = strlen(table->columns[c].heading);
        json_array_foreach(rows, i, row)
        {
            if (strcmp(json_string_value(json_object_get(row, "part")), table->part) != 0)
                continue;
            cell_text(&table->columns[c], row, cell);
            any = any || strcmp(cell, "-") != 0;
            widths[c] = strlen(cell) > widths[c] ? strlen(cell) : widths[c];
        }
        widths[c] = any ? widths[c] : 0;
    }
    for (int c = 0; c < COLUMNS_MOST; c++)
        if (widths[c] > 0)
            fprintf(out, table->columns[c].form == TEXT ? "%-*s  " : "%*s  ", (int)widths[c],
                    table->columns[c].heading);
    fprintf(out, "\n");
    json_array_foreach(rows, i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "part")), table->part) != 0)
            continue;
        for (int c = 0; c < COLUMNS_MOST; c++)
            if (widths[c] > 0) {
                cell_text(&table->columns[c], row, cell);
                fprintf(out, table->columns[c].form == TEXT ? "%-*s  " : "%*s  ", (int)widths[c],
                        cell);
            }
        fprintf(out, "\n");
    }
}

static bool part_there(const json_t *rows, const char *part)
{
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "part")), part) == 0)
            return true;
    }
    return false;
}

static void drives_print(const json_t *drives, FILE *out)
{
    const json_t *drive;
    size_t i;
    json_array_foreach(drives, i, drive)
    {
        const char *path, *type, *device, *disks;
        int direct;
        if (json_unpack((json_t *)drive, "{s:s, s:s, s:s, s:s, s:b}", "path", &path, "file_system",
                        &type, "device", &device, "disks", &disks, "direct", &direct) != 0)
            continue;
        fprintf(out, "%s: %s on %s%s%s%s%s\n", path, type,
                *device ? device : "no block device: what reaches storage is not known",
                *disks ? " (" : "", disks, *disks ? ")" : "",
                direct ? ", O_DIRECT" : ", through the page cache");
    }
}

void report_print(const struct report *report, FILE *out)
{
    const json_t *rows = json_object_get(report->root, "results"), *note;
    const json_t *advice = json_object_get(report->root, "recommendation");
    size_t i;
    drives_print(json_object_get(report->root, "drives"), out);
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        if (part_there(rows, tables[t].part)) {
            fprintf(out, "\n%s\n", tables[t].title);
            table_print(&tables[t], rows, out);
        }
    if (advice)
        fprintf(out, "\n%s\n", json_string_value(json_object_get(advice, "text")));
    json_array_foreach(json_object_get(report->root, "notes"), i, note)
    {
        fprintf(out, "note: %s\n", json_string_value(note));
    }
}
