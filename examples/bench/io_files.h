/*
 * The files that are measured: extents as training makes them, one in each directory, or one file
 * that was there. They are written in full twice: first with zeros, as the library does, then with
 * bytes that do not compress, so that no layer below can leave anything out. Several directories
 * are measured alone for a moment, and spread over by rate.
 */
#ifndef WEIR_BENCH_IO_FILES_H
#define WEIR_BENCH_IO_FILES_H

#include "examples/bench/io_point.h"
#include "io/extent.h"

struct io_files {
    struct io_target target;
    struct drives drives;
    struct drive where[FLAG_LIST_MOST];         /* of each file */
    struct weir_extent extents[FLAG_LIST_MOST]; /* of one directory each; not of --file */
    int given_fd;                               /* of --file; -1: none */
    double first_gb_per_s; /* of the first writing, of blocks never written before; 0: --file */
    bool direct;           /* all of them */
};

/* Says progress on stderr. On failure nothing is left. */
enum weir_status io_files_open(struct io_files *files, const struct options *options);
void io_files_close(struct io_files *files);

#endif
