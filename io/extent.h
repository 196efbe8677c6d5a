/*
 * The extent: the NVMe tier's bytes, one linear file over one unlinked file in each directory.
 *
 * Opened O_TMPFILE (else O_EXCL and unlinked at once), so that the kernel frees it however the
 * process ends; O_DIRECT where the file system takes it, else once logged and buffered (an error
 * where the front requires it). Free space is checked first. Preallocated and written once in full
 * with zeros, all drives at once, with progress, so that no step touches a never-written block.
 * Paths, bytes and pid are logged.
 *
 *     struct weir_extent_place places[] = {{"/nvme0", 6.5e9}, {"/nvme1", 3.2e9}};
 *     weir_extent_open(&extent, io, &(struct weir_extent_options){
 *                                       .places = places, .place_count = 2, .byte_count = bytes});
 *     ... requests to extent.file ...
 *
 * Bytes are spread by rate: with several directories the extent is a volume (io/io.h). A drive that
 * has not the space for its share takes what it holds, less a margin, and the others take the rest:
 * that is logged with numbers. Directories on one file system share its free space, by rate.
 */
#ifndef WEIR_IO_EXTENT_H
#define WEIR_IO_EXTENT_H

#include "core/status.h"
#include "io/io.h"

struct weir_extent_place {
    const char *directory;
    double bytes_per_s; /* against the others'; of a single place it does not matter */
};

struct weir_extent_drive {
    char *path; /* the directory */
    int fd;
    uint32_t file;       /* in the io */
    uint64_t byte_count; /* 0: left out, no file was made */
    double share;        /* of the extent's bytes */
};

struct weir_extent {
    uint32_t file;       /* the volume, or the only drive's file, in the io it was opened with */
    uint64_t byte_count; /* 0: not open */
    bool direct;         /* on all drives */
    uint32_t drive_count;
    struct weir_extent_drive drives[WEIR_IO_DRIVES_MOST]; /* as the places */
};

typedef void weir_progress_fn(void *context, uint64_t done_bytes, uint64_t all_bytes);

struct weir_extent_options {
    const struct weir_extent_place *places; /* different directories */
    uint32_t place_count;                   /* 1 to WEIR_IO_DRIVES_MOST */
    uint64_t byte_count;                    /* a positive multiple of 4096 */
    bool verify; /* weir_io_file_verify on all; takes weir_extent_verify_bytes of heap */
    struct weir_log *log;
    weir_progress_fn *progress; /* NULL: none */
    void *progress_context;
};

/* Whether the bytes fit in the directories, without making anything: all exist, can be written, and
 * have enough free between them. WEIR_ERR_NOSPACE names the bytes needed and free, in sum and of
 * the path that is short. */
enum weir_status weir_extent_preflight(const struct weir_extent_place *places, uint32_t count,
                                       uint64_t bytes);

/* io holds at least two requests for each place, none outstanding, and its drive_count is at least
 * place_count. */
enum weir_status weir_extent_open(struct weir_extent *extent, struct weir_io *io,
                                  const struct weir_extent_options *options);
/* After weir_io_close: what is in flight uses the files. Fine on one that did not open or is
 * zeroed. */
void weir_extent_close(struct weir_extent *extent);

/* At most so much heap for the hashes of an extent. */
uint64_t weir_extent_verify_bytes(uint64_t byte_count, uint32_t place_count);

#endif
