#include "core/device.h"
#ifdef WEIR_CUDA
#include "core/cuda.h"
#endif
#include "core/host.h"

#include <stdio.h>
#include <string.h>

/* The instances that were built; callers choose by name. */
static const struct weir_device_table *const instances[] = {
    &weir_host_table,
#ifdef WEIR_CUDA
    &weir_cuda_table,
#endif
};
#define INSTANCE_COUNT (sizeof instances / sizeof *instances)

enum weir_status weir_device_find(const char *name, const struct weir_device_table **out)
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
    return weir_fail(WEIR_ERR_UNSUPPORTED, "device \"%s\": not in this build; built: %s", name,
                     built);
}
