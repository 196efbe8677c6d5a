/*
 * Asynchronous file I/O: one front over an engine chosen by name.
 *
 *     weir_io_open(&io, &(struct weir_io_options){.depth = 32, .log = log});
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
 * Threads: one thread at a time (the driver) calls submit and reap; any thread may call wake. After
 * open and the last file_open and memory_add, nothing is allocated.
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
    uint32_t file; /* from weir_io_file_open */
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
    uint32_t depth;         /* pieces in flight; also threads of the thread engine up to 16 */
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
};

enum weir_status weir_io_open(struct weir_io **out, const struct weir_io_options *options);
const char *weir_io_engine_name(const struct weir_io *io);
void weir_io_close(struct weir_io *io); /* waits for what is in flight; NULL is fine */

/* fd stays the caller's, a regular file. direct: it was opened with O_DIRECT, and needs offsets,
 * sizes and memory at multiples of align_bytes (0: asked from statx, else 4096). Misaligned
 * requests are right but slow: a write of part of a block reads it first and runs alone among the
 * file's writes. name is for error texts, copied. */
enum weir_status weir_io_file_open(struct weir_io *io, const char *name, int fd, bool direct,
                                   uint32_t align_bytes, uint32_t *file);
/* What direct requests must be multiples of; 1: anything goes. */
uint32_t weir_io_file_align_bytes(const struct weir_io *io, uint32_t file);

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
