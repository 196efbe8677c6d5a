/*
 * The inside of the front: io.c keeps files and requests and talks to the engine; piece.c cuts
 * requests into pieces, chooses which goes next and judges what comes back. All of it belongs to
 * the one thread that submits and reaps.
 *
 * A request is idle, waiting (some bytes not yet cut), in its pieces, or finished. A piece is idle,
 * in the engine, or waits to go again; its place in the array is the low half of its token.
 */
#ifndef WEIR_IO_IO_INTERNAL_H
#define WEIR_IO_IO_INTERNAL_H

#include "io/engine.h"

#define WEIR_IO_NONE         UINT32_MAX
#define WEIR_IO_KINDS        2
#define WEIR_IO_BOUNCES_MOST 4u
#define WEIR_IO_ALIGN_MOST   65536u /* bytes */

struct weir_io_file {
    char *name;
    int fd;
    uint32_t align_bytes; /* 1: not direct */
    uint32_t write_count; /* its write pieces, from cut to end */
    bool alone;           /* its one write piece reads, changes and writes back part of a block */
};

struct weir_io_slot { /* an outstanding request */
    struct weir_io_request request;
    uint64_t cut_bytes;      /* of the request, in pieces made so far */
    uint32_t piece_count;    /* made and not ended */
    struct weir_error error; /* of the first piece that failed */
};

struct weir_io_part { /* a piece */
    uint32_t slot;
    uint32_t generation; /* how often this entry was queued: the high half of its token */
    bool in_engine;
    enum weir_io_kind
        kind;             /* what it does now: a write that must read its blocks first is a READ */
    uint64_t first, last; /* the request's bytes in the file */
    uint64_t low, high;   /* the bytes moved: the same, or widened to whole blocks */
    uint64_t need_bytes;  /* from low; a transfer that the file's end cuts short is still whole */
    uint64_t done_bytes;  /* from low */
    unsigned char *bytes; /* of low: the caller's, or a bounce */
    uint32_t bounce;      /* or WEIR_IO_NONE */
    uint64_t file_bytes;  /* alone: the file's size before */
    uint32_t stall_count; /* completions in a row that brought nothing */
};

/* A queue of array places; queues over one array share `next`, as a place is in one at a time. */
struct weir_io_list {
    uint32_t first, last;
    uint32_t *next;
};
void weir_io_list_push(struct weir_io_list *list, uint32_t place);
uint32_t weir_io_list_pop(struct weir_io_list *list); /* WEIR_IO_NONE: empty */

struct weir_io {
    const struct weir_io_engine_table *table;
    struct weir_io_engine *engine;
    struct weir_error engine_error; /* sticky */
    struct weir_log *log;
    bool require_direct, require_registered;
    bool memory_registered, memory_refused;
    uint32_t depth;
    uint64_t piece_bytes;

    struct weir_io_file *files;
    size_t file_count, file_capacity;

    struct weir_io_slot *slots;
    uint32_t *slot_next;
    uint32_t slot_count, slot_idle_count;
    struct weir_io_list idle, waiting[WEIR_IO_KINDS], finished;
    uint32_t read_turns; /* read pieces cut in a row while a write waited */

    struct weir_io_part *parts; /* depth of them */
    uint32_t *part_next;
    struct weir_io_list part_idle, part_again;
    struct weir_io_completion *completions; /* depth of them */

    unsigned char *bounce_memory;
    unsigned char *bounces[WEIR_IO_BOUNCES_MOST]; /* aligned, piece_bytes each; NULL: in use */
    uint32_t bounce_count;

    uint32_t in_flight[WEIR_IO_KINDS];
    uint64_t busy_since_ns[WEIR_IO_KINDS];
    uint64_t busy_ns[WEIR_IO_KINDS];
    struct weir_io_counters counters;
};

/* The piece to queue next: it is out of every list. WEIR_IO_NONE: nothing can start now. */
uint32_t weir_io_part_next(struct weir_io *io);
/* What the engine brought for a piece: it goes again, or ends and maybe finishes its request. */
void weir_io_part_settle(struct weir_io *io, uint32_t part, int64_t result);

#endif
