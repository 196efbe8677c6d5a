#include "zero/directory.h"
#include "core/file.h"
#include "core/memory.h"
#include "zero/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* NULL with errno. Never through a link: the files there may be another checkpoint's. */
static DIR *directory_open(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0)
        close(fd);
    return dir;
}

static const char *entry_next(DIR *dir)
{
    struct dirent *entry;
    do
        entry = readdir(dir);
    while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    return entry ? entry->d_name : NULL;
}

/* state.json goes last: by it a half removed directory is known (own_check). */
enum weir_status weir_directory_remove(const char *path)
{
    DIR *dir = directory_open(path);
    if (!dir)
        return errno == ENOENT ? WEIR_OK
                               : weir_fail_errno(WEIR_ERR_IO, errno,
                                                 "directory \"%s\": cannot be "
                                                 "opened to remove it",
                                                 path);
    const char *name;
    while ((name = entry_next(dir)) != NULL)
        if (strcmp(name, WEIR_FILE_JSON) != 0)
            unlinkat(dirfd(dir), name, 0);
    unlinkat(dirfd(dir), WEIR_FILE_JSON, 0);
    closedir(dir);
    if (rmdir(path) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno,
                               "directory \"%s\": cannot be removed; remove it "
                               "by hand",
                               path);
    return WEIR_OK;
}

static bool is_directory(DIR *dir, const char *name)
{
    struct stat there;
    return fstatat(dirfd(dir), name, &there, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(there.st_mode);
}

/* Whether a save may delete what stands at `path`: nothing, an empty directory, a checkpoint; as
 * the temporary one, also what a killed save or removal has left. Others' files are not ours. */
static enum weir_status own_check(const struct weir_directory *d, const char *path, bool temporary)
{
    static const char *const parts[] = {WEIR_FILE_JSON, WEIR_FILE_MODEL, WEIR_FILE_STATES};
    DIR *dir = directory_open(path);
    if (!dir)
        return WEIR_OK; /* none, or refused where it is used */
    char held[NAME_MAX + 1] = "";
    bool have[3] = {false, false, false}, nested = false;
    const char *name;
    while (!nested && (name = entry_next(dir)) != NULL) {
        if (temporary && (strcmp(name, "a") == 0 || strcmp(name, "b") == 0))
            continue; /* of exchange_try */
        for (size_t i = 0; i < 3; i++)
            have[i] = have[i] || strcmp(name, parts[i]) == 0;
        nested = is_directory(dir, name);
        snprintf(held, sizeof held, "%s", name);
    }
    closedir(dir);
    bool ours = have[0] && (temporary || (have[1] && have[2]));
    if (held[0] == '\0' || (ours && !nested))
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG,
                     "checkpoint \"%s\": directory \"%s\" holds \"%s\" and is no checkpoint that a "
                     "save may replace; name another directory, or empty this one",
                     d->path, path, held);
}

static void paths_free(struct weir_directory *d)
{
    weir_free(d->path);
    weir_free(d->temporary);
    *d = (struct weir_directory){0};
}

/* Whether two names can change places here. */
static enum weir_status exchange_try(const struct weir_directory *d)
{
    char a[PATH_MAX], b[PATH_MAX];
    WEIR_TRY(weir_directory_path(d, "a", a, sizeof a));
    WEIR_TRY(weir_directory_path(d, "b", b, sizeof b));
    WEIR_TRY(weir_directory_file(d, "a", "", 0));
    WEIR_TRY(weir_directory_file(d, "b", "", 0));
    int error = weir_file_rename(a, b, WEIR_FILE_EXCHANGE);
    unlink(a);
    unlink(b);
    if (error == EINVAL)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "checkpoint \"%s\" exists, and its file system cannot exchange two "
                         "directories at once; save under a new name",
                         d->path);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error,
                               "checkpoint \"%s\": files in \"%s\" cannot be "
                               "renamed",
                               d->path, d->temporary);
    return WEIR_OK;
}

static enum weir_status begin(struct weir_directory *d, const char *path)
{
    WEIR_TRY(weir_strdup(&d->path, path));
    for (size_t n = strlen(d->path); n > 1 && d->path[n - 1] == '/'; n--)
        d->path[n - 1] = '\0';
    size_t bytes = strlen(d->path) + sizeof ".tmp";
    WEIR_TRY(weir_alloc(&d->temporary, bytes, 1, "path"));
    snprintf(d->temporary, bytes, "%s.tmp", d->path);
    struct stat there;
    bool exists = lstat(d->path, &there) == 0;
    if (exists && !S_ISDIR(there.st_mode))
        return weir_fail(
            WEIR_ERR_ARG,
            "checkpoint \"%s\": a link or file of that name is in the way; name another "
            "directory",
            d->path);
    WEIR_TRY(own_check(d, d->path, false));
    WEIR_TRY(own_check(d, d->temporary, true));
    WEIR_TRY(weir_directory_remove(d->temporary));
    if (mkdir(d->temporary, 0777) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno,
                               "checkpoint \"%s\": directory \"%s\" cannot be "
                               "made",
                               d->path, d->temporary);
    if (!exists || exchange_try(d) == WEIR_OK)
        return WEIR_OK;
    struct weir_error error = *weir_last_error();
    (void)weir_directory_remove(d->temporary);
    return weir_fail_with(&error);
}

enum weir_status weir_directory_begin(struct weir_directory *directory, const char *path)
{
    *directory = (struct weir_directory){0};
    enum weir_status status = begin(directory, path);
    if (status != WEIR_OK)
        paths_free(directory);
    return status;
}

enum weir_status weir_directory_path(const struct weir_directory *directory, const char *name,
                                     char *out, size_t out_bytes)
{
    int n = snprintf(out, out_bytes, "%s/%s", directory->temporary, name);
    if (n < 0 || (size_t)n >= out_bytes || strchr(name, '/'))
        return weir_fail(WEIR_ERR_ARG,
                         "checkpoint \"%s\": file name \"%s\" is too long or has a "
                         "slash",
                         directory->path, name);
    return WEIR_OK;
}

enum weir_status weir_directory_file(const struct weir_directory *directory, const char *name,
                                     const void *bytes, size_t byte_count)
{
    char path[PATH_MAX];
    WEIR_TRY(weir_directory_path(directory, name, path, sizeof path));
    int fd = -1;
    int error = weir_file_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666, &fd);
    if (!error)
        error = weir_file_write(fd, bytes, byte_count, 0);
    if (!error)
        error = weir_file_sync(fd);
    if (fd >= 0)
        close(fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error,
                               "checkpoint file \"%s\": %zu bytes cannot be "
                               "written",
                               path, byte_count);
    return WEIR_OK;
}

enum weir_status weir_directory_sync(const char *path)
{
    int fd = -1;
    int error = weir_file_open(path, O_RDONLY | O_DIRECTORY, 0, &fd);
    if (!error)
        error = weir_file_sync(fd);
    if (fd >= 0)
        close(fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "directory \"%s\": cannot be synced", path);
    return WEIR_OK;
}

static enum weir_status place(struct weir_directory *d, struct weir_log *log)
{
    WEIR_TRY(weir_directory_sync(d->temporary));
    bool exists = access(d->path, F_OK) == 0;
    int error =
        weir_file_rename(d->temporary, d->path, exists ? WEIR_FILE_EXCHANGE : WEIR_FILE_NEW);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error,
                               "checkpoint \"%s\": \"%s\" cannot be renamed to "
                               "it",
                               d->path, d->temporary);
    d->placed = true;
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", d->path);
    WEIR_TRY(weir_directory_sync(dirname(parent)));
    if (exists && weir_directory_remove(d->temporary) != WEIR_OK)
        weir_log(log, WEIR_LOG_WARNING,
                 "checkpoint \"%s\" is saved; the one before is left over: %s", d->path,
                 weir_last_error()->text);
    return WEIR_OK;
}

enum weir_status weir_directory_commit(struct weir_directory *directory, struct weir_log *log)
{
    enum weir_status status = place(directory, log);
    if (status != WEIR_OK) {
        struct weir_error error = *weir_last_error();
        weir_directory_abandon(directory);
        return weir_fail_with(&error);
    }
    paths_free(directory);
    return status;
}

/* Once in its place the new one is whole, and the one before stays too until the rename is known to
 * last. */
void weir_directory_abandon(struct weir_directory *directory)
{
    if (directory->temporary && !directory->placed)
        (void)weir_directory_remove(directory->temporary);
    paths_free(directory);
}
