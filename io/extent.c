#include "io/extent.h"
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define EXTENT_ALIGN_BYTES 4096u
#define FILL_BYTES         (8u << 20) /* of one request, cut into pieces by the front */
#define FILL_ALIGN_BYTES   65536u
#define FILL_COUNT         2
#define NAMES_MOST         100u

enum weir_status weir_extent_preflight(const char *directory, uint64_t bytes)
{
    struct stat stat_;
    if (stat(directory, &stat_) != 0)
        return weir_fail_errno(WEIR_ERR_ARG, errno, "extent \"%s\": no such directory", directory);
    if (!S_ISDIR(stat_.st_mode))
        return weir_fail(WEIR_ERR_ARG, "extent \"%s\": not a directory", directory);
    if (access(directory, W_OK | X_OK) != 0)
        return weir_fail_errno(WEIR_ERR_ARG, errno, "extent \"%s\": cannot be written", directory);
    struct statvfs space;
    if (statvfs(directory, &space) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "extent \"%s\": free space unknown", directory);
    uint64_t blocks = bytes / space.f_frsize + (bytes % space.f_frsize != 0);
    if (blocks > space.f_bavail)
        return weir_fail(WEIR_ERR_NOSPACE,
                         "extent \"%s\": need %llu bytes, %llu free; free some there or choose "
                         "another directory",
                         directory, (unsigned long long)bytes,
                         (unsigned long long)(space.f_bavail * space.f_frsize));
    return WEIR_OK;
}

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

static enum weir_status direct_refuse(const char *directory, bool require_direct,
                                      struct weir_log *log)
{
    if (require_direct)
        return weir_fail(
            WEIR_ERR_UNSUPPORTED,
            "extent \"%s\": the file system does not take O_DIRECT, which is required; "
            "choose another directory or do not require it",
            directory);
    weir_log(log, WEIR_LOG_WARNING,
             "extent \"%s\": the file system does not take O_DIRECT; transfers go through the page "
             "cache, slower and in memory outside the budget; choose another directory",
             directory);
    return WEIR_OK;
}

static enum weir_status file_make(struct weir_extent *extent, const char *directory,
                                  bool require_direct, struct weir_log *log)
{
    extent->direct = true;
    int error = unlinked_open(directory, O_DIRECT, &extent->fd);
    if (error == EINVAL) {
        WEIR_TRY(direct_refuse(directory, require_direct, log));
        extent->direct = false;
        error = unlinked_open(directory, 0, &extent->fd);
    }
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "extent \"%s\": no file can be made there",
                               directory);
    if (fallocate(extent->fd, 0, 0, (off_t)extent->byte_count) == 0)
        return WEIR_OK;
    if (errno == EOPNOTSUPP && ftruncate(extent->fd, (off_t)extent->byte_count) == 0)
        return WEIR_OK;
    return weir_fail_errno(
        WEIR_ERR_IO, errno,
        "extent \"%s\": %llu bytes cannot be reserved; free some there or choose "
        "another directory",
        directory, (unsigned long long)extent->byte_count);
}

static enum weir_status file_register(struct weir_extent *extent, struct weir_io *io,
                                      const char *directory)
{
    WEIR_TRY(weir_io_file_open(io, directory, extent->fd, extent->direct, 0, &extent->file));
    extent->align_bytes = weir_io_file_align_bytes(io, extent->file);
    return WEIR_OK;
}

/* Never written, so it takes no memory but the kernel's page of zeros, and it outlives any write.
 */
static unsigned char zeros[FILL_BYTES] __attribute__((aligned(FILL_ALIGN_BYTES)));

struct fill {
    struct weir_extent *extent;
    struct weir_io *io;
    uint64_t begun_bytes, done_bytes;
    uint32_t outstanding;
    struct weir_error error; /* the first; those outstanding are still reaped */
};

static void fill_begin(struct fill *fill)
{
    uint64_t left = fill->extent->byte_count - fill->begun_bytes;
    uint64_t bytes = left < FILL_BYTES ? left : FILL_BYTES;
    struct weir_io_request request = {.id = bytes,
                                      .kind = WEIR_IO_WRITE,
                                      .file = fill->extent->file,
                                      .offset_bytes = fill->begun_bytes,
                                      .bytes = zeros,
                                      .byte_count = bytes};
    if (weir_io_submit(fill->io, &request, 1) != WEIR_OK) {
        fill->error = *weir_last_error();
        return;
    }
    fill->begun_bytes += bytes;
    fill->outstanding++;
}

static enum weir_status fill_run(struct weir_extent *extent, struct weir_io *io,
                                 weir_progress_fn *progress, void *progress_context)
{
    struct fill fill = {.extent = extent, .io = io};
    for (;;) {
        while (fill.error.status == WEIR_OK && fill.outstanding < FILL_COUNT &&
               fill.begun_bytes < extent->byte_count)
            fill_begin(&fill);
        if (fill.outstanding == 0)
            return fill.error.status == WEIR_OK ? WEIR_OK : weir_fail_with(&fill.error);
        struct weir_io_result result;
        size_t count;
        WEIR_TRY(weir_io_reap(io, &result, 1, WEIR_IO_FOREVER, &count));
        if (count == 0)
            continue;
        fill.outstanding--;
        fill.done_bytes += result.id;
        if (fill.error.status == WEIR_OK)
            fill.error = result.error;
        if (fill.error.status == WEIR_OK && progress != NULL)
            progress(progress_context, fill.done_bytes, extent->byte_count);
    }
}

static enum weir_status extent_make(struct weir_extent *extent, struct weir_io *io,
                                    const char *directory, bool require_direct,
                                    struct weir_log *log, weir_progress_fn *progress,
                                    void *progress_context)
{
    WEIR_TRY(file_make(extent, directory, require_direct, log));
    WEIR_TRY(file_register(extent, io, directory));
    enum weir_status status = fill_run(extent, io, progress, progress_context);
    if (status != WEIR_ERR_IO || weir_last_error()->os_errno != EINVAL || !extent->direct)
        return status;
    /* The file system took O_DIRECT at open and refuses it at the first write. */
    WEIR_TRY(direct_refuse(directory, require_direct, log));
    if (fcntl(extent->fd, F_SETFL, 0) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "extent \"%s\": O_DIRECT cannot be taken back",
                               directory);
    extent->direct = false;
    WEIR_TRY(file_register(extent, io, directory));
    return fill_run(extent, io, progress, progress_context);
}

enum weir_status weir_extent_open(struct weir_extent *extent, struct weir_io *io,
                                  const char *directory, uint64_t bytes, bool require_direct,
                                  struct weir_log *log, weir_progress_fn *progress,
                                  void *progress_context)
{
    *extent = (struct weir_extent){.fd = -1};
    if (bytes == 0 || bytes % EXTENT_ALIGN_BYTES != 0)
        return weir_fail(WEIR_ERR_ARG, "extent \"%s\": %llu bytes; give a positive multiple of %u",
                         directory, (unsigned long long)bytes, EXTENT_ALIGN_BYTES);
    WEIR_TRY(weir_extent_preflight(directory, bytes));
    extent->byte_count = bytes;
    enum weir_status status =
        extent_make(extent, io, directory, require_direct, log, progress, progress_context);
    if (status != WEIR_OK) {
        weir_extent_close(extent);
        return status;
    }
    weir_log(log, WEIR_LOG_INFO, "extent \"%s\": %llu bytes, %s, pid %ld", directory,
             (unsigned long long)bytes, extent->direct ? "O_DIRECT" : "buffered", (long)getpid());
    return WEIR_OK;
}

void weir_extent_close(struct weir_extent *extent)
{
    if (extent->byte_count > 0 && extent->fd >= 0)
        close(extent->fd);
    *extent = (struct weir_extent){.fd = -1};
}
