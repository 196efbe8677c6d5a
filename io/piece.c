#include "io/io_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads are waited for, but a write held up forever holds its memory. */
#define READ_TURNS_MOST  4u
#define STALL_COUNT_MOST 1000u

struct weir_io_list weir_io_list_make(uint32_t *next)
{
    return (struct weir_io_list){WEIR_IO_NONE, WEIR_IO_NONE, next};
}

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

void weir_io_list_remove(struct weir_io_list *list, uint32_t place)
{
    uint32_t before = WEIR_IO_NONE;
    for (uint32_t at = list->first; at != place; at = list->next[at])
        before = at;
    if (before == WEIR_IO_NONE)
        list->first = list->next[place];
    else
        list->next[before] = list->next[place];
    if (list->last == place)
        list->last = before;
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
    return &io->files[io->strands[part->strand].file];
}

static struct weir_io_slot *slot_of(struct weir_io *io, uint32_t strand)
{
    return &io->slots[strand / io->strand_width];
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

/* Where a byte of the strand lies in the request's memory, and how many that follow in the file
 * follow it there, counted up to `most`. */
static unsigned char *user_bytes(const struct weir_io *io, uint32_t strand, uint64_t at,
                                 uint64_t most, uint64_t *run)
{
    const struct weir_io_request *request = &io->slots[strand / io->strand_width].request;
    const struct weir_io_volume *volume = io->files[request->file].volume;
    uint64_t linear = at;
    *run = most;
    if (volume != NULL) {
        linear = weir_io_stripes_linear(&volume->stripes, strand % io->strand_width, at);
        *run = weir_io_stripes_run(&volume->stripes, linear, most);
    }
    return (unsigned char *)request->bytes + (linear - request->offset_bytes);
}

/* The strand's next piece. After a first one that ends on a block all begin on one. */
static struct weir_io_part part_plan(struct weir_io *io, uint32_t place)
{
    const struct weir_io_strand *strand = &io->strands[place];
    const struct weir_io_file *file = &io->files[strand->file];
    uint64_t align = file->align_bytes, run;
    uint64_t first = strand->first_bytes + strand->cut_bytes;
    uint64_t low = round_down(first, align);
    uint64_t last = least(low + file->piece_bytes, strand->first_bytes + strand->byte_count);
    unsigned char *user = user_bytes(io, place, first, last - first, &run);
    last = least(last, first + run);
    struct weir_io_part part = {
        .strand = place,
        .kind = slot_of(io, place)->request.kind,
        .first = first,
        .last = last,
        .low = low,
        .high = round_down(last + align - 1, align),
        .user = user,
        .bytes = user,
        .bounce = WEIR_IO_NONE,
    };
    /* Hashes are of whole blocks, and a verified file has no others. */
    part.need_bytes = (file->hashes != NULL ? part.high : last) - low;
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

static void write_from_bounce(struct weir_io_part *part)
{
    memcpy(bounced_bytes(part), part->user, part->last - part->first);
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
        write_from_bounce(part);
        return;
    }
    part->kind = WEIR_IO_READ;
    part->need_bytes = least(part->high, part->file_bytes) - part->low;
}

/* A hash is of a block as one write left it: in a verified file a read of a part of a block and a
 * write of a part, maybe of the same one, take turns. Writes go first, lest reads without end keep
 * one out. */
static bool odd_read_waits(struct weir_io *io, const struct weir_io_file *file)
{
    uint32_t next = file->waiting[WEIR_IO_WRITE].first;
    if (file->alone || next == WEIR_IO_NONE)
        return file->alone;
    struct weir_io_part write = part_plan(io, next);
    return !covers_blocks(&write);
}

/* Another piece of the file has to end first. */
static bool part_waits(struct weir_io *io, const struct weir_io_part *part)
{
    const struct weir_io_file *file = file_of(io, part);
    bool blocks = covers_blocks(part);
    if (part->kind == WEIR_IO_WRITE)
        return file->alone || (!blocks && file->write_count + file->odd_read_count > 0);
    return file->hashes != NULL && !blocks && odd_read_waits(io, file);
}

/* False: there is none, or the file has as many as it may. */
static bool bounce_begin(struct weir_io *io, struct weir_io_part *part)
{
    struct weir_io_file *file = file_of(io, part);
    part->bounce = bounce_take(io);
    if (part->bounce == WEIR_IO_NONE || file->bounce_count == WEIR_IO_BOUNCES_MOST)
        return false;
    part->bytes = io->bounces[part->bounce];
    io->bounces[part->bounce] = NULL;
    file->bounce_count++;
    io->meter.counters.bounced_bytes += part->last - part->first;
    file->meter.counters.bounced_bytes += part->last - part->first;
    return true;
}

/* False: it has to wait for a bounce or for other pieces of the file. */
static bool part_begin(struct weir_io *io, struct weir_io_part *part)
{
    struct weir_io_file *file = file_of(io, part);
    bool blocks = covers_blocks(part);
    bool write = part->kind == WEIR_IO_WRITE;
    if (part_waits(io, part))
        return false;
    if (!blocks || (uintptr_t)part->bytes % file->align_bytes != 0) {
        if (!bounce_begin(io, part))
            return false;
        if (write && blocks)
            write_from_bounce(part);
        else if (write)
            alone_begin(io, part);
    }
    part->counts_odd = !write && !blocks && file->hashes != NULL;
    file->odd_read_count += part->counts_odd;
    file->write_count += write;
    return true;
}

static uint32_t part_cut(struct weir_io *io, struct weir_io_file *file, enum weir_io_kind kind)
{
    uint32_t place = file->waiting[kind].first;
    if (place == WEIR_IO_NONE)
        return WEIR_IO_NONE;
    struct weir_io_part part = part_plan(io, place);
    if (!part_begin(io, &part))
        return WEIR_IO_NONE;
    uint32_t taken = weir_io_list_pop(&io->part_idle);
    part.generation = io->parts[taken].generation;
    io->parts[taken] = part;
    struct weir_io_strand *strand = &io->strands[place];
    strand->piece_count++;
    file->piece_count++;
    strand->cut_bytes += part.last - part.first;
    if (strand->cut_bytes == strand->byte_count)
        weir_io_list_pop(&file->waiting[kind]);
    return taken;
}

static uint32_t file_next(struct weir_io *io, struct weir_io_file *file)
{
    uint32_t part = WEIR_IO_NONE;
    bool write_waits = file->waiting[WEIR_IO_WRITE].first != WEIR_IO_NONE;
    if (file->piece_count == file->depth)
        return WEIR_IO_NONE;
    if (write_waits && file->read_turns >= READ_TURNS_MOST)
        part = part_cut(io, file, WEIR_IO_WRITE);
    if (part == WEIR_IO_NONE) {
        part = part_cut(io, file, WEIR_IO_READ);
        if (part != WEIR_IO_NONE) {
            file->read_turns = write_waits ? file->read_turns + 1 : 0;
            return part;
        }
        part = part_cut(io, file, WEIR_IO_WRITE);
    }
    if (part != WEIR_IO_NONE)
        file->read_turns = 0;
    return part;
}

uint32_t weir_io_part_next(struct weir_io *io)
{
    uint32_t part = weir_io_list_pop(&io->part_again);
    if (part != WEIR_IO_NONE || io->part_idle.first == WEIR_IO_NONE)
        return part;
    for (size_t i = 0; i < io->file_count; i++) {
        size_t place = (io->file_turn + i) % io->file_count;
        part = file_next(io, &io->files[place]);
        if (part != WEIR_IO_NONE) {
            io->file_turn = place + 1;
            return part;
        }
    }
    return WEIR_IO_NONE;
}

static void strand_end(struct weir_io *io, uint32_t place)
{
    struct weir_io_strand *strand = &io->strands[place];
    if (strand->piece_count > 0 || strand->cut_bytes < strand->byte_count)
        return;
    if (--slot_of(io, place)->strand_count == 0)
        weir_io_list_push(&io->finished, place / io->strand_width);
}

/* Keep the thread's last error as the request's, if it is its first, and cut no more of it. */
static void slot_fail(struct weir_io *io, uint32_t place)
{
    struct weir_io_slot *slot = slot_of(io, place);
    uint32_t first = place - place % io->strand_width;
    const struct weir_io_volume *volume = io->files[slot->request.file].volume;
    if (slot->error.status == WEIR_OK)
        slot->error = *weir_last_error();
    for (uint32_t i = 0; i < (volume != NULL ? volume->stripes.drive_count : 1); i++) {
        struct weir_io_strand *strand = &io->strands[first + i];
        if (strand->cut_bytes == strand->byte_count)
            continue;
        weir_io_list_remove(&io->files[strand->file].waiting[slot->request.kind], first + i);
        strand->cut_bytes = strand->byte_count;
        strand_end(io, first + i);
    }
}

static void part_end(struct weir_io *io, uint32_t place)
{
    struct weir_io_part *part = &io->parts[place];
    struct weir_io_strand *strand = &io->strands[part->strand];
    struct weir_io_file *file = &io->files[strand->file];
    if (slot_of(io, part->strand)->request.kind == WEIR_IO_WRITE) {
        file->write_count--;
        file->alone = false;
    }
    file->odd_read_count -= part->counts_odd;
    if (part->bounce != WEIR_IO_NONE) {
        io->bounces[part->bounce] = part->bytes;
        file->bounce_count--;
    }
    weir_io_list_push(&io->part_idle, place);
    strand->piece_count--;
    file->piece_count--;
    strand_end(io, part->strand);
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

static void moved_count(struct weir_io_counters *counters, enum weir_io_kind kind, uint64_t bytes)
{
    *(kind == WEIR_IO_READ ? &counters->read_bytes : &counters->written_bytes) += bytes;
}

/* EINVAL of a direct transfer where none was complete yet: the file system does not take O_DIRECT
 * after all. The pieces that were in flight with the first to be refused come here as well. */
static bool direct_refused(const struct weir_io_file *file, const struct weir_io_part *part,
                           int64_t result)
{
    return result == -EINVAL && part->direct && !file->direct_proven;
}

static enum weir_status part_fail(const struct weir_io_file *file, const struct weir_io_part *part,
                                  int os_errno)
{
    uint64_t at = part->low + part->done_bytes;
    bool full = os_errno == ENOSPC || os_errno == EDQUOT;
    return weir_fail_errno(
        WEIR_ERR_IO, os_errno, "file \"%s\": %s of %llu bytes at %llu failed; %s", file->name,
        verb(part), (unsigned long long)(part->high - at), (unsigned long long)at,
        full ? "free space on the file system it is on" : "check the drive and the kernel's log");
}

/* Take a completion into account. WEIR_OK: the piece is whole if done_bytes has reached
 * need_bytes, else it goes again from done_bytes. */
static enum weir_status part_advance(struct weir_io *io, struct weir_io_part *part, int64_t result)
{
    struct weir_io_file *file = file_of(io, part);
    uint64_t at = part->low + part->done_bytes, asked = part->high - at;
    if (result == -EINTR || result == -EAGAIN)
        return part_stall(io, part, (int)-result);
    if (direct_refused(file, part, result))
        return file->direct ? weir_io_file_buffer(io, file) : WEIR_OK;
    if (result < 0)
        return part_fail(file, part, (int)-result);
    if ((uint64_t)result > asked)
        return weir_fail(WEIR_ERR_IO,
                         "io engine \"%s\": moved %lld of %llu bytes asked at %llu of file \"%s\"; "
                         "choose another engine",
                         io->table->name, (long long)result, (unsigned long long)asked,
                         (unsigned long long)at, file->name);
    moved_count(&io->meter.counters, part->kind, (uint64_t)result);
    moved_count(&file->meter.counters, part->kind, (uint64_t)result);
    file->direct_proven = file->direct_proven || part->direct;
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
    if (slot_of(io, part->strand)->request.kind == WEIR_IO_READ) {
        memcpy(part->user, bounced_bytes(part), part->last - part->first);
        return false;
    }
    if (part->kind == WEIR_IO_WRITE)
        return false;
    write_from_bounce(part);
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
    struct weir_io_file *file = file_of(io, part);
    enum weir_status status = part_advance(io, part, result);
    if (status == WEIR_OK && part->done_bytes < part->need_bytes) {
        io->meter.counters.resubmitted_count++;
        file->meter.counters.resubmitted_count++;
        weir_io_list_push(&io->part_again, place);
        return;
    }
    if (status == WEIR_OK && file->hashes != NULL && part->kind == WEIR_IO_READ)
        status = weir_io_verify_compare(io, file, part);
    if (status == WEIR_OK && part_continue(io, part)) {
        weir_io_list_push(&io->part_again, place);
        return;
    }
    if (status == WEIR_OK)
        status = padding_cut(io, part);
    if (status != WEIR_OK)
        slot_fail(io, part->strand);
    part_end(io, place);
}
