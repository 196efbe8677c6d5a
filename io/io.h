/*
 * Asynchronous file I/O: one front over an engine chosen by name.
 *
 *     weir_io_open(&io, &(struct weir_io_options){.depth = 32, .request_count = 64, .log = log});
 *     weir_io_file_open(io, "extent", fd, true, 0, &file);
 *     struct weir_io_request request = {.id = 7, .kind = WEIR_IO_READ, .file = file, ...};
 *     weir_io_submit(io, &request, 1);
 *     weir_io_reap(io, results, 16, WEIR_IO_FOREVER, &count);
 *
 * The front splits requests into pieces (piece_bytes), aligns them, pads a tail up to the file's
 * alignment where the file's end allows it, resubmits short transfers from an aligned point,
 * bounces misaligned user memory through its own buffers, retries EINTR and EAGAIN, matches each
 * completion to its request by id and checks every result. A request is complete when all its bytes
 * are moved, or failed once. Requests complete in any order.
 *
 * A volume is a file number whose bytes lie on several files, stripe by stripe. Every file has its
 * own queue: one that is slow, full or broken holds up no request that does not touch it.
 *
 * Threads: one thread at a time (the driver) calls submit and reap; any thread may call wake. After
 * open and the last file_open, volume_open, file_verify and memory_add, nothing is allocated.
 */
#ifndef WEIR_IO_IO_H
#define WEIR_IO_IO_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>

struct weir_io;
struct weir_io_engine_table;
#define WEIR_IO_FOREVER UINT64_MAX

enum weir_io_kind { WEIR_IO_READ, WEIR_IO_WRITE };

struct weir_io_request {
    uint64_t id;
    enum weir_io_kind kind;
    uint32_t file; /* from weir_io_file_open or weir_io_volume_open */
    uint64_t offset_bytes;
    void *bytes; /* borrowed until the request's result was reaped */
    uint64_t byte_count;
};

struct weir_io_result {
    uint64_t id;
    enum weir_status status; /* WEIR_OK: all byte_count bytes were moved */
    struct weir_error error; /* filled when status is not WEIR_OK */
};

struct weir_io_options {
    const char *engine;     /* "uring", "threads"; NULL: the best that works, logged if not uring */
    uint32_t depth;         /* pieces of one file in flight */
    uint32_t drive_count;   /* files that may have so many at once; 0: 1 */
    uint32_t request_count; /* most requests outstanding; submit beyond it is WEIR_ERR_STATE */
    uint64_t piece_bytes;   /* 0: 1 MiB; a multiple of 4096, at most 1 GiB */
    bool require_direct;    /* a file without O_DIRECT is an error, not a logged fallback */
    bool require_registered; /* the same for memory that the engine does not register */
    struct weir_log *log;
    const struct weir_io_engine_table *engine_table; /* instead of a name; NULL: by name */
};

struct weir_io_counters {
    uint64_t read_bytes, written_bytes; /* as the kernel moved them, padding included */
    uint64_t read_ns, write_ns; /* time during which at least one such piece was in flight */
    uint64_t bounced_bytes, resubmitted_count;
    uint64_t verified_bytes, verify_ns; /* hashed, and what that took of the calling thread */
};

enum weir_status weir_io_open(struct weir_io **out, const struct weir_io_options *options);
const char *weir_io_engine_name(const struct weir_io *io);
void weir_io_close(struct weir_io *io); /* waits for what is in flight; NULL is fine */

/* ---- files */

/* fd stays the caller's, a regular file. direct: it was opened with O_DIRECT, and needs offsets,
 * sizes and memory at multiples of align_bytes (0: asked from the system). Misaligned requests are
 * right but slow: a write of part of a block reads it first and runs alone among the file's writes.
 * A file system may take O_DIRECT at open and refuse it at the first transfer: then the front takes
 * the flag off fd, logs that once and goes on (require_direct: the request is
 * WEIR_ERR_UNSUPPORTED). name is for error texts, copied. */
enum weir_status weir_io_file_open(struct weir_io *io, const char *name, int fd, bool direct,
                                   uint32_t align_bytes, uint32_t *file);
/* What direct requests must be multiples of; 1: anything goes. Of a volume: of all its files. */
uint32_t weir_io_file_align_bytes(const struct weir_io *io, uint32_t file);
/* Transfers pass by the page cache, as far as is known by now. Of a volume: on all its files. */
bool weir_io_file_direct(const struct weir_io *io, uint32_t file);

/* This file's own depth (1 to the front's) and piece (at most the front's, a multiple of 4096 and
 * of the file's alignment): drives differ in what they like best. Not of a volume; with no request
 * outstanding. */
enum weir_status weir_io_file_tune(struct weir_io *io, uint32_t file, uint32_t depth,
                                   uint64_t piece_bytes);

/*
 * From now on every read is compared with what was written: one hash (XXH3, low 32 bits) for each
 * 4096 bytes, taken when a write is queued and compared when a read is complete, also when a write
 * of part of a block reads it. Bytes that were not written since are not compared. The file's
 * alignment becomes at least 4096, so that hashes are of whole blocks.
 *
 * A block that differs fails the request: WEIR_ERR_CORRUPT with file, offset and both hashes. So
 * does a block whose last write failed.
 *
 * pre:     no request outstanding; not a volume; byte_count is the file's length and a multiple of
 *          its alignment and 4096; requests stay below it. Once a file
 * returns: WEIR_ERR_NOMEM  no memory for weir_io_verify_bytes(byte_count)
 */
enum weir_status weir_io_file_verify(struct weir_io *io, uint32_t file, uint64_t byte_count);
uint64_t weir_io_verify_bytes(uint64_t byte_count); /* heap that the hashes of a file take */

/* What one file has moved, for wear and for reports; a volume: the sums over its files. */
void weir_io_file_count(const struct weir_io *io, uint32_t file, struct weir_io_counters *out);

/* ---- volumes */

#define WEIR_IO_DRIVES_MOST  16u
#define WEIR_IO_STRIPES_MOST 64u /* of one cycle */

/*
 * One linear file over `count` files (1 to WEIR_IO_DRIVES_MOST, each once), in proportion to
 * shares[] (finite, not negative, one of them positive; a share of 0 leaves its file out).
 *
 * The volume is cut into stripes. A cycle of at most WEIR_IO_STRIPES_MOST stripes has some of each
 * file, by its share, interleaved as evenly as that allows; every positive share has at least one,
 * so one far below 1/WEIR_IO_STRIPES_MOST of the sum slows the others: better left out. The bytes
 * of a linear range on one file are one range of that file. A request is complete when its part on
 * each file is; one failure is the request's, and its text names the file. Pieces end where a
 * stripe is followed by one of another file.
 *
 * pre:     no request outstanding; stripe_bytes is a multiple of 4096 and of each file's alignment
 * returns: WEIR_ERR_ARG    a number is out of range, or a file is a volume
 *          WEIR_ERR_NOMEM
 */
enum weir_status weir_io_volume_open(struct weir_io *io, const char *name, const uint32_t *files,
                                     const double *shares, uint32_t count, uint64_t stripe_bytes,
                                     uint32_t *volume);
/* bytes[i]: how long file i of such a volume must be for byte_count linear bytes. Their sum is
 * byte_count. Nothing is opened; the errors are those of weir_io_volume_open. */
enum weir_status weir_io_volume_share(const double *shares, uint32_t count, uint64_t stripe_bytes,
                                      uint64_t byte_count, uint64_t *bytes);

/* ---- memory, requests */

/* Most requests will lie in bytes[0..byte_count), which stay as they are until close: the engine
 * registers them with the kernel if it can, a refusal is logged once. With no request outstanding;
 * others may lie anywhere. */
enum weir_status weir_io_memory_add(struct weir_io *io, void *bytes, uint64_t byte_count);
/* Whether all memory that was added is registered; false if none was. */
bool weir_io_memory_registered(const struct weir_io *io);

/* All requests or none are taken. Requests outstanding together must not overlap if one writes. */
enum weir_status weir_io_submit(struct weir_io *io, const struct weir_io_request *requests,
                                size_t count);
/* Wait until at least one request is complete, the time is over, or wake was called since the last
 * reap; fills results[0..*count). timeout_ns 0: never waits. A failed request is a result, not a
 * failure of reap; what reap itself returns is a failure of the engine, and stays. */
enum weir_status weir_io_reap(struct weir_io *io, struct weir_io_result *results, size_t capacity,
                              uint64_t timeout_ns, size_t *count);
/* Make the current or next reap return. Async-signal-unsafe, any thread. Gives no happens-before:
 * the caller orders its own data (so that ThreadSanitizer sees when it does not). */
void weir_io_wake(struct weir_io *io);

void weir_io_count(const struct weir_io *io, struct weir_io_counters *out);

#endif
