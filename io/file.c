#include "core/memory.h"
#include "io/io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What every file system that was met takes; only where the system says nothing at all. */
#define ALIGN_LAST_RESORT 4096u

/* struct statx in 32-bit words: the kernel's layout, which the C library's header may be too old to
 * name. */
#define STATX_WORDS      64
#define STATX_MASK       0
#define STATX_DIO_MEMORY 38
#define STATX_DIO_OFFSET 39
#define STATX_ASK_DIO    0x2000u

static bool power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

uint32_t weir_io_align_choose(uint32_t offset_bytes, uint32_t memory_bytes, uint64_t block_bytes)
{
    if (offset_bytes != 0)
        return offset_bytes > memory_bytes ? offset_bytes : memory_bytes;
    /* No smaller than the drive's logical block, which is what O_DIRECT goes by. */
    if (power_of_two(block_bytes) && block_bytes >= 512 && block_bytes <= WEIR_IO_ALIGN_MOST)
        return (uint32_t)block_bytes;
    return ALIGN_LAST_RESORT;
}

uint32_t weir_io_align_ask(int fd)
{
    uint32_t words[STATX_WORDS] = {0}, offset = 0, memory = 0;
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_ASK_DIO, words) == 0 &&
        (words[STATX_MASK] & STATX_ASK_DIO) != 0) {
        offset = words[STATX_DIO_OFFSET];
        memory = words[STATX_DIO_MEMORY];
    }
    struct statvfs space;
    return weir_io_align_choose(offset, memory, fstatvfs(fd, &space) == 0 ? space.f_bsize : 0);
}

static enum weir_status align_check(const struct weir_io *io, const char *name, uint32_t bytes)
{
    if (power_of_two(bytes) && bytes <= WEIR_IO_ALIGN_MOST && io->piece_bytes % bytes == 0)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_UNSUPPORTED,
                     "file \"%s\": alignment of %u bytes; it must be a power of two up to %u "
                     "that divides the %llu bytes of a piece",
                     name, bytes, WEIR_IO_ALIGN_MOST, (unsigned long long)io->piece_bytes);
}

static enum weir_status direct_required(const char *name)
{
    return weir_fail(WEIR_ERR_UNSUPPORTED,
                     "file \"%s\": the file system does not take O_DIRECT, which is required; "
                     "choose another one, or do not require it",
                     name);
}

static enum weir_status file_check(const struct weir_io *io, const char *name, int fd, bool direct)
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
    return WEIR_OK;
}

enum weir_status weir_io_file_add(struct weir_io *io, const char *name, struct weir_io_file **out)
{
    WEIR_TRY(weir_grow(&io->files, &io->file_capacity, io->file_count + 1, sizeof *io->files,
                       "I/O files"));
    struct weir_io_file *added = &io->files[io->file_count];
    *added = (struct weir_io_file){.fd = -1, .depth = io->depth, .piece_bytes = io->piece_bytes};
    for (int kind = 0; kind < WEIR_IO_KINDS; kind++)
        added->waiting[kind] = weir_io_list_make(io->strand_next);
    *out = added;
    return weir_strdup(&added->name, name);
}

enum weir_status weir_io_file_open(struct weir_io *io, const char *name, int fd, bool direct,
                                   uint32_t align_bytes, uint32_t *file)
{
    WEIR_TRY(file_check(io, name, fd, direct));
    if (!direct)
        align_bytes = 1;
    else if (align_bytes == 0)
        align_bytes = weir_io_align_ask(fd);
    WEIR_TRY(align_check(io, name, align_bytes));
    struct weir_io_file *added;
    WEIR_TRY(weir_io_file_add(io, name, &added));
    added->fd = fd;
    added->direct = direct;
    added->align_bytes = align_bytes;
    *file = (uint32_t)io->file_count++;
    io->table->file(io->engine, fd);
    return WEIR_OK;
}

void weir_io_files_free(struct weir_io *io)
{
    for (size_t i = 0; i < io->file_count; i++) {
        weir_free(io->files[i].name);
        weir_free(io->files[i].volume);
        weir_free(io->files[i].hashes);
    }
    weir_free(io->files);
}

enum weir_status weir_io_file_buffer(struct weir_io *io, struct weir_io_file *file)
{
    if (io->require_direct)
        return direct_required(file->name);
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags & ~O_DIRECT) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno,
                               "file \"%s\": O_DIRECT cannot be taken back; choose another file "
                               "system",
                               file->name);
    weir_log(io->log, WEIR_LOG_WARNING,
             "file \"%s\": the file system does not take O_DIRECT; transfers go through the page "
             "cache, slower and in memory outside the budget; choose another one",
             file->name);
    file->direct = false;
    file->align_bytes = file->hashes != NULL ? WEIR_IO_VERIFY_BYTES : 1;
    return WEIR_OK;
}

enum weir_status weir_io_file_tune(struct weir_io *io, uint32_t file, uint32_t depth,
                                   uint64_t piece_bytes)
{
    if (file >= io->file_count || io->files[file].volume != NULL)
        return weir_fail(WEIR_ERR_ARG,
                         "io: file %u of %zu cannot be tuned; name a file, not a volume", file,
                         io->file_count);
    struct weir_io_file *tuned = &io->files[file];
    if (io->slot_idle_count < io->slot_count)
        return weir_fail(WEIR_ERR_STATE,
                         "file \"%s\": tuned with %u requests outstanding; reap them first",
                         tuned->name, io->slot_count - io->slot_idle_count);
    if (depth == 0 || depth > io->depth || piece_bytes == 0 || piece_bytes > io->piece_bytes ||
        piece_bytes % WEIR_IO_VERIFY_BYTES != 0 || piece_bytes % tuned->align_bytes != 0)
        return weir_fail(WEIR_ERR_ARG,
                         "file \"%s\": depth %u, pieces of %llu bytes; give 1 to %u, and a "
                         "multiple of %u and %u up to %llu",
                         tuned->name, depth, (unsigned long long)piece_bytes, io->depth,
                         WEIR_IO_VERIFY_BYTES, tuned->align_bytes,
                         (unsigned long long)io->piece_bytes);
    tuned->depth = depth;
    tuned->piece_bytes = piece_bytes;
    return WEIR_OK;
}

/* Over a volume's files, or the one file. */
static const struct weir_io_file *file_at(const struct weir_io *io, uint32_t file, uint32_t index)
{
    const struct weir_io_volume *volume = io->files[file].volume;
    if (volume == NULL)
        return index == 0 ? &io->files[file] : NULL;
    return index < volume->stripes.drive_count ? &io->files[volume->files[index]] : NULL;
}

uint32_t weir_io_file_align_bytes(const struct weir_io *io, uint32_t file)
{
    uint32_t most = 1;
    const struct weir_io_file *at;
    for (uint32_t i = 0; (at = file_at(io, file, i)) != NULL; i++)
        most = at->align_bytes > most ? at->align_bytes : most;
    return most;
}

bool weir_io_file_direct(const struct weir_io *io, uint32_t file)
{
    bool direct = true;
    const struct weir_io_file *at;
    for (uint32_t i = 0; (at = file_at(io, file, i)) != NULL; i++)
        direct = direct && at->direct;
    return direct;
}

void weir_io_file_count(const struct weir_io *io, uint32_t file, struct weir_io_counters *out)
{
    *out = (struct weir_io_counters){0};
    const struct weir_io_file *at;
    for (uint32_t i = 0; (at = file_at(io, file, i)) != NULL; i++) {
        struct weir_io_counters one;
        weir_io_meter_read(&at->meter, &one);
        out->read_bytes += one.read_bytes;
        out->written_bytes += one.written_bytes;
        out->read_ns += one.read_ns;
        out->write_ns += one.write_ns;
        out->bounced_bytes += one.bounced_bytes;
        out->resubmitted_count += one.resubmitted_count;
        out->verified_bytes += one.verified_bytes;
        out->verify_ns += one.verify_ns;
    }
}
