#include "kernels/host.h"
#ifdef WEIR_CUDA
#include "kernels/cuda.h"
#endif

#include <stdio.h>
#include <string.h>

static const struct weir_kernels_table *const instances[] = {
    &weir_kernels_host,
#ifdef WEIR_CUDA
    &weir_kernels_cuda,
#endif
};
#define INSTANCE_COUNT (sizeof instances / sizeof *instances)

enum weir_status weir_kernels_find(const char *name, const struct weir_kernels_table **out)
{
    char built[128] = "";
    for (size_t i = 0; i < INSTANCE_COUNT; i++) {
        if (strcmp(instances[i]->name, name) == 0) {
            *out = instances[i];
            return WEIR_OK;
        }
        size_t used = strlen(built);
        snprintf(built + used, sizeof built - used, "%s%s", i > 0 ? ", " : "", instances[i]->name);
    }
    return weir_fail(WEIR_ERR_UNSUPPORTED, "kernels \"%s\": not built; there is: %s", name, built);
}
