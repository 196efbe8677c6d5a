/*
 * A file of the programs' that appears whole or not at all: written beside its place, synced,
 * renamed. A link stays one: what it leads to is replaced. What is there and is no regular file (a
 * device, a pipe) has no place to be renamed to and is written into.
 *
 *     struct replace file;
 *     WEIR_TRY(replace_begin(&file, "profile", path));
 *     enum weir_status status = replace_write(&file, text, strlen(text));
 *     return replace_end(&file, status);
 */
#ifndef WEIR_EXAMPLES_REPLACE_H
#define WEIR_EXAMPLES_REPLACE_H

#include "core/status.h"
#include <limits.h>
#include <stdint.h>

#define REPLACE_SUFFIX ".weir-part"

struct replace {
    const char *what, *path; /* for errors: what is written, and the name that was given */
    char target[PATH_MAX];   /* where the links of path end, whether anything is there or not */
    char beside[PATH_MAX];   /* target with the suffix; "": target itself is written */
    int fd;
    uint64_t byte_count; /* written */
};

/* Finds target and beside, and makes nothing: for those who write beside in their own way, and then
 * call replace_place. */
enum weir_status replace_find(struct replace *replace, const char *what, const char *path);
/* beside takes target's place, or is gone. */
enum weir_status replace_place(const struct replace *replace);

/* The same, and opens what is to be written; what a killed program left beside goes. */
enum weir_status replace_begin(struct replace *replace, const char *what, const char *path);
enum weir_status replace_write(struct replace *replace, const void *bytes, size_t byte_count);
/* status: of what was done since the beginning, and handed back if it is an error: then target is
 * as it was. */
enum weir_status replace_end(struct replace *replace, enum weir_status status);

#endif
