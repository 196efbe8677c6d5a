#include "examples/replace.h"
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MOST 40 /* as the kernel follows */

static enum weir_status too_long(const struct replace *r)
{
    return weir_fail(WEIR_ERR_ARG,
                     "%s: a path of %zu characters, or where it leads, is too long; give one of "
                     "less than %zu",
                     r->what, strlen(r->path), PATH_MAX - sizeof REPLACE_SUFFIX);
}

/* Not realpath, which needs something at the end. */
static enum weir_status links_follow(struct replace *r)
{
    for (int i = 0; i < LINKS_MOST; i++) {
        char link[PATH_MAX];
        ssize_t length = readlink(r->target, link, sizeof link);
        if (length < 0)
            return WEIR_OK; /* no link; or what its opening will say */
        const char *slash = *link == '/' ? NULL : strrchr(r->target, '/');
        size_t folder = slash ? (size_t)(slash - r->target) + 1 : 0;
        if (folder + (size_t)length >= sizeof r->target)
            return too_long(r);
        memcpy(r->target + folder, link, (size_t)length);
        r->target[folder + (size_t)length] = 0;
    }
    return weir_fail(WEIR_ERR_ARG, "%s \"%s\": more than %d links; name the file itself", r->what,
                     r->path, LINKS_MOST);
}

enum weir_status replace_find(struct replace *r, const char *what, const char *path)
{
    struct stat st;
    *r = (struct replace){.what = what, .path = path, .fd = -1};
    if (strlen(path) >= sizeof r->target)
        return too_long(r);
    strcpy(r->target, path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return WEIR_OK;
    WEIR_TRY(links_follow(r));
    if ((size_t)snprintf(r->beside, sizeof r->beside, "%s" REPLACE_SUFFIX, r->target) >=
        sizeof r->beside)
        return too_long(r);
    return WEIR_OK;
}

enum weir_status replace_place(const struct replace *r)
{
    int error = weir_file_rename(r->beside, r->target, WEIR_FILE_REPLACE);
    if (!error)
        return WEIR_OK;
    unlink(r->beside);
    return weir_fail_errno(WEIR_ERR_IO, error, "%s \"%s\": \"%s\" cannot be renamed to \"%s\"",
                           r->what, r->path, r->beside, r->target);
}

enum weir_status replace_begin(struct replace *r, const char *what, const char *path)
{
    WEIR_TRY(replace_find(r, what, path));
    bool whole = *r->beside;
    const char *name = whole ? r->beside : r->target;
    if (whole)
        unlink(name);
    int error =
        weir_file_open(name, O_WRONLY | O_NOCTTY | (whole ? O_CREAT | O_EXCL : 0), 0666, &r->fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error,
                               "%s \"%s\": \"%s\" cannot be opened; name a file that can be made",
                               what, path, name);
    struct stat st;
    if (whole && stat(r->target, &st) == 0)
        (void)fchmod(r->fd, st.st_mode & 0777); /* who may read the old one may read the new */
    return WEIR_OK;
}

/* A pipe has no offsets. */
static int stream_write(int fd, const char *bytes, size_t byte_count)
{
    while (byte_count > 0) {
        ssize_t n = write(fd, bytes, byte_count);
        if (n < 0 && errno != EINTR)
            return errno;
        bytes += n > 0 ? n : 0;
        byte_count -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

enum weir_status replace_write(struct replace *r, const void *bytes, size_t byte_count)
{
    int error = *r->beside ? weir_file_write(r->fd, bytes, byte_count, r->byte_count)
                           : stream_write(r->fd, bytes, byte_count);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error,
                               "%s \"%s\": %zu bytes at %llu cannot be written; free some space or "
                               "name another file",
                               r->what, r->path, byte_count, (unsigned long long)r->byte_count);
    r->byte_count += byte_count;
    return WEIR_OK;
}

enum weir_status replace_end(struct replace *r, enum weir_status status)
{
    bool whole = *r->beside;
    int error = status == WEIR_OK && whole ? weir_file_sync(r->fd) : 0;
    if (close(r->fd) != 0 && !error)
        error = errno;
    r->fd = -1;
    if (error && status == WEIR_OK)
        status = weir_fail_errno(WEIR_ERR_IO, error,
                                 "%s \"%s\": what was written is not on the drive; free some space "
                                 "or name another file",
                                 r->what, r->path);
    if (status == WEIR_OK)
        return whole ? replace_place(r) : WEIR_OK;
    if (whole)
        unlink(r->beside);
    return status;
}
