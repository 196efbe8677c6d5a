/*
 * The engine table under io.c: moves pieces, no policy. Instances: uring, threads.
 *
 * CONTRACT: one thread at a time calls queue, submit and reap; wake from any thread. A piece is
 * aligned as its file needs, and at most 1 GiB. Each queued piece yields exactly one completion
 * with the kernel's own result (bytes moved, or -errno). queue returns false when `depth` pieces
 * are in flight. reap waits at most timeout_ns for one completion or a wake; a wake is kept until a
 * reap returns no completion, so that none is lost among completions that finish no request. close
 * waits for what is in flight. A completion happens after the piece's transfer; wake gives no
 * order.
 *
 * memory and file tell of what most pieces will use, with nothing in flight: the engine may
 * register it with the kernel. Pieces may use anything else as well. Both lie as they are until
 * close; a descriptor's number that was reused is told of again.
 *
 * An engine that the kernel refuses, or memory that it will not register, is WEIR_ERR_UNSUPPORTED
 * with cause and remedy: the front decides whether to do without.
 */
#ifndef WEIR_IO_ENGINE_H
#define WEIR_IO_ENGINE_H

#include "io/io.h"

struct weir_io_engine;

struct weir_io_piece {
    uint64_t token; /* the front's, below UINT64_MAX - 1; returned in the completion */
    enum weir_io_kind kind;
    int fd;
    uint64_t offset_bytes;
    void *bytes;
    uint64_t byte_count;
};

struct weir_io_completion {
    uint64_t token;
    int64_t result; /* bytes moved, or -errno */
};

struct weir_io_engine_table {
    const char *name;
    enum weir_status (*open)(struct weir_io_engine **out, uint32_t depth, struct weir_log *log);
    void (*close)(struct weir_io_engine *engine);
    enum weir_status (*memory)(struct weir_io_engine *engine, void *bytes, uint64_t byte_count,
                               bool *registered);
    void (*file)(struct weir_io_engine *engine, int fd);
    bool (*queue)(struct weir_io_engine *engine, const struct weir_io_piece *piece);
    enum weir_status (*submit)(struct weir_io_engine *engine); /* start all that is queued */
    enum weir_status (*reap)(struct weir_io_engine *engine, struct weir_io_completion *out,
                             size_t capacity, uint64_t timeout_ns, size_t *count);
    void (*wake)(struct weir_io_engine *engine);
};

extern const struct weir_io_engine_table weir_io_uring; /* where liburing is */
extern const struct weir_io_engine_table weir_io_threads;

/* The engines that were built, best first; NULL past the end. */
const struct weir_io_engine_table *weir_io_engine_at(size_t index);
/* WEIR_ERR_UNSUPPORTED lists what was built. */
enum weir_status weir_io_engine_find(const char *name, const struct weir_io_engine_table **out);

#endif
