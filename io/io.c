#include "core/clock.h"
#include "core/memory.h"
#include "core/tsan.h"
#include "io/io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE_BYTES_DEFAULT (1u << 20)
#define PIECE_BYTES_MOST    (1u << 30)
#define DIRECT_ALIGN_BYTES  4096u
#define DEPTH_MOST          65536u

static struct weir_io_list list_make(uint32_t *next)
{
    return (struct weir_io_list){WEIR_IO_NONE, WEIR_IO_NONE, next};
}

static enum weir_status slots_make(struct weir_io *io, uint32_t count)
{
    WEIR_TRY(weir_alloc(&io->slots, count, sizeof *io->slots, "I/O requests"));
    WEIR_TRY(weir_alloc(&io->slot_next, count, sizeof *io->slot_next, "I/O request lists"));
    io->slot_count = io->slot_idle_count = count;
    io->idle = io->finished = list_make(io->slot_next);
    io->waiting[WEIR_IO_READ] = io->waiting[WEIR_IO_WRITE] = list_make(io->slot_next);
    for (uint32_t i = 0; i < count; i++)
        weir_io_list_push(&io->idle, i);
    return WEIR_OK;
}

static enum weir_status parts_make(struct weir_io *io)
{
    WEIR_TRY(weir_alloc(&io->parts, io->depth, sizeof *io->parts, "I/O pieces"));
    WEIR_TRY(weir_alloc(&io->part_next, io->depth, sizeof *io->part_next, "I/O piece lists"));
    WEIR_TRY(weir_alloc(&io->completions, io->depth, sizeof *io->completions, "I/O completions"));
    io->part_idle = io->part_again = list_make(io->part_next);
    for (uint32_t i = 0; i < io->depth; i++)
        weir_io_list_push(&io->part_idle, i);
    return WEIR_OK;
}

static enum weir_status bounces_make(struct weir_io *io)
{
    uint32_t count = io->depth < WEIR_IO_BOUNCES_MOST ? io->depth : WEIR_IO_BOUNCES_MOST;
    WEIR_TRY(weir_alloc(&io->bounce_memory, count * io->piece_bytes + WEIR_IO_ALIGN_MOST, 1,
                        "I/O bounce buffers"));
    uintptr_t skip = -(uintptr_t)io->bounce_memory % WEIR_IO_ALIGN_MOST;
    for (uint32_t i = 0; i < count; i++)
        io->bounces[i] = io->bounce_memory + skip + i * io->piece_bytes;
    io->bounce_count = count;
    return WEIR_OK;
}

static enum weir_status options_check(const struct weir_io_options *options)
{
    if (options->depth == 0 || options->depth > DEPTH_MOST || options->request_count == 0 ||
        options->request_count == WEIR_IO_NONE)
        return weir_fail(WEIR_ERR_ARG,
                         "io: depth %u, %u requests; give a depth from 1 to %u and at least one "
                         "request",
                         options->depth, options->request_count, DEPTH_MOST);
    if (options->piece_bytes % DIRECT_ALIGN_BYTES != 0 || options->piece_bytes > PIECE_BYTES_MOST)
        return weir_fail(WEIR_ERR_ARG, "io: pieces of %llu bytes; give a multiple of %u up to %u",
                         (unsigned long long)options->piece_bytes, DIRECT_ALIGN_BYTES,
                         PIECE_BYTES_MOST);
    return WEIR_OK;
}

/* The first engine that opens; each that does not says why. */
static enum weir_status engine_choose(struct weir_io *io)
{
    for (size_t i = 0;; i++) {
        const struct weir_io_engine_table *next = weir_io_engine_at(i + 1);
        io->table = weir_io_engine_at(i);
        enum weir_status status = io->table->open(&io->engine, io->depth, io->log);
        if (status == WEIR_OK || next == NULL)
            return status;
        weir_log(io->log, WEIR_LOG_WARNING, "%s; going on with io engine \"%s\"",
                 weir_last_error()->text, next->name);
    }
}

static enum weir_status engine_open(struct weir_io *io, const struct weir_io_options *options)
{
    io->table = options->engine_table;
    if (io->table == NULL && options->engine == NULL)
        return engine_choose(io);
    if (io->table == NULL)
        WEIR_TRY(weir_io_engine_find(options->engine, &io->table));
    return io->table->open(&io->engine, io->depth, io->log);
}

static enum weir_status io_make(struct weir_io *io, const struct weir_io_options *options)
{
    io->log = options->log;
    io->require_direct = options->require_direct;
    io->require_registered = options->require_registered;
    io->depth = options->depth;
    io->piece_bytes = options->piece_bytes != 0 ? options->piece_bytes : PIECE_BYTES_DEFAULT;
    WEIR_TRY(slots_make(io, options->request_count));
    WEIR_TRY(parts_make(io));
    WEIR_TRY(bounces_make(io));
    return engine_open(io, options);
}

enum weir_status weir_io_open(struct weir_io **out, const struct weir_io_options *options)
{
    WEIR_TRY(options_check(options));
    struct weir_io *io;
    WEIR_TRY(weir_alloc(&io, 1, sizeof *io, "an I/O front"));
    enum weir_status status = io_make(io, options);
    if (status != WEIR_OK) {
        weir_io_close(io);
        return status;
    }
    *out = io;
    return WEIR_OK;
}

void weir_io_close(struct weir_io *io)
{
    if (io == NULL)
        return;
    if (io->engine != NULL)
        io->table->close(io->engine);
    for (size_t i = 0; i < io->file_count; i++)
        weir_free(io->files[i].name);
    weir_free(io->files);
    weir_free(io->slots);
    weir_free(io->slot_next);
    weir_free(io->parts);
    weir_free(io->part_next);
    weir_free(io->completions);
    weir_free(io->bounce_memory);
    weir_free(io);
}

static uint32_t direct_align_bytes(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx stat;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stat) == 0 &&
        (stat.stx_mask & STATX_DIOALIGN) != 0 && stat.stx_dio_offset_align != 0)
        return stat.stx_dio_offset_align > stat.stx_dio_mem_align ? stat.stx_dio_offset_align
                                                                  : stat.stx_dio_mem_align;
#else
    (void)fd;
#endif
    return DIRECT_ALIGN_BYTES;
}

static enum weir_status file_check(const struct weir_io *io, const char *name, int fd, bool direct,
                                   uint32_t align_bytes)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0)
        return weir_fail_errno(WEIR_ERR_ARG, errno, "file \"%s\": descriptor %d cannot be used",
                               name, fd);
    if (!S_ISREG(stat.st_mode))
        return weir_fail(WEIR_ERR_UNSUPPORTED, "file \"%s\": not a regular file; give one", name);
    if (!direct && io->require_direct)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "file \"%s\": opened without O_DIRECT, which is required; choose a file "
                         "system that takes it, or do not require it",
                         name);
    if ((align_bytes & (align_bytes - 1)) != 0 || align_bytes > WEIR_IO_ALIGN_MOST ||
        io->piece_bytes % align_bytes != 0)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "file \"%s\": alignment of %u bytes; it must be a power of two up to %u "
                         "that divides the %llu bytes of a piece",
                         name, align_bytes, WEIR_IO_ALIGN_MOST,
                         (unsigned long long)io->piece_bytes);
    return WEIR_OK;
}

enum weir_status weir_io_file_open(struct weir_io *io, const char *name, int fd, bool direct,
                                   uint32_t align_bytes, uint32_t *file)
{
    if (!direct)
        align_bytes = 1;
    else if (align_bytes == 0)
        align_bytes = direct_align_bytes(fd);
    WEIR_TRY(file_check(io, name, fd, direct, align_bytes));
    WEIR_TRY(weir_grow(&io->files, &io->file_capacity, io->file_count + 1, sizeof *io->files,
                       "I/O files"));
    struct weir_io_file *added = &io->files[io->file_count];
    *added = (struct weir_io_file){.fd = fd, .align_bytes = align_bytes};
    WEIR_TRY(weir_strdup(&added->name, name));
    *file = (uint32_t)io->file_count++;
    io->table->file(io->engine, fd);
    return WEIR_OK;
}

enum weir_status weir_io_memory_add(struct weir_io *io, void *bytes, uint64_t byte_count)
{
    if (io->memory_refused || byte_count == 0)
        return WEIR_OK;
    enum weir_status status =
        io->table->memory(io->engine, bytes, byte_count, &io->memory_registered);
    if (status == WEIR_OK && io->require_registered && !io->memory_registered)
        return weir_fail(
            WEIR_ERR_UNSUPPORTED,
            "io engine \"%s\": registers no memory, and registered memory is required; "
            "use io engine \"uring\"",
            io->table->name);
    if (status != WEIR_ERR_UNSUPPORTED || io->require_registered)
        return status;
    io->memory_refused = true;
    weir_log(io->log, WEIR_LOG_WARNING, "%s", weir_last_error()->text);
    return WEIR_OK;
}

bool weir_io_memory_registered(const struct weir_io *io)
{
    return io->memory_registered;
}

const char *weir_io_engine_name(const struct weir_io *io)
{
    return io->table->name;
}

uint32_t weir_io_file_align_bytes(const struct weir_io *io, uint32_t file)
{
    return io->files[file].align_bytes;
}

/* in_flight changes: a kind is busy while it has any. */
static void flight_begin(struct weir_io *io, enum weir_io_kind kind)
{
    if (io->in_flight[kind]++ == 0)
        io->busy_since_ns[kind] = weir_now_ns();
}

static void flight_end(struct weir_io *io, enum weir_io_kind kind)
{
    if (--io->in_flight[kind] == 0)
        io->busy_ns[kind] += weir_now_ns() - io->busy_since_ns[kind];
}

/* ThreadSanitizer sees no kernel: what a transfer does to memory counts as done by this thread,
 * when it begins and when it is complete. */
static void part_touch(const struct weir_io_part *part)
{
    weir_tsan_range(part->bytes + part->done_bytes, part->high - part->low - part->done_bytes,
                    part->kind == WEIR_IO_READ);
}

static bool part_queue(struct weir_io *io, uint32_t place)
{
    struct weir_io_part *part = &io->parts[place];
    part->generation++;
    struct weir_io_piece piece = {
        .token = (uint64_t)part->generation << 32 | place,
        .kind = part->kind,
        .fd = io->files[io->slots[part->slot].request.file].fd,
        .offset_bytes = part->low + part->done_bytes,
        .bytes = part->bytes + part->done_bytes,
        .byte_count = part->high - part->low - part->done_bytes,
    };
    part_touch(part);
    if (!io->table->queue(io->engine, &piece))
        return false;
    part->in_engine = true;
    flight_begin(io, part->kind);
    return true;
}

static enum weir_status engine_feed(struct weir_io *io)
{
    bool queued = false;
    while (io->in_flight[WEIR_IO_READ] + io->in_flight[WEIR_IO_WRITE] < io->depth) {
        uint32_t place = weir_io_part_next(io);
        if (place == WEIR_IO_NONE)
            break;
        if (!part_queue(io, place))
            return weir_fail(WEIR_ERR_IO,
                             "io engine \"%s\": refused a piece with %u of %u in flight; choose "
                             "another engine",
                             io->table->name,
                             io->in_flight[WEIR_IO_READ] + io->in_flight[WEIR_IO_WRITE], io->depth);
        queued = true;
    }
    return queued ? io->table->submit(io->engine) : WEIR_OK;
}

static enum weir_status completion_take(struct weir_io *io,
                                        const struct weir_io_completion *completion)
{
    uint64_t place = completion->token & UINT32_MAX;
    if (place >= io->depth || !io->parts[place].in_engine ||
        io->parts[place].generation != completion->token >> 32)
        return weir_fail(WEIR_ERR_IO,
                         "io engine \"%s\": completion %#llx is of no piece in flight; choose "
                         "another engine",
                         io->table->name, (unsigned long long)completion->token);
    io->parts[place].in_engine = false;
    flight_end(io, io->parts[place].kind);
    part_touch(&io->parts[place]);
    weir_io_part_settle(io, (uint32_t)place, completion->result);
    return WEIR_OK;
}

/* Feed the engine, and take what it brings within timeout_ns. *count 0: the time is over or wake
 * was called. */
static enum weir_status engine_turn(struct weir_io *io, uint64_t timeout_ns, size_t *count)
{
    WEIR_TRY(engine_feed(io));
    WEIR_TRY(io->table->reap(io->engine, io->completions, io->depth, timeout_ns, count));
    for (size_t i = 0; i < *count; i++)
        WEIR_TRY(completion_take(io, &io->completions[i]));
    return *count > 0 ? engine_feed(io) : WEIR_OK;
}

/* An engine that failed cannot say what became of its pieces: every later call fails. */
static enum weir_status engine_keep(struct weir_io *io, enum weir_status status)
{
    if (status != WEIR_OK)
        io->engine_error = *weir_last_error();
    return status;
}

static enum weir_status request_check(const struct weir_io *io,
                                      const struct weir_io_request *request)
{
    unsigned long long id = request->id;
    if (request->file >= io->file_count)
        return weir_fail(WEIR_ERR_ARG, "io: request %llu names file %u of %zu", id, request->file,
                         io->file_count);
    if (request->kind != WEIR_IO_READ && request->kind != WEIR_IO_WRITE)
        return weir_fail(WEIR_ERR_ARG, "io: request %llu is of kind %d; read or write", id,
                         (int)request->kind);
    uint64_t room = INT64_MAX - WEIR_IO_ALIGN_MOST;
    if ((request->bytes == NULL && request->byte_count > 0) || request->byte_count > room ||
        request->offset_bytes > room - request->byte_count)
        return weir_fail(WEIR_ERR_ARG,
                         "io: request %llu has %llu bytes at %p for offset %llu of file \"%s\"", id,
                         (unsigned long long)request->byte_count, request->bytes,
                         (unsigned long long)request->offset_bytes, io->files[request->file].name);
    return WEIR_OK;
}

enum weir_status weir_io_submit(struct weir_io *io, const struct weir_io_request *requests,
                                size_t count)
{
    if (io->engine_error.status != WEIR_OK)
        return weir_fail_with(&io->engine_error);
    if (count > io->slot_idle_count)
        return weir_fail(WEIR_ERR_STATE,
                         "io: %zu requests submitted, %u of %u outstanding; reap some first or "
                         "raise request_count",
                         count, io->slot_count - io->slot_idle_count, io->slot_count);
    for (size_t i = 0; i < count; i++)
        WEIR_TRY(request_check(io, &requests[i]));
    for (size_t i = 0; i < count; i++) {
        uint32_t place = weir_io_list_pop(&io->idle);
        io->slots[place] = (struct weir_io_slot){.request = requests[i]};
        bool empty = requests[i].byte_count == 0;
        weir_io_list_push(empty ? &io->finished : &io->waiting[requests[i].kind], place);
    }
    io->slot_idle_count -= (uint32_t)count;
    /* They are taken, so a failure to start them is for reap to return. */
    (void)engine_keep(io, engine_feed(io));
    return WEIR_OK;
}

static size_t results_deliver(struct weir_io *io, struct weir_io_result *results, size_t capacity)
{
    size_t count = 0;
    while (count < capacity && io->finished.first != WEIR_IO_NONE) {
        uint32_t place = weir_io_list_pop(&io->finished);
        const struct weir_io_slot *slot = &io->slots[place];
        results[count++] =
            (struct weir_io_result){slot->request.id, slot->error.status, slot->error};
        weir_io_list_push(&io->idle, place);
        io->slot_idle_count++;
    }
    return count;
}

enum weir_status weir_io_reap(struct weir_io *io, struct weir_io_result *results, size_t capacity,
                              uint64_t timeout_ns, size_t *count)
{
    *count = 0;
    if (io->engine_error.status != WEIR_OK)
        return weir_fail_with(&io->engine_error);
    bool timed = timeout_ns != 0 && timeout_ns != WEIR_IO_FOREVER;
    uint64_t begin_ns = timed ? weir_now_ns() : 0;
    size_t arrived;
    do {
        uint64_t left_ns = timeout_ns;
        if (timed) {
            uint64_t gone_ns = weir_now_ns() - begin_ns;
            left_ns = gone_ns < timeout_ns ? timeout_ns - gone_ns : 0;
        }
        if (io->finished.first != WEIR_IO_NONE)
            left_ns = 0;
        WEIR_TRY(engine_keep(io, engine_turn(io, left_ns, &arrived)));
    } while (arrived > 0 && io->finished.first == WEIR_IO_NONE);
    *count = results_deliver(io, results, capacity);
    return WEIR_OK;
}

void weir_io_wake(struct weir_io *io)
{
    io->table->wake(io->engine);
}

void weir_io_count(const struct weir_io *io, struct weir_io_counters *out)
{
    *out = io->counters;
    uint64_t busy_ns[WEIR_IO_KINDS];
    for (int kind = 0; kind < WEIR_IO_KINDS; kind++) {
        busy_ns[kind] = io->busy_ns[kind];
        if (io->in_flight[kind] > 0)
            busy_ns[kind] += weir_now_ns() - io->busy_since_ns[kind];
    }
    out->read_ns = busy_ns[WEIR_IO_READ];
    out->write_ns = busy_ns[WEIR_IO_WRITE];
}
