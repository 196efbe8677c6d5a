/*
 * The extent: the NVMe tier's bytes, one unlinked file in a directory.
 *
 * Opened O_TMPFILE (else O_EXCL and unlinked at once), so that the kernel frees it however the
 * process ends; O_DIRECT where the file system takes it, else once logged and buffered (an error
 * with require_direct). Free space is checked first (WEIR_ERR_NOSPACE names path, bytes needed and
 * free). Written once in full with zeros, with progress, so that no step touches a never-written
 * block. Path, bytes and pid are logged.
 */
#ifndef WEIR_IO_EXTENT_H
#define WEIR_IO_EXTENT_H

#include "core/status.h"
#include "io/io.h"

struct weir_extent {
    int fd;
    uint32_t file; /* in the io it was opened with */
    uint64_t byte_count;
    bool direct;
    uint32_t align_bytes;
};

typedef void weir_progress_fn(void *context, uint64_t done_bytes, uint64_t all_bytes);

/* Whether `bytes` fit in the directory, without making anything: exists, writable, enough free. */
enum weir_status weir_extent_preflight(const char *directory, uint64_t bytes);

/* A file of `bytes` (a multiple of 4096), written in full through io, which must hold at least two
 * requests and have none outstanding. progress may be NULL. */
enum weir_status weir_extent_open(struct weir_extent *extent, struct weir_io *io,
                                  const char *directory, uint64_t bytes, bool require_direct,
                                  struct weir_log *log, weir_progress_fn *progress,
                                  void *progress_context);
void weir_extent_close(struct weir_extent *extent);

#endif
