#include "examples/bench/units.h"

#include <math.h>
#include <stdio.h>

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
