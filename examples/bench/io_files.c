#include "examples/bench/io_files.h"
#include "core/clock.h"
#include "core/file.h"
#include "examples/bench/buffers.h"
#include "examples/bench/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILL_DEPTH 8
#define FILL_BLOCK (UINT64_C(1) << 20)
#define READ_NS    300000000u

static enum weir_status paths_check(const struct text_list *paths)
{
    struct stat all[FLAG_LIST_MOST];
    for (uint32_t i = 0; i < paths->count; i++) {
        if (stat(paths->values[i], &all[i]) != 0)
            return weir_fail_errno(WEIR_ERR_ARG, errno, "--path \"%s\" cannot be used",
                                   paths->values[i]);
        for (uint32_t j = 0; j < i; j++)
            if (all[i].st_dev == all[j].st_dev && all[i].st_ino == all[j].st_ino)
                return weir_fail(WEIR_ERR_ARG,
                                 "--path: \"%s\" and \"%s\" are the same directory; leave one out",
                                 paths->values[j], paths->values[i]);
    }
    return WEIR_OK;
}

static enum weir_status extent_make(struct io_files *files, const char *path, uint64_t bytes)
{
    struct weir_io *io;
    uint32_t at = files->target.file_count;
    struct weir_extent *extent = &files->extents[at];
    struct weir_extent_place place = {.directory = path, .bytes_per_s = 1};
    WEIR_TRY(drives_find(&files->drives, path, &files->where[at]));
    WEIR_TRY(weir_io_open(
        &io, &(struct weir_io_options){.depth = FILL_DEPTH, .request_count = FILL_DEPTH}));
    enum weir_status status =
        weir_extent_open(extent, io,
                         &(struct weir_extent_options){.places = &place,
                                                       .place_count = 1,
                                                       .byte_count = bytes,
                                                       .progress = progress_bytes,
                                                       .progress_context = "writing the file"});
    weir_io_close(io);
    if (status != WEIR_OK)
        return status;
    files->target.files[at] = (struct io_target_file){
        .name = path, .fd = extent->drives[0].fd, .direct = extent->direct, .share = 1};
    files->target.file_count++;
    return WEIR_OK;
}

/* Bytes that do not compress, over all of one file; then a moment of reading: its share of a volume
 * goes by what it does of both. */
static enum weir_status contents_write(struct io_files *files, uint32_t file, uint64_t bytes)
{
    static struct histogram unused;
    struct buffers buffers;
    struct io_sample written, read;
    struct io_target one = files->target;
    struct io_point point = {.pattern = PATTERN_WRITE, .block_bytes = FILL_BLOCK, .depth = 1};
    one.files[0] = files->target.files[file];
    one.file_count = 1;
    one.byte_count = bytes;
    while (point.depth < FILL_DEPTH && 2 * point.depth * FILL_BLOCK <= bytes)
        point.depth *= 2;
    WEIR_TRY(buffers_open(&buffers, io_point_memory(&one, &point), LAYOUT_HUGE, "free some"));
    enum weir_status status =
        io_point_run(&one, &point, buffers.bytes,
                     (struct io_limit){.ns = UINT64_MAX / 2, .bytes = bytes}, &written, &unused);
    point.pattern = PATTERN_READ;
    if (status == WEIR_OK)
        status = io_point_run(&one, &point, buffers.bytes, (struct io_limit){.ns = READ_NS}, &read,
                              &unused);
    buffers_close(&buffers);
    if (status == WEIR_OK)
        files->target.files[file].share = 1 / ((double)written.ns / (double)written.written_bytes +
                                               (double)read.ns / (double)read.read_bytes);
    return status;
}

static enum weir_status extents_make(struct io_files *files, const struct options *o)
{
    WEIR_TRY(paths_check(&o->paths));
    progress_begin("writing files in full", 1 + o->paths.count);
    progress_step("with zeros");
    uint64_t begin_ns = weir_now_ns();
    for (uint32_t i = 0; i < o->paths.count; i++)
        WEIR_TRY(extent_make(files, o->paths.values[i], o->bytes));
    WEIR_TRY(io_target_sync(&files->target));
    files->first_gb_per_s =
        (double)(o->bytes * o->paths.count) / (double)(weir_now_ns() - begin_ns);
    for (uint32_t i = 0; i < o->paths.count; i++) {
        progress_step("\"%s\" with bytes that do not compress", o->paths.values[i]);
        WEIR_TRY(contents_write(files, i, o->bytes));
    }
    return io_target_size(&files->target, o->bytes);
}

/* Holes and blocks that were reserved and never written are read without the drive. */
static enum weir_status full_check(const char *path, int fd, off_t bytes)
{
    off_t hole = lseek(fd, 0, SEEK_HOLE);
    if (hole >= 0 && hole < bytes)
        return weir_fail(WEIR_ERR_ARG,
                         "--file \"%s\": nothing was written at byte %lld; write it in full first",
                         path, (long long)hole);
    return WEIR_OK;
}

static enum weir_status file_take(struct io_files *files, const struct options *o)
{
    struct stat st;
    int fd;
    int flags = options_write(o) ? O_RDWR : O_RDONLY,
        error = weir_file_open(o->file, flags | O_DIRECT, 0, &fd);
    bool direct = error == 0;
    if (error == EINVAL)
        error = weir_file_open(o->file, flags, 0, &fd);
    if (error != 0 || fstat(fd, &st) != 0)
        return weir_fail_errno(WEIR_ERR_ARG, error ? error : errno,
                               "--file \"%s\" cannot be opened", o->file);
    files->given_fd = fd;
    files->target.files[0] =
        (struct io_target_file){.name = o->file, .fd = fd, .direct = direct, .share = 1};
    files->target.file_count = 1;
    files->target.byte_count = (uint64_t)st.st_size;
    if (!S_ISREG(st.st_mode))
        return weir_fail(WEIR_ERR_ARG, "--file \"%s\": not a regular file; give one", o->file);
    WEIR_TRY(drives_find(&files->drives, o->file, &files->where[0]));
    return full_check(o->file, fd, st.st_size);
}

enum weir_status io_files_open(struct io_files *files, const struct options *o)
{
    *files = (struct io_files){.target = {.clock = &io_clock_real}, .given_fd = -1};
    files->target.drives = &files->drives;
    enum weir_status status = o->file ? file_take(files, o) : extents_make(files, o);
    files->direct = true;
    for (uint32_t f = 0; f < files->target.file_count; f++)
        files->direct = files->direct && files->target.files[f].direct;
    progress_end();
    if (status == WEIR_OK)
        return WEIR_OK;
    struct weir_error error = *weir_last_error();
    io_files_close(files);
    return weir_fail_with(&error);
}

void io_files_close(struct io_files *files)
{
    for (uint32_t f = 0; f < FLAG_LIST_MOST; f++)
        weir_extent_close(&files->extents[f]);
    if (files->given_fd >= 0)
        close(files->given_fd);
    files->given_fd = -1;
    files->target.file_count = 0;
}
