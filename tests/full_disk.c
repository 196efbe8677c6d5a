/*
 * Preloaded into weir-train by e2e.py disk: somebody else takes what is free on the extent's file
 * system just before the extent is reserved. FULL_DISK_LEAVE: how many bytes stay free.
 * FULL_DISK_RESERVE=no: the file system cannot reserve either, so that the writes meet the end.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef int fallocate_fn(int, int, off_t, off_t);

static int reserve(int fd, int mode, off_t offset, off_t bytes)
{
    void *next = dlsym(RTLD_NEXT, "fallocate");
    fallocate_fn *call;
    memcpy(&call, &next, sizeof call);
    return call(fd, mode, offset, bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    const char *folder = getenv("FULL_DISK"), *leave = getenv("FULL_DISK_LEAVE");
    if (bytes < 20 << 20) /* the measurement's file, not the extent */
        return reserve(fd, mode, offset, bytes);
    char path[4096];
    struct statvfs space;
    snprintf(path, sizeof path, "%s/somebody-else", folder);
    int other = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (other < 0 || fstatvfs(other, &space) != 0 ||
        reserve(other, 0, 0, (off_t)(space.f_bavail * space.f_frsize) - strtol(leave, NULL, 10)) !=
            0)
        return -1;
    close(other);
    if (!getenv("FULL_DISK_RESERVE"))
        return reserve(fd, mode, offset, bytes);
    errno = EOPNOTSUPP;
    return -1;
}
