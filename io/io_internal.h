/*
 * The inside of the front: io.c keeps requests and talks to the engine; file.c keeps files;
 * volume.c knows which byte lies on which of them; piece.c cuts requests into pieces, chooses which
 * goes next and judges what comes back; verify.c hashes. All of it belongs to the one thread that
 * submits and reaps.
 *
 * A request has one strand for each file that holds some of its bytes. A strand waits in its file's
 * list while some bytes are not yet cut, and is done when its pieces have ended. A piece is idle,
 * in the engine, or waits to go again; its place in the array is the low half of its token.
 */
#ifndef WEIR_IO_IO_INTERNAL_H
#define WEIR_IO_IO_INTERNAL_H

#include "io/engine.h"

#define WEIR_IO_NONE         UINT32_MAX
#define WEIR_IO_KINDS        2
#define WEIR_IO_BOUNCES_MOST 4u     /* of one file */
#define WEIR_IO_ALIGN_MOST   65536u /* bytes */
#define WEIR_IO_VERIFY_BYTES 4096u  /* of one hash */

/* A queue of array places; queues over one array share `next`, as a place is in one at a time. */
struct weir_io_list {
    uint32_t first, last;
    uint32_t *next;
};
struct weir_io_list weir_io_list_make(uint32_t *next);
void weir_io_list_push(struct weir_io_list *list, uint32_t place);
uint32_t weir_io_list_pop(struct weir_io_list *list);                /* WEIR_IO_NONE: empty */
void weir_io_list_remove(struct weir_io_list *list, uint32_t place); /* which is in it */

struct weir_io_meter {
    uint32_t in_flight[WEIR_IO_KINDS];
    uint64_t busy_since_ns[WEIR_IO_KINDS]; /* while in_flight is not 0 */
    struct weir_io_counters counters;      /* times without what is in flight now */
};
void weir_io_meter_begin(struct weir_io_meter *meter, enum weir_io_kind kind);
void weir_io_meter_end(struct weir_io_meter *meter, enum weir_io_kind kind);
void weir_io_meter_read(const struct weir_io_meter *meter, struct weir_io_counters *out);

/* How stripes go round over drives; the same cycle again and again. */
struct weir_io_stripes {
    uint64_t stripe_bytes;
    uint32_t drive_count, cycle_count;                         /* stripes of a cycle */
    uint8_t drives[WEIR_IO_STRIPES_MOST];                      /* whose each is */
    uint8_t counts[WEIR_IO_DRIVES_MOST];                       /* each drive's of a cycle */
    uint8_t upto[WEIR_IO_DRIVES_MOST][WEIR_IO_STRIPES_MOST];   /* before a stripe of the cycle */
    uint8_t places[WEIR_IO_DRIVES_MOST][WEIR_IO_STRIPES_MOST]; /* of a drive's nth stripe */
};
enum weir_status weir_io_stripes_make(struct weir_io_stripes *out, const double *shares,
                                      uint32_t count, uint64_t stripe_bytes);
/* How many of the first linear_bytes lie on the drive: also where in its file the next one lies. */
uint64_t weir_io_stripes_local(const struct weir_io_stripes *stripes, uint32_t drive,
                               uint64_t linear_bytes);
/* The linear offset of a drive's byte. */
uint64_t weir_io_stripes_linear(const struct weir_io_stripes *stripes, uint32_t drive,
                                uint64_t local_bytes);
/* How many bytes from a linear offset on follow each other on one drive; stops counting at most. */
uint64_t weir_io_stripes_run(const struct weir_io_stripes *stripes, uint64_t linear_bytes,
                             uint64_t most_bytes);

struct weir_io_volume {
    struct weir_io_stripes stripes;
    uint32_t files[WEIR_IO_DRIVES_MOST];
};

struct weir_io_file {
    char *name;
    struct weir_io_volume *volume; /* NULL: a file; else only name and volume are used */
    int fd;
    bool direct;           /* fd has O_DIRECT */
    bool direct_proven;    /* and a transfer was complete with it */
    uint32_t align_bytes;  /* 1: any */
    uint32_t depth;        /* its most pieces */
    uint64_t piece_bytes;  /* of one */
    uint32_t piece_count;  /* made and not ended */
    uint32_t bounce_count; /* that they hold */

    struct weir_io_list waiting[WEIR_IO_KINDS]; /* strands */
    uint32_t read_turns;                        /* read pieces cut in a row while a write waited */
    uint32_t write_count;                       /* its write pieces, from cut to end */
    uint32_t odd_read_count; /* its read pieces of parts of blocks; verified files count them */
    bool alone; /* its one write piece reads, changes and writes back part of a block */

    uint32_t *hashes;        /* of each block: 0 if it was not written; NULL: not verified */
    uint64_t verified_bytes; /* the length that they are of */
    struct weir_io_meter meter;
};

struct weir_io_slot { /* an outstanding request */
    struct weir_io_request request;
    uint32_t strand_count;   /* not yet done */
    struct weir_error error; /* of the first piece that failed */
};

struct weir_io_strand { /* what a request has on one file */
    uint32_t file;
    uint64_t first_bytes; /* in the file */
    uint64_t byte_count;
    uint64_t cut_bytes;   /* of these, in pieces made so far */
    uint32_t piece_count; /* made and not ended */
};

struct weir_io_part { /* a piece */
    uint32_t strand;
    uint32_t generation; /* how often this entry was queued: the high half of its token */
    bool in_engine;
    bool direct;     /* the file was when it was queued */
    bool counts_odd; /* it is one of the file's odd_read_count */
    enum weir_io_kind
        kind;             /* what it does now: a write that must read its blocks first is a READ */
    uint64_t first, last; /* the request's bytes in the file */
    uint64_t low, high;   /* the bytes moved: the same, or widened to whole blocks */
    uint64_t need_bytes;  /* from low; a transfer that the file's end cuts short is still whole */
    uint64_t done_bytes;  /* from low */
    unsigned char *user;  /* of first: the caller's memory */
    unsigned char *bytes; /* of low: the caller's, or a bounce */
    uint32_t bounce;      /* or WEIR_IO_NONE */
    uint64_t file_bytes;  /* alone: the file's size before */
    uint32_t stall_count; /* completions in a row that brought nothing */
};

struct weir_io {
    const struct weir_io_engine_table *table;
    struct weir_io_engine *engine;
    struct weir_error engine_error; /* sticky */
    struct weir_log *log;
    bool require_direct, require_registered;
    bool memory_registered, memory_refused;
    uint32_t depth; /* of a file */
    uint64_t piece_bytes;

    struct weir_io_file *files;
    size_t file_count, file_capacity;
    size_t file_turn; /* the first to be asked for a piece */

    struct weir_io_slot *slots;
    uint32_t *slot_next;
    uint32_t slot_count, slot_idle_count;
    struct weir_io_list idle, finished;

    /* Of slot s from s * strand_width on, one for each file of its volume. */
    struct weir_io_strand *strands;
    uint32_t *strand_next;
    uint32_t strand_width;

    struct weir_io_part *parts; /* part_count of them: the engine's depth */
    uint32_t *part_next;
    uint32_t part_count;
    struct weir_io_list part_idle, part_again;
    struct weir_io_completion *completions; /* part_count of them */

    unsigned char *bounce_memory;
    unsigned char **bounces; /* aligned, piece_bytes each; NULL: in use */
    uint32_t bounce_count;

    struct weir_io_meter meter;
};

/* file.c */
enum weir_status weir_io_file_add(struct weir_io *io, const char *name, struct weir_io_file **out);
void weir_io_files_free(struct weir_io *io);
/* A direct transfer was refused before any was complete. WEIR_OK: the file is buffered from now on,
 * and its pieces go again. */
enum weir_status weir_io_file_buffer(struct weir_io *io, struct weir_io_file *file);
/* What the system says of O_DIRECT on fd. */
uint32_t weir_io_align_ask(int fd);
/* From its answers: statx's two numbers (0: it does not say) and the file system's block. */
uint32_t weir_io_align_choose(uint32_t offset_bytes, uint32_t memory_bytes, uint64_t block_bytes);

/* io.c: strands for volumes of so many files; no request outstanding. */
enum weir_status weir_io_strands_make(struct weir_io *io, uint32_t width);

/* piece.c */
/* The piece to queue next: it is out of every list. WEIR_IO_NONE: nothing can start now. */
uint32_t weir_io_part_next(struct weir_io *io);
/* What the engine brought for a piece: it goes again, or ends and maybe finishes its request. */
void weir_io_part_settle(struct weir_io *io, uint32_t part, int64_t result);

/* verify.c: the hashes of a part's whole blocks are kept, or compared. */
void weir_io_verify_keep(struct weir_io *io, struct weir_io_file *file,
                         const struct weir_io_part *part);
enum weir_status weir_io_verify_compare(struct weir_io *io, struct weir_io_file *file,
                                        const struct weir_io_part *part);

#endif
