#include "io/engine.h"

#include <stdio.h>
#include <string.h>

static const struct weir_io_engine_table *const engines[] = {
#ifdef WEIR_URING
    &weir_io_uring,
#endif
    &weir_io_threads,
};
#define ENGINE_COUNT (sizeof engines / sizeof engines[0])

const struct weir_io_engine_table *weir_io_engine_at(size_t index)
{
    return index < ENGINE_COUNT ? engines[index] : NULL;
}

enum weir_status weir_io_engine_find(const char *name, const struct weir_io_engine_table **out)
{
    char built[128] = "";
    for (size_t i = 0; i < ENGINE_COUNT; i++) {
        if (name != NULL && strcmp(name, engines[i]->name) == 0) {
            *out = engines[i];
            return WEIR_OK;
        }
        size_t length = strlen(built);
        snprintf(built + length, sizeof built - length, " %s", engines[i]->name);
    }
    return weir_fail(WEIR_ERR_UNSUPPORTED, "io engine \"%s\": not built; choose one of:%s",
                     name != NULL ? name : "", built);
}
