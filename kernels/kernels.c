#include "kernels/host.h"

#include <string.h>

static const struct weir_kernels_table *const instances[] = {&weir_kernels_host};

enum weir_status weir_kernels_find(const char *name, const struct weir_kernels_table **out)
{
    for (size_t i = 0; i < sizeof instances / sizeof *instances; i++)
        if (strcmp(instances[i]->name, name) == 0) {
            *out = instances[i];
            return WEIR_OK;
        }
    return weir_fail(WEIR_ERR_UNSUPPORTED, "kernels \"%s\": not built; there is: host", name);
}
