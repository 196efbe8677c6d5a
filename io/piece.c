#include "io/io_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_TURNS_MOST                                                                            \
    4u /* reads are waited for, but a write held up forever holds its memory                       \
        */
#define STALL_COUNT_MOST 1000u

void weir_io_list_push(struct weir_io_list *list, uint32_t place)
{
    list->next[place] = WEIR_IO_NONE;
    if (list->first == WEIR_IO_NONE)
        list->first = place;
    else
        list->next[list->last] = place;
    list->last = place;
}

uint32_t weir_io_list_pop(struct weir_io_list *list)
{
    uint32_t place = list->first;
    if (place != WEIR_IO_NONE)
        list->first = list->next[place];
    return place;
}

static uint64_t round_down(uint64_t bytes, uint64_t align)
{
    return bytes - bytes % align;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static struct weir_io_file *file_of(struct weir_io *io, const struct weir_io_part *part)
{
    return &io->files[io->slots[part->slot].request.file];
}

static unsigned char *user_bytes(struct weir_io *io, const struct weir_io_part *part)
{
    const struct weir_io_request *request = &io->slots[part->slot].request;
    return (unsigned char *)request->bytes + (part->first - request->offset_bytes);
}

/* The memory where a bounce holds the request's own bytes. */
static unsigned char *bounced_bytes(const struct weir_io_part *part)
{
    return part->bytes + (part->first - part->low);
}

static bool covers_blocks(const struct weir_io_part *part)
{
    return part->first == part->low && part->last == part->high;
}

/* The request's next piece. After a first one that ends on a block all begin on one. */
static struct weir_io_part part_plan(struct weir_io *io, uint32_t slot)
{
    const struct weir_io_request *request = &io->slots[slot].request;
    uint64_t align = io->files[request->file].align_bytes;
    uint64_t first = request->offset_bytes + io->slots[slot].cut_bytes;
    uint64_t low = round_down(first, align);
    uint64_t last = least(low + io->piece_bytes, request->offset_bytes + request->byte_count);
    struct weir_io_part part = {
        .slot = slot,
        .kind = request->kind,
        .first = first,
        .last = last,
        .low = low,
        .high = round_down(last + align - 1, align),
        .need_bytes = last - low,
        .bounce = WEIR_IO_NONE,
    };
    part.bytes = user_bytes(io, &part);
    return part;
}

static uint32_t bounce_take(struct weir_io *io)
{
    for (uint32_t i = 0; i < io->bounce_count; i++)
        if (io->bounces[i] != NULL)
            return i;
    return WEIR_IO_NONE;
}

static uint64_t file_size(int fd)
{
    struct stat stat;
    /* Without a size all is read first, and a file that cannot be read fails there. */
    return fstat(fd, &stat) == 0 ? (uint64_t)stat.st_size : UINT64_MAX;
}

static void write_from_bounce(struct weir_io *io, struct weir_io_part *part)
{
    memcpy(bounced_bytes(part), user_bytes(io, part), part->last - part->first);
    part->kind = WEIR_IO_WRITE;
    part->need_bytes = part->high - part->low;
    part->done_bytes = 0;
    part->stall_count = 0;
}

/* A write of parts of blocks: the blocks are read, as far as the file goes, and zero after that. */
static void alone_begin(struct weir_io *io, struct weir_io_part *part)
{
    struct weir_io_file *file = file_of(io, part);
    file->alone = true;
    part->file_bytes = file_size(file->fd);
    memset(part->bytes, 0, part->high - part->low);
    if (part->file_bytes <= part->low) {
        write_from_bounce(io, part);
        return;
    }
    part->kind = WEIR_IO_READ;
    part->need_bytes = least(part->high, part->file_bytes) - part->low;
}

/* False: it has to wait for a bounce or for other writes of the file. */
static bool part_begin(struct weir_io *io, struct weir_io_part *part)
{
    struct weir_io_file *file = file_of(io, part);
    bool blocks = covers_blocks(part);
    bool write = part->kind == WEIR_IO_WRITE;
    if (write && (file->alone || (!blocks && file->write_count > 0)))
        return false;
    if (!blocks || (uintptr_t)part->bytes % file->align_bytes != 0) {
        part->bounce = bounce_take(io);
        if (part->bounce == WEIR_IO_NONE)
            return false;
        part->bytes = io->bounces[part->bounce];
        io->bounces[part->bounce] = NULL;
        io->counters.bounced_bytes += part->last - part->first;
        if (write && blocks)
            write_from_bounce(io, part);
        else if (write)
            alone_begin(io, part);
    }
    if (write)
        file->write_count++;
    return true;
}

static uint32_t part_cut(struct weir_io *io, enum weir_io_kind kind)
{
    uint32_t place = io->waiting[kind].first;
    if (place == WEIR_IO_NONE || io->part_idle.first == WEIR_IO_NONE)
        return WEIR_IO_NONE;
    struct weir_io_part part = part_plan(io, place);
    if (!part_begin(io, &part))
        return WEIR_IO_NONE;
    uint32_t taken = weir_io_list_pop(&io->part_idle);
    part.generation = io->parts[taken].generation;
    io->parts[taken] = part;
    struct weir_io_slot *slot = &io->slots[place];
    slot->piece_count++;
    slot->cut_bytes += part.last - part.first;
    if (slot->cut_bytes == slot->request.byte_count)
        weir_io_list_pop(&io->waiting[kind]);
    return taken;
}

uint32_t weir_io_part_next(struct weir_io *io)
{
    uint32_t part = weir_io_list_pop(&io->part_again);
    if (part != WEIR_IO_NONE)
        return part;
    bool write_waits = io->waiting[WEIR_IO_WRITE].first != WEIR_IO_NONE;
    if (write_waits && io->read_turns >= READ_TURNS_MOST)
        part = part_cut(io, WEIR_IO_WRITE);
    if (part == WEIR_IO_NONE) {
        part = part_cut(io, WEIR_IO_READ);
        if (part != WEIR_IO_NONE) {
            io->read_turns = write_waits ? io->read_turns + 1 : 0;
            return part;
        }
        part = part_cut(io, WEIR_IO_WRITE);
    }
    if (part != WEIR_IO_NONE)
        io->read_turns = 0;
    return part;
}

/* Keep the thread's last error as the request's, if it is its first, and cut no more of it. */
static void slot_fail(struct weir_io *io, uint32_t place)
{
    struct weir_io_slot *slot = &io->slots[place];
    if (slot->error.status == WEIR_OK)
        slot->error = *weir_last_error();
    if (slot->cut_bytes < slot->request.byte_count) {
        /* Requests are cut in order, so one that is cut in part is the first that waits. */
        weir_io_list_pop(&io->waiting[slot->request.kind]);
        slot->cut_bytes = slot->request.byte_count;
    }
}

static void part_end(struct weir_io *io, uint32_t place)
{
    struct weir_io_part *part = &io->parts[place];
    struct weir_io_slot *slot = &io->slots[part->slot];
    struct weir_io_file *file = file_of(io, part);
    if (slot->request.kind == WEIR_IO_WRITE) {
        file->write_count--;
        file->alone = false;
    }
    if (part->bounce != WEIR_IO_NONE)
        io->bounces[part->bounce] = part->bytes;
    weir_io_list_push(&io->part_idle, place);
    if (--slot->piece_count == 0 && slot->cut_bytes == slot->request.byte_count)
        weir_io_list_push(&io->finished, part->slot);
}

static const char *verb(const struct weir_io_part *part)
{
    return part->kind == WEIR_IO_READ ? "read" : "write";
}

/* Nothing came this time. WEIR_OK: try again. */
static enum weir_status part_stall(struct weir_io *io, struct weir_io_part *part, int os_errno)
{
    if (++part->stall_count < STALL_COUNT_MOST)
        return WEIR_OK;
    const char *name = file_of(io, part)->name;
    unsigned long long at = part->low + part->done_bytes, end = part->low + part->need_bytes;
    if (os_errno != 0)
        return weir_fail_errno(WEIR_ERR_IO, os_errno,
                               "file \"%s\": %s of bytes [%llu, %llu) interrupted %u times in a "
                               "row; check the drive",
                               name, verb(part), at, end, STALL_COUNT_MOST);
    return weir_fail(WEIR_ERR_IO,
                     "file \"%s\": %s of bytes [%llu, %llu) moved less than a block %u times in a "
                     "row; check the file's length and the drive",
                     name, verb(part), at, end, STALL_COUNT_MOST);
}

/* A read that brought no block: is it because the file ends there? */
static enum weir_status end_check(const struct weir_io_file *file, const struct weir_io_part *part,
                                  int64_t result)
{
    uint64_t need = part->low + part->need_bytes;
    if (part->kind == WEIR_IO_WRITE || (result != 0 && file_size(file->fd) >= need))
        return WEIR_OK;
    return weir_fail(
        WEIR_ERR_CORRUPT,
        "file \"%s\": ends at byte %llu, bytes up to %llu are needed; the file was cut "
        "short",
        file->name, (unsigned long long)(part->low + part->done_bytes + (uint64_t)result),
        (unsigned long long)need);
}

/* Take a completion into account. WEIR_OK: the piece is whole if done_bytes has reached
 * need_bytes, else it goes again from done_bytes. */
static enum weir_status part_advance(struct weir_io *io, struct weir_io_part *part, int64_t result)
{
    struct weir_io_file *file = file_of(io, part);
    uint64_t at = part->low + part->done_bytes, asked = part->high - at;
    if (result == -EINTR || result == -EAGAIN)
        return part_stall(io, part, (int)-result);
    if (result < 0)
        return weir_fail_errno(WEIR_ERR_IO, (int)-result,
                               "file \"%s\": %s of %llu bytes at %llu failed; check the drive and "
                               "the kernel's log",
                               file->name, verb(part), (unsigned long long)asked,
                               (unsigned long long)at);
    if ((uint64_t)result > asked)
        return weir_fail(WEIR_ERR_IO,
                         "io engine \"%s\": moved %lld of %llu bytes asked at %llu of file \"%s\"; "
                         "choose another engine",
                         io->table->name, (long long)result, (unsigned long long)asked,
                         (unsigned long long)at, file->name);
    if (part->kind == WEIR_IO_READ)
        io->counters.read_bytes += (uint64_t)result;
    else
        io->counters.written_bytes += (uint64_t)result;
    uint64_t moved = part->done_bytes + (uint64_t)result;
    uint64_t kept = moved >= part->need_bytes ? moved : round_down(moved, file->align_bytes);
    if (kept == part->done_bytes) {
        WEIR_TRY(end_check(file, part, result));
        return part_stall(io, part, 0);
    }
    part->done_bytes = kept;
    part->stall_count = 0;
    return WEIR_OK;
}

/* All bytes of the present transfer are moved. True: there is a second one. */
static bool part_continue(struct weir_io *io, struct weir_io_part *part)
{
    if (part->bounce == WEIR_IO_NONE)
        return false;
    if (io->slots[part->slot].request.kind == WEIR_IO_READ) {
        memcpy(user_bytes(io, part), bounced_bytes(part), part->last - part->first);
        return false;
    }
    if (part->kind == WEIR_IO_WRITE)
        return false;
    write_from_bounce(io, part);
    return true;
}

/* Whole blocks were written: cut the padding off where the file grew by it. */
static enum weir_status padding_cut(struct weir_io *io, const struct weir_io_part *part)
{
    struct weir_io_file *file = file_of(io, part);
    if (!file->alone || part->kind != WEIR_IO_WRITE || part->file_bytes >= part->high)
        return WEIR_OK;
    uint64_t bytes = part->last > part->file_bytes ? part->last : part->file_bytes;
    if (ftruncate(file->fd, (off_t)bytes) == 0)
        return WEIR_OK;
    return weir_fail_errno(WEIR_ERR_IO, errno,
                           "file \"%s\": cannot be cut to %llu bytes after a padded write",
                           file->name, (unsigned long long)bytes);
}

void weir_io_part_settle(struct weir_io *io, uint32_t place, int64_t result)
{
    struct weir_io_part *part = &io->parts[place];
    enum weir_status status = part_advance(io, part, result);
    if (status == WEIR_OK) {
        if (part->done_bytes < part->need_bytes) {
            io->counters.resubmitted_count++;
            weir_io_list_push(&io->part_again, place);
            return;
        }
        if (part_continue(io, part)) {
            weir_io_list_push(&io->part_again, place);
            return;
        }
        status = padding_cut(io, part);
    }
    if (status != WEIR_OK)
        slot_fail(io, part->slot);
    part_end(io, place);
}
