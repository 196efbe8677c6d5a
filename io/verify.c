#include "core/clock.h"
#include "core/memory.h"
#include "io/io_internal.h"

#include <errno.h>
#include <sys/stat.h>
#include <xxhash.h>

uint64_t weir_io_verify_bytes(uint64_t byte_count)
{
    return (byte_count / WEIR_IO_VERIFY_BYTES + (byte_count % WEIR_IO_VERIFY_BYTES != 0)) *
           sizeof(uint32_t);
}

static enum weir_status verify_check(const struct weir_io *io, uint32_t file, uint64_t byte_count)
{
    if (file >= io->file_count || io->files[file].volume != NULL)
        return weir_fail(WEIR_ERR_ARG,
                         "io: file %u of %zu cannot be verified; name a file, not a "
                         "volume",
                         file, io->file_count);
    const struct weir_io_file *of = &io->files[file];
    if (io->slot_idle_count < io->slot_count || of->hashes != NULL)
        return weir_fail(WEIR_ERR_STATE,
                         "file \"%s\": verification is set up once, with no request outstanding; "
                         "%u are",
                         of->name, io->slot_count - io->slot_idle_count);
    struct stat stat;
    if (fstat(of->fd, &stat) != 0)
        return weir_fail_errno(WEIR_ERR_ARG, errno, "file \"%s\": its length is unknown", of->name);
    if ((uint64_t)stat.st_size != byte_count || byte_count % of->align_bytes != 0 ||
        byte_count % WEIR_IO_VERIFY_BYTES != 0)
        return weir_fail(WEIR_ERR_ARG,
                         "file \"%s\": %llu of its %llu bytes to verify; give all, a multiple of "
                         "%u and of %u",
                         of->name, (unsigned long long)byte_count, (unsigned long long)stat.st_size,
                         WEIR_IO_VERIFY_BYTES, of->align_bytes);
    return WEIR_OK;
}

enum weir_status weir_io_file_verify(struct weir_io *io, uint32_t file, uint64_t byte_count)
{
    WEIR_TRY(verify_check(io, file, byte_count));
    struct weir_io_file *of = &io->files[file];
    WEIR_TRY(weir_alloc(&of->hashes, byte_count / WEIR_IO_VERIFY_BYTES, sizeof *of->hashes,
                        "hashes of a verified file"));
    of->verified_bytes = byte_count;
    if (of->align_bytes < WEIR_IO_VERIFY_BYTES)
        of->align_bytes = WEIR_IO_VERIFY_BYTES;
    return WEIR_OK;
}

/* 0 is for blocks that were not written. */
static uint32_t block_hash(const unsigned char *bytes)
{
    uint32_t hash = (uint32_t)XXH3_64bits(bytes, WEIR_IO_VERIFY_BYTES);
    return hash != 0 ? hash : 1;
}

static void cost_count(struct weir_io *io, struct weir_io_file *file, uint64_t bytes,
                       uint64_t begin_ns)
{
    uint64_t took_ns = weir_now_ns() - begin_ns;
    io->meter.counters.verified_bytes += bytes;
    io->meter.counters.verify_ns += took_ns;
    file->meter.counters.verified_bytes += bytes;
    file->meter.counters.verify_ns += took_ns;
}

void weir_io_verify_keep(struct weir_io *io, struct weir_io_file *file,
                         const struct weir_io_part *part)
{
    uint64_t begin_ns = weir_now_ns();
    uint32_t *hashes = file->hashes + part->low / WEIR_IO_VERIFY_BYTES;
    uint64_t count = (part->high - part->low) / WEIR_IO_VERIFY_BYTES;
    for (uint64_t i = 0; i < count; i++)
        hashes[i] = block_hash(part->bytes + i * WEIR_IO_VERIFY_BYTES);
    cost_count(io, file, part->high - part->low, begin_ns);
}

enum weir_status weir_io_verify_compare(struct weir_io *io, struct weir_io_file *file,
                                        const struct weir_io_part *part)
{
    uint64_t begin_ns = weir_now_ns();
    const uint32_t *hashes = file->hashes + part->low / WEIR_IO_VERIFY_BYTES;
    uint64_t count = (part->high - part->low) / WEIR_IO_VERIFY_BYTES, bad = count;
    uint32_t found = 0;
    for (uint64_t i = 0; i < count && bad == count; i++) {
        if (hashes[i] == 0)
            continue;
        found = block_hash(part->bytes + i * WEIR_IO_VERIFY_BYTES);
        bad = found == hashes[i] ? count : i;
    }
    cost_count(io, file, part->high - part->low, begin_ns);
    if (bad == count)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_CORRUPT,
                     "file \"%s\": the %u bytes at %llu read back with hash %08x, written with "
                     "%08x; the drive changed them, replace it and resume from a checkpoint",
                     file->name, WEIR_IO_VERIFY_BYTES,
                     (unsigned long long)(part->low + bad * WEIR_IO_VERIFY_BYTES), found,
                     hashes[bad]);
}
