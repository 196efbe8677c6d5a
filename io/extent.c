#include "io/extent.h"
#include "core/file.h"
#include "core/memory.h"
#include "io/extent_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define EXTENT_ALIGN_BYTES 4096u
#define FILL_BYTES         (8u << 20) /* of one request, cut into pieces by the front */
#define FILL_ALIGN_BYTES   65536u
#define FILL_COUNT         2u /* requests of each drive */
#define FILL_DRIVE_BITS    8u /* of a request's id; the rest are its bytes */
#define NAMES_MOST         100u

/* An unlinked file of the directory; 0 or an errno. */
static int unlinked_open(const char *directory, int flags, int *fd)
{
    flags |= O_RDWR;
    int error = weir_file_open(directory, O_TMPFILE | flags, 0600, fd);
    if (error != EOPNOTSUPP && error != EISDIR)
        return error;
    for (unsigned number = 0; number < NAMES_MOST; number++) {
        char path[PATH_MAX];
        int length =
            snprintf(path, sizeof path, "%s/weir-extent-%ld-%u", directory, (long)getpid(), number);
        if (length < 0 || (size_t)length >= sizeof path)
            return ENAMETOOLONG;
        error = weir_file_open(path, O_CREAT | O_EXCL | flags, 0600, fd);
        if (error == 0)
            unlink(path);
        if (error != EEXIST)
            return error;
    }
    return EEXIST;
}

/* The drive's file, still empty, known to the front. */
static enum weir_status drive_open(struct weir_extent_drive *drive, struct weir_io *io,
                                   struct weir_log *log)
{
    bool direct = true;
    int error = unlinked_open(drive->path, O_DIRECT, &drive->fd);
    if (error == EINVAL) {
        direct = false;
        error = unlinked_open(drive->path, 0, &drive->fd);
    }
    if (error) {
        drive->fd = -1;
        return weir_fail_errno(WEIR_ERR_IO, error, "extent \"%s\": no file can be made there",
                               drive->path);
    }
    WEIR_TRY(weir_io_file_open(io, drive->path, drive->fd, direct, 0, &drive->file));
    if (!direct)
        weir_log(log, WEIR_LOG_WARNING,
                 "extent \"%s\": the file system does not take O_DIRECT; transfers go through the "
                 "page cache, slower and in memory outside the budget; choose another directory",
                 drive->path);
    return WEIR_OK;
}

static enum weir_status drive_reserve(struct weir_extent_drive *drive, struct weir_io *io,
                                      bool verify)
{
    if (drive->byte_count == 0)
        return WEIR_OK;
    int error = weir_file_reserve(drive->fd, drive->byte_count);
    if (error != 0)
        return weir_fail_errno(
            WEIR_ERR_IO, error, "extent \"%s\": %llu bytes cannot be reserved; %s", drive->path,
            (unsigned long long)drive->byte_count,
            error == EFBIG ? "raise the limit of file sizes (ulimit -f) or add a directory"
                           : "free some there or choose another directory");
    return verify ? weir_io_file_verify(io, drive->file, drive->byte_count) : WEIR_OK;
}

/* Never written, so it takes no memory but the kernel's page of zeros, and it outlives any write.
 */
static unsigned char zeros[FILL_BYTES] __attribute__((aligned(FILL_ALIGN_BYTES)));

struct fill {
    struct weir_extent *extent;
    struct weir_io *io;
    uint64_t begun_bytes[WEIR_IO_DRIVES_MOST];
    uint32_t outstanding[WEIR_IO_DRIVES_MOST];
    uint32_t outstanding_count;
    uint64_t done_bytes, all_bytes;
    struct weir_error error; /* the first; those outstanding are still reaped */
};

static void fill_begin(struct fill *fill, uint32_t d)
{
    const struct weir_extent_drive *drive = &fill->extent->drives[d];
    uint64_t left = drive->byte_count - fill->begun_bytes[d];
    uint64_t bytes = left < FILL_BYTES ? left : FILL_BYTES;
    struct weir_io_request request = {.id = bytes << FILL_DRIVE_BITS | d,
                                      .kind = WEIR_IO_WRITE,
                                      .file = drive->file,
                                      .offset_bytes = fill->begun_bytes[d],
                                      .bytes = zeros,
                                      .byte_count = bytes};
    if (weir_io_submit(fill->io, &request, 1) != WEIR_OK) {
        fill->error = *weir_last_error();
        return;
    }
    fill->begun_bytes[d] += bytes;
    fill->outstanding[d]++;
    fill->outstanding_count++;
}

static void drives_begin(struct fill *fill)
{
    for (uint32_t d = 0; d < fill->extent->drive_count; d++)
        while (fill->error.status == WEIR_OK && fill->outstanding[d] < FILL_COUNT &&
               fill->begun_bytes[d] < fill->extent->drives[d].byte_count)
            fill_begin(fill, d);
}

static enum weir_status fill_run(struct weir_extent *extent, struct weir_io *io,
                                 const struct weir_extent_options *options)
{
    struct fill fill = {.extent = extent, .io = io};
    for (uint32_t d = 0; d < extent->drive_count; d++)
        fill.all_bytes += extent->drives[d].byte_count;
    for (;;) {
        drives_begin(&fill);
        if (fill.outstanding_count == 0)
            return fill.error.status == WEIR_OK ? WEIR_OK : weir_fail_with(&fill.error);
        struct weir_io_result result;
        size_t count;
        WEIR_TRY(weir_io_reap(io, &result, 1, WEIR_IO_FOREVER, &count));
        if (count == 0)
            continue;
        fill.outstanding_count--;
        fill.outstanding[result.id % (1u << FILL_DRIVE_BITS)]--;
        fill.done_bytes += result.id >> FILL_DRIVE_BITS;
        if (fill.error.status == WEIR_OK)
            fill.error = result.error;
        if (fill.error.status == WEIR_OK && options->progress != NULL)
            options->progress(options->progress_context, fill.done_bytes, fill.all_bytes);
    }
}

/* Of drives that take less than their rate would give them, and of those that take nothing. */
static void shortage_log(const struct weir_extent *extent, const struct weir_extent_spread *spread,
                         struct weir_log *log)
{
    for (uint32_t d = 0; d < extent->drive_count; d++)
        if (spread->wishes[d] == 0)
            weir_log(
                log, WEIR_LOG_WARNING,
                "extent \"%s\": has less than 1/%u of the rate of all %u directories and is left "
                "out, as it would slow the others by more; name it no longer",
                extent->drives[d].path, WEIR_IO_STRIPES_MOST, extent->drive_count);
        else if (spread->shares[d] < spread->wishes[d] * (1 - 1e-9))
            weir_log(log, WEIR_LOG_WARNING,
                     "extent \"%s\": %llu bytes free, %.0f would be its share by rate; it takes "
                     "%llu and the other drives the rest, so all are slower; free some there",
                     extent->drives[d].path, (unsigned long long)spread->free_bytes[d],
                     spread->wishes[d] * (double)spread->needed_bytes,
                     (unsigned long long)spread->bytes[d]);
}

static enum weir_status drives_open(struct weir_extent *extent, struct weir_io *io,
                                    const struct weir_extent_options *options,
                                    const struct weir_extent_spread *spread)
{
    for (uint32_t d = 0; d < options->place_count; d++) {
        struct weir_extent_drive *drive = &extent->drives[extent->drive_count++];
        *drive = (struct weir_extent_drive){.fd = -1, .share = spread->shares[d]};
        WEIR_TRY(weir_strdup(&drive->path, options->places[d].directory));
        if (drive->share == 0)
            continue;
        WEIR_TRY(drive_open(drive, io, options->log));
        uint64_t align = weir_io_file_align_bytes(io, drive->file);
        drive->byte_count = (spread->bytes[d] + align - 1) / align * align;
        WEIR_TRY(drive_reserve(drive, io, options->verify));
    }
    return WEIR_OK;
}

static enum weir_status volume_open(struct weir_extent *extent, struct weir_io *io,
                                    uint64_t stripe_bytes)
{
    uint32_t files[WEIR_IO_DRIVES_MOST], count = 0;
    double shares[WEIR_IO_DRIVES_MOST];
    for (uint32_t d = 0; d < extent->drive_count; d++) {
        if (extent->drives[d].fd < 0)
            continue;
        files[count] = extent->drives[d].file;
        shares[count++] = extent->drives[d].share;
    }
    extent->file = files[0];
    if (count == 1)
        return WEIR_OK;
    return weir_io_volume_open(io, "extent", files, shares, count, stripe_bytes, &extent->file);
}

static enum weir_status extent_make(struct weir_extent *extent, struct weir_io *io,
                                    const struct weir_extent_options *options,
                                    const struct weir_extent_spread *spread)
{
    WEIR_TRY(drives_open(extent, io, options, spread));
    shortage_log(extent, spread, options->log);
    WEIR_TRY(volume_open(extent, io, spread->stripe_bytes));
    WEIR_TRY(fill_run(extent, io, options));
    extent->direct = weir_io_file_direct(io, extent->file);
    return WEIR_OK;
}

enum weir_status weir_extent_open(struct weir_extent *extent, struct weir_io *io,
                                  const struct weir_extent_options *options)
{
    *extent = (struct weir_extent){.byte_count = options->byte_count};
    struct weir_extent_spread spread;
    enum weir_status status;
    if (options->byte_count == 0 || options->byte_count % EXTENT_ALIGN_BYTES != 0)
        status = weir_fail(WEIR_ERR_ARG, "extent: %llu bytes; give a positive multiple of %u",
                           (unsigned long long)options->byte_count, EXTENT_ALIGN_BYTES);
    else
        status =
            weir_extent_spread(&spread, options->places, options->place_count, options->byte_count);
    if (status == WEIR_OK)
        status = extent_make(extent, io, options, &spread);
    if (status != WEIR_OK) {
        weir_extent_close(extent);
        return status;
    }
    for (uint32_t d = 0; d < extent->drive_count; d++)
        if (extent->drives[d].fd >= 0)
            weir_log(options->log, WEIR_LOG_INFO, "extent \"%s\": %llu of %llu bytes, %s, pid %ld",
                     extent->drives[d].path, (unsigned long long)extent->drives[d].byte_count,
                     (unsigned long long)extent->byte_count,
                     weir_io_file_direct(io, extent->drives[d].file) ? "O_DIRECT" : "buffered",
                     (long)getpid());
    return WEIR_OK;
}

void weir_extent_close(struct weir_extent *extent)
{
    for (uint32_t d = 0; d < extent->drive_count; d++) {
        if (extent->drives[d].fd >= 0)
            close(extent->drives[d].fd);
        weir_free(extent->drives[d].path);
    }
    *extent = (struct weir_extent){.byte_count = 0};
}

uint64_t weir_extent_verify_bytes(uint64_t byte_count, uint32_t place_count)
{
    return weir_io_verify_bytes(byte_count + (uint64_t)place_count * FILL_ALIGN_BYTES);
}
