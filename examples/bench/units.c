#include "examples/bench/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    double bytes;
} units[] = {{"", 1},         {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
             {"TiB", 0x1p40}, {"K", 0x1p10}, {"M", 0x1p20},   {"G", 0x1p30},   {"T", 0x1p40},
             {"KB", 1e3},     {"MB", 1e6},   {"GB", 1e9},     {"TB", 1e12}};

enum weir_status bytes_parse(const char *flag, const char *text, size_t length, uint64_t *out)
{
    char word[32], *end;
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    double value = strtod(word, &end);
    for (size_t i = 0; end != word && i < sizeof units / sizeof *units; i++) {
        double bytes = value * units[i].bytes;
        if (strcmp(end, units[i].name) != 0 || !(bytes >= 1) || bytes >= 0x1p60 ||
            bytes != floor(bytes))
            continue;
        *out = (uint64_t)bytes;
        return WEIR_OK;
    }
    return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is not a size; write 128KiB, 8MiB or 4GB", flag,
                     (int)length, text);
}

const char *bytes_text(uint64_t bytes, char out[static 24])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    double value = (double)bytes;
    for (; unit < 4 && value >= 1024; unit++)
        value /= 1024;
    snprintf(out, 24, value == floor(value) ? "%.0f %s" : "%.1f %s", value, names[unit]);
    return out;
}
