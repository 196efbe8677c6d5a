/*
 * A directory that appears whole or not at all: filled under another name, synced, then renamed.
 */
#ifndef WEIR_ZERO_DIRECTORY_H
#define WEIR_ZERO_DIRECTORY_H

#include "core/status.h"
#include <stddef.h>

struct weir_directory {
    char *path;      /* where it will stand */
    char *temporary; /* path.tmp, beside it */
    bool placed;     /* renamed to its place */
};

/* Makes the temporary directory; what an earlier, killed run left under that name is removed. ARG
 * if path, or that name, is something else than a directory, or one that holds what no checkpoint
 * does; UNSUPPORTED if it exists and cannot be exchanged. */
enum weir_status weir_directory_begin(struct weir_directory *directory, const char *path);
/* temporary/name into out. */
enum weir_status weir_directory_path(const struct weir_directory *directory, const char *name,
                                     char *out, size_t out_bytes);
enum weir_status weir_directory_file(const struct weir_directory *directory, const char *name,
                                     const void *bytes, size_t byte_count);
/* Sync the directory, rename it to its place (an existing one is exchanged, then deleted), sync the
 * parent. Ends the directory whatever is returned; where the sync failed, the existing one is left
 * as path.tmp. */
enum weir_status weir_directory_commit(struct weir_directory *directory, struct weir_log *log);
/* A rename in the directory survives a crash once this returns. */
enum weir_status weir_directory_sync(const char *path);
/* Remove a flat directory, never through a link; one that holds directories stays, and is IO.
 * Absent is OK. */
enum weir_status weir_directory_remove(const char *path);
/* Remove what was begun. */
void weir_directory_abandon(struct weir_directory *directory);

#endif
