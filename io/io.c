#include "core/clock.h"
#include "core/memory.h"
#include "core/tsan.h"
#include "io/io_internal.h"

#define PIECE_BYTES_DEFAULT (1u << 20)
#define PIECE_BYTES_MOST    (1u << 30)
#define PIECE_STEP_BYTES    4096u
#define DEPTH_MOST          65536u
#define REQUESTS_MOST       (1u << 24)

static enum weir_status slots_make(struct weir_io *io, uint32_t count)
{
    WEIR_TRY(weir_alloc(&io->slots, count, sizeof *io->slots, "I/O requests"));
    WEIR_TRY(weir_alloc(&io->slot_next, count, sizeof *io->slot_next, "I/O request lists"));
    io->slot_count = io->slot_idle_count = count;
    io->idle = io->finished = weir_io_list_make(io->slot_next);
    for (uint32_t i = 0; i < count; i++)
        weir_io_list_push(&io->idle, i);
    return weir_io_strands_make(io, 1);
}

enum weir_status weir_io_strands_make(struct weir_io *io, uint32_t width)
{
    if (width <= io->strand_width)
        return WEIR_OK;
    struct weir_io_strand *strands;
    uint32_t *next;
    size_t count = (size_t)io->slot_count * width;
    WEIR_TRY(weir_alloc(&strands, count, sizeof *strands, "I/O strands"));
    enum weir_status status = weir_alloc(&next, count, sizeof *next, "I/O strand lists");
    if (status != WEIR_OK) {
        weir_free(strands);
        return status;
    }
    weir_free(io->strands);
    weir_free(io->strand_next);
    io->strands = strands;
    io->strand_next = next;
    io->strand_width = width;
    for (size_t i = 0; i < io->file_count; i++)
        for (int kind = 0; kind < WEIR_IO_KINDS; kind++)
            io->files[i].waiting[kind] = weir_io_list_make(next);
    return WEIR_OK;
}

static enum weir_status parts_make(struct weir_io *io)
{
    WEIR_TRY(weir_alloc(&io->parts, io->part_count, sizeof *io->parts, "I/O pieces"));
    WEIR_TRY(weir_alloc(&io->part_next, io->part_count, sizeof *io->part_next, "I/O piece lists"));
    WEIR_TRY(
        weir_alloc(&io->completions, io->part_count, sizeof *io->completions, "I/O completions"));
    io->part_idle = io->part_again = weir_io_list_make(io->part_next);
    for (uint32_t i = 0; i < io->part_count; i++)
        weir_io_list_push(&io->part_idle, i);
    return WEIR_OK;
}

/* Each drive's own, so that none waits for those of another. Pages that are never used stay the
 * kernel's. */
static enum weir_status bounces_make(struct weir_io *io, uint32_t drive_count)
{
    uint32_t each = io->depth < WEIR_IO_BOUNCES_MOST ? io->depth : WEIR_IO_BOUNCES_MOST;
    uint32_t count = each * drive_count;
    WEIR_TRY(weir_alloc(&io->bounces, count, sizeof *io->bounces, "I/O bounce buffers"));
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
        options->request_count > REQUESTS_MOST)
        return weir_fail(
            WEIR_ERR_ARG,
            "io: depth %u, %u requests; give a depth from 1 to %u and 1 to %u requests",
            options->depth, options->request_count, DEPTH_MOST, REQUESTS_MOST);
    if (options->drive_count > DEPTH_MOST / options->depth)
        return weir_fail(WEIR_ERR_ARG, "io: depth %u for each of %u drives; give at most %u in all",
                         options->depth, options->drive_count, DEPTH_MOST);
    if (options->piece_bytes % PIECE_STEP_BYTES != 0 || options->piece_bytes > PIECE_BYTES_MOST)
        return weir_fail(WEIR_ERR_ARG, "io: pieces of %llu bytes; give a multiple of %u up to %u",
                         (unsigned long long)options->piece_bytes, PIECE_STEP_BYTES,
                         PIECE_BYTES_MOST);
    return WEIR_OK;
}

/* The first engine that opens; each that does not says why. */
static enum weir_status engine_choose(struct weir_io *io)
{
    for (size_t i = 0;; i++) {
        const struct weir_io_engine_table *next = weir_io_engine_at(i + 1);
        io->table = weir_io_engine_at(i);
        enum weir_status status = io->table->open(&io->engine, io->part_count, io->log);
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
    return io->table->open(&io->engine, io->part_count, io->log);
}

static enum weir_status io_make(struct weir_io *io, const struct weir_io_options *options)
{
    io->log = options->log;
    io->require_direct = options->require_direct;
    io->require_registered = options->require_registered;
    uint32_t drive_count = options->drive_count != 0 ? options->drive_count : 1;
    io->depth = options->depth;
    io->part_count = options->depth * drive_count;
    io->piece_bytes = options->piece_bytes != 0 ? options->piece_bytes : PIECE_BYTES_DEFAULT;
    WEIR_TRY(slots_make(io, options->request_count));
    WEIR_TRY(parts_make(io));
    WEIR_TRY(bounces_make(io, drive_count));
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
    weir_io_files_free(io);
    weir_free(io->slots);
    weir_free(io->slot_next);
    weir_free(io->strands);
    weir_free(io->strand_next);
    weir_free(io->parts);
    weir_free(io->part_next);
    weir_free(io->completions);
    weir_free(io->bounces);
    weir_free(io->bounce_memory);
    weir_free(io);
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

void weir_io_meter_begin(struct weir_io_meter *meter, enum weir_io_kind kind)
{
    if (meter->in_flight[kind]++ == 0)
        meter->busy_since_ns[kind] = weir_now_ns();
}

static uint64_t *busy_ns(struct weir_io_counters *counters, enum weir_io_kind kind)
{
    return kind == WEIR_IO_READ ? &counters->read_ns : &counters->write_ns;
}

void weir_io_meter_end(struct weir_io_meter *meter, enum weir_io_kind kind)
{
    if (--meter->in_flight[kind] == 0)
        *busy_ns(&meter->counters, kind) += weir_now_ns() - meter->busy_since_ns[kind];
}

void weir_io_meter_read(const struct weir_io_meter *meter, struct weir_io_counters *out)
{
    *out = meter->counters;
    for (enum weir_io_kind kind = WEIR_IO_READ; kind <= WEIR_IO_WRITE; kind++)
        if (meter->in_flight[kind] > 0)
            *busy_ns(out, kind) += weir_now_ns() - meter->busy_since_ns[kind];
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
    struct weir_io_file *file = &io->files[io->strands[part->strand].file];
    part->generation++;
    part->direct = file->direct;
    struct weir_io_piece piece = {
        .token = (uint64_t)part->generation << 32 | place,
        .kind = part->kind,
        .fd = file->fd,
        .offset_bytes = part->low + part->done_bytes,
        .bytes = part->bytes + part->done_bytes,
        .byte_count = part->high - part->low - part->done_bytes,
    };
    part_touch(part);
    if (file->hashes != NULL && part->kind == WEIR_IO_WRITE && part->done_bytes == 0)
        weir_io_verify_keep(io, file, part);
    if (!io->table->queue(io->engine, &piece))
        return false;
    part->in_engine = true;
    weir_io_meter_begin(&io->meter, part->kind);
    weir_io_meter_begin(&file->meter, part->kind);
    return true;
}

static enum weir_status engine_feed(struct weir_io *io)
{
    bool queued = false;
    for (uint32_t place; (place = weir_io_part_next(io)) != WEIR_IO_NONE;) {
        if (!part_queue(io, place))
            return weir_fail(WEIR_ERR_IO,
                             "io engine \"%s\": refused a piece with %u of %u in flight; choose "
                             "another engine",
                             io->table->name,
                             io->meter.in_flight[WEIR_IO_READ] + io->meter.in_flight[WEIR_IO_WRITE],
                             io->part_count);
        /* A drive moves one piece while the next is hashed. */
        queued = io->files[io->strands[io->parts[place].strand].file].hashes == NULL;
        if (!queued)
            WEIR_TRY(io->table->submit(io->engine));
    }
    return queued ? io->table->submit(io->engine) : WEIR_OK;
}

static enum weir_status completion_take(struct weir_io *io,
                                        const struct weir_io_completion *completion)
{
    uint64_t place = completion->token & UINT32_MAX;
    struct weir_io_part *part = place < io->part_count ? &io->parts[place] : NULL;
    if (part == NULL || !part->in_engine || part->generation != completion->token >> 32)
        return weir_fail(WEIR_ERR_IO,
                         "io engine \"%s\": completion %#llx is of no piece in flight; choose "
                         "another engine",
                         io->table->name, (unsigned long long)completion->token);
    part->in_engine = false;
    weir_io_meter_end(&io->meter, part->kind);
    weir_io_meter_end(&io->files[io->strands[part->strand].file].meter, part->kind);
    part_touch(part);
    weir_io_part_settle(io, (uint32_t)place, completion->result);
    return WEIR_OK;
}

/* Feed the engine, and take what it brings within timeout_ns. *count 0: the time is over or wake
 * was called. */
static enum weir_status engine_turn(struct weir_io *io, uint64_t timeout_ns, size_t *count)
{
    WEIR_TRY(engine_feed(io));
    WEIR_TRY(io->table->reap(io->engine, io->completions, io->part_count, timeout_ns, count));
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

/* The request's strand number `index` on its file, or on a volume's file of that number. */
static struct weir_io_strand strand_plan(const struct weir_io *io,
                                         const struct weir_io_request *request, uint32_t index)
{
    const struct weir_io_volume *volume = io->files[request->file].volume;
    if (volume == NULL)
        return (struct weir_io_strand){.file = request->file,
                                       .first_bytes = request->offset_bytes,
                                       .byte_count = request->byte_count};
    uint64_t first = weir_io_stripes_local(&volume->stripes, index, request->offset_bytes);
    uint64_t last =
        weir_io_stripes_local(&volume->stripes, index, request->offset_bytes + request->byte_count);
    return (struct weir_io_strand){
        .file = volume->files[index], .first_bytes = first, .byte_count = last - first};
}

static uint32_t strand_count(const struct weir_io *io, const struct weir_io_request *request)
{
    const struct weir_io_volume *volume = io->files[request->file].volume;
    return volume != NULL ? volume->stripes.drive_count : 1;
}

static enum weir_status strands_check(const struct weir_io *io,
                                      const struct weir_io_request *request)
{
    for (uint32_t i = 0; i < strand_count(io, request); i++) {
        struct weir_io_strand strand = strand_plan(io, request, i);
        const struct weir_io_file *file = &io->files[strand.file];
        if (file->hashes != NULL && strand.first_bytes + strand.byte_count > file->verified_bytes)
            return weir_fail(WEIR_ERR_ARG,
                             "io: request %llu ends at byte %llu of file \"%s\", of which %llu are "
                             "verified; stay below that",
                             (unsigned long long)request->id,
                             (unsigned long long)(strand.first_bytes + strand.byte_count),
                             file->name, (unsigned long long)file->verified_bytes);
    }
    return WEIR_OK;
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
    return strands_check(io, request);
}

static void request_take(struct weir_io *io, const struct weir_io_request *request)
{
    uint32_t place = weir_io_list_pop(&io->idle);
    io->slot_idle_count--;
    io->slots[place] = (struct weir_io_slot){.request = *request};
    for (uint32_t i = 0; i < strand_count(io, request); i++) {
        uint32_t at = place * io->strand_width + i;
        io->strands[at] = strand_plan(io, request, i);
        if (io->strands[at].byte_count == 0)
            continue;
        io->slots[place].strand_count++;
        weir_io_list_push(&io->files[io->strands[at].file].waiting[request->kind], at);
    }
    if (request->byte_count == 0)
        weir_io_list_push(&io->finished, place);
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
    for (size_t i = 0; i < count; i++)
        request_take(io, &requests[i]);
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
    weir_io_meter_read(&io->meter, out);
}
