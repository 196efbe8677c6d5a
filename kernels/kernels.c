#include "kernels/host.h"
#ifdef WEIR_CUDA
#include "kernels/cuda.h"
#endif

#include <string.h>

static const struct weir_kernels_table *const instances[] = {
    &weir_kernels_host,
#ifdef WEIR_CUDA
    &weir_kernels_cuda,
#endif
};

enum weir_status weir_kernels_find(const char *name, const struct weir_kernels_table **out)
{
    for (size_t i = 0; i < sizeof instances / sizeof *instances; i++)
        if (strcmp(instances[i]->name, name) == 0) {
            *out = instances[i];
            return WEIR_OK;
        }
#ifdef WEIR_CUDA
    return weir_fail(WEIR_ERR_UNSUPPORTED, "kernels \"%s\": not built; there are: host, cuda",
                     name);
#else
    return weir_fail(WEIR_ERR_UNSUPPORTED, "kernels \"%s\": not built; there is: host", name);
#endif
}
